//! The owners of files and the rights of callers, on a plain mount and on a mapped one. With
//! `transport=dev` and `uring` the kernel gives the server the ids of a caller only with
//! requests that make an inode, on both mounts.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_tests::idmapped::{Idmapped, SHIFT};
use pramfs_tests::mounted::Mounted;
use pramfs_tests::syscalls::{Caller, as_caller, errno, path_of};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, XattrFlags,
};
use rustix::thread::set_thread_groups;

use crate::mounted;

/// A way to the files of a mount.
struct View<'a> {
    mount: &'a Mounted,
    mapped: Option<&'a Idmapped>,
}

impl View<'_> {
    /// A path as this view has it.
    fn at(&self, name: &str) -> PathBuf {
        match self.mapped {
            Some(mapped) => mapped.at(name),
            None => self.mount.at(name),
        }
    }

    /// The number that this view shows for an id of the medium.
    fn id(&self, id: u32) -> u32 {
        match self.mapped {
            Some(_) => SHIFT + id,
            None => id,
        }
    }

    /// Runs as this user and group of the medium.
    fn by<T>(&self, uid: u32, gid: u32, work: impl FnOnce() -> T) -> T {
        let caller = Caller {
            uid: self.id(uid),
            gid: self.id(gid),
            umask: 0,
            privileged: false,
        };
        as_caller(caller, work)
    }

    /// Makes a file of this owner and this mode.
    fn file(&self, name: &str, uid: u32, gid: u32, mode: u32) -> PathBuf {
        let plain = self.mount.at(name);
        fs::write(&plain, vec![1; 20_000]).unwrap();
        lchown(&plain, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&plain, Permissions::from_mode(mode)).unwrap();
        self.at(name)
    }

    /// Makes a directory likewise.
    fn dir(&self, name: &str, uid: u32, gid: u32, mode: u32) -> PathBuf {
        let plain = self.mount.at(name);
        fs::create_dir(&plain).unwrap();
        lchown(&plain, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&plain, Permissions::from_mode(mode)).unwrap();
        self.at(name)
    }

    /// Owner and group on the medium.
    fn owners(&self, name: &str) -> (u32, u32) {
        let of = fs::symlink_metadata(self.mount.at(name)).unwrap();
        (of.uid(), of.gid())
    }

    /// Mode on the medium.
    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.mount.at(name)).unwrap().mode() & 0o7777
    }

    /// A command as this user and these groups of the medium, which has no capabilities.
    fn command(&self, uid: u32, gid: u32, groups: &[u32], script: &str) -> bool {
        let groups: Vec<_> = groups.iter().map(|g| self.id(*g).to_string()).collect();
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={}", self.id(uid)))
            .arg(format!("--regid={}", self.id(gid)));
        match groups.is_empty() {
            true => command.arg("--clear-groups"),
            false => command.arg(format!("--groups={}", groups.join(","))),
        };
        let status = command
            .args(["sh", "-c", script, "sh"])
            .arg(self.at(""))
            .status();
        status.unwrap().success()
    }
}

/// A mount that lets everybody in, and all that it needs.
fn mounted_for_all(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    let (mount, dog) = mounted(test, options)?;
    fs::set_permissions(mount.path(), Permissions::from_mode(0o777)).unwrap();
    Some((mount, dog))
}

