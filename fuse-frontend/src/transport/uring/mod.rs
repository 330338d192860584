//! The transport `uring`: requests over io_uring, a queue for each processor, so that a request
//! wakes a thread on the processor where it was made.
//!
//! * Each processor that this process may use has two threads bound to it. While one is busy with
//!   a long request, the other serves. They yield to the client that they wake ([`yielding`]).
//! * The queues of all other possible processors, which the kernel demands, share some threads.
//! * FORGET and INTERRUPT come by `/dev/fuse`, which has a thread of its own.
//!
//! Order, because the kernel holds all requests back until each queue has an entry, and from then
//! on sends them by the rings alone:
//! 1. the rings are made before INIT is answered: if that fails, nothing was promised;
//! 2. INIT is answered, and one thread of each queue registers its entries, one after the other;
//! 3. if one of them fails, or has not begun within [`PATIENCE`], some queue has no entry. A
//!    deliberately wrong entry then makes the kernel give io_uring up for this connection, and `dev`
//!    serves. Of the last one, all depends on whether it has begun: then it may succeed at any time,
//!    so the rings serve, and requests wait for it;
//! 4. the other threads register. One that fails serves what it has, perhaps nothing: the kernel
//!    may have given it a request;
//! 5. nobody looks at a request before [`Session::run`], when the server has dropped its
//!    privileges.

mod reply;
mod thread;
mod yielding;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{Negotiated, Rules};
use pramfs_kernel_sys::fuse_ring::{self, FuseRing};
use pramfs_kernel_sys::processors;

use super::handshake::Offer;
use super::threads::Threads;
use super::{Kind, Settings, dev};
use crate::adapter::Adapter;
pub(crate) use thread::serve_entry;
use thread::{Lane, Outcome, Step};
use yielding::Yielding;

pub(super) use yielding::permit;

/// How long the threads of all queues may take to register.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads for each queue of a processor that this process may use.
const THREADS_OF_QUEUE: usize = 2;

/// The least number of threads that share the queues of the other processors.
const THREADS_OF_OTHERS: usize = 2;

/// A connection that both sides have agreed upon.
pub(super) struct Session {
    adapter: Arc<Adapter>,
    lanes: Vec<Lane>,
    yielding: Arc<Yielding>,
    /// Serves what does not come by the rings.
    device: dev::Session,
    rules: Rules,
}

/// Returns how many threads serve, and how many entries their rings have.
pub(super) fn demand(settings: Settings) -> (usize, usize) {
    let shares = own_shares(settings).unwrap_or_default();
    let entries = shares.iter().map(|share| share.queues.len()).sum();
    // One more for the device, and the watcher.
    (shares.len() + 2, entries)
}

/// Whether FUSE over io_uring may be switched on for new mounts. Before the first mount the module
/// that knows may not be loaded; a loaded one without the switch is too old.
pub(super) fn may_be_switched_on() -> bool {
    let is_loaded = || Path::new("/sys/module/fuse").exists();
    fuse_ring::is_enabled().unwrap_or_else(|| !is_loaded())
}

/// Negotiates with the kernel. If this kernel or this process cannot use io_uring, `dev` serves;
/// also returns why.
///
/// # Errors
/// The connection failed, or the kernel is too old.
pub(super) fn negotiate(
    adapter: Arc<Adapter>,
    connection: OwnedFd,
    settings: Settings,
) -> io::Result<(Kind, Option<String>)> {
    let offer = Offer::read(&connection)?;
    let yielding = Yielding::new();
    let shared = Arc::new(connection.as_fd().try_clone_to_owned()?);
    let made = match offer.has(InitFlags::OVER_IO_URING) {
        true => own_shares(settings)
            .and_then(|shares| make(&shared, shares, &yielding))
            .map_err(|error| error.to_string()),
        false => Err(why_not_offered()),
    };
    let (lanes, also) = match made {
        Ok(lanes) => (Ok(lanes), InitFlags::OVER_IO_URING),
        Err(why) => (Err(why), InitFlags::empty()),
    };
    let agreed = offer.answer(&connection, &adapter, also)?;
    let lanes = match lanes {
        Ok(lanes) => register(lanes, &agreed, &connection),
        Err(why) => Err(why),
    };
    let rules = agreed.rules(adapter.name_max());
    Ok(match lanes {
        Ok(lanes) => {
            // One thread for what does not come by the rings.
            let device = dev::Session::new(Arc::clone(&adapter), connection, agreed, 1);
            let session = Session {
                adapter,
                lanes,
                yielding,
                device,
                rules,
            };
            (Kind::Uring(session), None)
        }
        Err(why) => {
            let device = dev::Session::new(adapter, connection, agreed, settings.threads)
                .polling(settings.busy_poll);
            (Kind::Dev(device), Some(why))
        }
    })
}

/// Says why the kernel does not offer io_uring, and what to do.
fn why_not_offered() -> String {
    match fuse_ring::is_enabled() {
        Some(false) => format!(
            "the kernel's FUSE has it switched off; to switch it on for new mounts, type: echo Y > {}",
            fuse_ring::SWITCH
        ),
        _ => "the kernel's FUSE does not have it (it needs Linux 6.14, built with \
              CONFIG_FUSE_IO_URING)"
            .to_owned(),
    }
}

