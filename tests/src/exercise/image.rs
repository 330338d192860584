//! Any bytes as a region, used as a careless program would.
//!
//! The region is checked as `pramfs check` does, mounted, walked to its last
//! name, changed all over, left (by an unmount or a death), checked, mounted
//! again, emptied and checked once more.
//!
//! What must hold of every image: no panic, no hang, no more memory than the
//! region can explain; errors are those that damage, a full region or the
//! operation itself can be the reason of; a directory does not give more
//! entries than it has room for; a read-only mount changes nothing. Of an image
//! that the check finds clean more must hold: it can be mounted, nothing in it
//! turns out to be damaged, and it is clean again after all that was done.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use pramfs::{
    AtimePolicy, Clock, Error, ErrorPolicy, Fallocate, FileType, MountOptions, RenameFlags, Result,
    SeekWhence, XattrMode,
    inode::{Attr, Credentials, Fs, Ino, LeaseMode, SetAttr, SetTime, Time},
};
use pramfs_fsck::{CheckOptions, Report, check, check_fs};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, RegionView};

use super::input::{Case, How};
use super::repair::repair;
use crate::random::Random;

/// Operations that change something, for each mount.
const CHANGES: u32 = 60;
/// Names that a walk remembers, to be changed later.
const REMEMBERED: usize = 2000;
/// Slots of the lease table that other processes may hold.
const SLOTS: std::ops::Range<u32> = 0..32;
/// Pieces of a file that are read, at most.
const PIECES: usize = 64;

/// What became of a case, for those who want to know how far cases get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused.
    Refused,
    /// It was mounted, and damaged.
    Damaged,
    /// The check found nothing.
    Clean,
}

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: 1_700_000_200,
            nsec: 5,
        }
    }
}

fn options(how: How, read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        errors: if how.stops_at_damage() {
            ErrorPolicy::RemountRo
        } else {
            ErrorPolicy::Continue
        },
        atime: AtimePolicy::Relatime,
        background: false,
        cache_bytes: if how.small_cache() { 1 << 10 } else { 1 << 20 },
        clock: Arc::new(Stopped),
        ..MountOptions::default()
    }
}

fn region_with(image: &[u8]) -> Region {
    let region = Region::new("image", HeapBackend::boxed(image.len()));
    let stored = region.window().store_unflushed(0, image);
    stored.expect("the image fits its own length");
    region
}

/// Lets other processes hold the locks of slots.
fn map_leased(region: &Region, how: How) {
    SLOTS.for_each(|slot| region.pretend_lease(slot, how.mapped(slot)));
}

fn bytes_of<'r>(region: impl Into<RegionView<'r>>) -> Vec<u8> {
    let region = region.into();
    let mut bytes = vec![0; region.len() as usize];
    let read = region.read(0, &mut bytes);
    read.expect("the region has its own length");
    bytes
}

fn checked(region: &Region) -> Report {
    let report = check(
        region,
        &CheckOptions {
            max_findings: 1000,
            ..CheckOptions::default()
        },
    );
    assert!(
        report.complete || !report.findings.is_empty(),
        "a check that was not completed says why"
    );
    for f in &report.findings {
        assert!(!f.to_string().is_empty());
    }
    report
}

/// Runs a case.
///
/// # Panics
/// When something happens that must not happen to any image.
pub fn image(input: &[u8]) -> Outcome {
    set_thread_lane(0);
    let case = Case::decode(input);
    let region = region_with(&case.bytes);
    repair(&region, case.repair);
    let clean = checked(&region).is_clean();
    map_leased(&region, case.how);
    if case.how.read_only() {
        return look(region, case.how, clean);
    }
    let Some(fs) = open(region, case.how, false, clean) else {
        return Outcome::Refused;
    };
    let mut user = User::new(&fs, clean, case.seed);
    user.walk();
    if case.how.grants() {
        user.lease();
    }
    user.change(CHANGES);
    user.walk();
    let Some((region, clean)) = leave(fs, case.how, clean) else {
        return Outcome::Damaged;
    };
    // What was alive in the journal is dead by now, so that the check sees all.
    let Some(fs) = open(region, case.how, false, clean) else {
        return Outcome::Damaged;
    };
    let mut user = User::new(&fs, clean, case.seed.wrapping_add(1));
    user.walk();
    user.change(10);
    user.walk();
    user.remove_all();
    user.walk();
    // The other processes end.
    SLOTS.for_each(|slot| fs.region_to_damage().pretend_lease(slot, false));
    if !fs.is_read_only() {
        let ended = user.may("ending leases", fs.end_released_leases());
        assert!(!clean || ended.is_some() && fs.leases().is_empty());
    }
    match leave(fs, How(0), clean) {
        Some((_, true)) => Outcome::Clean,
        _ => Outcome::Damaged,
    }
}

