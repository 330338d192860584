//! Damage that is met: noted on the medium, told, and acted on (`errors=`).
//!
//! It is told once for each object and minute, however often it is met: a
//! program that comes to it again and again must not fill the log. Who serves a
//! mount waits for it by [`Writability`]: what follows from it out there, such
//! as a remount, is not for the thread that has met it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fs::Engine;
use crate::fs::options::ErrorPolicy;
use pramfs_medium::error::Error;
use pramfs_medium::sync::{Condvar, Mutex};
use pramfs_medium::types::Ino;

/// For how many seconds something that was told is not told again.
const MINUTE: i64 = 60;
/// Objects that are kept apart at most: a hostile medium has no end of them.
const OBJECTS: usize = 1024;
/// Directories above a file that are named at most.
const DEPTH: usize = 64;

/// What was told, so that it is not told again within the minute.
#[derive(Debug, Default)]
pub struct Repeats {
    /// When each was told last, and how often it was not since.
    told: BTreeMap<String, (i64, u64)>,
}

impl Repeats {
    /// Whether `what` is to be told at `now`, in seconds, and how often it was
    /// not since it was told last.
    pub fn tell(&mut self, what: &str, now: i64) -> Option<u64> {
        // A clock that was set back is no reason to be silent for long.
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

    /// What is added to a line about that number; nothing for none.
    pub fn since(silent: u64) -> String {
        match silent {
            0 => String::new(),
            n => format!(" (met {n} times more since this was told last)"),
        }
    }
}

/// How far a file system has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Standing {
    #[default]
    Completeness,
    /// Damage was met that forbids changes.
    Stopped,
    /// It is closed.
    Ended,
}

/// Whether a file system has met damage that forbids changes, or has ended, for
/// a thread that waits for it. It keeps no file system open.
#[derive(Debug, Default)]
pub struct Writability {
    standing: Mutex<Standing>,
    changed: Condvar,
}

impl Writability {
    /// Waits for damage that forbids changes. False where the file system ended
    /// without.
    pub fn wait_for_damage(&self) -> bool {
        let mut standing = self.standing.lock();
        while *standing == Standing::Completeness {
            self.changed.wait(&mut standing);
        }
        *standing == Standing::Stopped
    }

    /// Waits so long for the end of the file system; tells whether it came.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let mut standing = self.standing.lock();
        if *standing != Standing::Ended {
            // Woken for nothing, the caller asks again.
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

    /// Nothing comes after this.
    pub(crate) fn end(&self) {
        self.become_at_least(Standing::Ended);
    }
}

/// What a file system remembers of the damage it has met.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    repeats: Mutex<Repeats>,
    /// Directory and name that led to an inode which cannot be read. It has no
    /// place in the caches.
    names: Mutex<BTreeMap<Ino, (Ino, Vec<u8>)>>,
    pub(crate) writability: Arc<Writability>,
}

impl Engine {
    /// For who waits for damage.
    pub fn writability(&self) -> Arc<Writability> {
        self.damage.writability.clone()
    }

    /// Records an error in the superblock, tells it, and acts on `errors=`.
    pub(crate) fn note_damage(&self, e: &Error) {
        let (object, what) = match e {
            Error::Corrupt { object, what, .. } => (object.clone(), what.clone()),
            other => ("the medium".to_owned(), other.to_string()),
        };
        let tell = self.damage.repeats.lock().tell(&object, self.now().sec);
        let region = self.vol.region.info().name;
        if let Some(silent) = tell {
            let place = match e.ino().and_then(|ino| self.path_hint(ino)) {
                Some(path) => format!("{path:?} ({object})"),
                None => object,
            };
            let more = Repeats::since(silent);
            tracing::error!(
                "{region}: damage: {place}: {what}; unmount it and run `fsck.pramfs {region}`{more}"
            );
        }
        self.note_error(e);
        match self.options.errors {
            ErrorPolicy::Continue => {}
            ErrorPolicy::RemountRo => {
                self.damaged.store(true, Ordering::Relaxed);
                if !self.read_only.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "{region}: the file system is read-only from here on (errors=remount-ro)"
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

    /// Tells of bytes that were met and that an earlier repair could not bring
    /// back. That is no new damage: nothing is recorded, and changes go on.
    #[cold]
    pub(crate) fn note_lost(&self, ino: Ino, offset: u64) {
        let object = format!("{ino}, lost");
        let tell = self.damage.repeats.lock().tell(&object, self.now().sec);
        if let Some(silent) = tell {
            let region = self.vol.region.info().name;
            let place = match self.path_hint(ino) {
                Some(path) => format!("{path:?} ({ino})"),
                None => ino.to_string(),
            };
            let more = Repeats::since(silent);
            tracing::error!(
                "{region}: damage: {place}: the bytes at offset {offset} were lost, and are EIO until they are written; `pramfs stat` shows all that are{more}"
            );
        }
    }

    /// Remembers by which name a damaged inode was looked for, so that it can be
    /// told.
    pub(crate) fn note_name(&self, ino: Ino, dir: Ino, name: &[u8]) {
        let mut names = self.damage.names.lock();
        if names.len() < OBJECTS {
            names.insert(ino, (dir, name.to_vec()));
        }
    }

    /// The path by which an inode was found last, as far as memory tells: nothing
    /// is read, and no lock of an inode taken.
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
            "what was not told is counted"
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
