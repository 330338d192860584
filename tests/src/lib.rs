//! What the tests of the whole file system share.
//!
//! * [`any_file`]: a program that knows files by a trait.
//! * [`appender`]: the holder of a lease that appends without a call.
//! * [`crash`]: the crash explorer: images that a power failure could leave,
//!   and the oracle that judges them.
//! * [`disk`]: a disk that fails to write, or says that it has.
//! * [`exercise`]: what the fuzz targets do with any bytes.
//! * [`failing_pages`]: images of which each page fails in turn.
//! * [`idmapped`]: a mount again, with its owners mapped to other ids.
//! * [`kill`]: writers that are killed, and the check of what they leave.
//! * [`mounted`]: real mounts that come to an end whatever the test did.
//! * [`model`]: a reference model, and a runner that compares it with the engine.
//! * [`poisoned`]: pages that fail under a live mapping.
//! * [`postgres`]: a PostgreSQL server on a mount.
//! * [`random`]: a small generator whose seed is printed, so that a run of
//!   many threads can be repeated.
//! * [`recorded`]: a file system that can be crashed at any store.
//! * [`region`]: regions to test on, formatted and mounted with one call.
//! * [`readable`]: what can be read of a damaged image, to be held against a
//!   repaired one.
//! * [`skip`]: says what was not tested so that it is seen.
//! * [`stress`]: threads of mixed operations whose every byte can be explained.
//! * [`suite`]: suites and programs of others, run and judged.
//! * [`sums`]: file systems with checksums of file data, and stray stores to them.
//! * [`syscalls`]: system calls on what a tree holds, by descriptor.
//! * [`tree`]: everything a file system shows, to be compared.
//! * [`vmm`]: a VMM and its guest.
//! * [`watchdog`]: a test that hangs ends with a message instead.
//! * [`wild`]: stores through stray pointers, and what is said of those that are refused.
//! * [`windows`]: append windows of the lease table, made without the engine.

pub mod any_file;
#[cfg(feature = "testing")]
pub mod appender;
#[cfg(feature = "testing")]
pub mod crash;
#[cfg(feature = "testing")]
pub mod disk;
#[cfg(feature = "testing")]
pub mod exercise;
#[cfg(feature = "testing")]
pub mod failing_pages;
pub mod host;
pub mod idmapped;
#[cfg(feature = "testing")]
pub mod kill;
#[cfg(feature = "testing")]
pub mod leased_file;
#[cfg(feature = "testing")]
pub mod model;
pub mod mounted;
#[cfg(feature = "testing")]
pub mod poisoned;
pub mod postgres;
pub mod random;
pub mod readable;
#[cfg(feature = "testing")]
pub mod recorded;
pub mod region;
pub mod skip;
pub mod stress;
pub mod suite;
#[cfg(feature = "testing")]
pub mod sums;
pub mod syscalls;
pub mod tree;
pub mod vmm;
pub mod watchdog;
#[cfg(target_arch = "x86_64")]
pub mod wild;
#[cfg(feature = "testing")]
pub mod windows;

#[cfg(all(test, not(target_arch = "x86_64")))]
mod tests {
    #[test]
    fn tests_of_stray_stores_say_why_they_are_left_out() {
        crate::skip::skipped(format_args!(
            "protect.rs and protect_openings.rs: stray stores are made on x86_64 only"
        ));
    }
}
