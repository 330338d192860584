//! The dentry cache: maps names to inodes in memory.
//!
//! A lookup in the htree of a large directory waits for four or five cache lines of the
//! medium, each of which names the next, and then for the inode. A lookup here waits for
//! two places: a line of the table, and the inode's slot in the [`AttrCache`]. The slot
//! has the `stat` attributes and the name by which the inode was last found.
//!
//! Invariant: the table holds only hints. A hint is a part of the name's hash and an
//! inode number; the slot decides whether the name leads to that inode. A hint may
//! therefore be lost, late or wrong, and the removal of a name leaves its hint in place.
//!
//! An inode has at most one name here, the last one by which it was found. Lookups by
//! the other names of a file with several links read the medium, and the name then
//! replaces the cached one.
//!
//! No crate for caches is used. They keep the keys in separate memory, which costs one
//! more cache miss, and this cache exists to save that miss.

use std::sync::Arc;

use crate::fs::cache::attr_cache::{AttrCache, SeqToken};
use crate::fs::cache::probe::Probe;
use pramfs_medium::pmem::AtomicTable;
use pramfs_medium::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pramfs_medium::types::{Attr, Ino};

/// Hints per line of the table. A line is one cache line.
const WAYS: usize = 8;
/// Bits of a hint for the inode number.
const INO_BITS: u32 = 40;

/// Number of filled slots after which the cache requests huge pages. A small cache then
/// takes no more memory than it needs.
const HUGE_ADVICE_MIN: usize = 4096;

/// Returns the bits of the hash that a hint keeps.
#[inline]
fn tag(p: &Probe) -> u64 {
    p.hash >> INO_BITS
}

/// The dentry cache, see the module.
#[derive(Debug)]
pub(crate) struct Dcache {
    hints: AtomicTable,
    /// Number of lines minus one.
    mask: usize,
    /// Key of the hashes, for [`Probe::new`].
    pub key: u64,
    /// The attributes of the inodes.
    pub attrs: Arc<AttrCache>,
    filled: AtomicUsize,
}

impl Dcache {
    /// Creates a cache for the names of `inodes` inodes.
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

    /// Returns the `nth` place to try in the line of a name.
    #[inline]
    fn way(p: &Probe, nth: usize) -> usize {
        (tag(p) as usize + nth) % WAYS
    }

    /// Returns the attributes of the inode that a name leads to, if cached, with a token
    /// for [`AttrCache::is_current`].
    #[inline(always)]
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

    /// Publishes an inode, and a name that leads to it. The caller:
    ///
    /// - holds the lock of the inode, and of the directory if there is a name, since
    ///   before it read the attributes and the name;
    /// - has given the lock an [`AttrSlot`](crate::fs::cache::attr_cache::AttrSlot).
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
        // If two threads choose the same place, one of the hints is lost.
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
        // A full line loses hints.
        assert!(kept > 19_900, "{kept}");
        // Move the names to other inodes.
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
                // Equal hashes are not enough: the names must be equal.
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
