//! Waits for the server of an unmounted file system to end.
//!
//! umount(8) returns when the kernel has released a FUSE file system. Its server then still
//! writes back and unlocks the region. A process that opens the region right away, to check
//! or to mount it, would find it in use. A process counts as such a server if
//! * it runs as root or as the caller,
//! * its name and the name of its file are those of the program,
//! * it has the region open and has locked it itself, or by the descriptor of a process that has
//!   ended, or has its substitute lock,
//! * its own mount table no longer contains the mount.
//!
//! Invariant: no other process makes the caller wait. Any process can take that name. Its
//! user, file and lock come from the kernel, and its open files are identified by device
//! and inode. (A user can start a set-user-id program by any name, on the region, and lock
//! it before; but the file is that program's.)
//!
//! Not handled here: a region in use by any other process is refused at once.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};

use super::source;

/// Longest wait. The page cache of a slow medium may still have to be written back.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The descriptors of an ending process disappear from /proc shortly before they are
/// closed.
const GRACE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// Names of the program in `/proc/PID/comm`.
const SERVERS: [&str; 2] = ["mount.pramfs", "mount-pramfs"];

/// Retries `open` while it is busy and the server of an unmounted `region` is about to
/// release it.
///
/// Sees only processes whose descriptors the caller may inspect: root sees those of root,
/// other users their own.
///
/// ```
/// # use std::io::{Error, ErrorKind::NotFound};
/// let open = || std::fs::File::open("/nowhere/at/all");
/// let missing = pramfs_medium::pmem::open_when_unlocked("/nowhere/at/all", open, |_| true);
/// assert_eq!(missing.unwrap_err().kind(), NotFound);
/// ```
///
/// # Errors
/// Errors of the last attempt.
pub fn open_when_unlocked<T, E>(
    region: impl AsRef<Path>,
    mut open: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match Object::at(region.as_ref()) {
        Some(region) => patiently(open, is_busy, |held| held.is(&region)),
        None => open(),
    }
}

/// Whether the server of an unmounted `region` has not released it yet.
///
/// ```
/// assert!(!pramfs_medium::pmem::is_being_released("/nowhere/at/all"));
/// ```
pub fn is_being_released(region: impl AsRef<Path>) -> bool {
    Object::at(region.as_ref()).is_some_and(|region| some_server_ends(&|held| held.is(&region)))
}

/// As [`open_when_unlocked`], for an action on a mount (for example unmounting it) that
/// fails while the region of such a process lies in it, directly or as the file behind a
/// loop device.
///
/// ```
/// let unmount = || Err::<(), _>("it is in use by a program");
/// assert!(pramfs_medium::pmem::unmount_after_unlock("/nowhere", unmount, |_| true).is_err());
/// ```
///
/// # Errors
/// Errors of the last attempt.
pub fn unmount_after_unlock<T, E>(
    top: impl AsRef<Path>,
    mut unmount: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match Object::at(top.as_ref()) {
        Some(top) => patiently(unmount, is_busy, |held| {
            held.device == top.device
                || behind_loop(held).is_some_and(|file| file.device == top.device)
        }),
        None => unmount(),
    }
}

/// The object behind a path or descriptor, by the kernel's numbers.
struct Object {
    /// Device of the file system that contains it.
    device: (u32, u32),
    inode: u64,
    kind: FileType,
    /// Device number, for a device node.
    node: (u32, u32),
}

impl Object {
    /// Asks only the kernel: these numbers do not change, and the server of the file system
    /// may have ended.
    fn at(path: &Path) -> Option<Object> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        Some(Object {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            kind: FileType::from_raw_mode(stat.stx_mode.into()),
            node: (stat.stx_rdev_major, stat.stx_rdev_minor),
        })
    }

    fn is(&self, other: &Object) -> bool {
        self.kind == other.kind
            && match self.kind {
                FileType::BlockDevice | FileType::CharacterDevice => self.node == other.node,
                _ => self.device == other.device && self.inode == other.inode,
            }
    }
}

fn behind_loop(device: &Object) -> Option<Object> {
    if device.kind != FileType::BlockDevice {
        return None;
    }
    let (major, minor) = device.node;
    let file = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    Object::at(Path::new(
        fs::read_to_string(file).ok()?.trim_end_matches('\n'),
    ))
}

