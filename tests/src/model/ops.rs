//! Operations by index, and how proptest makes them.
//!
//! An [`Op`] names neither inodes nor names but picks from what there is when
//! its turn comes, so that any sub-list of a list of operations is a list of
//! operations.

use pramfs::{
    Fallocate, RenameFlags, SeekWhence, XattrMode,
    inode::{Credentials, SetAttr, SetTime, Time},
};
use proptest::prelude::*;

use super::state::{Call, Make, Model, NodeId, ROOT};

/// Which node: by its position among those that live.
#[derive(Debug, Clone, Copy)]
pub struct Pick {
    /// Position, modulo their number.
    pub n: u16,
    /// Among all nodes instead of those of the right kind.
    pub any: bool,
}

/// What kind of node is the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Any,
}

/// Who calls: index of a caller.
#[derive(Debug, Clone, Copy)]
pub struct Who(pub u8);

impl Who {
    fn ctx(self) -> Credentials<'static> {
        match self.0 % 3 {
            0 => Credentials::new(0, 0),
            1 => Credentials::new(1000, 100).with_umask(0o022),
            _ => Credentials::new(u32::MAX - 1, 1 << 31).with_umask(0o777),
        }
    }
}

/// An operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// create (with a reference if set).
    Create(Who, Pick, u8, u16, bool),
    /// mkdir.
    Mkdir(Who, Pick, u8, u16, bool),
    /// mknod: type by index.
    Mknod(Who, Pick, u8, u8, bool),
    /// symlink: length of the target.
    Symlink(Who, Pick, u8, u16, bool),
    /// A file without a name: it may get one if set.
    Unnamed(Who, Pick, u16, bool),
    /// Gives a file without a name its first.
    Publish(u16, Pick, u8),
    /// link.
    Link(Pick, Pick, u8),
    /// unlink.
    Unlink(Pick, u8),
    /// rmdir.
    Rmdir(Pick, u8),
    /// rename: flags as bits.
    Rename(Who, Pick, u8, Pick, u8, u8),
    /// lookup; the first two names are `.` and `..`.
    Lookup(Pick, u8),
    /// Removes the n-th name of a directory, whatever it is.
    Remove(Pick, u16),
    /// write: offset and length by index, seed of the bytes.
    Write(Pick, u16, u16, u8),
    /// append.
    Append(Pick, u16, u8),
    /// copy_file_range: from where, to where, and length by index.
    Copy(Pick, u16, Pick, u16, u16),
    /// read.
    Read(Pick, u16, u16),
    /// setattr of the size.
    Truncate(Pick, u16),
    /// setattr of the rest: which fields as bits, and a value.
    Setattr(Pick, u8, u32),
    /// fallocate.
    Fallocate(Pick, u8, u16, u16),
    /// lseek.
    Seek(Pick, u16, bool),
    /// readlink.
    Readlink(Pick),
    /// readdir in chunks.
    Readdir(Pick, u8),
    /// setxattr: name, length of the value, mode.
    SetXattr(Pick, u8, u16, u8),
    /// getxattr.
    GetXattr(Pick, u8),
    /// listxattr.
    ListXattr(Pick),
    /// removexattr.
    RemoveXattr(Pick, u8),
    /// strip_suid.
    StripSuid(Pick),
    /// A reference more.
    Pin(Pick),
    /// A reference less, of a node that has one.
    Unpin(u16),
    /// fsync.
    Fsync(Pick),
    /// statfs, compared with what is known.
    Statfs,
    /// Makes many files in a directory, with names of a length.
    Populate(Pick, u8, u8),
    /// Removes every n-th name of a directory.
    Thin(Pick, u8),
    /// Moves a part of a file into blocks that follow each other.
    Gather(Pick, u16),
    /// Moves what a part of a file has in a leaf of the region: that of one of its extents, or any.
    Vacate(Pick, u16, u16),
    /// Grow, while the region has room: by how much, by index; or an attempt to shrink.
    Grow(u8),
    /// Clean unmount and mount.
    Remount,
    /// The process dies; what its stores have left is mounted.
    Crash,
}

