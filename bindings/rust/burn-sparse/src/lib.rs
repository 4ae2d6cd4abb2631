//! Block-sparse (BSR) tensors and layers for [Burn](https://burn.dev): right, and as fast as the machine allows.
//!
//! Every product goes to the implementation that `sparse-autotune` found fastest on this machine, among those whose result
//! it found right. The first product of a kind is raced, which takes about a second; later ones, in any process, find the
//! answer in a cache.
//!
//! ```
//! use burn::backend::NdArray;
//! use burn::tensor::Tensor;
//! use burn_sparse::BsrTensor;
//!
//! # unsafe { std::env::set_var("SPARSE_AUTOTUNE", "off") };
//! let device = Default::default();
//! // 4x6 in blocks of 2x2; the first block row holds blocks 0 and 2, the second block 1.
//! let values = Tensor::<NdArray, 1>::from_data([1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12.], &device);
//! let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values, [4, 6], 2);
//! let b = Tensor::<NdArray, 2>::ones([6, 3], &device);
//! let c = a.matmul(b.clone());
//! c.into_data().assert_eq(&a.to_dense().matmul(b).into_data(), true);
//! ```
//!
//! | backend | how |
//! |---|---|
//! | `NdArray`, `Flex` | the library's CPU kernels, on the tensors' own memory |
//! | `Cuda`, plain and under `Fusion` (feature `cuda`, `fusion`) | the library's CUDA kernels, on the device's memory |
//! | `Wgpu` and CubeCL's others (feature `wgpu`) | Burn's own tensor operations |
//! | `Autodiff<B>` over all of them | gradients to values, dense operand and bias; to Q, K and V |
//!
//! [`SparseLinear`] stands in for [`burn::nn::Linear`], [`BsrGemm`] has the settings of a product and shows its race,
//! [`attention`] is attention, dense or under a mask of blocks.
#![warn(missing_docs)]

mod attention;
pub mod backend;
mod engine;
mod gemm;
mod linear;
mod pattern;
mod spec;
mod tensor;

pub use attention::{AttentionOptions, attention, attention_with_sinks, try_attention, try_attention_with_sinks};
pub use backend::SparseBackend;
pub use gemm::{BsrGemm, BsrGemmConfig, Epilogue, Tuning};
pub use linear::{SparseLinear, SparseLinearConfig, SparseLinearRecord};
pub use pattern::{BlockSize, BsrPattern, Indices, PatternModule};
pub use sparse_autotune::{Activation, Effort, Error, Race, RaceResult, Result, Verdict};
pub use spec::{MatmulSpec, Side};
pub use tensor::BsrTensor;

/// The README's program is compiled and run as the examples of the documentation are.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
