//! Attention and its gradients against the definition, over shapes, grouped heads, masks, sequences, options, dtypes and layouts.

mod common;

use common::{Number, Random, context};
use proptest::prelude::*;
use sparse_autotune::{Attention, Buffer, Context, HeadLayout, Pattern, Plan, Problem, Verdict, bf16, f16};

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
    block: [usize; 2],
    causal: bool,
    window: usize,
    /// 0: none.
    softcap: f64,
    sinks: bool,
    /// Blocks are left out; one mask for all heads, or one a head.
    masks: Masks,
    /// Where each sequence begins, and the ends.
    offsets: Option<[Vec<i64>; 2]>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Masks {
    None,
    One,
    EachHead,
}

/// What the definition gives: o, dq, dk and dv, and of each line (a query of a head) the LSE; of each head the gradient of its
/// sink, and the magnitude of what that sums up.
struct Definition {
    tensors: [Vec<f64>; 4],
    lse: Vec<f64>,
    dsinks: Vec<f64>,
    magnitude: Vec<f64>,
}

/// How an operand is stored.
struct Placed<T> {
    layout: HeadLayout,
    shape: [usize; 3],
    dim: usize,
    elements: Vec<T>,
}

impl<T: Number> Placed<T> {
    /// NaN in the gaps, and everywhere until it is filled.
    fn new(shape: [usize; 3], dim: usize, order: usize) -> Self {
        let [batch, heads, rows] = shape;
        let (layout, len) = match order {
            0 => (HeadLayout::default(), batch * heads * rows * dim),
            1 => {
                let row_stride = heads * dim;
                (
                    HeadLayout { batch_stride: rows * row_stride, head_stride: dim, row_stride },
                    batch * rows * row_stride,
                )
            }
            _ => {
                let (row_stride, gap) = (dim + 3, 5);
                let head_stride = rows * row_stride + gap;
                (HeadLayout { batch_stride: heads * head_stride, head_stride, row_stride }, batch * heads * head_stride)
            }
        };
        Self { layout, shape, dim, elements: vec![T::of(f64::NAN); len] }
    }

    fn at(&self, b: usize, h: usize, i: usize) -> usize {
        let [_, heads, rows] = self.shape;
        if self.layout == HeadLayout::default() {
            return ((b * heads + h) * rows + i) * self.dim;
        }
        b * self.layout.batch_stride + h * self.layout.head_stride + i * self.layout.row_stride
    }

    fn places(&self) -> Vec<usize> {
        let [batch, heads, rows] = self.shape;
        let rows = (0..batch * heads * rows).map(|at| self.at(at / rows / heads, at / rows % heads, at % rows));
        rows.flat_map(|first| first..first + self.dim).collect()
    }

    /// Quarters from -1 to 1, which every dtype has.
    fn random(mut self, random: &mut Random) -> Self {
        for at in self.places() {
            self.elements[at] = T::of(random.value() / 4.0);
        }
        self
    }

    fn row(&self, b: usize, h: usize, i: usize) -> Vec<f64> {
        let first = self.at(b, h, i);
        self.elements[first..first + self.dim].iter().map(|value| value.to()).collect()
    }

    /// Equal, within a bound for what is largest, and the gaps untouched.
    fn assert(&self, expected: &[f64], bound: f64, name: &str) {
        let places = self.places();
        assert_eq!(places.len(), expected.len());
        let largest = expected.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
        for (&at, expected) in places.iter().zip(expected) {
            let found = self.elements[at].to();
            assert!((found - expected).abs() <= bound * largest, "{name}[{at}] is {found}, expected {expected}");
        }
        let numbers = self.elements.iter().filter(|value| !value.to().is_nan()).count();
        assert_eq!(numbers, places.len(), "{name}: a gap was written");
    }
}

/// What scores are multiplied by.
const SCALE: f64 = 0.5;

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// `to += by * from`.
fn add(to: &mut [f64], by: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += by * from);
}

