//! System calls that Rust's standard library lacks, and the only `unsafe` code of the
//! benchmarks.
//!
//! Purpose: mappings, copies out of mappings (the competitor "copying from a plain
//! mapping" is exactly [`Mapping::copy_out`]), page-aligned buffers for `O_DIRECT`, CPU times.
//!
//! Invariant: only this process uses the live memory of a [`Mapping`], by raw copies. No
//! `&[u8]` into it escapes except from [`Mapping::lend`].

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use pramfs::MappedFile;
use pramfs_client::MappedFile as View;
use serde::{Deserialize, Serialize};

/// Bytes of a page, and of every small read and write in the benchmarks.
pub const PAGE: usize = 4096;

/// A shared mapping, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the pointer is an owned mapping. The benchmarks never let accesses of
// different threads overlap.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(fd: i32, len: usize, prot: i32, flags: i32, offset: u64) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses touches
        // no existing memory.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                flags,
                fd,
                offset as libc::off_t,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping {
            base: p.cast(),
            len,
        })
    }

    /// Maps the first `len` bytes of a file, shared. Fills the page tables if
    /// `populate`.
    pub fn of_file(file: &File, len: usize, write: bool, populate: bool) -> io::Result<Mapping> {
        let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
        Mapping::map(file.as_raw_fd(), len, prot, flags, 0)
    }

    /// Maps `len` bytes of a file from `offset` (a multiple of the page size), for
    /// reading.
    pub fn window(file: &File, offset: u64, len: usize) -> io::Result<Mapping> {
        Mapping::map(
            file.as_raw_fd(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            offset,
        )
    }

    /// Maps anonymous memory and fills it with page frames.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let m = Mapping::map(-1, len, libc::PROT_READ | libc::PROT_WRITE, flags, 0)?;
        populate_write(m.base, len)?;
        Ok(m)
    }

    /// Returns the mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|e| e <= self.len), "outside the mapping");
        // SAFETY: offset + len lies in the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    /// Copies out of the mapping with a plain `memcpy`.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let src = self.at(offset, into.len());
        // SAFETY: `src` has into.len() readable bytes; `into` is a Rust buffer
        // and cannot overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(src, into.as_mut_ptr(), into.len()) };
    }

    /// Copies into the mapping with a plain `memcpy`. The constructor made it writable.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let dst = self.at(offset, from.len());
        // SAFETY: as for copy_out, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dst, from.len()) };
    }

    /// Returns the mapping as words to load.
    pub fn words(&self) -> Words<'_> {
        Words {
            base: self.base,
            len: self.len,
            owner: PhantomData,
        }
    }

    /// Lends a range as a slice, for a system call that reads it.
    pub fn lend<T>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> T) -> T {
        let len = range.end.saturating_sub(range.start);
        let p = self.at(range.start, len);
        // SAFETY: in bounds. During `f`, the benchmarks store nothing into a range
        // that they read.
        f(unsafe { std::slice::from_raw_parts(p, len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping; nothing borrows it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Fills the page tables of a range of mapped memory for writing without
/// changing a byte of it (`MADV_POPULATE_WRITE`).
pub fn populate_write(base: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: populating changes no contents. An unmapped range gives an error and has
    // no other effect.
    if unsafe { libc::madvise(base.cast(), len, libc::MADV_POPULATE_WRITE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Mapped memory for loads of single words.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    base: *const u8,
    len: usize,
    owner: PhantomData<&'a ()>,
}

// SAFETY: it only loads, and its owner, borrowed for 'a, keeps the memory mapped for
// all threads.
unsafe impl Send for Words<'_> {}
// SAFETY: as above.
unsafe impl Sync for Words<'_> {}

impl<'a> Words<'a> {
    /// Returns the words of a directly mapped pramfs file.
    pub fn of_map(map: &'a MappedFile) -> Words<'a> {
        Words {
            base: map.as_ptr().cast_const(),
            len: map.len() as usize,
            owner: PhantomData,
        }
    }

    /// Returns the words of a file of a mount that is mapped by a lease.
    pub fn of_view(view: &'a View) -> Words<'a> {
        Words {
            base: view.as_ptr().cast_const(),
            len: view.len() as usize,
            owner: PhantomData,
        }
    }

    /// Returns the address range, to find the mapping in smaps.
    pub fn range(&self) -> Range<usize> {
        self.base as usize..self.base as usize + self.len
    }

    /// Lends a range as a slice.
    pub fn lend<T>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> T) -> T {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "outside the mapping"
        );
        // SAFETY: in bounds of a mapping that its owner keeps for 'a. Meanwhile the
        // benchmarks store nothing into it.
        f(unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) })
    }

    /// Returns the mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Loads 8 bytes at a multiple of 8.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        assert!(
            offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8,
            "outside the mapping"
        );
        // SAFETY: aligned and in bounds of a mapping that its owner keeps for 'a.
        // Volatile, so that the load is neither merged nor moved.
        unsafe { std::ptr::read_volatile(self.base.add(offset).cast::<u64>()) }
    }
}

/// A page-aligned buffer, as `O_DIRECT` requires.
#[derive(Debug)]
pub struct Aligned {
    memory: Mapping,
}

impl Aligned {
    /// Makes a buffer of `len` bytes filled with `byte`.
    pub fn filled(len: usize, byte: u8) -> io::Result<Aligned> {
        let mut a = Aligned {
            memory: Mapping::anonymous(len)?,
        };
        a.bytes_mut().fill(byte);
        Ok(a)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the whole private mapping, which only this value can reach.
        unsafe { std::slice::from_raw_parts(self.memory.base, self.memory.len) }
    }

    /// Returns the bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and &mut self makes it the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base, self.memory.len) }
    }
}

/// Enters a private mount namespace. Only this process and its children see later
/// mounts, which disappear with the last of them, however they die.
pub fn private_mounts() -> io::Result<()> {
    // SAFETY: unshare takes only flags; no other thread has started yet.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Makes a child, between fork and exec, die with its parent.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: prctl with these arguments reads no memory; async-signal-safe.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes `command` call [`die_with_parent`] in the child.
pub fn kill_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(die_with_parent) };
}

