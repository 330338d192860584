//! The same operations, by system calls, on a mount and on a directory of
//! tmpfs.
//!
//! The model says which nodes there are, so that operations by index mean the
//! same on both sides; what an operation gives, an errno among it, each side
//! is asked for and the two are compared. The model judges where the two may
//! legitimately differ (where a hole is), which times there must be, and that
//! neither side refuses what is allowed.
//!
//! All differences between the two that are not failures are in
//! [`Pair::prepare`] (calls that cannot be compared), in
//! [`refused_by_the_kernel`] and in [`super::pair_tree`] (attributes).

use std::collections::BTreeMap;
use std::path::Path;

use pramfs::{
    FileType, XattrMode,
    inode::{Credentials, SetAttr, Time},
};
use rustix::time::{ClockId, clock_gettime};

use super::acl::DEFAULT;
use super::compare::{Differs, compare_seek, no_data};
use super::ops::{Op, expand};
use super::runner::brief;
use super::state::{Call, Failure, Make, Model, NodeId, ROOT};
use super::system::{Got, Side};
use crate::mounted::Mounted;
use crate::syscalls::{Caller, Sys, stat};

/// Calls of the model are numbered by its clock, from here on: no time that a
/// call sets is as late.
pub(super) const FIRST_TICK: i64 = 1 << 50;

/// A model, a mount and a directory of tmpfs.
#[derive(Debug)]
pub struct Pair<'m> {
    mount: &'m Mounted,
    options: String,
    pub(super) model: Model,
    pub(super) ours: Side,
    pub(super) theirs: Side,
    /// Between which times each call was made.
    pub(super) windows: Vec<(Time, Time)>,
    /// Nodes whose times need not be the model's, as long as its mtime is this.
    pub(super) loose: BTreeMap<NodeId, Time>,
    /// Calls made on both.
    pub calls: usize,
    /// Calls that both refused.
    pub refused: usize,
}

fn now(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    Time {
        sec: t.tv_sec,
        nsec: t.tv_nsec as u32,
    }
}

