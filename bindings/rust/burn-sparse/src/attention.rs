//! Attention, dense and block-sparse.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType, Shape, Tensor, TensorPrimitive};
use sparse_autotune::{Attention, Dtype, Effort, Error, HeadLayout, Problem, Result};

use crate::backend::SparseBackend;
use crate::engine::{self, Place};
use crate::pattern::BsrPattern;
use crate::spec::{FromStrides, Looks, refuse, same_dtype};

/// Which keys a query sees, and how attention is computed.
///
/// The diagonal position of query i of m is key `i + (n - m)` of n: aligned to the bottom right.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AttentionOptions {
    /// Only keys up to the query's diagonal position.
    pub causal: bool,
    /// Only keys at a distance below this from that position.
    pub window: Option<usize>,
    /// What scores are multiplied by; none: one over the square root of the head's size.
    pub scale: Option<f64>,
    /// Scores s become `softcap * tanh(s / softcap)` then, as Gemma has them; from 1e-4 to 1e6.
    pub softcap: Option<f64>,
    /// The blocks of the scores, `[queries, keys]`, that are computed at all; none: all of them. One mask for each head
    /// comes from [`BsrPattern::stack`].
    pub mask: Option<BsrPattern>,
    /// How much may be spent on tuning a problem that the cache does not know.
    pub effort: Effort,
    /// f32 products may round their inputs to TF32.
    pub allow_tf32: bool,
    /// Variants whose result depends on timing may take part.
    pub allow_nondeterministic: bool,
}

/// `softmax(scale * q*k^T where kept) * v`, for each head, without the scores ever being stored.
///
/// `q` is `[batch, heads, queries, size]`, `k` is `[batch, kv heads, keys, size]`, `v` is `[batch, kv heads, keys, value size]`,
/// and what comes back is `[batch, heads, queries, value size]`. `heads` is a multiple of `kv heads`: query head h reads
/// `h / (heads / kv heads)`. Both sizes are from 1 to 576. A query that keeps no key gets zeros. Views, of which the last
/// dimension is as it was, are read in place: `[batch, length, heads, size]` comes in by `swap_dims(1, 2)`. Gradients flow to
/// all three. With a sink for each head it is [`attention_with_sinks`].
///
/// ```
/// use burn::backend::{Autodiff, NdArray};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_sparse::{AttentionOptions, BsrPattern, attention};
///
/// # unsafe { std::env::set_var("SPARSE_AUTOTUNE", "off") };
/// type B = Autodiff<NdArray>;
/// let random = |heads| Tensor::<B, 4>::random([1, heads, 64, 16], Distribution::Default, &Default::default());
/// let (q, k, v) = (random(4).require_grad(), random(2), random(2)); // four heads of queries over two of keys
///
/// // Blocks of 16x16: each query sees its own block and the one before, and of those the past alone.
/// let mask = BsrPattern::from_mask([64, 64], 16, |row, col| row == col || row == col + 1);
/// let options = AttentionOptions { causal: true, mask: Some(mask), ..Default::default() };
/// let out = attention(q.clone(), k, v, &options);
/// assert_eq!(out.dims(), [1, 4, 64, 16]);
/// let grads = out.sum().backward();
/// assert_eq!(q.grad(&grads).unwrap().dims(), [1, 4, 64, 16]);
/// ```
///
/// # Panics
/// With a message that names the argument, if they do not fit together; see [`try_attention`].
#[track_caller]
pub fn attention<B: SparseBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    try_attention(q, k, v, options).unwrap_or_else(|error| panic!("attention: {error}"))
}

/// The same, with an error where the arguments do not fit together. A device that fails, or has too little memory, panics
/// as it does in every operation of Burn's.
pub fn try_attention<B: SparseBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: &AttentionOptions,
) -> Result<Tensor<B, 4>> {
    attend(q, k, v, None, options)
}

