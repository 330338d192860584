//! A file that is complete and durable before it gets its name.
//!
//! Until then it is FILE.part. A process that is killed leaves that, and the next one to save to
//! FILE uses it again. A lock keeps two of them apart.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::Failure;
use crate::failure::shown;

/// FILE.part, locked. It is removed unless it is renamed.
pub(crate) struct Partial {
    path: PathBuf,
    pub file: File,
    is_done: bool,
}

impl Partial {
    /// Makes FILE.part for the owner alone, or empties the one that a killed process has left.
    ///
    /// # Errors
    /// Another process writes to it, it is not a file of this user, or it cannot be made.
    pub(crate) fn of(target: &Path) -> Result<Partial, Failure> {
        let path = with_suffix(target, ".part");
        let cannot = |e: io::Error| Failure::os("cannot write", &path, e);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A FIFO or a device of that name does not block.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(cannot)?;
        let in_use = || {
            Failure::new(
                "in-use",
                format!("{}: another process writes to it", shown(&path)),
            )
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(in_use()),
            locked => locked.map_err(|e| cannot(e.into()))?,
        }
        let meta = file.metadata().map_err(cannot)?;
        let named = path.symlink_metadata().map_err(cannot)?;
        // The process that had the lock has just renamed or removed it.
        if (meta.dev(), meta.ino()) != (named.dev(), named.ino()) {
            return Err(in_use());
        }
        let is_own = meta.uid() == rustix::process::geteuid().as_raw();
        if !meta.is_file() || meta.nlink() != 1 || !is_own {
            return Err(Failure::new(
                "not-a-file",
                format!(
                    "{}: is not a file of this user alone; remove it first",
                    shown(&path)
                ),
            ));
        }
        let partial = Partial {
            path,
            file,
            is_done: false,
        };
        let emptied = partial.file.set_len(0).and_then(|()| {
            partial
                .file
                .set_permissions(fs::Permissions::from_mode(0o600))
        });
        match emptied {
            Ok(()) => Ok(partial),
            Err(e) => Err(Failure::os("cannot write", &partial.path, e)),
        }
    }

    /// Gives it the name, and makes the name durable. Its contents are durable. At any moment the
    /// name is that of a whole file.
    ///
    /// # Errors
    /// Those of the directory, and that the name exists without `force`.
    pub(crate) fn replace(
        mut self,
        target: &Path,
        force: bool,
        keep_old: bool,
    ) -> Result<(), Failure> {
        let cannot = |e: io::Error| Failure::os("cannot write", target, e);
        if keep_old {
            keep(target).map_err(cannot)?;
        }
        let renamed = match force {
            true => fs::rename(&self.path, target),
            false => rename_new(&self.path, target),
        };
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => exists(target),
            _ => cannot(e),
        })?;
        self.is_done = true;
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(cannot)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_done {
            // An error is reported already. What stays is used again by the next process.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives the file a second name, FILE.old, in the place of an older one.
fn keep(target: &Path) -> io::Result<()> {
    let (old, between) = (
        with_suffix(target, ".old"),
        with_suffix(target, ".old.part"),
    );
    let absent_is_fine = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    };
    fs::remove_file(&between).or_else(absent_is_fine)?;
    match fs::hard_link(target, &between) {
        // Both names may be of one file already: then rename does nothing.
        Ok(()) => fs::rename(&between, old)
            .and_then(|()| fs::remove_file(&between).or_else(absent_is_fine)),
        Err(e) => absent_is_fine(e),
    }
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The host file system does not have it.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        done => Ok(done?),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The error of a name that is taken.
pub(crate) fn exists(file: &Path) -> Failure {
    Failure::new(
        "exists",
        format!("{}: exists; use -f to replace it", shown(file)),
    )
}
