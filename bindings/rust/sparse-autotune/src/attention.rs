//! Attention, forward and backward: what it is, and the calls that run it.

use sparse_autotune_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result, check, size};
use crate::memory::{Input, Output};
use crate::pattern::Pattern;
use crate::plan::Plan;
use crate::problem::{Need, Needs, Operation, Problem};
use crate::types::{Dtype, Element};

/// Strides of an operand's heads: element (b, h, i, x) is at `b*batch_stride + h*head_stride + i*row_stride + x`.
///
/// All 0, which is what the default says, mean (batch, head, row, element) without gaps. Any other order with the elements
/// of a row together, and heads that are a part of something larger, are strides of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HeadLayout {
    /// From one of a batch to the next.
    pub batch_stride: usize,
    /// From a head to the next.
    pub head_stride: usize,
    /// From a row (a query, a key) to the next.
    pub row_stride: usize,
}

impl HeadLayout {
    fn raw(self, name: &str) -> Result<sys::sat_heads> {
        Ok(sys::sat_heads {
            batch_stride: size(&format!("{name}.batch_stride"), self.batch_stride)?,
            head_stride: size(&format!("{name}.head_stride"), self.head_stride)?,
            row_stride: size(&format!("{name}.row_stride"), self.row_stride)?,
        })
    }

    /// How many elements a slice must have to hold this.
    fn extent(self, name: &str, [batch, heads, rows, dim]: [usize; 4]) -> Result<usize> {
        if [batch, heads, rows, dim].contains(&0) {
            return Ok(0);
        }
        let reach = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        let len = if self == Self::default() {
            [heads, rows, dim].into_iter().try_fold(batch, usize::checked_mul)
        } else {
            reach(batch, self.batch_stride)
                .and_then(|sum| sum.checked_add(reach(heads, self.head_stride)?))
                .and_then(|sum| sum.checked_add(reach(rows, self.row_stride)?))
                .and_then(|sum| sum.checked_add(dim))
        };
        len.ok_or_else(|| {
            Error::BadSize(format!("{name}: batch {batch}, {heads} heads, {rows} x {dim} with {self:?} overflows"))
        })
    }
}

/// What attention is to do: `O = softmax(scale*Q*K^T where kept)*V`, for each head.
///
/// The [`Pattern`] is the mask, over the scores, one row for each query and one column for each key: key j is kept for query
/// i where the block of (i, j) is stored, [`causal`](Self::causal) and [`window`](Self::window) allow it, and both belong to
/// the same sequence ([`Pattern::with_sequences`]). Without a mask it is [`Pattern::full`]. A query for which nothing is
/// kept gets zeros. [`softcap`](Self::softcap) and [`sinks`](Self::sinks) change the scores, and what they are weighed by.
///
/// ```
/// use sparse_autotune::{Attention, Context, Pattern, Plan, Problem};
///
/// # fn main() -> sparse_autotune::Result<()> {
/// # let context = Context::builder().device("cpu").cache_in_memory().effort(sparse_autotune::Effort::Off).build()?;
/// // Two heads of queries over one of keys, 4 queries and 4 keys of 8 elements, the past alone.
/// let mask = Pattern::full(&context, [4, 4])?;
/// let attention = Attention::new(2, 8).kv_heads(1).causal(true).lse(true);
/// let (q, k) = (vec![0f32; 2 * 4 * 8], vec![0f32; 4 * 8]);
/// let v: Vec<f32> = (0..32).map(|at| (at / 8) as f32).collect(); // key j is worth j
/// let (mut o, mut lse) = (vec![0f32; 64], vec![0f32; 8]);
///
/// let mut plan = Plan::new(&context, &mask, &Problem::attention::<f32>(&attention))?;
/// plan.attention_lse((&q, &k, &v), &mut o, &mut lse)?;
/// assert_eq!(o[3 * 8], 1.5); // the last query of the first head: the mean of 0, 1, 2 and 3
/// assert_eq!(lse[3], 4f32.ln());
///
/// let d_o = vec![1f32; 64];
/// let (mut dq, mut dk, mut dv) = (vec![0f32; 64], vec![0f32; 32], vec![0f32; 32]);
/// let mut plan = Plan::new(&context, &mask, &Problem::attention_backward::<f32>(&attention))?;
/// plan.attention_backward((&q, &k, &v), (&o, &lse), &d_o, (&mut dq, &mut dk, &mut dv))?;
/// assert_eq!(dv[3 * 8], 0.5); // a quarter from each head
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    queries: usize,
    causal: bool,
    window: usize,
    pub(crate) scale: f64,
    lse: bool,
    value_dim: usize,
    softcap: f64,
    pub(crate) sinks: bool,
    layouts: [HeadLayout; 8],
}

