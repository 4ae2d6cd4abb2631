//! Trains a small network with a block-sparse layer, checks its gradients against a dense layer's, saves it, loads it, and
//! sees that the output is the same.
//!
//! cargo run --release --example train

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module, Param};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor, Tolerance, activation};
use burn_sparse::{SparseBackend, SparseLinear, SparseLinearConfig};

type B = Autodiff<Flex>;

#[derive(Module, Debug)]
struct Network<B: Backend> {
    first: SparseLinear<B>,
    second: Linear<B>,
}

impl<B: SparseBackend> Network<B> {
    /// The seed says which blocks are stored.
    fn new(seed: u64, device: &B::Device) -> Self {
        let first = SparseLinearConfig::new(64, 128).with_block_size([16, 16]).with_density(0.25).with_seed(seed);
        Self { first: first.init(device), second: LinearConfig::new(128, 1).init(device) }
    }

    fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(activation::relu(self.first.forward(input)))
    }
}

/// The layer's gradients are those of a dense layer with the same weights, at the stored blocks.
fn check_gradients(network: &Network<B>, input: Tensor<B, 2>) {
    let matrix = network.first.matrix();
    let whole = matrix.to_dense().detach().transpose().require_grad();
    let bias = network.first.bias.as_ref().expect("it has one").val();
    let dense = Linear { weight: Param::from_tensor(whole), bias: Some(Param::from_tensor(bias.detach())) };
    let sparse_grads = network.forward(input.clone()).powi_scalar(2).sum().backward();
    let output = network.second.forward(activation::relu(dense.forward(input)));
    let dense_grads = output.powi_scalar(2).sum().backward();
    let expected = dense.weight.val().grad(&dense_grads).expect("a gradient").transpose();
    let expected = burn_sparse::BsrTensor::from_dense_with(expected, network.first.pattern().clone()).values();
    let found = network.first.weight.val().grad(&sparse_grads).expect("a gradient");
    found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::rel_abs(1e-3, 1e-3));
    println!("gradients: those of the dense layer");
}

fn main() {
    let device = Default::default();
    B::seed(&device, 1);
    let mut network = Network::<B>::new(1, &device);
    println!("{network}");
    let input = Tensor::<B, 2>::random([256, 64], Distribution::Uniform(-1.0, 1.0), &device);
    check_gradients(&network, input.clone());

    // A function to learn: the norm of the input's first half.
    let target = input.clone().slice([0..256, 0..32]).powi_scalar(2).sum_dim(1).sqrt();
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..200 {
        let loss = MseLoss::new().forward(network.forward(input.clone()), target.clone(), Reduction::Mean);
        losses.push(loss.clone().into_scalar());
        if step % 50 == 0 {
            println!("step {step}: loss {:.5}", losses[step]);
        }
        let grads = GradientsParams::from_grads(loss.backward(), &network);
        network = optimizer.step(1e-2, network, grads);
    }
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("loss: {first:.5} to {last:.5}");
    assert!(last < first / 10.0, "the loss does not fall");

    let file = std::env::temp_dir().join(format!("burn-sparse-train-{}", std::process::id()));
    let recorder = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    let trained = network.valid();
    trained.clone().save_file(file.clone(), &recorder).expect("it can be saved");
    let other = Network::<Flex>::new(2, &device);
    assert_ne!(other.first.pattern(), trained.first.pattern());
    let loaded = other.load_file(file.clone(), &recorder, &device).expect("it can be loaded");
    std::fs::remove_file(file.with_extension("mpk")).expect("it is there");
    assert_eq!(loaded.first.pattern(), trained.first.pattern());
    let input = input.inner();
    loaded.forward(input.clone()).into_data().assert_eq(&trained.forward(input).into_data(), true);
    println!("saved, loaded: the same output");
}
