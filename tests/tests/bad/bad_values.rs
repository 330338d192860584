//! Impossible values behind valid checksums, as a hostile or faulty writer leaves them.
//! Checksums cannot detect them.
//!
//! Every field of an inode of each kind is set to the limits of its type and around the
//! limits of the format, and the inode is sealed again. Then everything is tried with it:
//! reads, writes, new names, moves, removals, lagging times, the unmount. The same is
//! done with pointers to forbidden places. No case panics, hangs or fails the file
//! system; objects with another inode that are not below this one stay unchanged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::bad_support::anatomy::Reach;
use crate::bad_support::image::{End, Image, image, pattern};
use crate::bad_support::model::{Body, CX, Model};
use crate::bad_support::{Stopped, bytes_of, region_with, steady};
use pramfs::{
    AtimePolicy, Error, Fallocate, FileType, MountOptions, RenameFlags, Result, SeekWhence,
    XattrMode,
    inode::{Bno, Fs, Ino, SetAttr, SetTime, Time},
};
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, COPY_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, Ptr, PtrAt};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::watchdog::Watchdog;

/// A day after the image was made, so that relatime updates are due.
const NOW: i64 = 1_700_200_000;
const NEW: &[u8] = b"a new name";

fn options(atime: AtimePolicy) -> MountOptions {
    MountOptions {
        atime,
        clock: Arc::new(Stopped(NOW)),
        ..steady()
    }
}

/// Locations of an inode.
fn homes(image: &Image, ino: Ino) -> (Geometry, Vec<usize>) {
    let region = region_with(&image.bytes);
    let geo = pramfs_medium::media::probe_superblock(&region)
        .expect("the image is undamaged")
        .geometry();
    let in_page = match ino {
        Ino::INODE_TABLE => Some(INODE_TABLE_OFFSET),
        Ino::INODE_GROUPS => Some(INODE_GROUPS_OFFSET),
        Ino::BLOCK_GROUPS => Some(BLOCK_GROUPS_OFFSET),
        _ => None,
    };
    if let Some(at) = in_page {
        return (geo, vec![at as usize, (COPY_OFFSET + at) as usize]);
    }
    let table: DiskInode = region.read_pod(INODE_TABLE_OFFSET).expect("it is there");
    let map = MapRoot {
        ino: Ino::INODE_TABLE,
        root: Ptr(table.root),
        height: table.height.into(),
    };
    let at = ino.0 * DiskInode::SIZE as u64;
    let leaf = map
        .find(&region, &geo, geo.file_block(at))
        .expect("the table is undamaged");
    let block = leaf.block.expect("the inode has a home");
    let home = geo.offset(block).0 + at % geo.block_size;
    (geo, vec![home as usize])
}

fn inode_at(bytes: &[u8], home: usize) -> DiskInode {
    use zerocopy::FromBytes;
    DiskInode::read_from_bytes(&bytes[home..home + DiskInode::SIZE]).expect("it has the size")
}

fn store(bytes: &mut [u8], homes: &[usize], mut d: DiskInode, geo: &Geometry, ino: Ino) {
    use zerocopy::IntoBytes;
    d.seal(geo.seed, ino);
    for &home in homes {
        bytes[home..home + DiskInode::SIZE].copy_from_slice(d.as_bytes());
    }
}

/// The limits of a field of this many bytes, and those of the format.
fn limits(name: &str, size: usize, old: u64) -> Vec<u64> {
    let max = u64::MAX >> (64 - size * 8);
    let mut values = vec![0, 1, 2, 7, 10, 54, 64, 97, 255, 4096, 4097];
    values.extend([999_999_999, 1_000_000_000, 1 << 30, (1 << 30) - 1]);
    for bits in [31, 32, 40, 52, 59, 63] {
        values.extend([(1u64 << bits) - 1, 1 << bits]);
    }
    values.extend([max, max - 1, max >> 1, max.wrapping_sub(86_400)]);
    values.extend([old.wrapping_add(1), old.wrapping_sub(1), old << 1, !old]);
    if name == "mode" {
        // Other types of file, with the permissions unchanged.
        values.extend((0..16).map(|kind| old & 0o7777 | kind << 12));
    }
    for v in &mut values {
        *v &= max;
    }
    values.sort_unstable();
    values.dedup();
    values.retain(|v| *v != old);
    values
}

