//! The vocabulary: dtypes, efforts, activations.

use half::{bf16, f16};
use sparse_autotune_sys as sys;

/// The type of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit floats with the exponent of f32.
    BF16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::F16 | Self::BF16 => 2,
        }
    }

    pub(crate) const fn raw(self) -> sys::sat_dtype {
        match self {
            Self::F32 => sys::SAT_F32,
            Self::F64 => sys::SAT_F64,
            Self::F16 => sys::SAT_F16,
            Self::BF16 => sys::SAT_BF16,
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What a matrix can hold: `f32`, `f64`, [`half::f16`], [`half::bf16`]. Every bit pattern of these is a value.
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + Send + Sync + std::fmt::Debug + 'static {
    /// The name of this type at run time.
    const DTYPE: Dtype;
}

/// What indices can be: `i32` and `i64`.
pub trait Index: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    #[doc(hidden)]
    const RAW: sys::sat_index_type;
}

macro_rules! implement {
    ($trait:ident, $constant:ident: $($type:ty => $value:expr),*) => {
        $(impl sealed::Sealed for $type {}
        impl $trait for $type { const $constant: kind!($trait) = $value; })*
    };
}
macro_rules! kind {
    (Element) => {
        Dtype
    };
    (Index) => {
        sys::sat_index_type
    };
}
implement!(Element, DTYPE: f32 => Dtype::F32, f64 => Dtype::F64, f16 => Dtype::F16, bf16 => Dtype::BF16);
implement!(Index, RAW: i32 => sys::SAT_I32, i64 => sys::SAT_I64);

/// How much may be spent to answer a problem that the cache does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// `$SPARSE_AUTOTUNE` (off, cached, quick, full, pinned), else quick.
    #[default]
    Default,
    /// The estimate decides; the cache is neither read nor written.
    Off,
    /// The cache, else the estimate; the miss is noted for a later `sparse_autotune tune`.
    Cached,
    /// The cache, else a race of about a second.
    Quick,
    /// The cache, else a race of about ten seconds that skips no variant.
    Full,
    /// The cache's winner and nothing else, so that every run gives the same bits; [`Error::NotFound`](crate::Error) where
    /// the cache does not know the problem.
    Pinned,
}

impl Effort {
    pub(crate) const fn raw(self) -> sys::sat_effort {
        match self {
            Self::Default => sys::SAT_EFFORT_DEFAULT,
            Self::Off => sys::SAT_EFFORT_OFF,
            Self::Cached => sys::SAT_EFFORT_CACHED,
            Self::Quick => sys::SAT_EFFORT_QUICK,
            Self::Full => sys::SAT_EFFORT_FULL,
            Self::Pinned => sys::SAT_EFFORT_PINNED,
        }
    }

    pub(crate) const fn from_raw(raw: sys::sat_effort) -> Self {
        match raw {
            sys::SAT_EFFORT_OFF => Self::Off,
            sys::SAT_EFFORT_CACHED => Self::Cached,
            sys::SAT_EFFORT_QUICK => Self::Quick,
            sys::SAT_EFFORT_FULL => Self::Full,
            sys::SAT_EFFORT_PINNED => Self::Pinned,
            _ => Self::Default,
        }
    }
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Measure {
    /// Operands out of the cache before each run.
    #[default]
    Cold,
    /// Back to back.
    Warm,
}

/// What is applied to each element of the product, after the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 * (1 + erf(x/sqrt 2))`.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Activation {
    pub(crate) const fn raw(self) -> sys::sat_activation {
        match self {
            Self::None => sys::SAT_ACT_NONE,
            Self::Relu => sys::SAT_ACT_RELU,
            Self::Gelu => sys::SAT_ACT_GELU,
            Self::Silu => sys::SAT_ACT_SILU,
        }
    }
}

/// Which kind of device a context has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// This machine's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}
