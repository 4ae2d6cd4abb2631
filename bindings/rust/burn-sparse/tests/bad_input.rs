//! Bad input: `try_new` says which argument, `new` panics with the same words, and operations check before they run.

mod common;

use burn::backend::{Flex, NdArray};
use burn::nn::LinearConfig;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_sparse::{
    AttentionOptions, BsrPattern, BsrTensor, Error, SparseBackend, SparseLinear, SparseLinearConfig, attention,
    try_attention, try_attention_with_sinks,
};
use common::{Random, setup};
use proptest::prelude::*;

type B = NdArray;

fn values(blocks: usize) -> Tensor<B, 1> {
    setup();
    Tensor::ones([blocks * 4], &Default::default())
}

#[track_caller]
fn refused(
    row_ptr: &[i64],
    col_indices: &[i64],
    values: Tensor<B, 1>,
    shape: [usize; 2],
    block: [usize; 2],
    words: &[&str],
) {
    let error =
        BsrTensor::try_new(row_ptr, col_indices, values, shape, block).expect_err("this is bad input").to_string();
    for word in words {
        assert!(error.contains(word), "{error} does not say {word}");
    }
}

#[test]
fn try_new_names_the_argument() {
    refused(&[0, 2, 3], &[0, 2, 1], values(2), [4, 6], [2, 2], &["values", "[8]", "12"]);
    refused(&[0, 3], &[0, 2, 1], values(3), [4, 6], [2, 2], &["row_ptr", "2 entries"]);
    refused(&[1, 2, 3], &[0, 2, 1], values(3), [4, 6], [2, 2], &["row_ptr"]);
    refused(&[0, 2, 3], &[0, 3, 1], values(3), [4, 6], [2, 2], &["col_indices", "3"]);
    refused(&[0, 2, 3], &[2, 0, 1], values(3), [4, 6], [2, 2], &["col_indices"]);
    refused(&[0, 2, 3], &[0, 2, 1], values(3), [4, 6], [0, 2], &["block_size", "0x2"]);
    refused(&[0, 2, 3], &[0, 2, 1], values(3), [4, usize::MAX], [2, 2], &["shape[1]"]);
    let words = ["block_size[0] 2147483648, block_size[1] 2147483648, col_indices' length 1: their product overflows"];
    refused(&[0, 1], &[0], values(1), [2, 2], [1 << 31, 1 << 31], &words);
    refused(&[0, 0], &[], values(0), [2, 1 << 40], [2, 2], &["shape[1]/block_size[1] is 549755813888"]);
    refused(&[0, 5], &[0, 1, 0, 1, 0], values(5), [2, 4], [2, 2], &["col_indices' length is 5", "1 x 2 blocks"]);
    refused(&[0, 1], &[0, 1], values(2), [2, 4], [2, 2], &["row_ptr[1] is 1; expected col_indices' length, 2"]);
}

#[test]
fn indices_too_large_are_named_as_they_are() {
    let error = |row_ptr: [usize; 2], col_indices: [usize; 1]| {
        BsrTensor::try_new(row_ptr, col_indices, values(1), [2, 4], 2).expect_err("this is bad input")
    };
    let most = usize::MAX;
    let words = format!("col_indices[0] is {most}; expected at most 2^63-1");
    assert_eq!(error([0, 1], [most]), Error::ColumnRange(words));
    assert_eq!(error([0, most], [0]), Error::BadRowPtr(format!("row_ptr[1] is {most}; expected at most 2^63-1")));
}

#[test]
fn so_are_those_in_tensors() {
    setup();
    let tensor = |values: Vec<u64>| {
        let shape = [values.len()];
        Tensor::<Flex, 1, Int>::from_data(TensorData::new(values, shape), (&Default::default(), DType::U64))
    };
    let error = |row_ptr: Vec<u64>, col_indices: Vec<u64>| {
        BsrPattern::try_new(tensor(row_ptr), tensor(col_indices), [2, 4], 2).expect_err("this is bad input")
    };
    let most = u64::MAX;
    let words = format!("col_indices[0] is {most}; expected at most 2^63-1");
    assert_eq!(error(vec![0, 1], vec![most]), Error::ColumnRange(words));
    assert_eq!(
        error(vec![0, most], vec![0]),
        Error::BadRowPtr(format!("row_ptr[1] is {most}; expected at most 2^63-1"))
    );
    assert!(BsrPattern::try_new(tensor(vec![0, 1]), tensor(vec![1]), [2, 4], 2).is_ok());
}