/// The model without the objects that damage to `ino` may change: the inode and
/// everything below it.
fn spared(model: &Model, ino: Ino) -> Model {
    let mut left = model.clone();
    let mut hit = vec![ino];
    let mut n = 0;
    while n < hit.len() {
        let dir = hit[n];
        left.names.retain(|(parent, _, child)| {
            if *parent == dir && !hit.contains(child) {
                hit.push(*child);
            }
            *parent != dir
        });
        n += 1;
    }
    left.names.retain(|(_, _, child)| !hit.contains(child));
    left
}

/// A failed call is a valid answer; a failed file system is not.
fn alive<T>(result: Result<T>, what: &str) -> Result<Option<T>, String> {
    match result {
        Ok(v) => Ok(Some(v)),
        Err(Error::Io { what: why, .. }) => Err(format!("{what}: {why}")),
        Err(e) if e.to_string().is_empty() => Err(format!("{what}: an error without words")),
        Err(_) => Ok(None),
    }
}

fn look(fs: &Fs, ino: Ino) -> Result<(), String> {
    alive(fs.getattr(ino), "getattr")?;
    let mut buffer = vec![0; 9000];
    for at in [0, 5, 4000, 1 << 40, i64::MAX as u64 - 3, u64::MAX] {
        alive(fs.read(ino, at, &mut buffer), "read")?;
        alive(
            fs.with_contiguous(ino, at, 9000, &mut |b| assert!(b.len() <= 9000)),
            "with_contiguous",
        )?;
        for whence in [SeekWhence::Data, SeekWhence::Hole] {
            alive(fs.seek(ino, at, whence), "seek")?;
        }
        alive(fs.file_extents(ino, at, u64::MAX), "file_extents")?;
    }
    alive(fs.readlink(ino), "readlink")?;
    alive(fs.listxattr(ino), "listxattr")?;
    for name in [&b"user.small"[..], b"user.large", b"security.other"] {
        alive(fs.getxattr(ino, name), "getxattr")?;
    }
    let mut entries = 0;
    alive(
        fs.readdir(ino, 0, &mut |_| {
            entries += 1;
            std::ops::ControlFlow::Continue(())
        }),
        "readdir",
    )?;
    if entries > 1000 {
        return Err(format!("{entries} entries in a directory"));
    }
    for name in [&b"."[..], b"..", b"short", NEW] {
        alive(fs.lookup(ino, name), "lookup")?;
    }
    alive(fs.statfs(), "statfs")?;
    Ok(())
}

