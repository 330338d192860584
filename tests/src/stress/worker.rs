//! One thread of mixed operations, and many of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pramfs::{Fallocate, FileType, RenameFlags, XattrMode};

use super::pattern::{self, How, UNIT};
use super::private_file::Own;
use super::target::{About, Target};
use crate::random::Random;
use crate::syscalls::Sys;
use crate::watchdog::Watchdog;

/// Directory of files that are looked at now and then, so many that the inode
/// cache cannot hold them.
pub const COLD: &[u8] = b"cold";
/// Most names that a directory can have.
const NAMES: u64 = 8;
const XATTRS: u64 = 4;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of all threads; each adds its writer.
    pub seed: u64,
    /// How many.
    pub threads: u64,
    /// Number of the first writer, below 64 with all of them.
    pub first_writer: u64,
    /// Names of a directory, at most 8: the fewer, the more they meet.
    pub names: u64,
    /// How long.
    pub time: Duration,
    /// Units that a shared file grows to.
    pub units: u64,
    /// Bytes that a thread's own file grows to.
    pub own: u64,
    /// Files in [`COLD`].
    pub cold: u64,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Operations.
    pub operations: u64,
    /// Those that met a full file system.
    pub full: u64,
    /// Successes of each operation.
    pub done: BTreeMap<&'static str, u64>,
}

/// Makes the files of [`COLD`].
///
/// # Errors
/// What went wrong.
pub fn populate<D: Target>(access: &D, files: u64) -> Sys {
    let root = access.root()?;
    access.mkdir(&root, COLD)?;
    let dir = access.lookup(&root, COLD)?;
    for i in 0..files {
        access.create(&dir, format!("{i}").as_bytes())?;
    }
    Ok(())
}

/// Runs the threads of a plan.
///
/// # Errors
/// The first thing that cannot be explained.
pub fn run<D: Target>(access: &D, plan: &Plan, dog: &Watchdog) -> Result<Totals, String> {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let progress: Vec<AtomicU64> = (0..plan.threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = progress
            .iter()
            .zip(plan.first_writer..)
            .map(|(progress, id)| {
                let (plan, stop) = (plan.clone(), &stop);
                scope.spawn(move || {
                    // A thread that panics stops the others, too.
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        Worker::new(access, &plan, id)?.work(stop, progress)
                    }));
                    let result = result.unwrap_or_else(|_| Err("it panicked".into()));
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result.map_err(|e| format!("writer {id}: {e}"))
                })
            })
            .collect();
        // The watchdog hears of progress when each thread has made some.
        let mut seen = vec![0; progress.len()];
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            let now: Vec<u64> = progress.iter().map(|p| p.load(Ordering::Relaxed)).collect();
            if now.iter().zip(&seen).all(|(now, seen)| now > seen) {
                dog.touch();
                seen = now;
            }
            if start.elapsed() > plan.time {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut totals = Totals::default();
        for thread in threads {
            let part = thread.join().map_err(|_| "a thread died".to_owned())??;
            totals.operations += part.operations;
            totals.full += part.full;
            for (what, n) in part.done {
                *totals.done.entry(what).or_default() += n;
            }
        }
        Ok(totals)
    })
}

/// A thread.
pub(super) struct Worker<'d, D: Target> {
    pub(super) access: &'d D,
    pub(super) id: u64,
    pub(super) random: Random,
    number: u32,
    plan: Plan,
    own: Vec<Own<D::Node>>,
    own_dir: D::Node,
    totals: Totals,
    was_full: bool,
}

/// The name of a number; one in eight is long.
fn name(n: u64) -> Vec<u8> {
    let mut name = format!("n{n:02}").into_bytes();
    if n == NAMES - 1 {
        name.resize(200, b'y');
    }
    name
}

/// A symbolic link's target that can be checked.
fn target(n: u64) -> Vec<u8> {
    format!("to-{n}-{}", "x".repeat((n % 300) as usize)).into_bytes()
}