/// Attention with a sink for each head: `sinks`, of `[heads]`, are logits that are weighed beside the scores of each query and
/// have no value, as gpt-oss has them; of minus infinity they weigh nothing.
///
/// They are computed with as F32, whatever the other tensors are. Gradients flow to them too. The rest is that of
/// [`attention`].
///
/// ```
/// use burn::backend::{Autodiff, NdArray};
/// use burn::tensor::Tensor;
/// use burn_sparse::{AttentionOptions, attention_with_sinks};
///
/// # unsafe { std::env::set_var("SPARSE_AUTOTUNE", "off") };
/// type B = Autodiff<NdArray>;
/// let device = Default::default();
/// let (q, k) = (Tensor::<B, 4>::zeros([1, 2, 1, 8], &device), Tensor::zeros([1, 2, 3, 8], &device));
/// let v = Tensor::ones([1, 2, 3, 4], &device); // values of another size
/// let sinks = Tensor::<B, 1>::zeros([2], &device).require_grad();
///
/// let out = attention_with_sinks(q, k, v, sinks.clone(), &AttentionOptions::default());
/// assert_eq!(out.dims(), [1, 2, 1, 4]);
/// assert!((out.clone() - 0.75).abs().max().into_scalar() < 1e-6); // four scores of 0, of which three have a value
/// let slopes = sinks.grad(&out.sum().backward()).unwrap();
/// assert!((slopes + 0.75).abs().max().into_scalar() < 1e-6); // less its weight times the sum of the head's output
/// ```
///
/// # Panics
/// As [`attention`] does; see [`try_attention_with_sinks`].
#[track_caller]
pub fn attention_with_sinks<B: SparseBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    sinks: Tensor<B, 1>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    try_attention_with_sinks(q, k, v, sinks, options).unwrap_or_else(|error| panic!("attention: {error}"))
}

/// The same, with an error where the arguments do not fit together, as [`try_attention`] has it.
pub fn try_attention_with_sinks<B: SparseBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    sinks: Tensor<B, 1>,
    options: &AttentionOptions,
) -> Result<Tensor<B, 4>> {
    attend(q, k, v, Some(sinks), options)
}

fn attend<B: SparseBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    sinks: Option<Tensor<B, 1>>,
    options: &AttentionOptions,
) -> Result<Tensor<B, 4>> {
    let [q, k, v] = [q, k, v].map(|tensor| tensor.into_primitive().tensor());
    let sinks = sinks.map(|sinks| if sinks.dtype() == DType::F32 { sinks } else { sinks.cast(DType::F32) });
    let sinks = sinks.map(|sinks| sinks.into_primitive().tensor());
    check_attention(&Looks::of(&q), &Looks::of(&k), &Looks::of(&v), sinks.as_ref().map(Looks::of).as_ref(), options)?;
    let (out, _) = B::bsr_attention(q, k, v, sinks, options, false);
    Ok(Tensor::from_primitive(TensorPrimitive::Float(out)))
}

impl AttentionOptions {
    /// The scale of heads of this size.
    pub(crate) fn scale_of(&self, dim: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (dim as f64).sqrt())
    }

    /// The mask as the library wants it: there is always one.
    pub(crate) fn pattern(&self, sizes: &AttentionSizes) -> BsrPattern {
        match &self.mask {
            Some(mask) => mask.clone(),
            None => full(sizes.queries, sizes.keys),
        }
    }
}

/// The mask that hides nothing. Kept, since a plan belongs to its pattern, and patterns have copies on devices.
fn full(queries: usize, keys: usize) -> BsrPattern {
    const MOST: usize = 64;
    static MASKS: Mutex<Vec<BsrPattern>> = Mutex::new(Vec::new());
    let mut masks = MASKS.lock().unwrap_or_else(PoisonError::into_inner);
    let mask = match masks.iter().position(|mask| mask.shape() == [queries, keys]) {
        Some(at) => masks.remove(at),
        None => BsrPattern::dense([queries, keys], [queries.max(1), keys.max(1)]),
    };
    // The one used last stands last, and the first goes.
    masks.push(mask.clone());
    if masks.len() > MOST {
        masks.remove(0);
    }
    mask
}

/// The sizes of attention whose operands fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionSizes {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub value_dim: usize,
    /// Whether each head has a sink.
    pub sinks: bool,
}

impl AttentionSizes {
    /// The shape of Q.
    pub(crate) fn q_shape(&self) -> Shape {
        Shape::from([self.batch, self.heads, self.queries, self.dim])
    }

    /// The shape of K.
    pub(crate) fn k_shape(&self) -> Shape {
        Shape::from([self.batch, self.kv_heads, self.keys, self.dim])
    }

    /// The shape of V.
    pub(crate) fn v_shape(&self) -> Shape {
        Shape::from([self.batch, self.kv_heads, self.keys, self.value_dim])
    }

    /// The shape of O.
    pub(crate) fn o_shape(&self) -> Shape {
        Shape::from([self.batch, self.heads, self.queries, self.value_dim])
    }

    /// The shape of the sinks.
    pub(crate) fn sinks_shape(&self) -> Shape {
        Shape::from([self.heads])
    }

    /// The shape of the logarithms of the sums.
    pub(crate) fn lse_shape(&self) -> Shape {
        Shape::from([self.batch, self.heads, self.queries])
    }

