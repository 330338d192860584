//! Checks for enough memory before the mount.
//!
//! Serving threads allocate their buffers infallibly: a failed allocation aborts the process
//! and leaves a dead mount. So the check runs before the kernel mounts.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::Failure;
use crate::transport::{Demand, Settings, Transport};

/// Bytes of address space that the C library reserves for a thread's small
/// allocations.
const ARENA: u64 = 64 << 20;

/// Returns how to serve, so that memory and address space suffice. With `transport=auto` that may
/// be `/dev/fuse`, which takes less.
///
/// # Errors
/// They do not suffice.
pub fn affordable(region: &Path, wanted: Settings) -> Result<Settings, Failure> {
    let Err(refused) = check(region, wanted.demand()) else {
        return Ok(wanted);
    };
    let smaller = Settings {
        transport: Transport::Dev,
        ..wanted
    };
    if wanted.transport != Transport::Auto || check(region, smaller.demand()).is_err() {
        return Err(refused);
    }
    tracing::info!("/dev/fuse is used, because there is too little memory for io_uring");
    Ok(smaller)
}

/// Lets this process, and those that it starts, lock as much memory as they like. Needs root.
pub fn allow_locking() {
    let all = Rlimit {
        current: None,
        maximum: None,
    };
    if let Err(error) = setrlimit(Resource::Memlock, all) {
        tracing::debug!("RLIMIT_MEMLOCK stays as it is: {error}");
    }
}

/// Checks that memory and address space suffice to serve `region`.
///
/// # Errors
/// A system failure that names the missing resource and what to do.
fn check(region: &Path, demand: Demand) -> Result<(), Failure> {
    let Demand { threads, bytes, .. } = demand;
    let refused = |what: &str, bytes: u64, limit: &str| {
        Failure::system(format!(
            "{}: out of memory: serving it with {threads} threads needs {} MiB of {what}{limit}; free memory, or use fewer threads (-o threads=1)",
            region.display(),
            bytes >> 20
        ))
    };
    let mut room: Vec<u8> = Vec::new();
    room.try_reserve_exact(bytes)
        .map_err(|_| refused("memory", bytes as u64, ""))?;
    // Otherwise the compiler may drop the unused allocation.
    std::hint::black_box(&mut room);
    drop(room);

    let addresses = (bytes as u64)
        .saturating_add(demand.addresses as u64)
        .saturating_add(ARENA.saturating_mul(threads as u64));
    match getrlimit(Resource::As).current {
        Some(limit) if limit.saturating_sub(addresses_in_use()) < addresses => Err(refused(
            "address space",
            addresses,
            &format!(", and `ulimit -v` is {} KiB", limit >> 10),
        )),
        _ => Ok(()),
    }
}

/// Lets this process open as many descriptors as it may: a guest that maps files takes one for each.
pub fn allow_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of descriptors stays: {error}");
    }
}

/// Returns the bytes of address space that this process has mapped, or 0 if `/proc` is
/// unreadable.
fn addresses_in_use() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    #[test]
    fn memory_check_refuses_too_many_threads() {
        let demand = |threads, bytes| Demand {
            threads,
            bytes,
            addresses: 0,
        };
        assert!(check(Path::new("/r"), demand(1, 1 << 20)).is_ok());
        let failure = check(Path::new("/r"), demand(usize::MAX, usize::MAX)).unwrap_err();
        assert_eq!(failure.status, Status::System);
        for part in ["/r: ", "out of memory", "threads=1"] {
            assert!(failure.message.contains(part), "{failure}");
        }
    }
}
