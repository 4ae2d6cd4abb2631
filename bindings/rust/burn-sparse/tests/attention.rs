//! Attention and its gradients against Burn's dense arithmetic in f64, on every CPU backend and dtype.

mod common;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_sparse::backend::{Saved, fallback};
use burn_sparse::{AttentionOptions, BsrPattern, SparseBackend, attention, try_attention};
use common::attention::dense;
use common::{Random, assert_close, assert_close_to, setup};
use proptest::prelude::*;

/// What results are compared with.
type Exact = Autodiff<NdArray<f64>>;

fn float<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn back<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn exact<B: Backend>(tensor: Tensor<B, 4>) -> Tensor<Exact, 4> {
    Tensor::from_data(tensor.into_data().convert::<f64>(), &Default::default())
}

fn check<B>(q: Tensor<B, 4>, k: Tensor<B, 4>, v: Tensor<B, 4>, options: &AttentionOptions, random: &mut Random)
where
    B: SparseBackend + AutodiffBackend,
    B::InnerBackend: SparseBackend,
{
    let weigh = random.tensor::<B, 4>(q.dims(), q.dtype());
    let [x, y, z] = [&q, &k, &v].map(|tensor| exact(tensor.clone()).require_grad());
    let expected = dense(x.clone(), y.clone(), z.clone(), options);
    let grads = (expected.clone() * exact(weigh.clone())).sum().backward();
    let expected = expected.into_data();
    let slopes = [x, y, z].map(|tensor| tensor.grad(&grads).unwrap().into_data());

    let [q, k, v] = [q, k, v].map(Tensor::require_grad);
    let out = attention(q.clone(), k.clone(), v.clone(), options);
    let grads = (out.clone() * weigh.clone()).sum().backward();
    assert_close_to(out, expected.clone());
    for (tensor, slopes) in [&q, &k, &v].into_iter().zip(&slopes) {
        assert_close_to(tensor.grad(&grads).unwrap(), slopes.clone());
    }

    // Without gradients, and in Burn's own operations.
    let [q, k, v, weigh] = [q, k, v, weigh].map(Tensor::inner);
    assert_close_to(attention(q.clone(), k.clone(), v.clone(), options), expected.clone());
    let [q, k, v, weigh] = [q, k, v, weigh].map(float);
    let (out, lse) = fallback::attention::<B::InnerBackend>(q.clone(), k.clone(), v.clone(), options, true);
    let lse = lse.expect("asked for");
    assert_close_to(back::<B::InnerBackend, 4>(out.clone()), expected);
    let (_, sums) = B::InnerBackend::bsr_attention(q.clone(), k.clone(), v.clone(), options, true);
    let sums = back::<B::InnerBackend, 3>(sums.expect("asked for"));
    assert_eq!(sums.dtype(), DType::F32);
    // What is -inf in one is so in the other.
    let finite = |lse: Tensor<B::InnerBackend, 3>| lse.clamp_min(-1e3);
    assert_close(finite(sums), finite(back(lse.clone())));
    let saved = Saved { q, k, v, o: out, lse };
    for (found, slopes) in
        fallback::attention_backward::<B::InnerBackend>(saved, weigh, options).into_iter().zip(slopes)
    {
        assert_close_to(back::<B::InnerBackend, 4>(found), slopes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn attention_is_that_of_dense_arithmetic(
        sizes in (1usize..3, 1usize..4, 1usize..4, 1usize..24, 1usize..24, 1usize..4),
        block in prop::array::uniform2(1usize..10), causal: bool, window in prop::option::of(1usize..20),
        scale in prop::option::of(prop_oneof![Just(0.0), -1.0..1.0]), masks in 0usize..3, swapped: bool,
        backend in 0usize..7, seed in any::<u64>(),
    ) {
        setup();
        let (batch, kv_heads, group, queries, keys, size) = sizes;
        let mut random = Random(seed);
        let mut mask = || BsrPattern::from_mask([queries, keys], block, |_, _| random.below(3) > 0);
        let mask = match masks {
            0 => None,
            1 => Some(mask()),
            _ => Some(BsrPattern::stack(&(0..kv_heads * group).map(|_| mask()).collect::<Vec<_>>())),
        };
        let options = AttentionOptions { causal, window, scale, mask, ..Default::default() };
        /// Tensors of a backend, as they are or as views of `[batch, length, heads, size]`.
        macro_rules! on {
            ($backend:ty, $dtype:expr) => {{
                let mut make = |heads: usize, len: usize| {
                    if swapped {
                        random.tensor::<$backend, 4>([batch, len, heads, 8 * size], $dtype).swap_dims(1, 2)
                    } else {
                        random.tensor::<$backend, 4>([batch, heads, len, 8 * size], $dtype)
                    }
                };
                let (q, k, v) = (make(kv_heads * group, queries), make(kv_heads, keys), make(kv_heads, keys));
                check(q, k, v, &options, &mut random);
            }};
        }
        match backend {
            0 => on!(Autodiff<NdArray>, DType::F32),
            1 => on!(Autodiff<NdArray<f64>>, DType::F64),
            2 => on!(Autodiff<NdArray, BalancedCheckpointing>, DType::F32),
            3 => on!(Autodiff<Flex>, DType::F32),
            4 => on!(Autodiff<Flex>, DType::F64),
            5 => on!(Autodiff<Flex>, DType::F16),
            _ => on!(Autodiff<Flex>, DType::BF16),
        }
    }
}

/// Views that are read in place, and those that need a copy.
fn views<B: SparseBackend>() {
    setup();
    let mut random = Random(1);
    let options = AttentionOptions { causal: true, ..Default::default() };
    let k = random.tensor::<B, 4>([2, 2, 9, 16], DType::F32);
    let q = |random: &mut Random| random.tensor::<B, 4>([2, 4, 7, 16], DType::F32);
    let all = [
        q(&mut random).flip([2]),
        q(&mut random).flip([3]),
        random.tensor::<B, 4>([2, 4, 16, 7], DType::F32).swap_dims(2, 3),
        random.tensor::<B, 4>([3, 6, 12, 40], DType::F32).slice([1..3, 2..6, 3..10, 8..24]),
        random.tensor::<B, 4>([1, 4, 7, 16], DType::F32).expand([2, 4, 7, 16]),
        random.tensor::<B, 4>([2, 1, 7, 16], DType::F32).expand([2, 4, 7, 16]),
        random.tensor::<B, 4>([2, 4, 1, 16], DType::F32).expand([2, 4, 7, 16]),
        random.tensor::<B, 4>([1, 1, 1, 16], DType::F32).expand([2, 4, 7, 16]),
        random.tensor::<B, 4>([1, 1, 1, 1], DType::F32).expand([2, 4, 7, 16]),
    ];
    for q in all {
        let expected = dense(q.clone(), k.clone(), k.clone(), &options);
        assert_close(attention(q, k.clone(), k.clone(), &options), expected);
    }
    // Q, K and V in one packed tensor of [batch, length, 3, heads, size].
    let packed = random.tensor::<B, 5>([2, 9, 3, 2, 16], DType::F32);
    let [q, k, v] = [0, 1, 2].map(|at| packed.clone().narrow(2, at, 1).squeeze_dim::<4>(2).swap_dims(1, 2));
    assert_close(attention(q.clone(), k.clone(), v.clone(), &options), dense(q, k, v, &options));
}

#[test]
fn ndarray_takes_views() {
    views::<NdArray>();
}

#[test]
fn flex_takes_views() {
    views::<Flex>();
}

fn nothing<B: AutodiffBackend + SparseBackend>() {
    setup();
    let mut random = Random(2);
    let plain = AttentionOptions::default();
    // No keys, no queries, no batch, nothing at all, and a mask without blocks.
    let hidden = AttentionOptions { mask: Some(BsrPattern::from_mask([3, 5], 2, |_, _| false)), ..Default::default() };
    for (batch, queries, keys, options) in
        [(2, 3, 0, &plain), (2, 0, 5, &plain), (0, 3, 5, &plain), (0, 0, 0, &plain), (2, 3, 5, &hidden)]
    {
        let mut make = |heads, len| random.tensor::<B, 4>([batch, heads, len, 8], DType::F32).require_grad();
        let (q, k, v) = (make(4, queries), make(2, keys), make(2, keys));
        let out = try_attention(q.clone(), k.clone(), v.clone(), options).unwrap();
        assert_close(out.clone(), Tensor::zeros([batch, 4, queries, 8], &Default::default()));
        let grads = out.sum().backward();
        for tensor in [q, k, v] {
            let zeros = Tensor::zeros(tensor.dims(), &Default::default());
            assert_close(tensor.grad(&grads).unwrap(), zeros);
        }
    }
}

#[test]
fn ndarray_gives_zeros_where_nothing_is_seen() {
    nothing::<Autodiff<NdArray>>();
}

#[test]
fn flex_gives_zeros_where_nothing_is_seen() {
    nothing::<Autodiff<Flex>>();
}

#[test]
fn only_what_asks_for_a_gradient_gets_one() {
    setup();
    type B = Autodiff<Flex>;
    let mut random = Random(3);
    let mut make = || random.tensor::<B, 4>([1, 2, 6, 8], DType::F32);
    let (q, k, v) = (make(), make().require_grad(), make());
    let out = attention(q.clone(), k.clone(), v.clone(), &AttentionOptions::default());
    let grads = out.powi_scalar(2).sum().backward();
    assert!(q.grad(&grads).is_none() && k.grad(&grads).is_some() && v.grad(&grads).is_none());
    assert!(!attention(q, k.detach(), v, &AttentionOptions::default()).is_require_grad());
}

#[test]
fn gradients_have_gradients() {
    setup();
    type Inner = Autodiff<NdArray<f64>>;
    type B = Autodiff<Inner>;
    let options = AttentionOptions { causal: true, window: Some(3), ..Default::default() };
    // f = sum(attention^2); the sum of df/dq has gradients to K.
    let second = |attend: &dyn Fn([Tensor<B, 4>; 3]) -> Tensor<B, 4>| {
        let mut random = Random(4);
        let mut make = |heads| random.tensor::<Inner, 4>([1, heads, 6, 8], DType::F64);
        let (q, k, v) = (make(2), make(1).require_grad(), make(1));
        let watched = Tensor::<B, 4>::from_inner(q).require_grad();
        let out = attend([watched.clone(), Tensor::from_inner(k.clone()), Tensor::from_inner(v)]);
        let grads = (out.clone() * out).sum().backward();
        let first = watched.grad(&grads).unwrap().sum().backward();
        k.grad(&first).expect("a gradient")
    };
    let found = second(&|[q, k, v]| attention(q, k, v, &options));
    assert_close(found, second(&|[q, k, v]| dense(q, k, v, &options)));
}