/// The queues that one thread serves.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    queues: Vec<u16>,
    /// The processor that the thread is bound to.
    bound_to: Option<usize>,
}

fn own_shares(settings: Settings) -> io::Result<Vec<Share>> {
    let (possible, allowed) = (processors::possible()?, processors::allowed()?);
    shares(possible, &allowed, settings.threads)
}

/// Shares the queues out: first one thread of each queue, then the others.
fn shares(possible: usize, allowed: &[usize], threads: usize) -> io::Result<Vec<Share>> {
    let queues = u16::try_from(possible)
        .map_err(|_| io::Error::other(format!("{possible} processors are too many")))?;
    let is_ours = |queue: &u16| allowed.contains(&usize::from(*queue));
    let (ours, others): (Vec<u16>, Vec<u16>) = (0..queues).partition(is_ours);
    let of_ours = ours.iter().map(|queue| Share {
        queues: vec![*queue],
        bound_to: Some(usize::from(*queue)),
    });
    let of_others = (!others.is_empty()).then_some(Share {
        queues: others,
        bound_to: None,
    });
    let first = of_ours.clone().chain(of_others.clone());
    let more = of_ours.flat_map(|share| std::iter::repeat_n(share, THREADS_OF_QUEUE - 1));
    let more_of_others = threads.max(THREADS_OF_OTHERS) - 1;
    let more_others = of_others.map(|share| std::iter::repeat_n(share, more_of_others));
    Ok(first
        .chain(more)
        .chain(more_others.into_iter().flatten())
        .collect())
}

/// How many of the first shares have all queues.
fn first_of_each(lanes: &[Lane]) -> usize {
    let mut queues: BTreeSet<u16> = BTreeSet::new();
    let new = |lane: &&Lane| {
        let before = queues.len();
        queues.extend(lane.share.queues.iter().copied());
        queues.len() > before
    };
    lanes.iter().take_while(new).count()
}

/// Starts the threads, which make their rings.
fn make(
    connection: &Arc<OwnedFd>,
    shares: Vec<Share>,
    yielding: &Arc<Yielding>,
) -> io::Result<Vec<Lane>> {
    let mut lanes = Vec::with_capacity(shares.len());
    let mut failed = None;
    for share in shares {
        match Lane::start(Arc::clone(connection), share, Arc::clone(yielding)) {
            Ok(lane) => lanes.push(lane),
            Err(error) => failed = Some(error),
        }
    }
    let until = Instant::now() + PATIENCE;
    for lane in &lanes {
        match lane.wait_for_step(until) {
            Outcome::Done => {}
            Outcome::Failed(error) => failed = Some(error),
            Outcome::Late => failed = Some(io::ErrorKind::TimedOut.into()),
        }
    }
    match failed {
        None => Ok(lanes),
        Some(error) => {
            lanes.into_iter().for_each(Lane::end);
            Err(error)
        }
    }
}

/// Registers the entries of all lanes, one lane after the other.
///
/// # Errors
/// Why the kernel has given io_uring up.
fn register(
    lanes: Vec<Lane>,
    agreed: &Negotiated,
    connection: &OwnedFd,
) -> Result<Vec<Lane>, String> {
    let payload = agreed.max_write().max(agreed.max_reply()) as usize;
    let needed = first_of_each(&lanes);
    let until = Instant::now() + PATIENCE;
    for (at, lane) in lanes.iter().take(needed).enumerate() {
        lane.order(Step::Register { payload });
        let error = match lane.wait_for_step(until) {
            Outcome::Done => continue,
            Outcome::Failed(error) => error,
            // It may succeed yet, and then all queues have an entry.
            Outcome::Late if at + 1 == needed && !lane.withdraw() => {
                tracing::warn!(
                    "the last queue takes long to register; requests wait until it has done so"
                );
                continue;
            }
            Outcome::Late => io::ErrorKind::TimedOut.into(),
        };
        // The next queues have no entry yet, and get none. First, since the kernel keeps all
        // requests back until then.
        give_up(connection);
        lanes.into_iter().for_each(Lane::end);
        return Err(format!("the kernel does not take the queues: {error}"));
    }
    for lane in lanes.iter().skip(needed) {
        lane.order(Step::Register { payload });
        // One that is late goes on, and serves afterwards.
        if let Outcome::Failed(error) = lane.wait_for_step(Instant::now() + PATIENCE) {
            // After a refusal, the kernel serves the connection by io_uring only as long as that
            // is switched on.
            tracing::warn!(
                "a queue has fewer threads: {error}; leave {} switched on while this is mounted",
                fuse_ring::SWITCH
            );
            break;
        }
    }
    Ok(lanes)
}

/// Makes the kernel serve by `/dev/fuse`. It has done so already if it has refused an entry.
fn give_up(connection: &OwnedFd) {
    if let Err(error) = FuseRing::new(connection, 1).and_then(|mut ring| ring.give_up()) {
        tracing::warn!("the kernel may wait for io_uring: {error}");
    }
}