/// So many elements that their number is 0 in 64 bits. Flex expands without memory.
#[test]
fn shapes_that_cannot_be_counted_are_refused() {
    setup();
    let device = Default::default();
    let wide = Tensor::<Flex, 2>::ones([1, 1], &device).expand([1usize << 32, 1 << 32]);
    let error = BsrTensor::try_new([0, 0], [0i64; 0], wide, [2, 4], 2).expect_err("there are no blocks").to_string();
    assert!(error.contains("values has shape [4294967296, 4294967296]"), "{error}");

    let a = BsrTensor::<Flex>::new([0, 0], [0i64; 0], Tensor::<Flex, 1>::empty([0], &device), [4, 4], 4);
    let wide = Tensor::<Flex, 4>::ones([1, 1, 4, 4], &device).expand([1usize << 32, 1 << 32, 4, 4]);
    type Product = fn(&BsrTensor<Flex>, Tensor<Flex, 4>) -> Tensor<Flex, 4>;
    for product in [BsrTensor::matmul as Product, BsrTensor::matmul_right] {
        let task = std::panic::AssertUnwindSafe(|| product(&a, wide.clone()));
        let payload = std::panic::catch_unwind(task).expect_err("this is too much");
        let said = payload.downcast_ref::<String>().expect("a message");
        assert!(said.contains("bsr_matmul: dense has shape [4294967296, 4294967296, 4, 4]"), "{said}");
    }
}

#[test]
#[should_panic(expected = "BsrTensor::new: col_indices")]
fn new_panics_with_the_same_words() {
    BsrTensor::new([0, 2, 3], [0, 7, 1], values(3), [4, 6], 2);
}

#[test]
#[should_panic(expected = "BsrTensor::new: values has shape [1, 4, 3]")]
fn values_of_rank_three_have_the_shape_of_the_blocks() {
    setup();
    BsrTensor::new([0, 1], [0], Tensor::<B, 3>::ones([1, 4, 3], &Default::default()), [3, 4], [3, 4]);
}

#[test]
#[should_panic(expected = "dense has shape [5, 2]: its rows must be 6")]
fn a_product_checks_its_sizes() {
    let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values(3), [4, 6], 2);
    a.matmul(Tensor::<B, 2>::ones([5, 2], &Default::default()));
}

#[test]
#[should_panic(expected = "dense has shape [2, 3, 5, 2]: its rows must be 6")]
fn a_product_names_the_shape_that_it_was_given() {
    let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values(3), [4, 6], 2);
    a.matmul(Tensor::<B, 4>::ones([2, 3, 5, 2], &Default::default()));
}

#[test]
#[should_panic(expected = "dense has shape [5]: its columns must be 4")]
fn so_does_one_of_a_vector() {
    let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values(3), [4, 6], 2);
    a.matmul_right(Tensor::<B, 1>::ones([5], &Default::default()));
}

#[test]
#[should_panic(expected = "BsrTensor::with_values: values has shape [2, 2, 2]")]
fn other_values_have_the_shape_of_the_blocks() {
    let a = BsrTensor::new([0, 2, 3], [0, 2, 1], values(3), [4, 6], 2);
    a.with_values(Tensor::ones([2, 2, 2], &Default::default()));
}

#[test]
#[should_panic(expected = "pattern has shape [4, 6]: expected [d_output, d_input], [6, 4]")]
fn a_layer_made_of_another_checks_the_pattern() {
    setup();
    SparseLinear::from_linear(&LinearConfig::new(4, 6).init::<B>(&Default::default()), BsrPattern::dense([4, 6], 2));
}

