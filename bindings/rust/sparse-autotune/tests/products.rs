//! Products against the definition, over shapes, blocks, dtypes, layouts and patterns.

mod common;

use std::sync::{Mutex, OnceLock, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use common::{Matrix, Number, Random, assert_close, context, dense, product, transposed, wide};
use proptest::prelude::*;
use sparse_autotune::{
    Activation, Buffer, Context, Dtype, Effort, Error, Layout, Pattern, Plan, Problem, RaceOptions, Verdict, bf16, f16,
};

fn check<T: Number>(shape: [usize; 2], block: [usize; 2], n: usize, seed: u64) {
    let (context, mut random) = (context(), Random(seed));
    let a = Matrix::<T>::random(shape, block, &mut random);
    let matrix = a.bsr(&context).expect("valid");
    let [m, k] = shape;

    let b = dense::<T>(k * n, &mut random);
    let expected = product(&a.dense(), &wide(&b), m, k, n);
    assert_close(&matrix.matmul(&b, n).expect("fits"), &expected);

    // Transposed, column-major on both sides, with a bias.
    let b = dense::<T>(m * n, &mut random);
    let bias = dense::<T>(k, &mut random);
    let mut expected = product(&transposed(&a.dense(), m, k), &wide(&b), k, m, n);
    expected.iter_mut().enumerate().for_each(|(at, c)| *c += bias[at / n.max(1)].to());
    let problem = Problem::matmul::<T>(n)
        .transpose(true)
        .bias(true)
        .b_layout(Layout::col_major(m))
        .c_layout(Layout::col_major(k));
    let b_columns: Vec<T> = transposed(&wide(&b), m, n).into_iter().map(T::of).collect();
    let mut c = vec![T::of(f64::NAN); k * n];
    context.matmul_bias(matrix.pattern(), &problem, &a.values, &b_columns, &mut c, &bias).expect("fits");
    assert_close(&c, &transposed(&expected, k, n));

    // Sampled: what the full product has at the stored blocks, and zero in their padding.
    let (x, y) = (dense::<T>(m * n, &mut random), dense::<T>(n * k, &mut random));
    let full = product(&wide(&x), &wide(&y), m, n, k);
    let mut values = vec![T::of(f64::NAN); a.values.len()];
    context.sampled(matrix.pattern(), &Problem::sampled::<T>(n), &x, &y, &mut values).expect("fits");
    let sampled = Matrix { values, ..a.clone() };
    let mask = Matrix { values: vec![T::of(1.0); a.values.len()], ..a.clone() }.dense();
    let expected: Vec<f64> = full.iter().zip(&mask).map(|(v, m)| v * m).collect();
    assert_close(&sampled.dense().into_iter().map(T::of).collect::<Vec<T>>(), &expected);
    assert!(sampled.values.iter().all(|v| v.to().is_finite()), "padding is written as zero");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_are_those_of_the_definition(
        rows in 0usize..40, cols in 0usize..40, block_rows in 1usize..9, block_cols in 1usize..9, n in 0usize..20,
        dtype in 0usize..4, seed in any::<u64>(),
    ) {
        let (shape, block) = ([rows, cols], [block_rows, block_cols]);
        match dtype {
            0 => check::<f32>(shape, block, n, seed),
            1 => check::<f64>(shape, block, n, seed),
            2 => check::<f16>(shape, block, n, seed),
            _ => check::<bf16>(shape, block, n, seed),
        }
    }

    #[test]
    fn a_dense_matrix_comes_back_as_it_was(
        rows in 0usize..30, cols in 0usize..30, block_rows in 1usize..9, block_cols in 1usize..9, seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let values: Vec<f32> = (0..rows * cols).map(|_| if random.below(4) == 0 { random.value() as f32 } else { 0.0 }).collect();
        let matrix = sparse_autotune::Bsr::from_dense(&context(), &values, [rows, cols], [block_rows, block_cols]).unwrap();
        prop_assert_eq!(matrix.to_dense().unwrap(), values);
    }
}

#[test]
fn a_batch_shares_the_values() {
    let (context, mut random) = (context(), Random(5));
    let a = Matrix::<f32>::random([12, 8], [4, 4], &mut random);
    let pattern = Pattern::new(&context, a.shape, a.block, &a.row_ptr, &a.col_idx).unwrap();
    let b = dense::<f32>(3 * 8 * 5, &mut random);
    let mut c = vec![0f32; 3 * 12 * 5];
    let problem = Problem::matmul::<f32>(5)
        .batch(3)
        .b_layout(Layout::row_major(5).with_batch_stride(40))
        .c_layout(Layout::row_major(5).with_batch_stride(60));
    let mut plan = Plan::new(&context, &pattern, &problem).unwrap();
    plan.matmul(&a.values, &b, &mut c).unwrap();
    for (b, c) in b.chunks(40).zip(c.chunks(60)) {
        assert_close(c, &product(&a.dense(), &wide(b), 12, 8, 5));
    }
}

#[test]
fn a_plan_goes_to_another_thread_and_a_clone_stays() {
    let (context, mut random) = (context(), Random(6));
    let a = Matrix::<f64>::random([9, 7], [2, 3], &mut random);
    let pattern = Pattern::new(&context, a.shape, a.block, &a.row_ptr, &a.col_idx).unwrap();
    let b = dense::<f64>(7 * 4, &mut random);
    let expected = product(&a.dense(), &wide(&b), 9, 7, 4);
    let mut plan = Plan::new(&context, &pattern, &Problem::matmul::<f64>(4)).unwrap();
    let mut other = plan.try_clone().unwrap();
    drop((context, pattern)); // plans hold what they need
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut c = vec![0.0; 36];
            other.matmul(&a.values, &b, &mut c).unwrap();
            assert_close(&c, &expected);
        });
        let mut c = vec![0.0; 36];
        plan.matmul(&a.values, &b, &mut c).unwrap();
        assert_close(&c, &expected);
    });
}

