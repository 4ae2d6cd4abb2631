//! A plan: a problem with its pattern, answered. Running it is a bare call.

use std::ffi::{CString, c_void};
use std::ptr;

use sparse_autotune_sys as sys;

use crate::context::{Context, text};
use crate::error::{Error, Result, check};
use crate::memory::{Input, Output, Span};
use crate::pattern::Pattern;
use crate::problem::{Need, Needs, Operation, Problem};

/// A tuned product. It serves one caller at a time, so running it takes `&mut`; [`Plan::try_clone`] is cheap.
pub struct Plan {
    raw: *mut sys::sat_plan,
    needs: Needs,
    problem: Problem,
    /// Freed after the plan.
    context: Context,
}

// SAFETY: a plan is not bound to the thread that made it; it serves one caller at a time, which `&mut` sees to.
unsafe impl Send for Plan {}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once, before its context.
        unsafe { sys::sat_plan_free(self.raw) }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("problem", &self.problem).finish_non_exhaustive()
    }
}

impl Plan {
    /// Finds the answer in the cache, or tunes.
    pub fn new(context: &Context, pattern: &Pattern, problem: &Problem) -> Result<Self> {
        Self::make(context, pattern, problem, |ctx, pat, problem, plan| {
            // SAFETY: all of them are open, and the problem is valid during the call.
            unsafe { sys::sat_plan_create(ctx, pat, problem, plan) }
        })
    }

    /// A plan that uses exactly this variant, unchecked: for tests and benchmarks.
    pub fn with_variant(context: &Context, pattern: &Pattern, problem: &Problem, variant: &str) -> Result<Self> {
        let name = CString::new(variant)
            .map_err(|e| Error::BadFormat(format!("variant has a zero byte at {}", e.nul_position())))?;
        Self::make(context, pattern, problem, |ctx, pat, problem, plan| {
            // SAFETY: all of them are open, the problem and the name are valid during the call.
            unsafe { sys::sat_plan_create_with(ctx, pat, problem, name.as_ptr(), plan) }
        })
    }

    fn make(
        context: &Context,
        pattern: &Pattern,
        problem: &Problem,
        create: impl FnOnce(
            *mut sys::sat_context,
            *const sys::sat_pattern,
            *const sys::sat_problem,
            *mut *mut sys::sat_plan,
        ) -> sys::sat_status,
    ) -> Result<Self> {
        pattern.belongs_to(context)?;
        let needs = problem.needs(pattern.shape(), pattern.stored_values())?;
        Self::of(context, problem, needs, |problem, plan| create(context.raw(), pattern.as_ptr(), problem, plan))
    }

    /// `create` has the pattern.
    pub(crate) fn of(
        context: &Context,
        problem: &Problem,
        needs: Needs,
        create: impl FnOnce(*const sys::sat_problem, *mut *mut sys::sat_plan) -> sys::sat_status,
    ) -> Result<Self> {
        let (raw_problem, mut raw) = (problem.raw()?, ptr::null_mut());
        check(create(&raw_problem, &mut raw))?;
        Ok(Self { raw, needs, problem: *problem, context: context.clone() })
    }

