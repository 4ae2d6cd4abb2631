//! Attention and its gradients against Burn's dense arithmetic in f64, on every CPU backend and dtype.

mod common;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_sparse::backend::{Saved, fallback};
use burn_sparse::try_attention_with_sinks;
use burn_sparse::{AttentionOptions, BsrPattern, SparseBackend, attention, attention_with_sinks, try_attention};
use common::attention::{dense, dense_with_sinks};
use common::{Random, assert_close, assert_close_to, assert_within, from_values, setup};
use proptest::prelude::*;

/// What results are compared with.
type Exact = Autodiff<NdArray<f64>>;

fn float<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn back<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn exact<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<Exact, D> {
    Tensor::from_data(tensor.into_data().convert::<f64>(), &Default::default())
}

/// How much the gradient of a sink may be off, which sums `weight of the sink * (grad . out)` over all queries of its head:
/// each product as much as rounding the output to its dtype makes of it.
fn bound_of_sinks(
    [q, k, v, grad]: [Tensor<Exact, 4>; 4],
    sinks: Tensor<Exact, 1>,
    options: &AttentionOptions,
    dtype: DType,
) -> f64 {
    let unit = match dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    };
    let seen = |v| dense_with_sinks(q.clone(), k.clone(), v, Some(sinks.clone()), options);
    let weights = seen(v.ones_like()).narrow(3, 0, 1).neg() + 1.0;
    let terms = weights * (seen(v) * grad).abs().sum_dim(3);
    1e-4 + 2.0 * unit * terms.sum_dim(0).sum_dim(2).max().into_scalar()
}

/// Attention with gradients, with and without sinks.
fn attend<B: SparseBackend>(
    [q, k, v]: [Tensor<B, 4>; 3],
    sinks: Option<Tensor<B, 1>>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    match sinks {
        Some(sinks) => attention_with_sinks(q, k, v, sinks, options),
        None => attention(q, k, v, options),
    }
}

