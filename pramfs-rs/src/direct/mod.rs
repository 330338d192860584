//! The direct API: files of a mounted file system as this process's own
//! memory.
//!
//! A [`File`] keeps its inode alive; a [`MappedFile`] shows a range of it as
//! one contiguous view *of the medium itself*, whatever its extents, and keeps
//! the blocks from being given to anybody else until it is dropped.

mod file;
mod mapped;
mod path;
mod send;

pub use file::File;
pub use mapped::{Access, MappedFile};
pub use path::OpenOptions;

pub use crate::pmem::Sent;
