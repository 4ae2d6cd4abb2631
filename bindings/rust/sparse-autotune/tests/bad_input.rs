//! Bad input gives an error that names the argument, and never more than that.

mod common;

use std::ptr;

use common::{Matrix, Random, context};
use proptest::prelude::*;
use sparse_autotune::{
    Activation, Attention, Bsr, Context, Dtype, Error, HeadLayout, Layout, Pattern, Plan, Problem, Result,
};

fn pattern(context: &Context) -> Pattern {
    Pattern::new(context, [4, 6], [2, 2], &[0, 2, 3], &[0, 2, 1]).expect("valid")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: fn(String) -> Error, words: &[&str]) {
    let error = result.expect_err("this is bad input");
    assert_eq!(error.name(), kind(String::new()).name(), "{error}");
    for word in words {
        assert!(error.message().contains(word), "{error} does not say {word}");
    }
}

#[test]
fn indices_are_checked() {
    let c = context();
    let new = |shape, block, row_ptr: &[i32], col_idx: &[i32]| Pattern::new(&c, shape, block, row_ptr, col_idx);
    refused(new([4, 6], [0, 2], &[0, 2, 3], &[0, 2, 1]), Error::BadBlock, &["block", "0x2"]);
    refused(new([4, 6], [2, 2], &[0, 3], &[0, 2, 1]), Error::BadRowPtr, &["row_ptr", "2 entries"]);
    refused(new([4, 6], [2, 2], &[], &[]), Error::BadRowPtr, &["row_ptr", "0 entries"]);
    refused(new([4, 6], [2, 2], &[1, 2, 3], &[0, 2, 1]), Error::BadRowPtr, &["row_ptr"]);
    refused(new([4, 6], [2, 2], &[0, 2, 1], &[0, 2, 1]), Error::BadRowPtr, &["row_ptr"]);
    refused(new([4, 6], [2, 2], &[0, 2, 4], &[0, 2, 1]), Error::BadRowPtr, &["row_ptr"]);
    refused(new([4, 6], [2, 2], &[0, 2, 3], &[0, 3, 1]), Error::ColumnRange, &["col_idx", "3"]);
    refused(new([4, 6], [2, 2], &[0, 2, 3], &[0, -1, 1]), Error::ColumnRange, &["col_idx", "-1"]);
    refused(new([4, 6], [2, 2], &[0, 2, 3], &[2, 0, 1]), Error::ColumnOrder, &["col_idx"]);
    refused(new([4, 6], [2, 2], &[0, 2, 3], &[2, 2, 1]), Error::ColumnOrder, &["col_idx"]);
    refused(new([4, usize::MAX], [2, 2], &[0, 2, 3], &[0, 2, 1]), Error::BadSize, &["shape[1]"]);
    refused(new([usize::MAX, 6], [usize::MAX, usize::MAX], &[0, 1], &[0]), Error::BadSize, &["block"]);
    refused(new([usize::MAX, 6], [1, 2], &[0, 1], &[0]), Error::BadRowPtr, &["row_ptr"]);
}

#[test]
fn operands_that_are_too_short_are_refused() {
    let c = context();
    let (p, problem) = (pattern(&c), Problem::matmul::<f32>(2));
    let (values, b) = ([1f32; 12], [1f32; 12]);
    let mut out = [0f32; 8];
    let mut plan = Plan::new(&c, &p, &problem).unwrap();
    refused(plan.matmul(&values[..11], &b, &mut out), Error::BadSize, &["values", "11", "12"]);
    refused(plan.matmul(&values, &b[..11], &mut out), Error::BadSize, &["b has 11", "12"]);
    refused(plan.matmul(&values, &b, &mut out[..7]), Error::BadSize, &["c has 7", "8"]);
    refused(plan.matmul(&values, &b, &mut [0f64; 8]), Error::Unsupported, &["c is F64", "F32"]);
    refused(plan.sampled(&values, &b, &mut out), Error::Unsupported, &["Matmul", "Sampled"]);
    refused(plan.matmul_bias(&values, &b, &mut out, &b), Error::Unsupported, &["bias"]);
    plan.matmul(&values, &b, &mut out).unwrap();

    let with_bias = problem.bias(true);
    refused(c.matmul(&p, &with_bias, &values, &b, &mut out), Error::NullPointer, &["bias"]);
    refused(c.matmul_bias(&p, &with_bias, &values, &b, &mut out, &b[..3]), Error::BadSize, &["bias has 3", "4"]);
    refused(c.sampled(&p, &Problem::sampled::<f32>(2), &b[..7], &b, &mut [0f32; 12]), Error::BadSize, &["x has 7"]);
    // Gaps count.
    let wide = problem.c_layout(Layout::row_major(100));
    refused(c.matmul(&p, &wide, &values, &b, &mut out), Error::BadSize, &["c has 8", "302"]);
}

