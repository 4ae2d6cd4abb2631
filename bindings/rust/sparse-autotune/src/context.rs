//! A context: a device, a cache, and the settings of tuning.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sparse_autotune_sys as sys;

use crate::agreement::{Ranks, Store};
use crate::error::{Error, Result, check};
use crate::types::{Backend, Effort, Measure};

/// How serious a message of the library is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is not as it should be, and was worked around.
    Warn,
    /// What was tuned, and what came of it.
    Info,
    /// Everything.
    Debug,
}

type Log = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The settings of a context; see [`Context::builder`].
#[derive(Default)]
pub struct ContextBuilder {
    device: Option<String>,
    cache: Option<Vec<u8>>,
    effort: Effort,
    measure: Measure,
    threads: usize,
    multiprocessors: usize,
    background: bool,
    budget_seconds: f64,
    memory_limit: usize,
    log: Option<Log>,
    ranks: Option<Ranks>,
}

impl ContextBuilder {
    /// `"cpu"`, `"cuda"` or `"cuda:1"`; else `$SPARSE_AUTOTUNE_DEVICE`, else the best that is found.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// The folder that results are remembered in; else `$SPARSE_AUTOTUNE_CACHE`, else the user's cache folder.
    pub fn cache_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.cache = Some(folder.as_ref().as_os_str().as_encoded_bytes().to_vec());
        self
    }

    /// Results are remembered by this context alone, and by nobody after it.
    pub fn cache_in_memory(mut self) -> Self {
        self.cache = Some(Vec::new());
        self
    }

    /// How much may be spent on a problem that the cache does not know.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.effort = effort;
        self
    }

    /// What is timed.
    pub fn measure(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// Threads on a CPU; 0, the default: OpenMP's own setting at each call.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Multiprocessors of a GPU to plan for; 0, the default: all.
    pub fn multiprocessors(mut self, multiprocessors: usize) -> Self {
        self.multiprocessors = multiprocessors;
        self
    }

    /// A problem that the cache does not know is served by the estimate while a thread of the library tunes it.
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// The time limit of a race; 0, the default: the effort's own.
    pub fn budget_seconds(mut self, seconds: f64) -> Self {
        self.budget_seconds = seconds;
        self
    }

    /// Bytes for workspace and tuning together; 0, the default: half of what the device has free.
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Where messages go. It may be called from any thread; a panic in it is swallowed. Without one the library is
    /// silent, unless `$SPARSE_AUTOTUNE_LOG` sends its messages to standard error. It may drop the last handle of a context,
    /// which then closes on a thread of its own; it must not wait for one, which may wait for the log. Nor may it tune or make
    /// plans: messages come in the midst of both, which would wait for themselves.
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Some(Box::new(log));
        self
    }

    /// Plans of this context agree with those of the other ranks of a job: each problem is raced by one of those with equal
    /// devices and builds, all of them check its winner for themselves, and all of them run it. No rank waits for another
    /// one longer than `wait` a problem (zero: a minute), be that one late or dead. Every rank calls this, with its number
    /// from 0 on below `world`. Of no effect under [`Effort::Off`] and [`Effort::Pinned`], and not with `background`.
    pub fn agree(mut self, rank: usize, world: usize, wait: Duration, store: impl Store + 'static) -> Self {
        self.ranks = Some(Ranks { rank, world, wait, store: Box::new(Box::new(store)) });
        self
    }

    /// Opens the context.
    pub fn build(self) -> Result<Context> {
        let text = |name: &str, value: Option<Vec<u8>>| match value {
            None => Ok(None),
            Some(bytes) => CString::new(bytes)
                .map(Some)
                .map_err(|e| Error::BadFormat(format!("{name} has a zero byte at {}", e.nul_position()))),
        };
        let device = text("device", self.device.map(String::into_bytes))?;
        let cache = text("cache_dir", self.cache)?;
        let count = |name: &str, value: usize| {
            i32::try_from(value).map_err(|_| Error::BadSize(format!("{name} is {value}, more than 2^31-1")))
        };
        let log = self.log.map(Box::new);
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        let options = sys::sat_context_options {
            size: size_of::<sys::sat_context_options>(),
            device: pointer(&device),
            cache_dir: pointer(&cache),
            effort: self.effort.raw(),
            measure: match self.measure {
                Measure::Cold => sys::SAT_MEASURE_COLD,
                Measure::Warm => sys::SAT_MEASURE_WARM,
            },
            threads: count("threads", self.threads)?,
            multiprocessors: count("multiprocessors", self.multiprocessors)?,
            background: self.background,
            budget_seconds: self.budget_seconds,
            memory_limit: self.memory_limit,
            allocator: ptr::null(),
            log: log.as_ref().map(|_| log_message as _),
            log_user: log.as_ref().map_or(ptr::null_mut(), |log| ptr::from_ref::<Log>(log).cast_mut().cast()),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers of the options are valid during the call, and the log's as long as the context.
        check(unsafe { sys::sat_context_create(&options, &mut raw) })?;
        // SAFETY: never NULL, valid as long as the context.
        let device = Device::new(unsafe { &*sys::sat_context_device(raw) });
        let mut made = Inner { raw, place: (device.backend, device.index), log, store: None };
        made.store = self.ranks.map(|ranks| ranks.join(raw)).transpose()?;
        Ok(Context(Arc::new(made)))
    }
}

