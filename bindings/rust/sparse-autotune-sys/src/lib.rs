//! Declarations of the C library `sparse_autotune`, one to one: use the crate `sparse-autotune` instead, which is safe.
//!
//! The C header is the manual. The library is built from source by default; see `build.rs` for the ways to link one that
//! is installed. With the feature `cuda` its CUDA backend is built too; driver and GPU are looked for at run time, and
//! the same program runs where there is neither.
#![no_std]
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs)]
#![allow(clippy::all, clippy::pedantic, rustdoc::all)]

include!("bindings.rs");

/// The README's program is compiled and run as the examples of the documentation are.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
