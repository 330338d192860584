//! Scrubbing: reads everything in the region against its checksums while programs work.
//!
//! | file | holds |
//! |---|---|
//! | [`position`] | where a scrub is, as the superblock keeps it |
//! | [`verify`] | what a block of data must hold |
//! | [`unit`] | the state of a scrub, and what a step returns |
//! | [`fixed`] | superblock pages, journal, groups, internal tables |
//! | [`inodes`] | inodes, directories, attributes, slots of orphans and leases |
//! | [`contents`] | blocks of file maps |
//! | [`walk`] | the steps, and the second look at what seems wrong |
//! | [`finding`] | what was found |
//! | [`pace`] | the limit of bandwidth |
//! | [`run`] | a scrub from its start to its end, and what it keeps on the medium |
//! | [`task`] | the thread of a scrub |
//!
//! Invariants:
//! - A step holds the gate shared, and locks for about 64 KiB at most. Between steps it holds
//!   nothing, so it delays no unmount, and a grow is seen by the next step.
//! - What seems wrong is looked at again, at last while no operation is under way. Only what is
//!   wrong then is a finding.
//! - A scrub changes nothing but its own record in the superblock pages. It does not apply the
//!   error policy (`errors=`): a program that meets the damage does.

mod contents;
#[cfg(test)]
mod damage_tests;
pub(crate) mod finding;
mod fixed;
mod inodes;
#[cfg(test)]
mod load_tests;
pub(crate) mod pace;
pub(crate) mod position;
#[cfg(test)]
mod resume_tests;
pub(crate) mod run;
#[cfg(test)]
mod support_tests;
pub(crate) mod task;
mod unit;
pub(crate) mod verify;
mod walk;

pub use finding::ScrubFinding;
pub use run::ScrubOptions;
