//! Which ranges of a region are bad: by the kernel's lists, and as a region knows them.
//!
//! The kernel keeps a list for each persistent-memory block device and for each region of
//! NVDIMMs, and shows it in sysfs as lines `START LENGTH`, in sectors of 512 bytes:
//!
//! | source | list | relative to |
//! |---|---|---|
//! | block device | `/sys/dev/block/MAJOR:MINOR/badblocks` | the device; of a partition, the disk |
//! | DAX device | `badblocks` of the `regionN` above it | the physical address in `resource` of that region |
//! | file | that of the block device under its file system | the device: FIEMAP translates |
//!
//! A source without a list, such as a file in a tmpfs, has no bad ranges that the kernel knows.
//! Nothing here touches the memory.
//!
//! The text is not trusted: numbers that overflow or lie outside the source are left out.

use std::fmt::Write as _;
use std::io::Read as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, FileType, fstat, major, minor};

use super::error::PmemError;
use super::fault;
use super::region::Region;
use super::view::RegionView;
use crate::sync::{Mutex, rank};

/// Bytes of a sector, the unit of the kernel's lists.
const SECTOR: u64 = 512;
/// Most bytes read of a list. The kernel shows at most a page.
const LONGEST: u64 = 1 << 20;

/// Ranges that count as failed in a region.
#[derive(Debug, Default)]
pub(super) struct KnownBad {
    /// Sorted, without overlaps.
    ranges: Mutex<Vec<Range<u64>>, rank::Leaf>,
    /// There are some. Every access of a process looks, once any page has faulted.
    any: AtomicBool,
}

impl KnownBad {
    fn add(&self, range: Range<u64>) {
        let mut bad = self.ranges.lock();
        let first = bad.partition_point(|one| one.end < range.start);
        let end = bad.partition_point(|one| one.start <= range.end);
        let joined = match bad.get(first..end) {
            Some([one]) => one.start.min(range.start)..one.end.max(range.end),
            Some([one, .., last]) => one.start.min(range.start)..last.end.max(range.end),
            _ => range,
        };
        bad.splice(first..end.max(first), [joined]);
        self.any.store(true, Ordering::Release);
    }

    /// Forgets a range.
    fn remove(&self, range: &Range<u64>) {
        let mut bad = self.ranges.lock();
        let old = std::mem::take(&mut *bad);
        for one in old {
            bad.push(one.start..one.end.min(range.start));
            bad.push(one.start.max(range.end)..one.end);
        }
        bad.retain(|one| !one.is_empty());
        self.any.store(!bad.is_empty(), Ordering::Release);
    }

    /// Whether a range touches one of them. Without any, takes no lock: signal handlers ask, too.
    #[inline]
    pub(super) fn touches(&self, offset: u64, len: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.looked_up(offset, len)
    }

    #[cold]
    fn looked_up(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        let bad = self.ranges.lock();
        let next = bad.partition_point(|one| one.end <= offset);
        bad.get(next).is_some_and(|one| one.start < end)
    }
}

impl Region {
    /// Returns the ranges that count as failed, beside the pages that have faulted.
    pub(crate) fn bad_ranges(&self) -> Vec<Range<u64>> {
        merged(self.known_bad.ranges.lock().clone())
    }