/// The name of an index. Most are short and soon meet again; some are long, of
/// all bytes, or impossible.
pub fn name(n: u8) -> Vec<u8> {
    match n {
        0..=95 => vec![b'a' + n % 12],
        96..=111 => format!("name-{:03}-{}", n, "y".repeat(usize::from(n))).into_bytes(),
        112..=119 => vec![b'x'; 255],
        120..=127 => {
            // Every byte that a name can have, and one more of it.
            let mut all: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
            all.push(n);
            all
        }
        128..=131 => b" ".to_vec(),
        132 => b".".to_vec(),
        133 => b"..".to_vec(),
        134 => Vec::new(),
        135 => vec![b'z'; 256],
        136 => b"a/b".to_vec(),
        137 => b"a\0".to_vec(),
        _ => vec![b'A' + n % 20, b'_'],
    }
}

fn xattr_name(n: u8) -> Vec<u8> {
    match n % 16 {
        0..=7 => format!("user.{}", n % 8).into_bytes(),
        8 => b"trusted.overlay.opaque".to_vec(),
        9 => b"security.capability".to_vec(),
        10 if n < 128 => b"system.posix_acl_default".to_vec(),
        10 => b"system.posix_acl_access".to_vec(),
        11 => [b"user.".to_vec(), vec![b'l'; 250]].concat(),
        12 => [b"user.".to_vec(), vec![b'l'; 251]].concat(),
        13 => b"system.other".to_vec(),
        14 => b"user.".to_vec(),
        _ => format!("user.more.{n}").into_bytes(),
    }
}

/// An ACL: mostly a sound one.
fn list(n: u8, len: u64) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    let mut add = |tag: u8, perm: u64, id: u32| {
        value.extend([tag, 0, perm as u8 & 7, 0]);
        value.extend(id.to_le_bytes());
    };
    let named = len % 4;
    add(1, len >> 3, u32::MAX);
    for i in 0..named {
        add(2, len >> 1, i as u32);
    }
    add(4, len >> 2, u32::MAX);
    if named > 0 || n.is_multiple_of(2) {
        add(16, len >> 4, u32::MAX);
    }
    if len % 32 != 9 {
        add(32, len >> 5, u32::MAX);
    }
    value
}

/// Offsets: small, around blocks of any size, at the end, and far away.
fn offset(model: &Model, node: NodeId, n: u16) -> u64 {
    let size = model.get(node).map_or(0, |n| n.size());
    let x = u64::from(n & 0xfff);
    match n >> 12 {
        0..=3 => x,
        4..=6 => x * 37,
        7 => (x % 64) * 512,
        8 => (x % 32) * 4096,
        9 | 10 => size,
        11 => size.saturating_add(x),
        12 => size.saturating_sub(x),
        13 => (x % 4) << 21 | (x >> 8),
        14 => 1 << (x % 63),
        _ => match x % 8 {
            0 => (16 << 40) + x,
            1 => i64::MAX as u64 - 1,
            2 => i64::MAX as u64,
            3 => u64::MAX,
            4 => i64::MAX as u64 - x,
            _ => 1 << 40 | x,
        },
    }
}

/// Lengths: mostly a few blocks.
fn length(n: u16, huge: bool) -> u64 {
    let x = u64::from(n & 0x1fff);
    match n >> 13 {
        0..=2 => x % 700,
        3 | 4 => x,
        5 => (x % 9) * 512,
        6 => (x % 5) * 4096,
        _ if huge => x * 400,
        _ => x * 5,
    }
}

/// Bytes that depend on their position and on a seed, few of them zero.
fn bytes(seed: u8, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (i as u8)
                .wrapping_mul(7)
                .wrapping_add((i >> 8) as u8 ^ seed)
        })
        .collect()
}

fn pick(model: &Model, p: Pick, kind: Kind) -> NodeId {
    let fits = |k: Kind, id: &NodeId| match k {
        Kind::Dir => model.node(*id).is_dir(),
        Kind::File => model.node(*id).kind() == pramfs::FileType::Regular,
        Kind::Any => true,
    };
    let kind = if p.any { Kind::Any } else { kind };
    let all: Vec<NodeId> = model
        .nodes()
        .map(|(id, _)| id)
        .filter(|id| fits(kind, id))
        .collect();
    match all.len() {
        0 => ROOT,
        n => all[usize::from(p.n) % n],
    }
}

