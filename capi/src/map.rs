//! [`pramfs_map`]: a range of a file as memory, on the medium itself.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use pramfs::{Advice, MappedFile};

use crate::args::{self, Handle};
use crate::error::About as _;
use crate::file::pramfs_file;
use crate::fs::{Shared, release};
use crate::guard;

/// A range of a file, mapped as memory.
#[derive(Debug)]
pub struct pramfs_map {
    map: MappedFile,
    path: String,
    shared: Arc<Shared>,
}

impl Handle for pramfs_map {
    fn shared(&self) -> Option<&Shared> {
        Some(&self.shared)
    }
}

/// Maps `len` bytes of a file from `offset` on, at one range of addresses. The range must lie
/// within the file. `prot` is PROT_READ, or PROT_READ | PROT_WRITE, of mmap(2). A map for
/// writing first fills holes with zeroed blocks.
///
/// `reserve` is 0, or the number of bytes of address space that are kept from the start of
/// the range, for `pramfs_map_extend`. Kept addresses cost no memory.
///
/// The map keeps its blocks: they belong to no other file while it is open, whatever happens
/// to the file. `pramfs_map_close` closes `*map`, which is set only if the call succeeds.
///
/// Errors: -EINVAL (NULL; an empty range, one past the end of the file, another `prot`),
/// -EBADF (the file is not open for this), -EOPNOTSUPP (blocks smaller than a page; on
/// devdax and hugetlbfs, a range that is neither contiguous nor of 2 MiB leaves), -ENOMEM
/// (no address space), -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_open(
    map: *mut *mut pramfs_map,
    file: *mut pramfs_file,
    offset: u64,
    len: u64,
    reserve: u64,
    prot: c_int,
) -> c_int {
    guard::done(|| {
        // SAFETY: a place for a result, and a handle (contract, 4 and 1).
        let (place, file) = unsafe { (args::place(map, "map")?, args::handle(file, "file")?) };
        let (access, range) = (args::access(prot)?, args::range(offset, len)?);
        let map = match reserve {
            0 => file.file.map(range, access),
            some => file.file.map_reserved(range, some, access),
        };
        let map =
            map.about(|| format!("cannot map {}, {len} bytes at byte {offset}", file.path))?;
        place.give(pramfs_map {
            map,
            path: file.path.clone(),
            shared: Arc::clone(&file.shared),
        });
        Ok(())
    })
}

/// Ends a map. Does nothing for NULL. The handle and its addresses are invalid afterwards,
/// whatever the result. Stores that were not persisted are visible in the file, and are lost
/// by a power failure.
///
/// Errors: those of `pramfs_close`, if this is the last handle of its file system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_close(map: *mut pramfs_map) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that is never used again (contract, 1).
        let Some(map) = (unsafe { args::closed(map) }) else {
            return Ok(());
        };
        let pramfs_map { map, shared, .. } = *map;
        drop(map);
        release(shared)
    })
}

/// Returns the address of the first byte, or NULL for NULL. `pramfs_map_len` bytes from
/// there are the medium itself, readable and, in a map for writing, writable, until the map
/// is closed. Others may store to them at any time: use atomic or volatile accesses for what
/// others change.
///
/// After a fork, a child finds zeros there, and its stores change nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_address(map: *const pramfs_map) -> *mut c_void {
    guard::value(std::ptr::null_mut(), || {
        // SAFETY: a handle (contract, 1).
        let map = unsafe { args::handle(map, "map") }?;
        Ok(map.map.as_ptr().cast())
    })
}

/// Returns the length in bytes, or 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_len(map: *const pramfs_map) -> u64 {
    guard::value(0, || {
        // SAFETY: a handle (contract, 1).
        Ok(unsafe { args::handle(map, "map") }?.map.len())
    })
}

