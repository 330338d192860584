//! How a file loses its lease, for a mapping that only the page cache can serve, or before a
//! filter keeps the process from asking.
//!
//! All descriptors of the file in this process are replaced by ones that use the page cache.
//! Those that are copies of each other share a position, and share one again afterwards:
//! Python, for example, copies a descriptor before it maps it.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use libc::c_int;

use crate::lease::{KEPT, Old, flags, open_again};
use crate::process::{is_sealed, pause};
use crate::real;
use crate::slots::{self, Held};
use crate::table::{self, Entry};

/// Asks whether two descriptors are copies: fcntl(2) since Linux 6.10.
const F_DUPFD_QUERY: c_int = 1027;
/// The number of KCMP_FILE, the same question for kcmp(2), which may not be there.
const KCMP_FILE: i64 = 0;

/// Descriptors that are copies of each other, and how to open their file again.
struct Description {
    copies: Vec<c_int>,
    flags: c_int,
    position: i64,
}

/// Gives up the lease of a descriptor that is to be mapped. False if the file cannot be opened
/// through the page cache.
#[cold]
pub(crate) fn give_up(fd: c_int) -> bool {
    replace_all(fd, true)
}

/// Gives up the lease of a descriptor that keeps the way in which the program has opened it.
#[cold]
pub(crate) fn release(fd: c_int) -> bool {
    let errno = real::errno();
    let done = replace_all(fd, false);
    real::set_errno(errno);
    done
}

/// Waits for calls of other threads that use a lease, 12 ms in all.
const WAITS: [Duration; 5] = {
    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }
    [ms(0), ms(1), ms(2), ms(3), ms(6)]
};

/// Gives up all leases to write, as far as that is possible: once a filter is set, no lease can
/// be ended and no mapping be made of it, while the kernel refuses to map the files.
///
/// A file that was mapped keeps its lease. Its mappings would keep the kernel from mapping it in
/// any case, and without the lease an fsync would not make the stores through them durable.
#[cold]
pub(crate) fn give_up_all() {
    for wait in WAITS {
        pause(wait);
        let mut done = true;
        for held in slots::not_mapped() {
            let with_lease = table::with_lease(&held);
            // Its use would be one of another call.
            drop(held);
            done &= with_lease
                .first()
                .is_none_or(|(fd, _)| replace_all(*fd, false));
        }
        if done {
            break;
        }
    }
}

/// Gives up the lease of a descriptor.
fn replace_all(fd: c_int, maps: bool) -> bool {
    let Some(held) = table::hold(table::entry(fd)) else {
        return false;
    };
    let inode = held.inode();
    if is_sealed() {
        return false;
    }
    // Before everything: who shares or locks descriptions from here on waits for the end. The
    // close of a descriptor would release record locks.
    let Some(change) = table::Change::begin(inode) else {
        return false;
    };
    let claims = Claims::of(held);
    let Some(descriptions) = claims.descriptions(fd, maps) else {
        claims.undo();
        return false;
    };
    let all = claims.end_lease();
    let renewed: Vec<c_int> = descriptions.iter().flat_map(Description::renew).collect();
    for (fd, entry) in &all {
        // One that could not be replaced goes on hiding what the program has not asked for.
        let hidden = entry.hides_direct() && !renewed.contains(fd);
        table::replace(
            *fd,
            Entry::Changing { inode },
            Entry::Mount { inode, hidden },
        );
    }
    drop(change);
    renewed.len() == all.len()
}

/// The descriptors of a lease, whose entries say that they are being changed. Other threads that
/// close them, copy them or use their position wait.
struct Claims {
    held: Held,
    all: Vec<(c_int, Entry)>,
}

impl Claims {
    fn of(held: Held) -> Claims {
        let changing = Entry::Changing {
            inode: held.inode(),
        };
        let mut all = table::with_lease(&held);
        // The others have been closed meanwhile.
        all.retain(|(fd, entry)| table::replace(*fd, *entry, changing));
        Claims { held, all }
    }

