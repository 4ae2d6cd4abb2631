//! What is said about tuning a product holds for its gradients. A program of its own: the other tests switch tuning off for all
//! of theirs.

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn_sparse::{BsrGemm, BsrGemmConfig, BsrPattern, BsrTensor, Tuning};
use sparse_autotune::Context;

#[test]
fn gradients_are_tuned_as_the_product_is() {
    type B = Autodiff<Flex>;
    let cache = std::env::temp_dir().join(format!("burn-sparse-tuning-{}", std::process::id()));
    // SAFETY: this is the program's only test, and nothing has been asked of the library yet.
    unsafe {
        std::env::set_var("SPARSE_AUTOTUNE", "quick");
        std::env::set_var("SPARSE_AUTOTUNE_CACHE", &cache);
    }
    let context = Context::builder().device("cpu").build().expect("a context");
    let device = Default::default();
    let gradients = |tuning| {
        let values = Tensor::<B, 3>::ones([16, 8, 8], &device).require_grad();
        let dense = Tensor::<B, 2>::ones([32, 5], &device).require_grad();
        let a = BsrTensor::from_pattern(BsrPattern::dense([32, 32], 8), values.clone());
        let config = BsrGemmConfig::new().with_tuning(tuning);
        let grads = BsrGemm::auto_tuned(&a, dense.clone(), &config).sum().backward();
        assert!(values.grad(&grads).is_some() && dense.grad(&grads).is_some());
        [context.cache_entries(), context.cache_untuned()].map(|entries| entries.expect("a cache"))
    };
    let [tuned, untuned] = gradients(Tuning::Off);
    assert!(tuned.is_empty() && untuned.is_empty(), "{tuned:?}, {untuned:?}");
    let [tuned, untuned] = gradients(Tuning::Cached);
    assert!(tuned.is_empty(), "{tuned:?}");
    assert_eq!(untuned.len(), 3, "{untuned:?}");
    std::fs::remove_dir_all(cache).expect("what was missed is noted there");
}