/// The name of an entry that exists, or one from the list.
fn entry_name(model: &Model, dir: NodeId, n: u8) -> Vec<u8> {
    let names: Vec<_> = match &model.node(dir).body {
        super::Body::Dir { entries, .. } => entries.keys().collect(),
        _ => Vec::new(),
    };
    if n.is_multiple_of(4) || names.is_empty() {
        name(n)
    } else {
        names[usize::from(n) % names.len()].clone()
    }
}

fn fallocate(n: u8) -> Fallocate {
    match n % 8 {
        0 | 1 => Fallocate::Allocate { keep_size: false },
        2 => Fallocate::Allocate { keep_size: true },
        3..=5 => Fallocate::PunchHole,
        6 => Fallocate::ZeroRange { keep_size: false },
        _ => Fallocate::ZeroRange { keep_size: true },
    }
}

fn attributes(bits: u8, v: u32) -> SetAttr {
    let time = |v: u32| match v % 4 {
        0 => SetTime::Now,
        1 => SetTime::At(Time {
            sec: -i64::from(v),
            nsec: v % 1_000_000_000,
        }),
        2 => SetTime::At(Time {
            sec: i64::from(v) << 8,
            nsec: 999_999_999,
        }),
        // Now and then one that is none.
        _ => SetTime::At(Time {
            sec: 1,
            nsec: if v % 64 == 3 { 1_000_000_000 } else { 1 },
        }),
    };
    let on = |bit: u8| bits >> bit & 1 != 0;
    SetAttr {
        perm: on(0).then_some(v & 0o7777),
        uid: on(1).then_some(v),
        gid: on(2).then_some(v >> 4),
        size: (on(6) && on(0)).then_some(u64::from(v % 9000)),
        atime: on(3).then(|| time(v)),
        mtime: on(4).then(|| time(v.rotate_left(7))),
        ctime: (on(5) && on(1)).then_some(Time {
            sec: i64::from(v),
            nsec: 5,
        }),
        // Those that forbid changes are seldom, or nothing would change any more.
        flags: on(7).then_some(match v % 8 {
            0 => v,
            1 => v & 0xfb,
            _ => v & 0xcb,
        }),
    }
}

/// The file of a [`Op::Gather`] or [`Op::Vacate`], and the place in it.
pub(super) fn part(model: &Model, p: Pick, at: u16) -> (NodeId, u64) {
    let node = pick(model, p, Kind::File);
    (node, offset(model, node, at))
}

