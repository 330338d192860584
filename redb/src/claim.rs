//! [`Claim`]: a file has one database at a time.
//!
//! redb locks its file against other processes. The lock on the region does that here, and what
//! is left are two databases of one process on one file.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs::{Error, File, FileSystem, Result};

/// A file: the id of its file system, and its inode number.
type Key = (u64, u64);

static CLAIMED: Mutex<BTreeSet<Key>> = Mutex::new(BTreeSet::new());

fn claimed() -> MutexGuard<'static, BTreeSet<Key>> {
    // A panic between two calls of the set leaves it whole.
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The use of a file as a database, as long as it lives.
#[derive(Debug)]
pub(crate) struct Claim(Key);

impl Claim {
    /// # Errors
    /// EBUSY if the file has one already.
    pub(crate) fn of(fs: &FileSystem, file: &File) -> Result<Claim> {
        let key = (fs.statfs()?.fsid, file.ino().0);
        match claimed().insert(key) {
            true => Ok(Claim(key)),
            false => Err(Error::Busy(format!(
                "a database of this process has {} open",
                file.ino()
            ))),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}
