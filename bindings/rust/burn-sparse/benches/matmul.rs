//! The speed of a product through Burn, against the C library's own plan and against Burn's dense product.
//!
//! cargo bench -p burn-sparse --features threads
//!
//! Criterion times one after the other; then all of them take turns, since clocks and neighbours change meanwhile, and the medians
//! come as one JSON object on standard output, which `bench/rust_check cpu` makes a record of.

use burn::backend::{Flex, NdArray};
use burn::tensor::{Distribution, Tensor};
use burn_sparse::{BsrPattern, BsrTensor, SparseBackend};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparse_autotune::{Context, Pattern, Plan, Problem};
use std::hint::black_box;
use std::time::Instant;

const SIZE: usize = 2048;
const BLOCK: usize = 64;
const DENSITY: f64 = 0.125;
const ROUNDS: usize = 41;

fn pattern() -> BsrPattern {
    BsrPattern::random([SIZE, SIZE], BLOCK, DENSITY, 1)
}

/// What is timed: its name, and a call.
type Call = (String, Box<dyn FnMut()>);

fn calls_of<B: SparseBackend>(name: &str) -> Vec<Call> {
    let (pattern, device) = (pattern(), Default::default());
    let shape = [pattern.stored_blocks(), BLOCK, BLOCK];
    let a = BsrTensor::<B>::from_pattern(pattern, Tensor::<B, 3>::random(shape, Distribution::Default, &device));
    let b = Tensor::<B, 2>::random([SIZE, SIZE], Distribution::Default, &device);
    let (whole, right) = (a.to_dense(), b.clone());
    let sparse = move || drop(black_box(a.matmul(black_box(b.clone()))));
    let dense = move || drop(black_box(whole.clone().matmul(black_box(right.clone()))));
    vec![(format!("{name}_sparse"), Box::new(sparse)), (format!("{name}_dense"), Box::new(dense))]
}

/// The C library's plan alone, and its variant.
fn library() -> (Call, String) {
    let (context, pattern) = (Context::cpu().unwrap(), pattern());
    let blocks = Pattern::new(&context, [SIZE; 2], [BLOCK; 2], pattern.row_ptr(), pattern.col_indices()).unwrap();
    let numbers = |len| {
        (0..len).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 8 & 0xffff) as f32 / 65536.0).collect::<Vec<_>>()
    };
    let (values, b, mut c) = (numbers(blocks.stored_values()), numbers(SIZE * SIZE), vec![0f32; SIZE * SIZE]);
    let mut plan = Plan::new(&context, &blocks, &Problem::matmul::<f32>(SIZE).alignment([16; 3])).unwrap();
    let variant = plan.info().unwrap().variant.to_string();
    let call = move || plan.matmul(&values, black_box(&b), &mut c).unwrap();
    (("library_plan".into(), Box::new(call)), variant)
}

/// Medians of times that were taken in turns.
fn in_turns(calls: &mut [Call]) -> Vec<f64> {
    let mut times = vec![Vec::new(); calls.len()];
    for _ in 0..ROUNDS {
        for (at, (_, call)) in calls.iter_mut().enumerate() {
            call(); // thread pools wake up
            let start = Instant::now();
            call();
            times[at].push(start.elapsed().as_secs_f64());
        }
    }
    let middle = |mut t: Vec<f64>| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    };
    times.into_iter().map(middle).collect()
}

fn products(criterion: &mut Criterion) {
    let (plan, variant) = library();
    let mut calls = vec![plan];
    calls.extend(calls_of::<Flex>("flex"));
    calls.extend(calls_of::<NdArray>("ndarray"));
    let mut group = criterion.benchmark_group("matmul_2048_block_64_density_0.125");
    group.throughput(Throughput::Elements((2.0 * DENSITY * (SIZE * SIZE * SIZE) as f64) as u64));
    group.sample_size(30);
    for (name, call) in &mut calls {
        group.bench_function(name.as_str(), |bench| bench.iter(&mut *call));
    }
    group.finish();
    let medians = in_turns(&mut calls);
    let fields: Vec<String> = calls.iter().zip(medians).map(|((name, _), t)| format!("\"{name}\":{t:.9}")).collect();
    println!(
        "{{\"size\":{SIZE},\"block\":{BLOCK},\"density\":{DENSITY},\"variant\":\"{variant}\",{}}}",
        fields.join(",")
    );
}

criterion_group!(benches, products);
criterion_main!(benches);
