//! How a file loses its lease, for a mapping that only the page cache can serve.
//!
//! All descriptors of the file in this process are replaced by ones that use the page cache.
//! Those that are copies of each other share a position, and share one again afterwards:
//! Python, for example, copies a descriptor before it maps it.

use std::os::fd::AsRawFd as _;

use libc::c_int;

use crate::lease::{KEPT, flags, open_again};
use crate::process::is_sealed;
use crate::real;
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

/// Gives up the lease of a descriptor. False if the file cannot be opened through the page
/// cache.
#[cold]
pub(crate) fn give_up(fd: c_int) -> bool {
    let Some(mut held) = table::hold(table::entry(fd)) else {
        return false;
    };
    let inode = held.inode();
    let all = table::with_lease(&held);
    // A call of another thread uses the lease: then the page cache stays away. The close of a
    // descriptor would release record locks. A position that other processes share would be
    // another one from then on.
    if is_sealed()
        || table::may_be_locked(inode)
        || held.users() > all.len() as u64 + 1
        || held.may_be_shared()
    {
        return false;
    }
    let Some(descriptions) = descriptions(fd, &all) else {
        return false;
    };
    let Some(change) = table::Change::begin(inode) else {
        return false;
    };
    let changing = Entry::Changing { inode };
    let claims = all.iter();
    let claimed = claims
        .take_while(|(fd, entry)| table::replace(*fd, *entry, changing))
        .count();
    if claimed < all.len() {
        for (fd, entry) in &all[..claimed] {
            if !table::replace(*fd, changing, *entry) {
                // Closed meanwhile, without the use that was counted.
                held = held.uncount();
            }
        }
        return false;
    }
    for _ in &all {
        held = held.uncount();
    }
    // The last use.
    drop(held);
    let mut done = true;
    for description in &descriptions {
        done &= description.renew();
    }
    for (fd, _) in &all {
        table::replace(*fd, changing, Entry::Mount { inode });
    }
    drop(change);
    done
}

/// Finds the descriptions of leased descriptors, and all copies of each. `None` if they cannot
/// be known.
fn descriptions(mapped: c_int, all: &[(c_int, Entry)]) -> Option<Vec<Description>> {
    let kernel_tells = are_copies(mapped, mapped);
    if !kernel_tells && all.len() > 1 {
        return None;
    }
    let mut known: Vec<Description> = Vec::new();
    for (fd, entry) in all {
        if known.iter().any(|d| d.copies.contains(fd)) {
            continue;
        }
        let mut flags = flags(*fd)?;
        if matches!(entry, Entry::Leased { hidden: true, .. }) {
            flags &= !libc::O_DIRECT;
        }
        // SAFETY: asks for the position.
        let position = unsafe { real::lseek64(*fd, 0, libc::SEEK_CUR) };
        if position < 0 {
            return None;
        }
        // Also those that were not seen as files of the mount.
        let others = (0..table::DESCRIPTORS as c_int).filter(|n| n != fd && are_copies(*fd, *n));
        let mut copies = vec![*fd];
        if kernel_tells {
            copies.extend(others);
        }
        known.push(Description {
            copies,
            flags,
            position,
        });
    }
    // The program may have asked for O_DIRECT itself; but with it, a file cannot be mapped.
    let of_mapped = known.iter_mut().find(|d| d.copies.contains(&mapped))?;
    of_mapped.flags &= !libc::O_DIRECT;
    Some(known)
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
    /// Opens the file again, and puts the new description in the place of the old one.
    fn renew(&self) -> bool {
        let Some(new) = open_again(
            self.copies[0],
            self.flags & KEPT | self.flags & libc::O_DIRECT,
        ) else {
            return false;
        };
        // SAFETY: sets the position of a descriptor that only this function knows.
        if unsafe { real::lseek64(new.as_raw_fd(), self.position, libc::SEEK_SET) } != self.position
        {
            return false;
        }
        let mut done = true;
        for copy in &self.copies {
            // SAFETY: asks for a flag.
            let own = unsafe { real::fcntl64(*copy, libc::F_GETFD, 0) };
            let close = match own & libc::FD_CLOEXEC {
                0 => 0,
                _ => libc::O_CLOEXEC,
            };
            // SAFETY: both are open. Others wait for the entry of the second one.
            done &= unsafe { real::dup3(new.as_raw_fd(), *copy, close) } >= 0;
        }
        done
    }
}
