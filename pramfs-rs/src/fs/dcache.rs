//! The dentry cache: which inode in memory a name leads to.
//!
//! A look-up in the htree of a large directory waits for four or five cache
//! lines of the medium, each named by the one before, and then for the inode.
//! Here it waits for a line of the table and for the inode, which keeps the
//! name by which it was found last ([`KnownAs`]) beside what `stat` shows.
//!
//! Invariant: what is found is what the directory says. An entry is put in
//! under the lock of its directory, shared or not, as found on the medium; it
//! is taken out under the exclusive lock, by the functions of
//! [`entries`](super::entries), before the record that removes or replaces it
//! is committed. A directory is named by number and generation, so that names
//! in one that is gone are never found again. An inode has one entry, that of
//! the name it is known as; the other names of a file with several take the
//! way over the medium and become that name in their turn.
//!
//! Caches of the registry keep the keys in memory of their own, which is one
//! more line to wait for; that wait is all that is to be saved here.
//!
//! Locks: a shard is taken after everything else, and nothing is waited for
//! under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crossbeam::utils::CachePadded;
use parking_lot::RwLock;

use super::inode::Inode;
use crate::pmem;
use crate::types::Ino;

const NAME_WORDS: usize = 4;
/// Longest name that is kept, bytes; its length takes one more.
pub const LONGEST: usize = NAME_WORDS * 8 - 1;
const SHARDS: usize = 64;
/// Entries of a set: one cache line.
const WAYS: usize = 4;
/// Entries of a shard when it is first used.
const FIRST: usize = 64;

/// A name of a directory, made ready to be looked for.
#[derive(Debug)]
pub struct Probe {
    hash: u64,
    dir: Ino,
    name: [u64; NAME_WORDS],
}

impl Probe {
    /// `None` for a name that is too long to be kept. `key` is that of the
    /// [`Dcache`].
    #[inline]
    pub fn new(key: u64, dir: Ino, name: &[u8]) -> Option<Probe> {
        if name.len() > LONGEST {
            return None;
        }
        let mut bytes = [0; NAME_WORDS * 8];
        bytes[0] = name.len() as u8;
        bytes[1..=name.len()].copy_from_slice(name);
        let mut words = [0; NAME_WORDS];
        for (w, b) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *w = u64::from_le_bytes(*b);
        }
        Some(Probe {
            hash: hash(key, dir.0, &words),
            dir,
            name: words,
        })
    }
}

/// A multiplication for each word that is used, as FxHash has it. Who guesses
/// the key and makes names that collide has them looked up on the medium.
#[inline]
fn hash(key: u64, dir: u64, name: &[u64; NAME_WORDS]) -> u64 {
    const K: u64 = 0xf135_7aea_2e62_a9c5;
    let used = (name[0] & 0xff) as usize / 8 + 1;
    let mut hash = (dir ^ key).wrapping_mul(K);
    for w in name.iter().take(used) {
        hash = (hash.rotate_left(23) ^ w).wrapping_mul(K);
    }
    hash = (hash ^ hash >> 32).wrapping_mul(K);
    hash ^ hash >> 32
}

/// The name by which an inode was found last, under a sequence lock: a reader
/// takes no lock, and believes what it read if the number was even and has not
/// moved.
#[derive(Debug, Default)]
pub struct KnownAs {
    sequence: AtomicU64,
    dir: AtomicU64,
    generation: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

impl KnownAs {
    #[inline]
    fn is(&self, p: &Probe, generation: u64) -> bool {
        let sequence = self.sequence.load(Ordering::Acquire);
        let same = self.dir.load(Ordering::Relaxed) == p.dir.0
            && self.generation.load(Ordering::Relaxed) == generation
            && self
                .name
                .iter()
                .zip(p.name)
                .all(|(w, n)| w.load(Ordering::Relaxed) == n);
        fence(Ordering::Acquire);
        same && sequence & 1 == 0 && self.sequence.load(Ordering::Relaxed) == sequence
    }

