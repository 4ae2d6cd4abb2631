//! The same products and attention on an NVIDIA GPU, plain and under Fusion, against Burn's dense ones. Needs a device: built anywhere,
//! run by `bench/rust_check`. The device is waited for after each step, so that a failure names what it came from.
#![cfg(feature = "cuda")]

mod common;

use burn::backend::cuda::Cuda;
use burn::backend::{Autodiff, NdArray};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorPrimitive, Tolerance};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_sparse::backend::{CudaOrder, fallback};
use burn_sparse::{
    Activation, AttentionOptions, BsrGemm, BsrGemmConfig, BsrPattern, BsrTensor, Effort, MatmulSpec, Side,
    SparseBackend, SparseLinear, SparseLinearConfig, attention, attention_with_sinks,
};
use common::attention::{dense, dense_with_sinks};
use common::{Random, assert_close, assert_close_by, assert_close_to, assert_within, setup};

/// Without Fusion, whatever the features.
type Plain = CubeBackend<CudaRuntime, f32, i32, u8>;

/// The sum of |a||b| times this bounds what Burn's dense f32 product may be off by: it rounds both to TF32.
const TF32: f64 = 2.0 / 2048.0;

const SHAPES: [([usize; 2], [usize; 2], usize); 6] = [
    ([64, 96], [16, 16], 32),
    ([100, 70], [16, 32], 33),
    ([256, 128], [64, 64], 128),
    ([31, 17], [5, 3], 7),
    ([48, 48], [8, 8], 1),
    ([33, 40], [64, 64], 20),
];

