//! Metadata that reads as zeros (a lost write, a page punched out of the region, a zeroed
//! line of eight pointers), and exchanged pages.
//!
//! A zero pointer is a hole, and a hole has no check. Each metadata page and each line is
//! zeroed in turn, and every call is made: the answer is the same as before, or an error.
//! No call returns zeros for data, misses a name, or allocates an existing file's blocks
//! again.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::bad_support::anatomy::Reach;
use crate::bad_support::image::pattern;
use crate::bad_support::model::{Body, CX, Model};
use crate::bad_support::{bytes_of, region_with, steady};
use pramfs::OpenOptions;
use pramfs::{
    Error, Fallocate, Result, SeekWhence, XattrMode,
    inode::{Bno, Fs, Ino},
};
use pramfs_medium::media::{DiskInode, Geometry, Ptr, PtrAt, probe_superblock};
use pramfs_medium::types::RegionOffset;
use pramfs_tests::random::Random;
use pramfs_tests::region::{formatted, inode_home, mount, repeatable};
use pramfs_tests::watchdog::Watchdog;
use zerocopy::{FromBytes, IntoBytes};

/// Names of the large directory.
const NAMES: usize = 300;

struct Image {
    bytes: Vec<u8>,
    geo: Geometry,
    model: Model,
    /// Data blocks, where zeros are valid contents.
    data: BTreeSet<usize>,
}

fn write(fs: &Fs, name: &str, parts: &[(u64, usize)]) -> Result<Ino> {
    let ino = fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o644)?.ino;
    for &(at, len) in parts {
        let bytes: Vec<u8> = pattern(ino.0 << 20 ^ at, len)
            .iter()
            .map(|b| b | 1)
            .collect();
        assert_eq!(fs.write(&CX, ino, at, &bytes)?, len);
    }
    Ok(ino)
}

fn fill(fs: &Fs, bs: usize) -> Result<()> {
    let (b, fan) = (bs as u64, bs as u64 / 8);
    if bs == 4096 {
        let huge = write(fs, "huge", &[(0, 2 << 20), (2 << 20, 5 * bs)])?;
        let map = fs.file_extents(huge, 0, 2 << 20)?;
        assert_eq!(map.len(), 1, "a large leaf");
    }
    let flat = write(fs, "flat", &[(0, bs / 2)])?;
    write(fs, "one-level", &[(0, 20 * bs + 9)])?;
    write(fs, "two-levels", &[(0, (bs / 8 + 30) * bs)])?;
    write(
        fs,
        "three-levels",
        &[(0, bs), (40 * b, 3 * bs), (fan * fan * b + 7 * b, 2 * bs)],
    )?;
    write(
        fs,
        "holes",
        &[
            (0, bs),
            (9 * b, 2 * bs),
            (fan * b * 2, bs),
            (fan * b * 3 - 80, 70),
        ],
    )?;
    let ahead = write(fs, "ahead", &[(0, 100)])?;
    fs.fallocate(
        &CX,
        ahead,
        Fallocate::Allocate { keep_size: true },
        0,
        30 * b,
    )?;
    let attributes = write(fs, "attributes", &[(0, 10), (50 * b, 60)])?;
    for i in 0..40 {
        let name = format!("user.attribute-{i}");
        fs.setxattr(
            &CX,
            attributes,
            name.as_bytes(),
            &pattern(i, bs / 10),
            XattrMode::Set,
        )?;
    }
    for i in 0..3 {
        let name = format!("user.large-{i}");
        fs.setxattr(
            &CX,
            attributes,
            name.as_bytes(),
            &pattern(i, 3 * bs),
            XattrMode::Set,
        )?;
    }
    fs.symlink(&CX, Ino::ROOT, b"far", &[b'x'; 400])?;
    let many = fs.mkdir(&CX, Ino::ROOT, b"many", 0o755)?.ino;
    for i in 0..NAMES {
        fs.link(flat, many, format!("file-with-a-name-{i}").as_bytes())?;
    }
    Ok(())
}

