//! How a file gets its lease.
//!
//! A file that is open for reading and writing gets its lease when it is opened: nothing else
//! shares its description yet, and it has no position. A lease to write needs a descriptor
//! that does not use the page cache, so one with O_DIRECT takes its place; where the lease is
//! refused, one without takes its place again. A file that is open for reading keeps its
//! descriptor, and gets a lease after some calls.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::c_int;
use pramfs_client::{Coherence, OpenOptions};

use crate::devices::{is_ours, is_program, note_busy, stat, was_busy};
pub(crate) use crate::give_up::{give_up, give_up_all, release};
use crate::process::{self, Inside, is_inside, owns_memory};
use crate::slots::{self, Held};
use crate::table::{self, Entry};
use crate::{real, settings};

/// Reads by offset before a file that is open for reading gets a lease, which costs as much as
/// many reads from the page cache.
const CALLS: u16 = 64;

/// Waits for the kernel to tell the server of a close, 8 ms in all.
const CLOSING: [Duration; 8] = {
    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }
    [
        us(30),
        us(60),
        us(120),
        us(240),
        us(500),
        us(1000),
        us(2000),
        us(4000),
    ]
};

/// Flags of open(2) that a second open of the same file keeps.
pub(crate) const KEPT: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_NOATIME
    | libc::O_NONBLOCK;

/// The limits that follow from RLIMIT_NOFILE when the first lease is taken.
struct Limits {
    /// The lowest number of the descriptors of the library.
    lowest: i32,
    leases: usize,
}

/// Returns the limits. Without a lock, on which a signal handler would wait for the thread that it
/// has interrupted: the first who stores them decides.
fn limits() -> Limits {
    /// The lowest number, and the leases in the upper half. 0: not known yet.
    static LIMITS: AtomicU64 = AtomicU64::new(0);
    let known = match LIMITS.load(Ordering::Acquire) {
        0 => {
            let (from, to) = (Ordering::AcqRel, Ordering::Acquire);
            let new = look_at_limits();
            LIMITS
                .compare_exchange(0, new, from, to)
                .map_or_else(|known| known, |_| new)
        }
        known => known,
    };
    let limits = Limits {
        lowest: known as u32 as i32,
        leases: (known >> 32) as usize,
    };
    pramfs_client::keep_descriptors_above(limits.lowest);
    limits
}

fn look_at_limits() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is written to a variable of this type.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let most = limit.rlim_cur;
    let lowest = (most - most / 4).clamp(16, 3072);
    // Two descriptors each.
    let leases = (most / 16).min(u64::from(u32::MAX));
    leases << 32 | lowest
}

/// Notes a descriptor that the program has just opened. Keeps errno.
pub(crate) fn opened(fd: c_int, flags: c_int) {
    if !table::is_tracked(fd) || is_inside() || process::is_sealed() || process::is_apart() {
        return;
    }
    // A close that was not seen may have left an entry.
    table::forget(fd);
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return;
    }
    let errno = real::errno();
    if let Some(stat) = stat(fd)
        && is_ours(fd, &stat)
        && owns_memory()
    {
        note(fd, flags, &stat);
    }
    real::set_errno(errno);
}

fn note(fd: c_int, flags: c_int, stat: &libc::stat64) {
    let inode = table::hash(stat.st_dev, stat.st_ino);
    let mount = Entry::plain(inode);
    let before = table::entry(fd);
    let entry = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Entry::Candidate { inode, calls: 0 },
        // A new file grows through the mount.
        libc::O_RDWR if stat.st_size == 0 && flags & (libc::O_APPEND | libc::O_DIRECT) == 0 => {
            Entry::Growing {
                inode,
                calls: 0,
                epoch: table::epoch(),
            }
        }
        libc::O_RDWR if stat.st_size > 0 && flags & libc::O_APPEND == 0 => {
            match write_lease(fd, flags, stat) {
                Ok(held) => counted(held, flags),
                Err(Refused { hidden }) => Entry::Mount { inode, hidden },
            }
        }
        // Only beside a descriptor that reads as well: a lease cannot be had with this one.
        libc::O_WRONLY if flags & libc::O_APPEND == 0 => {
            match slots::find(stat.st_dev, stat.st_ino, true) {
                Some(held) => {
                    set_direct(fd);
                    counted(held, flags)
                }
                None => mount,
            }
        }
        _ => mount,
    };
    if !table::note(fd, before, entry)
        && let Some(held) = table::hold(entry)
    {
        // Another thread has closed it meanwhile, and may have opened another file: give the use
        // back that was counted.
        drop(held.uncount());
    }
}

