//! The images that cases of the fuzz target `image` are changes of.
//!
//! They are part of the repository, in runs of bytes that are not zero, because
//! a case must mean tomorrow what it means today, whatever the engine will by
//! then put where. `cargo run -p pramfs-tests --example fuzz_corpus` makes those
//! that are missing, by [`Base::make`]. One that is replaced turns the cases
//! that change it into other cases: rather add one.

use std::sync::OnceLock;

use pramfs::{
    Fallocate, Result, XattrMode,
    inode::{Credentials, Fs, Ino, LeaseMode, SetAttr},
};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::SimBackend;

use crate::recorded::options;
use crate::region::{SMALLEST, formatted, mount, region_of, repeatable};
use crate::windows::{Window, plant};

const CX: Credentials<'_> = Credentials::new(0, 0);

/// An image.
#[derive(Debug)]
pub struct Base {
    /// Its name, and that of its file.
    pub name: &'static str,
    image: OnceLock<(Vec<u8>, Vec<u32>)>,
    maker: fn() -> Result<Vec<u8>>,
}

const fn base(name: &'static str, maker: fn() -> Result<Vec<u8>>) -> Base {
    Base {
        name,
        maker,
        image: OnceLock::new(),
    }
}

/// All of them. A case names its base by its place here: add at the end.
pub static ALL: [Base; 8] = [
    base("clean-4096", || mixed(4096, End::Clean)),
    base("killed-512", || mixed(512, End::Killed)),
    base("power-lost-1024", || mixed(1024, End::PowerLost)),
    base("full-directory-512", full_directory),
    base("orphans-2048", orphans),
    base("huge-leaf-4096", huge_leaf),
    base("leases-1024", leases),
    base("windows-1024", windows),
];

impl Base {
    /// The bytes of the image.
    pub fn image(&self) -> &[u8] {
        &self.parts().0
    }

    /// The words of it that are not zero, by number.
    pub fn words(&self) -> &[u32] {
        &self.parts().1
    }

    fn parts(&self) -> &(Vec<u8>, Vec<u32>) {
        self.image.get_or_init(|| {
            let runs = std::fs::read(self.path()).unwrap_or_else(|e| {
                panic!(
                    "{}: {e}; `cargo run -p pramfs-tests --example fuzz_corpus` makes it",
                    self.path().display()
                )
            });
            let image = unpack(&runs);
            let (words, _) = image.as_chunks::<8>();
            let used = (0u32..)
                .zip(words)
                .filter_map(|(i, w)| (*w != [0; 8]).then_some(i))
                .collect();
            (image, used)
        })
    }

    /// Makes the image anew, with the engine of the day, as its file has it.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn make(&self) -> Result<Vec<u8>> {
        set_thread_lane(0);
        (self.maker)().map(|image| pack(&image))
    }

    /// Path of its file, in the sources.
    pub fn path(&self) -> std::path::PathBuf {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/exercise/bases");
        std::path::Path::new(dir).join(format!("{}.runs", self.name))
    }
}

/// Length of an image, then runs: words that are zero, bytes that follow, the
/// bytes.
fn pack(image: &[u8]) -> Vec<u8> {
    let mut out = (image.len() as u32).to_le_bytes().to_vec();
    let (words, _) = image.as_chunks::<8>();
    let mut at = 0;
    while at < words.len() {
        let zeros = words[at..].iter().take_while(|w| **w == [0; 8]).count();
        let start = at + zeros;
        let used = words[start..]
            .iter()
            .take(8000)
            .take_while(|w| **w != [0; 8])
            .count();
        at = start + used;
        if used > 0 {
            out.extend_from_slice(&(zeros as u32).to_le_bytes());
            out.extend_from_slice(&(used as u16).to_le_bytes());
            out.extend_from_slice(words[start..at].as_flattened());
        }
    }
    out
}

fn unpack(mut runs: &[u8]) -> Vec<u8> {
    let mut take = |n: usize| {
        let (part, rest) = runs.split_at(n.min(runs.len()));
        runs = rest;
        (part.len() == n).then_some(part)
    };
    let number = |b: &[u8]| b.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let mut image = vec![0; take(4).map_or(0, number)];
    let mut at = 0;
    while let Some(zeros) = take(4) {
        at += number(zeros) * 8;
        let len = take(2).map_or(0, number) * 8;
        let bytes = take(len).expect("a run is whole");
        image[at..at + len].copy_from_slice(bytes);
        at += len;
    }
    image
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    Killed,
    /// Of the last operation its record alone has reached the medium.
    PowerLost,
}

