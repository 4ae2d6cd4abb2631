//! The speed of a product through Burn on a GPU, against the C library's own plan, as one JSON object on standard output.
//! Built anywhere, run by `bench/rust_check`.
//!
//! Everything is timed by the host in two ways: `one`, a call and a wait for it, and `queued`, a call's share of many before
//! one wait.

use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

use burn::backend::cuda::Cuda;
use burn::tensor::{DType, Shape, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_sparse::backend::CudaOrder;
use burn_sparse::{BsrPattern, BsrTensor, SparseBackend};
use sparse_autotune::{Buffer, Context, Element, Pattern, Plan, Problem, f16};

/// Without Fusion, whatever the features.
type Plain = CubeBackend<CudaRuntime, f32, i32, u8>;

const SIZE: usize = 4096;
const BLOCK: usize = 64;
const DENSITY: f64 = 0.125;
const ROUNDS: usize = 50;
const QUEUE: usize = 20;

/// The median of the times of some calls, after a few that do not count. Each returns its own time.
fn median(mut call: impl FnMut() -> f64) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS + 5).map(|_| call()).skip(5).collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn seconds(call: impl FnOnce()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64()
}

/// What a call takes.
struct Times {
    one: f64,
    queued: f64,
    /// The host's own part of a queued call.
    host: f64,
}

impl Times {
    fn of(mut call: impl FnMut(), wait: impl Fn()) -> Self {
        let one = median(|| {
            seconds(|| {
                call();
                wait();
            })
        });
        let mut hosts = Vec::new();
        let queued = median(|| {
            seconds(|| {
                hosts.push(seconds(|| (0..QUEUE).for_each(|_| call())));
                wait();
            })
        });
        hosts.sort_by(f64::total_cmp);
        Self { one, queued: queued / QUEUE as f64, host: hosts[hosts.len() / 2] / QUEUE as f64 }
    }

    fn json(&self) -> String {
        let Self { one, queued, host } = self;
        format!("{{\"one\":{one:.9},\"queued\":{queued:.9},\"host\":{host:.9}}}")
    }
}

/// Numbers that differ: the power that a GPU draws, and so its clock, depends on them.
fn numbers<T>(len: usize, from: impl Fn(f32) -> T) -> Vec<T> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        from((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..len).map(|_| next()).collect()
}

/// The C library: its plan, and a call that finds the plan by itself, as Burn's products do.
fn library<T: Element>(pattern: &BsrPattern, from: fn(f32) -> T) -> (String, Times, Times) {
    let context = Context::builder().device("cuda").build().expect("a GPU");
    let blocks =
        Pattern::new(&context, [SIZE; 2], [BLOCK; 2], pattern.row_ptr(), pattern.col_indices()).expect("valid");
    let problem = Problem::matmul::<T>(SIZE);
    let mut plan = Plan::new(&context, &blocks, &problem.alignment([128; 3])).expect("a plan");
    let values = Buffer::from_slice(&context, &numbers(blocks.stored_values(), from)).expect("memory");
    let b = Buffer::from_slice(&context, &numbers(SIZE * SIZE, from)).expect("memory");
    let mut c = Buffer::<T>::zeros(&context, SIZE * SIZE).expect("memory");
    // SAFETY: the default stream is always there.
    let wait = || unsafe { context.wait_for_stream(ptr::null_mut()) }.expect("the device works");
    let variant = plan.info().expect("a plan has it").variant;
    let planned = Times::of(|| plan.matmul(&values, &b, &mut c).expect("it fits"), wait);
    let called = Times::of(|| context.matmul(&blocks, &problem, &values, &b, &mut c).expect("it fits"), wait);
    (variant, planned, called)
}

struct Product<B: SparseBackend> {
    a: BsrTensor<B>,
    b: Tensor<B, 2>,
}

impl<B: SparseBackend> Product<B> {
    fn new(pattern: &BsrPattern, dtype: DType) -> Self {
        let tensor = |data: TensorData| data.convert_dtype(dtype);
        let shape = [pattern.stored_blocks(), BLOCK, BLOCK];
        let values = tensor(TensorData::new(numbers(shape.iter().product(), |x| x), shape));
        let b = tensor(TensorData::new(numbers(SIZE * SIZE, |x| x), [SIZE, SIZE]));
        let device = Default::default();
        let values = Tensor::<B, 3>::from_data(values, (&device, dtype));
        Self { a: BsrTensor::from_pattern(pattern.clone(), values), b: Tensor::from_data(b, (&device, dtype)) }
    }