/// Those that have a layout, in its order: whether they have a row for each key, and whether rows have the size of values.
const PLACED: [(&str, bool, bool); 8] = [
    ("q", false, false),
    ("k", true, false),
    ("v", true, true),
    ("o", false, true),
    ("do", false, true),
    ("dq", false, false),
    ("dk", true, false),
    ("dv", true, true),
];

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $at:expr;)*) => {
        $($(#[$doc])*
        pub fn $name(mut self, layout: HeadLayout) -> Self {
            self.layouts[$at] = layout;
            self
        })*
    };
}

impl Attention {
    /// So many heads of queries, and of keys too, of `dim` elements, from 1 to 576.
    pub fn new(heads: usize, dim: usize) -> Self {
        Self { heads, dim, ..Self::default() }
    }

    /// Heads of keys and values, a divisor of the queries': query head h reads `h / (heads / kv_heads)`. 0, which it is
    /// by default: as many as those.
    pub fn kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    /// Elements of a head of V and O, and of their gradients, from 1 to 576; 0, the default: as many as Q and K have.
    pub fn value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    /// Only keys up to a query's diagonal position: that of query i of m is key `i + (n - m)` of n.
    pub fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// Only keys at a distance below this from the query's diagonal position; 0, the default: all.
    pub fn window(self, window: usize) -> Self {
        Self { window, ..self }
    }