impl<'m> Pair<'m> {
    /// An empty directory of a mount and one of tmpfs beside each other. The
    /// mount is mounted with `options` again whenever an operation asks for it.
    ///
    /// # Errors
    /// What went wrong.
    pub fn new(mount: &'m Mounted, options: &str, ours: &Path, theirs: &Path) -> Differs<Pair<'m>> {
        let before = now(ClockId::RealtimeCoarse);
        for dir in [ours, theirs] {
            std::fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(dir, mode).map_err(|e| e.to_string())?;
        }
        let side = |name, dir: &Path, tmpfs| {
            Side::new(name, dir, tmpfs).map_err(|e| format!("{name}: errno {e}"))
        };
        let first = Time {
            sec: FIRST_TICK,
            nsec: 0,
        };
        Ok(Pair {
            mount,
            options: options.to_owned(),
            model: Model::new(first),
            ours: side("mount", ours, false)?,
            theirs: side("tmpfs", theirs, true)?,
            windows: vec![(before, now(ClockId::Realtime))],
            loose: BTreeMap::new(),
            calls: 0,
            refused: 0,
        })
    }

    /// One operation on both.
    ///
    /// # Errors
    /// What differs.
    pub fn step(&mut self, op: &Op) -> Differs {
        match op {
            Op::Remount => self.remount(false),
            Op::Crash => self.remount(true),
            // Of the whole file system, which is not the test's alone.
            Op::Statfs => Ok(()),
            _ => {
                for c in expand(&self.model, op, false) {
                    for (c, caller) in self.prepare(c) {
                        self.call(&c, caller)
                            .map_err(|e| format!("{}: {e}", brief(&c)))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Compares the whole trees, before and after a remount.
    ///
    /// # Errors
    /// What differs.
    pub fn finish(&mut self) -> Differs {
        self.compare_trees()?;
        self.remount(false)
    }

    /// Our side is unmounted, or killed, and mounted again.
    fn remount(&mut self, crash: bool) -> Differs {
        if crash {
            // The times of overwrites may lag on the medium.
            let lagging = self.model.nodes();
            let lagging = lagging.filter(|(_, n)| !n.older_times.is_empty());
            self.loose.extend(lagging.map(|(id, n)| (id, n.mtime)));
        }
        // Before the kill: descriptors of a dead mount are of no use.
        self.ours.let_go();
        if crash {
            self.mount.crash();
        } else {
            self.mount.unmount();
        }
        self.mount.mount(&self.options);
        self.theirs.let_go();
        for side in [&mut self.ours, &mut self.theirs] {
            side.reopen()
                .map_err(|e| format!("{} after a mount: errno {e}", side.name))?;
        }
        self.model.end_of_mount();
        let how = if crash { "a crash" } else { "a remount" };
        self.compare_trees()
            .map_err(|e| format!("after {how}: {e}"))
    }

    /// The system calls that stand for a call of the model, and who makes them.
    ///
    /// None for what system calls cannot say, or what the two may answer as
    /// they like:
    /// * a `/` makes a path of a name, a NUL ends it, in targets too;
    /// * `..` of the root leads out of the test, and where a removed directory
    ///   stood is not kept by us and is by tmpfs;
    /// * contents of pipes, sockets and devices are the kernel's or a driver's,
    ///   and the position of a directory is nobody's;
    /// * a ctime cannot be set;
    /// * set-group-id without leave to execute for the group is kept by the
    ///   kernel's FUSE when a stranger writes, and by tmpfs it is not;
    /// * of the chattr flags, those that forbid something are
    ///   `tests/ops/chattr/posix.rs`'s: which of two reasons to refuse a call comes
    ///   first, the kernel says for tmpfs and the engine for us. The others are
    ///   of files and directories;
    /// * whether an ACL may or must be there already: setting one does not ask;
    /// * a whiteout where there is a default ACL: only tmpfs gives it a list.
    fn prepare(&self, c: Call) -> Vec<(Call, Caller)> {
        let kind = |id: &NodeId| self.model.get(*id).map(super::Node::kind);
        let regular = |id: &NodeId| kind(id) == Some(FileType::Regular);
        let sayable = |name: &[u8]| !name.iter().any(|b| matches!(b, b'/' | 0));
        let one = |c: Call| vec![(c, Caller::ROOT)];
        match c {
            // An earlier call of the same operation has ended its life.
            _ if nodes_of(&c).iter().any(|id| kind(id).is_none()) => Vec::new(),
            Call::Make {
                ref name, ref what, ..
            } if !sayable(name)
                || matches!(what, Make::Symlink { target } if target.contains(&0)) =>
            {
                Vec::new()
            }
            Call::Make {
                ctx,
                parent,
                name,
                what,
                pin,
            } => {
                // To mknod(2) no type is a regular file.
                let what = match what {
                    Make::Node { mode, rdev } if mode & libc::S_IFMT == 0 => Make::Node {
                        mode: mode | libc::S_IFREG,
                        rdev,
                    },
                    other => other,
                };
                let caller = caller(&ctx);
                let make = Call::Make {
                    ctx,
                    parent,
                    name,
                    what,
                    pin,
                };
                vec![(make, caller)]
            }
            Call::Lookup { parent, ref name } => {
                let removed = self.model.node(parent).nlink == 0;
                let leads_out = name == b".." && (parent == ROOT || removed);
                if leads_out || !sayable(name) {
                    Vec::new()
                } else {
                    one(c)
                }
            }
            Call::Link { ref name, .. }
            | Call::Unlink { ref name, .. }
            | Call::Rmdir { ref name, .. }
                if !sayable(name) =>
            {
                Vec::new()
            }
            Call::Rename {
                ctx,
                parent,
                ref name,
                ref new_name,
                flags,
                ..
            } => {
                let lists = &self.model.node(parent).xattrs;
                let listed = flags.whiteout && lists.contains_key(DEFAULT);
                if sayable(name) && sayable(new_name) && !listed {
                    vec![(c, caller(&ctx))]
                } else {
                    Vec::new()
                }
            }
            Call::SetAttr { node, set } => {
                let parts = parts_of(&set);
                let flagged = matches!(kind(&node), Some(FileType::Regular | FileType::Directory));
                let allowed = |s: &SetAttr| {
                    (s.size.is_none() || regular(&node)) && (s.flags.is_none() || flagged)
                };
                let call = |set| (Call::SetAttr { node, set }, Caller::ROOT);
                parts.into_iter().filter(allowed).map(call).collect()
            }
            Call::Read { node, .. } | Call::Write { node, .. } | Call::Fallocate { node, .. } => {
                match kind(&node) {
                    Some(FileType::Regular | FileType::Directory | FileType::Symlink) => one(c),
                    _ => Vec::new(),
                }
            }
            // A range that ends past the largest offset may be cut or refused.
            Call::Copy {
                from,
                at,
                node,
                offset,
                len,
            } => match at.max(offset).checked_add(len) {
                Some(end) if end <= i64::MAX as u64 && regular(&from) && regular(&node) => one(c),
                _ => Vec::new(),
            },
            Call::Seek { node, .. } if !regular(&node) => Vec::new(),
            Call::Fsync { node } => match kind(&node) {
                Some(FileType::Regular | FileType::Directory) => one(c),
                _ => Vec::new(),
            },
            // To the kernel a list of no bytes is none.
            Call::SetXattr {
                node, name, value, ..
            } if name.starts_with(b"system.posix_acl") && value.is_empty() => {
                one(Call::RemoveXattr { node, name })
            }
            Call::SetXattr {
                node, name, value, ..
            } if name.starts_with(b"system.posix_acl") => one(Call::SetXattr {
                node,
                name,
                value,
                mode: XattrMode::Set,
            }),
            // What takes set-user-id away is a write by somebody else.
            Call::StripSuid { node } if regular(&node) && !self.half_set_group_id(node) => {
                let write = Call::Write {
                    node,
                    offset: Some(0),
                    bytes: vec![0x5a],
                };
                vec![(write, STRANGER)]
            }
            Call::StripSuid { .. } => Vec::new(),
            // Not every transport has O_TMPFILE: `tests/ops/open/posix.rs` compares it.
            Call::MakeUnnamed { .. } => Vec::new(),
            _ => one(c),
        }
    }

    fn half_set_group_id(&self, node: NodeId) -> bool {
        let stat = self.theirs.node(&self.model, node).and_then(stat);
        stat.is_ok_and(|s| s.st_mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID)
    }

    fn call(&mut self, c: &Call, who: Caller) -> Differs {
        self.calls += 1;
        let before = now(ClockId::RealtimeCoarse);
        let ours = self.ours.call(&self.model, c, who);
        let theirs = self.theirs.call(&self.model, c, who);
        self.model.now = Time {
            sec: FIRST_TICK + self.windows.len() as i64,
            nsec: 0,
        };
        self.windows.push((before, now(ClockId::Realtime)));
        if matches!(c, Call::Seek { .. }) {
            return self.compare_seeks(c, &ours, &theirs);
        }
        match (ours, theirs) {
            (Ok(a), Ok(b)) if a == b => match shortened(c, &a) {
                Some(c) => self.both_did(&c),
                None => self.both_did(c),
            },
            (Err(a), Err(b)) if a == b => {
                self.refused += 1;
                // Not where it ends with another errno: that both gave this
                // one is enough.
                if self.model.clone().call(c).is_err() || refused_by_the_kernel(self, c, who, a) {
                    return Ok(());
                }
                Err(format!("both refused it with errno {a}; it is allowed"))
            }
            (a, b) => Err(format!("the mount gave {}, tmpfs {}", short(&a), short(&b))),
        }
    }

    fn both_did(&mut self, c: &Call) -> Differs {
        let before = match c {
            Call::Fallocate { node, .. } => Some((*node, self.model.node(*node).mtime)),
            _ => None,
        };
        let value = self.model.call(c).map_err(|Failure(errno)| {
            format!("both did it; it should have failed with errno {errno}")
        })?;
        if let Some((id, mtime)) = before
            && self.model.node(id).mtime == mtime
        {
            // Whether an allocation had something to do is not the model's to say.
            self.loose.insert(id, mtime);
        }
        let held = match (c, value) {
            (Call::Make { pin: true, .. }, super::Value::Node(id)) => Some(id),
            (Call::Pin { node }, _) => Some(*node),
            _ => None,
        };
        for side in [&mut self.ours, &mut self.theirs] {
            if let Some(id) = held {
                side.hold(&self.model, id)
                    .map_err(|e| format!("{}: opening node {id}: errno {e}", side.name))?;
            }
            side.settle(&self.model);
        }
        Ok(())
    }

    /// Where data and holes are the two may see differently, within what the
    /// contents say.
    fn compare_seeks(&self, c: &Call, ours: &Sys<Got>, theirs: &Sys<Got>) -> Differs {
        let expected = self.model.clone().call(c).map(drop);
        for (side, got) in [(&self.ours, ours), (&self.theirs, theirs)] {
            let ok = match (got, expected) {
                // In the last page that a file can have, the sums of tmpfs overflow: it
                // may refuse, or succeed with an offset past the end of the file.
                _ if side.is_tmpfs() && at_the_limit(&self.model, c) => Ok(()),
                (Ok(Got::Count(at)), Ok(())) => compare_seek(&self.model, c, *at),
                (Err(libc::ENXIO), Ok(())) if no_data(&self.model, c) => Ok(()),
                (Err(e), Err(Failure(errno))) if *e == errno => Ok(()),
                // An offset that is negative to lseek(2).
                (Err(libc::ENXIO | libc::EINVAL), _) if beyond(c) => Ok(()),
                (got, expected) => Err(format!("it gave {}, not {expected:?}", short(got))),
            };
            ok.map_err(|e| format!("{}: {e}", side.name))?;
        }
        Ok(())
    }
}

/// The chattr flags that both keep and that forbid nothing: no dump, no atime.
pub(super) const FLAGS: u32 = 0x40 | 0x80;

/// A user who is stopped by permissions.
const STRANGER: Caller = Caller {
    uid: 1000,
    gid: 100,
    umask: 0o022,
    privileged: false,
};

/// Who calls: root, a user of the system, or a user with strange numbers whom
/// no permission stops, so that there are files with such owners.
fn caller(ctx: &Credentials<'_>) -> Caller {
    Caller {
        uid: ctx.uid,
        gid: ctx.gid,
        umask: ctx.umask,
        privileged: ctx.uid != STRANGER.uid,
    }
}

/// The nodes that a call names.
pub(crate) fn nodes_of(c: &Call) -> Vec<NodeId> {
    match c {
        Call::Make { parent, .. }
        | Call::MakeUnnamed { parent, .. }
        | Call::Unlink { parent, .. }
        | Call::Rmdir { parent, .. }
        | Call::Lookup { parent, .. } => vec![*parent],
        Call::Link { node, parent, .. } => vec![*node, *parent],
        Call::Rename {
            parent, new_parent, ..
        } => vec![*parent, *new_parent],
        Call::GetAttr { node }
        | Call::SetAttr { node, .. }
        | Call::Read { node, .. }
        | Call::Write { node, .. }
        | Call::Fallocate { node, .. }
        | Call::Seek { node, .. }
        | Call::Readlink { node }
        | Call::Readdir { node, .. }
        | Call::GetXattr { node, .. }
        | Call::SetXattr { node, .. }
        | Call::ListXattr { node }
        | Call::RemoveXattr { node, .. }
        | Call::StripSuid { node }
        | Call::Pin { node }
        | Call::Unpin { node }
        | Call::Fsync { node } => vec![*node],
        Call::Copy { from, node, .. } => vec![*from, *node],
    }
}

/// One system call for each group of attributes.
fn parts_of(set: &SetAttr) -> Vec<SetAttr> {
    let none = SetAttr::default();
    // To chown(2) this number means "as it is".
    let id = |id: Option<u32>| id.filter(|id| *id != u32::MAX);
    let parts = [
        SetAttr {
            size: set.size,
            ..none
        },
        SetAttr {
            perm: set.perm,
            ..none
        },
        SetAttr {
            uid: id(set.uid),
            gid: id(set.gid),
            ..none
        },
        SetAttr {
            atime: set.atime,
            mtime: set.mtime,
            ..none
        },
        SetAttr {
            flags: set.flags.map(|f| f & FLAGS),
            ..none
        },
    ];
    let asks = |s: &SetAttr| {
        s.size.is_some()
            || s.perm.is_some()
            || s.uid.is_some()
            || s.gid.is_some()
            || s.atime.is_some()
            || s.mtime.is_some()
            || s.flags.is_some()
    };
    parts.into_iter().filter(asks).collect()
}

/// A write as far as it went: the kernel stops at the largest offset, where
/// the model's append fails.
fn shortened(c: &Call, got: &Got) -> Option<Call> {
    match (c, got) {
        (
            Call::Write {
                node,
                offset,
                bytes,
            },
            Got::Count(n),
        ) if *n < bytes.len() as u64 => Some(Call::Write {
            node: *node,
            offset: *offset,
            bytes: bytes[..*n as usize].to_vec(),
        }),
        (Call::Copy { len, .. }, Got::Count(n)) if n < len => Some(c.shortened(*n)),
        _ => None,
    }
}

/// Whether an offset is negative to the kernel, or a range ends past its
/// largest one.
fn beyond(c: &Call) -> bool {
    let (offset, len) = match c {
        Call::Read { offset, len, .. } => (*offset, *len as u64),
        Call::Write {
            offset: Some(at),
            bytes,
            ..
        } => (*at, bytes.len() as u64),
        Call::Seek { offset, .. } => (*offset, 0),
        _ => return false,
    };
    offset.saturating_add(len) > i64::MAX as u64
}

/// Whether a file reaches into the last page that there can be.
fn at_the_limit(model: &Model, c: &Call) -> bool {
    matches!(c, Call::Seek { node, .. } if in_the_last_page(model.node(*node).size()))
}

pub(super) fn in_the_last_page(size: u64) -> bool {
    size > (i64::MAX as u64) & !4095
}

/// What the kernel refuses by itself, before it asks a file system: both sides
/// have said so, and the model knows nothing of it.
fn refused_by_the_kernel(pair: &Pair<'_>, c: &Call, who: Caller, errno: i32) -> bool {
    let kind = |id: &NodeId| pair.model.node(*id).kind();
    match (c, errno) {
        // Permissions are not the model's.
        (Call::Make { .. } | Call::Rename { .. }, libc::EACCES | libc::EPERM) => !who.privileged,
        // Offsets are signed.
        (Call::Read { .. } | Call::Write { .. }, libc::EINVAL) => beyond(c),
        (Call::SetAttr { node, set }, libc::EOPNOTSUPP) => {
            set.perm.is_some() && kind(node) == FileType::Symlink
        }
        // user.* is for files and directories.
        (Call::SetXattr { node, name, .. }, libc::EPERM) => {
            name.starts_with(b"user.")
                && !matches!(kind(node), FileType::Regular | FileType::Directory)
        }
        // The kernel looks at what security.capability holds.
        (Call::SetXattr { name, .. }, libc::EINVAL) => name == b"security.capability",
        _ => false,
    }
}

/// A result without its bytes.
fn short(result: &Sys<Got>) -> String {
    match result {
        Ok(Got::Bytes(b)) => format!("{} bytes", b.len()),
        Ok(other) => {
            let mut text = format!("{other:?}");
            text.truncate(300);
            text
        }
        Err(errno) => format!("errno {errno}"),
    }
}
