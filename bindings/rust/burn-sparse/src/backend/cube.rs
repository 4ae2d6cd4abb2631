//! CubeCL's backends: CUDA goes to the library, the others to Burn's own operations.

use burn::tensor::ops::FloatTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use sparse_autotune::Effort;
#[cfg(feature = "cuda")]
use sparse_autotune::{Race, Result};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{Saved, SparseBackend, fallback};
use crate::attention::AttentionOptions;
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
        #[cfg_attr(not(feature = "cuda"), allow(unused_variables))] effort: Effort,
    ) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if cuda::serves(&left) {
            return cuda::sampled::<Self, R>(pattern, left, right, alpha, effort);
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

    fn bsr_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sinks: Option<FloatTensor<Self>>,
        options: &AttentionOptions,
        lse: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        #[cfg(feature = "cuda")]
        if cuda::serves(&q) {
            return cuda::attention::<Self, R>(q, k, v, sinks, options, lse);
        }
        fallback::attention::<Self>(q, k, v, sinks, options, lse)
    }

    fn bsr_attention_backward(
        saved: Saved<Self>,
        grad: FloatTensor<Self>,
        options: &AttentionOptions,
    ) -> ([FloatTensor<Self>; 3], Option<FloatTensor<Self>>) {
        #[cfg(feature = "cuda")]
        if cuda::serves(&saved.q) {
            return cuda::attention_backward::<Self, R>(saved, grad, options);
        }
        fallback::attention_backward::<Self>(saved, grad, options)
    }
}
