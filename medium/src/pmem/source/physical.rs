//! A range of physical memory as a region: `physaddr:ADDRESS+SIZE`, through `/dev/mem`.
//!
//! For memory that neither the firmware nor the kernel uses, and that keeps its contents over a
//! reset: the administrator reserves it by `memmap=SIZE$ADDRESS` on the kernel's command line.
//!
//! Invariants:
//! * Nothing of a range is mapped unless `/proc/iomem` names all of it as reserved or
//!   persistent memory, and nothing else uses a part of it. What it calls "Reserved" may also
//!   be registers of a device, which a load or a store changes: the firmware's own map must
//!   call that part RAM, or the administrator (`+ram`). The kernel may have stricter rules
//!   (`CONFIG_STRICT_DEVMEM`); then it refuses the mapping.
//! * Two ranges that share a byte are not open at the same time, unless both for reading. All
//!   ranges have one file, so `flock` cannot tell them apart. Each has a lock of its own bytes
//!   of that file, held by the open file description (`F_OFD_SETLK`): it ends with the last
//!   descriptor or mapping, as a `flock` does. A second node of the same device has other
//!   locks.
//!
//! The mapping is write-back cached if `/dev/mem` is opened without `O_SYNC` and the firmware
//! declares the range as memory (MTRR), as it does for RAM.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::REGION_UNIT;
use crate::pmem::error::PmemError;
use crate::pmem::{lease_lock, mount_table};
use crate::size;

/// The device that contains all physical memory.
pub(in crate::pmem) const MEMORY: &str = "/dev/mem";
const IOMEM: &str = "/proc/iomem";
/// What the firmware told the kernel, before any parameter of its command line.
const FIRMWARE_MAP: &str = "/sys/firmware/memmap";
const PREFIX: &str = "physaddr:";
/// End of a name: the administrator states that the range is RAM.
const IS_RAM: &str = "+ram";
/// Longest wait for the server of an unmounted range to end.
const RELEASE: Duration = Duration::from_secs(5);

/// A page-aligned range of physical addresses that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pmem) struct PhysicalRange {
    pub start: u64,
    pub len: u64,
    /// The administrator states that it is RAM.
    pub is_ram: bool,
}

/// Whether a path names a range of physical memory and no file: `physaddr:0x40000000+512M`.
pub fn is_physical(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(PREFIX))
}

impl PhysicalRange {
    /// Parses the name of a range. `None` for all other paths.
    ///
    /// # Errors
    /// The name begins like one and is malformed, or the range cannot be a region.
    pub(in crate::pmem) fn of(path: &Path) -> Result<Option<PhysicalRange>, PmemError> {
        let Some(text) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else {
            return Ok(None);
        };
        let range = parse(text).map_err(|why| unusable(path, libc::EINVAL, why))?;
        Ok(Some(range))
    }

    fn end(self) -> u64 {
        self.start + self.len
    }

    /// Opens the device for this range.
    ///
    /// # Errors
    /// The range is not set aside, or the system does not permit access.
    pub(super) fn open(self, path: &Path, read_only: bool) -> Result<OwnedFd, PmemError> {
        self.check(path)?;
        let access = match read_only {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        // Without O_SYNC, which would map memory uncached.
        rustix::fs::open(MEMORY, access | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
            let why = match e {
                Errno::NOENT | Errno::NXIO => "this kernel has no /dev/mem (CONFIG_DEVMEM); use memmap=SIZE!ADDRESS and /dev/pmem0 instead",
                Errno::ACCESS => "permission denied for /dev/mem; run as root",
                Errno::PERM => "the kernel permits no access to /dev/mem: it needs CAP_SYS_RAWIO, and a kernel that is locked down (secure boot) refuses it; use memmap=SIZE!ADDRESS and /dev/pmem0 instead",
                e => return PmemError::Os { what: "cannot open /dev/mem for", path: path.display().to_string(), source: e.into() },
            };
            unusable(path, e.raw_os_error(), why.into())
        })
    }

