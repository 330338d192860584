//! The memory that outlives a server: which requests it was serving, and how many references
//! the kernel has to each inode, and the times that the medium does not have yet.
//!
//! Two memfds, which the supervisor keeps with the connection. The first has a *slot* for each
//! request that is being served, the second a count and a time for each inode number. A server is killed at
//! any store; the next one finds a prefix of the stores of each thread. So the order of the
//! stores is what matters here, and each function states it:
//! * a count may be too high after a death, never too low: an inode that the kernel has must not
//!   be freed, and one that it no longer has is freed after the unmount;
//! * a request counts as done only if the engine's record says so ([`Outcomes`]), or if it must
//!   not happen twice and was begun ([`Serving::happens_once`]).
//!
//! A slot is cleared after the reply is sent. The kernel sends requests again whose reply it has
//! not got. The slot of another one is stale: of a request that was answered just before the
//! death, or whose caller was killed. [`Memory::forget_old`] frees it, and the references that it
//! counts stay until the unmount, as do those that a FORGET would have released which the dead
//! server had read.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use pramfs::inode::{Ino, KeptReferences, Outcomes, RecordId, Survivor, Time};
use pramfs_fuse_protocol::numbers::UNIQUE_RESEND;
use pramfs_kernel_sys::shared_words::SharedWords;

/// First word: the layout of this version.
const LAYOUT: u64 = u64::from_le_bytes(*b"PRtkove1");
/// Word of the number of servers so far.
const SERVERS: usize = 1;
/// Word of the server that is to be replaced, by its number in [`SERVERS`]: its end is no death.
const REPLACED: usize = 4;
/// Word of the number of deaths that met a request on names.
const IN_NAMES: usize = 5;
/// Words of the first and the next entry of the list of inodes with times to write.
const LISTED: [usize; 2] = [6, 7];
/// Word of the number of requests on names that a dead server had begun.
const ASKED_AGAIN: usize = 2;
/// Word of the number of requests that were answered from the record of a dead server.
const FROM_RECORD: usize = 3;
/// Words before the slots.
const HEADER: usize = 8;

/// Most requests that are served at once, and that dead servers have left.
const SLOTS: usize = 1024;
/// Words of a slot: a cache line.
const SLOT: usize = 8;

/// First word of the list of inodes with times to write.
const LIST: usize = HEADER + SLOTS * SLOT;
/// Entries of that list. Inodes that are listed in a second, at most; times of others may be lost.
const LIST_LEN: usize = 1 << 16;

/// Words of an inode: its count, and its times in nanoseconds since 1970.
const OF_INODE: usize = 2;

/// The file system may grow so many times while a server lives,
const ROOM_TO_GROW: usize = 1024;
/// up to so many words: 16 GiB of addresses.
const MOST_ROOM: usize = 2 << 30;

/// Number of the request, or 0 for a free slot. Stored last, and cleared first.
const UNIQUE: usize = 0;
/// The server that began it, by its number in [`SERVERS`]; 0 once its death was counted.
const BEGUN: usize = 1;
/// How many servers have died over it.
const DEATHS: usize = 2;
/// The record that decides it, packed; or 0.
const RECORD: usize = 3;
/// The inode that the record makes.
const MADE: usize = 4;
/// References that the reply will pass to the kernel.
const RAISED: usize = 5;
/// To this inode; or [`SEVERAL`].
const RAISED_OF: usize = 6;
/// Whether it is done: [`OPEN`], [`DONE`] or [`ONCE`].
const STATE: usize = 7;

/// A value of [`RAISED_OF`]: the reply lists several inodes.
const SEVERAL: u64 = u64::MAX;

/// A value of [`STATE`]: not done, as far as is known.
const OPEN: u64 = 0;
/// A value of [`STATE`]: its record is durable.
const DONE: u64 = 1;
/// A value of [`STATE`]: it was begun, and must not be begun again.
const ONCE: u64 = 2;