/// Runs `work` on a plain and on a mapped mount.
fn on_both_of(transport: &str, test: &str, work: impl Fn(&View<'_>)) {
    for is_mapped in [false, true] {
        let Some((mount, _dog)) = mounted_for_all(test, transport) else {
            return;
        };
        let mapped = is_mapped.then(|| Idmapped::of(&mount.path()).expect("mount_setattr"));
        work(&View {
            mount: &mount,
            mapped: mapped.as_ref(),
        });
    }
}

/// The same with `transport=dev`.
fn on_both(test: &str, work: impl Fn(&View<'_>)) {
    on_both_of("transport=dev", test, work);
}

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn make_all_kinds(view: &View<'_>) {
    view.by(5, 6, || {
        File::create(view.at("file")).unwrap();
        fs::create_dir(view.at("dir")).unwrap();
        symlink("target", view.at("link")).unwrap();
        let perm = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, view.at("fifo"), FileType::Fifo, perm, 0).unwrap();
        let flags = OFlags::TMPFILE | OFlags::WRONLY;
        let unnamed = rustix::fs::open(view.at(""), flags, perm).unwrap();
        let (path, follow) = (path_of(&unnamed), AtFlags::SYMLINK_FOLLOW);
        rustix::fs::linkat(CWD, path, CWD, view.at("linked"), follow).unwrap();
    });
    assert!(fs::metadata(view.at("fifo")).unwrap().file_type().is_fifo());
    for name in ["file", "dir", "link", "fifo", "linked"] {
        assert_eq!(view.owners(name), (5, 6), "{name}");
        let shown = fs::symlink_metadata(view.at(name)).unwrap();
        assert_eq!((shown.uid(), shown.gid()), (view.id(5), view.id(6)));
    }
}

#[test]
fn creation_gives_mapped_owner() {
    on_both("owners of new files", make_all_kinds);
}

#[test]
fn creation_over_uring_gives_mapped_owner() {
    if let Some(_on) = crate::transports::Uring::on() {
        on_both_of("transport=uring", "owners over io_uring", make_all_kinds);
    }
}

#[test]
fn creation_by_unmapped_user_fails_with_eoverflow() {
    let Some((mount, _dog)) = mounted_for_all("unmapped", "transport=dev") else {
        return;
    };
    let mapped = Idmapped::of(&mount.path()).expect("mount_setattr");
    // Root of the machine has no number on this mount.
    let refused = File::create(mapped.at("file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOVERFLOW));
    let refused = symlink("target", mapped.at("link")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOVERFLOW));
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
}

#[test]
fn chown_stores_mapped_owner() {
    on_both("chown", |view| {
        let path = view.file("file", 5, 6, 0o644);
        lchown(&path, Some(view.id(7)), Some(view.id(8))).unwrap();
        assert_eq!(view.owners("file"), (7, 8));
        let refused = view.by(5, 6, || lchown(&path, Some(view.id(5)), None));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // The owner may give it to one of its groups.
        let script = format!("chgrp {} \"$1/file\"", view.id(9));
        assert!(view.command(7, 8, &[9], &script));
        assert!(!view.command(
            7,
            8,
            &[10],
            &format!("chgrp {} \"$1/file\" 2>/dev/null", view.id(6))
        ));
        assert_eq!(view.owners("file"), (7, 9));
    });
}

#[test]
fn chown_clears_suid_and_sgid_of_program() {
    on_both("chown and suid", |view| {
        let path = view.file("file", 5, 6, 0o6755);
        lchown(&path, Some(view.id(7)), None).unwrap();
        assert_eq!(view.mode("file"), 0o755);
    });
}

#[test]
fn chmod_keeps_sgid_only_for_members_of_group() {
    on_both("chmod and sgid", |view| {
        let path = view.file("file", 5, 6, 0o755);
        let chmod = |mode| fs::set_permissions(&path, Permissions::from_mode(mode));
        view.by(5, 6, || chmod(0o2755)).unwrap();
        assert_eq!(view.mode("file"), 0o2755, "its group");
        view.by(5, 9, || chmod(0o2755)).unwrap();
        assert_eq!(view.mode("file"), 0o755, "another group");
        assert!(view.command(5, 9, &[6], "chmod 2755 \"$1/file\""));
        assert_eq!(view.mode("file"), 0o2755, "a supplementary group");
        assert!(view.command(5, 9, &[10], "chmod 2755 \"$1/file\""));
        assert_eq!(view.mode("file"), 0o755, "another supplementary group");
        chmod(0o2755).unwrap();
        assert_eq!(view.mode("file"), 0o2755, "root");
        let refused = view.by(7, 6, || chmod(0o2755)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    });
}

/// A change of a file.
type Change = (&'static str, fn(&Path));

const CHANGES: [Change; 8] = [
    ("write", |path| {
        assert_eq!(
            rustix::io::pwrite(open(path, OFlags::WRONLY), b"x", 0),
            Ok(1)
        );
    }),
    ("append", |path| {
        let file = open(path, OFlags::WRONLY | OFlags::APPEND);
        assert_eq!(rustix::io::write(file, b"x"), Ok(1));
    }),
    ("direct write", |path| {
        let page = Box::new(Page([0x55; 4096]));
        let file = open(path, OFlags::WRONLY | OFlags::DIRECT);
        assert_eq!(rustix::io::pwrite(file, &page.0, 0), Ok(4096));
    }),
    ("truncate", |path| {
        rustix::fs::ftruncate(open(path, OFlags::WRONLY), 100).unwrap();
    }),
    ("O_TRUNC", |path| {
        open(path, OFlags::WRONLY | OFlags::TRUNC);
    }),
    ("fallocate", |path| {
        let file = open(path, OFlags::WRONLY);
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 8192).unwrap();
    }),
    ("punch", |path| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open(path, OFlags::WRONLY), how, 0, 4096).unwrap();
    }),
    ("copy_file_range", |path| {
        let from = open(&path.with_file_name("source"), OFlags::RDONLY);
        let to = open(path, OFlags::WRONLY);
        let copied = rustix::fs::copy_file_range(from, None, to, None, 4096);
        assert_eq!(copied, Ok(4096));
    }),
];

#[repr(align(4096))]
struct Page([u8; 4096]);

#[test]
fn change_by_other_user_clears_suid_and_by_root_keeps_it() {
    on_both("suid", |view| {
        view.file("source", 5, 6, 0o644);
        for (what, change) in CHANGES {
            let path = view.file("program", 5, 6, 0o6777);
            view.by(7, 8, || change(&path));
            assert_eq!(view.mode("program"), 0o777, "{what}");
            // Not by the owner, either.
            let path = view.file("program", 5, 6, 0o6777);
            view.by(5, 6, || change(&path));
            assert_eq!(view.mode("program"), 0o777, "{what} by the owner");
            let path = view.file("program", 5, 6, 0o6777);
            change(&path);
            assert_eq!(view.mode("program"), 0o6777, "{what} by root");
        }
    });
}

#[test]
fn chattr_needs_owner_and_capability_on_both_mounts() {
    on_both("chattr", |view| {
        let path = view.file("file", 5, 6, 0o644);
        let set = |flags| {
            errno(rustix::fs::ioctl_setflags(
                open(&path, OFlags::RDONLY),
                flags,
            ))
        };
        assert_eq!(view.by(5, 6, || set(IFlags::NODUMP)), Ok(()), "the owner");
        assert_eq!(view.by(7, 6, || set(IFlags::empty())), Err(libc::EPERM));
        assert_eq!(view.by(5, 6, || set(IFlags::IMMUTABLE)), Err(libc::EPERM));
        assert_eq!(view.by(7, 6, || set(IFlags::APPEND)), Err(libc::EPERM));
        assert_eq!(set(IFlags::IMMUTABLE), Ok(()), "root");
        assert_eq!(view.by(5, 6, || set(IFlags::empty())), Err(libc::EPERM));
        assert_eq!(set(IFlags::empty()), Ok(()));
    });
}

/// `chown(-1, -1)`: root clears the bits, and somebody else does not. The owner does as well
/// on a plain mount. On a mapped one the server does not know the owner.
#[test]
fn empty_chown_clears_suid_for_root_and_owner_on_plain_mount() {
    on_both("empty chown", |view| {
        let path = view.file("file", 5, 6, 0o6755);
        let chown = || lchown(&path, None, None).unwrap();
        view.by(7, 6, chown);
        assert_eq!(view.mode("file"), 0o6755, "somebody");
        view.by(5, 6, chown);
        let left = if view.mapped.is_some() { 0o6755 } else { 0o755 };
        assert_eq!(view.mode("file"), left, "the owner");
        view.file("file", 5, 6, 0o6755);
        chown();
        assert_eq!(view.mode("file"), 0o755, "root");
    });
}

/// An access ACL that says more than a mode: user and group of the owner, one more user.
fn acl(of: u32) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (0x01u16, 7u16, u32::MAX),
        (0x02, 7, of),
        (0x04, 5, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 5, u32::MAX),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn acl_set_outside_group_clears_sgid_on_both_mounts() {
    on_both("ACL and sgid", |view| {
        let none = XattrFlags::empty();
        let path = view.file("file", 5, 6, 0o2755);
        let value = acl(view.id(9));
        let set = || rustix::fs::setxattr(&path, "system.posix_acl_access", &value, none);
        view.by(5, 6, set).unwrap();
        assert_eq!(view.mode("file") & 0o2000, 0o2000, "a member");
        view.by(5, 8, set).unwrap();
        assert_eq!(view.mode("file") & 0o2000, 0, "not a member");
        // The entry has the id of the medium.
        let mut found = [0; 100];
        let plain = view.mount.at("file");
        let n = rustix::fs::getxattr(plain, "system.posix_acl_access", &mut found[..]).unwrap();
        assert_eq!(found[..n], acl(9));
        fs::set_permissions(view.mount.at("file"), Permissions::from_mode(0o2755)).unwrap();
        set().unwrap();
        assert_eq!(view.mode("file") & 0o2000, 0o2000, "root");
    });
}

#[test]
fn trusted_attributes_are_listed_for_root_only() {
    on_both("trusted attributes", |view| {
        let path = view.file("file", 5, 6, 0o644);
        for name in ["trusted.a", "user.b"] {
            rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty()).unwrap();
        }
        let mut names = [0; 100];
        let n = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        let listed = String::from_utf8_lossy(&names[..n]).into_owned();
        assert!(listed.contains("trusted.a") && listed.contains("user.b"));
        let script = "getfattr -m - \"$1/file\" 2>/dev/null | grep -q user.b";
        assert!(view.command(5, 6, &[], script));
        let script = "getfattr -m - \"$1/file\" 2>/dev/null | grep -q trusted";
        assert!(!view.command(5, 6, &[], script));
    });
}

