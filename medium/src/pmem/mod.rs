//! A mapped region of persistent memory, and the only ways to change it.
//!
//! Purpose: the modules above see a [`Region`]. It offers bounds-checked reads and, through
//! a [`WriteWindow`], stores, non-temporal stores, flushes and fences. A [`PmemBackend`]
//! chooses the instructions for these.
//!
//! Invariants:
//! * No Rust reference to live medium memory leaves this module, except to atomics inside
//!   one call, and by the contract of [`Lent::as_slice`]. Only `live` copies bytes out and
//!   in, because other threads or processes may be storing to them.
//! * Every store goes through a [`WriteWindow`]. If the region is protected against stray
//!   stores, nothing else can store to it.
//! * The accessor checks bounds and alignment, once.
//!
//! Not handled here: the meaning of the bytes (`media`), and the order in which they are
//! stored (`journal`).

mod access;
mod aside;
mod atomic_table;
mod backend;
mod cow;
mod cpu;
pub mod direct;
mod error;
mod fault;
mod fault_range;
mod fork;
mod grow_ioctl;
mod heap;
#[cfg(any(test, feature = "testing"))]
pub mod huge_pool;
mod hugepage;
mod kernel_bad;
mod known_room;
mod lease_lock;
mod lent;
#[cfg(feature = "libpmem2")]
mod libpmem2;
mod live;
mod mapped_source;
mod mapping;
pub mod mount_table;
pub mod mutants;
mod native;
mod once_bits;
mod options;
mod pages;
mod place_ioctl;
mod probe;
mod protect;
mod region;
mod room;
mod scrub_ioctl;
#[cfg(any(test, feature = "testing"))]
mod sim;
mod source;
mod stitch;
mod tally;
mod unlock_wait;
mod vacate_ioctl;
mod view;
mod window;

pub use access::RegionAccess;
pub use aside::{Aside, AsideEnd, AsidePlan};
pub use atomic_table::AtomicTable;
pub use backend::{Durability, Granularity, Persistence, PmemBackend};
pub use error::PmemError;
pub use fault::install_fault_guard;
#[cfg(any(test, feature = "testing"))]
pub use fault::note_fault;
pub use fork::OpenState;
pub use grow_ioctl::{GROW, ask_to_grow, decode_grow, encode_grown};
pub use heap::HeapBackend;
pub use hugepage::HugePolicy;
pub use kernel_bad::KernelBad;
pub use lease_lock::{LEASE_LOCKS, LEASE_TICKET, TICKET_LEN, WRITE_LEASE_TICKET, lease_ticket};
pub use lent::Lent;
#[cfg(feature = "libpmem2")]
pub use libpmem2::Libpmem2Backend;
pub use native::NativeBackend;
pub use options::{BackendKind, RegionOptions};
pub use place_ioctl::{
    EXTENTS, EXTENTS_MAX, FREE_POWERS, FREE_SPACE, FreeRuns, GATHER, Gathered, ask_for_extents,
    ask_for_free_space, ask_to_gather, decode_extents, decode_free_space, decode_gather,
    encode_extents, encode_free_space, encode_gathered,
};
pub use probe::{FileSystem, Report, probe};
pub use protect::{Protect, WriteScope, free_protection_keys};
#[cfg(any(test, feature = "testing"))]
pub use protect::{openings, refuse_openings};
pub use region::{LINE, Region, RegionInfo};
pub use room::CHUNK;
pub use room::{HostSpace, KnownRoom};
pub use scrub_ioctl::{
    SCRUB, SCRUB_FINDING, ScrubMarkStatus, ScrubRequest, ScrubStatus, ask_for_scrub_finding,
    ask_to_scrub, decode_scrub, decode_scrub_finding, encode_scrub_finding,
};
#[cfg(any(test, feature = "testing"))]
pub use sim::{Counters, Event, EventKind, SimBackend};
pub use source::{
    Ownership, Permissions, REGION_UNIT, Source, SourceKind, inherit_standard_streams_only,
    is_physical, served_without_lock,
};
pub use stitch::RegionOwner;
pub use stitch::{Advice, Atom, Sent, StitchSource, StitchedMap, Stitcher};
pub use tally::Tally;
pub use unlock_wait::{is_being_released, open_when_unlocked, unmount_after_unlock};
pub use vacate_ioctl::{
    LEAF_USE, LEAF_USE_MAX, POINTERS, POINTERS_MAX, PointerBlock, VACATE, Vacated,
    ask_for_leaf_use, ask_for_pointers, ask_to_vacate, decode_leaf_use, decode_pointers,
    decode_vacate, encode_leaf_use, encode_pointers, encode_vacated,
};
pub use view::RegionView;
pub use window::{Fenced, Unfenced, WriteBack, WriteWindow};

/// Prefetches all lines of an ordinary object together, because it will be read soon.
#[inline]
pub fn prefetch_object<T>(object: &T) {
    prefetch_address::<T>(std::ptr::from_ref(object).addr());
}

/// As [`prefetch_object`], for an address that once held an object.
#[inline]
pub fn prefetch_address<T>(address: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(LINE as usize) {
        let line = std::ptr::without_provenance::<i8>(address.wrapping_add(at));
        // SAFETY: a prefetch reads nothing that the program sees, changes nothing, and does
        // not fault, whatever the address.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
pub mod tests;