    /// Gives the hash of the name before, if there was one; an error where
    /// another thread is at it.
    fn set(&self, key: u64, p: &Probe, generation: u64) -> Result<Option<u64>, ()> {
        let sequence = self.sequence.load(Ordering::Relaxed);
        let mine = sequence & 1 == 0
            && self
                .sequence
                .compare_exchange(sequence, sequence + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !mine {
            return Err(());
        }
        let before = self.hash(key);
        // No word is stored before the number is odd.
        fence(Ordering::Release);
        self.dir.store(p.dir.0, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Relaxed);
        for (to, w) in self.name.iter().zip(p.name) {
            to.store(w, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
        Ok(before)
    }

    /// Hash of the name, if there is one. A hint: it may be changing.
    fn hash(&self, key: u64) -> Option<u64> {
        let dir = self.dir.load(Ordering::Relaxed);
        let mut name = [0; NAME_WORDS];
        for (to, w) in name.iter_mut().zip(&self.name) {
            *to = w.load(Ordering::Relaxed);
        }
        (dir != 0).then(|| hash(key, dir, &name))
    }
}

#[derive(Debug, Default)]
struct Entry {
    hash: u64,
    inode: Option<Arc<Inode>>,
}

#[derive(Debug, Default)]
struct Shard {
    table: RwLock<Table>,
    /// Where the table is, for prefetching: this may be the old one.
    address: AtomicUsize,
    mask: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    /// Sets of [`WAYS`]; a power of two of them.
    entries: Vec<Entry>,
    filled: usize,
}

impl Table {
    /// First entry of the set of a hash. Of a table that has none yet it may be
    /// any number.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        (hash as usize / SHARDS * WAYS) & self.entries.len().wrapping_sub(1)
    }

    #[inline]
    fn ways(&self, hash: u64) -> &[Entry] {
        let set = self.set(hash);
        let ways = self.entries.get(set..set.saturating_add(WAYS));
        ways.unwrap_or(&[])
    }

    fn ways_mut(&mut self, hash: u64) -> &mut [Entry] {
        let set = self.set(hash);
        let ways = self.entries.get_mut(set..set.saturating_add(WAYS));
        ways.unwrap_or(&mut [])
    }

    /// Puts an entry in; gives back what had to go for it.
    fn put(&mut self, entry: Entry) -> Option<Arc<Inode>> {
        let hash = entry.hash;
        let ways = self.ways_mut(hash);
        let at = ways
            .iter()
            .position(|e| e.hash == hash && e.inode.is_some())
            .or_else(|| ways.iter().position(|e| e.inode.is_none()))
            // Any will do; the same name does not always meet the same.
            .unwrap_or((hash >> 61) as usize % WAYS);
        let old = std::mem::replace(&mut ways[at], entry).inode;
        if old.is_none() {
            self.filled += 1;
        }
        old
    }
}

/// See the module.
#[derive(Debug)]
pub struct Dcache {
    shards: Box<[CachePadded<Shard>]>,
    /// Most entries of a shard.
    most: usize,
    /// Key of the hashes, for [`Probe::new`].
    pub key: u64,
}

impl Dcache {
    /// A cache for the names of so many inodes.
    pub fn new(inodes: usize, key: u64) -> Dcache {
        Dcache {
            key,
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            most: (inodes * 4 / SHARDS).next_power_of_two().max(FIRST),
        }
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize % SHARDS]
    }

    /// Has the line of the table fetched that [`with`](Self::with) will need.
    #[inline]
    pub fn prefetch(&self, p: &Probe) {
        let shard = self.shard(p.hash);
        let set = (p.hash as usize / SHARDS * WAYS) & shard.mask.load(Ordering::Relaxed);
        let at = shard.address.load(Ordering::Relaxed);
        pmem::prefetch_address::<Entry>(at.wrapping_add(set * size_of::<Entry>()));
    }

    /// Shows the inode that a name leads to, if it is known. The caller holds
    /// the lock of the directory, which has this generation; `f` waits for
    /// nothing.
    #[inline]
    pub fn with<T>(
        &self,
        p: &Probe,
        generation: u64,
        f: impl FnOnce(&Arc<Inode>) -> T,
    ) -> Option<T> {
        let table = self.shard(p.hash).table.read();
        let mut same = table.ways(p.hash).iter().filter(|e| e.hash == p.hash);
        let found = same.find_map(|e| {
            let inode = e.inode.as_ref()?;
            // All its lines at once.
            pmem::prefetch_object(&**inode);
            inode.known_as.is(p, generation).then_some(inode)
        });
        found.map(f)
    }

    /// Puts a name in. The caller holds the lock of the directory and has found
    /// this on the medium.
    pub fn put(&self, p: &Probe, generation: u64, inode: &Arc<Inode>) {
        let shard = self.shard(p.hash);
        let mut table = shard.table.write();
        // The name before the entry: an entry never leads to an inode that is
        // known by an older name with the same hash.
        let Ok(before) = inode.known_as.set(self.key, p, generation) else {
            return;
        };
        let mut dropped = None;
        let most = self.most;
        // Sets overflow long before the table is full.
        if table.filled * 4 >= table.entries.len() && table.entries.len() < most {
            let len = (table.entries.len() * 2).clamp(FIRST, most);
            let new = Table {
                entries: std::iter::repeat_with(Entry::default).take(len).collect(),
                filled: 0,
            };
            let old = std::mem::replace(&mut *table, new);
            for e in old.entries.into_iter().filter(|e| e.inode.is_some()) {
                dropped = table.put(e).or(dropped);
            }
            shard
                .address
                .store(table.entries.as_ptr().addr(), Ordering::Relaxed);
            shard.mask.store(len - 1, Ordering::Relaxed);
        }
        let old = table.put(Entry {
            hash: p.hash,
            inode: Some(inode.clone()),
        });
        drop(table);
        // Memory is given back outside the lock.
        drop((old, dropped));
        // An inode has one entry. Whoever put the one before held its shard
        // until it was there.
        if let Some(before) = before.filter(|b| *b != p.hash) {
            self.take(before, Some(inode));
        }
    }

    /// Takes a name out. The caller holds the lock of the directory
    /// exclusively, and is about to remove or replace the entry.
    pub fn forget(&self, p: &Probe) {
        // Who put it in held that lock: a table that has not been made by now
        // does not have it.
        if self.shard(p.hash).address.load(Ordering::Relaxed) != 0 {
            self.take(p.hash, None);
        }
    }

    /// Lets go of an inode that is to leave the inode cache.
    pub fn let_go(&self, inode: &Arc<Inode>) {
        if let Some(hash) = inode.known_as.hash(self.key) {
            self.take(hash, Some(inode));
        }
    }

    /// Takes out every entry with a hash, or those of one inode.
    fn take(&self, hash: u64, only: Option<&Arc<Inode>>) {
        let mut table = self.shard(hash).table.write();
        let mut taken: [Option<Arc<Inode>>; WAYS] = Default::default();
        for (e, to) in table.ways_mut(hash).iter_mut().zip(&mut taken) {
            let it = |i: &Arc<Inode>| only.is_none_or(|o| Arc::ptr_eq(i, o));
            if e.hash == hash && e.inode.as_ref().is_some_and(it) {
                *to = e.inode.take();
            }
        }
        table.filled -= taken.iter().flatten().count();
        drop(table);
        drop(taken);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::media::DiskInode;

    const KEY: u64 = 0x1234_5678_9abc_def1;

    fn inode(ino: u64) -> Arc<Inode> {
        Arc::new(Inode::new(Ino(ino), 0, DiskInode::new_zeroed()))
    }

    fn probe(dir: u64, name: &str) -> Probe {
        Probe::new(KEY, Ino(dir), name.as_bytes()).unwrap()
    }

    fn found(cache: &Dcache, p: &Probe, generation: u64) -> Option<u64> {
        cache.with(p, generation, |i| i.ino.0)
    }

    #[test]
    fn a_name_is_found_until_it_is_forgotten() {
        let cache = Dcache::new(1 << 16, KEY);
        let inodes: Vec<_> = (0..20_000).map(|i| inode(100 + i)).collect();
        let name = |i: usize| probe(2, &format!("name {i}"));
        for (i, inode) in inodes.iter().enumerate() {
            cache.put(&name(i), 7, inode);
        }
        let all = |i: &usize| found(&cache, &name(*i), 7) == Some(100 + *i as u64);
        let kept = (0..inodes.len()).filter(all).count();
        // A set that is full loses some.
        assert!(kept > 19_000, "{kept}");
        for i in (0..inodes.len()).step_by(2) {
            cache.forget(&name(i));
            assert_eq!(found(&cache, &name(i), 7), None);
        }
        let left = (1..inodes.len()).step_by(2).filter(all).count();
        assert!(left > 9_400, "{left}");
    }

    #[test]
    fn directory_generation_and_every_byte_count() {
        let cache = Dcache::new(1000, KEY);
        let long = "x".repeat(LONGEST);
        cache.put(&probe(2, &long), 7, &inode(50));
        assert_eq!(found(&cache, &probe(2, &long), 7), Some(50));
        assert_eq!(found(&cache, &probe(2, &long), 8), None);
        assert_eq!(found(&cache, &probe(3, &long), 7), None);
        for at in 0..LONGEST {
            let mut other = long.clone().into_bytes();
            other[at] = b'y';
            let p = Probe::new(KEY, Ino(2), &other).unwrap();
            assert_eq!(found(&cache, &p, 7), None, "{at}");
        }
        assert_eq!(found(&cache, &probe(2, &long[1..]), 7), None);
        assert!(Probe::new(KEY, Ino(2), &[b'x'; LONGEST + 1]).is_none());
    }

    #[test]
    fn a_table_without_entries_has_no_name_of_any_hash() {
        let cache = Dcache::new(1000, KEY);
        for hash in (0..200).chain([u64::MAX, 1 << 63]) {
            let p = Probe {
                hash,
                ..probe(2, "a")
            };
            cache.prefetch(&p);
            assert_eq!(found(&cache, &p, 7), None);
            cache.forget(&p);
        }
        for hash in 0..200 {
            let p = Probe {
                hash,
                ..probe(2, "a")
            };
            let file = inode(50);
            cache.put(&p, 7, &file);
            assert_eq!(found(&cache, &p, 7), Some(50), "{hash}");
        }
    }

    #[test]
    fn an_inode_is_held_once_and_let_go() {
        let cache = Dcache::new(1000, KEY);
        let file = inode(50);
        for name in ["a", "b", "a", "c"] {
            cache.put(&probe(2, name), 7, &file);
            assert_eq!(found(&cache, &probe(2, name), 7), Some(50));
            assert_eq!(Arc::strong_count(&file), 2, "{name}");
        }
        assert_eq!(found(&cache, &probe(2, "a"), 7), None);
        cache.let_go(&file);
        assert_eq!(Arc::strong_count(&file), 1);
        assert_eq!(found(&cache, &probe(2, "c"), 7), None);
    }

    #[test]
    fn a_name_that_moves_leads_to_the_new_inode_only() {
        let cache = Dcache::new(1000, KEY);
        let (old, new) = (inode(50), inode(51));
        cache.put(&probe(2, "a"), 7, &old);
        cache.forget(&probe(2, "a"));
        cache.put(&probe(2, "a"), 7, &new);
        assert_eq!(found(&cache, &probe(2, "a"), 7), Some(51));
        assert_eq!(Arc::strong_count(&old), 1);
    }
}
