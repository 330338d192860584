//! A second lock on a region, for a server that finds the `flock` taken by a mere reader.
//!
//! A process that can only read a region (the holder of a lease, say) can take its `flock` when
//! the server has died. Nothing on the region's file itself is out of a reader's reach: it may
//! also hold read locks on every byte, which refuse each write lock. So this lock is on a file
//! of root's in [`DIRECTORY`], one for each region. It is a *write* lock of an open file
//! description: to take one, a process must have opened the file for writing, which root alone
//! may. Others may open the file for reading, and so test the lock.
//!
//! # Why no two servers serve one region
//!
//! Every server opens the region first (1), and keeps it open. Then it takes the `flock` (2),
//! and then tests the substitute lock (3): if that is held, it gives up. If the `flock` is
//! refused, root's server takes the substitute lock instead (2'), tries the `flock` again, and
//! looks for other servers among all processes (3'): if one that may write the region has it
//! open, it gives up. All others give up at once. For two servers A and B that both go on:
//!
//! * Both have the `flock`: impossible, it is exclusive. (Servers that only read share it.)
//! * Both have the substitute lock: impossible. It is taken under the lock of a second file, which
//!   root alone may open, and only after a test that nobody has it.
//! * A has the `flock` and B the substitute lock. B has looked in 3' and not seen A, which would
//!   have had a descriptor for writing, so A did
//!   1 after that, thus after B's 2'. Then A's 3 comes after B's 2' and sees B's lock.
//!
//! A server that is killed loses its locks when it cannot store any more. The last thread of
//! a process gives up its memory before its descriptors.
//!
//! The substitute lock is invisible to a server with another [`DIRECTORY`], in a container.
//! So its holder goes on trying to get the `flock` ([`Source::retake_lock`]).
//!
//! [`Source::retake_lock`]: super::Source::retake_lock

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::holders::{self, Holder, Holders, Subject};
use crate::pmem::fork::NotInheritedFd;
use crate::pmem::lease_lock;

/// Where the locks are. The control sockets are there too.
const DIRECTORY: &str = "/run/pramfs";

/// Searches for other servers. One that has just been refused the region closes it soon.
const SEARCHES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// The lock of a region that this process has instead of the `flock`.
#[derive(Debug)]
pub(super) struct Substitute {
    // Before the descriptor, which stays open while this value lives.
    _not_inherited: NotInheritedFd,
    // Keeps the lock.
    _file: OwnedFd,
    place: Place,
    file_name: String,
    /// The process that took it: a forked child does not have it.
    taker: u32,
    /// Why it was needed: a sentence for a person.
    pub notice: String,
}

impl Drop for Substitute {
    fn drop(&mut self) {
        if self.taker == std::process::id() {
            // While it is locked: later, the name may be that of the next one's lock. The region
            // is closed already, so that nobody needs to see the lock any more. If the name
            // stays, it is not locked.
            let _stays = rustix::fs::unlinkat(&self.place.0, &self.file_name, AtFlags::empty());
        }
    }
}

/// The outcome of a search for a lock beside the `flock`.
#[derive(Debug)]
pub(super) enum Found {
    /// The `flock` is free by now and has been taken.
    Flock,
    /// This process has the substitute lock.
    Substitute(Substitute),
    /// Another process uses the region.
    InUse(Option<Holder>),
}

/// The directory of the locks.
#[derive(Debug)]
struct Place(OwnedFd);

/// The lock that orders those who want the substitute lock of a region.
struct Order<'p> {
    place: &'p Place,
    name: String,
    _file: OwnedFd,
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        // While it is locked. Whoever has opened this file finds that it has no name.
        let _stays = rustix::fs::unlinkat(&self.place.0, &self.name, AtFlags::empty());
    }
}

impl Place {
    /// Opens the directory. `None` if it does not exist, or another user than root could make
    /// names in it: then no server of root has put a lock there.
    fn open(path: &Path) -> Option<Place> {
        Place::any(path).filter(|place| is_roots(&place.0))
    }

