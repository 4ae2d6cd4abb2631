//! The library's contexts: one for each device and effort, opened when first needed and kept.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use sparse_autotune::{Context, Effort, Result};

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
