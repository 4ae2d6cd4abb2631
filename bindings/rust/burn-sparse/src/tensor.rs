//! A block-sparse matrix as a tensor.

#[cfg(feature = "autodiff")]
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{BasicOps, IndexingUpdateOp, Numeric, Shape, Tensor, TensorMetadata, TensorPrimitive};
use sparse_autotune::{Error, Result};

use crate::backend::SparseBackend;
use crate::pattern::{BlockSize, BsrPattern, Indices, int_tensor, room_for};
use crate::spec::{MatmulSpec, Side, check_depth};

/// A block-sparse matrix: a pattern, and the values of its stored blocks.
///
/// The values are an ordinary tensor, `[blocks, block rows, block columns]`, on any backend; gradients flow to it.
#[derive(Debug, Clone)]
pub struct BsrTensor<B: Backend> {
    pattern: BsrPattern,
    values: Tensor<B, 3>,
    transposed: bool,
}

impl<B: Backend> BsrTensor<B> {
    /// A matrix of `shape[0]` by `shape[1]` elements, which need not be multiples of the block.
    ///
    /// `row_ptr` has an entry for each block row and one more: 0 first, never decreasing, the number of stored blocks
    /// last. `col_indices` has the block column of each stored block, strictly increasing within a row. Both are vectors,
    /// slices, arrays or tensors of integers. `values` holds the blocks one after the other, each row-major, as a tensor of
    /// any rank; `block_size` is a side, or `[rows, columns]`. The last blocks are stored whole where the block does not
    /// divide the shape; what they hold beyond it is ignored.
    ///
    /// Values of shape `[blocks, block rows, block columns]` are taken as they are: a leaf of autodiff stays one. Of another
    /// rank they are reshaped, which is an operation like any other: where they require gradients, the matrix is good for one
    /// backward pass and made anew for the next, and [`require_grad`](Self::require_grad) panics on it.
    ///
    /// # Panics
    /// With a message that names the argument, if they do not fit together; see [`try_new`](Self::try_new).
    #[track_caller]
    pub fn new<const D: usize>(
        row_ptr: impl Indices,
        col_indices: impl Indices,
        values: Tensor<B, D>,
        shape: [usize; 2],
        block_size: impl Into<BlockSize>,
    ) -> Self {
        Self::try_new(row_ptr, col_indices, values, shape, block_size)
            .unwrap_or_else(|error| panic!("BsrTensor::new: {error}"))
    }

    /// The same, with an error instead of a panic.
    pub fn try_new<const D: usize>(
        row_ptr: impl Indices,
        col_indices: impl Indices,
        values: Tensor<B, D>,
        shape: [usize; 2],
        block_size: impl Into<BlockSize>,
    ) -> Result<Self> {
        Self::try_from_pattern(BsrPattern::try_new(row_ptr, col_indices, shape, block_size)?, values)
    }

    /// A matrix of a pattern that is there; `values` are those of [`new`](Self::new).
    ///
    /// # Panics
    /// If `values` has another number of elements than the pattern's blocks.
    #[track_caller]
    pub fn from_pattern<const D: usize>(pattern: BsrPattern, values: Tensor<B, D>) -> Self {
        Self::try_from_pattern(pattern, values).unwrap_or_else(|error| panic!("BsrTensor::from_pattern: {error}"))
    }

    /// The same, with an error instead of a panic.
    pub fn try_from_pattern<const D: usize>(pattern: BsrPattern, values: Tensor<B, D>) -> Result<Self> {
        let (found, wanted) = (values.dims(), pattern.values_shape());
        let elements = wanted.iter().product::<usize>();
        if count(&found) != Some(elements) || (D == 3 && found[..] != wanted) {
            return Err(Error::BadSize(format!(
                "values has shape {found:?}: {} blocks of {}x{} have {elements} elements, {wanted:?}",
                wanted[0], wanted[1], wanted[2]
            )));
        }
        Ok(Self { pattern, values: reshaped(values, wanted), transposed: false })
    }