    fn wait() {
        B::sync(&Default::default()).expect("the device works");
    }

    fn times(&self, order: CudaOrder) -> Times {
        order.set();
        let times = Times::of(|| drop(self.a.matmul(self.b.clone())), Self::wait);
        CudaOrder::Device.set();
        times
    }

    fn dense(&self) -> Times {
        let whole = self.a.to_dense();
        Times::of(|| drop(whole.clone().matmul(self.b.clone())), Self::wait)
    }
}

/// What the steps of a product take by themselves, in Burn without Fusion; `kernel` is how long the product runs.
fn parts(product: &Product<Plain>, kernel: f64) -> String {
    let b: CubeTensor<CudaRuntime> = product.b.clone().into_primitive().tensor();
    let client = &b.client;
    let out = || {
        let shape = Shape::from([SIZE, SIZE]);
        empty_device_contiguous_dtype(client.clone(), b.device.clone(), shape, b.dtype)
    };
    let address = |t: &CubeTensor<CudaRuntime>| {
        let found = client.get_resource(t.handle.clone()).expect("memory").resource().ptr as *mut c_void;
        std::hint::black_box(found);
    };
    let idle = |seconds: f64| {
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            std::hint::spin_loop();
        }
    };
    let timed: [(&str, f64); 8] = [
        ("thread", median(|| seconds(|| client.exclusive(|| ()).expect("a thread")))),
        ("thread_after_kernel", {
            median(|| {
                idle(kernel);
                seconds(|| client.exclusive(|| ()).expect("a thread"))
            })
        }),
        ("allocate", median(|| seconds(|| drop(out())))),
        ("allocate_and_address", median(|| seconds(|| address(&out())))),
        ("address", median(|| seconds(|| address(&b)))),
        ("flush", median(|| seconds(|| client.flush().expect("the device works")))),
        ("wait", median(|| seconds(Product::<Plain>::wait))),
        ("smallest_operation_and_wait", {
            let small = Tensor::<Plain, 1>::ones([32], &Default::default());
            median(|| {
                seconds(|| {
                    let _more = small.clone() + 1.0;
                    Product::<Plain>::wait();
                })
            })
        }),
    ];
    let timed: Vec<String> = timed.iter().map(|(name, time)| format!("\"{name}\":{time:.9}")).collect();
    format!("{{{}}}", timed.join(","))
}

fn row<T: Element>(name: &str, dtype: DType, from: fn(f32) -> T) -> String {
    let pattern = BsrPattern::random([SIZE, SIZE], BLOCK, DENSITY, 1);
    let (variant, plan, call) = library::<T>(&pattern, from);
    let (plain, fused) = (Product::<Plain>::new(&pattern, dtype), Product::<Cuda>::new(&pattern, dtype));
    let burn = [CudaOrder::Device, CudaOrder::Host].map(|order| [plain.times(order), fused.times(order)]);
    let [[device, device_fused], [host, host_fused]] = &burn;
    let dense = plain.dense();
    format!(
        "{{\"problem\":{{\"op\":\"matmul\",\"m\":{SIZE},\"n\":{SIZE},\"k\":{SIZE},\"block\":[{BLOCK},{BLOCK}],\
         \"dtype\":\"{name}\",\"density\":{}}},\"variant\":\"{variant}\",\"seconds\":{:.9},\"c_plan\":{},\"c_call\":{},\
         \"burn\":{},\"burn_fusion\":{},\"burn_host_order\":{},\"burn_fusion_host_order\":{},\"burn_dense\":{},\
         \"parts\":{},\"over_c_plan\":{{\"one\":{:.4},\"queued\":{:.4}}},\"synchronisation_seconds\":{:.9},\
         \"ratios\":{{\"dense_burn\":{:.3}}}}}",
        pattern.density(),
        device.one,
        plan.json(),
        call.json(),
        device.json(),
        device_fused.json(),
        host.json(),
        host_fused.json(),
        dense.json(),
        parts(&plain, plan.queued),
        device.one / plan.one,
        device.queued / plan.queued,
        host.one - plan.queued,
        dense.one / device.one
    )
}

fn main() {
    // `cargo bench` and `cargo test` pass words of their own; there are none to pass here.
    let device = Context::builder().device("cuda").build().expect("a GPU").device();
    println!(
        "{{\"device\":\"{}\",\"rows\":[{},{}]}}",
        device.name,
        row::<f32>("f32", DType::F32, |x| x),
        row::<f16>("f16", DType::F16, f16::from_f32)
    );
}