/// Each of these twice.
macro_rules! on_both {
    ($($name:ident$(($($argument:expr),*))?;)*) => {
        mod plain {
            use super::*;
            $(#[test] fn $name() { super::$name::<Plain>($($($argument),*)?); })*
        }
        mod fused {
            use super::*;
            $(#[test] fn $name() { super::$name::<Cuda>($($($argument),*)?); })*
        }
    };
}

on_both! {
    products_of_f32;
    products_of_f16;
    products_of_bf16;
    sampled_products;
    a_long_batch_of_16_bits_is_summed_in_f32;
    batches_with_bias_and_activation;
    expanded_operands;
    flipped_operands;
    pitched_operands;
    batches_of_batches;
    no_blocks;
    no_elements;
    a_long_queue_keeps_its_order;
    threads_have_streams_of_their_own;
    a_layer_does_as_a_dense_one;
    a_layer_learns_as_a_dense_one;
    the_race_is_on_the_gpu;
    attention_of_f32;
    attention_of_f16;
    attention_of_bf16;
    attention_of_views;
    attention_to_nothing;
    attention_with_sinks_and_a_soft_cap;
    attention_keeps_its_order;
}

/// Waits for the device; a failure names what came just before.
#[track_caller]
fn settled<B: Backend, T>(what: &str, made: T) -> T {
    B::sync(&Default::default()).unwrap_or_else(|error| panic!("the device failed at {what}: {error:?}"));
    made
}

fn each_shape<B: SparseBackend>(dtypes: &[DType], check: impl Fn(&mut Random, BsrTensor<B>, usize, DType, &str)) {
    setup();
    for (seed, (shape, block, n)) in SHAPES.into_iter().enumerate() {
        for &dtype in dtypes {
            let name = format!("{shape:?} in {block:?}, {n} columns, {dtype:?}");
            println!("{name}");
            let mut random = Random(seed as u64);
            let a = settled::<B, _>(&format!("making a matrix: {name}"), random.matrix::<B>(shape, block, dtype));
            check(&mut random, a, n, dtype, &name);
        }
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn products<B: SparseBackend>(dtype: DType) {
    each_shape::<B>(&[dtype], |random, a, n, dtype, name| {
        let [m, k] = a.pattern().shape();
        let whole = settled::<B, _>(&format!("to_dense: {name}"), a.to_dense());
        // Something is queued just before: the product must wait for it. And something after must see the product.
        let b = random.tensor::<B, 2>([k, n], dtype) * 0.5 + 0.25;
        let found = settled::<B, _>(&format!("A*B: {name}"), a.matmul(b.clone()) * 2.0);
        assert_close(found, settled::<B, _>(&format!("Burn's A*B: {name}"), whole.clone().matmul(b) * 2.0));
        let x = random.tensor::<B, 2>([n, m], dtype);
        let found = settled::<B, _>(&format!("X*A: {name}"), a.matmul_right(x.clone()));
        assert_close(found, settled::<B, _>(&format!("Burn's X*A: {name}"), x.clone().matmul(whole.clone())));
        let found = settled::<B, _>(&format!("A^T*X^T: {name}"), a.transpose().matmul(x.clone().transpose()));
        let expected = whole.transpose().matmul(x.transpose());
        assert_close(found, settled::<B, _>(&format!("Burn's A^T*X^T: {name}"), expected));
    });
}

fn products_of_f32<B: SparseBackend>() {
    products::<B>(DType::F32);
}

fn products_of_f16<B: SparseBackend>() {
    products::<B>(DType::F16);
}

fn products_of_bf16<B: SparseBackend>() {
    products::<B>(DType::BF16);
}

fn float<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> burn::tensor::ops::FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn back<B: Backend>(tensor: burn::tensor::ops::FloatTensor<B>) -> Tensor<B, 3> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// The same numbers on the CPU. Burn's batched products with one column do not give the same twice on the GPU, so what
/// batches are compared with is computed here.
fn on_cpu<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<NdArray, D> {
    Tensor::from_data(tensor.into_data().convert::<f32>(), &Default::default())
}

fn sampled_products<B: SparseBackend>() {
    each_shape::<B>(&DTYPES, |random, a, n, dtype, name| {
        let [m, k] = a.pattern().shape();
        let (left, right) = (random.tensor::<B, 3>([2, m, n], dtype), random.tensor::<B, 3>([2, k, n], dtype));
        let found = B::bsr_sampled(a.pattern(), float(left.clone()), float(right.clone()), 1.0, Effort::Default);
        let found = settled::<B, _>(&format!("sampled: {name}"), back::<B>(found));
        let expected = back::<B>(fallback::sampled::<B>(a.pattern(), float(left), float(right), 1.0));
        assert_close(found, settled::<B, _>(&format!("Burn's sampled: {name}"), expected));
    });
}

/// Ones, added one at a time, never get beyond 256 in bf16, or 2048 in f16.
fn a_long_batch_of_16_bits_is_summed_in_f32<B: SparseBackend>() {
    setup();
    let pattern = BsrPattern::dense([16, 16], 16);
    for dtype in [DType::BF16, DType::F16] {
        let ones = || Tensor::<B, 3>::ones([4096, 16, 1], (&Default::default(), dtype));
        let found = B::bsr_sampled(&pattern, float(ones()), float(ones()), 1.0, Effort::Default);
        let found = settled::<B, _>(&format!("a long batch of {dtype:?}"), back::<B>(found));
        assert_eq!(found.dtype(), dtype);
        assert_close_to(found, Tensor::<NdArray, 3>::full([1, 16, 16], 4096.0, &Default::default()).into_data());
    }
}

fn batches_with_bias_and_activation<B: SparseBackend>() {
    each_shape::<B>(&DTYPES, |random, a, n, dtype, name| {
        let [m, k] = a.pattern().shape();
        for (side, transpose) in [(Side::Left, false), (Side::Left, true), (Side::Right, false), (Side::Right, true)] {
            let (rows, depth) = if transpose { (k, m) } else { (m, k) };
            let spec = MatmulSpec { side, transpose, alpha: 0.5, activation: Activation::Relu, ..Default::default() };
            let operand = random.tensor::<B, 3>(if side == Side::Left { [3, depth, n] } else { [3, n, depth] }, dtype);
            let bias = random.tensor::<B, 1>([rows], dtype);
            let name = format!("{name}, {side:?}, transpose {transpose}");
            let found = settled::<B, _>(&name, a.product(operand.clone(), Some(bias.clone()), spec));
            let (values, operand, bias) = (float(on_cpu(a.values())), float(on_cpu(operand)), float(on_cpu(bias)));
            let expected = fallback::matmul::<NdArray>(a.pattern(), values, operand, Some(bias), spec);
            assert_close_to(found, back::<NdArray>(expected).into_data());
        }
    });
}

/// One product with an operand with unusual strides.
fn with_operand<B: SparseBackend>(make: impl Fn(&mut Random) -> Tensor<B, 2>) {
    setup();
    let mut random = Random(3);
    let a = settled::<B, _>("making a matrix", random.matrix::<B>([40, 24], [8, 8], DType::F32));
    let b = settled::<B, _>("making the operand", make(&mut random));
    let found = settled::<B, _>("the product", a.matmul(b.clone()));
    let whole = settled::<B, _>("to_dense", a.to_dense());
    assert_close(found, settled::<B, _>("Burn's product", whole.matmul(b)));
}

fn expanded_operands<B: SparseBackend>() {
    with_operand::<B>(|random| random.tensor::<B, 2>([1, 5], DType::F32).expand([24, 5]));
    with_operand::<B>(|random| random.tensor::<B, 2>([24, 1], DType::F32).expand([24, 5]));
    with_operand::<B>(|random| random.tensor::<B, 2>([1, 1], DType::F32).expand([24, 5]));
}

fn flipped_operands<B: SparseBackend>() {
    with_operand::<B>(|random| random.tensor::<B, 2>([24, 5], DType::F32).flip([0, 1]));
}

fn pitched_operands<B: SparseBackend>() {
    with_operand::<B>(|random| random.tensor::<B, 2>([24, 3], DType::F32));
    with_operand::<B>(|random| random.tensor::<B, 2>([30, 37], DType::F32).slice([3..27, 5..18]));
    with_operand::<B>(|random| random.tensor::<B, 2>([37, 30], DType::F32).transpose().slice([3..27, 5..18]));
}

fn batches_of_batches<B: SparseBackend>() {
    setup();
    let mut random = Random(3);
    let a = random.matrix::<B>([40, 24], [8, 8], DType::F32);
    let batch = settled::<B, _>("making the operand", random.tensor::<B, 4>([2, 3, 24, 5], DType::F32));
    let found = settled::<B, _>("the product", a.matmul(batch.clone()));
    assert_close(found, settled::<B, _>("Burn's product", a.to_dense().unsqueeze::<4>().matmul(batch)));
}

/// Not `Tensor::zeros([0])`: for that CubeCL 0.10 launches a kernel without blocks, which CUDA refuses, and the next read of
/// anything fails.
fn no_values<B: Backend>() -> Tensor<B, 1> {
    settled::<B, _>("making an empty tensor", Tensor::empty([0], &Default::default()))
}

fn no_blocks<B: SparseBackend>() {
    setup();
    let a = BsrTensor::new([0, 0], [0i32; 0], no_values::<B>(), [4, 24], [4, 8]);
    let b = Random(3).tensor::<B, 2>([24, 3], DType::F32);
    let found = settled::<B, _>("a product without blocks", a.matmul(b.clone()));
    assert_close(found, Tensor::zeros([4, 3], &Default::default()));
    let left = Random(4).tensor::<B, 2>([4, 3], DType::F32);
    let found = B::bsr_sampled(a.pattern(), float(left), float(b), 1.0, Effort::Default);
    assert_eq!(settled::<B, _>("a sampled product without blocks", back::<B>(found)).dims(), [0, 4, 8]);
}

fn no_elements<B: SparseBackend>() {
    setup();
    let a = Random(3).matrix::<B>([40, 24], [8, 8], DType::F32);
    let b = settled::<B, _>("making an empty matrix", Tensor::<B, 2>::empty([24, 0], &Default::default()));
    assert_eq!(settled::<B, _>("a product without columns", a.matmul(b)).dims(), [40, 0]);
    let a = BsrTensor::new([0], [0i32; 0], no_values::<B>(), [0, 24], [4, 8]);
    let b = Random(3).tensor::<B, 2>([24, 3], DType::F32);
    assert_eq!(settled::<B, _>("a product without rows", a.matmul(b)).dims(), [0, 3]);
}

/// Work that takes the device long before and after each product, and nothing that the host waits for until the end.
fn a_long_queue_keeps_its_order<B: SparseBackend>() {
    setup();
    let mut random = Random(4);
    let a = random.matrix::<B>([1024, 1024], [32, 32], DType::F32);
    let first = random.tensor::<B, 2>([1024, 4096], DType::F32);
    let whole = settled::<B, _>("to_dense", a.to_dense());
    let queue = |order: CudaOrder| {
        order.set();
        let mut x = first.clone();
        for _ in 0..20 {
            x = (a.matmul(x.clone().sin()) * 0.005 + x).tanh();
        }
        x.into_data()
    };
    let (device, host) = (queue(CudaOrder::Device), queue(CudaOrder::Host));
    CudaOrder::Device.set();
    device.assert_eq(&host, true);
    let mut y = first;
    for _ in 0..20 {
        y = (whole.clone().matmul(y.clone().sin()) * 0.005 + y).tanh();
    }
    // What the dense product is off by, and each of the twenty carries on.
    device.assert_approx_eq::<f32>(&y.into_data(), burn::tensor::Tolerance::absolute(0.2));
}

fn threads_have_streams_of_their_own<B: SparseBackend>() {
    setup();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut random = Random(seed);
                let a = random.matrix::<B>([96, 64], [16, 16], DType::F32);
                for _ in 0..10 {
                    let b = random.tensor::<B, 2>([64, 24], DType::F32);
                    assert_close(a.matmul(b.clone()), a.to_dense().matmul(b));
                }
            });
        }
    });
}

