//! Which files are open through the kernel's page cache, and which are stored to directly.
//!
//! A page in the cache does not see a direct store, and its write-back may undo one.
//! Invariant: no file is both at the same time. So no page is ever written back, and `read`
//! sees each store.
//!
//! - A lease to write is refused while a file is open through the page cache. A mapping
//!   counts as open: the kernel sends the release after the last one.
//! - While a file has such a lease, every open of it gets `FOPEN_DIRECT_IO`. The mount does
//!   not ask for `FUSE_DIRECT_IO_ALLOW_MMAP`, so a shared mapping of such an open is refused.
//! - The kernel drops its pages of the file after the last such lease, and before the next
//!   open through the page cache.
//! - Without an open through the cache, the kernel still reads pages into it for private
//!   mappings and for `splice` and `sendfile`, which ignore `FOPEN_DIRECT_IO`. It drops them
//!   at each look of the timer, if the file has been stored to since.
//!
//! A store through a mapping of the mount reaches the medium at the write-back of its page. The holder
//! of a lease to read that must not miss one ([`Coherence`]) is told of each program that could make
//! such a mapping, which takes an open for reading and writing through the page cache:
//!
//! - While there is such an open, the lease is refused.
//! - Before such an open is answered, the lease is recalled: the holder knows no blocks from then
//!   on. If the holder has mapped the file, the open gets `FOPEN_DIRECT_IO` instead.
//!
//! A lease of an earlier mount counts as one whose holder has mapped the file.
//!
//! The bytes of a file that is stored to are never lent to the kernel as a slice (`lent`).
//! A lease to write waits for the reads that may be lending ([`Opens::lend`]).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::inode::{Fs, Ino, LeaseEvent, LeaseMode};
use pramfs_control::{Coherence, Refusal, Refused};

use super::grown::Grown;
use super::lending::{Lend, Lending};
use crate::adapter::Notifier;

/// How a file is in use. Never unused in the table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Uses {
    /// Opens through the page cache.
    cached: u64,
    /// Those of them that are for reading and writing: the program may map the file for stores.
    storing: u64,
    /// Other opens.
    direct: u64,
    /// When an open was last asked to be made again, because a window has been closed for it.
    again: Option<Instant>,
    /// The size that the kernel was told last.
    told: Option<u64>,
    /// Leases to write that are being granted.
    granting: u64,
    /// The other leases to write, by their `id`.
    writers: Vec<u64>,
    /// Leases to read that are recalled before an open for stores, by their `id`.
    readers: Vec<u64>,
    /// Leases to read that keep such an open from the page cache.
    kept: Vec<u64>,
    /// A request has found a note of stores since the last look of the timer.
    stored: bool,
}

impl Uses {
    fn is_written(&self) -> bool {
        self.granting > 0 || !self.writers.is_empty()
    }
}

/// How an open is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum OpenedHow {
    /// Through the page cache.
    Cached,
    /// Through the page cache, after the leases to read have been recalled
    /// (`Fs::recall_leases`) and [`Opens::end_recall`] was called.
    CachedAfterRecall,
    /// Without the page cache.
    Direct,
}

/// The uses of the files of a mount.
#[derive(Debug)]
pub struct Opens {
    files: Mutex<HashMap<Ino, Uses>>,
    /// Files with leases to write, so that most requests need no lock.
    written: AtomicUsize,
    /// A process stores to a file that nobody knows, or guests map files. So every file counts as
    /// stored to.
    all_written: bool,
    grown: Grown,
    lending: Lending,
    /// Leases to read that are recalled, by their `id`. They are told no blocks. Locked after
    /// `files`.
    recalled: Mutex<HashSet<u64>>,
    notifier: Notifier,
}

/// How long an open is not asked to be made again.
const AGAIN: Duration = Duration::from_secs(1);
fn mapped_for_stores() -> Refused {
    Refused::new(
        Refusal::Busy,
        "the file is open for reading and writing through the page cache of the kernel: a direct \
         reader would see stores through a mapping late; it goes on through the mount",
    )
}

/// A lease to write that is being granted.
#[derive(Debug)]
pub(super) struct Writing<'o> {
    opens: &'o Opens,
    ino: Ino,
}

