//! The same products on an NVIDIA GPU, plain and under Fusion, against Burn's dense ones. Needs a device: built anywhere,
//! run by `bench/rust_check`.
#![cfg(feature = "cuda")]

mod common;

use burn::backend::Autodiff;
use burn::backend::cuda::Cuda;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_sparse::backend::fallback;
use burn_sparse::{
    Activation, BsrGemm, BsrGemmConfig, BsrPattern, BsrTensor, MatmulSpec, Side, SparseBackend, SparseLinear,
    SparseLinearConfig,
};
use common::{Random, assert_close, setup};

/// Without Fusion, whatever the features.
type Plain = CubeBackend<CudaRuntime, f32, i32, u8>;

const SHAPES: [([usize; 2], [usize; 2], usize); 6] = [
    ([64, 96], [16, 16], 32),
    ([100, 70], [16, 32], 33),
    ([256, 128], [64, 64], 128),
    ([31, 17], [5, 3], 7),
    ([48, 48], [8, 8], 1),
    ([33, 40], [64, 64], 20),
];

fn products<B: SparseBackend>(dtypes: &[DType]) {
    setup();
    for (seed, (shape, block, n)) in SHAPES.into_iter().enumerate() {
        for &dtype in dtypes {
            let mut random = Random(seed as u64);
            let a = random.matrix::<B>(shape, block, dtype);
            let [m, k] = shape;
            let whole = a.to_dense();
            // Something is queued just before: the product must wait for it. And something after must see the product.
            let b = random.tensor::<B, 2>([k, n], dtype) * 0.5 + 0.25;
            assert_close(a.matmul(b.clone()) * 2.0, whole.clone().matmul(b) * 2.0);
            let x = random.tensor::<B, 2>([n, m], dtype);
            assert_close(a.matmul_right(x.clone()), x.clone().matmul(whole.clone()));
            assert_close(
                a.clone().transpose().matmul(x.clone().transpose()),
                whole.clone().transpose().matmul(x.transpose()),
            );
            let (left, right) = (random.tensor::<B, 3>([2, m, n], dtype), random.tensor::<B, 3>([2, k, n], dtype));
            let float = |t: Tensor<B, 3>| t.into_primitive().tensor();
            let back = |t| Tensor::<B, 3>::from_primitive(TensorPrimitive::Float(t));
            let found = back(B::bsr_sampled(a.pattern(), float(left.clone()), float(right.clone()), 1.0));
            assert_close(found, back(fallback::sampled::<B>(a.pattern(), float(left), float(right), 1.0)));
            for (side, transpose) in
                [(Side::Left, false), (Side::Left, true), (Side::Right, false), (Side::Right, true)]
            {
                let (rows, depth) = if transpose { (k, m) } else { (m, k) };
                let spec =
                    MatmulSpec { side, transpose, alpha: 0.5, activation: Activation::Relu, ..Default::default() };
                let operand =
                    random.tensor::<B, 3>(if side == Side::Left { [3, depth, n] } else { [3, n, depth] }, dtype);
                let bias = random.tensor::<B, 1>([rows], dtype);
                let other = fallback::matmul::<B>(
                    a.pattern(),
                    float(a.values()),
                    float(operand.clone()),
                    Some(bias.clone().into_primitive().tensor()),
                    spec,
                );
                assert_close(a.product(operand, Some(bias), spec), back(other));
            }
        }
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn plain_cuda_multiplies_as_dense_does() {
    products::<Plain>(&DTYPES);
}

#[test]
fn cuda_multiplies_as_dense_does() {
    products::<Cuda>(&DTYPES);
}

fn views<B: SparseBackend>() {
    setup();
    let mut random = Random(3);
    let a = random.matrix::<B>([40, 24], [8, 8], DType::F32);
    for b in [
        random.tensor::<B, 2>([1, 5], DType::F32).expand([24, 5]),
        random.tensor::<B, 2>([1, 1], DType::F32).expand([24, 5]),
        random.tensor::<B, 2>([24, 5], DType::F32).flip([0, 1]),
        random.tensor::<B, 2>([30, 37], DType::F32).slice([3..27, 5..18]), // rows that are pitched
        random.tensor::<B, 2>([24, 3], DType::F32),
    ] {
        assert_close(a.matmul(b.clone()), a.to_dense().matmul(b));
    }
    let batch = random.tensor::<B, 4>([2, 3, 24, 5], DType::F32);
    assert_close(a.matmul(batch.clone()), a.to_dense().unsqueeze::<4>().matmul(batch));
    let empty = BsrTensor::new([0, 0], [0i32; 0], Tensor::<B, 1>::zeros([0], &Default::default()), [4, 24], [4, 8]);
    assert_close(empty.matmul(random.tensor::<B, 2>([24, 3], DType::F32)), Tensor::zeros([4, 3], &Default::default()));
}

#[test]
fn cuda_takes_batches_and_views() {
    views::<Plain>();
    views::<Cuda>();
}

#[test]
fn a_long_queue_before_and_after_keeps_its_order() {
    setup();
    let mut random = Random(4);
    let a = random.matrix::<Cuda>([512, 512], [32, 32], DType::F32);
    let mut x = random.tensor::<Cuda, 2>([512, 256], DType::F32);
    let mut y = x.clone();
    let whole = a.to_dense();
    for _ in 0..20 {
        x = (a.matmul(x.clone()) * 0.05 + x).tanh();
        y = (whole.clone().matmul(y.clone()) * 0.05 + y).tanh();
    }
    let (found, expected) = (x.into_data(), y.into_data());
    found.assert_approx_eq::<f32>(&expected, burn::tensor::Tolerance::absolute(2e-2));
}

#[test]
fn threads_have_streams_of_their_own() {
    setup();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut random = Random(seed);
                let a = random.matrix::<Cuda>([96, 64], [16, 16], DType::F32);
                for _ in 0..10 {
                    let b = random.tensor::<Cuda, 2>([64, 24], DType::F32);
                    assert_close(a.matmul(b.clone()), a.to_dense().matmul(b));
                }
            });
        }
    });
}