impl Case {
    /// The mask, and which keys a query of a head keeps.
    fn mask(&self, context: &Context, random: &mut Random) -> (Pattern, Vec<Vec<usize>>) {
        let grid = [self.queries.div_ceil(self.block[0]), self.keys.div_ceil(self.block[1])];
        let count = if self.masks == Masks::EachHead { self.heads } else { 1 };
        let stored: Vec<bool> = (0..count * grid[0] * grid[1]).map(|_| random.below(3) > 0).collect();
        let pattern = if self.masks == Masks::None {
            Pattern::full(context, [self.queries, self.keys]).unwrap()
        } else {
            let (mut row_ptr, mut col_idx) = (vec![0i64], Vec::new());
            for row in 0..count * grid[0] {
                col_idx.extend((0..grid[1]).filter(|col| stored[row * grid[1] + col]).map(|col| col as i64));
                row_ptr.push(col_idx.len() as i64);
            }
            let rows = if count == 1 { self.queries } else { count * grid[0] * self.block[0] };
            Pattern::new(context, [rows, self.keys], self.block, &row_ptr, &col_idx).unwrap()
        };
        let pattern = match &self.offsets {
            Some([q, kv]) => pattern.with_sequences(context, q, kv).unwrap(),
            None => pattern,
        };
        let whole = [vec![0, self.queries as i64], vec![0, self.keys as i64]];
        let [q, kv] = self.offsets.as_ref().unwrap_or(&whole);
        let keeps = |head: usize, i: usize, j: usize| {
            let of = |offsets: &[i64], at: usize| offsets.partition_point(|&start| start <= at as i64) - 1;
            let (sequence, other) = (of(q, i), of(kv, j));
            let stands = i as i64 - q[sequence] + (kv[sequence + 1] - kv[sequence]) - (q[sequence + 1] - q[sequence]);
            let apart = j as i64 - kv[sequence] - stands;
            let head = if count == 1 { 0 } else { head };
            let block = (head * grid[0] + i / self.block[0]) * grid[1] + j / self.block[1];
            sequence == other
                && (self.masks == Masks::None || stored[block])
                && (!self.causal || apart <= 0)
                && (self.window == 0 || apart.unsigned_abs() < self.window as u64)
        };
        let rows = (0..self.heads * self.queries).map(|at| (at / self.queries, at % self.queries));
        let kept = rows.map(|(head, i)| (0..self.keys).filter(|&j| keeps(head, i, j)).collect()).collect();
        (pattern, kept)
    }

    /// Attention by definition, in f64. `kept`: the keys of each query of each head.
    fn define<T: Number>(&self, [q, k, v, d_o]: [&Placed<T>; 4], sinks: &[f32], kept: &[Vec<usize>]) -> Definition {
        let (group, lines) = (self.heads / self.kv_heads, self.batch * kept.len());
        let rows = |rows: usize, dim: usize| vec![0.0; rows * dim];
        let keys = self.batch * self.kv_heads * self.keys;
        let [mut o, mut dq] = [rows(lines, self.value_dim), rows(lines, self.dim)];
        let [mut dk, mut dv] = [rows(keys, self.dim), rows(keys, self.value_dim)];
        let (mut lse, mut dsinks, mut magnitude) = (Vec::new(), rows(self.heads, 1), rows(self.heads, 1));
        let place = |line: usize, dim: usize| line * dim..(line + 1) * dim;
        for line in 0..lines {
            let (b, h, i) = (line / kept.len(), line / self.queries % self.heads, line % self.queries);
            let wanted = &kept[line % kept.len()];
            let (row, grad, mut out) = (q.row(b, h, i), d_o.row(b, h, i), vec![0.0; self.value_dim]);
            let sink = if self.sinks { f64::from(sinks[h]).exp() } else { 0.0 };
            let plain: Vec<f64> = wanted.iter().map(|&j| SCALE * dot(&row, &k.row(b, h / group, j))).collect();
            let scores: Vec<f64> = plain.iter().map(|&score| self.capped(score)).collect();
            let sum: f64 = scores.iter().map(|score| score.exp()).sum::<f64>() + sink;
            for (score, &j) in scores.iter().zip(wanted) {
                add(&mut out, score.exp() / sum, &v.row(b, h / group, j));
            }
            let delta = dot(&grad, &out);
            for (score, &j) in scores.iter().zip(wanted) {
                let (weight, key) = (score.exp() / sum, (b * self.kv_heads + h / group) * self.keys + j);
                let slope = if self.softcap == 0.0 { 1.0 } else { 1.0 - (score / self.softcap).powi(2) };
                let slope = SCALE * slope * weight * (dot(&grad, &v.row(b, h / group, j)) - delta);
                add(&mut dq[place(line, self.dim)], slope, &k.row(b, h / group, j));
                add(&mut dk[place(key, self.dim)], slope, &row);
                add(&mut dv[place(key, self.value_dim)], weight, &grad);
            }
            if sink > 0.0 {
                let sizes: f64 = grad.iter().zip(&out).map(|(x, y)| (x * y).abs()).sum();
                dsinks[h] -= sink / sum * delta;
                magnitude[h] += sink / sum * sizes;
            }
            o[place(line, self.value_dim)].copy_from_slice(&out);
            lse.push(sum.ln());
        }
        Definition { tensors: [o, dq, dk, dv], lse, dsinks, magnitude }
    }

