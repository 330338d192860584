//! readdir: lists entries in the order of their hashes, which are the cookies.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::refs::By;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::types::{Attr, DirEntry, FileType, Ino};

/// Cookies of `.` and `..`; entries have larger ones.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Maximum entries read per acquisition of the directory's lock.
const BATCH: usize = 64;

/// What the receiver of [`Holding::readdir`](crate::inode::Holding::readdir) did with an
/// entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Took it: the entry has a reference now, unless it is `.` or `..`.
    Kept,
    /// Took only its name and number: the entry has no reference.
    NameOnly,
    /// Had no room: the walk ends and the entry has no reference.
    Full,
}

struct Batched {
    name: Vec<u8>,
    ino: Ino,
    kind: FileType,
    cookie: u64,
}

impl Batched {
    fn entry(&self) -> DirEntry<'_> {
        DirEntry {
            name: &self.name,
            ino: self.ino,
            kind: self.kind,
            cookie: self.cookie,
        }
    }
}

impl Engine {
    /// Calls `f` with each entry after `cookie` (0: from the start), including `.` and
    /// `..`, until `f` breaks. An entry that exists throughout is reported exactly
    /// once, even if others are created or removed meanwhile. `f` must not call the file
    /// system, which is locked meanwhile. With debug assertions, a call of another file
    /// system panics, too, since the lock order does not tell them apart.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Corrupt`].
    pub fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        f: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.op(Need::Read, || {
            let dir = self.iget_user(ino)?;
            let mut at = cookie;
            loop {
                let (batch, end, _) = self.batch(&dir, at)?;
                for e in &batch {
                    if f(e.entry()).is_break() {
                        return Ok(());
                    }
                    at = e.cookie;
                }
                if end {
                    if self.atime.dirs() {
                        self.touch_atime(&dir);
                    }
                    return Ok(());
                }
            }
        })
    }

    /// The walk of [`Holding::readdir`](super::Holding::readdir). `kept` gets the inodes
    /// to which a reference was taken.
    pub(crate) fn readdir_with_refs(
        &self,
        ino: Ino,
        cookie: u64,
        f: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> Taken,
        kept: &mut Vec<Ino>,
    ) -> Result<()> {
        self.op(Need::Read, || self.walk_with_refs(ino, cookie, f, kept))
    }

    fn walk_with_refs(
        &self,
        ino: Ino,
        cookie: u64,
        f: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> Taken,
        kept: &mut Vec<Ino>,
    ) -> Result<()> {
        let dir = self.iget_user(ino)?;
        let mut at = cookie;
        let mut given = false;
        loop {
            let (batch, end, newest) = match self.batch(&dir, at) {
                Err(_) if given => return Ok(()),
                batch => batch?,
            };
            for e in &batch {
                at = e.cookie;
                let inode = match self.iget_user(e.ino) {
                    Ok(inode) => Some(inode),
                    // Removed since the batch was read.
                    Err(Error::Stale(_)) => continue,
                    // A damaged inode must not hide the others.
                    Err(err) => {
                        if let Error::Corrupt { .. } = err {
                            self.note_name(e.ino, ino, &e.name);
                            self.note_damage(&err);
                        }
                        None
                    }
                };
                let state = inode.as_ref().map(|inode| inode.state.read());
                // Deleted since the batch was read, or a reused number: generations,
                // unlike numbers, are not reused.
                if state.as_ref().is_some_and(|state| {
                    state.gone
                        || (state.disk.nlink == 0 && e.cookie > DOT_DOT)
                        || state.disk.generation > newest
                }) {
                    continue;
                }
                let attr = state.as_ref().map(|state| state.attr(&self.vol.geo));
                let taken = f(e.entry(), attr.as_ref());
                if taken == Taken::Full {
                    return Ok(());
                }
                given = true;
                if taken == Taken::Kept && e.cookie > DOT_DOT {
                    self.refs.add(e.ino, 1, By::Guard);
                    kept.push(e.ino);
                }
            }
            if end {
                if self.atime.dirs() {
                    self.touch_atime(&dir);
                }
                return Ok(());
            }
        }
    }

    /// Returns the next entries after a cookie, whether they are the last, and the
    /// newest generation that their inodes can have.
    fn batch(&self, dir: &Arc<Inode>, cookie: u64) -> Result<(Vec<Batched>, bool, u64)> {
        let state = dir.state.read();
        self.check_dir(dir, &state)?;
        let mut out = Vec::with_capacity(BATCH);
        // The former parent of a removed directory may have been reused.
        let up = if state.disk.nlink == 0 {
            dir.ino
        } else {
            Ino(state.disk.parent_or_rdev)
        };
        let dots = [(DOT, &b"."[..], dir.ino), (DOT_DOT, b"..", up)];
        for (c, name, ino) in dots {
            if cookie < c {
                out.push(Batched {
                    name: name.to_vec(),
                    ino,
                    kind: FileType::Directory,
                    cookie: c,
                });
            }
        }
        let mut full = false;
        let mut bad = None;
        htree::scan(
            &self.vol,
            &TreeRef::directory(&state.disk),
            cookie.max(DOT_DOT),
            &|| self.check_hole(&state, Hole::Contents),
            &mut |item, value, name| {
                if out.len() >= BATCH {
                    full = true;
                    return ControlFlow::Break(());
                }
                let ino = value
                    .first_chunk::<8>()
                    .map(|v| Ino(u64::from_le_bytes(*v)));
                let kind = FileType::from_mode(u32::from(item.kind) << 12);
                match (ino, kind) {
                    (Some(ino), Some(kind)) if ino >= Ino::FIRST_FREE => {
                        out.push(Batched {
                            name: name.to_vec(),
                            ino,
                            kind,
                            cookie: item.hash(),
                        });
                        ControlFlow::Continue(())
                    }
                    _ => {
                        bad = Some(name.escape_ascii().to_string());
                        ControlFlow::Break(())
                    }
                }
            },
        )?;
        if let Some(name) = bad {
            return Err(Error::corrupt(
                Damage::EntryReserved,
                ("directory", dir.ino),
                format!("the entry \"{name}\" is impossible"),
            ));
        }
        Ok((out, !full, self.vol.journal.last_lsn()))
    }
}