#[test]
fn a_layer_learns_as_a_dense_one_does() {
    setup();
    type B = Autodiff<Cuda>;
    let device = Default::default();
    let mut random = Random(5);
    let linear: Linear<B> = LinearConfig::new(64, 48).init(&device);
    let layer = SparseLinear::from_linear(&linear, BsrPattern::dense([48, 64], [16, 16]));
    let input = random.tensor::<B, 2>([32, 64], DType::F32);
    let step = |loss: Tensor<B, 1>| loss.backward();
    let grads = GradientsParams::from_grads(step(layer.forward(input.clone()).powi_scalar(2).mean()), &layer);
    let layer = SgdConfig::new().init().step(0.1, layer, grads);
    let grads = GradientsParams::from_grads(step(linear.forward(input.clone()).powi_scalar(2).mean()), &linear);
    let linear = SgdConfig::new().init().step(0.1, linear, grads);
    assert_close(layer.forward(input.clone()).inner(), linear.forward(input).inner());
    let small: SparseLinear<B> = SparseLinearConfig::new(30, 20).with_block_size([8, 8]).init(&device);
    assert_eq!(small.clone().load_record(small.clone().into_record()).pattern(), small.pattern());
}

#[test]
fn the_race_is_on_the_gpu() {
    setup();
    let mut random = Random(6);
    let a = random.matrix::<Cuda>([512, 512], [64, 64], DType::F16);
    let b = random.tensor::<Cuda, 2>([512, 512], DType::F16);
    let race = BsrGemm::race(&a, b, &BsrGemmConfig::new()).unwrap().expect("CUDA has many");
    assert!(race.best.expect("somebody wins").variant.starts_with("cuda_"));
}
