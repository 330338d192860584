//! Who has a region open: tells a server from a process that may only read the region.
//!
//! A reader can take the `flock` of a file. So a refused lock alone does not show that a
//! server is alive. A server has the region open for writing for as long as it stores to it. It
//! may have lost the right to open it since: the descriptor counts, and besides it any right of
//! the process to write the file, which makes a server that only reads count too.
//!
//! Invariant: what cannot be found out counts as a server. A process may hide its own
//! descriptors (it passes them to a socket, say), but a server does not.
//!
//! Not handled here: the order in which servers look for each other (`substitute`).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, StatxFlags};
use rustix::io::Errno;

use super::detect::{HUGETLBFS_MAGIC, RAMFS_MAGIC, TMPFS_MAGIC};

/// Descriptors of readers that are looked at. A user may have opened millions in many processes
/// to delay the caller. With more, the rest is unknown, and counts as a server.
const OF_READERS: usize = 1 << 20;

/// A process that has the region open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub pid: u32,
    /// As the process calls itself, with control characters escaped.
    pub name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The processes that have a region open, this one perhaps among them.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// May write it: each of them may be a server.
    pub servers: Vec<Holder>,
    /// May only read it.
    pub readers: Vec<Holder>,
}

/// A file that holds a region, with the rights to write it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject {
    device: (u32, u32),
    inode: u64,
    owner: u32,
    mode: u32,
    /// The descriptor of this process that does not count.
    opened: i32,
}

