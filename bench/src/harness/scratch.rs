//! Private working directories, and tmpfs mounts below them.
//!
//! The process has its own mount namespace (see `sys::private_mounts`), so its mounts
//! disappear when it dies in any way. The types below also unmount on drop, so that the
//! memory is free for the next comparison.

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
    /// 2 MiB pages where they fit.
    Always,
}

/// A directory for a mount; unmounted and removed on drop.
#[derive(Debug)]
pub struct MountDir {
    path: PathBuf,
}

impl Scratch {
    /// Makes a directory in the system's temporary directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pramfs-bench.{}.{count}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root).with_context(|| root.display().to_string())?;
        Ok(Scratch { root })
    }

    /// Makes an empty directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn mount_dir(&self, name: &str) -> Result<MountDir> {
        let path = self.root.join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(MountDir { path })
    }

    /// Mounts a tmpfs of at most `bytes`.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn tmpfs(&self, name: &str, bytes: u64, huge: Huge) -> Result<MountDir> {
        let mount_dir = self.mount_dir(name)?;
        let pages = match huge {
            Huge::Never => "never",
            Huge::Always => "always",
        };
        let options = std::ffi::CString::new(format!("size={bytes},huge={pages},mode=755"))?;
        mount(
            "pramfs-bench",
            mount_dir.path(),
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .with_context(|| format!("mounting a tmpfs with huge={pages}"))?;
        Ok(mount_dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Only empty directories are left here. Keep anything else, so that the user
        // can look at it.
        if let Err(e) = fs::remove_dir(&self.root) {
            eprintln!("pramfs-bench: cannot remove {}: {e}", self.root.display());
        }
    }
}

impl MountDir {
    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for MountDir {
    fn drop(&mut self) {
        // An error means that nothing is mounted here.
        while unmount(&self.path, UnmountFlags::DETACH).is_ok() {}
        if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("pramfs-bench: cannot remove {}: {e}", self.path.display());
        }
    }
}
