//! Loading the library, and its functions.

use core::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::*;

/// The name of the library that the loader looks for. The number changes with an incompatible
/// interface, so this is the check of its version; later additions are found by their symbols.
const SONAME: &str = "libpmem2.so.1";

/// Why there is no libpmem2 to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The loader does not find the library, or cannot load it.
    Missing {
        /// The name that was looked for.
        name: String,
        /// What the loader says.
        why: String,
    },
    /// The library lacks a function that this crate calls.
    TooOld {
        /// The name of the library.
        name: String,
        /// The first function that it lacks.
        symbol: &'static str,
    },
}

impl core::fmt::Display for LoadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LoadError::Missing { name, why } => {
                write!(
                    f,
                    "{name} cannot be loaded ({why}): install libpmem2 (Debian: apt-get install libpmem2)"
                )
            }
            LoadError::TooOld { name, symbol } => {
                write!(
                    f,
                    "{name} is too old, it has no function {symbol}: install a newer libpmem2 (1.12 is tested)"
                )
            }
        }
    }
}

impl core::error::Error for LoadError {}

macro_rules! functions {
    ($( fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?; )*) => {
        /// The loaded library. It stays loaded until the process ends.
        #[derive(Debug)]
        pub struct Libpmem2 {
            $( $name: unsafe extern "C" fn($($type),*) $(-> $ret)?, )*
        }

        impl Libpmem2 {
            fn resolve(library: &Library, name: &str) -> Result<Libpmem2, LoadError> {
                Ok(Libpmem2 {
                    $(
                        // SAFETY: the type is that of the header for this name.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_no_such_symbol| LoadError::TooOld {
                                name: name.to_owned(),
                                symbol: stringify!($name),
                            })?,
                    )*
                })
            }

            $(
                #[doc = concat!("`", stringify!($name), "`(3)")]
                ///
                /// # Safety
                /// The contract of the man page.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) $(-> $ret)? {
                    // SAFETY: passed on from the caller; the library stays loaded.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }

        /// The names of all functions, for the comparison with the header.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    fn pmem2_source_from_fd(src: *mut *mut pmem2_source, fd: c_int) -> c_int;
    fn pmem2_source_delete(src: *mut *mut pmem2_source) -> c_int;
    fn pmem2_config_new(cfg: *mut *mut pmem2_config) -> c_int;
    fn pmem2_config_delete(cfg: *mut *mut pmem2_config) -> c_int;
    fn pmem2_config_set_required_store_granularity(
        cfg: *mut pmem2_config,
        g: pmem2_granularity
    ) -> c_int;
    fn pmem2_config_set_length(cfg: *mut pmem2_config, length: usize) -> c_int;
    fn pmem2_map_from_existing(
        map: *mut *mut pmem2_map,
        src: *const pmem2_source,
        addr: *mut core::ffi::c_void,
        len: usize,
        gran: pmem2_granularity
    ) -> c_int;
    fn pmem2_map_new(
        map_ptr: *mut *mut pmem2_map,
        cfg: *const pmem2_config,
        src: *const pmem2_source
    ) -> c_int;
    fn pmem2_map_delete(map_ptr: *mut *mut pmem2_map) -> c_int;
    fn pmem2_map_get_store_granularity(map: *mut pmem2_map) -> pmem2_granularity;
    fn pmem2_get_flush_fn(map: *mut pmem2_map) -> pmem2_flush_fn;
    fn pmem2_get_drain_fn(map: *mut pmem2_map) -> pmem2_drain_fn;
    fn pmem2_get_memcpy_fn(map: *mut pmem2_map) -> pmem2_memcpy_fn;
    fn pmem2_get_memset_fn(map: *mut pmem2_map) -> pmem2_memset_fn;
    fn pmem2_errormsg() -> *const c_char;
}

// The flags of pmem2_memcpy_fn(3) are an unsigned int there and a u32 here.
const _: () = assert!(size_of::<c_uint>() == size_of::<u32>());

impl Libpmem2 {
    /// The library of the system. The first call loads it; the answer is the same for the life
    /// of the process.
    ///
    /// # Errors
    /// [`LoadError`]: it is not installed, cannot be loaded, or is too old.
    pub fn get() -> Result<&'static Libpmem2, &'static LoadError> {
        static LOADED: OnceLock<Result<Libpmem2, LoadError>> = OnceLock::new();
        LOADED.get_or_init(|| Libpmem2::load(SONAME)).as_ref()
    }

    /// Loads a library by its name.
    pub(crate) fn load(name: &str) -> Result<Libpmem2, LoadError> {
        // All symbols now: a process that has given up its privileges could not load what is
        // resolved later.
        // SAFETY: the constructors of the library and of those that it needs run, as they do
        // for a program that links it.
        let library =
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
                LoadError::Missing {
                    name: name.to_owned(),
                    why: what_the_loader_says(&error, name),
                }
            })?;
        let functions = Libpmem2::resolve(&library, name);
        if functions.is_ok() {
            // The functions are valid as long as the library is loaded: for ever.
            core::mem::forget(library);
        }
        functions
    }
}

/// The loader's message without the name, which the message around it has.
fn what_the_loader_says(error: &libloading::Error, name: &str) -> String {
    let text =
        core::error::Error::source(error).map_or_else(|| error.to_string(), |e| e.to_string());
    let text = text.strip_prefix(name).unwrap_or(&text);
    text.trim_start_matches(": ").to_owned()
}