    /// Whether nothing else uses the lease: no call of another thread, which would keep the page
    /// cache away, and no descriptor that has been made since. Other processes must not share the
    /// descriptions: a position that they share would be another one from then on.
    fn are_all(&self) -> bool {
        self.held.users() == self.all.len() as u64 + 1
            && table::with_lease(&self.held).is_empty()
            && !self.held.may_be_shared()
    }

    fn undo(mut self) {
        let inode = self.held.inode();
        for (fd, entry) in &self.all {
            if !table::replace(*fd, Entry::Changing { inode }, *entry) {
                // Closed meanwhile by a signal handler, without the use that was counted.
                self.held = self.held.uncount();
            }
        }
    }

    fn end_lease(mut self) -> Vec<(c_int, Entry)> {
        for _ in &self.all {
            self.held = self.held.uncount();
        }
        self.all
    }

    /// Finds the descriptions of the descriptors, and all copies of each. `None` if they cannot
    /// be known, or not all of them are claimed.
    fn descriptions(&self, fd: c_int, maps: bool) -> Option<Vec<Description>> {
        let kernel_tells = are_copies(fd, fd);
        if !self.are_all() || !kernel_tells && self.all.len() > 1 {
            return None;
        }
        let is_claimed = |fd: &c_int| self.all.iter().any(|(claimed, _)| claimed == fd);
        let mut known: Vec<Description> = Vec::new();
        for (one, entry) in &self.all {
            if known.iter().any(|d| d.copies.contains(one)) {
                continue;
            }
            let mut flags = flags(*one)?;
            if entry.hides_direct() {
                flags &= !libc::O_DIRECT;
            }
            // SAFETY: asks for the position.
            let position = unsafe { real::lseek64(*one, 0, libc::SEEK_CUR) };
            if position < 0 {
                return None;
            }
            let others =
                (0..table::DESCRIPTORS as c_int).filter(|n| n != one && are_copies(*one, *n));
            let mut copies = vec![*one];
            if kernel_tells {
                copies.extend(others);
            }
            // A copy that the library has not seen could be closed, and its number be another file,
            // before it is replaced.
            if !copies.iter().all(is_claimed) {
                return None;
            }
            known.push(Description {
                copies,
                flags,
                position,
            });
        }
        // The program may have asked for O_DIRECT itself; but with it, a file cannot be mapped.
        let of_fd = known.iter_mut().find(|d| d.copies.contains(&fd))?;
        if maps {
            of_fd.flags &= !libc::O_DIRECT;
        }
        Some(known)
    }
}

/// Whether two numbers are descriptors that share their description, as far as the kernel
/// tells.
fn are_copies(one: c_int, other: c_int) -> bool {
    // SAFETY: asks about descriptors.
    let answer = unsafe { real::fcntl64(one, F_DUPFD_QUERY, other as usize) };
    if answer >= 0 || real::errno() == libc::EBADF {
        return answer == 1;
    }
    // SAFETY: as above, and takes no memory.
    unsafe {
        let process = i64::from(libc::getpid());
        let (one, other) = (one.into(), other.into());
        real::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, one, other, 0) == 0
    }
}

impl Description {
    /// Opens the file again, and puts the new description in the place of the old one. Returns
    /// the copies that have it.
    fn renew(&self) -> Vec<c_int> {
        let flags = self.flags & KEPT | self.flags & libc::O_DIRECT;
        let Some(new) = open_again(self.copies[0], flags) else {
            return Vec::new();
        };
        // SAFETY: sets the position of a descriptor that only this function knows.
        if unsafe { real::lseek64(new.as_raw_fd(), self.position, libc::SEEK_SET) } != self.position
        {
            return Vec::new();
        }
        let old = Old::of(self.copies[0]);
        let mut renewed = self.copies.clone();
        renewed.retain(|copy| {
            // SAFETY: asks for a flag.
            let own = unsafe { real::fcntl64(*copy, libc::F_GETFD, 0) };
            let close = match own & libc::FD_CLOEXEC {
                0 => 0,
                _ => libc::O_CLOEXEC,
            };
            // SAFETY: both are open. Others wait for the entry of the second one.
            unsafe { real::dup3(new.as_raw_fd(), *copy, close) >= 0 }
        });
        if let Some(old) = old {
            old.carry_over(&new, self.position);
        }
        renewed
    }
}
