//! The operations in Burn's own: for backends that the library does not know.
//!
//! In products the dense operand's blocks are gathered once for each stored block, multiplied in one batch and added up.
//! That is right everywhere and needs no kernel, and memory for the gathered blocks. Attention is computed densely, with all
//! scores in memory.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{
    Bool, DType, FloatDType, IndexingUpdateOp, Tensor, TensorData, TensorMetadata, TensorPrimitive, activation,
};
use sparse_autotune::Activation;

use super::{Saved, fit_attention, fit_backward, fit_matmul, fit_sampled};
use crate::attention::{AttentionOptions, AttentionSizes};
use crate::pattern::{BsrPattern, int_tensor};
use crate::spec::{MatmulSpec, Side, Sizes};
use crate::tensor::reshaped;

fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

/// A matrix as a batch of one.
fn stacked<B: Backend>(primitive: FloatTensor<B>) -> Tensor<B, 3> {
    let shape = primitive.shape();
    match shape[..] {
        [rows, cols] => reshaped(tensor::<B, 2>(primitive), [1, rows, cols]),
        _ => tensor(primitive),
    }
}

/// See [`SparseBackend::bsr_matmul`](super::SparseBackend::bsr_matmul).
pub fn matmul<B: Backend>(
    pattern: &BsrPattern,
    values: FloatTensor<B>,
    dense: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    spec: MatmulSpec,
) -> FloatTensor<B> {
    let sizes = fit_matmul::<B>(pattern, &values, &dense, bias.as_ref(), &spec);
    let Sizes { batch, m, n, k, side } = sizes;
    let mut dense: Tensor<B, 3> = stacked::<B>(dense);
    if side == Side::Right {
        dense = dense.swap_dims(1, 2);
    }
    let mut product = blocks_times(pattern, tensor(values), dense, [batch.unwrap_or(1), m, n, k], spec.transpose);
    if spec.alpha != 1.0 {
        product = product * spec.alpha;
    }
    if let Some(bias) = bias.filter(|_| sizes.out_len() > 0) {
        product = product + tensor::<B, 1>(bias).reshape([1, m, 1]);
    }
    product = match spec.activation {
        Activation::None => product,
        Activation::Relu => activation::relu(product),
        Activation::Gelu => activation::gelu(product),
        Activation::Silu => activation::silu(product),
    };
    if side == Side::Right {
        product = product.swap_dims(1, 2);
    }
    B::float_reshape(product.into_primitive().tensor(), sizes.out_shape())
}

/// `op(A)*dense`, a batch of it.
fn blocks_times<B: Backend>(
    pattern: &BsrPattern,
    values: Tensor<B, 3>,
    dense: Tensor<B, 3>,
    [batch, m, n, k]: [usize; 4],
    transpose: bool,
) -> Tensor<B, 3> {
    let options = (&dense.device(), dense.dtype());
    let stored = pattern.stored_blocks();
    if stored == 0 || batch == 0 || m == 0 || n == 0 || k == 0 {
        return Tensor::zeros([batch, m, n], options);
    }
    let ([block_rows, block_cols], [grid_rows, grid_cols]) = (pattern.block_size(), pattern.grid());
    let (columns, rows) = (pattern.col_indices().to_vec(), pattern.row_indices());
    let (values, from, to) = if transpose {
        (masked(pattern, values).swap_dims(1, 2), (rows, grid_rows, block_rows), (columns, grid_cols, block_cols))
    } else {
        (masked(pattern, values), (columns, grid_cols, block_cols), (rows, grid_rows, block_rows))
    };
    let gathered = blocks_of(dense, from.1, from.2).select(1, int_tensor::<B>(from.0, options.0));
    let products = values.unsqueeze::<4>().matmul(gathered);
    let sums = Tensor::<B, 4>::zeros([batch, to.1, to.2, n], options).select_assign(
        1,
        int_tensor::<B>(to.0, options.0),
        products,
        IndexingUpdateOp::Add,
    );
    sums.reshape([batch, to.1 * to.2, n]).slice([0..batch, 0..m, 0..n])
}

