//! Products of groups against the definition, over sizes, dtypes, layouts and groups.

mod common;

use common::{Number, Random, assert_close, context, dense, product, transposed, wide};
use proptest::prelude::*;
use sparse_autotune::{Activation, Context, Effort, Error, Grouped, GroupedPlan, Layout, bf16, f16};

/// Offsets of so many groups among `rows` rows; now and then some rows belong to none.
fn groups(rows: usize, groups: usize, random: &mut Random) -> Vec<i64> {
    let end = rows - if groups > 0 && rows > 4 { random.below(3) } else { 0 };
    let mut inner: Vec<i64> = (1..groups).map(|_| random.below(end + 1) as i64).collect();
    inner.sort_unstable();
    let mut all = vec![0];
    all.extend(inner);
    all.extend((groups > 0).then_some(end as i64));
    all
}

/// By definition, with zeros for rows of no group.
fn expected(x: &[f64], w: &[f64], [m, n, k]: [usize; 3], offsets: &[i64]) -> Vec<f64> {
    let mut y = vec![0.0; m * n];
    for (group, ends) in offsets.windows(2).enumerate() {
        let (first, end) = (ends[0] as usize, ends[1] as usize);
        let part = product(&x[first * k..end * k], &w[group * k * n..(group + 1) * k * n], end - first, k, n);
        y[first * n..end * n].copy_from_slice(&part);
    }
    y
}

fn check<T: Number>([m, n, k]: [usize; 3], count: usize, seed: u64) {
    let (context, mut random) = (context(), Random(seed));
    let offsets = groups(m, count, &mut random);
    let narrow: Vec<i32> = offsets.iter().map(|&at| at as i32).collect();
    let (x, w) = (dense::<T>(m * k, &mut random), dense::<T>(count * k * n, &mut random));
    let want = expected(&wide(&x), &wide(&w), [m, n, k], &offsets);

    let mut y = vec![T::of(f64::NAN); m * n];
    let problem = Grouped::matmul::<T>([m, n, k], count);
    context.grouped_matmul(&problem, &x, &w, &offsets, &mut y).expect("fits");
    assert_close(&y, &want);

    // By a plan, with w stored as (groups, n, k) and offsets of 32 bits.
    let stored: Vec<T> = wide(&w).chunks((k * n).max(1)).flat_map(|one| transposed(one, k, n)).map(T::of).collect();
    let columns = Layout::col_major(k.max(1)).with_batch_stride(k * n);
    let mut plan = GroupedPlan::<i32>::new(&context, &problem.second_layout(columns)).expect("fits");
    y.fill(T::of(f64::NAN));
    plan.matmul(&x, &stored, &narrow, &mut y).expect("fits");
    assert_close(&y, &want);

    // The gradient of w.
    let z = dense::<T>(m * n, &mut random);
    let mut gradient = vec![T::of(f64::NAN); count * k * n];
    context.grouped_weights(&Grouped::weights::<T>([m, n, k], count), &x, &z, &offsets, &mut gradient).expect("fits");
    for (group, ends) in offsets.windows(2).enumerate() {
        let (first, end) = (ends[0] as usize, ends[1] as usize);
        let left = transposed(&wide(&x)[first * k..end * k], end - first, k);
        let part = product(&left, &wide(&z)[first * n..end * n], k, end - first, n);
        assert_close(&gradient[group * k * n..(group + 1) * k * n], &part);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_of_groups_are_those_of_the_definition(
        m in 0usize..60, n in 1usize..20, k in 1usize..20, count in 0usize..6, dtype in 0usize..4, seed in any::<u64>(),
    ) {
        match dtype {
            0 => check::<f32>([m, n, k], count, seed),
            1 => check::<f64>([m, n, k], count, seed),
            2 => check::<f16>([m, n, k], count, seed),
            _ => check::<bf16>([m, n, k], count, seed),
        }
    }
}

#[test]
fn a_bias_and_an_activation_belong_to_the_rows_of_a_group() {
    let context = context();
    let problem = Grouped::matmul::<f32>([3, 1, 1], 2).bias(true).activation(Activation::Relu).beta(1.0);
    let mut y = [10f32, 20., 30.];
    let (x, w, bias) = ([1f32, 2., 3.], [4f32, -50.], [0.5f32, 1.]);
    context.grouped_matmul_bias(&problem, (&x, &w), &[0i64, 1, 2], &mut y, &bias).expect("fits");
    assert_eq!(y, [14.5, 0., 30.]);
}

#[test]
fn a_plan_is_tuned_once_and_takes_the_offsets_of_each_run() {
    let context = Context::builder().device("cpu").cache_in_memory().effort(Effort::Quick).build().expect("opens");
    let problem = Grouped::matmul::<f32>([40, 8, 8], 3);
    let mut plan = GroupedPlan::<i64>::new(&context, &problem).expect("tunes");
    assert!(!plan.variant().expect("is there").contains("reference"));
    let mut random = Random(3);
    for _ in 0..5 {
        let offsets = groups(40, 3, &mut random);
        let (x, w) = (dense::<f32>(40 * 8, &mut random), dense::<f32>(3 * 64, &mut random));
        let mut y = vec![f32::NAN; 40 * 8];
        plan.matmul(&x, &w, &offsets, &mut y).expect("fits");
        assert_close(&y, &expected(&wide(&x), &wide(&w), [40, 8, 8], &offsets));
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let context = context();
    let problem = Grouped::matmul::<f32>([4, 4, 4], 2);
    let (x, w, mut y) = (vec![1f32; 16], vec![1f32; 32], vec![0f32; 16]);
    let names = |error: Result<(), Error>, kind: &str, word: &str| {
        let error = error.expect_err("refused");
        assert_eq!(error.name(), kind, "{error}");
        assert!(error.message().contains(word), "{error} does not name {word}");
    };
    names(context.grouped_matmul(&problem, &x, &w, &[0i64, 4], &mut y), "SAT_BAD_SIZE", "offsets has 2 entries");
    names(context.grouped_matmul(&problem, &x, &w, &[0i64, 5, 4], &mut y), "SAT_BAD_ROW_PTR", "offsets[1] is 5");
    names(context.grouped_matmul(&problem, &x, &w[..31], &[0i64, 2, 4], &mut y), "SAT_BAD_SIZE", "w has 31");
    names(context.grouped_matmul(&problem, &x[..15], &w, &[0i64, 2, 4], &mut y), "SAT_BAD_SIZE", "x has 15");
    names(context.grouped_weights(&problem, &x, &w, &[0i64, 2, 4], &mut y), "SAT_UNSUPPORTED", "the problem is");
    let bias = vec![1f32; 8];
    names(
        context.grouped_matmul_bias(&problem, (&x, &w), &[0i64, 2, 4], &mut y, &bias),
        "SAT_UNSUPPORTED",
        "bias is given",
    );
    let doubles = vec![1f64; 16];
    names(context.grouped_matmul(&problem, &doubles, &w, &[0i64, 2, 4], &mut y), "SAT_UNSUPPORTED", "x is F64");
}
