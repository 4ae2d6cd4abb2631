//! Patterns whose indices change between runs, and the plans that run on them.

use std::ptr::{self, NonNull};

use sparse_autotune_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result, check, size};
use crate::memory::{Input, Output, Span};
use crate::plan::{Plan, PlanInfo};
use crate::problem::{Operation, Problem};
use crate::types::{Backend, Index};

/// What plans of a [`DynamicPattern`] are tuned for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hints {
    /// Stored blocks over all blocks; 0, the default: the capacity is used up.
    pub density: f64,
    /// The heaviest row's blocks over the mean of the rows; 0, the default: 2.
    pub skew: f64,
}

/// The indices of a BSR matrix that are other ones from run to run: a mask that is new at every step, a matrix that is pruned
/// as it is trained. On a CPU.
///
/// The arrays belong to the pattern. A run borrows it, so nothing can write them meanwhile; between runs they are there to
/// be [written](Self::indices_mut). There is room for `capacity` blocks. How many are stored is the last row pointer, and
/// the place of a block among the values is that of its column in `col_idx`. Plans of patterns of one shape, capacity and
/// [hints](Hints) share what is known of their times: a new mask is no race.
///
/// Indices that break the rules are never followed out of bounds. A block row whose columns are out of range, unsorted or
/// repeated is empty. So is the first row whose row pointers do not begin with 0, decrease or go beyond the capacity, and so
/// are all rows after it. The run that finds one returns [`BadRowPtr`](Error::BadRowPtr),
/// [`ColumnRange`](Error::ColumnRange) or [`ColumnOrder`](Error::ColumnOrder), its output written.
///
/// ```
/// use sparse_autotune::{Context, DynamicPattern, DynamicPlan, Error, Problem};
///
/// # fn main() -> sparse_autotune::Result<()> {
/// # let context = Context::builder().device("cpu").cache_in_memory().effort(sparse_autotune::Effort::Off).build()?;
/// // Up to four blocks of 1x1 in a 3x3 matrix.
/// let mut pattern = DynamicPattern::<i32>::new(&context, [3, 3], [1, 1], 4)?;
/// let mut plan = DynamicPlan::new(&context, &pattern, &Problem::matmul::<f32>(1))?; // races once
/// let (values, b, mut c) = ([1f32, 2., 3., 4.], [1f32, 10., 100.], [0f32; 3]);
///
/// pattern.set(&[0, 1, 2, 3], &[0, 1, 2])?;
/// plan.matmul(&pattern, &values, &b, &mut c)?;
/// assert_eq!(c, [1., 20., 300.]);
///
/// pattern.set(&[0, 2, 2, 4], &[0, 2, 1, 2])?; // another mask
/// plan.matmul(&pattern, &values, &b, &mut c)?;
/// assert_eq!(c, [201., 0., 430.]);
///
/// pattern.indices_mut().1[3] = 7; // no column of the matrix: row 2 is empty, and the run says so
/// let error = plan.matmul(&pattern, &values, &b, &mut c).unwrap_err();
/// assert!(matches!(error, Error::ColumnRange(_)));
/// assert_eq!(c, [201., 0., 0.]);
/// # Ok(())
/// # }
/// ```
///
/// While a plan runs nothing writes them, and the compiler sees to it:
///
/// ```compile_fail,E0502
/// # use sparse_autotune::{DynamicPattern, DynamicPlan};
/// # fn f(plan: &mut DynamicPlan<i32>, pattern: &mut DynamicPattern<i32>, values: &[f32], b: &[f32], c: &mut [f32]) {
/// let (row_ptr, _) = pattern.indices_mut();
/// plan.matmul(pattern, values, b, c).unwrap();
/// row_ptr[0] = 1;
/// # }
/// ```
pub struct DynamicPattern<I: Index> {
    raw: *mut sys::sat_pattern,
    shape: [usize; 2],
    block: [usize; 2],
    row_ptr: Array<I>,
    col_idx: Array<I>,
}

// SAFETY: it owns what it points to; a shared reference reads alone, and the library's patterns may be shared between threads.
unsafe impl<I: Index> Send for DynamicPattern<I> {}
// SAFETY: the same.
unsafe impl<I: Index> Sync for DynamicPattern<I> {}

impl<I: Index> Drop for DynamicPattern<I> {
    fn drop(&mut self) {
        // SAFETY: freed once; plans have references of their own, and run with this alone.
        unsafe { sys::sat_pattern_free(self.raw) }
    }
}