#[test]
#[should_panic(expected = "pattern has shape [4, 6]: expected [d_output, d_input], [6, 4]")]
fn so_does_one_with_a_pattern_of_your_own() {
    setup();
    SparseLinearConfig::new(4, 6).init_with::<B>(BsrPattern::dense([4, 6], 2), &Default::default());
}

#[test]
#[should_panic(expected = "dense is F64, and values are F32")]
fn a_product_checks_its_dtypes() {
    setup();
    let mut random = Random(1);
    let a = random.matrix::<Flex>([4, 4], [2, 2], DType::F32);
    a.matmul(random.tensor::<Flex, 2>([4, 2], DType::F64));
}

#[test]
#[should_panic(expected = "dense has shape [3, 7]: its columns must be 8")]
fn a_layer_checks_its_input() {
    setup();
    let layer = SparseLinearConfig::new(8, 4).with_block_size([2, 2]).init::<B>(&Default::default());
    layer.forward(Tensor::<B, 2>::ones([3, 7], &Default::default()));
}

#[test]
#[should_panic(expected = "values has shape [1, 2, 2], and the pattern's blocks [2, 2, 2]")]
fn a_layer_with_parts_of_two_layers_is_refused() {
    setup();
    let mut layer =
        SparseLinearConfig::new(4, 4).with_block_size([2, 2]).with_density(0.5).init::<B>(&Default::default());
    layer.weight = burn::module::Param::from_tensor(Tensor::ones([1, 2, 2], &Default::default()));
    layer.forward(Tensor::<B, 2>::ones([3, 4], &Default::default()));
}

#[test]
#[should_panic(expected = "density is 2")]
fn a_density_is_a_share() {
    BsrPattern::random([4, 4], 2, 2.0, 0);
}

/// Attention of operands of these shapes is refused with these words.
#[track_caller]
fn attention_refuses(shapes: [[usize; 4]; 3], options: &AttentionOptions, words: &[&str]) {
    let [q, k, v] = shapes.map(|shape| Tensor::<B, 4>::empty(shape, &Default::default()));
    let error = try_attention(q, k, v, options).expect_err("this is bad input").to_string();
    for word in words {
        assert!(error.contains(word), "{error} does not say {word}");
    }
}

