//! Tells which file system a file or device holds, by its superblock alone.
//!
//! Invariant: nothing is locked, created or written, and a device that is no memory is not opened:
//! opening a terminal or a watchdog has effects.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use zerocopy::FromBytes;

use super::SuperStatic;
use super::probe::{SuperblockInfo, validated};
use super::superblock::{COPY_OFFSET, DYNAMIC_OFFSET, PAGE, SuperDynamic};
use crate::error::{Error, Result};
use crate::pmem::{PmemError, RegionOptions, is_physical};

/// Reads the superblock of a file or device, or its copy. Returns `None` if there is no valid one:
/// the place holds something else, or a file system that is damaged or of a version that this
/// program does not know.
///
/// It takes no lock, so that it works on a region in use. Of a file or a block device it reads two
/// pages; a device-DAX device is mapped for a moment.
///
/// # Errors
/// [`Error::Pmem`] if the place cannot be opened or read, or can be no region.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::media::identify;
/// let file = tempfile::NamedTempFile::new().unwrap();
/// file.as_file().set_len(1 << 20).unwrap();
/// assert!(identify(file.path()).unwrap().is_none());
/// ```
pub fn identify(path: &Path) -> Result<Option<SuperblockInfo>> {
    if is_physical(path) {
        return of_memory(path);
    }
    let cannot = |what| move |error: rustix::io::Errno| os(what, path, error.into());
    let kind = rustix::fs::stat(path).map_err(cannot("cannot look at"))?;
    let kind = FileType::from_raw_mode(kind.st_mode);
    match kind {
        FileType::RegularFile | FileType::BlockDevice => {}
        // Opening it as a region refuses everything but device-DAX, unopened.
        _ => return of_memory(path),
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(cannot("cannot open"))?;
    of_file(File::from(file)).map_err(|error| os("cannot read", path, error))
}

fn os(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Pmem(PmemError::Os {
        what,
        path: path.display().to_string(),
        source,
    })
}

fn of_memory(path: &Path) -> Result<Option<SuperblockInfo>> {
    let region = RegionOptions::new()
        .read_only(true)
        .lock(false)
        .open(path)?;
    Ok(super::probe_superblock(&region).ok())
}

fn of_file(mut file: File) -> std::io::Result<Option<SuperblockInfo>> {
    // Also the length of a block device.
    let len = file.seek(SeekFrom::End(0))?;
    if len < COPY_OFFSET + PAGE {
        return Ok(None);
    }
    let mut failed = None;
    let mut at = |offset: u64| {
        let mut page = [0; PAGE as usize];
        match file.read_exact_at(&mut page, offset) {
            Ok(()) => decoded(&page, len),
            Err(error) => {
                failed.get_or_insert(error);
                None
            }
        }
    };
    if let Some(first) = at(0) {
        return Ok(Some(first));
    }
    let copy = at(COPY_OFFSET).filter(|info| info.fixed.copy_offset == COPY_OFFSET);
    match (copy, failed) {
        (Some(copy), _) => Ok(Some(SuperblockInfo {
            from_copy: true,
            ..copy
        })),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

fn decoded(page: &[u8], region_len: u64) -> Option<SuperblockInfo> {
    let (fixed, _) = SuperStatic::read_from_prefix(page).ok()?;
    let dynamic = page.get(DYNAMIC_OFFSET as usize..)?;
    let (dynamic, _) = SuperDynamic::read_from_prefix(dynamic).ok()?;
    validated(fixed, dynamic, region_len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FormatOptions, format};
    use std::io::Write;

    fn formatted() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        let region = RegionOptions::new().open(file.path()).unwrap();
        let options = FormatOptions {
            label: "data".into(),
            ..FormatOptions::default()
        };
        format(&region, &options).unwrap();
        file
    }

    #[test]
    fn identify_of_region_in_use_reads_label() {
        let file = formatted();
        let open = || RegionOptions::new().open(file.path());
        let held = crate::pmem::tests::when_free(open);
        let info = identify(file.path()).unwrap().unwrap();
        assert_eq!(info.label(), "data");
        assert!(!info.from_copy);
        drop(held);
    }

    #[test]
    fn identify_with_damaged_first_page_reads_copy() {
        let file = formatted();
        file.as_file().write_all_at(&[0xff; 600], 0).unwrap();
        let info = identify(file.path()).unwrap().unwrap();
        assert!(info.from_copy);
        assert_eq!(info.label(), "data");
        file.as_file()
            .write_all_at(&[0xff; 600], COPY_OFFSET)
            .unwrap();
        assert!(identify(file.path()).unwrap().is_none());
    }

    #[test]
    fn identify_of_other_contents_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(identify(file.path()).unwrap().is_none());
        file.as_file().write_all(&[7; 100_000]).unwrap();
        assert!(identify(file.path()).unwrap().is_none());
        // The magic alone is not enough.
        let cut = formatted();
        cut.as_file().set_len(COPY_OFFSET + PAGE).unwrap();
        assert!(identify(cut.path()).unwrap().is_none());
    }

    #[test]
    fn identify_of_what_is_no_region_fails() {
        for path in ["/dev/null", "/dev", "/nowhere/at/all"] {
            let error = identify(Path::new(path)).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