type Layers<B> = (Linear<B>, SparseLinear<B>, Tensor<B, 2>);

/// A dense layer of 64 inputs, none of its weights more than 1/8, the same as a sparse one, and an input.
fn layers<B: SparseBackend>() -> Layers<Autodiff<B>> {
    setup();
    let linear = LinearConfig::new(64, 48).init(&Default::default());
    let layer = SparseLinear::from_linear(&linear, BsrPattern::dense([48, 64], [16, 16]));
    let input = Random(5).tensor([32, 64], DType::F32);
    settled::<B, _>("making layers", (linear, layer, input))
}

fn a_layer_does_as_a_dense_one<B: SparseBackend>() {
    let (linear, layer, input) = layers::<B>();
    let found = settled::<B, _>("forward", layer.forward(input.clone()));
    let expected = settled::<B, _>("Burn's forward", linear.forward(input));
    assert_within(found.inner(), expected.inner(), TF32 * 64.0 / 8.0);
    let small: SparseLinear<B> = SparseLinearConfig::new(30, 20).with_block_size([8, 8]).init(&Default::default());
    assert_eq!(small.clone().load_record(small.clone().into_record()).pattern(), small.pattern());
}

fn a_layer_learns_as_a_dense_one<B: SparseBackend>() {
    let (linear, layer, input) = layers::<B>();
    let loss = |out: Tensor<Autodiff<B>, 2>| out.powi_scalar(2).mean();
    let grads = settled::<B, _>("backward", loss(layer.forward(input.clone())).backward());
    let grads = GradientsParams::from_grads(grads, &layer);
    let layer = settled::<B, _>("a step", SgdConfig::new().init().step(0.1, layer, grads));
    let grads = settled::<B, _>("Burn's backward", loss(linear.forward(input.clone())).backward());
    let grads = GradientsParams::from_grads(grads, &linear);
    let linear = settled::<B, _>("Burn's step", SgdConfig::new().init().step(0.1, linear, grads));
    // The step adds to a weight what is off in the gradient, which is small, so that twice the bound is ample.
    let found = layer.forward(input.clone()).inner();
    assert_within(found, linear.forward(input).inner(), 2.0 * TF32 * 64.0 / 8.0);
}