#[test]
fn addresses_that_are_too_few_or_too_many_are_refused() {
    let c = context();
    let (p, problem) = (pattern(&c), Problem::matmul::<f32>(2));
    let (values, b, mut out) = ([1f32; 12], [1f32; 12], [0f32; 8]);
    let (inputs, outputs) = ([values.as_ptr().cast(), b.as_ptr().cast(), ptr::null()], [out.as_mut_ptr().cast(); 2]);
    let mut plan = Plan::new(&c, &p, &problem).unwrap();
    // SAFETY: those that are run with are as large as the problem says.
    let mut run = |ins: usize, outs: usize| unsafe { plan.run_raw(&inputs[..ins], &outputs[..outs], ptr::null_mut()) };
    refused(run(0, 1), Error::BadSize, &["input_count is 0", "2 (values, b)"]);
    refused(run(3, 1), Error::BadSize, &["input_count is 3", "2 (values, b)"]);
    refused(run(2, 0), Error::BadSize, &["output_count is 0", "1 (c)"]);
    refused(run(2, 2), Error::BadSize, &["output_count is 2", "1 (c)"]);
    run(2, 1).unwrap();
    // SAFETY: the same.
    let call = |ins: usize, outs: usize| unsafe {
        c.call_raw(&p, &problem, &inputs[..ins], &outputs[..outs], ptr::null_mut())
    };
    for (ins, outs) in [(0, 1), (1, 1), (2, 0), (2, 2)] {
        refused(call(ins, outs), Error::BadSize, &[&format!("inputs has {ins} entries and outputs {outs}"), "Matmul"]);
    }
    call(2, 1).unwrap();
    call(3, 1).unwrap(); // a bias that is null is none
}

#[test]
fn problems_that_make_no_sense_are_refused() {
    let c = context();
    let (p, problem) = (pattern(&c), Problem::matmul::<f32>(2));
    refused(Plan::new(&c, &p, &Problem::matmul::<f32>(usize::MAX)), Error::BadSize, &["n"]);
    refused(Plan::new(&c, &p, &problem.output(Dtype::F16)), Error::Unsupported, &["dtype"]);
    refused(
        Plan::new(&c, &p, &problem.c_layout(Layout { row_stride: 1, col_stride: 1, batch_stride: 0 })),
        Error::BadStride,
        &["c"],
    );
    refused(Plan::new(&c, &p, &problem.batch(2)), Error::BadStride, &["batch"]);
    refused(Plan::new(&c, &p, &problem.b_layout(Layout::row_major(usize::MAX))), Error::BadSize, &["b"]);
    let leading = problem.b_layout(Layout { row_stride: 8, ..Layout::default() });
    refused(Plan::new(&c, &p, &leading), Error::BadStride, &["b: col_stride is 0", "all 2 columns"]);
    Plan::new(&c, &p, &leading.allow_broadcast(true)).unwrap();
    refused(Plan::with_variant(&c, &p, &problem, "no_such_variant"), Error::NotFound, &["no_such_variant"]);
    refused(Plan::with_variant(&c, &p, &problem, "zero\0byte"), Error::BadFormat, &["variant", "4"]);
    refused(Plan::new(&c, &p, &problem.alignment([3, 4, 4])), Error::Misaligned, &["align"]);
    let sampled = Problem::sampled::<f32>(2);
    for of_matmul in [sampled.transpose(true), sampled.bias(true), sampled.activation(Activation::Relu)] {
        refused(Plan::new(&c, &p, &of_matmul), Error::Unsupported, &["transpose, bias or activation", "Sampled"]);
    }
}

