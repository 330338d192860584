//! Cases that the fsx crate lacks: one file through the page cache, O_DIRECT,
//! asynchronous I/O and mappings in turn, at any alignment, with zeroed and punched
//! ranges, copies within the file, and verified holes; compared with the expected
//! contents.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pramfs_tests::random::Random;
use pramfs_tests::suite::{mount_for, number, say, unmount_and_check};
use rustix::fs::{Advice, FallocateFlags, SeekFrom};

use crate::aio::Aio;
use crate::{alone, long};

const SEED: &str = "PRAMFS_EXERCISER_SEED";
/// Maximum length of the file, and of one operation.
const LEN: u64 = 256 << 10;
const MOST: u64 = 64 << 10;

/// The access path of an operation.
#[derive(Debug, Clone, Copy)]
enum Way {
    Cached,
    Direct,
    Aio,
    AioDirect,
    Mapped,
}

/// The file, and its expected contents.
struct Fixture {
    path: PathBuf,
    cached: File,
    direct: File,
    aio: Aio,
    should: Vec<u8>,
    random: Random,
    /// The last operations, for failure messages.
    log: Vec<String>,
}

fn open(path: &Path) -> (File, File) {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(flags).open(path).unwrap()
    };
    (open(0), open(libc::O_DIRECT))
}

impl Fixture {
    fn new(path: PathBuf, seed: u64) -> Fixture {
        let (cached, direct) = open(&path);
        Fixture {
            path,
            cached,
            direct,
            aio: Aio::new().expect("io_setup"),
            should: Vec::new(),
            random: Random::new(seed),
            log: Vec::new(),
        }
    }

    fn way(&mut self) -> Way {
        [
            Way::Cached,
            Way::Direct,
            Way::Aio,
            Way::AioDirect,
            Way::Mapped,
        ][self.random.below(5) as usize]
    }

    /// Of any alignment, or aligned to sectors or pages.
    fn aligned(&mut self, value: u64) -> u64 {
        value & !([1, 1, 512, 4096][self.random.below(4) as usize] - 1)
    }

    /// A range that may extend past EOF, or be empty.
    fn range(&mut self) -> (u64, u64) {
        let at = self.random.below(LEN);
        let at = self.aligned(at);
        let len = self.random.below(MOST.min(LEN - at) + 1);
        (at, self.aligned(len))
    }

    fn read(&mut self) -> std::io::Result<()> {
        let (way, (at, len)) = (self.way(), self.range());
        self.log.push(format!("read {way:?} {at}+{len}"));
        let size = self.should.len() as u64;
        let there = len.min(size.saturating_sub(at)) as usize;
        // Sometimes one byte off a page, so that buffers are unaligned too.
        let shift = if self.random.one_in(4) { 1 } else { 0 };
        let mut buffer = AlignedBuffer::new(len as usize, shift);
        let into = buffer.bytes();
        let got = match way {
            Way::Cached => self.cached.read_at(into, at)?,
            Way::Direct => self.direct.read_at(into, at)?,
            Way::Aio => self.aio.read(&self.cached, into, at)?,
            Way::AioDirect => self.aio.read(&self.direct, into, at)?,
            Way::Mapped => mapped(&self.cached, at, there, |bytes| {
                into[..there].copy_from_slice(bytes)
            })?,
        };
        if got != there {
            return Err(std::io::Error::other(format!(
                "{got} bytes instead of {there}"
            )));
        }
        let should = self
            .should
            .get(at as usize..at as usize + there)
            .unwrap_or(&[]);
        same(&into[..there], should, at)
    }