    /// Whether the file of the region has become shorter than its mapping: pages past its end
    /// fail, and are not bad.
    pub(crate) fn is_cut(&self) -> bool {
        let Some((fd, first)) = self.backend.source_fd() else {
            return false;
        };
        fstat(fd).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && (stat.st_size as u64) < first.saturating_add(self.len())
        })
    }

    /// Writes a page anew that has failed, through the kernel, which clears the error if it can,
    /// and then through the mapping.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] if the page cannot be made readable; [`PmemError::Os`].
    pub(crate) fn rewrite_failed(&self, page: Range<u64>, bytes: &[u8]) -> Result<(), PmemError> {
        let path = self.info().name;
        let refuse = |why: &str| PmemError::Unusable {
            path: path.clone(),
            why: format!("its page at offset {:#x} has failed, and {why}", page.start),
            errno: libc::EIO,
        };
        if let Some((fd, first)) = self.backend.source_fd() {
            let at = first.saturating_add(page.start);
            let kind = fstat(fd).map_or(FileType::Unknown, |s| FileType::from_raw_mode(s.st_mode));
            match kind {
                FileType::RegularFile => {
                    // A new page takes its place. Not every file system can.
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let _ = rustix::fs::fallocate(fd, flags, at, bytes.len() as u64);
                }
                FileType::BlockDevice => {}
                _ => {
                    return Err(refuse(
                        "a DAX device cannot be written but through a mapping: clear the error (ndctl clear-errors), then run this again",
                    ));
                }
            }
            let mut done = 0;
            while done < bytes.len() {
                let n = rustix::io::pwrite(fd, &bytes[done..], at + done as u64).map_err(|e| {
                    os(
                        "cannot write the failed page of",
                        Path::new(&path),
                        e.into(),
                    )
                })?;
                if n == 0 {
                    return Err(refuse("nothing could be written to it"));
                }
                done += n;
            }
        }
        self.known_bad.remove(&page);
        self.backend
            .forget_failed(self.bounded(page.start, bytes.len() as u64)?, bytes.len());
        if self.is_faulted(page.start, page.end - page.start) {
            return Err(refuse(
                "it is written anew: run this again, which maps it again",
            ));
        }
        let window = self.window();
        let pending = window.nt_store(page.start, bytes)?;
        let _ = window.fence(pending);
        Ok(())
    }

    /// Treats a range as failed from now on, before anything loads from it: loads and stores
    /// that touch it are errors, as on a page that has faulted.
    pub(crate) fn mark_bad(&self, range: Range<u64>) {
        self.known_bad.add(range);
        fault::note_fault();
    }

    /// Returns the ranges of this region that the kernel names as bad, in bytes from its start.
    /// It does not touch them.
    ///
    /// # Errors
    /// [`PmemError::Os`] if the kernel's list cannot be read.
    pub(crate) fn kernel_bad(&self) -> Result<KernelBad, PmemError> {
        self.backend.kernel_bad(self.len())
    }
}

impl RegionView<'_> {
    /// Returns the ranges of the region that the kernel names as bad, in bytes from its start.
    ///
    /// # Errors
    /// [`PmemError::Os`] if the kernel's list cannot be read.
    pub fn kernel_bad(self) -> Result<KernelBad, PmemError> {
        self.region().kernel_bad()
    }

    /// Returns the ranges that count as failed, beside the pages that have faulted.
    pub fn bad_ranges(self) -> Vec<Range<u64>> {
        self.region().bad_ranges()
    }

    /// Treats a range as failed from now on: accesses that touch it are errors.
    pub fn mark_bad(self, range: Range<u64>) {
        self.region().mark_bad(range);
    }

    /// Whether the file of the region has become shorter than its mapping.
    pub fn is_cut(self) -> bool {
        self.region().is_cut()
    }
}

/// What the kernel says about the bad ranges of a source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelBad {
    /// Bad ranges, in bytes from the start of the source, in order and disjoint.
    pub ranges: Vec<Range<u64>>,
    /// The list that was read; `None` if the kernel has none for this source.
    pub list: Option<PathBuf>,
    /// What could not be learned, if anything: a sentence.
    pub notice: Option<String>,
}

impl KernelBad {
    /// Number of bad bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|bad| bad.end - bad.start).sum()
    }

    /// Returns the bad ranges of a file or a device.
    ///
    /// # Errors
    /// [`PmemError::Os`] if it cannot be opened, or a list exists and cannot be read.
    pub fn of_path(path: &Path) -> Result<KernelBad, PmemError> {
        let file = std::fs::File::open(path).map_err(|e| os("cannot open", path, e))?;
        KernelBad::of(file.as_fd(), 0, u64::MAX, Path::new("/sys"))
    }

    /// Returns the bad ranges of `first..first + len` of an open source, relative to `first`.
    /// `sysfs` is where sysfs is mounted.
    ///
    /// # Errors
    /// [`PmemError::Os`] if a list exists and cannot be read.
    pub(super) fn of(
        fd: BorrowedFd<'_>,
        first: u64,
        len: u64,
        sysfs: &Path,
    ) -> Result<KernelBad, PmemError> {
        let stat =
            fstat(fd).map_err(|e| os("cannot identify", Path::new("the region"), e.into()))?;
        let source = first..first.saturating_add(len);
        let mut found = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => of_block_device(sysfs, stat.st_rdev)?,
            FileType::CharacterDevice => of_dax_device(sysfs, stat.st_rdev)?,
            FileType::RegularFile => of_file(sysfs, stat.st_dev, fd, &source)?,
            _ => KernelBad::default(),
        };
        let within = found.ranges.iter().filter_map(|bad| {
            let (start, end) = (bad.start.max(source.start), bad.end.min(source.end));
            (start < end).then(|| start - first..end - first)
        });
        found.ranges = merged(within.collect());
        Ok(found)
    }

    fn doubt(&mut self, why: std::fmt::Arguments<'_>) {
        let notice = self.notice.get_or_insert_default();
        if !notice.is_empty() {
            notice.push_str("; ");
        }
        // Writing to a string does not fail.
        let _ = notice.write_fmt(why);
    }
}