/// Returns the length in bytes that the map can be extended to, or 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_reserved(map: *const pramfs_map) -> u64 {
    guard::value(0, || {
        // SAFETY: a handle (contract, 1).
        Ok(unsafe { args::handle(map, "map") }?.map.reserved())
    })
}

/// Runs a method of the map on a range of it.
///
/// # Safety
/// The contract, 1.
unsafe fn on_range(
    map: *mut pramfs_map,
    offset: u64,
    len: u64,
    what: &str,
    work: impl FnOnce(&MappedFile, Range<u64>) -> pramfs::Result<()>,
) -> c_int {
    guard::done(|| {
        // SAFETY: as required of the caller.
        let map = unsafe { args::handle(map, "map") }?;
        work(&map.map, args::range(offset, len)?).about(|| {
            format!(
                "cannot {what} the map of {}, {len} bytes at byte {offset}",
                map.path
            )
        })
    })
}

/// Makes the stores to a range of the map durable; `offset` counts from its first byte. They
/// survive a power failure when it returns. Records the change of the file's mtime.
///
/// Errors: -EINVAL (NULL; past the end of the map), -EIO (the medium failed; a forked
/// child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_persist(map: *mut pramfs_map, offset: u64, len: u64) -> c_int {
    // SAFETY: a handle (contract, 1).
    unsafe { on_range(map, offset, len, "persist", MappedFile::persist) }
}

/// Starts to make the stores to a range durable, without waiting. They are durable after
/// `pramfs_map_drain` in the same thread. For several ranges, this is faster than
/// `pramfs_map_persist` for each.
///
/// Errors: as of `pramfs_map_persist`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_flush(map: *mut pramfs_map, offset: u64, len: u64) -> c_int {
    // SAFETY: a handle (contract, 1).
    unsafe { on_range(map, offset, len, "flush", MappedFile::flush) }
}

/// Waits until the ranges that this thread has flushed are durable, and records the change
/// of the file's mtime.
///
/// Errors: -EINVAL for NULL, -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_drain(map: *mut pramfs_map) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let map = unsafe { args::handle(map, "map") }?;
        map.map
            .drain()
            .about(|| format!("cannot drain the map of {}", map.path))
    })
}

/// Copies bytes of the map to `buf`. In contrast to a load, it gives an error if the medium
/// has failed there. The copy is atomic by aligned words of 8 bytes.
///
/// Errors: -EINVAL (NULL; past the end of the map), -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_read(
    map: *mut pramfs_map,
    offset: u64,
    buf: *mut c_void,
    count: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, and a buffer that this call fills (contract, 1 and 3).
        let (map, buf) = unsafe {
            (
                args::handle(map, "map")?,
                args::bytes_mut(buf, count, "buf")?,
            )
        };
        map.map
            .read(offset, buf)
            .about(|| format!("cannot read the map of {} at byte {offset}", map.path))
    })
}

/// Copies bytes from `buf` into the map. They are durable after `pramfs_map_persist`. The
/// copy is atomic by aligned words of 8 bytes.
///
/// Errors: -EINVAL (NULL; past the end of the map), -EACCES (a map for reading), -EIO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_write(
    map: *mut pramfs_map,
    offset: u64,
    buf: *const c_void,
    count: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle and a buffer (contract, 1 and 3).
        let (map, buf) = unsafe { (args::handle(map, "map")?, args::bytes(buf, count, "buf")?) };
        map.map
            .write(offset, buf)
            .about(|| format!("cannot write the map of {} at byte {offset}", map.path))
    })
}

/// One of the ranges that `pramfs_map_write_atomic` overwrites.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct pramfs_change {
    /// The new bytes.
    pub data: *const c_void,
    /// Their number.
    pub len: usize,
    /// Where they go: counts from the first byte of the map.
    pub offset: u64,
}

