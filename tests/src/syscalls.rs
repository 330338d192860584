//! System calls on what a directory tree holds, by descriptor.
//!
//! A *handle* is an `O_PATH` descriptor: it names an inode, of any type and
//! with or without a name, and opens nothing. What takes a path gets
//! `/proc/self/fd/N`, which leads to the inode itself. Errors are errno
//! numbers, so that two file systems can be compared.

use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::thread::{capabilities, set_capabilities};

/// A result with an errno.
pub type Sys<T = ()> = Result<T, i32>;

/// The errno of a failure.
pub fn errno<T>(result: rustix::io::Result<T>) -> Sys<T> {
    result.map_err(rustix::io::Errno::raw_os_error)
}

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The handle of a directory by its path.
pub fn root(path: &Path) -> Sys<OwnedFd> {
    errno(rustix::fs::open(
        path,
        HANDLE.union(OFlags::DIRECTORY),
        Mode::empty(),
    ))
}

/// The handle of a name in a directory.
pub fn lookup(dir: impl AsFd, name: &[u8]) -> Sys<OwnedFd> {
    errno(rustix::fs::openat(dir, name, HANDLE, Mode::empty()))
}

/// A path that leads to what the descriptor names, whatever its names are.
pub fn path_of(handle: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())
}

/// The chattr flags of a file or directory.
///
/// # Errors
/// The errno.
pub fn flags(fd: &impl AsFd) -> Sys<u32> {
    let fd = open(fd, OFlags::RDONLY)?;
    errno(rustix::fs::ioctl_getflags(&fd)).map(|f| f.bits())
}

/// Sets the chattr flags of a file or directory.
///
/// # Errors
/// The errno.
pub fn set_flags(fd: &impl AsFd, flags: u32) -> Sys {
    let fd = open(fd, OFlags::RDONLY)?;
    let flags = rustix::fs::IFlags::from_bits_retain(flags);
    errno(rustix::fs::ioctl_setflags(&fd, flags))
}

/// Opens what a handle names.
pub fn open(handle: &impl AsFd, flags: OFlags) -> Sys<OwnedFd> {
    errno(rustix::fs::openat(
        CWD,
        path_of(handle),
        flags.union(OFlags::CLOEXEC),
        Mode::empty(),
    ))
}

/// Makes a regular file that must not exist, and opens it for reading and
/// writing.
pub fn create(dir: impl AsFd, name: &[u8], perm: u32) -> Sys<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    errno(rustix::fs::openat(
        dir,
        name,
        flags,
        Mode::from_raw_mode(perm),
    ))
}

/// `mknod`, with type and permission bits in one number, as `stat` has them.
pub fn mknod(dir: impl AsFd, name: &[u8], mode: u32, rdev: u64) -> Sys {
    let (kind, perm) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
    errno(rustix::fs::mknodat(dir, name, kind, perm, rdev))
}

/// Another name of what a handle names.
pub fn link(handle: impl AsFd, dir: impl AsFd, name: &[u8]) -> Sys {
    errno(rustix::fs::linkat(
        handle,
        c"",
        dir,
        name,
        AtFlags::EMPTY_PATH,
    ))
}

/// Removes a name, of a directory or of anything else.
pub fn unlink(dir: impl AsFd, name: &[u8], directory: bool) -> Sys {
    let flags = if directory {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    };
    errno(rustix::fs::unlinkat(dir, name, flags))
}

/// `renameat2`.
pub fn rename(
    (from, name): (impl AsFd, &[u8]),
    (to, new_name): (impl AsFd, &[u8]),
    flags: pramfs::RenameFlags,
) -> Sys {
    let mut bits = rustix::fs::RenameFlags::empty();
    bits.set(rustix::fs::RenameFlags::NOREPLACE, flags.noreplace);
    bits.set(rustix::fs::RenameFlags::EXCHANGE, flags.exchange);
    bits.set(rustix::fs::RenameFlags::WHITEOUT, flags.whiteout);
    errno(rustix::fs::renameat_with(from, name, to, new_name, bits))
}

/// Attributes.
pub fn stat(handle: impl AsFd) -> Sys<Stat> {
    errno(rustix::fs::fstat(handle))
}

/// An entry of a directory: name, inode number, type.
pub type Entry = (Vec<u8>, u64, FileType);

/// All entries of a directory but `.` and `..`, in the order they come in.
pub fn read_dir(handle: &impl AsFd) -> Sys<Vec<Entry>> {
    let fd = open(handle, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut out = Vec::new();
    for entry in errno(Dir::new(fd))? {
        let entry = errno(entry)?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            out.push((name.to_vec(), entry.ino(), entry.file_type()));
        }
    }
    Ok(out)
}

/// The names of the extended attributes, sorted.
pub fn list_xattrs(handle: &impl AsFd) -> Sys<Vec<Vec<u8>>> {
    let mut list = vec![0; 65_536];
    let n = errno(rustix::fs::listxattr(path_of(handle), &mut list[..]))?;
    let mut names: Vec<_> = list[..n]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    names.sort();
    Ok(names)
}