    fn capped(&self, score: f64) -> f64 {
        if self.softcap == 0.0 { score } else { self.softcap * (score / self.softcap).tanh() }
    }

    fn described(&self) -> Attention {
        Attention::new(self.heads, self.dim)
            .value_dim(self.value_dim)
            .kv_heads(self.kv_heads)
            .queries(self.queries)
            .causal(self.causal)
            .window(self.window)
            .scale(SCALE)
            .softcap(self.softcap)
            .sinks(self.sinks)
            .lse(true)
    }

    /// Forward and backward by plan, and in one call where there is one; every operand is stored as `orders` says.
    fn check<T: Number>(&self, bound: f64, orders: [usize; 8], seed: u64) {
        let (context, mut random) = (context(), Random(seed));
        let (pattern, kept) = self.mask(&context, &mut random);
        let of_q = [self.batch, self.heads, self.queries];
        let of_k = [self.batch, self.kv_heads, self.keys];
        let new = |shape, at: usize, dim| Placed::<T>::new(shape, dim, orders[at]);
        let (dim, value_dim) = (self.dim, self.value_dim);
        let [q, k, v, d_o] = [(of_q, 0, dim), (of_k, 1, dim), (of_k, 2, value_dim), (of_q, 4, value_dim)]
            .map(|(shape, at, dim)| new(shape, at, dim).random(&mut random));
        let [mut o, mut dq, mut dk, mut dv] =
            [(of_q, 3, value_dim), (of_q, 5, dim), (of_k, 6, dim), (of_k, 7, value_dim)]
                .map(|(s, at, d)| new(s, at, d));
        let mut lse = vec![f32::NAN; self.batch * self.heads * self.queries];
        // Halves from -2 to 2, and none.
        let mut sink = || if random.below(5) == 0 { f32::NEG_INFINITY } else { random.value() as f32 / 2.0 };
        let sinks: Vec<f32> = (0..self.heads).map(|_| sink()).collect();
        let mut dsinks = vec![f32::NAN; self.heads];
        let attention = self.described();
        let attention = attention.q_layout(q.layout).k_layout(k.layout).v_layout(v.layout).o_layout(o.layout);
        let attention = attention.do_layout(d_o.layout).dq_layout(dq.layout).dk_layout(dk.layout).dv_layout(dv.layout);
        let want = self.define([&q, &k, &v, &d_o], &sinks, &kept);

        let problem = Problem::attention::<T>(&attention).batch(self.batch);
        let inputs = (&q.elements, &k.elements, &v.elements);
        if self.sinks {
            let mut plan = Plan::new(&context, &pattern, &problem).expect("fits");
            plan.attention_lse_sinks(inputs, &sinks, &mut o.elements, &mut lse).expect("fits");
        } else {
            context.attention_lse(&pattern, &problem, inputs, &mut o.elements, &mut lse).expect("fits");
        }
        o.assert(&want.tensors[0], bound, "o");
        for (line, (&found, &expected)) in lse.iter().zip(&want.lse).enumerate() {
            let found = f64::from(found);
            assert!(
                found == expected || (found - expected).abs() < 1e-4,
                "lse[{line}] is {found}, expected {expected}"
            );
        }
        let mut again = Placed::<T>::new(of_q, value_dim, orders[3]);
        let plain = Problem::attention::<T>(&attention.lse(false)).batch(self.batch);
        let mut plan = Plan::new(&context, &pattern, &plain).expect("fits");
        if self.sinks {
            plan.attention_sinks(inputs, &sinks, &mut again.elements).expect("fits");
        } else {
            plan.attention(inputs, &mut again.elements).expect("fits");
        }
        again.assert(&want.tensors[0], bound, "o without lse");

        let problem = Problem::attention_backward::<T>(&attention).batch(self.batch);
        let mut plan = Plan::new(&context, &pattern, &problem).expect("fits");
        let (saved, outputs) = ((&o.elements, &lse), (&mut dq.elements, &mut dk.elements, &mut dv.elements));
        if self.sinks {
            plan.attention_backward_sinks(inputs, saved, &d_o.elements, &sinks, outputs, &mut dsinks).expect("fits");
            for (head, (&found, &expected)) in dsinks.iter().zip(&want.dsinks).enumerate() {
                let (apart, most) = ((f64::from(found) - expected).abs(), 4.0 * bound * want.magnitude[head]);
                assert!(apart <= most, "dsinks[{head}] is {found}, expected {expected}");
            }
        } else {
            plan.attention_backward(inputs, saved, &d_o.elements, outputs).expect("fits");
        }
        for (found, (expected, name)) in
            [&dq, &dk, &dv].into_iter().zip(want.tensors[1..].iter().zip(["dq", "dk", "dv"]))
        {
            found.assert(expected, 4.0 * bound, name);
        }
    }
}

