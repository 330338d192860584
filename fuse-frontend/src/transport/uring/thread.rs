//! A thread that serves queues over its ring.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use pramfs_fuse_protocol::wire::{InHeader, OutHeader, UringReqHeader};
use pramfs_fuse_protocol::{Data, Errno, Opcode, Parts, Request, Rules};
use pramfs_kernel_sys::fuse_ring::{Arrived, FuseRing};
use pramfs_kernel_sys::processors;
use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::FromBytes;

use super::Share;
use super::reply::{RingReply, Room};
use super::yielding::{Reporter, Yielding};
use crate::adapter::Adapter;
use crate::transport::threads::{Report, Threads};

/// What a thread does next.
pub(super) enum Step {
    /// Registers its entries.
    Register {
        /// Bytes of the payload of an entry.
        payload: usize,
    },
    /// Serves until the end of the connection.
    Serve {
        /// Serves them. A thread that never comes here keeps no reference to the file system.
        adapter: Arc<Adapter>,
        /// What requests keep to.
        rules: Rules,
        /// Reports the end.
        report: Report,
    },
}

/// A thread with its ring.
pub(super) struct Lane {
    /// Without it, the thread ends.
    steps: Sender<Step>,
    done: Receiver<io::Result<()>>,
    thread: JoinHandle<()>,
    pub share: Share,
    /// A step has taken too long.
    is_late: Cell<bool>,
    /// The registration has begun, or is withdrawn: whoever sets this first decides.
    is_decided: Arc<AtomicBool>,
}

/// How a step went.
pub(super) enum Outcome {
    /// It is done.
    Done,
    /// It failed, and has had no effect.
    Failed(io::Error),
    /// It takes too long.
    Late,
}

impl Lane {
    /// Starts the thread. Its first step is to make the ring.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        connection: Arc<OwnedFd>,
        share: Share,
        yielding: Arc<Yielding>,
    ) -> io::Result<Lane> {
        let (steps, next) = mpsc::channel();
        let (report, done) = mpsc::channel();
        let is_decided = Arc::new(AtomicBool::new(false));
        let name = match share.bound_to {
            Some(processor) => format!("fuse-{processor}"),
            None => "fuse-others".to_owned(),
        };
        let thread = std::thread::Builder::new().name(name).spawn({
            let (share, is_decided) = (share.clone(), Arc::clone(&is_decided));
            move || live(&connection, &share, &yielding, &is_decided, &next, &report)
        })?;
        Ok(Lane {
            steps,
            done,
            thread,
            share,
            is_late: Cell::new(false),
            is_decided,
        })
    }

    /// Tells the thread what to do next. If it has ended, the wait for the step shows that.
    pub(super) fn order(&self, step: Step) {
        let _ended = self.steps.send(step);
    }

    /// Waits until the thread has done its step.
    pub(super) fn wait_for_step(&self, until: Instant) -> Outcome {
        let left = until.saturating_duration_since(Instant::now());
        match self.done.recv_timeout(left) {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(error)) => Outcome::Failed(error),
            Err(RecvTimeoutError::Timeout) => {
                self.is_late.set(true);
                Outcome::Late
            }
            Err(RecvTimeoutError::Disconnected) => {
                Outcome::Failed(io::Error::other("a thread of a queue has ended"))
            }
        }
    }

    /// Withdraws the order to register, unless the thread has begun to. Returns whether it registers
    /// nothing any more.
    pub(super) fn withdraw(&self) -> bool {
        !self.is_decided.swap(true, Ordering::AcqRel)
    }

    /// Serves from now on.
    pub(super) fn serve(self, adapter: Arc<Adapter>, rules: Rules, threads: &mut Threads) {
        let report = threads.report();
        self.order(Step::Serve {
            adapter,
            rules,
            report,
        });
        threads.adopt(self.thread);
    }

    /// Ends the thread, and with it its ring. One that is late with its step ends when that is
    /// done: the kernel may keep it for ever.
    pub(super) fn end(self) {
        let Lane {
            steps,
            thread,
            is_late,
            ..
        } = self;
        drop(steps);
        if !is_late.get() && thread.join().is_err() {
            tracing::warn!("a thread of a queue panicked");
        }
    }
}