impl Session {
    /// Serves until the end of the connection.
    ///
    /// # Errors
    /// A thread failed. The others may still serve then.
    pub(super) fn run(self) -> io::Result<()> {
        let mut threads = Threads::new();
        let watcher = self.yielding.watch();
        for lane in self.lanes {
            lane.serve(Arc::clone(&self.adapter), self.rules, &mut threads);
        }
        // Whoever closes the region waits for the last reference.
        drop(self.adapter);
        self.device.start(&mut threads)?;
        threads.wait()?;
        if let Some(watcher) = watcher {
            watcher.end();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the kernel might send requests to rings that nobody looks at.
    #[test]
    fn withdrawn_lane_registers_nothing_and_one_that_has_begun_is_not_withdrawn() {
        let connection = std::fs::File::open("/dev/null").unwrap();
        let connection = Arc::new(OwnedFd::from(connection));
        let share = Share {
            queues: vec![0],
            bound_to: None,
        };
        let long = || Instant::now() + Duration::from_secs(60);
        let lane = || {
            let lane = Lane::start(Arc::clone(&connection), share.clone(), Yielding::new());
            let lane = lane.unwrap();
            match lane.wait_for_step(long()) {
                Outcome::Done => Some(lane),
                _ => None,
            }
        };
        let (Some(withdrawn), Some(begun)) = (lane(), lane()) else {
            return pramfs_tests::skip::skipped("no io_uring");
        };
        assert!(withdrawn.withdraw());
        for lane in [&withdrawn, &begun] {
            lane.order(Step::Register { payload: 8192 });
        }
        let is_withdrawn = |lane: &Lane| match lane.wait_for_step(long()) {
            Outcome::Failed(error) => error.kind() == io::ErrorKind::TimedOut,
            // What a file that is no connection answers depends on the kernel.
            Outcome::Done => false,
            Outcome::Late => panic!("a thread does nothing"),
        };
        assert!(is_withdrawn(&withdrawn) && !is_withdrawn(&begun));
        assert!(!begun.withdraw());
        [withdrawn, begun].into_iter().for_each(Lane::end);
    }

    /// A kernel that was promised io_uring, and gets a wrong entry, asks by the device.
    #[test]
    fn kernel_that_waits_for_io_uring_gives_it_up() {
        use pramfs::format::{FormatOptions, format};
        use pramfs::pmem::{HeapBackend, Region};

        use crate::adapter::{CacheMode, Notifier};
        use crate::options::MountSettings;
        use crate::{kernel, mountpoint};

        if !pramfs_tests::mounted::available("io_uring given up") {
            return;
        }
        let switch = fuse_ring::SWITCH;
        let before = std::fs::read_to_string(switch).unwrap_or_default();
        if std::fs::write(switch, "Y").is_err() {
            return pramfs_tests::skip::skipped("FUSE over io_uring cannot be switched on");
        }
        let region = Region::new("test", HeapBackend::boxed(1 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let point = mountpoint::prepare(dir.path(), false).unwrap();
        let settings = MountSettings::default();
        let (connection, own_mount) = kernel::connect(&point, "region", &settings).unwrap();
        let notifier = Notifier::new(connection.try_clone().unwrap());
        let adapter = Arc::new(Adapter::new(Arc::new(fs), CacheMode::Auto, notifier));
        let offer = Offer::read(&connection).unwrap();
        // A connection keeps what it was offered.
        std::fs::write(switch, before.trim()).unwrap();
        let agreed = offer
            .answer(&connection, &adapter, InitFlags::OVER_IO_URING)
            .unwrap();
        assert!(agreed.flags().contains(InitFlags::OVER_IO_URING));
        let device = dev::Session::new(adapter, connection.try_clone().unwrap(), agreed, 1);
        let served = std::thread::spawn(|| device.run());
        // It would wait for ever.
        give_up(&connection);
        assert!(std::fs::metadata(dir.path()).unwrap().is_dir());
        own_mount.unmount().unwrap();
        served.join().unwrap().unwrap();
    }

    #[test]
    fn each_possible_queue_has_two_threads() {
        for (possible, allowed) in [(1, vec![0]), (2, vec![0, 1]), (4, vec![2]), (8, vec![0, 9])] {
            let shares = shares(possible, &allowed, 1).unwrap();
            for queue in 0..possible as u16 {
                let of_queue = |share: &&Share| share.queues.contains(&queue);
                assert_eq!(shares.iter().filter(of_queue).count(), 2, "{shares:?}");
                let is_bound = |share: &&Share| share.bound_to == Some(usize::from(queue));
                let bound = shares.iter().filter(is_bound).count();
                let ours = allowed.contains(&usize::from(queue));
                assert_eq!(bound, if ours { 2 } else { 0 });
            }
            // The first half has each queue once.
            let (first, more) = shares.split_at(shares.len() / 2);
            assert_eq!(first, more);
        }
        assert_eq!(shares(4, &[2], 5).unwrap().len(), 2 + 5);
        assert!(shares(70_000, &[0], 2).is_err());
    }
}
