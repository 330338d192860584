//! Bindings to the system library libpmem2 (PMDK), as its header has them.
//!
//! Purpose: the raw functions, types and constants, and nothing on top. Each
//! is documented by the man page of its name, section 3, of `libpmem2-dev`.
//!
//! `src/bindings.rs` was generated once and is committed, so that a build
//! needs neither bindgen nor libclang. From libpmem2.h of PMDK 1.12.1 with
//! bindgen 0.73.2:
//!
//! ```text
//! bindgen /usr/include/libpmem2.h \
//!   --allowlist-function 'pmem2_.*' --allowlist-type 'pmem2_.*' \
//!   --allowlist-var 'PMEM2_.*' --blocklist-function pmem2_err_to_errno \
//!   --use-core --default-enum-style=consts --no-prepend-enum-name \
//!   --no-doc-comments --rust-target 1.85 --rust-edition 2024 \
//!   > src/bindings.rs
//! ```
//!
//! `pmem2_err_to_errno` is left out because the header declares it but the
//! library does not export it: codes above -100000 are negated errnos, the
//! others are the `PMEM2_E_` constants.
#![no_std]

#[allow(missing_docs, reason = "generated; the man pages document every name")]
#[allow(non_camel_case_types, reason = "the names are those of the C library")]
mod bindings;

pub use bindings::*;

#[cfg(test)]
mod tests {
    use super::*;

    /// Links, and the library is the one the constants were taken from.
    #[test]
    fn library_call_succeeds() {
        let mut cfg = core::ptr::null_mut();
        // SAFETY: `cfg` is a valid place for the new object, which is deleted
        // below and not used after that.
        unsafe {
            assert_eq!(pmem2_config_new(&mut cfg), 0);
            assert!(!cfg.is_null());
            assert_eq!(
                pmem2_config_set_required_store_granularity(cfg, PMEM2_GRANULARITY_PAGE),
                0
            );
            assert_eq!(
                pmem2_config_set_required_store_granularity(cfg, 77),
                PMEM2_E_GRANULARITY_NOT_SUPPORTED
            );
            assert_eq!(pmem2_config_delete(&mut cfg), 0);
        }
        assert!(cfg.is_null());
    }

    /// Errors of the system come as negated errnos.
    #[test]
    fn error_codes_have_two_ranges() {
        let mut src = core::ptr::null_mut();
        // SAFETY: `src` is a valid place; -1 is no descriptor and is refused.
        let code = unsafe { pmem2_source_from_fd(&mut src, -1) };
        assert_eq!(code, PMEM2_E_INVALID_FILE_HANDLE);
        assert!(src.is_null());
    }
}
