//! The system library libpmem2 (PMDK), loaded at run time.
//!
//! Purpose: the raw functions that pramfs calls, with their types and constants, and nothing on
//! top. Each is documented by the man page of its name, section 3, of `libpmem2-dev`.
//!
//! A program that uses this crate does not link libpmem2. It starts without it, and
//! [`Libpmem2::get`] loads `libpmem2.so.1` when it is first called. The functions are then
//! called through pointers that were resolved once, as those of a linked library are.
//!
//! ```
//! use libpmem2_sys::Libpmem2;
//!
//! match Libpmem2::get() {
//!     Ok(library) => {
//!         let mut config = std::ptr::null_mut();
//!         // SAFETY: a valid place for the new object, which is deleted once.
//!         unsafe {
//!             assert_eq!(library.pmem2_config_new(&mut config), 0);
//!             assert_eq!(library.pmem2_config_delete(&mut config), 0);
//!         }
//!     }
//!     Err(error) => println!("{error}"), // what is missing, and what to install
//! }
//! ```
//!
//! `src/bindings.rs` was generated once and is committed, so that a build needs neither bindgen
//! nor the library's header. From libpmem2.h of PMDK 1.12.1 with bindgen 0.73.2:
//!
//! ```text
//! bindgen /usr/include/libpmem2.h \
//!   --allowlist-type 'pmem2_.*' --allowlist-var 'PMEM2_.*' \
//!   --use-core --default-enum-style=consts --no-prepend-enum-name \
//!   --no-doc-comments --rust-target 1.85 --rust-edition 2024 \
//!   > src/bindings.rs
//! ```
//!
//! Types that no function in `src/library.rs` uses were left out. A test compares the functions
//! with the header, if it is installed.

#[allow(missing_docs, reason = "generated; the man pages document every name")]
#[allow(non_camel_case_types, reason = "the names are those of the C library")]
mod bindings;
mod library;

pub use bindings::*;
pub use library::{Libpmem2, LoadError};

#[cfg(test)]
mod tests;