/// Rows in blocks: `[batch, rows, n]` as `[batch, grid, block, n]`, with zeros beyond the matrix.
fn blocks_of<B: Backend>(dense: Tensor<B, 3>, grid: usize, block: usize) -> Tensor<B, 4> {
    let [batch, rows, n] = dense.dims();
    let dense = if rows == grid * block {
        dense
    } else {
        let padding = Tensor::zeros([batch, grid * block - rows, n], (&dense.device(), dense.dtype()));
        Tensor::cat(vec![dense, padding], 1)
    };
    dense.reshape([batch, grid, block, n])
}

/// The values with zero beyond the matrix, whatever was stored there.
fn masked<B: Backend>(pattern: &BsrPattern, values: Tensor<B, 3>) -> Tensor<B, 3> {
    if !pattern.ragged() {
        return values;
    }
    let ([rows, cols], [block_rows, block_cols]) = (pattern.shape(), pattern.block_size());
    let mut beyond = Vec::with_capacity(pattern.stored_blocks() * block_rows * block_cols);
    for (row, &col) in pattern.row_indices().into_iter().zip(pattern.col_indices()) {
        let (top, left) = (row as usize * block_rows, col as usize * block_cols);
        beyond.extend(
            (0..block_rows * block_cols).map(|at| top + at / block_cols >= rows || left + at % block_cols >= cols),
        );
    }
    let mask = Tensor::<B, 3, Bool>::from_data(TensorData::new(beyond, pattern.values_shape()), &values.device());
    values.mask_fill(mask, 0.0)
}

/// See [`SparseBackend::bsr_sampled`](super::SparseBackend::bsr_sampled).
pub fn sampled<B: Backend>(
    pattern: &BsrPattern,
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    alpha: f64,
) -> FloatTensor<B> {
    let (batch, n) = fit_sampled::<B>(pattern, &left, &right);
    let dtype = left.dtype();
    let [left, right] = [left, right].map(|side| stacked::<B>(if batch > 1 { wide::<B>(side) } else { side }));
    let ([block_rows, block_cols], [grid_rows, grid_cols]) = (pattern.block_size(), pattern.grid());
    let options = (&left.device(), left.dtype());
    let shape = pattern.values_shape();
    if pattern.stored_blocks() == 0 || batch == 0 || n == 0 {
        return Tensor::<B, 3>::zeros(shape, (options.0, dtype)).into_primitive().tensor();
    }
    let left = blocks_of(left, grid_rows, block_rows).select(1, int_tensor::<B>(pattern.row_indices(), options.0));
    let right =
        blocks_of(right, grid_cols, block_cols).select(1, int_tensor::<B>(pattern.col_indices().to_vec(), options.0));
    let sampled = left.matmul(right.swap_dims(2, 3)).sum_dim(0).squeeze_dim::<3>(0);
    let sampled = if alpha == 1.0 { sampled } else { sampled * alpha };
    cast::<B>(masked(pattern, sampled).into_primitive().tensor(), dtype)
}

/// See [`SparseBackend::bsr_attention`](super::SparseBackend::bsr_attention).
pub fn attention<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    sinks: Option<FloatTensor<B>>,
    options: &AttentionOptions,
    lse_too: bool,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    let (sizes, dtype) = (fit_attention::<B>(&q, &k, &v, sinks.as_ref(), options), q.dtype());
    let (out, lse) = if sizes.no_queries() || sizes.keys == 0 {
        let like = tensor::<B, 4>(q);
        let lse = match sinks {
            Some(sinks) => tensor::<B, 1>(sinks).reshape([1, sizes.heads, 1]).expand(sizes.lse_shape()),
            None => Tensor::<B, 3>::full(sizes.lse_shape(), f32::NEG_INFINITY, (&like.device(), DType::F32)),
        };
        (
            Tensor::<B, 4>::zeros(sizes.o_shape(), (&like.device(), dtype)).into_primitive().tensor(),
            lse.into_primitive().tensor(),
        )
    } else {
        let [q, k, v] = [q, k, v].map(wide::<B>);
        let found = softmax(grouped(tensor::<B, 4>(q), &sizes), tensor(k), sinks.map(tensor), &sizes, options);
        let out = found.weights.matmul(tensor(v)).into_primitive().tensor();
        let lse = found.lse.into_primitive().tensor();
        (B::float_reshape(out, sizes.o_shape()), B::float_reshape(lse, sizes.lse_shape()))
    };
    (cast::<B>(out, dtype), lse_too.then(|| cast::<B>(lse, DType::F32)))
}

