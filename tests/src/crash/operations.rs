//! The operations of which workloads are made, on a small tree.
//!
//! An operation names paths. Where a sequence has removed what it needs, the
//! operation does not apply, and the sequence is left out; where a name exists
//! already, it is refused, and a refused operation must change nothing.

use pramfs::XattrMode;
use pramfs::inode::{SetAttr, SetTime, Time};

use super::action::Action;
use super::steps::{
    EXCHANGE, GROW, KEEP, NOREPLACE, PLAIN, PUNCH, WHITEOUT, ZERO, ZERO_KEEP, copy, fallocate,
    file, link, make, map, one, removexattr, rename, rmdir, set, setacl, setxattr, truncate,
    unlink, unlink_open, unnamed, write,
};
use crate::model::{Call, Follower, Make};

/// An operation of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// Its name, by which reports call it.
    pub name: &'static str,
    /// Changes names and attributes, not the bytes of files.
    pub metadata: bool,
    /// Stores through a view, which needs blocks of 4096 bytes.
    pub map: bool,
    /// Leaves so many lines uncertain that it is not explored with others.
    pub wide: bool,
    /// What it stores is not durable when it returns, and never: it is the last
    /// of its sequence.
    pub lossy: bool,
    pub(super) steps: fn(&Follower) -> Option<Vec<Action>>,
}