/// Gives `command` a session of its own, as every daemon has. The scheduler divides
/// time among sessions first (autogroup): a server in its client's session changes a
/// request's time by a tenth.
pub fn own_session(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure makes one system call, which reads no memory and is
    // async-signal-safe. It cannot fail: a new process leads no group.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        })
    };
}

/// Sends a signal to a process that this program started and has not reaped.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill reads no memory of ours.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Unlinks a name that is already a C string, like a C program.
#[inline]
pub fn unlink_at(dir: BorrowedFd<'_>, name: &CStr, dir_flag: bool) -> io::Result<()> {
    let flags = if dir_flag { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: `name` ends with NUL and outlives the call.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) })
}

/// Creates an empty regular file and closes it.
#[inline]
pub fn create_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: `name` ends with NUL; the returned descriptor is ours.
    unsafe {
        let fd = libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, 0o644);
        check(fd)?;
        check(libc::close(fd))
    }
}

/// Creates an empty regular file without opening it.
#[inline]
pub fn mknod_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` ends with NUL and outlives the call.
    check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), libc::S_IFREG | 0o644, 0) })
}

/// Makes a directory.
#[inline]
pub fn mkdir_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` ends with NUL and outlives the call.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) })
}

/// Renames within one directory.
#[inline]
pub fn rename_at(dir: BorrowedFd<'_>, old: &CStr, new: &CStr) -> io::Result<()> {
    let d = dir.as_raw_fd();
    // SAFETY: both names end with NUL and outlive the call.
    check(unsafe { libc::renameat(d, old.as_ptr(), d, new.as_ptr()) })
}

/// Calls `fstatat`; returns the size, so that the call is not optimized away.
#[inline]
pub fn stat_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<u64> {
    let mut st = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `name` ends with NUL; on success, the kernel fills all of `st`.
    unsafe {
        check(libc::fstatat(
            dir.as_raw_fd(),
            name.as_ptr(),
            st.as_mut_ptr(),
            0,
        ))?;
        Ok(st.assume_init().st_size as u64)
    }
}

#[inline]
fn check(r: i32) -> io::Result<()> {
    if r < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// CPU time and page faults of this process, or of its children that were waited for.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// Faults without I/O.
    pub minor_faults: u64,
    /// Faults with I/O.
    pub major_faults: u64,
}

impl Usage {
    /// Returns the usage of this process so far.
    pub fn now() -> Usage {
        let mut ru = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the structure; zeroed is a valid value too.
        let ru = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, ru.as_mut_ptr());
            ru.assume_init()
        };
        let time = |t: libc::timeval| {
            Duration::new(t.tv_sec.max(0) as u64, t.tv_usec.max(0) as u32 * 1000)
        };
        Usage {
            user: time(ru.ru_utime),
            system: time(ru.ru_stime),
            minor_faults: ru.ru_minflt.max(0) as u64,
            major_faults: ru.ru_majflt.max(0) as u64,
        }
    }

    /// Returns the usage since `earlier`.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
        }
    }
}

/// Pins the calling thread to one processor.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    pin_to_cpus(&[cpu])
}

/// Restricts the calling thread, and its children, to these processors.
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain bits, CPU_SET stays inside it for cpu < 1024,
    // and the kernel only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            libc::CPU_SET((*cpu).min(1023), &mut set);
        }
        check(libc::sched_setaffinity(
            0,
            size_of::<libc::cpu_set_t>(),
            &set,
        ))
    }
}

/// Returns the processors that the calling thread may run on.
pub fn cpus() -> io::Result<Vec<usize>> {
    // SAFETY: the kernel fills a plain bit set of the given size; CPU_ISSET reads bits
    // below its 1024.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        check(libc::sched_getaffinity(
            0,
            size_of::<libc::cpu_set_t>(),
            &mut set,
        ))?;
        Ok((0..1024).filter(|c| libc::CPU_ISSET(*c, &set)).collect())
    }
}

/// Returns the processor time of a process and its threads so far.
pub fn cpu_time_of(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls only write to the variables passed to them.
    unsafe {
        match libc::clock_getcpuclockid(pid as i32, &raw mut clock) {
            0 => check(libc::clock_gettime(clock, &raw mut t))?,
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
    Ok(Duration::new(
        t.tv_sec.max(0) as u64,
        t.tv_nsec.max(0) as u32,
    ))
}
