//! Gradients: to the values from the sampled product, to the dense operand from the transposed one, to the bias from a sum.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, TensorMetadata};
use sparse_autotune::{Activation, Race, Result};

use super::SparseBackend;
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

/// `C = op(A)*B` gives dA = dC*B^T, or B*dC^T where A stands transposed, at the stored blocks.
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
    B::bsr_sampled(pattern, left, right, spec.alpha)
}

/// The sum over everything but the rows of op(A).
fn bias_gradient<B: SparseBackend>(side: Side, grad: FloatTensor<B>) -> FloatTensor<B> {
    let rank = grad.rank();
    let kept = if side == Side::Left { rank - 2 } else { rank - 1 };
    let rows = grad.shape()[kept];
    let sum = (0..rank).filter(|&dim| dim != kept).fold(grad, |grad, dim| B::float_sum_dim(grad, dim));
    B::float_reshape(sum, Shape::from([rows]))
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
    ) -> FloatTensor<Self> {
        let needed = [right.is_tracked(), left.is_tracked()];
        match Sampled.prepare::<C>([left.node.clone(), right.node.clone()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let nodes = [needed[0].then(|| prep.checkpoint(&left)), needed[1].then(|| prep.checkpoint(&right))];
                let out = B::bsr_sampled(pattern, left.primitive, right.primitive, alpha);
                prep.finish((pattern.clone(), alpha, nodes), out)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::bsr_sampled(pattern, left.primitive, right.primitive, alpha)),
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
}

/// `S = alpha*left*right^T` at the blocks: its gradients are products of dS, as a sparse matrix, with the other side.
#[derive(Debug)]
struct Sampled;

impl<B: SparseBackend> Backward<B, 2> for Sampled {
    type State = (BsrPattern, f64, [Option<NodeId>; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (pattern, alpha, needed) = ops.state;
        let [left, right] = needed.map(|node| node.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let grad = grads.consume::<B>(&ops.node);
        let spec = MatmulSpec { alpha, ..MatmulSpec::default() };
        let [left_node, right_node] = ops.parents;
        if let (Some(node), Some(right)) = (left_node, right) {
            grads.register::<B>(node.id, B::bsr_matmul(&pattern, grad.clone(), right, None, spec));
        }
        if let (Some(node), Some(left)) = (right_node, left) {
            grads.register::<B>(node.id, B::bsr_matmul(&pattern, grad, left, None, spec.backward()));
        }
    }
}
