//! The products in Burn's own tensor operations: for backends that the library does not know.
//!
//! The dense operand's blocks are gathered once for each stored block, multiplied in one batch and added up. That is right
//! everywhere and needs no kernel, and memory for the gathered blocks.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, IndexingUpdateOp, Tensor, TensorData, TensorMetadata, TensorPrimitive, activation};
use sparse_autotune::Activation;

use super::{fit_matmul, fit_sampled};
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
    let (left, right) = (stacked::<B>(left), stacked::<B>(right));
    let ([block_rows, block_cols], [grid_rows, grid_cols]) = (pattern.block_size(), pattern.grid());
    let options = (&left.device(), left.dtype());
    let shape = pattern.values_shape();
    if pattern.stored_blocks() == 0 || batch == 0 || n == 0 {
        return Tensor::<B, 3>::zeros(shape, options).into_primitive().tensor();
    }
    let left = blocks_of(left, grid_rows, block_rows).select(1, int_tensor::<B>(pattern.row_indices(), options.0));
    let right =
        blocks_of(right, grid_cols, block_cols).select(1, int_tensor::<B>(pattern.col_indices().to_vec(), options.0));
    let sampled = left.matmul(right.swap_dims(2, 3)).sum_dim(0).squeeze_dim::<3>(0);
    let sampled = if alpha == 1.0 { sampled } else { sampled * alpha };
    masked(pattern, sampled).into_primitive().tensor()
}
