//! Sources of every kind available here, and refused objects.

use std::os::unix::fs::PermissionsExt;

use rustix::fs::FileType;

use super::*;
use crate::pmem::huge_pool::HugePool;
use crate::pmem::tests::{disk, in_time, shm, when_free};

const RW: Access = Access {
    read_only: false,
    lock: true,
    shared: false,
    whoever_owns: false,
};
const RO: Access = Access {
    read_only: true,
    lock: true,
    shared: false,
    whoever_owns: false,
};
const UNLOCKED: Access = Access {
    read_only: false,
    lock: false,
    shared: false,
    whoever_owns: false,
};

const EXISTING: Making = Making::NewOrExisting;

fn sparse(path: &Path, len: u64) {
    std::fs::File::create(path).unwrap().set_len(len).unwrap();
}

/// Returns the errno and the message of a refusal.
fn refused(r: Result<Source, PmemError>) -> (i32, String) {
    let e = r.expect_err("should be refused");
    (e.errno(), e.to_string())
}

/// Returns why a source that was closed a moment ago is refused: see [`when_free`].
fn refused_when_free(open: impl Fn() -> Result<Source, PmemError>) -> (i32, String) {
    let mut why = (libc::EBUSY, String::new());
    in_time(|| {
        why = refused(open());
        why.0 != libc::EBUSY
    });
    why
}

#[test]
fn source_kinds_are_identified() {
    let (s, d) = (shm(), disk());
    let source = Source::create(&s.path().join("r"), 1 << 20, RW, EXISTING).unwrap();
    assert_eq!(
        (source.kind(), source.len(), source.alignment()),
        (SourceKind::Tmpfs, 1 << 20, 4096)
    );
    assert_eq!(source.persistence(), Persistence::Machine);
    assert!(source.created());
    let source = Source::create(&d.path().join("r"), 1 << 20, RW, EXISTING).unwrap();
    assert_eq!(
        (source.kind(), source.persistence()),
        (SourceKind::File, Persistence::Power)
    );
    let source = Source::memfd("m", 1 << 20).unwrap();
    assert_eq!(
        (source.kind(), source.persistence()),
        (SourceKind::Memfd, Persistence::Process)
    );
    // The pages of a memfd cannot be truncated away.
    assert!(rustix::fs::ftruncate(source.fd(), 0).is_err());
    let again = Source::from_fd(
        source.fd().try_clone_to_owned().unwrap(),
        Path::new("again"),
        RW,
    )
    .unwrap();
    assert_eq!(again.kind(), SourceKind::Memfd);
}

#[test]
fn huge_memfd_and_hugetlbfs_align_to_their_page() {
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::CLOEXEC;
    match rustix::fs::memfd_create("huge", flags) {
        Ok(fd) => {
            rustix::fs::ftruncate(&fd, 4 << 20).unwrap();
            let source = Source::from_fd(fd, Path::new("huge"), RW).unwrap();
            assert_eq!(
                (source.kind(), source.alignment()),
                (SourceKind::Hugetlbfs, 2 << 20)
            );
            assert_eq!(source.persistence(), Persistence::Process);
        }
        Err(e) => crate::pmem::tests::skipped(format_args!("memfd of huge pages: {e}")),
    }
    let Some(pool) = HugePool::borrow(1) else {
        return;
    };
    let source = Source::create(&pool.dir().join("r"), 2 << 20, RW, EXISTING).unwrap();
    assert_eq!(
        (source.kind(), source.alignment()),
        (SourceKind::Hugetlbfs, 2 << 20)
    );
    assert_eq!(source.persistence(), Persistence::Machine);
}

#[test]
fn create_preserves_existing_contents() {
    let dir = shm();
    let path = dir.path().join("r");
    let source = Source::create(&path, 8192, RW, EXISTING).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
        0o600
    );
    drop(source);
    std::fs::write(&path, vec![7; 8192]).unwrap();
    let create = |len| when_free(|| Source::create(&path, len, RW, EXISTING));
    let source = create(8192);
    assert!(!source.created());
    drop(source);
    assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 7));
    drop(create(8192));
    let (errno, text) = refused_when_free(|| Source::create(&path, 16384, RW, EXISTING));
    assert_eq!(errno, libc::EEXIST);
    assert!(text.contains("8192") && text.contains("16384"), "{text}");
    // An empty file may be overwritten.
    std::fs::write(&path, b"").unwrap();
    assert_eq!(create(16384).len(), 16384);
    // A wrong length leaves no file behind.
    for len in [0, 5000, u64::MAX / 4096 * 4096] {
        let path = dir.path().join("none");
        assert!(Source::create(&path, len, RW, EXISTING).is_err());
        assert!(!path.exists());
    }
}

#[test]
fn open_with_bad_length_fails() {
    let dir = shm();
    let path = dir.path().join("r");
    sparse(&path, 0);
    let (errno, text) = refused(Source::open(&path, RW));
    assert_eq!(errno, libc::EINVAL);
    assert!(text.contains("has no bytes"), "{text}");
    sparse(&path, 1_000_000);
    let (errno, text) = refused(Source::open(&path, RW));
    assert_eq!(errno, libc::EINVAL);
    assert!(
        text.contains("multiple of 4096") && text.contains("999424 and 1003520"),
        "{text}"
    );
}

