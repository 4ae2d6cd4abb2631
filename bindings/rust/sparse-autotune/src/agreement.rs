//! Ranks of one job that run the same variants, by a store that all of them reach.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use sparse_autotune_sys as sys;

use crate::error::{Error, Result, check};

const SIZE: usize = sys::SAT_AGREED_SIZE as usize;

/// Where the ranks of a job leave texts for each other, each under a name of its own and written once: a key-value store of
/// yours, or a [`Folder`]. Calls may come from several threads at once. An error, or a panic, is logged, and the rank then
/// decides by itself.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Condvar, Mutex};
/// use std::time::Duration;
///
/// use sparse_autotune::{Result, Store};
///
/// /// For ranks that are threads of one process.
/// #[derive(Default)]
/// struct Shared(Mutex<HashMap<String, String>>, Condvar);
///
/// impl Store for Shared {
///     fn get(&self, name: &str, wait: Duration) -> Result<Option<String>> {
///         let texts = self.0.lock().expect("nobody panics");
///         let found = self.1.wait_timeout_while(texts, wait, |texts| !texts.contains_key(name));
///         Ok(found.expect("nobody panics").0.get(name).cloned())
///     }
///
///     fn put(&self, name: &str, text: &str) -> Result<String> {
///         let mut texts = self.0.lock().expect("nobody panics");
///         self.1.notify_all();
///         Ok(texts.entry(name.to_owned()).or_insert_with(|| text.to_owned()).clone())
///     }
/// }
/// ```
pub trait Store: Send + Sync {
    /// The text of a name. Waits for it at most so long; without a wait it looks whether there is one.
    fn get(&self, name: &str, wait: Duration) -> Result<Option<String>>;

    /// Stores a text, unless the name has one already, and gives the text that it has then: in one step, as a compare-and-set
    /// does it. Texts are shorter than 256 bytes.
    fn put(&self, name: &str, text: &str) -> Result<String>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn get(&self, name: &str, wait: Duration) -> Result<Option<String>> {
        (**self).get(name, wait)
    }

    fn put(&self, name: &str, text: &str) -> Result<String> {
        (**self).put(name, text)
    }
}

/// A folder that all ranks see, on NFS too: one a job.
pub struct Folder(sys::sat_agreement);

// SAFETY: both functions of an agreement may be called from several threads at once, says the header.
unsafe impl Send for Folder {}
// SAFETY: the same.
unsafe impl Sync for Folder {}

impl Folder {
    /// The folder is made where it is not there.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = text("path", path.as_ref().as_os_str().as_encoded_bytes())?;
        let mut made = sys::sat_agreement { size: size_of::<sys::sat_agreement>(), ..Default::default() };
        // SAFETY: a text that ends in zero, and a struct of the size that it says.
        check(unsafe { sys::sat_agreement_folder(path.as_ptr(), 0, 1, &mut made) })?;
        Ok(Self(made))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // SAFETY: made by sat_agreement_folder; a context that uses it holds it.
        unsafe { sys::sat_agreement_folder_free(&mut self.0) }
    }
}

impl Store for Folder {
    fn get(&self, name: &str, wait: Duration) -> Result<Option<String>> {
        let (name, mut to) = (text("name", name.as_bytes())?, [0; SIZE]);
        let get = self.0.get.expect("sat_agreement_folder sets it");
        // SAFETY: the folder's own function and user; `to` has the room that it needs.
        match check(unsafe { get(self.0.user, name.as_ptr(), wait.as_secs_f64(), to.as_mut_ptr()) }) {
            Err(Error::NotFound(_)) => Ok(None),
            done => done.map(|()| Some(crate::context::text(&to))),
        }
    }

    fn put(&self, name: &str, value: &str) -> Result<String> {
        let (name, value, mut to) = (text("name", name.as_bytes())?, text("text", value.as_bytes())?, [0; SIZE]);
        let put = self.0.put.expect("sat_agreement_folder sets it");
        // SAFETY: as above.
        check(unsafe { put(self.0.user, name.as_ptr(), value.as_ptr(), to.as_mut_ptr()) })?;
        Ok(crate::context::text(&to))
    }
}

fn text(name: &str, bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|e| Error::BadFormat(format!("{name} has a zero byte at {}", e.nul_position())))
}

/// What a context has to know of its ranks.
pub(crate) struct Ranks {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) wait: Duration,
    pub(crate) store: Box<Box<dyn Store>>,
}

impl Ranks {
    /// The store, which must outlive the context.
    pub(crate) fn join(self, context: *mut sys::sat_context) -> Result<Box<Box<dyn Store>>> {
        let count = |name: &str, value: usize| {
            i32::try_from(value).map_err(|_| Error::BadSize(format!("{name} is {value}, more than 2^31-1")))
        };
        let agreement = sys::sat_agreement {
            size: size_of::<sys::sat_agreement>(),
            rank: count("rank", self.rank)?,
            world: count("world", self.world)?,
            wait_seconds: self.wait.as_secs_f64(),
            get: Some(get),
            put: Some(put),
            user: ptr::from_ref::<Box<dyn Store>>(&self.store).cast_mut().cast(),
        };
        // SAFETY: the context is open and nobody else has it yet; the struct is copied, and the store is kept.
        check(unsafe { sys::sat_context_agree(context, &agreement) })?;
        Ok(self.store)
    }
}

/// Calls the store, and writes what it says.
///
/// # Safety
/// `user` is a store of `Ranks::join`, `key` a text that ends in zero, and `to` has room for a text.
unsafe fn answer(
    user: *mut c_void,
    key: *const c_char,
    to: *mut c_char,
    call: impl FnOnce(&dyn Store, &str) -> Result<Option<String>>,
) -> sys::sat_status {
    // SAFETY: the caller's.
    let (store, key) = unsafe { (&*user.cast::<Box<dyn Store>>(), CStr::from_ptr(key)) };
    let said = catch_unwind(AssertUnwindSafe(|| call(&**store, &key.to_string_lossy())));
    match said {
        Ok(Ok(Some(text))) if text.len() < SIZE && !text.contains('\0') => {
            // SAFETY: shorter than the room, and followed by a zero.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
                to.add(text.len()).write(0);
            }
            sys::SAT_OK
        }
        Ok(Ok(Some(_))) => sys::SAT_BAD_FORMAT,
        Ok(Ok(None)) => sys::SAT_NOT_FOUND,
        Ok(Err(_)) | Err(_) => sys::SAT_IO,
    }
}

unsafe extern "C" fn get(user: *mut c_void, key: *const c_char, seconds: f64, to: *mut c_char) -> sys::sat_status {
    let wait = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    // SAFETY: as the header says of these functions.
    unsafe { answer(user, key, to, |store, key| store.get(key, wait)) }
}

unsafe extern "C" fn put(
    user: *mut c_void,
    key: *const c_char,
    desired: *const c_char,
    to: *mut c_char,
) -> sys::sat_status {
    // SAFETY: as the header says of these functions.
    unsafe {
        let desired = CStr::from_ptr(desired).to_string_lossy();
        answer(user, key, to, |store, key| store.put(key, &desired).map(Some))
    }
}
