//! Newtypes for numbers that must not be confused, and the plain structures that
//! the engine takes and returns.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Inode number. 2 is the root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// Inode table, kept in the superblock page.
    pub const INODE_TABLE: Ino = Ino(0xffff_ffff_ff01);
    /// Inode-group descriptors, kept in the superblock page.
    pub const INODE_GROUPS: Ino = Ino(0xffff_ffff_ff02);
    /// Block-group descriptors, kept in the superblock page.
    pub const BLOCK_GROUPS: Ino = Ino(0xffff_ffff_ff03);
    /// Owner of the list of bad blocks. It has no inode; its number seeds the pointers.
    pub const BAD_BLOCKS: Ino = Ino(0xffff_ffff_ff04);
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// The orphan table: a file of 8-byte slots.
    pub const ORPHANS: Ino = Ino(3);
    /// The lease table: a file of lease slots.
    pub const LEASES: Ino = Ino(4);
    /// First inode number of users' files.
    pub const FIRST_FREE: Ino = Ino(16);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// Block number: the block starts at byte `number << block_size_log2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bno(pub u64);

impl Bno {
    /// Returns the block `n` blocks later.
    #[inline]
    pub const fn after(self, n: u64) -> Bno {
        Bno(self.0 + n)
    }
}

/// Byte offset in the region, as opposed to an offset in a file, a block number or a length.
///
/// The geometry, the journal, the trees, the allocators and the engine use it. Bytes of a
/// mapping are counted in `u64`: by [`pmem`](crate::pmem), by
/// [`RecordBuf`](crate::journal::RecordBuf), which packs places into words, by
/// [`FileExtent`], and by the tools that read a region before it has a geometry.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionOffset(pub u64);

impl RegionOffset {
    /// The first byte, where the superblock begins.
    pub const START: RegionOffset = RegionOffset(0);

    /// Returns the place of the word of 8 bytes `n` words later.
    #[inline]
    pub const fn word(self, n: u64) -> RegionOffset {
        RegionOffset(self.0 + n * 8)
    }

    /// Returns the place `bytes` bytes later, or `None` past the largest offset.
    #[inline]
    pub fn checked_add(self, bytes: u64) -> Option<RegionOffset> {
        self.0.checked_add(bytes).map(RegionOffset)
    }
}

impl Add<u64> for RegionOffset {
    type Output = RegionOffset;
    #[inline]
    fn add(self, bytes: u64) -> RegionOffset {
        RegionOffset(self.0 + bytes)
    }
}

impl Sub for RegionOffset {
    type Output = u64;
    /// Returns the number of bytes between two places.
    #[inline]
    fn sub(self, first: RegionOffset) -> u64 {
        self.0 - first.0
    }
}

/// Number of a block within a file: the block starts at byte
/// `number << block_size_log2` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileBlock(pub u64);

impl FileBlock {
    /// The end of every file.
    pub const END: FileBlock = FileBlock(u64::MAX);

    /// Returns the last of `count` blocks from this one on, at least one. `None` if no file
    /// can have it.
    #[inline]
    pub const fn last_of(self, count: u64) -> Option<FileBlock> {
        match self.0.checked_add(count.saturating_sub(1)) {
            Some(last) => Some(FileBlock(last)),
            None => None,
        }
    }

    /// Returns the block `n` blocks later, or [`END`](Self::END).
    #[inline]
    pub const fn saturating_add(self, n: u64) -> FileBlock {
        FileBlock(self.0.saturating_add(n))
    }
}

impl Add<u64> for FileBlock {
    type Output = FileBlock;
    #[inline]
    fn add(self, blocks: u64) -> FileBlock {
        FileBlock(self.0 + blocks)
    }
}

impl AddAssign<u64> for FileBlock {
    #[inline]
    fn add_assign(&mut self, blocks: u64) {
        self.0 += blocks;
    }
}

impl Sub for FileBlock {
    type Output = u64;
    /// Returns the number of blocks between two.
    #[inline]
    fn sub(self, first: FileBlock) -> u64 {
        self.0 - first.0
    }
}

/// A run of consecutive blocks of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRun {
    /// First block.
    pub start: Bno,
    /// Number of blocks.
    pub len: u64,
}

impl BlockRun {
    /// The empty run.
    pub const EMPTY: BlockRun = BlockRun {
        start: Bno(0),
        len: 0,
    };

    /// Returns the run of one block.
    #[inline]
    pub const fn one(start: Bno) -> BlockRun {
        BlockRun { start, len: 1 }
    }

    /// Returns the block after the last.
    #[inline]
    pub const fn end(self) -> Bno {
        self.start.after(self.len)
    }

    /// Whether the block is in the run.
    #[inline]
    pub const fn contains(self, block: Bno) -> bool {
        block.0.wrapping_sub(self.start.0) < self.len
    }

