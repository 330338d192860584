//! ioctls on a mount: the label (xfstests 492), FS_IOC_SHUTDOWN (042 050 417 468 474 505),
//! FS_IOC_FSSETXATTR, and unknown commands.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use pramfs_tests::mounted::kernel_opens;

use crate::support::ioctl::{as_stranger, ioctl};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, alone};

const GET_LABEL: u64 = 0x8100_9431;
const SET_LABEL: u64 = 0x4100_9432;
const SHUTDOWN: u64 = 0x8004_587d;
const GET_XFLAGS: u64 = 0x801c_581f;
const SET_XFLAGS: u64 = 0x401c_5820;

#[test]
fn unknown_ioctl_fails_with_enotty() {
    agree("unknown ioctls", &[Tmpfs], |dir, n| {
        fs::write(dir.join("f"), "x").expect("a file");
        for cmd in [0x5441, 0x8008_7a01, 0x4008_7a02, 0x7a03] {
            for path in [dir.to_owned(), dir.join("f")] {
                n.call(format!("{cmd:#x}"), ioctl(&path, cmd, &mut [0; 256]));
            }
        }
    });
}

#[test]
fn label_ioctls_get_and_set() {
    alone("the label", "", |mount| {
        let read = || {
            let mut bytes = [0xff; 256];
            ioctl(&mount.path(), GET_LABEL, &mut bytes).unwrap();
            let end = bytes.iter().position(|b| *b == 0).unwrap();
            String::from_utf8(bytes[..end].to_vec()).unwrap()
        };
        let set = |label: &str| {
            let mut bytes = [0; 256];
            bytes[..label.len()].copy_from_slice(label.as_bytes());
            ioctl(&mount.path(), SET_LABEL, &mut bytes)
        };
        assert_eq!(read(), "");
        set("first").unwrap();
        assert_eq!(read(), "first");
        let longest = "ä".repeat(31) + "!";
        set(&longest).unwrap();
        assert_eq!(set(&"x".repeat(64)), Err(libc::EINVAL));
        assert_eq!(as_stranger(|| set("no")), Err(libc::EPERM));
        mount.unmount();
        mount.mount("");
        assert_eq!(read(), longest);
        mount.unmount();
        let region = pramfs::pmem::RegionOptions::new()
            .open(mount.region())
            .unwrap();
        let report = pramfs_fsck::check(&region, &Default::default());
        assert!(report.is_clean(), "{report}");
    });
}

#[test]
fn shutdown_stops_calls_and_loses_nothing() {
    alone("FS_IOC_SHUTDOWN", "", |mount| {
        let root = mount.path();
        fs::write(mount.at("f"), "written").unwrap();
        fs::create_dir(mount.at("d")).unwrap();
        let stranger = as_stranger(|| ioctl(&root, SHUTDOWN, &mut [0; 256]));
        assert_eq!(stranger, Err(libc::EPERM));
        let open = File::options().append(true).open(mount.at("f")).unwrap();
        ioctl(&root, SHUTDOWN, &mut [0; 256]).unwrap();
        let eio = |what: &str, result: std::io::Result<()>| {
            let errno = result.err().and_then(|e| e.raw_os_error());
            assert_eq!(errno, Some(libc::EIO), "{what}");
        };
        eio("create", File::create(mount.at("new")).map(drop));
        eio("write", std::io::Write::write_all(&mut &open, b"x"));
        eio("mkdir", fs::create_dir(mount.at("e")));
        eio("unlink", fs::remove_file(mount.at("f")));
        eio("rename", fs::rename(mount.at("f"), mount.at("g")));
        eio("fsync", open.sync_all());
        drop(open);
        mount.unmount();
        // As after a crash: the next mount recovers.
        let open = || {
            pramfs::pmem::RegionOptions::new()
                .open(mount.region())
                .unwrap()
        };
        let fs = pramfs::inode::Fs::open(open(), pramfs::MountOptions::default()).unwrap();
        let found = fs.recovery();
        assert!(!found.was_clean && found.records > 0 && found.torn == 0);
        fs.close().unwrap();
        let report = pramfs_fsck::check(&open(), &Default::default());
        assert!(report.is_clean(), "{report}");
        mount.mount("");
        assert_eq!(fs::read(mount.at("f")).unwrap(), b"written");
        assert!(mount.at("d").is_dir() && !mount.at("new").exists());
    });
}

