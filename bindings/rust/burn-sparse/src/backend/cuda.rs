//! CUDA: the tensors' own memory on the device, pitched rows and all.
//!
//! CubeCL queues its work on streams of its own, from a thread of its own for each device. A product goes there for the
//! addresses and is queued there too, between what came before and what comes after; `order` ties its stream in. Where the
//! driver cannot, the host waits for what is queued before, and for the product.

use std::any::{Any, TypeId};
use std::ffi::c_void;
use std::ptr;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::client::ComputeClient;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, zeros_client};
use burn_cubecl::tensor::CubeTensor;
use sparse_autotune::{Context, Dtype, Effort, Problem, Race, Result};

use super::order::Lane;
use super::{Saved, fit_attention, fit_backward, fit_matmul, fit_sampled};
use crate::attention::{AttentionOptions, AttentionSizes, HeadStrides, backward_problem, forward_problem};
use crate::engine::{self, Place};
use crate::pattern::BsrPattern;
use crate::spec::{self, FromStrides, MatmulSpec, Strides, matmul_problem, sampled_problem};

type CudaTensor = CubeTensor<CudaRuntime>;
type Client = ComputeClient<CudaRuntime>;

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

/// The tensor, with strides that the library takes.
fn with_strides<W: FromStrides>(tensor: CudaTensor) -> (CudaTensor, W) {
    let strides = |tensor: &CudaTensor| {
        let strides: Vec<isize> = tensor.meta.strides().iter().map(|&stride| stride as isize).collect();
        W::from_strides(tensor.meta.shape(), &strides)
    };
    if let Some(found) = strides(&tensor) {
        return (tensor, found);
    }
    let tensor = into_contiguous(tensor);
    let found = strides(&tensor).expect("contiguous goes forwards");
    (tensor, found)
}

/// Waits until all that this thread has queued on the device is done.
fn settle(client: &Client) {
    let done = burn_cubecl::cubecl::future::block_on(client.sync());
    done.unwrap_or_else(|error| panic!("the device failed before this: {error:?}"));
}

/// Runs `queue`, which puts the library's work on a stream, in order with the rest of the device's work. What keeps the
/// operands alive until `queue` has run keeps them long enough: whoever gets their memory next comes after.
fn in_order(client: &Client, context: &Context, queue: impl Fn(*mut c_void) -> Result<()> + Send + Sync) -> Result<()> {
    let by_device = || {
        Lane::with(|lane| {
            let lane = lane?;
            let stream = lane.enter()?;
            let queued = queue(stream);
            if lane.leave() {
                return Some(queued);
            }
            // SAFETY: the lane's stream lives for ever.
            Some(unsafe { context.wait_for_stream(stream) }.and(queued))
        })
    };
    let done = client.exclusive(by_device).unwrap_or_else(|error| panic!("CubeCL's thread is gone: {error:?}"));
    if let Some(queued) = done {
        return queued;
    }
    settle(client);
    queue(ptr::null_mut())?;
    // SAFETY: the default stream is always there.
    unsafe { context.wait_for_stream(ptr::null_mut()) }
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
    if shape.num_elements() == 0 {
        return empty(like, shape); // CubeCL would launch a kernel without blocks, which CUDA refuses
    }
    zeros_client(like.client.clone(), like.device.clone(), shape, like.dtype)
}

fn empty(like: &CudaTensor, shape: Shape) -> CudaTensor {
    empty_of(like, shape, like.dtype)
}

fn empty_of(like: &CudaTensor, shape: Shape, dtype: DType) -> CudaTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
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
    let values = into_contiguous(cast::<CubeTensor<R>, CudaTensor>(values));
    let bias = bias.map(|bias| into_contiguous(cast::<CubeTensor<R>, CudaTensor>(bias)));
    let (dense, strides) = with_strides::<Strides>(cast(dense));
    if sizes.out_len() == 0 {
        return cast(zeros(&dense, sizes.out_shape()));
    }
    let out = empty(&dense, sizes.out_shape());
    let run = || -> Result<()> {
        let (context, handle, dtype) = open(pattern, &dense, spec.effort)?;
        let problem = matmul_problem(dtype, &sizes, &spec, strides, bias.is_some());
        in_order(&dense.client, &context, |stream| {
            let bias = bias.as_ref().map_or(ptr::null_mut(), address);
            let inputs: [*const c_void; 3] = [address(&values), address(&dense), bias];
            // SAFETY: the sizes were found from these very tensors; the stream comes after what writes them, and whatever
            // uses them or their memory next comes after the stream.
            unsafe { context.call_raw(&handle, &problem, &inputs, &[address(&out)], stream) }
        })
    };
    run().unwrap_or_else(|error| panic!("bsr_matmul: {error}"));
    cast(out)
}

