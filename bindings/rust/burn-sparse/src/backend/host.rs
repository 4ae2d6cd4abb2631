//! Operations in the host's memory: what NdArray and Flex share.

use std::ffi::c_void;
use std::ptr;

use burn::tensor::Shape;
use sparse_autotune::{Context, Effort, Element, Error, Problem, Race, Result};

use crate::attention::{AttentionOptions, AttentionSizes, HeadStrides, backward_problem, forward_problem};
use crate::engine::{self, Place, alignment};
use crate::pattern::BsrPattern;
use crate::spec::{self, FromStrides, MatmulSpec, Sizes, Strides, matmul_problem, sampled_problem};

/// A dense operand: its first element, and where the others are.
///
/// # Safety
/// Whoever makes one promises that every element that the strides reach is there and stays as it is.
#[derive(Clone, Copy)]
pub(super) struct Dense<T, W = Strides> {
    pub first: *const T,
    pub strides: W,
}

/// A tensor of T in the host's memory: what differs between NdArray and Flex.
///
/// # Safety
/// What `with_strides` returns has the tensor's own shape and keeps its promise while what is kept beside it lives.
pub(super) unsafe trait HostTensor<T: Element>: Sized {
    /// Keeps the elements where they are.
    type Kept;

    /// Without gaps, row by row.
    fn standard(self) -> Self::Kept;

    /// The elements of what `standard` made.
    fn elements(kept: &Self::Kept) -> &[T];

    /// With strides that the library takes.
    fn with_strides<W: FromStrides>(self) -> (Self::Kept, Dense<T, W>);

    fn make(values: Vec<T>, shape: impl Into<Shape>) -> Self;
}

/// What `SparseBackend` asks for, of a backend whose tensors are `HostTensor`s. `$with_dtype!(tensor, function(..))` calls
/// a function of this module with the tensor's dtype.
macro_rules! operations {
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
            effort: sparse_autotune::Effort,
        ) -> burn::tensor::ops::FloatTensor<Self> {
            let (batch, n) = $crate::backend::fit_sampled::<Self>(pattern, &left, &right);
            $with_dtype!(left, sampled(pattern, [batch, n], left, right, alpha, effort))
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

        fn bsr_attention(
            q: burn::tensor::ops::FloatTensor<Self>,
            k: burn::tensor::ops::FloatTensor<Self>,
            v: burn::tensor::ops::FloatTensor<Self>,
            sinks: Option<burn::tensor::ops::FloatTensor<Self>>,
            options: &$crate::attention::AttentionOptions,
            lse: bool,
        ) -> (burn::tensor::ops::FloatTensor<Self>, Option<burn::tensor::ops::FloatTensor<Self>>) {
            let sizes = $crate::backend::fit_attention::<Self>(&q, &k, &v, sinks.as_ref(), options);
            $with_dtype!(q, attention(sizes, [q, k, v], sinks, options, lse))
        }

        fn bsr_attention_backward(
            saved: $crate::backend::Saved<Self>,
            grad: burn::tensor::ops::FloatTensor<Self>,
            options: &$crate::attention::AttentionOptions,
        ) -> ([burn::tensor::ops::FloatTensor<Self>; 3], Option<burn::tensor::ops::FloatTensor<Self>>) {
            let sizes = $crate::backend::fit_backward::<Self>(&saved, &grad, options);
            let $crate::backend::Saved { q, k, v, sinks, o, lse } = saved;
            $with_dtype!(q, attention_backward(sizes, [q, k, v, o, grad], lse, sinks, options))
        }
    };
}
pub(super) use operations;

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
    let (_kept, dense) = dense.with_strides();
    let bias = bias.as_ref().map(H::elements);
    // SAFETY: the sizes were found from these very shapes, and everything lives until the call is done.
    let out = unsafe { product(pattern, &sizes, &spec, H::elements(&values), dense, bias) };
    H::make(out.unwrap_or_else(|error| panic!("bsr_matmul: {error}")), sizes.out_shape())
}

