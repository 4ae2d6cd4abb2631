//! The order between a product and CubeCL's own work on a GPU.
//!
//! CubeCL's streams are its own: none is shown, and being non-blocking they are not ordered with the default stream. But it
//! computes in the device's primary context, as the library does, and a driver of CUDA 12.5 or newer records an event over
//! all the work of a context, and makes all later work of a context wait for one. So the device can keep the order, and the
//! host need not wait.

use std::cell::OnceCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::Library;

/// Who keeps the order between products and the rest of Burn's work on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CudaOrder {
    /// The device, where its driver can (CUDA 12.5 or newer); otherwise the host.
    #[default]
    Device,
    /// The host: a product waits for all that is queued before it, and for itself.
    Host,
}

static BY_HOST: AtomicBool = AtomicBool::new(false);

impl CudaOrder {
    /// From now on, for every product of this process. Both are right. Of many products in a row the device's is faster; a
    /// single one that is waited for at once may be faster by the host's.
    pub fn set(self) {
        BY_HOST.store(self == Self::Host, Ordering::Relaxed);
    }

    /// What products do now.
    pub fn get() -> Self {
        if BY_HOST.load(Ordering::Relaxed) { Self::Host } else { Self::Device }
    }
}

type Handle = *mut c_void;
type Code = c_int;
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;

/// What is used of the driver.
struct Driver {
    current_context: unsafe extern "C" fn(*mut Handle) -> Code,
    create_stream: unsafe extern "C" fn(*mut Handle, c_uint) -> Code,
    create_event: unsafe extern "C" fn(*mut Handle, c_uint) -> Code,
    record: unsafe extern "C" fn(Handle, Handle) -> Code,
    wait: unsafe extern "C" fn(Handle, Handle, c_uint) -> Code,
    context_record: unsafe extern "C" fn(Handle, Handle) -> Code,
    context_wait: unsafe extern "C" fn(Handle, Handle) -> Code,
}

impl Driver {
    /// The driver, if it is there and new enough.
    fn get() -> Option<&'static Self> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref()
    }

    fn load() -> Option<Self> {
        // SAFETY: CubeCL has loaded the same library. The types are those of the driver's documentation.
        unsafe {
            let library = Library::new("libcuda.so.1").or_else(|_| Library::new("nvcuda.dll")).ok()?;
            let driver = Self {
                current_context: *library.get(b"cuCtxGetCurrent\0").ok()?,
                create_stream: *library.get(b"cuStreamCreate\0").ok()?,
                create_event: *library.get(b"cuEventCreate\0").ok()?,
                record: *library.get(b"cuEventRecord\0").ok()?,
                wait: *library.get(b"cuStreamWaitEvent\0").ok()?,
                context_record: *library.get(b"cuCtxRecordEvent\0").ok()?,
                context_wait: *library.get(b"cuCtxWaitEvent\0").ok()?,
            };
            std::mem::forget(library); // never unloaded: the functions are used as long as the process lives
            Some(driver)
        }
    }
}

/// A stream beside CubeCL's, and the events that tie it in. One for each of CubeCL's threads, which is one for each device;
/// never destroyed, as CubeCL's own are not.
pub(super) struct Lane {
    driver: &'static Driver,
    context: Handle,
    stream: Handle,
    before: Handle,
    after: Handle,
}

impl Lane {
    /// Runs `task` with this thread's lane; None if the driver has no way to order it. For CubeCL's thread of a device,
    /// with its context current.
    pub(super) fn with<R>(task: impl FnOnce(Option<&Self>) -> R) -> R {
        thread_local! {
            static LANE: OnceCell<Option<Lane>> = const { OnceCell::new() };
        }
        if CudaOrder::get() == CudaOrder::Host {
            return task(None);
        }
        LANE.with(|lane| task(lane.get_or_init(Self::open).as_ref()))
    }

    fn open() -> Option<Self> {
        let driver = Driver::get()?;
        let mut lane = Self {
            driver,
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            before: ptr::null_mut(),
            after: ptr::null_mut(),
        };
        // SAFETY: each writes one handle.
        let made = unsafe {
            (driver.current_context)(&mut lane.context) == 0
                && !lane.context.is_null()
                && (driver.create_stream)(&mut lane.stream, STREAM_NON_BLOCKING) == 0
                && (driver.create_event)(&mut lane.before, EVENT_DISABLE_TIMING) == 0
                && (driver.create_event)(&mut lane.after, EVENT_DISABLE_TIMING) == 0
        };
        made.then_some(lane)
    }

    /// The stream, on which what is queued now comes after all that the context has queued. None if the context cannot
    /// say (a stream of it is captured, say).
    pub(super) fn enter(&self) -> Option<*mut c_void> {
        // SAFETY: the handles are this lane's, of one context, and live for ever.
        let entered = unsafe {
            (self.driver.context_record)(self.context, self.before) == 0
                && (self.driver.wait)(self.stream, self.before, 0) == 0
        };
        entered.then_some(self.stream)
    }

    /// All that the context queues from now on comes after what is on the stream. False if that cannot be: then the
    /// stream has to be waited for.
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        // SAFETY: as in `enter`.
        unsafe {
            (self.driver.record)(self.after, self.stream) == 0
                && (self.driver.context_wait)(self.context, self.after) == 0
        }
    }
}