/// Returns the entry of a descriptor that was opened with these flags, and counts its use.
fn counted(held: Held, flags: c_int) -> Entry {
    let reads = flags & libc::O_ACCMODE != libc::O_WRONLY;
    let entry = held.entry(reads, flags & libc::O_DIRECT == 0);
    held.count();
    entry
}

/// Runs code of the client. A panic must not reach the program.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(None)
}

/// There is no lease to write.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refused {
    /// The descriptor has O_DIRECT, and could not be replaced again: the process has too many,
    /// for example.
    pub(crate) hidden: bool,
}

/// Gets a lease to write for a descriptor that nobody else knows of yet.
pub(crate) fn write_lease(fd: c_int, flags: c_int, stat: &libc::stat64) -> Result<Held, Refused> {
    let none = Refused::default();
    let (device, inode) = (stat.st_dev, stat.st_ino);
    let find = || slots::find(device, inode, true);
    if let Some(held) = find() {
        // While the lease lives, the mount opens the file without the page cache.
        set_direct(fd);
        return Ok(held);
    }
    let hash = table::hash(device, inode);
    if is_program(stat) || was_busy(hash, Wanted::Writes) || !slots::has_room(limits().leases) {
        return Err(none);
    }
    let Some(_change) = table::Change::begin(hash) else {
        return Err(none);
    };
    let replaced = flags & libc::O_DIRECT == 0;
    // Before this thread waits: several threads that open the file at the same time wait for
    // the end of each other's first descriptors.
    if replaced && !reopen(fd, flags, libc::O_DIRECT) {
        return Err(none);
    }
    let held = Inside::enter().and_then(|inside| {
        guarded(|| {
            find().or_else(|| {
                let file = lease(&inside, fd, Wanted::Writes)?;
                slots::add(&inside, file, device, inode, Wanted::Writes)
            })
        })
    });
    held.ok_or_else(|| {
        note_busy(hash, Wanted::Writes);
        let hidden = replaced && !reopen(fd, flags, 0);
        Refused { hidden }
    })
}

/// Whether writes of a descriptor append, because another process that shares it has said so. Under a
/// filter the question may be forbidden.
#[inline]
pub(crate) fn appends(fd: c_int, held: &Held) -> bool {
    held.may_be_shared() && (process::is_sealed() || has_append(fd))
}

#[cold]
fn has_append(fd: c_int) -> bool {
    let errno = real::errno();
    // SAFETY: asks for flags.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    real::set_errno(errno);
    flags < 0 || flags & libc::O_APPEND != 0
}

/// Sets O_DIRECT on a descriptor that does not use the page cache: without it, splice(2)
/// would. The program does not see it (`calls/descriptors.rs`).
fn set_direct(fd: c_int) {
    // SAFETY: asks for flags.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    if flags >= 0 {
        // SAFETY: sets a flag of a descriptor that the program waits for.
        unsafe { real::fcntl64(fd, libc::F_SETFL, (flags | libc::O_DIRECT) as usize) };
    }
}

/// A lease that the program has a use for.
///
/// One to read does not show what another program stores through a mapping of the mount, so it
/// gives way to such a program ([`Coherence`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Reads,
    Writes,
}

