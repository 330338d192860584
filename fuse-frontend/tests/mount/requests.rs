//! Invalid and extreme system calls on a mount and on tmpfs: the same call has the same
//! result on both, down to the errno.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino, SetAttr, SetTime, Time},
};
use pramfs_tests::mounted::Mounted;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags,
};
use rustix::io::{Errno, Result};
use tempfile::TempDir;

use crate::{MIB, mounted, unmounted};

const LARGEST: u64 = i64::MAX as u64;

/// A directory of a mount, and one of tmpfs.
struct Pair {
    mount: Mounted,
    tmpfs: TempDir,
    _dog: pramfs_tests::watchdog::Watchdog,
}

fn pair(test: &str, options: &str) -> Option<Pair> {
    let (mount, dog) = mounted(test, options)?;
    Some(Pair {
        mount,
        tmpfs: tempfile::tempdir_in("/dev/shm").unwrap(),
        _dog: dog,
    })
}

impl Pair {
    /// Makes the same call on both.
    #[track_caller]
    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, call: impl Fn(&Path) -> Result<T>) {
        let ours = call(&self.mount.path());
        let theirs = call(self.tmpfs.path());
        assert_eq!(ours, theirs, "{what}: here, and on tmpfs");
    }
}

fn offsets() -> Vec<u64> {
    let mut list = vec![0, 1, 4095, 4096, 4097, MIB];
    for limit in [16 << 40, 1 << 62, LARGEST - 4095, LARGEST] {
        list.extend([limit - 4097, limit - 1, limit]);
    }
    list.extend([LARGEST + 1, u64::MAX - 4096, u64::MAX]);
    list
}

#[test]
fn extreme_offsets_and_lengths_match_tmpfs() {
    for options in ["cache=auto", "cache=none"] {
        let Some(both) = pair("offsets beside tmpfs", options) else {
            return;
        };
        let open = |dir: &Path| {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(dir.join("file"))
                .unwrap();
            file.write_all_at(&[7; 10_000], 0).unwrap();
            file.write_all_at(&[8; 10], MIB).unwrap();
            file
        };
        let size = |file: &File| file.metadata().unwrap().size();
        for at in offsets() {
            let what = |call: &str| format!("{options}: {call} at {at:#x}");
            for len in [0, 1, 5000] {
                both.same(&what("pread"), |dir| {
                    let mut into = vec![0u8; len];
                    let n = rustix::io::pread(open(dir), &mut into[..], at)?;
                    Ok((n, into))
                });
                both.same(&what("pwrite"), |dir| {
                    let file = open(dir);
                    let n = rustix::io::pwrite(&file, &vec![1; len], at);
                    Ok((n, size(&file)))
                });
            }
            both.same(&what("ftruncate"), |dir| {
                let file = open(dir);
                let done = rustix::fs::ftruncate(&file, at);
                Ok((done, size(&file)))
            });
            for whence in [SeekFrom::Data(at), SeekFrom::Hole(at)] {
                both.same(&what("lseek"), |dir| rustix::fs::seek(open(dir), whence));
            }
            let modes = [
                FallocateFlags::empty(),
                FallocateFlags::KEEP_SIZE,
                FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
            ];
            for len in [0, 1, 5000, LARGEST, LARGEST + 1, u64::MAX] {
                for mode in modes {
                    both.same(&what(&format!("fallocate {mode:?} {len:#x}")), |dir| {
                        let file = open(dir);
                        let done = rustix::fs::fallocate(&file, mode, at, len);
                        Ok((done, size(&file)))
                    });
                }
                // tmpfs lacks this mode, but the kernel's own checks are the same.
                let file = open(&both.mount.path());
                let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                let done = rustix::fs::fallocate(&file, zero, at, len);
                let (negative, past) = (
                    at > LARGEST || len == 0 || len > LARGEST,
                    at.saturating_add(len) > LARGEST,
                );
                match done {
                    Err(e) if negative => assert_eq!(e, Errno::INVAL),
                    Err(e) if past => assert_eq!(e, Errno::FBIG),
                    Err(e) => assert!(len == LARGEST && e == Errno::NOSPC, "{e}"),
                    Ok(()) => assert!(len <= 5000),
                }
                assert_eq!(size(&file), MIB + 10);
            }
        }
    }
}

