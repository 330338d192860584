//! A check finds nothing in file systems that were used and unmounted.

use crate::{CheckOptions, Report, Severity, check, check_fs};
use pramfs::inode::Credentials;
use pramfs::{Error, MountOptions, inode::Fs};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, SimBackend};
use pramfs_medium::types::*;

pub const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

pub fn options(block_size: u32) -> FormatOptions {
    FormatOptions {
        block_size,
        uuid: Some([7; 16]),
        hash_seed: Some([3; 16]),
        ..FormatOptions::default()
    }
}

pub fn quiet() -> MountOptions {
    MountOptions {
        background: false,
        ..MountOptions::default()
    }
}

/// Returns a formatted region that was full of stale bytes before.
pub fn fresh(len: usize, block_size: u32) -> Region {
    let region = Region::new("test", HeapBackend::boxed(len));
    let stale = vec![0xd7; len];
    region.window().store_unflushed(0, &stale).unwrap();
    format(&region, &options(block_size)).unwrap();
    region
}

pub fn run(region: &Region) -> Report {
    check(region, &CheckOptions::default())
}

#[track_caller]
pub fn assert_clean(region: &Region) -> Report {
    let report = run(region);
    assert!(report.is_clean(), "{report}");
    report
}

/// Pseudorandom numbers, the same in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        pramfs_medium::media::checksum::mix64(self.0) % n
    }
}

struct Player {
    rng: Rng,
    dirs: Vec<Ino>,
    names: Vec<(Ino, Vec<u8>)>,
    pinned: Vec<Ino>,
}

