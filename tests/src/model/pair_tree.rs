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

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use pramfs::{FileType, inode::Time};
use rustix::fs::{OFlags, SeekFrom, Stat};

use super::compare::Differs;
use super::pair::{FIRST_TICK, FLAGS, Pair, in_the_last_page};
use super::state::{Body, NodeId};
use super::system::{Side, seen};
use crate::syscalls::{self as sys, Sys, errno};

/// Most bytes that are compared at once.
const PIECE: u64 = 1 << 20;

impl Pair<'_> {
    pub(super) fn compare_trees(&self) -> Differs {
        let all: Vec<NodeId> = self.model.nodes().map(|(id, _)| id).collect();
        for id in all {
            self.compare_node(id)
                .map_err(|e| format!("node {id}: {e}"))?;
        }
        Ok(())
    }

    fn compare_node(&self, id: NodeId) -> Differs {
        let mut fds = Vec::new();
        let mut stats = Vec::new();
        for side in [&self.ours, &self.theirs] {
            let what = |e: i32| format!("{}: errno {e}", side.name);
            let fd = side.node(&self.model, id).map_err(what)?;
            let stat = sys::stat(&fd).map_err(what)?;
            self.compare_entries(side, &fd, &stat, id)
                .map_err(|e| format!("{}: {e}", side.name))?;
            fds.push(fd);
            stats.push(stat);
        }
        let (ours, theirs) = (seen(&stats[0]), seen(&stats[1]));
        if ours != theirs {
            return Err(format!("\n  mount {ours:?}\n  tmpfs {theirs:?}"));
        }
        self.compare_times(id, &stats[0], &stats[1])?;
        let (xattrs, others) = (xattrs_of(&fds[0])?, xattrs_of(&fds[1])?);
        if xattrs != others {
            return Err(format!(
                "extended attributes (names, lengths):\n  mount {:?}\n  tmpfs {:?}",
                lengths(&xattrs),
                lengths(&others)
            ));
        }
        let kind = self.model.node(id).kind();
        if matches!(kind, FileType::Regular | FileType::Directory) {
            let flags = |fd| sys::flags(fd).map(|f| f & FLAGS);
            let (ours, theirs) = (flags(&fds[0]), flags(&fds[1]));
            if ours != theirs || ours != Ok(self.model.node(id).flags & FLAGS) {
                return Err(format!("flags: mount {ours:x?}, tmpfs {theirs:x?}"));
            }
        }
        match kind {
            FileType::Regular => compare_contents(&fds[0], &fds[1]),
            FileType::Symlink => {
                let target = |fd: &OwnedFd| errno(rustix::fs::readlinkat(fd, c"", Vec::new()));
                if target(&fds[0]) == target(&fds[1]) {
                    Ok(())
                } else {
                    Err("the targets differ".into())
                }
            }
            _ => Ok(()),
        }
    }

    /// The names of a directory and where they lead, beside the model's.
    fn compare_entries(&self, side: &Side, fd: &OwnedFd, stat: &Stat, id: NodeId) -> Differs {
        let n = self.model.node(id);
        let Body::Dir { entries, .. } = &n.body else {
            return Ok(());
        };
        let mut listed = sys::read_dir(fd).map_err(|e| format!("readdir: errno {e}"))?;
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        if !listed.iter().map(|e| &e.0).eq(entries.keys()) {
            let names: Vec<_> = listed
                .iter()
                .map(|e| e.0.escape_ascii().to_string())
                .collect();
            return Err(format!("it lists {names:?}, not {entries:?}"));
        }
        for (name, ino, kind) in listed {
            let child = entries[&name];
            let what = |e: i32| format!("{}: errno {e}", name.escape_ascii());
            let by_name = sys::stat(sys::lookup(fd, &name).map_err(what)?).map_err(what)?;
            let known = sys::stat(side.node(&self.model, child).map_err(what)?).map_err(what)?;
            let same = by_name.st_ino == known.st_ino
                && by_name.st_ino == ino
                && by_name.st_dev == stat.st_dev
                && self.model.node(child).kind().mode_bits() == kind.as_raw_mode();
            if !same {
                return Err(format!(
                    "{} leads to inode {} (readdir: {ino}, {kind:?}), node {child} is inode {}",
                    name.escape_ascii(),
                    by_name.st_ino,
                    known.st_ino
                ));
            }
        }
        Ok(())
    }

    fn compare_times(&self, id: NodeId, ours: &Stat, theirs: &Stat) -> Differs {
        let n = self.model.node(id);
        let loose = self.loose.get(&id) == Some(&n.mtime);
        for (side, stat) in [(&self.ours, ours), (&self.theirs, theirs)] {
            let mtime = time(stat.st_mtime, stat.st_mtime_nsec as u32);
            let ctime = time(stat.st_ctime, stat.st_ctime_nsec as u32);
            if !loose {
                self.in_window(n.mtime, mtime)
                    .map_err(|e| format!("{}: mtime {e}", side.name))?;
            }
            if !loose && side.name == self.ours.name {
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

fn time(sec: i64, nsec: u32) -> Time {
    Time { sec, nsec }
}

/// Values, or why the kernel does not give them: it looks into that of
/// security.capability.
type Xattrs = BTreeMap<Vec<u8>, Sys<Vec<u8>>>;

fn xattrs_of(fd: &OwnedFd) -> Differs<Xattrs> {
    let names = match sys::list_xattrs(fd) {
        // More names than a list can hold.
        Err(libc::E2BIG) => return Ok(Xattrs::new()),
        other => other.map_err(|e| format!("listxattr: errno {e}"))?,
    };
    let with_value = |name: Vec<u8>| {
        let value = sys::get_xattr(fd, &name);
        (name, value)
    };
    Ok(names.into_iter().map(with_value).collect())
}

fn lengths(xattrs: &Xattrs) -> Vec<(String, Sys<usize>)> {
    let length = |value: &Sys<Vec<u8>>| value.as_ref().map(Vec::len).map_err(|e| *e);
    xattrs
        .iter()
        .map(|(name, value)| (name.escape_ascii().to_string(), length(value)))
        .collect()
}

/// Compares two files wherever one of them has data. Of files that reach into
/// the last page that there can be tmpfs does not tell where that is.
fn compare_contents(ours: &OwnedFd, theirs: &OwnedFd) -> Differs {
    let what = |e: i32| format!("contents: errno {e}");
    let a = sys::open(ours, OFlags::RDONLY).map_err(what)?;
    let b = sys::open(theirs, OFlags::RDONLY).map_err(what)?;
    let size = sys::stat(&b).map_err(what)?.st_size as u64;
    let told: &[&OwnedFd] = if in_the_last_page(size) {
        &[&a]
    } else {
        &[&a, &b]
    };
    for with_data in told {
        let mut at = 0;
        while let Some((from, to)) = next_data(*with_data, at).map_err(what)? {
            at = from;
            while at < to {
                let len = (to - at).min(PIECE) as usize;
                let (x, y) = (
                    read(&a, at, len).map_err(what)?,
                    read(&b, at, len).map_err(what)?,
                );
                if x != y {
                    let i = x.iter().zip(&y).position(|(x, y)| x != y);
                    let i = i.unwrap_or(x.len().min(y.len()));
                    return Err(format!(
                        "byte {}: mount {:x?}, tmpfs {:x?} ({} and {} bytes read)",
                        at + i as u64,
                        x.get(i),
                        y.get(i),
                        x.len(),
                        y.len()
                    ));
                }
                at += len as u64;
            }
        }
    }
    Ok(())
}

fn next_data(fd: &impl AsFd, at: u64) -> Sys<Option<(u64, u64)>> {
    match rustix::fs::seek(fd, SeekFrom::Data(at)) {
        Ok(from) => Ok(Some((
            from,
            errno(rustix::fs::seek(fd, SeekFrom::Hole(from)))?,
        ))),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(e) => errno(Err(e)),
    }
}

fn read(fd: &impl AsFd, at: u64, len: usize) -> Sys<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let n = errno(rustix::io::pread(fd, &mut bytes[..], at))?;
    bytes.truncate(n);
    Ok(bytes)
}
