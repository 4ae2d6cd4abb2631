//! What a context makes of the environment. One test, since the variables are the whole process's.

use sparse_autotune::{Context, Effort};

fn opened(effort: &str, force: &str) -> Context {
    // SAFETY: nothing else runs in this process.
    unsafe {
        std::env::set_var("SPARSE_AUTOTUNE", effort);
        std::env::set_var("SPARSE_AUTOTUNE_FORCE", force);
    }
    Context::builder().device("cpu").cache_in_memory().build().expect("there is a CPU")
}

#[test]
fn a_context_says_what_of_the_environment_it_ignores() {
    for (word, effort) in
        [("", Effort::Quick), ("off", Effort::Off), ("Cached", Effort::Cached), ("full", Effort::Full)]
    {
        let context = opened(word, "cpu_matmul_any_any_c_reference");
        assert_eq!((context.effort(), context.ignored()), (effort, None));
    }
    let context = opened("on", "");
    assert_eq!(context.effort(), Effort::Quick);
    assert!(context.ignored().expect("'on' is no effort").contains("SPARSE_AUTOTUNE is 'on'"));
    let words = opened("off", "cpu_matmul_none").ignored().expect("there is no such variant");
    assert_eq!(words, "SPARSE_AUTOTUNE_FORCE is 'cpu_matmul_none'; no such variant");
}
