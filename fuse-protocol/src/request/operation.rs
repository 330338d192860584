//! What a request asks for.

use zerocopy::FromBytes;

use crate::data::Data;
use crate::extension::Extensions;
use crate::flags::InitFlags;
use crate::opcode::Opcode;
use crate::wire::*;

/// An operation with its arguments.
///
/// A `name` is one component: not empty, without slash and NUL, not longer than agreed,
/// and neither `.` nor `..` (but a lookup may ask for these). Sizes that the other side
/// announces agree with the bytes that it sends, and sizes that it asks for fit a reply. The
/// ranges of READ, WRITE and FALLOCATE do not overflow, and times of SETATTR are valid. (The
/// offset of LSEEK may be negative, because the kernel passes on what a program says, and the
/// length of a copy may be greater than any file.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are named as in the structures on the wire"
)]
pub enum Operation<'a> {
    /// Finds a name.
    Lookup { name: &'a [u8] },
    /// Drops references to the node of the header.
    Forget { nlookup: u64 },
    /// Drops references to nodes.
    BatchForget(ForgetList<'a>),
    /// Reads attributes.
    Getattr(GetattrIn),
    /// Reads attributes as statx(2).
    Statx(StatxIn),
    /// Changes attributes.
    Setattr(SetattrIn),
    /// Reads the target of a symbolic link.
    Readlink,
    /// Makes a symbolic link.
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// Makes a file.
    Mknod {
        arg: MknodIn,
        name: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// Makes a directory.
    Mkdir {
        arg: MkdirIn,
        name: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// Removes a name.
    Unlink { name: &'a [u8] },
    /// Removes a directory.
    Rmdir { name: &'a [u8] },
    /// Renames; RENAME has no flags.
    Rename {
        newdir: u64,
        flags: u32,
        name: &'a [u8],
        newname: &'a [u8],
    },
    /// Makes a name in the directory of the header.
    Link { oldnodeid: u64, name: &'a [u8] },
    /// Opens a file.
    Open(OpenIn),
    /// Opens a directory.
    Opendir(OpenIn),
    /// Makes and opens a file.
    Create {
        arg: CreateIn,
        name: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// Makes and opens a file without a name. What stands in the place of the name means
    /// nothing; the kernel sends `/`.
    Tmpfile {
        arg: CreateIn,
        placeholder: &'a [u8],
        extensions: Extensions<'a>,
    },
    /// Reads.
    Read(ReadIn),
    /// Lists a directory.
    Readdir(ReadIn),
    /// Lists a directory with attributes.
    Readdirplus(ReadIn),
    /// Writes.
    Write { arg: WriteIn, data: Data<'a> },
    /// Asks for the state of the file system.
    Statfs,
    /// Makes the file system durable.
    Syncfs,
    /// Closes a file.
    Release(ReleaseIn),
    /// Closes a directory.
    Releasedir(ReleaseIn),
    /// Comes at each close of a descriptor.
    Flush(FlushIn),
    /// Makes a file durable.
    Fsync(FsyncIn),
    /// Makes a directory durable.
    Fsyncdir(FsyncIn),
    /// Sets an extended attribute.
    Setxattr {
        arg: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Reads an extended attribute; `size` 0 asks for its length.
    Getxattr { size: u32, name: &'a [u8] },
    /// Lists extended attributes; `size` 0 asks for the length.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: &'a [u8] },
    /// Negotiates.
    Init(InitRequest),
    /// Ends the connection.
    Destroy,
    /// Tests for a lock.
    Getlk(LkIn),
    /// Takes or releases a lock.
    Setlk(LkIn),
    /// Takes a lock and waits.
    Setlkw(LkIn),
    /// Checks permissions.
    Access { mask: u32 },
    /// Interrupts the request with this number.
    Interrupt { unique: u64 },
    /// Translates a block.
    Bmap(BmapIn),
    /// Passes an ioctl on.
    Ioctl { arg: IoctlIn, data: Data<'a> },
    /// Asks for events.
    Poll(PollIn),
    /// Brings what a notification has asked for. The header has the notification's number.
    NotifyReply {
        arg: NotifyRetrieveIn,
        data: Data<'a>,
    },
    /// Allocates or punches.
    Fallocate(FallocateIn),
    /// Finds data or a hole.
    Lseek(LseekIn),
    /// Copies; the reply has 32 bits.
    CopyFileRange(CopyFileRangeIn),
    /// Copies; the reply has 64 bits.
    CopyFileRange64(CopyFileRangeIn),
    /// Maps a range for a guest.
    Setupmapping(SetupmappingIn),
    /// Unmaps ranges of a guest.
    Removemapping(MappingList<'a>),
}

impl Operation<'_> {
    /// Its number. A rename without flags counts as RENAME, whatever has brought it.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        match self {
            Operation::Lookup { .. } => Opcode::Lookup,
            Operation::Forget { .. } => Opcode::Forget,
            Operation::BatchForget(_) => Opcode::BatchForget,
            Operation::Getattr(_) => Opcode::Getattr,
            Operation::Statx(_) => Opcode::Statx,
            Operation::Setattr(_) => Opcode::Setattr,
            Operation::Readlink => Opcode::Readlink,
            Operation::Symlink { .. } => Opcode::Symlink,
            Operation::Mknod { .. } => Opcode::Mknod,
            Operation::Mkdir { .. } => Opcode::Mkdir,
            Operation::Unlink { .. } => Opcode::Unlink,
            Operation::Rmdir { .. } => Opcode::Rmdir,
            Operation::Rename { flags: 0, .. } => Opcode::Rename,
            Operation::Rename { .. } => Opcode::Rename2,
            Operation::Link { .. } => Opcode::Link,
            Operation::Open(_) => Opcode::Open,
            Operation::Opendir(_) => Opcode::Opendir,
            Operation::Create { .. } => Opcode::Create,
            Operation::Tmpfile { .. } => Opcode::Tmpfile,
            Operation::Read(_) => Opcode::Read,
            Operation::Readdir(_) => Opcode::Readdir,
            Operation::Readdirplus(_) => Opcode::Readdirplus,
            Operation::Write { .. } => Opcode::Write,
            Operation::Statfs => Opcode::Statfs,
            Operation::Syncfs => Opcode::Syncfs,
            Operation::Release(_) => Opcode::Release,
            Operation::Releasedir(_) => Opcode::Releasedir,
            Operation::Flush(_) => Opcode::Flush,
            Operation::Fsync(_) => Opcode::Fsync,
            Operation::Fsyncdir(_) => Opcode::Fsyncdir,
            Operation::Setxattr { .. } => Opcode::Setxattr,
            Operation::Getxattr { .. } => Opcode::Getxattr,
            Operation::Listxattr { .. } => Opcode::Listxattr,
            Operation::Removexattr { .. } => Opcode::Removexattr,
            Operation::Init(_) => Opcode::Init,
            Operation::Destroy => Opcode::Destroy,
            Operation::Getlk(_) => Opcode::Getlk,
            Operation::Setlk(_) => Opcode::Setlk,
            Operation::Setlkw(_) => Opcode::Setlkw,
            Operation::Access { .. } => Opcode::Access,
            Operation::Interrupt { .. } => Opcode::Interrupt,
            Operation::Bmap(_) => Opcode::Bmap,
            Operation::Ioctl { .. } => Opcode::Ioctl,
            Operation::Poll(_) => Opcode::Poll,
            Operation::NotifyReply { .. } => Opcode::NotifyReply,
            Operation::Fallocate(_) => Opcode::Fallocate,
            Operation::Lseek(_) => Opcode::Lseek,
            Operation::CopyFileRange(_) => Opcode::CopyFileRange,
            Operation::CopyFileRange64(_) => Opcode::CopyFileRange64,
            Operation::Setupmapping(_) => Opcode::Setupmapping,
            Operation::Removemapping(_) => Opcode::Removemapping,
        }
    }
}

/// What INIT brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version of the other side.
    pub major: u32,
    /// Minor version of the other side.
    pub minor: u32,
    /// What it can read ahead, in bytes.
    pub max_readahead: u32,
    /// What it offers. The second word is left out if it does not count.
    pub flags: InitFlags,
}

macro_rules! list {
    ($(#[$doc:meta])* $Name:ident of $One:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $Name<'a>(pub(super) &'a [u8]);

        impl<'a> $Name<'a> {
            /// Returns each of them.
            pub fn iter(self) -> impl Iterator<Item = $One> + 'a {
                let each = self.0.chunks_exact($One::SIZE);
                each.filter_map(|bytes| $One::read_from_bytes(bytes).ok())
            }

            /// How many there are.
            #[must_use]
            pub fn len(self) -> usize {
                self.0.len() / $One::SIZE
            }

            /// Whether there is none.
            #[must_use]
            pub fn is_empty(self) -> bool {
                self.0.is_empty()
            }
        }
    };
}

list! {
    /// The nodes of BATCH_FORGET.
    ForgetList of ForgetOne
}

list! {
    /// The mappings of REMOVEMAPPING.
    MappingList of RemovemappingOne
}