/// `SparseBackend::bsr_sampled` of one dtype; the sizes were found from these tensors.
pub(super) fn sampled<T: Element + burn::tensor::Element, H: HostTensor<T>>(
    pattern: &BsrPattern,
    sizes: [usize; 2],
    left: H,
    right: H,
    alpha: f64,
    effort: Effort,
) -> H {
    let ((_left, left), (_right, right)) = (left.with_strides(), right.with_strides());
    // SAFETY: the sizes were found from these very shapes, and the tensors live until the call is done.
    let out = unsafe {
        if spec::summed_in(T::DTYPE, sizes[0]) == T::DTYPE {
            samples::<T, T>(pattern, sizes, left, right, alpha, effort)
        } else {
            samples::<T, f32>(pattern, sizes, left, right, alpha, effort).and_then(rounded)
        }
    };
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
    let (_kept, dense) = dense.with_strides();
    let [a, b] = [H::elements(&values).as_ptr(), dense.first].map(alignment);
    let context: Context = engine::context(Place::Cpu, spec.effort)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    let problem = matmul_problem(T::DTYPE, &sizes, &spec, dense.strides, bias).alignment([a, b, 16]);
    context.race(&handle, &problem).map(Some)
}

/// `SparseBackend::bsr_attention` of one dtype; the sizes were found from these tensors.
pub(super) fn attention<T: Element, H: HostTensor<T> + HostTensor<f32>>(
    sizes: AttentionSizes,
    inputs: [H; 3],
    sinks: Option<H>,
    options: &AttentionOptions,
    lse: bool,
) -> (H, Option<H>) {
    let [(_q, q), (_k, k), (_v, v)] = inputs.map(<H as HostTensor<T>>::with_strides::<HeadStrides>);
    let sinks = sinks.map(<H as HostTensor<f32>>::standard);
    let mut out: Vec<T> = written(&sizes.o_shape());
    let mut sums: Option<Vec<f32>> = lse.then(|| written(&sizes.lse_shape()));
    if !sizes.no_queries() {
        let problem = forward_problem(T::DTYPE, &sizes, options, [q, k, v].map(|operand| operand.strides), lse);
        let mut inputs = vec![address(q.first, out.len()), address(k.first, sizes.keys), address(v.first, sizes.keys)];
        inputs.extend(sinks.as_ref().map(numbers::<H>));
        let outputs = [out.as_mut_ptr().cast()].into_iter().chain(sums.as_mut().map(|sums| sums.as_mut_ptr().cast()));
        // SAFETY: the sizes were found from these very shapes, and everything lives until the call is done.
        unsafe { attend(&sizes, options, problem, &inputs, &outputs.collect::<Vec<_>>()) };
    }
    (H::make(out, sizes.o_shape()), sums.map(|sums| H::make(sums, sizes.lse_shape())))
}

/// `SparseBackend::bsr_attention_backward` of one dtype; the sizes were found from these tensors: Q, K, V, O and the
/// gradient of O.
pub(super) fn attention_backward<T: Element, H: HostTensor<T> + HostTensor<f32>>(
    sizes: AttentionSizes,
    inputs: [H; 5],
    lse: H,
    sinks: Option<H>,
    options: &AttentionOptions,
) -> ([H; 3], Option<H>) {
    let kept = inputs.map(<H as HostTensor<T>>::with_strides::<HeadStrides>);
    let lse = <H as HostTensor<f32>>::standard(lse);
    let sinks = sinks.map(<H as HostTensor<f32>>::standard);
    let mut outputs = [sizes.q_shape(), sizes.k_shape(), sizes.v_shape()].map(|shape| written::<T>(&shape));
    let mut dsinks: Option<Vec<f32>> = sizes.sinks.then(|| written(&sizes.sinks_shape()));
    if outputs.iter().all(|output| !output.is_empty()) {
        let placed = kept.each_ref().map(|(_, operand)| operand.strides);
        let [q, k, v, o, grad] = kept.each_ref().map(|(_, operand)| operand.first.cast());
        let mut inputs = vec![q, k, v, o, numbers::<H>(&lse), grad];
        inputs.extend(sinks.as_ref().map(numbers::<H>));
        let gradients = outputs.iter_mut().map(|output| output.as_mut_ptr().cast());
        let gradients = gradients.chain(dsinks.as_mut().map(|dsinks| dsinks.as_mut_ptr().cast()));
        let problem = backward_problem(T::DTYPE, &sizes, options, placed);
        // SAFETY: as in `attention`.
        unsafe { attend(&sizes, options, problem, &inputs, &gradients.collect::<Vec<_>>()) };
    }
    let mut shapes = [sizes.q_shape(), sizes.k_shape(), sizes.v_shape()].into_iter();
    let gradients = outputs.map(|output| H::make(output, shapes.next().expect("three of them")));
    (gradients, dsinks.map(|dsinks| H::make(dsinks, sizes.sinks_shape())))
}