impl Player {
    fn new(seed: u64) -> Player {
        Player {
            rng: Rng(seed),
            dirs: vec![Ino::ROOT],
            names: Vec::new(),
            pinned: Vec::new(),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let len = if self.rng.below(20) == 0 {
            255
        } else {
            1 + self.rng.below(30)
        } as usize;
        (0..len)
            .map(|_| b"abcdefgh\xff\x01"[self.rng.below(10) as usize])
            .collect()
    }

    fn pick(&mut self) -> Option<(Ino, Vec<u8>)> {
        let n = self.names.len() as u64;
        (n > 0).then(|| self.names[self.rng.below(n) as usize].clone())
    }

    fn step(&mut self, fs: &Fs) -> Result<(), Error> {
        let ctx = Credentials::ROOT;
        let dir = self.dirs[self.rng.below(self.dirs.len() as u64) as usize];
        let name = self.name();
        match self.rng.below(20) {
            0..=3 => {
                fs.create(&ctx, dir, &name, 0o644)?;
                self.names.push((dir, name));
            }
            4 => {
                let a = fs.mkdir(&ctx, dir, &name, 0o755)?;
                self.dirs.push(a.ino);
                self.names.push((dir, name));
            }
            5 => {
                let target = vec![b't'; 1 + self.rng.below(600) as usize];
                fs.symlink(&ctx, dir, &name, &target)?;
                self.names.push((dir, name));
            }
            6 => {
                fs.mknod(&ctx, dir, &name, libc::S_IFCHR | 0o600, 0x0103)?;
                self.names.push((dir, name));
            }
            op => {
                let Some((parent, old)) = self.pick() else {
                    return Ok(());
                };
                let a = fs.lookup(parent, &old)?;
                self.change(fs, op, parent, &old, &a, dir, name)?;
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one random operation")]
    fn change(
        &mut self,
        fs: &Fs,
        op: u64,
        parent: Ino,
        old: &[u8],
        a: &Attr,
        dir: Ino,
        name: Vec<u8>,
    ) -> Result<(), Error> {
        let ctx = Credentials::ROOT;
        let big = self.rng.below(400_000);
        match op {
            7..=9 => {
                let data = vec![0x11; self.rng.below(60_000) as usize];
                fs.write(&Credentials::ROOT, a.ino, big, &data)?;
            }
            10 => {
                let how = [
                    Fallocate::Allocate { keep_size: true },
                    Fallocate::Allocate { keep_size: false },
                    Fallocate::PunchHole,
                    Fallocate::ZeroRange { keep_size: true },
                ];
                let how = how[self.rng.below(4) as usize];
                fs.fallocate(
                    &Credentials::ROOT,
                    a.ino,
                    how,
                    big,
                    1 + self.rng.below(200_000),
                )?;
            }
            11 => {
                let set = SetAttr {
                    size: Some(big),
                    ..SetAttr::default()
                };
                fs.setattr(&Credentials::ROOT, a.ino, &set)?;
            }
            12 => {
                fs.link(a.ino, dir, &name)?;
                self.names.push((dir, name));
            }
            13 => {
                let flags = RenameFlags {
                    exchange: self.rng.below(3) == 0,
                    whiteout: false,
                    noreplace: false,
                };
                let flags = RenameFlags {
                    whiteout: !flags.exchange && self.rng.below(4) == 0,
                    ..flags
                };
                match self.pick() {
                    Some((d, n)) if flags.exchange || self.rng.below(3) == 0 => {
                        fs.rename(&ctx, parent, old, d, &n, flags)?;
                    }
                    _ => {
                        fs.rename(&ctx, parent, old, dir, &name, flags)?;
                        self.names.push((dir, name));
                    }
                }
            }
            14..=15 => {
                let len = [3, 200, 3000, 30_000][self.rng.below(4) as usize];
                let attr = format!("user.{}", self.rng.below(40));
                fs.setxattr(
                    &Credentials::ROOT,
                    a.ino,
                    attr.as_bytes(),
                    &vec![9; len],
                    XattrMode::Set,
                )?;
            }
            16 => {
                let attr = format!("user.{}", self.rng.below(40));
                fs.removexattr(a.ino, attr.as_bytes())?;
            }
            17 if self.rng.below(4) == 0 => {
                fs.hold(a.ino).into_count();
                self.pinned.push(a.ino);
            }
            _ => {
                if a.kind == FileType::Directory {
                    fs.rmdir(parent, old)?;
                    self.dirs.retain(|d| *d != a.ino);
                } else {
                    fs.unlink(parent, old)?;
                }
            }
        }
        Ok(())
    }
}

#[test]
fn fresh_file_system_of_any_size_is_clean() {
    for block_size in BLOCK_SIZES {
        for len in [256 << 10, (1 << 20) + 4096, 40 << 20] {
            let report = assert_clean(&fresh(len, block_size));
            assert_eq!((report.counts.inodes, report.counts.directories), (1, 1));
        }
    }
}

#[test]
fn random_operations_leave_clean_file_system() {
    for block_size in BLOCK_SIZES {
        for (round, len) in [1 << 20, 5 << 20, 48 << 20].into_iter().enumerate() {
            let mut region = fresh(len, block_size);
            let mut p = Player::new(round as u64 * 1000 + u64::from(block_size));
            for mount in 0..4u32 {
                let fs = Fs::open(region, quiet()).unwrap();
                for i in 0..500 {
                    set_thread_lane(mount + i / 50);
                    if let Err(
                        e @ (Error::Corrupt { .. } | Error::Io { .. } | Error::ReadOnly(_)),
                    ) = p.step(&fs)
                    {
                        panic!("block size {block_size}, {len} bytes: {e}");
                    }
                }
                // Some stay pinned at the unmount: orphans on the medium.
                for ino in p.pinned.drain(..) {
                    if ino.0 % 3 != 0 {
                        fs.release(ino, 1);
                    }
                }
                let (back, report) = check_fs(fs, &CheckOptions::default()).unwrap();
                assert!(
                    report.is_clean(),
                    "block size {block_size}, {len} bytes, mount {mount}:\n{report}"
                );
                region = back.expect("nothing else holds the region");
            }
        }
    }
}

#[test]
fn emptied_large_directory_frees_all_blocks() {
    for block_size in BLOCK_SIZES {
        let region = fresh(64 << 20, block_size);
        let fs = Fs::open(region, quiet()).unwrap();
        let ctx = Credentials::ROOT;
        let dir = fs.mkdir(&ctx, Ino::ROOT, b"d", 0o755).unwrap().ino;
        let name = |i: u32| format!("{i:05}{}", "x".repeat(i as usize % 60));
        for i in 0..6000 {
            set_thread_lane(i / 1000);
            fs.create(&ctx, dir, name(i).as_bytes(), 0o600).unwrap();
        }
        let (region, report) = check_fs(fs, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((report.counts.files, report.counts.entries), (6000, 6001));
        let fs = Fs::open(region.unwrap(), quiet()).unwrap();
        for i in 0..6000 {
            fs.unlink(dir, name(i).as_bytes()).unwrap();
        }
        fs.rmdir(Ino::ROOT, b"d").unwrap();
        let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.inodes, 1);
    }
}

#[test]
fn huge_leaves_count_all_their_blocks() {
    let fs = Fs::open(fresh(64 << 20, 4096), quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let ino = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&Credentials::ROOT, ino, 0, &vec![1; 9 << 20])
        .unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::PunchHole,
        3 << 20,
        100_000,
    )
    .unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::Allocate { keep_size: true },
        16 << 20,
        8 << 20,
    )
    .unwrap();
    let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
}

#[test]
fn check_stops_at_live_records() {
    let sim = SimBackend::new(1 << 20).unwrap();
    let region = || Region::new("test", Box::new(sim.clone()));
    format(&region(), &options(1024)).unwrap();
    let fs = Fs::open(region(), quiet()).unwrap();
    fs.create(&Credentials::ROOT, Ino::ROOT, b"f", 0o644)
        .unwrap();
    let report = run(&region());
    let codes: Vec<_> = report.issues().map(|i| i.code()).collect();
    assert_eq!(codes, ["not-unmounted", "live-records"]);
    assert!(!report.complete && !report.is_clean());
    assert_eq!(report.worst(), Some(Severity::Error));
    fs.close().unwrap();
    let report = assert_clean(&region());
    assert_eq!((report.counts.files, report.counts.entries), (1, 1));
}

/// Regression: the next mount treated the leaf that an emptied directory keeps as
/// damaged.
#[test]
fn emptied_directory_is_usable_after_remount() {
    for block_size in BLOCK_SIZES {
        let ctx = Credentials::ROOT;
        let fs = Fs::open(fresh(1 << 20, block_size), quiet()).unwrap();
        let dir = fs.mkdir(&ctx, Ino::ROOT, b"d", 0o755).unwrap().ino;
        fs.create(&ctx, dir, b"f", 0o644).unwrap();
        fs.unlink(dir, b"f").unwrap();
        let (region, report) = check_fs(fs, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report}");
        let fs = Fs::open(region.unwrap(), quiet()).unwrap();
        assert!(matches!(fs.lookup(dir, b"f"), Err(Error::NotFound)));
        fs.create(&ctx, dir, b"g", 0o644).unwrap();
        fs.unlink(dir, b"g").unwrap();
        fs.rmdir(Ino::ROOT, b"d").unwrap();
        let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

/// Takes the memory at some moment, as the death of a process leaves it.
#[test]
fn killed_process_image_is_clean_after_mount() {
    for block_size in BLOCK_SIZES {
        let sim = SimBackend::new(3 << 20).unwrap();
        let region = |sim: &SimBackend| Region::new("test", Box::new(sim.clone()));
        format(&region(&sim), &options(block_size)).unwrap();
        let fs = Fs::open(region(&sim), quiet()).unwrap();
        let mut p = Player::new(u64::from(block_size) + 77);
        for i in 0..600 {
            set_thread_lane(i / 7 % 3);
            if let Err(e @ (Error::Corrupt { .. } | Error::Io { .. } | Error::ReadOnly(_))) =
                p.step(&fs)
            {
                panic!("block size {block_size}: {e}");
            }
            if i % 10 == 0 {
                let left = SimBackend::from_image(&sim.image()).unwrap();
                let fs = Fs::open(region(&left), quiet()).unwrap();
                fs.close().unwrap();
                let report = run(&region(&left));
                assert!(
                    report.is_clean(),
                    "block size {block_size}, step {i}:\n{report}"
                );
                assert_eq!(report.counts.orphans, 0);
            }
        }
    }
}