fn patiently<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
    is_region: impl Fn(&Object) -> bool,
) -> Result<T, E> {
    let mut result = open();
    let started = Instant::now();
    let mut last_seen = started;
    while result.as_ref().is_err_and(&is_busy) && started.elapsed() < UNLOCK_TIMEOUT {
        // Before the look: this thread may not have had a processor since the last one.
        let unseen = last_seen.elapsed();
        if some_server_ends(&is_region) {
            last_seen = Instant::now();
        } else if unseen >= GRACE {
            return open();
        }
        std::thread::sleep(PAUSE);
        result = open();
    }
    result
}

fn some_server_ends(is_region: &impl Fn(&Object) -> bool) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    let own = rustix::process::geteuid().as_raw();
    processes
        .flatten()
        .map(|entry| entry.path())
        .filter(|process| is_server(process))
        .any(|process| {
            let Some(user) = user_of(&process).filter(|user| [0, own].contains(user)) else {
                return false;
            };
            open_in(&process).any(|open| {
                is_region(&open.object)
                    && (has_locked(&process, &open.number)
                        || has_substitute(&process, &open.number))
                    && !has_mounted(&process, user, &open.name)
            })
        })
}

fn is_server(process: &Path) -> bool {
    let named = |name: &str| SERVERS.contains(&name);
    fs::read_to_string(process.join("comm")).is_ok_and(|name| named(name.trim_end()))
        && fs::read_link(process.join("exe")).is_ok_and(|file| is_file_of_server(&file))
}

/// After an update of the program, the kernel marks its file as deleted.
fn is_file_of_server(file: &Path) -> bool {
    file.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| SERVERS.contains(&name.trim_end_matches(" (deleted)")))
}

/// Returns the user of a process if it has only one. A set-user-id program that another
/// user started, by whatever name, has more.
fn user_of(process: &Path) -> Option<u32> {
    one_user(&fs::read_to_string(process.join("status")).ok()?)
}

/// Parses the line `Uid:`: real, effective, saved, and file-system user. The name of the
/// process comes before it; the kernel escapes its line breaks.
fn one_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut users = line.split_ascii_whitespace().map(str::parse::<u32>);
    let first = users.next()?.ok()?;
    users.all(|user| user == Ok(first)).then_some(first)
}

/// An open file of a process.
struct Open {
    /// Number of the descriptor.
    number: OsString,
    /// Name under which it was opened.
    name: PathBuf,
    object: Object,
}

fn open_in(process: &Path) -> impl Iterator<Item = Open> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    descriptors.flatten().filter_map(|entry| {
        let link = entry.path();
        Some(Open {
            number: entry.file_name(),
            name: fs::read_link(&link).ok()?,
            object: Object::at(&link)?,
        })
    })
}

/// Whether the process itself has locked the file behind this descriptor. For each
/// descriptor the kernel shows the locks held through it, with the process that took them, or 0
/// if that has ended: its heir has the lock then. A process that received the descriptor from
/// one that lives has not taken the lock.
///
/// (`/proc/locks` identifies files by a device number that on some file systems differs
/// from the one of stat.)
fn has_locked(process: &Path, descriptor: &OsStr) -> bool {
    let pid = process.file_name().and_then(|pid| pid.to_str());
    fs::read_to_string(process.join("fdinfo").join(descriptor))
        .is_ok_and(|info| pid.is_some_and(|pid| info.lines().any(|line| is_lock_of(line, pid))))
}

/// Whether the process has the substitute lock of the file behind this descriptor: a reader has
/// the usual one.
fn has_substitute(process: &Path, descriptor: &OsStr) -> bool {
    let pid = process
        .file_name()
        .and_then(|pid| pid.to_str()?.parse().ok());
    let file = rustix::fs::open(
        process.join("fd").join(descriptor),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    );
    match (pid, file) {
        (Some(pid), Ok(file)) => source::is_held_by(file.as_fd(), pid),
        _ => false,
    }
}

/// Parses `lock:  1: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF`. The process is 0 if it has ended.
fn is_lock_of(line: &str, pid: &str) -> bool {
    let mut fields = line.split_ascii_whitespace();
    fields.next() == Some("lock:")
        && fields.nth(1) == Some("FLOCK")
        && fields
            .nth(2)
            .is_some_and(|holder| holder == pid || holder == "0")
}

/// Whether the mount table that the process sees contains a mount of the region by its
/// user. An ending process has no mount table.
fn has_mounted(process: &Path, user: u32, region: &Path) -> bool {
    let source = escaped(region);
    fs::read(process.join("mountinfo")).is_ok_and(|table| {
        table
            .split(|byte| *byte == b'\n')
            .any(|line| is_mount_of(line, &source, user))
    })
}