/// The value of an extended attribute.
pub fn get_xattr(handle: &impl AsFd, name: &[u8]) -> Sys<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let n = errno(rustix::fs::getxattr(path_of(handle), name, &mut value[..]))?;
    value.truncate(n);
    Ok(value)
}

/// Who makes a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bits that new files do not get.
    pub umask: u32,
    /// Whether permissions do not stop it: it keeps root's capabilities.
    pub privileged: bool,
}

impl Caller {
    /// root, with no umask.
    pub const ROOT: Caller = Caller {
        uid: 0,
        gid: 0,
        umask: 0,
        privileged: true,
    };
}

/// The umask belongs to the process and not to the thread.
static UMASK: Mutex<()> = Mutex::new(());

/// Makes system calls as somebody. The test must be root.
///
/// # Panics
/// Where it is not.
pub fn as_caller<T>(caller: Caller, work: impl FnOnce() -> T) -> T {
    let _alone = UMASK.lock();
    let mask = rustix::process::umask(Mode::from_raw_mode(caller.umask));
    // Identity for file systems, of this thread only: unlike the effective
    // one it leaves /proc/self to us.
    let become_user = |uid, gid| {
        // SAFETY: both calls take numbers and touch no memory of ours.
        unsafe {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
        }
    };
    become_user(caller.uid, caller.gid);
    if caller.privileged && caller.uid != 0 {
        let mut sets = capabilities(None).expect("capabilities of this thread");
        sets.effective = sets.permitted;
        set_capabilities(None, sets).expect("root's capabilities");
    }
    let out = work();
    become_user(0, 0);
    rustix::process::umask(mask);
    out
}

/// Maps a page of memory of one's own so, and gives it back.
///
/// # Errors
/// Of mmap.
pub fn map_a_page(prot: rustix::mm::ProtFlags) -> rustix::io::Result<()> {
    let flags = rustix::mm::MapFlags::PRIVATE;
    // SAFETY: the kernel chooses a free place for a new mapping, which nobody
    // else knows and which is unmapped again before this returns.
    unsafe {
        let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, prot, flags)?;
        rustix::mm::munmap(at, 4096)
    }
}

/// Writes a byte into the memory of a process, where this process has that byte.
///
/// # Errors
/// Of process_vm_writev.
pub fn write_memory_of(process: rustix::process::Pid) -> rustix::io::Result<()> {
    copy_a_byte(libc::process_vm_writev, process)
}

/// Reads a byte of the memory of a process, likewise.
///
/// # Errors
/// Of process_vm_readv.
pub fn read_memory_of(process: rustix::process::Pid) -> rustix::io::Result<()> {
    copy_a_byte(libc::process_vm_readv, process)
}

type CopyMemory = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn copy_a_byte(call: CopyMemory, process: rustix::process::Pid) -> rustix::io::Result<()> {
    let mut byte = [0u8];
    let place = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: a byte of ours is copied to or from the same place of a process that
    // is this one, or has no memory of ours; both vectors have one element.
    let copied = unsafe { call(process.as_raw_nonzero().get(), &place, 1, &place, 1, 0) };
    match copied {
        1 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Changes the attributes of no mount: the path is that of no descriptor.
///
/// # Errors
/// Of mount_setattr: EBADF where it may be called.
pub fn mount_setattr_of_nothing() -> rustix::io::Result<()> {
    // SAFETY: a null pointer of no bytes is passed for the attributes, and none for
    // the path; the kernel reads neither.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            -1,
            std::ptr::null::<libc::c_char>(),
            0,
            std::ptr::null::<libc::c_void>(),
            0,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Maps the owners that a detached mount shows by a user namespace.
///
/// # Errors
/// Of mount_setattr: EINVAL where the file system cannot be mapped.
pub fn map_ids(tree: &impl AsFd, namespace: &impl AsFd) -> rustix::io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    // Attributes to set, to clear, propagation, user namespace.
    let namespace = namespace.as_fd().as_raw_fd();
    let attributes = [IDMAP, 0, 0, namespace.cast_unsigned().into()];
    // SAFETY: the path ends with a NUL, and the attributes are four words of 64 bits, which
    // the kernel only reads.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Has a descriptor signal a process when it is ready (if it is told to, which this
/// does not).
///
/// # Errors
/// Of fcntl.
pub fn set_owner(fd: &impl AsFd, process: rustix::process::Pid) -> rustix::io::Result<()> {
    let process = process.as_raw_nonzero().get();
    // SAFETY: numbers are passed, of which the first is an open descriptor's.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_SETOWN, process) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Begins to trace a process, without stopping it.
///
/// # Errors
/// Of ptrace.
pub fn trace(process: rustix::process::Pid) -> rustix::io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: this request takes a number and two null pointers.
    let traced = unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            process.as_raw_nonzero().get(),
            none,
            none,
        )
    };
    match traced {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Closes a file.
///
/// # Errors
/// What close(2) tells.
pub fn close(file: std::fs::File) -> Sys {
    // SAFETY: the descriptor has no other owner.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(last_error().raw_os_error()),
    }
}

fn last_error() -> rustix::io::Errno {
    let error = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}
