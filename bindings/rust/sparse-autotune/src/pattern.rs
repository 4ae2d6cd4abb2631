//! A pattern: where the stored blocks of a matrix are.

use std::ptr;
use std::sync::Arc;

use sparse_autotune_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result, check, size};
use crate::types::{Backend, Index};

/// The indices of a BSR matrix, or a mask of attention: checked, copied, and brought to the device of a context. A clone is another handle of
/// the same pattern; patterns may outlive their context.
///
/// Rows and columns need not be multiples of the block. The last blocks are stored whole; what they hold beyond the
/// matrix is ignored on reading and written as zero by the sampled product.
#[derive(Clone)]
pub struct Pattern(Arc<Inner>);

struct Inner {
    raw: *mut sys::sat_pattern,
    place: (Backend, usize),
    shape: [usize; 2],
    block: [usize; 2],
    stored: usize,
    values: usize,
}

// SAFETY: patterns may be shared between threads, says the header.
unsafe impl Send for Inner {}
// SAFETY: the same.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: nobody else has it; plans hold references of their own.
        unsafe { sys::sat_pattern_free(self.raw) }
    }
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pattern")
            .field("shape", &self.0.shape)
            .field("block", &self.0.block)
            .field("stored_blocks", &self.0.stored)
            .finish_non_exhaustive()
    }
}

impl Pattern {
    /// A pattern of `shape[0]` by `shape[1]` elements in blocks of `block[0]` by `block[1]`.
    ///
    /// `row_ptr` has an entry for each block row and one more: 0 first, never decreasing, the number of stored blocks
    /// last. `col_idx` has the block column of each stored block, strictly increasing within a row.
    pub fn new<I: Index>(
        context: &Context,
        shape: [usize; 2],
        block: [usize; 2],
        row_ptr: &[I],
        col_idx: &[I],
    ) -> Result<Self> {
        Self::make(context, shape, block, row_ptr, col_idx, None)
    }

    /// One stored block that is the whole matrix: the mask of attention that hides nothing.
    pub fn full(context: &Context, shape: [usize; 2]) -> Result<Self> {
        let (row_ptr, col_idx): (&[i64], &[i64]) = match shape {
            [0, _] => (&[0], &[]),
            [_, 0] => (&[0, 0], &[]),
            _ => (&[0, 1], &[0]),
        };
        Self::new(context, shape, shape.map(|side| side.max(1)), row_ptr, col_idx)
    }

    /// The same blocks as a mask of attention over sequences that are stored one after the other, and do not see each other.
    ///
    /// Both offsets have an entry for each sequence and one more: 0 first, never decreasing, the number of queries and of
    /// keys last. The blocks count over all of them.
    pub fn with_sequences(&self, context: &Context, q_offsets: &[i64], kv_offsets: &[i64]) -> Result<Self> {
        let bad = |name: &str, offsets: &[i64], wanted: &str| {
            Err(Error::BadRowPtr(format!("{name} has {} entries, expected {wanted}", offsets.len())))
        };
        if q_offsets.len() < 2 {
            return bad("q_offsets", q_offsets, "one for each sequence and one more");
        }
        if kv_offsets.len() != q_offsets.len() {
            return bad("kv_offsets", kv_offsets, &format!("as many as q_offsets has, {}", q_offsets.len()));
        }
        let col_idx: Vec<i64> = self.col_idx()?.iter().map(|&column| column.into()).collect();
        Self::make(context, self.0.shape, self.0.block, self.row_ptr()?, &col_idx, Some((q_offsets, kv_offsets)))
    }