/// Where the numbers of LSE or of sinks are.
fn numbers<H: HostTensor<f32>>(kept: &H::Kept) -> *const c_void {
    H::elements(kept).as_ptr().cast()
}

/// Runs attention, forward or backward.
///
/// # Safety
/// As for `Context::call_raw`.
unsafe fn attend(
    sizes: &AttentionSizes,
    options: &AttentionOptions,
    problem: Problem,
    inputs: &[*const c_void],
    outputs: &[*mut c_void],
) {
    // SAFETY: the caller's; nothing here knows of streams.
    let done = unsafe { sizes.run(Place::Cpu, options, problem, inputs, outputs, ptr::null_mut()) };
    done.unwrap_or_else(|error| panic!("attention: {error}"));
}

/// Room for so many elements, or an error: `Vec::with_capacity` would end the process.
fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(len) {
        Ok(()) => Ok(room),
        Err(error) => Err(Error::OutOfMemory(format!("the result has {len} elements: {error}"))),
    }
}

fn zeros<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut zeros = room(len)?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

/// The same numbers in another dtype.
fn rounded<T: burn::tensor::Element>(values: Vec<f32>) -> Result<Vec<T>> {
    let mut rounded = room(values.len())?;
    rounded.extend(values.into_iter().map(T::from_elem));
    Ok(rounded)
}

/// What attention writes to.
fn written<T: Element>(shape: &Shape) -> Vec<T> {
    zeros(shape.num_elements()).unwrap_or_else(|error| panic!("attention: {error}"))
}

/// A new vector that `fill` writes all of.
///
/// # Safety
/// Where `fill` succeeds it has written all `len` elements.
unsafe fn filled<T: Element>(len: usize, fill: impl FnOnce(*mut T) -> Result<()>) -> Result<Vec<T>> {
    let mut out = room(len)?;
    fill(out.as_mut_ptr())?;
    // SAFETY: the caller's.
    unsafe { out.set_len(len) };
    Ok(out)
}

/// An operand without elements may be anywhere: its address then says nothing.
fn address<T>(pointer: *const T, len: usize) -> *const c_void {
    if len == 0 { ptr::null() } else { pointer.cast() }
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
            let inputs = [
                address(values.as_ptr(), values.len()),
                address(dense.first, sizes.k),
                bias.map_or(ptr::null(), |bias| address(bias.as_ptr(), bias.len())),
            ];
            context.call_raw(&handle, &problem, &inputs, &[out.cast()], ptr::null_mut())
        })
    }
}

/// The sampled product, summed over a batch in a dtype that the library can write.
///
/// # Safety
/// `left` and `right` keep their promise, for a batch of this size.
unsafe fn samples<T: Element, S: Element>(
    pattern: &BsrPattern,
    [batch, n]: [usize; 2],
    left: Dense<T>,
    right: Dense<T>,
    alpha: f64,
    effort: Effort,
) -> Result<Vec<S>> {
    let len: usize = pattern.values_shape().iter().product();
    if len == 0 || batch == 0 || n == 0 {
        return zeros(len);
    }
    let context = engine::context(Place::Cpu, effort)?;
    let handle = pattern.on(Place::Cpu, &context)?;
    // SAFETY: the first of the batch writes all of the output and reads none of it; the others add to it.
    unsafe {
        filled(len, |out: *mut S| {
            for item in 0..batch {
                let problem = sampled_problem([T::DTYPE, S::DTYPE], n, alpha, left.strides, right.strides, item == 0);
                let inputs = [
                    left.first.add(item * left.strides.batch_stride()).cast(),
                    right.first.add(item * right.strides.batch_stride()).cast(),
                ];
                context.call_raw(&handle, &problem, &inputs, &[out.cast()], ptr::null_mut())?;
            }
            Ok(())
        })
    }
}