fn change(fs: &Fs, ino: Ino, at: &[(Ino, Vec<u8>)]) -> Result<(), String> {
    let bytes = pattern(3, 5000);
    for offset in [0, 100, 1 << 33] {
        alive(fs.write(&CX, ino, offset, &bytes[..600]), "write")?;
    }
    alive(fs.append(&CX, ino, &bytes), "append")?;
    for what in [
        Fallocate::Allocate { keep_size: true },
        Fallocate::Allocate { keep_size: false },
        Fallocate::ZeroRange { keep_size: false },
        Fallocate::PunchHole,
    ] {
        alive(fs.fallocate(&CX, ino, what, 300, 6000), "fallocate")?;
    }
    alive(fs.fill(ino, 0, 5000), "fill")?;
    for size in [10_000, 3, i64::MAX as u64, 0] {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        alive(fs.setattr(&CX, ino, &set), "truncate")?;
    }
    alive(fs.append(&CX, ino, b"x"), "append to nothing")?;
    let set = SetAttr {
        perm: Some(0o6711),
        uid: Some(5),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Time {
            sec: i64::MIN,
            nsec: 999_999_999,
        })),
        ..SetAttr::default()
    };
    alive(fs.setattr(&CX, ino, &set), "setattr")?;
    alive(fs.strip_suid(ino), "strip_suid")?;
    for (name, len) in [(&b"user.small"[..], 3), (b"user.large", 2000)] {
        alive(
            fs.setxattr(&CX, ino, name, &bytes[..len], XattrMode::Set),
            "setxattr",
        )?;
    }
    alive(fs.removexattr(ino, b"user.large"), "removexattr")?;
    // Uses the inode as a directory.
    alive(fs.create(&CX, ino, NEW, 0o644), "create")?;
    alive(fs.mkdir(&CX, ino, b"sub", 0o755), "mkdir")?;
    alive(
        fs.symlink(&CX, ino, b"sym", &bytes_like_a_path()),
        "symlink",
    )?;
    let flags = |exchange, whiteout| RenameFlags {
        exchange,
        whiteout,
        noreplace: false,
    };
    alive(
        fs.rename(&CX, ino, b"sub", Ino::ROOT, b"moved", flags(false, false)),
        "rename out",
    )?;
    alive(
        fs.rename(&CX, ino, NEW, Ino::ROOT, b"work", flags(true, false)),
        "exchange",
    )?;
    alive(
        fs.rename(&CX, ino, b"work", Ino::ROOT, NEW, flags(true, false)),
        "exchange back",
    )?;
    alive(
        fs.rename(&CX, Ino::ROOT, b"moved", ino, b"sub", flags(false, true)),
        "rename back",
    )?;
    // Uses the inode as an object with a name.
    alive(fs.link(ino, Ino::ROOT, b"another"), "link")?;
    alive(fs.fsync(ino, false), "fsync")?;
    alive(fs.sync(), "sync")?;
    alive(fs.unlink(Ino::ROOT, b"another"), "unlink of the new name")?;
    for (dir, name) in at {
        alive(
            fs.rename(&CX, *dir, name, *dir, b"elsewhere", flags(false, false)),
            "rename",
        )?;
        alive(
            fs.rename(&CX, *dir, b"elsewhere", *dir, name, flags(false, false)),
            "rename back",
        )?;
    }
    Ok(())
}

fn bytes_like_a_path() -> Vec<u8> {
    b"../".repeat(50)
}

fn remove(fs: &Fs, ino: Ino, at: &[(Ino, Vec<u8>)]) -> Result<(), String> {
    for name in [NEW, b"sub", b"sym"] {
        alive(fs.unlink(ino, name), "unlink in it")?;
        alive(fs.rmdir(ino, name), "rmdir in it")?;
    }
    for (dir, name) in at {
        alive(fs.unlink(*dir, name), "unlink")?;
        alive(fs.rmdir(*dir, name), "rmdir")?;
    }
    alive(fs.getattr(ino), "getattr of what was removed")?;
    fs.release(ino, 1);
    Ok(())
}

/// One case. `whole`: only the inode itself is compared (everything else is below it).
fn run(image: &Image, bytes: &[u8], ino: Ino, atime: AtimePolicy) -> Result<bool, String> {
    let internal = ino.0 >= Ino::INODE_TABLE.0 || ino < Ino::FIRST_FREE;
    let others = (!internal).then(|| spared(&image.model, ino));
    let same = |fs: &Fs, when: &str| match &others {
        Some(m) => m
            .compare(fs, &Reach::Nothing)
            .map_err(|e| format!("{when}: {e}")),
        None => Ok(()),
    };
    let mount = |bytes: &[u8]| match Fs::open(region_with(bytes), options(atime)) {
        Ok(fs) => Ok(Some(fs)),
        Err(Error::Corrupt { .. } | Error::NotMountable(_)) if internal => Ok(None),
        Err(e) => Err(format!("mount: {e}")),
    };
    let Some(fs) = mount(bytes)? else {
        return Ok(false);
    };
    let user = if internal { Ino::ROOT } else { ino };
    let at: Vec<_> = image
        .model
        .names
        .iter()
        .filter(|(_, _, child)| *child == user)
        .map(|(dir, name, _)| (*dir, name.clone()))
        .collect();
    look(&fs, user)?;
    same(&fs, "after looking")?;
    fs.hold(user).into_count();
    change(&fs, user, &at)?;
    same_files(&others, &fs)?;
    // The process dies: the next mount must cope with what it has stored.
    let after = bytes_of(fs.region());
    remove(&fs, user, &at)?;
    alive(fs.close_now(), "close")?;
    if let Some(fs) = mount(&after).map_err(|e| format!("second {e}"))? {
        look(&fs, user)?;
        remove(&fs, user, &at)?;
        alive(fs.close_now(), "second close")?;
    }
    Ok(true)
}