    fn make<I: Index>(
        context: &Context,
        shape: [usize; 2],
        block: [usize; 2],
        row_ptr: &[I],
        col_idx: &[I],
        offsets: Option<(&[i64], &[i64])>,
    ) -> Result<Self> {
        if block[0] == 0 || block[1] == 0 {
            return Err(Error::BadBlock(format!("block is {}x{}: both sides are at least 1", block[0], block[1])));
        }
        // The library reads as many as the shape says: here alone it is known how many there are.
        let wanted = shape[0].div_ceil(block[0]);
        if wanted.checked_add(1) != Some(row_ptr.len()) {
            return Err(Error::BadRowPtr(format!(
                "row_ptr has {} entries: {} rows in blocks of {} have {wanted} block rows, and one more is wanted",
                row_ptr.len(),
                shape[0],
                block[0]
            )));
        }
        let Some(values) = block[0].checked_mul(block[1]).and_then(|one| one.checked_mul(col_idx.len())) else {
            return Err(Error::BadSize(format!(
                "block is {}x{}: {} such blocks overflow",
                block[0],
                block[1],
                col_idx.len()
            )));
        };
        let indices = sys::sat_bsr {
            size: size_of::<sys::sat_bsr>(),
            rows: size("shape[0]", shape[0])?,
            cols: size("shape[1]", shape[1])?,
            block_rows: size("block[0]", block[0])?,
            block_cols: size("block[1]", block[1])?,
            stored_blocks: size("col_idx's length", col_idx.len())?,
            index_type: I::RAW,
            row_ptr: row_ptr.as_ptr().cast(),
            col_idx: if col_idx.is_empty() { ptr::null() } else { col_idx.as_ptr().cast() },
            sequences: offsets.map_or(Ok(0), |(q, _)| size("q_offsets' length", q.len() - 1))?,
            q_offsets: offsets.map_or(ptr::null(), |(q, _)| q.as_ptr()),
            kv_offsets: offsets.map_or(ptr::null(), |(_, kv)| kv.as_ptr()),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the arrays are as long as the struct says, and are copied.
        check(unsafe { sys::sat_pattern_create(context.raw(), &indices, &mut raw) })?;
        Ok(Self(Arc::new(Inner { raw, place: context.0.place, shape, block, stored: col_idx.len(), values })))
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.0.shape
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> [usize; 2] {
        self.0.block
    }

    /// Block rows and block columns, rounded up.
    pub fn grid(&self) -> [usize; 2] {
        [self.0.shape[0].div_ceil(self.0.block[0]), self.0.shape[1].div_ceil(self.0.block[1])]
    }

    /// How many blocks are stored.
    pub fn stored_blocks(&self) -> usize {
        self.0.stored
    }

    /// How many values the stored blocks hold, those beyond the matrix among them.
    pub fn stored_values(&self) -> usize {
        self.0.values
    }

    /// The row pointers.
    pub fn row_ptr(&self) -> Result<&[i64]> {
        let view = self.view()?;
        // SAFETY: the library's own array, valid as long as the pattern.
        Ok(unsafe { array(view.row_ptr, self.grid()[0] + 1) })
    }

    /// The block column of each stored block.
    pub fn col_idx(&self) -> Result<&[i32]> {
        let view = self.view()?;
        // SAFETY: the library's own array, valid as long as the pattern.
        Ok(unsafe { array(view.col_idx, self.0.stored) })
    }

    /// What the blocks look like, in numbers.
    pub fn statistics(&self) -> Result<PatternStatistics> {
        let view = self.view()?;
        Ok(PatternStatistics {
            density: view.density,
            row_skew: view.skew,
            col_skew: view.t_skew,
            overlap: view.overlap,
            empty_rows: usize::try_from(view.empty_rows).unwrap_or(0),
        })
    }

    /// The pattern as the C library knows it.
    pub fn as_ptr(&self) -> *const sys::sat_pattern {
        self.0.raw
    }

    fn view(&self) -> Result<sys::sat_pattern_view> {
        let mut view =
            sys::sat_pattern_view { size: size_of::<sys::sat_pattern_view>(), ..sys::sat_pattern_view::default() };
        // SAFETY: the struct's size is set.
        check(unsafe { sys::sat_pattern_get(self.0.raw, &mut view) })?;
        Ok(view)
    }

    /// The pattern's indices are in the memory of one device.
    pub(crate) fn belongs_to(&self, context: &Context) -> Result<()> {
        if self.0.place == context.0.place {
            return Ok(());
        }
        Err(Error::WrongMemory(format!(
            "pattern was made for {:?}, and the context is {:?}",
            self.0.place, context.0.place
        )))
    }
}

/// # Safety
/// `pointer` has `len` elements that live as long as `'a`, or `len` is 0.
unsafe fn array<'a, T>(pointer: *const T, len: usize) -> &'a [T] {
    if len == 0 || pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(pointer, len) }
}

/// What a pattern looks like, in numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PatternStatistics {
    /// Stored blocks over all blocks.
    pub density: f64,
    /// The heaviest block row's blocks over the mean of the rows; 0 when nothing is stored.
    pub row_skew: f64,
    /// The same of block columns.
    pub col_skew: f64,
    /// The share of a row's block columns that the next row has too, on average.
    pub overlap: f64,
    /// Block rows without a block.
    pub empty_rows: usize,
}
