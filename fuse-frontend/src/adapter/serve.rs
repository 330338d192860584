//! Runs every request: calls the handler, replies, contains panics.
//!
//! Invariant: whether the handler succeeds, fails or panics, the kernel gets one reply and
//! the serving thread survives. After a panic, the in-memory state of the engine cannot be
//! trusted, so no request reaches it: every later request gets EIO until the region is
//! mounted again, with the usual recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use pramfs::{
    Error,
    inode::{Fs, Repeats},
};
use pramfs_fuse_protocol::Errno;

use super::Adapter;
use super::answer::{Answer, Reply};
use super::convert::Node;

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The engine returned an error.
    Engine(Error),
    /// The request itself is invalid.
    Request(Errno, &'static str),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Engine(error)
    }
}

impl Refusal {
    pub(super) fn errno(&self) -> Errno {
        match self {
            Refusal::Engine(error) => Errno::new(error.errno()).unwrap_or(Errno::EIO),
            Refusal::Request(errno, _) => *errno,
        }
    }
}

/// The result of a handler.
pub(super) type Served<T> = Result<T, Refusal>;

impl Adapter {
    /// Runs `work` and sends its result with `send`, or its error.
    ///
    /// `work` may fill the reply (directories) or take and send it (reads).
    pub(super) fn serve<R: Reply, T>(
        &self,
        request: &'static str,
        node: Node,
        mut reply: R,
        work: impl FnOnce(&Fs, &mut R) -> Served<T>,
        send: impl FnOnce(R, T),
    ) {
        if self.failed.load(Ordering::Relaxed) {
            return reply.send(Answer::Refused(Errno::EIO));
        }
        match catch_unwind(AssertUnwindSafe(|| work(&self.fs, &mut reply))) {
            Ok(Ok(done)) => {
                // A reply dropped by unwinding sends EIO itself.
                if catch_unwind(AssertUnwindSafe(|| send(reply, done))).is_err() {
                    self.fail(request, node);
                }
            }
            Ok(Err(refusal)) => {
                self.note(request, node, &refusal);
                reply.send(Answer::Refused(refusal.errno()));
            }
            Err(_) => {
                self.fail(request, node);
                reply.send(Answer::Refused(Errno::EIO));
            }
        }
    }

    /// Runs a request that has no reply.
    pub(super) fn quietly(&self, request: &'static str, node: Node, work: impl FnOnce(&Fs)) {
        if !self.failed.load(Ordering::Relaxed)
            && catch_unwind(AssertUnwindSafe(|| work(&self.fs))).is_err()
        {
            self.fail(request, node);
        }
    }

    /// Logs an error by kind: a medium failure once for each node and minute; a node that is gone
    /// once for each kind of request and minute, because a guest can ask for such nodes without an
    /// end; reported damage and errors provoked by programs at debug level only.
    pub(super) fn note(&self, request: &'static str, node: Node, refusal: &Refusal) {
        let error = match refusal {
            Refusal::Engine(error) => error,
            Refusal::Request(errno, why) => {
                tracing::debug!(
                    "{request} of node {}: {why} (errno {})",
                    node.0,
                    errno.number()
                );
                return;
            }
        };
        match error.errno() {
            _ if matches!(error, Error::Lost { .. } | Error::WrongSum { .. }) => {
                tracing::debug!("{request} of node {}: {error}", node.0);
            }
            libc::EIO => {
                if let Some(silent) = self.tells(&format!("node {}", node.0)) {
                    let region = self.fs.region().info().name;
                    tracing::error!(
                        "{region}: {request} of node {}: {error}{}",
                        node.0,
                        Repeats::since(silent)
                    );
                }
            }
            libc::ESTALE => {
                if let Some(silent) = self.tells(&format!("{request} of a node that is gone")) {
                    let since = Repeats::since(silent);
                    tracing::warn!("{request} of node {}: {error}{since}", node.0);
                }
            }
            _ => tracing::debug!("{request} of node {}: {error}", node.0),
        }
    }

    /// Decides whether to log a message about this. Returns how many were left out since the last one.
    pub(crate) fn tells(&self, what: &str) -> Option<u64> {
        let now = self.fs.options().clock.now().sec;
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        repeats.tell(what, now)
    }