/// Overwrites ranges of the map and of its file: after a crash at any moment, all of them are
/// there, or none is. They are durable when it returns. A program keeps a private copy of the
/// bytes, changes it, and publishes what it has changed. The region needs as many free blocks
/// as the ranges have bytes. `count` is the number of `changes`.
///
/// The bytes must not be memory of a map of the same region.
///
/// Errors: -EINVAL (NULL; past the end of the map or of the file; ranges that overlap), -EBADF
/// (a map for reading), -EPERM (the file has become immutable or append-only), -ENOSPC, -EROFS,
/// -EIO. No byte has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_write_atomic(
    map: *mut pramfs_map,
    changes: *const pramfs_change,
    count: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: a handle, and an array that nobody changes (contract, 1 and 3).
        let (map, changes) = unsafe {
            (
                args::handle(map, "map")?,
                args::array(changes, count, "changes")?,
            )
        };
        let mut pieces = Vec::with_capacity(changes.len());
        for change in changes {
            // SAFETY: a buffer (contract, 3).
            let bytes = unsafe { args::bytes(change.data, change.len, "data") }?;
            pieces.push((change.offset, bytes));
        }
        map.map
            .write_atomic(&pieces)
            .about(|| format!("cannot overwrite {count} ranges of the map of {}", map.path))
    })
}

/// Grows the map to `len` bytes, at the addresses after its present ones, which stay valid.
/// The file must reach that far (`pramfs_file_truncate`), and the addresses must have been
/// reserved. A smaller `len` changes nothing.
///
/// No other function may be called on this map meanwhile; its addresses may be used.
///
/// Errors: -EINVAL (NULL; past the end of the file, or of the reserved addresses); those of
/// `pramfs_map_open`. After an error, the map is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_extend(map: *mut pramfs_map, len: u64) -> c_int {
    guard::done(|| {
        // SAFETY: a handle that no other call has (contract, 1).
        let pramfs_map { map, path, shared } = unsafe { args::exclusive(map, "map") }?;
        let _call = shared.enter()?;
        map.extend(len)
            .about(|| format!("cannot extend the map of {path} to {len} bytes"))
    })
}

/// Sets up all pages of the map now, instead of at their first use.
///
/// Errors: -EINVAL for NULL, -ENOMEM, -EIO (a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_populate(map: *mut pramfs_map) -> c_int {
    guard::done(|| {
        // SAFETY: a handle (contract, 1).
        let map = unsafe { args::handle(map, "map") }?;
        map.shared.check_process()?;
        map.map
            .populate()
            .about(|| format!("cannot populate the map of {}", map.path))
    })
}

/// For `pramfs_map_advise`: no special pattern.
pub const PRAMFS_ADVICE_NORMAL: c_int = 0;
/// For `pramfs_map_advise`: in random order.
pub const PRAMFS_ADVICE_RANDOM: c_int = 1;
/// For `pramfs_map_advise`: from the start to the end.
pub const PRAMFS_ADVICE_SEQUENTIAL: c_int = 2;
/// For `pramfs_map_advise`: soon; the kernel sets up the pages now.
pub const PRAMFS_ADVICE_WILLNEED: c_int = 3;

/// Tells the kernel how a range of the map will be used: a `PRAMFS_ADVICE_` value.
///
/// Errors: -EINVAL (NULL; past the end of the map, another value); those of madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pramfs_map_advise(
    map: *mut pramfs_map,
    offset: u64,
    len: u64,
    advice: c_int,
) -> c_int {
    let work = |map: &MappedFile, range| {
        let advice = match advice {
            PRAMFS_ADVICE_NORMAL => Advice::Normal,
            PRAMFS_ADVICE_RANDOM => Advice::Random,
            PRAMFS_ADVICE_SEQUENTIAL => Advice::Sequential,
            PRAMFS_ADVICE_WILLNEED => Advice::WillNeed,
            _ => return Err(pramfs::Error::Invalid("an unknown advice")),
        };
        map.advise(range, advice)
    };
    // SAFETY: a handle (contract, 1).
    unsafe { on_range(map, offset, len, "advise the kernel about", work) }
}
