//! A sparse region on a host with too little room: operations that need room fail with
//! ENOSPC, and everything else works.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions};
use pramfs::{
    Access, Error, Fallocate, MountOptions, OpenOptions, Result,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_fsck::{CheckOptions, check_fs};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::host::{Host, sparse_copy};
use pramfs_tests::mounted::{self, Mounted, wait_until};
use pramfs_tests::region::{quiet, repeatable};

const MIB: u64 = 1 << 20;
const LEN: u64 = 1 << 30;
const OLD: &[u8] = &[0xa5; 300_000];

fn ctx() -> Credentials<'static> {
    Credentials::ROOT
}

/// A sparse region, formatted and mounted, with an existing file.
fn made(path: &Path, options: &FormatOptions) -> (Fs, Ino) {
    let region = RegionOptions::new().create(path, LEN).unwrap();
    format(&region, options).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let old = fs.create(&ctx(), Ino::ROOT, b"old", 0o644).unwrap().ino;
    fs.append(&Credentials::ROOT, old, OLD).unwrap();
    (fs, old)
}

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::NoSpace(_)))
}

/// Writes files until there is no room. Returns their names and total size.
fn fill(fs: &Fs, prefix: &str) -> (Vec<String>, u64) {
    let (mut names, mut bytes) = (Vec::new(), 0);
    // Less than the size that gets a leaf of 2 MiB.
    for len in [600_000, 64 << 10, 4096] {
        for i in 0.. {
            let name = format!("{prefix}-{len}-{i}");
            let file = match fs.create(&ctx(), Ino::ROOT, name.as_bytes(), 0o600) {
                Ok(file) => file.ino,
                full => {
                    assert!(is_full(&full), "{full:?}");
                    break;
                }
            };
            names.push(name);
            match fs.append(&Credentials::ROOT, file, &vec![i as u8 | 1; len]) {
                Ok(_) => bytes += len as u64,
                full => {
                    assert!(is_full(&full), "{full:?}");
                    break;
                }
            }
        }
    }
    (names, bytes)
}

/// Every operation that takes no room works.
fn works(fs: &Fs, old: Ino) {
    let mut bytes = vec![0; OLD.len()];
    assert_eq!(fs.read(old, 0, &mut bytes).unwrap(), OLD.len());
    assert!(bytes == OLD);
    assert_eq!(fs.lookup(Ino::ROOT, b"old").unwrap().ino, old);
    // The location of the file, and its attributes.
    assert_eq!(
        fs.write(&Credentials::ROOT, old, 5000, &OLD[..9000])
            .unwrap(),
        9000
    );
    let mode = SetAttr {
        perm: Some(0o640),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, old, &mode).unwrap();
    fs.rename(
        &ctx(),
        Ino::ROOT,
        b"old",
        Ino::ROOT,
        b"new",
        Default::default(),
    )
    .unwrap();
    fs.rename(
        &ctx(),
        Ino::ROOT,
        b"new",
        Ino::ROOT,
        b"old",
        Default::default(),
    )
    .unwrap();
    fs.statfs().unwrap();
    assert_eq!(fs.region().faults(), 0);
}

