//! The mount itself: a connection to the kernel, and its end.
//!
//! Root mounts by the system call; everybody else by fusermount3, which is
//! set-user-id, opens /dev/fuse, checks what a user may do, and hands the
//! descriptor over on a socket.
//!
//! Order, for root: the mount is made where nobody sees it, its device number is
//! looked at, and it is attached to the directory that was checked, by
//! descriptor. fusermount3 takes a path and checks the directory itself, with the
//! rights of its caller.
//!
//! Invariant: only what was mounted here is ever unmounted here. It is
//! known by its device number, which no other file system has while it lives.
//! The kernel gives that number to the next mount, anybody's, as soon as ours has
//! ended; it ends the connection first. So what has our number is ours if the
//! connection is found alive *afterwards*. What somebody has mounted on top of it
//! is left alone. (The transport's own way would unmount whatever is at the path,
//! also after an umount(8).)

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use pramfs::AtimePolicy;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::exit::Failure;
use crate::mountinfo::{self, Mount, Spot};
use crate::mountpoint::MountPoint;
use crate::options::MountSettings;
use crate::privileges::programs;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// What comes after the dot in the type that the kernel shows.
const SUBTYPE: &str = "pramfs";

/// A mount of ours.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its canonical mount point.
    pub path: PathBuf,
    /// Its device number; `None` where `/proc` does not tell.
    pub device: Option<(u32, u32)>,
    /// fusermount3 has mounted it, and has to unmount it.
    pub by_helper: bool,
    /// The connection to the kernel, until [`end`](Self::end): whoever has a copy
    /// of this sees its end, and none keeps it alive.
    connection: Arc<Mutex<Option<OwnedFd>>>,
}

/// Mounts on a directory, with `source` as the name of what is mounted, and gives
/// the connection to the kernel.
///
/// # Errors
/// What refused the mount, and what to do.
pub fn connect(
    point: &MountPoint,
    source: &str,
    settings: &MountSettings,
) -> Result<(OwnedFd, Place), Failure> {
    let mounted = if rustix::process::geteuid().is_root() {
        by_system_call(point, source, settings)?
    } else {
        None
    };
    let by_helper = mounted.is_none();
    let (connection, device) = match mounted {
        Some((connection, device)) => (connection, Some(device)),
        None => {
            let connection = ask_to_mount(&point.path, source, settings)?;
            let device = mountinfo::at(&point.path).map(|mount| mount.device);
            (connection, device)
        }
    };
    let ours = rustix::io::fcntl_dupfd_cloexec(&connection, 0)
        .map_err(|error| Failure::system(format!("cannot copy the connection: {error}")))?;
    let place = Place {
        path: point.path.clone(),
        device,
        by_helper,
        connection: Arc::new(Mutex::new(Some(ours))),
    };
    Ok((connection, place))
}

/// A connection to the kernel, and the device number of what is mounted.
type Connected = (OwnedFd, (u32, u32));

/// `None` where this process may not mount, whoever it runs as.
fn by_system_call(
    point: &MountPoint,
    source: &str,
    settings: &MountSettings,
) -> Result<Option<Connected>, Failure> {
    let shown = point.path.display();
    let failed = |error: Errno| {
        let error = io::Error::from(error);
        Failure::mount(format!("cannot mount on {shown}: {error}"))
    };
    let device = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::system(format!(
                "no {DEVICE}: the kernel's FUSE module is missing; type: modprobe fuse"
            )));
        }
        Err(error) => return Err(Failure::system(format!("cannot open {DEVICE}: {error}"))),
    };
    let connection = OwnedFd::from(device);
    let mounted = Detached::new(&connection, source, settings).and_then(|mount| {
        mount.attach(point)?;
        Ok(mount.device)
    });
    match mounted {
        Ok(device) => Ok(Some((connection, device))),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Longest name of a source that a mount can be given, without its end.
const MAX_SOURCE: usize = 255;

/// A mount that is not in any directory yet. If it never comes there, it is gone
/// with its descriptor.
pub(crate) struct Detached {
    mount: OwnedFd,
    /// Device number of the file system.
    pub device: (u32, u32),
}

impl Detached {
    /// Of a connection to the kernel, a new one or one that is mounted elsewhere:
    /// then it is the same file system.
    ///
    /// # Errors
    /// EPERM where this process may not mount; ENOSYS before Linux 5.8.
    pub fn new(
        connection: &OwnedFd,
        source: &str,
        settings: &MountSettings,
    ) -> rustix::io::Result<Detached> {
        use rustix::mount::{fsconfig_set_flag, fsconfig_set_string};
        let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let user = rustix::process::getuid().as_raw().to_string();
        let group = rustix::process::getgid().as_raw().to_string();
        let fd = connection.as_raw_fd().to_string();
        fsconfig_set_string(&context, "source", &*shortened(source))?;
        if !settings.plain_type {
            fsconfig_set_string(&context, "subtype", SUBTYPE)?;
        }
        for (key, value) in [
            ("fd", &*fd),
            ("rootmode", "40000"),
            ("user_id", &*user),
            ("group_id", &*group),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        for (key, wanted) in [
            ("default_permissions", true),
            ("allow_other", settings.allow_other.unwrap_or(true)),
            ("ro", settings.read_only),
            ("sync", settings.sync),
            ("dirsync", settings.dirsync),
        ] {
            if wanted {
                fsconfig_set_flag(&context, key)?;
            }
        }
        rustix::mount::fsconfig_create(&context)?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = rustix::mount::fsmount(&context, flags, attributes(settings))?;
        let device = mountinfo::locate(&mount, OsStr::new(""))?.device;
        Ok(Detached { mount, device })
    }

    /// Puts it on the directory.
    ///
    /// # Errors
    /// Of move_mount(2).
    pub fn attach(&self, point: &MountPoint) -> rustix::io::Result<()> {
        let here =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&self.mount, c"", &point.directory, c"", here)
    }
}

/// A source that is too long begins with dots: no path that could be looked for.
fn shortened(source: &str) -> std::borrow::Cow<'_, str> {
    if source.len() <= MAX_SOURCE {
        return source.into();
    }
    let mut from = source.len() - (MAX_SOURCE - 3);
    while !source.is_char_boundary(from) {
        from += 1;
    }
    format!("...{}", &source[from..]).into()
}

