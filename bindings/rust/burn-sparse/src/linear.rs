//! A linear layer with a block-sparse weight.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::backend::SparseBackend;
use crate::pattern::{BlockSize, BsrPattern, PatternModule, room_for};
use crate::spec::{MatmulSpec, Side};
use crate::tensor::{BsrTensor, product};

/// The settings of a [`SparseLinear`].
#[derive(Config, Debug)]
pub struct SparseLinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Rows (of output features) and columns (of input features) of a block.
    #[config(default = "[32, 32]")]
    pub block_size: [usize; 2],
    /// The share of the blocks that is stored.
    #[config(default = 0.125)]
    pub density: f64,
    /// Which blocks those are.
    #[config(default = 0)]
    pub seed: u64,
    /// If a bias should be applied.
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters start. Of the inputs that a feature sees, only those that are stored count.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
}

impl SparseLinearConfig {
    /// A layer whose blocks are chosen by `seed`.
    ///
    /// # Panics
    /// If `density` is not from 0 to 1, a side of the block is 0, or the layer is too large.
    #[track_caller]
    pub fn init<B: Backend>(&self, device: &B::Device) -> SparseLinear<B> {
        let pattern = BsrPattern::random([self.d_output, self.d_input], self.block_size, self.density, self.seed);
        self.init_with(pattern, device)
    }

    /// A layer with blocks of your own choice; `block_size`, `density` and `seed` are those of the pattern then.
    ///
    /// # Panics
    /// If the pattern is not `[d_output, d_input]`, or its values are too large.
    #[track_caller]
    pub fn init_with<B: Backend>(&self, pattern: BsrPattern, device: &B::Device) -> SparseLinear<B> {
        check_shape(&pattern, [self.d_output, self.d_input]);
        let (shape, block) = (pattern.values_shape(), pattern.block_size());
        let there = room_for(Some(shape.iter().product()), size_of::<B::FloatElem>());
        assert!(there, "block_size is {block:?}: the values of {} stored blocks are too large", shape[0]);
        let seen = |features: usize| Some(((features as f64 * pattern.density()).round() as usize).max(1));
        let (inputs, outputs) = (seen(self.d_input), seen(self.d_output));
        let weight = self.initializer.init_with(shape, inputs, outputs, device);
        let bias = self.bias.then(|| self.initializer.init_with([self.d_output], inputs, outputs, device));
        SparseLinear { weight, bias, pattern: pattern.into() }
    }
}

/// Panics if a layer of this shape, `[d_output, d_input]`, cannot have this pattern.
#[track_caller]
fn check_shape(pattern: &BsrPattern, shape: [usize; 2]) {
    let found = pattern.shape();
    assert!(found == shape, "pattern has shape {found:?}: expected [d_output, d_input], {shape:?}");
}

/// A linear layer with a block-sparse weight, in place of [`burn::nn::Linear`]: `O = I*W + b`.
///
/// The stored blocks are those of W's transpose, `[d_output, d_input]`: an output feature is a row. Records keep the
/// pattern exactly, whatever their precision, and loading one brings its pattern with it.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SparseLinear<B: Backend> {
    /// The stored blocks, `[blocks, block rows, block columns]`.
    pub weight: Param<Tensor<B, 3>>,
    /// One value for each output feature.
    pub bias: Option<Param<Tensor<B, 1>>>,
    pattern: PatternModule<B>,
}

impl<B: Backend> SparseLinear<B> {
    /// The layer that a dense one becomes when only the blocks of a pattern are kept; the pattern is
    /// `[d_output, d_input]`.
    ///
    /// # Panics
    /// If the pattern has another shape.
    #[track_caller]
    pub fn from_linear(linear: &Linear<B>, pattern: BsrPattern) -> Self {
        let weight = linear.weight.val().detach().transpose();
        check_shape(&pattern, weight.dims());
        let blocks = BsrTensor::from_dense_with(weight, pattern);
        Self {
            weight: Param::from_tensor(blocks.values().detach()),
            bias: linear.bias.as_ref().map(|bias| Param::from_tensor(bias.val().detach())),
            pattern: blocks.pattern().clone().into(),
        }
    }

    /// The same, with the share of the blocks that weigh most: those of the largest sum of squares.
    ///
    /// # Panics
    /// If `density` is not from 0 to 1, or a side of the block is 0.
    #[track_caller]
    pub fn prune(linear: &Linear<B>, block_size: impl Into<BlockSize>, density: f64) -> Self {
        assert!((0.0..=1.0).contains(&density), "density is {density}: expected 0 to 1");
        let BlockSize(block) = block_size.into();
        let weight = linear.weight.val().detach().transpose();
        let all = BsrTensor::from_dense_with(weight.clone(), BsrPattern::dense(weight.dims(), block));
        let [_, columns] = all.pattern().grid();
        let squares = all.values() * all.values();
        let weights: Vec<f64> = squares.sum_dim(2).sum_dim(1).into_data().iter::<f64>().collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|&x, &y| weights[y].total_cmp(&weights[x]));
        let mut kept = vec![false; weights.len()];
        for &block in order.iter().take((density * weights.len() as f64).round() as usize) {
            kept[block] = true;
        }
        Self::from_linear(linear, BsrPattern::from_mask(weight.dims(), block, |row, col| kept[row * columns + col]))
    }

    /// Where the blocks are: `[d_output, d_input]`.
    pub fn pattern(&self) -> &BsrPattern {
        &self.pattern
    }

    /// The weight as a matrix, `[d_output, d_input]`.
    pub fn matrix(&self) -> BsrTensor<B> {
        BsrTensor::from_pattern(self.pattern().clone(), self.weight.val())
    }
}

impl<B: SparseBackend> SparseLinear<B> {
    /// Applies the layer: `[.., d_input]` to `[.., d_output]`.
    ///
    /// # Panics
    /// If the last dimension of `input` is not `d_input`.
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        let spec = MatmulSpec { side: Side::Right, ..MatmulSpec::default() };
        product(&self.pattern, self.weight.val(), input, self.bias.as_ref().map(|bias| bias.val()), spec)
    }
}

impl<B: Backend> ModuleDisplay for SparseLinear<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_output, d_input] = self.pattern.shape();
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("block_size", &format!("{:?}", self.pattern.block_size()))
            .add("density", &self.pattern.density())
            .add("bias", &self.bias.is_some())
            .optional()
    }
}
