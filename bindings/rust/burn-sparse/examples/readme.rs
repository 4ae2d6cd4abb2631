use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn_sparse::{BsrTensor, SparseLinearConfig};

fn main() {
    let device = Default::default();
    // A is 4x6 in blocks of 2x2; its first block row holds blocks 0 and 2, its second block 1.
    let values = Tensor::<Flex, 1>::from_data([1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12.], &device);
    let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values, [4, 6], 2);
    let b = Tensor::<Flex, 2>::from_data([[1., 0.], [0., 1.], [1., 1.], [2., 0.], [0., 2.], [1., 1.]], &device);
    println!("{}", a.matmul(b)); // races the first time, remembers ever after

    // In place of burn::nn::Linear: an eighth of the blocks, and gradients to them.
    let layer = SparseLinearConfig::new(512, 256).with_block_size([32, 32]).init::<Autodiff<Flex>>(&device);
    let gradients = layer.forward(Tensor::<_, 2>::ones([8, 512], &device)).sum().backward();
    println!("{:?}", layer.weight.val().grad(&gradients).unwrap().dims());
}
