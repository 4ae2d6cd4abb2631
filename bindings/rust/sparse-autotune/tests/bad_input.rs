//! Bad input gives an error that names the argument, and never more than that.

mod common;

use common::{Matrix, Random, context};
use proptest::prelude::*;
use sparse_autotune::{Bsr, Context, Dtype, Error, Layout, Pattern, Plan, Problem, Result};

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
    refused(Plan::with_variant(&c, &p, &problem, "no_such_variant"), Error::NotFound, &["no_such_variant"]);
    refused(Plan::with_variant(&c, &p, &problem, "zero\0byte"), Error::BadFormat, &["variant", "4"]);
    refused(Plan::new(&c, &p, &problem.alignment([3, 4, 4])), Error::Misaligned, &["align"]);
}

#[test]
fn contexts_say_what_they_cannot_open() {
    refused(Context::builder().device("abacus").build(), Error::NotFound, &["abacus"]);
    refused(Context::builder().device("c\0pu").build(), Error::BadFormat, &["device"]);
    refused(Context::builder().device("cpu").threads(usize::MAX).build(), Error::BadSize, &["threads"]);
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
