//! [`pramfs_options`]: how a region is opened.
//!
//! An opaque object with a setter for each option, as in libpmem2: a new option is a new
//! function, and changes no structure that a program was compiled with.

use std::ffi::c_int;

use pramfs::inode::Credentials;
use pramfs::pmem::{BackendKind, Durability, Protect, RegionOptions};
use pramfs::{AtimePolicy, DataMode, ErrorPolicy, MountOptions};

use crate::args;
use crate::error::Failure;
use crate::guard;

/// Options of `pramfs_open`.
#[derive(Debug, Default)]
pub struct pramfs_options {
    pub(crate) region: RegionOptions,
    pub(crate) mount: MountOptions,
    pub(crate) creator: Option<Credentials<'static>>,
}

/// On media with pages instead of lines, each fence is an msync(2): what a call has made
/// durable survives a power failure. The default.
pub const PRAMFS_DURABILITY_POWER: c_int = 0;
/// On media with pages instead of lines, what a call has made durable survives the death of
/// the process. A power failure loses what was changed since the last `pramfs_sync`.
pub const PRAMFS_DURABILITY_PROCESS: c_int = 1;

/// libpmem2 if it is installed and serves the region, else the library's own
/// instructions. The default.
pub const PRAMFS_BACKEND_AUTO: c_int = 0;
/// libpmem2, or an error.
pub const PRAMFS_BACKEND_LIBPMEM2: c_int = 1;
/// The library's own instructions.
pub const PRAMFS_BACKEND_NATIVE: c_int = 2;

/// Every thread of the process can store to the region. The default.
pub const PRAMFS_PROTECT_OFF: c_int = 0;
/// As `PRAMFS_PROTECT_PKEY` where the processor has keys, else nothing.
pub const PRAMFS_PROTECT_AUTO: c_int = 1;
/// A protection key of the processor, or an error: a thread can store to the region only
/// inside a call that changes it, and to what `pramfs_map` has given it.
pub const PRAMFS_PROTECT_PKEY: c_int = 2;
/// mprotect(2): while a thread is inside such a call, all threads can store. Slow.
pub const PRAMFS_PROTECT_MPROTECT: c_int = 3;

/// An overwrite is in place: a crash may leave a part of it, in units of 8 aligned bytes. The
/// default.
pub const PRAMFS_DATA_INPLACE: c_int = 0;
/// A write of up to 1 MiB is there as a whole after a crash, or not at all. A longer one is
/// atomic in parts that end at multiples of 1 MiB in the file.
pub const PRAMFS_DATA_ATOMIC: c_int = 1;

/// After damage was found, the operation fails; others go on.
pub const PRAMFS_ERRORS_CONTINUE: c_int = 0;
/// After damage was found, the file system is read-only. The default.
pub const PRAMFS_ERRORS_READ_ONLY: c_int = 1;
/// After damage was found, the process is aborted.
pub const PRAMFS_ERRORS_ABORT: c_int = 2;

/// Reads do not set the access time.
pub const PRAMFS_ATIME_NEVER: c_int = 0;
/// Reads set the access time once after each change of the file, and at least once a day.
/// The default.
pub const PRAMFS_ATIME_RELATIVE: c_int = 1;
/// Each read sets the access time.
pub const PRAMFS_ATIME_STRICT: c_int = 2;

/// Makes options with the default values. `pramfs_options_delete` frees them.
///
/// Errors: -EINVAL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_new(options: *mut *mut pramfs_options) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result (contract, 4).
        let place = unsafe { args::place(options, "options") }?;
        place.give(pramfs_options::default());
        Ok(())
    })
}

/// Frees options. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_delete(options: *mut pramfs_options) {
    guard::value((), || {
        // SAFETY: options that are never used again (contract, 1).
        drop(unsafe { args::closed(options) });
        Ok(())
    });
}

/// Runs a setter.
///
/// # Safety
/// The contract, 1: no other thread uses the options.
unsafe fn set(
    options: *mut pramfs_options,
    setter: impl FnOnce(&mut pramfs_options) -> Result<(), Failure>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        setter(unsafe { args::exclusive(options, "options") }?)
    })
}

fn unknown(what: &str, value: c_int) -> Failure {
    Failure::invalid(format!("{value} is no value of {what}"))
}

