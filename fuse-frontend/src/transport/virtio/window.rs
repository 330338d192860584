//! The window of a guest: messages that have the VMM map and unmap descriptors (SHMEM_MAP and
//! SHMEM_UNMAP of vhost-user, shared memory region 0).
//!
//! Purpose: the VMM acknowledges each message, in its main thread. The same thread waits for this
//! server when it stops a queue, and then acknowledges nothing. So no thread that serves requests or
//! the VMM waits for an acknowledgement without end: one thread exchanges the messages, and a
//! request that waits gives up when the device is being stopped ([`Channel::pause`]).
//!
//! QEMU 11.1 acknowledges a map before it is in force. It takes the next message only after that,
//! so a message without effect follows ([`Window::settle`]): the removal of an object that does not
//! exist, where the VMM knows such messages.
//!
//! Invariant: a map whose request has given up is undone as soon as it is acknowledged. No map
//! overlaps another: QEMU closes the channel then.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;
use vhost::vhost_user::message::{VhostUserMMap, VhostUserMMapFlags, VhostUserSharedMsg};
use vhost::vhost_user::{Backend, VhostUserFrontendReqHandler};

use crate::door::Window;

/// The number of the shared memory region, as virtiofs has it.
const REGION: u8 = 0;

/// How often a request that waits looks whether the device is being stopped.
const LOOK: Duration = Duration::from_millis(10);

/// What became of a message.
#[derive(Debug, Default)]
struct Outcome {
    result: Option<io::Result<()>>,
    abandoned: bool,
}

#[derive(Debug, Default)]
struct Answer {
    outcome: Mutex<Outcome>,
    given: Condvar,
}

impl Answer {
    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message to the VMM.
enum Order {
    Map(VhostUserMMap, OwnedFd),
    Unmap(VhostUserMMap),
    /// Nothing: its answer says that all before it is done.
    Settle,
}

/// An object that nobody has.
const NO_OBJECT: Uuid = Uuid::from_u128(0x5bc1_8d3e_7a52_4f0c_9e4b_1c6d_02a7_33f1);

/// The channel to a VMM.
pub(super) struct Channel {
    size: u64,
    orders: Mutex<Sender<(Order, Arc<Answer>)>>,
    /// How many wait for the requests that run. Those do not wait for the VMM then.
    pauses: Arc<AtomicUsize>,
}

/// Requests do not wait for the VMM while this exists.
#[derive(Debug)]
pub(super) struct Pause<'c>(&'c AtomicUsize);

impl<'c> Pause<'c> {
    pub(super) fn new(pauses: &'c AtomicUsize) -> Pause<'c> {
        pauses.fetch_add(1, Ordering::SeqCst);
        Pause(pauses)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Channel {
    /// Starts the thread that speaks with the VMM. It ends after the channel.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(
        backend: Backend,
        size: u64,
        pauses: Arc<AtomicUsize>,
    ) -> io::Result<Channel> {
        let (orders, taken) = channel();
        let thread = std::thread::Builder::new().name("window".into());
        thread.spawn(move || exchange(&backend, &taken))?;
        Ok(Channel {
            size,
            orders: Mutex::new(orders),
            pauses,
        })
    }

    fn send(&self, order: Order) -> io::Result<()> {
        let answer = Arc::new(Answer::default());
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = orders.send((order, Arc::clone(&answer)));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        drop(orders);
        let mut outcome = answer.lock();
        loop {
            if let Some(result) = outcome.result.take() {
                return result;
            }
            if self.pauses.load(Ordering::SeqCst) != 0 {
                outcome.abandoned = true;
                return Err(io::ErrorKind::Interrupted.into());
            }
            let waited = answer.given.wait_timeout(outcome, LOOK);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn exchange(backend: &Backend, orders: &Receiver<(Order, Arc<Answer>)>) {
    for (order, answer) in orders {
        let result = match &order {
            Order::Map(message, descriptor) => backend.shmem_map(message, descriptor).map(drop),
            Order::Unmap(message) => backend.shmem_unmap(message).map(drop),
            Order::Settle => {
                // Refused, as there is no such object; or not sent, to a VMM without objects.
                let _refused =
                    backend.shared_object_remove(&VhostUserSharedMsg { uuid: NO_OBJECT });
                Ok(())
            }
        };
        let is_done = result.is_ok();
        let mut outcome = answer.lock();
        let abandoned = outcome.abandoned;
        outcome.result = Some(result);
        drop(outcome);
        answer.given.notify_one();
        if let (Order::Map(message, _), true, true) = (order, is_done, abandoned) {
            let message = VhostUserMMap {
                fd_offset: 0,
                flags: 0,
                ..message
            };
            if let Err(error) = backend.shmem_unmap(&message) {
                tracing::debug!("the VMM does not unmap what nobody waits for: {error}");
            }
        }
    }
}

impl Window for Channel {
    fn size(&self) -> u64 {
        self.size
    }

    fn map(&self, of: BorrowedFd<'_>, from: u64, at: u64, len: u64) -> io::Result<()> {
        let message = VhostUserMMap {
            shmid: REGION,
            fd_offset: from,
            shm_offset: at,
            len,
            flags: VhostUserMMapFlags::WRITABLE.bits(),
            ..VhostUserMMap::default()
        };
        self.send(Order::Map(message, of.try_clone_to_owned()?))
    }

    fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let message = VhostUserMMap {
            shmid: REGION,
            shm_offset: at,
            len,
            ..VhostUserMMap::default()
        };
        self.send(Order::Unmap(message))
    }

    fn settle(&self) -> io::Result<()> {
        self.send(Order::Settle)
    }
}