/// Files only: the test has added and removed entries in directories.
fn same_files(others: &Option<Model>, fs: &Fs) -> Result<(), String> {
    let Some(m) = others else { return Ok(()) };
    for (_, _, ino) in &m.names {
        let o = &m.objects[ino];
        if !matches!(o.body, Body::Dir(_)) {
            m.compare_object(fs, *ino, o, false, false)
                .map_err(|e| format!("after changes: {e}"))?;
        }
    }
    Ok(())
}

/// One inode of each kind, and its name in messages.
fn subjects(image: &Image) -> Vec<(String, Ino)> {
    let mut list = vec![
        ("the inode table".into(), Ino::INODE_TABLE),
        ("the inode groups".into(), Ino::INODE_GROUPS),
        ("the block groups".into(), Ino::BLOCK_GROUPS),
        ("the root".into(), Ino::ROOT),
        ("the orphan table".into(), Ino::ORPHANS),
    ];
    for wanted in [
        &b"keep"[..],
        b"many",
        b"hollow",
        b"short",
        b"sparse",
        b"ahead",
        b"attributes",
        b"near",
        b"far",
        b"pipe",
        b"device",
    ] {
        let found = image.model.names.iter().find(|(_, name, _)| name == wanted);
        let name = String::from_utf8_lossy(wanted).into_owned();
        list.push((name, found.expect("the image has it").2));
    }
    list
}

/// Runs cases and reports all failures.
fn all(what: &str, cases: impl IntoIterator<Item = Case>, image: &Image) {
    let dog = Watchdog::new(what, Duration::from_secs(30));
    let (mut failures, mut mounted, mut refused) = (Vec::new(), 0, 0);
    for (n, case) in cases.into_iter().enumerate() {
        let atime = [AtimePolicy::Relatime, AtimePolicy::StrictAtime][n % 2];
        let result = catch_unwind(AssertUnwindSafe(|| {
            run(image, &case.bytes, case.ino, atime)
        }));
        dog.touch();
        match result {
            Ok(Ok(true)) => mounted += 1,
            Ok(Ok(false)) => refused += 1,
            Ok(Err(why)) => failures.push(format!("{}: {why}", case.name)),
            Err(_) => failures.push(format!("{}: a panic", case.name)),
        }
    }
    println!("{what}: {mounted} cases mounted, {refused} refused");
    for f in failures.iter().take(40) {
        println!("{f}");
    }
    assert!(failures.is_empty(), "{} cases failed", failures.len());
    assert!(mounted > 50, "what is never mounted proves nothing");
}

/// Each `n`-th case, to save time; all with `PRAMFS_FLIP=all`.
fn each(n: usize) -> usize {
    match std::env::var("PRAMFS_FLIP") {
        Ok(how) if how == "all" => 1,
        _ => n,
    }
}

struct Case {
    name: String,
    ino: Ino,
    bytes: Vec<u8>,
}

fn field_cases(image: &Image) -> impl Iterator<Item = Case> + '_ {
    subjects(image).into_iter().flat_map(move |(name, ino)| {
        let (geo, homes) = homes(image, ino);
        let old = inode_at(&image.bytes, homes[0]);
        let fields = DiskInode::table().fields;
        let sized = fields
            .into_iter()
            .filter(|f| f.size <= 8 && f.name != "crc");
        sized.flat_map(move |f| {
            use zerocopy::{FromBytes, IntoBytes};
            let mut word = [0; 8];
            word[..f.size].copy_from_slice(&old.as_bytes()[f.offset..f.offset + f.size]);
            let (name, homes, geo) = (name.clone(), homes.clone(), geo.clone());
            let values = limits(f.name, f.size, u64::from_le_bytes(word));
            values.into_iter().map(move |value| {
                let mut raw = old.as_bytes().to_vec();
                raw[f.offset..f.offset + f.size].copy_from_slice(&value.to_le_bytes()[..f.size]);
                let d = DiskInode::read_from_bytes(&raw).expect("it has the size");
                let mut bytes = image.bytes.clone();
                store(&mut bytes, &homes, d, &geo, ino);
                Case {
                    name: format!("{} of {name} is {value:#x}", f.name),
                    ino,
                    bytes,
                }
            })
        })
    })
}

