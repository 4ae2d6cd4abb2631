//! Fusion: a product is an operation of its own in the stream, run by the backend underneath when its turn comes.

use burn::tensor::ops::FloatTensor;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use sparse_autotune::{Race, Result};
use std::marker::PhantomData;

use super::{SparseBackend, fit_matmul, fit_sampled};
use crate::pattern::BsrPattern;
use crate::spec::MatmulSpec;

/// What is left to do when the operation's turn comes.
#[derive(Debug, Clone, Copy)]
enum What {
    Matmul(MatmulSpec),
    Sampled(f64),
}

struct Product<B> {
    pattern: BsrPattern,
    what: What,
    tensors: CustomOpIr,
    backend: PhantomData<fn() -> B>,
}

impl<B> std::fmt::Debug for Product<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Product").field("pattern", &self.pattern).field("what", &self.what).finish_non_exhaustive()
    }
}

impl<B: FusionBackend + SparseBackend> Operation<B::FusionRuntime> for Product<B> {
    fn execute(&self, handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>) {
        let mut inputs =
            self.tensors.inputs.iter().map(|ir| handles.get_float_tensor::<B>(ir)).collect::<Vec<_>>().into_iter();
        let (Some(first), Some(second)) = (inputs.next(), inputs.next()) else { unreachable!("two operands at least") };
        let out = match self.what {
            What::Matmul(spec) => B::bsr_matmul(&self.pattern, first, second, inputs.next(), spec),
            What::Sampled(alpha) => B::bsr_sampled(&self.pattern, first, second, alpha),
        };
        handles.register_float_tensor::<B>(&self.tensors.outputs[0].id, out);
    }
}

/// Puts a product whose operands fit into the stream.
fn register<B: FusionBackend + SparseBackend>(
    pattern: &BsrPattern,
    what: What,
    inputs: Vec<FusionTensor<B::FusionRuntime>>,
    shape: burn::tensor::Shape,
) -> FusionTensor<B::FusionRuntime> {
    let (client, dtype) = (inputs[0].client.clone(), inputs[0].dtype);
    let streams = OperationStreams::with_inputs(&inputs);
    let name = match what {
        What::Matmul(_) => "bsr_matmul",
        What::Sampled(_) => "bsr_sampled",
    };
    let out = TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let tensors = CustomOpIr::new(name, &inputs, &[out]);
    let product = Product::<B> { pattern: pattern.clone(), what, tensors: tensors.clone(), backend: PhantomData };
    client.register(streams, OperationIr::Custom(tensors), product).remove(0)
}

impl<B: FusionBackend + SparseBackend> SparseBackend for Fusion<B> {
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        let sizes = fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
        let inputs = [values, dense].into_iter().chain(bias).collect();
        register::<B>(pattern, What::Matmul(spec), inputs, sizes.out_shape())
    }

    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
    ) -> FloatTensor<Self> {
        fit_sampled::<Self>(pattern, &left, &right);
        register::<B>(pattern, What::Sampled(alpha), vec![left, right], pattern.values_shape().into())
    }

    fn bsr_race(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> Result<Option<Race>> {
        let plain = |tensor: FusionTensor<B::FusionRuntime>| tensor.client.clone().resolve_tensor_float::<B>(tensor);
        B::bsr_race(pattern, plain(values), plain(dense), bias.map(plain), spec)
    }
}
