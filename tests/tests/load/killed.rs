//! Kills the server of a mount while calls wait for answers: each call gets an error,
//! none hangs, and the directory can be unmounted, or mounted again without an unmount.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::suite::{mount_for, say, unmount_and_check};
use pramfs_tests::watchdog::Watchdog;
use rustix::process::Signal;

use crate::alone;

/// A file that a child maps and reads.
const CHILD: &str = "PRAMFS_TEST_KILLED_CHILD";
const NAME: &str = "killed::killed_server_fails_callers_without_hang";
const PAGES: usize = 16;

/// A call that needs an answer of the server, and its name.
type Call = (&'static str, Box<dyn FnOnce() -> io::Result<()> + Send>);

fn call(name: &'static str, f: impl FnOnce() -> io::Result<()> + Send + 'static) -> Call {
    (name, Box::new(f))
}

fn direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    options.open(path).unwrap()
}

/// Calls on files that exist and are open, and on names.
fn calls(mount: &Mounted) -> Vec<Call> {
    let file = |name: &str| {
        let path = mount.at(name);
        fs::write(&path, vec![7; PAGES * 4096]).unwrap();
        path
    };
    let at = |name: &str| -> PathBuf { mount.at(name) };
    let (read, write, cached) = (
        direct(&file("read")),
        direct(&file("write")),
        file("cached"),
    );
    let cached = File::open(cached).unwrap();
    rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let (sync, allocate, extend) = (
        direct(&file("sync")),
        direct(&file("allocate")),
        direct(&file("extend")),
    );
    let (attribute, root) = (file("attribute"), mount.path());
    fs::write(at("unlinked"), "").unwrap();
    fs::write(at("renamed"), "").unwrap();
    vec![
        call("read past the page cache", move || {
            read.read_at(&mut [0; 4096], 0).map(drop)
        }),
        call("read through it", move || {
            cached.read_at(&mut [0; 4096], 4096).map(drop)
        }),
        call("write", move || write.write_at(&[1; 4096], 0).map(drop)),
        call("fsync", move || sync.sync_all()),
        call("truncate", move || extend.set_len(1 << 20)),
        call("fallocate", move || {
            let flags = rustix::fs::FallocateFlags::empty();
            Ok(rustix::fs::fallocate(allocate.as_fd(), flags, 0, 1 << 20)?)
        }),
        call("create", {
            let path = at("created");
            move || File::create(path).map(drop)
        }),
        call("mkdir", {
            let path = at("made");
            move || fs::create_dir(path)
        }),
        call("symlink", {
            let path = at("symlink");
            move || std::os::unix::fs::symlink("x", path)
        }),
        call("unlink", {
            let path = at("unlinked");
            move || fs::remove_file(path)
        }),
        call("rename", {
            let paths = (at("renamed"), at("renamed too"));
            move || fs::rename(paths.0, paths.1)
        }),
        call("stat", {
            let path = at("nothing");
            move || fs::metadata(path).map(drop)
        }),
        call("setxattr", move || {
            let flags = rustix::fs::XattrFlags::empty();
            Ok(rustix::fs::setxattr(attribute, "user.x", b"x", flags)?)
        }),
        call("statfs", {
            let root = root.clone();
            move || Ok(rustix::fs::statvfs(root).map(drop)?)
        }),
        call("readdir", move || {
            let mut names = fs::read_dir(root)?;
            names.find_map(Result::err).map_or(Ok(()), Err)
        }),
    ]
}

