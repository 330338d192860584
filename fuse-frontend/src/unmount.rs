//! `umount.fuse.pramfs`: the helper of umount(8) for our mounts.
//!
//! After an unmount, a program expects exclusive use of the device: to check, format
//! or detach it. The kernel does not wait for the server of a FUSE mount, so this
//! helper waits until the server releases the region.
//!
//! Order: the mount is looked up before it is unmounted. The wait begins only if the
//! file system has no other mount left.
//!
//! Invariants:
//! * the mount that was looked up, identified by its number, is the one unmounted;
//! * the helper waits only for a server started by root or the caller, whatever the
//!   names of other processes.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::exit::Failure;
use crate::kernel;
use crate::mountinfo::{self, AnchoredMount, FS_TYPE, Mount};
use crate::options::Flag;
use crate::remount;

#[derive(Debug, Parser)]
#[command(
    name = "umount.fuse.pramfs",
    version,
    disable_version_flag = true,
    about = "Unmount a pramfs region, and wait until it is free",
    after_help = "Exit status: 0, 1 wrong invocation, 2 system error, 32 unmount failure."
)]
struct Arguments {
    /// The mount point
    mountpoint: PathBuf,
    /// Abort the connection to the server process
    #[arg(short = 'f', long)]
    force: bool,
    /// Detach the mount now; it ends when its last user is done
    #[arg(short = 'l', long)]
    lazy: bool,
    /// If the mount is in use, remount it read-only
    #[arg(short = 'r', long = "read-only")]
    read_only: bool,
    /// Accepted for umount(8); no mtab is kept
    #[arg(short = 'n', long = "no-mtab")]
    no_mtab: bool,
    /// Print what was done
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Accepted for umount(8)
    #[arg(short = 't', long = "types", value_name = "TYPE", hide = true)]
    fs_type: Option<String>,
}

/// Tells whether a program of this name (`args[0]`) is the helper of umount(8).
pub fn is_called_by(name: &std::ffi::OsStr) -> bool {
    Path::new(name)
        .file_name()
        .is_some_and(|name| name == "umount.fuse.pramfs" || name == "umount.pramfs")
}

/// Returns the definition of the command line, for the man page and the completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Unmounts according to the command line, program name first. Returns the text to
/// print.
///
/// # Errors
/// Wrong invocation; not a mount of ours; mount in use.
pub fn run(args: &[OsString]) -> Result<String, Failure> {
    let arguments = match Arguments::try_parse_from(args) {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(error.to_string()),
        Err(error) => {
            let text = error.to_string();
            return Err(Failure::usage(
                text.trim_start_matches("error: ").trim_end(),
            ));
        }
    };
    let anchored = find(&arguments.mountpoint)?;
    let mount = &anchored.mount;
    let path = mount.target.clone();
    let shown = path.display();
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::FORCE, arguments.force);
    flags.set(UnmountFlags::DETACH, arguments.lazy);
    let unmounted = pramfs_medium::pmem::unmount_after_unlock(
        &path,
        || kernel::unmount(&anchored, flags),
        |error| error.raw_os_error() == Some(libc::EBUSY),
    );
    match unmounted {
        Ok(()) => {}
        Err(error) if arguments.read_only && error.raw_os_error() == Some(libc::EBUSY) => {
            return make_read_only(&anchored)
                .map(|()| {
                    said(
                        &arguments,
                        format!("{shown} is in use: it is read-only now"),
                    )
                })
                .map_err(|error| {
                    Failure::mount(format!(
                        "{shown} is in use and cannot be made read-only: {error}"
                    ))
                });
        }
        Err(error) => {
            let hint = match error.raw_os_error() {
                Some(libc::EBUSY) => "; fuser -vm lists its users",
                _ => "",
            };
            return Err(Failure::mount(format!(
                "cannot unmount {shown}: {error}{hint}"
            )));
        }
    }
    if !arguments.lazy
        && mount.is_trusted()
        && !lives_on(mount)
        && !wait_until_free(Path::new(&mount.source))
    {
        return Ok(format!(
            "umount.fuse.pramfs: {shown} is unmounted, but the process that served it still holds {}\n",
            mountinfo::shown(&mount.source)
        ));
    }
    Ok(said(&arguments, format!("{shown} unmounted")))
}