fn image(block_size: u32) -> Image {
    let len = if block_size == 4096 {
        16 << 20
    } else {
        1 << 20
    };
    let mut options = repeatable(block_size);
    options.max_inodes = Some(256);
    let sim = formatted(len, &options).expect("the region is formatted");
    let fs = mount(&sim, steady()).expect("it is mounted");
    fill(&fs, block_size as usize).expect("it is filled");
    let model = Model::of(&fs).expect("it is read");
    let geo = fs.superblock().geometry();
    let mut data = BTreeSet::new();
    for (ino, o) in &model.objects {
        let Body::File(size, _) = &o.body else {
            continue;
        };
        for e in fs.file_extents(*ino, 0, *size).expect("it is undamaged") {
            if let Some(at) = e.region_offset {
                data.extend(
                    geo.block_at(RegionOffset(at)).0 as usize
                        ..=geo.block_at(RegionOffset(at + e.len - 1)).0 as usize,
                );
            }
        }
    }
    fs.close().expect("it is unmounted");
    Image {
        bytes: sim.image(),
        geo,
        model,
        data,
    }
}

impl Image {
    /// Nonzero metadata pieces of this many bytes.
    fn metadata(&self, piece: usize) -> Vec<usize> {
        (0..self.bytes.len() / piece)
            .map(|i| i * piece)
            .filter(|at| {
                !self
                    .data
                    .contains(&(self.geo.block_at(RegionOffset(*at as u64)).0 as usize))
            })
            .filter(|at| self.bytes[*at..at + piece].iter().any(|b| *b != 0))
            .collect()
    }
}

/// Whether an error reports damage. Damage must not cause any other error.
fn damaged<T>(result: Result<T>, what: &str) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

/// Makes every call on an image; false if it cannot be mounted.
fn ask(bytes: &[u8], model: &Model) -> Result<bool, String> {
    let Ok(fs) = Fs::open(region_with(bytes), steady()) else {
        return Ok(false);
    };
    model.compare(&fs, &Reach::All)?;
    let mut model = model.clone();
    for (dir, name, ino) in model.names.clone() {
        let what = format!("{} in {dir}", name.escape_ascii());
        for made in [
            fs.create(&CX, dir, &name, 0o600).map(|_| ()),
            fs.mkdir(&CX, dir, &name, 0o700).map(|_| ()),
            fs.link(ino, dir, &name).map(|_| ()),
        ] {
            match made {
                Ok(()) => return Err(format!("{what} is there and was made again")),
                Err(Error::Exists | Error::Corrupt { .. } | Error::NoSpace(_)) => {}
                // The damaged inode may be that of a link.
                Err(Error::NotPermitted(_)) => {}
                Err(e) => return Err(format!("{what}: {e}")),
            }
        }
        if let Body::Dir(names) = &model.objects[&ino].body
            && !names.is_empty()
        {
            match fs.rmdir(dir, &name) {
                Err(Error::NotEmpty | Error::Corrupt { .. }) => {}
                done => return Err(format!("{what}: rmdir: {done:?}")),
            }
        }
        let Body::File(_, parts) = model.objects[&ino].body.clone() else {
            continue;
        };
        if dir != Ino::ROOT {
            continue;
        }
        let path = format!("/{}", name.escape_ascii());
        let handle = damaged(
            OpenOptions::new().read(true).write(true).open(&fs, &path),
            &what,
        )?;
        for (at, bytes) in parts {
            // The path without a lock.
            if let Some(handle) = &handle {
                let mut found = vec![0xee; bytes.len()];
                for _ in 0..2 {
                    if let Some(n) = damaged(handle.read_at(&mut found, at), &what)?
                        && (n != bytes.len() || found != bytes)
                    {
                        return Err(format!("{what}: other bytes at {at}"));
                    }
                }
            }
            if let Some(found) = damaged(fs.seek(ino, at, SeekWhence::Data), &what)?
                && found != at
            {
                return Err(format!("{what}: data at {found}, not at {at}"));
            }
            if let Some(found) = damaged(fs.seek(ino, at, SeekWhence::Hole), &what)?
                && found < at + bytes.len() as u64
            {
                return Err(format!("{what}: a hole at {found}"));
            }
            if let Some(list) = damaged(fs.file_extents(ino, at, 1), &what)?
                && list
                    .iter()
                    .any(|e| e.region_offset.is_none() || e.unwritten)
            {
                return Err(format!("{what}: no extent at {at}"));
            }
            let end = at + bytes.len() as u64 - 1;
            if damaged(fs.write(&CX, ino, end, b"!"), &what)?.is_some() {
                model.write(ino, end, b"!");
            }
        }
    }
    model.compare(&fs, &Reach::All)?;
    Ok(true)
}

