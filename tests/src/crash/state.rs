//! What an image shows once it is recovered, and what it may show.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use pramfs::{
    Fallocate, FileType, Result,
    inode::{Credentials, Fs, Ino, SetAttr, Time},
};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};

use super::action::Action;
use super::leased::Kept;
use crate::model::Call;
use crate::tree::{Node, Tree};

/// A piece of a file: offset, bytes, and whether it is flagged unwritten. Holes
/// are left out.
pub type Piece = (u64, u64, bool);

/// Everything that can be seen of a file system, but for what is free (which
/// the check compares with what is used) and atimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Names, attributes, contents.
    pub tree: Tree,
    /// The label.
    pub label: String,
    /// What is allocated, by path; past the end of a file too, once
    /// [`stretch`](Self::stretch) has looked.
    pub pieces: BTreeMap<Vec<u8>, Vec<Piece>>,
    /// What processes map by leases, if the image was looked at for that.
    pub kept: Kept,
}

/// Files are looked at up to here for what is allocated past their end.
const STRETCH: u64 = 64 << 10;

impl State {
    /// Reads a mounted file system.
    ///
    /// # Errors
    /// Those of the reading, and contradictions within what is read.
    pub fn of(fs: &Fs) -> Result<State> {
        let mut tree = Tree::of(fs)?;
        (tree.free, tree.free_inodes) = (0, 0);
        let mut state = State {
            tree,
            label: fs.label(),
            pieces: BTreeMap::new(),
            kept: Kept::new(),
        };
        state.read_pieces(fs)?;
        Ok(state)
    }

    fn read_pieces(&mut self, fs: &Fs) -> Result<()> {
        for (path, n) in &self.tree.nodes {
            if n.kind != FileType::Regular {
                continue;
            }
            let mut pieces: Vec<Piece> = Vec::new();
            for e in fs.file_extents(n.id.0, 0, u64::MAX)? {
                if e.region_offset.is_none() {
                    continue;
                }
                match pieces.last_mut() {
                    // Where a block lies is nobody's business.
                    Some(last) if last.0 + last.1 == e.file_offset && last.2 == e.unwritten => {
                        last.1 += e.len;
                    }
                    _ => pieces.push((e.file_offset, e.len, e.unwritten)),
                }
            }
            self.pieces.insert(path.clone(), pieces);
        }
        Ok(())
    }

    /// With inodes numbered by their first path, and no generations.
    #[must_use]
    pub fn anonymous(mut self) -> State {
        let mut numbers = BTreeMap::new();
        for n in self.tree.nodes.values_mut() {
            let next = numbers.len() as u64;
            n.id = (Ino(*numbers.entry(n.id).or_insert(next)), 0);
        }
        self
    }

    /// Looks at what is allocated past the end of files, which takes making
    /// them longer. Files that cannot be, in a full region, stay as they are.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn stretch(&mut self, fs: &Fs) -> Result<()> {
        for n in self.tree.nodes.values() {
            // What forbids to change it, or to remove it later, goes first.
            let forbids = n.flags & (FL_IMMUTABLE | FL_APPEND);
            if forbids != 0 {
                let set = SetAttr {
                    flags: Some(n.flags ^ forbids),
                    ..SetAttr::default()
                };
                fs.setattr(&Credentials::ROOT, n.id.0, &set)?;
            }
            if n.kind == FileType::Regular && n.size < STRETCH {
                let set = SetAttr {
                    size: Some(STRETCH),
                    ..SetAttr::default()
                };
                match fs.setattr(&Credentials::ROOT, n.id.0, &set) {
                    Err(pramfs::Error::NoSpace(_)) => {}
                    other => drop(other?),
                }
            }
        }
        self.read_pieces(fs)
    }
}

/// Times that an inode may show besides those of the state, since those of
/// overwrites lag: mtime and ctime.
pub type Lag = BTreeMap<Ino, Vec<(Time, Time)>>;

/// A state that a crash may leave.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The state.
    pub state: State,
    /// Times that may lag.
    pub lag: Lag,
}

impl Expected {
    fn same_node(&self, expected: &Node, found: &Node) -> bool {
        if expected == found {
            return true;
        }
        let lag = self.lag.get(&expected.id.0);
        let may_lag = lag.is_some_and(|l| l.contains(&found.times));
        may_lag
            && *expected
                == Node {
                    times: expected.times,
                    ..found.clone()
                }
    }

    /// Whether a state is this one.
    pub fn is(&self, found: &State) -> bool {
        let (a, b) = (&self.state.tree.nodes, &found.tree.nodes);
        a.len() == b.len()
            && (a.iter().zip(b)).all(|((p, a), (q, b))| p == q && self.same_node(a, b))
            && self.state.label == found.label
            && self.state.pieces == found.pieces
    }

    /// The same with inodes numbered by their first path: for runs whose
    /// threads took numbers in no order.
    #[must_use]
    pub fn anonymous(mut self) -> Expected {
        self.state = self.state.anonymous();
        self.lag.clear();
        self
    }

