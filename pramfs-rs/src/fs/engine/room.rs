//! Host room for the stores of an operation.
//!
//! If an operation needs a page without room on the host, it has changed nothing
//! since its last record. It fails with [`PmemError::NoRoom`], releases its locks,
//! and runs again once room is taken. Readers therefore never wait for the host, and
//! no store hits a missing page.
//!
//! Each retry takes at least one page, or finds that the host is full. In that case
//! the allocator returns only blocks that have room (`Volume::reserve_bits`). If no
//! such block is left, the operation runs a last time with the existing room: a
//! block without room then counts as missing space, and a write is short or fails
//! with ENOSPC.
//!
//! The record of the host's room is in `pmem::room`.

use crate::fs::Engine;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::Medium;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::{CHUNK, PmemError, Region};
use pramfs_medium::sync::{assert_none_held, rank::Rank};
use pramfs_medium::types::Bno;
use pramfs_medium::volume::{RoomAsItIs, room_is_final};

/// Maximum retries of one operation. Each takes room, so an operation reaches the
/// limit only if other operations use up that room each time.
const MAX_RETRIES: usize = 4096;

/// Maximum retries of one operation after the reason of its failure was removed.
const MAX_MENDS: usize = 16;

/// The retries of an operation that found a block without room.
#[derive(Debug, Default)]
struct RoomRetries {
    taken: usize,
    /// The host was full at the last retry, so that one already looked for blocks
    /// that have room.
    was_full: bool,
    /// Set during the last retry, which takes no more room.
    last: Option<RoomAsItIs>,
}

impl RoomRetries {
    /// Takes room for the next retry. The caller holds no lock, so that no reader waits for
    /// the host.
    #[cold]
    #[inline(never)]
    fn next(&mut self, region: &Region, offset: u64, len: u64) -> Result<()> {
        assert_none_held(Rank::Gate);
        if self.last.is_some() {
            return Err(host_is_full());
        }
        if self.taken < MAX_RETRIES {
            self.taken += 1;
            let in_region = len.min(region.len().saturating_sub(offset));
            let taken = region.take_some_room(offset, in_region);
            let exhausted = match taken {
                Err(PmemError::NoRoom { .. }) => self.was_full,
                taken => taken.map(|()| false)?,
            };
            if !exhausted {
                self.was_full = region.host_is_full();
                return Ok(());
            }
        }
        self.last = Some(RoomAsItIs::new());
        Ok(())
    }
}

impl Engine {
    /// Runs `f`. If it fails on a block without room on the host, it has changed
    /// nothing, and runs again with more room. If it fails otherwise, and `mend` has removed the
    /// reason, it runs again, too.
    #[inline]
    pub(crate) fn retry_for_room<T>(
        &self,
        mut f: impl FnMut() -> Result<T>,
        mut mend: impl FnMut(&Error) -> bool,
    ) -> Result<T> {
        let mut retries = RoomRetries::default();
        let mut mends = 0;
        loop {
            // A single call site, so that `f` is inlined.
            let result = f();
            // By reference, which avoids moving a large `Attr`.
            match &result {
                Err(Error::Pmem(PmemError::NoRoom { offset, len })) => {
                    retries.next(&self.vol.region, *offset, *len)?;
                }
                Err(e) if mends < MAX_MENDS && mend(e) => mends += 1,
                _ => return result,
            }
        }
    }

    /// Runs `undo`, which reverts a part of an operation, under the locks of that
    /// operation. Without the locks a retry would no longer know the previous state.
    /// This is the only wait for the host with an inode locked. It occurs only if the
    /// reserve has no block either, or a page of a sparse copy is missing.
    pub(crate) fn undo(&self, mut undo: impl FnMut() -> Result<()>) -> Result<()> {
        for _ in 0..MAX_RETRIES {
            let (offset, len) = match undo() {
                Err(Error::Pmem(PmemError::NoRoom { offset, len })) => (offset, len),
                result => return result,
            };
            match self.vol.region.take_some_room(offset, len) {
                Err(PmemError::NoRoom { .. }) => break,
                taken => taken?,
            }
        }
        let _last = RoomAsItIs::new();
        undo()
    }

    /// Fills the reserve at mount with blocks that have room, for operations that
    /// free blocks. If no space is left, logs a warning and lets the mount continue:
    /// most removals need no block.
    pub(crate) fn fill_reserve(&self) -> Result<()> {
        match self.retry_for_room(|| self.vol.keep_reserve(), |_| false) {
            Err(Error::NoSpace(why)) => {
                tracing::warn!("could not reserve blocks for removals: {why}");
                Ok(())
            }
            kept => kept,
        }
    }
}

