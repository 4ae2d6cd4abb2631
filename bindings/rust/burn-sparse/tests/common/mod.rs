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

/// Numbers that tests can be repeated with.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Sixteenths from -1 to 1: sums of a few are exact in f32.
    pub fn value(&mut self) -> f32 {
        self.below(33) as f32 / 16.0 - 1.0
    }

    pub fn tensor<B: Backend, const D: usize>(&mut self, shape: [usize; D], dtype: DType) -> Tensor<B, D> {
        let len = shape.iter().product();
        let values: Vec<f32> = (0..len).map(|_| self.value()).collect();
        from_values(values, shape, dtype)
    }

    /// About half of the blocks, with NaN beyond the matrix, which nobody may look at.
    pub fn matrix<B: Backend>(&mut self, shape: [usize; 2], block: [usize; 2], dtype: DType) -> BsrTensor<B> {
        let pattern = BsrPattern::from_mask(shape, block, |_, _| self.below(2) == 0);
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

/// Equal within what the dtype can say; two tensors without elements are equal if their shapes are.
#[track_caller]
pub fn assert_close<B: Backend, const D: usize>(found: Tensor<B, D>, expected: Tensor<B, D>) {
    assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (found.into_data(), expected.into_data());
    let loose = matches!(found.dtype, DType::F16 | DType::BF16);
    let (found, expected) = (found.convert::<f64>(), expected.convert::<f64>());
    let bound = if loose { 6e-2 } else { 1e-4 };
    expected.assert_approx_eq::<f64>(&found, Tolerance::absolute(bound));
}