fn os(what: &'static str, path: &Path, source: std::io::Error) -> PmemError {
    PmemError::Os {
        what,
        path: path.display().to_string(),
        source,
    }
}

/// Sorts ranges, and joins those that touch.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|bad| bad.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for bad in ranges {
        match out.last_mut() {
            Some(last) if bad.start <= last.end => last.end = last.end.max(bad.end),
            _ => out.push(bad),
        }
    }
    out
}

/// Parses a list into ranges of bytes. Returns how many lines are not of the form.
fn parse(text: &str) -> (Vec<Range<u64>>, usize) {
    let mut wrong = 0;
    let mut ranges = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let range = match (words.next(), words.next(), words.next()) {
            (Some(Ok(start)), Some(Ok(len)), None) => start
                .checked_add(len)
                .and_then(|end| Some(start.checked_mul(SECTOR)?..end.checked_mul(SECTOR)?)),
            _ => None,
        };
        match range {
            Some(range) if !range.is_empty() => ranges.push(range),
            _ => wrong += 1,
        }
    }
    (ranges, wrong)
}

/// Reads a small file of sysfs; `None` if there is none.
fn read_text(path: &Path) -> Result<Option<String>, PmemError> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(os("cannot open", path, e)),
    };
    let mut text = Vec::new();
    file.take(LONGEST)
        .read_to_end(&mut text)
        .map_err(|e| os("cannot read", path, e))?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Reads a number, decimal or hexadecimal with `0x`; `None` if there is none.
fn read_number(path: &Path) -> Option<u64> {
    let text = read_text(path).ok().flatten()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads a list; `None` if there is none.
fn read_list(path: PathBuf) -> Result<Option<KernelBad>, PmemError> {
    let Some(text) = read_text(&path)? else {
        return Ok(None);
    };
    let (ranges, wrong) = parse(&text);
    let mut found = KernelBad {
        ranges: merged(ranges),
        ..KernelBad::default()
    };
    if wrong > 0 {
        found.doubt(format_args!(
            "{wrong} lines of {} are not of the form START LENGTH",
            path.display()
        ));
    }
    found.list = Some(path);
    Ok(Some(found))
}

fn device_dir(sysfs: &Path, kind: &str, device: u64) -> PathBuf {
    let name = format!("{}:{}", major(device), minor(device));
    sysfs.join("dev").join(kind).join(name)
}

/// The bad ranges of a block device.
fn of_block_device(sysfs: &Path, device: u64) -> Result<KernelBad, PmemError> {
    let dir = device_dir(sysfs, "block", device);
    if let Some(found) = read_list(dir.join("badblocks"))? {
        return Ok(found);
    }
    // A partition: its disk has the list.
    let Ok(real) = dir.canonicalize() else {
        return Ok(KernelBad::default());
    };
    let (true, Some(disk)) = (real.join("partition").exists(), real.parent()) else {
        return Ok(KernelBad::default());
    };
    let Some(mut found) = read_list(disk.join("badblocks"))? else {
        return Ok(KernelBad::default());
    };
    let start = read_number(&real.join("start")).and_then(|start| start.checked_mul(SECTOR));
    found.ranges = match start {
        Some(start) => shifted(&found.ranges, start),
        None => {
            found.doubt(format_args!(
                "{} does not say where the partition starts, so the bad blocks of its disk cannot be placed",
                real.display()
            ));
            Vec::new()
        }
    };
    Ok(found)
}

/// Ranges relative to `start`; what lies before it is left out.
fn shifted(ranges: &[Range<u64>], start: u64) -> Vec<Range<u64>> {
    let after = ranges.iter().filter(|bad| bad.end > start);
    after
        .map(|bad| bad.start.saturating_sub(start)..bad.end - start)
        .collect()
}

/// The bad ranges of a DAX character device.
fn of_dax_device(sysfs: &Path, device: u64) -> Result<KernelBad, PmemError> {
    let Ok(real) = device_dir(sysfs, "char", device).canonicalize() else {
        return Ok(KernelBad::default());
    };
    let is_region = |dir: &&Path| {
        let name = dir.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix("region"))
            .is_some_and(|nth| !nth.is_empty() && nth.bytes().all(|b| b.is_ascii_digit()))
    };
    let Some(region) = real.ancestors().find(is_region) else {
        return Ok(KernelBad::default());
    };
    let Some(mut found) = read_list(region.join("badblocks"))? else {
        return Ok(KernelBad::default());
    };
    if found.ranges.is_empty() {
        return Ok(found);
    }
    let start = read_number(&region.join("resource"));
    let own = read_number(&real.join("resource"));
    // The kernel shows 0 to those who may not know.
    let places = start
        .zip(own)
        .filter(|(start, own)| *start != 0 && *own >= *start);
    found.ranges = match places {
        Some((start, own)) => shifted(&found.ranges, own - start),
        None => {
            found.doubt(format_args!(
                "{} has bad blocks, and `resource` does not say where the device lies in it: run as root",
                region.display()
            ));
            Vec::new()
        }
    };
    Ok(found)
}

