//! Where the stored blocks of a matrix are.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{AutodiffModule, Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault};
use burn::module::{HasAutodiffModule, ModuleMapper, ModuleVisitor};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use sparse_autotune::{Context, Effort, Error, Pattern, Result};

use crate::engine::{self, Place};

/// The shape of a block: `64`, or `[32, 64]` for 32 rows by 64 columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSize(pub [usize; 2]);

impl From<usize> for BlockSize {
    fn from(side: usize) -> Self {
        Self([side, side])
    }
}

impl From<[usize; 2]> for BlockSize {
    fn from(sides: [usize; 2]) -> Self {
        Self(sides)
    }
}

/// Row pointers or block columns: vectors, slices and arrays of integers, or an integer tensor.
pub trait Indices {
    /// The same numbers, or the place and the value of one that is beyond `i64`.
    fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)>;
}

macro_rules! indices {
    ($($type:ty),*) => {
        $(impl Indices for Vec<$type> {
            fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> { self.as_slice().into_indices() }
        }
        impl Indices for &Vec<$type> {
            fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> { self.as_slice().into_indices() }
        }
        impl Indices for &[$type] {
            fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> {
                let fitting = |(at, &index)| i64::try_from(index).map_err(|_| (at, index as usize));
                self.iter().enumerate().map(fitting).collect()
            }
        }
        impl<const N: usize> Indices for [$type; N] {
            fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> { self.as_slice().into_indices() }
        }
        impl<const N: usize> Indices for &[$type; N] {
            fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> { self.as_slice().into_indices() }
        })*
    };
}
indices!(i32, i64, u32, usize);

impl<B: Backend> Indices for Tensor<B, 1, Int> {
    fn into_indices(self) -> std::result::Result<Vec<i64>, (usize, usize)> {
        let data = self.into_data();
        if data.dtype != DType::U64 {
            return Ok(data.iter::<i64>().collect());
        }
        let fitting = |(at, index)| i64::try_from(index).map_err(|_| (at, index as usize));
        data.iter::<u64>().enumerate().map(fitting).collect()
    }
}

/// The indices of a BSR matrix: checked once, shared by every tensor and layer that is made of them. A clone is another
/// handle of the same pattern.
///
/// As a part of a Burn module it is a [`PatternModule`].
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "Plain", try_from = "Plain")]
pub struct BsrPattern(Arc<Inner>);

struct Inner {
    plain: Plain,
    /// The library's own, one for each device that it was used on; the first is the CPU's.
    handles: Mutex<Vec<(Place, Pattern)>>,
}

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Plain {
    shape: [usize; 2],
    block_size: [usize; 2],
    row_ptr: Vec<i64>,
    col_indices: Vec<i64>,
}

impl From<BsrPattern> for Plain {
    fn from(pattern: BsrPattern) -> Self {
        pattern.0.plain.clone()
    }
}

impl TryFrom<Plain> for BsrPattern {
    type Error = Error;

    fn try_from(plain: Plain) -> Result<Self> {
        Self::try_new(plain.row_ptr, plain.col_indices, plain.shape, plain.block_size)
    }
}

impl std::fmt::Debug for BsrPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BsrPattern")
            .field("shape", &self.shape())
            .field("block_size", &self.block_size())
            .field("stored_blocks", &self.stored_blocks())
            .finish_non_exhaustive()
    }
}

impl PartialEq for BsrPattern {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.plain == other.0.plain
    }
}

impl Eq for BsrPattern {}

impl BsrPattern {
    /// A pattern of `shape[0]` by `shape[1]` elements, which need not be multiples of the block.
    ///
    /// # Panics
    /// With a message that names the argument, if the indices are not those of a BSR matrix; see [`try_new`](Self::try_new).
    #[track_caller]
    pub fn new(
        row_ptr: impl Indices,
        col_indices: impl Indices,
        shape: [usize; 2],
        block_size: impl Into<BlockSize>,
    ) -> Self {
        Self::try_new(row_ptr, col_indices, shape, block_size)
            .unwrap_or_else(|error| panic!("BsrPattern::new: {error}"))
    }

