//! Mounting and unmounting: the connection to the kernel, and its end.
//!
//! Root mounts by system call. Other users mount by fusermount3, which is
//! set-user-ID: it opens /dev/fuse, checks the rights of the user, and passes the
//! descriptor over a socket.
//!
//! Order, for root: the mount is made detached, its device number is read, and it is
//! attached by descriptor to the checked directory. fusermount3 takes a path and
//! checks the directory itself, with the rights of its caller.
//!
//! Invariant: only a mount made here is unmounted here. It is identified by its device
//! number, which is unique while the file system lives. After the end of our mount the
//! kernel may assign that number to any other mount; it ends the connection first.
//! So a mount with our number is ours if the connection is found alive *afterwards*.
//! Mounts on top of it are left alone. (The unmount of `fuser` would unmount whatever is
//! at the path, even after an umount(8).)

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
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::exit::Failure;
use crate::mountinfo::{self, AnchoredMount, Mount};
use crate::mountpoint::MountPoint;
use crate::options::{Flag, MountSettings};
use crate::privileges::programs;
use crate::takeover::state::State;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The part after the dot of the type that the kernel shows.
const SUBTYPE: &str = "pramfs";

/// A mount of ours.
#[derive(Debug, Clone)]
pub struct OwnMount {
    /// Its canonical mount point.
    pub path: PathBuf,
    /// Its device number; `None` if `/proc` does not show it.
    pub device: Option<(u32, u32)>,
    /// fusermount3 has mounted it and must unmount it.
    pub by_helper: bool,
    /// The connection to the kernel, until [`end`](Self::end). All clones see the end,
    /// and no clone keeps the connection alive.
    connection: Arc<Mutex<Option<OwnedFd>>>,
}

/// Mounts on a directory, with `source` as the source of the mount. Returns the
/// connection to the kernel.
///
/// # Errors
/// [`Failure`] with the cause and what to do.
pub fn connect(
    point: &MountPoint,
    source: &str,
    settings: &MountSettings,
) -> Result<(OwnedFd, OwnMount), Failure> {
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
    let own_mount = OwnMount {
        path: point.path.clone(),
        device,
        by_helper,
        connection: Arc::new(Mutex::new(Some(ours))),
    };
    Ok((connection, own_mount))
}

/// A connection to the kernel, and the device number of its file system.
type Connected = (OwnedFd, (u32, u32));

/// Mounts by system call. Returns `None` if this process may not mount, even as root.
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

/// Longest source of a mount in bytes, without the terminating NUL.
const MAX_SOURCE: usize = 255;

/// A mount that is not attached to a directory yet. If it never is, it ends when its
/// descriptor is closed.
pub(crate) struct Detached {
    mount: OwnedFd,
    /// Device number of the file system.
    pub device: (u32, u32),
}

impl Detached {
    /// Makes a mount for a connection to the kernel. If the connection is already
    /// mounted elsewhere, the new mount shows the same file system.
    ///
    /// # Errors
    /// EPERM if this process may not mount; ENOSYS before Linux 5.8.
    pub(crate) fn new(
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
        fsconfig_set_flag(&context, "default_permissions")?;
        if settings.allow_other.unwrap_or(true) {
            fsconfig_set_flag(&context, "allow_other")?;
        }
        let of_superblock = |flag: &Flag| flag.is_of_superblock() && flag.is_set(settings);
        for flag in Flag::all().filter(of_superblock) {
            fsconfig_set_flag(&context, flag.name())?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = rustix::mount::fsmount(&context, flags, attributes(settings))?;
        let device = mountinfo::locate(&mount, OsStr::new(""))?.device;
        Ok(Detached { mount, device })
    }

    /// Attaches it to the directory.
    ///
    /// # Errors
    /// Errors of move_mount(2).
    pub(crate) fn attach(&self, point: &MountPoint) -> rustix::io::Result<()> {
        let here =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&self.mount, c"", &point.directory, c"", here)
    }
}

