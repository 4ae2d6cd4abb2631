//! A problem: what to do with a pattern.

use sparse_autotune_sys as sys;

use crate::attention::Attention;
use crate::error::{Error, Result, check, size};
use crate::types::{Activation, Dtype, Element};

/// Where a dense operand's elements are: distances between neighbours, in elements.
///
/// Any strides are right; those with a stride of 1 are fast. An output's elements may not share a place. Both strides 0,
/// which is what the default says, mean row-major without gaps; one of them 0 is an error unless the problem
/// [allows it](Problem::allow_broadcast).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Layout {
    /// From an element to the one below it.
    pub row_stride: usize,
    /// From an element to the one at its right.
    pub col_stride: usize,
    /// From one matrix of a batch to the next; 0: all of a batch share it.
    pub batch_stride: usize,
}

impl Layout {
    /// Rows one after the other.
    pub fn row_major(row_stride: usize) -> Self {
        Self { row_stride, col_stride: 1, batch_stride: 0 }
    }

    /// Columns one after the other: a row-major matrix, transposed.
    pub fn col_major(col_stride: usize) -> Self {
        Self { row_stride: 1, col_stride, batch_stride: 0 }
    }

    /// The same, with a distance between the matrices of a batch.
    pub fn with_batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }

    pub(crate) fn raw(self, name: &str) -> Result<sys::sat_layout> {
        Ok(sys::sat_layout {
            row_stride: size(&format!("{name}.row_stride"), self.row_stride)?,
            col_stride: size(&format!("{name}.col_stride"), self.col_stride)?,
            batch_stride: size(&format!("{name}.batch_stride"), self.batch_stride)?,
        })
    }

    /// How many elements a slice must have to hold this.
    pub(crate) fn extent(self, name: &str, rows: usize, cols: usize, batch: usize) -> Result<usize> {
        let (mut row_stride, mut col_stride) = (self.row_stride, self.col_stride);
        if row_stride == 0 && col_stride == 0 {
            (row_stride, col_stride) = (cols, 1);
        }
        if rows == 0 || cols == 0 || batch == 0 {
            return Ok(0);
        }
        let reach = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        reach(rows, row_stride)
            .and_then(|sum| sum.checked_add(reach(cols, col_stride)?))
            .and_then(|sum| sum.checked_add(reach(batch, self.batch_stride)?))
            .and_then(|sum| sum.checked_add(1))
            .ok_or_else(|| {
                Error::BadSize(format!("{name}: {rows}x{cols} with strides {row_stride} and {col_stride} overflows"))
            })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Matmul,
    Sampled,
    Attention,
    AttentionBackward,
}

impl Operation {
    /// The input and the output that not every such problem has.
    pub(crate) fn optional(self) -> [&'static str; 2] {
        match self {
            Self::Matmul | Self::Sampled => ["bias", ""],
            Self::Attention => ["sinks", "lse"],
            Self::AttentionBackward => ["sinks", "dsinks"],
        }
    }
}

/// What to do with a pattern: `C = act(alpha*op(A)*B + beta*C + bias)`, or the sampled product
/// `S = alpha*(X*Y at the stored blocks) + beta*S`, or [`Attention`] under the pattern as a mask, or its gradients. One dtype
/// throughout, row-major without gaps, alpha 1 and beta 0, unless changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    pub(crate) operation: Operation,
    /// n of a matmul, k of a sampled product.
    free: usize,
    pub(crate) dtype: Dtype,
    pub(crate) out_dtype: Dtype,
    transpose: bool,
    batch: usize,
    a: Layout,
    b: Layout,
    c: Layout,
    alpha: f64,
    beta: f64,
    bias: bool,
    activation: Activation,
    flags: u32,
    align: [u32; 3],
    /// Of no meaning to the products.
    pub(crate) attention: Attention,
}

impl Problem {
    pub(crate) fn new(operation: Operation, dtype: Dtype, free: usize) -> Self {
        Self {
            operation,
            free,
            dtype,
            out_dtype: dtype,
            transpose: false,
            batch: 1,
            a: Layout::default(),
            b: Layout::default(),
            c: Layout::default(),
            alpha: 1.0,
            beta: 0.0,
            bias: false,
            activation: Activation::None,
            flags: 0,
            align: [0; 3],
            attention: Attention::default(),
        }
    }