/// See [`SparseBackend::bsr_attention_backward`](super::SparseBackend::bsr_attention_backward). Everything is computed anew
/// from Q, K, V and sinks, so that gradients flow through all of it.
pub fn attention_backward<B: Backend>(
    saved: Saved<B>,
    grad: FloatTensor<B>,
    options: &AttentionOptions,
) -> ([FloatTensor<B>; 3], Option<FloatTensor<B>>) {
    let sizes = fit_backward::<B>(&saved, &grad, options);
    let (Saved { q, k, v, sinks, .. }, dtype) = (saved, grad.dtype());
    if sizes.no_queries() || sizes.keys == 0 {
        let zeros =
            |tensor: FloatTensor<B>| B::float_zeros(tensor.shape(), &B::float_device(&tensor), tensor.dtype().into());
        return ([q, k, v].map(zeros), sinks.map(zeros));
    }
    let [q, k, v, grad] = [q, k, v, grad].map(|operand| tensor::<B, 4>(wide::<B>(operand)));
    let (q, grad) = (grouped(q, &sizes), grouped(grad, &sizes));
    let found = softmax(q.clone(), k.clone(), sinks.map(tensor), &sizes, options);
    let weights = found.weights;
    let slopes = grad.clone().matmul(v.swap_dims(2, 3));
    let mean = (weights.clone() * slopes.clone()).sum_dim(3);
    let dsinks = found.sinks.map(|weights| (weights * mean.clone()).neg());
    let scores = weights.clone() * (slopes - mean) * options.scale_of(sizes.dim);
    let scores = found.cap_slopes.into_iter().fold(scores, |scores, slopes| scores * slopes);
    let (dq, dk) = (scores.clone().matmul(k), scores.swap_dims(2, 3).matmul(q));
    let dv = weights.swap_dims(2, 3).matmul(grad);
    let [dq, dk, dv] = [dq, dk, dv].map(|grad| cast::<B>(grad.into_primitive().tensor(), dtype));
    let dsinks = dsinks.map(|lines| lines.reshape([sizes.batch, sizes.heads, sizes.queries]).sum_dim(0).sum_dim(2));
    let dsinks = dsinks.map(|sums| cast::<B>(sums.reshape([sizes.heads]).into_primitive().tensor(), DType::F32));
    ([B::float_reshape(dq, sizes.q_shape()), dk, dv], dsinks)
}

pub(super) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if tensor.dtype() == dtype { tensor } else { B::float_cast(tensor, dtype.into()) }
}

/// 16-bit numbers as f32.
pub(super) fn wide<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}

/// The lines of all heads that read the same keys, one head's after the other's; of Q, or of the gradient of O.
fn grouped<B: Backend>(lines: Tensor<B, 4>, sizes: &AttentionSizes) -> Tensor<B, 4> {
    let [.., dim] = lines.dims();
    lines.reshape([sizes.batch, sizes.kv_heads, sizes.heads / sizes.kv_heads * sizes.queries, dim])
}

/// What a line of scores, as `grouped` has them, comes to. Of a query that keeps nothing weights are zeros.
struct Softmax<B: Backend> {
    weights: Tensor<B, 4>,
    /// The weight of the sink.
    sinks: Option<Tensor<B, 4>>,
    /// The logarithm of the sum of the exponentials.
    lse: Tensor<B, 4>,
    /// The derivatives of the soft cap.
    cap_slopes: Option<Tensor<B, 4>>,
}