fn live(
    connection: &OwnedFd,
    share: &Share,
    yielding: &Arc<Yielding>,
    is_decided: &AtomicBool,
    steps: &Receiver<Step>,
    done: &Sender<io::Result<()>>,
) {
    // Nobody waits for the outcome after the patience is over.
    let say = |result| done.send(result).unwrap_or(());
    if let Some(processor) = share.bound_to
        && let Err(error) = processors::bind_to(processor)
    {
        tracing::debug!("a thread is not bound to processor {processor}: {error}");
    }
    let mut ring = match FuseRing::new(connection, share.queues.len()) {
        Ok(ring) => ring,
        Err(error) => return say(Err(error)),
    };
    say(Ok(()));
    for step in steps {
        match step {
            Step::Register { .. } if is_decided.swap(true, Ordering::AcqRel) => {
                say(Err(io::ErrorKind::TimedOut.into()));
            }
            Step::Register { payload } => say(ring.register(&share.queues, payload)),
            Step::Serve {
                adapter,
                rules,
                report,
            } => {
                let reporter = share.bound_to.and_then(|_| yielding.join());
                return report.of(|| {
                    let served = serve(&adapter, &mut ring, &rules, reporter.as_ref());
                    served.or_else(|error| unless_ended(connection, error))
                });
            }
        }
    }
}

/// Passes on an error, unless it only shows that the connection is ending: the kernel may have
/// ended a request before its reply came.
fn unless_ended(connection: &OwnedFd, error: io::Error) -> io::Result<()> {
    const NOW: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EIO)) {
        return Err(error);
    }
    // The kernel shows the end of a connection as an error of its descriptor.
    let mut asked = [PollFd::new(connection, PollFlags::empty())];
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut asked, Some(&NOW))) {
        Ok(_) if asked[0].revents().contains(PollFlags::ERR) => Ok(()),
        _ => Err(error),
    }
}

fn serve(
    adapter: &Adapter,
    ring: &mut FuseRing,
    rules: &Rules,
    reporter: Option<&Reporter>,
) -> io::Result<()> {
    let mut kept = Vec::new();
    while let Some(arrived) = ring.wait_for_request()? {
        if let Some(reporter) = reporter {
            reporter.begins();
        }
        answer(adapter, arrived, rules, &mut kept)?;
        if let Some(reporter) = reporter {
            reporter.ends();
        }
    }
    Ok(())
}

/// Serves a request. `kept` is memory for replies, which is empty between requests.
fn answer(
    adapter: &Adapter,
    mut arrived: Arrived<'_>,
    rules: &Rules,
    kept: &mut Vec<u8>,
) -> io::Result<()> {
    let headers = *arrived.headers();
    let (out, body) = serve_entry(adapter, &headers, arrived.payload(), rules, kept);
    arrived.reply(&out, body)
}

/// Serves the request of an entry. Puts the body of the reply into the payload, and returns its
/// header and its length.
pub(crate) fn serve_entry(
    adapter: &Adapter,
    headers: &UringReqHeader,
    room: &mut [u8],
    rules: &Rules,
    kept: &mut Vec<u8>,
) -> (OutHeader, usize) {
    let len = headers.ring_ent_in_out.payload_sz as usize;
    let header = InHeader::read_from_prefix(&headers.in_out[..]);
    let header = header.map_or_else(|_| InHeader::default(), |(header, _)| header);
    let refused = |error: Errno| OutHeader {
        len: OutHeader::SIZE as u32,
        error: -error.number(),
        unique: header.unique,
    };
    let (brings, rest) = room.split_at_mut(len.min(room.len()));
    let parts = Parts {
        header: &headers.in_out,
        operation: &headers.op_in,
        payload: Data::Whole(brings),
    };
    let mut sent = None;
    match Request::from_parts(parts, rules) {
        Ok(request) => {
            // The reply to a request with a payload takes its place after the handler has
            // returned, which reads it until then.
            let room = match len {
                0 => Room::Payload(rest),
                _ => Room::Kept(kept),
            };
            let reply = RingReply::new(request.unique(), room, &mut sent);
            adapter.serve_request(&request.header, request.operation, reply);
        }
        Err(malformed) => {
            let op = Opcode::try_from(header.opcode);
            tracing::debug!("a request {op:?} is refused: {}", malformed.error);
            sent = Some((refused(malformed.error.errno()), 0));
        }
    }
    // Dismissed: the kernel waits for no reply, but gets its entry back.
    let (out, body) = sent.unwrap_or_else(|| (refused(Errno::ENOSYS), 0));
    for (to, byte) in room.iter_mut().zip(kept.drain(..)) {
        *to = byte;
    }
    (out, body)
}
