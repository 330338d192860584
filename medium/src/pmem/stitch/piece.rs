//! One piece of a view: maps it, and fills the holes between pieces.

use std::ops::Range;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::{StitchSource, os};
use crate::pmem::error::PmemError;
use crate::pmem::mapping::{self, HUGE_2M, Reservation, Share};

/// A piece of the region, and its place in the view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub at: u64,
    pub len: u64,
    pub region_offset: u64,
    pub writable: bool,
}

impl Piece {
    /// Maps the piece over a reserved range, within `room` of it, which has no user yet.
    ///
    /// # Errors
    /// As for [`Stitcher::stitch`](super::Stitcher::stitch).
    pub(super) fn map(
        &self,
        range: &Reservation,
        room: Range<u64>,
        source: &StitchSource<'_>,
    ) -> Result<(), PmemError> {
        let Piece {
            at,
            len,
            region_offset,
            writable,
        } = *self;
        let page = rustix::param::page_size() as u64;
        let unit = source.unit.max(page);
        let address = (range.base() as u64).wrapping_add(at);
        for value in [at, len, source.first.wrapping_add(region_offset), address] {
            if !value.is_multiple_of(unit) {
                return Err(PmemError::Misaligned {
                    offset: value,
                    align: unit,
                });
            }
        }
        if len == 0 || at < room.start || at.checked_add(len).is_none_or(|end| end > room.end) {
            return Err(PmemError::OutOfBounds {
                offset: at,
                len,
                region_len: room.end,
            });
        }
        if region_offset
            .checked_add(len)
            .is_none_or(|end| end > source.len)
        {
            return Err(PmemError::OutOfBounds {
                offset: region_offset,
                len,
                region_len: source.len,
            });
        }
        let fd_offset = source.first.wrapping_add(region_offset);
        if writable && source.read_only {
            return Err(read_only(region_offset, len));
        }
        let share = match (source.private.is_some(), writable, source.sync) {
            // Private, to copy in private pages of the region; then only loads are allowed.
            (true, ..) => Share::Private,
            (_, false, _) => Share::SharedReadOnly,
            (_, true, true) => Share::SharedSync,
            (_, true, false) => Share::Shared,
        };
        // SAFETY: `room` has no user: a new range before `finish`, or the part of a
        // reservation past the end of its view.
        let p = unsafe {
            mapping::map_over(
                range,
                at as usize,
                len as usize,
                source.fd,
                fd_offset,
                share,
            )
        }
        .map_err(|e| os("cannot map a piece of", len, e))?;
        if let Some(primary) = source.private {
            self.copy_private_pages(range, primary)?;
            // SAFETY: a piece of our own range.
            unsafe { rustix::mm::mprotect(p.cast(), len as usize, MprotectFlags::READ) }
                .map_err(|e| os("cannot protect a piece of", len, e))?;
        }
        if source.advise_huge && len >= HUGE_2M as u64 {
            // SAFETY: advice about a piece of our own range; best effort.
            let _ = unsafe { rustix::mm::madvise(p.cast(), len as usize, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// Copies the region's private pages behind the piece. A read-only region keeps the
    /// changes of recovery in private pages, which the descriptor does not show.
    fn copy_private_pages(&self, range: &Reservation, primary: usize) -> Result<(), PmemError> {
        let start = primary + self.region_offset as usize;
        let pages = private_pages(start, self.len as usize).map_err(|source| PmemError::Os {
            what: "cannot read",
            path: "/proc/self/pagemap".into(),
            source,
        })?;
        let page = rustix::param::page_size();
        for p in pages {
            let to = range.base().wrapping_add(self.at as usize + (p - start));
            // SAFETY: `p` is a page of the region's mapping, which outlives
            // the source; `to` is the same page of the piece just mapped,
            // privately and writable, with no user yet.
            unsafe { crate::pmem::live::load(to, p as *const u8, page) };
        }
        Ok(())
    }
}

/// Adds a piece to a list in ascending order. Extends the last piece instead if the two are
/// adjacent in the region too.
pub(super) fn note(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut()
        && last.at + last.len == piece.at
        && last.region_offset + last.len == piece.region_offset
        && last.writable == piece.writable
    {
        last.len += piece.len;
    } else {
        pieces.push(piece);
    }
}

/// Fills the holes between `pieces` with zeros, in a part of a range that has no user yet.
/// Returns whether every byte of the part can be stored to.
pub(super) fn fill_holes(
    range: &Reservation,
    pieces: &[Piece],
    part: Range<u64>,
) -> Result<bool, PmemError> {
    let mut at = part.start;
    let mut writable = true;
    for piece in pieces {
        if at < piece.at {
            map_zeros(range, at..piece.at)?;
            writable = false;
        }
        at = piece.at + piece.len;
        writable &= piece.writable;
    }
    if at < part.end {
        map_zeros(range, at..part.end)?;
        writable = false;
    }
    Ok(writable)
}

fn map_zeros(range: &Reservation, hole: Range<u64>) -> Result<(), PmemError> {
    let len = hole.end - hole.start;
    let Some(p) = range.piece(hole.start as usize, len as usize) else {
        return Err(PmemError::OutOfBounds {
            offset: hole.start,
            len,
            region_len: range.len() as u64,
        });
    };
    // SAFETY: replaces only pages of the range, where it has no user yet.
    unsafe {
        rustix::mm::mmap_anonymous(
            p.cast(),
            len as usize,
            ProtFlags::READ,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )
    }
    .map(|_| ())
    .map_err(|e| os("cannot map zeros for", len, e))
}

/// Returns the pages of `start..start+len` that a private mapping has copied.
fn private_pages(start: usize, len: usize) -> std::io::Result<Vec<usize>> {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE_OR_SHARED: u64 = 1 << 61;
    let page = rustix::param::page_size();
    let file = std::fs::File::open("/proc/self/pagemap")?;
    let mut found = Vec::new();
    let mut words = [0u8; 8 * 512];
    for chunk in (start..start + len).step_by(page * 512) {
        let n = (start + len - chunk).div_ceil(page).min(512);
        file.read_exact_at(&mut words[..n * 8], (chunk / page * 8) as u64)?;
        for (i, word) in words[..n * 8].chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if word & (PRESENT | SWAPPED) != 0 && word & FILE_OR_SHARED == 0 {
                found.push(chunk + i * page);
            }
        }
    }
    Ok(found)
}

pub(super) fn read_only(region_offset: u64, len: u64) -> PmemError {
    PmemError::Unusable {
        path: format!("{len} bytes at offset {region_offset:#x}"),
        why: "the region is open read-only and cannot be mapped for writing".into(),
        errno: libc::EROFS,
    }
}