/// The calls that an operation stands for, given the state that it meets.
/// `huge` allows for megabytes at once.
pub fn expand(model: &Model, op: &Op, huge: bool) -> Vec<Call> {
    let dir = |p: Pick| pick(model, p, Kind::Dir);
    let file = |p: Pick| pick(model, p, Kind::File);
    let any = |p: Pick| pick(model, p, Kind::Any);
    let make = |who: Who, p: Pick, n: u8, what: Make, pin: bool| Call::Make {
        ctx: who.ctx(),
        parent: dir(p),
        name: name(n),
        what,
        pin,
    };
    let call = match op {
        Op::Create(who, p, n, perm, pin) => make(
            *who,
            *p,
            *n,
            Make::File {
                perm: u32::from(*perm) & 0o7777,
            },
            *pin,
        ),
        Op::Mkdir(who, p, n, perm, pin) => make(
            *who,
            *p,
            *n,
            Make::Dir {
                perm: u32::from(*perm) & 0o7777,
            },
            *pin,
        ),
        Op::Mknod(who, p, n, kind, pin) => {
            let kinds = [
                libc::S_IFIFO,
                libc::S_IFSOCK,
                libc::S_IFCHR,
                libc::S_IFBLK,
                libc::S_IFREG,
                libc::S_IFDIR,
                0,
            ];
            let mode = kinds[usize::from(*kind) % 7] | u32::from(*kind) & 0o777;
            make(
                *who,
                *p,
                *n,
                Make::Node {
                    mode,
                    rdev: u64::from(*kind) << 8 | 3,
                },
                *pin,
            )
        }
        Op::Symlink(who, p, n, len, pin) => {
            // Short ones mostly; up to one byte too long.
            let len = if len % 4 == 0 {
                usize::from(len % 4097)
            } else {
                usize::from(len % 130)
            };
            let mut target = vec![b't'; len];
            if len % 29 == 7 {
                target[len / 2] = 0;
            }
            make(*who, *p, *n, Make::Symlink { target }, *pin)
        }
        Op::Unnamed(who, p, perm, linkable) => Call::MakeUnnamed {
            ctx: who.ctx(),
            parent: dir(*p),
            perm: u32::from(*perm) & 0o7777,
            linkable: *linkable,
        },
        Op::Publish(which, d, n) => {
            let unnamed: Vec<NodeId> = model
                .nodes()
                .filter(|(_, node)| node.nlink == 0 && !node.is_dir())
                .map(|(id, _)| id)
                .collect();
            let Some(node) = unnamed.get(usize::from(*which) % unnamed.len().max(1)) else {
                return Vec::new();
            };
            Call::Link {
                node: *node,
                parent: dir(*d),
                name: name(*n),
            }
        }
        Op::Link(p, d, n) => Call::Link {
            node: any(*p),
            parent: dir(*d),
            name: name(*n),
        },
        Op::Unlink(d, n) => Call::Unlink {
            parent: dir(*d),
            name: entry_name(model, dir(*d), *n),
        },
        Op::Rmdir(d, n) => Call::Rmdir {
            parent: dir(*d),
            name: entry_name(model, dir(*d), *n),
        },
        Op::Rename(who, a, n, b, m, bits) => Call::Rename {
            ctx: who.ctx(),
            parent: dir(*a),
            name: entry_name(model, dir(*a), *n),
            new_parent: dir(*b),
            new_name: entry_name(model, dir(*b), *m),
            flags: RenameFlags {
                noreplace: bits % 8 == 1 || bits % 32 == 4,
                exchange: bits % 8 == 2 || bits % 32 == 4,
                whiteout: bits % 8 == 3 || bits % 32 == 12,
            },
        },
        Op::Lookup(d, n) => {
            let parent = dir(*d);
            let name = match n {
                0 => b".".to_vec(),
                1 => b"..".to_vec(),
                _ => entry_name(model, parent, *n),
            };
            Call::Lookup { parent, name }
        }
        Op::Remove(d, n) => {
            let parent = dir(*d);
            let super::Body::Dir { entries, .. } = &model.node(parent).body else {
                return Vec::new();
            };
            let Some((name, id)) = entries.iter().nth(usize::from(*n) % entries.len().max(1))
            else {
                return Vec::new();
            };
            let name = name.clone();
            match model.node(*id).is_dir() {
                true => Call::Rmdir { parent, name },
                false => Call::Unlink { parent, name },
            }
        }
        Op::Write(p, at, len, seed) => Call::Write {
            node: file(*p),
            offset: Some(offset(model, file(*p), *at)),
            bytes: bytes(*seed, length(*len, huge)),
        },
        Op::Append(p, len, seed) => Call::Write {
            node: file(*p),
            offset: None,
            bytes: bytes(*seed, length(*len, huge)),
        },
        Op::Copy(from, at, to, target, len) => Call::Copy {
            from: file(*from),
            at: offset(model, file(*from), *at),
            node: file(*to),
            offset: offset(model, file(*to), *target),
            len: length(*len, huge),
        },
        Op::Read(p, at, len) => Call::Read {
            node: file(*p),
            offset: offset(model, file(*p), *at),
            len: length(*len, huge) as usize,
        },
        Op::Truncate(p, at) => {
            let node = file(*p);
            Call::SetAttr {
                node,
                set: SetAttr {
                    size: Some(offset(model, node, *at)),
                    ..SetAttr::default()
                },
            }
        }
        Op::Setattr(p, bits, v) => Call::SetAttr {
            node: any(*p),
            set: attributes(*bits, *v),
        },
        Op::Fallocate(p, what, at, len) => {
            let (node, what) = (file(*p), fallocate(*what));
            let len = match (len % 16, what) {
                // To the end of every file.
                (1, Fallocate::PunchHole) => {
                    (i64::MAX as u64).saturating_sub(offset(model, node, *at))
                }
                _ => length(*len, huge),
            };
            Call::Fallocate {
                node,
                what,
                offset: offset(model, node, *at),
                len,
            }
        }
        Op::Seek(p, at, data) => Call::Seek {
            node: file(*p),
            offset: offset(model, file(*p), *at),
            whence: if *data {
                SeekWhence::Data
            } else {
                SeekWhence::Hole
            },
        },
        Op::Readlink(p) => Call::Readlink { node: any(*p) },
        Op::Readdir(p, chunk) => Call::Readdir {
            node: dir(*p),
            chunk: usize::from(*chunk).max(1),
        },
        Op::SetXattr(p, n, len, mode) => {
            let len = match len % 16 {
                0 => u64::from(*len) + 1,
                1..=3 => u64::from(len % 5000),
                _ => u64::from(len % 300),
            };
            let mode = match mode % 6 {
                0 => XattrMode::Create,
                1 => XattrMode::Replace,
                _ => XattrMode::Set,
            };
            let name = xattr_name(*n);
            let value = match name.starts_with(b"system.posix") && len % 8 != 0 {
                true => list(*n, len),
                false => bytes(*n, len),
            };
            Call::SetXattr {
                node: any(*p),
                name,
                value,
                mode,
            }
        }
        Op::GetXattr(p, n) => Call::GetXattr {
            node: any(*p),
            name: xattr_name(*n),
        },
        Op::ListXattr(p) => Call::ListXattr { node: any(*p) },
        Op::RemoveXattr(p, n) => Call::RemoveXattr {
            node: any(*p),
            name: xattr_name(*n),
        },
        Op::StripSuid(p) => Call::StripSuid { node: any(*p) },
        Op::Pin(p) => Call::Pin { node: any(*p) },
        Op::Unpin(n) => {
            let pinned: Vec<_> = model
                .nodes()
                .filter(|(_, n)| n.pins > 0)
                .map(|(id, _)| id)
                .collect();
            match pinned.len() {
                0 => return Vec::new(),
                len => Call::Unpin {
                    node: pinned[usize::from(*n) % len],
                },
            }
        }
        Op::Fsync(p) => Call::Fsync { node: any(*p) },
        Op::Populate(d, count, len) => {
            return (0..*count)
                .map(|i| Call::Make {
                    ctx: Credentials::ROOT,
                    parent: dir(*d),
                    name: format!("{i:03}{}", "p".repeat(usize::from(*len) % 200)).into_bytes(),
                    what: Make::File { perm: 0o600 },
                    pin: false,
                })
                .collect();
        }
        Op::Thin(d, every) => {
            let parent = dir(*d);
            let super::Body::Dir { entries, .. } = &model.node(parent).body else {
                return Vec::new();
            };
            return entries
                .iter()
                .step_by(usize::from(*every).max(1))
                .filter(|(_, id)| !model.node(**id).is_dir())
                .map(|(name, _)| Call::Unlink {
                    parent,
                    name: name.clone(),
                })
                .collect();
        }
        Op::Statfs | Op::Gather(..) | Op::Vacate(..) | Op::Grow(_) | Op::Remount | Op::Crash => {
            return Vec::new();
        }
    };
    vec![call]
}