/// Takes room for the blocks that are never allocated: both superblock pages and
/// the journal. Runs before the first store of a mount.
///
/// # Errors
/// [`Error::NoSpace`] if one of these pages has no room and the host is full. A
/// sparse copy of a region may lack pages that were zero.
pub(crate) fn take_fixed_room(medium: Medium<'_>) -> Result<()> {
    let Medium { region, geo } = medium;
    for run in geo.fixed_blocks() {
        let (at, len) = (geo.offset(Bno(run.start)).0, run.end - run.start);
        match region.take_room(at, geo.bytes(len)) {
            Err(PmemError::NoRoom { .. }) => return Err(host_is_full()),
            taken => taken?,
        }
    }
    Ok(())
}

/// Logs a warning if the host lacks space for the missing pages of the region.
pub(crate) fn warn_if_host_is_short(region: &Region) {
    let Some(space) = region.host_space().filter(|space| space.missing() > 0) else {
        return;
    };
    tracing::warn!(
        "the file system that holds {} has {} MiB less free space than the region may need: writes fail with ENOSPC when it is full",
        region.info().name,
        space.missing().div_ceil(1 << 20),
    );
}

pub(crate) fn host_is_full() -> Error {
    Error::NoSpace("the file system that holds the region is full")
}

/// Whether an operation gets no more blocks: no space is left, or there is no room and
/// this is the last retry.
pub(crate) fn is_out_of_space(e: &Error) -> bool {
    match e {
        Error::NoSpace(_) => true,
        Error::Pmem(PmemError::NoRoom { .. }) => room_is_final(),
        _ => false,
    }
}

/// Whether an error ends a write short: no space is left, or the next block was
/// lost.
pub(crate) fn ends_short(e: &Error) -> bool {
    is_out_of_space(e) || matches!(e, Error::Lost { .. } | Error::WrongSum { .. })
}

/// Extends a request for room to all `bytes` that are still to be allocated, or to
/// the free space of the host if it has less. For operations that may be short.
pub(crate) fn request_room_or_less(region: &Region, bytes: u64) -> impl Fn(Error) -> Error {
    move |e| match request_all_room(bytes)(e) {
        Error::Pmem(PmemError::NoRoom { offset, len }) if len > CHUNK => {
            let free = region.host_space().and_then(|space| space.free);
            PmemError::NoRoom {
                offset,
                len: len.min(free.unwrap_or(len).max(CHUNK)),
            }
            .into()
        }
        e => e,
    }
}

/// Extends a request for room to all `bytes` that are still to be allocated. If the
/// host has less, the request fails. For operations that must be complete.
pub(crate) fn request_all_room(bytes: u64) -> impl Fn(Error) -> Error {
    move |e| match e {
        Error::Pmem(PmemError::NoRoom { offset, len }) => PmemError::NoRoom {
            offset,
            len: len.max(bytes),
        }
        .into(),
        e => e,
    }
}

#[cfg(test)]
mod tests {
    use crate::credentials::Credentials;
    use crate::{Error, MountOptions, inode::Fs};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::journal::set_thread_lane;
    use pramfs_medium::map;
    use pramfs_medium::pmem::RegionAccess as _;
    use pramfs_medium::pmem::{BackendKind, Region, RegionOptions};
    use pramfs_medium::types::{Fallocate, FileBlock, Ino};

    const MIB: u64 = 1 << 20;

    fn sparse() -> Fs {
        let options = RegionOptions::new().backend(BackendKind::Native);
        let region: Region = options.memfd("undone", 64 * MIB).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        Fs::open(region, options).unwrap()
    }

    /// Allocates blocks until the reserve is empty.
    fn drain_reserve(fs: &Fs) {
        loop {
            let mut tx = fs.vol.begin();
            tx.allow_reserve();
            if tx.alloc_blocks(None, 1, true).is_err() {
                break;
            }
            tx.commit().unwrap();
        }
    }

