//! The file systems that the experiments run on, each a directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::fixture::{MIB, Mounted, debian_program, filled_file};
use crate::harness::daemon::Daemon;
use crate::harness::scratch::Place;
use crate::harness::{Context, Huge};
use crate::sys::Usage;

/// A mounted file system. Fields are dropped in this order.
#[derive(Debug)]
pub struct Site {
    /// Where files are made.
    pub dir: PathBuf,
    /// What the file system lies on, where it is a file.
    pub raw: Option<PathBuf>,
    daemon: Option<Daemon>,
    _places: Vec<Place>,
}

impl Site {
    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// One of the files that were made with it.
    pub fn file(&self, i: usize) -> PathBuf {
        self.join(&format!("file.{i}"))
    }

    /// Processor time of its server so far; zero for a file system of the
    /// kernel's.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn server_time(&self) -> Result<Duration> {
        self.daemon
            .as_ref()
            .map_or(Ok(Duration::ZERO), Daemon::cpu_time)
    }

    /// Processor time of this process and the server.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn all_time(&self) -> Result<Duration> {
        let us = Usage::now();
        Ok(us.user + us.system + self.server_time()?)
    }
}

/// A kind of site, by its name.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// For the table.
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
/// `mount.pramfs` as it is by default.
pub const PRAMFS: Kind = Kind {
    name: "pramfs, mounted",
    make: pramfs,
};

impl Kind {
    /// Mounts it, and makes `count` files of `size` bytes, `file.0` and so on,
    /// all written.
    ///
    /// # Errors
    /// When any of that fails.
    pub fn with_files(self, cx: &Context, count: usize, size: u64) -> Result<Site> {
        let site = (self.make)(cx, size * count as u64)?;
        for i in 0..count {
            drop(filled_file(&site.file(i), size)?);
        }
        Ok(site)
    }
}

fn tmpfs(cx: &Context, bytes: u64) -> Result<Site> {
    let place = cx.scratch.tmpfs("tmpfs", bytes + 64 * MIB, Huge::Never)?;
    Ok(Site {
        dir: place.path().to_owned(),
        raw: None,
        daemon: None,
        _places: vec![place],
    })
}

/// The loop device lies over a file on tmpfs whose pages exist.
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
    let place = cx.scratch.place("ext4")?;
    // The loop device frees itself at unmount, and so whenever we end.
    run(Command::new(mount)
        .args(["-t", "ext4", "-o", "loop"])
        .arg(&image)
        .arg(place.path()))?;
    Ok(Site {
        dir: place.path().to_owned(),
        raw: Some(image),
        daemon: None,
        _places: vec![place, tmpfs],
    })
}

fn pramfs(cx: &Context, bytes: u64) -> Result<Site> {
    let region = bytes + bytes / 16 + 64 * MIB;
    let Mounted { daemon, tmpfs } = Mounted::pramfs(cx, "pramfs", region)?;
    Ok(Site {
        dir: daemon.path().to_owned(),
        raw: Some(tmpfs.join("region")),
        daemon: Some(daemon),
        _places: vec![tmpfs],
    })
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

/// Makes the page cache forget a file. Written pages go out first.
pub fn forget(file: &File) -> Result<()> {
    rustix::fs::fdatasync(file)?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}
