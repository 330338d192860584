//! References to inodes from outside the engine.
//!
//! Invariant: an inode without names is freed only when it has no reference. A removal and
//! a lookup without a lock agree on that by a pair of fences ([`Refs::add`], [`Refs::has`]).
//! This file only counts. The caller of [`Refs::sub`] frees the inode
//! ([`orphans`](crate::fs::steps)).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::fs::survivor::references::KeptReferences;
use pramfs_medium::sync::atomic::{AtomicU64, Ordering, fence};
use pramfs_medium::sync::order::seq_cst;
use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::Ino;

/// The model checker uses few shards.
const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

/// The kind of a reference. References of one kind cannot be released as the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Counted by the caller, as the lookups of the kernel are.
    Count,
    /// Held by a value of this crate, which releases it on drop.
    Guard,
}

#[derive(Debug, Default)]
struct References {
    counted: u64,
    guards: u64,
}

impl References {
    fn of(&mut self, by: By) -> &mut u64 {
        match by {
            By::Count => &mut self.counted,
            By::Guard => &mut self.guards,
        }
    }
}

type Shard = Mutex<FxHashMap<u64, References>, rank::Leaf>;

/// The references from outside: lookups by the kernel, open files. An inode without
/// names exists as long as it has any.
#[derive(Debug)]
pub(crate) struct Refs {
    shards: Box<[Shard]>,
    total: AtomicU64,
    /// Has all counted references, if there is one. Changed under the lock of the shard.
    kept: Option<Arc<dyn KeptReferences>>,
}

impl Default for Refs {
    fn default() -> Self {
        Refs {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            total: AtomicU64::new(0),
            kept: None,
        }
    }
}

impl Refs {
    /// Returns references whose counts lie in `kept`, if it is given.
    pub(crate) fn new(kept: Option<Arc<dyn KeptReferences>>) -> Refs {
        Refs {
            kept,
            ..Refs::default()
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Adds references.
    pub(crate) fn add(&self, ino: Ino, n: u64, by: By) {
        let mut s = self.shard(ino).lock();
        if let (By::Count, Some(kept)) = (by, &self.kept) {
            kept.add_references(ino, n);
        } else {
            let refs = s.entry(ino.0).or_insert_with(|| {
                self.total.fetch_add(1, Ordering::Relaxed);
                References::default()
            });
            let count = refs.of(by);
            *count = count.saturating_add(n);
        }
        drop(s);
        // One thread adds a reference and then checks whether the inode is still
        // shown (`fs/cache/attr_cache.rs`). Another hides it and then checks for
        // references. With both fences at least one sees the other.
        fence(seq_cst("refs-add"));
    }

    /// Releases up to `n` references; true when none of any kind are left.
    pub(crate) fn sub(&self, ino: Ino, n: u64, by: By) -> bool {
        let mut s = self.shard(ino).lock();
        if let (By::Count, Some(kept)) = (by, &self.kept) {
            let had = kept.references(ino) != 0;
            return had && kept.sub_references(ino, n) == 0 && !s.contains_key(&ino.0);
        }
        let Some(refs) = s.get_mut(&ino.0) else {
            return false;
        };
        let count = refs.of(by);
        *count = count.saturating_sub(n);
        if refs.counted != 0 || refs.guards != 0 {
            return false;
        }
        s.remove(&ino.0);
        if s.capacity() > 1024 && s.len() < s.capacity() / 8 {
            s.shrink_to_fit();
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
        (self.kept.as_ref()).is_none_or(|kept| kept.references(ino) == 0)
    }

    /// Whether an inode has references. Sees those added before any event that the
    /// caller has observed.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        // See `add`.
        fence(seq_cst("refs-has"));
        match &self.kept {
            Some(kept) => {
                let s = self.shard(ino).lock();
                kept.references(ino) != 0 || s.contains_key(&ino.0)
            }
            None => self.len() != 0 && self.shard(ino).lock().contains_key(&ino.0),
        }
    }

    /// Returns the number of inodes with references in the memory of this process.
    pub(crate) fn len(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OpenOptions;
    use crate::{
        MountOptions,
        inode::{Credentials, Fs},
    };
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::{HeapBackend, Region};

    /// A thread that held a lock at the fork does not exist in the child.
    #[test]
    fn forked_child_takes_no_reference_lock() {
        let region = Region::new("refs", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
        let ino = file.unwrap().ino;
        let held = fs.hold(ino);
        fs.open.inherit();
        let locks: Vec<_> = fs.refs.shards.iter().map(|s| s.try_lock()).collect();
        let (orphans, forgotten) = (fs.orphans.try_lock(), fs.forgotten.try_lock());
        assert!(locks.iter().all(Option::is_some) && orphans.is_some() && forgotten.is_some());
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let fs = &fs;
            s.spawn(move || {
                fs.hold(ino).into_count();
                fs.release(ino, 1);
                fs.forget(ino, 1);
                drop((fs.hold(ino), held));
                let opened = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(fs, "/file")
                    .map(drop);
                let resolved = fs.resolve("/file").map(drop);
                let failed = [opened, resolved, fs.make_writable()];
                done.send(
                    failed
                        .iter()
                        .all(|r| r.as_ref().is_err_and(|e| e.errno() == libc::EIO)),
                )
            });
            // Long enough for any machine; a wait for a lock would never end.
            let right = is_done.recv_timeout(std::time::Duration::from_secs(120));
            drop((locks, orphans, forgotten));
            assert_eq!(right, Ok(true));
        });
    }
}
