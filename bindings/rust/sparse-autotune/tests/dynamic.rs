//! Products of patterns whose indices change, on right and on faulty indices under one plan, against loops.

mod common;

use common::{Number, Random, assert_close, context, product, transposed};
use proptest::prelude::*;
use sparse_autotune::{
    Attention, Context, Dtype, DynamicPattern, DynamicPlan, Error, Hints, Index, Problem, Result, bf16, f16,
};

#[derive(Debug, Clone)]
struct Shape {
    size: [usize; 2],
    block: [usize; 2],
    capacity: usize,
}

/// Indices as the arrays have them, and the row, the column and the place of each block that they stand for.
struct Mask {
    row_ptr: Vec<i64>,
    col_idx: Vec<i64>,
    blocks: Vec<[usize; 3]>,
    faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    RowPtr,
    Range,
    Order,
}

impl Shape {
    fn grid(&self) -> [usize; 2] {
        [self.size[0].div_ceil(self.block[0]), self.size[1].div_ceil(self.block[1])]
    }

    fn area(&self) -> usize {
        self.block[0] * self.block[1]
    }

    /// About half of the blocks as far as there is room, with some indices that are wrong.
    fn mask(&self, random: &mut Random, wrong: usize) -> Mask {
        let [rows, cols] = self.grid();
        let (mut row_ptr, mut col_idx) = (vec![0i64], Vec::new());
        for _ in 0..rows {
            let kept = (0..cols).filter(|_| random.below(2) == 0).map(|col| col as i64).collect::<Vec<_>>();
            col_idx.extend(kept.into_iter().take(self.capacity - col_idx.len()));
            row_ptr.push(col_idx.len() as i64);
        }
        col_idx.resize_with(self.capacity, || random.below(9) as i64 - 4);
        for _ in 0..wrong {
            let entries = row_ptr.len();
            let (array, limit) = if random.below(3) == 0 { (&mut row_ptr, entries) } else { (&mut col_idx, cols) };
            if !array.is_empty() {
                let at = random.below(array.len());
                array[at] = random.below(limit + 4) as i64 - 2;
            }
        }
        self.read(row_ptr, col_idx)
    }

    /// What indices stand for, by the rules.
    fn read(&self, row_ptr: Vec<i64>, col_idx: Vec<i64>) -> Mask {
        let [rows, cols] = self.grid();
        let (mut blocks, mut faults) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let (begin, end) = (row_ptr[row], row_ptr[row + 1]);
            if (row == 0 && begin != 0) || end < begin || end > self.capacity as i64 {
                faults.push(Fault::RowPtr);
                break;
            }
            let columns = &col_idx[begin as usize..end as usize];
            let known = faults.len();
            faults.extend(columns.iter().any(|&col| col < 0 || col >= cols as i64).then_some(Fault::Range));
            faults.extend(columns.windows(2).any(|pair| pair[0] >= pair[1]).then_some(Fault::Order));
            if faults.len() == known {
                blocks.extend(columns.iter().enumerate().map(|(at, &col)| [row, col as usize, begin as usize + at]));
            }
        }
        Mask { row_ptr, col_idx, blocks, faults }
    }

    /// Each element of a block that is inside the matrix: its row, its column, and its place among the values.
    fn elements(&self, mask: &Mask) -> Vec<[usize; 3]> {
        let each = |&[row, col, place]: &[usize; 3]| {
            let [height, width] = self.block;
            let inside =
                move |at: usize| [row * height + at / width, col * width + at % width, place * height * width + at];
            (0..height * width).map(inside).collect::<Vec<_>>()
        };
        let all = mask.blocks.iter().flat_map(each);
        all.filter(|[row, col, _]| *row < self.size[0] && *col < self.size[1]).collect()
    }
}