    fn write(&mut self) -> std::io::Result<()> {
        let (mut way, (at, len)) = (self.way(), self.range());
        let end = (at + len) as usize;
        if len == 0 {
            return Ok(());
        }
        if matches!(way, Way::Mapped) && end > self.should.len() {
            // Nothing can be stored past EOF.
            way = Way::Cached;
        }
        self.log.push(format!("write {way:?} {at}+{len}"));
        let shift = if self.random.one_in(4) { 1 } else { 0 };
        let mut buffer = AlignedBuffer::new(len as usize, shift);
        let from = buffer.bytes();
        self.random.fill(from);
        let done = match way {
            Way::Cached => self.cached.write_at(from, at)?,
            Way::Direct => self.direct.write_at(from, at)?,
            Way::Aio => self.aio.write(&self.cached, from, at)?,
            Way::AioDirect => self.aio.write(&self.direct, from, at)?,
            Way::Mapped => mapped(&self.cached, at, len as usize, |bytes| {
                bytes.copy_from_slice(from)
            })?,
        };
        if done as u64 != len {
            return Err(std::io::Error::other(format!(
                "{done} bytes instead of {len}"
            )));
        }
        if end > self.should.len() {
            self.should.resize(end, 0);
        }
        self.should[at as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn truncate(&mut self) -> std::io::Result<()> {
        let len = self.random.below(LEN);
        let len = self.aligned(len);
        self.log.push(format!("truncate {len}"));
        self.should.resize(len as usize, 0);
        self.cached.set_len(len)
    }

    fn fallocate(&mut self) -> std::io::Result<()> {
        let (at, len) = self.range();
        if len == 0 {
            return Ok(());
        }
        let keep = self.random.one_in(2);
        let (what, mut flags, zeros, grows) = match self.random.below(3) {
            0 => (
                "punch",
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                true,
                false,
            ),
            1 => ("zero", FallocateFlags::ZERO_RANGE, true, !keep),
            _ => ("allocate", FallocateFlags::empty(), false, !keep),
        };
        if keep {
            flags |= FallocateFlags::KEEP_SIZE;
        }
        self.log
            .push(format!("{what} {at}+{len}, keep size: {keep}"));
        rustix::fs::fallocate(&self.cached, flags, at, len)?;
        let end = (at + len) as usize;
        if grows && end > self.should.len() {
            self.should.resize(end, 0);
        }
        if zeros {
            let (at, end) = (
                (at as usize).min(self.should.len()),
                end.min(self.should.len()),
            );
            self.should[at..end].fill(0);
        }
        Ok(())
    }

    fn copy(&mut self) -> std::io::Result<()> {
        let (from, len) = self.range();
        let len = len.min((self.should.len() as u64).saturating_sub(from));
        let to = self.random.below(LEN - len + 1);
        if len == 0 || (from < to + len && to < from + len) {
            // Overlapping ranges are rejected.
            return Ok(());
        }
        self.log.push(format!("copy {from}+{len} to {to}"));
        let (mut at, mut into) = (from, to);
        while at < from + len {
            let left = (from + len - at) as usize;
            let file = &self.cached;
            let done =
                rustix::fs::copy_file_range(file, Some(&mut at), file, Some(&mut into), left)?;
            if done == 0 {
                return Err(std::io::Error::other("nothing was copied"));
            }
        }
        let bytes = self.should[from as usize..(from + len) as usize].to_vec();
        let end = (to + len) as usize;
        if end > self.should.len() {
            self.should.resize(end, 0);
        }
        self.should[to as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    /// Reported holes read as zeros, and the file ends in one.
    fn holes(&mut self) -> std::io::Result<()> {
        self.log.push("holes".to_owned());
        let size = self.should.len() as u64;
        let mut at = 0;
        while at < size {
            let data = match rustix::fs::seek(&self.cached, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => size,
                Err(e) => return Err(e.into()),
            };
            if self.should[at as usize..data as usize]
                .iter()
                .any(|byte| *byte != 0)
            {
                return Err(std::io::Error::other(format!(
                    "there are data in the hole {at}..{data}"
                )));
            }
            if data == size {
                break;
            }
            at = rustix::fs::seek(&self.cached, SeekFrom::Hole(data))?;
            if at <= data || at > size {
                return Err(std::io::Error::other(format!(
                    "data from {data} to {at} of {size}"
                )));
            }
        }
        Ok(())
    }

    fn other(&mut self) -> std::io::Result<()> {
        match self.random.below(4) {
            0 => {
                self.log.push("close, open".to_owned());
                (self.cached, self.direct) = open(&self.path);
            }
            1 => {
                self.log.push("fsync".to_owned());
                self.cached.sync_all()?;
            }
            2 => {
                self.log.push("drop pages".to_owned());
                rustix::fs::fadvise(&self.cached, 0, None, Advice::DontNeed)?;
            }
            _ => self.holes()?,
        }
        Ok(())
    }

    fn step(&mut self) -> std::io::Result<()> {
        match self.random.below(16) {
            0..5 => self.read()?,
            5..10 => self.write()?,
            10 => self.truncate()?,
            11 | 12 => self.fallocate()?,
            13 => self.copy()?,
            _ => self.other()?,
        }
        let (size, should) = (self.cached.metadata()?.len(), self.should.len() as u64);
        if size != should {
            return Err(std::io::Error::other(format!(
                "a size of {size} instead of {should}"
            )));
        }
        Ok(())
    }

    fn whole(&self) -> std::io::Result<()> {
        same(&std::fs::read(&self.path)?, &self.should, 0)
    }
}

fn same(is: &[u8], should: &[u8], at: u64) -> std::io::Result<()> {
    if is.len() != should.len() {
        return Err(std::io::Error::other(format!(
            "{} bytes, not {}",
            is.len(),
            should.len()
        )));
    }
    match is.iter().zip(should).position(|(a, b)| a != b) {
        Some(i) => Err(std::io::Error::other(format!(
            "byte {} is {:#04x} instead of {:#04x}",
            at + i as u64,
            is[i],
            should[i]
        ))),
        None => Ok(()),
    }
}

/// Bytes at a page boundary, or one byte past it.
struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    fn new(len: usize, shift: usize) -> AlignedBuffer {
        let bytes = vec![0; len + 4096 + shift];
        let start = bytes.as_ptr().align_offset(4096) + shift;
        AlignedBuffer { bytes, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Passes bytes of the file to `f`, mapped during the call and written back after it.
fn mapped(
    file: &File,
    at: u64,
    len: usize,
    work: impl FnOnce(&mut [u8]),
) -> std::io::Result<usize> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    if len == 0 {
        return Ok(0);
    }
    let start = at & !4095;
    let skip = (at - start) as usize;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses the address, so no other memory is touched.
    let address = unsafe { mmap(std::ptr::null_mut(), skip + len, prot, flags, file, start)? };
    // SAFETY: skip + len bytes are mapped there. The range lies in the file, which only
    // this test uses, so no access faults and no byte changes.
    work(unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>().add(skip), len) });
    // SAFETY: the mapping from above; no reference into it remains.
    unsafe {
        msync(address, skip + len, MsyncFlags::SYNC)?;
        munmap(address, skip + len)?;
    }
    Ok(len)
}

fn exercise(test: &str, options: &str, seeds: &[u64]) {
    let _alone = alone();
    let Some(mount) = mount_for(test, &[], 64, options) else {
        return;
    };
    let operations = number(
        "PRAMFS_EXERCISER_OPERATIONS",
        if long() { 170_000 } else { 12_000 },
    );
    let random = Random::seed_from_env(SEED);
    say(format_args!("{test}: the sixth seed is {SEED}={random}"));
    let mut beds = Vec::new();
    for seed in seeds.iter().copied().chain([random]) {
        let mut fixture = Fixture::new(mount.at(format!("{seed}")), seed);
        for i in 0..operations {
            if let Err(e) = fixture.step() {
                let last = fixture.log.split_off(fixture.log.len().saturating_sub(20));
                panic!("{test}: seed {seed}, operation {i}: {e}; the last: {last:#?}");
            }
        }
        fixture.whole().unwrap();
        beds.push((seed, fixture.should));
    }
    mount.unmount();
    mount.mount(options);
    for (seed, should) in beds {
        let is = std::fs::read(mount.at(format!("{seed}"))).unwrap();
        same(&is, &should, 0).unwrap_or_else(|e| panic!("after a remount, seed {seed}: {e}"));
    }
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: 6 times {operations} operations, every byte as expected; fsck: {check}"
    ));
}

const SEEDS: [u64; 5] = [1, 22, 333, 4444, 55555];

#[test]
fn exerciser_runs_with_page_cache() {
    exercise("exerciser, cache=auto", "cache=auto", &SEEDS);
}

#[test]
fn exerciser_runs_with_cache_none() {
    exercise("exerciser, cache=none", "cache=none", &SEEDS);
}
