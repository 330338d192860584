//! Two threads that take turns: which of them goes on is decided at each store,
//! flush and fence, by a seed.
//!
//! One runs at a time, so that a seed gives the same interleaving again, with
//! one exception: a thread that waits for a lock which the other holds makes no
//! event. Then the other goes on after a short while, and how long that is
//! depends on the machine.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pramfs_medium::pmem::{Granularity, Persistence, PmemBackend, Region, SimBackend, SourceKind};

use crate::random::Random;

thread_local!(static ME: Cell<Option<usize>> = const { Cell::new(None) });

/// After so long the other is taken to wait for a lock.
const TIMEOUT: Duration = Duration::from_micros(500);

#[derive(Debug)]
struct Table {
    turn: usize,
    finished: [bool; 2],
    random: Random,
    /// A change of turns once in so many events.
    every: u64,
}

#[derive(Debug)]
struct Inner {
    table: Mutex<Table>,
    changed: Condvar,
    /// Events so far.
    events: AtomicUsize,
}

/// A sim backend whose threads take turns.
#[derive(Debug, Clone)]
pub struct Scheduler {
    sim: SimBackend,
    inner: Arc<Inner>,
}

impl Scheduler {
    /// Takes turns on a backend.
    pub fn new(sim: &SimBackend, seed: u64) -> Scheduler {
        let mut random = Random::new(seed);
        let every = 1 + random.below(6);
        let turn = random.below(2) as usize;
        Scheduler {
            sim: sim.clone(),
            inner: Arc::new(Inner {
                table: Mutex::new(Table {
                    turn,
                    finished: [false; 2],
                    random,
                    every,
                }),
                changed: Condvar::new(),
                events: AtomicUsize::new(0),
            }),
        }
    }

    /// The region.
    pub fn region(&self) -> Region {
        Region::new("two threads", Box::new(self.clone()))
    }

    /// Events so far, those of threads without turns among them.
    pub fn events(&self) -> usize {
        self.inner.events.load(Ordering::SeqCst)
    }

    /// Runs something as thread 0 or 1 of the two. Returns what it gives, and
    /// how many events there were when it had returned.
    pub fn run<T>(&self, me: usize, run: impl FnOnce() -> T) -> (T, usize) {
        ME.set(Some(me));
        self.wait(&mut self.inner.table.lock(), me);
        let result = run();
        let mut table = self.inner.table.lock();
        table.finished[me] = true;
        table.turn = 1 - me;
        self.inner.changed.notify_all();
        ME.set(None);
        (result, self.events())
    }

    /// Until it is my turn, or the other seems to wait for me.
    fn wait(&self, table: &mut parking_lot::MutexGuard<'_, Table>, me: usize) {
        while table.turn != me && !table.finished[1 - me] {
            if self.inner.changed.wait_for(table, TIMEOUT).timed_out() {
                table.turn = me;
            }
        }
    }

    /// Before an event: waits for its turn. After it, perhaps the other's.
    fn event(&self, run: impl FnOnce()) {
        let Some(me) = ME.get() else {
            self.inner.events.fetch_add(1, Ordering::SeqCst);
            return run();
        };
        self.wait(&mut self.inner.table.lock(), me);
        self.inner.events.fetch_add(1, Ordering::SeqCst);
        run();
        let mut table = self.inner.table.lock();
        let every = table.every;
        if !table.finished[1 - me] && table.random.one_in(every) {
            table.turn = 1 - me;
            self.inner.changed.notify_all();
            self.wait(&mut table, me);
        }
    }
}

// SAFETY: base and len are those of the sim backend, which this value keeps.
unsafe impl PmemBackend for Scheduler {
    fn name(&self) -> &'static str {
        "turns"
    }
    fn base(&self) -> *mut u8 {
        self.sim.base()
    }
    fn len(&self) -> usize {
        self.sim.len()
    }
    fn granularity(&self) -> Granularity {
        self.sim.granularity()
    }
    fn persistence(&self) -> Persistence {
        self.sim.persistence()
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        self.event(|| unsafe { self.sim.store(dst, src, len) });
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: passed on from the caller.
        self.event(|| unsafe { self.sim.store_u64(dst, value) });
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        self.event(|| unsafe { self.sim.nt_copy(dst, src, len) });
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        self.event(|| unsafe { self.sim.nt_zero(dst, len) });
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        if len > 0 {
            // SAFETY: passed on from the caller.
            self.event(|| unsafe { self.sim.flush(ptr, len) });
        }
    }
    fn fence(&self) {
        self.event(|| self.sim.fence());
    }
    fn sync_all(&self) -> std::io::Result<()> {
        let mut result = Ok(());
        self.event(|| result = self.sim.sync_all());
        result
    }
    fn source_kind(&self) -> Option<SourceKind> {
        self.sim.source_kind()
    }
    fn can_discard(&self) -> bool {
        self.sim.can_discard()
    }
    unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        let mut result = Ok(());
        // SAFETY: passed on from the caller.
        self.event(|| result = unsafe { self.sim.discard(ptr, len) });
        result
    }
}