    /// As [`open`](Self::open), whoever the directory belongs to: in a user namespace, root's is
    /// not root's. A lock in it counts in any case.
    fn any(path: &Path) -> Option<Place> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        Some(Place(directory))
    }

    fn make(path: &Path) -> Option<Place> {
        if let Err(error) = rustix::fs::mkdir(path, Mode::RWXU)
            && error != Errno::EXIST
        {
            return None;
        }
        // Its parent must not be another user's either, who could exchange the directory.
        let parent = PathBuf::from(path.parent()?);
        Place::open(&parent)?;
        Place::open(path)
    }

    fn name(subject: &Subject) -> String {
        format!("{}.lock", subject.name())
    }

    /// Returns who has the substitute lock of a region.
    fn holder(&self, subject: &Subject) -> io::Result<Option<Holder>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, Place::name(subject), flags, Mode::empty());
        let mut file = match file {
            Ok(file) => std::fs::File::from(file),
            // The holder lets everybody search the directory.
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Only a write lock refuses this one, and so no lock of a reader does.
        if !lease_lock::is_refused(file.as_fd(), libc::F_RDLCK)? {
            return Ok(None);
        }
        let mut pid = String::new();
        file.read_to_string(&mut pid)?;
        Ok(Some(holders::named(pid.trim().parse().unwrap_or(0))))
    }

    /// Takes the lock that orders those who want the substitute lock of a region.
    fn order(&self, subject: &Subject) -> rustix::io::Result<Order<'_>> {
        let name = format!(".{}.order", subject.name());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, &name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The one before has removed it meanwhile: another one may have made a new file.
        if rustix::fs::fstat(&file)?.st_nlink == 0 {
            return Err(Errno::BUSY);
        }
        Ok(Order {
            place: self,
            name,
            _file: file,
        })
    }

    /// Takes the substitute lock. The caller has the lock of [`order`](Self::order), and
    /// nobody the substitute.
    fn take(&self, subject: &Subject) -> io::Result<OwnedFd> {
        let name = Place::name(subject);
        let hidden = format!(".{name}");
        match rustix::fs::unlinkat(&self.0, &hidden, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        // A new file, since others may have read locks on the one before. Nobody can open this
        // one before it is locked.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, &hidden, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = std::fs::File::from(file);
        file.write_all(std::process::id().to_string().as_bytes())?;
        lease_lock::lock_first_byte(file.as_fd())?;
        let for_all = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        rustix::fs::fchmod(&file, for_all)?;
        // Everybody must be able to test the lock: a server of the region's owner, too.
        let way = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&self.0)?.st_mode);
        rustix::fs::chmod(way, mode | Mode::XGRP | Mode::XOTH)?;
        rustix::fs::renameat(&self.0, &hidden, &self.0, &name)?;
        Ok(file.into())
    }

    fn remove(&self, subject: &Subject) {
        // If it stays, it is not locked.
        let _stays = rustix::fs::unlinkat(&self.0, Place::name(subject), AtFlags::empty());
    }
}

fn is_roots(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        stat.st_uid == 0 && !mode.intersects(Mode::WGRP | Mode::WOTH)
    })
}

/// Returns the process that has the substitute lock of a region whose `flock` the caller has.
///
/// # Errors
/// Those of the test.
pub(super) fn holder(fd: BorrowedFd<'_>) -> io::Result<Option<Holder>> {
    holder_in(Path::new(DIRECTORY), fd)
}

/// Whether a process has the substitute lock of a region.
pub(in crate::pmem) fn is_held_by(fd: BorrowedFd<'_>, pid: u32) -> bool {
    matches!(holder(fd), Ok(Some(holder)) if holder.pid == pid)
}

/// Returns the process that uses a region without its usual lock, for a caller that has taken
/// that lock (a `flock`) itself, on a descriptor opened before.
///
/// ```
/// let file = tempfile::tempfile().unwrap();
/// assert_eq!(pramfs_medium::pmem::served_without_lock(&file)?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of the test. The region may then be in use.
pub fn served_without_lock(fd: impl AsFd) -> io::Result<Option<String>> {
    Ok(holder(fd.as_fd())?.map(|holder| holder.to_string()))
}

fn holder_in(directory: &Path, fd: BorrowedFd<'_>) -> io::Result<Option<Holder>> {
    let (Some(subject), Some(place)) = (Subject::of(fd), Place::any(directory)) else {
        return Ok(None);
    };
    place.holder(&subject)
}

/// Looks for a lock on a region whose `flock` is refused. `None` if this process cannot tell
/// a server from a reader, or cannot take a substitute lock.
pub(super) fn look(fd: BorrowedFd<'_>, flock: FlockOperation) -> Option<Found> {
    if !holders::are_all_visible() {
        return None;
    }
    look_in(Path::new(DIRECTORY), fd, flock, &Subject::holders)
}

