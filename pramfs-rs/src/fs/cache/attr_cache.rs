//! The attribute cache: the `stat` attributes of inodes in memory, and the name by which
//! each inode was last found. Readers take no lock.
//!
//! A lookup with locks takes about a dozen of them. Each waits for all earlier loads, so
//! the memory latencies add up. A reader of this cache only loads, so the processor
//! begins the next lookup while this one waits.
//!
//! An inode has one slot, chosen by its number. If two inodes have the same slot, the
//! later one replaces the other. Each slot has a sequence lock: a read is valid if the
//! sequence number was even and did not change.
//!
//! Invariant: a slot shows the attributes in the inode's
//! [`InodeState`](crate::fs::inode::state::InodeState).
//!
//! - An inode is published under its lock, shared or exclusive.
//! - Taking that lock exclusively ([`InodeLock::write`](crate::fs::inode::lock))
//!   invalidates the slot before anything changes.
//! - A name is published under the lock of its directory as well. A thread that removes
//!   or replaces a name holds the exclusive lock of the inode that the name leads to.
//! - A slot never shows an inode that has left memory: dropping its [`AttrSlot`]
//!   invalidates the slot.
//!
//! A removed directory was empty, so no name in it is left here. The check for
//! emptiness reads the entries and does not trust the directory's count
//! (`check_empty_dir` in [`unlink`](crate::fs::ops::unlink)).

use std::sync::Arc;

use crate::fs::cache::attr_words::{ATTR_WORDS, attr_of_words, to_words};
use crate::fs::cache::probe::{NAME_WORDS, Probe};
use pramfs_medium::pmem::{self, AtomicTable};
use pramfs_medium::sync::atomic::{AtomicU64, Ordering, fence};
use pramfs_medium::sync::order::{acquire, release};
use pramfs_medium::types::{Attr, Ino};

/// Words of a slot.
const WORDS: usize = USED + 1;
type Slot = [AtomicU64; WORDS];

// A lookup compares the words of the first cache line.
const SEQUENCE: usize = 0;
/// Number of the inode; 0 if the slot was never used.
const INO: usize = 1;
/// A flag in the number: the slot no longer shows this inode. Inode numbers are smaller.
const INVALID: u64 = 1 << 63;
/// Directory of the name; 0 if the slot has no name.
const DIR: usize = 2;
const NAME: usize = 3;
const ATTR: usize = NAME + NAME_WORDS;
/// Nonzero if the slot was read since the last pass of the eviction. The sequence lock
/// does not cover this word.
const USED: usize = ATTR + ATTR_WORDS;
// Three cache lines. The model checker uses fewer words for names and attributes.
const _: () = assert!(WORDS == 24 || cfg!(loom));

/// The attribute cache, see the module.
#[derive(Debug)]
pub(crate) struct AttrCache {
    words: AtomicTable,
    slots: u64,
}

/// The slot of an inode, kept with its lock. Dropping it invalidates the slot.
#[derive(Debug)]
pub(crate) struct AttrSlot {
    cache: Arc<AttrCache>,
    ino: Ino,
}

/// A successful [`AttrCache::find`]: the inode, and the sequence number of its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeqToken {
    ino: Ino,
    sequence: u64,
}

impl AttrCache {
    /// Creates a cache of `slots` slots. Memory is allocated as slots are filled.
    pub(crate) fn new(slots: usize) -> AttrCache {
        AttrCache {
            words: AtomicTable::new(
                slots.saturating_mul(WORDS),
                "the attribute cache (a smaller cache_mem takes less)",
            ),
            slots: slots.max(1) as u64,
        }
    }

    #[inline]
    fn slot(&self, ino: Ino) -> Option<&Slot> {
        if ino.0 == 0 {
            return None;
        }
        let at = (ino.0 % self.slots) as usize * WORDS;
        self.words.get(at..)?.first_chunk()
    }

    /// Prefetches the slot of an inode.
    #[inline]
    pub(crate) fn prefetch(&self, ino: Ino) {
        if let Some(slot) = self.slot(ino) {
            pmem::prefetch_object(slot);
        }
    }

    /// Returns the attributes of an inode, if they are cached.
    #[inline]
    pub(crate) fn get(&self, ino: Ino) -> Option<Attr> {
        let slot = self.slot(ino)?;
        let (attr, _) = read(slot, |s| {
            (s[INO].load(Ordering::Relaxed) == ino.0).then(|| attr(s))
        })?;
        note_use(slot);
        Some(attr)
    }