/// The bad ranges of a file, from the list of the device under its file system.
fn of_file(
    sysfs: &Path,
    device: u64,
    fd: BorrowedFd<'_>,
    source: &Range<u64>,
) -> Result<KernelBad, PmemError> {
    let mut found = of_block_device(sysfs, device)?;
    if found.ranges.is_empty() {
        return Ok(found);
    }
    match file_extents(fd, source) {
        Ok(extents) => found.ranges = translated(&found.ranges, &extents),
        Err(e) => {
            found.ranges = Vec::new();
            found.doubt(format_args!(
                "the device under the file has bad blocks, and its file system does not say which of them are the file's (FIEMAP: {e})"
            ));
        }
    }
    Ok(found)
}

/// A piece of a file and its place on the device, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileExtent {
    logical: u64,
    physical: u64,
    len: u64,
}

/// Translates ranges of a device into ranges of a file.
fn translated(bad: &[Range<u64>], extents: &[FileExtent]) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    for extent in extents {
        let end = extent.physical.saturating_add(extent.len);
        for bad in bad {
            let (from, to) = (bad.start.max(extent.physical), bad.end.min(end));
            if from < to {
                let start = extent.logical.saturating_add(from - extent.physical);
                out.push(start..start.saturating_add(to - from));
            }
        }
    }
    out
}

/// Extents that one call asks for.
const AT_ONCE: usize = 128;
/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`, 32 bytes.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
/// The last extent of the file.
const EXTENT_LAST: u32 = 1;
/// The place on the device is not known, or is not a place: unknown, delayed, encoded.
const EXTENT_PLACELESS: u32 = 0x2 | 0x4 | 0x8;

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct RawMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; AT_ONCE],
}

/// Asks the file system where a range of a file lies.
fn file_extents(fd: BorrowedFd<'_>, range: &Range<u64>) -> std::io::Result<Vec<FileExtent>> {
    let mut out = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let mut map = RawMap {
            start: at,
            length: range.end - at,
            flags: 0,
            mapped_extents: 0,
            extent_count: AT_ONCE as u32,
            reserved: 0,
            extents: [RawExtent::default(); AT_ONCE],
        };
        // SAFETY: the request's structure is `RawMap`, whose `extent_count` is the length of its
        // array: the kernel writes at most that many extents. It outlives the call.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, &mut map) };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let found = &map.extents[..(map.mapped_extents as usize).min(AT_ONCE)];
        let Some(last) = found.last() else {
            break;
        };
        out.extend(
            found
                .iter()
                .filter(|extent| extent.flags & EXTENT_PLACELESS == 0)
                .map(|extent| FileExtent {
                    logical: extent.logical,
                    physical: extent.physical,
                    len: extent.length,
                }),
        );
        let next = last.logical.saturating_add(last.length);
        if last.flags & EXTENT_LAST != 0 || next <= at {
            break;
        }
        at = next;
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
