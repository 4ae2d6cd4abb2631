//! What the tests share.
#![allow(dead_code)]

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData, Tolerance};
use burn_sparse::{BsrPattern, BsrTensor};

/// Nothing a test does may touch the user's cache or spend time on tuning.
pub fn setup() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: before any other thread of this process reads the environment: every test begins with this.
    ONCE.call_once(|| unsafe { std::env::set_var("SPARSE_AUTOTUNE", "off") });
}

pub mod attention;
mod testing;
pub use testing::Random;

impl Random {
    /// Sixteenths from -1 to 1: sums of a few are exact in f32.
    pub fn value(&mut self) -> f32 {
        self.below(33) as f32 / 16.0 - 1.0
    }

    pub fn tensor<B: Backend, const D: usize>(&mut self, shape: [usize; D], dtype: DType) -> Tensor<B, D> {
        let len = shape.iter().product();
        let values: Vec<f32> = (0..len).map(|_| self.value()).collect();
        from_values(values, shape, dtype)
    }

    /// Half of the blocks, or some in every other row, or one full row and few besides; with NaN beyond the matrix, which
    /// nobody may look at.
    pub fn matrix<B: Backend>(&mut self, shape: [usize; 2], block: [usize; 2], dtype: DType) -> BsrTensor<B> {
        let kind = self.below(3);
        let pattern = BsrPattern::from_mask(shape, block, |row, _| match kind {
            0 => self.below(2) == 0,
            1 => row % 2 == 1 && self.below(2) == 0,
            _ => row == 1 || self.below(8) == 0,
        });
        let mut values = Vec::new();
        for row in 0..pattern.row_ptr().len() - 1 {
            for number in pattern.row_ptr()[row]..pattern.row_ptr()[row + 1] {
                let col = pattern.col_indices()[number as usize] as usize;
                for at in 0..block[0] * block[1] {
                    let (i, j) = (row * block[0] + at / block[1], col * block[1] + at % block[1]);
                    values.push(if i < shape[0] && j < shape[1] { self.value() } else { f32::NAN });
                }
            }
        }
        let count = [pattern.stored_blocks(), block[0], block[1]];
        BsrTensor::from_pattern(pattern, from_values::<B, 3>(values, count, dtype))
    }
}

pub fn from_values<B: Backend, const D: usize>(values: Vec<f32>, shape: [usize; D], dtype: DType) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, shape).convert_dtype(dtype), (&Default::default(), dtype))
}

/// Equal within what the dtype can say: the tests' numbers are sums that f32 holds exactly, and the two sides together
/// round to their dtype six times at most (a batch's items, their sum, a bias), at no more than the largest magnitude.
/// Two tensors without elements are equal if their shapes are.
#[track_caller]
pub fn assert_close<B: Backend, const D: usize>(found: Tensor<B, D>, expected: Tensor<B, D>) {
    assert_close_to(found, expected.into_data());
}

/// The same, where what is expected may come from another backend.
#[track_caller]
pub fn assert_close_to<B: Backend, const D: usize>(found: Tensor<B, D>, expected: TensorData) {
    assert_close_by(found, expected, 6.0);
}

/// The same, with so many roundings to the dtype.
#[track_caller]
pub fn assert_close_by<B: Backend, const D: usize>(found: Tensor<B, D>, expected: TensorData, roundings: f64) {
    let unit = match found.dtype() {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    };
    let largest = expected.iter::<f64>().fold(1.0, |most: f64, value| most.max(value.abs()));
    compare(found, expected, 1e-4 + roundings * unit * largest);
}

/// Equal within a bound that the caller knows.
#[track_caller]
pub fn assert_within<B: Backend, const D: usize>(found: Tensor<B, D>, expected: Tensor<B, D>, bound: f64) {
    compare(found, expected.into_data(), bound);
}

#[track_caller]
fn compare<B: Backend, const D: usize>(found: Tensor<B, D>, expected: TensorData, bound: f64) {
    let found = found.into_data();
    assert_eq!(found.shape, expected.shape);
    expected.convert::<f64>().assert_approx_eq::<f64>(&found.convert::<f64>(), Tolerance::absolute(bound));
}
