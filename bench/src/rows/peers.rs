//! FUSE file systems of Debian, on tmpfs.

use std::fs::File;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::fixture::{MIB, Mounted, debian_program};
use crate::harness::daemon::Daemon;
use crate::harness::{Context, Huge};

/// Mounts fuse2fs with an ext4 of `size` bytes in a file on tmpfs.
///
/// # Errors
/// If fuse2fs or mke2fs is not installed or fails.
pub fn fuse2fs(cx: &Context, size: u64) -> Result<Mounted> {
    let program = debian_program("fuse2fs", "fuse2fs")?;
    let mkfs = debian_program("mke2fs", "e2fsprogs")?;
    let tmpfs = cx
        .scratch
        .tmpfs("fuse2fs.tmpfs", size + 64 * MIB, Huge::Never)?;
    let image = tmpfs.join("image");
    File::create(&image)?.set_len(size)?;
    let made = Command::new(mkfs)
        .args(["-q", "-F", "-t", "ext4"])
        .arg(&image)
        .output()?;
    ensure!(
        made.status.success(),
        "mke2fs: {}",
        String::from_utf8_lossy(&made.stderr).trim()
    );
    let mount_dir = cx.scratch.mount_dir("fuse2fs")?;
    let mut command = Command::new(program);
    command.arg(&image).arg(mount_dir.path()).arg("-f");
    let daemon = Daemon::start(cx, "fuse2fs", command, mount_dir)?;
    Ok(Mounted { daemon, tmpfs })
}

/// Mounts bindfs over a tmpfs of `size` bytes.
///
/// # Errors
/// If it is not installed or fails.
pub fn bindfs(cx: &Context, size: u64) -> Result<Mounted> {
    let program = debian_program("bindfs", "bindfs")?;
    let tmpfs = cx.scratch.tmpfs("bindfs.tmpfs", size, Huge::Never)?;
    let mount_dir = cx.scratch.mount_dir("bindfs")?;
    let mut command = Command::new(program);
    command.arg("-f").arg(tmpfs.path()).arg(mount_dir.path());
    let daemon = Daemon::start(cx, "bindfs", command, mount_dir)?;
    Ok(Mounted { daemon, tmpfs })
}
