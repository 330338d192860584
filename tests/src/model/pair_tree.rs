//! The whole trees of a pair, beside each other and beside the model.
//!
//! Not compared, as the two may differ:
//! * inode numbers, and the sizes of directories: each has its own. That two
//!   names lead to one inode is compared with the model;
//! * blocks, and where data and holes are: tmpfs has pages of 4096 bytes;
//! * cookies and the order of entries: ours is that of the hash;
//! * atime: the mount has `relatime`, and a read that the page cache serves
//!   sets none;
//! * times to more than what the clock can tell: a call must leave a time
//!   between its start and its end. ctime of tmpfs not at all.

use pramfs::{FileType, inode::Time};

use super::compare::Differs;
use super::pair::{FIRST_TICK, FLAGS, Pair};
use super::state::NodeId;
use super::system::Side;
use crate::snapshot::{Errors, Snapshot, Take, Trait};

/// Files up to this size are read whole, larger ones where they have data.
const WHOLE: u64 = 1 << 20;

impl Pair<'_> {
    pub(super) fn compare_trees(&self) -> Differs {
        let model = self.model.numbered();
        let (ours, theirs) = (show(&self.ours, &model)?, show(&self.theirs, &model)?);
        for (path, n) in &model.nodes {
            let at = |e| format!("{}: {e}", path.escape_ascii());
            let times = |s: &Snapshot| s.nodes.get(path).map(|n| n.times);
            self.compare_times(n.id.0.0, times(&ours), times(&theirs))
                .map_err(at)?;
        }
        let model = in_common(model);
        for (side, shown) in [(&self.ours, &ours), (&self.theirs, &theirs)] {
            let text = outline(&model).differences(&outline(shown));
            if !text.is_empty() {
                return Err(format!("{} against the model:\n{text}", side.name));
            }
        }
        let timeless = |s: Snapshot| s.without(&[Trait::Times]);
        let text = timeless(theirs).differences(&timeless(ours));
        if text.is_empty() {
            Ok(())
        } else {
            Err(format!("tmpfs, and as the mount is:\n{text}"))
        }
    }

    fn compare_times(
        &self,
        id: NodeId,
        ours: Option<(Time, Time)>,
        theirs: Option<(Time, Time)>,
    ) -> Differs {
        let n = self.model.node(id);
        if self.loose.get(&id) == Some(&n.mtime) {
            return Ok(());
        }
        for (side, times) in [(&self.ours, ours), (&self.theirs, theirs)] {
            let (mtime, ctime) = times.ok_or_else(|| format!("{}: no such name", side.name))?;
            self.in_window(n.mtime, mtime)
                .map_err(|e| format!("{}: mtime {e}", side.name))?;
            if !side.is_tmpfs() {
                self.in_window(n.ctime, ctime)
                    .map_err(|e| format!("{}: ctime {e}", side.name))?;
            }
        }
        Ok(())
    }

    /// Whether a time is one that the call of this tick can have left, or the
    /// one that was set.
    fn in_window(&self, expected: Time, got: Time) -> Differs {
        let tick = expected.sec - FIRST_TICK;
        let (from, to) = match usize::try_from(tick) {
            Ok(tick) => self.windows[tick],
            Err(_) => (expected, expected),
        };
        if (from..=to).contains(&got) {
            Ok(())
        } else {
            Err(format!(
                "is {got:?}, not in {from:?}..={to:?} (tick {tick})"
            ))
        }
    }
}

/// What a side shows: names, and what the descriptors lead to that are held. The kernel looks into some extended attributes, and may not
/// give their values.
fn show(side: &Side, model: &Snapshot) -> Differs<Snapshot> {
    let held = model.nodes.iter().filter(|(p, _)| !p.starts_with(b"/"));
    let how = Take {
        errors: Errors::InXattrs,
        guide: Some(model),
        whole: WHOLE,
        held: &held.map(|(p, n)| (p.clone(), n.id.0)).collect::<Vec<_>>(),
        ..Take::default()
    };
    let shown = side.directory().and_then(|dir| Snapshot::take(&dir, &how));
    shown
        .map(in_common)
        .map_err(|e| format!("{}: {e}", side.name))
}

/// What the two and the model have in common, and times.
fn in_common(shown: Snapshot) -> Snapshot {
    let mut shown = shown.without(&[
        Trait::Ids,
        Trait::Free,
        Trait::Blocks,
        Trait::Allocated,
        Trait::DirectorySizes,
    ]);
    for n in shown.nodes.values_mut() {
        // By an ioctl, which needs a file or a directory that is open.
        n.flags &= match n.kind {
            FileType::Regular | FileType::Directory => FLAGS,
            _ => 0,
        };
    }
    shown
}

/// Names, where they lead, types and flags, which both have from the model.
/// The rest the kernel may have changed on its own account.
fn outline(shown: &Snapshot) -> Snapshot {
    let mut out = Snapshot::default();
    for (path, n) in &shown.nodes {
        let (id, kind, flags) = (n.id, n.kind, n.flags);
        let node = crate::snapshot::Node::new(id, kind);
        let node = crate::snapshot::Node { flags, ..node };
        out.nodes.insert(path.clone(), node);
    }
    out
}
