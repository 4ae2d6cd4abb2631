//! Block-sparse matrix products that are right, and as fast as this machine allows: the C library `sparse_autotune`, in
//! safe Rust.
//!
//! A [`Pattern`] says where the stored blocks of a BSR matrix are, a [`Problem`] what to do with them. Making a [`Plan`]
//! of both races every implementation that fits on the [`Context`]'s device, checks each one's result, times the right
//! ones and remembers the winner. Running the plan then is a bare call. Nothing is copied: operands are slices on a CPU,
//! [`Buffer`]s or raw addresses on a GPU.
//!
//! ```
//! use sparse_autotune::{Context, Pattern, Plan, Problem};
//!
//! # fn main() -> sparse_autotune::Result<()> {
//! # let context = Context::builder().device("cpu").cache_in_memory().effort(sparse_autotune::Effort::Off).build()?;
//! # let _ = || -> sparse_autotune::Result<()> {
//! let context = Context::cpu()?;
//! # Ok(()) };
//! // A is 4x6 in blocks of 2x2; its first block row holds blocks 0 and 2, its second block 1.
//! let pattern = Pattern::new(&context, [4, 6], [2, 2], &[0, 2, 3], &[0, 2, 1])?;
//! let values = [1f32, 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12.];
//! let b = [1f32, 0., 0., 1., 1., 1., 2., 0., 0., 2., 1., 1.]; // 6x2, row-major
//! let mut c = [0f32; 8];
//!
//! let mut plan = Plan::new(&context, &pattern, &Problem::matmul::<f32>(2))?; // races, or remembers
//! plan.matmul(&values, &b, &mut c)?; // a bare call
//! assert_eq!(c, [7., 18., 11., 26., 29., 9., 35., 11.]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Attention`], dense or with a pattern as its mask, and its gradients are problems like any other. [`Grouped`] is the
//! product of a mixture of experts, which has no pattern. A [`DynamicPattern`] has indices that change between runs.
//!
//! Whatever can fail returns an [`Error`] that names the argument, its value and what was expected. Contexts and patterns
//! are `Send` and `Sync`; a plan is `Send`, and running it takes `&mut`.
//!
//! With the feature `cuda` the CUDA backend is built too, which needs an nvcc of 12.4 or newer; the driver is looked for at
//! run time. Tuning results are shared with the C library, its command line and its Python package through one cache.
#![warn(missing_docs)]

mod agreement;
mod attention;
mod bsr;
mod cache;
mod context;
mod dynamic;
mod error;
mod grouped;
mod memory;
mod pattern;
mod plan;
mod problem;
mod race;
mod types;

pub use agreement::{Folder, Store};
pub use attention::{Attention, HeadLayout};
pub use bsr::Bsr;
pub use cache::CacheEntry;
pub use context::{Context, ContextBuilder, Device, LogLevel, Variant};
pub use dynamic::{DynamicPattern, DynamicPlan, Hints};
pub use error::{Error, Result};
pub use grouped::{Grouped, GroupedPlan};
pub use half::{bf16, f16};
pub use memory::{Buffer, Input, Output};
pub use pattern::{Pattern, PatternStatistics};
pub use plan::{Plan, PlanInfo};
pub use problem::{Layout, Problem};
pub use race::{Race, RaceOptions, RaceResult, Verdict};
pub use sparse_autotune_sys as sys;
pub use types::{Activation, Backend, Dtype, Effort, Element, Index, Measure};

/// The version of the C library that is linked.
pub fn version() -> String {
    // SAFETY: a constant text.
    unsafe { context::owned(sys::sat_version()) }
}

/// The README's program is compiled and run as the examples of the documentation are.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
