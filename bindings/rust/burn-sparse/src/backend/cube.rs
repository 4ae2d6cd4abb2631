//! CubeCL's backends: CUDA goes to the library, the others to Burn's own operations.

use burn::tensor::ops::FloatTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
#[cfg(feature = "cuda")]
use sparse_autotune::{Race, Result};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{SparseBackend, fallback};
use crate::pattern::BsrPattern;
use crate::spec::MatmulSpec;

impl<R, F, I, T> SparseBackend for CubeBackend<R, F, I, T>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    T: BoolElement,
{
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if cuda::serves(&values) {
            return cuda::matmul::<Self, R>(pattern, values, dense, bias, spec);
        }
        fallback::matmul::<Self>(pattern, values, dense, bias, spec)
    }

    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
    ) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if cuda::serves(&left) {
            return cuda::sampled::<Self, R>(pattern, left, right, alpha);
        }
        fallback::sampled::<Self>(pattern, left, right, alpha)
    }

    #[cfg(feature = "cuda")]
    fn bsr_race(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> Result<Option<Race>> {
        if cuda::serves(&values) {
            return cuda::race::<Self, R>(pattern, values, dense, bias, spec).map(Some);
        }
        Ok(None)
    }
}