fn fresh(len: usize, block_size: u32) -> Result<(SimBackend, Fs)> {
    let mut format = repeatable(block_size);
    format.max_inodes = (len == SMALLEST).then_some(64);
    let sim = formatted(len, &format)?;
    let fs = mount(&sim, options(Default::default()))?;
    Ok((sim, fs))
}

/// Contents that show where they belong and pack well.
fn text(ino: Ino, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for line in bytes.chunks_mut(256) {
        line[0] = ino.0 as u8 | 0x80;
    }
    bytes
}

fn file(fs: &Fs, dir: Ino, name: &[u8], parts: &[(u64, usize)]) -> Result<Ino> {
    let ino = fs.create(&CX, dir, name, 0o640)?.ino;
    for &(at, len) in parts {
        fs.write(&CX, ino, at, &text(ino, len))?;
    }
    Ok(ino)
}

/// One of each kind.
fn mixed(block_size: u32, end: End) -> Result<Vec<u8>> {
    let bs = block_size as usize;
    let (sim, fs) = fresh(SMALLEST, block_size)?;
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755)?.ino;
    let sub = fs.mkdir(&CX, dir, b"sub", 0o2775)?.ino;
    let two = file(&fs, dir, b"two blocks", &[(0, bs + 70)])?;
    file(&fs, dir, b"sparse", &[(5, 9), (4 << 20, 9), (1 << 40, 9)])?;
    let ahead = file(&fs, sub, b"preallocated", &[(0, 10)])?;
    let allocate = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&CX, ahead, allocate, 0, 3 * bs as u64)?;
    fs.link(two, sub, b"second name")?;
    fs.symlink(&CX, dir, b"near", b"two blocks")?;
    fs.symlink(&CX, dir, b"far", &b"../".repeat(50))?;
    fs.mknod(&CX, sub, b"pipe", libc::S_IFIFO | 0o600, 0)?;
    fs.mknod(&CX, sub, b"null", libc::S_IFCHR | 0o666, 0x103)?;
    fs.setxattr(&CX, two, b"user.small", b"in line", XattrMode::Set)?;
    fs.setxattr(&CX, two, b"user.large", &text(two, 3 * bs), XattrMode::Set)?;
    fs.setxattr(&CX, dir, b"trusted.x", b"1", XattrMode::Set)?;
    for i in 0..8 {
        let name = format!("{i}-{}", "long".repeat(40));
        fs.link(two, sub, name.as_bytes())?;
    }
    file(&fs, dir, b"removed", &[(0, bs)])?;
    fs.unlink(dir, b"removed")?;
    set_thread_lane(1);
    fs.rename(&CX, sub, b"pipe", dir, b"moved", Default::default())?;
    let before = sim.image();
    fs.append(&CX, two, &text(two, bs))?;
    set_thread_lane(0);
    fs.create(&CX, sub, b"late", 0o600)?;
    match end {
        End::Clean => {
            fs.close()?;
            Ok(sim.image())
        }
        End::Killed => Ok(sim.image()),
        End::PowerLost => {
            let geo = fs.superblock().geometry();
            let journal =
                geo.journal_offset.0 as usize..(geo.journal_offset.0 + geo.journal_len) as usize;
            let (mut image, after) = (before, sim.image());
            image[journal.clone()].copy_from_slice(&after[journal]);
            Ok(image)
        }
    }
}

/// A directory with index blocks, in a region with hardly a free block.
fn full_directory() -> Result<Vec<u8>> {
    let mut format = repeatable(512);
    format.max_inodes = Some(400);
    let sim = formatted(SMALLEST, &format)?;
    let fs = mount(&sim, options(Default::default()))?;
    let dir = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755)?.ino;
    let one = fs.create(&CX, dir, b"0", 0o600)?.ino;
    for i in 1..260 {
        fs.link(one, dir, format!("{i}").as_bytes())?;
    }
    let fill = fs.create(&CX, Ino::ROOT, b"fill", 0o600)?.ino;
    let allocate = Fallocate::Allocate { keep_size: false };
    let free = fs.statfs()?.available.saturating_sub(12) * 512;
    fs.fallocate(&CX, fill, allocate, 0, free)?;
    fs.close()?;
    Ok(sim.image())
}

