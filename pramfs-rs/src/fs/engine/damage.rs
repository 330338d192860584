//! The reaction to damage that an operation finds: a mark in the superblock, a log
//! message, and the error policy (`errors=`).
//!
//! Invariant: an object is logged at most once per minute, so that a program that finds
//! the same damage again and again does not fill the log.
//!
//! A front end waits for damage by [`Writability`] and remounts in a thread of its own, not
//! in the thread that found the damage. The mark itself is in
//! [`superblock`](crate::fs::engine::superblock).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fs::Engine;
use crate::fs::options::ErrorPolicy;
use pramfs_medium::error::Error;
use pramfs_medium::sync::{Condvar, Mutex, rank};
use pramfs_medium::types::Ino;

/// Time in seconds during which a message is not repeated.
const MINUTE: i64 = 60;
/// Maximum number of objects to remember. A hostile medium can produce any number.
const OBJECTS: usize = 1024;
/// Maximum number of directories in the path of a message.
const DEPTH: usize = 64;

/// Limits repeated log messages to one per object and minute.
#[derive(Debug, Default)]
pub struct Repeats {
    /// For each object, the time of the last message in seconds, and the number of
    /// suppressed messages since.
    told: BTreeMap<String, (i64, u64)>,
}

impl Repeats {
    /// Decides whether to log a message about the object `what` at the time `now`, in
    /// seconds. Returns the number of suppressed messages since the last one, or `None` to
    /// suppress this message too.
    pub fn tell(&mut self, what: &str, now: i64) -> Option<u64> {
        // If the clock was set back, the last message does not count as recent.
        let recent = |at: i64| (at..at.saturating_add(MINUTE)).contains(&now);
        if let Some((at, silent)) = self.told.get_mut(what) {
            if recent(*at) {
                *silent += 1;
                return None;
            }
            *at = now;
            return Some(std::mem::take(silent));
        }
        if self.told.len() >= OBJECTS {
            self.told.retain(|_, (at, _)| recent(*at));
        }
        if self.told.len() >= OBJECTS {
            return None;
        }
        self.told.insert(what.to_owned(), (now, 0));
        Some(0)
    }

    /// Returns the suffix of a message after `silent` suppressed ones; empty for 0.
    pub fn since(silent: u64) -> String {
        match silent {
            0 => String::new(),
            n => format!(" (repeated {n} times since the last message)"),
        }
    }
}

/// The state of a file system, for threads that wait for a change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Standing {
    /// Running normally.
    #[default]
    Running,
    /// Damage was found that forbids changes.
    Stopped,
    /// Closed. This state is final.
    Ended,
}

/// Lets a thread wait until a file system finds damage that forbids changes, or until it
/// is closed. A `Writability` does not keep the file system open.
#[derive(Debug, Default)]
pub struct Writability {
    standing: Mutex<Standing, rank::Leaf>,
    changed: Condvar,
}

impl Writability {
    /// Waits for damage that forbids changes. False if the file system was closed.
    pub fn wait_for_damage(&self) -> bool {
        let mut standing = self.standing.lock();
        while *standing == Standing::Running {
            self.changed.wait(&mut standing);
        }
        *standing == Standing::Stopped
    }

    /// Waits for the file system to close, for at most `at_most`. Returns whether it is
    /// closed. May return false early.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let mut standing = self.standing.lock();
        if *standing != Standing::Ended {
            // After a spurious wakeup the caller calls again.
            let _in_time = self.changed.wait_for(&mut standing, at_most);
        }
        *standing == Standing::Ended
    }

    fn become_at_least(&self, new: Standing) {
        let mut standing = self.standing.lock();
        if *standing != Standing::Ended {
            *standing = new;
        }
        self.changed.notify_all();
    }

    /// Marks the file system as closed.
    pub(crate) fn end(&self) {
        self.become_at_least(Standing::Ended);
    }
}

/// The record of the damage that a file system has found.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    repeats: Mutex<Repeats, rank::Leaf>,
    /// Directory and name by which an unreadable inode was looked up. The caches hold no
    /// such inode.
    names: Mutex<BTreeMap<Ino, (Ino, Vec<u8>)>, rank::Leaf>,
    pub(crate) writability: Arc<Writability>,
}

impl Engine {
    /// Returns an object to wait for damage or for the end of the mount.
    pub fn writability(&self) -> Arc<Writability> {
        self.damage.writability.clone()
    }

