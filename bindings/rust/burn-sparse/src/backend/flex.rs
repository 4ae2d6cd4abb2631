//! Flex: the tensors' own memory, copied only where the library does not take its strides.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape, TensorData, bf16, f16};
use sparse_autotune::Element;

use super::SparseBackend;
use super::host::{self, Dense, HostTensor};
use crate::spec::FromStrides;

/// A dtype of Flex's, as its own storage has it.
trait Float: Element + burn::tensor::Element {
    fn storage(tensor: &FlexTensor) -> &[Self];
}

macro_rules! float {
    ($($type:ty),*) => {
        $(impl Float for $type {
            fn storage(tensor: &FlexTensor) -> &[Self] { tensor.storage::<$type>() }
        })*
    };
}
float!(f32, f64, f16, bf16);

/// Calls a function of `host` with the dtype of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match $tensor.dtype() {
            DType::F32 | DType::Flex32 => host::$function::<f32, _>($($argument),*),
            DType::F64 => host::$function::<f64, _>($($argument),*),
            DType::F16 => host::$function::<f16, _>($($argument),*),
            DType::BF16 => host::$function::<bf16, _>($($argument),*),
            other => panic!("the tensors are {other:?}: expected f32, f64, f16 or bf16"),
        }
    };
}

// SAFETY: strides are the layout's own, and `with_strides` looks that what they reach is there.
unsafe impl<T: Float> HostTensor<T> for FlexTensor {
    type Kept = Self;

    fn standard(self) -> Self {
        self.to_contiguous()
    }

    fn elements(kept: &Self) -> &[T] {
        let (start, end) = kept.layout().contiguous_offsets().expect("made contiguous");
        &T::storage(kept)[start..end]
    }

    fn with_strides<W: FromStrides>(self) -> (Self, Dense<T, W>) {
        let found = W::from_strides(self.layout().shape(), self.layout().strides());
        let (tensor, strides) = match found {
            Some(strides) => (self, strides),
            None => {
                let tensor = self.to_contiguous();
                let strides = W::from_strides(tensor.layout().shape(), tensor.layout().strides());
                (tensor, strides.expect("contiguous goes forwards"))
            }
        };
        let (layout, storage) = (tensor.layout(), T::storage(&tensor));
        // A layout can be made by anybody: what it reaches must be there.
        let steps = layout.shape().iter().zip(layout.strides());
        let last = steps.map(|(&size, &stride)| size.saturating_sub(1).saturating_mul(stride.unsigned_abs()));
        let last = last.fold(layout.start_offset(), usize::saturating_add);
        let empty = layout.shape().contains(&0);
        assert!(empty || last < storage.len(), "a tensor reaches element {last} of a storage of {}", storage.len());
        let first = if empty { storage.as_ptr() } else { storage[layout.start_offset()..].as_ptr() };
        (tensor, Dense { first, strides })
    }

    fn make(values: Vec<T>, shape: impl Into<Shape>) -> Self {
        Self::from_data(TensorData::new(values, shape))
    }
}

impl SparseBackend for Flex {
    host::operations!(with_dtype);
}
