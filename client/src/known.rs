//! The lower interface, for the preload library: what can be done without waiting and
//! without a request, and where the blocks lie, for mappings that the caller makes.
//!
//! Invariant: nothing here waits for a lock, sends a request or allocates memory, except for
//! [`File::learn`], [`File::prepare_append`], [`File::places`] and the calls about mappings.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use parking_lot::RwLock;
use pramfs_control::Coherence;
use pramfs_medium::pmem::{Granularity, RegionAccess as _};
use pramfs_medium::types::Access;

use crate::blocks::KnownBlocks;
use crate::error::{Error, Result};
use crate::file::File;
use crate::leased::Leased;

/// The places of a range of a file, without holes.
#[derive(Debug, Clone)]
pub struct Places {
    /// Offset in the descriptor of the region, and length, in the order of the file.
    pub pieces: Vec<(u64, u64)>,
    /// Mappings need `MAP_SYNC`, so that flushes suffice on them.
    pub sync: bool,
}

impl File {
    /// Runs `f` on the lease, unless another thread is changing it.
    fn now<T>(&self, f: impl FnOnce(&Leased) -> Option<T>) -> Option<T> {
        f(self.leased().try_read()?.as_ref())
    }

    /// As [`read_at`](File::read_at), if that needs no request and no lock that is held.
    pub fn read_known(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        self.now(|leased| {
            leased
                .copy_known(buf, offset, RwLock::try_read, |_, _| {})
                .ok()?
                .done()
        })
    }

    /// As [`write_at`](File::write_at), if all the bytes have blocks, and it needs no request
    /// and no lock that is held.
    pub fn write_known(&self, buf: &[u8], offset: u64) -> Option<usize> {
        if !self.is_writable() {
            return None;
        }
        self.now(|leased| {
            leased
                .store_known(buf, offset, RwLock::try_read)
                .ok()?
                .done()
        })
    }

    /// As [`append`](File::append), if that needs no request and no lock that is held, and the
    /// bytes begin at `at`, if that is given.
    ///
    /// # Errors
    /// [`Error::Faulted`], [`Error::Medium`].
    pub fn append_known(&self, buf: &[u8], at: Option<u64>) -> Result<Option<u64>> {
        if !self.is_writable() || buf.is_empty() {
            return Ok(None);
        }
        match self.leased().try_read() {
            Some(leased) => leased.append_known(buf, at),
            None => Ok(None),
        }
    }

    /// Asks the server for room for an append, if it needs any. False if appends go through the
    /// mount for now. `opens` says how often this process has the file open: nobody else may. For
    /// [`append_known`](Self::append_known).
    pub fn prepare_append(&self, bytes: u64, opens: u32) -> bool {
        let leased = self.leased().try_read();
        self.is_writable()
            && leased.is_some_and(|leased| leased.prepare_append(bytes, opens).unwrap_or(false))
    }

    /// Returns the size of the file, as [`len`](File::len), if no other thread is changing the
    /// lease.
    pub fn size_known(&self) -> Option<u64> {
        self.now(|leased| leased.size_now().ok())
    }

    /// Learns the blocks of the file up to an offset. For [`read_known`](Self::read_known).
    ///
    /// # Errors
    /// As for [`map`](File::map).
    pub fn learn(&self, end: u64) -> Result<()> {
        let leased = self.leased().read();
        leased.known(end.min(leased.size_now()?)).map(drop)
    }

    /// Changes the [`coherence`](crate::OpenOptions::coherence) of a lease to read, before the file
    /// is mapped and after the last mapping has gone.
    ///
    /// # Errors
    /// [`Error::Refused`], with EBUSY if a program has it open for stores.
    pub fn cohere(&self, coherence: Coherence) -> Result<()> {
        self.leased().read().cohere(coherence)
    }

    /// Returns the places of a range of whole pages. For stores, holes are filled; for loads, a
    /// range with a hole is an error, because the hole may be filled later.
    ///
    /// # Errors
    /// As for [`map`](File::map); [`Error::Unstable`] for a range with a hole.
    pub fn places(&self, range: Range<u64>, access: Access) -> Result<Places> {
        let leased = self.leased().read();
        let size = leased.size_now()?;
        let end = range.end.min(size);
        if range.start >= end {
            return Err(Error::Range);
        }
        let known = match access {
            Access::Read => leased.known(end)?,
            Access::Write => leased.written(range.start..end)?,
        };
        places_in(&leased, &known, range.start..end)
    }

    /// Returns the places of a range, which may extend past the end of the file and consists of
    /// whole pages. Blocks past the end are allocated, and stay as long as there are leases; for a lease to read,
    /// another one to write must have had that done. When the file grows, it grows into them.
    /// What they show past the end is undefined, but for the rest of the last page: if the
    /// lease is to write, that is zeros.
    ///
    /// # Errors
    /// As for [`places`](Self::places); [`Error::Refused`] if that took more than a quarter of
    /// what is free; [`Error::Range`] if the blocks are not there.
    pub fn places_ahead(&self, range: Range<u64>) -> Result<Places> {
        let leased = self.leased().read();
        if range.start >= range.end {
            return Err(Error::Range);
        }
        let known = leased.written_ahead(range.clone())?;
        places_in(&leased, &known, range)
    }

    /// Runs `f` with the descriptor that the [places](Self::places) refer to. Every mapping of
    /// it keeps the blocks in the file.
    pub fn with_region<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let leased = self.leased().read();
        let (fd, _) = leased.region().backend().source_fd()?;
        Some(f(fd))
    }

    /// Whether what [`write_at`](File::write_at) has written is as durable as the medium allows,
    /// without an fdatasync(2) of the region.
    pub fn fences_are_durable(&self) -> bool {
        self.now(|leased| {
            let unit = leased.region().backend().granularity();
            (unit != Granularity::Page).then_some(())
        })
        .is_some()
    }

    /// Makes the stores through all mappings of the region durable, as fdatasync(2) does, and
    /// notes the change for the file's mtime.
    ///
    /// # Errors
    /// [`Error::Mount`] with the error of fdatasync(2); [`Error::Medium`].
    pub fn persist_mappings(&self) -> Result<()> {
        let synced = self.with_region(|fd| rustix::fs::fdatasync(fd));
        synced
            .unwrap_or(Ok(()))
            .map_err(|error| Error::Mount(error.into()))?;
        self.note_change()
    }

    /// Notes for the file's mtime that it was stored to through a mapping.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn note_change(&self) -> Result<()> {
        self.leased().read().note_store()
    }
}

/// Returns where a range of known blocks lies in the descriptor of the region.
fn places_in(leased: &Leased, known: &KnownBlocks, range: Range<u64>) -> Result<Places> {
    let backend = leased.region().backend();
    let Some((_, first)) = backend.source_fd() else {
        return Err(Error::Unstable);
    };
    let (unit, end) = (backend.map_unit(), range.end);
    let stop = end.checked_next_multiple_of(unit).ok_or(Error::Range)?;
    if !range.start.is_multiple_of(unit) {
        return Err(Error::Range);
    }
    // The last block is known as a whole.
    let stop = stop.min(known.end.max(end));
    let mut pieces = Vec::new();
    for (place, len) in known.pieces(range.start, stop) {
        let place = place.and_then(|place| place.checked_add(first));
        match place {
            Some(place) if place.is_multiple_of(unit) => pieces.push((place, len)),
            _ => return Err(Error::Unstable),
        }
    }
    let sync = backend.map_sync();
    Ok(Places { pieces, sync })
}