impl<I: Index> std::fmt::Debug for DynamicPattern<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamicPattern")
            .field("shape", &self.shape)
            .field("block", &self.block)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl<I: Index> DynamicPattern<I> {
    /// A pattern of `shape[0]` by `shape[1]` elements in blocks of `block[0]` by `block[1]`, of which at most `capacity` will
    /// be stored, and none is stored yet.
    pub fn new(context: &Context, shape: [usize; 2], block: [usize; 2], capacity: usize) -> Result<Self> {
        Self::with_hints(context, shape, block, capacity, Hints::default())
    }

    /// The same, with what to tune for.
    pub fn with_hints(
        context: &Context,
        shape: [usize; 2],
        block: [usize; 2],
        capacity: usize,
        hints: Hints,
    ) -> Result<Self> {
        if context.0.place.0 != Backend::Cpu {
            let place = context.0.place;
            return Err(Error::WrongMemory(format!("the indices are in host memory, and the context is {place:?}")));
        }
        if block.contains(&0) {
            return Err(Error::BadBlock(format!("block is {}x{}: both sides are at least 1", block[0], block[1])));
        }
        let [rows, cols] = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
        if rows.checked_mul(cols).is_some_and(|all| capacity > all) {
            return Err(Error::BadSize(format!("capacity is {capacity}; expected at most {rows}x{cols}, all blocks")));
        }
        if block[0].checked_mul(block[1]).and_then(|one| one.checked_mul(capacity)).is_none() {
            return Err(Error::BadSize(format!("capacity is {capacity}: so many blocks of {block:?} overflow")));
        }
        let [height, width] = [size("shape[0]", shape[0])?, size("shape[1]", shape[1])?];
        let (row_ptr, col_idx) = (Array::<I>::new("row_ptr", rows + 1)?, Array::<I>::new("col_idx", capacity)?);
        let indices = sys::sat_dynamic_bsr {
            size: size_of::<sys::sat_dynamic_bsr>(),
            rows: height,
            cols: width,
            block_rows: size("block[0]", block[0])?,
            block_cols: size("block[1]", block[1])?,
            capacity: size("capacity", capacity)?,
            index_type: I::RAW,
            row_ptr: row_ptr.first.as_ptr().cast(),
            col_idx: col_idx.first.as_ptr().cast(),
            density: hints.density,
            skew: hints.skew,
            mask_batch: 0,
            mask_heads: 0,
            row_counts: ptr::null(),
            row_stride: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the arrays are as long as the struct says. The library reads them in runs alone, which borrow the pattern.
        check(unsafe { sys::sat_pattern_create_dynamic(context.raw(), &indices, &mut raw) })?;
        Ok(Self { raw, shape, block, row_ptr, col_idx })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> [usize; 2] {
        self.block
    }

    /// How many blocks there is room for.
    pub fn capacity(&self) -> usize {
        self.col_idx.len
    }

    /// The row pointers, and the block columns with all the room that there is.
    pub fn indices(&self) -> (&[I], &[I]) {
        (self.row_ptr.get(), self.col_idx.get())
    }

    /// The same, to be written.
    pub fn indices_mut(&mut self) -> (&mut [I], &mut [I]) {
        (self.row_ptr.get_mut(), self.col_idx.get_mut())
    }

    /// Copies other indices in: an entry for each block row and one more, and at most as many columns as there is room for.
    /// What they are is looked at by the next run.
    pub fn set(&mut self, row_ptr: &[I], col_idx: &[I]) -> Result<()> {
        let (entries, capacity) = (self.row_ptr.len, self.capacity());
        if row_ptr.len() != entries {
            return Err(Error::BadRowPtr(format!("row_ptr has {} entries, expected {entries}", row_ptr.len())));
        }
        if col_idx.len() > capacity {
            return Err(Error::BadSize(format!(
                "col_idx has {} entries, and the capacity is {capacity}",
                col_idx.len()
            )));
        }
        self.row_ptr.get_mut().copy_from_slice(row_ptr);
        self.col_idx.get_mut()[..col_idx.len()].copy_from_slice(col_idx);
        Ok(())
    }

    fn stored_values(&self) -> usize {
        self.block[0] * self.block[1] * self.capacity()
    }
}

/// Memory that the library has the address of: every slice of it comes from that address.
struct Array<I> {
    first: NonNull<I>,
    len: usize,
}

impl<I: Index> Array<I> {
    fn new(name: &str, len: usize) -> Result<Self> {
        let mut entries = Vec::new();
        let room = entries.try_reserve_exact(len);
        room.map_err(|error| Error::OutOfMemory(format!("{name} has {len} entries: {error}")))?;
        entries.resize(len, I::default());
        let first = NonNull::from(Box::leak(entries.into_boxed_slice())).cast();
        Ok(Self { first, len })
    }
}

impl<I> Array<I> {
    fn get(&self) -> &[I] {
        // SAFETY: this owns so many, and they are written through `&mut self` alone.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    fn get_mut(&mut self) -> &mut [I] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<I> Drop for Array<I> {
    fn drop(&mut self) {
        // SAFETY: from a box of so many, which nobody else has.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.len)) });
    }
}

/// A tuned product, or sampled product, of a [`DynamicPattern`]. It serves one caller at a time, so running it takes `&mut`.
///
/// A run that finds a fault in the indices returns it, and has written its output.
pub struct DynamicPlan<I: Index> {
    /// Nobody else may have it: it would run without the pattern being borrowed.
    plan: Plan,
    /// Of the library's pattern, which lives as long as its plans.
    pattern: *const sys::sat_pattern,
    index: std::marker::PhantomData<I>,
}

// SAFETY: the address is compared alone; the rest is `Send`.
unsafe impl<I: Index> Send for DynamicPlan<I> {}

impl<I: Index> std::fmt::Debug for DynamicPlan<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamicPlan").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl<I: Index> DynamicPlan<I> {
    /// Finds the answer in the cache, or tunes, on masks that the library makes up.
    pub fn new(context: &Context, pattern: &DynamicPattern<I>, problem: &Problem) -> Result<Self> {
        if !matches!(problem.operation, Operation::Matmul | Operation::Sampled) {
            let words = format!("a {:?} of indices that change; expected a product", problem.operation);
            return Err(Error::Unsupported(words));
        }
        let needs = problem.needs(pattern.shape, pattern.stored_values())?;
        let plan = Plan::of(context, problem, needs, |problem, plan| {
            // SAFETY: all of them are open, and the problem is valid during the call.
            unsafe { sys::sat_plan_create(context.raw(), pattern.raw, problem, plan) }
        })?;
        Ok(Self { plan, pattern: pattern.raw, index: std::marker::PhantomData })
    }

    /// Runs a matmul: `c = act(alpha*op(A)*b + beta*c)`. There is room for a value of each block of the capacity.
    pub fn matmul(
        &mut self,
        pattern: &DynamicPattern<I>,
        values: impl Input,
        b: impl Input,
        mut c: impl Output,
    ) -> Result<()> {
        self.run(pattern, Operation::Matmul, &[values.span(), b.span()], c.span())
    }

    /// Runs a matmul whose problem has a bias: one value for each row of C.
    pub fn matmul_bias(
        &mut self,
        pattern: &DynamicPattern<I>,
        values: impl Input,
        b: impl Input,
        mut c: impl Output,
        bias: impl Input,
    ) -> Result<()> {
        self.run(pattern, Operation::Matmul, &[values.span(), b.span(), bias.span()], c.span())
    }

    /// Runs a sampled product: `values = alpha*(x*y at the stored blocks) + beta*values`, and zeros in every block that no
    /// row has, up to the capacity.
    pub fn sampled(
        &mut self,
        pattern: &DynamicPattern<I>,
        x: impl Input,
        y: impl Input,
        mut values: impl Output,
    ) -> Result<()> {
        self.run(pattern, Operation::Sampled, &[x.span(), y.span()], values.span())
    }

    /// A second plan with a workspace of its own; tunes nothing.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { plan: self.plan.try_clone()?, ..*self })
    }

    /// What was chosen, and what it cost.
    pub fn info(&self) -> Result<PlanInfo> {
        self.plan.info()
    }

    fn run(&mut self, pattern: &DynamicPattern<I>, operation: Operation, inputs: &[Span], output: Span) -> Result<()> {
        if !ptr::eq(pattern.raw, self.pattern) {
            return Err(Error::Unsupported("pattern is another one than the plan was made of".into()));
        }
        // On a CPU the run is over, and has read the indices, when this returns.
        self.plan.run(operation, inputs, &[output])
    }
}
