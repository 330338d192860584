//! Landlock: takes the view of files away from a thread, for good.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What is done to files, as the kernel numbers it (`LANDLOCK_ACCESS_FS_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// Opens files to write.
    pub const WRITE_FILE: Access = Access(1 << 1);
    /// Opens files to read.
    pub const READ_FILE: Access = Access(1 << 2);
    /// Lists directories.
    pub const READ_DIR: Access = Access(1 << 3);
    /// Removes names of files.
    pub const REMOVE_FILE: Access = Access(1 << 5);
    /// Shortens files.
    pub const TRUNCATE: Access = Access(1 << 14);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// What each version of the kernel's interface knows: how many bits.
const KNOWN: [(i64, u32); 4] = [(5, 16), (3, 15), (2, 14), (1, 13)];

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: libc::c_uint = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: libc::c_int = 1;

/// `struct landlock_ruleset_attr`, as far as the first version has it.
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Refuses this thread, and those that it will start, everything that Landlock knows of files and
/// directories, except what is allowed below (or on) these. Descriptors that are open stay as they
/// are. The thread must have given up new privileges.
///
/// # Errors
/// ENOSYS and EOPNOTSUPP where the kernel does not have it; EPERM.
pub fn restrict(allowed: &[(BorrowedFd<'_>, Access)]) -> io::Result<()> {
    let no_attributes = std::ptr::null::<Ruleset>();
    // SAFETY: with this flag the call reads no memory.
    let version = checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            no_attributes,
            0usize,
            VERSION,
        )
    })?;
    let bits = KNOWN.iter().find(|(since, _)| version >= *since);
    let (_, bits) = bits.ok_or(io::ErrorKind::Unsupported)?;
    let known = (1 << bits) - 1;
    let attributes = Ruleset {
        handled_access_fs: known,
    };
    // SAFETY: the kernel reads as many bytes of the structure as it has.
    let ruleset = checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<Ruleset>(),
            0u32,
        )
    })?;
    let number = i32::try_from(ruleset).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given it to us.
    let ruleset = unsafe { OwnedFd::from_raw_fd(number) };
    for (below, Access(access)) in allowed {
        let rule = PathBeneath {
            allowed_access: access & known,
            parent_fd: below.as_raw_fd(),
        };
        // SAFETY: the kernel reads the structure, and the descriptors are open.
        checked(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset.as_fd().as_raw_fd(),
                PATH_BENEATH,
                &raw const rule,
                0u32,
            )
        })?;
    }
    // SAFETY: no memory is touched.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })?;
    Ok(())
}

fn checked(result: libc::c_long) -> io::Result<i64> {
    match result {
        error if error < 0 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    /// In a thread of its own: it concerns this one alone.
    #[test]
    fn restricted_thread_opens_only_what_is_allowed() {
        let place = format!("/tmp/pramfs-landlock-{}", std::process::id());
        fs::create_dir(&place).unwrap();
        for name in ["read", "written", "removed"] {
            fs::write(format!("{place}/{name}"), name).unwrap();
        }
        let (dir, file) = (
            File::open(&place).unwrap(),
            File::open(format!("{place}/written")).unwrap(),
        );
        let at = place.clone();
        let thread = std::thread::spawn(move || {
            // SAFETY: sets an attribute of this thread.
            let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(set, 0);
            let write = Access::WRITE_FILE.and(Access::TRUNCATE);
            let allowed = [(dir.as_fd(), Access::REMOVE_FILE), (file.as_fd(), write)];
            if let Err(error) = restrict(&allowed) {
                println!("SKIPPED: this kernel has no Landlock: {error}");
                return;
            }
            let denied = |result: io::Result<()>| {
                let kind = result.map_err(|error| error.kind());
                assert_eq!(kind, Err(io::ErrorKind::PermissionDenied));
            };
            denied(File::open(format!("{at}/read")).map(drop));
            denied(File::open("/etc/passwd").map(drop));
            denied(fs::read_dir(&at).map(drop));
            denied(File::create(format!("{at}/new")).map(drop));
            File::options()
                .write(true)
                .open(format!("{at}/written"))
                .unwrap();
            fs::remove_file(format!("{at}/removed")).unwrap();
            // Threads that it starts inherit that.
            let child = std::thread::spawn(|| File::open("/etc/passwd").map(drop));
            denied(child.join().unwrap());
        });
        thread.join().unwrap();
        fs::remove_dir_all(&place).unwrap();
    }
}