/// A read-only mount.
fn look(region: Region, how: How, clean: bool) -> Outcome {
    let before = clean.then(|| bytes_of(&region));
    let Some(fs) = open(region, how, true, clean) else {
        return Outcome::Refused;
    };
    let mut user = User::new(&fs, clean, 0);
    user.walk();
    let refused = fs.create(&Credentials::ROOT, Ino::ROOT, b"new", 0o600);
    assert!(
        refused.is_err(),
        "a read-only mount has made a file: {refused:?}"
    );
    if let Some(before) = before {
        assert!(
            bytes_of(fs.region()) == before,
            "a read-only mount has changed a clean image"
        );
    }
    let closed = fs.close();
    assert!(!clean || closed.is_ok(), "unmount: {closed:?}");
    if clean {
        Outcome::Clean
    } else {
        Outcome::Damaged
    }
}

fn open(region: Region, how: How, read_only: bool, clean: bool) -> Option<Fs> {
    match Fs::open(region, options(how, read_only)) {
        Ok(fs) => {
            let damage = &fs.recovery().damage;
            assert!(
                !clean || damage.is_empty(),
                "the check finds nothing, and the mount damage: {damage:?}"
            );
            Some(fs)
        }
        Err(e @ (Error::NotMountable(_) | Error::Corrupt { .. })) => {
            assert!(!clean, "the check finds nothing, and the mount: {e}");
            None
        }
        Err(e) => panic!("refused for a reason that is none: {e}"),
    }
}

/// Unmounts, or lets the process die and unmounts what it has left. The region,
/// and whether it is clean; nothing where forged bits of the bitmap have given
/// the superblock to a file, so that no mount is possible any more.
fn leave(fs: Fs, how: How, was_clean: bool) -> Option<(Region, bool)> {
    if how.killed() {
        let region = region_with(&bytes_of(fs.region()));
        map_leased(&region, how);
        // What the old engine does from here on, it does to its own memory.
        drop(fs);
        let fs = open(region, how, false, was_clean)?;
        return leave(fs, How(how.0 & !4), was_clean);
    }
    // The region comes back from `check_fs` only if the unmount succeeds.
    let copy = (!was_clean).then(|| bytes_of(fs.region()));
    match check_fs(fs, &CheckOptions::default()) {
        Ok((region, report)) => {
            assert!(
                !was_clean || report.is_clean(),
                "the image was clean and is no more: {report}"
            );
            let region = region.expect("nobody else holds the region");
            Some((region, report.is_clean()))
        }
        Err(e) => {
            let Some(copy) = copy else {
                panic!("unmount of a clean image: {e}");
            };
            let region = region_with(&copy);
            map_leased(&region, how);
            let clean = checked(&region).is_clean();
            Some((region, clean))
        }
    }
}

/// One name.
#[derive(Debug, Clone)]
struct Name {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

/// Somebody who uses a file system.
struct User<'a> {
    fs: &'a Fs,
    clean: bool,
    random: Random,
    dirs: Vec<Ino>,
    names: Vec<Name>,
    made: u32,
}