fn offsets(cuts: &[usize], len: usize) -> Vec<i64> {
    let mut offsets: Vec<i64> = cuts.iter().map(|cut| (cut % (len + 1)) as i64).chain([0, len as i64]).collect();
    offsets.sort_unstable();
    offsets
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn attention_is_that_of_the_definition(
        sizes in (1usize..3, 1usize..4, 1usize..4, 0usize..40, 0usize..40, 1usize..25),
        value_dim in prop::option::of(1usize..25), softcap in prop_oneof![Just(0.0), 0.5f64..8.0], sinks: bool,
        block in prop::array::uniform2(1usize..20), causal: bool, window in prop_oneof![Just(0), 1usize..30],
        masks in 0usize..3, cuts in prop::option::of(prop::array::uniform2(prop::array::uniform2(any::<usize>()))),
        dtype in 0usize..4, orders in prop::array::uniform8(0usize..3), seed in any::<u64>(),
    ) {
        let (batch, kv_heads, group, queries, keys, dim) = sizes;
        let case = Case {
            batch: if cuts.is_some() { 1 } else { batch },
            heads: kv_heads * group,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim: value_dim.unwrap_or(dim),
            block,
            causal,
            window,
            softcap,
            sinks,
            masks: [Masks::None, Masks::One, Masks::EachHead][masks],
            offsets: cuts.map(|[q, kv]| [offsets(&q, queries), offsets(&kv, keys)]),
        };
        match dtype {
            0 => case.check::<f32>(1e-5, orders, seed),
            1 => case.check::<f64>(1e-6, orders, seed),
            2 => case.check::<f16>(2e-3, orders, seed),
            _ => case.check::<bf16>(1.6e-2, orders, seed),
        }
    }
}

/// Sizes that models have, and those at the ends of what there may be.
#[test]
fn heads_have_any_size() {
    for (seed, [dim, value_dim]) in
        [[192, 128], [576, 512], [64, 576], [1, 576], [576, 1], [1, 1]].into_iter().enumerate()
    {
        let case = Case {
            batch: 1,
            heads: 2,
            kv_heads: 1,
            queries: 5,
            keys: 9,
            dim,
            value_dim,
            block: [2, 3],
            causal: true,
            window: 6,
            softcap: 2.0,
            sinks: true,
            masks: Masks::EachHead,
            offsets: None,
        };
        case.check::<f32>(1e-5, [0; 8], seed as u64);
        case.check::<bf16>(1.6e-2, [1; 8], seed as u64);
    }
}