type Call = (&'static str, fn(&Path, &Path) -> Result<()>);

/// Calls that take a name, in a directory.
const CALLS: [Call; 17] = [
    ("creat", |_, n| {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        rustix::fs::open(n, flags, Mode::RWXU).map(drop)
    }),
    ("creat O_EXCL", |_, n| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        rustix::fs::open(n, flags, Mode::RWXU).map(drop)
    }),
    ("open", |_, n| {
        rustix::fs::open(n, OFlags::RDONLY, Mode::empty()).map(drop)
    }),
    ("open O_TRUNC", |_, n| {
        let flags = OFlags::TRUNC | OFlags::WRONLY;
        rustix::fs::open(n, flags, Mode::empty()).map(drop)
    }),
    ("mkdir", |_, n| rustix::fs::mkdir(n, Mode::RWXU)),
    ("mkfifo", |_, n| {
        rustix::fs::mknodat(CWD, n, FileType::Fifo, Mode::RWXU, 0)
    }),
    ("mknod", |_, n| {
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, n, FileType::CharacterDevice, Mode::RWXU, device)
    }),
    ("symlink", |_, n| rustix::fs::symlink("target", n)),
    ("link to", |d, n| rustix::fs::link(d.join("file"), n)),
    ("link from", |d, n| rustix::fs::link(n, d.join("new"))),
    ("unlink", |_, n| rustix::fs::unlink(n)),
    ("rmdir", |_, n| rustix::fs::rmdir(n)),
    ("rename to", |d, n| rustix::fs::rename(d.join("file"), n)),
    ("rename from", |d, n| rustix::fs::rename(n, d.join("new"))),
    ("rename NOREPLACE", |d, n| {
        rustix::fs::renameat_with(CWD, d.join("file"), CWD, n, RenameFlags::NOREPLACE)
    }),
    ("rename EXCHANGE", |d, n| {
        rustix::fs::renameat_with(CWD, d.join("file"), CWD, n, RenameFlags::EXCHANGE)
    }),
    ("lstat", |_, n| {
        rustix::fs::statat(CWD, n, AtFlags::SYMLINK_NOFOLLOW).map(drop)
    }),
];

#[test]
fn calls_on_odd_names_match_tmpfs() {
    let Some(both) = pair("names beside tmpfs", "") else {
        return;
    };
    let (fits, long) = ("n".repeat(255), "n".repeat(256));
    let longer = "n".repeat(1025);
    let names = [
        "new",
        &fits,
        &long,
        &longer,
        "",
        ".",
        "..",
        "/",
        "new/",
        "file/",
        "sub/",
        "sub/.",
        "sub/..",
        "file/x",
        "missing/x",
        "link",
        "link/",
        "full",
        "full/x",
        "sub",
        "file",
        "circle",
        "circle/x",
    ];
    let mut n = 0;
    for name in names {
        for (what, call) in CALLS {
            n += 1;
            let shown = &name[..name.len().min(12)];
            both.same(&format!("{what} of {shown:?}"), |dir| {
                let dir = dir.join(format!("dir{n}"));
                fs::create_dir(&dir).unwrap();
                fs::create_dir(dir.join("sub")).unwrap();
                fs::create_dir_all(dir.join("full/of")).unwrap();
                fs::write(dir.join("file"), "contents").unwrap();
                rustix::fs::symlink("file", dir.join("link")).unwrap();
                rustix::fs::symlink("circle", dir.join("circle")).unwrap();
                let result = call(&dir, &dir.join(name));
                // Names, types and sizes afterwards.
                let mut left: Vec<_> = fs::read_dir(&dir)
                    .unwrap()
                    .map(|e| {
                        let e = e.unwrap();
                        let m = e.metadata().unwrap();
                        let size = if m.is_file() { m.len() } else { 0 };
                        (e.file_name(), m.mode() & libc::S_IFMT, m.nlink(), size)
                    })
                    .collect();
                left.sort();
                Ok((result, left))
            });
        }
    }
    for len in [0, 1, 95, 96, 97, 4094, 4095, 4096, 5000] {
        both.same(&format!("a target of {len} bytes"), |dir| {
            let at = dir.join(format!("target{len}"));
            rustix::fs::symlink("t".repeat(len), &at)?;
            Ok(fs::read_link(&at).unwrap())
        });
    }
}