fn attributes(settings: &MountSettings) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, settings.read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !settings.dev);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !settings.suid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !settings.exec);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW, !settings.symlinks);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, !settings.dir_atime);
    flags |= match settings.atime {
        AtimePolicy::NoAtime => MountAttrFlags::MOUNT_ATTR_NOATIME,
        AtimePolicy::Relatime => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AtimePolicy::StrictAtime => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    };
    flags
}

fn ask_to_mount(path: &Path, source: &str, settings: &MountSettings) -> Result<OwnedFd, Failure> {
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

/// How often in a row a mount may not be found where the kernel says that it is.
/// Somebody may rename a directory on the way just then; below another mount it
/// is never found.
const MAX_MISSES: usize = 16;

impl Place {
    /// From here on nothing is taken for ours: the session has ended.
    pub fn end(&self) {
        *self.connection.lock() = None;
    }

    /// Whether the file system lives, and so has its device number to itself.
    pub fn is_live(&self) -> bool {
        const NOW: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let held = self.connection.lock();
        let Some(connection) = &*held else {
            return false;
        };
        // The kernel shows the end of a connection as an error of its descriptor.
        let mut asked = [PollFd::new(connection, PollFlags::empty())];
        let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut asked, Some(&NOW)));
        polled.is_ok() && !asked[0].revents().contains(PollFlags::ERR)
    }

    /// Whether a line of the mount table has what a mount of ours has. That is
    /// believed only if [`is_live`](Self::is_live) is true after it was read.
    pub(crate) fn resembles(&self, mount: &Mount) -> bool {
        Some(mount.device) == self.device && mount.is_own() && mount.fs_type.starts_with("fuse")
    }

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
        self.remove_at(flags, Spot::of_path)
    }

    /// `find` gives what is mounted on a path.
    fn remove_at(
        &self,
        flags: UnmountFlags,
        mut find: impl FnMut(&Path) -> io::Result<Spot>,
    ) -> io::Result<()> {
        let ours = |mount: &Mount| self.resembles(mount);
        let mut misses = 0;
        for _ in 0..MAX_MOUNTS {
            // Read anew each time: with a mount go those it was propagated to.
            let mounts = mountinfo::read()?;
            let on_top = |place: &Path| mounts.iter().rev().find(|mount| mount.target == place);
            let Some(last) = mounts.iter().rev().find(|mount| ours(mount)) else {
                return Ok(());
            };
            if !self.is_live() {
                return Ok(());
            }
            if !on_top(&last.target).is_some_and(ours) {
                return Err(Errno::BUSY.into());
            }
            // A directory on the way may have got another name meanwhile.
            let found = find(&last.target)
                .ok()
                .filter(|spot| spot.mount.id == last.id && ours(&spot.mount));
            match found {
                // Its number may have gone to somebody else since it was read.
                Some(_) if !self.is_live() => return Ok(()),
                Some(spot) => match unmount(&spot, flags) {
                    Err(error) if error.raw_os_error() == Some(libc::ESTALE) => misses += 1,
                    unmounted => {
                        unmounted?;
                        misses = 0;
                    }
                },
                None => misses += 1,
            }
            if misses == MAX_MISSES {
                break;
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Cuts the connection, by the control file system of FUSE where that is
    /// mounted; unless it has ended.
    ///
    /// # Errors
    /// Where it is not, or may not be written.
    pub fn abort(&self) -> io::Result<()> {
        let (_, minor) = self.device.ok_or(io::ErrorKind::NotFound)?;
        let knob = format!("/sys/fs/fuse/connections/{minor}/abort");
        let knob = File::options().write(true).open(knob);
        // What was opened stays the connection's that had the number then.
        if !self.is_live() {
            return Ok(());
        }
        knob?.write_all(b"1")
    }
}

/// Takes the dead mount away whose top a descriptor is, and whose process is not
/// this one. `path` is for fusermount3.
///
/// # Errors
/// Where neither the system call nor the helper may do it.
pub fn clear(top: &OwnedFd, path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mountinfo::way(top), UnmountFlags::DETACH) {
        Err(Errno::PERM) => ask_helper(path, &["-u", "-q", "-z", "--"]),
        other => other.map_err(Into::into),
    }
}

/// Unmounts what was found at a spot, whoever serves it.
///
/// # Errors
/// EBUSY while it is in use, ESTALE where something else is there now; where
/// neither the system call nor the helper may do it.
pub fn unmount(spot: &Spot, flags: UnmountFlags) -> io::Result<()> {
    let arguments: &[&str] = if flags.contains(UnmountFlags::DETACH) {
        &["-u", "-q", "-z", "--"]
    } else {
        &["-u", "-q", "--"]
    };
    match spot.unmount(flags) {
        Err(Errno::PERM) => ask_helper(&spot.mount.target, arguments),
        other => other.map_err(Into::into),
    }
}

/// Has fusermount3 unmount, which checks itself whose mount it is.
fn ask_helper(path: &Path, arguments: &[&str]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mountpoint, readonly};

    /// A mount that nobody serves, and its end whatever the test did.
    struct Mounted {
        dir: tempfile::TempDir,
        place: Place,
        _connection: OwnedFd,
    }

    impl Mounted {
        fn new() -> Mounted {
            let dir = tempfile::tempdir().unwrap();
            let inside = dir.path().join("point");
            std::fs::create_dir(&inside).unwrap();
            let point = mountpoint::prepare(&inside, false).unwrap();
            let (connection, place) = connect(&point, "region", &MountSettings::default()).unwrap();
            Mounted {
                dir,
                place,
                _connection: connection,
            }
        }

        fn line(&self) -> Option<Mount> {
            mountinfo::at(&self.place.path)
        }

        fn unmount(&self) {
            rustix::mount::unmount(&self.place.path, UnmountFlags::NOFOLLOW).unwrap();
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            for path in [self.dir.path(), &self.place.path] {
                while rustix::mount::unmount(path, UnmountFlags::DETACH).is_ok() {}
            }
        }
    }

    /// The kernel gives the number of a mount that has ended to the next one. A
    /// server that has not seen the end of its own has to leave that alone.
    #[test]
    fn a_mount_with_the_number_of_one_that_has_ended_is_left_alone() {
        let name = "a_mount_with_the_number_of_one_that_has_ended_is_left_alone";
        if !pramfs_tests::mounted::available(name) {
            return;
        }
        let (mut others, mut rounds) = (Vec::new(), 0);
        let (gone, other) = loop {
            let gone = Mounted::new();
            assert!(gone.place.is_live());
            gone.unmount();
            assert!(!gone.place.is_live());
            // The lowest number that is free.
            let other = Mounted::new();
            if other.place.device == gone.place.device {
                break (gone, other);
            }
            // Another process was quicker, or there are lower ones: take them.
            others.push(other);
            rounds += 1;
            if rounds == 200 {
                return pramfs_tests::skip::skipped("device numbers are not used again here");
            }
        };
        let before = other.line().unwrap();
        gone.place.unmount().unwrap();
        gone.place.detach().unwrap();
        gone.place.abort().unwrap();
        assert!(readonly::remount(&gone.place).is_err());
        assert_eq!(other.line(), Some(before));
        assert!(other.place.is_live());
        // The one that has the number is not held up by that.
        readonly::remount(&other.place).unwrap();
        assert!(other.line().unwrap().super_options.starts_with("ro,"));
        other.place.unmount().unwrap();
        assert_eq!(other.line(), None);
    }

    /// What the session leaves behind is nobody's to unmount.
    #[test]
    fn after_the_end_of_the_session_nothing_is_ours() {
        if !pramfs_tests::mounted::available("after_the_end_of_the_session_nothing_is_ours") {
            return;
        }
        let mounted = Mounted::new();
        let watcher = mounted.place.clone();
        mounted.place.end();
        assert!(!watcher.is_live());
        watcher.detach().unwrap();
        assert!(mounted.line().is_some());
    }

    #[test]
    fn a_mount_that_is_never_found_at_its_place_is_busy_after_a_few_looks() {
        let name = "a_mount_that_is_never_found_at_its_place_is_busy_after_a_few_looks";
        if !pramfs_tests::mounted::available(name) {
            return;
        }
        let mounted = Mounted::new();
        let mut looks = 0;
        let refused = mounted.place.remove_at(UnmountFlags::NOFOLLOW, |_| {
            looks += 1;
            Err(Errno::NOENT.into())
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(looks, MAX_MISSES);
        // As it is below another mount.
        let none = rustix::mount::MountFlags::empty();
        let cover = mounted.dir.path();
        rustix::mount::mount("cover", cover, "tmpfs", none, c"").unwrap();
        let refused = mounted.place.unmount();
        rustix::mount::unmount(cover, UnmountFlags::empty()).unwrap();
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        mounted.place.unmount().unwrap();
        assert_eq!(mounted.line(), None);
    }
}