    /// What scores are multiplied by; 0, the default: `1/sqrt(dim)`.
    pub fn scale(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// Scores s, which the scale is in already, become `softcap*tanh(s/softcap)`; from 1e-4 to 1e6, and 0, the default: they
    /// stay.
    pub fn softcap(self, softcap: f64) -> Self {
        Self { softcap, ..self }
    }

    /// There is one input more: an f32 for each head, which is weighed as one more score of each of its queries, with a
    /// value of zeros; of minus infinity it weighs nothing. The LSE counts it. The backward pass has one output more: the
    /// gradient of it, an f32 for each head, summed over queries and batch.
    ///
    /// ```
    /// use sparse_autotune::{Attention, Context, Pattern, Plan, Problem};
    ///
    /// # fn main() -> sparse_autotune::Result<()> {
    /// # let context = Context::builder().device("cpu").cache_in_memory().effort(sparse_autotune::Effort::Off).build()?;
    /// let mask = Pattern::full(&context, [1, 3])?;
    /// let attention = Attention::new(1, 8).sinks(true).lse(true);
    /// let (q, k, v, sinks) = ([0f32; 8], [0f32; 24], [1f32; 24], [0f32]); // four scores of 0, of which three have a value
    /// let (mut o, mut lse) = ([0f32; 8], [0f32; 1]);
    /// let mut plan = Plan::new(&context, &mask, &Problem::attention::<f32>(&attention))?;
    /// plan.attention_lse_sinks((&q, &k, &v), &sinks, &mut o, &mut lse)?;
    /// assert_eq!((o[0], lse[0]), (0.75, 4f32.ln()));
    ///
    /// let (mut dq, mut dk, mut dv, mut dsinks) = ([0f32; 8], [0f32; 24], [0f32; 24], [0f32; 1]);
    /// let mut plan = Plan::new(&context, &mask, &Problem::attention_backward::<f32>(&attention))?;
    /// let (inputs, outputs) = ((&q, &k, &v), (&mut dq, &mut dk, &mut dv));
    /// plan.attention_backward_sinks(inputs, (&o, &lse), &[1f32; 8], &sinks, outputs, &mut dsinks)?;
    /// assert!((dsinks[0] + 0.25 * 8.0 * 0.75).abs() < 1e-6); // less its weight times the sum of the output
    /// # Ok(())
    /// # }
    /// ```
    pub fn sinks(self, sinks: bool) -> Self {
        Self { sinks, ..self }
    }

    /// Forward: also give `log(sum(exp(scale*q*k)))` of each query, which the backward pass needs: f32, (batch, head,
    /// query) without gaps.
    pub fn lse(self, lse: bool) -> Self {
        Self { lse, ..self }
    }

    /// How many queries there are; 0, the default: as many as the pattern has rows. Needed where each head has
    /// a mask of its own: the pattern then has the block rows of head 0, those of head 1 and so on,
    /// `heads * ceil(queries/block) * block` rows.
    pub fn queries(self, queries: usize) -> Self {
        Self { queries, ..self }
    }

    layouts! {
        /// Strides of Q's heads.
        q_layout = 0;
        /// Strides of K's heads.
        k_layout = 1;
        /// Strides of V's heads.
        v_layout = 2;
        /// Strides of O's heads.
        o_layout = 3;
        /// Strides of the heads of O's gradient.
        do_layout = 4;
        /// Strides of the heads of Q's gradient.
        dq_layout = 5;
        /// Strides of the heads of K's gradient.
        dk_layout = 6;
        /// Strides of the heads of V's gradient.
        dv_layout = 7;
    }

    /// Writes all that is attention's own into a problem whose size is set.
    pub(crate) fn write(&self, raw: &mut sys::sat_problem, dtype: Dtype, backward: bool) -> Result<()> {
        let (holds, kind) = match dtype {
            Dtype::F64 => (self.scale.is_finite(), "f64"),
            _ => ((self.scale as f32).is_finite(), "f32"),
        };
        if !holds {
            return Err(Error::Unsupported(format!(
                "scale is {:e}; expected a finite number that {kind} holds",
                self.scale
            )));
        }
        let (heads, kv_heads, dim) =
            (size("heads", self.heads)?, size("kv_heads", self.kv_heads)?, size("dim", self.dim)?);
        let make = if backward { sys::sat_problem_attention_backward } else { sys::sat_problem_attention };
        // SAFETY: the struct's size is set.
        check(unsafe { make(raw, dtype.raw(), heads, kv_heads, dim) })?;
        raw.m = size("queries", self.queries)?;
        // SAFETY: the part of these operations, which the constructor has written.
        let to = unsafe { &mut raw.__bindgen_anon_1.attention };
        (to.causal, to.window, to.lse) = (self.causal, size("window", self.window)?, self.lse);
        (to.value_dim, to.softcap, to.sinks) = (size("value_dim", self.value_dim)?, self.softcap, self.sinks);
        let places = [&mut to.q, &mut to.k, &mut to.v, &mut to.o, &mut to.do_, &mut to.dq, &mut to.dk, &mut to.dv];
        for ((place, layout), (name, ..)) in places.into_iter().zip(self.layouts).zip(PLACED) {
            *place = layout.raw(name)?;
        }
        Ok(())
    }

    /// The operands, in the library's order; of a mask of this shape.
    pub(crate) fn needs(&self, dtype: Dtype, batch: usize, shape: [usize; 2], backward: bool) -> Result<Needs> {
        let [rows, keys] = shape;
        let queries = if self.queries == 0 { rows } else { self.queries };
        let kv_heads = if self.kv_heads == 0 { self.heads } else { self.kv_heads };
        let value_dim = if self.value_dim == 0 { self.dim } else { self.value_dim };
        let placed = |at: usize| -> Result<Need> {
            let (name, of_keys, of_values) = PLACED[at];
            let (heads, rows) = if of_keys { (kv_heads, keys) } else { (self.heads, queries) };
            let shape = [batch, heads, rows, if of_values { value_dim } else { self.dim }];
            Ok(Need { name, dtype, len: self.layouts[at].extent(name, shape)? })
        };
        let (q, k, v, o) = (placed(0)?, placed(1)?, placed(2)?, placed(3)?);
        let len = HeadLayout::default().extent("lse", [batch, self.heads, queries, 1])?;
        let lse = Need { name: "lse", dtype: Dtype::F32, len };
        let sinks = |name| self.sinks.then_some(Need { name, dtype: Dtype::F32, len: self.heads });
        let (mut inputs, mut outputs) = (vec![q, k, v], vec![]);
        if backward {
            inputs.extend([o, lse, placed(4)?]);
            outputs.extend([placed(5)?, placed(6)?, placed(7)?]);
            outputs.extend(sinks("dsinks"));
        } else {
            outputs.push(o);
            outputs.extend(self.lse.then_some(lse));
        }
        inputs.extend(sinks("sinks"));
        Ok(Needs { inputs, outputs })
    }
}

impl Problem {
    /// Attention.
    pub fn attention<T: Element>(attention: &Attention) -> Self {
        Self::attention_of(T::DTYPE, attention)
    }

    /// The same, of a dtype that is known at run time.
    pub fn attention_of(dtype: Dtype, attention: &Attention) -> Self {
        Self::new(Operation::Attention, dtype, 0).with_attention(attention)
    }

    /// The gradients of attention to Q, K and V, and to sinks where it has them.
    pub fn attention_backward<T: Element>(attention: &Attention) -> Self {
        Self::attention_backward_of(T::DTYPE, attention)
    }