/// Unlinked files that were open, and a truncation that was cut short, at the
/// death of the process.
fn orphans() -> Result<Vec<u8>> {
    let (sim, fs) = fresh(SMALLEST, 2048)?;
    for i in 0..6u64 {
        let name = format!("open {i}");
        let ino = file(&fs, Ino::ROOT, name.as_bytes(), &[(0, 300), (i << 21, 10)])?;
        fs.setxattr(&CX, ino, b"user.large", &text(ino, 2500), XattrMode::Set)?;
        fs.hold(ino).into_count();
        fs.unlink(Ino::ROOT, name.as_bytes())?;
    }
    let (gone, _) = fs.holding().mkdir(&CX, Ino::ROOT, b"directory", 0o700)?;
    fs.rmdir(Ino::ROOT, b"directory")?;
    let keep = file(&fs, Ino::ROOT, b"keep", &[(0, 5000)])?;
    let set = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    fs.setattr(&CX, keep, &set)?;
    let image = sim.image();
    drop(gone);
    Ok(image)
}

/// A file with a leaf of 2 MiB.
fn huge_leaf() -> Result<Vec<u8>> {
    let (sim, fs) = fresh((4 << 20) + (64 << 10), 4096)?;
    let ino = fs.create(&CX, Ino::ROOT, b"huge", 0o600)?.ino;
    let allocate = Fallocate::Allocate { keep_size: false };
    fs.fallocate(&CX, ino, allocate, 0, 2 << 20)?;
    fs.write(&CX, ino, 0, &text(ino, 2000))?;
    file(&fs, Ino::ROOT, b"small", &[(0, 5000)])?;
    let aligned = |e: &pramfs::FileExtent| e.region_offset.is_some_and(|o| o % (2 << 20) == 0);
    assert!(
        fs.file_extents(ino, 0, u64::MAX)?.iter().any(aligned),
        "the file has no large leaf"
    );
    fs.close()?;
    Ok(sim.image())
}

/// Files that other processes map, at the death of the server: unchanged, mapped twice,
/// unlinked, and shorter than what is mapped.
fn leases() -> Result<Vec<u8>> {
    let (sim, fs) = fresh(SMALLEST, 1024)?;
    let names: [&[u8]; 4] = [b"plain", b"twice", b"gone", b"short"];
    let mut files = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let parts = [(0, 3000), (1 << (14 + i), 10)];
        files.push(file(&fs, Ino::ROOT, name, &parts)?);
    }
    for (slot, ino) in [0, 1, 1, 2, 3].map(|i| files[i]).into_iter().enumerate() {
        let generation = fs.getattr(ino)?.generation;
        let grant = fs.grant_lease(ino, generation, LeaseMode::Read, 100, 1000)?;
        assert_eq!(grant.lease().slot as usize, slot);
        fs.region_to_damage().pretend_lease(slot as u32, true);
    }
    fs.unlink(Ino::ROOT, b"gone")?;
    let set = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    fs.setattr(&CX, files[3], &set)?;
    Ok(sim.image())
}

/// Files with append windows: nothing was appended, a part of what was appended is merged, the
/// window is full, and the file is unlinked.
fn windows() -> Result<Vec<u8>> {
    let (sim, fs) = fresh(SMALLEST, 1024)?;
    let names: [&[u8]; 4] = [b"unused", b"merged", b"full", b"gone"];
    for (slot, name) in (0u32..).zip(names) {
        let ino = file(&fs, Ino::ROOT, name, &[(0, 6 << 10)])?;
        let generation = fs.getattr(ino)?.generation;
        let grant = fs.grant_lease(ino, generation, LeaseMode::Write, 100, 1000)?;
        assert_eq!(grant.lease().slot, slot);
        fs.region_to_damage().pretend_lease(slot, true);
        // The blocks past the end stay, and the inode is in the orphan table.
        let set = SetAttr {
            size: Some(1500),
            ..SetAttr::default()
        };
        fs.setattr(&CX, ino, &set)?;
    }
    fs.unlink(Ino::ROOT, b"gone")?;
    fs.close()?;
    let (start, limit) = (1500, 6 << 10);
    let ends = [(1500, 1500), (1700, 4000), (1500, limit), (1500, 2500)];
    for (slot, (size, end)) in (0u32..).zip(ends) {
        let window = Window {
            slot,
            start,
            limit,
            size,
            end,
        };
        plant(&region_of(&sim), window).map_err(pramfs::Error::io)?;
    }
    Ok(sim.image())
}
