//! Opens a region and its file system, for the tools that work without a mount.
//!
//! Invariant: a tool that only reads opens read-only. Live records are replayed in
//! private memory, and not one byte of the medium changes.

use std::path::Path;

use pramfs::pmem::{Region, RegionOptions};
use pramfs::{MountOptions, inode::Fs};
use pramfs_medium::media::features::METADATA_IMAGE;
use pramfs_medium::media::probe_superblock;

use crate::failure::shown;
use crate::{Failure, busy};
use pramfs_contents as contents;

/// What a tool does with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Reads it.
    Read,
    /// Changes it.
    Write,
}

/// Opens and locks a region.
///
/// # Errors
/// It is in use (the message names the holder), missing, or cannot be opened.
pub(crate) fn region(path: &Path, intent: Intent) -> Result<Region, Failure> {
    RegionOptions::new()
        .read_only(intent == Intent::Read)
        .open(path)
        .inspect(|region| {
            if let Some(notice) = region.info().lock_notice {
                eprintln!("pramfs: warning: {}: {notice}", shown(path));
            }
        })
        .map_err(|e| busy::with_mount_point(path, e.into()))
}

/// Opens the file system of a region.
///
/// # Errors
/// Those of [`region`], or there is no usable file system.
pub(crate) fn fs(path: &Path, intent: Intent) -> Result<Fs, Failure> {
    let options = MountOptions {
        read_only: intent == Intent::Read,
        background: false,
        ..MountOptions::default()
    };
    // Faults of the medium (a truncated file) become errors.
    pramfs::pmem::install_fault_guard()?;
    let fs = Fs::open(region(path, intent)?, options).map_err(|e| not_ours(path, e))?;
    for damage in &fs.recovery().damage {
        eprintln!("pramfs: warning: {}: {damage}", shown(path));
    }
    let info = probe_superblock(fs.region());
    if info.is_ok_and(|info| info.fixed.ro_compat & METADATA_IMAGE != 0) {
        eprintln!(
            "pramfs: warning: {}: is an image of metadata, and its files have no data",
            shown(path)
        );
    }
    Ok(fs)
}

/// An error of the library about a region, with what it holds in the place of a file system of ours.
pub(crate) fn not_ours(path: &Path, e: pramfs::Error) -> Failure {
    let mut failure = Failure::about(shown(path), e);
    if failure.reason == "not-mountable"
        && let Some(found) = contents::instead(path)
    {
        failure.message += &format!("; this is {}", found.sentence());
        failure.found = serde_json::to_value([found]).ok();
    }
    failure
}

/// Closes a file system after changes.
///
/// # Errors
/// Medium errors: some changes may not have reached the medium.
pub(crate) fn close(path: &Path, fs: Fs) -> Result<(), Failure> {
    fs.close()
        .map_err(|e| Failure::about(shown(path), e.into()))
}