impl<'d, D: Target> Worker<'d, D> {
    fn new(access: &'d D, plan: &Plan, id: u64) -> Result<Self, String> {
        let what = |e: i32| format!("its directory: errno {e}");
        let root = access.root().map_err(what)?;
        let name = format!("own-{id}").into_bytes();
        match access.mkdir(&root, &name) {
            Ok(()) | Err(libc::EEXIST) => {}
            Err(e) => return Err(what(e)),
        }
        let own_dir = access.lookup(&root, &name).map_err(what)?;
        Ok(Worker {
            access,
            id,
            random: Random::new(plan.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            number: 0,
            plan: plan.clone(),
            own: Vec::new(),
            own_dir,
            totals: Totals::default(),
            was_full: false,
        })
    }

    fn work(mut self, stop: &AtomicBool, progress: &AtomicU64) -> Result<Totals, String> {
        while !stop.load(Ordering::Relaxed) {
            self.once()?;
            self.totals.operations += 1;
            progress.fetch_add(1, Ordering::Relaxed);
        }
        for mut own in std::mem::take(&mut self.own) {
            own.compare_all(&mut self)?;
        }
        Ok(self.totals)
    }

    /// Sorts a result: done, refused for one of these reasons, or wrong.
    pub(super) fn sort<T>(
        &mut self,
        what: &'static str,
        result: Sys<T>,
        allowed: &[i32],
    ) -> Result<Option<T>, String> {
        match result {
            Ok(value) => {
                *self.totals.done.entry(what).or_default() += 1;
                Ok(Some(value))
            }
            Err(libc::ENOSPC) if allowed.contains(&libc::ENOSPC) => {
                self.totals.full += 1;
                self.was_full = true;
                Ok(None)
            }
            Err(e) if allowed.contains(&e) => Ok(None),
            Err(e) => Err(format!(
                "{what}: errno {e} ({})",
                std::io::Error::from_raw_os_error(e)
            )),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        name(self.random.below(self.plan.names))
    }

    pub(super) fn next_number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// A directory: the root or one a few levels below it.
    fn dir(&mut self) -> Result<D::Node, String> {
        let root = self.access.root();
        let mut at = self.sort("root", root, &[])?.ok_or("no root")?;
        for _ in 0..self.random.below(3) {
            let name = self.name();
            if let Some((next, about)) = self.find(&at, &name)?
                && about.kind == FileType::Directory
            {
                at = next;
            }
        }
        Ok(at)
    }

    fn find(&mut self, dir: &D::Node, name: &[u8]) -> Result<Option<(D::Node, About)>, String> {
        let found = self.access.lookup(dir, name);
        let Some(node) = self.sort("lookup", found, &[libc::ENOENT])? else {
            return Ok(None);
        };
        let about = self.access.about(&node);
        Ok(self.sort("getattr", about, &[])?.map(|a| (node, a)))
    }

    /// Anything that has a name.
    fn any(&mut self) -> Result<Option<(D::Node, About)>, String> {
        for _ in 0..4 {
            let (dir, name) = (self.dir()?, self.name());
            if let Some(found) = self.find(&dir, &name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn file(&mut self) -> Result<Option<(D::Node, About)>, String> {
        for _ in 0..4 {
            let found = self.any()?;
            if found
                .as_ref()
                .is_some_and(|(_, a)| a.kind == FileType::Regular)
            {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn once(&mut self) -> Result<(), String> {
        // Somebody has to make room.
        if std::mem::take(&mut self.was_full) && self.random.one_in(3) {
            return self.make_room();
        }
        match self.random.below(100) {
            0..=29 => self.change_names(),
            30..=54 => self.change_contents(),
            55..=66 => self.look(),
            67..=76 => self.attributes(),
            77..=94 => self.own(),
            95..=98 => self.cold(),
            _ => self.sync(),
        }
    }

    fn make_room(&mut self) -> Result<(), String> {
        if self.random.one_in(2)
            && let Some((node, _)) = self.file()?
        {
            let cut = self.access.truncate(&node, 0);
            self.sort("truncate", cut, &[])?;
            return Ok(());
        }
        let (dir, name) = (self.dir()?, self.name());
        let gone = self.access.unlink(&dir, &name);
        self.sort("unlink", gone, &[libc::ENOENT, libc::EISDIR])?;
        Ok(())
    }

    fn change_names(&mut self) -> Result<(), String> {
        use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, EPERM};
        let (access, dir, name) = (self.access, self.dir()?, self.name());
        let new = [EEXIST, ENOENT, ENOSPC];
        match self.random.below(12) {
            0..=2 => {
                let made = access.create(&dir, &name);
                if let Some(node) = self.sort("create", made, &new)? {
                    self.write_to(&node)?;
                }
            }
            3 => {
                let made = access.mkdir(&dir, &name);
                self.sort("mkdir", made, &new)?;
            }
            4 => {
                let kinds = [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR];
                let kind = kinds[self.random.below(3) as usize];
                let made = access.mknod(&dir, &name, kind | 0o600);
                self.sort("mknod", made, &new)?;
            }
            5 => {
                let made = access.symlink(&dir, &name, &target(self.random.below(1000)));
                self.sort("symlink", made, &new)?;
            }
            6 => {
                if let Some((node, _)) = self.any()? {
                    let made = access.link(&node, &dir, &name);
                    // A directory, or one whose last name has gone meanwhile.
                    self.sort("link", made, &[EEXIST, ENOENT, ENOSPC, EPERM])?;
                }
            }
            7 | 8 => {
                let gone = access.unlink(&dir, &name);
                self.sort("unlink", gone, &[ENOENT, EISDIR])?;
            }
            9 if self.random.one_in(8) => {
                // Otherwise directories pile up, one in the other.
                if let Some((node, about)) = self.find(&dir, &name)?
                    && about.kind == FileType::Directory
                {
                    self.prune(&node)?;
                }
            }
            9 => {
                let gone = access.rmdir(&dir, &name);
                self.sort("rmdir", gone, &[ENOENT, ENOTDIR, ENOTEMPTY])?;
            }
            _ => {
                let (to, new_name) = (self.dir()?, self.name());
                let (what, flags) = [
                    ("rename", (false, false, false)),
                    ("rename", (false, false, false)),
                    ("rename NOREPLACE", (true, false, false)),
                    ("rename EXCHANGE", (false, true, false)),
                    ("rename WHITEOUT", (false, false, true)),
                ][self.random.below(5) as usize];
                let flags = RenameFlags {
                    noreplace: flags.0,
                    exchange: flags.1,
                    whiteout: flags.2,
                };
                let done = access.rename((&dir, &name), (&to, &new_name), flags);
                let allowed = [EEXIST, EINVAL, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY];
                self.sort(what, done, &allowed)?;
            }
        }
        Ok(())
    }

    /// Empties a directory that others fill meanwhile.
    fn prune(&mut self, dir: &D::Node) -> Result<(), String> {
        use libc::{EISDIR, ENOENT, ENOTDIR, ENOTEMPTY};
        let names = self.access.list(dir);
        for name in self.sort("readdir", names, &[ENOENT])?.unwrap_or_default() {
            let gone = self.access.unlink(dir, &name);
            if self.sort("unlink", gone, &[ENOENT, EISDIR])?.is_some() {
                continue;
            }
            if let Some((node, about)) = self.find(dir, &name)?
                && about.kind == FileType::Directory
            {
                self.prune(&node)?;
                let gone = self.access.rmdir(dir, &name);
                self.sort("rmdir", gone, &[ENOENT, ENOTDIR, ENOTEMPTY])?;
            }
        }
        Ok(())
    }

    /// Some units with words that say where they belong.
    fn write_to(&mut self, node: &D::Node) -> Result<(), String> {
        let about = self.access.about(node);
        let Some(about) = self.sort("getattr", about, &[])? else {
            return Ok(());
        };
        let at = self.random.below(self.plan.units) * UNIT;
        let len = (1 + self.random.below(40)) * UNIT;
        let number = self.next_number();
        let bytes = pattern::bytes(about.id, at, len, How::Written, self.id, number);
        let written = self.access.write(node, at, &bytes);
        self.sort("write", written, &[libc::ENOSPC])?;
        Ok(())
    }

    fn change_contents(&mut self) -> Result<(), String> {
        let Some((node, about)) = self.file()? else {
            return Ok(());
        };
        let (access, full) = (self.access, [libc::ENOSPC]);
        let at = self.random.below(self.plan.units) * UNIT;
        let len = (1 + self.random.below(80)) * UNIT;
        match self.random.below(16) {
            0..=5 => self.write_to(&node)?,
            6 | 7 => {
                // Otherwise it grows without end.
                if about.size > self.plan.units * UNIT * 2 {
                    let cut = access.truncate(&node, at);
                    self.sort("truncate", cut, &[])?;
                }
                let number = self.next_number();
                let bytes = pattern::bytes(about.id, 0, len, How::Appended, self.id, number);
                let appended = access.append(&node, &bytes);
                self.sort("append", appended, &full)?;
            }
            8 | 9 => {
                let cut = access.truncate(&node, at);
                self.sort("truncate", cut, &[])?;
            }
            10 => {
                let keep_size = self.random.one_in(2);
                let done = access.fallocate(&node, Fallocate::Allocate { keep_size }, at, len);
                self.sort("fallocate", done, &full)?;
            }
            11 | 12 => {
                let done = access.fallocate(&node, Fallocate::PunchHole, at, len);
                self.sort("punch", done, &full)?;
            }
            13 => {
                let keep_size = self.random.one_in(2);
                let done = access.fallocate(&node, Fallocate::ZeroRange { keep_size }, at, len);
                self.sort("zero", done, &full)?;
            }
            _ => {
                let at = self.random.below(about.size / 8) * 8;
                let count = (about.size - at).min(2048) / 8;
                let number = self.next_number();
                let words: Vec<u64> = (at / 8..at / 8 + count)
                    .map(|i| pattern::word(about.id, i, How::Stored, self.id, number))
                    .collect();
                if D::VIEWS && !words.is_empty() {
                    let persist = self.random.one_in(2);
                    let stored = access.store(&node, at, &words, persist);
                    // EINVAL: it has been cut meanwhile.
                    self.sort("store", stored, &[libc::ENOSPC, libc::EINVAL])?;
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        let Some((node, about)) = self.any()? else {
            return Ok(());
        };
        match about.kind {
            FileType::Regular => {
                let at = self.random.below(self.plan.units) * UNIT;
                let mut bytes = vec![0xee; ((1 + self.random.below(100)) * UNIT) as usize];
                let got = self.access.read(&node, at, &mut bytes);
                let n = self.sort("read", got, &[])?.unwrap_or(0);
                pattern::verify(about.id, at, &bytes[..n], D::WHOLE)
                    .map_err(|e| format!("read of {n} bytes at {at}: {e}"))
            }
            FileType::Symlink => {
                let got = self.access.readlink(&node);
                match self.sort("readlink", got, &[])? {
                    Some(t) if !is_target(&t) => Err(format!("a link to {}", t.escape_ascii())),
                    _ => Ok(()),
                }
            }
            FileType::Directory => {
                let got = self.access.list(&node);
                // The kernel lists no directory that has been removed.
                let mut names = self
                    .sort("readdir", got, &[libc::ENOENT])?
                    .unwrap_or_default();
                let count = names.len();
                names.sort();
                names.dedup();
                let known = |n: &Vec<u8>| (0..NAMES).any(|i| name(i) == *n);
                match names.iter().find(|n| !known(n)) {
                    Some(n) => Err(format!("readdir gave {}", n.escape_ascii())),
                    // One that was moved away and back again may come twice.
                    None if count > names.len() + 8 => Err(format!("readdir gave {count} names")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn attributes(&mut self) -> Result<(), String> {
        let Some((node, about)) = self.any()? else {
            return Ok(());
        };
        let access = self.access;
        let xattrs = matches!(about.kind, FileType::Regular | FileType::Directory);
        let n = self.random.below(XATTRS);
        let name = format!("user.{n}").into_bytes();
        match self.random.below(8) {
            0 if about.kind != FileType::Symlink => {
                let perm = 0o600 | self.random.below(64) as u32;
                let done = access.chmod(&node, perm);
                self.sort("chmod", done, &[])?;
            }
            1 => {
                let done = access.utimes(&node, self.random.below(1 << 40) as i64);
                self.sort("utimes", done, &[])?;
            }
            2 if xattrs => {
                let done = access.fsync(&node);
                self.sort("fsync", done, &[])?;
            }
            3..=5 if xattrs => {
                let len = [0, 10, 200, 2000, 20_000][self.random.below(5) as usize]
                    + self.random.below(10) as usize;
                let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace]
                    [self.random.below(3) as usize];
                let done = access.set_xattr(&node, &name, &vec![len as u8; len], mode);
                let allowed = [libc::ENOSPC, libc::EEXIST, libc::ENODATA];
                self.sort("setxattr", done, &allowed)?;
            }
            6 if xattrs => {
                let done = access.remove_xattr(&node, &name);
                self.sort("removexattr", done, &[libc::ENODATA])?;
            }
            _ if xattrs => {
                let got = access.list_xattrs(&node);
                for name in self.sort("listxattr", got, &[])?.unwrap_or_default() {
                    let got = access.get_xattr(&node, &name);
                    let value = self.sort("getxattr", got, &[libc::ENODATA])?;
                    let value = value.unwrap_or_default();
                    if value.iter().any(|b| *b != value.len() as u8) {
                        return Err(format!(
                            "{} bytes of {} are not its value",
                            value.len(),
                            name.escape_ascii()
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Something with a file that only this thread changes.
    fn own(&mut self) -> Result<(), String> {
        if self.own.len() < 4 && self.random.one_in(6) || self.own.is_empty() {
            let name = format!("f{}", self.random.below(8)).into_bytes();
            if let Some(own) = self.make_own(&name)? {
                self.own.push(own);
            }
            return Ok(());
        }
        let i = self.random.below(self.own.len() as u64) as usize;
        let mut own = self.own.swap_remove(i);
        if own.step(self, self.plan.own as usize)? {
            self.own.push(own);
        }
        Ok(())
    }

    fn make_own(&mut self, name: &[u8]) -> Result<Option<Own<D::Node>>, String> {
        // What is there is of a file that was let go.
        let gone = self.access.unlink(&self.own_dir, name);
        let in_use = self.own.iter().any(|o| o.name.as_deref() == Some(name));
        if in_use {
            // It lives on without a name.
            for own in &mut self.own {
                own.name.take_if(|n| n == name);
            }
        }
        self.sort("unlink", gone, &[libc::ENOENT])?;
        let made = self.access.create(&self.own_dir, name);
        let Some(node) = self.sort("create", made, &[libc::ENOSPC])? else {
            return Ok(None);
        };
        let mut name = Some(name.to_vec());
        if self.random.one_in(2) {
            let gone = self
                .access
                .unlink(&self.own_dir, name.as_deref().unwrap_or(b""));
            self.sort("unlink", gone, &[])?;
            name = None;
        }
        Ok(Some(Own::new(node, name)))
    }

    fn cold(&mut self) -> Result<(), String> {
        let root = self.access.root();
        let root = self.sort("root", root, &[])?.ok_or("no root")?;
        let dir = self.find(&root, COLD)?.ok_or("no directory cold")?.0;
        let name = format!("{}", self.random.below(self.plan.cold.max(1)));
        match self.find(&dir, name.as_bytes())? {
            None if self.plan.cold == 0 => Ok(()),
            Some((node, a)) if (a.kind, a.nlink, a.size) == (FileType::Regular, 1, 0) => {
                if self.random.one_in(4) {
                    let done = self.access.chmod(&node, 0o600);
                    self.sort("chmod", done, &[])?;
                }
                Ok(())
            }
            other => Err(format!("cold/{name} is {:?}", other.map(|o| o.1))),
        }
    }

    fn sync(&mut self) -> Result<(), String> {
        let done = self.access.sync();
        self.sort("sync and statfs", done, &[])?;
        Ok(())
    }
}

pub(super) fn is_target(t: &[u8]) -> bool {
    (0..1000).any(|n| target(n) == t)
}
