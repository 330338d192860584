//! Waiting for a server of a mount that is on its way out.
//!
//! umount(8) returns when the kernel has let go of a FUSE file system. The
//! process that served it then still writes out and unlocks the region, and
//! whoever opens that right away, to check or to mount it, would find it in
//! use. Such a process is known by its name, by the region that it has open,
//! and by its own mount table, in which the region is no longer.
//!
//! Left to others: a region in use by anything else is refused at once.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait. What is left to write out is what the page cache of a slow
/// medium holds.
const PATIENCE: Duration = Duration::from_secs(60);
/// A process that ends shows no descriptors any more a moment before they are
/// closed.
const GRACE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// Names that the program has, as `/proc/PID/comm` shows them.
const SERVERS: [&str; 2] = ["mount.pramfs", "mount-pramfs"];

/// Tries `open` again for as long as it is busy and a process that served a
/// mount of `region`, which is unmounted, is about to let go of it.
///
/// Sees only processes whose descriptors the caller may look at: all for root,
/// otherwise one's own.
///
/// ```
/// # use std::io::{Error, ErrorKind::NotFound};
/// let open = || std::fs::File::open("/nowhere/at/all");
/// let missing = pramfs::pmem::open_after_release("/nowhere/at/all", open, |_| true);
/// assert_eq!(missing.unwrap_err().kind(), NotFound);
/// ```
///
/// # Errors
/// Those of the last try.
pub fn open_after_release<T, E>(
    region: impl AsRef<Path>,
    mut open: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match region.as_ref().canonicalize() {
        Ok(region) => patiently(open, is_busy, |name| name == region),
        Err(_) => open(),
    }
}

/// As [`open_after_release`], for what cannot be done to a directory (to unmount
/// it, say) while the region of such a process lies below it, itself or as the
/// file behind a loop device.
///
/// ```
/// let unmount = || Err::<(), _>("it is in use by a program");
/// assert!(pramfs::pmem::unmount_after_release("/nowhere", unmount, |_| true).is_err());
/// ```
///
/// # Errors
/// Those of the last try.
pub fn unmount_after_release<T, E>(
    dir: impl AsRef<Path>,
    unmount: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    patiently(unmount, is_busy, |name| {
        name.starts_with(&dir) || behind_loop(name).is_some_and(|file| file.starts_with(&dir))
    })
}

fn behind_loop(device: &Path) -> Option<PathBuf> {
    let name = device.strip_prefix("/dev").ok()?.to_str()?;
    let file = format!("/sys/block/{name}/loop/backing_file");
    Some(fs::read_to_string(file).ok()?.trim_end().into())
}

fn patiently<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
    is_region: impl Fn(&Path) -> bool,
) -> Result<T, E> {
    let mut result = open();
    let started = Instant::now();
    let mut last_seen = started;
    while result.as_ref().is_err_and(&is_busy)
        && last_seen.elapsed() < GRACE
        && started.elapsed() < PATIENCE
    {
        if is_being_released(&is_region) {
            last_seen = Instant::now();
        }
        std::thread::sleep(PAUSE);
        result = open();
    }
    result
}

fn is_being_released(is_region: &impl Fn(&Path) -> bool) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes
        .flatten()
        .map(|entry| entry.path())
        .any(|process| {
            is_server(&process)
                && open_in(&process).any(|name| is_region(&name) && !has_mounted(&process, &name))
        })
}

fn is_server(process: &Path) -> bool {
    fs::read_to_string(process.join("comm")).is_ok_and(|name| SERVERS.contains(&name.trim_end()))
}

fn open_in(process: &Path) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
}

/// In the mount table that the process sees. One that is ending has none.
fn has_mounted(process: &Path, region: &Path) -> bool {
    let source = escaped(region);
    fs::read(process.join("mountinfo")).is_ok_and(|table| {
        table
            .split(|byte| *byte == b'\n')
            .any(|line| is_mount_of(line, &source))
    })
}

/// `... - fuse.pramfs SOURCE OPTIONS`. Under another name than its path it
/// cannot be told whose mount it is: then it counts as this one's.
fn is_mount_of(line: &[u8], source: &[u8]) -> bool {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .skip_while(|field| *field != b"-")
        .skip(1);
    let ours = fields
        .next()
        .is_some_and(|fs_type| fs_type == b"fuse.pramfs" || fs_type == b"fuse");
    ours && fields
        .next()
        .is_some_and(|name| name == source || !name.starts_with(b"/"))
}

/// As the kernel writes a path in its tables.
fn escaped(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            // These would end the option that the name travels in, so
            // mount.pramfs has put something else there.
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
    fn lines_of_a_mount_table() {
        let line = b"36 25 0:31 / /mnt rw shared:5 - fuse.pramfs /dev/a\\040b rw,user_id=0";
        assert!(is_mount_of(line, &escaped(Path::new("/dev/a b"))));
        assert!(!is_mount_of(line, &escaped(Path::new("/dev/a"))));
        let other = b"36 25 0:31 / /mnt rw - ext4 /dev/a rw";
        assert!(!is_mount_of(other, b"/dev/a"));
        let named = b"36 25 0:31 / /mnt rw - fuse.pramfs pool rw";
        assert!(is_mount_of(named, b"/dev/a"));
        assert!(!is_mount_of(b"", b""));
    }

    #[test]
    fn a_program_that_is_no_server_is_not_waited_for() {
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
        let refused = open_after_release(file.path(), || open(u32::MAX), is_busy);
        assert_eq!(refused, Err("busy"));
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(open_after_release(file.path(), || open(0), is_busy).is_ok());
    }
}