/// Helper process: reads a page of a mapping that is not in memory.
fn fault(path: &str) {
    let file = File::open(path).unwrap();
    let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    let none = std::ptr::null_mut();
    // SAFETY: the kernel chooses the address.
    let address = unsafe { rustix::mm::mmap(none, PAGES * 4096, prot, flags, &file, 0) }.unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    fs::write(
        format!(
            "{}.ready",
            std::env::var("PRAMFS_TEST_KILLED_READY").unwrap()
        ),
        "",
    )
    .unwrap();
    // The parent stops the server before it sends the byte.
    let go = std::env::var("PRAMFS_TEST_KILLED_READY").unwrap();
    assert!(wait_until(|| Path::new(&go).exists()));
    // SAFETY: a byte inside the mapping. Its value is not used, and the signal for an
    // unreadable page is the subject of the test.
    let byte = unsafe { address.cast::<u8>().read_volatile() };
    eprintln!("read {byte}");
}

#[test]
fn killed_server_fails_callers_without_hang() {
    if let Ok(path) = std::env::var(CHILD) {
        return fault(&path);
    }
    let test = "the server is killed";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["umount"], 64, "") else {
        return;
    };
    let dog = Watchdog::new(test, Duration::from_secs(60));
    fs::write(mount.at("kept"), "kept").unwrap();
    fs::write(mount.at("mapped"), vec![7; PAGES * 4096]).unwrap();
    let dir = crate::directory();
    let go = dir.path().join("go");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, mount.at("mapped"))
        .env("PRAMFS_TEST_KILLED_READY", &go)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(|| dir.path().join("go.ready").exists()));
    let open = File::open(mount.at("kept")).unwrap();
    let calls = calls(&mount);

    mount.stop();
    fs::write(&go, "").unwrap();
    let (report, reports) = channel();
    let names: Vec<_> = calls.iter().map(|c| c.0).collect();
    for (name, call) in calls {
        let report = report.clone();
        std::thread::spawn(move || report.send((name, call())));
    }
    // The calls wait.
    match reports.recv_timeout(Duration::from_millis(500)) {
        Err(RecvTimeoutError::Timeout) => {}
        other => panic!("answered by a server that is stopped: {other:?}"),
    }
    assert!(child.try_wait().unwrap().is_none(), "the fault waits, too");
    mount.signal(Signal::KILL);
    for _ in &names {
        let (name, result) = reports
            .recv_timeout(Duration::from_secs(300))
            .unwrap_or_else(|e| {
                panic!("of {names:?} one still waits for a server that is dead: {e}")
            });
        let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
        // ECANCELED: of a request in a queue of io_uring.
        let fits = [
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::EIO,
            libc::ECANCELED,
        ];
        assert!(
            errno.is_some_and(|e| fits.contains(&e)),
            "{name}: {result:?}"
        );
    }
    assert!(
        wait_until(|| child.try_wait().unwrap().is_some()),
        "the fault hangs"
    );
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    mount.wait_for_end();
    dog.touch();

    // Later calls, on open files and on names.
    for result in [
        open.metadata().map(drop),
        fs::metadata(mount.at("kept")).map(drop),
    ] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    }
    drop(open);
    umount(&mount);
    mount.mount("");
    assert_eq!(fs::read(mount.at("kept")).unwrap(), b"kept");

    // Not unmounted, and one file of the dead mount is still open.
    let open = File::open(mount.at("kept")).unwrap();
    mount.crash();
    assert!(mount.is_mounted());
    let out = mount.run(["-v"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && said.contains("cleared the dead mount"),
        "{said}"
    );
    assert_eq!(fs::read(mount.at("kept")).unwrap(), b"kept");
    fs::write(mount.at("new"), "new").unwrap();
    drop(open);
    let check = unmount_and_check(&mount);
    assert!(!mount.is_mounted());
    say(format_args!(
        "{test}: {} kinds of calls and a page fault got an error; fsck: {check}",
        names.len()
    ));
}

/// umount(8), once all files are closed.
fn umount(mount: &Mounted) {
    let mut said = String::new();
    // A thread that has got its error closes its file a moment later.
    let done = wait_until(|| {
        let out = Command::new("umount").arg(mount.path()).output().unwrap();
        said = String::from_utf8_lossy(&out.stderr).into_owned();
        out.status.success()
    });
    assert!(done && !mount.is_mounted(), "umount: {said}");
}