#[cfg(all(test, feature = "flex", feature = "ndarray"))]
mod tests {
    use burn::backend::flex::FlexTensor;
    use burn::backend::ndarray::NdArrayTensor;
    use burn::backend::{Flex, NdArray};
    use burn::tensor::backend::Backend;
    use burn::tensor::ops::FloatTensor;
    use burn::tensor::{Tensor, TensorPrimitive};

    use super::*;
    use crate::tensor::shaped;

    /// Operands are read in place, and results stay where they were written. `address` is that of a tensor's first
    /// element.
    fn nothing_is_copied<B: Backend>(address: fn(&FloatTensor<B>) -> *const f32)
    where
        FloatTensor<B>: HostTensor<f32>,
    {
        let made = |shape: &[usize]| {
            let values = vec![1f32; shape.iter().product()];
            let written = values.as_ptr();
            let made = <FloatTensor<B> as HostTensor<f32>>::make(values, shape.to_vec());
            assert_eq!(address(&made), written);
            TensorPrimitive::Float(made)
        };
        let in_place = |tensor: FloatTensor<B>, first: *const f32| assert_eq!(first, address(&tensor));

        let batch = Tensor::<B, 3>::from_primitive(made(&[6, 8, 8]));
        let values = batch.clone().into_primitive().tensor();
        in_place(values.clone(), FloatTensor::<B>::elements(&values.clone().standard()).as_ptr());
        in_place(values.clone(), address(&shaped::<B>(values, [6, 8, 8].into())));
        let cut = batch.clone().slice([2..5, 3..7, 1..6]);
        let row = batch.clone().slice([0..6, 2..3, 0..8]).expand([6, 5, 8]);
        for tensor in [batch.clone(), batch.swap_dims(1, 2), cut, row] {
            let tensor = tensor.into_primitive().tensor();
            let (_kept, dense) = tensor.clone().with_strides::<Strides>();
            in_place(tensor, dense.first);
        }

        let heads = Tensor::<B, 4>::from_primitive(made(&[2, 3, 8, 8]));
        let cut = heads.clone().slice([1..2, 0..3, 2..7, 0..8]);
        for tensor in [heads.clone(), heads.clone().swap_dims(1, 2), cut] {
            let tensor = tensor.into_primitive().tensor();
            let (_kept, dense) = tensor.clone().with_strides::<HeadStrides>();
            in_place(tensor, dense.first);
        }
        // A row whose elements are apart is not taken.
        let apart = heads.swap_dims(2, 3).into_primitive().tensor();
        let (_kept, dense) = apart.clone().with_strides::<HeadStrides>();
        assert_ne!(dense.first, address(&apart));
    }

    #[test]
    fn ndarray_copies_nothing() {
        nothing_is_copied::<NdArray>(|tensor| match tensor {
            NdArrayTensor::F32(storage) => storage.clone().into_shared().as_ptr(),
            other => panic!("{other:?}"),
        });
    }

    /// So many elements that their number is 0 in 64 bits.
    #[test]
    fn flex_finds_the_first_of_an_expanded_row() {
        let row = Tensor::<Flex, 2>::ones([3, 4], &Default::default()).slice([2..3, 0..4]).expand([1usize << 62, 4]);
        let tensor = row.into_primitive().tensor();
        let (kept, dense): (_, Dense<f32>) = tensor.with_strides();
        assert_eq!(dense.first, kept.storage::<f32>()[8..].as_ptr());
    }

    #[test]
    fn flex_copies_nothing() {
        let address = |tensor: &FlexTensor| tensor.storage::<f32>()[tensor.layout().start_offset()..].as_ptr();
        nothing_is_copied::<Flex>(address);
    }
}