    pub(crate) fn with_attention(self, attention: &Attention) -> Self {
        Self { attention: *attention, alpha: attention.scale, ..self }
    }

    /// `C = A*B` with `n` columns; A is block-sparse.
    pub fn matmul<T: Element>(n: usize) -> Self {
        Self::matmul_of(T::DTYPE, n)
    }

    /// The same, of a dtype that is known at run time.
    pub fn matmul_of(dtype: Dtype, n: usize) -> Self {
        Self::new(Operation::Matmul, dtype, n)
    }

    /// `S = X*Y` at the stored blocks of S; X has `k` columns, Y as many rows.
    pub fn sampled<T: Element>(k: usize) -> Self {
        Self::sampled_of(T::DTYPE, k)
    }

    /// The same, of a dtype that is known at run time.
    pub fn sampled_of(dtype: Dtype, k: usize) -> Self {
        Self::new(Operation::Sampled, dtype, k)
    }

    /// Of a matmul: multiply by A's transpose.
    pub fn transpose(self, transpose: bool) -> Self {
        Self { transpose, ..self }
    }

    /// How many products there are in one call; 0 is as 1.
    pub fn batch(self, batch: usize) -> Self {
        Self { batch: batch.max(1), ..self }
    }

    /// The scale of the product; of attention, that of the scores, where 0 means `1/sqrt(dim)`.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// What the output held before is scaled by this and added; with 0 it is never read.
    pub fn beta(self, beta: f64) -> Self {
        Self { beta, ..self }
    }

    /// The output's dtype: f32 with 16-bit inputs, else that of the inputs.
    pub fn output(self, dtype: Dtype) -> Self {
        Self { out_dtype: dtype, ..self }
    }

    /// Of a matmul: add one value, of the output's dtype, to each row of C.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Of a matmul: what is applied to each element, after the bias.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The layout of the first operand: of X in a sampled product. The stored values of a matmul have only a batch
    /// stride.
    pub fn a_layout(self, layout: Layout) -> Self {
        Self { a: layout, ..self }
    }

    /// The layout of the second operand: B, or Y.
    pub fn b_layout(self, layout: Layout) -> Self {
        Self { b: layout, ..self }
    }

    /// The layout of the output. The stored values that a sampled product writes have only a batch stride.
    pub fn c_layout(self, layout: Layout) -> Self {
        Self { c: layout, ..self }
    }

    /// The bytes that the three operands' addresses are multiples of; 0: their element's size. Of attention the first
    /// counts for everything that is read, the last for all that is written. A [`Plan`] that knows more has more variants
    /// to choose from. The one-call forms read it off the addresses.
    ///
    /// [`Plan`]: crate::Plan
    pub fn alignment(self, bytes: [u32; 3]) -> Self {
        Self { align: bytes, ..self }
    }

    fn flag(self, flag: u32, on: bool) -> Self {
        Self { flags: if on { self.flags | flag } else { self.flags & !flag }, ..self }
    }

    /// f32 products may round their inputs to TF32.
    pub fn allow_tf32(self, allow: bool) -> Self {
        self.flag(sys::SAT_ALLOW_TF32, allow)
    }

    /// Variants whose result depends on timing may take part.
    pub fn allow_nondeterministic(self, allow: bool) -> Self {
        self.flag(sys::SAT_ALLOW_NONDETERMINISTIC, allow)
    }

    /// Bare dense products may win too: their result differs where B has Inf or NaN.
    pub fn allow_dense(self, allow: bool) -> Self {
        self.flag(sys::SAT_ALLOW_DENSE, allow)
    }

    /// An input's stride of 0 is meant: one row, column or head is broadcast. Else such a stride is an error, since it is
    /// more often one that was forgotten.
    pub fn allow_broadcast(self, allow: bool) -> Self {
        self.flag(sys::SAT_ALLOW_BROADCAST, allow)
    }