    /// A second plan with a workspace of its own; tunes nothing.
    pub fn try_clone(&self) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the plan is open.
        check(unsafe { sys::sat_plan_dup(self.raw, &mut raw) })?;
        Ok(Self { raw, needs: self.needs.clone(), problem: self.problem, context: self.context.clone() })
    }

    /// Runs a matmul: `c = act(alpha*op(A)*b + beta*c)`. On a GPU the run is queued on the default stream.
    pub fn matmul(&mut self, values: impl Input, b: impl Input, mut c: impl Output) -> Result<()> {
        self.run(Operation::Matmul, &[values.span(), b.span()], &[c.span()])
    }

    /// Runs a matmul whose problem has a bias: one value for each row of C.
    pub fn matmul_bias(
        &mut self,
        values: impl Input,
        b: impl Input,
        mut c: impl Output,
        bias: impl Input,
    ) -> Result<()> {
        self.run(Operation::Matmul, &[values.span(), b.span(), bias.span()], &[c.span()])
    }

    /// Runs a sampled product: `values = alpha*(x*y at the stored blocks) + beta*values`.
    pub fn sampled(&mut self, x: impl Input, y: impl Input, mut values: impl Output) -> Result<()> {
        self.run(Operation::Sampled, &[x.span(), y.span()], &[values.span()])
    }

    /// The callers hold what the spans are of until this returns.
    pub(crate) fn run(&mut self, operation: Operation, inputs: &[Span], outputs: &[Span]) -> Result<()> {
        is_a(&self.problem, operation)?;
        let [input, output] = operation.optional();
        let from = addresses(&self.context, &self.needs.inputs, inputs, input)?.map(|address| address.cast_const());
        let to = addresses(&self.context, &self.needs.outputs, outputs, output)?;
        // SAFETY: every operand was checked to be as large as the problem says; outputs are borrowed mutably until the
        // call returns, and a buffer waits for the stream before its memory is read, written or freed by anybody.
        unsafe { self.run_raw(&from[..inputs.len()], &to[..outputs.len()], ptr::null_mut()) }
    }

    /// Runs on raw addresses, in the order of the C library; a bias, sinks or an LSE only where the problem has them, and other
    /// counts are refused. `stream` is a `cudaStream_t` on CUDA and ignored on a CPU. What is queued on it may still run when
    /// this returns.
    ///
    /// | | inputs | outputs |
    /// |---|---|---|
    /// | matmul | values, B, bias | C |
    /// | sampled product | X, Y | values |
    /// | attention | Q, K, V, sinks | O, LSE |
    /// | its gradients | Q, K, V, O, LSE, dO, sinks | dQ, dK, dV, dsinks |
    ///
    /// # Safety
    /// Each address has as much behind it, on the context's device, as the problem says, until the run is done; nobody
    /// else writes what is read, and nobody else uses what is written.
    pub unsafe fn run_raw(
        &mut self,
        inputs: &[*const c_void],
        outputs: &[*mut c_void],
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: the caller's; there are as many addresses as the lengths say.
        check(unsafe { sys::sat_run(self.raw, inputs.as_ptr(), inputs.len(), outputs.as_ptr(), outputs.len(), stream) })
    }

    /// Takes in new block values, where the problem says that they are fixed. The first run does it by itself.
    pub fn refresh(&mut self, values: impl Input) -> Result<()> {
        if self.problem.operation != Operation::Matmul {
            return Err(Error::Unsupported(format!("a {:?} has no values to refresh", self.problem.operation)));
        }
        let values = values.span().fits(&self.context, &self.needs.inputs[0])?;
        // SAFETY: as large as the problem says.
        check(unsafe { sys::sat_plan_refresh(self.raw, values, ptr::null_mut()) })
    }

    /// What was chosen, and what it cost.
    pub fn info(&self) -> Result<PlanInfo> {
        let mut info = sys::sat_plan_info { size: size_of::<sys::sat_plan_info>(), ..Default::default() };
        // SAFETY: the struct's size is set.
        check(unsafe { sys::sat_plan_get_info(self.raw, &mut info) })?;
        Ok(PlanInfo {
            variant: text(&info.variant),
            cached: info.cached,
            tuned: info.tuned,
            verified: info.verified,
            pattern_verified: info.pattern_verified,
            tuning_seconds: info.tuning_seconds,
            prepare_seconds: info.prepare_seconds,
            workspace_bytes: info.workspace_bytes,
            flops: info.flops,
            bytes: info.bytes,
            estimate_seconds: info.estimate_seconds,
        })
    }
}

fn is_a(problem: &Problem, operation: Operation) -> Result<()> {
    if problem.operation == operation {
        return Ok(());
    }
    Err(Error::Unsupported(format!("the problem is a {:?}, and this is a {operation:?}", problem.operation)))
}

/// As many inputs, or outputs, as any operation has.
const MOST: usize = 7;

/// The addresses, once each is known to hold enough. `last` is the one that not every problem has.
fn addresses(context: &Context, needs: &[Need], spans: &[Span], last: &str) -> Result<[*mut c_void; MOST]> {
    if let Some(missing) = needs.get(spans.len()) {
        return Err(Error::NullPointer(format!("{} is missing, and the problem has one", missing.name)));
    }
    if spans.len() > needs.len() {
        return Err(Error::Unsupported(format!("{last} is given, and the problem has none")));
    }
    let mut addresses = [ptr::null_mut(); MOST];
    for ((address, span), need) in addresses.iter_mut().zip(spans).zip(needs) {
        *address = span.fits(context, need)?;
    }
    Ok(addresses)
}

/// The one-call forms: the plan is found or made, and kept in a bounded pool of the context.
impl Context {
    /// `c = act(alpha*op(A)*b + beta*c)`.
    pub fn matmul(
        &self,
        pattern: &Pattern,
        problem: &Problem,
        values: impl Input,
        b: impl Input,
        mut c: impl Output,
    ) -> Result<()> {
        self.call(Operation::Matmul, pattern, problem, &[values.span(), b.span()], &[c.span()])
    }

    /// The same with a bias: one value for each row of C.
    pub fn matmul_bias(
        &self,
        pattern: &Pattern,
        problem: &Problem,
        values: impl Input,
        b: impl Input,
        mut c: impl Output,
        bias: impl Input,
    ) -> Result<()> {
        self.call(Operation::Matmul, pattern, problem, &[values.span(), b.span(), bias.span()], &[c.span()])
    }

