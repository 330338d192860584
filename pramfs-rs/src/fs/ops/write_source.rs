//! Sources of a write: bytes of the caller, or bytes of the region that are copied
//! to another place in it.

use pramfs_medium::pmem::RegionAccess as _;
use std::ops::Range;

use pramfs_medium::error::Result;
use pramfs_medium::media::record::DataCopy;
use pramfs_medium::pmem::{Region, Unfenced};
use pramfs_medium::types::RegionOffset;
use pramfs_medium::volume::Plan;

/// Bytes to be written, divisible into parts.
pub(crate) trait WriteSource: Copy {
    fn len(self) -> usize;

    fn part(self, range: Range<usize>) -> Self;

    /// Stores the bytes to a place in the region by streaming stores.
    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced>;
}

impl WriteSource for &[u8] {
    #[inline]
    fn len(self) -> usize {
        self.len()
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline(always)]
    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced> {
        region.need_room(at.0, self.len() as u64)?;
        Ok(region.window().nt_store(at.0, self)?)
    }
}

/// Bytes in the region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MediumRange {
    /// First byte.
    pub at: RegionOffset,
    /// Length, bytes.
    pub len: usize,
}

impl WriteSource for MediumRange {
    fn len(self) -> usize {
        self.len
    }

    fn part(self, range: Range<usize>) -> Self {
        MediumRange {
            at: self.at + range.start as u64,
            len: range.len(),
        }
    }

    #[cfg_attr(feature = "mutants", track_caller)]
    fn store(self, region: &Region, at: RegionOffset) -> Result<Unfenced> {
        region.need_room(at.0, self.len as u64)?;
        Ok(region.window().nt_copy(at.0, self.at.0, self.len as u64)?)
    }
}

/// Staged parts of a write: the place of each, and its bytes.
pub(crate) type Copies<S> = Vec<(RegionOffset, S)>;

/// Stages bytes for `to` and the places that follow. Adds the parts to `copies`.
pub(crate) fn stage<S: WriteSource>(
    tx: &mut Plan<'_>,
    to: RegionOffset,
    from: S,
    copies: &mut Copies<S>,
) -> Result<()> {
    let mut done = 0;
    while done < from.len() {
        let to = to + done as u64;
        let (at, len) = tx.stage(to, (from.len() - done) as u64)?;
        let part = from.part(done..done + len as usize);
        let pending = part.store(&tx.volume().region, at)?;
        tx.stored_new(pending);
        let from = Some(at);
        tx.put_copy(DataCopy { to, from, len })?;
        copies.push((to, part));
        done += part.len();
    }
    Ok(())
}

/// Stores staged bytes once more, in their places.
pub(crate) fn store_copies<S: WriteSource>(
    region: &Region,
    copies: &Copies<S>,
) -> Result<Unfenced> {
    let store = |pending: Unfenced, (to, part): &(RegionOffset, S)| {
        Ok(pending.join(part.store(region, *to)?))
    };
    copies.iter().try_fold(Unfenced::none(), store)
}