#[test]
fn attention_that_makes_no_sense_is_refused() {
    let c = context();
    let mask = Pattern::full(&c, [4, 6]).unwrap();
    let plan = |attention: Attention| Plan::new(&c, &mask, &Problem::attention::<f32>(&attention));
    let good = Attention::new(2, 8);
    refused(plan(Attention::new(0, 8)), Error::BadSize, &["heads is 0"]);
    refused(plan(Attention::new(3, 8).kv_heads(2)), Error::BadSize, &["kv_heads is 2", "3"]);
    refused(plan(Attention::new(2, 0)), Error::Unsupported, &["dim is 0"]);
    refused(plan(Attention::new(2, 577)), Error::Unsupported, &["dim is 577"]);
    refused(plan(good.value_dim(577)), Error::Unsupported, &["value_dim is 577", "1 to 576"]);
    refused(plan(good.value_dim(usize::MAX)), Error::BadSize, &["v:", "overflows"]);
    for softcap in [f64::NAN, f64::INFINITY, -1.0, 1e-5, 2e6] {
        refused(plan(good.softcap(softcap)), Error::Unsupported, &["softcap is", "1e-4 to 1e6"]);
    }
    refused(plan(Attention::new(usize::MAX, 8)), Error::BadSize, &["q", "heads"]);
    refused(plan(good.window(usize::MAX)), Error::BadSize, &["window"]);
    refused(plan(good.queries(5)), Error::BadSize, &["mask has 4 rows", "5"]);
    refused(plan(good.scale(f64::NAN)), Error::Unsupported, &["scale is NaN"]);
    refused(plan(good.scale(1e39)), Error::Unsupported, &["scale is 1e39", "f32"]);
    Plan::new(&c, &mask, &Problem::attention::<f64>(&good.scale(1e39))).unwrap();
    let rows = |row_stride| HeadLayout { batch_stride: 100, head_stride: 50, row_stride };
    refused(plan(good.o_layout(rows(4))), Error::BadStride, &["o:", "4 (row)"]);
    refused(plan(good.v_layout(rows(0))), Error::BadStride, &["v: row_stride is 0", "all 6 rows"]);
    refused(plan(good.k_layout(rows(usize::MAX))), Error::BadSize, &["k:"]);
    let problem = Problem::attention::<f32>(&good);
    refused(Plan::new(&c, &mask, &problem.beta(1.0)), Error::Unsupported, &["beta is 1"]);
    refused(Plan::new(&c, &mask, &problem.bias(true)), Error::Unsupported, &["bias"]);
    refused(Plan::new(&c, &mask, &problem.transpose(true)), Error::Unsupported, &["transpose"]);
    refused(Plan::new(&c, &mask, &problem.output(Dtype::F64)), Error::Unsupported, &["dtype"]);
}