fn the_race_is_on_the_gpu<B: SparseBackend>() {
    setup();
    let mut random = Random(6);
    let a = random.matrix::<B>([512, 512], [64, 64], DType::F16);
    let b = random.tensor::<B, 2>([512, 512], DType::F16);
    let race = BsrGemm::race(&a, b, &BsrGemmConfig::new()).unwrap().expect("CUDA has many");
    assert!(race.best.expect("somebody wins").variant.starts_with("cuda_"));
}

/// Batch, heads, heads of keys, queries, keys, size of a head.
const ATTENTION: [[usize; 6]; 5] = [
    [2, 4, 2, 100, 130, 64],
    [1, 2, 2, 256, 256, 128],
    [2, 8, 2, 1, 512, 64],
    [2, 3, 3, 33, 17, 24],
    [1, 2, 1, 64, 64, 96],
];

/// Dense, causal, under a window, and under masks of blocks, for all heads and for each.
fn masks(heads: usize, queries: usize, keys: usize) -> Vec<AttentionOptions> {
    let blocks = |seed| BsrPattern::random([queries, keys], [32, 32], 0.5, seed);
    let plain = AttentionOptions::default();
    vec![
        plain.clone(),
        AttentionOptions { causal: true, ..plain.clone() },
        AttentionOptions { causal: true, window: Some(40), scale: Some(0.2), ..plain.clone() },
        AttentionOptions { mask: Some(blocks(1)), ..plain.clone() },
        AttentionOptions {
            causal: true,
            mask: Some(BsrPattern::stack(&(0..heads).map(|head| blocks(head as u64)).collect::<Vec<_>>())),
            ..plain
        },
    ]
}

