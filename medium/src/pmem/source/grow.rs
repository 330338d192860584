//! The length of a source that becomes larger: how much address space is reserved for it, and
//! how the file is made longer.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{PmemError, Source, SourceKind};
use crate::size::human;

/// Address space that a region gets at least, in which it can grow. It costs nothing: there
/// are no pages, no page tables and no commitment of memory behind it.
const LEAST_ROOM: u64 = 4 << 40;
/// Otherwise it gets so many times its length,
const TIMES: u64 = 4;
/// up to this: half of the address space that a process has with page tables of four levels.
const MOST_ROOM: u64 = 64 << 40;

/// Returns the bytes of address space to reserve for a region of `len` bytes. `wanted` is what
/// the caller asks for.
fn room_for(len: u64, wanted: Option<u64>, limit: Option<u64>) -> u64 {
    let room = match (wanted, limit) {
        (Some(wanted), _) => wanted,
        // Reserved addresses count (RLIMIT_AS), and the program may need them.
        (None, Some(_)) => len,
        (None, None) => len.saturating_mul(TIMES).clamp(LEAST_ROOM, MOST_ROOM),
    };
    room.max(len)
}

impl Source {
    /// Asks for address space in which the region can grow to `bytes` without moving.
    pub(in crate::pmem) fn set_room(&mut self, bytes: Option<u64>) {
        self.room = bytes;
    }

    /// Returns the bytes of address space to reserve for the mapping.
    pub(in crate::pmem) fn room(&self) -> usize {
        let limit = getrlimit(Resource::As).current;
        let room = room_for(self.len(), self.room, limit);
        usize::try_from(room).unwrap_or(self.len() as usize)
    }

    /// Returns the length that the source is to have: `size`, or as long as the file or the
    /// device is now, as far as there are addresses for it. Nothing is changed. `reserved` is
    /// the address space of its mapping.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EINVAL (shorter than the mapping, or no multiple of its
    /// unit), ENOSPC (a device is smaller), EFBIG, EOPNOTSUPP (the address space does not
    /// suffice).
    pub(in crate::pmem) fn len_to_be(
        &self,
        size: Option<u64>,
        reserved: usize,
    ) -> Result<u64, PmemError> {
        let mapped = self.len();
        let found = match self.kind {
            // They keep their size while they are open.
            SourceKind::DevDax | SourceKind::Physical => mapped,
            _ => self.found_len()?,
        };
        if found < mapped {
            return Err(self.unusable(
                libc::EINVAL,
                format!(
                    "has only {found} bytes, and had {mapped} when it was opened: it has been truncated; restore it before it grows"
                ),
            ));
        }
        let fixed = self.kind.is_device();
        // An odd tail of a file stays unused.
        let whole = |len: u64| len / self.alignment * self.alignment;
        let room = whole(reserved as u64);
        let len = match size {
            Some(size) => size,
            None if whole(found) > room && room > mapped => {
                tracing::warn!(
                    "{}: {} of address space were reserved, too few for all of its {found} bytes",
                    self.path.display(),
                    human(room)
                );
                room
            }
            None => whole(found),
        };
        if len < mapped && size.is_some() {
            return Err(self.unusable(
                libc::EINVAL,
                format!(
                    "cannot shrink from {mapped} to {len} bytes: blocks past the new end may be in use and would have to move; make a smaller file system and copy the files"
                ),
            ));
        }
        if fixed && len > found {
            return Err(self.unusable(
                libc::ENOSPC,
                format!("the device has {found} bytes and not {len}; make the device larger first"),
            ));
        }
        self.check_len(len)?;
        if len > reserved as u64 {
            return Err(self.unusable(
                libc::EOPNOTSUPP,
                format!(
                    "{} of address space were reserved when it was opened, too few to grow to {} in place; unmount it, grow it with `pramfs grow` without a limit of the address space (ulimit -v), and mount it again",
                    human(reserved as u64),
                    human(len)
                ),
            ));
        }
        Ok(len)
    }

    /// Makes a file at least `len` bytes long. The new part is a hole. Returns the length that
    /// it had, if that was less.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EFBIG or ENOSPC; [`PmemError::Os`].
    pub(in crate::pmem) fn make_longer(&self, len: u64) -> Result<Option<u64>, PmemError> {
        let found = match self.kind {
            SourceKind::DevDax | SourceKind::Physical => len,
            _ => self.found_len()?,
        };
        if found >= len {
            return Ok(None);
        }
        // The system would end the process by SIGXFSZ.
        let limit = getrlimit(Resource::Fsize).current;
        if let Some(limit) = limit.filter(|limit| *limit < len) {
            return Err(self.unusable(
                libc::EFBIG,
                format!("this process may make files of {limit} bytes at most, not {len}; raise the limit (ulimit -f)"),
            ));
        }
        let longer = rustix::fs::ftruncate(&self.fd, len).map_err(|e| match e {
            Errno::FBIG | Errno::INVAL => self.unusable(
                libc::EFBIG,
                format!("its file system cannot hold a file of {len} bytes; choose a smaller size, or copy it to another file system"),
            ),
            Errno::NOSPC | Errno::DQUOT => self.unusable(
                libc::ENOSPC,
                format!("its file system has no space for {len} bytes; free some, or choose a smaller size"),
            ),
            e => self.os("cannot set the size of", e),
        });
        longer.map(|()| Some(found))
    }