/// Remounts read-only. A remount sets all flags: an unnamed flag is cleared, including
/// nosuid and nodev. Therefore the current flags are passed along.
fn make_read_only(anchored: &AnchoredMount) -> io::Result<()> {
    let top = anchored.open()?;
    let mount = mountinfo::of_top(&top).ok_or(Errno::STALE)?;
    let current = [&*mount.options, &*mount.super_options];
    let flags = remount::new_flags(&current, &[(Flag::ReadOnly, true)]);
    rustix::mount::mount_remount(mountinfo::descriptor_path(&top), flags, c"")?;
    Ok(())
}

fn said(arguments: &Arguments, text: String) -> String {
    if arguments.verbose {
        format!("umount.fuse.pramfs: {text}\n")
    } else {
        String::new()
    }
}

/// Finds the mount at a path. If the mount is dead, only its parent can be resolved.
fn find(given: &Path) -> Result<AnchoredMount, Failure> {
    let shown = given.display();
    let resolved = given
        .parent()
        .zip(given.file_name())
        .and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name)));
    let candidates = [given.canonicalize().ok(), resolved, Some(given.to_owned())];
    candidates
        .into_iter()
        .flatten()
        .find_map(|path| {
            let anchored = AnchoredMount::of_path(&path).ok()?;
            (anchored.mount.fs_type == FS_TYPE).then_some(anchored)
        })
        .ok_or_else(|| {
            Failure::mount(format!(
                "{shown} is not a mount of a pramfs region; findmnt(8) lists what is mounted"
            ))
        })
}

/// Tells whether the file system has another mount, in any namespace: until the last one
/// is gone, sysfs lists its backing device.
fn lives_on(mount: &Mount) -> bool {
    let (major, minor) = mount.device;
    Path::new(&format!("/sys/class/bdi/{major}:{minor}")).exists()
}

/// Waits until the server of the unmounted region releases it, and tells whether it did.
/// Does not wait for other holders.
fn wait_until_free(region: &Path) -> bool {
    let look = || if is_held(region) { Err(()) } else { Ok(()) };
    let waited = pramfs_medium::pmem::open_when_unlocked(region, look, |()| true);
    waited.is_ok() || !pramfs_medium::pmem::is_being_released(region)
}

/// Tells whether a process holds the region. A region that cannot be opened (its name is
/// not a path, or access is denied) counts as free.
fn is_held(region: &Path) -> bool {
    let open = |flags| rustix::fs::open(region, flags | OFlags::CLOEXEC, Mode::empty());
    let look = || -> io::Result<bool> {
        let kind = FileType::from_raw_mode(rustix::fs::stat(region)?.st_mode);
        // The exclusive claim on a block device ends slightly later than the lock.
        if kind == FileType::BlockDevice {
            return match open(OFlags::RDONLY | OFlags::EXCL) {
                Err(Errno::BUSY) => Ok(true),
                other => Ok(other.map(|_| false)?),
            };
        }
        let file = open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            other => Ok(other.map(|()| false)?),
        }
    };
    look().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    fn failure(line: &str) -> Failure {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        run(&args).expect_err(line)
    }

    #[test]
    fn umount_helper_is_recognized_by_name() {
        for (name, is) in [
            ("/sbin/umount.fuse.pramfs", true),
            ("umount.pramfs", true),
            ("mount.fuse.pramfs", false),
            ("mount-pramfs", false),
        ] {
            assert_eq!(is_called_by(name.as_ref()), is, "{name}");
        }
    }

    #[test]
    fn umount_of_wrong_arguments_or_foreign_mount_fails() {
        assert_eq!(failure("umount.fuse.pramfs").status, Status::Usage);
        assert_eq!(failure("umount.fuse.pramfs -x /").status, Status::Usage);
        for place in ["/", "/nowhere/at/all"] {
            let failure = failure(&format!("umount.fuse.pramfs -n -t fuse.pramfs {place}"));
            assert_eq!(failure.status, Status::Mount, "{place}");
            assert!(failure.message.contains("not a mount of a pramfs region"));
        }
    }

    #[test]
    fn is_held_detects_locked_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_held(file.path()));
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        assert!(is_held(file.path()));
        assert!(!is_held(Path::new("/nowhere/at/all")));
    }
}