/// Forward and backward against dense arithmetic on the CPU.
fn attention_of<B: SparseBackend>(dtype: DType) {
    setup();
    for [batch, heads, kv_heads, queries, keys, size] in ATTENTION {
        for (number, options) in masks(heads, queries, keys).into_iter().enumerate() {
            let name =
                format!("{batch}, {heads} over {kv_heads}, {queries} to {keys}, {size}, mask {number}, {dtype:?}");
            println!("{name}");
            let mut random = Random(number as u64);
            let mut make = |heads, len| random.tensor::<Autodiff<B>, 4>([batch, heads, len, size], dtype);
            let inputs = [make(heads, queries), make(kv_heads, keys), make(kv_heads, keys)];
            let weigh = make(heads, queries);
            let cpu =
                |tensor: &Tensor<Autodiff<B>, 4>| Tensor::<Autodiff<NdArray>, 4>::from_inner(on_cpu(tensor.clone()));
            let [x, y, z] = inputs.each_ref().map(|tensor| cpu(tensor).require_grad());
            let expected = dense(x.clone(), y.clone(), z.clone(), &options);
            let slopes = (expected.clone() * cpu(&weigh)).sum().backward();

            let [q, k, v] = inputs.map(Tensor::require_grad);
            let out = settled::<B, _>(&name, attention(q.clone(), k.clone(), v.clone(), &options));
            assert_close_to(out.clone(), expected.into_data());
            let grads = settled::<B, _>(&format!("backward: {name}"), (out * weigh).sum().backward());
            for (tensor, slope) in [q, k, v].into_iter().zip([x, y, z]) {
                let expected = slope.grad(&slopes).expect("a gradient").into_data();
                assert_close_by(tensor.grad(&grads).expect("a gradient"), expected, 16.0);
            }
        }
    }
}

fn attention_of_f32<B: SparseBackend>() {
    attention_of::<B>(DType::F32);
}

fn attention_of_f16<B: SparseBackend>() {
    attention_of::<B>(DType::F16);
}

fn attention_of_bf16<B: SparseBackend>() {
    attention_of::<B>(DType::BF16);
}

/// Heads behind rows, packed Q, K and V, and views that need a copy.
fn attention_of_views<B: SparseBackend>() {
    setup();
    let mut random = Random(7);
    let options = AttentionOptions { causal: true, ..Default::default() };
    let packed = random.tensor::<B, 5>([2, 48, 3, 4, 64], DType::F16);
    let [q, k, v] = [0, 1, 2].map(|at| packed.clone().narrow(2, at, 1).squeeze_dim::<4>(2).swap_dims(1, 2));
    let flipped = q.clone().flip([2]);
    let one = random.tensor::<B, 4>([2, 1, 48, 64], DType::F16).expand([2, 4, 48, 64]);
    for q in [q, flipped, one] {
        let found = settled::<B, _>("attention", attention(q.clone(), k.clone(), v.clone(), &options));
        let expected = dense(on_cpu(q), on_cpu(k.clone()), on_cpu(v.clone()), &options);
        assert_close_to(found, expected.into_data());
    }
}