fn clean(fs: Fs) {
    assert_eq!(fs.region().faults(), 0);
    let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn full_host_fails_only_operations_that_need_room() {
    let Some(host) = Host::tmpfs("a full tmpfs", "size=64m") else {
        return;
    };
    for block_size in [4096, 512] {
        let path = host.at("region");
        let (fs, old) = made(&path, &repeatable(block_size));
        let (names, bytes) = fill(&fs, "first");
        // The host is filled up to the rest of a chunk.
        let left = host.free();
        assert!(
            bytes > 52 * MIB,
            "{bytes} of blocks of {block_size}, {left} left"
        );
        assert!(fs.statfs().unwrap().available * u64::from(block_size) < 2 * MIB);
        works(&fs, old);
        let (first, second) = names.split_at(names.len() / 2);
        for name in first {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        works(&fs, old);
        // Freed room can be reused at once, and after a trim, by other programs.
        let left = host.free();
        fs.trim(0, u64::MAX, 0).unwrap();
        assert!(host.free() > left + 20 * MIB, "{} {left}", host.free());
        works(&fs, old);
        let (again, bytes) = fill(&fs, "again");
        assert!(bytes > 20 * MIB, "{bytes}");
        works(&fs, old);
        for name in second.iter().chain(&again) {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        works(&fs, old);
        clean(fs);
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn failed_op_on_full_host_changes_nothing() {
    let Some(host) = Host::tmpfs("operations on a full tmpfs", "size=40m") else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let large = fs.create(&ctx(), Ino::ROOT, b"large", 0o644).unwrap().ino;
    fs.append(&Credentials::ROOT, large, &vec![3; 4 << 20])
        .unwrap();
    let other = host.fill("other");
    // Directories and empty files, until no room is left for inodes and names.
    for (kind, dir) in [("file", false), ("dir", true)] {
        let full = (0..1_000_000).find_map(|i| {
            let name = format!("{kind}-{i:0200}");
            let made = match dir {
                true => fs.mkdir(&ctx(), Ino::ROOT, name.as_bytes(), 0o755),
                false => fs.create(&ctx(), Ino::ROOT, name.as_bytes(), 0o644),
            };
            made.err()
        });
        assert!(matches!(full, Some(Error::NoSpace(_))), "{full:?}");
        works(&fs, old);
    }
    while fs.append(&Credentials::ROOT, old, &[9; 4096]).is_ok() {}
    let size = fs.getattr(old).unwrap().size;
    let allocate = Fallocate::Allocate { keep_size: false };
    assert!(is_full(&fs.fallocate(
        &Credentials::ROOT,
        old,
        allocate,
        0,
        64 << 20
    )));
    assert!(is_full(&fs.append(
        &Credentials::ROOT,
        old,
        &vec![9; 8 << 20]
    )));
    assert_eq!(fs.getattr(old).unwrap().size, size);
    fs.setattr(
        &Credentials::ROOT,
        old,
        &SetAttr {
            size: Some(OLD.len() as u64),
            ..SetAttr::default()
        },
    )
    .unwrap();
    works(&fs, old);
    // A leaf of 2 MiB is split, which takes a block of the reserve.
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, large, &size(MIB)).unwrap();
    fs.unlink(Ino::ROOT, b"large").unwrap();
    works(&fs, old);
    host.remove(other);
    fs.append(&Credentials::ROOT, old, &vec![9; 8 << 20])
        .unwrap();
    clean(fs);
}

#[test]
fn host_filled_by_others_is_full_only_meanwhile() {
    let Some(host) = Host::tmpfs("a host that others fill", "size=64m") else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let file = fs.create(&ctx(), Ino::ROOT, b"file", 0o644).unwrap().ino;
    for round in 0..4u64 {
        fs.append(&Credentials::ROOT, file, &vec![1; 3 << 20])
            .unwrap();
        let other = host.fill("other");
        let (names, bytes) = fill(&fs, &format!("round-{round}"));
        // Later rounds use the room that earlier ones have freed.
        assert!(round > 0 || bytes <= 12 * MIB, "{bytes}");
        works(&fs, old);
        for name in &names {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        host.remove(other);
    }
    clean(fs);
}

/// A write goes as far as there is room, as in a full region.
#[test]
fn write_on_full_host_is_short() {
    let Some(host) = Host::tmpfs("writes on a full tmpfs", "size=40m") else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let make = |name: &[u8]| fs.create(&ctx(), Ino::ROOT, name, 0o644).unwrap().ino;
    let (half, large, holes, source) = (make(b"half"), make(b"large"), make(b"h"), make(b"s"));
    fs.append(&Credentials::ROOT, half, &vec![1; 512 << 10])
        .unwrap();
    fs.append(&Credentials::ROOT, source, &vec![6; 1 << 20])
        .unwrap();
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, source, &size(9 * MIB))
        .unwrap();
    for page in [1, 3] {
        fs.write(&Credentials::ROOT, holes, page * 4096, &[1; 4096])
            .unwrap();
    }
    // The host has some room left, and all of it is used.
    let most = host.free();
    let n = fs
        .write(&Credentials::ROOT, large, 0, &vec![3; 64 << 20])
        .unwrap();
    assert_eq!(fs.getattr(large).unwrap().size, n as u64);
    assert!(n as u64 > most - 4 * MIB && n < 40 << 20, "{n} {most}");
    host.fill("other");
    fill(&fs, "rest");
    while fs.append(&Credentials::ROOT, large, &[4; 4096]).is_ok() {}

    let bytes = vec![2; 1 << 20];
    let before = fs.getattr(half).unwrap().change;
    assert_eq!(
        fs.write(&Credentials::ROOT, half, 0, &bytes).unwrap(),
        512 << 10
    );
    assert!(fs.getattr(half).unwrap().change > before);
    // Blocks of the source, and its hole: only as far as blocks of the target exist.
    for from in [0, 2 * MIB] {
        let n = fs
            .copy_range(&Credentials::ROOT, (source, from), (half, 0), MIB)
            .unwrap();
        assert_eq!(n, 512 << 10, "from {from}");
    }
    let mut found = vec![7; 1 << 20];
    assert_eq!(fs.read(half, 0, &mut found).unwrap(), 512 << 10);
    assert!(found[..512 << 10].iter().all(|b| *b == 0));

    // Of the mapped pages, those with blocks.
    let refused = fs.write_back(holes, 0, &[5; 4 * 4096]);
    assert!(is_full(&refused), "{refused:?}");
    let mut found = [0; 4 * 4096];
    assert_eq!(fs.read(holes, 0, &mut found).unwrap(), found.len());
    let pages: Vec<u8> = found.chunks(4096).map(|page| page[0]).collect();
    assert_eq!(pages, [0, 5, 0, 5]);
    works(&fs, old);
    clean(fs);
}

/// An operation over several groups runs again for want of room. It must find the groups that have got
/// room, and not ask for others at each turn: with blocks of 512 bytes, a group has 2 MiB.
#[test]
fn op_over_several_groups_takes_only_the_room_that_it_needs() {
    for block_size in [512, 1024, 2048, 4096] {
        let len = 16 * MIB;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let region = RegionOptions::new().create(&path, 512 * MIB).unwrap();
        format(&region, &repeatable(block_size)).unwrap();
        let volume = Fs::open(region, quiet()).unwrap();
        let file = volume
            .create(&ctx(), Ino::ROOT, b"file", 0o644)
            .unwrap()
            .ino;
        let taken = || fs::metadata(&path).unwrap().blocks() * 512;
        let before = taken();
        let what = Fallocate::Allocate { keep_size: false };
        volume.fallocate(&ctx(), file, what, 0, len).unwrap();
        let more = taken() - before;
        assert!(more <= len * 3, "{block_size}: {} MiB", more / MIB);
        volume.close().unwrap();
    }
}

/// A failed operation leaves the room of the host to other programs.
/// Each lane allocates in another part of the region, the last ones near its end.
#[test]
fn failed_op_for_lack_of_room_takes_none() {
    for lane in 0..16 {
        std::thread::spawn(move || {
            set_thread_lane(lane);
            fail_for_lack_of_room();
        })
        .join()
        .expect("no lane keeps room");
    }
}

fn fail_for_lack_of_room() {
    let Some(host) = Host::tmpfs("a wish that is too large", "size=64m") else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let free = host.free();
    let allocate = Fallocate::Allocate { keep_size: false };
    assert!(is_full(&fs.fallocate(
        &Credentials::ROOT,
        old,
        allocate,
        0,
        900 * MIB
    )));
    assert!(is_full(&fs.append(
        &Credentials::ROOT,
        old,
        &vec![1; 100 << 20]
    )));
    assert!(free - host.free() <= 4 * MIB, "{free} {}", host.free());
    assert_eq!(fs.getattr(old).unwrap().size, OLD.len() as u64);
    works(&fs, old);
    // The part that there is room for.
    fs.fallocate(&Credentials::ROOT, old, allocate, 0, 40 * MIB)
        .unwrap();
    assert!(fill(&fs, "rest").1 > 8 * MIB);
    works(&fs, old);
    clean(fs);
}

/// The blocks of a file removed by a record that is not dead yet still count as used.
#[test]
fn fallocate_into_room_of_file_just_removed_succeeds() {
    let Some(host) = Host::tmpfs("room just freed", "size=64m") else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let large = fs.create(&ctx(), Ino::ROOT, b"large", 0o644).unwrap().ino;
    let allocate = Fallocate::Allocate { keep_size: false };
    fs.fallocate(&ctx(), large, allocate, 0, 40 * MIB).unwrap();
    let other = fs.create(&ctx(), Ino::ROOT, b"other", 0o644).unwrap().ino;
    let request = || fs.fallocate(&ctx(), other, allocate, 0, 40 * MIB);
    assert!(is_full(&request()), "the host has 64 MiB");
    fs.unlink(Ino::ROOT, b"large").unwrap();
    request().unwrap();
    works(&fs, old);
    clean(fs);
}

/// A huge page of the host that extends past EOF makes a file look fully allocated.
#[test]
fn hole_is_found_despite_huge_page_past_end() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let Some(host) = Host::tmpfs("a tmpfs of huge pages", "size=64m,huge=always") else {
        return;
    };
    let path = host.at("region");
    let file = fs::File::options().create_new(true).write(true).open(&path);
    let file = file.unwrap();
    file.set_len(3 * MIB).unwrap();
    file.write_all_at(&[1], 0).unwrap();
    file.write_all_at(&[1], 5 << 19).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8192, 4096).unwrap();
    let has = file.metadata().unwrap().blocks() * 512;
    if has < 3 * MIB {
        println!("SKIPPED: this kernel gives no huge pages, {has} bytes");
        return;
    }
    let region = RegionOptions::new().open(&path).unwrap();
    let is_hole = || rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(8192)) == Ok(8192);
    if !is_hole() {
        println!("SKIPPED: the kernel has put a huge page in place of the hole");
        return;
    }
    region.take_room(8192, 4096).unwrap();
    assert!(!is_hole(), "of {has} bytes");
}

/// Opens a region. Until its exec, a child of another test holds a copy of the descriptor that was
/// closed here, and with it the lock.
fn open_when_free(path: &Path) -> Region {
    let mut opened = None;
    let free = wait_until(|| match RegionOptions::new().open(path) {
        Err(e) if e.errno() == libc::EBUSY => false,
        region => {
            opened = Some(region.unwrap());
            true
        }
    });
    assert!(free, "{} stays in use", path.display());
    opened.unwrap()
}

/// Committed records are replayed and files are removed although the host has no free
/// page.
#[test]
fn crash_on_full_host_recovers_on_full_host() {
    let Some(host) = Host::tmpfs("recovery on a full tmpfs", "size=48m") else {
        return;
    };
    let path = host.at("region");
    let (fs, old) = made(&path, &repeatable(4096));
    let (names, _) = fill(&fs, "file");
    host.fill("other");
    let half = names.len() / 2;
    for name in &names[..half] {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.force_shutdown().unwrap();
    drop(fs);
    let fs = Fs::open(open_when_free(&path), quiet()).unwrap();
    assert!(!fs.recovery().was_clean);
    works(&fs, old);
    for name in &names[half..] {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    assert!(fill(&fs, "again").1 > 20 * MIB);
    works(&fs, old);
    clean(fs);
}

/// Blocks in use whose zero pages became holes in the copy.
#[test]
fn overwrite_of_sparse_copy_hole_takes_room_first() {
    let Some(host) = Host::tmpfs("a sparse copy on a full tmpfs", "size=96m") else {
        return;
    };
    let original = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = original.path().join("region");
    let region_len = 32 * MIB;
    let made = RegionOptions::new().create(&region, region_len).unwrap();
    format(&made, &repeatable(4096)).unwrap();
    let fs = Fs::open(made, quiet()).unwrap();
    let old = fs.create(&ctx(), Ino::ROOT, b"old", 0o644).unwrap().ino;
    fs.append(&Credentials::ROOT, old, OLD).unwrap();
    let zeros = fs.create(&ctx(), Ino::ROOT, b"zeros", 0o644).unwrap().ino;
    fs.append(&Credentials::ROOT, zeros, &vec![0; 8 << 20])
        .unwrap();
    fs.close().unwrap();
    let copy = host.at("copy");
    sparse_copy(&region, &copy);

    let fs = Fs::open(RegionOptions::new().open(&copy).unwrap(), quiet()).unwrap();
    let other = host.fill("other");
    let written = fs.write(&Credentials::ROOT, zeros, 4 << 20, &[5; 100_000]);
    assert!(is_full(&written), "{written:?}");
    works(&fs, old);
    host.remove(other);
    assert_eq!(
        fs.write(&Credentials::ROOT, zeros, 4 << 20, &[5; 100_000])
            .unwrap(),
        100_000
    );
    // A view reserves room for its whole range when it is created.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/zeros")
        .unwrap();
    let view = file.map(0..8 << 20, Access::Write).unwrap();
    let other = host.fill("other");
    for at in (0..8 << 20).step_by(4096) {
        view.store::<u64>(at, 77).unwrap();
    }
    view.persist(0..8 << 20).unwrap();
    drop((view, file));
    host.remove(other);
    clean(fs);
}

#[test]
fn full_disk_fails_only_operations_that_need_room() {
    let Some(host) = Host::ext4("a full ext4", 64 << 20) else {
        return;
    };
    let (fs, old) = made(&host.at("region"), &repeatable(4096));
    let (names, bytes) = fill(&fs, "file");
    assert!(bytes > 20 * MIB, "{bytes}");
    host.fill("other");
    works(&fs, old);
    for name in &names {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    assert!(fill(&fs, "again").1 > 20 * MIB);
    works(&fs, old);
    clean(fs);
}

const CHILD: &str = "PRAMFS_TEST_HOST_FULL";

fn child(test: &str, what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(CHILD, what);
    command
}

/// Runs as a user: root has no quota.
#[test]
fn exceeded_host_quota_acts_as_full_host() {
    const USER: u32 = 4242;
    if let Some(path) = std::env::var_os(CHILD) {
        let path = Path::new(&path);
        let (fs, old) = made(path, &repeatable(4096));
        let (names, bytes) = fill(&fs, "file");
        assert!((8 * MIB..16 * MIB).contains(&bytes), "{bytes}");
        // The host itself is not full.
        let host = rustix::fs::statvfs(path).unwrap();
        assert!(host.f_bavail * host.f_frsize > 24 * MIB);
        works(&fs, old);
        // All stores reach the host: no page is rejected later.
        fs.sync().unwrap();
        for name in &names {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        clean(fs);
        return;
    }
    for (kind, host) in Host::with_quota("a quota", USER, 16 * MIB) {
        let path = host.at("region");
        let out = child(
            "exceeded_host_quota_acts_as_full_host",
            path.to_str().unwrap(),
        )
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{kind}: {said}");
        // tests/vm/guest.sh looks for this line.
        println!("a quota on {kind} was met");
    }
}

/// Programs that open a region get an error for a failing page, not a signal, unless they
/// have asked for the signal.
#[test]
fn failing_page_is_error_by_default() {
    if let Some(guard) = std::env::var_os(CHILD) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("region");
        let options = RegionOptions::new().fault_guard(guard == "guarded");
        let region = options.create(&path, MIB).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        drop(dir);
        assert!(region.load_u64(8192).is_err());
        return;
    }
    let test = "failing_page_is_error_by_default";
    let run = |what| child(test, what).output().unwrap().status;
    assert!(run("guarded").success());
    assert_eq!(run("refused").signal(), Some(libc::SIGBUS));
}

#[test]
fn mount_on_full_host_lists_reads_removes_trims() {
    if !mounted::available("a mount on a full host") {
        return;
    }
    let Some(host) = Host::tmpfs("a mount on a full host", "size=64m") else {
        return;
    };
    let options = FormatOptions::default();
    let m = Mounted::formatted_in(host.path(), &mounted::program(), LEN, &options);
    m.mount("");
    fs::write(m.at("old"), OLD).unwrap();
    let mut full = None;
    for i in 0..2000 {
        if let Err(e) = fs::write(m.at(format!("fill-{i}")), vec![1; 200_000]) {
            full = Some(e);
            break;
        }
    }
    let full = full.expect("64 MiB took 400 MB");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{full}");
    let space = rustix::fs::statvfs(m.path()).unwrap();
    assert!(space.f_bavail * space.f_frsize < 2 * MIB);
    let names = || fs::read_dir(m.path()).unwrap().count();
    let before = names();
    assert!(fs::read(m.at("old")).unwrap() == OLD);
    for i in 0..before / 2 {
        fs::remove_file(m.at(format!("fill-{i}"))).unwrap();
    }
    assert_eq!(names(), before - before / 2);
    let left = host.free();
    let trimmed = Command::new("fstrim").arg(m.path()).output().unwrap();
    assert!(trimmed.status.success(), "{trimmed:?}");
    assert!(host.free() > left + 16 * MIB);
    fs::write(m.at("again"), vec![2; 8 << 20]).unwrap();
    assert!(fs::read(m.at("old")).unwrap() == OLD);
    m.unmount();
    let region = RegionOptions::new().open(m.region()).unwrap();
    clean(Fs::open(region, MountOptions::default()).unwrap());
}