#[test]
fn one_context_serves_many_threads() {
    let context = context();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let context = context.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let mut random = Random(seed * 100 + round);
                    let a = Matrix::<f32>::random([16, 12], [4, 3], &mut random);
                    let b = dense::<f32>(12 * 3, &mut random);
                    let c = a.bsr(&context).unwrap().matmul(&b, 3).unwrap();
                    assert_close(&c, &product(&a.dense(), &wide(&b), 16, 12, 3));
                }
            });
        }
    });
}

#[test]
fn buffers_do_what_slices_do() {
    let (context, mut random) = (context(), Random(7));
    let a = Matrix::<f32>::random([10, 6], [3, 2], &mut random);
    let pattern = Pattern::new(&context, a.shape, a.block, &a.row_ptr, &a.col_idx).unwrap();
    let b = dense::<f32>(12, &mut random);
    let (values, b_buffer) =
        (Buffer::from_slice(&context, &a.values).unwrap(), Buffer::from_slice(&context, &b).unwrap());
    let mut c = Buffer::<f32>::zeros(&context, 20).unwrap();
    assert_eq!(c.to_vec().unwrap(), [0.0; 20]);
    Plan::new(&context, &pattern, &Problem::matmul::<f32>(2)).unwrap().matmul(&values, &b_buffer, &mut c).unwrap();
    assert_close(&c.to_vec().unwrap(), &product(&a.dense(), &wide(&b), 10, 6, 2));
    assert!(matches!(c.write(&[1.0]), Err(Error::BadSize(_))));
    assert!(Buffer::<f32>::zeros(&context, 0).unwrap().is_empty());
}

