//! Nodes: names, attributes, extended attributes.

use crate::flags::{AttrFlags, GetattrFlags, SetattrValid, SetxattrFlags};

wire_structs! {
    /// Attributes of a node.
    Attr = "fuse_attr" {
        ino: u64;
        size: u64;
        /// In units of 512 bytes.
        blocks: u64;
        /// Seconds; the same bits as a signed number.
        atime: u64;
        mtime: u64;
        ctime: u64;
        atimensec: u32;
        mtimensec: u32;
        ctimensec: u32;
        /// Type and permissions.
        mode: u32;
        nlink: u32;
        uid: u32;
        gid: u32;
        rdev: u32;
        blksize: u32;
        flags: AttrFlags;
    }

    /// A time of [`Statx`].
    SxTime = "fuse_sx_time" [39] {
        tv_sec: i64;
        tv_nsec: u32;
        reserved = "__reserved": i32;
    }

    /// Attributes as statx(2) has them.
    Statx = "fuse_statx" [39] {
        mask: u32;
        blksize: u32;
        attributes: u64;
        nlink: u32;
        uid: u32;
        gid: u32;
        mode: u16;
        spare0 = "__spare0": [u16; 1];
        ino: u64;
        size: u64;
        blocks: u64;
        attributes_mask: u64;
        atime: SxTime;
        btime: SxTime;
        ctime: SxTime;
        mtime: SxTime;
        rdev_major: u32;
        rdev_minor: u32;
        dev_major: u32;
        dev_minor: u32;
        spare2 = "__spare2": [u64; 14];
    }

    /// The reply to LOOKUP and to requests that make a node.
    EntryOut = "fuse_entry_out" {
        /// 0: there is no such name, and this may be cached.
        nodeid: u64;
        generation: u64;
        /// Seconds that the name may be cached.
        entry_valid: u64;
        /// Seconds that the attributes may be cached.
        attr_valid: u64;
        entry_valid_nsec: u32;
        attr_valid_nsec: u32;
        attr: Attr;
    }

    /// The body of FORGET.
    ForgetIn = "fuse_forget_in" {
        nlookup: u64;
    }

    /// One node of BATCH_FORGET.
    ForgetOne = "fuse_forget_one" {
        nodeid: u64;
        nlookup: u64;
    }

    /// The beginning of BATCH_FORGET; `count` times [`ForgetOne`] follows.
    BatchForgetIn = "fuse_batch_forget_in" {
        count: u32;
        dummy: u32;
    }

    /// The body of GETATTR.
    GetattrIn = "fuse_getattr_in" {
        getattr_flags: GetattrFlags;
        dummy: u32;
        fh: u64;
    }

    /// The reply to GETATTR and SETATTR.
    AttrOut = "fuse_attr_out" {
        attr_valid: u64;
        attr_valid_nsec: u32;
        dummy: u32;
        attr: Attr;
    }

    /// The body of STATX.
    StatxIn = "fuse_statx_in" [39] {
        getattr_flags: GetattrFlags;
        reserved: u32;
        fh: u64;
        sx_flags: u32;
        sx_mask: u32;
    }

    /// The reply to STATX.
    StatxOut = "fuse_statx_out" [39] {
        attr_valid: u64;
        attr_valid_nsec: u32;
        flags: u32;
        spare: [u64; 2];
        stat: Statx;
    }

    /// The beginning of MKNOD.
    MknodIn = "fuse_mknod_in" {
        mode: u32;
        rdev: u32;
        umask: u32;
        padding: u32;
    }

    /// The beginning of MKDIR.
    MkdirIn = "fuse_mkdir_in" {
        mode: u32;
        umask: u32;
    }

    /// The beginning of RENAME.
    RenameIn = "fuse_rename_in" {
        newdir: u64;
    }

    /// The beginning of RENAME2.
    Rename2In = "fuse_rename2_in" {
        newdir: u64;
        /// Flags of renameat2(2).
        flags: u32;
        padding: u32;
    }

    /// The beginning of LINK.
    LinkIn = "fuse_link_in" {
        oldnodeid: u64;
    }

    /// The body of SETATTR.
    SetattrIn = "fuse_setattr_in" {
        valid: SetattrValid;
        padding: u32;
        fh: u64;
        size: u64;
        lock_owner: u64;
        atime: u64;
        mtime: u64;
        ctime: u64;
        atimensec: u32;
        mtimensec: u32;
        ctimensec: u32;
        mode: u32;
        unused4: u32;
        uid: u32;
        gid: u32;
        unused5: u32;
    }

    /// The beginning of SETXATTR. Without
    /// [`SETXATTR_EXT`](crate::flags::InitFlags::SETXATTR_EXT) it ends after `flags`.
    SetxattrIn = "fuse_setxattr_in" {
        /// Bytes of the value.
        size: u32;
        /// Flags of setxattr(2).
        flags: u32;
        setxattr_flags: SetxattrFlags;
        padding: u32;
    }

    /// The beginning of GETXATTR and LISTXATTR.
    GetxattrIn = "fuse_getxattr_in" {
        /// The caller's room; 0 asks for the size.
        size: u32;
        padding: u32;
    }

    /// The reply to GETXATTR and LISTXATTR that ask for the size.
    GetxattrOut = "fuse_getxattr_out" {
        size: u32;
        padding: u32;
    }

    /// The body of ACCESS.
    AccessIn = "fuse_access_in" {
        mask: u32;
        padding: u32;
    }

    /// An entry of a listing. The name follows, without a NUL, padded to 8 bytes.
    Dirent = "fuse_dirent" {
        ino: u64;
        /// Where the listing goes on after this entry.
        off: u64;
        namelen: u32;
        /// The type as in `d_type` of readdir(3).
        kind = "type": u32;
    }

    /// An entry of a listing with attributes. The name follows as after [`Dirent`].
    Direntplus = "fuse_direntplus" {
        entry_out: EntryOut;
        dirent: Dirent;
    }
}