#[test]
fn sticky_directory_protects_files_of_others() {
    on_both("a sticky directory", |view| {
        view.dir("tmp", 0, 0, 0o1777);
        view.file("tmp/file", 5, 6, 0o666);
        let path = view.at("tmp/file");
        let remove = || fs::remove_file(&path).map_err(|e| e.raw_os_error());
        assert_eq!(view.by(7, 6, remove), Err(Some(libc::EPERM)));
        assert_eq!(view.by(5, 6, remove), Ok(()));
    });
}

#[test]
fn setgid_directory_passes_group_on_both_mounts() {
    on_both("a setgid directory", |view| {
        view.dir("shared", 5, 9, 0o2777);
        let make = |name: &str, mode: u32| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let mode = Mode::from_raw_mode(mode);
            rustix::fs::open(view.at(name), flags, mode).unwrap();
        };
        view.by(7, 8, || {
            make("shared/file", 0o644);
            make("shared/program", 0o2755);
            fs::create_dir(view.at("shared/dir")).unwrap();
        });
        view.by(7, 9, || make("shared/of a member", 0o2755));
        // Groups belong to a thread, which ends with them.
        let with_group = |group: u32, name: &str| {
            let in_thread = || {
                set_thread_groups(&[Gid::from_raw(view.id(group))]).unwrap();
                view.by(7, 8, || make(name, 0o2755));
            };
            std::thread::scope(|threads| threads.spawn(in_thread).join().unwrap());
        };
        with_group(9, "shared/by a supplementary group");
        with_group(10, "shared/by another group");
        assert_eq!(view.owners("shared/file"), (7, 9));
        assert_eq!(view.owners("shared/dir"), (7, 9));
        assert_eq!(view.mode("shared/dir") & 0o2000, 0o2000);
        assert_eq!(view.mode("shared/program"), 0o755);
        assert_eq!(view.mode("shared/of a member"), 0o2755);
        assert_eq!(view.mode("shared/by a supplementary group"), 0o2755);
        assert_eq!(view.mode("shared/by another group"), 0o755);
    });
}

