//! Products against Burn's dense ones, over shapes, blocks, dtypes and patterns, on every CPU backend.

mod common;

use burn::backend::{Flex, NdArray};
use burn::tensor::{DType, Tensor};
use burn_sparse::backend::fallback;
use burn_sparse::{
    Activation, BsrGemm, BsrGemmConfig, BsrPattern, BsrTensor, Effort, Epilogue, MatmulSpec, Side, SparseBackend,
    Tuning,
};
use common::{Random, assert_close, setup};
use proptest::prelude::*;

/// Burn's dense product; where a side is 0, what that comes to.
fn dense<B: SparseBackend>(a: Tensor<B, 2>, b: Tensor<B, 2>) -> Tensor<B, 2> {
    let ([m, k], [_, n]) = (a.dims(), b.dims());
    if m * n * k == 0 { Tensor::zeros([m, n], (&a.device(), a.dtype())) } else { a.matmul(b) }
}

/// A side of the matrix, and that of its blocks: small and odd ones, and those that kernels are made for.
fn sides() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![3 => (0usize..30, 1usize..8), 1 => (0usize..160, prop::sample::select(vec![16, 32, 64]))]
}

/// Sides, columns and batch.
fn sizes() -> impl Strategy<Value = ([(usize, usize); 2], usize, usize)> {
    ([sides(), sides()], prop_oneof![4 => 0usize..12, 1 => 12usize..80], 0usize..4)
}

