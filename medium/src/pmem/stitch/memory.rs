//! The owner of a view's addresses: a separate range, or the mapping of the region.

use std::fmt::Debug;
use std::sync::Arc;

use crate::pmem::error::PmemError;
use crate::pmem::fault::Guard;
use crate::pmem::mapping::Reservation;
use crate::pmem::region::Region;

/// Keeps a region, and with it its mapping, in place.
pub trait RegionOwner: Debug + Send + Sync {
    /// Returns the region: the same one as long as the owner lives.
    fn region(&self) -> &Region;
}

/// Addresses that are valid while this value lives.
#[derive(Debug)]
pub(super) enum Memory {
    /// A separate range with pieces mapped over it.
    Own {
        // Before the range: the guard ends first.
        guard: Guard,
        range: Reservation,
    },
    /// A part of the region's own mapping, guarded by the region.
    Region {
        owner: Arc<dyn RegionOwner>,
        base: Base,
        offset: u64,
    },
}

/// An address in the mapping of a region.
#[derive(Debug)]
pub(super) struct Base(*mut u8);

// SAFETY: an address; the owner beside it keeps the memory mapped, and all access through
// it is by copies and atomics.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

impl Memory {
    /// Returns a part of a region's mapping.
    pub(super) fn of_region(
        owner: Arc<dyn RegionOwner>,
        offset: u64,
        len: u64,
    ) -> Result<Memory, PmemError> {
        let base = Base(owner.region().raw_range(offset, len)?.cast());
        Ok(Memory::Region {
            owner,
            base,
            offset,
        })
    }

    #[inline]
    pub(super) fn base(&self) -> *mut u8 {
        match self {
            Memory::Own { range, .. } => range.base(),
            Memory::Region { base, .. } => base.0,
        }
    }

    pub(super) fn faults(&self) -> u64 {
        match self {
            Memory::Own { guard, .. } => guard.faults(),
            Memory::Region { owner, .. } => owner.region().faults(),
        }
    }

    #[inline]
    pub(super) fn is_faulted(&self, at: u64, len: u64) -> bool {
        match self {
            Memory::Own { guard, range } => {
                guard.is_faulted(range.base().wrapping_add(at as usize), len as usize)
            }
            Memory::Region { owner, offset, .. } => owner.region().is_faulted(offset + at, len),
        }
    }
}