#[test]
fn open_of_unusable_object_names_reason() {
    let dir = shm();
    let at = |name: &str| dir.path().join(name);
    let (errno, text) = refused(Source::open(dir.path(), RW));
    assert_eq!(errno, libc::EISDIR);
    assert!(text.contains("is a directory"), "{text}");
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (errno, text) = refused(Source::open(&at("fifo"), RW));
    assert_eq!(errno, libc::ENODEV);
    assert!(text.contains("fifo"), "{text}");
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let (errno, text) = refused(Source::open(&at("socket"), RW));
    assert_eq!(errno, libc::ENODEV);
    assert!(text.contains("socket"), "{text}");
    let (errno, text) = refused(Source::open(&at("missing"), RW));
    assert_eq!(errno, libc::ENOENT);
    assert!(text.contains("missing"), "{text}");
    let (errno, text) = refused(Source::open(Path::new("/dev/null"), RW));
    assert_eq!(errno, libc::ENODEV);
    assert!(text.contains("devdax"), "{text}");
    assert_eq!(
        refused(Source::create(&at("no/such/dir"), 4096, RW, EXISTING)).0,
        libc::ENOENT
    );
    assert_eq!(
        refused(Source::create(dir.path(), 4096, RW, EXISTING)).0,
        libc::EISDIR
    );
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    assert_eq!(refused(Source::open(&at("loop"), RW)).0, libc::ELOOP);
    assert_eq!(
        refused(Source::open(&at(&"n".repeat(256)), RW)).0,
        libc::ENAMETOOLONG
    );
    // The refusals did not touch anything.
    assert!(!at("missing").exists());
}

#[test]
fn region_has_one_writer_or_many_readers() {
    for dir in [shm(), disk()] {
        let path = dir.path().join("r");
        let writer = Source::create(&path, 1 << 20, RW, EXISTING).unwrap();
        for access in [RW, RO] {
            let (errno, text) = refused(Source::open(&path, access));
            assert_eq!(errno, libc::EBUSY);
            assert!(text.contains("in use"), "{text}");
            if std::fs::read_to_string("/proc/locks").is_ok() {
                assert!(
                    text.contains(&format!("process {}", std::process::id())),
                    "{text}"
                );
            }
        }
        assert!(Source::open(&path, UNLOCKED).is_ok());
        drop(writer);
        let reader = when_free(|| Source::open(&path, RO));
        let second = Source::open(&path, RO).unwrap();
        assert_eq!(refused(Source::open(&path, RW)).0, libc::EBUSY);
        drop((reader, second));
        when_free(|| Source::open(&path, RW));
    }
}

#[test]
fn open_of_read_only_source_names_reason() {
    let dir = shm();
    let path = dir.path().join("r");
    sparse(&path, 8192);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    assert!(Source::open(&path, RO).unwrap().read_only());
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let denied = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            // Root is never denied. The ids belong to this thread only, and it ends.
            let nobody = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        refused(Source::open(&path, RW))
    });
    let (errno, text) = denied.join().unwrap();
    assert_eq!(errno, libc::EACCES);
    assert!(
        text.contains("permission denied") && text.contains("read-only"),
        "{text}"
    );
}

#[test]
fn block_devices_are_exclusive_and_sized() {
    let dir = shm();
    let image = dir.path().join("image");
    sparse(&image, (1 << 20) + 512);
    let out = std::process::Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image)
        .output();
    let device = match out {
        Ok(o) if o.status.success() => PathBuf::from(String::from_utf8(o.stdout).unwrap().trim()),
        Ok(o) => {
            return crate::pmem::tests::skipped(format_args!(
                "block device: {}",
                String::from_utf8_lossy(&o.stderr).trim()
            ));
        }
        Err(e) => return crate::pmem::tests::skipped(format_args!("block device: losetup: {e}")),
    };
    struct Detach(PathBuf);
    impl Drop for Detach {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup")
                .arg("-d")
                .arg(&self.0)
                .status();
        }
    }
    let _detach = Detach(device.clone());
    let source = Source::open(&device, RW).unwrap();
    // The odd sector at the end is left out; its file is on tmpfs.
    assert_eq!(
        (source.kind(), source.len()),
        (SourceKind::BlockDevice, 1 << 20)
    );
    assert_eq!(source.persistence(), Persistence::Machine);
    let (errno, text) = refused(Source::open(&device, RW));
    assert_eq!(errno, libc::EBUSY);
    assert!(text.contains("in use"), "{text}");
    drop(source);
    let (errno, text) = refused_when_free(|| Source::create(&device, 2 << 20, RW, EXISTING));
    assert_eq!(errno, libc::ENOSPC);
    assert!(text.contains("1048576"), "{text}");
    let shorter = when_free(|| Source::create(&device, 512 << 10, RW, EXISTING));
    assert_eq!(shorter.len(), 512 << 10);
}