#[test]
fn invalid_xattr_names_and_values_fail() {
    let Some((mount, _dog)) = mounted("attributes that cannot be", "") else {
        return;
    };
    let file = mount.at("file");
    fs::write(&file, "contents").unwrap();
    let long = |len: usize| format!("user.{}", "n".repeat(len - 5));
    let set =
        |name: &str, value: &[u8]| rustix::fs::setxattr(&file, name, value, XattrFlags::empty());
    let refused = [
        ("".into(), Errno::RANGE),
        (long(256), Errno::RANGE),
        (long(300), Errno::RANGE),
        ("user".into(), Errno::OPNOTSUPP),
        ("other.a".into(), Errno::OPNOTSUPP),
        ("system.a".into(), Errno::OPNOTSUPP),
    ];
    for (name, errno) in refused {
        assert_eq!(set(&name, b"v"), Err(errno), "{name}");
        let mut buffer = [0u8; 10];
        let got = rustix::fs::getxattr(&file, &name, &mut buffer[..]);
        assert_eq!(got, Err(errno), "{name}");
        let gone = rustix::fs::removexattr(&file, &name);
        assert_eq!(gone, Err(errno), "{name}");
    }
    assert_eq!(set("user.v", &vec![1; 65_537]), Err(Errno::TOOBIG));
    assert_eq!(set(&long(255), &vec![1; 65_536]), Ok(()));
    assert!(set("user.", b"v").is_err());
    let mut small = [0u8; 9];
    let got = rustix::fs::getxattr(&file, long(255), &mut small[..]);
    assert_eq!(got, Err(Errno::RANGE));
    let mut list = [0u8; 9];
    let got = rustix::fs::listxattr(&file, &mut list[..]);
    assert_eq!(got, Err(Errno::RANGE));
}

/// Times that `fuser` cannot express do no harm.
#[test]
fn extreme_timestamps_keep_mount_usable() {
    let Some((mount, _dog)) = unmounted("the ends of time") else {
        return;
    };
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX];
    let region = RegionOptions::new().open(mount.region()).unwrap();
    let fs_ = Fs::open(region, MountOptions::default()).unwrap();
    for (n, sec) in ends.into_iter().enumerate() {
        let at = SetTime::At(Time {
            sec,
            nsec: 999_999_999,
        });
        let set = SetAttr {
            atime: Some(at),
            mtime: Some(at),
            ..SetAttr::default()
        };
        let name = format!("file{n}");
        let ctx = Default::default();
        let ino = fs_.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644);
        let ino = ino.unwrap().ino;
        fs_.append(&Credentials::ROOT, ino, b"contents").unwrap();
        fs_.setattr(&Credentials::ROOT, ino, &set).unwrap();
    }
    fs_.close().unwrap();
    mount.mount("cache=none,strictatime");
    for n in 0..ends.len() {
        let path = mount.at(format!("file{n}"));
        fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        let now = std::time::SystemTime::now();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(now).unwrap();
        let shown = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(shown.duration_since(now).unwrap_or_default() < Duration::from_secs(1));
    }
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), ends.len());
    mount.process();
    mount.unmount();
}