    /// Runs the library's problem, forward or backward, on operands in the library's order.
    ///
    /// # Safety
    /// As for `Context::call_raw`. On a GPU the streams of all calls are in one order.
    pub(crate) unsafe fn run(
        &self,
        place: Place,
        options: &AttentionOptions,
        problem: Problem,
        inputs: &[*const c_void],
        outputs: &[*mut c_void],
        stream: *mut c_void,
    ) -> Result<()> {
        let context = engine::context(place, options.effort)?;
        let handle = options.pattern(self).on(place, &context)?;
        if !self.sinks {
            // SAFETY: the caller's.
            return unsafe { context.call_raw(&handle, &problem, inputs, outputs, stream) };
        }
        // One call has no argument for sinks. 16 bytes are the most that variants ask for; 0 is an element's size.
        let aligned = |all: bool| if all { 16 } else { 0 };
        let read = aligned(inputs.iter().all(|&input| engine::alignment(input) == 16));
        let written = aligned(outputs.iter().all(|&output| engine::alignment(output) == 16));
        let problem = problem.alignment([read, 0, written]);
        // SAFETY: the caller's.
        unsafe { engine::run_by_plan(place, options.effort, &handle, &problem, inputs, outputs, stream) }
    }

    /// Whether there is no query at all, so that nothing is to be written.
    pub(crate) fn no_queries(&self) -> bool {
        self.batch == 0 || self.queries == 0
    }
}

/// The sizes of attention, or what does not fit.
pub(crate) fn check_attention(
    q: &Looks,
    k: &Looks,
    v: &Looks,
    sinks: Option<&Looks>,
    options: &AttentionOptions,
) -> Result<AttentionSizes> {
    same_dtype("k", k, "q", q)?;
    same_dtype("v", v, "q", q)?;
    let [batch, heads, queries, dim] = q.shape[..] else {
        return refuse(format!("q has shape {:?}: expected [batch, heads, queries, size]", q.shape));
    };
    let kv_heads = k.shape.get(1).copied().unwrap_or(0);
    if k.shape.len() != 4 || k.shape[0] != batch || k.shape[3] != dim {
        return refuse(format!("k has shape {:?}, expected [{batch}, kv heads, keys, {dim}]", k.shape));
    }
    if v.shape.len() != 4 || v.shape[..3] != k.shape[..3] {
        return refuse(format!("v has shape {:?}, and k {:?}: only their last sides may differ", v.shape, k.shape));
    }
    if heads == 0 {
        return refuse(format!("q has shape {:?}: it has no heads", q.shape));
    }
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return refuse(format!("k has shape {:?}: its {kv_heads} heads do not divide q's, {heads}", k.shape));
    }
    let value_dim = v.shape[3];
    for (name, looks) in [("q", q), ("v", v)] {
        if !(1..=576).contains(&looks.shape[3]) {
            let words = format!("{name} has shape {:?}: the size of a head is from 1 to 576", looks.shape);
            return Err(Error::Unsupported(words));
        }
    }
    let sizes =
        AttentionSizes { batch, heads, kv_heads, queries, keys: k.shape[2], dim, value_dim, sinks: sinks.is_some() };
    for (name, shape) in [("q", &q.shape), ("k", &k.shape), ("v", &v.shape), ("the result", &sizes.o_shape().to_vec())]
    {
        // Expanded tensors may have more elements than memory has bytes.
        if shape.iter().try_fold(1, |len: usize, &side| len.checked_mul(side)).is_none() {
            return refuse(format!("{name} has shape {shape:?}: the number of its elements overflows"));
        }
    }
    if let Some(sinks) = sinks.filter(|sinks| sinks.shape != [heads] || sinks.dtype != DType::F32) {
        return refuse(format!(
            "sinks is {:?} of {:?}, expected F32 of [{heads}]: one for each head of q",
            sinks.dtype, sinks.shape
        ));
    }
    check_options(&sizes, q.dtype, options)?;
    Ok(sizes)
}

fn check_options(sizes: &AttentionSizes, dtype: DType, options: &AttentionOptions) -> Result<()> {
    if options.window == Some(0) {
        return refuse("window is 0: a query sees itself, so expected 1 or more".into());
    }
    let holds = |scale: f64| if dtype == DType::F64 { scale.is_finite() } else { (scale as f32).is_finite() };
    if let Some(scale) = options.scale.filter(|&scale| !holds(scale)) {
        let what = if dtype == DType::F64 { "f64" } else { "f32" };
        return Err(Error::Unsupported(format!("scale is {scale}: expected a finite number that {what} holds")));
    }
    if let Some(softcap) = options.softcap.filter(|softcap| !(1e-4..=1e6).contains(softcap)) {
        return Err(Error::Unsupported(format!("softcap is {softcap}: expected 1e-4 to 1e6")));
    }
    let Some(mask) = &options.mask else { return Ok(()) };
    let ([rows, cols], [block, _]) = (mask.shape(), mask.block_size());
    let stacked = sizes.queries.div_ceil(block).checked_mul(block).and_then(|one| one.checked_mul(sizes.heads));
    if cols == sizes.keys && (rows == sizes.queries || Some(rows) == stacked) {
        return Ok(());
    }
    refuse(format!(
        "mask has shape [{rows}, {cols}], expected [{}, {}] for all heads, or {} of these stacked, one for each head",
        sizes.queries, sizes.keys, sizes.heads
    ))
}

