//! The transport `uring`: requests over io_uring, a queue for each processor, so that a request
//! wakes a thread on the processor where it was made.
//!
//! * Each processor that this process may use has two threads bound to it. While one is busy with
//!   a long request, the other serves. They yield to the client that they wake ([`yielding`]).
//! * The queues of all other possible processors, which the kernel demands, share two threads.
//! * FORGET and INTERRUPT come by `/dev/fuse`, which has a thread of its own.
//!
//! Order, because the kernel holds all requests back until each queue has an entry:
//! 1. the rings are made before INIT is answered: if that fails, nothing was promised;
//! 2. INIT is answered, and the entries are registered;
//! 3. if that does not succeed within [`PATIENCE`], a deliberately wrong entry makes the kernel
//!    give io_uring up for this connection, and `dev` serves;
//! 4. nobody looks at a request before [`Session::run`], when the server has dropped its
//!    privileges.

mod reply;
mod thread;
mod yielding;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{Negotiated, Rules};
use pramfs_kernel_sys::{fuse_ring, processors};

use super::handshake::Offer;
use super::{Kind, Settings, dev};
use crate::adapter::Adapter;
use thread::{Lane, Step};
use yielding::{Watcher, Yielding};

/// How long the threads of all queues may take to register.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads for each queue of a processor that this process may use.
const THREADS_OF_QUEUE: usize = 2;

/// Threads that share the queues of the other processors.
const THREADS_OF_OTHERS: usize = 2;