impl Subject {
    /// Returns `None` if processes cannot show who uses the object: it is not a regular file,
    /// or other machines may have locked it too.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<Subject> {
        let wanted = StatxFlags::BASIC_STATS;
        let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        let magic = rustix::fs::fstatfs(fd).ok()?.f_type as u64 & 0xffff_ffff;
        (is_file && LOCAL.contains(&magic)).then_some(Subject {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            owner: stat.stx_uid,
            mode: stat.stx_mode.into(),
            opened: fd.as_raw_fd(),
        })
    }

    /// Returns a name that no other file of this machine has.
    pub(super) fn name(&self) -> String {
        let (major, minor) = self.device;
        format!("file-{major}-{minor}-{}", self.inode)
    }

    /// Whether a user may write the file. If its group or others may, by mode or ACL (the group
    /// bits are the mask of an ACL), any user counts.
    fn may_be_written_by(&self, user: u32) -> bool {
        let others = Mode::from_raw_mode(self.mode).intersects(Mode::WGRP | Mode::WOTH);
        user == 0 || user == self.owner || others
    }

    /// Finds the processes that have the file open or mapped, this one too if it has it so by
    /// more than the one descriptor.
    ///
    /// # Errors
    /// Those of listing /proc.
    pub(super) fn holders(&self) -> io::Result<Holders> {
        let mut all = Holders::default();
        let own = std::process::id();
        let mut left = OF_READERS;
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let process = entry.path();
            // The name of a process may be any bytes.
            let rights = fs::read(process.join("status"));
            let may_write = match &rights {
                Ok(status) => self.may_be_written_with(&String::from_utf8_lossy(status), &process),
                Err(error) if is_gone(error) => continue,
                Err(_) => true,
            };
            let (has_it, is_server) = match may_write {
                _ if pid == own => (self.is_used_here(&process), may_write),
                true => (self.is_used_by(&process), true),
                false => match self.is_open_in(&process, left) {
                    Ok(open) => {
                        left -= open.descriptors;
                        (Ok(open.found), open.writable || left == 0)
                    }
                    unknown => (unknown.map(|open| open.found), true),
                },
            };
            // A process that cannot be inspected may be a server.
            let unknown = is_server && pid != INIT;
            if has_it.unwrap_or(unknown) || left == 0 {
                let list = match is_server {
                    true => &mut all.servers,
                    false => &mut all.readers,
                };
                list.push(named(pid));
            }
            if left == 0 {
                break;
            }
        }
        Ok(all)
    }

    /// Whether a process with this `status` may write the file: by any of its users, or by a
    /// capability. One of another user namespace may, too, and has a descriptor for writing then.
    fn may_be_written_with(&self, status: &str, process: &Path) -> bool {
        let Some(users) = numbers(status, "Uid:", 10) else {
            return true;
        };
        if users
            .iter()
            .any(|user| u32::try_from(*user).is_ok_and(|user| self.may_be_written_by(user)))
        {
            return true;
        }
        let overrides = numbers(status, "CapPrm:", 16)
            .is_none_or(|sets| sets.iter().any(|set| set & DAC_OVERRIDE != 0));
        overrides && has_our_user_namespace(process)
    }

    /// Whether this process has the file open by another descriptor, or mapped.
    fn is_used_here(&self, process: &Path) -> io::Result<bool> {
        let opened = self.opened.to_string();
        let others = fs::read_dir(process.join("fd"))?.flatten();
        let mut others = others.filter(|descriptor| *descriptor.file_name() != *opened);
        Ok(
            others.any(|descriptor| self.is(&descriptor.path()).unwrap_or(false))
                || self.is_mapped_in(process, process)?,
        )
    }

    /// Whether a process has the file open or mapped.
    ///
    /// While a process with several threads is being killed, its first thread may have given
    /// up its descriptors and memory when another one still runs. So the threads are looked at
    /// if the first one has no descriptor at all.
    fn is_used_by(&self, process: &Path) -> io::Result<bool> {
        let first = self.is_open_in(process, usize::MAX)?;
        if first.found || self.is_mapped_in(process, process)? {
            return Ok(true);
        }
        if first.descriptors != 0 {
            return Ok(false);
        }
        let threads = match fs::read_dir(process.join("task")) {
            Err(error) if is_gone(&error) => return Ok(false),
            threads => threads?,
        };
        for thread in threads {
            let thread = match thread {
                Err(error) if is_gone(&error) => continue,
                thread => thread?.path(),
            };
            if self.is_open_in(&thread, usize::MAX)?.found || self.is_mapped_in(&thread, process)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_open_in(&self, task: &Path, at_most: usize) -> io::Result<Open> {
        let mut open = Open::default();
        let descriptors = match fs::read_dir(task.join("fd")) {
            Err(error) if is_gone(&error) => return Ok(open),
            descriptors => descriptors?,
        };
        for descriptor in descriptors.take(at_most) {
            let descriptor = match descriptor {
                Err(error) if is_gone(&error) => return Ok(open),
                descriptor => descriptor?,
            };
            open.descriptors += 1;
            if self.is_behind(&descriptor.path())? {
                open.found = true;
                let info = task.join("fdinfo").join(descriptor.file_name());
                open.writable |= is_writable(&info);
            }
        }
        Ok(open)
    }

    /// Whether one of the mappings of a process is of the file. A mapping outlives the
    /// descriptor. Only processes that may write the file are asked: the kernel may wait for a
    /// lock of the process, which another one could hold for long.
    fn is_mapped_in(&self, task: &Path, process: &Path) -> io::Result<bool> {
        let maps = match fs::read(task.join("maps")) {
            Err(error) if is_gone(&error) => return Ok(false),
            maps => maps?,
        };
        let inode = self.inode.to_string();
        for line in maps.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b' ');
            let range = fields.next().unwrap_or_default();
            // Permissions, offset, device. The device differs from that of stat on some file
            // systems.
            if fields.nth(3) != Some(inode.as_bytes()) {
                continue;
            }
            let range = String::from_utf8_lossy(range).into_owned();
            // Unknown counts as the same file.
            if self
                .is(&process.join("map_files").join(range))
                .unwrap_or(true)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`is`](Self::is), for a descriptor, which may be closed by now.
    fn is_behind(&self, descriptor: &Path) -> io::Result<bool> {
        match self.is(descriptor) {
            Ok(is) => Ok(is),
            // Which process may not be asked, or which file? The file of a region may.
            Err(Errno::ACCESS | Errno::PERM) => match fs::read_link(descriptor) {
                Err(error) if !is_gone(&error) => Err(error),
                _ => Ok(false),
            },
            Err(_) => Ok(false),
        }
    }

    /// Whether a link of /proc leads to the file. Sends no request to the server of a file
    /// system, which might not answer.
    fn is(&self, link: &Path) -> rustix::io::Result<bool> {
        let quietly = AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(CWD, link, quietly, StatxFlags::INO)?;
        Ok((stat.stx_dev_major, stat.stx_dev_minor) == self.device && stat.stx_ino == self.inode)
    }
}