fn check<B>(inputs: [Tensor<B, 4>; 3], sinks: Option<Tensor<B, 1>>, options: &AttentionOptions, random: &mut Random)
where
    B: SparseBackend + AutodiffBackend,
    B::InnerBackend: SparseBackend,
{
    let dtype = inputs[0].dtype();
    let ([batch, heads, queries, _], [.., value_size]) = (inputs[0].dims(), inputs[2].dims());
    let weigh = random.tensor::<B, 4>([batch, heads, queries, value_size], dtype);
    let [x, y, z] = inputs.each_ref().map(|tensor| exact(tensor.clone()).require_grad());
    let s = sinks.clone().map(|sinks| exact(sinks).require_grad());
    let expected = dense_with_sinks(x.clone(), y.clone(), z.clone(), s.clone(), options);
    let grads = (expected.clone() * exact(weigh.clone())).sum().backward();
    let expected = expected.into_data();
    let slopes = [&x, &y, &z].map(|tensor| tensor.grad(&grads).unwrap().into_data());
    let sink_slopes = s.map(|s| {
        let bound = bound_of_sinks([x, y, z, exact(weigh.clone())], s.clone(), options, dtype);
        (s.grad(&grads).unwrap().into_data(), bound)
    });
    // Those of a sink of minus infinity are zeros in both.
    let close = |found: FloatTensor<B::InnerBackend>| {
        let (slopes, bound) = sink_slopes.clone().expect("there are sinks");
        let found = back::<B::InnerBackend, 1>(found);
        assert_within(found.clone(), Tensor::from_data(slopes, (&found.device(), found.dtype())), bound);
    };

    let inputs = inputs.map(Tensor::require_grad);
    let sinks = sinks.map(Tensor::require_grad);
    let out = attend(inputs.clone(), sinks.clone(), options);
    let grads = (out.clone() * weigh.clone()).sum().backward();
    assert_close_to(out, expected.clone());
    for (tensor, slopes) in inputs.iter().zip(&slopes) {
        assert_close_to(tensor.grad(&grads).unwrap(), slopes.clone());
    }
    if let Some(sinks) = &sinks {
        let found = sinks.grad(&grads).unwrap();
        assert_eq!(found.dtype(), sinks.dtype());
        close(float(found));
    }

    // Without gradients, and in Burn's own operations.
    let (inputs, weigh) = (inputs.map(Tensor::inner), weigh.inner());
    let sinks = sinks.map(Tensor::inner);
    assert_close_to(attend(inputs.clone(), sinks.clone(), options), expected.clone());
    let ([q, k, v], weigh) = (inputs.map(float), float(weigh));
    let sinks = sinks.map(|sinks| float(sinks.cast(DType::F32)));
    let forward = fallback::attention::<B::InnerBackend>;
    let (out, lse) = forward(q.clone(), k.clone(), v.clone(), sinks.clone(), options, true);
    let lse = lse.expect("asked for");
    assert_close_to(back::<B::InnerBackend, 4>(out.clone()), expected);
    let (_, sums) = B::InnerBackend::bsr_attention(q.clone(), k.clone(), v.clone(), sinks.clone(), options, true);
    let sums = back::<B::InnerBackend, 3>(sums.expect("asked for"));
    assert_eq!(sums.dtype(), DType::F32);
    // What is -inf in one is so in the other.
    let finite = |lse: Tensor<B::InnerBackend, 3>| lse.clamp_min(-1e3);
    assert_close(finite(sums), finite(back(lse.clone())));
    let saved = Saved { q, k, v, sinks, o: out, lse };
    let (found, dsinks) = fallback::attention_backward::<B::InnerBackend>(saved, weigh, options);
    for (found, slopes) in found.into_iter().zip(slopes) {
        assert_close_to(back::<B::InnerBackend, 4>(found), slopes);
    }
    if let Some(found) = dsinks {
        close(found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn attention_is_that_of_dense_arithmetic(
        sizes in (1usize..3, 1usize..4, 1usize..4, 1usize..24, 1usize..24, 1usize..25),
        value_size in prop::option::of(1usize..25), softcap in prop::option::of(0.5f64..8.0), sinks: bool,
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
        let options = AttentionOptions { causal, window, scale, softcap, mask, ..Default::default() };
        /// Tensors of a backend, as they are or as views of `[batch, length, heads, size]`.
        macro_rules! on {
            ($backend:ty, $dtype:expr) => {{
                let mut make = |heads: usize, len: usize, size: usize| {
                    if swapped {
                        random.tensor::<$backend, 4>([batch, len, heads, size], $dtype).swap_dims(1, 2)
                    } else {
                        random.tensor::<$backend, 4>([batch, heads, len, size], $dtype)
                    }
                };
                let heads = kv_heads * group;
                let (q, k) = (make(heads, queries, size), make(kv_heads, keys, size));
                let v = make(kv_heads, keys, value_size.unwrap_or(size));
                let values = (0..heads).map(|_| if random.below(5) == 0 { f32::NEG_INFINITY } else { random.value() });
                let values = values.collect::<Vec<_>>();
                // F32, or the tensors' own dtype.
                let dtype = if random.below(2) == 0 { DType::F32 } else { $dtype };
                let sinks = sinks.then(|| from_values::<$backend, 1>(values, [heads], dtype));
                check([q, k, v], sinks, &options, &mut random);
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
    // Rows of one element, whose stride says nothing.
    let one = random.tensor::<B, 4>([2, 4, 7, 16], DType::F32).slice([0..2, 0..4, 0..7, 3..4]);
    let keys = random.tensor::<B, 4>([2, 2, 1, 9], DType::F32).swap_dims(2, 3);
    let expected = dense(one.clone(), keys.clone(), k.clone(), &options);
    assert_close(attention(one, keys, k.clone(), &options), expected);
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

fn nothing<B: AutodiffBackend + SparseBackend>()
where
    B::InnerBackend: SparseBackend,
{
    setup();
    let mut random = Random(2);
    let plain = AttentionOptions::default();
    // No keys, no queries, no batch, nothing at all, and a mask without blocks.
    let hidden = AttentionOptions { mask: Some(BsrPattern::from_mask([3, 5], 2, |_, _| false)), ..Default::default() };
    for (batch, queries, keys, options) in
        [(2, 3, 0, &plain), (2, 0, 5, &plain), (0, 3, 5, &plain), (0, 0, 0, &plain), (2, 3, 5, &hidden)]
    {
        let mut make = |heads, len, size| random.tensor::<B, 4>([batch, heads, len, size], DType::F32).require_grad();
        let (q, k, v) = (make(4, queries, 8), make(2, keys, 8), make(2, keys, 5));
        let sinks = from_values::<B, 1>(vec![1.0; 4], [4], DType::F32).require_grad();
        let plain = try_attention(q.clone(), k.clone(), v.clone(), options).unwrap();
        let out = try_attention_with_sinks(q.clone(), k.clone(), v.clone(), sinks.clone(), options).unwrap();
        for out in [plain, out] {
            assert_close(out.clone(), Tensor::zeros([batch, 4, queries, 5], &Default::default()));
            let grads = out.sum().backward();
            for tensor in [&q, &k, &v] {
                let zeros = Tensor::zeros(tensor.dims(), &Default::default());
                assert_close(tensor.grad(&grads).unwrap(), zeros);
            }
            if let Some(slopes) = sinks.grad(&grads) {
                assert_close(slopes, Tensor::zeros([4], &Default::default()));
            }
        }
        // The logarithm of the sum is then that of the sink alone, and so it is in Burn's own operations.
        let [q, k, v] = [q, k, v].map(|tensor| float(tensor.inner()));
        let sinks = Some(float(sinks.inner()));
        let fallen = fallback::attention::<B::InnerBackend>;
        for attend in [B::InnerBackend::bsr_attention, fallen] {
            let (_, lse) = attend(q.clone(), k.clone(), v.clone(), sinks.clone(), options, true);
            let lse = back::<B::InnerBackend, 3>(lse.expect("asked for"));
            assert_close(lse, Tensor::ones([batch, 4, queries], &Default::default()));
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
fn sinks_alone_may_ask_for_a_gradient() {
    setup();
    type B = Autodiff<Flex>;
    let mut random = Random(5);
    let mut make = || random.tensor::<B, 4>([1, 2, 6, 8], DType::F16);
    let (q, k, v) = (make(), make(), make());
    let sinks = Tensor::<B, 1>::zeros([2], &Default::default()).require_grad();
    let out = attention_with_sinks(q.clone(), k, v, sinks.clone(), &AttentionOptions::default());
    let grads = out.sum().backward();
    assert!(q.grad(&grads).is_none());
    assert_eq!(sinks.grad(&grads).expect("a gradient").dims(), [2]);
}

/// Plans of sinks are kept: each of these masks has one, which is used twice, and they are more than are kept, in several
/// threads at once.
#[test]
fn sinks_under_many_masks_in_many_threads() {
    setup();
    let work = |seed: u64| {
        let mut random = Random(seed);
        for round in 0..60 {
            let (queries, keys) = (8 + round % 2, 10);
            let mask = BsrPattern::from_mask([queries, keys], 2, |_, _| random.below(2) == 0);
            let options = AttentionOptions { mask: Some(mask), ..Default::default() };
            for _ in 0..2 {
                let mut make = |len| random.tensor::<Flex, 4>([1, 2, len, 8], DType::F32);
                let (q, k, v) = (make(queries), make(keys), make(keys));
                let sinks = random.tensor::<Flex, 1>([2], DType::F32);
                let expected = dense_with_sinks(q.clone(), k.clone(), v.clone(), Some(sinks.clone()), &options);
                assert_close(attention_with_sinks(q, k, v, sinks, &options), expected);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|seed| {
            scope.spawn(move || work(seed));
        });
    });
}

#[test]
fn gradients_have_gradients() {
    setup();
    type Inner = Autodiff<NdArray<f64>>;
    type B = Autodiff<Inner>;
    let plain = AttentionOptions { causal: true, window: Some(3), ..Default::default() };
    let capped = AttentionOptions { softcap: Some(2.0), ..plain.clone() };
    // f = sum(attention^2); the sum of df/dq and of df/dsinks has gradients to K and to sinks.
    type Attend<'a> = &'a dyn Fn([Tensor<B, 4>; 3], Tensor<B, 1>) -> Tensor<B, 4>;
    let second = |with_sinks: bool, attend: Attend| {
        let mut random = Random(4);
        let mut make = |heads| random.tensor::<Inner, 4>([1, heads, 6, 8], DType::F64);
        let (q, k, v) = (make(2), make(1).require_grad(), make(1));
        let sinks = random.tensor::<Inner, 1>([2], DType::F64).require_grad();
        let watched = Tensor::<B, 4>::from_inner(q).require_grad();
        let watched_sinks = Tensor::<B, 1>::from_inner(sinks.clone()).require_grad();
        let inputs = [watched.clone(), Tensor::from_inner(k.clone()), Tensor::from_inner(v)];
        let out = attend(inputs, watched_sinks.clone());
        let grads = (out.clone() * out).sum().backward();
        let first = watched.grad(&grads).unwrap().sum();
        if !with_sinks {
            return (k.grad(&first.backward()).expect("a gradient"), None);
        }
        let first = (first + watched_sinks.grad(&grads).unwrap().sum()).backward();
        (k.grad(&first).expect("a gradient"), sinks.grad(&first))
    };
    let (found, _) = second(false, &|[q, k, v], _| attention(q, k, v, &plain));
    assert_close(found, second(false, &|[q, k, v], _| dense(q, k, v, &plain)).0);
    let (found, slopes) = second(true, &|[q, k, v], sinks| attention_with_sinks(q, k, v, sinks, &capped));
    let expected = second(true, &|[q, k, v], sinks| dense_with_sinks(q, k, v, Some(sinks), &capped));
    assert_close(found, expected.0);
    assert_close(slopes.expect("a gradient"), expected.1.expect("a gradient"));
}
