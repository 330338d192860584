//! Operations that change bytes of files, for mounts on which they are atomic.

use pramfs::inode::SetAttr;
use pramfs_medium::media::inode::FL_ATOMIC;

use super::leased::lease_ops;
use super::workload::{Action, GROW, Op, fallocate, file, make, write};
use crate::model::{Call, Follower, Make};

fn flags(f: &Follower, path: &str, flags: u32) -> Option<Vec<Action>> {
    let set = SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    let node = file(f, path)?;
    Some(vec![Action::Call(Call::SetAttr { node, set })])
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
    let mut add = |name, steps| {
        all.push(Op {
            name,
            metadata: false,
            map: false,
            wide: false,
            lossy: false,
            steps,
        });
    };
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
