//! Reads images of the engine with the independent reader.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pramfs::format::FormatOptions;
use pramfs::inode::Credentials;
use pramfs::inode::*;
use pramfs::*;
use pramfs_tests::region::{formatted, mount, quiet, repeatable};

use crate::reader::{Node, Reader};
use pramfs_medium::pmem::{RegionAccess, SimBackend};

/// Creates objects of all types.
fn fill(fs: &Fs, block_size: u32) {
    let ctx = Credentials::new(1000, 100).with_umask(0o022);
    let dir = fs.mkdir(&ctx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let big = fs.mkdir(&ctx, dir, b"big", 0o755).unwrap().ino;
    for i in 0..700 {
        let name = format!("{}{i}", "n".repeat(i % 200));
        let ino = fs.create(&ctx, big, name.as_bytes(), 0o600).unwrap().ino;
        if i % 10 == 0 {
            fs.write(&Credentials::ROOT, ino, 0, name.as_bytes())
                .unwrap();
        }
    }
    for i in (0..700).step_by(3) {
        let name = format!("{}{i}", "n".repeat(i % 200));
        fs.unlink(big, name.as_bytes()).unwrap();
    }
    let file = fs.create(&ctx, dir, b"file", 0o644).unwrap().ino;
    let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
    fs.write(&Credentials::ROOT, file, 12_345, &data).unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        file,
        Fallocate::PunchHole,
        50_000,
        60_000,
    )
    .unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        file,
        Fallocate::Allocate { keep_size: true },
        300_000,
        90_000,
    )
    .unwrap();
    fs.link(file, Ino::ROOT, b"other name \xff").unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        file,
        b"user.small",
        b"value",
        XattrMode::Set,
    )
    .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        file,
        b"user.large",
        &data[..20_000],
        XattrMode::Set,
    )
    .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        dir,
        b"trusted.on a directory",
        &data[..100],
        XattrMode::Set,
    )
    .unwrap();
    fs.symlink(&ctx, dir, b"short", b"../x").unwrap();
    fs.symlink(&ctx, dir, b"long", &[b'l'; 2000]).unwrap();
    fs.mknod(&ctx, dir, b"device", libc::S_IFBLK | 0o660, 0x0801)
        .unwrap();
    fs.mknod(&ctx, dir, b"pipe", libc::S_IFIFO | 0o600, 0)
        .unwrap();
    fs.mkdir(&ctx, Ino::ROOT, b"empty", 0o700).unwrap();
    fs.mkdir(&ctx, Ino::ROOT, b"emptied", 0o700).unwrap();
    let emptied = fs.lookup(Ino::ROOT, b"emptied").unwrap().ino;
    fs.create(&ctx, emptied, b"f", 0o600).unwrap();
    fs.unlink(emptied, b"f").unwrap();
    if block_size == 4096 {
        let huge = fs.create(&ctx, Ino::ROOT, b"huge", 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, huge, 0, &vec![0x42; 5 << 20])
            .unwrap();
    }
}

/// Reads all files through the engine.
fn files(fs: &Fs) -> BTreeMap<Vec<u8>, Node> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let a = fs.getattr(ino).unwrap();
        let mut node = Node {
            ino: ino.0,
            mode: a.kind.mode_bits() | a.perm,
            nlink: a.nlink,
            uid: a.uid,
            size: a.size,
            blocks: a.blocks * 512 / u64::from(a.blksize),
            rdev: a.rdev,
            mtime: (a.mtime.sec, a.mtime.nsec),
            btime: (a.btime.sec, a.btime.nsec),
            generation: a.generation,
            ..Node::default()
        };
        match a.kind {
            FileType::Regular => {
                node.data = vec![0; a.size as usize];
                fs.read(ino, 0, &mut node.data).unwrap();
            }
            FileType::Symlink => node.data = fs.readlink(ino).unwrap(),
            FileType::Directory => {
                node.size = a.size / 32;
                fs.readdir(ino, 2, &mut |e| {
                    let mut below = path.clone();
                    below.push(b'/');
                    below.extend_from_slice(e.name);
                    todo.push((below, e.ino));
                    ControlFlow::Continue(())
                })
                .unwrap();
            }
            _ => {}
        }
        for name in fs.listxattr(ino).unwrap().split_inclusive(|b| *b == 0) {
            let name = &name[..name.len() - 1];
            node.xattrs
                .insert(name.to_vec(), fs.getxattr(ino, name).unwrap());
        }
        out.insert(path, node);
    }
    out
}

#[test]
fn independent_reader_reads_engine_image() {
    for block_size in [512, 1024, 2048, 4096] {
        read_engine_image(block_size, &repeatable(block_size));
    }
}

#[test]
fn independent_reader_reads_image_with_data_checksums() {
    for block_size in [512, 4096] {
        let options = FormatOptions {
            features: vec![("data_checksums".to_owned(), true)],
            ..repeatable(block_size)
        };
        read_engine_image(block_size, &options);
    }
}

