//! Damaged, forged and full images, and impossible requests. One program, which is linked
//! once.

mod bad_bitmap;
mod bad_entries;
mod bad_flip;
mod bad_full;
mod bad_journal;
mod bad_names;
mod bad_ranges;
mod bad_superblock;
mod bad_support;
mod bad_values;
mod bad_zeros;
