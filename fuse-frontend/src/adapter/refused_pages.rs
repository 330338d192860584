//! Drops the pages whose write-back is refused, because the file is immutable or append-only.
//!
//! After the refusal the kernel takes such a page for clean and keeps it. All programs would read
//! and execute what somebody has stored to a mapping, until the page is evicted.
//!
//! * The handler only notes the range, after its reply. A thread of its own sends the
//!   notifications: the kernel waits for the end of the write-back, for locks of pages and for
//!   requests in progress, which the serving threads answer meanwhile.
//! * The thread is started with the adapter. A serving thread would pass on its processor and its
//!   policy, and one of `transport=uring` may be bound and yield to every program.
//! * The ranges of a file that wait are joined to one. So there are no more than the kernel has
//!   inodes with such pages, and none is lost. Dropping what lies between costs a few reads.
//! * Nobody waits for the thread. An unmount waits in the kernel for a notification in progress,
//!   and the serving threads run until then. The end of the connection ends the notification, too.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::convert::Node;
use super::notifier::Notifier;

/// The pages of a mount that the kernel is to drop.
#[derive(Debug)]
pub(super) struct RefusedPages(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    notifier: Notifier,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One range for each node.
    waiting: BTreeMap<u64, Range<u64>>,
    /// The thread runs.
    started: bool,
    ended: bool,
}

impl RefusedPages {
    /// Starts the thread.
    pub(super) fn new(notifier: Notifier) -> RefusedPages {
        let pages = RefusedPages(Arc::new(Shared {
            notifier,
            state: Mutex::default(),
            changed: Condvar::new(),
        }));
        if pages.0.notifier.is_heard() {
            pages.start(&mut pages.0.lock());
        }
        pages
    }

    /// Has the kernel drop `len` bytes from `offset` on. Returns at once. Called after the reply.
    pub(super) fn drop_soon(&self, node: Node, offset: u64, len: usize) {
        if !self.0.notifier.is_heard() {
            return;
        }
        let end = offset.saturating_add(len as u64);
        let mut state = self.0.lock();
        let range = state.waiting.entry(node.0).or_insert(offset..end);
        *range = range.start.min(offset)..range.end.max(end);
        self.start(&mut state);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Starts the thread, unless it runs. If that fails, the next refusal tries again.
    fn start(&self, state: &mut State) {
        if state.started {
            return;
        }
        let shared = Arc::clone(&self.0);
        let started = std::thread::Builder::new()
            .name("refused-pages".into())
            .spawn(move || shared.run());
        match started {
            Ok(_) => state.started = true,
            Err(error) => tracing::warn!(
                "cannot start the thread that drops pages of immutable and append-only files after a refused write-back; what was stored to them stays visible until they are evicted: {error}"
            ),
        }
    }
}

impl Drop for RefusedPages {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for ranges. `None` at the end.
    fn next(&self) -> Option<BTreeMap<u64, Range<u64>>> {
        let idle = |state: &mut State| !state.ended && state.waiting.is_empty();
        let state = self.changed.wait_while(self.lock(), idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        (!state.ended).then(|| std::mem::take(&mut state.waiting))
    }

    fn run(&self) {
        while let Some(ranges) = self.next() {
            for (node, range) in ranges {
                if self.lock().ended {
                    return;
                }
                // No page lies beyond, and length 0 means all of them.
                let number = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
                let (from, len) = (number(range.start), number(range.end - range.start));
                if let Err(error) = self.notifier.invalidate(node, from, len) {
                    // Most often the kernel has forgotten the node, and its pages with it.
                    tracing::debug!("refused pages of node {node} are not dropped: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, Write};
    use std::sync::Weak;

    use pramfs_fuse_protocol::notify;
    use pramfs_tests::mounted::wait_until;

    use super::*;

    const FULL: usize = 4096;

    /// Pages whose first notification waits, because the pipe is full.
    fn blocked() -> (RefusedPages, PipeReader) {
        let (read, mut write) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&write, FULL).unwrap();
        write.write_all(&[0; FULL]).unwrap();
        let pages = RefusedPages::new(Notifier::new(write.into()));
        pages.drop_soon(Node(1), 0, 4096);
        assert!(wait_until(|| pages.0.lock().waiting.is_empty()));
        (pages, read)
    }

    fn expect(read: &mut PipeReader, node: u64, from: i64, len: i64) {
        let expected = notify::inval_inode(node, from, len).to_vec();
        let mut message = vec![0; expected.len()];
        read.read_exact(&mut message).unwrap();
        assert_eq!(message, *expected, "node {node}");
    }

    #[test]
    fn waiting_ranges_of_file_are_joined_and_none_is_lost() {
        let (pages, mut read) = blocked();
        for (node, offset) in [(7, 8192), (9, 0), (7, 0), (7, 8192)] {
            pages.drop_soon(Node(node), offset, 4096);
        }
        assert_eq!(pages.0.lock().waiting.len(), 2);
        read.read_exact(&mut [0; FULL]).unwrap();
        expect(&mut read, 1, 0, 4096);
        expect(&mut read, 7, 0, 3 * 4096);
        expect(&mut read, 9, 0, 4096);
        // Later ones follow.
        pages.drop_soon(Node(9), u64::MAX, 1);
        expect(&mut read, 9, i64::MAX, 0);
    }

    #[test]
    fn end_waits_for_no_notification() {
        let (pages, mut read) = blocked();
        pages.drop_soon(Node(7), 0, 4096);
        let thread: Weak<Shared> = Arc::downgrade(&pages.0);
        drop(pages);
        assert_eq!(thread.strong_count(), 1, "the thread still notifies");
        read.read_exact(&mut [0; FULL]).unwrap();
        expect(&mut read, 1, 0, 4096);
        assert!(wait_until(|| thread.strong_count() == 0));
        // The pipe has no writer left: nothing came after.
        assert_eq!(read.read(&mut [0; 1]).unwrap(), 0);
    }
}
