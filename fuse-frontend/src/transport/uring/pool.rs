//! Threads that serve what may take long, for the threads of the rings.
//!
//! A thread of a ring serves most requests itself. One that may take long ([`waits`]) would hold
//! up all that come by the same thread, so it goes to the pool, together with its entry and the
//! entry's memory. So does a request for a node that the pool works on: it may wait for the same
//! lock. Order:
//! 1. the ring's thread puts the request into the queue of the pool, and goes on: it has more
//!    entries for the requests that come meanwhile;
//! 2. a thread of the pool serves it, puts the reply on the [`Desk`] of the ring's thread, and
//!    rings the bell of the ring;
//! 3. the ring's thread sends the reply: nobody else may submit to its ring.
//!
//! There are as many threads as rings, but at least [`FEWEST`] and at most [`MOST`]. They start
//! when they are wanted, and end after [`IDLE`] without work. The thread that waits for the end of
//! the session starts them, since a ring's thread is bound to its processor and may have the idle
//! policy. While all are busy, requests wait in the queue. Serving them at once by the ring's
//! thread would hold up others, and the replies that are on its desk. The queue is bounded: each
//! request has an entry, and a ring has few to spare. If all entries of a processor's queue are
//! taken, the kernel keeps the next request until a reply is sent. An entry that is registered
//! meanwhile does not help that request, so all are registered before the first request is served.
//!
//! The pool ends with the last ring's thread, and first serves what is in its queue.
//!
//! [`waits`]: crate::adapter::waits

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pramfs_fuse_protocol::Rules;
use pramfs_fuse_protocol::wire::OutHeader;
use pramfs_kernel_sys::fuse_ring::{Bell, HandedOver};

use super::thread::serve_entry;
use crate::adapter::Adapter;
use crate::transport::threads::{Help, Starter};

/// Bounds of the number of threads.
const FEWEST: usize = 8;
const MOST: usize = 32;

/// How long a thread waits for work.
const IDLE: Duration = Duration::from_secs(2);

/// The name of the threads.
pub(super) const NAME: &str = "fuse-long";

/// Returns how many threads the pool of so many rings may have.
pub(super) fn most_workers(rings: usize) -> usize {
    rings.clamp(FEWEST, MOST)
}

/// The pool of a session.
pub(super) struct Pool {
    adapter: Arc<Adapter>,
    rules: Rules,
    most_workers: usize,
    /// Requests that the pool has, so that most requests need no lock.
    has: AtomicUsize,
    state: Mutex<State>,
    wanted: Condvar,
}

struct State {
    queue: VecDeque<Job>,
    /// The nodes of all requests that the pool has.
    nodes: Vec<[u64; 2]>,
    workers: usize,
    /// Workers that wait for work.
    idle: usize,
    /// Threads of rings that live.
    members: usize,
    /// `None` after the last of them.
    starter: Option<Starter>,
}

/// A request.
struct Job {
    asked: HandedOver,
    nodes: [u64; 2],
    desk: Arc<Desk>,
}

/// A reply.
pub(super) struct Done {
    pub asked: HandedOver,
    pub out: OutHeader,
    /// Bytes of its body, in the payload.
    pub body: usize,
}

/// Where the thread of a ring finds its replies.
pub(super) struct Desk {
    bell: Arc<Bell>,
    done: Mutex<Vec<Done>>,
}

impl Desk {
    fn put(&self, done: Done) {
        self.lock().push(done);
        // Afterwards, so that whoever hears it finds the reply.
        self.bell.ring();
    }

    /// Takes all replies.
    pub(super) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Done>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pool, for one thread of a ring. It ends with the last of them.
pub(super) struct Member(Arc<Pool>);

impl Pool {
    /// Returns the pool of so many rings, as the first member has it.
    pub(super) fn of(
        adapter: Arc<Adapter>,
        rules: Rules,
        rings: usize,
        starter: Starter,
    ) -> Member {
        Member(Arc::new(Pool {
            adapter,
            rules,
            most_workers: most_workers(rings),
            has: AtomicUsize::new(0),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                nodes: Vec::new(),
                workers: 0,
                idle: 0,
                members: 1,
                starter: Some(starter),
            }),
            wanted: Condvar::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request, without the lock.
    fn serve(&self, job: Job, kept: &mut Vec<u8>) {
        let Job {
            mut asked,
            nodes,
            desk,
        } = job;
        let headers = *asked.headers();
        let (out, body) = serve_entry(&self.adapter, &headers, asked.payload(), &self.rules, kept);
        let mut state = self.lock();
        if let Some(at) = state.nodes.iter().position(|these| *these == nodes) {
            state.nodes.swap_remove(at);
        }
        drop(state);
        self.has.fetch_sub(1, Ordering::Relaxed);
        desk.put(Done { asked, out, body });
    }
}

impl Help for Pool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn help(&self) {
        let mut kept = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                self.serve(job, &mut kept);
                state = self.lock();
                continue;
            }
            if state.members == 0 {
                break;
            }
            state.idle += 1;
            let waited = self.wanted.wait_timeout(state, IDLE);
            let (found, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = found;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.workers -= 1;
    }

    fn do_without(&self) {
        let mut state = self.lock();
        state.workers -= 1;
        // Nobody else would serve them.
        while state.workers == 0
            && let Some(job) = state.queue.pop_front()
        {
            drop(state);
            self.serve(job, &mut Vec::new());
            state = self.lock();
        }
    }
}

impl Member {
    /// Returns the pool for another thread.
    pub(super) fn another(&self) -> Member {
        self.0.lock().members += 1;
        Member(Arc::clone(&self.0))
    }

    pub(super) fn adapter(&self) -> &Adapter {
        &self.0.adapter
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Returns where the pool puts the replies to requests of a ring.
    pub(super) fn desk(bell: Arc<Bell>) -> Arc<Desk> {
        Arc::new(Desk {
            bell,
            done: Mutex::default(),
        })
    }

    /// Whether the pool works on one of these nodes.
    pub(super) fn works_on(&self, nodes: [u64; 2]) -> bool {
        self.0.has.load(Ordering::Relaxed) > 0 && {
            let is_one = |node: &u64| nodes.contains(node);
            let state = self.0.lock();
            state.nodes.iter().flatten().any(is_one)
        }
    }

    /// Has a request served, and the reply put on the desk.
    pub(super) fn serve(&self, asked: HandedOver, nodes: [u64; 2], desk: &Arc<Desk>) {
        self.0.has.fetch_add(1, Ordering::Relaxed);
        let mut state = self.0.lock();
        state.nodes.push(nodes);
        state.queue.push_back(Job {
            asked,
            nodes,
            desk: Arc::clone(desk),
        });
        if state.queue.len() > state.idle
            && state.workers < self.0.most_workers
            && let Some(starter) = &state.starter
        {
            starter.start(Arc::clone(&self.0) as Arc<dyn Help>);
            state.workers += 1;
        }
        drop(state);
        self.0.wanted.notify_one();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.members -= 1;
        if state.members == 0 {
            // The thread that starts others waits for the end of all who may ask.
            state.starter = None;
            self.0.wanted.notify_all();
        }
    }
}
