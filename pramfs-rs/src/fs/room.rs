//! Room of the host for what an operation stores.
//!
//! An operation that meets a page without room on the host has changed nothing
//! since its last record: it gives up with [`PmemError::NoRoom`], lets go of its
//! locks, and is run again when there is room. So nobody who reads waits for the
//! host, and no store meets a page that is missing.
//!
//! Every turn takes at least a page, or learns that the host is full; then only
//! blocks that have room are given out (`Volume::reserve_bits`). If there are none
//! the operation runs for the last time, with what there is: now what has no room
//! is no space, and a write is short, or ENOSPC.
//!
//! Left to others: what is known of the host (`pmem::room`).

use super::Engine;
use crate::error::{Error, Result};
use crate::media::Geometry;
use crate::pmem::{CHUNK, PmemError, Region};
use crate::types::Bno;
use crate::volume::{RoomAsItIs, room_is_final};

/// Turns of one operation. Each takes room, so this is never reached but by who
/// loses it to others again and again.
const TURNS: usize = 4096;

/// What an operation that found a block without room has come to.
#[derive(Debug, Default)]
struct Turns {
    taken: usize,
    /// Whether what is there already has been looked for in vain.
    was_full: bool,
    /// In the last one there is no more room than there is.
    last: Option<RoomAsItIs>,
}

impl Turns {
    /// Takes room for the next turn, with no lock held.
    ///
    /// # Errors
    /// Those of the region; [`Error::NoSpace`] where the last turn was in vain.
    #[cold]
    #[inline(never)]
    fn next(&mut self, region: &Region, offset: u64, len: u64) -> Result<()> {
        if self.last.is_some() {
            return Err(host_is_full());
        }
        if self.taken < TURNS {
            self.taken += 1;
            let taken = region.take_some_room(offset, within(region, offset, len));
            let in_vain = match taken {
                Err(PmemError::NoRoom { .. }) => self.was_full,
                taken => taken.map(|()| false)?,
            };
            if !in_vain {
                self.was_full = region.host_is_full();
                return Ok(());
            }
        }
        self.last = Some(RoomAsItIs::new());
        Ok(())
    }
}

