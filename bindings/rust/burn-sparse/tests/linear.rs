//! The layer: in place of Burn's own, trained, recorded in every precision.

mod common;

use burn::backend::{Autodiff, Flex, NdArray};
use burn::module::{AutodiffModule, Module};
use burn::nn::{Linear, LinearConfig};
use burn::record::{
    BinBytesRecorder, DoublePrecisionSettings, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
    PrecisionSettings, Recorder,
};
use burn::tensor::{DType, Tensor};
use burn_sparse::{BsrPattern, SparseBackend, SparseLinear, SparseLinearConfig};
use common::{Random, assert_close, setup};

fn like_dense<B: SparseBackend>() {
    setup();
    let device = Default::default();
    let mut random = Random(1);
    for (inputs, outputs, block) in [(24, 16, [4, 8]), (13, 7, [4, 4]), (5, 3, [8, 8])] {
        let linear: Linear<B> = LinearConfig::new(inputs, outputs).init(&device);
        let all = SparseLinear::from_linear(&linear, BsrPattern::dense([outputs, inputs], block));
        let input = random.tensor::<B, 3>([2, 6, inputs], DType::F32);
        assert_close(all.forward(input.clone()), linear.forward(input));
        let input = random.tensor::<B, 1>([inputs], DType::F32);
        assert_close(all.forward(input.clone()), linear.forward(input));
        // Some of it: a dense layer with zeros elsewhere.
        let some = SparseLinear::prune(&linear, block, 0.5);
        let dense = Linear {
            weight: burn::module::Param::from_tensor(some.matrix().to_dense().transpose().detach()),
            bias: linear.bias,
        };
        let input = random.tensor::<B, 2>([6, inputs], DType::F32);
        assert_close(some.forward(input.clone()), dense.forward(input));
    }
}

#[test]
fn it_does_what_a_dense_layer_does() {
    like_dense::<NdArray>();
    like_dense::<Flex>();
    like_dense::<Autodiff<Flex>>();
}

#[test]
fn pruning_keeps_the_heaviest_blocks() {
    setup();
    let device = Default::default();
    let weight = common::from_values::<Flex, 2>(
        vec![9., 0., 1., 1., 0., 0., 1., 1., 1., 1., 2., 2., 1., 1., 2., 2.],
        [4, 4],
        DType::F32,
    );
    let linear = Linear { weight: burn::module::Param::from_tensor(weight.transpose()), bias: None };
    let layer = SparseLinear::prune(&linear, 2, 0.5);
    assert_eq!((layer.pattern().row_ptr(), layer.pattern().col_indices()), (&[0, 1, 2][..], &[0, 1][..]));
    let input = Tensor::<Flex, 2>::ones([1, 4], &device);
    assert_close(layer.forward(input), Tensor::from_data([[9., 0., 4., 4.]], &device));
}

/// More blocks than 16 bits can count, which is what half-precision records have for integers.
fn big() -> SparseLinear<Flex> {
    setup();
    let layer = SparseLinearConfig::new(640, 600).with_block_size([2, 2]).with_density(0.5).init(&Default::default());
    // Burn makes parameters when they are first asked for, and every clone its own.
    layer.forward(Tensor::<Flex, 2>::zeros([1, 640], &Default::default()));
    layer
}

fn recorded<S: PrecisionSettings + 'static>(exact: bool) {
    let device = Default::default();
    let layer = big();
    assert!(layer.pattern().stored_blocks() > 1 << 15);
    let blank = || SparseLinearConfig::new(640, 600).with_block_size([4, 4]).with_seed(9).init::<Flex>(&device);
    let mut loaded = Vec::new();
    let recorder = BinBytesRecorder::<S>::default();
    let bytes = recorder.record(layer.clone().into_record(), ()).unwrap();
    loaded.push(blank().load_record(recorder.load(bytes, &device).unwrap()));
    let recorder = NamedMpkBytesRecorder::<S>::default();
    let bytes = recorder.record(layer.clone().into_record(), ()).unwrap();
    loaded.push(blank().load_record(recorder.load(bytes, &device).unwrap()));
    let input = Random(2).tensor::<Flex, 2>([3, 640], DType::F32);
    for loaded in loaded {
        assert_eq!(loaded.pattern(), layer.pattern());
        let (found, expected) = (loaded.forward(input.clone()), layer.forward(input.clone()));
        if exact {
            found.into_data().assert_eq(&expected.into_data(), true);
        } else {
            let found = found.into_data().convert::<f32>();
            found.assert_approx_eq::<f32>(&expected.into_data(), burn::tensor::Tolerance::absolute(1e-2));
        }
    }
}

#[test]
fn a_record_of_any_precision_keeps_the_pattern() {
    recorded::<FullPrecisionSettings>(true);
    recorded::<DoublePrecisionSettings>(true);
    recorded::<HalfPrecisionSettings>(false);
}

#[test]
fn a_record_with_a_pattern_that_is_none_is_refused() {
    let pattern = BsrPattern::new([0, 1, 2], [0, 1], [4, 4], 2);
    let text = serde_json::to_string(&pattern).unwrap();
    assert_eq!(serde_json::from_str::<BsrPattern>(&text).unwrap(), pattern);
    let error = serde_json::from_str::<BsrPattern>(&text.replace("[0,1,2]", "[0,9,2]")).unwrap_err();
    assert!(error.to_string().contains("row_ptr"), "{error}");
}

#[test]
fn it_is_a_module() {
    setup();
    let device = Default::default();
    let layer: SparseLinear<Autodiff<Flex>> =
        SparseLinearConfig::new(32, 64).with_block_size([8, 16]).with_density(0.5).init(&device);
    assert_eq!(layer.num_params(), layer.pattern().stored_blocks() * 128 + 64);
    assert_eq!(layer.valid().pattern(), layer.pattern());
    let text = format!("{layer}");
    assert!(text.contains("d_input: 32") && text.contains("density: 0.5"), "{text}");
    let frozen = layer.no_grad();
    assert!(!frozen.weight.val().is_require_grad());
}
