//! Products of groups, as in a mixture of experts: rows of X are cut into groups, and each group meets a matrix of its own.

use std::ffi::c_void;
use std::ptr;

use sparse_autotune_sys as sys;

use crate::context::{Context, text};
use crate::error::{Error, Result, check, size};
use crate::memory::{Input, Output, Span};
use crate::problem::{Layout, Need};
use crate::types::{Activation, Backend, Dtype, Element, Index};

/// A product of groups: `y = act(alpha*x*w[group] + beta*y + bias[group])`, or the gradient of `w`. One dtype throughout,
/// without gaps, alpha 1 and beta 0, unless changed.
///
/// Rows `offsets[g]` to `offsets[g + 1] - 1` of x are group `g`. The offsets are an operand: a plan takes them as they are
/// at each run. They begin with 0, never decrease, and end at the number of rows or before; a row behind the last group
/// belongs to none, and its product is zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grouped {
    weights: bool,
    sizes: [usize; 3],
    groups: usize,
    dtype: Dtype,
    out_dtype: Dtype,
    layouts: [Layout; 3],
    alpha: f64,
    beta: f64,
    bias: bool,
    activation: Activation,
    skew: f64,
    flags: u32,
}

impl Grouped {
    fn new(weights: bool, dtype: Dtype, sizes: [usize; 3], groups: usize) -> Self {
        Self {
            weights,
            sizes,
            groups,
            dtype,
            out_dtype: dtype,
            layouts: [Layout::default(); 3],
            alpha: 1.0,
            beta: 0.0,
            bias: false,
            activation: Activation::None,
            skew: 0.0,
            flags: 0,
        }
    }

    /// `y = x*w[group]`: x has `rows` rows of `depth` elements, w a matrix of `depth` by `cols` for each group.
    pub fn matmul<T: Element>([rows, cols, depth]: [usize; 3], groups: usize) -> Self {
        Self::matmul_of(T::DTYPE, [rows, cols, depth], groups)
    }

    /// The same, of a dtype that is known at run time.
    pub fn matmul_of(dtype: Dtype, sizes: [usize; 3], groups: usize) -> Self {
        Self::new(false, dtype, sizes, groups)
    }

    /// The gradient of w: `w[group] = x^T*z`, a sum over the group's rows. z has `rows` rows of `cols` elements.
    pub fn weights<T: Element>([rows, cols, depth]: [usize; 3], groups: usize) -> Self {
        Self::weights_of(T::DTYPE, [rows, cols, depth], groups)
    }

    /// The same, of a dtype that is known at run time.
    pub fn weights_of(dtype: Dtype, sizes: [usize; 3], groups: usize) -> Self {
        Self::new(true, dtype, sizes, groups)
    }

    /// The scale of the product.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// What the output held before is scaled by this and added; with 0 it is never read.
    pub fn beta(self, beta: f64) -> Self {
        Self { beta, ..self }
    }

    /// The output's dtype: f32 with 16-bit inputs, else that of the inputs.
    pub fn output(self, dtype: Dtype) -> Self {
        Self { out_dtype: dtype, ..self }
    }

    /// Of the product: add one value, of the output's dtype, to each column, another one in each group.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Of the product: what is applied to each element, after the bias.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// What to tune for: the rows of the largest group over their mean; 0, the default: 2.
    pub fn skew(self, skew: f64) -> Self {
        Self { skew, ..self }
    }

    /// The layout of x.
    pub fn x_layout(mut self, layout: Layout) -> Self {
        self.layouts[0] = layout;
        self
    }

    /// The layout of w, whose batch stride leads from one group's matrix to the next; or of z.
    pub fn second_layout(mut self, layout: Layout) -> Self {
        self.layouts[1] = layout;
        self
    }

    /// The layout of y; or of the gradient of w, whose batch stride leads from one group's matrix to the next.
    pub fn output_layout(mut self, layout: Layout) -> Self {
        self.layouts[2] = layout;
        self
    }

    /// f32 products may round their inputs to TF32.
    pub fn allow_tf32(self, allow: bool) -> Self {
        let flag = sys::SAT_ALLOW_TF32;
        Self { flags: if allow { self.flags | flag } else { self.flags & !flag }, ..self }
    }

