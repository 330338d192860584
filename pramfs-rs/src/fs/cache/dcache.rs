//! The dentry cache: which inode in memory a name leads to.
//!
//! A look-up in the htree of a large directory waits for four or five cache
//! lines of the medium, each named by the one before, and then for the inode.
//! Here it waits for a line of the table and for the inode's slot in the
//! [`AttrCache`], which keeps the name by which it was found last beside what
//! `stat` shows.
//!
//! The table holds hints: part of a hash, and a number. Whether the name leads
//! there is for the slot to say, so that a hint may be lost, be late or be wrong,
//! and nothing has to be taken out when a name goes. An inode has one name
//! here, that by which it was found last; the other names of a file with several
//! take the way over the medium and become that name in their turn.
//!
//! Caches of the registry keep the keys in memory of their own, which is one
//! more line to wait for; that wait is all that is to be saved here.

use std::sync::Arc;

use crate::fs::cache::attr_cache::{AttrCache, SeqToken};
use crate::fs::cache::probe::Probe;
use pramfs_medium::pmem::AtomicTable;
use pramfs_medium::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pramfs_medium::types::{Attr, Ino};

/// Hints of a line: one cache line.
const WAYS: usize = 8;
/// Bits of a hint that are the number of the inode.
const INO_BITS: u32 = 40;

/// Slots that have been filled before huge pages are asked for: a cache that
/// stays small takes no more memory than it needs.
const HUGE_ADVICE_MIN: usize = 4096;