    /// What differs, in words.
    pub fn differences(&self, found: &State) -> String {
        let mut out = self.state.tree.differences(&found.tree);
        let paths: BTreeSet<_> = self
            .state
            .pieces
            .keys()
            .chain(found.pieces.keys())
            .collect();
        for p in paths {
            let (a, b) = (self.state.pieces.get(p), found.pieces.get(p));
            // A name that is not there has been told of.
            if let (Some(a), Some(b)) = (a, b)
                && a != b
            {
                let shown = String::from_utf8_lossy(p);
                let _ = writeln!(out, "{shown}: allocated {a:?}\n   is: {b:?}");
            }
        }
        if self.state.label != found.label {
            let (a, b) = (&self.state.label, &found.label);
            let _ = writeln!(out, "label {a:?}\n   is: {b:?}");
        }
        out
    }
}

/// What the documents promise of an operation that a crash has cut short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Promise {
    /// The state before it or after it.
    Atomic,
    /// Within these bytes of a file each aligned word is old or new, the size
    /// goes with a prefix, and blocks of the range may be there or not. No byte
    /// outside changes.
    Data {
        /// The file.
        ino: Ino,
        /// Bytes that the call names.
        range: Range<u64>,
    },
}

impl Promise {
    /// The state that an operation would have led to if there had been space,
    /// as far as [`allows`](Self::allows) asks: a crash in it may leave a part of
    /// that, though without a crash nothing of it stays.
    pub fn aim(&self, before: &Expected, action: &Action, now: Time) -> Expected {
        let mut aim = before.clone();
        let Promise::Data { ino, range } = self else {
            return aim;
        };
        for n in aim.state.tree.nodes.values_mut() {
            if n.id.0 != *ino {
                continue;
            }
            let grows = match action.as_call() {
                Some(Call::Write { bytes, .. }) => {
                    let end = range.end as usize;
                    n.data.resize(n.data.len().max(end), 0);
                    n.data[range.start as usize..end].copy_from_slice(&bytes);
                    true
                }
                Some(Call::Fallocate { what, .. }) => !matches!(
                    what,
                    Fallocate::PunchHole
                        | Fallocate::Allocate { keep_size: true }
                        | Fallocate::ZeroRange { keep_size: true }
                ),
                _ => false,
            };
            if grows {
                n.size = n.size.max(range.end);
            }
            n.blocks = u64::MAX;
            n.times = (now, now);
        }
        aim
    }

    /// Whether it allows a state between two others.
    pub fn allows(&self, before: &Expected, found: &State, after: &Expected) -> bool {
        let Promise::Data { ino, range } = self else {
            return false;
        };
        let (old, new) = (&before.state, &after.state);
        if !old.tree.nodes.keys().eq(found.tree.nodes.keys())
            || old.label != found.label && new.label != found.label
        {
            return false;
        }
        found.tree.nodes.iter().all(|(path, n)| {
            let (a, b) = (&old.tree.nodes[path], new.tree.nodes.get(path));
            let Some(b) = b else { return false };
            if n.id.0 != *ino {
                let same_pieces = old.pieces.get(path) == found.pieces.get(path);
                return before.same_node(a, n) && same_pieces;
            }
            let lag = |e: &Expected| e.lag.get(ino).cloned().unwrap_or_default();
            let mut times = vec![a.times, b.times, (a.times.0, b.times.1)];
            times.extend(lag(before));
            times.extend(lag(after));
            let blocks = a.blocks.min(b.blocks)..=a.blocks.max(b.blocks);
            let plain = |n: &Node| Node {
                size: 0,
                blocks: 0,
                times: Default::default(),
                data: Vec::new(),
                ..n.clone()
            };
            plain(a) == plain(n)
                && times.contains(&n.times)
                && blocks.contains(&n.blocks)
                && bytes_between(a, n, b, range)
        })
    }
}

/// Bytes and size of a file whose change of `range` was cut short.
pub(super) fn bytes_between(old: &Node, found: &Node, new: &Node, range: &Range<u64>) -> bool {
    if found.size < old.size.min(new.size) || found.size > old.size.max(new.size) {
        return false;
    }
    let byte = |n: &Node, at: u64| n.data.get(at as usize).copied().unwrap_or(0);
    let same = |n: &Node, from: u64, to: u64| (from..to).all(|at| byte(n, at) == byte(found, at));
    let mut at = 0;
    while at < found.size {
        let end = (at + 8).min(found.size);
        // Words at the edges of the range belong to it in part.
        let ok = if at >= old.size {
            // What the file has grown by is there whole.
            same(new, at, end)
        } else if end <= range.start || at >= range.end {
            same(old, at, end) || end > old.size && same(new, at, end)
        } else {
            same(old, at, end) || same(new, at, end)
        };
        if !ok {
            return false;
        }
        at = end;
    }
    true
}
