//! Gradients: to the values from the sampled product, to the dense operand from the transposed one, to the bias from a sum;
//! those of attention from its own backward pass.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, TensorMetadata};
use sparse_autotune::{Activation, Effort, Race, Result};

use super::{Saved, SparseBackend, fallback};
use crate::attention::AttentionOptions;
use crate::pattern::BsrPattern;
use crate::spec::{MatmulSpec, Side};

/// Parents: values, dense, and maybe bias. State: which of the first two the gradients need.
#[derive(Debug)]
struct Product;

impl<B: SparseBackend, const N: usize> Backward<B, N> for Product {
    type State = (BsrPattern, MatmulSpec, [Option<NodeId>; 2]);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (pattern, spec, needed) = ops.state;
        let [values, dense] = needed.map(|node| node.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let grad = grads.consume::<B>(&ops.node);
        let mut parents = ops.parents.into_iter();
        if let (Some(Some(node)), Some(dense)) = (parents.next(), dense) {
            grads.register::<B>(node.id, values_gradient::<B>(&pattern, spec, grad.clone(), dense));
        }
        if let (Some(Some(node)), Some(values)) = (parents.next(), values) {
            grads.register::<B>(node.id, B::bsr_matmul(&pattern, values, grad.clone(), None, spec.backward()));
        }
        if let Some(Some(node)) = parents.next() {
            grads.register::<B>(node.id, bias_gradient::<B>(spec.side, grad));
        }
    }
}

/// `C = op(A)*B` gives dA = dC*B^T, or B*dC^T where A is transposed, at the stored blocks.
fn values_gradient<B: SparseBackend>(
    pattern: &BsrPattern,
    spec: MatmulSpec,
    grad: FloatTensor<B>,
    dense: FloatTensor<B>,
) -> FloatTensor<B> {
    let columns = |tensor: FloatTensor<B>| match spec.side {
        Side::Left => tensor,
        Side::Right => {
            let rank = tensor.rank();
            B::float_swap_dims(tensor, rank - 2, rank - 1)
        }
    };
    let (grad, dense) = (columns(grad), columns(dense));
    let (left, right) = if spec.transpose { (dense, grad) } else { (grad, dense) };
    B::bsr_sampled(pattern, left, right, spec.alpha, spec.effort)
}

/// The sum over everything but the rows of op(A).
fn bias_gradient<B: SparseBackend>(side: Side, grad: FloatTensor<B>) -> FloatTensor<B> {
    let rank = grad.rank();
    let kept = if side == Side::Left { rank - 2 } else { rank - 1 };
    let rows = grad.shape()[kept];
    let dtype = grad.dtype();
    // Of 16 bits a second sum would add what the first has rounded.
    let grad = if rank > 2 { fallback::wide::<B>(grad) } else { grad };
    let sum = (0..rank).filter(|&dim| dim != kept).fold(grad, |grad, dim| B::float_sum_dim(grad, dim));
    fallback::cast::<B>(B::float_reshape(sum, Shape::from([rows])), dtype)
}

