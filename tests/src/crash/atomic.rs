//! Operations that change bytes of files, for mounts on which they are atomic.

use pramfs::inode::SetAttr;
use pramfs_medium::media::inode::FL_ATOMIC;

use super::action::Action;
use super::leased::lease_ops;
use super::operations::Op;
use super::steps::{GROW, PUNCH, fallocate, file, make, map, pattern, truncate, write};
use crate::model::{Call, Follower, Make};

fn flags(f: &Follower, path: &str, flags: u32) -> Option<Vec<Action>> {
    let set = SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    let node = file(f, path)?;
    Some(vec![Action::Call(Call::SetAttr { node, set })])
}

/// A call of `File::write_atomic`.
fn write_atomic(f: &Follower, path: &str, offset: u64, len: usize) -> Option<Vec<Action>> {
    Some(vec![Action::WriteAtomic {
        node: file(f, path)?,
        offset,
        bytes: pattern(0xb0, len),
    }])
}

/// Commits ranges, each an offset and a length, of a private copy of a view.
fn commit(f: &Follower, path: &str, ranges: &[(u64, usize)], at_once: bool) -> Option<Vec<Action>> {
    let node = file(f, path)?;
    let size = f.model.node(node).size();
    let fit = ranges.iter().all(|(at, len)| at + *len as u64 <= size);
    let ranges = (0u8..).zip(ranges);
    let ranges = ranges.map(|(i, (at, len))| (*at, pattern(0x90 + i, *len)));
    fit.then(|| {
        vec![Action::Commit {
            node,
            ranges: ranges.collect(),
            at_once,
        }]
    })
}

/// Ranges of `/foo`, which are apart.
const APART: [(u64, usize); 3] = [(50, 200), (411, 30), (900, 250)];

/// A commit that breaks its promise: it commits each range alone.
pub fn commit_in_parts() -> Op {
    Op {
        name: "commit /foo, range by range",
        metadata: false,
        map: true,
        wide: false,
        lossy: false,
        steps: |f| commit(f, "/foo", &APART, false),
    }
}

/// A file whose blocks lie apart, because those of another one were put between them.
fn scattered(f: &Follower) -> Option<Vec<Action>> {
    let (one, two) = ("/A/one", "/A/two");
    let mut steps = make(f, one, Make::File { perm: 0o600 })?;
    steps.extend(make(f, two, Make::File { perm: 0o600 })?);
    let (first, second) = (f.model.next_id(), f.model.next_id() + 1);
    for i in 0..3u8 {
        for node in [first, second] {
            steps.push(Action::Call(Call::Write {
                node,
                offset: None,
                bytes: vec![i + 1; 512],
            }));
        }
    }
    Some(steps)
}

/// The operations of [`lease_ops`], and more that change bytes.
pub fn atomic_ops() -> Vec<Op> {
    let mut all = lease_ops();
    let mut add_op = |name, map, steps| {
        all.push(Op {
            name,
            metadata: false,
            map,
            wide: false,
            lossy: false,
            steps,
        });
    };
    let mut add = |name, steps| add_op(name, false, steps);
    add("chattr +j /foo", |f| flags(f, "/foo", FL_ATOMIC));
    add("chattr -j /foo", |f| flags(f, "/foo", 0));
    add("write /foo 1200 at 50", |f| {
        write(f, "/foo", Some(50), 1200)
    });
    add("write /foo 900 at 1000 (over the end)", |f| {
        write(f, "/foo", Some(1000), 900)
    });
    add("write /A/foo 2400 at 100 (partly unwritten)", |f| {
        write(f, "/A/foo", Some(100), 2400)
    });
    add("write /foo 100 at 4000 (past the end)", |f| {
        write(f, "/foo", Some(4000), 100)
    });
    add("fallocate /foo, longer", |f| {
        fallocate(f, "/foo", GROW, 1000, 2000)
    });
    add("make /A/one, scattered", scattered);
    add("write /A/one 1300 at 100 (scattered)", |f| {
        write(f, "/A/one", Some(100), 1300)
    });
    add("write atomic /foo 900 at 211", |f| {
        write_atomic(f, "/foo", 211, 900)
    });
    add("write atomic /A/foo 1700 at 300 (partly unwritten)", |f| {
        write_atomic(f, "/A/foo", 300, 1700)
    });
    add_op("commit /foo, three ranges", true, |f| {
        commit(f, "/foo", &APART, true)
    });
    all
}

/// A file of four blocks of 4096 bytes and a part of one.
fn long(f: &Follower) -> Option<Vec<Action>> {
    let mut steps = make(f, LONG, Make::File { perm: 0o600 })?;
    steps.push(Action::Call(Call::Write {
        node: f.model.next_id(),
        offset: Some(0),
        bytes: pattern(0xa0, 4 * 4096 + 700),
    }));
    Some(steps)
}

const LONG: &str = "/A/long";

/// Views of blocks of a file, and operations in and beside their ranges.
pub fn range_ops() -> Vec<Op> {
    let mut all = Vec::new();
    let mut add = |name, map, steps| {
        all.push(Op {
            name,
            metadata: false,
            map,
            wide: false,
            lossy: false,
            steps,
        });
    };
    add("make long", false, long);
    add("map block 1", true, |f| map(f, LONG, 4096 + 100, 64, true));
    add("map block 3", true, |f| {
        map(f, LONG, 3 * 4096 + 50, 64, true)
    });
    add("write in block 1", false, |f| {
        write(f, LONG, Some(4096 + 130), 300)
    });
    add("write in block 3", false, |f| {
        write(f, LONG, Some(3 * 4096 + 9), 200)
    });
    add("write blocks 0 to 2", false, |f| {
        write(f, LONG, Some(4000), 5000)
    });
    // The unmount sums what is marked.
    add("remount", false, |_| Some(vec![Action::Remount]));
    add("append", false, |f| write(f, LONG, None, 4000));
    add("cut in block 1", false, |f| truncate(f, LONG, 4096 + 200));
    add("cut in block 0", false, |f| truncate(f, LONG, 700));
    add("grow", false, |f| truncate(f, LONG, 5 * 4096));
    add("punch", false, |f| fallocate(f, LONG, PUNCH, 4000, 6000));
    add("write atomic blocks 0 to 2", false, |f| {
        write_atomic(f, LONG, 4000, 5000)
    });
    add("commit in blocks 0, 1 and 3", true, |f| {
        let ranges = [(700, 64), (4096 + 30, 300), (3 * 4096 + 20, 100)];
        commit(f, LONG, &ranges, true)
    });
    all
}

/// Operations that change bytes of files, or make blocks change owners.
pub fn changes_bytes(op: &Op) -> bool {
    let data = ["write", "append", "punch", "zero", "copy"];
    let other = [
        "truncate /foo 777",
        "truncate /foo 3000 (longer)",
        "unlink /A/foo",
        "setxattr /foo large",
        "fallocate /foo, longer",
    ];
    let is_direct = op.name.contains("window");
    !is_direct && data.iter().any(|n| op.name.starts_with(n)) || other.contains(&op.name)
}