    /// The blocks of a dense matrix that hold anything but zero. The matrix is read back to find them. Blocks are stored
    /// whole: one that is larger than the matrix takes its own memory, not the matrix's.
    ///
    /// # Panics
    /// If a side of the block is 0, or the matrix in whole blocks is too large.
    #[track_caller]
    pub fn from_dense(dense: Tensor<B, 2>, block_size: impl Into<BlockSize>) -> Self {
        let BlockSize(block) = block_size.into();
        assert!(block[0] > 0 && block[1] > 0, "block_size is {block:?}: both sides are at least 1");
        let shape = dense.dims();
        let grid = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
        assert!(fits(shape, block), "block_size is {block:?}: a {shape:?} matrix in whole blocks is too large");
        let pattern = if shape[0] * shape[1] == 0 {
            BsrPattern::from_mask(shape, block, |_, _| false)
        } else {
            let full = dense.clone().not_equal_elem(0.0).int();
            let counts = padded(full, [grid[0] * block[0], grid[1] * block[1]])
                .reshape([grid[0], block[0], grid[1], block[1]])
                .sum_dim(3)
                .sum_dim(1);
            let counts: Vec<i64> = counts.into_data().iter::<i64>().collect();
            BsrPattern::from_mask(shape, block, |row, col| counts[row * grid[1] + col] > 0)
        };
        Self::from_dense_with(dense, pattern)
    }

    /// The blocks of a dense matrix that a pattern names. Gradients flow through.
    ///
    /// # Panics
    /// If the matrix is not of the pattern's shape, or too large in whole blocks.
    #[track_caller]
    pub fn from_dense_with(dense: Tensor<B, 2>, pattern: BsrPattern) -> Self {
        assert_eq!(dense.dims(), pattern.shape(), "dense has another shape than the pattern");
        let (shape, block) = (pattern.shape(), pattern.block_size());
        assert!(fits(shape, block), "block_size is {block:?}: a {shape:?} matrix in whole blocks is too large");
        let options = (&dense.device(), dense.dtype());
        let ([rows, cols], [block_rows, block_cols]) = (pattern.grid(), pattern.block_size());
        let values = if pattern.stored_blocks() == 0 {
            Tensor::zeros(pattern.values_shape(), options)
        } else {
            padded(dense, [rows * block_rows, cols * block_cols])
                .reshape([rows, block_rows, cols, block_cols])
                .swap_dims(1, 2)
                .reshape([rows * cols, block_rows, block_cols])
                .select(0, int_tensor::<B>(positions(&pattern), options.0))
        };
        Self { pattern, values, transposed: false }
    }

    /// The whole matrix, with zeros where no block is stored. Gradients flow through.
    ///
    /// # Panics
    /// If the matrix, in whole blocks where there are any, is too large.
    #[track_caller]
    pub fn to_dense(&self) -> Tensor<B, 2> {
        let (shape, block) = (self.pattern.shape(), self.pattern.block_size());
        let elements = whole(shape, if self.pattern.stored_blocks() == 0 { [1, 1] } else { block });
        let there = room_for(elements, self.values.dtype().size());
        assert!(there, "BsrTensor::to_dense: a {shape:?} matrix in blocks of {block:?} is too large");
        let options = (&self.values.device(), self.values.dtype());
        let ([grid_rows, grid_cols], [block_rows, block_cols]) = (self.pattern.grid(), self.pattern.block_size());
        let [rows, cols] = self.pattern.shape();
        let dense = if self.pattern.stored_blocks() == 0 {
            Tensor::zeros([rows, cols], options)
        } else {
            Tensor::<B, 3>::zeros([grid_rows * grid_cols, block_rows, block_cols], options)
                .select_assign(
                    0,
                    int_tensor::<B>(positions(&self.pattern), options.0),
                    self.values.clone(),
                    IndexingUpdateOp::Add,
                )
                .reshape([grid_rows, grid_cols, block_rows, block_cols])
                .swap_dims(1, 2)
                .reshape([grid_rows * block_rows, grid_cols * block_cols])
                .slice([0..rows, 0..cols])
        };
        if self.transposed { dense.transpose() } else { dense }
    }

