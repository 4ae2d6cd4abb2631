//! Gradients against those that Burn finds for the dense product.

mod common;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_sparse::backend::fallback;
use burn_sparse::{Activation, BsrPattern, BsrTensor, MatmulSpec, Side, SparseBackend};
use common::{Random, assert_close, assert_close_by, setup};
use proptest::prelude::*;

/// The loss weighs every element of the product differently.
fn check<B: SparseBackend + AutodiffBackend>(
    shape: [usize; 2],
    block: [usize; 2],
    n: usize,
    spec: MatmulSpec,
    seed: u64,
) {
    setup();
    let mut random = Random(seed);
    let a = random.matrix::<B>(shape, block, DType::F32);
    let (rows, depth) = if spec.transpose { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
    let sides = |other: usize| if spec.side == Side::Left { [2, other, n] } else { [2, n, other] };
    let weigh = random.tensor::<B, 3>(sides(rows), DType::F32);

    let values = a.values().require_grad();
    let dense = random.tensor::<B, 3>(sides(depth), DType::F32).require_grad();
    let bias = random.tensor::<B, 1>([rows], DType::F32).require_grad();
    let sparse = BsrTensor::from_pattern(a.pattern().clone(), values.clone());
    let product = sparse.product(dense.clone(), Some(bias.clone()), spec);
    let grads = (product.clone() * weigh.clone()).sum().backward();
    let found = (values.grad(&grads).unwrap(), dense.grad(&grads).unwrap(), bias.grad(&grads).unwrap());

    // The same through a dense matrix: padding is cut off on the way.
    let whole = a.to_dense().detach().require_grad();
    let operator = if spec.transpose { whole.clone().transpose() } else { whole.clone() };
    let (x, b) = (dense.clone().detach().require_grad(), bias.clone().detach().require_grad());
    let z = match spec.side {
        Side::Left => operator.unsqueeze::<3>().matmul(x.clone()) * spec.alpha + b.clone().reshape([1, rows, 1]),
        Side::Right => {
            x.clone().matmul(operator.transpose().unsqueeze::<3>()) * spec.alpha + b.clone().reshape([1, 1, rows])
        }
    };
    let z = match spec.activation {
        Activation::None => z,
        Activation::Relu => burn::tensor::activation::relu(z),
        Activation::Gelu => burn::tensor::activation::gelu(z),
        _ => burn::tensor::activation::silu(z),
    };
    assert_close(product.inner(), z.clone().inner());
    let grads = (z * weigh).sum().backward();
    let expected = BsrTensor::from_dense_with(whole.grad(&grads).unwrap(), a.pattern().clone());
    assert_close(found.0, expected.values());
    assert_close(found.1, x.grad(&grads).unwrap());
    assert_close(found.2, b.grad(&grads).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn gradients_are_those_of_the_dense_product(
        rows in 1usize..20, cols in 1usize..20, block in 1usize..6, n in 1usize..8, transpose: bool, right: bool,
        activation in 0usize..4, seed in any::<u64>(), backend in 0usize..3,
    ) {
        let activation = [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu][activation];
        let side = if right { Side::Right } else { Side::Left };
        let spec = MatmulSpec { transpose, side, alpha: 0.5, activation, ..MatmulSpec::default() };
        match backend {
            0 => check::<Autodiff<NdArray>>([rows, cols], [block, block + 1], n, spec, seed),
            1 => check::<Autodiff<Flex>>([rows, cols], [block + 1, block], n, spec, seed),
            _ => check::<Autodiff<NdArray, BalancedCheckpointing>>([rows, cols], [block, block], n, spec, seed),
        }
    }
}

/// The gradients to values and bias, of numbers that every dtype holds exactly.
fn of_a_batch(
    shape: [usize; 2],
    block: [usize; 2],
    [batch, n]: [usize; 2],
    spec: MatmulSpec,
    dtype: DType,
    seed: u64,
) -> (Tensor<Flex, 3>, Tensor<Flex, 1>) {
    type B = Autodiff<Flex>;
    setup();
    let mut random = Random(seed);
    let a = random.matrix::<B>(shape, block, dtype).require_grad();
    let [depth, rows] = if spec.transpose { shape } else { [shape[1], shape[0]] };
    let sides = |other: usize| if spec.side == Side::Left { [batch, other, n] } else { [batch, n, other] };
    let dense = random.tensor::<B, 3>(sides(depth), dtype);
    let weigh = random.tensor::<B, 3>(sides(rows), dtype);
    let bias = Tensor::<B, 1>::zeros([rows], (&Default::default(), dtype)).require_grad();
    let grads = (a.product(dense, Some(bias.clone()), spec) * weigh).sum().backward();
    (a.values().grad(&grads).unwrap(), bias.grad(&grads).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// However long the batch: f32 holds these sums exactly, and 16 bits come from one rounding of them.
    #[test]
    fn sixteen_bit_gradients_of_a_batch_are_rounded_once(
        rows in 1usize..12, cols in 1usize..12, block in 1usize..5, batch in 1usize..200, n in 1usize..4, transpose: bool,
        right: bool, bf16: bool, seed in any::<u64>(),
    ) {
        let side = if right { Side::Right } else { Side::Left };
        let spec = MatmulSpec { transpose, side, alpha: 0.5, ..MatmulSpec::default() };
        let of = |dtype| of_a_batch([rows, cols], [block, block + 1], [batch, n], spec, dtype, seed);
        let (found, expected) = (of(if bf16 { DType::BF16 } else { DType::F16 }), of(DType::F32));
        assert_close_by(found.0, expected.0.into_data(), 1.0);
        assert_close_by(found.1, expected.1.into_data(), 1.0);
    }
}

/// Ones, added one at a time, never get beyond 256 in bf16, or 2048 in f16.
#[test]
fn sixteen_bit_gradients_of_a_long_batch_grow() {
    setup();
    let pattern = BsrPattern::dense([8, 8], 8);
    for dtype in [DType::BF16, DType::F16] {
        let options = (&Default::default(), dtype);
        let values = Tensor::<Autodiff<Flex>, 3>::ones([1, 8, 8], options).require_grad();
        let a = BsrTensor::from_pattern(pattern.clone(), values.clone());
        let grads = a.matmul(Tensor::<Autodiff<Flex>, 3>::ones([4096, 8, 1], options)).sum().backward();
        let ones = || Tensor::<Flex, 3>::ones([4096, 8, 1], options).into_primitive().tensor();
        let by_burn = fallback::sampled::<Flex>(&pattern, ones(), ones(), 1.0);
        let by_burn = Tensor::<Flex, 3>::from_primitive(TensorPrimitive::Float(by_burn));
        for found in [values.grad(&grads).unwrap(), by_burn] {
            assert_close_by(found, Tensor::<Flex, 3>::full([1, 8, 8], 4096.0, options).into_data(), 0.0);
        }
    }
}

#[test]
fn only_what_asks_for_a_gradient_gets_one() {
    setup();
    type B = Autodiff<Flex>;
    let mut random = Random(1);
    let a = random.matrix::<B>([6, 8], [2, 4], DType::F32);
    let dense = random.tensor::<B, 2>([8, 3], DType::F32).require_grad();
    let grads = a.matmul(dense.clone()).sum().backward();
    assert!(a.values().grad(&grads).is_none());
    assert_close(
        dense.grad(&grads).unwrap(),
        a.to_dense().inner().transpose().matmul(Tensor::ones([6, 3], &Default::default())),
    );
    let untracked = a.matmul(dense.detach());
    assert!(!untracked.is_require_grad());
}

/// Values of the blocks' own shape are taken as they are, so that every backward pass reaches them.
#[test]
fn values_get_a_gradient_in_every_backward_pass() {
    setup();
    type B = Autodiff<NdArray>;
    let (pattern, mut random) = (BsrPattern::dense([6, 8], [3, 4]), Random(4));
    let values = random.tensor::<B, 3>([4, 3, 4], DType::F32).require_grad();
    let other = random.matrix::<B>([6, 8], [3, 4], DType::F32);
    let made = [
        BsrTensor::new(pattern.row_ptr(), pattern.col_indices(), values.clone(), [6, 8], [3, 4]),
        BsrTensor::from_pattern(pattern.clone(), values.clone()),
        BsrTensor::from_pattern(pattern, other.to_dense().reshape([4, 3, 4])).with_values(values.clone()),
    ];
    for a in made.into_iter().map(BsrTensor::require_grad) {
        for _ in 0..2 {
            let grads = a.matmul(random.tensor::<B, 2>([8, 3], DType::F32)).sum().backward();
            let found = values.grad(&grads).expect("a gradient of what came in");
            assert_close(found, a.values().grad(&grads).expect("and of what it became"));
        }
    }
}

#[test]
fn gradients_have_gradients() {
    setup();
    type B = Autodiff<Autodiff<NdArray>>;
    let mut random = Random(2);
    // f(v, x) = sum((A x)^2): df/dx = 2 A^T A x, and the sum of that has a gradient to A's values.
    let a = random.matrix::<B>([6, 6], [3, 3], DType::F32);
    let second =
        |a: Tensor<B, 2>, product: &dyn Fn(Tensor<B, 2>) -> Tensor<B, 2>, watched: Tensor<Autodiff<NdArray>, 3>| {
            let _ = a;
            let x = Random(3).tensor::<B, 2>([6, 2], DType::F32).require_grad();
            let y = product(x.clone());
            let grads = (y.clone() * y).sum().backward();
            let first = x.grad(&grads).unwrap().sum().backward();
            watched.grad(&first)
        };
    let inner = a.values().inner().require_grad();
    let values = Tensor::<B, 3>::from_inner(inner.clone()).require_grad();
    let sparse = BsrTensor::from_pattern(a.pattern().clone(), values.clone());
    let found = second(a.to_dense(), &|x| sparse.matmul(x), inner.clone()).expect("a gradient");
    let inner = a.values().inner().require_grad();
    let values = Tensor::<B, 3>::from_inner(inner.clone()).require_grad();
    let whole = BsrTensor::from_pattern(a.pattern().clone(), values).to_dense();
    let expected = second(a.to_dense(), &|x| whole.clone().matmul(x), inner).expect("a gradient");
    assert_close(found, expected);
}

fn an_empty_batch_has_gradients_of_zero<B: SparseBackend + AutodiffBackend>() {
    setup();
    let mut random = Random(5);
    let a = random.matrix::<B>([10, 6], [4, 4], DType::F32).require_grad();
    for side in [Side::Left, Side::Right] {
        let sides = if side == Side::Left { [0, 6, 5] } else { [0, 5, 6] };
        let dense = Tensor::<B, 3>::empty(sides, &Default::default()).require_grad();
        let spec = MatmulSpec { side, ..MatmulSpec::default() };
        let grads = a.product(dense.clone(), None, spec).sum().backward();
        assert_close(a.values().grad(&grads).unwrap(), a.values().inner().zeros_like());
        assert_eq!(dense.grad(&grads).unwrap().dims(), sides);
    }
}

#[test]
fn ndarray_takes_an_empty_batch() {
    an_empty_batch_has_gradients_of_zero::<Autodiff<NdArray>>();
}

#[test]
fn flex_takes_an_empty_batch() {
    an_empty_batch_has_gradients_of_zero::<Autodiff<Flex>>();
}