fn attention_to_nothing<B: SparseBackend>() {
    setup();
    let make = |len| Tensor::<B, 4>::empty([2, 2, len, 64], &Default::default());
    let options = AttentionOptions::default();
    let found = settled::<B, _>("attention without keys", attention(make(5), make(0), make(0), &options));
    assert_close(found, Tensor::zeros([2, 2, 5, 64], &Default::default()));
    let found = settled::<B, _>("attention without queries", attention(make(0), make(5), make(5), &options));
    assert_eq!(found.dims(), [2, 2, 0, 64]);
    let mask = Some(BsrPattern::from_mask([5, 5], 2, |_, _| false));
    let v = Random(8).tensor::<B, 4>([2, 2, 5, 64], DType::F32);
    let hidden = AttentionOptions { mask, ..options };
    let found = settled::<B, _>("attention without blocks", attention(v.clone(), v.clone(), v, &hidden));
    assert_close(found, Tensor::zeros([2, 2, 5, 64], &Default::default()));
}

/// Values of another size too; every call but the first takes the plan that was kept.
fn attention_with_sinks_and_a_soft_cap<B: SparseBackend>() {
    setup();
    let options = AttentionOptions { causal: true, softcap: Some(3.0), ..Default::default() };
    for (dtype, seed) in [(DType::F32, 12), (DType::F16, 13), (DType::BF16, 14), (DType::F16, 15), (DType::F32, 16)] {
        let mut random = Random(seed);
        let mut make = |heads, len, size| random.tensor::<Autodiff<B>, 4>([2, heads, len, size], dtype);
        let inputs = [make(4, 33, 64), make(2, 47, 64), make(2, 47, 40)];
        let weigh = make(4, 33, 40);
        let sinks = random.tensor::<Autodiff<B>, 1>([4], DType::F32);
        let cpu = |tensor: &Tensor<Autodiff<B>, 4>| Tensor::<Autodiff<NdArray>, 4>::from_inner(on_cpu(tensor.clone()));
        let [x, y, z] = inputs.each_ref().map(|tensor| cpu(tensor).require_grad());
        let s = Tensor::<Autodiff<NdArray>, 1>::from_inner(on_cpu(sinks.clone())).require_grad();
        let expected = dense_with_sinks(x.clone(), y.clone(), z.clone(), Some(s.clone()), &options);
        let slopes = (expected.clone() * cpu(&weigh)).sum().backward();

        let [q, k, v] = inputs.map(Tensor::require_grad);
        let sinks = sinks.require_grad();
        let out = attention_with_sinks(q.clone(), k.clone(), v.clone(), sinks.clone(), &options);
        let out = settled::<B, _>("sinks", out);
        assert_close_to(out.clone(), expected.into_data());
        let grads = settled::<B, _>("backward of sinks", (out * weigh).sum().backward());
        for (tensor, slope) in [q, k, v].into_iter().zip([x, y, z]) {
            let expected = slope.grad(&slopes).expect("a gradient").into_data();
            assert_close_by(tensor.grad(&grads).expect("a gradient"), expected, 16.0);
        }
        let found = sinks.grad(&grads).expect("a gradient").into_data();
        let expected = s.grad(&slopes).expect("a gradient").into_data();
        // A sum over 66 queries of what 40 products come to, of an output that is rounded to the dtype.
        let unit = if dtype == DType::F32 { 2f64.powi(-24) } else { 2f64.powi(-8) };
        expected.assert_approx_eq::<f32>(&found, Tolerance::absolute(1e-3 + unit * 66.0));
    }
}

/// Layer after layer, each of which needs the one before, and nothing that the host waits for until the end.
fn attention_keeps_its_order<B: SparseBackend>() {
    setup();
    fn layers<B: Backend>(
        attend: impl Fn([Tensor<B, 4>; 3]) -> Tensor<B, 4>,
        [x, k, v]: [Tensor<B, 4>; 3],
    ) -> Tensor<B, 4> {
        (0..20).fold(x, |x, _| attend([x.clone() * 2.0, k.clone(), v.clone()]) + x * 0.5)
    }
    let options = AttentionOptions::default();
    let inputs = [9, 10, 11].map(|seed| Random(seed).tensor::<B, 4>([1, 2, 64, 64], DType::F32));
    let expected = layers(|[q, k, v]| dense(q, k, v, &options), inputs.clone().map(on_cpu));
    assert_close_to(layers(|[q, k, v]| attention(q, k, v, &options), inputs), expected.into_data());
}