/// A connection that both sides have agreed upon.
pub(super) struct Session {
    lanes: Vec<Lane>,
    watcher: Option<Watcher>,
    /// Serves what does not come by the rings.
    device: dev::Session,
    rules: Rules,
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
    let yielding = Arc::new(Yielding::default());
    let made = match offer.has(InitFlags::OVER_IO_URING) {
        true => make(&adapter, &connection, &yielding).map_err(|error| error.to_string()),
        false => Err(why_not_offered()),
    };
    let (mut lanes, why) = match made {
        Ok(lanes) => (lanes, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let also = match why {
        None => InitFlags::OVER_IO_URING,
        Some(_) => InitFlags::empty(),
    };
    let agreed = offer.answer(&connection, &adapter, also)?;
    let (why, settings) = match why {
        Some(why) => (Some(why), settings),
        None => match register(&mut lanes, &agreed) {
            // One thread for what does not come by the rings.
            Ok(()) => (
                None,
                Settings {
                    threads: 1,
                    ..settings
                },
            ),
            Err(error) => {
                let why = format!("the kernel does not take the queues: {error}");
                lanes.clear();
                give_up(&connection);
                (Some(why), settings)
            }
        },
    };
    let rules = agreed.rules(adapter.name_max());
    let device = dev::Session::new(adapter, connection, agreed, settings.threads)?;
    Ok(match why {
        Some(_) => (Kind::Dev(device), why),
        None => {
            let session = Session {
                lanes,
                watcher: yielding.watch(),
                device,
                rules,
            };
            (Kind::Uring(session), None)
        }
    })
}

/// Says why the kernel does not offer io_uring, and what to do.
fn why_not_offered() -> String {
    match fuse_ring::is_enabled() {
        Some(false) => "the kernel's FUSE has it switched off; to switch it on for new mounts, \
                        type: echo Y > /sys/module/fuse/parameters/enable_uring"
            .to_owned(),
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

/// Shares the queues out.
fn shares(possible: usize, allowed: &[usize]) -> io::Result<Vec<Share>> {
    let queues = u16::try_from(possible)
        .map_err(|_| io::Error::other(format!("{possible} processors are too many")))?;
    let is_ours = |queue: &u16| allowed.contains(&usize::from(*queue));
    let (ours, others): (Vec<u16>, Vec<u16>) = (0..queues).partition(is_ours);
    let mut all = Vec::new();
    if !others.is_empty() {
        let share = Share {
            queues: others,
            bound_to: None,
        };
        all.extend(std::iter::repeat_n(share, THREADS_OF_OTHERS));
    }
    for queue in ours {
        let share = Share {
            queues: vec![queue],
            bound_to: Some(usize::from(queue)),
        };
        all.extend(std::iter::repeat_n(share, THREADS_OF_QUEUE));
    }
    Ok(all)
}

/// Starts the threads, which make their rings.
fn make(
    adapter: &Arc<Adapter>,
    connection: &OwnedFd,
    yielding: &Arc<Yielding>,
) -> io::Result<Vec<Lane>> {
    let shares = shares(processors::possible()?, &processors::allowed()?)?;
    let lanes = shares.into_iter().map(|share| {
        let connection = connection.as_fd().try_clone_to_owned()?;
        Lane::start(Arc::clone(adapter), connection, share, Arc::clone(yielding))
    });
    let lanes: Vec<Lane> = lanes.collect::<io::Result<_>>()?;
    let until = Instant::now() + PATIENCE;
    for lane in &lanes {
        lane.wait_for_step(until)?;
    }
    Ok(lanes)
}

/// Registers the entries of all lanes, one lane after the other.
fn register(lanes: &mut [Lane], agreed: &Negotiated) -> io::Result<()> {
    let payload = agreed.max_write().max(agreed.max_reply());
    let until = Instant::now() + PATIENCE;
    for lane in lanes.iter() {
        lane.order(Step::Register {
            payload: payload as usize,
        })?;
        lane.wait_for_step(until)?;
    }
    Ok(())
}

/// Makes the kernel serve by `/dev/fuse`. It has done so already if it has refused an entry.
fn give_up(connection: &OwnedFd) {
    let done = connection
        .as_fd()
        .try_clone_to_owned()
        .and_then(|connection| fuse_ring::FuseRing::new(connection, 1))
        .and_then(|mut ring| ring.give_up());
    if let Err(error) = done {
        tracing::warn!("the kernel may wait for io_uring: {error}");
    }
}

impl Session {
    /// Serves until the end of the connection.
    ///
    /// # Errors
    /// A thread failed.
    pub(super) fn run(self) -> io::Result<()> {
        for lane in &self.lanes {
            lane.order(Step::Serve { rules: self.rules })?;
        }
        let mut ended = self.device.run();
        for lane in self.lanes {
            ended = ended.and(lane.join());
        }
        if let Some(watcher) = self.watcher {
            watcher.end();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that was promised io_uring, and gets a wrong entry, asks by the device.
    #[test]
    fn kernel_that_waits_for_io_uring_gives_it_up() {
        use pramfs::format::{FormatOptions, format};
        use pramfs::pmem::{HeapBackend, Region};

        use crate::adapter::{CacheMode, Kernel};
        use crate::options::MountSettings;
        use crate::{kernel, mountpoint};

        if !pramfs_tests::mounted::available("io_uring given up") {
            return;
        }
        let switch = "/sys/module/fuse/parameters/enable_uring";
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
        let notified = Kernel::new(connection.try_clone().unwrap());
        let adapter = Arc::new(Adapter::new(Arc::new(fs), CacheMode::Auto, notified));
        let offer = Offer::read(&connection).unwrap();
        // A connection keeps what it was offered.
        std::fs::write(switch, before.trim()).unwrap();
        let agreed = offer
            .answer(&connection, &adapter, InitFlags::OVER_IO_URING)
            .unwrap();
        assert!(agreed.flags().contains(InitFlags::OVER_IO_URING));
        let device = dev::Session::new(adapter, connection.try_clone().unwrap(), agreed, 1);
        let served = std::thread::spawn(|| device.unwrap().run());
        // It would wait for ever.
        give_up(&connection);
        assert!(std::fs::metadata(dir.path()).unwrap().is_dir());
        own_mount.unmount().unwrap();
        served.join().unwrap().unwrap();
    }

    #[test]
    fn each_possible_queue_has_two_threads() {
        for (possible, allowed) in [(1, vec![0]), (2, vec![0, 1]), (4, vec![2]), (8, vec![0, 9])] {
            let shares = shares(possible, &allowed).unwrap();
            for queue in 0..possible as u16 {
                let of_queue = |share: &&Share| share.queues.contains(&queue);
                assert_eq!(shares.iter().filter(of_queue).count(), 2, "{shares:?}");
                let is_bound = |share: &&Share| share.bound_to == Some(usize::from(queue));
                let bound = shares.iter().filter(is_bound).count();
                let ours = allowed.contains(&usize::from(queue));
                assert_eq!(bound, if ours { 2 } else { 0 });
            }
        }
        assert!(shares(70_000, &[0]).is_err());
    }
}