#[test]
fn operands_of_attention_are_checked() {
    let c = context();
    let mask = Pattern::full(&c, [4, 6]).unwrap();
    let attention = Attention::new(2, 8).kv_heads(1);
    let (q, k, lse) = ([0f32; 64], [0f32; 48], [0f32; 8]);
    let (mut o, mut out) = ([0f32; 64], [0f32; 8]);
    let problem = Problem::attention::<f32>(&attention);
    refused(c.attention(&mask, &problem, (&q[..63], &k, &k), &mut o), Error::BadSize, &["q has 63", "64"]);
    refused(c.attention(&mask, &problem, (&q, &k[1..], &k), &mut o), Error::BadSize, &["k has 47", "48"]);
    refused(c.attention(&mask, &problem, (&q, &k, &k[1..]), &mut o), Error::BadSize, &["v has 47", "48"]);
    refused(c.attention(&mask, &problem, (&q, &k, &k), &mut o[1..]), Error::BadSize, &["o has 63", "64"]);
    refused(c.attention(&mask, &problem, (&q, &k, &[0f64; 48]), &mut o), Error::Unsupported, &["v is F64"]);
    refused(c.attention_lse(&mask, &problem, (&q, &k, &k), &mut o, &mut out), Error::Unsupported, &["lse"]);
    refused(c.matmul(&mask, &problem, &q, &k, &mut o), Error::Unsupported, &["Attention", "Matmul"]);
    // The problem comes before slices that are too short for it.
    let mut wrong = |attention: Attention, kind, words: &[&str]| {
        refused(c.attention(&mask, &Problem::attention::<f32>(&attention), (&q, &k, &k), &mut o), kind, words)
    };
    wrong(Attention::new(2, 8).kv_heads(3), Error::BadSize, &["kv_heads is 3", "2"]);
    wrong(Attention::new(2, 577), Error::Unsupported, &["dim is 577"]);
    wrong(attention.queries(5), Error::BadSize, &["mask has 4 rows", "5"]);
    wrong(Attention::new(3, 8).scale(f64::NAN), Error::Unsupported, &["scale is NaN"]);
    let with = Problem::attention::<f32>(&attention.lse(true));
    refused(c.attention(&mask, &with, (&q, &k, &k), &mut o), Error::NullPointer, &["lse"]);
    refused(c.attention_lse(&mask, &with, (&q, &k, &k), &mut o, &mut out[1..]), Error::BadSize, &["lse has 7", "8"]);

    let back = Problem::attention_backward::<f32>(&attention);
    let mut plan = Plan::new(&c, &mask, &back).unwrap();
    let (mut dq, mut dk, mut dv) = ([0f32; 64], [0f32; 48], [0f32; 48]);
    let mut run = |lse: &[f32], d_o: &[f32], less: [usize; 3]| {
        let grads = (&mut dq[less[0]..], &mut dk[less[1]..], &mut dv[less[2]..]);
        plan.attention_backward((&q, &k, &k), (&o, lse), d_o, grads)
    };
    run(&lse, &q, [0; 3]).unwrap();
    refused(run(&lse[1..], &q, [0; 3]), Error::BadSize, &["lse has 7", "8"]);
    refused(run(&lse, &q[1..], [0; 3]), Error::BadSize, &["do has 63", "64"]);
    refused(run(&lse, &q, [1, 0, 0]), Error::BadSize, &["dq has 63"]);
    refused(run(&lse, &q, [0, 1, 0]), Error::BadSize, &["dk has 47"]);
    refused(run(&lse, &q, [0, 0, 1]), Error::BadSize, &["dv has 47"]);
    refused(plan.attention((&q, &k, &k), &mut o), Error::Unsupported, &["AttentionBackward"]);
    let sinks = [0f32; 2];
    let more =
        plan.attention_backward_sinks((&q, &k, &k), (&o, &lse), &q, &sinks, (&mut dq, &mut dk, &mut dv), &mut out);
    refused(more, Error::Unsupported, &["sinks is given"]);
    refused(plan.refresh(&q), Error::Unsupported, &["AttentionBackward"]);
}

