//! The speed of a product through Burn on a GPU, against the C library's own plan, as one JSON object on standard output.
//! Built anywhere, run by `bench/rust_check`.

use burn::backend::cuda::Cuda;
use burn::tensor::{DType, Distribution, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_sparse::{BsrPattern, BsrTensor, SparseBackend};
use sparse_autotune::{Buffer, Context, Element, Pattern, Plan, Problem, f16};
use std::ptr;
use std::time::Instant;

/// Without Fusion, whatever the features.
type Plain = CubeBackend<CudaRuntime, f32, i32, u8>;

const SIZE: usize = 4096;
const BLOCK: usize = 64;
const DENSITY: f64 = 0.125;
const ROUNDS: usize = 50;

/// The median of the times of some calls, after a few that do not count.
fn median(mut call: impl FnMut()) -> f64 {
    (0..5).for_each(|_| call());
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

/// The C library's plan: one run and a wait; and a run's share of many that are queued before one wait.
fn library<T: Element>(pattern: &BsrPattern) -> (String, f64, f64) {
    let context = Context::builder().device("cuda").build().expect("a GPU");
    let blocks =
        Pattern::new(&context, [SIZE; 2], [BLOCK; 2], pattern.row_ptr(), pattern.col_indices()).expect("valid");
    let mut plan = Plan::new(&context, &blocks, &Problem::matmul::<T>(SIZE).alignment([128; 3])).expect("a plan");
    let values = Buffer::<T>::zeros(&context, blocks.stored_values()).expect("memory");
    let b = Buffer::<T>::zeros(&context, SIZE * SIZE).expect("memory");
    let mut c = Buffer::<T>::zeros(&context, SIZE * SIZE).expect("memory");
    // SAFETY: the default stream is always there.
    let wait = || unsafe { context.wait_for_stream(ptr::null_mut()) }.expect("the device works");
    let variant = plan.info().expect("a plan has it").variant;
    let waited = median(|| {
        plan.matmul(&values, &b, &mut c).expect("it fits");
        wait();
    });
    let queued = median(|| {
        (0..20).for_each(|_| plan.matmul(&values, &b, &mut c).expect("it fits"));
        wait();
    });
    (variant, waited, queued / 20.0)
}

fn burn<B: SparseBackend>(pattern: &BsrPattern, dtype: DType) -> (f64, f64, f64) {
    let device = Default::default();
    let shape = [pattern.stored_blocks(), BLOCK, BLOCK];
    let options = (&device, dtype);
    let values = Tensor::<B, 3>::random(shape, Distribution::Default, options);
    let a = BsrTensor::<B>::from_pattern(pattern.clone(), values);
    let b = Tensor::<B, 2>::random([SIZE, SIZE], Distribution::Default, options);
    let sync = || B::sync(&device).expect("the device works");
    let sparse = median(|| {
        let _product = a.matmul(b.clone());
        sync();
    });
    let whole = a.to_dense();
    let dense = median(|| {
        let _product = whole.clone().matmul(b.clone());
        sync();
    });
    (sparse, dense, median(sync))
}

fn row<T: Element>(name: &str, dtype: DType) -> String {
    let pattern = BsrPattern::random([SIZE, SIZE], BLOCK, DENSITY, 1);
    let (variant, plan, kernel) = library::<T>(&pattern);
    let (plain, dense, sync) = burn::<Plain>(&pattern, dtype);
    let (fused, _, _) = burn::<Cuda>(&pattern, dtype);
    format!(
        "{{\"problem\":{{\"op\":\"matmul\",\"m\":{SIZE},\"n\":{SIZE},\"k\":{SIZE},\"block\":[{BLOCK},{BLOCK}],\
         \"dtype\":\"{name}\",\"density\":{}}},\"variant\":\"{variant}\",\"seconds\":{plain:.9},\
         \"seconds_under_fusion\":{fused:.9},\"c_plan_and_wait_seconds\":{plan:.9},\"c_plan_queued_seconds\":{kernel:.9},\
         \"idle_sync_seconds\":{sync:.9},\"synchronisation_seconds\":{:.9},\"over_c_plan\":{:.4},\
         \"ratios\":{{\"dense_burn\":{:.3}}}}}",
        pattern.density(),
        plain - kernel,
        plain / plan,
        dense / plain
    )
}

fn main() {
    // `cargo bench` and `cargo test` pass words of their own; there are none to pass here.
    let device = Context::builder().device("cuda").build().expect("a GPU").device();
    println!(
        "{{\"device\":\"{}\",\"rows\":[{},{}]}}",
        device.name,
        row::<f32>("f32", DType::F32),
        row::<f16>("f16", DType::F16)
    );
}
