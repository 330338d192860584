//! The interface for programs: files by path, like `std::fs`, and file contents as
//! memory.
//!
//! * [`FileSystem`]: a mounted file system; all methods that take a path.
//! * [`OpenOptions`], [`File`], [`Cursor`]: open files.
//! * [`Metadata`], [`FileTimes`], [`ReadDir`], [`DirEntry`]: metadata and directories.
//! * [`MappedFile`]: a range of a file as one range of addresses.
//!
//! Permissions are not checked: a program that has opened the region can change all
//! of it. Kernel front ends check them, through the lower interface ([`crate::inode`]).
//! `docs/library.md` lists the differences from `std::fs`.

mod cursor;
mod file;
mod file_system;
mod grow;
mod mapped;
mod metadata;
mod open_options;
mod pinned;
mod read_dir;
mod remove;
mod resolve;
mod send;
mod staged;
mod unmount_error;

pub use cursor::Cursor;
pub use file::File;
pub use file_system::FileSystem;
pub use mapped::MappedFile;
pub use metadata::{FileTimes, Metadata};
pub use open_options::{OpenIn, OpenOptions};
pub use read_dir::{DirEntry, ReadDir};
pub use staged::StagedView;
pub use unmount_error::UnmountError;

pub use pramfs_medium::pmem::{Advice, Atom, Sent};

pramfs_medium::impl_direct!(File, MappedFile, |file: &File| file
    .metadata()
    .map(|metadata| metadata.len()));
