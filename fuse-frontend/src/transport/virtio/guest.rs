//! The device of one guest, as the crate `vhost-user-backend` drives it: queues and their requests.
//!
//! Queue 0 is for FORGET alone, the others are for requests. Each queue has a thread, which serves
//! one request after the other, or hands them to a pool (`pool.rs`). So the requests of a guest
//! that run, and the memory that they use, have a limit.
//!
//! Invariant: whatever a guest puts into its queues, a thread returns to its wait: a queue whose
//! indices make no sense is left until the next kick, and [`Guest::stop`] ends a thread that a
//! guest keeps busy.
//!
//! Not offered: a log of dirty memory, the transfer of a state, and more memory slots than 8. So a
//! VMM cannot migrate the guest or take a snapshot of it.

use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vhost::vhost_user::Backend;
use vhost::vhost_user::message::{
    VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserVirtioFeatures,
};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use super::chain;
use super::pool::Pool;
use super::window::{Channel, Pause};
use crate::door::Door;
use crate::transport::dev::buffer::{Buffer, NoMemory};

/// Most entries of a queue.
const QUEUE_SIZE: usize = 1024;

/// `VIRTIO_F_VERSION_1`, `VIRTIO_RING_F_INDIRECT_DESC`, `VIRTIO_RING_F_EVENT_IDX`.
const VIRTIO_FEATURES: u64 = 1 << 32 | 1 << 28 | 1 << 29;

/// Bytes of a tag in the configuration of the device.
pub(super) const TAG: usize = 36;

pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
pub(super) type Snapshot = GuestMemoryLoadGuard<GuestMemoryMmap>;

/// How to serve a guest.
#[derive(Debug, Clone, Default)]
pub struct GuestSettings {
    /// Queues for requests.
    pub request_queues: usize,
    /// Threads that the queues share; 0: each queue serves its own requests.
    pub pool: usize,
    /// The tag, for a VMM that asks the server.
    pub tag: Option<String>,
    /// Bytes of a window that files are mapped in.
    pub window: Option<u64>,
}

impl GuestSettings {
    /// A queue for requests for each processor, at most eight.
    pub fn of_processors() -> GuestSettings {
        let processors = std::thread::available_parallelism();
        GuestSettings {
            request_queues: processors.map_or(1, |processors| processors.get().min(8)),
            ..GuestSettings::default()
        }
    }
}