fn check<B: SparseBackend>(sizes: ([(usize, usize); 2], usize, usize), dtype: DType, seed: u64) {
    setup();
    let ([(rows, block_rows), (cols, block_cols)], n, batch) = sizes;
    let (shape, block) = ([rows, cols], [block_rows, block_cols]);
    let mut random = Random(seed);
    let a = random.matrix::<B>(shape, block, dtype);
    let [m, k] = shape;
    let whole = a.to_dense();
    assert_eq!(whole.dims(), shape);

    let b = random.tensor::<B, 2>([k, n], dtype);
    assert_close(a.matmul(b.clone()), dense(whole.clone(), b));
    // The transpose, and the other side.
    let b = random.tensor::<B, 2>([m, n], dtype);
    let transposed = a.clone().transpose();
    assert_eq!(transposed.shape(), [k, m]);
    assert_close(transposed.matmul(b.clone()), dense(whole.clone().transpose(), b));
    let x = random.tensor::<B, 2>([n, m], dtype);
    assert_close(a.matmul_right(x.clone()), dense(x.clone(), whole.clone()));
    // A dense operand that is a view: transposed memory, which is not copied.
    assert_close(transposed.matmul(x.clone().transpose()), dense(whole.clone().transpose(), x.transpose()));
    // The sampled product, summed over a batch.
    if m * k > 0 {
        let (left, right) = (random.tensor::<B, 3>([batch, m, n], dtype), random.tensor::<B, 3>([batch, k, n], dtype));
        let full = if batch * n > 0 {
            left.clone().matmul(right.clone().swap_dims(1, 2)).sum_dim(0).squeeze_dim::<2>(0)
        } else {
            Tensor::zeros([m, k], (&left.device(), dtype))
        };
        let expected = BsrTensor::from_dense_with(full, a.pattern().clone());
        let float = |t: Tensor<B, 3>| t.into_primitive().tensor();
        let found = B::bsr_sampled(a.pattern(), float(left.clone()), float(right.clone()), 1.0, Effort::Default);
        let found: Tensor<B, 3> = Tensor::from_primitive(burn::tensor::TensorPrimitive::Float(found));
        assert_close(found, expected.values());
        let found = fallback::sampled::<B>(a.pattern(), float(left), float(right), 1.0);
        assert_close(Tensor::from_primitive(burn::tensor::TensorPrimitive::Float(found)), expected.values());
    }
    // Everything at once, and what Burn's own operations make of it.
    for (side, transpose) in [(Side::Left, false), (Side::Left, true), (Side::Right, false), (Side::Right, true)] {
        let (rows, depth) = if transpose { (k, m) } else { (m, k) };
        let spec = MatmulSpec { side, transpose, alpha: 0.5, activation: Activation::Gelu, ..MatmulSpec::default() };
        let operand =
            random.tensor::<B, 3>(if side == Side::Left { [batch, depth, n] } else { [batch, n, depth] }, dtype);
        let bias = random.tensor::<B, 1>([rows], dtype);
        let found = a.product(operand.clone(), Some(bias.clone()), spec);
        let other = fallback::matmul::<B>(
            a.pattern(),
            a.values().into_primitive().tensor(),
            operand.into_primitive().tensor(),
            Some(bias.into_primitive().tensor()),
            spec,
        );
        assert_close(found, Tensor::from_primitive(burn::tensor::TensorPrimitive::Float(other)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn ndarray_multiplies_as_dense_does(
        sizes in sizes(), seed in any::<u64>(), double: bool,
    ) {
        if double {
            check::<NdArray<f64>>(sizes, DType::F64, seed);
        } else {
            check::<NdArray>(sizes, DType::F32, seed);
        }
    }

    #[test]
    fn flex_multiplies_as_dense_does(
        sizes in sizes(), seed in any::<u64>(), dtype in 0usize..4,
    ) {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][dtype];
        check::<Flex>(sizes, dtype, seed);
    }

    #[test]
    fn a_dense_matrix_comes_back_as_it_was(
        rows in 0usize..20, cols in 0usize..20, block_rows in 1usize..8, block_cols in 1usize..8, seed in any::<u64>(),
    ) {
        setup();
        let mut random = Random(seed);
        let values = (0..rows * cols).map(|_| if random.below(5) == 0 { random.value() } else { 0.0 }).collect();
        let dense = common::from_values::<NdArray, 2>(values, [rows, cols], DType::F32);
        let a = BsrTensor::from_dense(dense.clone(), [block_rows, block_cols]);
        assert_close(a.to_dense(), dense);
    }
}

fn batches_and_vectors<B: SparseBackend>() {
    setup();
    let mut random = Random(3);
    let a = random.matrix::<B>([10, 6], [4, 4], DType::F32);
    let batch = random.tensor::<B, 4>([2, 3, 6, 5], DType::F32);
    let expected = a.to_dense().unsqueeze::<4>().matmul(batch.clone());
    assert_close(a.matmul(batch), expected);
    let rows = random.tensor::<B, 3>([2, 7, 10], DType::F32);
    assert_close(a.matmul_right(rows.clone()), rows.matmul(a.to_dense().unsqueeze::<3>()));
    let vector = random.tensor::<B, 1>([6], DType::F32);
    let expected = a.to_dense().matmul(vector.clone().reshape([6, 1])).reshape([10]);
    assert_close(a.matmul(vector), expected);
    // Views that need a copy or a careful look: one row expanded, rows upside down, a cut-out.
    let wide = random.tensor::<B, 2>([1, 5], DType::F32).expand([6, 5]);
    assert_close(a.matmul(wide.clone()), a.to_dense().matmul(wide));
    let one = random.tensor::<B, 2>([1, 1], DType::F32).expand([6, 5]);
    assert_close(a.matmul(one.clone()), a.to_dense().matmul(one));
    let flipped = random.tensor::<B, 2>([6, 5], DType::F32).flip([0, 1]);
    assert_close(a.matmul(flipped.clone()), a.to_dense().matmul(flipped));
    let cut = random.tensor::<B, 2>([9, 9], DType::F32).slice([2..8, 3..8]);
    assert_close(a.matmul(cut.clone()), a.to_dense().matmul(cut));
    // Nothing of a batch, and a batch of nothing.
    let none = Tensor::<B, 3>::empty([0, 6, 5], &Default::default());
    assert_eq!(a.matmul(none).dims(), [0, 10, 5]);
    let none = Tensor::<B, 4>::empty([2, 0, 6, 5], &Default::default());
    assert_eq!(a.matmul(none).dims(), [2, 0, 10, 5]);
    assert_eq!(a.matmul(Tensor::<B, 3>::empty([2, 6, 0], &Default::default())).dims(), [2, 10, 0]);
    // Values that are a view.
    let values = random.tensor::<B, 3>([4, 4, a.pattern().stored_blocks()], DType::F32).permute([2, 1, 0]);
    let other = a.clone().with_values(values);
    let b = random.tensor::<B, 2>([6, 3], DType::F32);
    assert_close(other.matmul(b.clone()), other.to_dense().matmul(b));
}

#[test]
fn ndarray_takes_batches_vectors_and_views() {
    batches_and_vectors::<NdArray>();
}

#[test]
fn flex_takes_batches_vectors_and_views() {
    batches_and_vectors::<Flex>();
}

#[test]
fn an_absent_block_hides_infinities() {
    setup();
    let device = Default::default();
    let a = BsrTensor::new([0, 1], [0], Tensor::<Flex, 1>::ones([4], &device), [2, 4], 2);
    let b = Tensor::<Flex, 2>::from_data([[1.0], [2.0], [f32::INFINITY], [f32::NAN]], &device);
    assert_close(a.matmul(b), Tensor::from_data([[3.0], [3.0]], &device));
}

#[test]
fn a_tuned_product_is_that_product() {
    setup();
    let mut random = Random(4);
    let a = random.matrix::<Flex>([32, 48], [16, 16], DType::F32);
    let b = random.tensor::<Flex, 2>([48, 8], DType::F32);
    let config = BsrGemmConfig::new().with_alpha(2.0).with_epilogue(Epilogue::Relu).with_tuning(Tuning::Off);
    let expected = burn::tensor::activation::relu(a.to_dense().matmul(b.clone()) * 2.0);
    assert_close(BsrGemm::auto_tuned(&a, b.clone(), &config), expected);
    let race = BsrGemm::race(&a, b, &config).unwrap().expect("the CPU has many");
    assert!(race.best.is_some() && race.results.len() > 2);
}

#[test]
fn patterns_know_what_they_are() {
    setup();
    let pattern = BsrPattern::random([100, 130], [10, 20], 0.3, 7);
    assert_eq!(pattern, BsrPattern::random([100, 130], [10, 20], 0.3, 7));
    assert_ne!(pattern, BsrPattern::random([100, 130], [10, 20], 0.3, 8));
    assert_eq!(pattern.grid(), [10, 7]);
    assert!((pattern.density() - 0.3).abs() < 0.02, "{}", pattern.density());
    assert!(pattern.row_ptr().windows(2).all(|w| w[1] > w[0]), "no row is empty");
    assert_eq!(BsrPattern::dense([5, 5], 2).stored_blocks(), 9);
}
