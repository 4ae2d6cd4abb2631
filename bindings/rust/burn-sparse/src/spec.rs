//! What a product is to do, and whether its operands fit.

use burn::tensor::{DType, Shape, TensorMetadata};
use sparse_autotune::{Activation, Dtype, Effort, Error, Layout, Problem, Result};

use crate::pattern::BsrPattern;

/// On which side of the dense operand the sparse matrix stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Side {
    /// `op(A)*B`: B is `[.., k, n]`, the product `[.., m, n]`.
    #[default]
    Left,
    /// `X*op(A)^T`, as a linear layer has it: X is `[.., n, k]`, the product `[.., n, m]`.
    Right,
}

/// What a product with a block-sparse matrix does: `activation(alpha*op(A)*B + bias)`, or the same from the right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatmulSpec {
    /// op(A) is A's transpose.
    pub transpose: bool,
    /// On which side A stands.
    pub side: Side,
    /// The scale of the product.
    pub alpha: f64,
    /// What is applied to each element, after the bias.
    pub activation: Activation,
    /// How much may be spent on tuning a product that the cache does not know.
    pub effort: Effort,
    /// f32 products may round their inputs to TF32.
    pub allow_tf32: bool,
    /// Variants whose result depends on timing may take part.
    pub allow_nondeterministic: bool,
    /// Bare dense products may win too: their result differs where B has Inf or NaN.
    pub allow_dense: bool,
}

impl Default for MatmulSpec {
    fn default() -> Self {
        Self {
            transpose: false,
            side: Side::Left,
            alpha: 1.0,
            activation: Activation::None,
            effort: Effort::Default,
            allow_tf32: false,
            allow_nondeterministic: false,
            allow_dense: false,
        }
    }
}

impl MatmulSpec {
    /// The product that takes a gradient back to the dense operand.
    pub fn backward(self) -> Self {
        Self { transpose: !self.transpose, activation: Activation::None, ..self }
    }

    /// Rows and columns of op(A).
    pub(crate) fn sizes(&self, pattern: &BsrPattern) -> [usize; 2] {
        let [rows, cols] = pattern.shape();
        if self.transpose { [cols, rows] } else { [rows, cols] }
    }
}

/// What a tensor looks like: enough to say whether it fits.
#[derive(Debug, Clone)]
pub(crate) struct Looks {
    pub shape: Vec<usize>,
    pub dtype: DType,
}

impl Looks {
    pub(crate) fn of(tensor: &impl TensorMetadata) -> Self {
        Self { shape: tensor.shape().iter().copied().collect(), dtype: tensor.dtype() }
    }
}

/// The sizes of a product whose operands fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub batch: Option<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub side: Side,
}

impl Sizes {
    /// How many elements the product has.
    pub(crate) fn out_len(&self) -> usize {
        self.batch.unwrap_or(1) * self.m * self.n
    }

    /// The shape of the product.
    pub(crate) fn out_shape(&self) -> Shape {
        let mut shape: Vec<usize> = self.batch.into_iter().collect();
        shape.extend(match self.side {
            Side::Left => [self.m, self.n],
            Side::Right => [self.n, self.m],
        });
        Shape::from(shape)
    }
}

pub(crate) fn refuse<T>(message: String) -> Result<T> {
    Err(Error::BadSize(message))
}

pub(crate) fn same_dtype(name: &str, looks: &Looks, first: &str, of: &Looks) -> Result<()> {
    if looks.dtype == of.dtype {
        return Ok(());
    }
    let are = if first == "values" { "are" } else { "is" };
    Err(Error::Unsupported(format!("{name} is {:?}, and {first} {are} {:?}", looks.dtype, of.dtype)))
}

fn check_values(pattern: &BsrPattern, values: &Looks) -> Result<()> {
    if values.shape == pattern.values_shape() {
        return Ok(());
    }
    refuse(format!("values has shape {:?}, and the pattern's blocks {:?}", values.shape, pattern.values_shape()))
}

/// Whether a dense operand of any rank, a vector too, has as many rows as op(A) has columns; columns, from the right.
pub(crate) fn check_depth(pattern: &BsrPattern, shape: &[usize], spec: &MatmulSpec) -> Result<()> {
    let [m, k] = spec.sizes(pattern);
    let (at, from_last) = if spec.side == Side::Left { ("rows", 2) } else { ("columns", 1) };
    if shape[shape.len().saturating_sub(from_last)] == k {
        return Ok(());
    }
    refuse(format!("dense has shape {shape:?}: its {at} must be {k}, for the sparse matrix is {m}x{k}"))
}

/// The sizes of `op(A)*B`, or of `X*op(A)^T`.
pub(crate) fn check_matmul(
    pattern: &BsrPattern,
    values: &Looks,
    dense: &Looks,
    bias: Option<&Looks>,
    spec: &MatmulSpec,
) -> Result<Sizes> {
    check_values(pattern, values)?;
    same_dtype("dense", dense, "values", values)?;
    let [m, k] = spec.sizes(pattern);
    let (batch, [first, second]) = match dense.shape[..] {
        [first, second] => (None, [first, second]),
        [batch, first, second] => (Some(batch), [first, second]),
        _ => return refuse(format!("dense has shape {:?}: expected two dimensions, or three", dense.shape)),
    };
    check_depth(pattern, &dense.shape, spec)?;
    let n = if spec.side == Side::Left { second } else { first };
    if let Some(bias) = bias {
        same_dtype("bias", bias, "values", values)?;
        if bias.shape != [m] {
            return refuse(format!("bias has shape {:?}, expected [{m}]", bias.shape));
        }
    }
    if m.checked_mul(n).and_then(|one| one.checked_mul(batch.unwrap_or(1))).is_none() {
        return refuse(format!("dense has shape {:?}: the product with a {m}x{k} matrix overflows", dense.shape));
    }
    Ok(Sizes { batch, m, n, k, side: spec.side })
}