#[test]
fn attention_names_the_argument() {
    setup();
    let (plain, fits) = (AttentionOptions::default(), [2, 2, 6, 8]);
    attention_refuses(
        [[2, 4, 5, 8], [3, 2, 6, 8], fits],
        &plain,
        &["k has shape [3, 2, 6, 8]", "[2, kv heads, keys, 8]"],
    );
    attention_refuses([[2, 4, 5, 8], [2, 2, 6, 16], fits], &plain, &["k has shape [2, 2, 6, 16]"]);
    attention_refuses([[2, 4, 5, 8], fits, [2, 2, 7, 8]], &plain, &["v has shape [2, 2, 7, 8]"]);
    attention_refuses([[2, 3, 5, 8], fits, fits], &plain, &["2 heads do not divide", "3"]);
    attention_refuses([[2, 0, 5, 8], [2, 0, 6, 8], [2, 0, 6, 8]], &plain, &["q has shape", "no heads"]);
    for (sizes, name) in [([0, 8], "q"), ([577, 8], "q"), ([8, 0], "v"), ([8, 577], "v")] {
        let shapes = [[2, 2, 5, sizes[0]], [2, 2, 6, sizes[0]], [2, 2, 6, sizes[1]]];
        attention_refuses(shapes, &plain, &[&format!("{name} has shape"), "from 1 to 576"]);
    }
    for softcap in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-5, 2e6] {
        let capped = AttentionOptions { softcap: Some(softcap), ..plain.clone() };
        attention_refuses([[2, 4, 5, 8], fits, fits], &capped, &[&format!("softcap is {softcap}"), "to 1e6"]);
    }
    for len in [0, 2, 5] {
        let [q, k, v] = [[2, 4, 5, 8], fits, fits].map(|shape| Tensor::<B, 4>::empty(shape, &Default::default()));
        let sinks = Tensor::<B, 1>::empty([len], &Default::default());
        let error = try_attention_with_sinks(q, k, v, sinks, &plain).expect_err("there are four heads").to_string();
        assert!(error.contains(&format!("sinks is F32 of [{len}], expected F32 of [4]")), "{error}");
    }
    attention_refuses(
        [[2, 4, 5, 8], fits, fits],
        &AttentionOptions { window: Some(0), ..plain.clone() },
        &["window is 0"],
    );
    let scaled = AttentionOptions { scale: Some(f64::NAN), ..plain.clone() };
    attention_refuses([[2, 4, 5, 8], fits, fits], &scaled, &["scale is NaN"]);
    let scaled = AttentionOptions { scale: Some(1e39), ..plain.clone() };
    attention_refuses([[2, 4, 5, 8], fits, fits], &scaled, &["scale is 1000000000", "f32"]);
    let double = || Random(1).tensor::<Flex, 4>([1, 1, 4, 8], DType::F64);
    assert!(try_attention(double(), double(), double(), &scaled).is_ok(), "f64 holds it");
    for shape in [[5, 5], [6, 6], [20, 6]] {
        let mask = Some(BsrPattern::dense(shape, 2)); // 24 rows are right: of four heads, 5 rows in whole blocks
        let words = [&format!("mask has shape {shape:?}"), "[5, 6]", "4 of these"];
        attention_refuses([[2, 4, 5, 8], fits, fits], &AttentionOptions { mask, ..plain.clone() }, &words);
    }
}

#[test]
#[should_panic(expected = "attention: v is F64, and q is F32")]
fn attention_checks_its_dtypes() {
    setup();
    let make = |dtype| Random(1).tensor::<Flex, 4>([1, 1, 4, 8], dtype);
    attention(make(DType::F32), make(DType::F32), make(DType::F64), &AttentionOptions::default());
}

#[test]
#[should_panic(expected = "masks[1] is BsrPattern { shape: [4, 6]")]
fn masks_of_heads_are_alike() {
    setup();
    BsrPattern::stack(&[BsrPattern::dense([4, 4], 2), BsrPattern::dense([4, 6], 2)]);
}