    /// Runs `change`, which must undo a part of itself, and checks the file:
    ///
    /// - The file ends within a 2 MiB leaf, so truncating it back takes a block.
    /// - It has blocks past its end that each take a pointer, so some records are
    ///   committed first.
    /// - No free block has room.
    fn check_undo(reserve: bool, change: impl Fn(&Fs, Ino)) {
        let fs = sparse();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let file = file.unwrap().ino;
        fs.append(&Credentials::ROOT, file, &vec![1; MIB as usize])
            .unwrap();
        let ahead = Fallocate::Allocate { keep_size: true };
        for mib in 2..6 {
            fs.fallocate(&Credentials::ROOT, file, ahead, mib * MIB, MIB)
                .unwrap();
        }
        fs.vol.retire_pending().unwrap();
        fs.trim(0, u64::MAX, 0).unwrap();
        if !reserve {
            drain_reserve(&fs);
        }
        assert!(!fs.vol.region.host_is_full());
        change(&fs, file);
        let mut bytes = vec![0; 9 * MIB as usize];
        let n = fs.read(file, 0, &mut bytes).unwrap();
        let (before, after) = bytes[..n].split_at(MIB as usize);
        assert!(before.iter().all(|b| *b == 1) && after.iter().all(|b| *b == 2));
        assert_eq!(fs.getattr(file).unwrap().size, n as u64);
    }

    #[test]
    fn append_retried_for_room_is_stored_once() {
        for reserve in [true, false] {
            check_undo(reserve, |fs, file| {
                let at = fs
                    .append(&Credentials::ROOT, file, &vec![2; 7 * MIB as usize])
                    .unwrap();
                assert_eq!(at, MIB);
                assert_eq!(fs.getattr(file).unwrap().size, 8 * MIB);
            });
            check_undo(reserve, |fs, file| {
                let part = vec![2; 7 * MIB as usize];
                fs.append_chunk(&Credentials::ROOT, file, MIB, &part)
                    .unwrap();
                assert_eq!(fs.getattr(file).unwrap().size, 8 * MIB);
            });
        }
    }

    #[test]
    fn append_failing_with_enospc_leaves_file_unchanged() {
        for reserve in [true, false] {
            check_undo(reserve, |fs, file| {
                let refused = fs.append(&Credentials::ROOT, file, &vec![2; 70 * MIB as usize]);
                assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
                assert_eq!(fs.getattr(file).unwrap().size, MIB);
                let refused = fs.fallocate(
                    &Credentials::ROOT,
                    file,
                    Fallocate::Allocate { keep_size: false },
                    0,
                    70 * MIB,
                );
                assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
                assert_eq!(fs.getattr(file).unwrap().size, MIB);
            });
        }
    }

    /// Such blocks are freed in a sparse copy, whose zero pages are holes.
    #[test]
    fn blocks_without_room_do_not_join_reserve() {
        let fs = sparse();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let file = file.unwrap().ino;
        fs.append(&Credentials::ROOT, file, &[1; 4096]).unwrap();
        let state = fs.iget(file).unwrap().state.read().map();
        let first = map::run(&fs.vol, &state, FileBlock(0), 1).unwrap();
        let at = fs.vol.geo.offset(first.block.unwrap()).0;
        fs.vol.region.window().discard(at, 4096).unwrap();
        fs.trim(0, u64::MAX, 0).unwrap();
        drain_reserve(&fs);
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.vol.retire_pending().unwrap();
        let mut tx = fs.vol.begin();
        tx.allow_reserve();
        if let Ok(run) = tx.alloc_blocks(None, 1, true) {
            assert!(fs.vol.region.has_room(fs.vol.geo.offset(run.start).0, 4096));
        }
    }

    /// The reserve cannot be filled because the region is truncated, not because the
    /// host is full.
    #[test]
    fn remount_rw_without_reserve_finishes_recovery() {
        // Lane 0, so that the second group is not loaded early.
        set_thread_lane(0);
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join(format!("reserve-{}", std::process::id()));
        let region = RegionOptions::new().create(&path, 256 * MIB).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let options = |read_only| MountOptions {
            read_only,
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options(false)).unwrap();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let ino = file.unwrap().ino;
        fs.hold(ino).into_count();
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.force_shutdown().unwrap();
        drop(fs);

        let region = RegionOptions::new().open(&path).unwrap();
        let fs = Fs::open(region, options(true)).unwrap();
        assert_eq!(fs.recovery().orphans, 1);
        // The second block group, from which the last lane allocates first, ends
        // past the truncation, so that its bitmap has no place.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(200 * MIB).unwrap();
        set_thread_lane(fs.vol.geo.lanes - 1);
        assert!(fs.fill_reserve().is_err());
        fs.make_writable().unwrap();
        assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
        assert_eq!(fs.vol.region.faults(), 0);
        set_thread_lane(0);
        drop(fs);
        std::fs::remove_file(&path).unwrap();
    }
}
