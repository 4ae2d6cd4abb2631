//! Fusion: each of ours is an operation of its own in the stream, run by the backend underneath when its turn comes.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use sparse_autotune::{Effort, Race, Result};
use std::marker::PhantomData;

use super::{Saved, SparseBackend, fit_attention, fit_backward, fit_matmul, fit_sampled};
use crate::attention::AttentionOptions;
use crate::pattern::BsrPattern;
use crate::spec::MatmulSpec;

/// What is left to do when the operation's turn comes.
#[derive(Debug, Clone)]
enum What {
    Matmul(BsrPattern, MatmulSpec),
    Sampled(BsrPattern, f64, Effort),
    Attention(AttentionOptions),
    AttentionBackward(AttentionOptions),
}

impl What {
    fn name(&self) -> &'static str {
        match self {
            Self::Matmul(..) => "bsr_matmul",
            Self::Sampled(..) => "bsr_sampled",
            Self::Attention(_) => "bsr_attention",
            Self::AttentionBackward(_) => "bsr_attention_backward",
        }
    }
}

struct Waiting<B> {
    what: What,
    tensors: CustomOpIr,
    backend: PhantomData<fn() -> B>,
}

impl<B> std::fmt::Debug for Waiting<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("what", &self.what).finish_non_exhaustive()
    }
}

impl<B: FusionBackend + SparseBackend> Operation<B::FusionRuntime> for Waiting<B> {
    fn execute(&self, handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>) {
        let mut inputs =
            self.tensors.inputs.iter().map(|ir| handles.get_float_tensor::<B>(ir)).collect::<Vec<_>>().into_iter();
        let mut next = || inputs.next().expect("as many as were registered");
        let outputs = match &self.what {
            What::Matmul(pattern, spec) => {
                vec![B::bsr_matmul(pattern, next(), next(), inputs.next(), *spec)]
            }
            What::Sampled(pattern, alpha, effort) => vec![B::bsr_sampled(pattern, next(), next(), *alpha, *effort)],
            What::Attention(options) => {
                let (out, lse) =
                    B::bsr_attention(next(), next(), next(), inputs.next(), options, self.tensors.outputs.len() > 1);
                [out].into_iter().chain(lse).collect()
            }
            What::AttentionBackward(options) => {
                let [q, k, v, o, lse, grad] = [(); 6].map(|()| next());
                let saved = Saved { q, k, v, sinks: inputs.next(), o, lse };
                let (gradients, sinks) = B::bsr_attention_backward(saved, grad, options);
                gradients.into_iter().chain(sinks).collect()
            }
        };
        for (ir, tensor) in self.tensors.outputs.iter().zip(outputs) {
            handles.register_float_tensor::<B>(&ir.id, tensor);
        }
    }
}

/// Puts an operation whose operands fit into the stream.
fn register<B: FusionBackend + SparseBackend>(
    what: What,
    inputs: Vec<FusionTensor<B::FusionRuntime>>,
    outputs: &[(Shape, DType)],
) -> std::vec::IntoIter<FusionTensor<B::FusionRuntime>> {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let made = |(shape, dtype): &(Shape, DType)| TensorIr::uninit(client.create_empty_handle(), shape.clone(), *dtype);
    let outputs: Vec<TensorIr> = outputs.iter().map(made).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let tensors = CustomOpIr::new(what.name(), &inputs, &outputs);
    let waiting = Waiting::<B> { what, tensors: tensors.clone(), backend: PhantomData };
    client.register(streams, OperationIr::Custom(tensors), waiting).into_iter()
}

/// The one that there is next.
const MADE: &str = "as many as were asked for";

impl<B: FusionBackend + SparseBackend> SparseBackend for Fusion<B> {
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        let sizes = fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
        let outputs = [(sizes.out_shape(), values.dtype)];
        let inputs = [values, dense].into_iter().chain(bias).collect();
        register::<B>(What::Matmul(pattern.clone(), spec), inputs, &outputs).next().expect(MADE)
    }

    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
        effort: Effort,
    ) -> FloatTensor<Self> {
        fit_sampled::<Self>(pattern, &left, &right);
        let outputs = [(pattern.values_shape().into(), left.dtype)];
        register::<B>(What::Sampled(pattern.clone(), alpha, effort), vec![left, right], &outputs).next().expect(MADE)
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

    fn bsr_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sinks: Option<FloatTensor<Self>>,
        options: &AttentionOptions,
        lse: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let sizes = fit_attention::<Self>(&q, &k, &v, sinks.as_ref(), options);
        let outputs = [(sizes.o_shape(), q.dtype), (sizes.lse_shape(), DType::F32)];
        let outputs = &outputs[..1 + usize::from(lse)];
        let inputs = [q, k, v].into_iter().chain(sinks).collect();
        let mut made = register::<B>(What::Attention(options.clone()), inputs, outputs);
        (made.next().expect(MADE), made.next())
    }

    fn bsr_attention_backward(
        saved: Saved<Self>,
        grad: FloatTensor<Self>,
        options: &AttentionOptions,
    ) -> ([FloatTensor<Self>; 3], Option<FloatTensor<Self>>) {
        let sizes = fit_backward::<Self>(&saved, &grad, options);
        let Saved { q, k, v, sinks, o, lse } = saved;
        let [dq, dk, dv] = [sizes.q_shape(), sizes.k_shape(), sizes.v_shape()].map(|shape| (shape, grad.dtype));
        let outputs = [dq, dk, dv, (sizes.sinks_shape(), DType::F32)];
        let outputs = &outputs[..3 + usize::from(sizes.sinks)];
        let what = What::AttentionBackward(options.clone());
        let inputs = [q, k, v, o, lse, grad].into_iter().chain(sinks).collect();
        let mut made = register::<B>(what, inputs, outputs);
        ([(); 3].map(|()| made.next().expect(MADE)), made.next())
    }
}