thread_local! {
    /// Whether this thread is in somebody's log.
    static IN_LOG: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn log_message(user: *mut c_void, level: sys::sat_log_level, message: *const c_char) {
    let level = match level {
        sys::SAT_LOG_ERROR => LogLevel::Error,
        sys::SAT_LOG_WARN => LogLevel::Warn,
        sys::SAT_LOG_INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    // SAFETY: `user` is the context's own box; the message is valid during the call.
    let (log, message) = unsafe { (&*user.cast::<Log>(), CStr::from_ptr(message)) };
    let outer = IN_LOG.replace(true);
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &message.to_string_lossy())));
    IN_LOG.set(outer);
}

pub(crate) struct Inner {
    pub(crate) raw: *mut sys::sat_context,
    pub(crate) place: (Backend, usize),
    log: Option<Box<Log>>,
    store: Option<Box<Box<dyn Store>>>,
}

// SAFETY: contexts may be shared between threads, says the header; log and store are Send and Sync.
unsafe impl Send for Inner {}
// SAFETY: the same.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let closing = ManuallyDrop::new(Closing { raw: self.raw, log: self.log.take(), store: self.store.take() });
        let close = move || ManuallyDrop::into_inner(closing).close();
        if IN_LOG.get() {
            // Closing waits for the thread that tunes, which may be this one, and frees the log that runs here. If there is
            // no other thread to be had the context stays open.
            let _ = thread::Builder::new().spawn(close);
        } else {
            close();
        }
    }
}

/// A context that nobody has a handle of any more, and the log and the store that it uses until it is closed.
struct Closing {
    raw: *mut sys::sat_context,
    log: Option<Box<Log>>,
    store: Option<Box<Box<dyn Store>>>,
}

// SAFETY: as for `Inner`.
unsafe impl Send for Closing {}

impl Closing {
    fn close(self) {
        // SAFETY: whatever needs the context holds a reference to its `Inner`, which is gone.
        unsafe { sys::sat_context_free(self.raw) }
        drop((self.store, self.log));
    }
}

/// A device, a cache of what was tuned on it, and settings. A clone is another handle of the same context; it closes
/// when the last of them is gone, and plans and buffers made from it count as such.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Inner>);

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device().name).finish_non_exhaustive()
    }
}

impl Context {
    /// A context on the best device that is found, with everything as the environment says.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A context on the CPU, with everything else as the environment says: what slices can be multiplied with.
    pub fn cpu() -> Result<Self> {
        Self::builder().device("cpu").build()
    }

    /// Settings first.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// What the context runs on.
    pub fn device(&self) -> Device {
        // SAFETY: never NULL, valid as long as the context.
        Device::new(unsafe { &*sys::sat_context_device(self.raw()) })
    }

    /// Whether this is a CPU or a GPU.
    pub fn backend(&self) -> Backend {
        self.0.place.0
    }