#[test]
fn packed_rows_of_q_k_and_v_are_views() {
    let (context, mut random, [heads, len, dim]) = (context(), Random(1), [2, 12, 16]);
    let packed: Vec<f32> = (0..len * 3 * heads * dim).map(|_| random.value() as f32 / 4.0).collect();
    let part = |which: usize| &packed[which * heads * dim..];
    let layout = HeadLayout { batch_stride: 0, head_stride: dim, row_stride: 3 * heads * dim };
    let views = Attention::new(heads, dim).q_layout(layout).k_layout(layout).v_layout(layout);
    let mask = Pattern::full(&context, [len, len]).unwrap();
    let mut found = vec![0f32; heads * len * dim];
    context.attention(&mask, &Problem::attention::<f32>(&views), (part(0), part(1), part(2)), &mut found).unwrap();

    let whole = |which: usize| -> Vec<f32> {
        let rows = (0..heads * len).map(|at| (at % len * 3 + which) * heads * dim + at / len * dim);
        rows.flat_map(|first| packed[first..first + dim].to_vec()).collect()
    };
    let mut expected = vec![0f32; heads * len * dim];
    let plain = Problem::attention::<f32>(&Attention::new(heads, dim));
    context.attention(&mask, &plain, (&whole(0), &whole(1), &whole(2)), &mut expected).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn large_scores_do_not_overflow_and_hidden_rows_are_zero() {
    let context = context();
    // The second of two block rows stores nothing.
    let mask = Pattern::new(&context, [4, 4], [2, 4], &[0, 1, 1], &[0]).unwrap();
    let problem = Problem::attention::<f32>(&Attention::new(1, 8).lse(true));
    let (mut o, mut lse) = ([f32::NAN; 32], [f32::NAN; 4]);
    context.attention_lse(&mask, &problem, (&[1e4f32; 32], &[1e4f32; 32], &[1f32; 32]), &mut o, &mut lse).unwrap();
    assert_eq!(o, std::array::from_fn(|at| if at < 16 { 1.0 } else { 0.0 }));
    assert!(lse[..2].iter().all(|value| value.is_finite()));
    assert_eq!(lse[2..], [f32::NEG_INFINITY; 2]);
}

#[test]
fn a_query_without_keys_gives_zeros_and_its_sink() {
    let context = context();
    // The second of two block rows stores nothing, and causal takes all keys from the first query.
    let mask = Pattern::new(&context, [4, 3], [2, 3], &[0, 1, 1], &[0]).unwrap();
    let attention = Attention::new(2, 8).value_dim(3).causal(true).softcap(4.0).sinks(true).lse(true);
    let (q, v, sinks) = ([1f32; 64], [1f32; 18], [2f32, f32::NEG_INFINITY]);
    let (mut o, mut lse) = ([f32::NAN; 24], [f32::NAN; 8]);
    let mut plan = Plan::new(&context, &mask, &Problem::attention::<f32>(&attention)).unwrap();
    plan.attention_lse_sinks((&q, &q[..48], &v), &sinks, &mut o, &mut lse).unwrap();
    for (line, row) in o.chunks(3).enumerate() {
        assert_eq!(row != [0.0; 3], line % 4 == 1, "line {line} is {row:?}");
    }
    assert!((o[5 * 3] - 1.0).abs() < 1e-6 && o[3] < 0.9, "the second head has no sink: {o:?}");
    assert_eq!([lse[0], lse[2], lse[3]], [2.0; 3]);
    assert_eq!([lse[4], lse[6], lse[7]], [f32::NEG_INFINITY; 3]);

    let mut grads = ([f32::NAN; 64], [f32::NAN; 48], [f32::NAN; 18], [f32::NAN; 2]);
    let outputs = (&mut grads.0, &mut grads.1, &mut grads.2);
    let mut plan = Plan::new(&context, &mask, &Problem::attention_backward::<f32>(&attention)).unwrap();
    let inputs = (&q, &q[..48], &v);
    plan.attention_backward_sinks(inputs, (&o, &lse), &[1f32; 24], &sinks, outputs, &mut grads.3).unwrap();
    for (line, row) in grads.0.chunks(8).enumerate().filter(|(line, _)| line % 4 != 1) {
        assert_eq!(row, [0.0; 8], "line {line} of dq");
    }
    let weight = f64::from(sinks[0] - lse[1]).exp();
    assert!((f64::from(grads.3[0]) + weight * f64::from(o[3] + o[4] + o[5])).abs() < 1e-5, "{:?}", grads.3);
    assert_eq!(grads.3[1], 0.0);
}

#[test]
fn buffers_do_what_slices_do() {
    let (context, mut random) = (context(), Random(2));
    let mut make = || (0..2 * 20 * 8).map(|_| random.value() as f32 / 4.0).collect::<Vec<_>>();
    let [q, k, v] = [make(), make(), make()];
    let mask = Pattern::full(&context, [20, 20]).unwrap();
    let problem = Problem::attention::<f32>(&Attention::new(2, 8).causal(true));
    let mut expected = vec![0f32; 320];
    let mut plan = Plan::new(&context, &mask, &problem).unwrap();
    plan.attention((&q, &k, &v), &mut expected).unwrap();
    let buffer = |values: &[f32]| Buffer::from_slice(&context, values).unwrap();
    let mut o = Buffer::<f32>::zeros(&context, 320).unwrap();
    plan.attention((&buffer(&q), &buffer(&k), &buffer(&v)), &mut o).unwrap();
    assert_eq!(o.to_vec().unwrap(), expected);
}

#[test]
fn both_passes_race() {
    let context = context();
    let mask = Pattern::full(&context, [64, 64]).unwrap();
    let attention = Attention::new(2, 32).causal(true);
    let options = attention.value_dim(24).softcap(20.0).sinks(true);
    let all = [attention, options]
        .iter()
        .flat_map(|attention| [Problem::attention::<f32>(attention), Problem::attention_backward::<f32>(attention)])
        .collect::<Vec<_>>();
    for problem in all {
        let race = context.race(&mask, &problem).unwrap();
        assert_eq!(race.best.expect("somebody wins").verdict, Verdict::Ok);
        assert!(race.results.iter().all(|result| result.verdict != Verdict::Wrong), "{:?}", race.results);
        assert!(race.key.contains("attention"), "{}", race.key);
    }
}
