//! The product with all its settings, and a look at how it is chosen.

use burn::config::Config;
use burn::tensor::Tensor;
use sparse_autotune::{Activation, Effort, Race};

use crate::backend::SparseBackend;
use crate::spec::{MatmulSpec, Side};
use crate::tensor::BsrTensor;

/// How much may be spent on tuning a product that the cache does not know.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Tuning {
    /// As `$SPARSE_AUTOTUNE` says, else quick.
    Default,
    /// Nothing: the estimate decides.
    Off,
    /// Nothing: the cache decides, else the estimate.
    Cached,
    /// About a second.
    Quick,
    /// About ten seconds, and no variant is skipped.
    Full,
    /// Nothing: the cache decides, and a product that it does not know panics. Every run gives the same bits.
    Pinned,
}

/// What is applied to each element of the product, after the bias.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 * (1 + erf(x/sqrt 2))`.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// The settings of a product.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct BsrGemmConfig {
    /// The scale of the product.
    #[config(default = 1.0)]
    pub alpha: f64,
    /// What is applied to each element.
    #[config(default = "Epilogue::None")]
    pub epilogue: Epilogue,
    /// How much may be spent on tuning.
    #[config(default = "Tuning::Default")]
    pub tuning: Tuning,
    /// f32 products may round their inputs to TF32.
    #[config(default = false)]
    pub allow_tf32: bool,
    /// Variants whose result depends on timing may take part.
    #[config(default = false)]
    pub allow_nondeterministic: bool,
    /// Bare dense products may win too: their result differs where the dense operand has Inf or NaN.
    #[config(default = false)]
    pub allow_dense: bool,
}

impl Default for BsrGemmConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl From<BsrGemmConfig> for MatmulSpec {
    fn from(config: BsrGemmConfig) -> Self {
        Self {
            transpose: false,
            side: Side::Left,
            alpha: config.alpha,
            activation: match config.epilogue {
                Epilogue::None => Activation::None,
                Epilogue::Relu => Activation::Relu,
                Epilogue::Gelu => Activation::Gelu,
                Epilogue::Silu => Activation::Silu,
            },
            effort: match config.tuning {
                Tuning::Default => Effort::Default,
                Tuning::Off => Effort::Off,
                Tuning::Cached => Effort::Cached,
                Tuning::Quick => Effort::Quick,
                Tuning::Full => Effort::Full,
                Tuning::Pinned => Effort::Pinned,
            },
            allow_tf32: config.allow_tf32,
            allow_nondeterministic: config.allow_nondeterministic,
            allow_dense: config.allow_dense,
        }
    }
}

/// The product of a block-sparse and a dense matrix, by the fastest implementation that gives the right result here.
#[derive(Debug, Clone, Copy)]
pub struct BsrGemm;

impl BsrGemm {
    /// `epilogue(alpha*a*b)`, tuned as `config` says: the first product of its kind on this machine is raced, later ones
    /// find the answer in the cache, which C and Python share.
    ///
    /// # Panics
    /// If the operands do not fit together.
    pub fn auto_tuned<B: SparseBackend, const D: usize>(
        a: &BsrTensor<B>,
        b: Tensor<B, D>,
        config: &BsrGemmConfig,
    ) -> Tensor<B, D> {
        a.product(b, None, (*config).into())
    }

    /// Every implementation of that product on this machine, checked and timed, or as the cache remembers it. None on a
    /// backend that has but one.
    ///
    /// # Panics
    /// If the operands do not fit together.
    pub fn race<B: SparseBackend>(
        a: &BsrTensor<B>,
        b: Tensor<B, 2>,
        config: &BsrGemmConfig,
    ) -> sparse_autotune::Result<Option<Race>> {
        let spec = MatmulSpec { transpose: a.is_transposed(), ..(*config).into() };
        let float = |tensor: burn::tensor::TensorPrimitive<B>| tensor.tensor();
        B::bsr_race(a.pattern(), float(a.values().into_primitive()), float(b.into_primitive()), None, spec)
    }
}
