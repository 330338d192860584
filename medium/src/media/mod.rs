//! The byte layout of the medium, and nothing else.
//!
//! `layout!` declares every structure with its offsets, checks them at compile
//! time and yields the table that `docs/format.md` repeats. Integers are
//! little-endian. The medium holds no Rust enum, bool or pointer. This module
//! checks what it reads; the layers above interpret it.

#[macro_use]
pub mod layout;

pub mod acl;
pub mod bad_blocks;
pub mod bitmap;
pub mod checksum;
pub mod correct;
pub mod default_options;
pub mod features;
pub mod geometry;
pub mod grow;
pub mod htree;
pub mod identify;
pub mod inode;
pub mod label;
pub mod lease;
pub mod medium;
pub mod pointer;
pub mod probe;
pub mod record;
pub mod retired;
pub mod scrub;
pub mod sums;
pub mod superblock;
pub mod walk;

pub use geometry::Geometry;
pub use identify::identify;
pub use inode::DiskInode;
pub use medium::Medium;
pub use pointer::{Ptr, PtrAt};
pub use probe::{SuperblockInfo, probe_superblock, probe_superblock_pages};
pub use superblock::{SuperDynamic, SuperStatic};

/// Returns the tables of all structures, in the order of `docs/format.md`.
pub fn tables() -> Vec<layout::Table> {
    vec![
        SuperStatic::table(),
        superblock::Member::table(),
        SuperDynamic::table(),
        superblock::ErrorMark::table(),
        scrub::ScrubRecord::table(),
        scrub::ScrubMark::table(),
        DiskInode::table(),
        bitmap::GroupDesc::table(),
        htree::LeafHeader::table(),
        htree::ItemHeader::table(),
        htree::LargeValue::table(),
        retired::RetiredCopy::table(),
        record::RecordHeader::table(),
        lease::LeaseSlot::table(),
        bad_blocks::BadListHeader::table(),
        bad_blocks::BadExtent::table(),
    ]
}