fn sweep<'a>(
    what: &str,
    image: &Image,
    cases: impl Iterator<Item = (String, Box<dyn Fn(&mut [u8]) + 'a>)>,
) {
    let watchdog = Watchdog::new(what, Duration::from_secs(300));
    let (mut asked, mut refused, mut bad) = (0, 0, Vec::new());
    for (name, spoil) in cases {
        let mut bytes = image.bytes.clone();
        spoil(&mut bytes);
        let done = catch_unwind(AssertUnwindSafe(|| ask(&bytes, &image.model)));
        match done {
            Ok(Ok(true)) => asked += 1,
            Ok(Ok(false)) => refused += 1,
            Ok(Err(why)) => bad.push(format!("{name}: {why}")),
            Err(_) => bad.push(format!("{name}: a panic")),
        }
        watchdog.touch();
    }
    println!("{what}: {asked} asked, {refused} not mounted");
    assert!(
        bad.is_empty(),
        "{what}: {} bad:\n{}",
        bad.len(),
        bad.join("\n")
    );
    assert!(asked > 20, "{what}: only {asked} images were mounted");
}

fn zeroed(block_size: u32, piece: usize) {
    let image = image(block_size);
    assert_eq!(ask(&image.bytes, &image.model), Ok(true), "as it is");
    // Sums cover leaves of any size.
    let bs = block_size as usize;
    let leaf = |at: usize| image.bytes[at - at % bs..].starts_with(b"hlf1");
    let mut nth = 0;
    let taken = image.metadata(piece).into_iter().filter(|at| {
        nth += 1;
        piece == bs || bs == 512 || !leaf(*at) || nth % 16 == 0
    });
    let cases = taken.map(|at| {
        let spoil = move |bytes: &mut [u8]| bytes[at..at + piece].fill(0);
        (format!("{piece} bytes at {at:#x}"), Box::new(spoil) as _)
    });
    sweep(
        &format!("blocks of {block_size}, {piece} bytes"),
        &image,
        cases,
    );
}

#[test]
fn zeroed_metadata_block_gives_same_answer_or_error() {
    zeroed(512, 512);
    zeroed(4096, 4096);
}

#[test]
fn zeroed_metadata_line_gives_same_answer_or_error() {
    zeroed(512, 64);
    zeroed(4096, 64);
}

#[test]
fn swapped_metadata_gives_same_answer_or_error() {
    for block_size in [512, 4096] {
        let image = image(block_size);
        let bs = block_size as usize;
        let blocks = image.metadata(bs);
        let mut random = Random::new(7);
        let mut pick = || blocks[random.below(blocks.len() as u64) as usize];
        let pairs: Vec<_> = (0..300).map(|_| (pick(), pick())).collect();
        let cases = pairs.into_iter().map(|(a, b)| {
            let spoil = move |bytes: &mut [u8]| {
                for i in 0..bs {
                    bytes.swap(a + i, b + i);
                }
            };
            (format!("{a:#x} and {b:#x}"), Box::new(spoil) as _)
        });
        sweep(&format!("blocks of {block_size}, swapped"), &image, cases);
    }
}

fn inode(image: &Image, name: &[u8]) -> (Ino, usize, DiskInode) {
    let ino = image.model.names.iter().find(|n| n.1 == name);
    let ino = ino.expect("the image has it").2;
    let home = inode_home(&image.bytes, ino);
    let d = DiskInode::read_from_bytes(&image.bytes[home..home + 256]).expect("256 bytes");
    (ino, home, d)
}

fn seal(bytes: &mut [u8], home: usize, mut d: DiskInode, geo: &Geometry) {
    d.seal(geo.seed, Ino(d.ino));
    bytes[home..home + 256].copy_from_slice(d.as_bytes());
}

fn is_damage<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    assert!(
        matches!(result, Err(Error::Corrupt { .. })),
        "{what}: {result:?}"
    );
}