impl<B: SparseBackend, C: CheckpointStrategy> SparseBackend for Autodiff<B, C> {
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        // An activation's gradient needs what went into it: it is an operation of its own here.
        let plain = MatmulSpec { activation: Activation::None, ..spec };
        let needed = [dense.is_tracked(), values.is_tracked()];
        /// Records the operation, whichever number of parents it has.
        macro_rules! record {
            ($nodes:expr, $bias:expr) => {
                match Product.prepare::<C>($nodes).compute_bound().stateful() {
                    OpsKind::Tracked(mut prep) => {
                        let nodes =
                            [needed[0].then(|| prep.checkpoint(&values)), needed[1].then(|| prep.checkpoint(&dense))];
                        let out = B::bsr_matmul(pattern, values.primitive, dense.primitive, $bias, plain);
                        prep.finish((pattern.clone(), plain, nodes), out)
                    }
                    OpsKind::UnTracked(prep) => {
                        prep.finish(B::bsr_matmul(pattern, values.primitive, dense.primitive, $bias, plain))
                    }
                }
            };
        }
        let product = match bias {
            None => record!([values.node.clone(), dense.node.clone()], None),
            Some(bias) => {
                record!([values.node.clone(), dense.node.clone(), bias.node.clone()], Some(bias.primitive))
            }
        };
        match spec.activation {
            Activation::None => product,
            Activation::Relu => <Self as burn::tensor::ops::ActivationOps<Self>>::relu(product),
            Activation::Gelu => <Self as burn::tensor::ops::ActivationOps<Self>>::gelu(product),
            Activation::Silu => {
                let gate = <Self as burn::tensor::ops::ActivationOps<Self>>::sigmoid(product.clone());
                <Self as burn::tensor::ops::FloatTensorOps<Self>>::float_mul(product, gate)
            }
        }
    }

    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
        effort: Effort,
    ) -> FloatTensor<Self> {
        let needed = [right.is_tracked(), left.is_tracked()];
        match Sampled.prepare::<C>([left.node.clone(), right.node.clone()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let nodes = [needed[0].then(|| prep.checkpoint(&left)), needed[1].then(|| prep.checkpoint(&right))];
                let out = B::bsr_sampled(pattern, left.primitive, right.primitive, alpha, effort);
                prep.finish((pattern.clone(), MatmulSpec { alpha, effort, ..MatmulSpec::default() }, nodes), out)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::bsr_sampled(pattern, left.primitive, right.primitive, alpha, effort))
            }
        }
    }

    fn bsr_race(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> Result<Option<Race>> {
        B::bsr_race(pattern, values.primitive, dense.primitive, bias.map(|bias| bias.primitive), spec)
    }

    fn bsr_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sinks: Option<FloatTensor<Self>>,
        options: &AttentionOptions,
        lse: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let nodes = [&q, &k, &v].map(|tensor| tensor.node.clone());
        /// Records the operation, whichever number of parents it has.
        macro_rules! record {
            ($nodes:expr, $sinks:expr) => {
                match Attention.prepare::<C>($nodes).compute_bound().stateful() {
                    OpsKind::Tracked(mut prep) => {
                        let inputs = [&q, &k, &v].into_iter().chain($sinks);
                        let inputs = inputs.map(|tensor| prep.checkpoint(tensor)).collect();
                        let sinks = sinks.map(|sinks| sinks.primitive);
                        let (out, sums) = B::bsr_attention(q.primitive, k.primitive, v.primitive, sinks, options, true);
                        let sums = sums.expect("asked for");
                        let state = (options.clone(), inputs, [out.clone(), sums.clone()]);
                        (prep.finish(state, out), lse.then(|| Self::from_inner(sums)))
                    }
                    OpsKind::UnTracked(prep) => {
                        let sinks = sinks.map(|sinks| sinks.primitive);
                        let (out, sums) = B::bsr_attention(q.primitive, k.primitive, v.primitive, sinks, options, lse);
                        (prep.finish(out), sums.map(Self::from_inner))
                    }
                }
            };
        }
        match &sinks {
            None => record!(nodes, None),
            Some(sink) => {
                let [q, k, v] = nodes;
                record!([q, k, v, sink.node.clone()], Some(sink))
            }
        }
    }

    /// Where a gradient of this gradient may be asked for it is computed by operations that have one.
    fn bsr_attention_backward(
        saved: Saved<Self>,
        grad: FloatTensor<Self>,
        options: &AttentionOptions,
    ) -> ([FloatTensor<Self>; 3], Option<FloatTensor<Self>>) {
        if [&saved.q, &saved.k, &saved.v, &grad].into_iter().chain(&saved.sinks).any(|tensor| tensor.is_tracked()) {
            return fallback::attention_backward::<Self>(saved, grad, options);
        }
        let Saved { q, k, v, sinks, o, lse } = saved;
        let [q, k, v, o, lse] = [q, k, v, o, lse].map(|tensor| tensor.primitive);
        let saved = Saved { q, k, v, sinks: sinks.map(|sinks| sinks.primitive), o, lse };
        let (gradients, sinks) = B::bsr_attention_backward(saved, grad.primitive, options);
        (gradients.map(Self::from_inner), sinks.map(Self::from_inner))
    }
}

/// `S = alpha*left*right^T` at the blocks: its gradients are products of dS, as a sparse matrix, with the other side.
#[derive(Debug)]
struct Sampled;

impl<B: SparseBackend> Backward<B, 2> for Sampled {
    type State = (BsrPattern, MatmulSpec, [Option<NodeId>; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (pattern, spec, needed) = ops.state;
        let [left, right] = needed.map(|node| node.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let grad = grads.consume::<B>(&ops.node);
        let [left_node, right_node] = ops.parents;
        if let (Some(node), Some(right)) = (left_node, right) {
            grads.register::<B>(node.id, B::bsr_matmul(&pattern, grad.clone(), right, None, spec));
        }
        if let (Some(node), Some(left)) = (right_node, left) {
            grads.register::<B>(node.id, B::bsr_matmul(&pattern, grad, left, None, spec.backward()));
        }
    }
}

/// Parents: Q, K and V, and maybe sinks. State: where they are kept, and O and LSE.
#[derive(Debug)]
struct Attention;

impl<B: SparseBackend, const N: usize> Backward<B, N> for Attention {
    type State = (AttentionOptions, Vec<NodeId>, [FloatTensor<B>; 2]);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (options, inputs, [o, lse]) = ops.state;
        let mut inputs = inputs.into_iter().map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let [q, k, v] = [(); 3].map(|()| inputs.next().expect("three, and maybe sinks"));
        let saved = Saved { q, k, v, sinks: inputs.next(), o, lse };
        let grad = grads.consume::<B>(&ops.node);
        let (found, sinks) = B::bsr_attention_backward(saved, grad, &options);
        for (node, grad) in ops.parents.into_iter().zip(found.into_iter().chain(sinks)) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}