    /// Refuses a range that something else uses, by what the kernel says.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(in crate::pmem) fn check(self, path: &Path) -> Result<(), PmemError> {
        let map = fs::read_to_string(IOMEM).map_err(|source| PmemError::Os {
            what: "cannot read /proc/iomem for",
            path: path.display().to_string(),
            source,
        })?;
        self.judge(&map, &ram_of_firmware())
            .map_err(|(errno, why)| unusable(path, errno, why))
    }

    /// `ram` is what the firmware calls RAM.
    fn judge(self, map: &str, ram: &[(u64, u64)]) -> Result<(), (i32, String)> {
        let entries: Vec<Entry<'_>> = map.lines().filter_map(Entry::parse).collect();
        // An unprivileged reader sees zeros in place of addresses.
        if entries.iter().all(|entry| entry.last == 0) {
            return Err((
                libc::EPERM,
                "/proc/iomem shows this user no addresses; run as root".into(),
            ));
        }
        let overlaps = |entry: &&Entry<'_>| entry.first < self.end() && self.start <= entry.last;
        let all: Vec<&Entry<'_>> = entries.iter().filter(overlaps).collect();
        if let Some(user) = all.iter().find(|entry| !is_set_aside(entry.name)) {
            let Entry { first, last, name } = user;
            let remedy = match *name {
                "System RAM" => format!(
                    "; the kernel uses that. Reserve the range by memmap={}${:#x} on the kernel's command line",
                    size::short(self.len),
                    self.start
                ),
                name if name.starts_with("namespace") => {
                    "; use its device, /dev/pmemN or /dev/daxX.Y".into()
                }
                _ => String::new(),
            };
            return Err((
                libc::EBUSY,
                format!("/proc/iomem names {first:#x}-{last:#x} of it \"{name}\"{remedy}"),
            ));
        }
        let named = all.iter().map(|entry| (entry.first, entry.last));
        if !self.is_covered(named.collect()) {
            return Err((
                libc::ENXIO,
                "/proc/iomem names no memory for a part of it; look there for the reserved ranges of this machine".into(),
            ));
        }
        let memory = all.iter().filter(|entry| entry.name != RESERVED);
        let memory = memory.map(|entry| (entry.first, entry.last));
        match self.is_ram || self.is_covered(memory.chain(ram.iter().copied()).collect()) {
            true => Ok(()),
            false => Err((
                libc::EBUSY,
                format!(
                    "the firmware does not call all of it \"System RAM\" ({FIRMWARE_MAP}), so it may be registers of a device; if you know that it is RAM, append {IS_RAM} to its name"
                ),
            )),
        }
    }

    /// Whether these pairs of first and last address have all of it.
    fn is_covered(self, mut all: Vec<(u64, u64)>) -> bool {
        all.sort_unstable();
        let mut at = self.start;
        for (first, last) in all {
            if first <= at {
                at = at.max(last.saturating_add(1));
            }
        }
        at >= self.end()
    }

    /// Takes the lock of these bytes, or says who could have it.
    pub(super) fn lock(
        self,
        fd: BorrowedFd<'_>,
        path: &Path,
        exclusive: bool,
    ) -> Result<(), PmemError> {
        lease_lock::lock_range(fd, self.start, self.len, exclusive).map_err(|source| {
            let errno = source.raw_os_error();
            match errno {
                Some(libc::EAGAIN | libc::EACCES) => unusable(
                    path,
                    libc::EBUSY,
                    "the range, or a part of it, is in use by another process; unmount it or end that process first".into(),
                ),
                _ => PmemError::Os { what: "cannot lock", path: path.display().to_string(), source },
            }
        })
    }
}

/// Refuses a descriptor that is not of the device.
pub(super) fn check_device(fd: BorrowedFd<'_>, path: &Path) -> Result<(), PmemError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| PmemError::Os {
        what: "cannot stat",
        path: path.display().to_string(),
        source: e.into(),
    })?;
    let node = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    match FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && node == (1, 1) {
        true => Ok(()),
        false => Err(unusable(
            path,
            libc::ENODEV,
            "is not open through the device of physical memory, /dev/mem".into(),
        )),
    }
}

