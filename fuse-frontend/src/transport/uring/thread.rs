//! A thread that serves queues over its ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use pramfs_fuse_protocol::wire::{InHeader, OutHeader};
use pramfs_fuse_protocol::{Data, Errno, Opcode, Parts, Request, Rules};
use pramfs_kernel_sys::fuse_ring::{Arrived, FuseRing};
use pramfs_kernel_sys::processors;
use zerocopy::FromBytes;

use super::Share;
use super::reply::{RingReply, Room};
use super::yielding::{Reporter, Yielding};
use crate::adapter::Adapter;

/// What a thread does next.
pub(super) enum Step {
    /// Registers its entries.
    Register {
        /// Bytes of the payload of an entry.
        payload: usize,
    },
    /// Serves until the end of the connection.
    Serve {
        /// What requests keep to.
        rules: Rules,
    },
}

/// A thread with its ring.
pub(super) struct Lane {
    /// Without it, the thread ends.
    steps: Sender<Step>,
    done: Receiver<io::Result<()>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Lane {
    /// Starts the thread. Its first step is to make the ring.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        adapter: Arc<Adapter>,
        connection: OwnedFd,
        share: Share,
        yielding: Arc<Yielding>,
    ) -> io::Result<Lane> {
        let (steps, next) = mpsc::channel();
        let (report, done) = mpsc::channel();
        let name = match share.bound_to {
            Some(processor) => format!("fuse-{processor}"),
            None => "fuse-others".to_owned(),
        };
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || live(&adapter, connection, &share, &yielding, &next, &report))?;
        Ok(Lane {
            steps,
            done,
            thread,
        })
    }

    /// Tells the thread what to do next.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn order(&self, step: Step) -> io::Result<()> {
        self.steps
            .send(step)
            .map_err(|_| io::Error::other("a thread of a queue has ended"))
    }

    /// Waits until the thread has done its step.
    ///
    /// # Errors
    /// The step failed, or took too long.
    pub(super) fn wait_for_step(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        match self.done.recv_timeout(left) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("a thread of a queue has ended"))
            }
        }
    }

    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// Its ring failed, or it panicked.
    pub(super) fn join(self) -> io::Result<()> {
        drop(self.steps);
        let panicked = |_| Err(io::Error::other("a serving thread panicked"));
        self.thread.join().unwrap_or_else(panicked)
    }
}

fn live(
    adapter: &Adapter,
    connection: OwnedFd,
    share: &Share,
    yielding: &Arc<Yielding>,
    steps: &Receiver<Step>,
    done: &Sender<io::Result<()>>,
) -> io::Result<()> {
    // Nobody waits for a report after the patience is over.
    let report = |result| done.send(result).unwrap_or(());
    if let Some(processor) = share.bound_to
        && let Err(error) = processors::bind_to(processor)
    {
        tracing::debug!("a thread is not bound to processor {processor}: {error}");
    }
    let reporter = share.bound_to.and_then(|_| yielding.join());
    let mut ring = match FuseRing::new(connection, share.queues.len()) {
        Ok(ring) => ring,
        Err(error) => {
            report(Err(error));
            return Ok(());
        }
    };
    report(Ok(()));
    for step in steps {
        match step {
            Step::Register { payload } => report(ring.register(&share.queues, payload)),
            Step::Serve { rules } => return serve(adapter, &mut ring, &rules, reporter.as_ref()),
        }
    }
    Ok(())
}

fn serve(
    adapter: &Adapter,
    ring: &mut FuseRing,
    rules: &Rules,
    reporter: Option<&Reporter>,
) -> io::Result<()> {
    let mut kept = Vec::new();
    while let Some(arrived) = ring.next()? {
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
    let len = headers.ring_ent_in_out.payload_sz as usize;
    let header = InHeader::read_from_prefix(&headers.in_out[..]);
    let header = header.map_or_else(|_| InHeader::default(), |(header, _)| header);
    let refused = |error: Errno| OutHeader {
        len: OutHeader::SIZE as u32,
        error: -error.number(),
        unique: header.unique,
    };
    let room = arrived.payload();
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
    if !kept.is_empty() {
        let room = arrived.payload();
        for (to, byte) in room.iter_mut().zip(kept.drain(..)) {
            *to = byte;
        }
    }
    arrived.reply(&out, body)
}
