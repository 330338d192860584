//! File systems with little room, for regions that lie on them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;
use tempfile::TempDir;

/// A file system of its own, unmounted at the end.
#[derive(Debug)]
pub struct Host {
    dir: TempDir,
    mounted: bool,
    /// The image of a disk below it.
    image: Option<TempDir>,
}

impl Host {
    /// A tmpfs with these options. `None` has been said loudly.
    ///
    /// # Panics
    /// Where there is no directory for it.
    pub fn tmpfs(test: &str, options: &str) -> Option<Host> {
        or_skip(test, Host::try_tmpfs(options))
    }

    /// As [`Host::tmpfs`], and why not.
    fn try_tmpfs(options: &str) -> Result<Host, String> {
        Host::none().mount(&["-t", "tmpfs", "-o", options, "none"])
    }

    /// An ext4 of so many bytes, on a loop device. `None` has been said loudly.
    ///
    /// # Panics
    /// Where there is no place for it.
    pub fn ext4(test: &str, len: u64) -> Option<Host> {
        or_skip(test, Host::try_ext4(len, &[], "loop"))
    }

    /// As [`Host::ext4`], with more options for mkfs.ext4 and others for the mount,
    /// and why not.
    fn try_ext4(len: u64, mkfs: &[&str], options: &str) -> Result<Host, String> {
        let images = tempfile::tempdir().expect("a directory");
        let image = images.path().join("image");
        let file = File::create(&image).expect("an image");
        file.set_len(len).expect("room for an image");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .args(mkfs)
            .arg(&image)
            .status();
        if !made.is_ok_and(|s| s.success()) {
            return Err("no mkfs.ext4".to_owned());
        }
        let mut host = Host::none();
        host.image = Some(images);
        let source = image.display().to_string();
        host.mount(&["-t", "ext4", "-o", options, &source])
    }

    /// A tmpfs and an ext4 of 64 MiB in which anybody may make files, and a user may
    /// have so many bytes: those of both that the kernel has quotas for, by name.
    /// None has been said loudly.
    ///
    /// # Panics
    /// Where there is no place for it.
    pub fn with_quota(test: &str, user: u32, bytes: u64) -> Vec<(&'static str, Host)> {
        let limit = format!("size=64m,usrquota,usrquota_block_hardlimit={bytes},mode=1777");
        let quota = ["-O", "quota", "-E", "quotatype=usrquota"];
        let disk = Host::try_ext4(64 << 20, &quota, "loop,usrquota").and_then(|host| {
            host.limit(user, bytes)
                .map_err(|e| format!("quotactl: {e}"))?;
            let anybody = fs::Permissions::from_mode(0o1777);
            fs::set_permissions(host.path(), anybody).map_err(|e| e.to_string())?;
            Ok(host)
        });
        let (mut hosts, mut refused) = (Vec::new(), Vec::new());
        for (kind, host) in [("tmpfs", Host::try_tmpfs(&limit)), ("ext4", disk)] {
            match host {
                Ok(host) => hosts.push((kind, host)),
                Err(why) => refused.push(why),
            }
        }
        if hosts.is_empty() {
            let why = refused.join("; ");
            crate::skip::skipped(format_args!(
                "no quota on tmpfs (CONFIG_TMPFS_QUOTA) and none on ext4 (CONFIG_QFMT_V2): {test} has not been run: {why}"
            ));
        }
        hosts
    }

    /// Gives a user a quota, on an ext4 that has them.
    fn limit(&self, user: u32, bytes: u64) -> io::Result<()> {
        let dir = File::open(self.path())?;
        // SAFETY: all of it are numbers.
        let mut limits: libc::dqblk = unsafe { std::mem::zeroed() };
        // In units of 1024 bytes.
        limits.dqb_bhardlimit = bytes / 1024;
        limits.dqb_valid = libc::QIF_BLIMITS;
        let command = libc::QCMD(libc::Q_SETQUOTA, libc::USRQUOTA);
        // SAFETY: quotactl_fd(2) with the structure that this command reads.
        let done = unsafe {
            libc::syscall(
                libc::SYS_quotactl_fd,
                dir.as_raw_fd(),
                command,
                user,
                &raw mut limits,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Nothing mounted yet.
    fn none() -> Host {
        Host {
            dir: tempfile::tempdir().expect("a directory"),
            mounted: false,
            image: None,
        }
    }

    fn mount(mut self, args: &[&str]) -> Result<Host, String> {
        let out = Command::new("mount").args(args).arg(self.path()).output();
        match out {
            Ok(out) if out.status.success() => {
                self.mounted = true;
                Ok(self)
            }
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr);
                let why = said.lines().next().unwrap_or_default();
                Err(format!("cannot mount {args:?}: {why}"))
            }
            Err(e) => Err(format!("mount: {e}")),
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A path on it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Another program takes all that is left of it, in a file of this name.
    ///
    /// # Panics
    /// Where the file cannot be made.
    pub fn fill(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        let mut file = File::create(&path).expect("another file");
        for len in [1 << 20, 64 << 10, 4096] {
            let bytes = vec![7; len];
            while file.write_all(&bytes).is_ok() {}
        }
        // What is written later may find less.
        let _full = file.sync_all();
        path
    }

    /// Removes a file of [`fill`](Self::fill). It is truncated first: a process that
    /// another thread is starting may have it open until it runs its program, and would
    /// keep the bytes of a removed file.
    ///
    /// # Panics
    /// If the file cannot be removed.
    pub fn remove(&self, path: PathBuf) {
        let file = File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(0))
            .expect("the file is truncated");
        std::fs::remove_file(path).expect("the file is removed");
    }

    /// Bytes that it has left.
    ///
    /// # Panics
    /// Where it does not say.
    pub fn free(&self) -> u64 {
        let host = rustix::fs::statvfs(self.path()).expect("a file system");
        host.f_bavail * host.f_frsize
    }
}

fn or_skip(test: &str, host: Result<Host, String>) -> Option<Host> {
    host.map_err(|why| crate::skip::skipped(format_args!("{test} has not been run: {why}")))
        .ok()
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.mounted && rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH).is_err() {
            eprintln!("{} stays mounted", self.dir.path().display());
        }
    }
}

/// A copy of a file in which pages of zeros are holes, as `cp --sparse=always`
/// makes it.
///
/// # Panics
/// Where it cannot be made.
pub fn sparse_copy(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("the original");
    let copy = File::create(to).expect("a copy");
    copy.set_len(bytes.len() as u64).expect("its length");
    for (at, page) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        if page.iter().any(|b| *b != 0) {
            std::os::unix::fs::FileExt::write_all_at(&copy, page, at).expect("a page");
        }
    }
}