#[test]
fn sinks_are_checked() {
    let c = context();
    let mask = Pattern::full(&c, [4, 6]).unwrap();
    let attention = Attention::new(2, 8).kv_heads(1).value_dim(3).sinks(true);
    let (q, k, v, sinks) = ([0f32; 64], [0f32; 48], [0f32; 18], [0f32; 2]);
    let (mut o, mut lse) = ([0f32; 24], [0f32; 8]);
    let problem = Problem::attention::<f32>(&attention);
    let mut plan = Plan::new(&c, &mask, &problem).unwrap();
    plan.attention_sinks((&q, &k, &v), &sinks, &mut o).unwrap();
    refused(plan.attention_sinks((&q, &k, &v[1..]), &sinks, &mut o), Error::BadSize, &["v has 17", "18"]);
    refused(plan.attention_sinks((&q, &k, &v), &sinks, &mut o[1..]), Error::BadSize, &["o has 23", "24"]);
    refused(plan.attention_sinks((&q, &k, &v), &sinks[1..], &mut o), Error::BadSize, &["sinks has 1", "2"]);
    refused(plan.attention_sinks((&q, &k, &v), &[0f64; 2], &mut o), Error::Unsupported, &["sinks is F64", "F32"]);
    refused(plan.attention((&q, &k, &v), &mut o), Error::NullPointer, &["sinks is missing"]);
    refused(plan.attention_lse_sinks((&q, &k, &v), &sinks, &mut o, &mut lse), Error::Unsupported, &["lse is given"]);
    // One call has no argument for them.
    refused(c.attention(&mask, &problem, (&q, &k, &v), &mut o), Error::Unsupported, &["sinks", "Plan"]);
    let inputs = [q.as_ptr(), k.as_ptr(), v.as_ptr(), sinks.as_ptr()].map(|pointer| pointer.cast());
    for count in [3, 4] {
        // SAFETY: as large as the problem says.
        let call =
            unsafe { c.call_raw(&mask, &problem, &inputs[..count], &[o.as_mut_ptr().cast()], std::ptr::null_mut()) };
        assert!(call.is_err(), "{count} inputs");
    }
    let plain = Problem::attention::<f32>(&attention.sinks(false));
    let mut plan = Plan::new(&c, &mask, &plain).unwrap();
    refused(plan.attention_sinks((&q, &k, &v), &sinks, &mut o), Error::Unsupported, &["sinks is given"]);

    let mut plan = Plan::new(&c, &mask, &Problem::attention_backward::<f32>(&attention)).unwrap();
    let (mut dq, mut dk, mut dv, mut dsinks) = ([0f32; 64], [0f32; 48], [0f32; 18], [0f32; 2]);
    let mut run = |d_o: &[f32], sinks: &[f32], less: [usize; 2]| {
        let grads = (&mut dq, &mut dk, &mut dv[less[0]..]);
        plan.attention_backward_sinks((&q, &k, &v), (&o, &lse), d_o, sinks, grads, &mut dsinks[less[1]..])
    };
    run(&q[..24], &sinks, [0; 2]).unwrap();
    refused(run(&q[..23], &sinks, [0; 2]), Error::BadSize, &["do has 23", "24"]);
    refused(run(&q, &sinks[1..], [0; 2]), Error::BadSize, &["sinks has 1", "2"]);
    refused(run(&q, &sinks, [1, 0]), Error::BadSize, &["dv has 17", "18"]);
    refused(run(&q, &sinks, [0, 1]), Error::BadSize, &["dsinks has 1", "2"]);
    let without = plan.attention_backward((&q, &k, &v), (&o, &lse), &q, (&mut dq, &mut dk, &mut dv));
    refused(without, Error::NullPointer, &["sinks is missing"]);
}

#[test]
fn offsets_of_sequences_are_checked() {
    let c = context();
    let mask = Pattern::full(&c, [4, 6]).unwrap();
    let plan = |q: &[i64], kv: &[i64]| {
        Plan::new(&c, &mask.with_sequences(&c, q, kv)?, &Problem::attention::<f32>(&Attention::new(1, 8)))
    };
    plan(&[0, 1, 4], &[0, 6, 6]).unwrap();
    refused(plan(&[], &[]), Error::BadRowPtr, &["q_offsets has 0"]);
    refused(plan(&[0], &[0]), Error::BadRowPtr, &["q_offsets has 1"]);
    refused(plan(&[0, 1, 4], &[0, 6]), Error::BadRowPtr, &["kv_offsets has 2", "3"]);
    refused(plan(&[1, 1, 4], &[0, 6, 6]), Error::BadRowPtr, &["q_offsets[0]"]);
    refused(plan(&[0, 3, 2], &[0, 6, 6]), Error::BadRowPtr, &["q_offsets"]);
    refused(plan(&[0, 1, 3], &[0, 6, 6]), Error::BadRowPtr, &["q_offsets[2] is 3"]);
    refused(plan(&[0, 1, 4], &[0, 7, 7]), Error::BadRowPtr, &["kv_offsets"]);
    refused(plan(&[0, 1, 4], &[0, -1, 6]), Error::BadRowPtr, &["kv_offsets"]);
}

#[test]
fn contexts_say_what_they_cannot_open() {
    refused(Context::builder().device("abacus").build(), Error::NotFound, &["abacus"]);
    refused(Context::builder().device("c\0pu").build(), Error::BadFormat, &["device"]);
    refused(Context::builder().device("cpu").threads(usize::MAX).build(), Error::BadSize, &["threads"]);
    refused(Context::builder().multiprocessors(usize::MAX).build(), Error::BadSize, &["multiprocessors"]);
    refused(context().cache_import("/nowhere/at/all"), Error::Io, &["/nowhere/at/all"]);
    refused(context().cache_import("a\0b"), Error::BadFormat, &["file"]);
    assert_eq!(context().cache_path(), None);
}

