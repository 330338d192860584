//! Requests that a dead server may have done: what the kernel sends again to the server that
//! takes over.
//!
//! * A request whose record is durable is answered from it, and does not happen again.
//! * One that must not happen twice, and has no record (RELEASE), is answered as done: the
//!   references that it did not release are released by the unmount.
//! * Any other is served as if it came for the first time. It either has not happened, or has
//!   the same effect twice. A request without a reply is concurrent with all that was answered
//!   meanwhile, so it may as well happen last. For most changes of a file, the kernel even holds
//!   its lock until the reply (not for O_DIRECT writes that overlap).
//!
//! References that were counted for a reply that was not sent are given back; those to an inode
//! that a record has made, only after the reply has counted its own: an inode without a name has
//! no other.

use std::sync::Arc;

use pramfs::inode::{Fs, Ino};
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_fuse_protocol::{Errno, Operation};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::convert::{Node, ino};
use super::namespace::HeldEntry;
use super::serve::Served;
use crate::takeover::memory::{Memory, Outcome};

/// The inode that a record has made.
fn made(fs: &Fs, made: Option<Ino>) -> Served<HeldEntry> {
    // No inode has the number 0: a note without an inode gets an error here.
    let made = made.unwrap_or(Ino(0));
    Ok((fs.hold(made), fs.getattr(made)?))
}

/// Whether a request makes, moves or removes a name.
fn changes_names(asked: &Operation<'_>) -> bool {
    matches!(
        asked,
        Operation::Create { .. }
            | Operation::Tmpfile { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
    )
}

impl Adapter {
    /// Serves a request with a note of it in `memory`.
    pub(super) fn dispatch_noted(
        &self,
        memory: &Arc<Memory>,
        header: &InHeader,
        asked: Operation<'_>,
        reply: impl Reply,
    ) {
        // The kernel does not send them again.
        if !asked.opcode().has_reply() {
            return self.dispatch(header, asked, reply);
        }
        let serving = memory.begin(header.unique);
        let is_done = matches!(serving.outcome, Outcome::Done(_));
        let unsent = serving.raised;
        if let Some((ino, count)) = unsent.filter(|_| !is_done) {
            self.fs.release(ino, count);
        }
        if serving.again && changes_names(&asked) {
            memory.note_asked_again(is_done);
        }
        match serving.outcome {
            Outcome::Open => {
                if let Operation::Release(_) | Operation::Releasedir(_) = &asked {
                    serving.happens_once();
                }
                self.dispatch(header, asked, reply);
            }
            Outcome::Done(made) => {
                self.answer_from_record(header, &asked, made, reply);
            }
            Outcome::Begun => reply.send(Answer::Done),
            Outcome::Deadly => {
                tracing::error!(
                    "{}: {} of node {}: two servers have died while they served it; it is answered EIO",
                    self.fs.region().info().name,
                    asked.opcode().name(),
                    header.nodeid
                );
                reply.send(Answer::Refused(Errno::EIO));
            }
        }
        if let Some((ino, count)) = unsent.filter(|_| is_done) {
            self.fs.release(ino, count);
        }
    }

    /// The kernel has sent all requests again that a dead server had not answered.
    pub fn has_served_resent(&self) {
        if let Some(memory) = &self.takeover {
            memory.forget_old();
        }
    }

    /// Answers a request that a dead server has done.
    fn answer_from_record(
        &self,
        header: &InHeader,
        asked: &Operation<'_>,
        by_record: Option<Ino>,
        reply: impl Reply,
    ) {
        let node = Node(header.nodeid);
        tracing::debug!(
            "{} of node {} is answered from the record of a dead server",
            asked.opcode().name(),
            node.0
        );
        match asked {
            Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => {
                let work = |fs: &Fs, _: &mut _| made(fs, by_record);
                self.serve("made before", node, reply, work, |reply, made| {
                    self.send_entry(reply, made)
                });
            }
            Operation::Create { arg, .. } | Operation::Tmpfile { arg, .. } => {
                let flags = arg.flags.cast_signed();
                let work =
                    |fs: &Fs, _: &mut _| Ok(self.opened_anew(fs, made(fs, by_record)?, flags));
                self.serve("made before", node, reply, work, |reply, made| {
                    self.send_created(reply, made, flags)
                });
            }
            Operation::Unlink { .. } | Operation::Rmdir { .. } => {
                self.removals.note_removed();
                reply.send(Answer::Done);
            }
            Operation::Rename {
                newdir,
                flags,
                name,
                newname,
            } => {
                self.removals.note_removed();
                let work = |fs: &Fs, _: &mut _| {
                    let (source, target) = (ino(node)?, ino(Node(*newdir))?);
                    let exchanged = *flags & libc::RENAME_EXCHANGE != 0;
                    self.note_moves(fs, (source, name), (target, newname), exchanged);
                    Ok(())
                };
                self.serve("moved before", node, reply, work, |reply, ()| {
                    reply.send(Answer::Done)
                });
            }
            Operation::Setxattr { .. } | Operation::Removexattr { .. } => {
                let work = |fs: &Fs, _: &mut _| {
                    self.listing_is_due(fs, ino(node)?);
                    Ok(())
                };
                self.serve("set before", node, reply, work, |reply, ()| {
                    reply.send(Answer::Done)
                });
            }
            // No other operation has a record that decides it.
            other => {
                tracing::error!("{:?} cannot be answered from a record", other.opcode());
                reply.send(Answer::Refused(Errno::EIO));
            }
        }
    }
}