    /// The same, with an error instead of a panic.
    ///
    /// `row_ptr` has an entry for each block row and one more: 0 first, never decreasing, the number of stored blocks
    /// last. `col_indices` has the block column of each stored block, strictly increasing within a row.
    pub fn try_new(
        row_ptr: impl Indices,
        col_indices: impl Indices,
        shape: [usize; 2],
        block_size: impl Into<BlockSize>,
    ) -> Result<Self> {
        let BlockSize(block_size) = block_size.into();
        let words = |name: &str, (at, value)| format!("{name}[{at}] is {value}; expected at most 2^63-1");
        let row_ptr = row_ptr.into_indices().map_err(|at| Error::BadRowPtr(words("row_ptr", at)))?;
        let col_indices = col_indices.into_indices().map_err(|at| Error::ColumnRange(words("col_indices", at)))?;
        let context = engine::context(Place::Cpu, Effort::Default)?;
        let handle = Pattern::new(&context, shape, block_size, &row_ptr, &col_indices).map_err(renamed)?;
        let plain = Plain { shape, block_size, row_ptr, col_indices };
        Ok(Self(Arc::new(Inner { plain, handles: Mutex::new(vec![(Place::Cpu, handle)]) })))
    }

    /// Every block, so that nothing is left out.
    ///
    /// # Panics
    /// If a side of the block is 0, or there are too many blocks.
    #[track_caller]
    pub fn dense(shape: [usize; 2], block_size: impl Into<BlockSize>) -> Self {
        let BlockSize(block) = block_size.into();
        let [rows, columns] = grid(shape, block);
        check_room(shape, block, rows.checked_mul(columns).and_then(|blocks| blocks.checked_add(rows)));
        Self::from_mask(shape, block, |_, _| true)
    }

    /// The blocks that a function of block row and block column says yes to.
    ///
    /// # Panics
    /// If a side of the block is 0, or there are too many block rows.
    #[track_caller]
    pub fn from_mask(
        shape: [usize; 2],
        block_size: impl Into<BlockSize>,
        mut keep: impl FnMut(usize, usize) -> bool,
    ) -> Self {
        let BlockSize(block) = block_size.into();
        let [rows, columns] = grid(shape, block);
        check_room(shape, block, Some(rows));
        let (mut row_ptr, mut col_indices) = (vec![0usize], Vec::new());
        for row in 0..rows {
            col_indices.extend((0..columns).filter(|&col| keep(row, col)));
            row_ptr.push(col_indices.len());
        }
        Self::new(row_ptr, col_indices, shape, block)
    }

    /// A share of the blocks, about the same number in each block row and at least one, chosen by `seed`.
    ///
    /// # Panics
    /// If `density` is not from 0 to 1, a side of the block is 0, or there are too many blocks.
    #[track_caller]
    pub fn random(shape: [usize; 2], block_size: impl Into<BlockSize>, density: f64, seed: u64) -> Self {
        assert!((0.0..=1.0).contains(&density), "density is {density}: expected 0 to 1");
        let BlockSize(block) = block_size.into();
        let [rows, columns] = grid(shape, block);
        let (wanted, least) = (density * columns as f64, usize::from(density > 0.0).min(columns));
        let stored = (rows as f64 * wanted.max(least as f64)) as usize;
        check_room(shape, block, rows.checked_add(columns).and_then(|entries| entries.checked_add(stored)));
        let (mut row_ptr, mut col_indices, mut state, mut owed) = (vec![0usize], Vec::new(), seed, 0.0);
        for _ in 0..rows {
            owed += wanted;
            let count = (owed.round() as usize).clamp(least, columns);
            owed -= count as f64;
            // The first `count` of a shuffle.
            let mut deck: Vec<usize> = (0..columns).collect();
            for i in 0..count {
                deck.swap(i, i + (random(&mut state) % (columns - i) as u64) as usize);
            }
            deck.truncate(count);
            deck.sort_unstable();
            col_indices.extend(deck);
            row_ptr.push(col_indices.len());
        }
        Self::new(row_ptr, col_indices, shape, block)
    }