impl Op {
    /// What it does now; `None` where it does not apply.
    pub fn actions(&self, f: &Follower) -> Option<Vec<Action>> {
        (self.steps)(f)
    }
}
/// All operations.
pub fn ops() -> Vec<Op> {
    macro_rules! table {
        ($($class:ident $name:literal = |$f:ident| $body:expr;)*) => {
            vec![$(Op {
                name: $name,
                metadata: stringify!($class) == "meta",
                map: matches!(stringify!($class), "mapped" | "lossy"),
                wide: stringify!($class) == "wide",
                lossy: stringify!($class) == "lossy",
                steps: |$f| $body,
            }),*]
        };
    }
    table! {
        meta "create /A/new" = |f| make(f, "/A/new", Make::File { perm: 0o640 });
        meta "create /B/long" = |f| make(f, "/B/a-name-that-takes-much-of-a-leaf-of-its-own", Make::File { perm: 0o600 });
        meta "mkdir /A/dir" = |f| make(f, "/A/dir", Make::Dir { perm: 0o750 });
        meta "mkdir /B/sub" = |f| make(f, "/B/sub", Make::Dir { perm: 0o755 });
        meta "mknod /B/pipe" = |f| make(f, "/B/pipe", Make::Node { mode: libc::S_IFIFO | 0o600, rdev: 0 });
        meta "mknod /A/dev" = |f| make(f, "/A/dev", Make::Node { mode: libc::S_IFCHR | 0o620, rdev: 0x0105 });
        meta "symlink /A/sym" = |f| make(f, "/A/sym", Make::Symlink { target: b"../foo".to_vec() });
        meta "symlink /B/long target" = |f| make(f, "/B/longsym", Make::Symlink { target: vec![b't'; 200] });
        meta "link /A/bar /B/bar" = |f| link(f, "/A/bar", "/B/bar");
        meta "link /foo /A/foo2" = |f| link(f, "/foo", "/A/foo2");
        meta "unlink /foo (two names)" = |f| unlink(f, "/foo");
        meta "unlink /A/foo" = |f| unlink(f, "/A/foo");
        meta "unlink /A/bar (empty)" = |f| unlink(f, "/A/bar");
        meta "rmdir /A/sub" = |f| rmdir(f, "/A/sub");
        meta "rmdir /B" = |f| rmdir(f, "/B");
        meta "rename /A/bar /A/baz" = |f| rename(f, "/A/bar", "/A/baz", PLAIN);
        meta "rename /A/bar /A/foo (over)" = |f| rename(f, "/A/bar", "/A/foo", PLAIN);
        meta "rename /A/foo /B/foo" = |f| rename(f, "/A/foo", "/B/foo", PLAIN);
        meta "rename /A/sub /B/sub" = |f| rename(f, "/A/sub", "/B/sub", PLAIN);
        meta "rename /A/sub /B (over)" = |f| rename(f, "/A/sub", "/B", PLAIN);
        meta "rename noreplace /A/bar /foo" = |f| rename(f, "/A/bar", "/foo", NOREPLACE);
        meta "rename noreplace /A/bar /B/n" = |f| rename(f, "/A/bar", "/B/n", NOREPLACE);
        meta "rename exchange /A/foo /A/bar" = |f| rename(f, "/A/foo", "/A/bar", EXCHANGE);
        meta "rename exchange /A/sub /foo" = |f| rename(f, "/A/sub", "/foo", EXCHANGE);
        meta "rename whiteout /A/bar /B/w" = |f| rename(f, "/A/bar", "/B/w", WHITEOUT);
        meta "truncate /foo 512" = |f| truncate(f, "/foo", 512);
        meta "truncate /foo 777" = |f| truncate(f, "/foo", 777);
        meta "truncate /A/foo 0" = |f| truncate(f, "/A/foo", 0);
        meta "truncate /foo 3000 (longer)" = |f| truncate(f, "/foo", 3000);
        meta "setxattr /A/bar small" = |f| setxattr(f, "/A/bar", "user.small", 20, XattrMode::Create);
        meta "setxattr /foo replace" = |f| setxattr(f, "/foo", "user.small", 31, XattrMode::Replace);
        meta "setxattr /A/foo large" = |f| setxattr(f, "/A/foo", "user.large", 900, XattrMode::Set);
        meta "setxattr /foo large" = |f| setxattr(f, "/foo", "user.large", 1500, XattrMode::Set);
        meta "setxattr /foo large to small" = |f| setxattr(f, "/foo", "user.large", 8, XattrMode::Set);
        meta "removexattr /foo small" = |f| removexattr(f, "/foo", "user.small");
        meta "removexattr /foo large" = |f| removexattr(f, "/foo", "user.large");
        meta "chmod /foo" = |f| set(f, "/foo", SetAttr { perm: Some(0o4711), ..SetAttr::default() });
        meta "setfacl /A/bar" = |f| setacl(f, "/A/bar", "access", 0o700);
        meta "setfacl -b /foo" = |f| removexattr(f, "/foo", "system.posix_acl_access");
        meta "setfacl -d /A" = |f| setacl(f, "/A", "default", 0o770);
        meta "chmod /A" = |f| set(f, "/A", SetAttr { perm: Some(0o2770), ..SetAttr::default() });
        meta "chown /foo" = |f| set(f, "/foo", SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() });
        meta "truncate and chmod /foo" = |f| set(f, "/foo", SetAttr { size: Some(400), perm: Some(0o750), ..SetAttr::default() });
        meta "chattr +d +A /A" = |f| set(f, "/A", SetAttr { flags: Some(0x40 | 0x80), ..SetAttr::default() });
        meta "chattr +i /A/bar" = |f| set(f, "/A/bar", SetAttr { flags: Some(0x10), ..SetAttr::default() });
        meta "label" = |_f| Some(vec![Action::Label("another")]);
        wide "trim" = |_f| Some(vec![Action::Trim]);
        meta "utimes /A/bar" = |f| {
            let t = SetTime::At(Time { sec: -5, nsec: 999_999_999 });
            set(f, "/A/bar", SetAttr { atime: Some(t), mtime: Some(t), ..SetAttr::default() })
        };
        meta "unlink /A/foo open, close" = |f| unlink_open(f, "/A/foo");
        data "create unnamed in /A, write, link to /B/named, close" = |f| unnamed(f, "/A", 900, Some("/B/named"));
        data "create unnamed in /A, write, close" = |f| unnamed(f, "/A", 300, None);
        data "write /foo 8 at 512" = |f| write(f, "/foo", Some(512), 8);
        data "write /foo 300 at 411 (unaligned)" = |f| write(f, "/foo", Some(411), 300);
        data "write /foo 700 at 1000 (spanning)" = |f| write(f, "/foo", Some(1000), 700);
        data "write /A/foo 90 at 5000 (hole)" = |f| write(f, "/A/foo", Some(5000), 90);
        data "write /A/bar 600 (empty)" = |f| write(f, "/A/bar", Some(0), 600);
        data "append /foo 500" = |f| write(f, "/foo", None, 500);
        data "append /A/foo 700 (preallocated)" = |f| write(f, "/A/foo", None, 700);
        data "fallocate /A/bar" = |f| fallocate(f, "/A/bar", GROW, 100, 1500);
        data "fallocate keep /foo" = |f| fallocate(f, "/foo", KEEP, 1000, 2000);
        data "punch /foo" = |f| fallocate(f, "/foo", PUNCH, 300, 800);
        data "zero /foo" = |f| fallocate(f, "/foo", ZERO, 700, 1100);
        data "zero keep /A/foo" = |f| fallocate(f, "/A/foo", ZERO_KEEP, 200, 1200);
        data "copy /foo to /A/bar" = |f| copy(f, "/foo", "/A/bar", 100, 1300);
        data "copy /A/foo into /foo" = |f| copy(f, "/A/foo", "/foo", 200, 600);
        data "append /foo 500, gather it" = |f| {
            let node = file(f, "/foo")?;
            let mut actions = write(f, "/foo", None, 500)?;
            actions.push(Action::Gather { node });
            Some(actions)
        };
        data "append /foo 500, vacate it" = |f| {
            let node = file(f, "/foo")?;
            let mut actions = write(f, "/foo", None, 500)?;
            actions.push(Action::Vacate { node });
            Some(actions)
        };
        data "fsync /foo" = |f| one(Call::Fsync { node: file(f, "/foo")? });
        mapped "map /foo, store, persist" = |f| map(f, "/foo", 100, 300, true);
        lossy "map /foo, store" = |f| map(f, "/foo", 600, 64, false);
    }
}