impl<'a> User<'a> {
    fn new(fs: &'a Fs, clean: bool, seed: u8) -> User<'a> {
        User {
            fs,
            clean,
            random: Random::new(u64::from(seed)),
            dirs: vec![Ino::ROOT],
            names: Vec::new(),
            made: 0,
        }
    }

    /// The value of an operation, unless it failed for a good reason.
    fn may<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e @ (Error::Corrupt { .. } | Error::Io { .. } | Error::Pmem(_))) => {
                assert!(!self.clean, "{what} in an image that is clean: {e}");
                // The sentence is made whatever is in it.
                assert!(!e.to_string().is_empty());
                None
            }
            // What a walk has found does not exist: only damage explains it.
            Err(Error::NotMountable(why)) => panic!("{what}: {why}"),
            Err(_) => None,
        }
    }

    /// Reads everything once and remembers the names.
    fn walk(&mut self) {
        (self.dirs, self.names) = (vec![Ino::ROOT], Vec::new());
        let mut seen = BTreeSet::from([Ino::ROOT]);
        let mut next = 0;
        while let Some(&dir) = self.dirs.get(next) {
            next += 1;
            for n in self.list(dir) {
                let Some(attr) = self.may("lookup", self.fs.lookup(dir, &n.name)) else {
                    assert!(
                        !self.clean,
                        "readdir shows a name that lookup does not find"
                    );
                    continue;
                };
                assert!(
                    !self.clean || attr.ino == n.ino,
                    "readdir and lookup name different inodes"
                );
                if seen.insert(attr.ino) {
                    self.look_at(&attr);
                    if attr.kind == FileType::Directory {
                        self.dirs.push(attr.ino);
                    }
                }
                if self.names.len() < REMEMBERED {
                    self.names.push(n);
                }
            }
        }
        let stat = self.may("statfs", self.fs.statfs());
        assert!(!self.clean || stat.is_some(), "no statfs of a clean image");
    }

    fn list(&self, dir: Ino) -> Vec<Name> {
        let mut names = Vec::new();
        let (mut last, mut given) = (0, 0u64);
        // No entry takes less than a slot and its tag.
        let most = self.fs.region().len() / 32 + 2;
        let result = self.fs.readdir(dir, 0, &mut |e| {
            given += 1;
            assert!(
                given <= most && e.cookie > last,
                "{dir} does not end: entry {given} has the cookie {} after {last}",
                e.cookie
            );
            last = e.cookie;
            if e.cookie > 2 {
                names.push(Name {
                    dir,
                    name: e.name.to_vec(),
                    ino: e.ino,
                });
            }
            ControlFlow::Continue(())
        });
        self.may("readdir", result);
        names
    }

    fn look_at(&self, attr: &Attr) {
        let (fs, ino) = (self.fs, attr.ino);
        self.may("getattr", fs.getattr(ino));
        match attr.kind {
            FileType::Regular => self.read(ino, attr.size),
            FileType::Symlink => {
                if let Some(target) = self.may("readlink", fs.readlink(ino)) {
                    assert!(target.len() <= 4095);
                }
            }
            _ => {}
        }
        if let Some(list) = self.may("listxattr", fs.listxattr(ino)) {
            for name in list.split(|b| *b == 0).filter(|n| !n.is_empty()) {
                let value = self.may("getxattr", fs.getxattr(ino, name));
                assert!(!self.clean || value.is_some(), "a listed attribute is gone");
                assert!(value.is_none_or(|v| v.len() <= 65_536));
            }
        }
    }

    fn read(&self, ino: Ino, size: u64) {
        let fs = self.fs;
        let mut buffer = vec![0; 4096];
        let mut offsets = vec![
            0,
            size.saturating_sub(100),
            size / 2,
            u64::MAX,
            i64::MAX as u64,
        ];
        if let Some(extents) = self.may("extents", fs.file_extents(ino, 0, u64::MAX)) {
            let geo = fs.superblock().geometry();
            assert!(
                extents.len() as u64 <= 2 * geo.blocks() + 2,
                "{ino} has more extents than the region has blocks"
            );
            for e in &extents {
                let end = e.region_offset.map_or(0, |at| at + e.len);
                assert!(end <= fs.region().len(), "{ino}: {e:?} leaves the region");
            }
            let data = extents.iter().filter(|e| e.region_offset.is_some());
            offsets.extend(data.take(PIECES).map(|e| e.file_offset));
        }
        for at in offsets {
            if let Some(n) = self.may("read", fs.read(ino, at, &mut buffer)) {
                assert!(n as u64 <= size.saturating_sub(at));
            }
            self.may("seek", fs.seek(ino, at, SeekWhence::Data));
            self.may("seek", fs.seek(ino, at, SeekWhence::Hole));
        }
    }

    fn any_name(&mut self) -> Name {
        let n = self.random.below(self.names.len() as u64 + 1) as usize;
        self.names.get(n).cloned().unwrap_or(Name {
            dir: Ino::ROOT,
            name: b"no such name".to_vec(),
            ino: Ino(self.random.below(40)),
        })
    }

    fn any_dir(&mut self) -> Ino {
        self.dirs[self.random.below(self.dirs.len() as u64) as usize]
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.made += 1;
        let long = if self.random.one_in(4) { 200 } else { 1 };
        format!("new{}{}", self.made, "-".repeat(long)).into_bytes()
    }

    /// Carries out so many operations, of all kinds, on what is there.
    fn change(&mut self, count: u32) {
        for _ in 0..count {
            let (n, m, dir, new) = (
                self.any_name(),
                self.any_name(),
                self.any_dir(),
                self.new_name(),
            );
            match self.random.below(3) {
                0 => self.change_names(&n, &m, dir, &new),
                1 => self.change_contents(n.ino),
                _ => self.change_attributes(n.ino),
            }
        }
        self.may("sync", self.fs.sync());
    }

    fn change_names(&mut self, n: &Name, m: &Name, dir: Ino, new: &[u8]) {
        let (fs, ctx) = (self.fs, Credentials::ROOT);
        let flags = |noreplace, exchange, whiteout| RenameFlags {
            noreplace,
            exchange,
            whiteout,
        };
        let rename = |to: Ino, name: &[u8], f| fs.rename(&ctx, n.dir, &n.name, to, name, f);
        match self.random.below(14) {
            0 | 1 => _ = self.may("create", fs.create(&ctx, dir, new, 0o644)),
            2 => _ = self.may("mkdir", fs.mkdir(&ctx, dir, new, 0o755)),
            3 => {
                let target = vec![b't'; self.random.below(300) as usize + 1];
                self.may("symlink", fs.symlink(&ctx, dir, new, &target));
            }
            4 => _ = self.may("mknod", fs.mknod(&ctx, dir, new, libc::S_IFIFO | 0o600, 0)),
            5 => _ = self.may("link", fs.link(n.ino, dir, new)),
            6 => _ = self.may("unlink", fs.unlink(n.dir, &n.name)),
            7 => _ = self.may("rmdir", fs.rmdir(n.dir, &n.name)),
            8 => _ = self.may("rename", rename(dir, new, flags(true, false, false))),
            9 => _ = self.may("rename", rename(m.dir, &m.name, flags(false, false, false))),
            10 => _ = self.may("rename", rename(m.dir, &m.name, flags(false, true, false))),
            11 => _ = self.may("rename", rename(dir, new, flags(false, false, true))),
            12 => {
                // Unlinked while it is open, written to, and closed.
                fs.hold(n.ino).into_count();
                self.may("unlink", fs.unlink(n.dir, &n.name));
                self.may("write", fs.write(&Credentials::ROOT, n.ino, 3, b"open"));
                self.may("getattr", fs.getattr(n.ino));
                fs.release(n.ino, 1);
            }
            _ => _ = self.may("lookup", fs.lookup(n.ino, b"..")),
        }
    }

    fn change_contents(&mut self, ino: Ino) {
        let fs = self.fs;
        let size = fs.getattr(ino).map_or(0, |a| a.size);
        let near = size.min(1 << 40);
        let offset = match self.random.below(5) {
            0 => 7,
            1 => near,
            2 => self.random.below(near + 1),
            3 => near + self.random.below(1 << 16),
            _ => 1 << self.random.below(62),
        };
        let len = self.random.below(9000);
        let keep_size = self.random.one_in(2);
        let bytes = vec![self.random.word() as u8; len as usize];
        match self.random.below(8) {
            0 | 1 => {
                if let Some(n) =
                    self.may("write", fs.write(&Credentials::ROOT, ino, offset, &bytes))
                {
                    let mut back = vec![0; n];
                    let read = self.may("read", fs.read(ino, offset, &mut back));
                    assert!(
                        !self.clean || read == Some(n) && back == bytes[..n],
                        "{ino}: other bytes than were written"
                    );
                }
            }
            2 => _ = self.may("append", fs.append(&Credentials::ROOT, ino, &bytes)),
            3 => {
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                self.may("truncate", fs.setattr(&Credentials::ROOT, ino, &set));
            }
            4 => {
                let what = Fallocate::Allocate { keep_size };
                self.may(
                    "fallocate",
                    fs.fallocate(&Credentials::ROOT, ino, what, offset, len),
                );
            }
            5 => {
                _ = self.may(
                    "punch",
                    fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, offset, len),
                )
            }
            6 => {
                let what = Fallocate::ZeroRange { keep_size };
                self.may(
                    "zero",
                    fs.fallocate(&Credentials::ROOT, ino, what, offset, len),
                );
            }
            _ => _ = self.may("fill", fs.fill(ino, offset, len)),
        }
    }

    fn change_attributes(&mut self, ino: Ino) {
        let fs = self.fs;
        let name: &[u8] = match self.random.below(4) {
            0 => b"user.small",
            1 => b"user.large",
            2 => b"trusted.x",
            _ => b"user.new",
        };
        let len = match self.random.below(4) {
            0 => self.random.below(20_000),
            _ => self.random.below(300),
        };
        let value = vec![b'v'; len as usize];
        match self.random.below(6) {
            0 | 1 => {
                let mode = match self.random.below(3) {
                    0 => XattrMode::Create,
                    1 => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                self.may(
                    "setxattr",
                    fs.setxattr(&Credentials::ROOT, ino, name, &value, mode),
                );
            }
            2 => _ = self.may("removexattr", fs.removexattr(ino, name)),
            3 => {
                let set = SetAttr {
                    perm: Some(self.random.below(0o10000) as u32),
                    uid: Some(self.random.below(3) as u32),
                    mtime: Some(SetTime::At(Time { sec: -1, nsec: 9 })),
                    ..SetAttr::default()
                };
                self.may("setattr", fs.setattr(&Credentials::ROOT, ino, &set));
            }
            4 => _ = self.may("strip_suid", fs.strip_suid(ino)),
            _ => _ = self.may("fsync", fs.fsync(ino, len % 2 == 0)),
        }
    }

    /// Takes a lease of each of the first files, and asks for its blocks.
    fn lease(&mut self) {
        let fs = self.fs;
        for n in self.names.iter().take(8) {
            let Ok(attr) = fs.getattr(n.ino) else {
                continue;
            };
            let granted = fs.grant_lease(n.ino, attr.generation, LeaseMode::Write, 1, 1);
            let Some(grant) = self.may("lease", granted) else {
                continue;
            };
            let lease = *grant.lease();
            for offset in [0, attr.size / 2, u64::MAX] {
                let found = fs.leased_extents(lease.slot, lease.id, offset, 40);
                let Some(found) = self.may("leased extents", found) else {
                    continue;
                };
                let mut end = found.start;
                for e in &found.extents {
                    let place = e.region_offset.expect("a hole is no extent");
                    assert!(e.file_offset >= end && e.len > 0);
                    assert!(place + e.len <= fs.region().len(), "{e:?}");
                    end = e.file_offset + e.len;
                }
                assert!(end <= found.end && found.extents.len() <= 40);
            }
        }
        self.may("ending leases", fs.end_released_leases());
    }

    /// Removes all names, deepest first.
    fn remove_all(&mut self) {
        for n in std::mem::take(&mut self.names).into_iter().rev() {
            let removed = match self.fs.unlink(n.dir, &n.name) {
                Err(Error::IsDirectory) => self.fs.rmdir(n.dir, &n.name),
                other => other,
            };
            if self.clean {
                // A removal frees more than it takes.
                removed.unwrap_or_else(|e| panic!("removal from a clean image: {e}"));
            } else {
                self.may("removal", removed);
            }
        }
    }
}