#[test]
fn inode_fields_at_limits_with_valid_checksum() {
    let image = image(4096, End::Clean).expect("the image is made");
    let some = field_cases(&image).step_by(each(2));
    all("fields of inodes", some, &image);
}

#[test]
fn inode_fields_at_limits_with_small_blocks_and_journal() {
    let image = image(512, End::Killed).expect("the image is made");
    // Otherwise replay would overwrite the inodes that the journal holds.
    let fs = Fs::open(region_with(&image.bytes), steady()).expect("it is undamaged");
    fs.sync().expect("it is undamaged");
    let image = Image {
        bytes: bytes_of(fs.region()),
        ..image
    };
    drop(fs);
    let some = field_cases(&image).step_by(each(6));
    all("fields of inodes, small blocks", some, &image);
}

/// Pointers with a valid check to forbidden places: outside of the region, to the
/// superblock, the journal, the inode itself, and with forbidden flags. Only the root
/// pointer of an inode is tried; lower pointers have the same checks.
#[test]
fn forbidden_pointers_with_valid_check_are_damage() {
    for block_size in [4096, 512] {
        let image = image(block_size, End::Clean).expect("the image is made");
        let mut cases = Vec::new();
        for (name, ino) in subjects(&image) {
            let (geo, homes) = homes(&image, ino);
            let old = inode_at(&image.bytes, homes[0]);
            let is_dir = FileType::from_mode(old.mode) == Some(FileType::Directory);
            let outside = [
                geo.blocks(),
                geo.blocks() + 1,
                1 << 31,
                1 << 32,
                (1 << 40) - 1,
                0xff_ffff_ff00,
            ];
            for block in outside {
                for flags in [0u64, 1 << 44, 1 << 45, 1 << 46, 7 << 44] {
                    for height in [0, 1, 2, old.height] {
                        let at = PtrAt {
                            fs_seed: geo.seed,
                            ino,
                            level: if is_dir { 16 } else { u32::from(height) },
                            index: 0,
                        };
                        let mut d = old;
                        (d.root, d.height) = (Ptr::new(Bno(block), flags, at).0, height);
                        let mut bytes = image.bytes.clone();
                        store(&mut bytes, &homes, d, &geo, ino);
                        cases.push(Case {
                            name: format!("{name}: block {block:#x}, flags {flags:#x}, {height}"),
                            ino,
                            bytes,
                        });
                    }
                }
            }
        }
        all("pointers", cases.into_iter().step_by(2), &image);
    }
}

/// Values that no file system can hold are reported as damage of that inode.
#[test]
fn impossible_times_and_sizes_are_inode_damage() {
    let image = image(4096, End::Clean).expect("the image is made");
    let find = |name: &[u8]| {
        let mut names = image.model.names.iter();
        names.find(|n| n.1 == name).expect("the image has it").2
    };
    type Spoil = fn(&mut DiskInode);
    let cases: [(&[u8], Spoil, &str); 7] = [
        (b"short", |d| d.mtime_nsec = 1_000_000_000, "nanoseconds"),
        (b"short", |d| d.ctime_nsec = u32::MAX, "nanoseconds"),
        (b"many", |d| d.atime_nsec = 1_000_000_000, "nanoseconds"),
        (b"short", |d| d.btime_nsec = 1_000_000_000, "nanoseconds"),
        (b"short", |d| d.size = 1 << 63, "size"),
        (b"many", |d| d.size = (256 << 10) / 32 + 1, "entries"),
        (b"sparse", |d| d.height = 7, "height"),
    ];
    for (name, spoil, says) in cases {
        let ino = find(name);
        let (geo, homes) = homes(&image, ino);
        let mut d = inode_at(&image.bytes, homes[0]);
        spoil(&mut d);
        let mut bytes = image.bytes.clone();
        store(&mut bytes, &homes, d, &geo, ino);
        let fs = Fs::open(region_with(&bytes), steady()).expect("only one inode is hurt");
        let e = fs.getattr(ino).expect_err(says);
        assert_eq!(e.errno(), libc::EUCLEAN);
        let why = e.to_string();
        assert!(
            why.contains(says) && why.contains(&ino.to_string()),
            "{why}"
        );
    }
}