impl Writing<'_> {
    /// The lease exists. Its end is noted by itself.
    pub(super) fn granted(self, id: u64) {
        self.opens.change(self.ino, |uses| uses.writers.push(id));
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.opens.change(self.ino, |uses| uses.granting -= 1);
    }
}

impl Opens {
    /// No uses.
    fn new(notifier: Notifier) -> Opens {
        Opens {
            files: Mutex::default(),
            written: AtomicUsize::default(),
            all_written: false,
            grown: Grown::default(),
            lending: Lending::default(),
            recalled: Mutex::default(),
            notifier,
        }
    }

    /// Starts with the leases of earlier mounts, and follows the ends of all leases. Guests that
    /// map files may store to any file at any time.
    pub fn of(fs: &Fs, notifier: Notifier, guests_map: bool) -> Arc<Opens> {
        let mut opens = Opens::new(notifier);
        opens.all_written = guests_map || fs.has_unknown_lease();
        let opens = Arc::new(opens);
        let weak = Arc::downgrade(&opens);
        fs.watch_leases(move |lease, event| {
            let Some(opens) = weak.upgrade() else {
                return;
            };
            match (lease.mode, event) {
                (LeaseMode::Write, LeaseEvent::Checked { stored }) => {
                    opens.checked(lease.ino, stored);
                }
                (LeaseMode::Write, LeaseEvent::Ended) => opens.writer_ended(lease.ino, lease.id),
                (LeaseMode::Read, LeaseEvent::Ended) => opens.reader_ended(lease.ino, lease.id),
                (LeaseMode::Read, LeaseEvent::Checked { .. }) => {}
            }
        });
        // An end that comes meanwhile waits for the lock.
        let mut files = opens.lock();
        for lease in fs.leases() {
            let uses = files.entry(lease.ino).or_default();
            match lease.mode {
                LeaseMode::Write => {
                    opens.grown.add(lease.ino);
                    uses.writers.push(lease.id);
                }
                LeaseMode::Read => uses.kept.push(lease.id),
            }
        }
        let written = files.values().filter(|uses| uses.is_written()).count();
        opens.written.store(written, Ordering::SeqCst);
        drop(files);
        opens
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Uses>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the uses of a file.
    fn change<T>(&self, ino: Ino, change: impl FnOnce(&mut Uses) -> T) -> T {
        let mut files = self.lock();
        let uses = files.entry(ino).or_default();
        let before = uses.is_written();
        let changed = change(uses);
        match (before, uses.is_written()) {
            (false, true) => _ = self.written.fetch_add(1, Ordering::SeqCst),
            (true, false) => {
                uses.stored = false;
                (uses.again, uses.told) = (None, None);
                self.written.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }
        if *uses == Uses::default() {
            files.remove(&ino);
        }
        changed
    }

    /// Notes an open that may use the page cache. `stores`: it is for reading and writing. Such an
    /// open comes first, and then the leases are recalled, so that a holder that asks for blocks
    /// finds one of the two. Every open recalls for itself until one has done it: none may be
    /// answered before.
    pub(crate) fn open_cached(&self, ino: Ino, stores: bool) -> OpenedHow {
        if self.all_written {
            return OpenedHow::Direct;
        }
        self.change(ino, |uses| {
            if uses.is_written() || stores && !uses.kept.is_empty() {
                return OpenedHow::Direct;
            }
            uses.cached += 1;
            if !stores {
                return OpenedHow::Cached;
            }
            uses.storing += 1;
            if uses.readers.is_empty() {
                return OpenedHow::Cached;
            }
            self.recalled().extend(&uses.readers);
            OpenedHow::CachedAfterRecall
        })
    }

    /// Notes that the leases to read of a file are recalled, or that the holders could not be told:
    /// then they keep the page cache away, and the open is made [without](OpenedHow::Direct).
    pub(crate) fn end_recall(&self, ino: Ino, are_told: bool) {
        self.change(ino, |uses| {
            let recalled = self.recalled();
            let (done, rest) = uses.readers.iter().partition(|id| recalled.contains(id));
            uses.readers = rest;
            if !are_told {
                let done: Vec<u64> = done;
                uses.kept.extend(done);
                uses.cached = uses.cached.saturating_sub(1);
                uses.storing = uses.storing.saturating_sub(1);
            }
        });
    }

    fn recalled(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.recalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a lease to read is recalled. The answer to a question for blocks is looked at here
    /// after they were found: those of before the recall are of a layout that has passed.
    pub(super) fn is_recalled(&self, id: u64) -> bool {
        self.recalled().contains(&id)
    }

    /// Notes a lease to read, which exists already, or changes what it is noted as.
    ///
    /// # Errors
    /// A program may store to the file through the page cache; or that has been so meanwhile.
    pub(super) fn note_reader(
        &self,
        ino: Ino,
        id: u64,
        coherence: Coherence,
    ) -> Result<(), Refused> {
        let noted = self.change(ino, |uses| {
            if uses.storing > 0 || self.is_recalled(id) {
                return false;
            }
            uses.readers.retain(|reader| *reader != id);
            uses.kept.retain(|reader| *reader != id);
            match coherence {
                Coherence::WriteBack => {}
                Coherence::Recalled => uses.readers.push(id),
                Coherence::Kept => uses.kept.push(id),
            }
            true
        });
        match noted {
            true => Ok(()),
            false => Err(mapped_for_stores()),
        }
    }

    /// Checks that a lease to read may be granted, before it costs a record.
    ///
    /// # Errors
    /// As for [`note_reader`](Self::note_reader).
    pub(super) fn check_reader(&self, ino: Ino, coherence: Coherence) -> Result<(), Refused> {
        let storing = self.lock().get(&ino).map_or(0, |uses| uses.storing);
        match coherence != Coherence::WriteBack && storing > 0 {
            true => Err(mapped_for_stores()),
            false => Ok(()),
        }
    }

    pub(super) fn reader_ended(&self, ino: Ino, id: u64) {
        self.change(ino, |uses| {
            uses.readers.retain(|reader| *reader != id);
            uses.kept.retain(|reader| *reader != id);
        });
        self.recalled().remove(&id);
    }

    /// Notes an open that does not use the page cache.
    pub(crate) fn open_direct(&self, ino: Ino) {
        self.change(ino, |uses| uses.direct += 1);
    }

    /// Notes the end of such an open.
    pub(crate) fn close_direct(&self, ino: Ino) {
        self.change(ino, |uses| uses.direct = uses.direct.saturating_sub(1));
    }

    /// Returns the number of opens that do not use the page cache.
    pub(super) fn opened_direct(&self, ino: Ino) -> u64 {
        self.lock().get(&ino).map_or(0, |uses| uses.direct)
    }

    /// Notes the size that the kernel is told for a file that is stored to.
    pub(crate) fn note_told(&self, ino: Ino, size: u64) {
        self.change(ino, |uses| {
            if uses.is_written() {
                uses.told = Some(size);
            }
        });
    }

    /// Whether an open is asked to be made again, because the kernel has another size of the
    /// file. Not twice in a short time: the kernel tries once.
    pub(crate) fn must_open_again(&self, ino: Ino, size: u64) -> bool {
        let now = Instant::now();
        self.change(ino, |uses| {
            let recent = |last: Instant| now.duration_since(last) < AGAIN;
            let knows = uses.told == Some(size);
            let may = uses.is_written() && !knows && !uses.again.is_some_and(recent);
            if may {
                uses.again = Some(now);
            }
            may
        })
    }

    /// Notes the end of an open through the page cache. The kernel has written back what was stored
    /// through its mappings.
    pub(crate) fn close_cached(&self, ino: Ino, stores: bool) {
        self.change(ino, |uses| {
            uses.cached = uses.cached.saturating_sub(1);
            uses.storing = uses.storing.saturating_sub(stores.into());
        });
    }

    /// Whether a file is stored to directly.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        self.all_written
            || self.are_written() && self.lock().get(&ino).is_some_and(Uses::is_written)
    }

    /// Whether every file counts as stored to: another kernel may have changed its size.
    pub(crate) fn are_all_written(&self) -> bool {
        self.all_written
    }

    /// Whether the kernel may have an old size of a file, so that it tells a wrong offset for an
    /// append: a process has had a lease to write since the mount began.
    pub(crate) fn may_have_grown(&self, ino: Ino) -> bool {
        self.all_written || self.grown.has(ino)
    }

    /// Begins a read that may lend bytes of a file to the kernel. `None` if the file is stored
    /// to.
    pub(crate) fn lend(&self, ino: Ino) -> Option<Lend<'_>> {
        // First, so that a lease to write waits for it, or is seen here.
        let lend = self.lending.begin();
        (!self.is_written(ino)).then_some(lend)
    }

    /// Notes that a request has found stores to a file. The kernel drops its pages a little
    /// later: not from inside the handler.
    pub(crate) fn note_stored(&self, ino: Ino) {
        self.change(ino, |uses| uses.stored = uses.is_written());
    }

    fn checked(&self, ino: Ino, stored: bool) {
        let noted = self.change(ino, |uses| std::mem::take(&mut uses.stored));
        if stored || noted {
            self.invalidate(ino, 0);
        }
    }

    /// Whether any file is stored to directly.
    pub fn are_written(&self) -> bool {
        self.all_written || self.written.load(Ordering::SeqCst) != 0
    }

    /// Whether there are leases, also of earlier mounts.
    pub fn are_needed(&self) -> bool {
        self.are_written() || !self.lock().is_empty()
    }

    /// Begins to grant a lease to write.
    ///
    /// # Errors
    /// The file is open through the page cache.
    pub(super) fn begin_writing(&self, ino: Ino) -> Result<Writing<'_>, Refused> {
        let cached = self.change(ino, |uses| {
            uses.granting += u64::from(uses.cached == 0);
            uses.cached
        });
        if cached > 0 {
            return Err(Refused::new(
                Refusal::Busy,
                format!(
                    "the file is open or mapped {cached} times through the page cache of the kernel, \
                     which would not see direct stores; close it there, or open it with O_DIRECT"
                ),
            ));
        }
        let writing = Writing { opens: self, ino };
        self.grown.add(ino);
        self.lending.wait();
        // Pages from before, and attributes, which may be cached for a day.
        self.invalidate(ino, 0);
        Ok(writing)
    }

