//! A block-sparse product on Burn's CPU backend, checked against the dense one, and the race behind it.
//!
//! cargo run --release --example simple

use burn::backend::Flex;
use burn::tensor::{Distribution, Tensor, Tolerance};
use burn_sparse::{BsrGemm, BsrGemmConfig, BsrPattern, BsrTensor};

fn main() {
    let device = Default::default();
    // 512x768 in blocks of 32x32, an eighth of them stored.
    let pattern = BsrPattern::random([512, 768], 32, 0.125, 42);
    let values = Tensor::<Flex, 3>::random([pattern.stored_blocks(), 32, 32], Distribution::Default, &device);
    let a = BsrTensor::from_pattern(pattern, values);
    let b = Tensor::<Flex, 2>::random([768, 256], Distribution::Default, &device);

    let c = a.matmul(b.clone());
    let dense = a.to_dense().matmul(b.clone());
    c.into_data().assert_approx_eq::<f32>(&dense.into_data(), Tolerance::rel_abs(1e-4, 1e-4));
    println!("{:?} with {} blocks, times 768x256: the same as dense", a.shape(), a.pattern().stored_blocks());

    let race = BsrGemm::race(&a, b, &BsrGemmConfig::new()).expect("a race").expect("on a CPU there are many");
    for result in race.results.iter().filter(|result| result.seconds > 0.0) {
        let rate = race.flops / result.seconds / 1e9;
        println!("{:50} {:9.1} us {:7.1} GFLOPS", result.variant, result.seconds * 1e6, rate);
    }
    println!("best: {}", race.best.expect("somebody wins").variant);
}