fn picks() -> impl Strategy<Value = Pick> {
    (any::<u16>(), 0..24u8).prop_map(|(n, a)| Pick { n, any: a == 0 })
}

/// Lists of up to `len` operations.
pub fn ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(calls(), 1..=len)
}

/// Lists with gathers, vacated leaves and grows among them.
pub fn ops_and_growth(len: usize) -> impl Strategy<Value = Vec<Op>> {
    let n = any::<u8>;
    let growth = prop_oneof![
        3 => (picks(), any::<u16>()).prop_map(|(a, b)| Op::Gather(a, b)),
        3 => (picks(), any::<u16>(), any::<u16>()).prop_map(|(a, b, c)| Op::Vacate(a, b, c)),
        1 => n().prop_map(Op::Grow),
    ];
    proptest::collection::vec(prop_oneof![45 => calls(), 1 => growth], 1..=len)
}

/// Operations as programs call for them. The golden record of stores is of lists of these.
fn calls() -> impl Strategy<Value = Op> {
    let p = picks;
    let who = || any::<u8>().prop_map(Who);
    let pin = || proptest::bool::weighted(0.15);
    let n = any::<u8>;
    let w = any::<u16>;
    let tree = prop_oneof![
        12 => (who(), p(), n(), w(), pin()).prop_map(|(a, b, c, d, e)| Op::Create(a, b, c, d, e)),
        8 => (who(), p(), n(), w(), pin()).prop_map(|(a, b, c, d, e)| Op::Mkdir(a, b, c, d, e)),
        3 => (who(), p(), n(), n(), pin()).prop_map(|(a, b, c, d, e)| Op::Mknod(a, b, c, d, e)),
        4 => (who(), p(), n(), w(), pin()).prop_map(|(a, b, c, d, e)| Op::Symlink(a, b, c, d, e)),
        4 => (who(), p(), w(), proptest::bool::weighted(0.8)).prop_map(|(a, b, c, d)| Op::Unnamed(a, b, c, d)),
        4 => (w(), p(), n()).prop_map(|(a, b, c)| Op::Publish(a, b, c)),
        6 => (p(), p(), n()).prop_map(|(a, b, c)| Op::Link(a, b, c)),
        5 => (p(), n()).prop_map(|(a, b)| Op::Unlink(a, b)),
        3 => (p(), n()).prop_map(|(a, b)| Op::Rmdir(a, b)),
        14 => (who(), p(), n(), p(), n(), n()).prop_map(|(a, b, c, d, e, f)| Op::Rename(a, b, c, d, e, f)),
        5 => (p(), n()).prop_map(|(a, b)| Op::Lookup(a, b)),
        6 => (p(), w()).prop_map(|(a, b)| Op::Remove(a, b)),
        2 => (p(), n(), n()).prop_map(|(a, b, c)| Op::Populate(a, b, c)),
        2 => (p(), 1..5u8).prop_map(|(a, b)| Op::Thin(a, b)),
        2 => (p(), n()).prop_map(|(a, b)| Op::Readdir(a, b)),
        1 => p().prop_map(Op::Readlink),
    ];
    let data = prop_oneof![
        14 => (p(), w(), w(), n()).prop_map(|(a, b, c, d)| Op::Write(a, b, c, d)),
        6 => (p(), w(), n()).prop_map(|(a, b, c)| Op::Append(a, b, c)),
        6 => (p(), w(), p(), w(), w()).prop_map(|(a, b, c, d, e)| Op::Copy(a, b, c, d, e)),
        6 => (p(), w(), w()).prop_map(|(a, b, c)| Op::Read(a, b, c)),
        7 => (p(), w()).prop_map(|(a, b)| Op::Truncate(a, b)),
        10 => (p(), n(), w(), w()).prop_map(|(a, b, c, d)| Op::Fallocate(a, b, c, d)),
        3 => (p(), w(), any::<bool>()).prop_map(|(a, b, c)| Op::Seek(a, b, c)),
    ];
    let rest = prop_oneof![
        6 => (p(), n(), any::<u32>()).prop_map(|(a, b, c)| Op::Setattr(a, b, c)),
        10 => (p(), n(), w(), n()).prop_map(|(a, b, c, d)| Op::SetXattr(a, b, c, d)),
        3 => (p(), n()).prop_map(|(a, b)| Op::GetXattr(a, b)),
        2 => p().prop_map(Op::ListXattr),
        4 => (p(), n()).prop_map(|(a, b)| Op::RemoveXattr(a, b)),
        1 => p().prop_map(Op::StripSuid),
        4 => p().prop_map(Op::Pin),
        4 => w().prop_map(Op::Unpin),
        1 => p().prop_map(Op::Fsync),
        1 => Just(Op::Statfs),
        2 => Just(Op::Remount),
        3 => Just(Op::Crash),
    ];
    prop_oneof![5 => tree, 4 => data, 3 => rest]
}
