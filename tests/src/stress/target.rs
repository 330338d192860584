//! What a worker can do to a file system, whichever way it gets there.

use pramfs::{Fallocate, FileType, RenameFlags, XattrMode};

use crate::syscalls::Sys;

/// What is asked about a node.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Identity for [`super::pattern`], the same for all its names.
    pub id: u64,
    /// Type.
    pub kind: FileType,
    /// Bytes.
    pub size: u64,
    /// Links.
    pub nlink: u64,
    /// Permission bits.
    pub perm: u32,
    /// Last change of contents, seconds.
    pub mtime: i64,
}

/// A way to a file system. A node is a reference: what it names lives as long
/// as it does. Errors are errno numbers.
#[expect(missing_docs, reason = "each is the system call of that name")]
pub trait Target: Sync {
    /// A reference to a node.
    type Node: Send;
    /// A read never sees half a write of a unit.
    const WHOLE: bool;
    /// There are views for [`store`](Self::store).
    const VIEWS: bool;

    fn root(&self) -> Sys<Self::Node>;
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> Sys<Self::Node>;
    fn create(&self, dir: &Self::Node, name: &[u8]) -> Sys<Self::Node>;
    fn mkdir(&self, dir: &Self::Node, name: &[u8]) -> Sys;
    fn mknod(&self, dir: &Self::Node, name: &[u8], mode: u32) -> Sys;
    fn symlink(&self, dir: &Self::Node, name: &[u8], target: &[u8]) -> Sys;
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Sys;
    fn unlink(&self, dir: &Self::Node, name: &[u8]) -> Sys;
    fn rmdir(&self, dir: &Self::Node, name: &[u8]) -> Sys;
    fn rename(
        &self,
        from: (&Self::Node, &[u8]),
        to: (&Self::Node, &[u8]),
        flags: RenameFlags,
    ) -> Sys;
    fn about(&self, node: &Self::Node) -> Sys<About>;
    fn list(&self, dir: &Self::Node) -> Sys<Vec<Vec<u8>>>;
    fn readlink(&self, node: &Self::Node) -> Sys<Vec<u8>>;
    fn read(&self, node: &Self::Node, at: u64, into: &mut [u8]) -> Sys<usize>;
    fn write(&self, node: &Self::Node, at: u64, from: &[u8]) -> Sys<usize>;
    fn append(&self, node: &Self::Node, from: &[u8]) -> Sys<usize>;
    fn truncate(&self, node: &Self::Node, size: u64) -> Sys;
    fn fallocate(&self, node: &Self::Node, what: Fallocate, at: u64, len: u64) -> Sys;
    fn chmod(&self, node: &Self::Node, perm: u32) -> Sys;
    fn utimes(&self, node: &Self::Node, mtime: i64) -> Sys;
    fn get_xattr(&self, node: &Self::Node, name: &[u8]) -> Sys<Vec<u8>>;
    fn set_xattr(&self, node: &Self::Node, name: &[u8], value: &[u8], mode: XattrMode) -> Sys;
    fn remove_xattr(&self, node: &Self::Node, name: &[u8]) -> Sys;
    fn list_xattrs(&self, node: &Self::Node) -> Sys<Vec<Vec<u8>>>;
    fn fsync(&self, node: &Self::Node) -> Sys;
    /// Of the whole file system: sync, and free blocks.
    fn sync(&self) -> Sys<u64>;
    /// Stores words of 8 bytes through a view of `at..at + words.len() * 8`,
    /// one after the other, and makes them durable if asked to.
    fn store(&self, node: &Self::Node, at: u64, words: &[u64], persist: bool) -> Sys;
}
