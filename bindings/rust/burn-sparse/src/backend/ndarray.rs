//! NdArray: the arrays' own memory, copied only where the library does not take its strides.

use burn::backend::NdArray;
use burn::backend::ndarray::{FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray};
use burn::tensor::{Shape, TensorData, TensorMetadata};
use sparse_autotune::Element;

use super::SparseBackend;
use super::host::{self, Dense, HostTensor};
use crate::spec::FromStrides;

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
                    other => panic!("a tensor is {:?}, expected {}", other.dtype(), stringify!($name)),
                }
            }
        }
    };
}
float!(f32, F32);
float!(f64, F64);

/// Calls a function of `host` with the dtype of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match &$tensor {
            NdArrayTensor::F32(_) => host::$function::<f32, _>($($argument),*),
            NdArrayTensor::F64(_) => host::$function::<f64, _>($($argument),*),
            other => panic!("the tensors are {:?}: expected f32 or f64, which is what NdArray has", other.dtype()),
        }
    };
}

// SAFETY: an array's strides reach its own elements only, which it shares and nobody writes.
unsafe impl<T: Float> HostTensor<T> for NdArrayTensor {
    type Kept = SharedArray<T>;

    fn standard(self) -> SharedArray<T> {
        let array = T::array(self);
        if array.is_standard_layout() { array } else { array.as_standard_layout().into_owned().into_shared() }
    }

    fn elements(kept: &SharedArray<T>) -> &[T] {
        kept.as_slice().expect("standard layout")
    }

    fn with_strides<W: FromStrides>(self) -> (SharedArray<T>, Dense<T, W>) {
        let array = T::array(self);
        let found = W::from_strides(array.shape(), array.strides());
        let (array, strides) = match found {
            Some(strides) => (array, strides),
            None => {
                let array = array.as_standard_layout().into_owned().into_shared();
                let strides = W::from_strides(array.shape(), array.strides()).expect("standard layout goes forwards");
                (array, strides)
            }
        };
        let first = array.as_ptr();
        (array, Dense { first, strides })
    }

    fn make(values: Vec<T>, shape: impl Into<Shape>) -> Self {
        Self::from_data(TensorData::new(values, shape))
    }
}

impl<E, I, Q> SparseBackend for NdArray<E, I, Q>
where
    E: FloatNdArrayElement,
    I: IntNdArrayElement,
    Q: QuantElement,
    NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
{
    host::operations!(with_dtype);
}
