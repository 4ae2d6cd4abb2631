//! Races: every variant that fits, checked and timed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use sparse_autotune_sys as sys;

use crate::context::{Context, text};
use crate::error::{Error, Result, check};
use crate::pattern::Pattern;
use crate::problem::Problem;

/// What came of one variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Right, and timed.
    Ok,
    /// Failed its check: can never win.
    Wrong,
    /// Returned an error, crashed or hung.
    Error,
    /// Not run: estimated too slow to win.
    Skipped,
    /// Not run: it wanted more memory than there was.
    Memory,
}

/// One variant's result.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RaceResult {
    /// Its name.
    pub variant: String,
    /// Its revision; of an official library, the version.
    pub revision: String,
    /// What came of it.
    pub verdict: Verdict,
    /// The median of its times; 0 where it was not timed.
    pub seconds: f64,
    /// Half of the distance between the quartiles.
    pub spread: f64,
    /// The fastest of its times; 0 where it was not timed.
    pub least_seconds: f64,
    /// The largest error of the check, over the magnitude of what was summed.
    pub error: f64,
    /// What its own estimate says.
    pub estimate_seconds: f64,
    /// Schedules and conversions, once.
    pub prepare_seconds: f64,
    /// Memory that it needs beside the operands.
    pub workspace_bytes: usize,
    /// How often it was timed.
    pub runs: u32,
    /// Whether it was allowed to win; dense rivals are shown only, unless the problem allows them.
    pub may_win: bool,
    /// Why it is not ok; else empty.
    pub message: String,
    /// On how many threads a short run takes the least time; `None`: on all.
    pub threads: Option<u32>,
}

impl RaceResult {
    fn new(r: &sys::sat_result) -> Self {
        Self {
            variant: text(&r.variant),
            revision: text(&r.revision),
            verdict: match r.verdict {
                sys::SAT_VERDICT_OK => Verdict::Ok,
                sys::SAT_VERDICT_WRONG => Verdict::Wrong,
                sys::SAT_VERDICT_SKIPPED => Verdict::Skipped,
                sys::SAT_VERDICT_MEMORY => Verdict::Memory,
                _ => Verdict::Error,
            },
            seconds: r.seconds,
            spread: r.spread,
            least_seconds: r.least_seconds,
            error: r.error,
            estimate_seconds: r.estimate_seconds,
            prepare_seconds: r.prepare_seconds,
            workspace_bytes: r.workspace_bytes,
            runs: u32::try_from(r.runs).unwrap_or(0),
            may_win: r.may_win,
            message: text(&r.message),
            threads: u32::try_from(r.threads).ok().filter(|&threads| threads > 0),
        }
    }
}

/// A race: every result, fastest first.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Race {
    /// Fastest first; those that were not timed follow.
    pub results: Vec<RaceResult>,
    /// The winner; none if nothing could win.
    pub best: Option<RaceResult>,
    /// The results came from the cache.
    pub cached: bool,
    /// Other work disturbed this race, so its times are too long; it is run again when the machine is quiet.
    pub busy: bool,
    /// Spent tuning in this call.
    pub seconds: f64,
    /// Arithmetic on stored blocks.
    pub flops: f64,
    /// Bytes that must move at least once.
    pub bytes: f64,
    /// The most memory that tuning held.
    pub peak_bytes: usize,
    /// The problem, as the cache spells it.
    pub key: String,
}

type Progress<'a> = &'a mut (dyn FnMut(usize, usize, &str) -> bool + Send);

/// How a race is run; see [`RaceOptions::run`].
pub struct RaceOptions<'a> {
    fresh: bool,
    keep: bool,
    only: Option<String>,
    progress: Option<Progress<'a>>,
}

impl Default for RaceOptions<'_> {
    fn default() -> Self {
        Self { fresh: false, keep: true, only: None, progress: None }
    }
}

impl<'a> RaceOptions<'a> {
    /// Results go into the cache, and come from there if they are known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Race even when the cache has the answer.
    pub fn fresh(self, fresh: bool) -> Self {
        Self { fresh, ..self }
    }

    /// Whether results go into the cache.
    pub fn keep(self, keep: bool) -> Self {
        Self { keep, ..self }
    }

    /// Only these variants take part, and nothing is kept.
    pub fn only<S: AsRef<str>>(self, variants: impl IntoIterator<Item = S>) -> Self {
        let names: Vec<String> = variants.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Self { only: Some(names.join(",")), ..self }
    }

    /// Called as the race goes on: how many steps are done, of how many, and what is next. What it returns says whether the
    /// race is to go on; false ends it with [`Error::Cancelled`]. A panic in it is swallowed, and the race goes on. It must not
    /// tune or make plans, which would wait for the race.
    pub fn progress(self, progress: Progress<'a>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Races, or reads a race back from the cache.
    pub fn run(mut self, context: &Context, pattern: &Pattern, problem: &Problem) -> Result<Race> {
        pattern.belongs_to(context)?;
        let problem = problem.raw()?;
        let only = self
            .only
            .map(|names| {
                CString::new(names)
                    .map_err(|e| Error::BadFormat(format!("only has a zero byte at {}", e.nul_position())))
            })
            .transpose()?;
        let options = sys::sat_race_options {
            size: size_of::<sys::sat_race_options>(),
            fresh: self.fresh,
            discard: !self.keep,
            only: only.as_ref().map_or(ptr::null(), |names| names.as_ptr()),
            progress: self.progress.as_ref().map(|_| report_progress as _),
            progress_user: self.progress.as_mut().map_or(ptr::null_mut(), |p| ptr::from_mut(p).cast()),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: everything is open, and what the options point to is valid during the call.
        check(unsafe { sys::sat_race_run(context.raw(), pattern.as_ptr(), &problem, &options, &mut raw) })?;
        let race = Raw(raw);
        let mut info = sys::sat_race_info { size: size_of::<sys::sat_race_info>(), ..Default::default() };
        // SAFETY: the race is open and the struct's size is set; results are valid as long as the race.
        unsafe {
            check(sys::sat_race_get_info(race.0, &mut info))?;
            Ok(Race {
                results: (0..sys::sat_race_count(race.0))
                    .map_while(|i| sys::sat_race_at(race.0, i).as_ref())
                    .map(RaceResult::new)
                    .collect(),
                best: sys::sat_race_best(race.0).as_ref().map(RaceResult::new),
                cached: info.cached,
                busy: info.disturbed,
                seconds: info.seconds,
                flops: info.flops,
                bytes: info.bytes,
                peak_bytes: info.peak_bytes,
                key: text(&info.key),
            })
        }
    }
}

impl Context {
    /// Races a problem, or reads its race back from the cache.
    pub fn race(&self, pattern: &Pattern, problem: &Problem) -> Result<Race> {
        RaceOptions::new().run(self, pattern, problem)
    }
}

struct Raw(*mut sys::sat_race);

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { sys::sat_race_free(self.0) }
    }
}

unsafe extern "C" fn report_progress(user: *mut c_void, done: c_int, total: c_int, what: *const c_char) -> bool {
    // SAFETY: `user` is the options' own, borrowed for the whole race, which calls this from one thread at a time.
    let (progress, what) = unsafe { (&mut *user.cast::<Progress<'_>>(), CStr::from_ptr(what)) };
    let number = |n: c_int| usize::try_from(n).unwrap_or(0);
    catch_unwind(AssertUnwindSafe(|| progress(number(done), number(total), &what.to_string_lossy()))).unwrap_or(true)
}
