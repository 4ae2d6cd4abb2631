//! The library's contexts: one for each device and effort, opened when first needed and kept. And the plans of problems for
//! which a context has no call.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sparse_autotune::{Context, Effort, Pattern, Plan, Problem, Result};

/// A device that the library runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Cpu,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    Cuda(usize),
}

static CONTEXTS: Mutex<Option<HashMap<(Place, Effort), Context>>> = Mutex::new(None);

pub(crate) fn context(place: Place, effort: Effort) -> Result<Context> {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let contexts = contexts.get_or_insert_default();
    if let Some(context) = contexts.get(&(place, effort)) {
        return Ok(context.clone());
    }
    let device = match place {
        Place::Cpu => "cpu".to_owned(),
        Place::Cuda(index) => format!("cuda:{index}"),
    };
    let context = Context::builder().device(device).effort(effort).build()?;
    contexts.insert((place, effort), context.clone());
    Ok(context)
}

/// What a plan is kept for. The address is that of a pattern, which lives as long as its plan.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    place: Place,
    effort: Effort,
    pattern: usize,
    problem: Problem,
}

/// Plans that nobody runs now; the one used last stands last.
static PLANS: Mutex<Vec<(Key, Plan)>> = Mutex::new(Vec::new());
const MOST_PLANS: usize = 32;

/// What `Context::call_raw` does, by a plan: made when first needed, and kept.
///
/// # Safety
/// As for `Plan::run_raw`. On a GPU the streams of all calls are in one order.
pub(crate) unsafe fn run_by_plan(
    place: Place,
    effort: Effort,
    pattern: &Pattern,
    problem: &Problem,
    inputs: &[*const c_void],
    outputs: &[*mut c_void],
    stream: *mut c_void,
) -> Result<()> {
    let key = Key { place, effort, pattern: pattern.as_ptr() as usize, problem: *problem };
    let mut plan = match take(&key) {
        Some(plan) => plan,
        None => Plan::new(&context(place, effort)?, pattern, problem)?,
    };
    // SAFETY: the caller's.
    let done = unsafe { plan.run_raw(inputs, outputs, stream) };
    drop(keep(key, plan)); // with the plans unlocked, since a plan that goes waits for its device
    done
}

fn take(key: &Key) -> Option<Plan> {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = plans.iter().position(|(kept, _)| kept == key)?;
    Some(plans.remove(at).1)
}

/// Gives back the one that was not used for longest, where there are too many.
fn keep(key: Key, plan: Plan) -> Option<(Key, Plan)> {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    plans.push((key, plan));
    (plans.len() > MOST_PLANS).then(|| plans.remove(0))
}

/// What an address is a multiple of, as far as the library asks.
pub(crate) fn alignment<T>(pointer: *const T) -> u32 {
    1 << (pointer as usize | 16).trailing_zeros()
}