/// Shortens a source that is too long. The result begins with dots, so it is not
/// mistaken for a path.
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
    let set = Flag::all().filter(|flag| flag.is_set(settings));
    set.fold(MountAttrFlags::empty(), |all, flag| all | flag.on_mount())
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
    // Those that fusermount3 knows. An older one refuses nosymfollow.
    for flag in [
        Flag::NoExec,
        Flag::NoSymfollow,
        Flag::Sync,
        Flag::DirSync,
        Flag::NoAtime,
    ] {
        if flag.is_set(settings) {
            options.push(',');
            options.push_str(flag.name());
        }
    }
    if settings.allow_other == Some(true) {
        options.push_str(",allow_other");
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::mount(format!(
            "cannot mount on {shown}: mounting without root needs {HELPER}, from the package fuse3"
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
    // The temporary `Command` held the other end; after its drop only the child has it.
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

/// Receives the descriptor from the helper, if it sends one.
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

/// Limit of mounts of one file system to remove; their number may grow meanwhile.
const MAX_MOUNTS: usize = 10_000;

/// Limit of consecutive failures to find a mount at the path in the mount table. A
/// concurrent rename of a parent directory causes such failures; a mount below another
/// mount is never found.
const MAX_MISSES: usize = 16;

impl OwnMount {
    /// Returns the mount of a connection that another server has made.
    ///
    /// # Errors
    /// The limit of descriptors.
    pub(crate) fn adopt(state: &State, connection: &OwnedFd) -> io::Result<OwnMount> {
        let ours = rustix::io::fcntl_dupfd_cloexec(connection, 0)?;
        Ok(OwnMount {
            path: state.mountpoint.clone(),
            device: state.device,
            by_helper: state.by_helper,
            connection: Arc::new(Mutex::new(Some(ours))),
        })
    }

    /// Ends the session: afterwards no mount is treated as ours.
    pub fn end(&self) {
        *self.connection.lock() = None;
    }

    /// Tells whether the file system lives, and so is the only one with its device number.
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

    /// Tells whether a line of the mount table looks like our mount. The result counts
    /// only if [`is_live`](Self::is_live) is true after the line was read.
    pub(crate) fn resembles(&self, mount: &Mount) -> bool {
        Some(mount.device) == self.device && mount.is_own() && mount.fs_type.starts_with("fuse")
    }

    /// Unmounts all mounts of the file system, including later ones. If none is left,
    /// does nothing.
    ///
    /// # Errors
    /// EBUSY while it is in use or covered by another mount.
    pub fn unmount(&self) -> io::Result<()> {
        self.remove(UnmountFlags::NOFOLLOW)
    }

    /// Detaches all of these mounts; the file system ends when its last user is done.
    ///
    /// # Errors
    /// EBUSY while one is covered by another mount.
    pub fn detach(&self) -> io::Result<()> {
        self.remove(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    }

    /// Makes the kernel begin to write back what it holds of files of this mount, at any of the
    /// places where it is mounted. It does not wait for the end: for FUSE, syncfs(2) only wakes
    /// the flusher.
    ///
    /// # Errors
    /// No place can be opened: all are covered by other mounts, or not readable for this user.
    pub fn begin_write_back(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut last = io::ErrorKind::NotFound.into();
        for mount in mountinfo::read()?
            .iter()
            .rev()
            .filter(|m| self.resembles(m))
        {
            let opened = rustix::fs::open(&mount.target, flags, Mode::empty());
            match opened {
                Ok(root) if mountinfo::of_top(&root).is_some_and(|m| self.resembles(&m)) => {
                    return Ok(rustix::fs::syncfs(root)?);
                }
                // Another mount covers it.
                Ok(_) => {}
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn remove(&self, flags: UnmountFlags) -> io::Result<()> {
        self.remove_at(flags, AnchoredMount::of_path)
    }

    /// Removes all mounts; `find` returns the mount on a path.
    fn remove_at(
        &self,
        flags: UnmountFlags,
        mut find: impl FnMut(&Path) -> io::Result<AnchoredMount>,
    ) -> io::Result<()> {
        let ours = |mount: &Mount| self.resembles(mount);
        let mut misses = 0;
        for _ in 0..MAX_MOUNTS {
            // Read anew each time: an unmount also removes its propagated copies.
            let mounts = mountinfo::read()?;
            let on_top = |path: &Path| mounts.iter().rev().find(|mount| mount.target == path);
            let Some(last) = mounts.iter().rev().find(|mount| ours(mount)) else {
                return Ok(());
            };
            if !self.is_live() {
                return Ok(());
            }
            if !on_top(&last.target).is_some_and(ours) {
                return Err(Errno::BUSY.into());
            }
            // A parent directory may have been renamed meanwhile.
            let found = find(&last.target)
                .ok()
                .filter(|anchored| anchored.mount.id == last.id && ours(&anchored.mount));
            match found {
                // Its number may have been reused since it was read.
                Some(_) if !self.is_live() => return Ok(()),
                Some(anchored) => match unmount(&anchored, flags) {
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

    /// Aborts the connection through the FUSE control file system. If the connection has
    /// ended, does nothing.
    ///
    /// # Errors
    /// If the control file system is not mounted or not writable.
    pub fn abort(&self) -> io::Result<()> {
        let (_, minor) = self.device.ok_or(io::ErrorKind::NotFound)?;
        let knob = format!("/sys/fs/fuse/connections/{minor}/abort");
        let knob = File::options().write(true).open(knob);
        // The open file stays bound to the connection that had the number at the open.
        if !self.is_live() {
            return Ok(());
        }
        knob?.write_all(b"1")
    }
}

/// Aborts a connection by the minor number of its file system, as [`OwnMount::abort`] does.
///
/// # Errors
/// If the control file system is not mounted or not writable.
pub(crate) fn abort(connection: &OwnedFd, minor: u32) -> io::Result<()> {
    let own_mount = OwnMount {
        path: PathBuf::new(),
        device: Some((0, minor)),
        by_helper: false,
        connection: Arc::new(Mutex::new(Some(connection.try_clone()?))),
    };
    own_mount.abort()
}

/// Detaches the dead mount whose root is `top`, served by another process. `path` is for
/// fusermount3.
///
/// # Errors
/// If neither the system call nor the helper may do it.
pub fn clear(top: &OwnedFd, path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mountinfo::descriptor_path(top), UnmountFlags::DETACH) {
        Err(Errno::PERM) => ask_helper(path, &["-u", "-q", "-z", "--"]),
        other => other.map_err(Into::into),
    }
}

/// Unmounts an anchored mount, whichever process serves it.
///
/// # Errors
/// EBUSY while it is in use; ESTALE if another mount or none is there now; an error if
/// neither the system call nor the helper may unmount it.
pub fn unmount(anchored: &AnchoredMount, flags: UnmountFlags) -> io::Result<()> {
    let arguments: &[&str] = if flags.contains(UnmountFlags::DETACH) {
        &["-u", "-q", "-z", "--"]
    } else {
        &["-u", "-q", "--"]
    };
    match anchored.unmount(flags) {
        Err(Errno::PERM) => ask_helper(&anchored.mount.target, arguments),
        other => other.map_err(Into::into),
    }
}

/// Unmounts by fusermount3, which checks the owner of the mount itself.
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

    /// A mount without a server, unmounted on drop.
    struct Mounted {
        dir: tempfile::TempDir,
        own_mount: OwnMount,
        _connection: OwnedFd,
    }

    impl Mounted {
        fn new() -> Mounted {
            let dir = tempfile::tempdir().unwrap();
            let inside = dir.path().join("point");
            std::fs::create_dir(&inside).unwrap();
            let point = mountpoint::prepare(&inside, false).unwrap();
            let (connection, own_mount) =
                connect(&point, "region", &MountSettings::default()).unwrap();
            Mounted {
                dir,
                own_mount,
                _connection: connection,
            }
        }

        fn line(&self) -> Option<Mount> {
            mountinfo::at(&self.own_mount.path)
        }

        fn unmount(&self) {
            rustix::mount::unmount(&self.own_mount.path, UnmountFlags::NOFOLLOW).unwrap();
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            for path in [self.dir.path(), &self.own_mount.path] {
                while rustix::mount::unmount(path, UnmountFlags::DETACH).is_ok() {}
            }
        }
    }

    /// The kernel reuses the number of an ended mount for the next one. A server that has
    /// not noticed the end of its own mount must leave the new mount alone.
    #[test]
    fn unmount_ignores_reused_device_number() {
        let name = "unmount_ignores_reused_device_number";
        if !pramfs_tests::mounted::available(name) {
            return;
        }
        let (mut others, mut rounds) = (Vec::new(), 0);
        let (gone, other) = loop {
            let gone = Mounted::new();
            assert!(gone.own_mount.is_live());
            gone.unmount();
            assert!(!gone.own_mount.is_live());
            // It gets the lowest free number.
            let other = Mounted::new();
            if other.own_mount.device == gone.own_mount.device {
                break (gone, other);
            }
            // Another process took the number, or lower ones are free: occupy those.
            others.push(other);
            rounds += 1;
            if rounds == 200 {
                return pramfs_tests::skip::skipped("device numbers are not used again here");
            }
        };
        let before = other.line().unwrap();
        gone.own_mount.unmount().unwrap();
        gone.own_mount.detach().unwrap();
        gone.own_mount.abort().unwrap();
        assert!(readonly::remount(&gone.own_mount).is_err());
        assert_eq!(other.line(), Some(before));
        assert!(other.own_mount.is_live());
        // The owner of the number still works.
        readonly::remount(&other.own_mount).unwrap();
        assert!(other.line().unwrap().super_options.starts_with("ro,"));
        other.own_mount.unmount().unwrap();
        assert_eq!(other.line(), None);
    }

    /// After the end of the session, no mount is treated as ours.
    #[test]
    fn ended_session_unmounts_nothing() {
        if !pramfs_tests::mounted::available("ended_session_unmounts_nothing") {
            return;
        }
        let mounted = Mounted::new();
        let watcher = mounted.own_mount.clone();
        mounted.own_mount.end();
        assert!(!watcher.is_live());
        watcher.detach().unwrap();
        assert!(mounted.line().is_some());
    }

    #[test]
    fn unmount_of_unreachable_mount_gives_ebusy() {
        let name = "unmount_of_unreachable_mount_gives_ebusy";
        if !pramfs_tests::mounted::available(name) {
            return;
        }
        let mounted = Mounted::new();
        let mut looks = 0;
        let refused = mounted.own_mount.remove_at(UnmountFlags::NOFOLLOW, |_| {
            looks += 1;
            Err(Errno::NOENT.into())
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(looks, MAX_MISSES);
        // The same for a mount below another mount.
        let none = rustix::mount::MountFlags::empty();
        let cover = mounted.dir.path();
        rustix::mount::mount("cover", cover, "tmpfs", none, c"").unwrap();
        let refused = mounted.own_mount.unmount();
        rustix::mount::unmount(cover, UnmountFlags::empty()).unwrap();
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        mounted.own_mount.unmount().unwrap();
        assert_eq!(mounted.line(), None);
    }
}
