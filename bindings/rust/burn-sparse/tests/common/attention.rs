//! Attention as Burn's dense operations have it.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_sparse::AttentionOptions;

/// The same in dense arithmetic, of any backend: heads are repeated, hidden scores multiplied by zero.
pub fn dense<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    dense_with_sinks(q, k, v, None, options)
}

/// The same, with a sink for each head, of the other tensors' dtype.
pub fn dense_with_sinks<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    sinks: Option<Tensor<B, 1>>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    let ([batch, heads, queries, dim], [_, kv_heads, keys, _]) = (q.dims(), k.dims());
    let repeated = |tensor: Tensor<B, 4>| {
        let dim = tensor.dims()[3];
        let groups = [batch, kv_heads, heads / kv_heads, keys, dim];
        let tensor = tensor.reshape([batch, kv_heads, 1, keys, dim]).expand(groups);
        tensor.reshape([batch, heads, keys, dim])
    };
    let kept: Vec<f32> = (0..heads * queries * keys)
        .map(|at| f32::from(keeps(options, [queries, keys], at / keys / queries, at / keys % queries, at % keys)))
        .collect();
    let kept = TensorData::new(kept, [1, heads, queries, keys]);
    let kept = Tensor::<B, 4>::from_data(kept.convert_dtype(q.dtype()), (&q.device(), q.dtype()));
    let scale = options.scale.unwrap_or((dim as f64).powf(-0.5));
    let scores = q.matmul(repeated(k).swap_dims(2, 3)) * scale;
    let scores = match options.softcap {
        Some(softcap) => (scores / softcap).tanh() * softcap,
        None => scores,
    };
    let powers = scores.exp() * kept;
    let sums = powers.clone().sum_dim(3);
    let sums = match sinks {
        Some(sinks) => sums + sinks.exp().reshape([1, heads, 1, 1]),
        None => sums,
    };
    let nothing = sums.clone().equal_elem(0.0);
    powers.matmul(repeated(v)) / sums.mask_fill(nothing, 1.0)
}

/// The definition of what is kept.
fn keeps(options: &AttentionOptions, [queries, keys]: [usize; 2], head: usize, i: usize, j: usize) -> bool {
    let apart = j as i64 - (i as i64 + keys as i64 - queries as i64);
    let stored = options.mask.as_ref().is_none_or(|mask| {
        let [block_rows, block_cols] = mask.block_size();
        let first = if mask.shape()[0] == queries { 0 } else { head * queries.div_ceil(block_rows) };
        let row = first + i / block_rows;
        let columns = &mask.col_indices()[mask.row_ptr()[row] as usize..mask.row_ptr()[row + 1] as usize];
        columns.contains(&((j / block_cols) as i64))
    });
    stored
        && (!options.causal || apart <= 0)
        && options.window.is_none_or(|window| apart.unsigned_abs() < window as u64)
}