fn look_in(
    directory: &Path,
    fd: BorrowedFd<'_>,
    flock: FlockOperation,
    search: &dyn Fn(&Subject) -> io::Result<Holders>,
) -> Option<Found> {
    let subject = Subject::of(fd)?;
    let place = Place::make(directory)?;
    // Held until the return. If another process has it, that one decides; it does not wait.
    let order = place.order(&subject).ok()?;
    if let Some(other) = place.holder(&subject).ok()? {
        return Some(Found::InUse(Some(other)));
    }
    // Before the search: see the top of this file.
    let file = place.take(&subject).ok()?;
    if rustix::fs::flock(fd, flock).is_ok() {
        place.remove(&subject);
        return Some(Found::Flock);
    }
    let mut found = search(&subject);
    for _ in 1..SEARCHES {
        if !found.as_ref().is_ok_and(|found| !found.servers.is_empty()) {
            break;
        }
        std::thread::sleep(PAUSE);
        found = search(&subject);
    }
    drop(order);
    match found {
        Ok(found) if found.servers.is_empty() => Some(Found::Substitute(Substitute {
            _not_inherited: NotInheritedFd::new(file.as_fd()),
            _file: file,
            file_name: Place::name(&subject),
            place,
            taker: std::process::id(),
            notice: notice(&found.readers),
        })),
        found => {
            place.remove(&subject);
            let servers = found.ok()?.servers;
            Some(Found::InUse(servers.into_iter().next()))
        }
    }
}