    /// The transposed matrix. Nothing moves: the stored blocks stay as they are, and products read them the other way.
    pub fn transpose(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        let [rows, cols] = self.pattern.shape();
        if self.transposed { [cols, rows] } else { [rows, cols] }
    }

    /// The stored blocks, `[blocks, block rows, block columns]`, as the pattern has them.
    pub fn values(&self) -> Tensor<B, 3> {
        self.values.clone()
    }

    /// The same matrix with other values.
    ///
    /// # Panics
    /// If `values` has another shape than [`values`](Self::values).
    #[track_caller]
    pub fn with_values(self, values: Tensor<B, 3>) -> Self {
        let made = Self::try_from_pattern(self.pattern, values);
        let made = made.unwrap_or_else(|error| panic!("BsrTensor::with_values: {error}"));
        Self { transposed: self.transposed, ..made }
    }

    /// Where the stored blocks are: those of the transpose, if [`is_transposed`](Self::is_transposed) says so.
    pub fn pattern(&self) -> &BsrPattern {
        &self.pattern
    }

    /// Whether this is the transpose of what is stored.
    pub fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// The device that the values are on.
    pub fn device(&self) -> B::Device {
        self.values.device()
    }

    /// The same matrix on another device.
    pub fn to_device(self, device: &B::Device) -> Self {
        Self { values: self.values.to_device(device), ..self }
    }

    /// Marks the values as requiring gradients.
    ///
    /// # Panics
    /// If they are the result of an operation on what does; see [`new`](Self::new).
    pub fn require_grad(self) -> Self {
        Self { values: self.values.require_grad(), ..self }
    }
}

#[cfg(feature = "autodiff")]
impl<B: AutodiffBackend> BsrTensor<B> {
    /// The same matrix without autodiff.
    pub fn inner(self) -> BsrTensor<B::InnerBackend> {
        BsrTensor { pattern: self.pattern, values: self.values.inner(), transposed: self.transposed }
    }

    /// A matrix without autodiff, with it.
    pub fn from_inner(inner: BsrTensor<B::InnerBackend>) -> Self {
        Self { pattern: inner.pattern, values: Tensor::from_inner(inner.values), transposed: inner.transposed }
    }
}

impl<B: SparseBackend> BsrTensor<B> {
    /// `A*B`: `dense` is a vector, a matrix, or a batch of matrices of any rank.
    ///
    /// # Panics
    /// If its rows are not as many as A's columns.
    pub fn matmul<const D: usize>(&self, dense: Tensor<B, D>) -> Tensor<B, D> {
        self.product(dense, None, MatmulSpec::default())
    }

    /// `X*A`: the product from the other side.
    ///
    /// # Panics
    /// If the columns of `dense` are not as many as A's rows.
    pub fn matmul_right<const D: usize>(&self, dense: Tensor<B, D>) -> Tensor<B, D> {
        self.product(dense, None, MatmulSpec { side: Side::Right, transpose: true, ..MatmulSpec::default() })
    }

    /// A product with all that it can do; `spec.transpose` is of this matrix.
    ///
    /// # Panics
    /// If the operands do not fit together.
    pub fn product<const D: usize>(
        &self,
        dense: Tensor<B, D>,
        bias: Option<Tensor<B, 1>>,
        spec: MatmulSpec,
    ) -> Tensor<B, D> {
        let spec = MatmulSpec { transpose: spec.transpose != self.transposed, ..spec };
        product(&self.pattern, self.values.clone(), dense, bias, spec)
    }
}

