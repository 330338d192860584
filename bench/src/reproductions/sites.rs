//! The file systems of the experiments, each a directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::fixture::{MIB, Mounted, debian_program, filled_file};
use crate::harness::daemon::Daemon;
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Huge};
use crate::sys::{self, Usage};

/// A mounted file system. Its fields are dropped in this order.
#[derive(Debug)]
pub struct Site {
    /// Directory for files.
    pub dir: PathBuf,
    /// The file below the file system, if it is a file.
    pub raw: Option<PathBuf>,
    /// The process of its server.
    pub server: Option<u32>,
    _daemon: Option<Daemon>,
    _mount_dirs: Vec<MountDir>,
}

impl Site {
    /// A file system that another process has mounted.
    pub fn of_other(dir: &Path, server: u32) -> Site {
        Site {
            dir: dir.to_owned(),
            raw: None,
            server: Some(server),
            _daemon: None,
            _mount_dirs: Vec::new(),
        }
    }

    /// Returns the process of its server.
    ///
    /// # Errors
    /// If it is a file system in the kernel.
    pub fn served_by(&self) -> Result<u32> {
        self.server.context("this file system has no server")
    }

    /// Returns a path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns one of the files of [`Kind::with_files`].
    pub fn file(&self, i: usize) -> PathBuf {
        self.join(&format!("file.{i}"))
    }

    /// Returns the processor time of its server so far; zero for a file system in the
    /// kernel.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn server_time(&self) -> Result<Duration> {
        self.server.map_or(Ok(Duration::ZERO), |pid| {
            sys::cpu_time_of(pid).context("processor time of the server")
        })
    }

    /// Returns the processor time of this process and the server.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn all_time(&self) -> Result<Duration> {
        let us = Usage::now();
        Ok(us.user + us.system + self.server_time()?)
    }
}

/// A kind of file system.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name in the table.
    pub name: &'static str,
    make: fn(&Context, u64) -> Result<Site>,
}

/// tmpfs itself.
pub const TMPFS: Kind = Kind {
    name: "tmpfs",
    make: tmpfs,
};
/// ext4 on a loop device over tmpfs.
pub const EXT4: Kind = Kind {
    name: "ext4 on a RAM disk",
    make: ext4,
};
/// `mount.pramfs` with its defaults.
pub const PRAMFS: Kind = Kind {
    name: "pramfs, mounted",
    make: pramfs,
};

/// `mount.pramfs` on huge pages, which gives leases to the client library and to the preload
/// library.
pub const LEASES: Kind = Kind {
    name: "pramfs, mounted",
    make: leases,
};

impl Kind {
    /// Mounts an empty one of about so many bytes, at least 128 MiB.
    ///
    /// # Errors
    /// If a step fails.
    pub fn of_size(self, cx: &Context, bytes: u64) -> Result<Site> {
        // The rest is for its own metadata.
        (self.make)(cx, bytes.saturating_sub(128 * MIB) / 17 * 16)
    }

    /// Mounts it, and makes `count` files of `size` bytes, `file.0` and so on, all
    /// written.
    ///
    /// # Errors
    /// If a step fails.
    pub fn with_files(self, cx: &Context, count: usize, size: u64) -> Result<Site> {
        let site = (self.make)(cx, size * count as u64)?;
        for i in 0..count {
            drop(filled_file(&site.file(i), size)?);
        }
        Ok(site)
    }
}

fn tmpfs(cx: &Context, bytes: u64) -> Result<Site> {
    let mount_dir = cx.scratch.tmpfs("tmpfs", bytes + 64 * MIB, Huge::Never)?;
    Ok(Site {
        dir: mount_dir.path().to_owned(),
        raw: None,
        server: None,
        _daemon: None,
        _mount_dirs: vec![mount_dir],
    })
}

/// Makes an ext4 on a loop device over a preallocated file on tmpfs.
fn ext4(cx: &Context, bytes: u64) -> Result<Site> {
    let (mkfs, mount) = (
        debian_program("mke2fs", "e2fsprogs")?,
        debian_program("mount", "mount")?,
    );
    let size = bytes + bytes / 16 + 128 * MIB;
    let tmpfs = cx
        .scratch
        .tmpfs("ext4.tmpfs", size + 64 * MIB, Huge::Never)?;
    let image = tmpfs.join("image");
    drop(filled_file(&image, size)?);
    run(Command::new(mkfs)
        .args(["-q", "-F", "-t", "ext4"])
        .arg(&image))?;
    let mount_dir = cx.scratch.mount_dir("ext4")?;
    // The loop device detaches itself at unmount, even if this process dies.
    run(Command::new(mount)
        .args(["-t", "ext4", "-o", "loop"])
        .arg(&image)
        .arg(mount_dir.path()))?;
    Ok(Site {
        dir: mount_dir.path().to_owned(),
        raw: Some(image),
        server: None,
        _daemon: None,
        _mount_dirs: vec![mount_dir, tmpfs],
    })
}

fn pramfs(cx: &Context, bytes: u64) -> Result<Site> {
    let region = bytes + bytes / 16 + 64 * MIB;
    let Mounted { daemon, tmpfs } = Mounted::pramfs(cx, "pramfs", region)?;
    Ok(served(daemon, tmpfs))
}

fn leases(cx: &Context, bytes: u64) -> Result<Site> {
    let region = bytes + bytes / 16 + 64 * MIB;
    let Mounted { daemon, tmpfs } = Mounted::for_clients(cx, region)?;
    Ok(served(daemon, tmpfs))
}

fn served(daemon: Daemon, tmpfs: MountDir) -> Site {
    Site {
        dir: daemon.path().to_owned(),
        raw: Some(tmpfs.join("memory")),
        server: Some(daemon.pid()),
        _daemon: Some(daemon),
        _mount_dirs: vec![tmpfs],
    }
}

fn run(command: &mut Command) -> Result<()> {
    let out = command.output()?;
    ensure!(
        out.status.success(),
        "{}: {}",
        Path::new(command.get_program()).display(),
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(())
}

/// Drops a file from the page cache, after its dirty pages are written back.
pub fn forget(file: &File) -> Result<()> {
    rustix::fs::fdatasync(file)?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}