/// Batch and depth of the sampled product: `left` is `[.., rows, n]`, `right` `[.., cols, n]`.
pub(crate) fn check_sampled(pattern: &BsrPattern, left: &Looks, right: &Looks) -> Result<(usize, usize)> {
    same_dtype("right", right, "left", left)?;
    let [rows, cols] = pattern.shape();
    let (batch, n) = match left.shape[..] {
        [r, n] if r == rows => (None, n),
        [batch, r, n] if r == rows => (Some(batch), n),
        _ => return refuse(format!("left has shape {:?}, expected [.., {rows}, n]", left.shape)),
    };
    let wanted: Vec<usize> = batch.into_iter().chain([cols, n]).collect();
    if right.shape != wanted {
        return refuse(format!("right has shape {:?}, expected {wanted:?}", right.shape));
    }
    Ok((batch.unwrap_or(1), n))
}

/// The library's name of a dtype, where it has one.
#[cfg(feature = "cuda")]
pub(crate) fn dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 | DType::Flex32 => Ok(Dtype::F32),
        DType::F64 => Ok(Dtype::F64),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::BF16),
        other => Err(Error::Unsupported(format!("the tensors are {other:?}: expected f32, f64, f16 or bf16"))),
    }
}

/// Strides that the library takes, made from those of a tensor.
pub(crate) trait FromStrides: Sized {
    /// None where the library would need a copy. Of a tensor without gaps it is never that.
    fn from_strides(shape: &[usize], strides: &[isize]) -> Option<Self>;
}

/// A dense operand in memory: the strides of its last two dimensions, and of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strides(Layout);

impl FromStrides for Strides {
    /// None for strides that go backwards, or an expanded single element.
    fn from_strides(shape: &[usize], strides: &[isize]) -> Option<Self> {
        let dims = shape.len();
        let stride = |dim: usize| usize::try_from(strides[dim]).ok();
        let (rows, cols) = (shape[dims - 2], shape[dims - 1]);
        if shape.contains(&0) {
            return Some(Self::contiguous(1, rows, cols)); // strides without an element say nothing
        }
        let (mut row, mut col) = (stride(dims - 2)?, stride(dims - 1)?);
        // A stride that is never taken says nothing.
        if cols <= 1 {
            col = 1;
        }
        if rows <= 1 {
            row = cols.max(1) * col.max(1);
        }
        if row == 0 && col == 0 {
            return None; // would be read as row-major
        }
        let batch = if dims > 2 && shape[dims - 3] > 1 { stride(dims - 3)? } else { 0 };
        Some(Self(Layout { row_stride: row, col_stride: col, batch_stride: batch }))
    }
}

impl Strides {
    /// Row-major without gaps; a single matrix has no distance to the next.
    pub(crate) fn contiguous(batch: usize, rows: usize, cols: usize) -> Self {
        Self(Layout::row_major(cols.max(1)).with_batch_stride(if batch > 1 { rows * cols } else { 0 }))
    }

    /// The same memory, as the transposed matrix.
    pub(crate) fn swapped(self) -> Self {
        Self(Layout { row_stride: self.0.col_stride, col_stride: self.0.row_stride, ..self.0 })
    }

    pub(crate) fn batch_stride(self) -> usize {
        self.0.batch_stride
    }

    pub(crate) fn layout(self) -> Layout {
        self.0
    }
}

/// The library's problem of a product.
pub(crate) fn matmul_problem(dtype: Dtype, sizes: &Sizes, spec: &MatmulSpec, dense: Strides, bias: bool) -> Problem {
    let batch = sizes.batch.unwrap_or(1);
    let (dense, out) = match sizes.side {
        Side::Left => (dense, Strides::contiguous(batch, sizes.m, sizes.n)),
        Side::Right => (dense.swapped(), Strides::contiguous(batch, sizes.n, sizes.m).swapped()),
    };
    Problem::matmul_of(dtype, sizes.n)
        .allow_broadcast(true) // a tensor's stride of 0 is meant
        .transpose(spec.transpose)
        .batch(batch)
        .alpha(spec.alpha)
        .bias(bias)
        .activation(spec.activation)
        .b_layout(dense.layout())
        .c_layout(out.layout())
        .allow_tf32(spec.allow_tf32)
        .allow_nondeterministic(spec.allow_nondeterministic)
        .allow_dense(spec.allow_dense)
}

/// What a sampled product is summed in over a batch: 16 bits would be rounded after each item.
pub(crate) fn summed_in(dtype: Dtype, batch: usize) -> Dtype {
    if batch > 1 && dtype.size() == 2 { Dtype::F32 } else { dtype }
}

/// The library's problem of a sampled product of one of a batch, from one dtype into another; `right` is stored as
/// `[cols, n]`.
pub(crate) fn sampled_problem(
    [from, to]: [Dtype; 2],
    n: usize,
    alpha: f64,
    left: Strides,
    right: Strides,
    first: bool,
) -> Problem {
    let single = |strides: Strides| Layout { batch_stride: 0, ..strides.layout() };
    Problem::sampled_of(from, n)
        .allow_broadcast(true)
        .output(to)
        .alpha(alpha)
        .beta(if first { 0.0 } else { 1.0 })
        .a_layout(single(left))
        .b_layout(single(right.swapped()))
}