/// A fault where there is one, of a kind that there is.
fn expect(found: Result<()>, mask: &Mask) {
    let kind = match found {
        Ok(()) => None,
        Err(Error::BadRowPtr(_)) => Some(Fault::RowPtr),
        Err(Error::ColumnRange(_)) => Some(Fault::Range),
        Err(Error::ColumnOrder(_)) => Some(Fault::Order),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(kind.is_some(), !mask.faults.is_empty(), "{kind:?} of {:?}", mask.faults);
    assert!(kind.is_none_or(|kind| mask.faults.contains(&kind)), "{kind:?} of {:?}", mask.faults);
}

trait Entry: Index {
    fn of(value: i64) -> Self;
}
impl Entry for i32 {
    fn of(value: i64) -> Self {
        value as i32
    }
}
impl Entry for i64 {
    fn of(value: i64) -> Self {
        value
    }
}

fn put<I: Entry>(pattern: &mut DynamicPattern<I>, mask: &Mask) {
    let entries = |values: &[i64]| values.iter().map(|&value| I::of(value)).collect::<Vec<_>>();
    pattern.set(&entries(&mask.row_ptr), &entries(&mask.col_idx)).unwrap();
}

fn numbers<T: Number>(len: usize, random: &mut Random) -> (Vec<T>, Vec<f64>) {
    let values: Vec<f64> = (0..len).map(|_| random.value()).collect();
    (values.iter().map(|&value| T::of(value)).collect(), values)
}

/// One plan, many masks.
fn products<T: Number, I: Entry>(shape: &Shape, n: usize, transpose: bool, bias: bool, seed: u64) {
    let (context, mut random) = (context(), Random(seed));
    let mut pattern = DynamicPattern::<I>::new(&context, shape.size, shape.block, shape.capacity).unwrap();
    let [m, k] = if transpose { [shape.size[1], shape.size[0]] } else { shape.size };
    let problem = Problem::matmul::<T>(n).transpose(transpose).bias(bias);
    let mut plan = DynamicPlan::new(&context, &pattern, &problem).unwrap();
    for round in 0..6 {
        let mask = shape.mask(&mut random, [0, 0, 1, 2, 0, 8][round]);
        put(&mut pattern, &mask);
        // NaN in all that belongs to no block, or is beyond the matrix.
        let mut values = vec![T::of(f64::NAN); shape.capacity * shape.area()];
        let mut dense = vec![0.0; shape.size[0] * shape.size[1]];
        for [row, col, place] in shape.elements(&mask) {
            let value = random.value();
            (values[place], dense[row * shape.size[1] + col]) = (T::of(value), value);
        }
        let dense = if transpose { transposed(&dense, k, m) } else { dense };
        let ((b, b_wide), (more, more_wide)) = (numbers::<T>(k * n, &mut random), numbers::<T>(m, &mut random));
        let mut expected = product(&dense, &b_wide, m, k, n);
        let mut c = vec![T::of(f64::NAN); m * n];
        let mut copy = plan.try_clone().unwrap();
        let plan = if round == 4 { &mut copy } else { &mut plan };
        if bias {
            expected.iter_mut().enumerate().for_each(|(at, value)| *value += more_wide[at / n]);
            expect(plan.matmul_bias(&pattern, &values, &b, &mut c, &more), &mask);
        } else {
            expect(plan.matmul(&pattern, &values, &b, &mut c), &mask);
        }
        assert_close(&c, &expected);
    }
}

fn samples<T: Number, I: Entry>(shape: &Shape, k: usize, seed: u64) {
    let (context, mut random) = (context(), Random(seed));
    let hints = Hints { density: 0.5, skew: 1.5 };
    let mut pattern =
        DynamicPattern::<I>::with_hints(&context, shape.size, shape.block, shape.capacity, hints).unwrap();
    let mut plan = DynamicPlan::new(&context, &pattern, &Problem::sampled::<T>(k)).unwrap();
    for wrong in [0, 0, 1, 2, 8] {
        let mask = shape.mask(&mut random, wrong);
        put(&mut pattern, &mask);
        let ((x, x_wide), (y, y_wide)) =
            (numbers::<T>(shape.size[0] * k, &mut random), numbers::<T>(k * shape.size[1], &mut random));
        let dense = product(&x_wide, &y_wide, shape.size[0], k, shape.size[1]);
        let mut expected = vec![0.0; shape.capacity * shape.area()];
        for [row, col, place] in shape.elements(&mask) {
            expected[place] = dense[row * shape.size[1] + col];
        }
        let mut values = vec![T::of(f64::NAN); expected.len()];
        expect(plan.sampled(&pattern, &x, &y, &mut values), &mask);
        assert_close(&values, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_follow_the_indices(
        size in prop::array::uniform2(1usize..40), block in prop::array::uniform2(1usize..9), full: bool, room in 1usize..30,
        n in 1usize..20, transpose: bool, bias: bool, dtype in 0usize..4, wide: bool, seed in any::<u64>(),
    ) {
        let mut shape = Shape { size, block, capacity: 0 };
        let [rows, cols] = shape.grid();
        shape.capacity = if full { rows * cols } else { room.min(rows * cols) };
        match (dtype, wide) {
            (0, false) => products::<f32, i32>(&shape, n, transpose, bias, seed),
            (0, true) => products::<f32, i64>(&shape, n, transpose, bias, seed),
            (1, _) => products::<f64, i32>(&shape, n, transpose, bias, seed),
            (2, _) => products::<f16, i64>(&shape, n, transpose, bias, seed),
            _ => products::<bf16, i32>(&shape, n, transpose, bias, seed),
        }
        match (dtype, wide) {
            (0, false) => samples::<f32, i64>(&shape, n, seed),
            (0, true) => samples::<f32, i32>(&shape, n, seed),
            (1, _) => samples::<f64, i64>(&shape, n, seed),
            (2, _) => samples::<f16, i32>(&shape, n, seed),
            _ => samples::<bf16, i64>(&shape, n, seed),
        }
    }
}

#[test]
fn a_pattern_begins_without_blocks() {
    let context = context();
    let pattern = DynamicPattern::<i32>::new(&context, [3, 5], [2, 2], 4).unwrap();
    assert_eq!((pattern.shape(), pattern.block(), pattern.capacity()), ([3, 5], [2, 2], 4));
    assert_eq!(pattern.indices(), (&[0; 3][..], &[0; 4][..]));
    let mut c = [f32::NAN; 6];
    let mut plan = DynamicPlan::new(&context, &pattern, &Problem::matmul::<f32>(2)).unwrap();
    plan.matmul(&pattern, &[f32::NAN; 16], &[1f32; 10], &mut c).unwrap();
    assert_eq!(c, [0.0; 6]);
    assert!(!plan.info().unwrap().variant.is_empty());
}

/// Patterns move and threads share them: addresses stay, and a pattern may go before its plans.
#[test]
fn patterns_move_and_threads_share_them() {
    let context = context();
    let mut pattern = DynamicPattern::<i64>::new(&context, [2, 2], [1, 1], 2).unwrap();
    let plan = DynamicPlan::new(&context, &pattern, &Problem::matmul::<f64>(1)).unwrap();
    pattern.set(&[0, 1, 2], &[1, 0]).unwrap();
    let pattern = Box::new(pattern);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (pattern, mut plan) = (&pattern, plan.try_clone().unwrap());
            scope.spawn(move || {
                let mut c = [0f64; 2];
                plan.matmul(pattern, &[2.0, 3.0], &[10.0, 100.0], &mut c).unwrap();
                assert_eq!(c, [200.0, 30.0]);
            });
        }
    });
    drop(pattern);
    drop(plan);
}

