//! What a backend does with a block-sparse matrix, or mask.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use sparse_autotune::{Effort, Race, Result};

use crate::attention::{AttentionOptions, AttentionSizes, check_attention, check_backward};
use crate::pattern::BsrPattern;
use crate::spec::{Looks, MatmulSpec, check_matmul, check_sampled};

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
mod cuda;
pub mod fallback;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "fusion")]
mod fusion;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod host;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "cuda")]
mod order;

#[cfg(feature = "cuda")]
pub use order::CudaOrder;

/// A backend that multiplies by block-sparse matrices, and computes attention.
///
/// NdArray, Flex and CUDA, plain and under Fusion, go to the library without copies; CubeCL's other backends, WGPU among
/// them, use Burn's own tensor operations, and so does any backend of your own: `impl SparseBackend for Mine {}`.
/// `Autodiff` over all of them adds the gradients.
///
/// The operations are those of primitives; [`BsrTensor`](crate::BsrTensor) and [`attention`](crate::attention) are the way to
/// use them.
pub trait SparseBackend: Backend {
    /// `activation(alpha*op(A)*B + bias)`, or the same from the right. `values` is `[blocks, block rows, block columns]`,
    /// `dense` a matrix or a batch of them, `bias` one value for each row of op(A).
    ///
    /// # Panics
    /// With a message that names the operand, if they do not fit together.
    fn bsr_matmul(
        pattern: &BsrPattern,
        values: FloatTensor<Self>,
        dense: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        spec: MatmulSpec,
    ) -> FloatTensor<Self> {
        fallback::matmul::<Self>(pattern, values, dense, bias, spec)
    }

    /// The sampled product: `alpha` times the sum over a batch of `left*right^T`, at the stored blocks alone. `left` is
    /// `[.., rows, n]`, `right` `[.., columns, n]`; what comes back is `[blocks, block rows, block columns]`, with zero
    /// beyond the matrix. The sum is rounded once to 16 bits, however long the batch is. The
    /// effort is how much may be spent on tuning a product that the cache does not know.
    ///
    /// # Panics
    /// With a message that names the operand, if they do not fit together.
    fn bsr_sampled(
        pattern: &BsrPattern,
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        alpha: f64,
        _effort: Effort,
    ) -> FloatTensor<Self> {
        fallback::sampled::<Self>(pattern, left, right, alpha)
    }

    /// Races every implementation of a product on this backend's device, or reads the race back from the cache. None
    /// where the backend has no more than one.
    fn bsr_race(
        _pattern: &BsrPattern,
        _values: FloatTensor<Self>,
        _dense: FloatTensor<Self>,
        _bias: Option<FloatTensor<Self>>,
        _spec: MatmulSpec,
    ) -> Result<Option<Race>> {
        Ok(None)
    }

    /// `softmax(scale * q*k^T where kept) * v`, and, where it is asked for, the logarithm of the sum of each query's
    /// exponentials: F32 of `[batch, heads, queries]`, which no gradient flows through. `sinks`, F32 of `[heads]`, are
    /// weighed as one more score of each query, which has no value.
    ///
    /// # Panics
    /// With a message that names the operand, if they do not fit together.
    fn bsr_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sinks: Option<FloatTensor<Self>>,
        options: &AttentionOptions,
        lse: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        fallback::attention::<Self>(q, k, v, sinks, options, lse)
    }

    /// The gradients of that to `q`, `k` and `v`, and to the sinks where there are any; `grad` is the gradient of what it gave.
    ///
    /// # Panics
    /// With a message that names the operand, if they do not fit together.
    fn bsr_attention_backward(
        saved: Saved<Self>,
        grad: FloatTensor<Self>,
        options: &AttentionOptions,
    ) -> ([FloatTensor<Self>; 3], Option<FloatTensor<Self>>) {
        fallback::attention_backward::<Self>(saved, grad, options)
    }
}

/// What the backward pass of attention needs of the forward pass: its operands, and what it gave.
#[derive(Debug, Clone)]
pub struct Saved<B: Backend> {
    /// `[batch, heads, queries, size]`.
    pub q: FloatTensor<B>,
    /// `[batch, kv heads, keys, size]`.
    pub k: FloatTensor<B>,
    /// `[batch, kv heads, keys, value size]`.
    pub v: FloatTensor<B>,
    /// F32 of `[heads]`.
    pub sinks: Option<FloatTensor<B>>,
    /// `[batch, heads, queries, value size]`.
    pub o: FloatTensor<B>,
    /// F32 of `[batch, heads, queries]`.
    pub lse: FloatTensor<B>,
}

/// The sizes of a product, or a panic that names what does not fit.
#[track_caller]
pub(crate) fn fit_matmul<B: Backend>(
    pattern: &BsrPattern,
    values: &FloatTensor<B>,
    dense: &FloatTensor<B>,
    bias: Option<&FloatTensor<B>>,
    spec: &MatmulSpec,
) -> crate::spec::Sizes {
    let looks = (Looks::of(values), Looks::of(dense), bias.map(Looks::of));
    check_matmul(pattern, &looks.0, &looks.1, looks.2.as_ref(), spec)
        .unwrap_or_else(|error| panic!("bsr_matmul: {error}"))
}

/// Batch and depth of a sampled product, or a panic that names what does not fit.
#[track_caller]
pub(crate) fn fit_sampled<B: Backend>(
    pattern: &BsrPattern,
    left: &FloatTensor<B>,
    right: &FloatTensor<B>,
) -> (usize, usize) {
    check_sampled(pattern, &Looks::of(left), &Looks::of(right)).unwrap_or_else(|error| panic!("bsr_sampled: {error}"))
}

/// The sizes of attention, or a panic that names what does not fit.
#[track_caller]
pub(crate) fn fit_attention<B: Backend>(
    q: &FloatTensor<B>,
    k: &FloatTensor<B>,
    v: &FloatTensor<B>,
    sinks: Option<&FloatTensor<B>>,
    options: &AttentionOptions,
) -> AttentionSizes {
    check_attention(&Looks::of(q), &Looks::of(k), &Looks::of(v), sinks.map(Looks::of).as_ref(), options)
        .unwrap_or_else(|error| panic!("attention: {error}"))
}

/// The same of the backward pass.
#[track_caller]
pub(crate) fn fit_backward<B: Backend>(
    saved: &Saved<B>,
    grad: &FloatTensor<B>,
    options: &AttentionOptions,
) -> AttentionSizes {
    let sizes = fit_attention::<B>(&saved.q, &saved.k, &saved.v, saved.sinks.as_ref(), options);
    check_backward(&sizes, &Looks::of(&saved.q), &Looks::of(&saved.o), &Looks::of(&saved.lse), &Looks::of(grad))
        .unwrap_or_else(|error| panic!("attention: {error}"));
    sizes
}
