//! The system call filter, permanent and for all threads.
//!
//! A call outside [`calls`](super::calls) gives EPERM, and the kernel logs it (audit
//! record 1326, `SECCOMP`) with the process and the number of the call: see
//! `journalctl -k`, or `ausearch -m seccomp` if auditd runs.
//!
//! The alternative would be a signal for each such call (`SECCOMP_RET_TRAP`) and a
//! handler that logs. But such a signal ends the process if it is blocked, and the C
//! library blocks all signals while it starts a thread. With EPERM, a server that makes
//! a forbidden call logs the error like any other and continues.

use std::collections::BTreeMap;
use std::io;

use pramfs_kernel_sys::scheduling::Policy;
use pramfs_kernel_sys::seccomp::{self, Log};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::Extra;
use super::calls::{self, ALWAYS, IF, OLDER, When};

/// `SECCOMP_RET_KILL_PROCESS`, replaced by [`REFUSE`].
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;

/// Installs the filter on all threads.
///
/// # Errors
/// If the kernel has no seccomp filters, or refuses this one.
pub(super) fn put_in_force(extra: Extra) -> io::Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    // First, because the second filter forbids seccomp(2).
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = compiled(clone3, SeccompAction::Allow, unknown, arch)?;
    seccomp::install(&clone3, Log::Nothing)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let allowed = compiled(rules(extra)?, refused, SeccompAction::Allow, arch)?;
    seccomp::install(&allowed, Log::Refused)
}

fn compiled(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> io::Result<BpfProgram> {
    let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(io::Error::other)?;
    let mut program = BpfProgram::try_from(filter).map_err(io::Error::other)?;
    // A call by the convention of another architecture is refused, not killed.
    for instruction in &mut program {
        if instruction.code == RETURN && instruction.k == KILL {
            instruction.k = REFUSE;
        }
    }
    Ok(program)
}

fn rules(extra: Extra) -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in ALWAYS.iter().chain(OLDER) {
        rules.insert(*call, Vec::new());
    }
    if extra.guests_only {
        for call in calls::OF_MOUNTS {
            rules.remove(call);
        }
    }
    if extra.io_uring {
        rules.insert(libc::SYS_io_uring_enter, Vec::new());
        // Between the usual policy and the idle one, which gives nobody an advantage.
        for policy in [Policy::Other, Policy::Idle] {
            let is = When::Is(1, u64::from(policy.number().cast_unsigned()));
            let rule = condition(is).and_then(|condition| SeccompRule::new(vec![condition]));
            let of_call = rules.entry(libc::SYS_sched_setscheduler).or_default();
            of_call.push(rule.map_err(io::Error::other)?);
        }
    }
    for (call, when) in IF {
        if extra.guests_only && *call == libc::SYS_socket {
            continue;
        }
        let rule = condition(*when).and_then(|condition| SeccompRule::new(vec![condition]));
        let rule = rule.map_err(io::Error::other)?;
        rules.entry(*call).or_default().push(rule);
    }
    Ok(rules)
}