/// Opens for reading: nothing on the medium is changed, and several processes can do so at
/// a time. After a crash the journal is replayed in private memory. Default: 0.
///
/// Errors of this function and of the other setters: -EINVAL for NULL and for values that
/// are not listed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_read_only(
    options: *mut pramfs_options,
    yes: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        let yes = args::truth(yes);
        o.region = o.region.clone().read_only(yes);
        o.mount.read_only = yes;
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Refuses, with -EOPNOTSUPP, every medium that is not directly mapped persistent memory.
/// Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_require_dax(
    options: *mut pramfs_options,
    yes: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.region = o.region.clone().require_dax(args::truth(yes));
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Reserves the space of the whole region in its host when it is opened, so that no store
/// can fail for lack of space there. Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_preallocate(
    options: *mut pramfs_options,
    yes: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.region = o.region.clone().preallocate(args::truth(yes));
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Installs the SIGBUS handler of the library. Then a page of the medium that fails is an
/// error of the call that uses it; without the handler it ends the process. Every SIGBUS
/// outside of regions goes to the handler that was there before. Default: 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_fault_guard(
    options: *mut pramfs_options,
    yes: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.region = o.region.clone().fault_guard(args::truth(yes));
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets what durable means on media with pages: a `PRAMFS_DURABILITY_` value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_durability(
    options: *mut pramfs_options,
    durability: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        let durability = match durability {
            PRAMFS_DURABILITY_POWER => Durability::Power,
            PRAMFS_DURABILITY_PROCESS => Durability::Process,
            other => return Err(unknown("the durability", other)),
        };
        o.region = o.region.clone().durability(durability);
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets what keeps stray stores of the process from the region: a `PRAMFS_PROTECT_` value.
/// Opening fails with -EOPNOTSUPP or -ENOSPC if `PRAMFS_PROTECT_PKEY` is asked for and there is
/// no key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_protect(
    options: *mut pramfs_options,
    protect: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        let protect = match protect {
            PRAMFS_PROTECT_OFF => Protect::Off,
            PRAMFS_PROTECT_AUTO => Protect::Auto,
            PRAMFS_PROTECT_PKEY => Protect::Pkey,
            PRAMFS_PROTECT_MPROTECT => Protect::Mprotect,
            other => return Err(unknown("the protection", other)),
        };
        o.region = o.region.clone().protect(protect);
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets what a crash leaves of a write: a `PRAMFS_DATA_` value. Stores through a map are as
/// ever; `pramfs_file_write_atomic` and `pramfs_map_write_atomic` are atomic with both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_data(
    options: *mut pramfs_options,
    data: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.mount.data = match data {
            PRAMFS_DATA_INPLACE => DataMode::InPlace,
            PRAMFS_DATA_ATOMIC => DataMode::Atomic,
            other => return Err(unknown("the data mode", other)),
        };
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Chooses the code that stores to the region: a `PRAMFS_BACKEND_` value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_backend(
    options: *mut pramfs_options,
    backend: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        let backend = match backend {
            PRAMFS_BACKEND_AUTO => BackendKind::Auto,
            PRAMFS_BACKEND_LIBPMEM2 => BackendKind::Libpmem2,
            PRAMFS_BACKEND_NATIVE => BackendKind::Native,
            other => return Err(unknown("the backend", other)),
        };
        o.region = o.region.clone().backend(backend);
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets the reaction to damage on the medium: a `PRAMFS_ERRORS_` value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_errors(
    options: *mut pramfs_options,
    errors: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.mount.errors = match errors {
            PRAMFS_ERRORS_CONTINUE => ErrorPolicy::Continue,
            PRAMFS_ERRORS_READ_ONLY => ErrorPolicy::RemountRo,
            PRAMFS_ERRORS_ABORT => ErrorPolicy::Panic,
            other => return Err(unknown("the reaction to damage", other)),
        };
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets when reading sets the access time: a `PRAMFS_ATIME_` value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_atime(
    options: *mut pramfs_options,
    atime: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.mount.atime = match atime {
            PRAMFS_ATIME_NEVER => AtimePolicy::NoAtime,
            PRAMFS_ATIME_RELATIVE => AtimePolicy::Relatime,
            PRAMFS_ATIME_STRICT => AtimePolicy::StrictAtime,
            other => return Err(unknown("the policy of access times", other)),
        };
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Limits the cache of inodes and names, in bytes. Default: 128 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_cache_size(
    options: *mut pramfs_options,
    bytes: u64,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.mount.cache_bytes = bytes;
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Returns freed blocks to the host of the region at once. Default: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_discard(
    options: *mut pramfs_options,
    yes: c_int,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        o.mount.discard = args::truth(yes);
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}

/// Sets the owner and the group of new files, and the umask for their permission bits.
/// Default: the effective user and group of the process, and 022.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_options_set_creator(
    options: *mut pramfs_options,
    uid: u32,
    gid: u32,
    umask: u32,
) -> c_int {
    let setter = |o: &mut pramfs_options| {
        if umask > 0o777 {
            return Err(Failure::invalid(format!("{umask:#o} is not a umask")));
        }
        o.creator = Some(Credentials::new(uid, gid).with_umask(umask));
        Ok(())
    };
    // SAFETY: options that no other thread uses (contract, 1).
    unsafe { set(options, setter) }
}