/// File systems whose locks are those of this machine alone. On another one, the holder of the
/// lock may be a server on another machine.
const LOCAL: [u64; 9] = [
    TMPFS_MAGIC,
    RAMFS_MAGIC,
    HUGETLBFS_MAGIC,
    // ext2, ext3, ext4; xfs; btrfs; f2fs; bcachefs; zfs.
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
];

/// The process that the kernel starts. It serves no region, and some systems let nobody
/// inspect it.
const INIT: u32 = 1;

/// CAP_DAC_OVERRIDE, in the sets of `/proc/PID/status`.
const DAC_OVERRIDE: u64 = 1 << 1;
/// CAP_SYS_PTRACE.
const SYS_PTRACE: u64 = 1 << 19;

/// What the descriptors of a task show.
#[derive(Debug, Default)]
struct Open {
    found: bool,
    /// One of them is for writing.
    writable: bool,
    /// Number of those looked at.
    descriptors: usize,
}

/// Whether a descriptor is open for writing. Unknown counts as such.
fn is_writable(info: &Path) -> bool {
    let text = match fs::read_to_string(info) {
        Err(error) if is_gone(&error) => return false,
        text => text.unwrap_or_default(),
    };
    let flags = numbers(&text, "flags:", 8);
    let mode = flags.and_then(|flags| Some(flags.first()? & u64::from(libc::O_ACCMODE as u32)));
    mode != Some(libc::O_RDONLY as u64)
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH].map(|errno| Some(errno.raw_os_error()));
    gone.contains(&error.raw_os_error())
}