fn softmax<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    sinks: Option<Tensor<B, 1>>,
    sizes: &AttentionSizes,
    options: &AttentionOptions,
) -> Softmax<B> {
    let device = q.device();
    let scores = q.matmul(k.swap_dims(2, 3)) * options.scale_of(sizes.dim);
    let (scores, cap_slopes) = capped(scores, options.softcap);
    let scores = match hidden::<B>(sizes, options, &device) {
        Some(hidden) => {
            let shape = scores.dims();
            scores.mask_fill(hidden.expand(shape), f32::NEG_INFINITY)
        }
        None => scores,
    };
    let sinks = sinks.map(|sinks| of_lines(sinks, sizes, scores.dtype()));
    let largest = scores.clone().detach().max_dim(3);
    let largest = sinks.iter().fold(largest, |largest, sinks| largest.max_pair(sinks.clone().detach()));
    let nothing = largest.clone().equal_elem(f32::NEG_INFINITY);
    let largest = largest.mask_fill(nothing.clone(), 0.0);
    let powers = (scores - largest.clone()).exp();
    let sinks = sinks.map(|sinks| (sinks - largest.clone()).exp());
    let sums = sinks.iter().fold(powers.clone().sum_dim(3), |sums, sinks| sums + sinks.clone());
    let divisors = sums.clone().mask_fill(nothing, 1.0);
    Softmax {
        weights: powers / divisors.clone(),
        sinks: sinks.map(|sinks| sinks / divisors),
        lse: sums.log() + largest,
        cap_slopes,
    }
}

/// `softcap*tanh(scores/softcap)`, and its derivatives.
fn capped<B: Backend>(scores: Tensor<B, 4>, softcap: Option<f64>) -> (Tensor<B, 4>, Option<Tensor<B, 4>>) {
    let Some(softcap) = softcap else { return (scores, None) };
    let share = (scores / softcap).tanh();
    (share.clone() * softcap, Some((share.clone() * share).neg() + 1.0))
}

/// The sink of each line, as `grouped` has the queries.
fn of_lines<B: Backend>(sinks: Tensor<B, 1>, sizes: &AttentionSizes, dtype: DType) -> Tensor<B, 4> {
    let &AttentionSizes { batch, heads, kv_heads, queries, .. } = sizes;
    let sinks = tensor::<B, 1>(cast::<B>(sinks.into_primitive().tensor(), dtype));
    let lines = sinks.reshape([1, heads, 1]).expand([batch, heads, queries]);
    lines.reshape([batch, kv_heads, heads / kv_heads * queries, 1])
}

/// Which scores are not kept, as `grouped` has them: `[1, kv heads, .., keys]`, or 1 for all of those. None: all are kept.
fn hidden<B: Backend>(
    sizes: &AttentionSizes,
    options: &AttentionOptions,
    device: &B::Device,
) -> Option<Tensor<B, 4, Bool>> {
    let &AttentionSizes { heads, kv_heads, queries, keys, .. } = sizes;
    if options.mask.is_none() && !options.causal && options.window.is_none() {
        return None;
    }
    let (group, each) = (heads / kv_heads, options.mask.as_ref().is_some_and(|mask| mask.shape()[0] != queries));
    // By block row: of one head after the other, where each has a mask of its own.
    let stored = options.mask.as_ref().map(|mask| {
        let [rows, columns] = mask.grid();
        let mut stored = vec![false; rows * columns];
        for (row, &col) in mask.row_indices().into_iter().zip(mask.col_indices()) {
            stored[row as usize * columns + col as usize] = true;
        }
        (stored, mask.block_size(), columns)
    });
    let keeps = |head: usize, i: usize, j: usize| {
        // How far the key is before the query's diagonal position.
        let before = (i + keys) as i64 - (j + queries) as i64;
        let block = stored.as_ref().is_none_or(|(stored, block, columns)| {
            let row = if each { head * queries.div_ceil(block[0]) } else { 0 } + i / block[0];
            stored[row * columns + j / block[1]]
        });
        block
            && (!options.causal || before >= 0)
            && options.window.is_none_or(|window| before.unsigned_abs() < window as u64)
    };
    let count = if each { heads } else { group };
    let lines = (0..count * queries).flat_map(|line| (0..keys).map(move |j| (line / queries, line % queries, j)));
    let hidden: Vec<bool> = lines.map(|(head, i, j)| !keeps(head, i, j)).collect();
    let shape = [1, count / group, group * queries, keys];
    Some(Tensor::from_data(TensorData::new(hidden, shape), device))
}