    /// A mask for each head of [`attention`](crate::attention): the block rows of the first, then those of the second, and so
    /// on, each with its last block made whole.
    ///
    /// # Panics
    /// If there is none, or they have not all one shape and block size.
    #[track_caller]
    pub fn stack(masks: &[Self]) -> Self {
        let first = masks.first().expect("masks is empty: expected one for each head");
        let ([_, columns], [block, _]) = (first.shape(), first.block_size());
        let (mut row_ptr, mut col_indices) = (vec![0i64], Vec::new());
        for (head, mask) in masks.iter().enumerate() {
            let same = (mask.shape(), mask.block_size()) == (first.shape(), first.block_size());
            assert!(same, "masks[{head}] is {mask:?}, and masks[0] is {first:?}");
            let start = col_indices.len() as i64;
            row_ptr.extend(mask.row_ptr()[1..].iter().map(|&end| start + end));
            col_indices.extend_from_slice(mask.col_indices());
        }
        Self::new(row_ptr, col_indices, [masks.len() * first.grid()[0] * block, columns], first.block_size())
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.0.plain.shape
    }

    /// Rows and columns of a block.
    pub fn block_size(&self) -> [usize; 2] {
        self.0.plain.block_size
    }

    /// Block rows and block columns, rounded up.
    pub fn grid(&self) -> [usize; 2] {
        grid(self.shape(), self.block_size())
    }

    /// How many blocks are stored.
    pub fn stored_blocks(&self) -> usize {
        self.0.plain.col_indices.len()
    }

    /// Stored blocks over all blocks; 1 where there are none to store.
    pub fn density(&self) -> f64 {
        let [rows, cols] = self.grid();
        if rows == 0 || cols == 0 { 1.0 } else { self.stored_blocks() as f64 / (rows as f64 * cols as f64) }
    }

    /// The row pointers.
    pub fn row_ptr(&self) -> &[i64] {
        &self.0.plain.row_ptr
    }

    /// The block column of each stored block.
    pub fn col_indices(&self) -> &[i64] {
        &self.0.plain.col_indices
    }

    /// The block row of each stored block.
    pub(crate) fn row_indices(&self) -> Vec<i64> {
        let counts = self.row_ptr().windows(2).enumerate();
        counts.flat_map(|(row, ends)| std::iter::repeat_n(row as i64, (ends[1] - ends[0]) as usize)).collect()
    }

    /// The shape of the tensor that holds the values.
    pub(crate) fn values_shape(&self) -> [usize; 3] {
        let [block_rows, block_cols] = self.block_size();
        [self.stored_blocks(), block_rows, block_cols]
    }

    /// Whether the last blocks reach beyond the matrix.
    pub(crate) fn ragged(&self) -> bool {
        let ([rows, cols], [block_rows, block_cols]) = (self.shape(), self.block_size());
        !rows.is_multiple_of(block_rows) || !cols.is_multiple_of(block_cols)
    }

    /// The library's own pattern on a device.
    pub(crate) fn on(&self, place: Place, context: &Context) -> Result<Pattern> {
        let mut handles = self.0.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, handle)) = handles.iter().find(|(there, _)| *there == place) {
            return Ok(handle.clone());
        }
        let plain = &self.0.plain;
        let handle = Pattern::new(context, plain.shape, plain.block_size, &plain.row_ptr, &plain.col_indices)?;
        handles.push((place, handle.clone()));
        Ok(handle)
    }
}

/// Integers on a device, of the backend's own integer type.
pub(crate) fn int_tensor<B: Backend>(values: Vec<i64>, device: &B::Device) -> Tensor<B, 1, Int> {
    let shape = [values.len()];
    let dtype = <B::IntElem as burn::tensor::Element>::dtype();
    Tensor::from_data(TensorData::new(values, shape).convert_dtype(dtype), device)
}