#[test]
fn whiteout_of_rename_has_mapped_owner() {
    on_both("a whiteout", |view| {
        view.dir("dir", 5, 6, 0o777);
        view.file("dir/a", 5, 6, 0o644);
        let rename = |from: &str, to: &str, flags| {
            rustix::fs::renameat_with(CWD, view.at(from), CWD, view.at(to), flags)
        };
        view.by(5, 6, || rename("dir/a", "dir/b", RenameFlags::empty()))
            .unwrap();
        let caller = Caller {
            uid: view.id(7),
            gid: view.id(8),
            umask: 0,
            privileged: true,
        };
        as_caller(caller, || rename("dir/b", "dir/c", RenameFlags::WHITEOUT)).unwrap();
        assert_eq!(view.owners("dir/c"), (5, 6));
        assert_eq!(view.owners("dir/b"), (7, 8));
        let whiteout = fs::symlink_metadata(view.mount.at("dir/b")).unwrap();
        assert!(whiteout.file_type().is_char_device());
    });
}

#[test]
fn ticket_is_for_user_of_process_on_both_mounts() {
    let options = "transport=dev,direct=owner";
    let Some((mount, _dog)) = mounted_for_all("tickets", options) else {
        return;
    };
    let mapped = Idmapped::of(&mount.path()).expect("mount_setattr");
    for mapped in [None, Some(&mapped)] {
        let view = View {
            mount: &mount,
            mapped,
        };
        let path = view.file("file", 5, 6, 0o666);
        let ticket = || {
            let file = open(&path, OFlags::RDWR);
            let given = lease_ticket(file.as_fd(), LeaseMode::Write);
            given.map(drop).map_err(|e| e.raw_os_error())
        };
        assert_eq!(ticket(), Ok(()), "root, who owns the region");
        assert_eq!(
            view.by(5, 6, ticket),
            Err(Some(libc::EACCES)),
            "the file's owner"
        );
        // The number that the medium has for the region's owner gives nothing.
        assert_eq!(view.by(0, 0, ticket).is_ok(), mapped.is_none());
    }
}

/// `fuser` offers no mapped mounts: the kernel refuses.
#[test]
fn mapping_of_mount_by_fuser_fails_with_einval() {
    let Some((mount, _dog)) = mounted("fuser is not mapped", "transport=fuser") else {
        return;
    };
    let refused = Idmapped::of(&mount.path()).expect_err("it is mapped");
    assert_eq!(refused, rustix::io::Errno::INVAL);
    fs::write(mount.at("file"), "served on").unwrap();
}
