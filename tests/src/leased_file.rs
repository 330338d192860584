//! The file `/f` of a sweep, which a process has leased.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, SetAttr};

use crate::crash::sweep::{Allowed, Case, ino};

/// Grants a lease of `/f` to a process that lives on.
///
/// # Panics
/// After an error of the engine, as all functions here.
pub fn lease(fs: &Fs, mode: LeaseMode) {
    let f = ino(fs, "/f");
    let generation = fs.getattr(f).unwrap().generation;
    let grant = fs.grant_lease(f, generation, mode, 1, 1).unwrap();
    fs.region_to_damage()
        .pretend_lease(grant.lease().slot, true);
}

/// The leased file. It may have no name any more.
///
/// # Panics
/// If there is none.
pub fn leased(fs: &Fs) -> Ino {
    fs.leases()[0].ino
}

/// Truncates the leased file, to a shorter or a longer one.
///
/// # Panics
/// After an error of the engine.
pub fn set_size(fs: &Fs, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, leased(fs), &set).unwrap();
}

/// A case of a sweep. The recovery of an image merges appended bytes, and sets its own time.
pub fn case(name: &'static str, setup: fn(&Fs), run: fn(&Fs)) -> Case {
    Case::new(name, setup, run)
        .blocks(512)
        .allow(Allowed::Lagging)
}
