//! Errors: one variant for each status of the C library that is not success.

use std::ffi::CStr;
use std::fmt;

use sparse_autotune_sys as sys;

/// What can be said of anything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $status:ident,)*) => {
        /// Why a call failed. Each variant holds a message that names the argument, its value and what was expected.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $name(String),)*
        }

        impl Error {
            fn new(status: sys::sat_status, message: String) -> Self {
                match status {
                    $(sys::$status => Self::$name(message),)*
                    _ => Self::Internal(format!("status {status}: {message}")),
                }
            }

            /// The message alone.
            pub fn message(&self) -> &str {
                match self {
                    $(Self::$name(message) => message,)*
                }
            }

            /// The C library's name of this kind of error, `SAT_BAD_SIZE` for example.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($status),)*
                }
            }
        }
    };
}

errors! {
    /// A required pointer is null.
    NullPointer = SAT_NULL_POINTER,
    /// A pointer is less aligned than its problem says, or than its dtype needs.
    Misaligned = SAT_MISALIGNED,
    /// A size does not fit, or a slice is shorter than its problem says.
    BadSize = SAT_BAD_SIZE,
    /// A stride makes elements of an output coincide.
    BadStride = SAT_BAD_STRIDE,
    /// An output overlaps another operand.
    Overlap = SAT_OVERLAP,
    /// A value that is none of those listed.
    BadEnum = SAT_BAD_ENUM,
    /// The library that is linked is of another version than these declarations.
    BadStruct = SAT_BAD_STRUCT,
    /// Row pointers, or offsets of sequences, do not start at 0, decrease, end elsewhere than they should, or are too many or
    /// too few.
    BadRowPtr = SAT_BAD_ROW_PTR,
    /// A block column index is outside the matrix.
    ColumnRange = SAT_COLUMN_RANGE,
    /// Block columns of a row are unsorted or repeated.
    ColumnOrder = SAT_COLUMN_ORDER,
    /// A block side below 1.
    BadBlock = SAT_BAD_BLOCK,
    /// A combination that the library does not list.
    Unsupported = SAT_UNSUPPORTED,
    /// Memory ran out, or a context's memory limit was reached.
    OutOfMemory = SAT_OUT_OF_MEMORY,
    /// No such variant, device or cache entry.
    NotFound = SAT_NOT_FOUND,
    /// A file could not be read or written.
    Io = SAT_IO,
    /// A file's content, or a text, is not what it should be.
    BadFormat = SAT_BAD_FORMAT,
    /// The device or its driver failed.
    DeviceError = SAT_DEVICE_ERROR,
    /// An official library reported a failure.
    LibraryError = SAT_LIBRARY_ERROR,
    /// A variant's result failed its check.
    WrongResult = SAT_WRONG_RESULT,
    /// Memory, or a pattern, that this context's device cannot use.
    WrongMemory = SAT_WRONG_MEMORY,
    /// A variant of that name is registered already.
    Duplicate = SAT_DUPLICATE,
    /// The caller, or the end of the context, stopped it.
    Cancelled = SAT_CANCELLED,
    /// Another process uses it now: the cache, or the device for tuning.
    Busy = SAT_BUSY,
    /// A defect of the library.
    Internal = SAT_INTERNAL,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message(), self.name())
    }
}

impl std::error::Error for Error {}

/// The result of a call that has just returned on this thread.
pub(crate) fn check(status: sys::sat_status) -> Result<()> {
    if status == sys::SAT_OK {
        return Ok(());
    }
    // SAFETY: never NULL, and valid until this thread's next call.
    let message = unsafe { CStr::from_ptr(sys::sat_last_error()) };
    Err(Error::new(status, message.to_string_lossy().into_owned()))
}

/// A size as the C library takes it.
pub(crate) fn size(name: &str, value: usize) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::BadSize(format!("{name} is {value}, more than 2^63-1")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_library_is_an_error_of_its_own() {
        for status in 1..=200 {
            // SAFETY: a constant text.
            let name = unsafe { CStr::from_ptr(sys::sat_status_name(status)) }.to_str().expect("ASCII");
            let error = Error::new(status, String::new());
            assert_eq!(error.name(), if name == "unknown status" { "SAT_INTERNAL" } else { name });
        }
    }
}