    fn writer_ended(&self, ino: Ino, id: u64) {
        // Pages of private mappings, and those from before the lease. Nobody opens the file
        // through the cache meanwhile. Without the lock: the kernel may wait for requests.
        self.invalidate(ino, 0);
        self.change(ino, |uses| uses.writers.retain(|writer| *writer != id));
    }

    /// Makes the kernel drop the attributes of a file, and its pages from an offset on, which
    /// are none if the offset is negative. Never called from the handler of a request.
    fn invalidate(&self, ino: Ino, from: i64) {
        if let Err(error) = self.notifier.invalidate(ino.0, from, 0) {
            // Most often the kernel does not know the inode.
            tracing::debug!("the kernel's copy of {ino} is not dropped: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(77);

    impl Opens {
        fn opens_cached(&self, ino: Ino) -> bool {
            self.open_cached(ino, false) == OpenedHow::Cached
        }
    }

    #[test]
    fn open_through_cache_refuses_writer_until_it_is_closed() {
        let opens = Opens::new(crate::adapter::nowhere());
        assert!(opens.opens_cached(FILE) && opens.opens_cached(FILE));
        let refused = opens.begin_writing(FILE).unwrap_err();
        assert_eq!(refused.reason, Refusal::Busy);
        assert!(refused.message.contains("2 times"), "{}", refused.message);
        opens.close_cached(FILE, false);
        assert!(opens.begin_writing(FILE).is_err());
        opens.close_cached(FILE, false);
        opens.begin_writing(FILE).unwrap().granted(1);
        assert!(opens.is_written(FILE) && !opens.is_written(Ino(78)));
    }

    #[test]
    fn writer_refuses_page_cache_until_last_one_ends() {
        let opens = Opens::new(crate::adapter::nowhere());
        for id in 1..3 {
            opens.begin_writing(FILE).unwrap().granted(id);
        }
        assert!(!opens.opens_cached(FILE) && opens.opens_cached(Ino(78)));
        opens.writer_ended(FILE, 1);
        // A second time, and one that was never noted.
        opens.writer_ended(FILE, 1);
        opens.writer_ended(FILE, 3);
        assert!(!opens.opens_cached(FILE));
        opens.writer_ended(FILE, 2);
        assert!(opens.opens_cached(FILE));
        opens.close_cached(FILE, false);
        opens.close_cached(Ino(78), false);
        assert!(opens.lock().is_empty(), "an unused file costs no memory");
        assert_eq!(opens.written.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn writer_waits_for_reads_that_lend_and_for_no_later_ones() {
        let opens = Opens::new(crate::adapter::nowhere());
        let lend = opens.lend(FILE).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| opens.begin_writing(FILE).unwrap().granted(1));
            // Seen as soon as the writer waits.
            while !opens.is_written(FILE) {
                std::thread::yield_now();
            }
            assert!(opens.lend(FILE).is_none());
            let other = opens.lend(Ino(78)).unwrap();
            assert!(!writer.is_finished());
            drop(lend);
            while opens.lending.set.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(other);
            writer.join().unwrap();
        });
        assert!(opens.lend(FILE).is_none());
    }

    #[test]
    fn unknown_writer_keeps_all_files_out_of_page_cache() {
        let opens = Opens {
            all_written: true,
            ..Opens::new(crate::adapter::nowhere())
        };
        assert!(opens.are_written() && opens.is_written(FILE));
        assert!(!opens.opens_cached(FILE) && opens.lend(FILE).is_none());
    }

    #[test]
    fn refused_grant_leaves_nothing() {
        let opens = Opens::new(crate::adapter::nowhere());
        let writing = opens.begin_writing(FILE).unwrap();
        assert!(opens.is_written(FILE) && !opens.opens_cached(FILE));
        drop(writing);
        assert!(!opens.is_written(FILE) && opens.opens_cached(FILE));
    }

    #[test]
    fn open_for_stores_recalls_reader_or_is_kept_from_cache() {
        use Coherence::{Kept, Recalled, WriteBack};
        let opens = Opens::new(crate::adapter::nowhere());
        for (id, coherence) in [(1, WriteBack), (2, Recalled), (3, Recalled)] {
            opens.check_reader(FILE, coherence).unwrap();
            opens.note_reader(FILE, id, coherence).unwrap();
        }
        assert!(opens.opens_cached(FILE) && !opens.is_recalled(2));
        opens.note_reader(FILE, 3, Kept).unwrap();
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::Direct);
        opens.note_reader(FILE, 3, Recalled).unwrap();
        opens.reader_ended(FILE, 3);
        // The second open is not answered before the holder is told, either.
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::CachedAfterRecall);
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::CachedAfterRecall);
        opens.end_recall(FILE, true);
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::Cached);
        opens.close_cached(FILE, true);
        opens.end_recall(FILE, true);
        assert!(opens.is_recalled(2) && !opens.is_recalled(1) && !opens.is_recalled(3));
        for coherence in [Recalled, Kept] {
            assert!(opens.check_reader(FILE, coherence).is_err());
            assert!(opens.note_reader(FILE, 4, coherence).is_err());
        }
        opens.check_reader(FILE, WriteBack).unwrap();
        opens.close_cached(FILE, true);
        assert!(opens.note_reader(FILE, 4, Recalled).is_err());
        opens.close_cached(FILE, true);
        // One that was recalled does not come back.
        assert!(opens.note_reader(FILE, 2, Kept).is_err());
        opens.note_reader(FILE, 4, Recalled).unwrap();
        for id in 1..5 {
            opens.reader_ended(FILE, id);
        }
        opens.close_cached(FILE, false);
        assert!(opens.lock().is_empty() && opens.recalled().is_empty());
    }

    #[test]
    fn holder_that_cannot_be_told_keeps_opens_from_cache() {
        let opens = Opens::new(crate::adapter::nowhere());
        opens.note_reader(FILE, 1, Coherence::Recalled).unwrap();
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::CachedAfterRecall);
        opens.end_recall(FILE, false);
        assert_eq!(opens.open_cached(FILE, true), OpenedHow::Direct);
        assert!(opens.is_recalled(1) && opens.opens_cached(FILE));
        opens.close_cached(FILE, false);
        opens.reader_ended(FILE, 1);
        assert!(opens.lock().is_empty() && opens.recalled().is_empty());
    }
}
