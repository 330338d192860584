//! `libpramfs_preload.so`: direct access to files of a mounted pramfs file system, for
//! programs that are not changed. `pramfs run PROGRAM` loads it with `LD_PRELOAD`.
//!
//! Every descriptor of the program stays a real one of the mount. The library serves reads
//! and writes that need nothing but memory, and passes everything else to the C library.
//! Invariant: what it does not see, or refuses, does the same through the mount.
//!
//! - `table`: what is known about the numbers of descriptors. `slots`: the leases that they name.
//!   `process`: threads that are inside the library, forks.
//! - `devices`: which files can have leases. `lease`: how a file gets its lease. `growing`: files that
//!   were empty. `give_up`: how a lease is lost. `cached`: files that the program stores to through
//!   the page cache.
//! - `heap`: memory of its own, for signal handlers that have interrupted malloc.
//! - `views`: which addresses show which files. `durable`: how stores to them become durable. `regions`:
//!   which addresses must not grow.
//! - `calls/`: the functions that take the place of those of the C library.
//!
//! What needs no function of the C library is in the crate `pramfs-preload-core`, with its unit
//! tests.
//!
//! `docs/preload.md` lists the calls that are served.

mod calls;
mod devices;
mod durable;
mod give_up;
mod growing;
mod heap;
mod lease;
mod process;
mod real;
mod regions;
mod settings;
mod slots;
mod stats;
mod table;
mod views;

/// Run when the library is loaded. It does little: most programs never open a file of a
/// mount.
extern "C" fn load() {
    real::resolve();
    real::vfork();
    settings::start();
    process::seal_if_privileged();
    process::start();
    stats::start();
}

extern "C" fn unload() {
    if process::owns_memory() {
        durable::note_all_stores();
    }
    stats::print();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
