//! Products in the host's memory: what NdArray and Flex share.

use std::ffi::c_void;
use std::ptr;

use burn::tensor::Shape;
use sparse_autotune::{Context, Effort, Element, Race, Result};

use crate::engine::{self, Place};
use crate::pattern::BsrPattern;
use crate::spec::{MatmulSpec, Sizes, Strides, matmul_problem, sampled_problem};

/// A dense operand: its first element, and where the others are.
///
/// # Safety
/// Whoever makes one promises that every element that the strides reach is there and stays as it is.
#[derive(Clone, Copy)]
pub(super) struct Dense<T> {
    pub first: *const T,
    pub strides: Strides,
}

/// A tensor of T in the host's memory: what differs between NdArray and Flex.
///
/// # Safety
/// What `walkable` returns has the tensor's own shape and keeps its promise while what is kept beside it lives.
pub(super) unsafe trait HostTensor<T: Element>: Sized {
    /// Keeps the elements where they are.
    type Kept;

    /// Without gaps, row by row.
    fn standard(self) -> Self::Kept;

    /// The elements of what `standard` made.
    fn elements(kept: &Self::Kept) -> &[T];

    /// With strides that the library can walk.
    fn walkable(self) -> (Self::Kept, Dense<T>);

    fn make(values: Vec<T>, shape: impl Into<Shape>) -> Self;
}

/// What `SparseBackend` asks for, of a backend whose tensors are `HostTensor`s. `$with_dtype!(tensor, function(..))` calls
/// a function of this module with the tensor's dtype.
macro_rules! products {
    ($with_dtype:ident) => {
        fn bsr_matmul(
            pattern: &$crate::pattern::BsrPattern,
            values: burn::tensor::ops::FloatTensor<Self>,
            dense: burn::tensor::ops::FloatTensor<Self>,
            bias: Option<burn::tensor::ops::FloatTensor<Self>>,
            spec: $crate::spec::MatmulSpec,
        ) -> burn::tensor::ops::FloatTensor<Self> {
            let sizes = $crate::backend::fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
            $with_dtype!(values, matmul(pattern, sizes, values, dense, bias, spec))
        }

        fn bsr_sampled(
            pattern: &$crate::pattern::BsrPattern,
            left: burn::tensor::ops::FloatTensor<Self>,
            right: burn::tensor::ops::FloatTensor<Self>,
            alpha: f64,
        ) -> burn::tensor::ops::FloatTensor<Self> {
            let (batch, n) = $crate::backend::fit_sampled::<Self>(pattern, &left, &right);
            $with_dtype!(left, sampled(pattern, [batch, n], left, right, alpha))
        }

        fn bsr_race(
            pattern: &$crate::pattern::BsrPattern,
            values: burn::tensor::ops::FloatTensor<Self>,
            dense: burn::tensor::ops::FloatTensor<Self>,
            bias: Option<burn::tensor::ops::FloatTensor<Self>>,
            spec: $crate::spec::MatmulSpec,
        ) -> sparse_autotune::Result<Option<sparse_autotune::Race>> {
            let sizes = $crate::backend::fit_matmul::<Self>(pattern, &values, &dense, bias.as_ref(), &spec);
            $with_dtype!(values, race(pattern, sizes, values, dense, bias.is_some(), spec))
        }
    };
}
pub(super) use products;

/// `SparseBackend::bsr_matmul` of one dtype; the sizes were found from these tensors.
pub(super) fn matmul<T: Element, H: HostTensor<T>>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: H,
    dense: H,
    bias: Option<H>,
    spec: MatmulSpec,
) -> H {
    let (values, bias) = (values.standard(), bias.map(H::standard));
    let (_kept, dense) = dense.walkable();
    let bias = bias.as_ref().map(H::elements);
    // SAFETY: the sizes were found from these very shapes, and everything lives until the call is done.
    let out = unsafe { product(pattern, &sizes, &spec, H::elements(&values), dense, bias) };
    H::make(out.unwrap_or_else(|error| panic!("bsr_matmul: {error}")), sizes.out_shape())
}