    /// Returns the attributes of an inode if its slot has this name.
    #[inline(always)]
    pub(crate) fn find(&self, ino: Ino, p: &Probe) -> Option<(Attr, SeqToken)> {
        let slot = self.slot(ino)?;
        // Fetch all lines of the slot at once.
        pmem::prefetch_object(slot);
        let (attr, sequence) = read(slot, |s| {
            let word = |at: usize| s[at].load(Ordering::Relaxed);
            let mut differ = (word(INO) ^ ino.0) | (word(DIR) ^ p.dir.0);
            for (i, n) in p.name.iter().enumerate() {
                differ |= word(NAME + i) ^ n;
            }
            (differ == 0).then(|| attr(s))
        })?;
        note_use(slot);
        Some((attr, SeqToken { ino, sequence }))
    }

    /// Whether the slot still shows the attributes that `find` returned. The caller reads
    /// nothing from the slot afterwards, and
    /// [`Refs::add`](crate::fs::inode::refs::Refs::add) orders this load after the reference.
    #[inline]
    pub(crate) fn is_current(&self, seen: &SeqToken) -> bool {
        self.slot(seen.ino)
            .is_some_and(|s| s[SEQUENCE].load(Ordering::Relaxed) == seen.sequence)
    }

    /// Publishes the attributes of an inode, and a name that leads to it. The caller:
    ///
    /// - holds the lock of the inode, and of the directory if there is a name;
    /// - has checked that the inode is not gone;
    /// - has given the lock an [`AttrSlot`].
    ///
    /// True if the slot was never used before.
    pub(crate) fn publish(&self, attr: &Attr, name: Option<&Probe>) -> bool {
        let Some(slot) = self.slot(attr.ino) else {
            return false;
        };
        let now = |at: usize| slot[at].load(Ordering::Relaxed);
        // A caller without a name must not remove the cached one.
        if name.is_none() && now(INO) == attr.ino.0 {
            return false;
        }
        let Some(sequence) = begin(slot, now(SEQUENCE)) else {
            return false;
        };
        let put = |at: usize, word: u64| slot[at].store(word, Ordering::Relaxed);
        put(INO, attr.ino.0);
        put(DIR, name.map_or(0, |n| n.dir.0));
        for i in 0..NAME_WORDS {
            put(NAME + i, name.map_or(0, |n| n.name[i]));
        }
        for (i, word) in to_words(attr).into_iter().enumerate() {
            put(ATTR + i, word);
        }
        end(slot, sequence);
        sequence == 1
    }

    /// Invalidates the slot of an inode. One of two cases holds:
    ///
    /// - The caller holds the exclusive lock of the inode, so no thread publishes this
    ///   inode. A thread that is writing the slot publishes another inode there.
    /// - The inode leaves memory. If its number has been reused, this invalidates the new
    ///   inode's slot, which is unnecessary but harmless.
    fn invalidate(&self, ino: Ino) {
        let Some(slot) = self.slot(ino) else {
            return;
        };
        let sequence = slot[SEQUENCE].load(Ordering::Relaxed);
        if slot[INO].load(Ordering::Relaxed) == ino.0
            && let Some(sequence) = begin(slot, sequence)
        {
            slot[INO].store(ino.0 | INVALID, Ordering::Relaxed);
            end(slot, sequence);
        }
    }

    /// Returns the directory and the name by which an inode was last found, even if the
    /// slot is invalid. This is a hint for messages: the inode may have been renamed or
    /// unlinked since.
    pub(crate) fn last_name(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let slot = self.slot(ino)?;
        let (found, _) = read(slot, |s| {
            let word = |at: usize| s[at].load(Ordering::Relaxed);
            let known = word(INO) & !INVALID == ino.0 && word(DIR) != 0;
            known.then(|| (Ino(word(DIR)), std::array::from_fn(|i| word(NAME + i))))
        })?;
        let (dir, words): (Ino, [u64; NAME_WORDS]) = found;
        let mut name: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let len = name.pop()?;
        name.truncate(usize::from(len));
        Some((dir, name))
    }

    /// Whether an inode was read here since the last call of this method.
    pub(crate) fn take_used(&self, ino: Ino) -> bool {
        self.slot(ino).is_some_and(|s| {
            let word = |at: usize| s[at].load(Ordering::Relaxed);
            let used = word(INO) == ino.0 && word(USED) != 0;
            if used {
                s[USED].store(0, Ordering::Relaxed);
            }
            used
        })
    }