/// A directory at the link limit rejects one more link and loses none.
#[test]
fn directory_at_link_limit_refuses_another() {
    let image = image(4096, End::Clean).expect("the image is made");
    let find = |name: &[u8]| {
        let mut names = image.model.names.iter();
        names.find(|n| n.1 == name).expect("the image has it").2
    };
    let (keep, work) = (find(b"keep"), find(b"work"));
    for nlink in [1 << 30, u32::MAX - 1, u32::MAX] {
        let (geo, homes) = homes(&image, keep);
        let mut d = inode_at(&image.bytes, homes[0]);
        d.nlink = nlink;
        let mut bytes = image.bytes.clone();
        store(&mut bytes, &homes, d, &geo, keep);
        let fs = Fs::open(region_with(&bytes), steady()).expect("it can be mounted");
        let full = |r: Result<()>| assert_eq!(r.expect_err("full").errno(), libc::EMLINK);
        full(fs.mkdir(&CX, keep, b"one more", 0o755).map(drop));
        let exchange = RenameFlags {
            exchange: true,
            ..RenameFlags::default()
        };
        full(fs.rename(&CX, work, b"hollow", keep, b"in", RenameFlags::default()));
        full(fs.rename(&CX, work, b"hollow", keep, b"short", exchange));
        full(fs.rename(&CX, keep, b"short", work, b"hollow", exchange));
        assert_eq!(fs.getattr(keep).expect("as before").nlink, nlink);
        fs.lookup(work, b"hollow").expect("it has not moved");
        fs.create(&CX, keep, b"a file has no need of it", 0o644)
            .expect("files do not count");
    }
}

/// A directory that counts zero entries but has some is not treated as empty: its files
/// would be lost, and would appear in the next directory with its inode number.
#[test]
fn directory_with_wrong_zero_count_is_not_empty() {
    let image = image(4096, End::Clean).expect("the image is made");
    let name_of = |wanted: &[u8]| {
        let mut names = image.model.names.iter();
        let found = names.find(|n| n.1 == wanted);
        found.map(|n| (n.0, n.2)).expect("the image has it")
    };
    // One leaf, and an index.
    for name in [&b"keep"[..], b"many"] {
        let (parent, dir) = name_of(name);
        let (geo, homes) = homes(&image, dir);
        let mut d = inode_at(&image.bytes, homes[0]);
        d.size = 0;
        // Only the count prevents its removal.
        d.nlink = 2;
        let mut bytes = image.bytes.clone();
        store(&mut bytes, &homes, d, &geo, dir);
        let fs = Fs::open(region_with(&bytes), steady()).expect("it can be mounted");
        let mut inside = image.model.names.iter().filter(|n| n.0 == dir);
        let (_, child, ino) = inside.next().expect("it has entries");
        assert_eq!(fs.lookup(dir, child).expect("it is there").ino, *ino);
        let over = |fs: &Fs| {
            fs.mkdir(&CX, parent, NEW, 0o755)?;
            fs.rename(&CX, parent, NEW, parent, name, RenameFlags::default())
        };
        let tries = [fs.rmdir(parent, name), over(&fs)];
        for (i, tried) in tries.into_iter().enumerate() {
            let e = tried.expect_err("it is not empty");
            // After damage was detected, nothing is changed any more.
            let says = matches!(e, Error::ReadOnly(_)) || e.errno() == libc::EUCLEAN;
            assert!(
                says && (i > 0 || e.to_string().contains("has entries")),
                "{e}"
            );
        }
        assert_eq!(fs.lookup(dir, child).expect("it is there").ino, *ino);
    }
}