/// Block rows and block columns, rounded up.
#[track_caller]
fn grid(shape: [usize; 2], block: [usize; 2]) -> [usize; 2] {
    assert!(block[0] > 0 && block[1] > 0, "block_size is {block:?}: both sides are at least 1");
    [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
}

/// Whether there is memory for so many elements; None are too many to count. Vectors, and Burn's tensors, end the process
/// where there is not.
pub(crate) fn room_for(elements: Option<usize>, size: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let bytes = elements.and_then(|elements| elements.checked_mul(size));
    // The compiler may leave out what nobody looks at.
    bytes.is_some_and(|bytes| probe.try_reserve_exact(bytes).is_ok() && black_box(probe).is_empty())
}

/// Panics if there is no memory for so many indices.
#[track_caller]
fn check_room(shape: [usize; 2], block: [usize; 2], indices: Option<usize>) {
    let there = room_for(indices, size_of::<usize>());
    assert!(there, "shape is {shape:?}: the indices of its blocks, of {block:?} each, are too many");
}

/// This crate's words for the arguments.
fn renamed(error: Error) -> Error {
    const NAMES: [(&str, &str); 7] = [
        ("rows/", "shape[0]/"),
        ("cols/", "shape[1]/"),
        ("block_rows", "block_size[0]"),
        ("block_cols", "block_size[1]"),
        ("block[", "block_size["),
        ("stored_blocks", "col_indices' length"),
        ("col_idx", "col_indices"),
    ];
    let new = |text: String| NAMES.iter().fold(text, |text, (old, new)| text.replace(old, new));
    match error {
        Error::BadRowPtr(text) => Error::BadRowPtr(new(text)),
        Error::ColumnRange(text) => Error::ColumnRange(new(text)),
        Error::ColumnOrder(text) => Error::ColumnOrder(new(text)),
        Error::BadBlock(text) => Error::BadBlock(new(text).replacen("block is", "block_size is", 1)),
        Error::BadSize(text) => Error::BadSize(new(text).replacen("block is", "block_size is", 1)),
        other => other,
    }
}

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

// ---- as a part of a Burn module ----

/// A pattern as a part of a module: no parameter, yet recorded, exactly in every precision. Burn's `Module` derive records
/// only fields whose type names the backend, which is all that `B` is for.
#[derive(Clone)]
pub struct PatternModule<B: Backend> {
    pattern: BsrPattern,
    backend: PhantomData<fn() -> B>,
}

impl<B: Backend> From<BsrPattern> for PatternModule<B> {
    fn from(pattern: BsrPattern) -> Self {
        Self { pattern, backend: PhantomData }
    }
}

impl<B: Backend> Deref for PatternModule<B> {
    type Target = BsrPattern;

    fn deref(&self) -> &BsrPattern {
        &self.pattern
    }
}

impl<B: Backend> std::fmt::Debug for PatternModule<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pattern.fmt(f)
    }
}

impl<B: Backend> Record<B> for BsrPattern {
    type Item<S: PrecisionSettings> = BsrPattern;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, _device: &B::Device) -> Self {
        item
    }
}

impl<B: Backend> Module<B> for PatternModule<B> {
    type Record = BsrPattern;

    fn collect_devices(&self, devices: Devices<B>) -> Devices<B> {
        devices
    }

    fn fork(self, _device: &B::Device) -> Self {
        self
    }

    fn to_device(self, _device: &B::Device) -> Self {
        self
    }

    fn visit<Visitor: ModuleVisitor<B>>(&self, _visitor: &mut Visitor) {}

    fn map<Mapper: ModuleMapper<B>>(self, _mapper: &mut Mapper) -> Self {
        self
    }

    fn load_record(self, record: Self::Record) -> Self {
        record.into()
    }

    fn into_record(self) -> Self::Record {
        self.pattern
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for PatternModule<B> {
    type InnerModule = PatternModule<B::InnerBackend>;

    fn valid(&self) -> Self::InnerModule {
        self.pattern.clone().into()
    }

    fn from_inner(module: Self::InnerModule) -> Self {
        module.pattern.into()
    }
}

impl<B: AutodiffBackend> HasAutodiffModule<B> for PatternModule<B::InnerBackend> {
    type TrainModule = PatternModule<B>;
}

impl<B: Backend> ModuleDisplayDefault for PatternModule<B> {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&format!("{self:?}")).optional()
    }
}

impl<B: Backend> ModuleDisplay for PatternModule<B> {}