    /// Iterates over the blocks.
    pub fn blocks(self) -> impl Iterator<Item = Bno> {
        (self.start.0..self.end().0).map(Bno)
    }
}

/// A run of consecutive blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileRun {
    /// First block.
    pub start: FileBlock,
    /// Number of blocks.
    pub len: u64,
}

impl FileRun {
    /// Returns the block after the last.
    #[inline]
    pub fn end(self) -> FileBlock {
        self.start + self.len
    }
}

/// A run of consecutive inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InodeRun {
    /// First number.
    pub start: Ino,
    /// Number of inodes.
    pub len: u64,
}

/// Log sequence number of a journal record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// A time in nanoseconds, with signed seconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since the epoch, negative before it.
    pub sec: i64,
    /// 0..1_000_000_000.
    pub nsec: u32,
}

/// Type of a file, as the format bits of its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
}

impl FileType {
    /// Converts the `S_IFMT` bits of a mode; `None` if they name no type.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileType::Regular,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            _ => return None,
        })
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(self) -> bool {
        self == FileType::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }

    /// Returns the `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::Regular => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::Fifo => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
        }
    }
}

/// The result of `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Generation: with the number, unique for the life of the file system.
    pub generation: u64,
    /// Type.
    pub kind: FileType,
    /// Permission bits with suid, sgid and sticky (07777).
    pub perm: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last read.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// chattr flags (`FS_*_FL` values).
    pub flags: u32,
    /// Change counter, larger after every change.
    pub change: u64,
}

/// Changes of `setattr`; `None` leaves a field unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time, if the caller knows it better (FUSE with a write-back
    /// cache).
    pub ctime: Option<Time>,
    /// chattr flags.
    pub flags: Option<u32>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the engine's clock.
    Now,
    /// The given time.
    At(Time),
}

/// One entry of a directory, as returned by `readdir`.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// Name: 1 to 255 bytes, neither `/` nor NUL.
    pub name: &'a [u8],
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
    /// Where to continue after this entry. 1 and 2 are `.` and `..`.
    pub cookie: u64,
}

/// Flags of `rename`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with EEXIST if the new name exists.
    pub noreplace: bool,
    /// Exchange the two files.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) under the old name.
    pub whiteout: bool,
}

/// The operation of `fallocate` on the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocates the range.
    Allocate {
        /// Do not extend the file.
        keep_size: bool,
    },
    /// Deallocates whole blocks and zeroes the edges. The size stays.
    PunchHole,
    /// Makes the range read as zeros, and keeps it allocated.
    ZeroRange {
        /// Do not extend the file.
        keep_size: bool,
    },
}

/// The target of `lseek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhence {
    /// The next byte that is allocated and written.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}

/// A run of a file, and its place in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Offset in the region in bytes; `None` for a hole and for a lost range.
    pub region_offset: Option<u64>,
    /// Bytes.
    pub len: u64,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
    /// A repair could not recover these bytes: reading them gives EIO.
    pub lost: bool,
}

/// The accesses that a view of a file allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// What the holder of a lease may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseMode {
    /// Load from the blocks of the file.
    Read = 1,
    /// Load, and store to blocks that are written already. Others may do so at the same time.
    Write = 2,
}

impl LeaseMode {
    /// Returns the mode of a number on the medium.
    pub(crate) fn of(mode: u32) -> Option<LeaseMode> {
        [LeaseMode::Read, LeaseMode::Write]
            .into_iter()
            .find(|known| *known as u32 == mode)
    }
}

/// How `setxattr` treats an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Create; EEXIST if it exists.
    Create,
    /// Replace; ENODATA if it does not exist.
    Replace,
}

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub block_size: u32,
    /// Total blocks, including the metadata of the format.
    pub blocks: u64,
    /// Free blocks, including the reserve.
    pub free: u64,
    /// Free blocks available to files.
    pub available: u64,
    /// Total inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Derived from the uuid.
    pub fsid: u64,
}

impl StatFs {
    /// Returns how many of the available blocks can hold data if one file takes them
    /// all, without large leaves; pointers take the others. statvfs(3) is asked for
    /// this number, because it can be allocated.
    ///
    /// ```
    /// # use pramfs_medium::types as pramfs;
    /// use pramfs::StatFs;
    ///
    /// let s = StatFs { block_size: 4096, available: 1 << 20, ..StatFs::default() };
    /// assert!(s.available_to_data() < s.available);
    /// assert!(s.available_to_data() > s.available / 100 * 99);
    /// ```
    pub fn available_to_data(&self) -> u64 {
        let pointers = u64::from(self.block_size / 8).max(2);
        let levels =
            1 + u64::from(64 - self.available.leading_zeros()) / u64::from(pointers.ilog2());
        // A full tree has slightly more than one block of pointers for each
        // `pointers` leaves.
        let tree = self.available / (pointers - 1) + levels;
        self.available.saturating_sub(tree)
    }
}
