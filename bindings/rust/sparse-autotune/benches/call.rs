//! What a call costs from Rust: a product so small that the kernel hardly counts.
//!
//! cargo bench -p sparse-autotune --bench call
//!
//! Prints one JSON object with nanoseconds: of a plan's run, and of the one-call form on a problem that is known.

use sparse_autotune::{Context, Pattern, Plan, Problem};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 31;
const CALLS: u32 = 20_000;

/// The median over the rounds of a call's time, in nanoseconds.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() -> sparse_autotune::Result<()> {
    let context = Context::cpu()?;
    let pattern = Pattern::new(&context, [4, 6], [2, 2], &[0, 2, 3], &[0, 2, 1])?;
    let problem = Problem::matmul::<f32>(2);
    let (values, b, mut c) = ([1f32; 12], [1f32; 12], [0f32; 8]);
    let mut plan = Plan::new(&context, &pattern, &problem)?;
    let of_plan = nanoseconds(|| plan.matmul(black_box(&values), &b, &mut c).expect("a plan's run"));
    let of_call = nanoseconds(|| context.matmul(&pattern, &problem, black_box(&values), &b, &mut c).expect("a call"));
    println!("{{\"variant\": \"{}\", \"plan_ns\": {of_plan:.1}, \"call_ns\": {of_call:.1}}}", plan.info()?.variant);
    Ok(())
}
