//! The state of a mounted file system, for a front end that reports it.

use crate::fs::{Engine, MemoryUse};
use pramfs_medium::media::superblock::ErrorMark;
use pramfs_medium::types::{Ino, LeaseMode, StatFs};

/// The state of a mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsState {
    /// Sizes and free space. Unlike [`Engine::statfs`], it changes nothing: blocks that wait for
    /// a record to die count as used. `None` once the file system has failed.
    pub space: Option<StatFs>,
    /// Memory of caches.
    pub memory: MemoryUse,
    /// Lanes of the journal.
    pub lanes: u32,
    /// Objects that have moved from one lane to another since the mount.
    pub hand_overs: u64,
    /// Errors since mkfs or fsck.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<RecordedError>,
    /// The latest.
    pub last_error: Option<RecordedError>,
    /// Leases to read, and to write.
    pub leases: (u64, u64),
    /// Leases that an earlier mount has granted.
    pub adopted_leases: u64,
    /// It can be changed.
    pub is_writable: bool,
    /// Each operation fails until the next mount.
    pub has_failed: bool,
}

/// An error that the superblock has recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedError {
    /// When, seconds since the epoch.
    pub time_sec: i64,
    /// Inode concerned.
    pub ino: Option<Ino>,
    /// The errno.
    pub errno: u32,
}

impl RecordedError {
    fn of(mark: &ErrorMark) -> Option<RecordedError> {
        (mark.time_sec != 0).then_some(RecordedError {
            time_sec: mark.time_sec,
            ino: (mark.ino != 0).then_some(Ino(mark.ino)),
            errno: mark.errno,
        })
    }
}

impl Engine {
    /// Returns the state of the file system. It takes no lock that an operation holds while it
    /// waits, and stores nothing. The first call after a mount reads the bitmaps in use.
    pub fn state(&self) -> FsState {
        let (first, last) = self.super_state.errors();
        let leases = self.leases();
        let of_mode = |mode| leases.iter().filter(|lease| lease.mode == mode).count() as u64;
        FsState {
            space: self.is_up().then(|| self.space()),
            memory: self.memory(),
            lanes: self.vol.geo.lanes,
            hand_overs: self.vol.journal.hand_overs(),
            errors: u64::from(last.count),
            first_error: RecordedError::of(&first),
            last_error: RecordedError::of(&last),
            leases: (of_mode(LeaseMode::Read), of_mode(LeaseMode::Write)),
            adopted_leases: leases.iter().filter(|lease| lease.is_adopted).count() as u64,
            is_writable: !self.is_read_only(),
            has_failed: !self.is_up(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::MountOptions;
    use crate::inode::{Credentials, Fs, Ino};
    use pramfs_medium::error::{Damage, Error};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::{HeapBackend, Region, Tally};

    #[test]
    fn state_shows_space_and_errors_and_stores_nothing() {
        let region = Region::new("state", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let before = fs.state();
        assert_eq!((before.errors, before.last_error), (0, None));
        assert!(before.is_writable && !before.has_failed);
        let file = fs
            .create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644)
            .unwrap();
        fs.write(&Credentials::ROOT, file.ino, 0, &[7; 64 << 10])
            .unwrap();
        let tally = Tally::of_thread();
        let after = fs.state();
        assert_eq!(Tally::of_thread(), tally, "it has stored something");
        let (before, space) = (before.space.unwrap(), after.space.unwrap());
        assert!(space.free + 16 <= before.free, "{before:?} {space:?}");
        assert!(space.free_inodes < before.free_inodes);
        let statfs = fs.statfs().unwrap();
        assert_eq!(
            (space.blocks, space.block_size),
            (statfs.blocks, statfs.block_size)
        );

        fs.note_damage(&Error::corrupt(Damage::InodeDamaged, Ino(77), "a test"));
        let damaged = fs.state();
        assert_eq!(damaged.errors, 1);
        assert!(damaged.last_error.is_some() && !damaged.is_writable);
        drop(fs);
    }
}
