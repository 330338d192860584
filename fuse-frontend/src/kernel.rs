//! The mount itself: a connection to the kernel, and its end.
//!
//! Root mounts by the system call; everybody else by fusermount3, which is
//! set-user-id, opens /dev/fuse, checks what a user may do, and hands the
//! descriptor over on a socket.
//!
//! Invariant: only what was mounted here is ever unmounted here. It is
//! known by its device number, which no other file system has while it lives;
//! what somebody has mounted on top of it is left alone. (The transport's own
//! way would unmount whatever is at the path, also after an umount(8).)

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use pramfs::AtimePolicy;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::exit::Failure;
use crate::mountinfo::{self, FS_TYPE, Mount};
use crate::options::MountSettings;
use crate::privileges::programs;

pub(crate) const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// A mount of ours.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its canonical mount point.
    pub path: PathBuf,
    /// Its device number; `None` where `/proc` does not tell.
    pub device: Option<(u32, u32)>,
    /// fusermount3 has mounted it, and has to unmount it.
    pub by_helper: bool,
}

/// Mounts on `path`, with `source` as the name of what is mounted, and gives
/// the connection to the kernel.
///
/// # Errors
/// What refused the mount, and what to do.
pub fn connect(
    path: &Path,
    source: &str,
    settings: &MountSettings,
) -> Result<(OwnedFd, Place), Failure> {
    let connection = if rustix::process::geteuid().is_root() {
        by_system_call(path, source, settings)?
    } else {
        None
    };
    let helped = connection.is_none();
    let connection = match connection {
        Some(connection) => connection,
        None => by_helper(path, source, settings)?,
    };
    let place = Place {
        path: path.to_owned(),
        device: mountinfo::at(path).map(|mount| mount.device),
        by_helper: helped,
    };
    Ok((connection, place))
}

/// `None` where this process may not mount, whoever it runs as.
fn by_system_call(
    path: &Path,
    source: &str,
    settings: &MountSettings,
) -> Result<Option<OwnedFd>, Failure> {
    let shown = path.display();
    let failed = |error: io::Error| Failure::mount(format!("cannot mount on {shown}: {error}"));
    let device = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::system(format!(
                "no {DEVICE}: the kernel's FUSE module is missing; type: modprobe fuse"
            )));
        }
        Err(error) => return Err(Failure::system(format!("cannot open {DEVICE}: {error}"))),
    };
    let device = OwnedFd::from(device);
    match mount_connection(&device, path, source, settings) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(failed(error.into())),
    }
}

/// Mounts a connection to the kernel, a new one or one that is mounted
/// elsewhere: then it is the same file system.
///
/// # Errors
/// Of mount(2).
pub(crate) fn mount_connection(
    connection: &OwnedFd,
    path: &Path,
    source: &str,
    settings: &MountSettings,
) -> rustix::io::Result<()> {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        connection.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if settings.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    let fs_type = if settings.plain_type { "fuse" } else { FS_TYPE };
    rustix::mount::mount(source, path, fs_type, flags(settings), data.as_c_str())
}

fn flags(settings: &MountSettings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    flags.set(MountFlags::NOSYMFOLLOW, !settings.symlinks);
    flags.set(MountFlags::SYNCHRONOUS, settings.sync);
    flags.set(MountFlags::DIRSYNC, settings.dirsync);
    flags.set(MountFlags::NODIRATIME, !settings.dir_atime);
    flags |= match settings.atime {
        AtimePolicy::NoAtime => MountFlags::NOATIME,
        AtimePolicy::Relatime => MountFlags::RELATIME,
        AtimePolicy::StrictAtime => MountFlags::STRICTATIME,
    };
    flags
}

