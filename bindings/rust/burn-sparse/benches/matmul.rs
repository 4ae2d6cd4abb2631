//! The speed of a product through Burn, against the C library's own plan and against Burn's dense product.
//!
//! cargo bench -p burn-sparse

use burn::backend::{Flex, NdArray};
use burn::tensor::{Distribution, Tensor};
use burn_sparse::{BsrPattern, BsrTensor, SparseBackend};
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use sparse_autotune::{Context, Pattern, Plan, Problem};
use std::hint::black_box;

const SIZE: usize = 2048;
const BLOCK: usize = 64;
const DENSITY: f64 = 0.125;

fn pattern() -> BsrPattern {
    BsrPattern::random([SIZE, SIZE], BLOCK, DENSITY, 1)
}

fn backend<B: SparseBackend>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str) {
    let (pattern, device) = (pattern(), Default::default());
    let shape = [pattern.stored_blocks(), BLOCK, BLOCK];
    let a = BsrTensor::<B>::from_pattern(pattern, Tensor::<B, 3>::random(shape, Distribution::Default, &device));
    let b = Tensor::<B, 2>::random([SIZE, SIZE], Distribution::Default, &device);
    group.bench_function(format!("{name}_sparse"), |bench| bench.iter(|| a.matmul(black_box(b.clone()))));
    let whole = a.to_dense();
    group.bench_function(format!("{name}_dense"), |bench| bench.iter(|| whole.clone().matmul(black_box(b.clone()))));
}

fn library(group: &mut BenchmarkGroup<'_, WallTime>) {
    let (context, pattern) = (Context::cpu().unwrap(), pattern());
    let blocks = Pattern::new(&context, [SIZE; 2], [BLOCK; 2], pattern.row_ptr(), pattern.col_indices()).unwrap();
    let values = vec![0.5f32; blocks.stored_values()];
    let (b, mut c) = (vec![0.5f32; SIZE * SIZE], vec![0f32; SIZE * SIZE]);
    let mut plan = Plan::new(&context, &blocks, &Problem::matmul::<f32>(SIZE).alignment([16; 3])).unwrap();
    println!("the plan's variant: {}", plan.info().unwrap().variant);
    group.bench_function("library_plan", |bench| bench.iter(|| plan.matmul(&values, black_box(&b), &mut c).unwrap()));
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul_2048_block_64_density_0.125");
    group.throughput(Throughput::Elements((2.0 * DENSITY * (SIZE * SIZE * SIZE) as f64) as u64));
    group.sample_size(30);
    library(&mut group);
    backend::<Flex>(&mut group, "flex");
    backend::<NdArray>(&mut group, "ndarray");
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