impl Engine {
    /// Runs something. What finds a block without room on the host gives up, as if
    /// nothing had been asked of it, and is run again with more.
    ///
    /// # Errors
    /// Those of `f`; [`Error::NoSpace`] where the host has nothing.
    #[inline]
    pub(super) fn in_turns<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let mut turns = Turns::default();
        loop {
            // In one place: what is called in two is not compiled in line.
            let result = f();
            // By reference: what is shown of an inode is long, and is not moved.
            let Err(Error::Pmem(PmemError::NoRoom { offset, len })) = &result else {
                return result;
            };
            turns.next(&self.vol.region, *offset, *len)?;
        }
    }

    /// Runs what undoes a part of an operation, under the locks of that: run again
    /// without them, it would not know any more what was there before. This alone
    /// waits for the host with an inode locked, where not even the reserve has a
    /// block, or a page of a sparse copy is missing.
    ///
    /// # Errors
    /// Those of `undo`; [`Error::NoSpace`] where the host has nothing.
    pub(super) fn undo(&self, mut undo: impl FnMut() -> Result<()>) -> Result<()> {
        for _ in 0..TURNS {
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

    /// At a mount: blocks are put aside, with room, for what frees others. Where
    /// there is none any more that is said, and the mount goes on: most removals
    /// need no block.
    ///
    /// # Errors
    /// Those of the region.
    pub(super) fn take_room_for_removals(&self) -> Result<()> {
        match self.in_turns(|| self.vol.keep_reserve()) {
            Err(Error::NoSpace(why)) => {
                tracing::warn!("no blocks could be put aside for removals: {why}");
                Ok(())
            }
            kept => kept,
        }
    }
}

/// Takes room for what is stored to without ever being allocated: both
/// superblock pages and the journal. Before the first store of a mount.
///
/// # Errors
/// [`Error::NoSpace`] where a page of it is missing, and the host has none: a
/// copy of a region may lack what was zeros.
pub(super) fn take_fixed_room(region: &Region, geo: &Geometry) -> Result<()> {
    for run in geo.fixed_blocks() {
        let (at, len) = (geo.offset(Bno(run.start)), run.end - run.start);
        match region.take_room(at, len << geo.block_log2) {
            Err(PmemError::NoRoom { .. }) => return Err(host_is_full()),
            taken => taken?,
        }
    }
    Ok(())
}

/// Says so where the host cannot give the region all that it may come to need.
pub(super) fn warn_of_little_room(region: &Region) {
    let Some(space) = region.host_space().filter(|space| space.missing() > 0) else {
        return;
    };
    tracing::warn!(
        "the file system that holds {} has {} MiB less than the region may come to need: writes get ENOSPC when it is full",
        region.info().name,
        space.missing().div_ceil(1 << 20),
    );
}

fn host_is_full() -> Error {
    Error::NoSpace("the file system that holds the region is full")
}

/// How much of a wish lies in the region.
fn within(region: &Region, offset: u64, len: u64) -> u64 {
    len.min(region.len().saturating_sub(offset))
}

/// Whether an operation has to do with what it has: there is no space for more, or
/// no room, and it was asked for in vain.
pub(super) fn is_out_of_space(e: &Error) -> bool {
    match e {
        Error::NoSpace(_) => true,
        Error::Pmem(PmemError::NoRoom { .. }) => room_is_final(),
        _ => false,
    }
}

/// Whether what was done so far is the answer: there is no more space, or what
/// comes next was lost.
pub(super) fn ends_short(e: &Error) -> bool {
    is_out_of_space(e) || matches!(e, Error::Lost { .. })
}

/// Where room is asked for, asks for all that is still to be allocated, or for as
/// much of it as the host has: a short write is an answer, too.
pub(super) fn for_some_of(region: &Region, bytes: u64) -> impl Fn(Error) -> Error {
    move |e| match for_all_of(bytes)(e) {
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

/// Asks for room for all that is still to be allocated, where it is asked for. If
/// the host has less, it is asked for nothing.
pub(super) fn for_all_of(bytes: u64) -> impl Fn(Error) -> Error {
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
    use crate::format::{FormatOptions, format};
    use crate::journal::set_thread_lane;
    use crate::map;
    use crate::pmem::{BackendKind, Region, RegionOptions};
    use crate::types::{Bno, Ctx, Fallocate, Ino};
    use crate::{Error, MountOptions, inode::Fs};

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

    /// Blocks of the reserve go until there is none.
    fn use_up_the_reserve(fs: &Fs) {
        loop {
            let mut tx = fs.vol.begin();
            tx.allow_reserve();
            if tx.alloc_blocks(None, 1, true).is_err() {
                break;
            }
            tx.commit().unwrap();
        }
    }

    /// The file ends within a leaf of 2 MiB, so that what is cut off it again
    /// takes a block; it has blocks behind that, of which each takes a pointer, so
    /// that some records are committed first; and no free block has room.
    fn undone(reserve: bool, change: impl Fn(&Fs, Ino)) {
        let fs = sparse();
        let file = fs.create(&Ctx::default(), Ino::ROOT, b"file", 0o644);
        let file = file.unwrap().ino;
        fs.append(file, &vec![1; MIB as usize]).unwrap();
        let ahead = Fallocate::Allocate { keep_size: true };
        for mib in 2..6 {
            fs.fallocate(file, ahead, mib * MIB, MIB).unwrap();
        }
        fs.vol.retire_pending().unwrap();
        fs.trim(0, u64::MAX, 0).unwrap();
        if !reserve {
            use_up_the_reserve(&fs);
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
    fn an_append_that_has_to_wait_for_room_is_stored_once_and_where_it_says() {
        for reserve in [true, false] {
            undone(reserve, |fs, file| {
                let at = fs.append(file, &vec![2; 7 * MIB as usize]).unwrap();
                assert_eq!(at, MIB);
                assert_eq!(fs.getattr(file).unwrap().size, 8 * MIB);
            });
            undone(reserve, |fs, file| {
                let part = vec![2; 7 * MIB as usize];
                fs.append_part(file, MIB, &part).unwrap();
                assert_eq!(fs.getattr(file).unwrap().size, 8 * MIB);
            });
        }
    }

    #[test]
    fn an_append_that_is_refused_for_want_of_blocks_leaves_the_file_as_it_was() {
        for reserve in [true, false] {
            undone(reserve, |fs, file| {
                let refused = fs.append(file, &vec![2; 70 * MIB as usize]);
                assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
                assert_eq!(fs.getattr(file).unwrap().size, MIB);
                let refused =
                    fs.fallocate(file, Fallocate::Allocate { keep_size: false }, 0, 70 * MIB);
                assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
                assert_eq!(fs.getattr(file).unwrap().size, MIB);
            });
        }
    }

    /// As they are freed in a copy that has holes for zeros.
    #[test]
    fn blocks_without_room_are_not_put_aside() {
        let fs = sparse();
        let file = fs.create(&Ctx::default(), Ino::ROOT, b"file", 0o644);
        let file = file.unwrap().ino;
        fs.append(file, &[1; 4096]).unwrap();
        let state = fs.iget(file).unwrap().state.read().map();
        let first = map::run(&fs.vol, &state, 0, 1).unwrap();
        let at = fs.vol.geo.offset(first.block.unwrap());
        fs.vol.region.window().discard(at, 4096).unwrap();
        fs.trim(0, u64::MAX, 0).unwrap();
        use_up_the_reserve(&fs);
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.vol.retire_pending().unwrap();
        let mut tx = fs.vol.begin();
        tx.allow_reserve();
        if let Ok(run) = tx.alloc_blocks(None, 1, true) {
            assert!(
                fs.vol
                    .region
                    .has_room(fs.vol.geo.offset(Bno(run.start)), 4096)
            );
        }
    }

    /// The host fails where the reserve would be put: not full, but cut.
    #[test]
    fn a_mount_that_becomes_writable_without_a_reserve_finishes_what_a_crash_has_left() {
        // The second group is not made before it is to be.
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
        let file = fs.create(&Ctx::default(), Ino::ROOT, b"file", 0o644);
        let ino = file.unwrap().ino;
        fs.pin(ino, 1);
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.shut_down().unwrap();
        drop(fs);

        let region = RegionOptions::new().open(&path).unwrap();
        let fs = Fs::open(region, options(true)).unwrap();
        assert_eq!(fs.recovery().orphans, 1);
        // The second group of blocks, of which the last lane takes first, ends
        // behind the cut, and so has no place for its bitmap.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(200 * MIB).unwrap();
        set_thread_lane(fs.vol.geo.lanes - 1);
        assert!(fs.take_room_for_removals().is_err());
        fs.make_writable().unwrap();
        assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
        assert_eq!(fs.vol.region.faults(), 0);
        set_thread_lane(0);
        drop(fs);
        std::fs::remove_file(&path).unwrap();
    }
}
