//! Ranks that agree, by stores in memory and in a folder. The ranks are contexts of this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use sparse_autotune::{Context, Effort, Error, Folder, Pattern, Plan, PlanInfo, Problem, Result, Store};

#[derive(Default)]
struct Shared {
    texts: Mutex<HashMap<String, String>>,
    news: Condvar,
    _end: End,
}

/// Counts how often one of these was dropped.
#[derive(Default)]
struct End(Arc<AtomicUsize>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Store for Shared {
    fn get(&self, name: &str, wait: Duration) -> Result<Option<String>> {
        let texts = self.texts.lock().expect("nobody panics");
        let found = self.news.wait_timeout_while(texts, wait, |texts| !texts.contains_key(name));
        Ok(found.expect("nobody panics").0.get(name).cloned())
    }

    fn put(&self, name: &str, text: &str) -> Result<String> {
        let mut texts = self.texts.lock().expect("nobody panics");
        self.news.notify_all();
        Ok(texts.entry(name.to_owned()).or_insert_with(|| text.to_owned()).clone())
    }
}

/// A store that fails in every way that one can.
struct Broken(u8);

impl Store for Broken {
    fn get(&self, _: &str, _: Duration) -> Result<Option<String>> {
        match self.0 {
            0 => Err(Error::Io("nobody listens".into())),
            1 => Ok(Some("x".repeat(256))),
            2 => Ok(Some("a\0b".into())),
            _ => panic!("planted"),
        }
    }

    fn put(&self, _: &str, _: &str) -> Result<String> {
        Ok(self.get("", Duration::ZERO)?.expect("it never says None"))
    }
}

fn open(rank: usize, world: usize, store: impl Store + 'static) -> Result<Context> {
    let wait = Duration::from_secs(20);
    let builder =
        Context::builder().device("cpu").cache_in_memory().effort(Effort::Quick).budget_seconds(1e-3).threads(1);
    builder.agree(rank, world, wait, store).build()
}

/// A plan of 3x3 blocks, each of so many rows.
fn plan(context: &Context, side: usize) -> PlanInfo {
    let size = [3 * side, 3 * side];
    let pattern = Pattern::new(context, size, [side, side], &[0, 1, 3, 4], &[1, 0, 2, 1]).expect("valid");
    Plan::new(context, &pattern, &Problem::matmul::<f32>(5)).expect("fits").info().expect("a plan says what it is")
}

fn four_ranks_agree<S: Store + 'static>(store: impl Fn() -> S + Sync) {
    let (ranks, sides) = (4, [2, 3, 4, 5, 6]);
    let found: Vec<Vec<PlanInfo>> = thread::scope(|scope| {
        let store = &store;
        let begun: Vec<_> = (0..ranks)
            .map(|rank| {
                scope.spawn(move || {
                    let context = open(rank, ranks, store()).expect("a CPU is always there");
                    let mut found: Vec<_> = (0..sides.len())
                        .map(|at| (at + rank) % sides.len()) // each in another order
                        .map(|at| (at, plan(&context, sides[at])))
                        .collect();
                    found.sort_by_key(|(at, _)| *at);
                    found.into_iter().map(|(_, info)| info).collect()
                })
            })
            .collect();
        begun.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    for at in 0..sides.len() {
        assert!(found.iter().all(|rank| rank[at].variant == found[0][at].variant && rank[at].verified));
        assert_eq!(found.iter().filter(|rank| rank[at].tuned).count(), 1, "{}", sides[at]);
    }
}

#[test]
fn each_problem_is_raced_by_one_rank_and_all_run_its_winner() {
    let shared = Arc::new(Shared::default());
    four_ranks_agree(|| shared.clone());
    assert!(!shared.texts.lock().expect("nobody panics").is_empty());
}

#[test]
fn a_folder_is_a_store() {
    let path = std::env::temp_dir().join(format!("sat_rust_ranks_{}", std::process::id()));
    four_ranks_agree(|| Folder::new(&path).expect("a folder can be made"));
    let folder = Folder::new(&path).expect("it is there");
    assert_eq!(folder.get("a/b", Duration::ZERO), Ok(None));
    assert_eq!((folder.put("a/b", "one"), folder.put("a/b", "two")), (Ok("one".into()), Ok("one".into())));
    assert_eq!(folder.get("a/b", Duration::ZERO), Ok(Some("one".into())));
    assert!(matches!(folder.get("a\0", Duration::ZERO), Err(Error::BadFormat(_))));
    std::fs::remove_dir_all(path).expect("this test made it");
}

#[test]
fn a_store_that_fails_leaves_each_rank_to_itself() {
    for kind in 0..4 {
        let context = open(0, 2, Broken(kind)).expect("joining asks nobody");
        let info = plan(&context, 4);
        assert!(info.tuned && info.verified, "{kind}");
    }
}

#[test]
fn a_store_lives_as_long_as_its_context() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let store = Shared { _end: End(dropped.clone()), ..Default::default() };
    let context = open(0, 1, store).expect("a CPU is always there");
    let other = context.clone();
    drop(context);
    plan(&other, 4);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(other);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let store = Shared { _end: End(dropped.clone()), ..Default::default() };
    assert!(open(2, 2, store).expect_err("there is no such rank").message().contains("rank is 2"));
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}