/// Deaths after which a request is refused.
const MAX_DEATHS: u64 = 2;

thread_local! {
    /// The first word of the slot whose request this thread serves, or 0.
    static SERVED: Cell<usize> = const { Cell::new(0) };
}

/// The memory, see the module.
#[derive(Debug)]
pub struct Memory {
    requests: SharedWords,
    references: OnceLock<SharedWords>,
    /// First words of free slots.
    free: Mutex<Vec<usize>>,
    /// Slots that a dead server has left, by the numbers of their requests.
    old: Mutex<HashMap<u64, usize>>,
    /// Number of `old`.
    old_len: AtomicUsize,
    /// The death of the last server has met a request on names.
    met_names: AtomicBool,
    /// A supervisor holds this memory.
    supervised: AtomicBool,
}

/// How a request is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It has not happened.
    Open,
    /// A dead server has done it, and has made this inode.
    Done(Option<Ino>),
    /// A dead server began it, and it must not happen twice.
    Begun,
    /// Two servers have died over it.
    Deadly,
}

/// The slot of the request that this thread serves, until the reply is sent.
#[derive(Debug)]
pub struct Serving<'m> {
    memory: &'m Memory,
    /// First word of the slot; 0 if all were taken.
    at: usize,
    /// How to answer it.
    pub outcome: Outcome,
    /// A dead server had begun it.
    pub again: bool,
    /// References that a dead server has counted for its reply, which was not sent.
    pub raised: Option<(Ino, u64)>,
}

impl Memory {
    /// Makes the memory of a new connection.
    ///
    /// # Errors
    /// Of memfd_create(2) and mmap(2).
    pub fn create() -> io::Result<Memory> {
        let requests = SharedWords::create(c"pramfs-requests", LIST + LIST_LEN)?;
        requests[0].store(LAYOUT, Release);
        Ok(Memory::of(requests, OnceLock::new()))
    }

