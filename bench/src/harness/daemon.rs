//! A FUSE server in a process of its own: starts it in the foreground, waits for its
//! mount, reads its counters, and stops it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::mount::{UnmountFlags, unmount};

use super::Context;
use super::scratch::MountDir;
use crate::sys;

/// `f_type` of a FUSE file system.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// A running server and its mount point.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    mount_dir: MountDir,
}

fn is_fuse(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type == FUSE_MAGIC)
}

impl Daemon {
    /// Starts `command`, which mounts on `mount_dir` and stays in the foreground,
    /// and waits until the mount is live.
    ///
    /// # Errors
    /// If it cannot be started, exits, or mounts nothing within 20 seconds; with its
    /// output.
    pub fn start(
        cx: &Context,
        name: &str,
        mut command: Command,
        mount_dir: MountDir,
    ) -> Result<Daemon> {
        let log = mount_dir.path().with_extension("log");
        let out = fs::File::create(&log).with_context(|| log.display().to_string())?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        sys::kill_with_parent(&mut command);
        sys::own_session(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let mut daemon = Daemon {
            name: name.into(),
            child,
            mount_dir,
        };
        let since = Instant::now();
        let ready = loop {
            if is_fuse(daemon.mount_dir.path()) {
                break Ok(());
            }
            if let Some(status) = daemon.child.try_wait()? {
                break Err(format!("ended with {status}"));
            }
            if since.elapsed() > Duration::from_secs(20) {
                break Err("mounted nothing within 20 seconds".to_owned());
            }
            if cx.check_stop().is_err() {
                break Err("interrupted".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = fs::read_to_string(&log).unwrap_or_default();
        fs::remove_file(&log).with_context(|| log.display().to_string())?;
        if let Err(why) = ready {
            bail!("{name} {why}: {}", said.trim());
        }
        Ok(daemon)
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.mount_dir.path()
    }

    /// Returns a path below the mount point.
    pub fn join(&self, name: &str) -> PathBuf {
        self.mount_dir.join(name)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of `read` system calls of the server so far. A FUSE server
    /// makes one for each request; pramfs and the minimal server make no others. So the
    /// difference of two readings is the number of requests.
    ///
    /// # Errors
    /// If the process is gone, or the kernel does not count.
    pub fn reads(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        text.lines()
            .find_map(|l| l.strip_prefix("syscr:"))
            .and_then(|v| v.trim().parse().ok())
            .with_context(|| format!("{path}: no syscr"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if is_fuse(self.mount_dir.path())
            && let Err(e) = unmount(self.mount_dir.path(), UnmountFlags::empty())
        {
            eprintln!("pramfs-bench: unmounting {}: {e}; detaching it", self.name);
            // If that fails too, the signals below end the server.
            let _ = unmount(self.mount_dir.path(), UnmountFlags::DETACH);
        }
        // The server exits when its mount is gone; otherwise signal it.
        for signal in [0, libc::SIGTERM, libc::SIGKILL] {
            if signal != 0 {
                sys::kill(self.child.id(), signal);
            }
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(5) {
                match self.child.try_wait() {
                    Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                    Ok(Some(_)) | Err(_) => return,
                }
            }
        }
    }
}