#[test]
fn zeroed_pointer_block_fails_every_call() {
    let image = image(4096);
    let (ino, _, d) = inode(&image, b"one-level");
    assert_eq!(d.height, 1);
    let table = Ptr(d.root).block().0 as usize * 4096;
    let mut bytes = image.bytes.clone();
    bytes[table..table + 4096].fill(0);
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    let mut into = [0xaa; 100];
    is_damage(fs.read(ino, 0, &mut into), "read");
    is_damage(fs.write(&CX, ino, 0, b"new"), "write");
    is_damage(fs.write(&CX, ino, 30 << 12, b"new"), "write behind the end");
    is_damage(fs.append(&CX, ino, b"new"), "append");
    is_damage(fs.seek(ino, 0, SeekWhence::Data), "seek");
    is_damage(fs.seek(ino, 0, SeekWhence::Hole), "seek");
    is_damage(fs.file_extents(ino, 0, 1 << 20), "extents");
    is_damage(
        fs.fallocate(&CX, ino, Fallocate::PunchHole, 0, 1 << 20),
        "punch",
    );
    is_damage(
        fs.fallocate(
            &CX,
            ino,
            Fallocate::ZeroRange { keep_size: true },
            0,
            1 << 13,
        ),
        "zero range",
    );
    is_damage(fs.fill(ino, 0, 1 << 13), "fill");
    let shorter = pramfs::inode::SetAttr {
        size: Some(0),
        ..Default::default()
    };
    is_damage(fs.setattr(&CX, ino, &shorter), "truncate");
    let other = fs
        .create(&CX, Ino::ROOT, b"copy", 0o600)
        .expect("created")
        .ino;
    is_damage(fs.copy_range(&CX, (ino, 0), (other, 0), 8192), "copy");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/one-level");
    let file = file.expect("it opens");
    is_damage(file.read_at(&mut into, 0), "read of a handle");
    // Its blocks cannot be found, so they are not freed.
    drop(file);
    is_damage(fs.unlink(Ino::ROOT, b"one-level"), "unlink");
    assert_eq!(fs.lookup(Ino::ROOT, b"one-level").expect("lookup").ino, ino);
}

#[test]
fn free_of_file_with_lost_pointers_spares_others() {
    let image = image(4096);
    let (ino, _, d) = inode(&image, b"one-level");
    let table = Ptr(d.root).block().0 as usize * 4096;
    let mut bytes = image.bytes.clone();
    bytes[table..table + 64].fill(0);
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    let mut into = vec![0xaa; 4096];
    is_damage(fs.read(ino, 0, &mut into), "read");
    // Existing data is readable.
    assert_eq!(fs.read(ino, 8 << 12, &mut into).expect("read"), 4096);
    assert!(into.iter().all(|b| b & 1 == 1));
    // Nothing is lost past EOF.
    fs.append(&CX, ino, b"more").expect("append");
    is_damage(fs.read(ino, 0, &mut into), "read");
    let free = fs.statfs().expect("statfs").free;
    fs.unlink(Ino::ROOT, b"one-level").expect("unlink");
    fs.sync().expect("sync");
    let given = fs.statfs().expect("statfs").free - free;
    // 21 blocks and the pointer block, of which eight are left marked.
    assert_eq!(given, 22 - 8);
    let mut rest = image.model.clone();
    rest.objects.remove(&ino);
    rest.names.retain(|n| n.2 != ino);
    if let Body::Dir(names) = &mut rest.objects.get_mut(&Ino::ROOT).expect("the root").body {
        names.remove(&b"one-level"[..]);
    }
    rest.compare(&fs, &Reach::Nothing)
        .expect("nothing else changed");
}

#[test]
fn rootless_directory_with_counts_is_damage() {
    let image = image(512);
    let (dir, home, d) = inode(&image, b"many");
    for (size, blocks) in [(d.size, d.blocks), (d.size, 0), (0, d.blocks)] {
        let mut bytes = image.bytes.clone();
        let root = 0;
        seal(
            &mut bytes,
            home,
            DiskInode {
                root,
                size,
                blocks,
                ..d
            },
            &image.geo,
        );
        let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
        let name = b"file-with-a-name-7";
        is_damage(fs.lookup(dir, name), "lookup");
        is_damage(fs.create(&CX, dir, name, 0o600), "create");
        is_damage(crate::bad_support::model::entries(&fs, dir), "readdir");
        match fs.rmdir(Ino::ROOT, b"many") {
            Err(Error::NotEmpty | Error::Corrupt { .. }) => {}
            done => panic!("rmdir: {done:?}"),
        }
    }
    // A directory that never had an entry is valid.
    let mut bytes = image.bytes.clone();
    let (root, size, blocks) = (0, 0, 0);
    seal(
        &mut bytes,
        home,
        DiskInode {
            root,
            size,
            blocks,
            ..d
        },
        &image.geo,
    );
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    fs.create(&CX, dir, b"new", 0o600).expect("create");
}