fn by_helper(path: &Path, source: &str, settings: &MountSettings) -> Result<OwnedFd, Failure> {
    let shown = path.display();
    let mut options = format!(
        "fsname={source}{},default_permissions,nodev,nosuid,{}",
        if settings.plain_type {
            ""
        } else {
            ",subtype=pramfs"
        },
        if settings.read_only { "ro" } else { "rw" }
    );
    for (wanted, option) in [
        (!settings.exec, ",noexec"),
        // Refused by a helper that does not know it.
        (!settings.symlinks, ",nosymfollow"),
        (settings.sync, ",sync"),
        (settings.dirsync, ",dirsync"),
        (settings.atime == AtimePolicy::NoAtime, ",noatime"),
        (settings.allow_other == Some(true), ",allow_other"),
    ] {
        if wanted {
            options.push_str(option);
        }
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::mount(format!(
            "cannot mount on {shown}: mounting without root takes {HELPER}, from the package fuse3"
        )),
        _ => Failure::mount(format!("cannot mount on {shown}: {HELPER}: {error}")),
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let child = programs::fusermount3()
        .map_err(failed)?
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // The command held the other end; what is left of it is the child's.
    let received = receive(&ours);
    let out = child.wait_with_output().map_err(failed)?;
    match received {
        Ok(Some(connection)) if out.status.success() => Ok(connection),
        _ => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.trim().trim_start_matches("fusermount3: ");
            let hint = if said.contains("user_allow_other") {
                "; leave out allow_other, or ask root for that line"
            } else if said.contains("/dev/fuse: Permission denied") {
                "; ask root to type: chmod 666 /dev/fuse"
            } else {
                ""
            };
            Err(Failure::mount(format!(
                "cannot mount on {shown}: {said}{hint}"
            )))
        }
    }
}

/// The descriptor that the helper sends, if it does.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok(descriptors.next())
}

/// Mounts of one file system that are taken away at most; their number may
/// grow meanwhile.
const MAX_MOUNTS: usize = 10_000;

impl Place {
    /// Unmounts wherever the file system is mounted, also in places that were
    /// added later; unless that has been done already.
    ///
    /// # Errors
    /// EBUSY while it is in use or covered by another mount.
    pub fn unmount(&self) -> io::Result<()> {
        self.remove(UnmountFlags::NOFOLLOW)
    }

    /// Takes all of these mounts out of sight; the file system ends when its
    /// last user does.
    ///
    /// # Errors
    /// EBUSY while one is covered by another mount.
    pub fn detach(&self) -> io::Result<()> {
        self.remove(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    }

    fn remove(&self, flags: UnmountFlags) -> io::Result<()> {
        let ours = |mount: &Mount| Some(mount.device) == self.device;
        for _ in 0..MAX_MOUNTS {
            // Read anew each time: with a mount go those it was propagated to.
            let mounts = mountinfo::read()?;
            let on_top = |place: &Path| mounts.iter().rev().find(|mount| mount.target == place);
            let Some(last) = mounts.iter().rev().find(|mount| ours(mount)) else {
                return Ok(());
            };
            if !on_top(&last.target).is_some_and(ours) {
                return Err(Errno::BUSY.into());
            }
            unmount(&last.target, flags)?;
        }
        Err(Errno::BUSY.into())
    }

    /// Cuts the connection, by the control file system of FUSE where that is
    /// mounted.
    ///
    /// # Errors
    /// Where it is not, or may not be written.
    pub fn abort(&self) -> io::Result<()> {
        let (_, minor) = self.device.ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }
}

/// Takes a dead mount away whose process is not this one.
///
/// # Errors
/// Where neither the system call nor the helper may do it.
pub fn clear(path: &Path) -> io::Result<()> {
    unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
}

/// Unmounts what is on top at `path`, whoever serves it.
///
/// # Errors
/// EBUSY while it is in use; where neither the system call nor the helper may
/// do it.
pub fn unmount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let arguments: &[&str] = if flags.contains(UnmountFlags::DETACH) {
        &["-u", "-q", "-z", "--"]
    } else {
        &["-u", "-q", "--"]
    };
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => {
            let status = programs::fusermount3()?
                .args(arguments)
                .arg(path)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            if status.success() {
                Ok(())
            } else {
                Err(Errno::BUSY.into())
            }
        }
        other => other.map_err(Into::into),
    }
}
