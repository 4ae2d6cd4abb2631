//! CUDA: the tensors' own memory on the device, pitched rows and all.
//!
//! Burn's runtime queues its work on streams of its own, which it shows to nobody. So a product waits for what is queued
//! before it, runs on the default stream, and waits for itself: two synchronisations of the host.

use std::any::{Any, TypeId};
use std::ffi::c_void;
use std::ptr;

use burn::tensor::Shape;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, zeros_client};
use burn_cubecl::tensor::CubeTensor;
use sparse_autotune::{Context, Dtype, Effort, Race, Result};

use super::{fit_matmul, fit_sampled};
use crate::engine::{self, Place};
use crate::pattern::BsrPattern;
use crate::spec::{self, MatmulSpec, Strides, matmul_problem, sampled_problem};

type CudaTensor = CubeTensor<CudaRuntime>;

/// Whether a tensor is on an NVIDIA GPU, in a dtype that the library knows.
pub(super) fn serves<R: CubeRuntime>(tensor: &CubeTensor<R>) -> bool {
    TypeId::of::<R>() == TypeId::of::<CudaRuntime>() && spec::dtype(tensor.dtype).is_ok()
}

/// The same tensor, of a runtime that is known to be the same.
fn cast<From: 'static, To: 'static>(tensor: From) -> To {
    *(Box::new(tensor) as Box<dyn Any>).downcast::<To>().unwrap_or_else(|_| unreachable!("the runtime is CUDA"))
}

/// The address of a tensor's first element. What keeps the memory alive is the tensor.
fn address(tensor: &CudaTensor) -> *mut c_void {
    if tensor.meta.shape().num_elements() == 0 {
        return ptr::null_mut();
    }
    let resource = tensor.client.get_resource(tensor.handle.clone());
    let resource = resource.unwrap_or_else(|error| panic!("no memory behind a tensor: {error:?}"));
    resource.resource().ptr as *mut c_void
}

/// The tensor with strides that the library can walk.
fn walkable(tensor: CudaTensor) -> (CudaTensor, Strides) {
    let strides = |tensor: &CudaTensor| {
        let strides: Vec<isize> = tensor.meta.strides().iter().map(|&stride| stride as isize).collect();
        Strides::new(tensor.meta.shape(), &strides)
    };
    if let Some(found) = strides(&tensor) {
        return (tensor, found);
    }
    let tensor = into_contiguous(tensor);
    let found = strides(&tensor).expect("contiguous goes forwards");
    (tensor, found)
}

/// Waits until all that this thread has queued on the device is done.
fn settle<B: Backend>(device: &B::Device) {
    B::sync(device).unwrap_or_else(|error| panic!("the device failed before this: {error:?}"));
}

/// The context, its pattern, and the place of a tensor's device.
fn open(
    pattern: &BsrPattern,
    tensor: &CudaTensor,
    effort: Effort,
) -> Result<(Context, sparse_autotune::Pattern, Dtype)> {
    let place = Place::Cuda(tensor.device.index);
    let context = engine::context(place, effort)?;
    let handle = pattern.on(place, &context)?;
    Ok((context, handle, spec::dtype(tensor.dtype)?))
}

fn zeros(like: &CudaTensor, shape: Shape) -> CudaTensor {
    zeros_client(like.client.clone(), like.device.clone(), shape, like.dtype)
}

pub(super) fn matmul<B, R>(
    pattern: &BsrPattern,
    values: FloatTensor<B>,
    dense: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    spec: MatmulSpec,
) -> FloatTensor<B>
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let sizes = fit_matmul::<B>(pattern, &values, &dense, bias.as_ref(), &spec);
    let device = values.device.clone();
    let values = into_contiguous(cast::<CubeTensor<R>, CudaTensor>(values));
    let bias = bias.map(|bias| into_contiguous(cast::<CubeTensor<R>, CudaTensor>(bias)));
    let (dense, strides) = walkable(cast(dense));
    if sizes.out_len() == 0 {
        return cast(zeros(&dense, sizes.out_shape()));
    }
    let out = empty_device_contiguous_dtype(dense.client.clone(), dense.device.clone(), sizes.out_shape(), dense.dtype);
    let run = || -> Result<()> {
        let (context, handle, dtype) = open(pattern, &dense, spec.effort)?;
        let problem = matmul_problem(dtype, &sizes, &spec, strides, bias.is_some());
        let operands =
            [address(&values), address(&dense), address(&out), bias.as_ref().map_or(ptr::null_mut(), address)];
        settle::<B>(&device);
        // SAFETY: the sizes were found from these very tensors, all of which live until the run is waited for; what
        // writes them was waited for, and nothing else is queued on them meanwhile.
        unsafe {
            context.call_raw(&handle, &problem, operands, ptr::null_mut())?;
            context.wait_for_stream(ptr::null_mut())
        }
    };
    run().unwrap_or_else(|error| panic!("bsr_matmul: {error}"));
    cast(out)
}

pub(super) fn sampled<B, R>(
    pattern: &BsrPattern,
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    alpha: f64,
) -> FloatTensor<B>
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let (batch, n) = fit_sampled::<B>(pattern, &left, &right);
    let device = left.device.clone();
    let ((left, left_strides), (right, right_strides)) = (walkable(cast(left)), walkable(cast(right)));
    let shape = Shape::from(pattern.values_shape());
    if pattern.stored_blocks() == 0 || batch == 0 || n == 0 {
        return cast(zeros(&left, shape));
    }
    let out = empty_device_contiguous_dtype(left.client.clone(), left.device.clone(), shape, left.dtype);
    let run = || -> Result<()> {
        let (context, handle, dtype) = open(pattern, &left, Effort::Default)?;
        let (from, to, size) = ([address(&left), address(&right)], address(&out), dtype.size());
        settle::<B>(&device);
        for item in 0..batch {
            let problem = sampled_problem(dtype, n, alpha, left_strides, right_strides, item == 0);
            let operands = [
                from[0].wrapping_byte_add(item * left_strides.batch_stride() * size),
                from[1].wrapping_byte_add(item * right_strides.batch_stride() * size),
                to,
                ptr::null_mut(),
            ];
            // SAFETY: as in `matmul`; the first of the batch writes all of the output, the others add to it in order.
            unsafe { context.call_raw(&handle, &problem, operands, ptr::null_mut())? };
        }
        // SAFETY: the default stream is always there.
        unsafe { context.wait_for_stream(ptr::null_mut()) }
    };
    run().unwrap_or_else(|error| panic!("bsr_sampled: {error}"));
    cast(out)
}

pub(super) fn race<B, R>(
    pattern: &BsrPattern,
    values: FloatTensor<B>,
    dense: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    spec: MatmulSpec,
) -> Result<Race>
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let sizes = fit_matmul::<B>(pattern, &values, &dense, bias.as_ref(), &spec);
    let (dense, strides) = walkable(cast(dense));
    let (context, handle, dtype) = open(pattern, &dense, spec.effort)?;
    // What Burn allocates is aligned to more than any variant asks for.
    let problem = matmul_problem(dtype, &sizes, &spec, strides, bias.is_some()).alignment([16; 3]);
    context.race(&handle, &problem)
}