/// The bits of the hash that a hint keeps.
#[inline]
fn tag(p: &Probe) -> u64 {
    p.hash >> INO_BITS
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dcache {
    hints: AtomicTable,
    /// Number of lines, less one.
    mask: usize,
    /// Key of the hashes, for [`Probe::new`].
    pub key: u64,
    /// What is known of the inodes.
    pub attrs: Arc<AttrCache>,
    filled: AtomicUsize,
}

impl Dcache {
    /// A cache for the names of so many inodes.
    pub(crate) fn new(inodes: usize, key: u64) -> Dcache {
        let lines = (inodes * 2).div_ceil(WAYS).next_power_of_two();
        let hints = AtomicTable::new(
            lines * WAYS,
            "the dentry cache (a smaller cache_mem takes less)",
        );
        Dcache {
            hints,
            mask: lines - 1,
            key,
            attrs: Arc::new(AttrCache::new(inodes)),
            filled: AtomicUsize::new(0),
        }
    }

    #[inline]
    fn line(&self, p: &Probe) -> Option<&[AtomicU64; WAYS]> {
        let first = (p.hash as usize & self.mask) * WAYS;
        self.hints.get(first..)?.first_chunk()
    }

    /// Where in its line a name is put if there is a choice.
    #[inline]
    fn way(p: &Probe, nth: usize) -> usize {
        (tag(p) as usize + nth) % WAYS
    }

    /// Attributes of the inode that a name leads to, if that is known, and
    /// when that was so.
    #[inline]
    pub(crate) fn find(&self, p: &Probe) -> Option<(Attr, SeqToken)> {
        let line = self.line(p)?;
        for nth in 0..WAYS {
            let hint = line[Self::way(p, nth)].load(Ordering::Relaxed);
            if hint == 0 {
                return None;
            }
            if hint >> INO_BITS == tag(p) {
                let ino = Ino(hint & ((1 << INO_BITS) - 1));
                if let Some(found) = self.attrs.find(ino, p) {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Shows an inode from now on, and a name that leads to it. The caller holds
    /// its lock, and that of the directory if there is a name, has found this
    /// under them, and has given the lock a [`AttrSlot`](crate::fs::cache::attr_cache::AttrSlot).
    pub(crate) fn publish(&self, attr: &Attr, name: Option<&Probe>) {
        let first = self.attrs.publish(attr, name);
        if let Some(p) = name {
            self.put(p, attr.ino);
        }
        if first && self.filled.fetch_add(1, Ordering::Relaxed) == HUGE_ADVICE_MIN {
            self.attrs.advise_huge();
            self.hints.advise_huge();
        }
    }

    fn put(&self, p: &Probe, ino: Ino) {
        let Some(line) = self.line(p).filter(|_| ino.0 >> INO_BITS == 0) else {
            return;
        };
        let hint = tag(p) << INO_BITS | ino.0;
        let ways = || (0..WAYS).map(|nth| &line[Self::way(p, nth)]);
        let is = |w: u64| move |way: &&AtomicU64| way.load(Ordering::Relaxed) == w;
        // Two threads may take the same place: one of the names is lost.
        let free = ways().find(is(hint)).or_else(|| ways().find(is(0)));
        let way = free.unwrap_or(&line[Self::way(p, 0)]);
        way.store(hint, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::cache::probe::MAX_NAME;
    use pramfs_medium::types::{FileType, Time};

    const KEY: u64 = 0x1234_5678_9abc_def1;

    fn attr(ino: u64) -> Attr {
        let time = Time { sec: 1, nsec: 2 };
        Attr {
            ino: Ino(ino),
            generation: 1,
            kind: FileType::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: 0,
            change: 1,
        }
    }

    fn probe(dir: u64, name: &[u8]) -> Probe {
        Probe::new(KEY, Ino(dir), name).unwrap()
    }

    fn found(cache: &Dcache, p: &Probe) -> Option<u64> {
        cache.find(p).map(|(a, _)| a.ino.0)
    }

    #[test]
    fn dcache_finds_names_of_published_inodes() {
        let cache = Dcache::new(1 << 16, KEY);
        let name = |i: u64| probe(2, format!("name {i}").as_bytes());
        for i in 0..20_000 {
            cache.publish(&attr(100 + i), Some(&name(i)));
        }
        let all = |i: &u64| found(&cache, &name(*i)) == Some(100 + *i);
        let kept = (0..20_000).filter(all).count();
        // A line that is full loses some.
        assert!(kept > 19_900, "{kept}");
        // Names that moved to others' inodes.
        for i in (0..20_000).step_by(2) {
            cache.publish(&attr(50_000 + i), Some(&name(i)));
            cache.publish(&attr(100 + i), Some(&probe(3, b"elsewhere")));
        }
        for i in (0..20_000).step_by(2) {
            let now = found(&cache, &name(i));
            assert!(now.is_none() || now == Some(50_000 + i), "{i} {now:?}");
        }
    }

    #[test]
    fn dcache_compares_directory_and_every_byte() {
        let cache = Dcache::new(1000, KEY);
        for len in 1..=MAX_NAME {
            let long = &b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[..len];
            cache.publish(&attr(50), Some(&probe(2, long)));
            assert_eq!(found(&cache, &probe(2, long)), Some(50));
            assert_eq!(found(&cache, &probe(3, long)), None);
            for at in 0..len {
                let mut other = long.to_vec();
                other[at] = b'-';
                assert_eq!(found(&cache, &probe(2, &other)), None, "{len} {at}");
                // Its hash alone does not make it another.
                let p = Probe {
                    hash: probe(2, long).hash,
                    ..probe(2, &other)
                };
                assert_eq!(found(&cache, &p), None, "{len} {at}");
            }
            for other in [&long[1..], &[long, b"\0"].concat()] {
                if let Some(p) = Probe::new(KEY, Ino(2), other) {
                    let hash = probe(2, long).hash;
                    assert_eq!(found(&cache, &Probe { hash, ..p }), None, "{len}");
                }
            }
        }
        assert!(Probe::new(KEY, Ino(2), &[b'x'; MAX_NAME + 1]).is_none());
    }

    #[test]
    fn full_dcache_line_keeps_newest_name() {
        let cache = Dcache::new(1000, KEY);
        let same_line = |i: u64| Probe {
            hash: i << INO_BITS,
            ..probe(2, format!("{i}").as_bytes())
        };
        for i in 1..100 {
            cache.publish(&attr(100 + i), Some(&same_line(i)));
            assert_eq!(found(&cache, &same_line(i)), Some(100 + i));
        }
        let kept = (1..100).filter(|i| found(&cache, &same_line(*i)).is_some());
        assert_eq!(kept.count(), WAYS);
    }

    #[test]
    fn inode_number_too_large_for_hint_is_skipped() {
        let cache = Dcache::new(1000, KEY);
        let ino = (1 << INO_BITS) + 50;
        cache.publish(&attr(ino), Some(&probe(2, b"a")));
        assert_eq!(found(&cache, &probe(2, b"a")), None);
        assert_eq!(cache.attrs.get(Ino(ino)), Some(attr(ino)));
    }
}