#[test]
fn indices_come_as_tensors_too() {
    let device = Default::default();
    let row_ptr = Tensor::<B, 1, Int>::from_data([0, 2, 3], &device);
    let col_indices = Tensor::<B, 1, Int>::from_data([0, 2, 1], &device);
    let a = BsrTensor::new(row_ptr, col_indices, values(3), [4, 6], 2);
    assert_eq!(a.pattern(), &BsrPattern::new(vec![0usize, 2, 3], [0i32, 2, 1], [4, 6], [2, 2]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever goes in, an error or a matrix comes out, and a matrix can be multiplied.
    #[test]
    fn constructors_take_anything(
        shape in prop::array::uniform2(prop_oneof![3 => 0usize..9, 1 => any::<usize>()]),
        block in prop::array::uniform2(prop_oneof![3 => 0usize..5, 1 => any::<usize>()]),
        row_ptr in prop::collection::vec(-1i64..5, 0..6), col_indices in prop::collection::vec(-1i64..5, 0..5), count in 0usize..40,
    ) {
        setup();
        let values = Tensor::<Flex, 1>::ones([count], &Default::default());
        if let Ok(a) = BsrTensor::try_new(row_ptr, col_indices, values, shape, block)
            && shape.iter().all(|&side| side < 100)
        {
            let b = Tensor::<Flex, 2>::ones([shape[1], 2], &Default::default());
            prop_assert_eq!(a.matmul(b).dims(), [shape[0], 2]);
            prop_assert_eq!(a.to_dense().dims(), shape);
        }
    }
}

/// An ordinary panic, which can be caught, where an allocation that fails would end the process.
#[test]
fn sizes_beyond_all_memory_are_refused() {
    fn refuses<R>(words: &[&str], task: impl FnOnce() -> R) {
        let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task)).err().expect("this is too much");
        let said = payload.downcast_ref::<String>().expect("a message");
        for word in words {
            assert!(said.contains(word), "{said} does not say {word}");
        }
    }
    fn check<B: SparseBackend>() {
        let device = Default::default();
        let empty = Tensor::<B, 1>::empty([0], &device);
        let a = BsrTensor::try_new([0, 0], [0i64; 0], empty, [1 << 42, 4], [1 << 42, 1]).expect("no block is stored");
        refuses(&["bsr_matmul", "4398046511104 elements"], || a.matmul(Tensor::<B, 2>::ones([4, 1], &device)));
        for side in [1 << 20, 1 << 32, usize::MAX] {
            refuses(&["block_size", &side.to_string(), "[4, 4]"], || {
                BsrTensor::from_dense(Tensor::<B, 2>::ones([4, 4], &device), side)
            });
        }
        let empty = |shape: [usize; 2]| {
            BsrTensor::<B>::new([0, 0], [0i64; 0], Tensor::<B, 1>::empty([0], &device), shape, shape)
        };
        for shape in [[1 << 40, 1], [1 << 40, 1 << 20]] {
            refuses(&["to_dense", &format!("{shape:?}")], || empty(shape).to_dense());
        }
        for (inputs, outputs) in [(1 << 40, 4), (4, 1 << 40), (usize::MAX, usize::MAX)] {
            let config = SparseLinearConfig::new(inputs, outputs).with_density(0.5);
            let words = format!("shape is [{outputs}, {inputs}]");
            refuses(&[&words, "[1, 1]"], || config.clone().with_block_size([1, 1]).init::<B>(&device));
        }
        let config = SparseLinearConfig::new(4, 4).with_block_size([1 << 22, 1 << 22]);
        refuses(&["block_size is [4194304, 4194304]"], || config.init::<B>(&device));
    }
    setup();
    check::<NdArray>();
    check::<Flex>();
    for shape in [[1 << 40, 1], [1, 1 << 40], [1 << 30, 1 << 30]] {
        refuses(&["shape is", &format!("{shape:?}")], || BsrPattern::dense(shape, 1));
    }
    refuses(&["shape is [1099511627776, 4]"], || BsrPattern::from_mask([1 << 40, 4], 1, |_, _| false));
    // Flex expands without memory.
    let wide = |shape| Tensor::<Flex, 4>::ones([1, 1, 1, 8], &Default::default()).expand(shape);
    let (q, k) = (wide([1 << 20, 1 << 20, 1, 8]), wide([1 << 20, 1, 1, 8]));
    refuses(&["attention", "elements"], || try_attention(q, k.clone(), k, &AttentionOptions::default()));
    // Where values are larger than keys the result alone may have too many.
    let (q, k) = (wide([1 << 30, 1 << 30, 1, 8]), wide([1 << 30, 1, 1, 8]));
    let v = Tensor::<Flex, 4>::ones([1, 1, 1, 16], &Default::default()).expand([1 << 30, 1, 1, 16]);
    let error = try_attention(q, k, v, &AttentionOptions::default()).expect_err("2^64 elements").to_string();
    assert!(error.contains("the result has shape [1073741824, 1073741824, 1, 16]"), "{error}");
}

/// A copy of this operand would be 32 TiB; Flex expands without memory.
#[test]
fn a_batch_is_read_where_it_lies() {
    setup();
    let device = Default::default();
    let none = Tensor::<Flex, 1>::empty([0], &device);
    let a = BsrTensor::new([0, 0], [0i64; 0], none, [1, 1 << 42], [1, 1 << 42]);
    let b = Tensor::<Flex, 3>::ones([1, 1, 1], &device).expand([2, 1usize << 42, 1]);
    assert_eq!(a.matmul(b).into_data(), Tensor::<Flex, 3>::zeros([2, 1, 1], &device).into_data());
}