#[test]
fn what_does_not_fit_is_refused() {
    #[track_caller]
    fn refused<T: std::fmt::Debug>(found: Result<T>, kind: impl Fn(String) -> Error, words: &[&str]) {
        let error = found.expect_err("this does not fit");
        assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&kind(String::new())), "{error}");
        words.iter().for_each(|word| assert!(error.message().contains(word), "{error} does not say {word}"));
    }
    let c = context();
    let new = |shape, block, capacity| DynamicPattern::<i32>::new(&c, shape, block, capacity);
    refused(new([4, 4], [0, 2], 1), Error::BadBlock, &["block is 0x2"]);
    refused(new([4, 4], [2, 2], 5), Error::BadSize, &["capacity is 5", "2x2"]);
    refused(new([usize::MAX, 1], [1, 1], 0), Error::BadSize, &["shape[0] is", "2^63-1"]);
    refused(new([1 << 60, 1], [1, 1], 1), Error::OutOfMemory, &["row_ptr"]);
    refused(new([1, 1 << 60], [1, 1], 1 << 60), Error::OutOfMemory, &["col_idx"]);
    refused(new([1 << 40, 1 << 40], [1 << 39, 1 << 39], 4), Error::BadSize, &["capacity is 4"]);
    for hints in [Hints { density: 1.5, skew: 0.0 }, Hints { density: f64::NAN, skew: 0.0 }] {
        refused(DynamicPattern::<i32>::with_hints(&c, [4, 4], [2, 2], 1, hints), Error::BadSize, &["density is"]);
    }
    let hints = Hints { density: 0.0, skew: -1.0 };
    refused(DynamicPattern::<i32>::with_hints(&c, [4, 4], [2, 2], 1, hints), Error::BadSize, &["skew is -1"]);

    let mut pattern = new([4, 4], [2, 2], 2).unwrap();
    refused(pattern.set(&[0, 1], &[0]), Error::BadRowPtr, &["row_ptr has 2", "3"]);
    refused(pattern.set(&[0, 1, 2], &[0; 3]), Error::BadSize, &["col_idx has 3", "2"]);
    pattern.set(&[0, 1, 2], &[0, 1]).unwrap();
    let problem = Problem::matmul::<f32>(2);
    let mut plan = DynamicPlan::new(&c, &pattern, &problem).unwrap();
    let (values, b, mut out) = ([0f32; 8], [0f32; 8], [0f32; 8]);
    plan.matmul(&pattern, &values, &b, &mut out).unwrap();
    refused(plan.matmul(&pattern, &values[1..], &b, &mut out), Error::BadSize, &["values has 7", "8"]);
    refused(plan.matmul(&pattern, &values, &b[1..], &mut out), Error::BadSize, &["b has 7", "8"]);
    refused(plan.matmul(&pattern, &values, &b, &mut out[1..]), Error::BadSize, &["c has 7", "8"]);
    refused(plan.matmul_bias(&pattern, &values, &b, &mut out, &b), Error::Unsupported, &["bias is given"]);
    refused(plan.sampled(&pattern, &values, &b, &mut out), Error::Unsupported, &["Matmul", "Sampled"]);
    let other = new([4, 4], [2, 2], 2).unwrap();
    refused(plan.matmul(&other, &values, &b, &mut out), Error::Unsupported, &["pattern is another one"]);
    let attention = Problem::attention_of(Dtype::F32, &Attention::new(1, 8));
    refused(DynamicPlan::new(&c, &pattern, &attention), Error::Unsupported, &["Attention", "product"]);
}

/// The race reads none of the indices, faulty as they are.
#[test]
fn a_plan_is_raced_on_masks_of_the_librarys() {
    let context = Context::builder().device("cpu").cache_in_memory().build().unwrap();
    let mut pattern = DynamicPattern::<i32>::new(&context, [64, 64], [8, 8], 32).unwrap();
    pattern.indices_mut().0.fill(-1);
    let plan = DynamicPlan::new(&context, &pattern, &Problem::matmul::<f32>(16)).unwrap();
    let info = plan.info().unwrap();
    assert!(info.tuned && info.verified, "{info:?}");
}