fn condition(when: When) -> Result<SeccompCondition, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq};
    match when {
        When::Is(argument, value) => SeccompCondition::new(argument, Dword, Eq, value),
        When::Has(argument, bits) => SeccompCondition::new(argument, Dword, MaskedEq(bits), bits),
        When::HasNot(argument, bits) => SeccompCondition::new(argument, Dword, MaskedEq(bits), 0),
        When::Null(argument) => SeccompCondition::new(argument, Qword, Eq, 0),
        When::OurProcess(argument) => {
            SeccompCondition::new(argument, Dword, Eq, u64::from(std::process::id()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    use rustix::io::Errno;
    use rustix::mm::ProtFlags;
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

    use super::*;

    /// Set in a child process that installs the filter.
    const CHILD: &str = "PRAMFS_TEST_FILTERED";

    /// Runs one test in a child process. Returns its pid and its output.
    fn in_a_process(test: &str, what: &str) -> (u32, String) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, what)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        assert!(out.status.success(), "{}: {text}", out.status);
        (pid, text)
    }

    fn is_child() -> bool {
        std::env::var_os(CHILD).is_some()
    }

    fn refused(what: &str, result: Result<(), impl Into<io::Error>>) {
        let error = result.map_err(Into::into).expect_err(what);
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
    }

    fn null_file() -> std::fs::File {
        std::fs::File::open("/dev/null").unwrap()
    }

    /// Makes calls that root may make without the filter.
    fn forbidden() {
        let parent = Pid::from_raw(std::process::id() as i32).unwrap();
        refused("fork", Command::new("/bin/true").status().map(drop));
        refused("execve", Err::<(), _>(Command::new("/bin/true").exec()));
        refused("socket(AF_INET)", UdpSocket::bind("127.0.0.1:0").map(drop));
        refused("socket(AF_INET6)", TcpListener::bind("[::1]:0").map(drop));
        refused("kill", rustix::process::test_kill_process(parent));
        // Such a descriptor signals any chosen process, with the rights of its owner.
        refused(
            "fcntl(F_SETOWN)",
            pramfs_tests::syscalls::set_owner(&null_file(), parent),
        );
        refused("chroot", rustix::process::chroot("/"));
        refused("sethostname", rustix::system::sethostname(b"x"));
        refused(
            "mount",
            rustix::mount::mount(
                "none",
                "/",
                "tmpfs",
                rustix::mount::MountFlags::empty(),
                c"",
            ),
        );
        refused("mount --bind", rustix::mount::mount_bind("/", "/"));
        refused(
            "mount -o remount",
            rustix::mount::mount_remount("/nowhere", rustix::mount::MountFlags::empty(), c""),
        );
        for flags in [
            rustix::mount::OpenTreeFlags::empty(),
            rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE,
        ] {
            refused(
                "open_tree",
                rustix::mount::open_tree(rustix::fs::CWD, "/", flags).map(drop),
            );
        }
        refused(
            "mount_setattr",
            pramfs_tests::syscalls::mount_setattr_of_nothing(),
        );
        refused(
            "openat2",
            rustix::fs::openat2(
                rustix::fs::CWD,
                "/",
                rustix::fs::OFlags::PATH,
                rustix::fs::Mode::empty(),
                rustix::fs::ResolveFlags::empty(),
            )
            .map(drop),
        );
        // Calls that CAP_SYS_PTRACE would allow. (The memory of other processes is also
        // reachable as a file: see docs/security.md.)
        let above = rustix::process::getppid().unwrap();
        refused("ptrace", pramfs_tests::syscalls::trace(above));
        refused(
            "process_vm_writev",
            pramfs_tests::syscalls::write_memory_of(parent),
        );
        refused(
            "process_vm_readv",
            pramfs_tests::syscalls::read_memory_of(parent),
        );
        refused(
            "setns",
            rustix::thread::move_into_link_name_space(null_file().as_fd(), None),
        );
        refused(
            "pidfd_getfd",
            rustix::process::pidfd_open(parent, PidfdFlags::empty()).and_then(|process| {
                rustix::process::pidfd_getfd(process, 0, PidfdGetfdFlags::empty()).map(drop)
            }),
        );
        refused("rename", std::fs::rename("/nowhere", "/nowhere/else"));
        refused("chmod", rustix::fs::fchmod(null_file(), 0o600.into()));
    }

    fn allowed() {
        let dir = Path::new("/proc/self/status");
        assert!(
            std::fs::read_to_string(dir)
                .unwrap()
                .contains("Seccomp:\t2")
        );
        let thread = std::thread::Builder::new().name("a thread".into());
        thread.spawn(forbidden_to_a_thread).unwrap().join().unwrap();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
        let log = UnixDatagram::unbound().unwrap();
        log.set_nonblocking(true).unwrap();
        assert!(log.send_to(b"x", "/nowhere").is_err());
        let copy = null_file().try_clone().unwrap();
        rustix::fs::fcntl_setfl(&copy, rustix::fs::fcntl_getfl(&copy).unwrap()).unwrap();
        rustix::io::fcntl_setfd(&copy, rustix::io::fcntl_getfd(&copy).unwrap()).unwrap();
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC);
        assert_eq!(file.err(), Some(Errno::PERM), "nothing takes that");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }

    fn forbidden_to_a_thread() {
        refused(
            "socket of a thread",
            UdpSocket::bind("127.0.0.1:0").map(drop),
        );
    }

    #[test]
    fn forbidden_syscall_fails_with_eperm() {
        let name = "privileges::filter::tests::forbidden_syscall_fails_with_eperm";
        if !is_child() {
            let (_, text) = in_a_process(name, "1");
            assert!(text.contains("still alive"), "{text}");
            return;
        }
        // An older thread gets the filter as well.
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let before = std::thread::spawn(move || {
            gone.recv().unwrap();
            forbidden_to_a_thread();
        });
        rustix::thread::set_no_new_privs(true).unwrap();
        put_in_force(Extra::default()).unwrap();
        forbidden();
        go.send(()).unwrap();
        before.join().unwrap();
        allowed();
        println!("still alive");
    }

    /// Data memory cannot be made executable.
    #[test]
    fn filter_forbids_executable_mappings() {
        let name = "privileges::filter::tests::filter_forbids_executable_mappings";
        if !is_child() {
            in_a_process(name, "1");
            return;
        }
        let map = pramfs_tests::syscalls::map_a_page;
        assert_eq!(map(ProtFlags::READ | ProtFlags::EXEC), Ok(()));
        rustix::thread::set_no_new_privs(true).unwrap();
        put_in_force(Extra::default()).unwrap();
        assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Ok(()));
        assert_eq!(map(ProtFlags::READ | ProtFlags::EXEC), Err(Errno::PERM));
    }

    /// Reads the kernel's own line from its log.
    #[test]
    fn forbidden_syscall_is_logged_by_kernel() {
        let name = "privileges::filter::tests::forbidden_syscall_is_logged_by_kernel";
        if is_child() {
            rustix::thread::set_no_new_privs(true).unwrap();
            put_in_force(Extra::default()).unwrap();
            forbidden_to_a_thread();
            return;
        }
        let log = std::fs::OpenOptions::new().read(true).open("/dev/kmsg");
        let Ok(log) = log else {
            return pramfs_tests::skip::skipped("/dev/kmsg cannot be read");
        };
        rustix::fs::fcntl_setfl(&log, rustix::fs::OFlags::NONBLOCK).unwrap();
        rustix::fs::seek(&log, rustix::fs::SeekFrom::End(0)).unwrap();
        let call = format!("syscall={}", libc::SYS_socket);
        let mut seen = String::new();
        // The kernel prints at most ten such lines in five seconds, for all processes.
        let found = pramfs_tests::mounted::wait_until(|| {
            let (pid, _) = in_a_process(name, "1");
            let wanted = ["type=1326", &format!(" pid={pid} "), &call];
            std::thread::sleep(std::time::Duration::from_millis(200));
            let mut record = [0; 8192];
            while let Ok(n) = rustix::io::read(&log, &mut record) {
                seen.push_str(&String::from_utf8_lossy(&record[..n]));
            }
            seen.lines()
                .any(|line| wanted.iter().all(|word| line.contains(word)))
        });
        if !found && Path::new("/run/auditd.pid").exists() {
            return pramfs_tests::skip::skipped("auditd takes the kernel's lines");
        }
        assert!(found, "{seen}");
    }

    #[test]
    fn each_syscall_has_one_rule() {
        let mut all: Vec<_> = ALWAYS.iter().chain(OLDER).collect();
        all.extend(
            IF.iter()
                .map(|(call, _)| call)
                .collect::<std::collections::BTreeSet<_>>(),
        );
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "a call stands in two places");
        let with = |io_uring, guests_only| {
            rules(Extra {
                io_uring,
                guests_only,
            })
            .unwrap()
        };
        assert!(with(true, false).contains_key(&libc::SYS_io_uring_enter));
        let guests = with(false, true);
        assert!(!guests.contains_key(&libc::SYS_io_uring_enter));
        for call in calls::OF_MOUNTS.iter().chain(&[libc::SYS_socket]) {
            assert!(with(false, false).contains_key(call) && !guests.contains_key(call));
        }
    }
}