/// Parses `... - fuse.pramfs SOURCE OPTIONS`. If the source is not its path, the owner of
/// the mount cannot be told; it then counts as this process's mount.
fn is_mount_of(line: &[u8], source: &[u8], user: u32) -> bool {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .skip_while(|field| *field != b"-")
        .skip(1);
    let ours = fields
        .next()
        .is_some_and(|fs_type| fs_type == b"fuse.pramfs" || fs_type == b"fuse");
    let named = fields
        .next()
        .is_some_and(|name| name == source || !name.starts_with(b"/"));
    let by = format!("user_id={user}");
    ours && named
        && fields.next().is_some_and(|options| {
            options
                .split(|byte| *byte == b',')
                .any(|word| word == by.as_bytes())
        })
}

/// Escapes a path as the kernel does in its tables.
fn escaped(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            // These would end the option that carries the name, so mount.pramfs has replaced
            // them.
            b',' | b'\\' | b'\n' => out.push(b'_'),
            b' ' | b'\t' | b'#' => out.extend(format!("\\{byte:03o}").bytes()),
            byte => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_lines_are_parsed() {
        let line = b"36 25 0:31 / /mnt rw shared:5 - fuse.pramfs /dev/a\\040b rw,user_id=0";
        assert!(is_mount_of(line, &escaped(Path::new("/dev/a b")), 0));
        assert!(!is_mount_of(line, &escaped(Path::new("/dev/a b")), 4242));
        assert!(!is_mount_of(line, &escaped(Path::new("/dev/a")), 0));
        let other = b"36 25 0:31 / /mnt rw - ext4 /dev/a rw";
        assert!(!is_mount_of(other, b"/dev/a", 0));
        let named = b"36 25 0:31 / /mnt rw - fuse.pramfs pool rw,user_id=0";
        assert!(is_mount_of(named, b"/dev/a", 0));
        let forged = b"36 25 0:31 / /mnt rw - fuse.pramfs pool rw,user_id=4242,group_id=0";
        assert!(!is_mount_of(forged, b"/dev/a", 0));
        assert!(!is_mount_of(b"", b"", 0));
    }

    #[test]
    fn process_with_two_users_is_not_server() {
        let status = |ids: &str| format!("Name:\tmount.pramfs\nUid:\t{ids}\nGid:\t0\t0\t0\t0\n");
        assert_eq!(one_user(&status("0\t0\t0\t0")), Some(0));
        assert_eq!(one_user(&status("4242\t4242\t4242\t4242")), Some(4242));
        // su(1) under the name of the server.
        assert_eq!(one_user(&status("4242\t0\t0\t0")), None);
        assert_eq!(one_user("Name:\tx\n"), None);
    }

    #[test]
    fn server_is_recognised_by_file_name() {
        for (file, is) in [
            ("/usr/sbin/mount.pramfs", true),
            ("/usr/sbin/mount.pramfs (deleted)", true),
            ("/target/mount-pramfs", true),
            ("/usr/bin/su", false),
            ("/mount.pramfs/su", false),
            ("/", false),
        ] {
            assert_eq!(is_file_of_server(Path::new(file)), is, "{file}");
        }
    }

    #[test]
    fn lock_belongs_to_process_that_took_it() {
        let line = "lock:\t1: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF";
        assert!(is_lock_of(line, "1234") && !is_lock_of(line, "123"));
        assert!(!is_lock_of(
            "lock:\t1: POSIX  ADVISORY  WRITE 1234 00:1a:567 0 EOF",
            "1234"
        ));
        assert!(!is_lock_of("pos:\t0", "1234"));
        let left = "lock:\t1: FLOCK  ADVISORY  WRITE 0 00:1a:567 0 EOF";
        assert!(is_lock_of(left, "1234"));
        // Compares with the kernel's own output.
        let process = PathBuf::from(format!("/proc/{}", std::process::id()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = fs::File::open(file.path()).unwrap();
        let is_locked = |file: &fs::File| {
            let number = std::os::fd::AsRawFd::as_raw_fd(file).to_string();
            has_locked(&process, OsStr::new(&number))
        };
        assert!(!is_locked(&other));
        rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(is_locked(&other) && !is_locked(file.as_file()));
    }

    #[test]
    fn open_does_not_wait_for_other_programs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tries = 0;
        let mut open = |until: u32| {
            tries += 1;
            if tries < until {
                Err("busy")
            } else {
                Ok(tries)
            }
        };
        let is_busy = |error: &&str| *error == "busy";
        let started = Instant::now();
        let refused = open_when_unlocked(file.path(), || open(u32::MAX), is_busy);
        assert_eq!(refused, Err("busy"));
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(open_when_unlocked(file.path(), || open(0), is_busy).is_ok());
    }
}
