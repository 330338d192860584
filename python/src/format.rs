//! Making a file system in a region.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pramfs::format::FormatOptions;
use pramfs::pmem::{PmemError, Region, RegionOptions};
use pramfs::{FileSystem, MountOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{About as _, raised};
use crate::fs::RawFileSystem;

/// The defaults, with a root directory of the user.
fn defaults() -> FormatOptions {
    // SAFETY: both only return a number.
    let (root_uid, root_gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    FormatOptions {
        root_uid,
        root_gid,
        ..FormatOptions::default()
    }
}

fn region(path: &Path, size: u64, force: bool) -> Result<Region, PmemError> {
    let how = RegionOptions::new();
    match (size, force) {
        (0, _) => how.open(path),
        (size, false) => how.create_new(path, size),
        (size, true) => how.create(path, size),
    }
}

/// Makes an empty file system. See `pramfs.format`.
#[pyfunction]
#[pyo3(signature = (path, size, *, force, label, uuid, block_size, max_inodes, lanes, features))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of a function of Python"
)]
pub(crate) fn format(
    py: Python<'_>,
    path: &[u8],
    size: u64,
    force: bool,
    label: String,
    uuid: Option<[u8; 16]>,
    block_size: u32,
    max_inodes: Option<u64>,
    lanes: Option<u32>,
    features: Vec<(String, bool)>,
) -> PyResult<()> {
    if size == 0 && !force {
        return Err(PyValueError::new_err(
            "a new region needs a size; force=True formats what is there, and destroys its contents",
        ));
    }
    let options = FormatOptions {
        label,
        uuid,
        block_size,
        max_inodes,
        lanes,
        features,
        ..defaults()
    };
    // Values that are not possible are found before the file is made.
    if size > 0 {
        options.superblock(size).about(py, path)?;
    }
    py.detach(|| {
        let region = region(Path::new(OsStr::from_bytes(path)), size, force)?;
        pramfs::format::format(&region, &options)
    })
    .map(drop)
    .about(py, path)
}

/// Makes a file system in anonymous memory, and mounts it. See `pramfs.memory`.
#[pyfunction]
pub(crate) fn memory(py: Python<'_>, size: u64) -> PyResult<RawFileSystem> {
    let fs = py.detach(|| {
        let region = RegionOptions::new().memfd("pramfs-python", size)?;
        pramfs::format::format(&region, &defaults())?;
        FileSystem::mount(region, MountOptions::default())
    });
    Ok(RawFileSystem::new(
        fs.map_err(raised)?,
        "a region in memory".to_owned(),
    ))
}