    fn raw<I: Index>(&self) -> Result<sys::sat_problem> {
        let mut raw = sys::sat_problem { size: size_of::<sys::sat_problem>(), ..Default::default() };
        let [rows, cols, depth] = self.sizes;
        let make = if self.weights { sys::sat_problem_grouped_weights } else { sys::sat_problem_grouped };
        let (m, n, k, groups) =
            (size("rows", rows)?, size("cols", cols)?, size("depth", depth)?, size("groups", self.groups)?);
        // SAFETY: the struct's size is set.
        check(unsafe { make(&mut raw, self.dtype.raw(), m, n, k, groups) })?;
        // SAFETY: the part of these operations, which the constructor has written.
        let part = unsafe { &mut raw.__bindgen_anon_1.grouped };
        (part.offset_type, part.bias, part.activation) = (I::RAW, self.bias, self.activation.raw());
        part.skew = self.skew;
        raw.flags = self.flags;
        raw.c_dtype = self.out_dtype.raw();
        raw.a = self.layouts[0].raw("x")?;
        raw.b = self.layouts[1].raw(if self.weights { "z" } else { "w" })?;
        raw.c = self.layouts[2].raw(if self.weights { "w" } else { "y" })?;
        (raw.alpha, raw.beta) = (self.alpha, self.beta);
        Ok(raw)
    }

    /// What the operands must have at least: x, w or z, bias; and the output.
    fn needs(&self) -> Result<([Need; 3], Need)> {
        let [rows, cols, depth] = self.sizes;
        let rows_of = |name, dtype, layout: Layout, width| -> Result<Need> {
            Ok(Need { name, dtype, len: layout.extent(name, rows, width, 1)? })
        };
        let weights_of = |name, dtype, layout: Layout| -> Result<Need> {
            let gapless = layout == Layout::default();
            let area =
                depth.checked_mul(cols).ok_or_else(|| Error::BadSize(format!("{name}: {depth}x{cols} overflows")))?;
            let layout = if gapless { Layout::row_major(cols).with_batch_stride(area) } else { layout };
            Ok(Need { name, dtype, len: layout.extent(name, depth, cols, self.groups)? })
        };
        let [x, second, out] = self.layouts;
        let x = rows_of("x", self.dtype, x, depth)?;
        let bias = Need { name: "bias", dtype: self.out_dtype, len: self.groups.saturating_mul(cols) };
        if self.weights {
            let z = rows_of("z", self.dtype, second, cols)?;
            return Ok(([x, z, bias], weights_of("w", self.out_dtype, out)?));
        }
        let w = weights_of("w", self.dtype, second)?;
        Ok(([x, w, bias], rows_of("y", self.out_dtype, out, cols)?))
    }
}

/// Addresses of x, w or z, and bias; of the offsets; of the output.
struct Addresses {
    inputs: [*const c_void; 3],
    offsets: *const c_void,
    output: *mut c_void,
}

fn addresses<I: Index>(
    context: &Context,
    problem: &Grouped,
    weights: bool,
    inputs: &[Span],
    offsets: &[I],
    output: Span,
) -> Result<Addresses> {
    if problem.weights != weights {
        let names = ["a product of groups", "a gradient of its weights"];
        let (is, called) = (names[usize::from(problem.weights)], names[usize::from(weights)]);
        return Err(Error::Unsupported(format!("the problem is {is}, and this is {called}")));
    }
    if problem.bias != (inputs.len() == 3) {
        let (given, has) = if problem.bias { ("missing", "one") } else { ("given", "none") };
        return Err(Error::Unsupported(format!("bias is {given}, and the problem has {has}")));
    }
    if context.0.place.0 != Backend::Cpu {
        return Err(Error::WrongMemory(format!("offsets is a slice, and the context is {:?}", context.0.place)));
    }
    if offsets.len() != problem.groups + 1 {
        let (entries, groups) = (offsets.len(), problem.groups);
        return Err(Error::BadSize(format!("offsets has {entries} entries; {groups} groups have {}", groups + 1)));
    }
    let (needs, written) = problem.needs()?;
    let mut found = [ptr::null(); 3];
    for ((address, span), need) in found.iter_mut().zip(inputs).zip(&needs) {
        *address = span.fits(context, need)?.cast_const();
    }
    Ok(Addresses { inputs: found, offsets: offsets.as_ptr().cast(), output: output.fits(context, &written)? })
}

/// The one-call forms: the plan is found or made, and kept in a bounded pool of the context.
impl Context {
    /// `y = act(alpha*x*w[group] + beta*y)`.
    pub fn grouped_matmul<I: Index>(
        &self,
        problem: &Grouped,
        x: impl Input,
        w: impl Input,
        offsets: &[I],
        mut y: impl Output,
    ) -> Result<()> {
        self.call_grouped(problem, &[x.span(), w.span()], offsets, y.span())
    }

    /// The same with a bias: one value for each column, of each group.
    pub fn grouped_matmul_bias<I: Index>(
        &self,
        problem: &Grouped,
        (x, w): (impl Input, impl Input),
        offsets: &[I],
        mut y: impl Output,
        bias: impl Input,
    ) -> Result<()> {
        self.call_grouped(problem, &[x.span(), w.span(), bias.span()], offsets, y.span())
    }

