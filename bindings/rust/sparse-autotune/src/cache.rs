//! The cache: what was tuned, remembered across processes and shared with C and Python.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use sparse_autotune_sys as sys;

use crate::context::{Context, owned};
use crate::error::{Error, Result, check};
use crate::pattern::Pattern;
use crate::problem::Problem;

/// An entry of the cache: a problem, and all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The problem, as the cache spells it.
    pub key: String,
    /// The entry's file; of an untuned problem, the problem as `name=value` words.
    pub text: String,
}

type Visit = unsafe extern "C" fn(*mut sys::sat_context, sys::sat_cache_visit_fn, *mut c_void) -> sys::sat_status;

/// Tuning results.
impl Context {
    /// The folder that is written to; none if results are kept in memory alone.
    pub fn cache_path(&self) -> Option<PathBuf> {
        // SAFETY: the context is open; the text is valid as long as it is.
        let path = unsafe { owned(sys::sat_cache_path(self.raw())) };
        (!path.is_empty()).then(|| PathBuf::from(path))
    }

    /// Every entry of this context's device.
    pub fn cache_entries(&self) -> Result<Vec<CacheEntry>> {
        self.visit(sys::sat_cache_visit)
    }

    /// Problems that [`Effort::Cached`](crate::Effort::Cached) had to answer by estimate.
    pub fn cache_untuned(&self) -> Result<Vec<CacheEntry>> {
        self.visit(sys::sat_cache_visit_untuned)
    }

    fn visit(&self, visit: Visit) -> Result<Vec<CacheEntry>> {
        unsafe extern "C" fn collect(user: *mut c_void, key: *const c_char, text: *const c_char) -> bool {
            // SAFETY: `user` is the vector below; both texts are valid during the call.
            let (entries, key, text) = unsafe { (&mut *user.cast::<Vec<CacheEntry>>(), owned(key), owned(text)) };
            entries.push(CacheEntry { key, text });
            true
        }
        let mut entries: Vec<CacheEntry> = Vec::new();
        // SAFETY: the context is open, and the vector outlives the call.
        check(unsafe { visit(self.raw(), Some(collect), ptr::from_mut(&mut entries).cast()) })?;
        Ok(entries)
    }

    /// Writes all devices' entries as one file.
    pub fn cache_export(&self, file: impl AsRef<Path>) -> Result<()> {
        let file = path("file", file.as_ref())?;
        // SAFETY: the context is open.
        check(unsafe { sys::sat_cache_export(self.raw(), file.as_ptr()) })
    }

    /// Reads such a file: keeps what is there, adds what is not, and says how many entries that were.
    pub fn cache_import(&self, file: impl AsRef<Path>) -> Result<usize> {
        let (file, mut entries) = (path("file", file.as_ref())?, 0);
        // SAFETY: the context is open.
        check(unsafe { sys::sat_cache_import(self.raw(), file.as_ptr(), &mut entries) })?;
        Ok(usize::try_from(entries).unwrap_or(0))
    }

    /// Removes the entry of this key, or every entry of this device, and says how many that were.
    pub fn cache_clear(&self, key: Option<&str>) -> Result<usize> {
        let key = key
            .map(|key| {
                CString::new(key).map_err(|e| Error::BadFormat(format!("key has a zero byte at {}", e.nul_position())))
            })
            .transpose()?;
        let mut entries = 0;
        // SAFETY: the context is open.
        check(unsafe {
            sys::sat_cache_clear(self.raw(), key.as_ref().map_or(ptr::null(), |key| key.as_ptr()), &mut entries)
        })?;
        Ok(usize::try_from(entries).unwrap_or(0))
    }

    /// The key of a problem, as the cache spells it.
    pub fn key(&self, pattern: &Pattern, problem: &Problem) -> Result<String> {
        pattern.belongs_to(self)?;
        let (raw, mut key) = (problem.raw()?, vec![0u8; 512]);
        // SAFETY: everything is open, and the key has as many bytes as are said.
        check(unsafe { sys::sat_problem_key(self.raw(), pattern.as_ptr(), &raw, key.as_mut_ptr().cast(), key.len()) })?;
        Ok(CStr::from_bytes_until_nul(&key).map(|key| key.to_string_lossy().into_owned()).unwrap_or_default())
    }
}

fn path(name: &str, path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|e| Error::BadFormat(format!("{name} has a zero byte at {}", e.nul_position())))
}