/// `SparseBackend::bsr_sampled` of one dtype; the sizes were found from these tensors.
pub(super) fn sampled<T: Element, H: HostTensor<T>>(
    pattern: &BsrPattern,
    sizes: [usize; 2],
    left: H,
    right: H,
    alpha: f64,
) -> H {
    let ((_left, left), (_right, right)) = (left.walkable(), right.walkable());
    // SAFETY: the sizes were found from these very shapes, and the tensors live until the call is done.
    let out = unsafe { samples(pattern, sizes, left, right, alpha) };
    H::make(out.unwrap_or_else(|error| panic!("bsr_sampled: {error}")), pattern.values_shape())
}

/// `SparseBackend::bsr_race` of one dtype, for operands of this alignment; a new vector's is what the allocator gives.
pub(super) fn race<T: Element, H: HostTensor<T>>(
    pattern: &BsrPattern,
    sizes: Sizes,
    values: H,
    dense: H,
    bias: bool,
    spec: MatmulSpec,
) -> Result<Option<Race>> {
    let values = values.standard();
    let (_kept, dense) = dense.walkable();
    let [a, b] = [H::elements(&values).as_ptr(), dense.first].map(alignment);
    let context: Context = engine::context(Place::Cpu, spec.effort)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    let problem = matmul_problem(T::DTYPE, &sizes, &spec, dense.strides, bias).alignment([a, b, 16]);
    context.race(&handle, &problem).map(Some)
}

/// A new vector that `fill` writes all of.
///
/// # Safety
/// Where `fill` succeeds it has written all `len` elements.
unsafe fn filled<T: Element>(len: usize, fill: impl FnOnce(*mut T) -> Result<()>) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(len);
    fill(out.as_mut_ptr())?;
    // SAFETY: the caller's.
    unsafe { out.set_len(len) };
    Ok(out)
}

/// An operand without elements may be anywhere: its address then says nothing.
fn address<T>(pointer: *const T, len: usize) -> *mut c_void {
    if len == 0 { ptr::null_mut() } else { pointer.cast_mut().cast() }
}

/// The product, row-major without gaps.
///
/// # Safety
/// `values` and `bias` are as long as pattern and sizes say, and `dense` keeps its promise.
unsafe fn product<T: Element>(
    pattern: &BsrPattern,
    sizes: &Sizes,
    spec: &MatmulSpec,
    values: &[T],
    dense: Dense<T>,
    bias: Option<&[T]>,
) -> Result<Vec<T>> {
    let len = sizes.out_len();
    if len == 0 {
        return Ok(Vec::new());
    }
    let context = engine::context(Place::Cpu, spec.effort)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    let problem = matmul_problem(T::DTYPE, sizes, spec, dense.strides, bias.is_some());
    // SAFETY: beta is 0 and the output has no gaps, so all of it is written and none of it read.
    unsafe {
        filled(len, |out: *mut T| {
            let operands = [
                address(values.as_ptr(), values.len()),
                address(dense.first, sizes.k),
                out.cast(),
                bias.map_or(ptr::null_mut(), |bias| address(bias.as_ptr(), bias.len())),
            ];
            context.call_raw(&handle, &problem, operands, ptr::null_mut())
        })
    }
}

/// The sampled product, summed over a batch.
///
/// # Safety
/// `left` and `right` keep their promise, for a batch of this size.
unsafe fn samples<T: Element>(
    pattern: &BsrPattern,
    [batch, n]: [usize; 2],
    left: Dense<T>,
    right: Dense<T>,
    alpha: f64,
) -> Result<Vec<T>> {
    let len: usize = pattern.values_shape().iter().product();
    if len == 0 || batch == 0 || n == 0 {
        return Ok(vec![T::default(); len]);
    }
    let context = engine::context(Place::Cpu, Effort::Default)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    // SAFETY: the first of the batch writes all of the output and reads none of it; the others add to it.
    unsafe {
        filled(len, |out: *mut T| {
            for item in 0..batch {
                let problem = sampled_problem(T::DTYPE, n, alpha, left.strides, right.strides, item == 0);
                let operands = [
                    left.first.add(item * left.strides.batch_stride()).cast_mut().cast(),
                    right.first.add(item * right.strides.batch_stride()).cast_mut().cast(),
                    out.cast(),
                    ptr::null_mut(),
                ];
                context.call_raw(&handle, &problem, operands, ptr::null_mut())?;
            }
            Ok(())
        })
    }
}

/// What an address is a multiple of, as far as the library asks.
fn alignment<T>(pointer: *const T) -> u32 {
    1 << (pointer as usize | 16).trailing_zeros()
}