#[test]
fn matrices_are_checked() {
    let c = context();
    refused(
        Bsr::new(&c, [4, 6], [2, 2], &[0, 2, 3], &[0, 2, 1], vec![0f32; 11]),
        Error::BadSize,
        &["values has 11", "12"],
    );
    refused(Bsr::from_dense(&c, &[0f32; 5], [2, 3], [2, 2]), Error::BadSize, &["dense has 5", "2x3"]);
    refused(Bsr::from_dense(&c, &[0f32; 6], [2, 3], [2, 0]), Error::BadBlock, &["block"]);
    refused(Bsr::from_dense(&c, &[1f32; 6], [2, 3], [usize::MAX, 2]), Error::BadSize, &["block"]);
    refused(Bsr::from_dense(&c, &[1f32; 6], [2, 3], [1 << 40, 1 << 20]), Error::OutOfMemory, &["block"]);
    for rows in [usize::MAX, 1 << 40] {
        refused(Bsr::<f32>::from_dense(&c, &[], [rows, 0], [1, 1]), Error::BadSize, &["shape[0]", "block[0]"]);
    }
    let empty = Bsr::<f32>::new(&c, [0, 1 << 50], [1, 1 << 30], &[0], &[], vec![]).unwrap();
    assert_eq!(empty.to_dense().unwrap(), []);
    refused(empty.matmul(&[], 1), Error::BadSize, &["b has 0"]);
    let a = Matrix::<f32>::random([8, 8], [4, 4], &mut Random(1)).bsr(&c).unwrap();
    refused(a.matmul(&[0.0; 8], usize::MAX / 2), Error::BadSize, &["n"]);
}