#[test]
fn rootless_file_with_data_blocks_is_damage() {
    let image = image(512);
    let (ino, home, d) = inode(&image, b"attributes");
    let mut bytes = image.bytes.clone();
    let (root, height) = (0, 0);
    seal(
        &mut bytes,
        home,
        DiskInode { root, height, ..d },
        &image.geo,
    );
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    let mut into = [0; 10];
    is_damage(fs.read(ino, 0, &mut into), "read");
    is_damage(fs.write(&CX, ino, 0, b"x"), "write");
    // Its attributes are intact.
    fs.getxattr(ino, b"user.large-1").expect("an attribute");
}

/// A pointer with a valid check to a block of the superblock pages or the journal is
/// damage. A reader that followed it would show, or change, file system structures.
#[test]
fn pointers_to_superblock_or_journal_are_damage() {
    for block_size in [512, 4096] {
        let image = image(block_size);
        let geo = &image.geo;
        let fixed: Vec<u64> = geo
            .fixed_blocks()
            .into_iter()
            .flat_map(|r| [r.start, r.end - 1])
            .collect();
        let find = |name: &[u8]| inode(&image, name);
        let at = |ino, level, index| PtrAt {
            fs_seed: geo.seed,
            ino,
            level,
            index,
        };
        for &block in &fixed {
            let (file, file_home, f) = find(b"flat");
            let (table_file, _, t) = find(b"one-level");
            let (dir, dir_home, d) = find(b"many");
            let (owner, owner_home, x) = find(b"attributes");
            let mut bytes = image.bytes.clone();
            let root = Ptr::new(Bno(block), 0, at(file, 0, 0)).0;
            seal(&mut bytes, file_home, DiskInode { root, ..f }, geo);
            // In a pointer block.
            let slot = geo.offset(Ptr(t.root).block()).0 as usize + 3 * 8;
            let word = Ptr::new(Bno(block), 0, at(table_file, 0, 3)).0;
            bytes[slot..slot + 8].copy_from_slice(&word.to_le_bytes());
            for flags in [0, pramfs_medium::media::pointer::LEAF] {
                let root = Ptr::new(Bno(block), flags, at(dir, 16, 0)).0;
                seal(&mut bytes, dir_home, DiskInode { root, ..d }, geo);
                let xattr_root = Ptr::new(Bno(block), flags, at(owner, 32, 0)).0;
                seal(&mut bytes, owner_home, DiskInode { xattr_root, ..x }, geo);
                let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
                let mut into = vec![0; block_size as usize];
                let third = geo.bytes(3);
                is_damage(fs.read(file, 0, &mut into), "read by the root");
                is_damage(fs.write(&CX, file, 0, b"x"), "write by the root");
                is_damage(fs.read(table_file, third, &mut into), "read");
                is_damage(fs.write(&CX, table_file, third, b"x"), "write");
                is_damage(fs.lookup(dir, b"file-with-a-name-1"), "lookup");
                is_damage(fs.create(&CX, dir, b"new", 0o600), "create");
                is_damage(crate::bad_support::model::entries(&fs, dir), "readdir");
                is_damage(fs.getxattr(owner, b"user.attribute-1"), "getxattr");
                is_damage(
                    fs.setxattr(&CX, owner, b"user.new", b"1", XattrMode::Set),
                    "setxattr",
                );
                is_damage(fs.listxattr(owner), "listxattr");
                let after = bytes_of(fs.region());
                let journal = geo.journal_offset.0 as usize;
                let same = |at: usize| after[at..at + 0x200] == bytes[at..at + 0x200];
                assert!(same(0) && same(geo.copy_offset.0 as usize), "superblocks");
                assert!(journal > 0);
            }
        }
    }
}

/// A large leaf must not cover them either.
#[test]
fn large_leaf_over_journal_is_damage() {
    let image = image(4096);
    let (ino, _, d) = inode(&image, b"huge");
    assert_eq!(d.height, 2);
    let geo = &image.geo;
    let place = PtrAt {
        fs_seed: geo.seed,
        ino,
        level: 1,
        index: 0,
    };
    let leaf = Ptr::new(Bno(0), pramfs_medium::media::pointer::LEAF, place).0;
    let slot = (Ptr(d.root).block().0 << 12) as usize;
    let mut bytes = image.bytes.clone();
    bytes[slot..slot + 8].copy_from_slice(&leaf.to_le_bytes());
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    is_damage(fs.read(ino, 70 << 10, &mut [0; 100]), "read");
    is_damage(fs.write(&CX, ino, 70 << 10, b"x"), "write");
    assert!(probe_superblock(fs.region()).is_ok());
}