    /// What may be spent on a problem: never [`Effort::Default`], but what the environment made of it.
    pub fn effort(&self) -> Effort {
        // SAFETY: the context is open.
        Effort::from_raw(unsafe { sys::sat_context_effort(self.raw()) })
    }

    /// What the environment asks for and the context does not do: a `$SPARSE_AUTOTUNE` that is no effort, a
    /// `$SPARSE_AUTOTUNE_FORCE` that is no variant. The crate prints nothing: show it where you show warnings.
    pub fn ignored(&self) -> Option<String> {
        let mut words = [0; 512];
        // SAFETY: the context is open; the text is cut to the room there is, and ends in zero.
        check(unsafe { sys::sat_context_ignored(self.raw(), words.as_mut_ptr(), words.len()) }).ok()?;
        Some(text(&words)).filter(|words| !words.is_empty())
    }

    /// Measures a GPU's rates now, and keeps them in the cache. The first race on it does this by itself.
    pub fn measure(&self) -> Result<()> {
        // SAFETY: the context is open.
        check(unsafe { sys::sat_context_measure_rates(self.raw()) })
    }

    /// Blocks until background tuning has nothing left to do.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the context is open.
        check(unsafe { sys::sat_context_wait(self.raw()) })
    }

    /// The variants that the context knows, those that do not fit its device among them.
    pub fn variants(&self) -> Vec<Variant> {
        // SAFETY: the context is open; entries are valid as long as it is, and their strings end in zero.
        unsafe {
            (0..sys::sat_variant_count(self.raw()))
                .map_while(|i| sys::sat_variant_at(self.raw(), i).as_ref())
                .map(|v| Variant { name: owned(v.name), revision: owned(v.revision), about: owned(v.about) })
                .collect()
        }
    }

    /// The context as the C library knows it, for calls that this crate has no words for: `sat_variant_register`, say.
    pub fn as_ptr(&self) -> *mut sys::sat_context {
        self.raw()
    }

    pub(crate) fn raw(&self) -> *mut sys::sat_context {
        self.0.raw
    }
}

/// An implementation of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variant {
    /// `cpu_matmul_f32_any_avx512_8x48`.
    pub name: String,
    /// Changes when old timings no longer hold.
    pub revision: String,
    /// What it is good at, in a line.
    pub about: String,
}

/// A device, as it was found when the context opened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Device {
    /// CPU or CUDA.
    pub backend: Backend,
    /// The number of a GPU.
    pub index: usize,
    /// "AMD EPYC (2 cores, AVX-512)".
    pub name: String,
    /// What timings depend on: model, instruction set or multiprocessors, driver.
    pub identity: String,
    /// Threads that a run on a CPU uses; 0 on a GPU.
    pub threads: usize,
    /// Multiprocessors of a GPU that a run is planned for; 0 on a CPU.
    pub multiprocessors: usize,
    /// 90 for sm_90; 0 on a CPU.
    pub capability: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes a second that its memory gives, nominal unless `measured`.
    pub memory_rate: f64,
    /// The rates were measured on this machine.
    pub measured: bool,
}

impl Device {
    fn new(d: &sys::sat_device) -> Self {
        Self {
            backend: if d.backend == sys::SAT_CUDA { Backend::Cuda } else { Backend::Cpu },
            index: usize::try_from(d.index).unwrap_or(0),
            name: text(&d.name),
            identity: text(&d.identity),
            threads: usize::try_from(d.threads).unwrap_or(0),
            multiprocessors: usize::try_from(d.multiprocessors).unwrap_or(0),
            capability: u32::try_from(d.capability).unwrap_or(0),
            memory_bytes: u64::try_from(d.memory_bytes).unwrap_or(0),
            memory_rate: d.memory_rate,
            measured: d.measured,
        }
    }
}

/// A field of the C library's that holds a text.
pub(crate) fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| u8::from_ne_bytes(c.to_ne_bytes())).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text of the C library's; "" for NULL.
///
/// # Safety
/// `pointer` is NULL or a text that ends in zero.
pub(crate) unsafe fn owned(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