    /// Reacts to damage: logs it, records it in the superblock, then applies the error
    /// policy (`errors=`).
    pub(crate) fn note_damage(&self, e: &Error) {
        let region = self.vol.region.info().name;
        let (object, what) = match e {
            Error::Corrupt { object, what, .. } => (object.clone(), what.clone()),
            other => ("the medium".to_owned(), other.to_string()),
        };
        let what = format!("{what}; unmount it and run `fsck.pramfs {region}`");
        self.log_damage(&object, &object, e.ino(), &what);
        self.note_error(e);
        match self.options.errors {
            ErrorPolicy::Continue => {}
            ErrorPolicy::RemountRo => {
                self.damaged.store(true, Ordering::Relaxed);
                if !self.read_only.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "{region}: the file system is now read-only (errors=remount-ro)"
                    );
                }
                self.damage.writability.become_at_least(Standing::Stopped);
            }
            ErrorPolicy::Panic => {
                tracing::error!("{region}: aborting (errors=panic)");
                std::process::abort();
            }
        }
    }

    /// Logs an access to bytes that an earlier repair could not recover. This is not new
    /// damage: nothing is recorded in the superblock, and changes stay permitted.
    #[cold]
    pub(crate) fn note_lost(&self, ino: Ino, offset: u64) {
        let what = format_args!(
            "the bytes at offset {offset} were lost, and reading them fails with EIO until they are written; `pramfs stat` lists all lost ranges"
        );
        self.log_damage(&format!("{ino}, lost"), &ino, Some(ino), &what);
    }

    /// Logs a block of a file that does not match its checksum, and records it in the
    /// superblock, at most once a minute for each block. Changes stay permitted: what is wrong
    /// is this block alone.
    #[cold]
    pub(crate) fn note_wrong_sum(&self, e: &Error, ino: Ino, offset: u64, block: u64) {
        let what = format_args!(
            "the checksum of the bytes at offset {offset} (block {block}) does not match, and reading them fails with EIO until the whole block is written; `pramfs stat` and `fsck.pramfs` list all such blocks"
        );
        let object = format!("{ino}, checksum of block {block}");
        if self.log_damage(&object, &ino, Some(ino), &what) {
            self.note_error(e);
        }
    }

    /// Logs damage of an object by its name and, if it is known, by its path. A message
    /// about `object` is not repeated within a minute.
    /// Returns false if it was not logged.
    fn log_damage(
        &self,
        object: &str,
        name: &dyn Display,
        ino: Option<Ino>,
        what: &dyn Display,
    ) -> bool {
        let tell = self.damage.repeats.lock().tell(object, self.now().sec);
        let Some(silent) = tell else {
            return false;
        };
        let place = match ino.and_then(|ino| self.path_hint(ino)) {
            Some(path) => format!("{path:?} ({name})"),
            None => name.to_string(),
        };
        let (region, more) = (self.vol.region.info().name, Repeats::since(silent));
        tracing::error!("{region}: damage: {place}: {what}{more}");
        true
    }

    /// Remembers the name by which a damaged inode was looked up, for messages.
    pub(crate) fn note_name(&self, ino: Ino, dir: Ino, name: &[u8]) {
        let mut names = self.damage.names.lock();
        if names.len() < OBJECTS {
            names.insert(ino, (dir, name.to_vec()));
        }
    }

    /// Returns the path by which an inode was last found, if all its names are in memory.
    /// Reads nothing from the medium and takes no lock of an inode.
    pub(crate) fn path_hint(&self, ino: Ino) -> Option<String> {
        let (mut path, mut at) = (Vec::new(), ino);
        for _ in 0..DEPTH {
            if at == Ino::ROOT {
                path.reverse();
                return Some(format!("/{}", path.join("/")));
            }
            let known = self.damage.names.lock().get(&at).cloned();
            let (dir, name) = known.or_else(|| self.cache.names.attrs.last_name(at))?;
            path.push(String::from_utf8_lossy(&name).into_owned());
            at = dir;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reported_once_per_object_and_minute() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.tell("a", 100), Some(0));
        assert_eq!(repeats.tell("a", 100), None);
        assert_eq!(repeats.tell("b", 100), Some(0));
        assert_eq!(repeats.tell("a", 159), None);
        assert_eq!(
            repeats.tell("a", 160),
            Some(2),
            "suppressed messages are counted"
        );
        assert_eq!(repeats.tell("a", 161), None);
        assert_eq!(repeats.tell("a", 50), Some(1), "the clock was set back");
    }

    #[test]
    fn damage_reports_are_bounded_in_number() {
        let mut repeats = Repeats::default();
        let told = |repeats: &mut Repeats, now| {
            let all = (0..2 * OBJECTS).map(|n| format!("{now}, object {n}"));
            all.filter(|what| repeats.tell(what, now).is_some()).count()
        };
        assert_eq!(told(&mut repeats, 0), OBJECTS);
        assert_eq!(told(&mut repeats, 1), 0);
        assert_eq!(told(&mut repeats, MINUTE), OBJECTS);
    }

    #[test]
    fn waiter_wakes_on_damage_and_on_end() {
        let w = Writability::default();
        assert!(!w.wait_for_end(Duration::ZERO));
        w.become_at_least(Standing::Stopped);
        assert!(w.wait_for_damage() && !w.wait_for_end(Duration::ZERO));
        w.end();
        w.become_at_least(Standing::Stopped);
        assert!(!w.wait_for_damage() && w.wait_for_end(Duration::MAX));
    }
}