    /// `w[group] = alpha*x^T*z + beta*w[group]`.
    pub fn grouped_weights<I: Index>(
        &self,
        problem: &Grouped,
        x: impl Input,
        z: impl Input,
        offsets: &[I],
        mut w: impl Output,
    ) -> Result<()> {
        let at = addresses(self, problem, true, &[x.span(), z.span()], offsets, w.span())?;
        let (raw, none) = (problem.raw::<I>()?, ptr::null_mut());
        let [x, z, _] = at.inputs;
        // SAFETY: every operand was checked to be as large as the problem says; a CPU is done when the call returns.
        check(unsafe { sys::sat_grouped_weights(self.raw(), &raw, x, z, at.offsets, at.output, none) })
    }

    fn call_grouped<I: Index>(&self, problem: &Grouped, inputs: &[Span], offsets: &[I], y: Span) -> Result<()> {
        let at = addresses(self, problem, false, inputs, offsets, y)?;
        let (raw, none) = (problem.raw::<I>()?, ptr::null_mut());
        let [x, w, bias] = at.inputs;
        // SAFETY: as above.
        check(unsafe { sys::sat_grouped_matmul(self.raw(), &raw, x, w, at.offsets, at.output, bias, none) })
    }
}

/// A tuned product of groups, whose offsets are of type `I`. It serves one caller at a time, so running it takes `&mut`.
pub struct GroupedPlan<I: Index> {
    raw: *mut sys::sat_plan,
    problem: Grouped,
    /// Freed after the plan.
    context: Context,
    index: std::marker::PhantomData<I>,
}

// SAFETY: a plan is not bound to the thread that made it; it serves one caller at a time, which `&mut` sees to.
unsafe impl<I: Index> Send for GroupedPlan<I> {}

impl<I: Index> Drop for GroupedPlan<I> {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once, before its context.
        unsafe { sys::sat_plan_free(self.raw) }
    }
}

impl<I: Index> std::fmt::Debug for GroupedPlan<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupedPlan").field("problem", &self.problem).finish_non_exhaustive()
    }
}

impl<I: Index> GroupedPlan<I> {
    /// Finds the answer in the cache, or tunes.
    pub fn new(context: &Context, problem: &Grouped) -> Result<Self> {
        let (raw_problem, mut raw) = (problem.raw::<I>()?, ptr::null_mut());
        // SAFETY: the context is open, and the problem is valid during the call; this operation has no pattern.
        check(unsafe { sys::sat_plan_create(context.raw(), ptr::null(), &raw_problem, &mut raw) })?;
        Ok(Self { raw, problem: *problem, context: context.clone(), index: std::marker::PhantomData })
    }

    /// Runs the product: `y = act(alpha*x*w[group] + beta*y)`.
    pub fn matmul(&mut self, x: impl Input, w: impl Input, offsets: &[I], mut y: impl Output) -> Result<()> {
        self.run(false, &[x.span(), w.span()], offsets, y.span())
    }

    /// The same with a bias: one value for each column, of each group.
    pub fn matmul_bias(
        &mut self,
        (x, w): (impl Input, impl Input),
        offsets: &[I],
        mut y: impl Output,
        bias: impl Input,
    ) -> Result<()> {
        self.run(false, &[x.span(), w.span(), bias.span()], offsets, y.span())
    }

    /// Runs the gradient of w: `w[group] = alpha*x^T*z + beta*w[group]`.
    pub fn weights(&mut self, x: impl Input, z: impl Input, offsets: &[I], mut w: impl Output) -> Result<()> {
        self.run(true, &[x.span(), z.span()], offsets, w.span())
    }

    fn run(&mut self, weights: bool, inputs: &[Span], offsets: &[I], output: Span) -> Result<()> {
        let at = addresses(&self.context, &self.problem, weights, inputs, offsets, output)?;
        let from = [at.inputs[0], at.inputs[1], at.offsets, at.inputs[2]];
        let (count, to) = (inputs.len() + 1, [at.output]);
        // SAFETY: every operand was checked to be as large as the problem says; a CPU is done when the call returns.
        check(unsafe { sys::sat_run(self.raw, from.as_ptr(), count, to.as_ptr(), 1, ptr::null_mut()) })
    }

    /// The variant that runs.
    pub fn variant(&self) -> Result<String> {
        let mut info = sys::sat_plan_info { size: size_of::<sys::sat_plan_info>(), ..Default::default() };
        // SAFETY: the struct's size is set.
        check(unsafe { sys::sat_plan_get_info(self.raw, &mut info) })?;
        Ok(text(&info.variant))
    }
}