fn notice(readers: &[Holder]) -> String {
    const SHOWN: usize = 3;
    let mut names: Vec<String> = readers.iter().take(SHOWN).map(Holder::to_string).collect();
    if readers.len() > SHOWN {
        names.push(format!("{} more", readers.len() - SHOWN));
    }
    let (whom, advice) = match names.is_empty() {
        true => (
            "a descriptor that no process shows, in a socket for example".into(),
            "",
        ),
        false => (names.join(", "), "; to free the lock, end them"),
    };
    format!(
        "the lock of the region is held by one that may only read it: {whom}. No process that \
         may write it has it open, so it is used without that lock{advice}"
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

    struct Scene {
        dir: tempfile::TempDir,
        /// Opened as a server does.
        region: File,
    }

    /// A region that a reader has locked, or `None` if the test cannot run.
    fn scene() -> Option<(Scene, File)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("region"), "x").unwrap();
        let region = File::options()
            .read(true)
            .write(true)
            .open(dir.path().join("region"));
        let region = region.unwrap();
        Subject::of(region.as_fd())?;
        let reader = File::open(dir.path().join("region")).unwrap();
        rustix::fs::flock(&reader, FlockOperation::LockExclusive).unwrap();
        Some((Scene { dir, region }, reader))
    }

    impl Scene {
        fn place(&self) -> PathBuf {
            self.dir.path().join("locks")
        }

        fn look(&self, servers: &[u32]) -> Option<Found> {
            look_in(&self.place(), self.region.as_fd(), EXCLUSIVE, &|_| {
                Ok(Holders {
                    servers: servers.iter().map(|pid| holders::named(*pid)).collect(),
                    readers: vec![holders::named(1)],
                })
            })
        }

        fn holder(&self) -> Option<u32> {
            let held = holder_in(&self.place(), self.region.as_fd()).unwrap();
            held.map(|holder| holder.pid)
        }
    }

    #[test]
    fn region_locked_by_reader_gets_substitute_lock() {
        let Some((scene, _reader)) = scene() else {
            return;
        };
        assert_eq!(scene.holder(), None);
        let Some(Found::Substitute(lock)) = scene.look(&[]) else {
            panic!("no server is alive");
        };
        assert!(lock.notice.contains("process 1 ("), "{}", lock.notice);
        assert_eq!(scene.holder(), Some(std::process::id()));
        // A second server sees the first one, whatever the search finds.
        let second = scene.look(&[]);
        assert!(
            matches!(&second, Some(Found::InUse(Some(by))) if by.pid == std::process::id()),
            "{second:?}"
        );
        drop(lock);
        assert_eq!(scene.holder(), None);
        assert!(matches!(scene.look(&[]), Some(Found::Substitute(_))));
    }

    #[test]
    fn read_lock_of_others_neither_feigns_nor_refuses_substitute_lock() {
        let Some((scene, _reader)) = scene() else {
            return;
        };
        drop(scene.look(&[]));
        // The file of a server that was killed.
        let name = scene
            .place()
            .join(Place::name(&Subject::of(scene.region.as_fd()).unwrap()));
        std::fs::write(&name, "77").unwrap();
        let theirs = File::open(&name).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::LockExclusive).unwrap();
        lease_lock::lock_first_byte(theirs.as_fd()).expect_err("it is open for reading");
        assert!(lease_lock::try_read_lock(theirs.as_fd()).is_ok());
        assert_eq!(scene.holder(), None);
        let lock = scene.look(&[]);
        assert!(matches!(lock, Some(Found::Substitute(_))), "{lock:?}");
        assert_eq!(scene.holder(), Some(std::process::id()));
        drop(lock);
        // Nothing is left in the directory.
        assert_eq!(std::fs::read_dir(scene.place()).unwrap().count(), 0);
    }

    #[test]
    fn live_server_refuses_substitute_lock() {
        let Some((scene, _reader)) = scene() else {
            return;
        };
        let refused = scene.look(&[1]);
        assert!(
            matches!(&refused, Some(Found::InUse(Some(by))) if by.pid == 1),
            "{refused:?}"
        );
        assert_eq!(scene.holder(), None);
    }

    #[test]
    fn failed_search_gives_no_lock() {
        let Some((scene, _reader)) = scene() else {
            return;
        };
        let failed = look_in(&scene.place(), scene.region.as_fd(), EXCLUSIVE, &|_| {
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert!(failed.is_none(), "{failed:?}");
        assert_eq!(scene.holder(), None);
    }

    #[test]
    fn lock_that_is_free_by_now_is_taken() {
        let Some((scene, reader)) = scene() else {
            return;
        };
        drop(reader);
        let is_taken = || matches!(scene.look(&[]), Some(Found::Flock));
        assert!(crate::pmem::tests::in_time(is_taken));
        assert_eq!(scene.holder(), None);
    }

    #[test]
    fn directory_of_other_user_is_not_used() {
        let Some((scene, _reader)) = scene() else {
            return;
        };
        std::fs::create_dir(scene.place()).unwrap();
        std::os::unix::fs::chown(scene.place(), Some(4242), None).unwrap();
        assert!(scene.look(&[]).is_none());
    }

    /// Servers of either kind start again and again while a reader takes and releases the
    /// lock: never are two alive.
    #[test]
    fn racing_servers_exclude_each_other() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
        let Some((scene, reader)) = scene() else {
            return;
        };
        let path = scene.dir.path().join("region");
        let (alive, done) = (AtomicU32::new(0), AtomicBool::new(false));
        // Which servers have the region open; /proc would show them as one process.
        let open: [AtomicBool; 4] = Default::default();
        let served = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for (number, is_open) in open.iter().enumerate() {
                let (scene, path, open, alive, done, served) =
                    (&scene, &path, &open, &alive, &done, &served);
                scope.spawn(move || {
                    let place = scene.place();
                    while !done.load(Ordering::SeqCst) {
                        let region = File::options().read(true).write(true).open(path).unwrap();
                        is_open.store(true, Ordering::SeqCst);
                        let search = |_: &Subject| {
                            let others = open.iter().enumerate();
                            let others = others.filter(|(other, is_open)| {
                                *other != number && is_open.load(Ordering::SeqCst)
                            });
                            Ok(Holders {
                                servers: others.map(|_| holders::named(1)).collect(),
                                readers: Vec::new(),
                            })
                        };
                        // Odd ones are not root's.
                        let lock = match rustix::fs::flock(&region, EXCLUSIVE) {
                            Ok(()) => match holder_in(&place, region.as_fd()).unwrap() {
                                None => Some(Found::Flock),
                                Some(_) => None,
                            },
                            Err(_) if number % 2 == 1 => None,
                            Err(_) => look_in(&place, region.as_fd(), EXCLUSIVE, &search),
                        };
                        if let Some(Found::Flock | Found::Substitute(_)) = &lock {
                            let others = alive.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(others, 0, "two servers");
                            std::thread::yield_now();
                            served.fetch_add(1, Ordering::SeqCst);
                            alive.fetch_sub(1, Ordering::SeqCst);
                        }
                        // In the order of a server: it ends, then it closes the region.
                        drop(lock);
                        is_open.store(false, Ordering::SeqCst);
                        drop(region);
                    }
                });
            }
            for _ in 0..300 {
                let _free = rustix::fs::flock(&reader, FlockOperation::Unlock);
                std::thread::yield_now();
                let _locked = rustix::fs::flock(&reader, EXCLUSIVE);
                std::thread::yield_now();
            }
            let _free = rustix::fs::flock(&reader, FlockOperation::Unlock);
            while served.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
        });
    }
}