impl Wanted {
    pub(crate) fn is_to_write(self) -> bool {
        self == Wanted::Writes
    }

    fn coherence(self) -> Coherence {
        match self {
            Wanted::Reads => Coherence::Recalled,
            // The server grants none while the file is open through the page cache.
            Wanted::Writes => Coherence::WriteBack,
        }
    }

    /// Waits for opens that are in its way, and may have been closed just now.
    fn waits(self) -> &'static [Duration] {
        match self {
            Wanted::Reads => &CLOSING[..4],
            Wanted::Writes => &CLOSING,
        }
    }
}

/// Takes that back: the file has no lease any more.
pub(crate) fn clear_direct(fd: c_int) {
    let errno = real::errno();
    // SAFETY: asks for flags.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    if flags >= 0 {
        // SAFETY: clears a flag that the program has not set.
        unsafe { real::fcntl64(fd, libc::F_SETFL, (flags & !libc::O_DIRECT) as usize) };
    }
    real::set_errno(errno);
}

/// Asks for a lease on an open file.
fn lease(inside: &Inside, fd: c_int, wanted: Wanted) -> Option<pramfs_client::File> {
    process::make_forks_wait(inside);
    WAS_ASKED.store(true, Ordering::Release);
    let lowest = limits().lowest;
    let mut waits = wanted.waits().iter();
    loop {
        // A description of its own: the program may lock its own one, and close it.
        let own = open_again(fd, own_flags(fd, wanted.is_to_write())?)?;
        // SAFETY: makes a new descriptor.
        let moved = unsafe {
            let lowest = lowest as usize;
            real::fcntl64(own.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest)
        };
        drop(own);
        if moved < 0 {
            return None;
        }
        // SAFETY: made above, and nobody else knows of it.
        let own = unsafe { OwnedFd::from_raw_fd(moved) };
        let options = OpenOptions::new()
            .write(wanted.is_to_write())
            .coherence(wanted.coherence())
            .protect(settings::protection());
        match options.from_file(File::from(own)) {
            Ok(file) => return Some(file),
            Err(error) if error.errno() == libc::EBUSY => {
                let Some(wait) = waits.next() else {
                    let stat = stat(fd)?;
                    note_busy(table::hash(stat.st_dev, stat.st_ino), wanted);
                    return None;
                };
                std::thread::sleep(*wait);
            }
            Err(_) => return None,
        }
    }
}

/// Opens the file of a descriptor again. `None` also if that has opened another file: in a
/// directory that the program has made its root, `/proc` may be anybody's.
pub(crate) fn open_again(fd: c_int, flags: c_int) -> Option<OwnedFd> {
    let mut path = [0u8; 32];
    write!(&mut path[..31], "/proc/self/fd/{fd}").ok()?;
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: the path ends with a zero.
    let new = unsafe { real::open64(path.as_ptr().cast(), flags, 0) };
    // SAFETY: opened above, if it is one, and nobody else knows of it.
    let new = (new >= 0).then(|| unsafe { OwnedFd::from_raw_fd(new) })?;
    is_same_file(fd, new.as_raw_fd()).then_some(new)
}