    /// Takes the memory of another server, which may still live. It must be dead when
    /// the file system is opened.
    ///
    /// # Errors
    /// Of mmap(2); [`io::ErrorKind::InvalidData`] if another version has made it.
    pub fn adopt(requests: OwnedFd, references: OwnedFd) -> io::Result<Memory> {
        let requests = SharedWords::map(requests)?;
        if requests.len() != LIST + LIST_LEN || requests[0].load(Acquire) != LAYOUT {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the dead server was of another version: its memory of requests is not understood",
            ));
        }
        let references = OnceLock::from(SharedWords::map(references)?);
        Ok(Memory::of(requests, references))
    }

    fn of(requests: SharedWords, references: OnceLock<SharedWords>) -> Memory {
        Memory {
            requests,
            references,
            free: Mutex::default(),
            old: Mutex::default(),
            old_len: AtomicUsize::new(0),
            met_names: AtomicBool::new(false),
            supervised: AtomicBool::new(true),
        }
    }

    /// Finds the slots that are free, and those of the last server, which is dead. Counts its
    /// death for the requests that it had begun; if this server dies meanwhile, both may count
    /// as one.
    fn begin_life(&self) {
        let (mut free, mut old) = (self.free.lock(), self.old.lock());
        (*free, *old) = (Vec::new(), HashMap::new());
        let server = self.requests[SERVERS].load(Acquire);
        for at in (0..SLOTS).rev().map(|nth| HEADER + nth * SLOT) {
            match self.word(at, UNIQUE).load(Acquire) {
                0 => free.push(at),
                unique => {
                    let died = self.requests[REPLACED].load(Acquire) != server;
                    if self.word(at, BEGUN).swap(0, Acquire) == server && died {
                        self.word(at, DEATHS).fetch_add(1, Release);
                    }
                    old.insert(unique, at);
                }
            }
        }
        self.old_len.store(old.len(), Release);
        self.requests[SERVERS].store(server.wrapping_add(1), Release);
    }

    /// Descriptors of both parts. The second one exists once the file system is open.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] before that.
    pub fn descriptors(&self) -> io::Result<[BorrowedFd<'_>; 2]> {
        let references = self.references.get().ok_or(io::ErrorKind::NotFound)?;
        Ok([self.requests.descriptor(), references.descriptor()])
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        &self.requests[slot + word]
    }

    /// Begins to serve a request in this thread. `unique` is its number as the kernel sends it.
    pub fn begin(&self, unique: u64) -> Serving<'_> {
        let number = unique & !UNIQUE_RESEND;
        if unique & UNIQUE_RESEND != 0
            && let Some(at) = self.take_old(number)
        {
            return self.begin_again(at);
        }
        let at = self.free.lock().pop().unwrap_or_else(|| {
            tracing::error!("more requests at once than a later server could know about");
            0
        });
        if at != 0 {
            for (word, value) in [
                (DEATHS, 0),
                (RECORD, 0),
                (MADE, 0),
                (RAISED, 0),
                (RAISED_OF, 0),
                (STATE, OPEN),
                (BEGUN, self.requests[SERVERS].load(Relaxed)),
            ] {
                self.word(at, word).store(value, Relaxed);
            }
            self.word(at, UNIQUE).store(number, Release);
        }
        SERVED.set(at);
        Serving {
            memory: self,
            at,
            outcome: Outcome::Open,
            again: false,
            raised: None,
        }
    }

    /// Counts a reference to the inode that a request has made, until it is answered: without
    /// a name, nothing else would keep it. A death in between counts it twice.
    fn refer_to_made(&self, at: usize) {
        let made = self.word(at, MADE).load(Acquire);
        if made != 0 && self.word(at, RAISED).load(Acquire) == 0 {
            if let Some(count) = self.count(Ino(made)) {
                count.store(count.load(Relaxed).saturating_add(1), Release);
            }
            self.word(at, RAISED_OF).store(made, Release);
            self.word(at, RAISED).store(1, Release);
        }
    }

    fn take_old(&self, number: u64) -> Option<usize> {
        if self.old_len.load(Acquire) == 0 {
            return None;
        }
        let mut old = self.old.lock();
        let at = old.remove(&number);
        self.old_len.store(old.len(), Release);
        at
    }

    fn begin_again(&self, at: usize) -> Serving<'_> {
        let get = |word| self.word(at, word).load(Acquire);
        self.word(at, BEGUN)
            .store(self.requests[SERVERS].load(Relaxed), Release);
        let outcome = match get(STATE) {
            DONE => Outcome::Done(Some(Ino(get(MADE))).filter(|made| made.0 != 0)),
            ONCE => Outcome::Begun,
            _ if get(DEATHS) >= MAX_DEATHS => Outcome::Deadly,
            _ => Outcome::Open,
        };
        let of = get(RAISED_OF);
        let raised = match outcome {
            // They keep the inode that it made until the reply has counted its own.
            Outcome::Done(_) => get(RAISED),
            // Nobody gives them back twice: a death from here on leaves the count too high.
            _ => {
                let raised = self.word(at, RAISED).swap(0, Acquire);
                self.word(at, RAISED_OF).store(0, Release);
                raised
            }
        };
        let raised = (raised != 0 && of != SEVERAL).then_some((Ino(of), raised));
        SERVED.set(at);
        Serving {
            memory: self,
            at,
            outcome,
            again: true,
            raised,
        }
    }

    /// Frees the slots of requests that the kernel does not send again. Called when it has sent
    /// all that it does send again.
    pub fn forget_old(&self) {
        let stale: Vec<usize> = {
            let mut old = self.old.lock();
            self.old_len.store(0, Release);
            old.drain().map(|(_, at)| at).collect()
        };
        for at in &stale {
            self.word(*at, UNIQUE).store(0, Release);
        }
        self.free.lock().extend(stale);
    }

    /// Counts a request on names that a dead server had begun, and whether it is answered from
    /// that server's record.
    pub fn note_asked_again(&self, is_done: bool) {
        self.requests[ASKED_AGAIN].fetch_add(1, Relaxed);
        self.requests[FROM_RECORD].fetch_add(u64::from(is_done), Relaxed);
        if !self.met_names.swap(true, Relaxed) {
            self.requests[IN_NAMES].fetch_add(1, Relaxed);
        }
    }

    /// How many deaths have met a request on names.
    pub fn deaths_in_names(&self) -> u64 {
        self.requests[IN_NAMES].load(Relaxed)
    }

    /// This server is about to be replaced: no request is to blame for its end.
    pub fn will_be_replaced(&self) {
        let server = self.requests[SERVERS].load(Relaxed);
        self.requests[REPLACED].store(server, Release);
    }

    /// The next server cannot take over: this one stays, and its death is one as before.
    pub fn will_not_be_replaced(&self) {
        self.requests[REPLACED].store(0, Release);
    }

    /// Nobody holds this memory any more: no server will take over.
    pub fn has_no_supervisor(&self) {
        self.supervised.store(false, Relaxed);
    }

    /// Whether another server will take over.
    pub fn is_supervised(&self) -> bool {
        self.supervised.load(Relaxed)
    }

    /// How many requests on names dead servers had begun, and not answered.
    pub fn asked_again(&self) -> u64 {
        self.requests[ASKED_AGAIN].load(Relaxed)
    }

    /// How many requests were answered from the records of dead servers.
    pub fn answers_from_record(&self) -> u64 {
        self.requests[FROM_RECORD].load(Relaxed)
    }

    /// How many servers have died.
    pub fn deaths(&self) -> u64 {
        self.requests[SERVERS].load(Relaxed).saturating_sub(1)
    }

    /// The count of an inode, if it may have one.
    fn count(&self, of: Ino) -> Option<&AtomicU64> {
        self.of_inode(of, 0)
    }

    fn of_inode(&self, of: Ino, word: usize) -> Option<&AtomicU64> {
        let at = usize::try_from(of.0).ok()?.checked_mul(OF_INODE)?;
        self.references.get()?.get(at + word)
    }
}

