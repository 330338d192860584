//! Maps of a guest beside changes by another door: the fuzz target `window`.
//!
//! The input is a list of commands. The first byte of each says what it does. Offsets, places and
//! lengths count pages of 4096 bytes; there are four files:
//!
//! | byte mod 12 | bytes that follow | does |
//! |---|---|---|
//! | 0 | file (1), offset (2), place (2), length (1), flags (1) | the guest maps a range |
//! | 1 | offset (8), length (8), place (8), file (1) | the same, with any numbers of bytes |
//! | 2 | count (1), place (2) and length (1) for each | the guest removes maps |
//! | 3 | map (1), page (1), byte (1) | the guest stores to a page of a map |
//! | 4 | file (1), offset (2), length (1), byte (1) | another door writes |
//! | 5 | file (1), size (2), bits (1) | another door sets the size, shifted to the left by the bits |
//! | 6 | file (1), mode (1), offset (2), length (2) | another door punches a hole, zeroes or allocates |
//! | 7 | file (1) | another door removes the name, or makes a new file under it |
//! | 8 | file (1), what (1) | the guest makes durable one file or all, or sets times |
//! | 9 | maps (1), flags (1) | the VMM refuses maps after so many; it unmaps nothing (bit 0) |
//! | 10 | | the guest ends its session, and begins another |
//! | 11 | operation (1), file (1), length (1), body | the guest sends a request with a right header |
//!
//! What must hold of every input: no panic, no wait without end; each byte of a range that was
//! mapped and not removed is mapped, and the first bytes of each page are those of the file, as far as
//! the file reaches, so that no store gets lost; ranges do not overlap, and a VMM has at most 512; after the end of the guest,
//! nothing is mapped and no lease is left, unless the VMM has kept its maps; the file system has no
//! error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::pmem::RegionOptions;
use pramfs::{Fallocate, MountOptions};
use pramfs_fuse_protocol::flags::MappingFlags;
use pramfs_fuse_protocol::numbers::ROOT_ID;
use pramfs_fuse_protocol::wire::{InHeader, SetupmappingIn};
use pramfs_fuse_protocol::{Message, Opcode};
use zerocopy::IntoBytes;

use super::{Input, init};
use crate::adapter::{Adapter, CacheMode, Notifier};
use crate::door::dax::Window;
use crate::door::{Door, DoorSettings, Outlet, Translations};

const ROOT: &Credentials<'static> = &Credentials::ROOT;
/// The root, as guests call it.
const TOP: Ino = Ino(ROOT_ID);
const PAGE: u64 = 4096;
/// Bytes of the window.
const SIZE: u64 = 16 << 20;
/// Most maps of a VMM.
const MAX_MAPS: usize = 512;
/// Bytes at the begin of each page that are compared.
const COMPARED: usize = 8;
const FILES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// What the VMM has mapped, by place: descriptor, offset in the region, length.
#[derive(Default)]
struct Maps {
    pieces: BTreeMap<u64, (File, u64, u64)>,
    refuses_after: Option<usize>,
    keeps_all: bool,
    /// It has not unmapped something that it was asked to.
    has_kept: bool,
}

#[derive(Default)]
struct Vmm(Mutex<Maps>);

impl Vmm {
    fn lock(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a place of the window lies in the region.
    fn find(maps: &Maps, place: u64) -> Option<(&File, u64)> {
        let (start, (file, from, len)) = maps.pieces.range(..=place).next_back()?;
        (place < start + len).then_some((file, from + (place - start)))
    }
}

impl Window for Vmm {
    fn size(&self) -> u64 {
        SIZE
    }