/// Whether two descriptors are of one regular file.
fn is_same_file(one: c_int, other: c_int) -> bool {
    let file = |fd| {
        let found = stat(fd)?;
        (found.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((found.st_dev, found.st_ino))
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// Returns how the library opens a file for itself: with the page cache only if the program
/// has it open so.
fn own_flags(fd: c_int, write: bool) -> Option<c_int> {
    let direct = flags(fd)? & libc::O_DIRECT;
    let access = if write {
        libc::O_RDWR | libc::O_DIRECT
    } else {
        libc::O_RDONLY | direct
    };
    Some(access | libc::O_NONBLOCK)
}

/// Opens the file of a descriptor again, and puts it in its place. The new one has the position of
/// the old one, and no locks.
fn reopen(fd: c_int, flags: c_int, more: c_int) -> bool {
    let Some(new) = open_again(fd, flags & KEPT | more) else {
        return false;
    };
    let old = Old::of(fd);
    // SAFETY: both are open; the program waits for the second one.
    let done = unsafe { real::dup3(new.as_raw_fd(), fd, flags & libc::O_CLOEXEC) >= 0 };
    if done && let Some(old) = old {
        old.carry_over(&new, 0);
    }
    done
}

/// A description that is being replaced. Another thread may be in a call that moves its position,
/// and that was not seen: of stdio, or of the kernel alone.
pub(crate) struct Old(OwnedFd);

impl Old {
    /// `None` if the process has too many descriptors.
    pub(crate) fn of(fd: c_int) -> Option<Old> {
        // The low numbers are the program's.
        let lowest = limits().lowest as usize;
        // SAFETY: makes a new descriptor.
        let copy = unsafe { real::fcntl64(fd, libc::F_DUPFD_CLOEXEC, lowest) };
        // SAFETY: made above, if it was, and nobody else knows of it.
        (copy >= 0).then(|| Old(unsafe { OwnedFd::from_raw_fd(copy) }))
    }

    /// Gives the new description the position of the old one, if that is not the one that it has.
    pub(crate) fn carry_over(self, new: &OwnedFd, has: i64) {
        // SAFETY: asks for the position.
        let position = unsafe { real::lseek64(self.0.as_raw_fd(), 0, libc::SEEK_CUR) };
        if position >= 0 && position != has {
            // SAFETY: takes no memory.
            unsafe { real::lseek64(new.as_raw_fd(), position, libc::SEEK_SET) };
        }
    }
}

/// Counts a read by offset of a file that is open for reading, and takes a lease in time.
#[cold]
pub(crate) fn count_read(fd: c_int, inode: u16, calls: u16) -> Option<Held> {
    let old = Entry::Candidate { inode, calls };
    if calls < CALLS {
        let calls = calls + 1;
        table::replace(fd, old, Entry::Candidate { inode, calls });
        return None;
    }
    let (again, wanted) = (Entry::Candidate { inode, calls: 0 }, Wanted::Reads);
    if was_busy(inode, wanted) {
        table::replace(fd, old, again);
        return None;
    }
    // Only one attempt, by one thread.
    if !owns_memory() || !table::replace(fd, old, Entry::plain(inode)) {
        return None;
    }
    // A lease that is refused closes a descriptor of the file.
    let _change = table::Change::begin(inode)?;
    let inside = Inside::enter()?;
    let held = guarded(|| {
        let stat = stat(fd)?;
        if let Some(held) = slots::find(stat.st_dev, stat.st_ino, false) {
            return Some(held);
        }
        if !slots::has_room(limits().leases) {
            return None;
        }
        let file = lease(&inside, fd, Wanted::Reads)?;
        slots::add(&inside, file, stat.st_dev, stat.st_ino, Wanted::Reads)
    });
    let Some(held) = held else {
        if was_busy(inode, wanted) {
            table::replace(fd, Entry::plain(inode), again);
        }
        return None;
    };
    let entry = held.entry(true, false);
    // Before others can see the entry, and drop it.
    let held = held.and_count();
    if table::replace(fd, Entry::plain(inode), entry) {
        drop(inside);
        return Some(held);
    }
    let held = held.uncount();
    // Closed meanwhile. The last user leaves outside.
    drop(inside);
    drop(held);
    None
}

/// Whether this process may have leases, or connections to servers, and can end them.
pub(crate) fn may_have_any() -> bool {
    WAS_ASKED.load(Ordering::Acquire) && !is_inside() && !process::is_sealed() && owns_memory()
}

/// Ends all leases and connections. Those of files that the process has locked stay: to close a
/// descriptor of such a file would release the locks.
pub(crate) fn drop_rights() {
    give_up_all();
    table::pass_all();
    if let Some(_inside) = Inside::enter() {
        guarded(|| {
            pramfs_client::close_connections();
            Some(())
        });
    }
}

/// Set before the first lease is asked for.
static WAS_ASKED: AtomicBool = AtomicBool::new(false);

/// Learns the blocks of a file up to an offset. False if they cannot be known.
#[cold]
pub(crate) fn learn(held: &Held, end: u64) -> bool {
    // A file that grows with each call must not cost a request with each call.
    if !held.misses_often() {
        return false;
    }
    let Some(inside) = Inside::enter() else {
        return false;
    };
    let learnt = guarded(|| match held.file().learn(end) {
        Ok(()) => Some(true),
        Err(error) => (error.errno() == libc::ESTALE).then_some(false),
    });
    drop(inside);
    if learnt == Some(false) {
        // Recalled: a program may store to the file through the page cache, which the descriptors
        // of the program use.
        table::pass_lease(held);
    }
    learnt == Some(true)
}

/// Opens of a leased file: the descriptor of the program, and that of the lease.
const OPENS: u32 = 2;

/// Asks for room to append to a file. False if the mount must do it.
#[cold]
pub(crate) fn prepare_append(held: &Held, bytes: u64) -> bool {
    // A window costs some requests, and the server a few records. The kernel's size of the file
    // is too small from then on, which only a program can allow that uses no call that
    // believes it.
    if !settings::may_append() || !held.grows_often() {
        return false;
    }
    let Some(_inside) = Inside::enter() else {
        return false;
    };
    guarded(|| held.file().prepare_append(bytes, OPENS).then_some(())).is_some()
}

/// Returns the flags of a descriptor as open(2) takes them.
pub(crate) fn flags(fd: c_int) -> Option<c_int> {
    // SAFETY: asks for flags.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    // SAFETY: as above.
    let own = unsafe { real::fcntl64(fd, libc::F_GETFD, 0) };
    let close = if own & libc::FD_CLOEXEC != 0 {
        libc::O_CLOEXEC
    } else {
        0
    };
    (flags >= 0 && own >= 0).then_some(flags | close)
}

/// Takes a lease for a descriptor that is to be mapped: for reading, or because the file has a lease
/// to write already, so that the kernel does not map it.
#[cold]
pub(crate) fn adopt(fd: c_int) -> Option<Held> {
    let before = table::entry(fd);
    if is_inside()
        || process::is_sealed()
        || !owns_memory()
        || !matches!(
            before,
            Entry::Unknown | Entry::Mount { .. } | Entry::Candidate { .. }
        )
    {
        return None;
    }
    let (flags, stat) = (flags(fd)?, stat(fd)?);
    if !is_ours(fd, &stat) || flags & libc::O_APPEND != 0 {
        return None;
    }
    let wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Wanted::Reads,
        libc::O_RDWR if !is_program(&stat) => Wanted::Writes,
        _ => return None,
    };
    let write = wanted.is_to_write();
    let inode = table::hash(stat.st_dev, stat.st_ino);
    let _change = table::Change::begin(inode)?;
    let inside = Inside::enter()?;
    let held = guarded(|| {
        if let Some(held) = slots::find(stat.st_dev, stat.st_ino, write) {
            return Some(held);
        }
        if !slots::has_room(limits().leases) {
            return None;
        }
        slots::add(
            &inside,
            lease(&inside, fd, wanted)?,
            stat.st_dev,
            stat.st_ino,
            wanted,
        )
    })?;
    drop(inside);
    let hidden = write && (flags & libc::O_DIRECT == 0 || table::hides_direct(fd));
    if hidden {
        set_direct(fd);
    }
    let held = held.and_count();
    let held = match table::note(fd, before, held.entry(true, hidden)) {
        true => held,
        // The number is too high, or another thread has closed it meanwhile: then it may be another
        // file. The lease serves this call only.
        false => held.uncount(),
    };
    Some(held)
}