impl Serving<'_> {
    /// Notes that the request must not happen again from here on. Called before it happens: a
    /// death in between leaves it undone.
    pub fn happens_once(&self) {
        if self.at != 0 {
            self.memory.word(self.at, STATE).store(ONCE, Release);
        }
    }
}

impl Drop for Serving<'_> {
    /// The reply was sent.
    fn drop(&mut self) {
        SERVED.set(0);
        if self.at != 0 {
            self.memory.word(self.at, UNIQUE).store(0, Release);
            self.memory.free.lock().push(self.at);
        }
    }
}

impl Outcomes for Memory {
    fn decided_by(&self, record: RecordId, made: Option<Ino>) {
        let at = SERVED.get();
        if at != 0 {
            self.word(at, MADE)
                .store(made.map_or(0, |ino| ino.0), Relaxed);
            self.word(at, RECORD).store(record.to_word(), Release);
        }
    }

    fn settle(&self, is_durable: &dyn Fn(RecordId) -> bool) {
        for at in self.old.lock().values() {
            if self.word(*at, STATE).load(Acquire) != OPEN {
                continue;
            }
            if let Some(record) = RecordId::from_word(self.word(*at, RECORD).load(Acquire)) {
                match is_durable(record) {
                    true => {
                        self.refer_to_made(*at);
                        self.word(*at, STATE).store(DONE, Release);
                    }
                    // Its number is given to another record from here on.
                    false => self.word(*at, RECORD).store(0, Release),
                }
            }
        }
    }
}

impl KeptReferences for Memory {
    fn references(&self, of: Ino) -> u64 {
        self.count(of).map_or(0, |count| count.load(Acquire))
    }