    /// See [`AtomicTable::advise_huge`].
    pub(crate) fn advise_huge(&self) {
        self.words.advise_huge();
    }
}

impl AttrSlot {
    /// Creates the slot for the lock of an inode that is about to be published.
    pub(crate) fn new(cache: &Arc<AttrCache>, ino: Ino) -> AttrSlot {
        AttrSlot {
            cache: cache.clone(),
            ino,
        }
    }

    /// Invalidates the slot, before the inode changes.
    #[inline]
    pub(crate) fn invalidate(&self) {
        self.cache.invalidate(self.ino);
    }
}

impl Drop for AttrSlot {
    fn drop(&mut self) {
        self.invalidate();
    }
}

#[inline]
fn note_use(slot: &Slot) {
    // Read first, to write a shared cache line rarely.
    if slot[USED].load(Ordering::Relaxed) == 0 {
        slot[USED].store(1, Ordering::Relaxed);
    }
}

/// Reads a consistent state of a slot. Returns it with the sequence number.
#[inline(always)]
fn read<T>(slot: &Slot, f: impl FnOnce(&Slot) -> Option<T>) -> Option<(T, u64)> {
    let sequence = slot[SEQUENCE].load(acquire("attr-read-begin"));
    let found = f(slot)?;
    fence(acquire("attr-read-end"));
    let same = slot[SEQUENCE].load(Ordering::Relaxed) == sequence;
    (same && sequence & 1 == 0).then_some((found, sequence))
}

/// Begins to write a slot; `None` if another thread is writing it.
fn begin(slot: &Slot, sequence: u64) -> Option<u64> {
    let odd = sequence.wrapping_add(1);
    let mine = sequence & 1 == 0
        && slot[SEQUENCE]
            .compare_exchange(sequence, odd, acquire("attr-begin"), Ordering::Relaxed)
            .is_ok();
    // Orders the odd number before the stores of the other words.
    fence(release("attr-begin-fence"));
    mine.then_some(odd)
}

fn end(slot: &Slot, odd: u64) {
    slot[SEQUENCE].store(odd.wrapping_add(1), release("attr-end"));
}

