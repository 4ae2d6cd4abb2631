//! What a call costs from Rust: a product so small that the kernel hardly counts.
//!
//! cargo bench -p sparse-autotune --bench call
//!
//! Prints a JSON object a line, with a name and seconds: of a plan's run, and of the one-call form on a problem that is
//! known. `bench/call_turns` runs two builds of it in turns.

use sparse_autotune::{Context, Pattern, Plan, Problem};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 31;
const CALLS: u32 = 20_000;

/// Prints the median over the rounds of a call's time.
fn show(name: &str, mut call: impl FnMut()) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_secs_f64() / f64::from(CALLS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{{\"name\": \"{name}\", \"seconds\": {:e}}}", times[ROUNDS / 2]);
}

fn main() -> sparse_autotune::Result<()> {
    let context = Context::cpu()?;
    let pattern = Pattern::new(&context, [4, 6], [2, 2], &[0, 2, 3], &[0, 2, 1])?;
    let problem = Problem::matmul::<f32>(2);
    let (values, b, mut c) = ([1f32; 12], [1f32; 12], [0f32; 8]);
    let mut plan = Plan::new(&context, &pattern, &problem)?;
    show("Rust: a plan's run", || plan.matmul(black_box(&values), &b, &mut c).expect("a plan's run"));
    show("Rust: a call", || context.matmul(&pattern, &problem, black_box(&values), &b, &mut c).expect("a call"));
    Ok(())
}
