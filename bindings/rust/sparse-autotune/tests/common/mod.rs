//! What the tests share: contexts that touch nobody's cache, matrices, and the product by definition.
#![allow(dead_code)]

use sparse_autotune::{Bsr, Context, Effort, Element, bf16, f16};

/// A context on the CPU that remembers nothing and tunes nothing.
pub fn context() -> Context {
    Context::builder().device("cpu").cache_in_memory().effort(Effort::Off).build().expect("a CPU is always there")
}

mod testing;
pub use testing::Random;

impl Random {
    /// Small integers, so that sums are exact in every dtype but the 16-bit ones' outputs.
    pub fn value(&mut self) -> f64 {
        self.below(9) as f64 - 4.0
    }
}

/// A dtype with the way to and from f64.
pub trait Number: Element {
    fn of(value: f64) -> Self;
    fn to(self) -> f64;
}

macro_rules! numbers {
    ($($type:ty: $of:expr, $to:expr;)*) => {
        $(impl Number for $type {
            fn of(value: f64) -> Self { $of(value) }
            fn to(self) -> f64 { $to(self) }
        })*
    };
}
numbers! {
    f32: |v| v as f32, f64::from;
    f64: |v| v, |v| v;
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
}

/// A pattern and values, as a user would have them.
#[derive(Debug, Clone)]
pub struct Matrix<T> {
    pub shape: [usize; 2],
    pub block: [usize; 2],
    pub row_ptr: Vec<i64>,
    pub col_idx: Vec<i64>,
    pub values: Vec<T>,
}

impl<T: Number> Matrix<T> {
    /// About half of the blocks, with NaN in the padding, which nobody may look at.
    pub fn random(shape: [usize; 2], block: [usize; 2], random: &mut Random) -> Self {
        let (mut row_ptr, mut col_idx, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..shape[0].div_ceil(block[0]) {
            for col in 0..shape[1].div_ceil(block[1]) {
                if random.below(2) == 0 {
                    continue;
                }
                col_idx.push(col as i64);
                for i in 0..block[0] {
                    for j in 0..block[1] {
                        let inside = row * block[0] + i < shape[0] && col * block[1] + j < shape[1];
                        values.push(T::of(if inside { random.value() } else { f64::NAN }));
                    }
                }
            }
            row_ptr.push(col_idx.len() as i64);
        }
        Self { shape, block, row_ptr, col_idx, values }
    }

    pub fn bsr(&self, context: &Context) -> sparse_autotune::Result<Bsr<T>> {
        Bsr::new(context, self.shape, self.block, &self.row_ptr, &self.col_idx, self.values.clone())
    }

    /// Row-major.
    pub fn dense(&self) -> Vec<f64> {
        let mut dense = vec![0.0; self.shape[0] * self.shape[1]];
        for row in 0..self.row_ptr.len() - 1 {
            for number in self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize {
                for i in 0..self.block[0] {
                    for j in 0..self.block[1] {
                        let (r, c) = (row * self.block[0] + i, self.col_idx[number] as usize * self.block[1] + j);
                        if r < self.shape[0] && c < self.shape[1] {
                            dense[r * self.shape[1] + c] =
                                self.values[(number * self.block[0] + i) * self.block[1] + j].to();
                        }
                    }
                }
            }
        }
        dense
    }
}

/// `a` is m x k and `b` k x n, both row-major.
pub fn product(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

pub fn transposed(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|at| a[(at % rows) * cols + at / rows]).collect()
}

pub fn dense<T: Number>(len: usize, random: &mut Random) -> Vec<T> {
    (0..len).map(|_| T::of(random.value())).collect()
}

pub fn wide<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.to()).collect()
}

pub fn assert_close<T: Number>(found: &[T], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = 1e-2 * expected.abs() + 1e-5;
        assert!((found.to() - expected).abs() <= bound, "element {at} is {}, expected {expected}", found.to());
    }
}
