//! Flex: the tensors' own memory, copied only where the library cannot walk it.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorData, bf16, f16};
use sparse_autotune::{Element, Race, Result};

use super::host::{self, Dense};
use super::{SparseBackend, fit_matmul, fit_sampled};
use crate::pattern::BsrPattern;
use crate::spec::{MatmulSpec, Sizes, Strides};

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

/// Calls a function of a dtype with that of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match $tensor.dtype() {
            DType::F32 | DType::Flex32 => $function::<f32>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            other => panic!("values are {other:?}: expected f32, f64, f16 or bf16"),
        }
    };
}

/// The tensor's elements, one after the other.
fn slice<T: Float>(tensor: &FlexTensor) -> &[T] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("made contiguous");
    &T::storage(tensor)[start..end]
}

/// The tensor with strides that the library can walk, and its first element.
fn walkable<T: Float>(tensor: FlexTensor) -> (FlexTensor, Dense<T>) {
    let found = Strides::new(tensor.layout().shape(), tensor.layout().strides());
    let (tensor, strides) = match found {
        Some(strides) => (tensor, strides),
        None => {
            let tensor = tensor.to_contiguous();
            let strides = Strides::new(tensor.layout().shape(), tensor.layout().strides());
            (tensor, strides.expect("contiguous goes forwards"))
        }
    };
    let (layout, storage) = (tensor.layout(), T::storage(&tensor));
    // A layout can be made by anybody: what it reaches must be there.
    let steps = layout.shape().iter().zip(layout.strides());
    let last = steps.map(|(&size, &stride)| size.saturating_sub(1).saturating_mul(stride.unsigned_abs()));
    let last = last.fold(layout.start_offset(), usize::saturating_add);
    let empty = layout.num_elements() == 0;
    assert!(empty || last < storage.len(), "dense reaches element {last} of a storage of {}", storage.len());
    let first = if empty { storage.as_ptr() } else { storage[layout.start_offset()..].as_ptr() };
    (tensor, Dense { first, strides })
}

fn tensor<T: Float>(values: Vec<T>, shape: impl Into<burn::tensor::Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

fn matmul<T: Float>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: FlexTensor,
    dense: FlexTensor,
    bias: Option<FlexTensor>,
    spec: MatmulSpec,
) -> FlexTensor {
    let (values, bias) = (values.to_contiguous(), bias.map(|bias| bias.to_contiguous()));
    let (_kept, dense) = walkable::<T>(dense);
    let bias = bias.as_ref().map(slice::<T>);
    // SAFETY: the sizes were found from these very shapes, the slices from their layouts; all live until the call is done.
    let out = unsafe { host::matmul(pattern, &sizes, &spec, slice::<T>(&values), dense, bias) };
    tensor(out.unwrap_or_else(|error| panic!("bsr_matmul: {error}")), sizes.out_shape())
}

fn sampled<T: Float>(
    pattern: &BsrPattern,
    sizes: [usize; 2],
    left: FlexTensor,
    right: FlexTensor,
    alpha: f64,
) -> FlexTensor {
    let ((_left, left), (_right, right)) = (walkable::<T>(left), walkable::<T>(right));
    // SAFETY: the sizes were found from these very shapes, and the tensors live until the call is done.
    let out = unsafe { host::sampled(pattern, sizes, left, right, alpha) };
    tensor(out.unwrap_or_else(|error| panic!("bsr_sampled: {error}")), pattern.values_shape())
}

fn race<T: Float>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: FlexTensor,
    dense: FlexTensor,
    bias: bool,
    spec: MatmulSpec,
) -> Result<Option<Race>> {
    let values = values.to_contiguous();
    let (_kept, dense) = walkable::<T>(dense);
    let alignment = [slice::<T>(&values).as_ptr(), dense.first].map(host::alignment);
    host::race::<T>(pattern, &sizes, &spec, dense.strides, bias, alignment)
}

impl SparseBackend for Flex {
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