    fn fail(&self, request: &'static str, node: Node) {
        self.failed.store(true, Ordering::Relaxed);
        let region = self.fs.region().info().name;
        let taken_over = self.will_be_taken_over();
        let then = match taken_over {
            true => "the next server recovers the region".to_owned(),
            false => format!(
                "every request is answered EIO from now on: unmount it, run `fsck.pramfs {region}`, mount it again"
            ),
        };
        tracing::error!("{region}: {request} of node {} panicked; {then}", node.0);
        if taken_over {
            // The next server refuses this request if it panics there, too.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use pramfs::format::{FormatOptions, format};
    use pramfs::pmem::{HeapBackend, Region};
    use pramfs::{MountOptions, inode::Ino};

    use super::*;
    use crate::adapter::{CacheMode, nowhere};
    use crate::logging::tests::{Still, lines_of};

    const NODE: Node = Node::ROOT;

    /// Counts answers, and keeps the last errno or 0.
    #[derive(Default)]
    struct Answers {
        count: Cell<u32>,
        last: Cell<i32>,
    }

    impl Answers {
        fn give(&self, errno: i32) {
            self.count.set(self.count.get() + 1);
            self.last.set(errno);
        }
    }

    impl Reply for &Answers {
        fn send(self, answer: Answer<'_>) {
            self.give(match answer {
                Answer::Refused(errno) => errno.number(),
                _ => 0,
            });
        }

        fn dismiss(self) {}
    }

    fn adapter() -> Adapter {
        let region = Region::new("test", HeapBackend::boxed(1 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        Adapter::new(Arc::new(fs), CacheMode::Auto, nowhere())
    }

    #[test]
    fn each_request_is_answered_once() {
        let (adapter, answers) = (adapter(), Answers::default());
        let attr = |fs: &Fs, _: &mut _| Ok(fs.getattr(Ino::ROOT)?);
        adapter.serve("getattr", NODE, &answers, attr, |reply, _| reply.give(0));
        assert_eq!((answers.count.get(), answers.last.get()), (1, 0));
        let missing = |fs: &Fs, _: &mut _| Ok(fs.lookup(Ino::ROOT, b"missing")?);
        adapter.serve("lookup", NODE, &answers, missing, |reply, _| reply.give(0));
        assert_eq!((answers.count.get(), answers.last.get()), (2, libc::ENOENT));
    }

    #[test]
    fn panic_replies_eio_and_stops_all_requests() {
        let (adapter, answers) = (adapter(), Answers::default());
        let panics = |_: &Fs, _: &mut _| -> Served<()> { panic!("on purpose") };
        adapter.serve("first", NODE, &answers, panics, |reply, ()| reply.give(0));
        assert_eq!((answers.count.get(), answers.last.get()), (1, libc::EIO));
        let unreached = |_: &Fs, _: &mut _| -> Served<()> { unreachable!("after a panic") };
        adapter.serve("second", NODE, &answers, unreached, |reply, ()| {
            reply.give(0)
        });
        assert_eq!((answers.count.get(), answers.last.get()), (2, libc::EIO));
        adapter.quietly("third", NODE, |_| unreachable!("after a panic"));
    }

    #[test]
    fn panic_in_request_without_reply_is_contained() {
        let adapter = adapter();
        adapter.quietly("forget", NODE, |_| panic!("on purpose"));
        let answers = Answers::default();
        let work = |_: &Fs, _: &mut _| Ok(());
        adapter.serve("next", NODE, &answers, work, |reply, ()| reply.give(0));
        assert_eq!(answers.last.get(), libc::EIO);
    }

    #[test]
    fn requests_of_nodes_that_are_gone_are_logged_once_for_each_kind() {
        let region = Region::new("test", HeapBackend::boxed(1 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            clock: Arc::new(Still),
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        let adapter = Adapter::new(Arc::new(fs), CacheMode::Auto, nowhere());
        let lines = lines_of(|| {
            for node in 100..200 {
                for request in ["lookup", "rmdir"] {
                    let gone = Refusal::Engine(Error::Stale(Ino(node)));
                    adapter.note(request, Node(node), &gone);
                }
            }
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("lookup of node 100"), "{lines:?}");
    }
}
