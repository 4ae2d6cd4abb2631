//! Products in the host's memory: what NdArray and Flex share.

use std::ffi::c_void;
use std::ptr;

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
pub(super) unsafe fn matmul<T: Element>(
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
pub(super) unsafe fn sampled<T: Element>(
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
pub(super) fn alignment<T>(pointer: *const T) -> u32 {
    1 << (pointer as usize | 16).trailing_zeros()
}

/// The race of a product, for operands of this alignment; a new vector's is what the allocator gives.
pub(super) fn race<T: Element>(
    pattern: &BsrPattern,
    sizes: &Sizes,
    spec: &MatmulSpec,
    dense: Strides,
    bias: bool,
    [values, b]: [u32; 2],
) -> Result<Option<Race>> {
    let context: Context = engine::context(Place::Cpu, spec.effort)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    let problem = matmul_problem(T::DTYPE, sizes, spec, dense, bias).alignment([values, b, 16]);
    context.race(&handle, &problem).map(Some)
}