/// Retries while the server of a range that is no longer mounted gives it up: `umount` returns
/// earlier.
pub(in crate::pmem) fn open_when_released<T>(
    path: &Path,
    mut open: impl FnMut() -> Result<T, PmemError>,
) -> Result<T, PmemError> {
    let start = Instant::now();
    loop {
        match open() {
            Err(e) if e.errno() == libc::EBUSY && start.elapsed() < RELEASE => {
                let mounts = mount_table::read().unwrap_or_default();
                let is_mounted = mounts.iter().any(|mount| mount.source == path.as_os_str());
                if is_mounted || PhysicalRange::of(path)?.is_some_and(|r| r.check(path).is_err()) {
                    return Err(e);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// What the firmware calls RAM. Nothing, if this kernel does not tell (`CONFIG_FIRMWARE_MEMMAP`).
fn ram_of_firmware() -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(FIRMWARE_MAP) else {
        return Vec::new();
    };
    let entry = |dir: &Path| {
        let text = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let number = |name| u64::from_str_radix(text(name)?.trim().strip_prefix("0x")?, 16).ok();
        let is_ram = text("type")?.trim() == "System RAM";
        is_ram.then_some((number("start")?, number("end")?))
    };
    entries.filter_map(|dir| entry(&dir.ok()?.path())).collect()
}

/// Name of what the firmware or the administrator has reserved, whatever is there.
const RESERVED: &str = "Reserved";

/// Whether the kernel leaves memory of this name to others. Reserved memory may hold tables of
/// the firmware: the administrator chooses the addresses.
fn is_set_aside(name: &str) -> bool {
    [
        RESERVED,
        "Soft Reserved",
        "Persistent Memory",
        "Persistent Memory (legacy)",
    ]
    .contains(&name)
}

/// A line of `/proc/iomem`.
#[derive(Debug)]
struct Entry<'a> {
    first: u64,
    last: u64,
    name: &'a str,
}

impl Entry<'_> {
    /// Parses `  40000000-5fffffff : Reserved`.
    fn parse(line: &str) -> Option<Entry<'_>> {
        let (range, name) = line.trim_start().split_once(" : ")?;
        let (first, last) = range.split_once('-')?;
        Some(Entry {
            first: u64::from_str_radix(first, 16).ok()?,
            last: u64::from_str_radix(last, 16).ok()?,
            name,
        })
    }
}

/// Parses `0x40000000+512M` or `1G+512M`.
fn parse(text: &str) -> Result<PhysicalRange, String> {
    let (start, len) = text.split_once('+').ok_or_else(|| {
        "is not of the form physaddr:ADDRESS+SIZE, as in physaddr:0x40000000+512M".to_owned()
    })?;
    let start = match start.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)
            .map_err(|_| format!("\"{start}\" is not a hexadecimal address"))?,
        None => size::parse(start)?,
    };
    let (len, is_ram) = match len.strip_suffix(IS_RAM) {
        Some(len) => (len, true),
        None => (len, false),
    };
    let len = size::parse(len)?;
    // Locks have signed offsets, and those of leases are far above.
    if len == 0 || start.checked_add(len).is_none_or(|end| end > 1 << 61) {
        return Err("is empty, or ends past the addresses that a processor has".into());
    }
    if !start.is_multiple_of(REGION_UNIT) || !len.is_multiple_of(REGION_UNIT) {
        return Err(format!(
            "its address and its size must be multiples of {REGION_UNIT}"
        ));
    }
    Ok(PhysicalRange { start, len, is_ram })
}

fn unusable(path: &Path, errno: i32, why: String) -> PmemError {
    PmemError::Unusable {
        path: path.display().to_string(),
        why,
        errno,
    }
}

/// Explains why the kernel did not map a range.
pub(in crate::pmem) fn map_refusal(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::PERM => Some(
            "the kernel does not permit this range to be mapped through /dev/mem (CONFIG_STRICT_DEVMEM): a driver has it, or it is RAM of the kernel; reserve it by memmap=SIZE$ADDRESS",
        ),
        Errno::INVAL | Errno::AGAIN => Some(
            "the kernel does not map this range: the processor has no such addresses, or another mapping of it is cached differently",
        ),
        _ => None,
    }
}

