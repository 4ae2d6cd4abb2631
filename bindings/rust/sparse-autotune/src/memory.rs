//! Operands: slices of the host, and buffers on the device.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use sparse_autotune_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result, check};
use crate::problem::Need;
use crate::types::{Backend, Dtype, Element};

/// Memory of a context's device, for those who have no other way to it. Dropping it waits for work that uses it.
pub struct Buffer<T: Element> {
    context: Context,
    pointer: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: memory that this owns, reached through calls that any thread may make.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: through a shared reference it is only read.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// So many zeros.
    pub fn zeros(context: &Context, len: usize) -> Result<Self> {
        let mut buffer = Self::reserve(context, len)?;
        const STEP: usize = 1 << 16;
        let zeros = vec![T::default(); len.min(STEP)];
        let mut done = 0;
        while done < len {
            let count = STEP.min(len - done);
            buffer.put(done, &zeros[..count])?;
            done += count;
        }
        Ok(buffer)
    }

    /// A copy of a slice.
    pub fn from_slice(context: &Context, values: &[T]) -> Result<Self> {
        let mut buffer = Self::reserve(context, values.len())?;
        buffer.put(0, values)?;
        Ok(buffer)
    }

    /// Memory that is filled before anybody else sees it.
    fn reserve(context: &Context, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| Error::BadSize(format!("len is {len}: its bytes overflow")))?;
        let mut pointer = ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the context is open.
            check(unsafe { sys::sat_memory_alloc(context.raw(), bytes, &mut pointer) })?;
        }
        Ok(Self { context: context.clone(), pointer, len, element: PhantomData })
    }

    fn put(&mut self, at: usize, values: &[T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: the callers keep within the buffer.
        check(unsafe {
            let to = self.pointer.cast::<T>().add(at).cast();
            sys::sat_memory_write(self.context.raw(), to, values.as_ptr().cast(), size_of_val(values))
        })
    }

    /// Waits for what is queued on the default stream, where runs on buffers go.
    fn settle(&self) -> Result<()> {
        // SAFETY: the context is open; NULL is the default stream.
        check(unsafe { sys::sat_stream_wait(self.context.raw(), ptr::null_mut()) })
    }

    /// Fills the buffer from a slice as long as it is.
    pub fn write(&mut self, values: &[T]) -> Result<()> {
        self.same_length("values", values.len())?;
        self.settle()?;
        self.put(0, values)
    }

    /// Waits for runs that write it, and copies it into a slice as long as it is.
    pub fn read(&self, into: &mut [T]) -> Result<()> {
        self.same_length("into", into.len())?;
        self.settle()?;
        if into.is_empty() {
            return Ok(());
        }
        // SAFETY: both are as long as that, and every bit pattern is a value of T.
        check(unsafe {
            sys::sat_memory_read(self.context.raw(), into.as_mut_ptr().cast(), self.pointer, size_of_val(into))
        })
    }

    /// The same, into a new vector.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::default(); self.len];
        self.read(&mut values)?;
        Ok(values)
    }

    fn same_length(&self, name: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::BadSize(format!("{name} has {len} elements and the buffer {}", self.len)))
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address on the device.
    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: from this context, freed once.
        unsafe { sys::sat_memory_free(self.context.raw(), self.pointer) }
    }
}

impl<T: Element> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("dtype", &T::DTYPE).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Where an operand is, and how much of it there is.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub(crate) pointer: *mut c_void,
    pub(crate) len: usize,
    pub(crate) dtype: Dtype,
    /// None: the host's memory.
    pub(crate) place: Option<(Backend, usize)>,
}

impl Span {
    fn of_slice<T: Element>(pointer: *const T, len: usize) -> Self {
        // An operand without elements may be NULL; a slice's address then means nothing.
        let pointer = if len == 0 { ptr::null_mut() } else { pointer.cast_mut().cast() };
        Self { pointer, len, dtype: T::DTYPE, place: None }
    }

    /// Whether a run of this context can use it, and finds enough.
    pub(crate) fn fits(&self, context: &Context, &Need { name, dtype, len: wanted }: &Need) -> Result<*mut c_void> {
        if self.dtype != dtype {
            return Err(Error::Unsupported(format!("{name} is {:?}, and the problem says {dtype:?}", self.dtype)));
        }
        let here = context.0.place;
        match self.place {
            Some(place) if place != here => {
                return Err(Error::WrongMemory(format!(
                    "{name} is a buffer on {place:?}, and the context is {here:?}"
                )));
            }
            None if here.0 != Backend::Cpu => {
                return Err(Error::WrongMemory(format!(
                    "{name} is a slice, and the context is {here:?}: use a Buffer"
                )));
            }
            _ => {}
        }
        if self.len < wanted {
            return Err(Error::BadSize(format!("{name} has {} elements, {wanted} are needed", self.len)));
        }
        Ok(if wanted == 0 { ptr::null_mut() } else { self.pointer })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What is read: `&[T]`, `&Vec<T>` or `&Buffer<T>`.
pub trait Input: sealed::Sealed {
    #[doc(hidden)]
    fn span(&self) -> Span;
}

/// What is written: `&mut [T]`, `&mut Vec<T>` or `&mut Buffer<T>`.
pub trait Output: sealed::Sealed {
    #[doc(hidden)]
    fn span(&mut self) -> Span;
}

impl<T: Element> sealed::Sealed for &[T] {}
impl<T: Element> Input for &[T] {
    fn span(&self) -> Span {
        Span::of_slice(self.as_ptr(), self.len())
    }
}
impl<T: Element> sealed::Sealed for &Vec<T> {}
impl<T: Element> Input for &Vec<T> {
    fn span(&self) -> Span {
        Span::of_slice(self.as_ptr(), self.len())
    }
}
impl<T: Element, const N: usize> sealed::Sealed for &[T; N] {}
impl<T: Element, const N: usize> Input for &[T; N] {
    fn span(&self) -> Span {
        Span::of_slice(self.as_ptr(), N)
    }
}
impl<T: Element> sealed::Sealed for &Buffer<T> {}
impl<T: Element> Input for &Buffer<T> {
    fn span(&self) -> Span {
        Span { pointer: self.pointer, len: self.len, dtype: T::DTYPE, place: Some(self.context.0.place) }
    }
}
impl<T: Element> sealed::Sealed for &mut [T] {}
impl<T: Element> Output for &mut [T] {
    fn span(&mut self) -> Span {
        Span::of_slice(self.as_mut_ptr(), self.len())
    }
}
impl<T: Element> sealed::Sealed for &mut Vec<T> {}
impl<T: Element> Output for &mut Vec<T> {
    fn span(&mut self) -> Span {
        Span::of_slice(self.as_mut_ptr(), self.len())
    }
}
impl<T: Element, const N: usize> sealed::Sealed for &mut [T; N] {}
impl<T: Element, const N: usize> Output for &mut [T; N] {
    fn span(&mut self) -> Span {
        Span::of_slice(self.as_mut_ptr(), N)
    }
}
impl<T: Element> sealed::Sealed for &mut Buffer<T> {}
impl<T: Element> Output for &mut Buffer<T> {
    fn span(&mut self) -> Span {
        Span { pointer: self.pointer, len: self.len, dtype: T::DTYPE, place: Some(self.context.0.place) }
    }
}