/// A product of a matrix in parts, with a dense operand of any rank.
pub(crate) fn product<B: SparseBackend, const D: usize>(
    pattern: &BsrPattern,
    values: Tensor<B, 3>,
    dense: Tensor<B, D>,
    bias: Option<Tensor<B, 1>>,
    spec: MatmulSpec,
) -> Tensor<B, D> {
    let (shape, [rows, _]) = (dense.dims(), spec.sizes(pattern));
    check_depth(pattern, &shape, &spec).unwrap_or_else(|error| panic!("bsr_matmul: {error}"));
    let (mut folded, mut out_shape) = (shape.to_vec(), shape);
    let all = |sides: &[usize]| {
        count(sides).unwrap_or_else(|| panic!("bsr_matmul: dense has shape {shape:?}: its batch is too large"))
    };
    match (D, spec.side) {
        (1, Side::Left) => folded.push(1),
        (1, Side::Right) => folded.insert(0, 1),
        (2, _) => {}
        // From the right a batch is nothing but more rows.
        (_, Side::Right) => folded = vec![all(&shape[..D - 1]), shape[D - 1]],
        (_, Side::Left) => folded = vec![all(&shape[..D - 2]), shape[D - 2], shape[D - 1]],
    }
    out_shape[if D == 1 || spec.side == Side::Right { D - 1 } else { D - 2 }] = rows;
    let (values, dense) = (values.into_primitive().tensor(), dense.into_primitive().tensor());
    let bias = bias.map(|bias| bias.into_primitive().tensor());
    let out = B::bsr_matmul(pattern, values, shaped::<B>(dense, folded.into()), bias, spec);
    Tensor::from_primitive(TensorPrimitive::Float(shaped::<B>(out, out_shape.into())))
}

/// How many elements a shape has; None where they are too many to count.
fn count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) { Some(0) } else { shape.iter().try_fold(1, |all: usize, &side| all.checked_mul(side)) }
}

/// The tensor itself where it has this shape: a reshape copies on some backends, and gives no leaf on autodiff.
pub(crate) fn shaped<B: Backend>(tensor: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    if tensor.shape() == shape { tensor } else { B::float_reshape(tensor, shape) }
}

/// `Tensor::reshape` takes a 0 for "as it was"; here it is a size like any other.
pub(crate) fn reshaped<B: Backend, const D: usize, const E: usize>(
    tensor: Tensor<B, D>,
    shape: [usize; E],
) -> Tensor<B, E> {
    let primitive = shaped::<B>(tensor.into_primitive().tensor(), shape.into());
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

/// The place of each stored block in the grid, row by row.
fn positions(pattern: &BsrPattern) -> Vec<i64> {
    let columns = pattern.grid()[1] as i64;
    pattern.row_indices().into_iter().zip(pattern.col_indices()).map(|(row, col)| row * columns + col).collect()
}

/// How many elements a matrix has in whole blocks.
fn whole(shape: [usize; 2], block: [usize; 2]) -> Option<usize> {
    let side = |at: usize| shape[at].div_ceil(block[at]).checked_mul(block[at]);
    side(0)?.checked_mul(side(1)?)
}

/// Whether a matrix that is there can be made whole blocks. Memory is asked for where a block is larger than the matrix;
/// otherwise padding no more than doubles each side.
fn fits(shape: [usize; 2], block: [usize; 2]) -> bool {
    let (elements, size) = (whole(shape, block), size_of::<i64>());
    let larger = (0..2).any(|at| shape[at] > 0 && block[at] > shape[at]);
    if larger { room_for(elements, size) } else { elements.and_then(|elements| elements.checked_mul(size)).is_some() }
}

/// The matrix with zeros to the right of it and below.
fn padded<B: Backend, K: BasicOps<B> + Numeric<B>>(
    matrix: Tensor<B, 2, K>,
    [rows, cols]: [usize; 2],
) -> Tensor<B, 2, K> {
    let [from_rows, from_cols] = matrix.dims();
    if [from_rows, from_cols] == [rows, cols] {
        return matrix;
    }
    Tensor::zeros([rows, cols], (&matrix.device(), matrix.dtype())).slice_assign([0..from_rows, 0..from_cols], matrix)
}