/// 623: a page of a mapping that is not in memory cannot be read any more. The process
/// gets SIGBUS and does not hang.
#[test]
fn mapping_access_after_shutdown_raises_sigbus() {
    alone("a mapping after FS_IOC_SHUTDOWN", "", |mount| {
        fs::write(mount.at("f"), vec![7; 1 << 20]).unwrap();
        let python = Path::new("/usr/bin/python3");
        if !python.exists() {
            pramfs_tests::skip::skipped("no python3: a mapping after FS_IOC_SHUTDOWN");
            return;
        }
        // Maps, and touches the pages when it is told to.
        let program = "import mmap, sys\n\
            f = open(sys.argv[1], 'r+b')\n\
            m = mmap.mmap(f.fileno(), 0)\n\
            print('mapped', flush=True)\n\
            sys.stdin.readline()\n\
            m[0] = 1\n\
            m[len(m) - 1] = 1\n";
        // Read-ahead would load the pages beforehand.
        mount.unmount();
        mount.mount("");
        let mut child = Command::new(python)
            .args(["-c", program])
            .arg(mount.at("f"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        ioctl(&mount.path(), SHUTDOWN, &mut [0; 256]).unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        let status = child.wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGBUS), "{status}");
        mount.unmount();
        mount.mount("");
        assert!(fs::read(mount.at("f")).unwrap().iter().all(|b| *b == 7));
    });
}

/// Any user is root in its own user namespace; that gives no rights here.
#[test]
fn root_of_user_namespace_cannot_administer() {
    alone("ioctls from a user namespace", "", |mount| {
        fs::write(mount.at("f"), "x").unwrap();
        let script = format!("fstrim {0} || chattr +i {0}/f", mount.path().display());
        let out = Command::new("setpriv")
            .args(["--reuid=500", "--regid=500", "--clear-groups"])
            .args(["unshare", "-Ur", "sh", "-c", &script])
            .output()
            .expect("setpriv and unshare");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.contains("unshare failed") {
            pramfs_tests::skip::skipped(format_args!("no user namespaces here: {said}"));
            return;
        }
        assert!(!out.status.success(), "{said}");
        fs::remove_file(mount.at("f")).unwrap();
    });
}

#[test]
fn fsxattr_and_chattr_share_flags() {
    agree("FS_IOC_FSGETXATTR", &[Ext4], |dir, n| {
        let path = dir.join("f");
        fs::write(&path, "x").expect("a file");
        const KNOWN: u32 = 0xf8;
        let get = || {
            let mut bytes = [0; 256];
            ioctl(&path, GET_XFLAGS, &mut bytes).map(|()| {
                let flags = bytes.first_chunk().map(|b| u32::from_le_bytes(*b));
                flags.map(|f| f & KNOWN)
            })
        };
        for flags in [0x80, 0x40, 0x20, 0x10, 0x08, 0xc0, 0] {
            let mut bytes = [0; 256];
            bytes[..4].copy_from_slice(&u32::to_le_bytes(flags));
            n.call(format!("{flags:#x}"), ioctl(&path, SET_XFLAGS, &mut bytes));
            n.note(format!("{flags:#x}"), get());
            let out = Command::new("lsattr").arg(&path).output().expect("lsattr");
            let seen = String::from_utf8_lossy(&out.stdout).into_owned();
            let letters = seen.split(' ').next().unwrap_or("").to_owned();
            let ours: String = letters.chars().filter(|c| "iaSdA".contains(*c)).collect();
            n.note("lsattr", ours);
            let opened = File::options().write(true).open(&path);
            let written = match n.is_ours() && kernel_opens() {
                false => opened.map(drop),
                // The write is refused instead.
                true => opened.and_then(|file| file.write_all_at(b"x", 0)),
            };
            n.note("open", written.map_err(|e| e.raw_os_error()));
        }
    });
}
