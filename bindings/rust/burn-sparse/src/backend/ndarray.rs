//! NdArray: the arrays' own memory, copied only where the library cannot walk it.

use burn::backend::NdArray;
use burn::backend::ndarray::{FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{TensorData, TensorMetadata};
use sparse_autotune::{Element, Race, Result};

use super::host::{self, Dense};
use super::{SparseBackend, fit_matmul, fit_sampled};
use crate::pattern::BsrPattern;
use crate::spec::{MatmulSpec, Sizes, Strides};

/// A dtype of NdArray's.
trait Float: Element + burn::tensor::Element {
    fn array(tensor: NdArrayTensor) -> SharedArray<Self>;
}

macro_rules! float {
    ($type:ty, $name:ident) => {
        impl Float for $type {
            fn array(tensor: NdArrayTensor) -> SharedArray<Self> {
                match tensor {
                    NdArrayTensor::$name(storage) => storage.into_shared(),
                    other => panic!("values are {:?}, expected {}", other.dtype(), stringify!($name)),
                }
            }
        }
    };
}
float!(f32, F32);
float!(f64, F64);

/// Calls a function of a dtype with that of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match &$tensor {
            NdArrayTensor::F32(_) => $function::<f32>($($argument),*),
            NdArrayTensor::F64(_) => $function::<f64>($($argument),*),
            other => panic!("values are {:?}: expected f32 or f64, which is what NdArray computes with", other.dtype()),
        }
    };
}

/// The array, in standard layout.
fn standard<T: Float>(tensor: NdArrayTensor) -> SharedArray<T> {
    let array = T::array(tensor);
    if array.is_standard_layout() { array } else { array.as_standard_layout().into_owned().into_shared() }
}

/// The array with strides that the library can walk.
fn walkable<T: Float>(tensor: NdArrayTensor) -> (SharedArray<T>, Strides) {
    let array = T::array(tensor);
    if let Some(strides) = Strides::new(array.shape(), array.strides()) {
        return (array, strides);
    }
    let array = array.as_standard_layout().into_owned().into_shared();
    let strides = Strides::new(array.shape(), array.strides()).expect("standard layout goes forwards");
    (array, strides)
}

fn tensor<T: Float>(values: Vec<T>, shape: impl Into<burn::tensor::Shape>) -> NdArrayTensor {
    NdArrayTensor::from_data(TensorData::new(values, shape))
}

fn matmul<T: Float>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: NdArrayTensor,
    dense: NdArrayTensor,
    bias: Option<NdArrayTensor>,
    spec: MatmulSpec,
) -> NdArrayTensor {
    let (values, bias) = (standard::<T>(values), bias.map(standard::<T>));
    let (dense, strides) = walkable::<T>(dense);
    let values = values.as_slice().expect("standard layout");
    let bias = bias.as_ref().map(|bias| bias.as_slice().expect("standard layout"));
    // SAFETY: the sizes were found from these very shapes, and the arrays live until the call is done.
    let out = unsafe { host::matmul(pattern, &sizes, &spec, values, Dense { first: dense.as_ptr(), strides }, bias) };
    tensor(out.unwrap_or_else(|error| panic!("bsr_matmul: {error}")), sizes.out_shape())
}

fn sampled<T: Float>(
    pattern: &BsrPattern,
    sizes: [usize; 2],
    left: NdArrayTensor,
    right: NdArrayTensor,
    alpha: f64,
) -> NdArrayTensor {
    let ((left, left_strides), (right, right_strides)) = (walkable::<T>(left), walkable::<T>(right));
    let (left_dense, right_dense) = (
        Dense { first: left.as_ptr(), strides: left_strides },
        Dense { first: right.as_ptr(), strides: right_strides },
    );
    // SAFETY: the sizes were found from these very shapes, and the arrays live until the call is done.
    let out = unsafe { host::sampled(pattern, sizes, left_dense, right_dense, alpha) };
    tensor(out.unwrap_or_else(|error| panic!("bsr_sampled: {error}")), pattern.values_shape())
}

fn race<T: Float>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: NdArrayTensor,
    dense: NdArrayTensor,
    bias: bool,
    spec: MatmulSpec,
) -> Result<Option<Race>> {
    let (values, (dense, strides)) = (standard::<T>(values), walkable::<T>(dense));
    let alignment = [values.as_ptr(), dense.as_ptr()].map(host::alignment);
    host::race::<T>(pattern, &sizes, &spec, strides, bias, alignment)
}

impl<E, I, Q> SparseBackend for NdArray<E, I, Q>
where
    E: FloatNdArrayElement,
    I: IntNdArrayElement,
    Q: QuantElement,
    NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
{
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        let sizes = fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
        with_dtype!(values, matmul(pattern, sizes, values, dense, bias, spec))
    }

    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
    ) -> FloatTensor<Self> {
        let (batch, n) = fit_sampled::<Self>(pattern, &left, &right);
        with_dtype!(left, sampled(pattern, [batch, n], left, right, alpha))
    }

    fn bsr_race(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> Result<Option<Race>> {
        let sizes = fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
        with_dtype!(values, race(pattern, sizes, values, dense, bias.is_some(), spec))
    }
}