    fn map(&self, of: BorrowedFd<'_>, from: u64, at: u64, len: u64) -> io::Result<()> {
        let mut maps = self.lock();
        assert!(
            len != 0 && (from | at | len).is_multiple_of(PAGE),
            "not aligned"
        );
        assert!(at + len <= SIZE, "outside of the window");
        let refuses = maps.refuses_after.is_some_and(|n| maps.pieces.len() >= n);
        // As QEMU does: what is mapped is not replaced.
        let overlaps = maps
            .pieces
            .iter()
            .any(|(there, (_, _, bytes))| at < there + bytes && *there < at + len);
        assert!(!overlaps || maps.has_kept, "maps overlap");
        if refuses || overlaps {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let file = File::from(of.try_clone_to_owned()?);
        maps.pieces.insert(at, (file, from, len));
        assert!(maps.pieces.len() <= MAX_MAPS, "too many maps");
        Ok(())
    }

    fn unmap(&self, at: u64, len: u64) -> io::Result<()> {
        let mut maps = self.lock();
        if maps.keeps_all {
            maps.has_kept = true;
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match maps.pieces.remove(&at) {
            Some((_, _, bytes)) => assert_eq!(bytes, len, "a part of a map is removed"),
            None => assert!(maps.has_kept, "what is not mapped is removed"),
        }
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the error of a reply.
#[derive(Default)]
struct Heard(Option<i32>);

impl Outlet for Heard {
    fn put(&mut self, message: &Message<'_>) {
        let before = self.0.replace(message.header().error);
        assert!(before.is_none(), "two answers");
    }
}

/// A range that the guest has mapped.
#[derive(Debug, Clone, Copy)]
struct Range {
    ino: Ino,
    offset: u64,
    len: u64,
}

struct Scene {
    fs: Arc<Fs>,
    door: Door,
    vmm: Arc<Vmm>,
    /// By place in the window.
    ranges: BTreeMap<u64, Range>,
    files: [Ino; FILES.len()],
    /// Ranges that were mapped.
    mapped: usize,
}

impl Scene {
    fn new() -> Scene {
        let region = RegionOptions::new().memfd("window", 64 << 20);
        let region = region.expect("memory");
        format(&region, &FormatOptions::default()).expect("an empty region");
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Arc::new(Fs::open(region, options).expect("a new file system"));
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::None, Notifier::of_guest());
        let settings = DoorSettings {
            maps: true,
            shared: true,
            copies: true,
            ..DoorSettings::default()
        };
        let vmm = Arc::new(Vmm::default());
        let door = Door::new(adapter, settings, Translations::default());
        door.open_window(Arc::clone(&vmm) as Arc<dyn Window>);
        let files = FILES.map(|name| make(&fs, name).expect("there is room"));
        let mut scene = Scene {
            fs,
            door,
            vmm,
            ranges: BTreeMap::new(),
            files,
            mapped: 0,
        };
        scene.begin();
        scene
    }

    /// Begins a session, and looks up the files.
    fn begin(&mut self) {
        let mut heard = Heard::default();
        self.door.serve(&init(), &mut heard);
        assert_eq!(heard.0, Some(0), "INIT");
        for name in FILES {
            self.request(Opcode::Lookup, TOP, &[name, b"\0"].concat());
        }
    }

    /// Has the door serve a request. Returns its error, 0 if there is none.
    fn request(&self, operation: Opcode, node: Ino, body: &[u8]) -> i32 {
        self.raw(operation.number(), node, body).unwrap_or_default()
    }

    fn raw(&self, operation: u32, node: Ino, body: &[u8]) -> Option<i32> {
        let header = InHeader {
            len: (InHeader::SIZE + body.len()) as u32,
            opcode: operation,
            unique: 2,
            nodeid: node.0,
            ..InHeader::default()
        };
        let mut heard = Heard::default();
        let bytes = [header.as_bytes(), body].concat();
        self.door.serve(&bytes, &mut heard);
        heard.0
    }

    fn file(&self, number: u64) -> Ino {
        self.files[number as usize % FILES.len()]
    }

    fn setup(&mut self, ino: Ino, offset: u64, len: u64, at: u64, flags: u64) {
        let arg = SetupmappingIn {
            foffset: offset,
            len,
            flags: MappingFlags::from_bits_retain(flags),
            moffset: at,
            ..SetupmappingIn::default()
        };
        let error = self.request(Opcode::Setupmapping, ino, arg.as_bytes());
        let same = self.ranges.get(&at);
        let same = same.is_some_and(|r| (r.ino, r.offset, r.len) == (ino, offset, len));
        match error {
            0 => {
                assert!(at + len <= SIZE && len != 0, "outside of the window");
                if !same {
                    self.forget_within(at, len);
                    self.ranges.insert(at, Range { ino, offset, len });
                    self.mapped += 1;
                }
            }
            // What lies there is given up for a range, whether that can be mapped or not. A range
            // that no VMM could be asked for takes nothing.
            _ => self.ranges.retain(|at, range| {
                let maps = self.vmm.lock();
                let kept = Vmm::find(&maps, *at).is_some();
                let last = Vmm::find(&maps, at + range.len - 1).is_some();
                assert!(kept == last || maps.has_kept, "a part of a range is left");
                kept
            }),
        }
    }

    fn forget_within(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        self.ranges
            .retain(|from, range| end <= *from || from + range.len <= at);
    }

    fn remove(&mut self, places: &[(u64, u64)]) {
        let mut body = (places.len() as u32).to_le_bytes().to_vec();
        for (at, len) in places {
            body.extend(at.to_le_bytes());
            body.extend(len.to_le_bytes());
        }
        if self.request(Opcode::Removemapping, Ino(0), &body) == 0 {
            for (at, len) in places {
                self.forget_within(*at, *len);
            }
        }
    }

    /// Compares what is mapped with what the file has.
    fn check(&self) {
        let maps = self.vmm.lock();
        if maps.has_kept {
            return;
        }
        for (at, range) in &self.ranges {
            let size = self.fs.getattr(range.ino).expect("it is pinned").size;
            for page in (0..range.len).step_by(PAGE as usize) {
                let found = Vmm::find(&maps, at + page);
                let (region, place) =
                    found.unwrap_or_else(|| panic!("no map at {page}: {range:?}"));
                let offset = range.offset + page;
                if offset >= size {
                    continue;
                }
                let (mut mapped, mut read) = ([0; COMPARED], [0; COMPARED]);
                region.read_exact_at(&mut mapped, place).expect("mapped");
                let n = self.fs.read(range.ino, offset, &mut read);
                let n = n.expect("the file can be read");
                assert_eq!(mapped[..n], read[..n], "at {offset} of {range:?}");
            }
        }
    }

    fn store(&self, which: u64, page: u64, byte: u8) {
        let Some((at, range)) = self.ranges.iter().nth(which as usize % MAX_MAPS) else {
            return;
        };
        let maps = self.vmm.lock();
        let place = at + page * PAGE % range.len;
        if let Some((region, place)) = Vmm::find(&maps, place) {
            region
                .write_all_at(&[byte; COMPARED], place)
                .expect("mapped");
        }
    }

    /// A change by another door, which may be refused.
    fn change(&mut self, input: &mut Input<'_>, command: u64) -> Option<()> {
        let number = input.number(1)?;
        let ino = self.file(number);
        // Refused for want of room, or since the file is too large: nothing has changed then.
        let _refused = match command {
            4 => {
                let (offset, pages) = (input.number(2)? * PAGE, input.number(1)? % 64);
                let bytes = vec![input.number(1)? as u8; (pages * PAGE) as usize + 5];
                self.fs.write(ROOT, ino, offset, &bytes).map(|_| ())
            }
            5 => {
                let size = input.number(2)? << (input.number(1)? % 48);
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                self.fs.setattr(ROOT, ino, &set).map(|_| ())
            }
            6 => {
                let keep_size = true;
                let what = match input.number(1)? % 5 {
                    0 => Fallocate::PunchHole,
                    1 => Fallocate::ZeroRange { keep_size },
                    2 => Fallocate::ZeroRange { keep_size: false },
                    3 => Fallocate::Allocate { keep_size },
                    _ => Fallocate::Allocate { keep_size: false },
                };
                let (offset, len) = (input.number(2)? * PAGE, input.number(2)? * PAGE / 4);
                self.fs.fallocate(ROOT, ino, what, offset, len)
            }
            _ => {
                let name = number as usize % FILES.len();
                match self.fs.unlink(Ino::ROOT, FILES[name]) {
                    Ok(()) => Ok(()),
                    Err(_) => {
                        if let Some(made) = make(&self.fs, FILES[name]) {
                            self.files[name] = made;
                            self.request(Opcode::Lookup, TOP, &[FILES[name], b"\0"].concat());
                        }
                        Ok(())
                    }
                }
            }
        };
        Some(())
    }

    /// Runs a command. `None` at the end of the input.
    fn run(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.number(1)? % 12 {
            0 => {
                let (file, offset) = (input.number(1)?, input.number(2)? % 2048);
                let (at, len) = (input.number(2)? % 4352, input.number(1)?);
                let ino = self.file(file);
                let flags = input.number(1)?;
                self.setup(ino, offset * PAGE, len * PAGE, at * PAGE, flags);
            }
            1 => {
                let (offset, len) = (input.number(8)?, input.number(8)?);
                let (at, file) = (input.number(8)?, input.number(1)?);
                let ino = self.file(file);
                self.setup(ino, offset, len, at, 3);
            }
            2 => {
                let mut places = Vec::new();
                for _ in 0..input.number(1)? % 8 {
                    places.push((input.number(2)? * PAGE, input.number(1)? * PAGE));
                }
                self.remove(&places);
            }
            3 => self.store(input.number(1)?, input.number(1)?, input.number(1)? as u8),
            command @ 4..=7 => self.change(input, command)?,
            8 => {
                let (file, what) = (input.number(1)?, input.number(1)?);
                let ino = self.file(file);
                match what % 3 {
                    0 => self.request(Opcode::Fsync, ino, &[0; 16]),
                    1 => self.request(Opcode::Syncfs, TOP, &[0; 8]),
                    _ => self.request(Opcode::Getattr, ino, &[0; 16]),
                };
            }
            9 => {
                let (after, flags) = (input.number(1)?, input.number(1)?);
                let mut maps = self.vmm.lock();
                maps.refuses_after = (after < 64).then_some(after as usize);
                maps.keeps_all = flags & 1 != 0;
            }
            10 => {
                self.request(Opcode::Destroy, Ino(0), &[]);
                self.ranges.clear();
                self.check_ended();
                self.begin();
            }
            _ => {
                let (operation, file) = (input.number(1)?, input.number(1)?);
                let len = input.number(1)?;
                let body = input.bytes(len as usize)?;
                // The others are kept count of above.
                let counted = [Opcode::Destroy, Opcode::Init, Opcode::Setupmapping];
                let counted = counted.map(Opcode::number);
                if !counted.contains(&(operation as u32))
                    && operation as u32 != Opcode::Removemapping.number()
                {
                    self.raw(operation as u32, self.file(file), body);
                }
            }
        }
        Some(())
    }

    /// After the end of a session.
    fn check_ended(&self) {
        let maps = self.vmm.lock();
        assert_eq!(self.door.holds(), (0, 0));
        if !maps.has_kept {
            assert!(maps.pieces.is_empty(), "maps are left");
            drop(maps);
            // A child that another test has just forked holds all descriptors until its exec.
            let begun = Instant::now();
            loop {
                let ended = self.fs.end_released_leases();
                ended.expect("the medium is memory");
                match self.fs.leases().len() {
                    0 => break,
                    _ if begun.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
                    left => panic!("{left} leases are left"),
                }
            }
        }
    }
}

/// Makes a file, unless the region is full.
fn make(fs: &Fs, name: &[u8]) -> Option<Ino> {
    let ino = fs.create(ROOT, Ino::ROOT, name, 0o644).ok()?.ino;
    let bytes = [name[0]; 3 * PAGE as usize];
    let _full = fs.write(ROOT, ino, 0, &bytes);
    Some(ino)
}

/// Runs a case. Returns how many ranges were mapped.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn exercise(input: &[u8]) -> usize {
    let mut scene = Scene::new();
    let mut input = Input(input);
    while scene.run(&mut input).is_some() {
        scene.check();
    }
    scene.check();
    scene.door.end();
    scene.check_ended();
    scene.fs.sync().expect("the file system has no error");
    scene.mapped
}

/// Cases that a fuzzer can begin with.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let map = |file: u8, offset: u16, at: u16, len: u8, flags: u8| {
        let [[o, p], [a, b]] = [offset, at].map(u16::to_le_bytes);
        vec![0, file, o, p, a, b, len, flags]
    };
    let store = |which: u8, page: u8| vec![3, which, page, 0xee];
    let write = |file: u8, offset: u16, pages: u8| {
        let [o, p] = offset.to_le_bytes();
        vec![4, file, o, p, pages, 0x77]
    };
    let size = |file: u8, to: u16, bits: u8| {
        let [a, b] = to.to_le_bytes();
        vec![5, file, a, b, bits]
    };
    let space = |file: u8, mode: u8, offset: u16, len: u16| {
        let [[o, p], [a, b]] = [offset, len].map(u16::to_le_bytes);
        vec![6, file, mode, o, p, a, b]
    };
    let remove = |at: u16, len: u8| {
        let [a, b] = at.to_le_bytes();
        vec![2, 1, a, b, len]
    };
    let changes: Vec<u8> = [
        map(0, 0, 0, 64, 3),
        store(0, 1),
        write(0, 2, 9),
        size(0, 1, 0),
        store(0, 5),
        size(0, 60, 12),
        space(0, 0, 1, 8),
        store(0, 2),
        space(0, 1, 0, 8),
        space(0, 4, 8, 200),
        vec![8, 0, 0, 8, 0, 1],
        remove(0, 64),
    ]
    .concat();
    let huge = [
        map(0, 0, 0, 255, 3),
        size(0, 1, 47),
        vec![8, 0, 0],
        map(0, 512, 512, 100, 1),
        vec![10],
        map(1, 0, 100, 3, 3),
    ]
    .concat();
    let removed = [
        map(1, 0, 4, 4, 3),
        vec![7, 1],
        store(0, 0),
        size(1, 0, 0),
        write(2, 0, 63),
        vec![7, 1],
        map(1, 0, 8, 4, 3),
        map(2, 0, 6, 4, 3),
        vec![8, 1, 0],
    ]
    .concat();
    let refused = [
        vec![9, 1, 0],
        map(0, 0, 0, 2, 3),
        map(1, 0, 16, 2, 3),
        vec![9, 255, 1],
        remove(0, 255),
        vec![9, 255, 0],
        map(2, 0, 0, 4, 3),
    ]
    .concat();
    let mut any = vec![1];
    for number in [0u64, 4096, u64::MAX - 4095] {
        any.extend(number.to_le_bytes());
    }
    any.push(0);
    vec![
        ("changes", changes),
        ("huge", huge),
        ("removed", removed),
        ("refused", refused),
        ("any", any),
    ]
}