    /// The same, of a dtype that is known at run time.
    pub fn attention_backward_of(dtype: Dtype, attention: &Attention) -> Self {
        Self::new(Operation::AttentionBackward, dtype, 0).with_attention(attention)
    }
}

impl Plan {
    /// Runs attention: `o = softmax(scale*q*k^T where kept)*v`.
    pub fn attention(&mut self, (q, k, v): (impl Input, impl Input, impl Input), mut o: impl Output) -> Result<()> {
        self.run(Operation::Attention, &[q.span(), k.span(), v.span()], &[o.span()])
    }

    /// Runs attention whose problem has an LSE.
    pub fn attention_lse(
        &mut self,
        (q, k, v): (impl Input, impl Input, impl Input),
        mut o: impl Output,
        mut lse: impl Output,
    ) -> Result<()> {
        self.run(Operation::Attention, &[q.span(), k.span(), v.span()], &[o.span(), lse.span()])
    }

    /// Runs attention whose problem has sinks, one for each head.
    pub fn attention_sinks(
        &mut self,
        (q, k, v): (impl Input, impl Input, impl Input),
        sinks: impl Input,
        mut o: impl Output,
    ) -> Result<()> {
        self.run(Operation::Attention, &[q.span(), k.span(), v.span(), sinks.span()], &[o.span()])
    }

    /// Runs attention whose problem has sinks and an LSE.
    pub fn attention_lse_sinks(
        &mut self,
        (q, k, v): (impl Input, impl Input, impl Input),
        sinks: impl Input,
        mut o: impl Output,
        mut lse: impl Output,
    ) -> Result<()> {
        self.run(Operation::Attention, &[q.span(), k.span(), v.span(), sinks.span()], &[o.span(), lse.span()])
    }

    /// Runs the backward pass: `o` and `lse` are what the forward pass gave, `d_o` is the gradient of `o`.
    ///
    /// The three outputs are slices or buffers of their own. For gradients that are stored in one packed array there is
    /// [`run_raw`](Self::run_raw).
    pub fn attention_backward(
        &mut self,
        (q, k, v): (impl Input, impl Input, impl Input),
        (o, lse): (impl Input, impl Input),
        d_o: impl Input,
        (mut dq, mut dk, mut dv): (impl Output, impl Output, impl Output),
    ) -> Result<()> {
        let inputs = [q.span(), k.span(), v.span(), o.span(), lse.span(), d_o.span()];
        let outputs = [dq.span(), dk.span(), dv.span()];
        self.run(Operation::AttentionBackward, &inputs, &outputs)
    }

    /// Runs the backward pass of attention whose problem has sinks; `dsinks` has one number for each head, as they have.
    pub fn attention_backward_sinks(
        &mut self,
        (q, k, v): (impl Input, impl Input, impl Input),
        (o, lse): (impl Input, impl Input),
        d_o: impl Input,
        sinks: impl Input,
        (mut dq, mut dk, mut dv): (impl Output, impl Output, impl Output),
        mut dsinks: impl Output,
    ) -> Result<()> {
        let inputs = [q.span(), k.span(), v.span(), o.span(), lse.span(), d_o.span(), sinks.span()];
        let outputs = [dq.span(), dk.span(), dv.span(), dsinks.span()];
        self.run(Operation::AttentionBackward, &inputs, &outputs)
    }
}

/// The one-call forms, which have no argument for sinks: attention that has them takes a [`Plan`].
impl Context {
    /// Attention in one call; see [`Plan::attention`].
    pub fn attention(
        &self,
        mask: &Pattern,
        problem: &Problem,
        (q, k, v): (impl Input, impl Input, impl Input),
        mut o: impl Output,
    ) -> Result<()> {
        self.call(Operation::Attention, mask, problem, &[q.span(), k.span(), v.span()], &[o.span()])
    }

    /// The same with an LSE; see [`Plan::attention_lse`].
    pub fn attention_lse(
        &self,
        mask: &Pattern,
        problem: &Problem,
        (q, k, v): (impl Input, impl Input, impl Input),
        mut o: impl Output,
        mut lse: impl Output,
    ) -> Result<()> {
        self.call(Operation::Attention, mask, problem, &[q.span(), k.span(), v.span()], &[o.span(), lse.span()])
    }

    /// The gradients in one call; see [`Plan::attention_backward`].
    pub fn attention_backward(
        &self,
        mask: &Pattern,
        problem: &Problem,
        (q, k, v): (impl Input, impl Input, impl Input),
        (o, lse): (impl Input, impl Input),
        d_o: impl Input,
        (mut dq, mut dk, mut dv): (impl Output, impl Output, impl Output),
    ) -> Result<()> {
        let inputs = [q.span(), k.span(), v.span(), o.span(), lse.span(), d_o.span()];
        let outputs = [dq.span(), dk.span(), dv.span()];
        self.call(Operation::AttentionBackward, mask, problem, &inputs, &outputs)
    }
}
