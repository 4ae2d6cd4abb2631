//! A matrix: a pattern and its values, in the host's memory.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::pattern::Pattern;
use crate::problem::Problem;
use crate::types::Element;

/// A block-sparse matrix in the host's memory, for use on a CPU: a pattern, and the values of its stored blocks, one
/// block after the other, each row-major.
#[derive(Debug, Clone)]
pub struct Bsr<T: Element> {
    context: Context,
    pattern: Pattern,
    values: Vec<T>,
}

impl<T: Element> Bsr<T> {
    /// A matrix of `shape[0]` by `shape[1]` elements in blocks of `block[0]` by `block[1]`; see [`Pattern::new`].
    pub fn new<I: crate::Index>(
        context: &Context,
        shape: [usize; 2],
        block: [usize; 2],
        row_ptr: &[I],
        col_idx: &[I],
        values: Vec<T>,
    ) -> Result<Self> {
        let pattern = Pattern::new(context, shape, block, row_ptr, col_idx)?;
        Self::with_pattern(context, pattern, values)
    }

    /// The same, of a pattern that is there.
    pub fn with_pattern(context: &Context, pattern: Pattern, values: Vec<T>) -> Result<Self> {
        pattern.belongs_to(context)?;
        if values.len() != pattern.stored_values() {
            return Err(Error::BadSize(format!(
                "values has {} elements: {} blocks of {}x{} have {}",
                values.len(),
                pattern.stored_blocks(),
                pattern.block()[0],
                pattern.block()[1],
                pattern.stored_values()
            )));
        }
        Ok(Self { context: context.clone(), pattern, values })
    }

    /// The blocks of a row-major dense matrix that hold anything but zero.
    pub fn from_dense(context: &Context, dense: &[T], shape: [usize; 2], block: [usize; 2]) -> Result<Self> {
        let [rows, cols] = shape;
        let [block_rows, block_cols] = block;
        if block_rows == 0 || block_cols == 0 {
            return Err(Error::BadBlock(format!("block is {block_rows}x{block_cols}: both sides are at least 1")));
        }
        if rows.checked_mul(cols) != Some(dense.len()) {
            return Err(Error::BadSize(format!("dense has {} elements, and shape is {rows}x{cols}", dense.len())));
        }
        let area = block_rows
            .checked_mul(block_cols)
            .ok_or_else(|| Error::BadSize(format!("block is {block_rows}x{block_cols}: its elements overflow")))?;
        // A matrix without columns has no elements, and may have any number of rows.
        let grid_rows = rows.div_ceil(block_rows);
        if grid_rows >= i32::MAX as usize {
            return Err(Error::BadSize(format!("shape[0]/block[0] is {grid_rows}; expected below 2^31-1")));
        }
        let (mut row_ptr, mut col_idx, mut values) = (Vec::new(), Vec::new(), Vec::new());
        row_ptr
            .try_reserve_exact(grid_rows + 1)
            .map_err(|_| Error::OutOfMemory(format!("shape[0]/block[0] is {grid_rows}: so many row pointers")))?;
        row_ptr.push(0i64);
        for top in (0..rows).step_by(block_rows) {
            for (column, left) in (0..cols).step_by(block_cols).enumerate() {
                let (bottom, right) =
                    (rows.min(top.saturating_add(block_rows)), cols.min(left.saturating_add(block_cols)));
                let lines = || (top..bottom).map(|row| &dense[row * cols + left..row * cols + right]);
                if lines().flatten().all(|value| *value == T::default()) {
                    continue;
                }
                let start = values.len();
                values
                    .try_reserve(area)
                    .map_err(|_| Error::OutOfMemory(format!("block is {block_rows}x{block_cols}: {area} elements")))?;
                values.resize(start + area, T::default());
                for (line, into) in lines().zip(values[start..].chunks_mut(block_cols)) {
                    into[..line.len()].copy_from_slice(line);
                }
                col_idx.push(crate::error::size("shape[1]", column)?);
            }
            row_ptr.push(crate::error::size("the number of blocks", col_idx.len())?);
        }
        Self::new(context, shape, block, &row_ptr, &col_idx, values)
    }

    /// The whole matrix, row-major, with zeros where no block is stored.
    pub fn to_dense(&self) -> Result<Vec<T>> {
        let ([rows, cols], [block_rows, block_cols]) = (self.pattern.shape(), self.pattern.block());
        let elements = rows
            .checked_mul(cols)
            .ok_or_else(|| Error::BadSize(format!("shape is {rows}x{cols}: its elements overflow")))?;
        let mut dense = Vec::new();
        dense
            .try_reserve_exact(elements)
            .map_err(|_| Error::OutOfMemory(format!("shape is {rows}x{cols}: {elements} elements")))?;
        dense.resize(elements, T::default());
        let (row_ptr, col_idx) = (self.pattern.row_ptr()?, self.pattern.col_idx()?);
        let blocks = self.values.chunks_exact(block_rows * block_cols);
        let row_of = |block: usize| row_ptr.partition_point(|&start| start <= block as i64) - 1;
        for (number, block) in blocks.enumerate() {
            let (top, left) = (row_of(number) * block_rows, col_idx[number] as usize * block_cols);
            let width = block_cols.min(cols - left);
            for (line, values) in block.chunks_exact(block_cols).take(rows - top).enumerate() {
                let at = (top + line) * cols + left;
                dense[at..at + width].copy_from_slice(&values[..width]);
            }
        }
        Ok(dense)
    }

    /// `A*B`: B is row-major with `n` columns, and so is what comes back.
    pub fn matmul(&self, b: &[T], n: usize) -> Result<Vec<T>> {
        let elements = self.pattern.shape()[0].checked_mul(n);
        let elements = elements.ok_or_else(|| Error::BadSize(format!("n is {n}: the product's elements overflow")))?;
        let mut c = Vec::new();
        c.try_reserve_exact(elements)
            .map_err(|_| Error::OutOfMemory(format!("n is {n}: the product has {elements} elements")))?;
        c.resize(elements, T::default());
        self.matmul_into(b, n, &mut c)?;
        Ok(c)
    }

    /// `A*B` into a slice that is there, which is overwritten.
    pub fn matmul_into(&self, b: &[T], n: usize, c: &mut [T]) -> Result<()> {
        self.context.matmul(&self.pattern, &Problem::matmul::<T>(n), &self.values, b, c)
    }

    /// Where the blocks are.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The blocks, one after the other, each row-major.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The same, to change them.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}
