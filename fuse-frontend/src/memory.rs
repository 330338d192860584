//! Is there memory to serve with?
//!
//! The threads of the transport take their buffers without asking: an
//! allocation that fails there ends the process, and leaves a dead mount. So
//! the question is put before the kernel hears of the mount.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::exit::Failure;

/// Bytes that a serving thread takes for requests, and for its stack.
const THREAD: usize = (16 << 20) + 4096 + (2 << 20);
/// Addresses that the C library sets aside for the small allocations of a
/// thread, beyond what it uses.
const ARENA: u64 = 64 << 20;

/// Refuses to serve `region` with so many threads where there is no memory, or
/// no addresses, for them.
///
/// # Errors
/// What is too little, and what to do.
pub fn check(region: &Path, threads: usize) -> Result<(), Failure> {
    let refused = |what: &str, bytes: u64, limit: &str| {
        Failure::system(format!(
            "{}: out of memory: serving it with {threads} threads takes {} MiB of {what}{limit}; make room, or use fewer threads (-o threads=1)",
            region.display(),
            bytes >> 20
        ))
    };
    let bytes = THREAD.saturating_mul(threads);
    let mut room: Vec<u8> = Vec::new();
    room.try_reserve_exact(bytes)
        .map_err(|_| refused("memory", bytes as u64, ""))?;
    // Or the compiler may find that nobody needs it.
    std::hint::black_box(&mut room);
    drop(room);

    let addresses = (bytes as u64).saturating_add(ARENA.saturating_mul(threads as u64));
    match getrlimit(Resource::As).current {
        Some(limit) if limit.saturating_sub(addresses_in_use()) < addresses => Err(refused(
            "addresses",
            addresses,
            &format!(", and `ulimit -v` is {} KiB", limit >> 10),
        )),
        _ => Ok(()),
    }
}

/// Bytes of address space that this process has mapped; 0 where `/proc` does
/// not tell.
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
    fn more_threads_than_memory_are_refused_with_a_way_out() {
        assert!(check(Path::new("/r"), 1).is_ok());
        let failure = check(Path::new("/r"), usize::MAX).unwrap_err();
        assert_eq!(failure.status, Status::System);
        for part in ["/r: ", "out of memory", "threads=1"] {
            assert!(failure.message.contains(part), "{failure}");
        }
    }
}