/// Parses the numbers of a line of `/proc/PID/status`. The name of the process comes before
/// all of them; the kernel escapes its line breaks.
fn numbers(status: &str, line: &str, radix: u32) -> Option<Vec<u64>> {
    let line = status.lines().find_map(|text| text.strip_prefix(line))?;
    let numbers = line.split_ascii_whitespace();
    let numbers: Option<Vec<u64>> = numbers
        .map(|number| u64::from_str_radix(number, radix).ok())
        .collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

fn has_our_user_namespace(process: &Path) -> bool {
    let of = |process: &Path| fs::read_link(process.join("ns/user")).ok();
    match (of(process), of(Path::new("/proc/self"))) {
        (Some(theirs), Some(ours)) => theirs == ours,
        _ => true,
    }
}

/// Returns a process with the name that it has given itself.
pub(super) fn named(pid: u32) -> Holder {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    let name = match name.trim() {
        "" => "gone already".into(),
        // A process may choose any name, with any characters.
        name => name.escape_debug().to_string(),
    };
    Holder { pid, name }
}

/// Whether /proc shows this process the descriptors of every process of the machine: it is
/// root, in the first namespaces of users and of processes, and may inspect others
/// (CAP_SYS_PTRACE, without which `hidepid` may hide them).
pub(super) fn are_all_visible() -> bool {
    /// The kernel gives these numbers to the namespaces that it starts with.
    const FIRST: [(&str, &str); 2] = [("user", "user:[4026531837]"), ("pid", "pid:[4026531836]")];
    let is_first = |(kind, number): (&str, &str)| {
        fs::read_link(format!("/proc/self/ns/{kind}")).is_ok_and(|link| link == Path::new(number))
    };
    // A /proc of another namespace shows another process here, or none.
    let own = fs::read_link("/proc/self");
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let effective = numbers(&String::from_utf8_lossy(&status), "CapEff:", 16);
    let inspects = effective.is_some_and(|sets| sets.iter().all(|set| set & SYS_PTRACE != 0));
    rustix::process::geteuid().is_root()
        && inspects
        && own.is_ok_and(|own| own == Path::new(&std::process::id().to_string()))
        && FIRST.into_iter().all(is_first)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::pmem::mapping::{Mapping, Share};

    fn subject(owner: u32, mode: u32) -> Subject {
        Subject {
            device: (1, 2),
            inode: 3,
            owner,
            mode: 0o100_000 | mode,
            opened: -1,
        }
    }

    fn status(users: &str, capabilities: &str) -> String {
        format!(
            "Name:\tserver\\nUid:\t0\nUid:\t{users}\nGid:\t0\t0\t0\t0\nCapPrm:\t{capabilities}\n"
        )
    }

    /// The right counts that it had when it opened the file.
    #[test]
    fn process_with_descriptor_for_writing_counts_as_server_without_right() {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        if !are_all_visible() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for writes in [true, false] {
            let file = fs::File::options().read(true).write(writes).open(&path);
            let mut child = std::process::Command::new("sleep")
                .arg("60")
                .uid(65534)
                .stdin(file.unwrap())
                .spawn()
                .unwrap();
            let own = fs::File::open(&path).unwrap();
            let found = Subject::of(own.as_fd()).map(|subject| subject.holders().unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
            let Some(found) = found else {
                return;
            };
            let has = |list: &[Holder]| list.iter().any(|holder| holder.pid == child.id());
            assert_eq!(
                (has(&found.servers), has(&found.readers)),
                (writes, !writes)
            );
        }
    }

    #[test]
    fn process_that_may_write_region_counts_as_server() {
        let own = Path::new("/proc/self");
        for (owner, mode, users, capabilities, expect) in [
            (0, 0o640, "0\t0\t0\t0", "0", true),
            (0, 0o640, "1000\t1000\t1000\t1000", "0", false),
            // A set-user-ID program, by any of its users.
            (0, 0o640, "1000\t0\t1000\t1000", "0", true),
            (0, 0o640, "1000\t1000\t0\t1000", "0", true),
            (0, 0o640, "0\t1000\t1000\t1000", "0", true),
            (1000, 0o640, "1000\t1000\t1000\t1000", "0", true),
            (1000, 0o640, "1001\t1001\t1001\t1001", "0", false),
            (0, 0o660, "1000\t1000\t1000\t1000", "0", true),
            (0, 0o646, "1000\t1000\t1000\t1000", "0", true),
            (0, 0o640, "1000\t1000\t1000\t1000", "0000000000000002", true),
            (
                0,
                0o640,
                "1000\t1000\t1000\t1000",
                "0000000000000004",
                false,
            ),
            // Unknown.
            (0, 0o640, "x", "0", true),
        ] {
            let status = status(users, capabilities);
            let found = subject(owner, mode).may_be_written_with(&status, own);
            assert_eq!(found, expect, "{owner} {mode:o} {users} {capabilities}");
        }
    }

    #[test]
    fn name_of_process_cannot_forge_line_of_status() {
        assert_eq!(numbers(&status("7\t8", "0"), "Uid:", 10), Some(vec![7, 8]));
        assert_eq!(numbers("Name:\tx\n", "Uid:", 10), None);
        assert_eq!(numbers("Uid:\t\n", "Uid:", 10), None);
    }

    #[test]
    fn open_and_mapped_files_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Some(subject) = Subject::of(file.as_file().as_fd()) else {
            return;
        };
        let own = Path::new("/proc/self");
        assert!(subject.is_open_in(own, usize::MAX).unwrap().found);
        assert!(!subject.is_mapped_in(own, own).unwrap());
        assert!(subject.is_used_by(own).unwrap());
        assert!(!subject.is_used_here(own).unwrap(), "it does not count");
        let again = fs::File::open(file.path()).unwrap();
        assert!(subject.is_used_here(own).unwrap());
        drop(again);
        let file = file.into_file();
        let map = Mapping::new(file.as_fd(), 4096, Share::SharedReadOnly);
        assert!(subject.is_mapped_in(own, own).unwrap());
        assert!(subject.is_used_here(own).unwrap());
        drop(map);
        let other = tempfile::NamedTempFile::new().unwrap();
        let other = Subject::of(other.into_file().as_fd()).unwrap();
        assert!(!other.is_used_by(own).unwrap());
    }

    #[test]
    fn object_of_other_machines_is_no_subject() {
        let devices = fs::File::open("/dev/null").unwrap();
        assert!(Subject::of(devices.as_fd()).is_none());
        let kernel = fs::File::open("/proc/self/status").unwrap();
        assert!(
            Subject::of(kernel.as_fd()).is_none(),
            "no local file system"
        );
    }
}