/// Whether an error is a refusal of the kernel to let anybody in.
#[cfg(test)]
fn is_forbidden(error: &PmemError) -> bool {
    [libc::EPERM, libc::EACCES, libc::ENOENT, libc::ENXIO].contains(&error.errno())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::pmem::RegionOptions;

    const MAP: &str = "\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
00100000-3fffffff : System RAM
  01000000-01ffffff : Kernel code
40000000-4fffffff : Reserved
50000000-5fffffff : Reserved
60000000-7ffdffff : System RAM
80000000-8fffffff : Persistent Memory (legacy)
  80000000-8fffffff : namespace0.0
b0000000-bfffffff : Reserved
  b0000000-b0ffffff : PCI MMCONFIG 0000
";

    /// The same machine, without the reservations of the command line.
    const FIRMWARE: &[(u64, u64)] = &[(0x1000, 0x9ffff), (0x10_0000, 0x7ffd_ffff)];

    fn range(text: &str) -> PhysicalRange {
        parse(text).unwrap()
    }

    #[test]
    fn name_of_range_is_parsed() {
        let half = PhysicalRange {
            start: 1 << 30,
            len: 512 << 20,
            is_ram: false,
        };
        let known = PhysicalRange {
            is_ram: true,
            ..half
        };
        assert_eq!(range("0x40000000+512M+ram"), known);
        assert_eq!(range("0x40000000+512M"), half);
        assert_eq!(range("1G+536870912"), half);
        for bad in [
            "",
            "1G",
            "1G-2G",
            "1G+",
            "+1M",
            "0xyz+1M",
            "1G+0",
            "1G+1M+rom",
            "1G+ram",
            "1+1M",
            "1G+5000",
            "0xffffffffffff0000+1M",
            "16777215P+1M",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let other = Path::new("/dev/shm/physaddr:1G+1M");
        assert_eq!(PhysicalRange::of(other).unwrap(), None);
        assert!(!is_physical(other) && is_physical(Path::new("physaddr:")));
    }

    #[test]
    fn range_that_kernel_uses_is_refused_by_name() {
        for (text, errno, says) in [
            ("0x40000000+256M", 0, ""),
            // Adjacent entries, across the border.
            ("0x48000000+256M", 0, ""),
            ("0x3ff00000+2M", libc::EBUSY, "memmap=2M$0x3ff00000"),
            ("0x5ff00000+2M", libc::EBUSY, "System RAM"),
            ("16M+4K", libc::EBUSY, "System RAM"),
            ("2G+64M", libc::EBUSY, "/dev/pmemN"),
            ("0xb0000000+4K", libc::EBUSY, "PCI MMCONFIG"),
            // No driver has claimed it, and the firmware does not call it RAM.
            ("0xb1000000+4K", libc::EBUSY, "registers of a device"),
            ("0xb1000000+4K+ram", 0, ""),
            ("0xbffff000+8K", libc::ENXIO, "no memory"),
            ("1T+1M", libc::ENXIO, "no memory"),
        ] {
            match range(text).judge(MAP, FIRMWARE) {
                Ok(()) => assert_eq!(errno, 0, "{text}"),
                Err((got, why)) => {
                    assert_eq!(got, errno, "{text}: {why}");
                    assert!(why.contains(says), "{text}: {why}");
                }
            }
        }
    }

    #[test]
    fn map_without_addresses_is_refused() {
        let hidden = "00000000-00000000 : Reserved\n00000000-00000000 : System RAM\n";
        let (errno, why) = range("1G+1M").judge(hidden, FIRMWARE).unwrap_err();
        assert_eq!(errno, libc::EPERM);
        assert!(why.contains("root"), "{why}");
        assert!(range("1G+1M").judge("", FIRMWARE).is_err());
    }

    /// The lock, on a file in the place of the device.
    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = Path::new("physaddr:test");
        let open = || file.reopen().unwrap();
        let (first, second) = (open(), open());
        range("1G+64M").lock(first.as_fd(), path, true).unwrap();
        let refused = range("0x43fff000+8K").lock(second.as_fd(), path, false);
        assert_eq!(refused.unwrap_err().errno(), libc::EBUSY);
        range("0x44000000+8K")
            .lock(second.as_fd(), path, true)
            .unwrap();
        // Shared by readers.
        range("1G+64M").lock(first.as_fd(), path, false).unwrap();
        range("1G+64M").lock(second.as_fd(), path, false).unwrap();
        assert!(range("1G+64M").lock(second.as_fd(), path, true).is_err());
        drop(first);
        // A child that another test has just forked has the descriptor until its exec.
        let is_free = (0..1000).any(|_| {
            let locked = range("1G+64M").lock(second.as_fd(), path, true).is_ok();
            if !locked {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            locked
        });
        assert!(is_free);
    }

    /// Whatever this machine is, the first megabytes are not free for a region.
    #[test]
    fn open_of_memory_that_kernel_uses_is_refused() {
        let opened = RegionOptions::new().open("physaddr:16M+1M");
        let error = opened.expect_err("the kernel's own memory");
        if is_forbidden(&error) {
            eprintln!("SKIPPED: what /proc/iomem says of memory in use, because: {error}");
        } else {
            assert_eq!(error.errno(), libc::EBUSY, "{error}");
        }
        let error = RegionOptions::new().open("physaddr:16M").unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("physaddr:ADDRESS+SIZE"));
    }

    #[test]
    fn descriptor_of_another_object_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let refused = RegionOptions::new().from_fd(file.into(), "physaddr:1G+1M");
        assert_eq!(refused.unwrap_err().errno(), libc::ENODEV);
    }
}