/// Any numbers at all: sizes around the edges of what fits, indices near those that are right.
fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..9, 1 => Just(usize::MAX), 1 => Just(i64::MAX as usize), 1 => (0u32..64).prop_map(|b| 1usize << b)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    /// The library says yes only where the definition does, and what it accepts can be multiplied.
    #[test]
    fn constructors_take_anything(
        rows in sizes(), cols in sizes(), block_rows in sizes(), block_cols in sizes(),
        row_ptr in prop::collection::vec(-1i64..6, 0..8), col_idx in prop::collection::vec(-1i64..6, 0..6), n in sizes(),
    ) {
        let c = shared();
        let made = Pattern::new(&c, [rows, cols], [block_rows, block_cols], &row_ptr, &col_idx);
        let small = |v: usize| v < 1 << 20;
        if [rows, cols, block_rows, block_cols].into_iter().all(small) {
            prop_assert_eq!(made.is_ok(), valid([rows, cols], [block_rows, block_cols], &row_ptr, &col_idx));
        }
        if let Ok(pattern) = made {
            // Short operands must be refused, whatever the sizes; with nothing to do they may be enough.
            let mut out = [0f32; 4];
            let _ = c.matmul(&pattern, &Problem::matmul::<f32>(n), &[0f32; 4], &[0f32; 4], &mut out);
            let _ = c.sampled(&pattern, &Problem::sampled::<f32>(n), &[0f32; 4], &[0f32; 4], &mut out);
            prop_assert_eq!(pattern.row_ptr().unwrap(), &row_ptr[..]);
        }
    }

    #[test]
    fn problems_take_anything(
        n in sizes(), batch in sizes(), strides in prop::collection::vec(sizes(), 9), transpose: bool, bias: bool,
        alpha in any::<f64>(), beta in any::<f64>(), align in prop::collection::vec(0u32..130, 3), sampled: bool,
    ) {
        let c = shared();
        let p = pattern(&c);
        let layout = |i: usize| Layout { row_stride: strides[i], col_stride: strides[i + 1], batch_stride: strides[i + 2] };
        let problem = if sampled { Problem::sampled::<f32>(n) } else { Problem::matmul::<f32>(n) };
        let problem = problem.batch(batch).transpose(transpose).bias(bias).alpha(alpha).beta(beta)
            .a_layout(layout(0)).b_layout(layout(3)).c_layout(layout(6)).alignment([align[0], align[1], align[2]]);
        let (values, mut out) = ([1f32; 64], [0f32; 64]);
        let _ = c.matmul(&p, &problem, &values, &values, &mut out);
        let _ = c.matmul_bias(&p, &problem, &values, &values, &mut out, &values);
        let _ = c.sampled(&p, &problem, &values, &values, &mut out);
        if let Ok(mut plan) = Plan::new(&c, &p, &problem) {
            let _ = plan.matmul(&values, &values, &mut out);
            let _ = plan.sampled(&values, &values, &mut out);
        }
    }

    #[test]
    fn attention_takes_anything(
        heads in sizes(), kv_heads in sizes(), dim in prop_oneof![Just(8usize), sizes()], queries in sizes(),
        window in sizes(), strides in prop::collection::vec(sizes(), 6), batch in sizes(), scale in any::<f64>(),
        shape in prop::array::uniform2(0usize..9), each in 0usize..3, causal: bool, lse: bool,
        offsets in prop::array::uniform2(prop::collection::vec(-1i64..9, 0..4)), value_dim in prop_oneof![Just(0usize), sizes()],
        softcap in prop_oneof![Just(0.0), any::<f64>()], sinks: bool,
    ) {
        let c = shared();
        let Ok(mask) = Pattern::full(&c, [shape[0] * (each + 1), shape[1]]) else { return Ok(()) };
        let mask = mask.with_sequences(&c, &offsets[0], &offsets[1]).unwrap_or(mask);
        let layout = |i: usize| HeadLayout { batch_stride: strides[i], head_stride: strides[i + 1], row_stride: strides[i + 2] };
        let attention = Attention::new(heads, dim).kv_heads(kv_heads).queries(queries).window(window).causal(causal)
            .scale(scale).lse(lse).value_dim(value_dim).softcap(softcap).sinks(sinks).q_layout(layout(0)).k_layout(layout(3)).o_layout(layout(0)).dk_layout(layout(3));
        let (values, mut outs) = ([1f32; 256], [[0f32; 256]; 3]);
        let [x, y, z] = &mut outs;
        let (inputs, problem) = ((&values, &values, &values), Problem::attention::<f32>(&attention).batch(batch));
        let _ = c.attention(&mask, &problem, inputs, &mut *x);
        let _ = c.attention_lse(&mask, &problem, inputs, &mut *x, &mut *y);
        let problem = Problem::attention_backward::<f32>(&attention).batch(batch);
        let _ = c.attention_backward(&mask, &problem, inputs, (&values, &values), &values, (&mut *x, &mut *y, &mut *z));
        if let Ok(mut plan) = Plan::new(&c, &mask, &problem) {
            let (saved, mut dsinks) = ((&values, &values), [0f32; 256]);
            let _ = plan.attention_backward_sinks(inputs, saved, &values, &values, (&mut *x, &mut *y, &mut *z), &mut dsinks);
        }
        if let Ok(mut plan) = Plan::new(&c, &mask, &Problem::attention::<f32>(&attention).batch(batch)) {
            let _ = plan.attention_sinks(inputs, &values, &mut *x);
            let _ = plan.attention_lse_sinks(inputs, &values, x, y);
        }
    }
}

fn shared() -> Context {
    static CONTEXT: std::sync::OnceLock<Context> = std::sync::OnceLock::new();
    CONTEXT.get_or_init(context).clone()
}

fn valid(shape: [usize; 2], block: [usize; 2], row_ptr: &[i64], col_idx: &[i64]) -> bool {
    if block.contains(&0) {
        return false;
    }
    let grid = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
    row_ptr.len() == grid[0] + 1
        && row_ptr[0] == 0
        && row_ptr.windows(2).all(|w| w[0] <= w[1])
        && row_ptr[grid[0]] == col_idx.len() as i64
        && col_idx.iter().all(|&c| c >= 0 && (c as usize) < grid[1])
        && row_ptr.windows(2).all(|w| col_idx[w[0] as usize..w[1] as usize].windows(2).all(|c| c[0] < c[1]))
}