pub(super) fn sampled<B, R>(
    pattern: &BsrPattern,
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    alpha: f64,
    effort: Effort,
) -> FloatTensor<B>
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let (batch, n) = fit_sampled::<B>(pattern, &left, &right);
    let (left, left_strides) = with_strides::<Strides>(cast(left));
    let (right, right_strides) = with_strides::<Strides>(cast(right));
    let shape = Shape::from(pattern.values_shape());
    if pattern.stored_blocks() == 0 || batch == 0 || n == 0 {
        return cast(zeros(&left, shape));
    }
    let dtype = spec::dtype(left.dtype).expect("this is what `serves` has looked at");
    let sum = spec::summed_in(dtype, batch);
    let out = if sum == dtype { empty(&left, shape) } else { empty_of(&left, shape, DType::F32) };
    let run = || -> Result<()> {
        let (context, handle, _) = open(pattern, &left, effort)?;
        in_order(&left.client, &context, |stream| {
            let (from, to, size) = ([address(&left), address(&right)], address(&out), dtype.size());
            for item in 0..batch {
                let problem = sampled_problem([dtype, sum], n, alpha, left_strides, right_strides, item == 0);
                let inputs: [*const c_void; 2] = [
                    from[0].wrapping_byte_add(item * left_strides.batch_stride() * size),
                    from[1].wrapping_byte_add(item * right_strides.batch_stride() * size),
                ];
                // SAFETY: as in `matmul`; the first of the batch writes all of the output, the others add in order.
                unsafe { context.call_raw(&handle, &problem, &inputs, &[to], stream)? };
            }
            Ok(())
        })
    };
    run().unwrap_or_else(|error| panic!("bsr_sampled: {error}"));
    if sum == dtype { cast(out) } else { B::float_cast(cast(out), left.dtype.into()) }
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
    let (dense, strides) = with_strides::<Strides>(cast(dense));
    let (context, handle, dtype) = open(pattern, &dense, spec.effort)?;
    // What Burn allocates is aligned to more than any variant asks for.
    let problem = matmul_problem(dtype, &sizes, &spec, strides, bias.is_some()).alignment([16; 3]);
    context.race(&handle, &problem)
}

pub(super) fn attention<B, R>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    sinks: Option<FloatTensor<B>>,
    options: &AttentionOptions,
    lse: bool,
) -> (FloatTensor<B>, Option<FloatTensor<B>>)
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let sizes = fit_attention::<B>(&q, &k, &v, sinks.as_ref(), options);
    let sinks = sinks.map(|sinks| into_contiguous(cast::<CubeTensor<R>, CudaTensor>(sinks)));
    let [(q, q_at), (k, k_at), (v, v_at)] = [q, k, v].map(|tensor| with_strides::<HeadStrides>(cast(tensor)));
    let out = empty(&q, sizes.o_shape());
    let sums = lse.then(|| empty_of(&q, sizes.lse_shape(), DType::F32));
    if !sizes.no_queries() {
        let outputs: Vec<&CudaTensor> = [&out].into_iter().chain(&sums).collect();
        let inputs: Vec<&CudaTensor> = [&q, &k, &v].into_iter().chain(&sinks).collect();
        attend(&sizes, options, &inputs, &outputs, |dtype| {
            forward_problem(dtype, &sizes, options, [q_at, k_at, v_at], lse)
        });
    }
    (cast(out), sums.map(cast))
}

pub(super) fn attention_backward<B, R>(
    saved: Saved<B>,
    grad: FloatTensor<B>,
    options: &AttentionOptions,
) -> ([FloatTensor<B>; 3], Option<FloatTensor<B>>)
where
    R: CubeRuntime,
    B: Backend<FloatTensorPrimitive = CubeTensor<R>, Device = R::CubeDevice>,
{
    let sizes = fit_backward::<B>(&saved, &grad, options);
    let Saved { q, k, v, sinks, o, lse } = saved;
    let lse = into_contiguous(cast::<CubeTensor<R>, CudaTensor>(lse));
    let sinks = sinks.map(|sinks| into_contiguous(cast::<CubeTensor<R>, CudaTensor>(sinks)));
    let inputs = [q, k, v, o, grad].map(|tensor| with_strides::<HeadStrides>(cast(tensor)));
    let [q, k, v, o, grad] = inputs.each_ref().map(|(tensor, _)| tensor);
    let shapes = [sizes.q_shape(), sizes.k_shape(), sizes.v_shape()];
    if sizes.no_queries() || sizes.keys == 0 {
        let dsinks = sinks.map(|sinks| cast(zeros(&sinks, sizes.sinks_shape())));
        return (shapes.map(|shape| cast(zeros(q, shape))), dsinks);
    }
    let gradients = shapes.map(|shape| empty(q, shape));
    let dsinks = sinks.as_ref().map(|sinks| empty(sinks, sizes.sinks_shape()));
    let placed = inputs.each_ref().map(|(_, at)| *at);
    let inputs: Vec<&CudaTensor> = [q, k, v, o, &lse, grad].into_iter().chain(&sinks).collect();
    let outputs: Vec<&CudaTensor> = gradients.iter().chain(&dsinks).collect();
    attend(&sizes, options, &inputs, &outputs, |dtype| backward_problem(dtype, &sizes, options, placed));
    (gradients.map(cast), dsinks.map(cast))
}

/// Queues attention, forward or backward, on operands in the library's order, of which the first is Q.
fn attend(
    sizes: &AttentionSizes,
    options: &AttentionOptions,
    inputs: &[&CudaTensor],
    outputs: &[&CudaTensor],
    problem: impl FnOnce(Dtype) -> Problem,
) {
    let run = || -> Result<()> {
        // The pattern's copy on the device is made here, and not among what is queued.
        let (context, _, dtype) = open(&options.pattern(sizes), inputs[0], options.effort)?;
        let (place, problem) = (Place::Cuda(inputs[0].device.index), problem(dtype));
        in_order(&inputs[0].client, &context, |stream| {
            let from: Vec<*const c_void> = inputs.iter().map(|tensor| address(tensor).cast_const()).collect();
            let to: Vec<*mut c_void> = outputs.iter().map(|tensor| address(tensor)).collect();
            // SAFETY: as in `matmul`; `in_order` has all streams of a device in one order.
            unsafe { sizes.run(place, options, problem, &from, &to, stream) }
        })
    };
    run().unwrap_or_else(|error| panic!("attention: {error}"));
}