    /// Makes the length of a file durable. A fence of a mapping does not, even where it makes
    /// all stores durable. Somebody else may have changed the length, so this is also needed
    /// if [`make_longer`](Self::make_longer) had nothing to do.
    ///
    /// # Errors
    /// [`PmemError::Os`].
    pub(in crate::pmem) fn make_len_durable(&self) -> Result<(), PmemError> {
        match self.kind {
            SourceKind::File | SourceKind::FsDax => {
                rustix::fs::fsync(&self.fd)
                    .map_err(|e| self.os("cannot make durable the size of", e))?;
                #[cfg(test)]
                tests::SYNCED.set(Some(self.found_len()?));
                Ok(())
            }
            // Memory ends with the system, and a device has no length in a file system.
            SourceKind::Tmpfs
            | SourceKind::Memfd
            | SourceKind::Hugetlbfs
            | SourceKind::BlockDevice
            | SourceKind::DevDax
            | SourceKind::Physical => Ok(()),
        }
    }

    /// Undoes [`make_longer`](Self::make_longer) to `made`, whose part could not be mapped:
    /// huge pages are lacking, say. A file that is longer could not be opened either. If
    /// somebody else has made it longer still, it stays so.
    pub(in crate::pmem) fn make_short_again(&self, len: u64, made: u64) {
        if self.found_len().ok() != Some(made) {
            tracing::warn!(
                "{} has been resized meanwhile, and keeps its length",
                self.path.display()
            );
            return;
        }
        if let Err(e) = rustix::fs::ftruncate(&self.fd, len) {
            tracing::warn!("{} stays longer: {e}", self.path.display());
        }
    }

    /// Publishes the length of the mapping.
    pub(in crate::pmem) fn has_grown(&self, len: u64) {
        self.len.raise(len);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::pmem::RegionOptions;
    use crate::pmem::source::Access;

    thread_local! {
        /// Length of the file that this thread made durable last.
        pub(super) static SYNCED: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// A file on a file system with storage, open as a region of 1 MiB.
    fn stored() -> (tempfile::TempDir, std::fs::File, crate::pmem::Region) {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("region");
        let region = RegionOptions::new()
            .room_to_grow(8 << 20)
            .create(&path, 1 << 20)
            .unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        (dir, file, region)
    }

    #[test]
    fn grow_makes_length_of_file_durable_whoever_changed_it() {
        let (_dir, file, region) = stored();
        if region.info().persistence == crate::pmem::Persistence::Process {
            println!("SKIPPED: the source directory is in memory");
            return;
        }
        SYNCED.set(None);
        region.grow(Some(2 << 20)).unwrap();
        assert_eq!(SYNCED.take(), Some(2 << 20));
        region.grow(Some(2 << 20)).unwrap();
        assert_eq!(SYNCED.take(), Some(2 << 20), "the size of before");
        file.set_len(3 << 20).unwrap();
        region.grow(None).unwrap();
        assert_eq!(SYNCED.take(), Some(3 << 20));
    }

    #[test]
    fn grow_of_truncated_file_is_refused() {
        let (_dir, file, region) = stored();
        file.set_len(512 << 10).unwrap();
        for size in [None, Some(1 << 20), Some(2 << 20)] {
            let e = region.grow(size).unwrap_err();
            assert!(e.to_string().contains("truncated"), "{e}");
        }
        assert_eq!(file.metadata().unwrap().len(), 512 << 10);
    }

    #[test]
    fn grow_to_all_of_file_ends_with_reserved_addresses() {
        let (_dir, file, region) = stored();
        file.set_len(1 << 40).unwrap();
        assert_eq!(region.grow(None).unwrap(), 8 << 20);
        // Nothing is left.
        let e = region.grow(None).unwrap_err();
        assert!(e.to_string().contains("address space"), "{e}");
    }

    #[test]
    fn file_that_others_resized_keeps_its_length() {
        let (dir, file, region) = stored();
        drop(region);
        let access = Access {
            read_only: false,
            lock: true,
            shared: false,
            whoever_owns: false,
        };
        let path = dir.path().join("region");
        let source = crate::pmem::tests::when_free(|| Source::open(&path, access));
        assert_eq!(source.make_longer(2 << 20).unwrap(), Some(1 << 20));
        file.set_len(3 << 20).unwrap();
        source.make_short_again(1 << 20, 2 << 20);
        assert_eq!(file.metadata().unwrap().len(), 3 << 20);
        source.make_short_again(1 << 20, 3 << 20);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn reserved_addresses_follow_length_and_limit() {
        assert_eq!(room_for(1 << 20, None, None), LEAST_ROOM);
        assert_eq!(room_for(2 << 40, None, None), 8 << 40);
        assert_eq!(room_for(40 << 40, None, None), MOST_ROOM);
        assert_eq!(room_for(100 << 40, None, None), 100 << 40);
        assert_eq!(room_for(1 << 20, None, Some(1 << 30)), 1 << 20);
        for limit in [None, Some(1 << 30)] {
            assert_eq!(room_for(1 << 20, Some(9 << 40), limit), 9 << 40);
            assert_eq!(room_for(1 << 20, Some(0), limit), 1 << 20);
        }
    }
}