/// The requests of a queue that run.
#[derive(Debug, Default)]
struct Running {
    count: Mutex<usize>,
    none: Condvar,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_none(&self) {
        let waited = self.none.wait_while(self.lock(), |count| *count != 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A request that runs.
pub(super) struct Run {
    guest: Arc<Guest>,
    queue: usize,
}

impl Run {
    fn begin(guest: &Arc<Guest>, queue: usize) -> Run {
        *guest.running[queue].lock() += 1;
        Run {
            guest: Arc::clone(guest),
            queue,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let running = &self.guest.running[self.queue];
        *running.lock() -= 1;
        running.none.notify_all();
    }
}

/// A request of a queue.
pub(super) struct Job {
    run: Run,
    vring: VringRwLock,
    /// The memory that the chain lies in, even if the VMM has replaced it meanwhile.
    memory: Snapshot,
    chain: DescriptorChain<Snapshot>,
}

impl Job {
    /// Serves the request, and gives the chain back to the guest.
    pub(super) fn serve(self, buffer: &mut Buffer) {
        let Job {
            run,
            vring,
            memory,
            chain,
        } = self;
        let head = chain.head_index();
        let work = || chain::serve(&run.guest.door, &memory, chain, buffer);
        let written = catch_unwind(AssertUnwindSafe(work));
        // Only for a mistake outside of the handlers.
        let written = written.unwrap_or_else(|_| {
            tracing::error!("serving a request of a guest panicked");
            0
        });
        if let Err(error) = vring.add_used(head, written) {
            return tracing::debug!("a guest cannot have its chain back: {error}");
        }
        if vring.needs_notification().unwrap_or(true)
            && let Err(error) = vring.signal_used_queue()
        {
            tracing::debug!("a guest cannot be told that its request is done: {error}");
        }
    }
}

/// A guest.
pub(super) struct Guest {
    door: Door,
    memory: Memory,
    running: Vec<Running>,
    /// One for each queue.
    buffers: Vec<Mutex<Buffer>>,
    pool: Option<Pool>,
    tag: Option<[u8; TAG]>,
    window: Option<u64>,
    /// Requests do not wait for the VMM: see `window.rs`.
    pauses: Arc<AtomicUsize>,
    ends: AtomicBool,
    /// Wakes the threads of the queues at the end.
    end: (EventConsumer, EventNotifier),
}

impl Guest {
    /// Makes the device of a guest.
    ///
    /// # Errors
    /// No memory, thread or descriptor.
    pub(super) fn new(door: Door, settings: &GuestSettings) -> io::Result<Guest> {
        let queues = settings.request_queues + 1;
        let buffers = (0..queues).map(|_| buffer().map(Mutex::new));
        Ok(Guest {
            door,
            memory: GuestMemoryAtomic::new(GuestMemoryMmap::new()),
            running: (0..queues).map(|_| Running::default()).collect(),
            buffers: buffers.collect::<io::Result<_>>()?,
            pool: match settings.pool {
                0 => None,
                threads => Some(Pool::new(threads)?),
            },
            tag: settings.tag.as_deref().map(padded),
            window: settings.window,
            pauses: Arc::default(),
            ends: AtomicBool::new(false),
            end: new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?,
        })
    }

    /// Makes what speaks with the VMM.
    ///
    /// # Errors
    /// No thread or descriptor.
    pub(super) fn daemon(self: &Arc<Self>) -> io::Result<VhostUserDaemon<Device>> {
        let name = "vhost-user".to_owned();
        let daemon = VhostUserDaemon::new(name, Device(Arc::clone(self)), self.memory.clone());
        let daemon = daemon.map_err(|error| io::Error::other(error.to_string()))?;
        for handler in daemon.get_epoll_handlers() {
            let (number, fd) = (self.buffers.len() as u64 + 1, self.end.0.as_raw_fd());
            handler.register_listener(fd, EventSet::IN, number)?;
        }
        Ok(daemon)
    }

    /// Lets the threads of the queues end.
    pub(super) fn stop(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.pauses.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = self.end.1.notify() {
            tracing::error!("cannot wake the threads of a guest: {error}");
        }
    }

    /// Gives back what the guest has. Its threads have ended.
    pub(super) fn finish(&self) {
        self.running.iter().for_each(Running::wait_for_none);
        let (nodes, opens) = self.door.holds();
        self.door.end();
        tracing::debug!("the guest had {nodes} nodes and {opens} open files");
    }

    fn run_queue(self: &Arc<Self>, queue: usize, vring: &VringRwLock) {
        loop {
            let mut found = false;
            while let Some(job) = self.next(queue, vring) {
                found = true;
                match &self.pool {
                    // A forget is short.
                    Some(pool) if queue != 0 => pool.take(job),
                    _ => {
                        let buffer = self.buffers[queue].lock();
                        job.serve(&mut buffer.unwrap_or_else(PoisonError::into_inner));
                    }
                }
            }
            // The guest may have added one just before it would kick again. If there was none
            // to be found, its indices make no sense.
            if !found || !matches!(vring.enable_notification(), Ok(true)) {
                return;
            }
        }
    }

    /// Takes a chain from a queue.
    fn next(self: &Arc<Self>, queue: usize, vring: &VringRwLock) -> Option<Job> {
        if self.ends.load(Ordering::Relaxed) {
            return None;
        }
        // Before the queue is looked at: whoever stops it waits for this.
        let run = Run::begin(self, queue);
        let memory = self.memory.memory();
        let mut state = vring.get_mut();
        let chain = match state.get_queue_mut().iter(memory.clone()) {
            Ok(mut chains) => chains.next(),
            Err(error) => {
                tracing::debug!("queue {queue} of a guest cannot be used: {error}");
                None
            }
        };
        drop(state);
        Some(Job {
            run,
            vring: vring.clone(),
            memory,
            chain: chain?,
        })
    }
}

pub(crate) fn buffer() -> io::Result<Buffer> {
    Buffer::new(Door::max_request()).map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
}

fn padded(tag: &str) -> [u8; TAG] {
    let mut bytes = [0; TAG];
    for (to, byte) in bytes.iter_mut().zip(tag.bytes()) {
        *to = byte;
    }
    bytes
}

/// What the crate drives.
#[derive(Clone)]
pub(super) struct Device(Arc<Guest>);

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        self.0.buffers.len()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        VIRTIO_FEATURES | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        let mut features = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
        if self.0.tag.is_some() {
            features |= VhostUserProtocolFeatures::CONFIG;
        }
        if self.0.window.is_some() {
            // Objects only for the message that `window.rs` sends after a map.
            features |= VhostUserProtocolFeatures::SHMEM
                | VhostUserProtocolFeatures::SHARED_OBJECT
                | VhostUserProtocolFeatures::BACKEND_REQ
                | VhostUserProtocolFeatures::BACKEND_SEND_FD;
        }
        features
    }

    fn reset_device(&self) {
        self.0.door.note_stop();
    }

    fn set_event_idx(&self, _: bool) {
        // The queues know.
    }

    /// `struct virtio_fs_config`: the tag, and the number of queues for requests.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let queues = (self.0.buffers.len() as u32).saturating_sub(1);
        let tag = self.0.tag.unwrap_or([0; TAG]);
        let all = [&tag[..], &queues.to_le_bytes()].concat();
        let (from, len) = (offset as usize, size as usize);
        let asked = all.get(from..from.saturating_add(len));
        asked.unwrap_or_default().to_vec()
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        // It is the same, with new contents.
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.num_queues()).map(|queue| 1 << queue).collect()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        // The VMM waits for this, and so acknowledges nothing.
        let _pause = Pause::new(&self.0.pauses);
        if let Some(running) = self.0.running.get(queue as usize) {
            running.wait_for_none();
        }
        self.0.door.note_stop();
        Ok(())
    }

    fn get_shmem_config(&self) -> io::Result<VhostUserShMemConfig> {
        let sizes = self.0.window.as_slice();
        Ok(VhostUserShMemConfig::new(sizes.len() as u32, sizes))
    }

    /// Only a VMM that knows of windows has been told of this one.
    fn set_backend_req_fd(&self, backend: Backend) {
        let Some(size) = self.0.window else { return };
        match Channel::new(backend, size, Arc::clone(&self.0.pauses)) {
            Ok(channel) => self.0.door.open_window(Arc::new(channel)),
            Err(error) => tracing::warn!("a guest gets no window: {error}"),
        }
    }

    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[VringRwLock],
        thread: usize,
    ) -> io::Result<()> {
        if self.0.ends.load(Ordering::Relaxed) {
            // Ends this thread.
            return Err(io::ErrorKind::Interrupted.into());
        }
        // Each thread has one queue.
        if let (0, [vring]) = (event, vrings) {
            self.0.run_queue(thread, vring);
        }
        Ok(())
    }
}