#[test]
fn epilogues_scale_add_and_bend() {
    let (context, mut random) = (context(), Random(8));
    let a = Matrix::<f16>::random([8, 8], [4, 4], &mut random);
    let matrix = a.bsr(&context).unwrap();
    let b = dense::<f16>(16, &mut random);
    let problem = Problem::matmul::<f16>(2).output(Dtype::F32).alpha(2.0).beta(3.0).activation(Activation::Relu);
    let mut c = vec![1f32; 16];
    context.matmul(matrix.pattern(), &problem, &a.values, &b, &mut c).unwrap();
    let expected: Vec<f64> =
        product(&a.dense(), &wide(&b), 8, 8, 2).into_iter().map(|v| (2.0 * v + 3.0).max(0.0)).collect();
    assert_close(&c, &expected);
}

#[test]
fn a_race_is_remembered() {
    let folder = std::env::temp_dir().join(format!("sparse-autotune-rust-{}", std::process::id()));
    let open = || Context::builder().device("cpu").cache_dir(&folder).effort(Effort::Quick).build().unwrap();
    let context = open();
    let mut random = Random(9);
    let a = Matrix::<f32>::random([64, 64], [16, 16], &mut random);
    let pattern = Pattern::new(&context, a.shape, a.block, &a.row_ptr, &a.col_idx).unwrap();
    let problem = Problem::matmul::<f32>(32);
    let mut steps = 0;
    let mut progress = |_, _, _: &str| {
        steps += 1;
        true
    };
    let race = RaceOptions::new().progress(&mut progress).run(&context, &pattern, &problem).unwrap();
    assert!(steps > 0 && !race.cached);
    let best = race.best.expect("somebody wins");
    assert_eq!(best.verdict, Verdict::Ok);
    assert_eq!(race.key, context.key(&pattern, &problem).unwrap());

    let again = open(); // another process would see the same
    let plan = Plan::new(&again, &pattern, &problem).unwrap();
    let info = plan.info().unwrap();
    assert!(info.cached && !info.tuned && info.verified && info.pattern_verified, "{info:?}");
    assert_eq!(again.race(&pattern, &problem).unwrap().best.unwrap().variant, best.variant);
    assert_eq!(again.cache_path(), Some(folder.clone()));
    assert!(again.cache_entries().unwrap().iter().any(|entry| entry.key == race.key));

    let file = folder.join("all");
    again.cache_export(&file).unwrap();
    assert!(again.cache_clear(None).unwrap() > 0);
    assert!(again.cache_import(&file).unwrap() > 0);
    assert_eq!(again.cache_clear(Some(&race.key)).unwrap(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_race_ends_when_its_progress_says_so() {
    let context = Context::builder().device("cpu").cache_in_memory().effort(Effort::Quick).build().unwrap();
    let pattern = Pattern::new(&context, [64, 64], [16, 16], &[0, 1, 2, 3, 4], &[0, 1, 2, 3]).unwrap();
    let problem = Problem::matmul::<f32>(32);
    let mut steps = 0;
    let mut progress = |_, _, _: &str| {
        steps += 1;
        steps < 2
    };
    let error = RaceOptions::new().progress(&mut progress).run(&context, &pattern, &problem).unwrap_err();
    assert!(matches!(error, Error::Cancelled(_)), "{error}");
    assert!(context.cache_entries().unwrap().is_empty());
    // A panic is no word of the caller's.
    let options = RaceOptions::new();
    assert!(options.progress(&mut |_, _, _| panic!("this stays here")).run(&context, &pattern, &problem).is_ok());
}

#[test]
fn a_cpu_has_threads_and_no_multiprocessors() {
    let context = Context::builder().device("cpu").cache_in_memory().threads(1).multiprocessors(3).build().unwrap();
    let device = context.device();
    assert_eq!((device.threads, device.multiprocessors), (1, 0));
}

#[test]
fn where_an_allocator_puts_an_operand_makes_no_other_problem() {
    let context =
        Context::builder().device("cpu").cache_in_memory().effort(Effort::Quick).budget_seconds(0.1).build().unwrap();
    let pattern = Pattern::new(&context, [32, 32], [16, 16], &[0, 1, 2], &[0, 1]).unwrap();
    let (values, b, mut c) = (vec![1f32; 512], vec![1f32; 32 * 16 + 64], vec![0f32; 32 * 16 + 64]);
    for at in (0..64).step_by(4) {
        context.matmul(&pattern, &Problem::matmul::<f32>(16), &values, &b[at..], &mut c[at..]).unwrap();
    }
    assert_eq!(context.cache_entries().unwrap().len(), 1);
}

#[test]
fn every_variant_that_fits_can_be_asked_for() {
    let (context, mut random) = (context(), Random(10));
    let a = Matrix::<f32>::random([32, 32], [8, 8], &mut random);
    let pattern = Pattern::new(&context, a.shape, a.block, &a.row_ptr, &a.col_idx).unwrap();
    let b = dense::<f32>(32 * 8, &mut random);
    let expected = product(&a.dense(), &wide(&b), 32, 32, 8);
    let mut ran = 0;
    for variant in context.variants() {
        match Plan::with_variant(&context, &pattern, &Problem::matmul::<f32>(8), &variant.name) {
            Ok(mut plan) => {
                let mut c = vec![0f32; 32 * 8];
                plan.matmul(&a.values, &b, &mut c).unwrap();
                assert_close(&c, &expected);
                ran += 1;
            }
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{}: {error}", variant.name),
        }
    }
    assert!(ran >= 2, "the reference and the portable variant fit everywhere");
}

#[test]
fn messages_go_where_they_are_sent() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    let context = Context::builder()
        .device("cpu")
        .cache_in_memory()
        .effort(Effort::Quick)
        .budget_seconds(0.2)
        .log(|_, message| {
            assert!(!message.is_empty());
            HEARD.fetch_add(1, Ordering::Relaxed);
            panic!("this must not reach the library");
        })
        .build()
        .unwrap();
    let pattern = Pattern::new(&context, [32, 32], [16, 16], &[0, 1, 2], &[0, 1]).unwrap();
    Plan::new(&context, &pattern, &Problem::matmul::<f32>(16)).unwrap();
    assert!(HEARD.load(Ordering::Relaxed) > 0);
}

/// The thread that tunes is the one that a context waits for when it closes: it must not be the one that closes it.
#[test]
fn a_log_may_drop_the_last_handle_of_its_context() {
    struct Gone(mpsc::Sender<ThreadId>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).expect("somebody waits");
        }
    }
    static SLOT: Mutex<Option<Context>> = Mutex::new(None);
    static DROPPED_ON: OnceLock<ThreadId> = OnceLock::new();
    let (sender, closed) = mpsc::channel();
    let (gone, main) = (Gone(sender), thread::current().id());
    let log = move |_, _: &str| {
        let (_, here) = (&gone, thread::current().id());
        while here != main && DROPPED_ON.get().is_none() {
            if let Some(last) = SLOT.lock().unwrap().take() {
                DROPPED_ON.set(here).expect("dropped once");
                drop(last);
            }
            thread::yield_now();
        }
    };
    let builder = Context::builder().device("cpu").cache_in_memory().effort(Effort::Quick).background(true).log(log);
    let context = builder.build().expect("a CPU is always there");
    let pattern = Pattern::new(&context, [64, 64], [16, 16], &[0, 1, 2, 3, 4], &[0, 1, 2, 3]).expect("valid");
    drop(Plan::new(&context, &pattern, &Problem::matmul::<f32>(16)).expect("fits"));
    drop(pattern);
    *SLOT.lock().unwrap() = Some(context);
    // The log goes when the context has closed.
    let closed_on = closed.recv_timeout(Duration::from_secs(60)).expect("the context closes");
    assert_ne!(Some(&closed_on), DROPPED_ON.get());
}