/// Whether what the forward pass gave, and the gradient of it, fit.
pub(crate) fn check_backward(sizes: &AttentionSizes, q: &Looks, o: &Looks, lse: &Looks, grad: &Looks) -> Result<()> {
    for (name, looks) in [("o", o), ("grad", grad)] {
        same_dtype(name, looks, "q", q)?;
        if looks.shape != sizes.o_shape()[..] {
            return refuse(format!("{name} has shape {:?}, expected {:?}", looks.shape, sizes.o_shape()));
        }
    }
    if lse.shape != sizes.lse_shape()[..] || lse.dtype != DType::F32 {
        return refuse(format!("lse is {:?} of {:?}, expected F32 of {:?}", lse.dtype, lse.shape, sizes.lse_shape()));
    }
    Ok(())
}

/// Strides of an operand's heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadStrides(HeadLayout);

impl FromStrides for HeadStrides {
    /// None where the library would need a copy: strides that go backwards, elements of a row that are not together, or a
    /// single row expanded in all dimensions.
    fn from_strides(shape: &[usize], strides: &[isize]) -> Option<Self> {
        if let &[_, heads, rows, dim] = shape
            && shape.contains(&0)
        {
            // Strides without an element say nothing.
            let head = rows.saturating_mul(dim);
            let batch = heads.saturating_mul(head);
            return Some(Self(HeadLayout { batch_stride: batch, head_stride: head, row_stride: dim.max(1) }));
        }
        let (&[batch, heads, rows, dim], &[_, _, _, element]) = (shape, strides) else { return None };
        if dim > 1 && element != 1 {
            return None;
        }
        let stride = |at: usize| usize::try_from(strides[at]).ok();
        // A stride that is never taken says nothing: it becomes what it would be without gaps.
        let row = if rows > 1 { stride(2)? } else { dim };
        let head = if heads > 1 { stride(1)? } else { rows * row };
        let batch = if batch > 1 { stride(0)? } else { (heads * head).max(rows * row) };
        let layout = HeadLayout { batch_stride: batch, head_stride: head, row_stride: row };
        (layout != HeadLayout::default()).then_some(Self(layout)) // which would be read as gapless
    }
}

fn described(sizes: &AttentionSizes, options: &AttentionOptions, [q, k, v]: [HeadStrides; 3]) -> Attention {
    // 0 is the library's word for the usual scale.
    let scale = options.scale.map_or(0.0, |scale| if scale == 0.0 { f64::MIN_POSITIVE } else { scale });
    Attention::new(sizes.heads, sizes.dim)
        .value_dim(sizes.value_dim)
        .kv_heads(sizes.kv_heads)
        .queries(sizes.queries)
        .causal(options.causal)
        .window(options.window.map_or(0, |window| window.min(i64::MAX as usize)))
        .scale(scale)
        .softcap(options.softcap.unwrap_or(0.0))
        .sinks(sizes.sinks)
        .q_layout(q.0)
        .k_layout(k.0)
        .v_layout(v.0)
}

fn flagged(problem: Problem, sizes: &AttentionSizes, options: &AttentionOptions) -> Problem {
    problem
        .batch(sizes.batch)
        .allow_tf32(options.allow_tf32)
        .allow_nondeterministic(options.allow_nondeterministic)
        .allow_broadcast(true) // a tensor's stride of 0 is meant
}

/// The library's problem of the forward pass; what it writes has no gaps.
pub(crate) fn forward_problem(
    dtype: Dtype,
    sizes: &AttentionSizes,
    options: &AttentionOptions,
    placed: [HeadStrides; 3],
    lse: bool,
) -> Problem {
    flagged(Problem::attention_of(dtype, &described(sizes, options, placed).lse(lse)), sizes, options)
}

/// The library's problem of the backward pass; Q, K, V, O and the gradient of O are stored as `placed` says, and what it writes
/// has no gaps.
pub(crate) fn backward_problem(
    dtype: Dtype,
    sizes: &AttentionSizes,
    options: &AttentionOptions,
    [q, k, v, o, grad]: [HeadStrides; 5],
) -> Problem {
    let attention = described(sizes, options, [q, k, v]).o_layout(o.0).do_layout(grad.0);
    flagged(Problem::attention_backward_of(dtype, &attention), sizes, options)
}