    /// The stored values stay as they are between calls of [`Plan::refresh`](crate::Plan::refresh).
    pub fn fixed_values(self, fixed: bool) -> Self {
        self.flag(sys::SAT_FIXED_VALUES, fixed)
    }

    pub(crate) fn raw(&self) -> Result<sys::sat_problem> {
        let (operation, dtype) = (self.operation, self.dtype.raw());
        if operation != Operation::Matmul && (self.transpose || self.bias || self.activation != Activation::None) {
            return Err(Error::Unsupported(format!(
                "transpose, bias or activation is set; they are a matmul's, and the problem is a {operation:?}"
            )));
        }
        let mut raw = sys::sat_problem { size: size_of::<sys::sat_problem>(), ..Default::default() };
        match operation {
            Operation::Matmul => {
                // SAFETY: the struct's size is set.
                check(unsafe { sys::sat_problem_matmul(&mut raw, dtype, size("n", self.free)?) })?;
                raw.__bindgen_anon_1.matmul = sys::sat_matmul {
                    transpose: if self.transpose { sys::SAT_TRANSPOSE } else { sys::SAT_NO_TRANSPOSE },
                    bias: if self.bias { sys::SAT_BIAS_ROW } else { sys::SAT_BIAS_NONE },
                    activation: self.activation.raw(),
                };
            }
            // SAFETY: the same.
            Operation::Sampled => check(unsafe { sys::sat_problem_sampled(&mut raw, dtype, size("k", self.free)?) })?,
            Operation::Attention => self.attention.write(&mut raw, self.dtype, false)?,
            Operation::AttentionBackward => self.attention.write(&mut raw, self.dtype, true)?,
        }
        raw.flags = self.flags;
        raw.batch = size("batch", self.batch)?;
        raw.c_dtype = self.out_dtype.raw();
        raw.a = self.a.raw("a")?;
        raw.b = self.b.raw("b")?;
        raw.c = self.c.raw("c")?;
        [raw.a_align, raw.b_align, raw.c_align] = self.align;
        (raw.alpha, raw.beta) = (self.alpha, self.beta);
        Ok(raw)
    }

    /// What each operand must have at least, in the library's order; of a pattern of this shape that has so many values.
    pub(crate) fn needs(&self, shape: [usize; 2], stored_values: usize) -> Result<Needs> {
        let [rows, cols] = shape;
        let stored = |layout: Layout| match stored_values {
            0 => Ok(0),
            one => (self.batch - 1)
                .checked_mul(layout.batch_stride)
                .and_then(|more| more.checked_add(one))
                .ok_or_else(|| Error::BadSize(format!("values: a batch stride of {} overflows", layout.batch_stride))),
        };
        let of_inputs = |name, len| Need { name, dtype: self.dtype, len };
        let of_outputs = |name, len| Need { name, dtype: self.out_dtype, len };
        match self.operation {
            Operation::Matmul => {
                let (m, k) = if self.transpose { (cols, rows) } else { (rows, cols) };
                let mut inputs = vec![
                    of_inputs("values", stored(self.a)?),
                    of_inputs("b", self.b.extent("b", k, self.free, self.batch)?),
                ];
                inputs.extend(self.bias.then_some(of_outputs("bias", m)));
                Ok(Needs { inputs, outputs: vec![of_outputs("c", self.c.extent("c", m, self.free, self.batch)?)] })
            }
            Operation::Sampled => Ok(Needs {
                inputs: vec![
                    of_inputs("x", self.a.extent("x", rows, self.free, self.batch)?),
                    of_inputs("y", self.b.extent("y", self.free, cols, self.batch)?),
                ],
                outputs: vec![of_outputs("values", stored(self.c)?)],
            }),
            Operation::Attention => self.attention.needs(self.dtype, self.batch, shape, false),
            Operation::AttentionBackward => self.attention.needs(self.dtype, self.batch, shape, true),
        }
    }
}

/// An operand: what it is called, and how many elements of which dtype it has at least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    pub name: &'static str,
    pub dtype: Dtype,
    pub len: usize,
}

/// The operands of a problem, in the library's order.
#[derive(Debug, Clone)]
pub(crate) struct Needs {
    pub inputs: Vec<Need>,
    pub outputs: Vec<Need>,
}