#[inline]
fn attr(slot: &Slot) -> Attr {
    let ino = Ino(slot[INO].load(Ordering::Relaxed));
    attr_of_words(ino, |i| slot[ATTR + i].load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use zerocopy::FromZeros;

    use super::*;
    use crate::fs::inode::Inode;
    use pramfs_medium::media::DiskInode;
    use pramfs_medium::types::{FileType, RegionOffset, Time};

    const KEY: u64 = 77;

    fn attr_of(ino: u64) -> Attr {
        let time = |n: u32| Time {
            sec: -(ino as i64) - i64::from(n),
            nsec: 999_999_990 + n,
        };
        Attr {
            ino: Ino(ino),
            generation: ino << 40 | 1,
            kind: FileType::Symlink,
            perm: 0o7531,
            nlink: u32::MAX - 1,
            uid: u32::MAX - 2,
            gid: u32::MAX - 3,
            rdev: u64::MAX - 4,
            size: u64::MAX - 5,
            blocks: u64::MAX - 6,
            blksize: 1 << 31,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
            btime: time(4),
            flags: u32::MAX - 7,
            change: u64::MAX - 8,
        }
    }

    fn probe(name: &str) -> Probe {
        Probe::new(KEY, Ino(2), name.as_bytes()).unwrap()
    }

    #[test]
    fn published_fields_are_read_until_hidden() {
        let cache = Arc::new(AttrCache::new(1000));
        for ino in [1, 50, 999, 123_456_789] {
            assert_eq!(cache.get(Ino(ino)), None);
            cache.publish(&attr_of(ino), None);
            assert_eq!(cache.get(Ino(ino)), Some(attr_of(ino)));
            drop(AttrSlot::new(&cache, Ino(ino)));
            assert_eq!(cache.get(Ino(ino)), None);
        }
    }

    #[test]
    fn last_name_survives_getattr() {
        let cache = AttrCache::new(1000);
        let found = |name| cache.find(Ino(50), &probe(name)).is_some();
        cache.publish(&attr_of(50), None);
        assert!(!found("a"));
        cache.publish(&attr_of(50), Some(&probe("a")));
        cache.publish(&attr_of(50), None);
        assert!(found("a") && !found("b"));
        cache.publish(&attr_of(50), Some(&probe("b")));
        assert!(!found("a") && found("b"));
        assert!(cache.find(Ino(51), &probe("b")).is_none());
    }

    #[test]
    fn inodes_of_one_slot_evict_each_other() {
        let cache = Arc::new(AttrCache::new(1000));
        cache.publish(&attr_of(50), None);
        cache.publish(&attr_of(1050), None);
        assert_eq!(cache.get(Ino(50)), None);
        // An inode without its slot invalidates nothing.
        drop(AttrSlot::new(&cache, Ino(50)));
        assert_eq!(cache.get(Ino(1050)), Some(attr_of(1050)));
    }

    #[test]
    fn seen_attributes_expire_after_change() {
        let cache = Arc::new(AttrCache::new(1000));
        cache.publish(&attr_of(50), Some(&probe("a")));
        let (_, seen) = cache.find(Ino(50), &probe("a")).unwrap();
        assert!(cache.is_current(&seen));
        AttrSlot::new(&cache, Ino(50)).invalidate();
        assert!(!cache.is_current(&seen));
        cache.publish(&attr_of(50), Some(&probe("a")));
        assert!(!cache.is_current(&seen));
    }

    #[test]
    fn only_exclusive_lock_hides_attributes() {
        let cache = Arc::new(AttrCache::new(1000));
        let inode = Inode::new(Ino(50), RegionOffset(0), DiskInode::new_zeroed());
        inode.state.set_attr_slot(|| AttrSlot::new(&cache, Ino(50)));
        let show = || cache.publish(&attr_of(50), None);
        let shown = || cache.get(Ino(50)).is_some();
        show();
        drop(inode.state.read());
        assert!(shown());
        drop(inode.state.write());
        assert!(!shown());
        show();
        drop(inode.state.try_write());
        assert!(!shown());
        show();
        drop(inode);
        assert!(!shown());
    }

    #[test]
    fn inode_number_zero_is_never_published() {
        let cache = Arc::new(AttrCache::new(1000));
        assert_eq!(cache.get(Ino(0)), None);
        // An inode in the slot that number 0 would have.
        cache.publish(&attr_of(1000), None);
        drop(AttrSlot::new(&cache, Ino(1000)));
        assert_eq!(cache.get(Ino(0)), None);
        assert!(cache.find(Ino(0), &probe("a")).is_none());
    }

    #[test]
    fn slot_is_reported_new_once() {
        let cache = AttrCache::new(1000);
        assert!(cache.publish(&attr_of(50), None));
        assert!(!cache.publish(&attr_of(50), Some(&probe("a"))));
        assert!(!cache.publish(&attr_of(1050), None));
    }

    #[test]
    fn use_is_recorded_for_used_inode() {
        let cache = AttrCache::new(1000);
        cache.publish(&attr_of(50), None);
        assert!(!cache.take_used(Ino(50)));
        cache.get(Ino(50));
        assert!(!cache.take_used(Ino(1050)));
        assert!(cache.take_used(Ino(50)));
        assert!(!cache.take_used(Ino(50)));
    }

    #[test]
    fn cache_without_memory_publishes_nothing() {
        let cache = Arc::new(AttrCache::new(usize::MAX));
        cache.publish(&attr_of(50), None);
        assert_eq!(cache.get(Ino(50)), None);
        assert!(cache.find(Ino(50), &probe("a")).is_none() && !cache.take_used(Ino(50)));
        drop(AttrSlot::new(&cache, Ino(50)));
    }

    /// Two threads publish and invalidate two inodes of one slot. A reader gets all
    /// attributes from one of them.
    #[test]
    fn concurrent_read_never_mixes_inodes() {
        // Few slots, because Miri visits all of them on each access.
        let cache = Arc::new(AttrCache::new(10));
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for ino in [50, 1050] {
                let (cache, stop) = (&cache, &stop);
                s.spawn(move || {
                    for _ in 0..if cfg!(miri) { 30 } else { 100_000 } {
                        cache.publish(&attr_of(ino), Some(&probe("a")));
                        AttrSlot::new(cache, Ino(ino)).invalidate();
                    }
                    stop.store(true, Ordering::Release);
                });
            }
            let mut good = 0;
            while !stop.load(Ordering::Acquire) {
                for ino in [50, 1050] {
                    if let Some(a) = cache.get(Ino(ino)) {
                        assert_eq!(a, attr_of(ino));
                        good += 1;
                    }
                }
            }
            println!("{good} read");
        });
    }
}