fn read_engine_image(block_size: u32, options: &FormatOptions) {
    let sim = formatted(24 << 20, options).unwrap();
    let image = sim.image();
    assert_eq!(
        Reader::open(&image).files().len(),
        1,
        "fresh, block size {block_size}"
    );

    let fs = mount(&sim, quiet()).unwrap();
    fill(&fs, block_size);
    let expected = files(&fs);
    // The journal as a crash would leave it.
    let image = sim.image();
    let live = Reader::open(&image).live_records();
    assert!(
        (1..=2).contains(&live.len()),
        "one thread, one lane: {live:?}"
    );

    fs.close().unwrap();
    let image = sim.image();
    let mut reader = Reader::open(&image);
    assert_eq!(reader.live_records(), [0u64; 0]);
    let found = reader.files();
    let paths = |m: &BTreeMap<Vec<u8>, Node>| m.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(&found), paths(&expected));
    for (path, node) in &expected {
        assert!(
            found[path] == *node,
            "{}, block size {block_size}",
            path.escape_ascii()
        );
    }
}

#[test]
fn independent_reader_finds_ranges_marked_lost() {
    use pramfs_fsck::{Policy, RepairOptions, repair};
    use pramfs_medium::media::{DiskInode, probe_superblock};
    use pramfs_tests::region::{inode_home, region_of};
    use zerocopy::FromBytes;

    for block_size in [512, 4096] {
        let sim = formatted(4 << 20, &repeatable(block_size)).unwrap();
        let fs = mount(&sim, quiet()).unwrap();
        let ctx = Credentials::ROOT;
        let ino = fs.create(&ctx, Ino::ROOT, b"file", 0o644).unwrap().ino;
        fs.write(
            &Credentials::ROOT,
            ino,
            0,
            &vec![7; 20 * block_size as usize],
        )
        .unwrap();
        fs.close().unwrap();
        let image = sim.image();
        let home = inode_home(&image, ino);
        let d = DiskInode::read_from_bytes(&image[home..home + 256]).unwrap();
        let region = region_of(&sim);
        let geo = probe_superblock(&region).unwrap().geometry();
        let table = geo.bytes(d.root & ((1 << 40) - 1));
        // Damage two pointers.
        for slot in [8, 19] {
            let at = table + slot * 8;
            region.window().store_unflushed(at, &[0x35; 8]).unwrap();
        }
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
        assert!(report.is_sound(), "{report}");
        let image = sim.image();
        let files = Reader::open(&image).files();
        let lost: Vec<_> = files[&b"/file"[..]].lost.iter().copied().collect();
        assert_eq!(lost, [8, 19]);
    }
}

/// A crash has left them, and the next mount has not used the file.
#[test]
fn independent_reader_reads_marked_range() {
    let options = FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..repeatable(4096)
    };
    let sim = formatted(2 << 20, &options).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    for name in [&b"file"[..], b"other"] {
        let ino = fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&ctx, ino, 0, &[7; 20 * 4096 + 5]).unwrap();
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(&fs, "/file").unwrap();
    let view = file.map(5 * 4096..7 * 4096, Access::Write).unwrap();
    view.store(8, 9u64).unwrap();
    // What is mapped cannot be summed.
    fs.close_now().unwrap();
    let image = sim.image();
    let files = Reader::open(&image).files();
    assert_eq!(files[&b"/file"[..]].marked, 5..7);
    assert_eq!(files[&b"/other"[..]].marked, 0..0);
    // The next mount sums it, though nobody uses it.
    let next = SimBackend::from_image(&image).unwrap();
    mount(&next, quiet()).unwrap().close().unwrap();
    let image = next.image();
    assert_eq!(Reader::open(&image).files()[&b"/file"[..]].marked, 0..0);
}

/// The file is longer than its inode says.
#[test]
fn independent_reader_reads_append_window() {
    use pramfs_tests::region::region_of;
    use pramfs_tests::windows::{Window, plant};

    const SIZE: u64 = 50_000;
    const END: u64 = 70_001;
    for block_size in [512, 4096] {
        let sim = formatted(1 << 20, &repeatable(block_size)).unwrap();
        let fs = mount(&sim, quiet()).unwrap();
        let ctx = Credentials::ROOT;
        let file = fs.create(&ctx, Ino::ROOT, b"file", 0o644).unwrap().ino;
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        fs.write(&ctx, file, 0, &data[..SIZE as usize]).unwrap();
        let generation = fs.getattr(file).unwrap().generation;
        let grant = fs.grant_lease(file, generation, LeaseMode::Write, 1, 0);
        drop(grant.unwrap());
        fs.region_to_damage().pretend_lease(0, true);
        // These blocks become those of the window.
        fs.write(&ctx, file, SIZE, &data[SIZE as usize..]).unwrap();
        fs.close().unwrap();
        let region = region_of(&sim);
        let window = Window {
            slot: 0,
            start: SIZE - 10,
            limit: 98_304,
            size: SIZE,
            end: END,
        };
        plant(&region, window).unwrap();

        let report = pramfs_fsck::check(&region, &Default::default());
        let found: Vec<_> = report.issues().map(|i| i.code()).collect();
        assert_eq!(found, ["append-window-open"], "{report}");
        let image = sim.image();
        let mut reader = Reader::open(&image);
        let files = reader.files();
        assert_eq!(reader.ends, BTreeMap::from([(file.0, END)]));
        let node = &files[&b"/file"[..]];
        assert_eq!(node.size, END);
        assert!(node.data == data[..END as usize]);
    }
}
