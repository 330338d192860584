//! Times that are written lazily: of writes that change no metadata.
//!
//! The timer writes them within a second. A mount that another server may take over notes them in
//! memory that outlives the server as well: a program that was told an mtime does not see an
//! older one later.

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::state::InodeState;

impl Engine {
    /// Sets the times of a change of the contents without a record, and increments the change
    /// counter. The timer writes them.
    #[inline(always)]
    pub(crate) fn touch_lazily(&self, inode: &Inode, state: &mut InodeState) {
        let now = self.now();
        touch_mtime(&mut state.disk, now);
        state.disk.change = state.disk.change.wrapping_add(1);
        state.lazy.mtime = true;
        if let Some(survivor) = &self.options.survivor {
            survivor.note_times(inode.ino, now);
        }
        self.note_lazy(inode);
    }

    /// Sets the times that a dead server has told and not written. Before the first operation.
    pub(crate) fn restore_times(&self) {
        let Some(survivor) = &self.options.survivor else {
            return;
        };
        for (ino, times) in survivor.listed_lazy() {
            // It may have been removed since.
            let Ok(inode) = self.iget(ino) else {
                continue;
            };
            let mut state = inode.state.write();
            // A record of the inode is later than what was noted before it.
            if state.is_dir() || times <= state.disk.ctime() {
                continue;
            }
            touch_mtime(&mut state.disk, times);
            state.disk.change = state.disk.change.wrapping_add(1);
            state.lazy.mtime = true;
            self.note_lazy(&inode);
        }
    }
}
