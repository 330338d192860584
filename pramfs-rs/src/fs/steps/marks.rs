//! Files whose data sums do not hold (flag `FL_UNSUMMED`): somebody stores to their blocks
//! without a record, by a view for writing or a lease to write.
//!
//! Invariant: a record sets the flag before the first such store is possible. It is cleared by
//! the record that holds the last of the new sums, after the last view and lease. So a crash
//! leaves a file that is marked, or whose sums are right.
//!
//! The file is summed in steps, by the timer and at unmount. Writes between the steps set sums
//! as ever. A new view or lease makes it begin again. A mark that a crash leaves is found when
//! the inode is next loaded.

use std::sync::atomic::Ordering;

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::marks::Marked;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::inode::FL_UNSUMMED;
use pramfs_medium::types::Ino;

/// Bytes of a file that one record sums.
const STEP: u64 = 8 << 20;

/// Bytes that one tick of the timer sums, so that its other work goes on.
const TICK: u64 = 512 << 20;

impl Engine {
    /// Marks a file durably, for a view for writing. [`end_stores`](Self::end_stores) follows,
    /// unless this fails.
    ///
    /// # Errors
    /// Those of a change of the inode.
    pub(crate) fn begin_stores(&self, ino: Ino) -> Result<()> {
        // First, so that the mark stays once it is there.
        self.marks.change(ino, |marked| marked.views += 1);
        let marked = self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            self.mark_unsummed(&inode, &mut state)
        });
        if marked.is_err() {
            self.end_stores(ino);
        }
        marked
    }

    /// Ends what [`begin_stores`](Self::begin_stores) began.
    pub(crate) fn end_stores(&self, ino: Ino) {
        let end = |marked: &mut Marked| marked.views = marked.views.saturating_sub(1);
        self.marks.change(ino, end);
    }

    /// Marks a locked file durably, before somebody may store to its blocks without a record.
    pub(crate) fn mark_unsummed(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if !self.vol.geo.data_sums {
            return Ok(());
        }
        self.marks.change(inode.ino, |marked| marked.summed = 0);
        if state.disk.flags & FL_UNSUMMED == 0 {
            self.change(inode, state, |_, new| {
                new.flags |= FL_UNSUMMED;
                Ok(())
            })?;
        }
        // Readers without the lock see it before any store.
        inode.unsummed.store(true, Ordering::Release);
        Ok(())
    }

    /// Sums the files that nobody stores to any more, as the timer does, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn sum_marked_files(&self) -> bool {
        self.sum_marked(|| false)
    }

    /// Sums marked files that nobody stores to any more, until `stop` returns true. Returns
    /// whether none is left.
    pub(crate) fn sum_marked(&self, stop: impl Fn() -> bool) -> bool {
        let mut all = true;
        let mut left = TICK;
        for ino in self.marks.waiting() {
            loop {
                if stop() || left == 0 {
                    return false;
                }
                left = left.saturating_sub(STEP);
                match self.op(Need::Write, || self.sum_step(ino)) {
                    Ok(Step::More) => {}
                    Ok(Step::Done) => break,
                    Ok(Step::Later) => {
                        all = false;
                        break;
                    }
                    Err(Error::Stale(_)) => {
                        self.marks.remove(ino);
                        break;
                    }
                    Err(e) => {
                        tracing::warn!(%ino, error = %e, "could not sum a file that was mapped for writing; it stays marked");
                        // The next load of the inode tries again.
                        self.marks.remove(ino);
                        all = false;
                        break;
                    }
                }
            }
        }
        all && self.marks.is_empty()
    }

    /// Sums the next part of a marked file, by one record.
    fn sum_step(&self, ino: Ino) -> Result<Step> {
        let inode = self.iget(ino)?;
        let mut state = inode.state.write();
        state.alive(ino)?;
        let Some(marked) = self.marks.get(ino) else {
            return Ok(Step::Done);
        };
        if marked.views > 0 || !state.leases.is_empty() {
            return Ok(Step::Later);
        }
        if state.disk.flags & FL_UNSUMMED == 0 {
            self.marks.remove(ino);
            return Ok(Step::Done);
        }
        let (map, size) = (state.map(), state.disk.size);
        let end = marked.summed.saturating_add(STEP).min(size);
        self.use_copies()?;
        // What was stored without a record may be in caches only: a loss of power would take the
        // bytes and leave their sums.
        self.flush_range(&inode, &state, marked.summed.min(end)..end)?;
        // From now on, writes set sums too.
        self.marks.change(ino, |marked| marked.summed = end.max(1));
        let done = (|| {
            let mut new = Edit::new(&inode, &mut state);
            let mut tx = self.begin(&inode);
            tx.allow_large();
            tx.touch(&inode.last_record);
            let from = marked.summed.min(end);
            self.put_sums(&mut tx, new.before(), &map, size, from..end)?;
            if end < size {
                tx.end_staging()?;
                self.commit(tx, []).map(drop)?;
                return Ok(Step::More);
            }
            new.flags &= !FL_UNSUMMED;
            let staged = new.stage(&mut tx)?;
            tx.end_staging()?;
            self.commit(tx, [staged])?;
            Ok(Step::Done)
        })();
        match done {
            Ok(Step::Done) => {
                inode.unsummed.store(false, Ordering::Release);
                self.marks.remove(ino);
            }
            Ok(_) => {}
            Err(_) => self.marks.change(ino, |now| now.summed = marked.summed),
        }
        done
    }
}

/// How far a marked file is.
enum Step {
    /// Another step follows.
    More,
    /// It is summed.
    Done,
    /// Somebody stores to it.
    Later,
}
