//! Private places to work in: a directory, and tmpfs mounts under it.
//!
//! The process has its own mount namespace (see `sys::private_mounts`), so a
//! mount made here disappears with the process however it dies; the values
//! below unmount at once when they are dropped, so that memory is given back
//! between comparisons.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A directory of this run.
#[derive(Debug)]
pub struct Scratch {
    root: PathBuf,
}

/// Whether a tmpfs uses huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Huge {
    /// 4 KiB pages only.
    Never,
    /// 2 MiB pages wherever they fit.
    Always,
}

/// A directory that something may be mounted on; unmounted and removed on
/// drop.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
}

impl Scratch {
    /// A new directory under the system's temporary directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pramfs-bench.{}.{count}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root).with_context(|| root.display().to_string())?;
        Ok(Scratch { root })
    }

    /// An empty directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn place(&self, name: &str) -> Result<Place> {
        let path = self.root.join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Place { path })
    }

    /// A tmpfs of at most `bytes`.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn tmpfs(&self, name: &str, bytes: u64, huge: Huge) -> Result<Place> {
        let place = self.place(name)?;
        let pages = match huge {
            Huge::Never => "never",
            Huge::Always => "always",
        };
        let options = std::ffi::CString::new(format!("size={bytes},huge={pages},mode=755"))?;
        mount(
            "pramfs-bench",
            place.path(),
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .with_context(|| format!("mounting a tmpfs with huge={pages}"))?;
        Ok(place)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Only empty directories are left here; anything else is kept for
        // the user to see.
        if let Err(e) = fs::remove_dir(&self.root) {
            eprintln!("pramfs-bench: {} stays behind: {e}", self.root.display());
        }
    }
}

impl Place {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Not mounted (any more) is fine.
        while unmount(&self.path, UnmountFlags::DETACH).is_ok() {}
        if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("pramfs-bench: {} stays behind: {e}", self.path.display());
        }
    }
}
