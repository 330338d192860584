//! Converts numbers and structures between the FUSE protocol and the engine.
//!
//! Two of them need care:
//! * the protocol calls the root node 1, the engine calls it inode 2; every
//!   other number is the same on both sides, and `stat` shows the engine's;
//! * a device number travels in the kernel's 32-bit packing, the engine keeps
//!   the C library's `dev_t`.

use pramfs::{
    FileType,
    inode::{Attr, Ino, SetAttr, SetTime, Time},
};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::flags::SetattrValid;
use pramfs_fuse_protocol::wire::{self, SetattrIn, Statx, SxTime};
use pramfs_fuse_protocol::{NewTime, numbers};

use super::serve::{Refusal, Served};

/// A node, as the protocol numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(pub u64);

impl Node {
    pub(super) const ROOT: Node = Node(numbers::ROOT_ID);
}

/// A file handle. The kernel repeats what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub u64);

/// Returns the engine's number of a node.
///
/// # Errors
/// ESTALE for the engine's reserved numbers; such a node can only come from a forged
/// file handle.
pub(super) fn ino(node: Node) -> Served<Ino> {
    match node {
        Node::ROOT => Ok(Ino::ROOT),
        Node(n) if n >= Ino::FIRST_FREE.0 => Ok(Ino(n)),
        _ => Err(Refusal::Request(Errno::ESTALE, "no such node")),
    }
}

/// Returns the protocol's number of an inode.
pub(super) fn node(ino: Ino) -> Node {
    match ino {
        Ino::ROOT => Node::ROOT,
        Ino(n) => Node(n),
    }
}

/// Returns the generation of a node. The kernel requires 0 for the root.
pub(super) fn generation(of: &Attr) -> u64 {
    match of.ino {
        Ino::ROOT => 0,
        _ => of.generation,
    }
}

/// Returns the type of a file as in `d_type` of readdir(3).
pub(super) fn kind(kind: FileType) -> u32 {
    kind.mode_bits() >> 12
}

/// Returns the attributes for `stat`.
pub(super) fn attr(of: &Attr) -> wire::Attr {
    wire::Attr {
        ino: of.ino.0,
        size: of.size,
        blocks: of.blocks,
        atime: of.atime.sec.cast_unsigned(),
        mtime: of.mtime.sec.cast_unsigned(),
        ctime: of.ctime.sec.cast_unsigned(),
        atimensec: of.atime.nsec,
        mtimensec: of.mtime.nsec,
        ctimensec: of.ctime.nsec,
        mode: of.kind.mode_bits() | of.perm & 0o7777,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: pack_device(of.rdev),
        blksize: of.blksize,
        ..wire::Attr::default()
    }
}

/// Returns the attributes for `statx`, with the time of birth. The kernel takes neither the
/// flags of chattr nor a device number from here.
pub(super) fn statx(of: &Attr) -> Statx {
    let time = |time: Time| SxTime {
        tv_sec: time.sec,
        tv_nsec: time.nsec,
        reserved: 0,
    };
    Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: of.blksize,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        mode: (of.kind.mode_bits() | of.perm & 0o7777) as u16,
        ino: of.ino.0,
        size: of.size,
        blocks: of.blocks,
        atime: time(of.atime),
        btime: time(of.btime),
        ctime: time(of.ctime),
        mtime: time(of.mtime),
        rdev_major: libc::major(of.rdev),
        rdev_minor: libc::minor(of.rdev),
        ..Statx::default()
    }
}

/// Returns the changes of a setattr request.
pub(super) fn set_attr(arg: &SetattrIn) -> SetAttr {
    let given = |flag, value| arg.valid.contains(flag).then_some(value);
    let time = |time: pramfs_fuse_protocol::Time| Time {
        sec: time.sec,
        nsec: time.nsec,
    };
    let set_time = |new: NewTime| match new {
        NewTime::Now => SetTime::Now,
        NewTime::At(at) => SetTime::At(time(at)),
    };
    SetAttr {
        perm: given(SetattrValid::MODE, arg.mode & 0o7777),
        uid: given(SetattrValid::UID, arg.uid),
        gid: given(SetattrValid::GID, arg.gid),
        size: arg.valid.contains(SetattrValid::SIZE).then_some(arg.size),
        atime: arg.new_atime().map(set_time),
        mtime: arg.new_mtime().map(set_time),
        ctime: arg.new_ctime().map(time),
        flags: None,
    }
}

/// Converts `dev_t` of the C library to the kernel's packing: 8 bits of the minor, 12
/// of the major, 12 more of the minor.
fn pack_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Converts the kernel's packing to `dev_t`.
pub(super) fn unpack_device(packed: u32) -> u64 {
    libc::makedev(
        (packed >> 8) & 0xfff,
        (packed & 0xff) | ((packed >> 12) & 0xfff00),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_differ_only_for_root() {
        assert_eq!(ino(Node::ROOT).unwrap(), Ino::ROOT);
        assert_eq!(node(Ino::ROOT), Node::ROOT);
        assert_eq!(ino(Node(16)).unwrap(), Ino(16));
        assert_eq!(node(Ino(16)), Node(16));
        for reserved in [0, 2, 3, 4, 15] {
            let refused = ino(Node(reserved)).unwrap_err();
            assert_eq!(refused.errno(), Errno::ESTALE);
        }
    }

    #[test]
    fn device_numbers_survive_packing() {
        for (major, minor) in [(0, 0), (1, 3), (259, 70_000), (0xfff, 0xfffff)] {
            let device = libc::makedev(major, minor);
            assert_eq!(
                unpack_device(pack_device(device)),
                device,
                "{major}:{minor}"
            );
        }
    }

    #[test]
    fn setattr_changes_what_its_flags_name() {
        let mut arg = SetattrIn {
            size: 5,
            mode: libc::S_IFREG | 0o4755,
            atime: (-2i64).cast_unsigned(),
            atimensec: 800_000_000,
            ..SetattrIn::default()
        };
        assert_eq!(set_attr(&arg), SetAttr::default());
        arg.valid = SetattrValid::MODE | SetattrValid::ATIME | SetattrValid::MTIME_NOW;
        let before_1970 = Time {
            sec: -2,
            nsec: 800_000_000,
        };
        let expected = SetAttr {
            perm: Some(0o4755),
            atime: Some(SetTime::At(before_1970)),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        assert_eq!(set_attr(&arg), expected);
    }
}