    /// The count first: a death in between leaves it too high.
    fn add_references(&self, of: Ino, added: u64) {
        let Some(count) = self.count(of) else {
            return;
        };
        count.store(count.load(Relaxed).saturating_add(added), Release);
        let at = SERVED.get();
        if at == 0 {
            return;
        }
        let (raised, whose) = (self.word(at, RAISED), self.word(at, RAISED_OF));
        let same = whose.load(Relaxed) == of.0;
        if same || raised.load(Relaxed) == 0 && whose.load(Relaxed) != SEVERAL {
            whose.store(of.0, Release);
            raised.store(raised.load(Relaxed).saturating_add(added), Release);
        } else {
            whose.store(SEVERAL, Release);
        }
    }

    /// The count last, for the same reason.
    fn sub_references(&self, of: Ino, released: u64) -> u64 {
        let Some(count) = self.count(of) else {
            return 0;
        };
        let at = SERVED.get();
        if at != 0 && self.word(at, RAISED_OF).load(Relaxed) == of.0 {
            let raised = self.word(at, RAISED);
            raised.store(raised.load(Relaxed).saturating_sub(released), Release);
        }
        let left = count.load(Relaxed).saturating_sub(released);
        count.store(left, Release);
        left
    }
}

/// Times as a word; 0 for those that have no place in it.
fn to_word(times: Time) -> u64 {
    let nanos = i128::from(times.sec) * 1_000_000_000 + i128::from(times.nsec);
    u64::try_from(nanos).unwrap_or_default()
}

fn from_word(word: u64) -> Time {
    Time {
        sec: (word / 1_000_000_000) as i64,
        nsec: (word % 1_000_000_000) as u32,
    }
}

impl Survivor for Memory {
    fn prepare(&self, inodes: u64) -> io::Result<()> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let words = usize::try_from(inodes)
            .ok()
            .and_then(|n| n.checked_mul(OF_INODE));
        let words = words.ok_or_else(|| invalid("too many inodes"))?;
        let references = match self.references.get() {
            Some(references) => references,
            None => {
                // The file is sparse, so room for a file system that grows costs nothing.
                let room = words
                    .saturating_mul(ROOM_TO_GROW)
                    .clamp(words, MOST_ROOM.max(words));
                let made = SharedWords::create(c"pramfs-references", room)
                    .or_else(|_| SharedWords::create(c"pramfs-references", words))?;
                self.references.get_or_init(|| made)
            }
        };
        match references.len() >= words {
            true => {
                self.begin_life();
                Ok(())
            }
            false => Err(invalid(
                "the region is not the one that the dead server had",
            )),
        }
    }

    fn inodes(&self) -> Option<u64> {
        let words = self.references.get()?.len();
        Some((words / OF_INODE) as u64)
    }

    fn note_times(&self, of: Ino, times: Time) {
        if let Some(word) = self.of_inode(of, 1) {
            word.store(to_word(times), Release);
        }
    }

    fn list_lazy(&self, of: Ino) {
        let at = self.requests[LISTED[1]].load(Relaxed);
        self.requests[LIST + at as usize % LIST_LEN].store(of.0, Release);
        self.requests[LISTED[1]].store(at.wrapping_add(1), Release);
    }

    fn listed_lazy(&self) -> Vec<(Ino, Time)> {
        let [first, end] = LISTED.map(|word| self.requests[word].load(Acquire));
        let mut inodes: Vec<u64> = (first.max(end.saturating_sub(LIST_LEN as u64))..end)
            .map(|at| self.requests[LIST + at as usize % LIST_LEN].load(Acquire))
            .collect();
        inodes.sort_unstable();
        inodes.dedup();
        let times = |ino: u64| {
            let word = self.of_inode(Ino(ino), 1)?.load(Acquire);
            (word != 0).then(|| (Ino(ino), from_word(word)))
        };
        inodes.into_iter().filter_map(times).collect()
    }

    fn end_of_lazy(&self) -> u64 {
        self.requests[LISTED[1]].load(Acquire)
    }

    fn lazy_are_written(&self, end: u64) {
        self.requests[LISTED[0]].store(end, Release);
    }
}

#[cfg(test)]
mod tests;