    /// `values = alpha*(x*y at the stored blocks) + beta*values`.
    pub fn sampled(
        &self,
        pattern: &Pattern,
        problem: &Problem,
        x: impl Input,
        y: impl Input,
        mut values: impl Output,
    ) -> Result<()> {
        self.call(Operation::Sampled, pattern, problem, &[x.span(), y.span()], &[values.span()])
    }

    pub(crate) fn call(
        &self,
        operation: Operation,
        pattern: &Pattern,
        problem: &Problem,
        inputs: &[Span],
        outputs: &[Span],
    ) -> Result<()> {
        is_a(problem, operation)?;
        if problem.attention.sinks {
            return Err(Error::Unsupported("sinks: this call has no argument for them; expected a Plan".into()));
        }
        let needs = problem.needs(pattern.shape(), pattern.stored_values())?;
        // What is wrong with the problem itself comes before a slice that is too short for it.
        let sooner = |error| self.key(pattern, problem).err().unwrap_or(error);
        let [input, output] = operation.optional();
        let from = addresses(self, &needs.inputs, inputs, input).map_err(sooner)?.map(|address| address.cast_const());
        let to = addresses(self, &needs.outputs, outputs, output).map_err(sooner)?;
        // SAFETY: as in Plan::run.
        unsafe { self.call_raw(pattern, problem, &from[..inputs.len()], &to[..outputs.len()], ptr::null_mut()) }
    }

    /// One call on raw addresses, in the order of [`Plan::run_raw`]. A bias or an LSE that there is none of is null, or left
    /// out; an LSE that is given is written, whatever the problem says. Attention with sinks takes a plan.
    ///
    /// # Safety
    /// As for [`Plan::run_raw`].
    pub unsafe fn call_raw(
        &self,
        pattern: &Pattern,
        problem: &Problem,
        inputs: &[*const c_void],
        outputs: &[*mut c_void],
        stream: *mut c_void,
    ) -> Result<()> {
        pattern.belongs_to(self)?;
        let raw = problem.raw()?;
        let (ctx, pat) = (self.raw(), pattern.as_ptr());
        // SAFETY: the caller's.
        check(unsafe {
            match (problem.operation, inputs, outputs) {
                (Operation::Matmul, &[values, b, ref bias @ ..], &[c]) if bias.len() < 2 => {
                    let bias = bias.first().map_or(ptr::null(), |bias| *bias);
                    sys::sat_bsr_matmul(ctx, pat, &raw, values, b, c, bias, stream)
                }
                (Operation::Sampled, &[x, y], &[values]) => {
                    sys::sat_bsr_sampled_matmul(ctx, pat, &raw, x, y, values, stream)
                }
                (Operation::Attention, &[q, k, v], &[o, ref lse @ ..]) if lse.len() < 2 => {
                    let lse = lse.first().map_or(ptr::null_mut(), |lse| lse.cast());
                    sys::sat_attention_forward(ctx, pat, &raw, q, k, v, o, lse, stream)
                }
                (Operation::AttentionBackward, &[q, k, v, o, lse, d_o], &[dq, dk, dv]) => {
                    sys::sat_attention_backward(ctx, pat, &raw, q, k, v, o, lse.cast(), d_o, dq, dk, dv, stream)
                }
                (operation, ..) => {
                    let (inputs, outputs) = (inputs.len(), outputs.len());
                    return Err(Error::BadSize(format!(
                        "inputs has {inputs} entries and outputs {outputs}; a {operation:?} has others"
                    )));
                }
            }
        })
    }

    /// Waits until all that was queued on a stream of this context's device is done; null is the default stream.
    ///
    /// # Safety
    /// `stream` is null, or a `cudaStream_t` of this device.
    pub unsafe fn wait_for_stream(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's.
        check(unsafe { sys::sat_stream_wait(self.raw(), stream) })
    }
}

/// What a plan chose, and what it cost.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PlanInfo {
    /// The variant that runs.
    pub variant: String,
    /// The answer came from the cache.
    pub cached: bool,
    /// Making the plan raced it.
    pub tuned: bool,
    /// Its result was checked by this build of the library, on this machine and this exact problem.
    pub verified: bool,
    /// And on this very pattern. Where not, it serves all the same, and a context that tunes in the background checks it there.
    pub pattern_verified: bool,
    /// Spent tuning, when the plan was made.
    pub tuning_seconds: f64,
    /// Schedules and conversions, once.
    pub prepare_seconds: f64,
    /// Memory that the plan holds.
    pub workspace_bytes: usize,
    /// Arithmetic on stored blocks.
    pub flops: f64,
    /// Bytes that must move at least once.
    pub bytes: f64,
    /// What the variant's own estimate says.
    pub estimate_seconds: f64,
}
