//! A region whose file is truncated while it is open: to every kind of length, under
//! reads, writes, views and threads.
//!
//! Bytes before the new end read as before. Everything else gives EIO, or EUCLEAN where
//! zeros replace lost metadata. The process lives, the file system can be closed, and
//! extending the file again does no harm either.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use pramfs::Access;
use pramfs::format::format;
use pramfs::pmem::{BackendKind, RegionOptions, install_fault_guard};
use pramfs::{
    ErrorPolicy, MountOptions, Result, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_tests::region::{quiet, repeatable};
use pramfs_tests::watchdog::Watchdog;

const CX: Credentials<'_> = Credentials::new(0, 0);
const LEN: u64 = 4 << 20;
const PAGE: u64 = 4096;
const BACKENDS: [BackendKind; 2] = [BackendKind::Auto, BackendKind::Native];

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(31) ^ seed.wrapping_mul(0x9e37_79b9) ^ i >> 8) as u8)
        .collect()
}

/// A file, its bytes, and their locations.
struct Placed {
    ino: Ino,
    bytes: Vec<u8>,
    /// File offset, region offset, length.
    at: Vec<(u64, u64, u64)>,
    /// Whether its inode holds the pointer to its blocks.
    direct: bool,
}

struct Open {
    fs: Fs,
    region: File,
    files: Vec<Placed>,
    dir: Ino,
}

/// A file system in its own file, with contents spread over the region.
fn open(path: &Path, backend: BackendKind, errors: ErrorPolicy) -> Open {
    let _ = std::fs::remove_file(path);
    let options = RegionOptions::new().backend(backend);
    let region = options.create(path, LEN).unwrap();
    format(&region, &repeatable(4096)).unwrap();
    let mount = MountOptions { errors, ..quiet() };
    let fs = Fs::open(region, mount).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let mut files = Vec::new();
    for i in 0..40u64 {
        let name = format!("f{i}");
        let ino = fs.create(&CX, dir, name.as_bytes(), 0o644).unwrap().ino;
        let bytes = bytes(i, if i % 2 == 0 { 3000 } else { 150_000 });
        fs.append(&CX, ino, &bytes).unwrap();
        let at = fs.file_extents(ino, 0, u64::MAX).unwrap();
        let at: Vec<_> = at
            .iter()
            .map(|e| (e.file_offset, e.region_offset.unwrap(), e.len))
            .collect();
        files.push(Placed {
            ino,
            direct: bytes.len() <= 4096,
            bytes,
            at,
        });
    }
    fs.sync().unwrap();
    let region = File::options().read(true).write(true).open(path).unwrap();
    Open {
        fs,
        region,
        files,
        dir,
    }
}

/// Errors that a truncated medium may give.
#[track_caller]
fn lost<T>(result: Result<T>, what: &str) -> Option<T> {
    match result {
        Ok(v) => Some(v),
        Err(e) => {
            // ENOSPC: appends have set all free blocks aside that are not there any more.
            let fits = [
                libc::EIO,
                libc::EUCLEAN,
                libc::EROFS,
                libc::ESTALE,
                libc::ENOSPC,
            ];
            assert!(fits.contains(&e.errno()), "{what}: {e}");
            assert!(!e.to_string().is_empty());
            None
        }
    }
}

/// Reads all of it: bytes before the new end are unchanged.
fn look(o: &Open, cut: u64) -> (u32, u32) {
    let (mut whole, mut gone) = (0, 0);
    for f in &o.files {
        for &(from, at, len) in &f.at {
            for piece in (0..len).step_by(PAGE as usize) {
                let n = PAGE.min(len - piece);
                let mut found = vec![0xaa; n as usize];
                let what = format!("{} at {at:#x} cut at {cut:#x}", f.ino);
                let read = o.fs.read(f.ino, from + piece, &mut found);
                let there = (at + piece + n).next_multiple_of(PAGE) <= cut.next_multiple_of(PAGE);
                if there && f.direct {
                    read.as_ref().unwrap_or_else(|e| panic!("{what}: {e}"));
                }
                match lost(read, &what) {
                    Some(n) if there => {
                        let want = &f.bytes[(from + piece) as usize..][..n];
                        // The page that contains the new end keeps the bytes before it.
                        let kept = (cut.saturating_sub(at + piece) as usize).min(n);
                        assert!(found[..kept] == want[..kept], "{what}: other bytes");
                        whole += 1;
                    }
                    Some(_) => panic!("{what}: bytes that are not there any more"),
                    None => gone += 1,
                }
            }
        }
    }
    (whole, gone)
}

/// Makes every other call; none may panic.
fn change(o: &Open, round: &str) {
    let fs = &o.fs;
    for (i, f) in o.files.iter().enumerate() {
        let ino = f.ino;
        lost(fs.getattr(ino), "getattr");
        lost(fs.write(&CX, ino, 100, b"over"), "write");
        lost(fs.append(&CX, ino, &[1; 5000]), "append");
        let set = SetAttr {
            size: Some(10),
            ..SetAttr::default()
        };
        lost(fs.setattr(&CX, ino, &set), "truncate");
        lost(
            fs.setxattr(&CX, ino, b"user.a", &[1; 3000], XattrMode::Set),
            "setxattr",
        );
        // An existing name is found, or gives an error: it is never missing.
        let name = format!("f{i}");
        if round == "first" {
            lost(fs.lookup(o.dir, name.as_bytes()), "lookup");
        }
        let to = format!("{round} {name}");
        lost(fs.create(&CX, o.dir, to.as_bytes(), 0o644), "create");
        lost_or_missing(fs.rename(
            &CX,
            o.dir,
            name.as_bytes(),
            Ino::ROOT,
            to.as_bytes(),
            Default::default(),
        ));
    }
    lost(
        fs.readdir(o.dir, 0, &mut |_| std::ops::ControlFlow::Continue(())),
        "readdir",
    );
    lost(fs.statfs(), "statfs");
    lost(fs.sync(), "sync");
}

fn lengths() -> Vec<u64> {
    let mut list = vec![0, 1, 511, 4095, 4096, 4097, 64 << 10, 68 << 10, 69_000];
    list.extend((1..16).map(|i| i * (LEN / 16) + (i % 3) * 1000));
    list.extend([LEN - 4096, LEN - 1]);
    list
}

#[test]
fn truncated_region_reads_prefix_and_fails_beyond() {
    install_fault_guard().unwrap();
    let dog = Watchdog::new("cut regions", Duration::from_secs(30));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    let (mut whole, mut gone) = (0, 0);
    for backend in BACKENDS {
        for (n, cut) in lengths().into_iter().enumerate() {
            let errors = [ErrorPolicy::Continue, ErrorPolicy::RemountRo][n % 2];
            let o = open(&path, backend, errors);
            o.region.set_len(cut).unwrap();
            let (a, b) = look(&o, cut);
            (whole, gone) = (whole + a, gone + b);
            change(&o, "first");
            dog.touch();
            // The old length again, with zeros after the truncation point.
            o.region.set_len(LEN).unwrap();
            change(&o, "second");
            lost(o.fs.close_now(), "close");
            // The rest is mounted, or rejected with a reason.
            match RegionOptions::new()
                .open(&path)
                .map(|r| Fs::open(r, quiet()))
            {
                Ok(Ok(fs)) => {
                    let _ = fs.lookup(Ino::ROOT, b"dir");
                    lost(fs.statfs(), "statfs");
                    lost(fs.close_now(), "close");
                }
                Ok(Err(e)) => assert!(
                    [libc::EINVAL, libc::EUCLEAN].contains(&e.errno()),
                    "{cut:#x}: {e}"
                ),
                Err(e) => panic!("{cut:#x}: {e}"),
            }
        }
    }
    println!("{whole} pages as they were, {gone} gone");
    assert!(whole > 1000 && gone > 1000);
}

#[test]
fn view_of_truncated_region_fails() {
    install_fault_guard().unwrap();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    for cut in [0, LEN / 16, LEN / 8, LEN / 3] {
        let o = open(&path, BackendKind::Auto, ErrorPolicy::Continue);
        let mut views = Vec::new();
        for f in &o.files {
            let file = o.fs.open_file(f.ino).unwrap();
            views.push(file.map(0..f.bytes.len() as u64, Access::Write).unwrap());
        }
        o.region.set_len(cut).unwrap();
        let mut gone = 0;
        for (f, view) in o.files.iter().zip(&views) {
            for &(from, at, len) in &f.at {
                let mut found = vec![0; len as usize];
                let there = (at + len).next_multiple_of(PAGE) <= cut;
                match view.read(from, &mut found) {
                    Ok(()) => {
                        assert!(there, "bytes that are not there any more");
                        assert!(found == f.bytes[from as usize..][..len as usize]);
                        view.write(from, b"more").unwrap();
                        lost(view.persist(from..from + 4), "persist");
                    }
                    Err(e) => {
                        assert_eq!(e.errno(), libc::EIO);
                        assert!(!there, "{e}");
                        gone += 1;
                        if at >= cut {
                            let _ = view.write(from, b"more");
                            let e = view.persist(from..from + 4).unwrap_err();
                            assert_eq!(e.errno(), libc::EIO);
                        }
                    }
                }
            }
        }
        assert!(gone > 0);
        drop(views);
        lost(o.fs.close_now(), "close");
    }
}

/// Threads read, write and create files while the file is truncated, extended and
/// truncated again.
#[test]
fn threads_survive_region_truncation() {
    install_fault_guard().unwrap();
    let _dog = Watchdog::new("threads over a cut", Duration::from_secs(30));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let o = open(
        &dir.path().join("region"),
        BackendKind::Auto,
        ErrorPolicy::Continue,
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (o, done) = (&o, &done);
            s.spawn(move || {
                let mut buffer = vec![0; 70_000];
                let mut i = t;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    i += 1;
                    let f = &o.files[(i % 40) as usize];
                    lost(o.fs.read(f.ino, 0, &mut buffer), "read");
                    lost(o.fs.write(&CX, f.ino, i % 1000, b"more"), "write");
                    let name = format!("t{t}-{i}");
                    lost(o.fs.create(&CX, o.dir, name.as_bytes(), 0o644), "create");
                    lost_or_missing(o.fs.unlink(o.dir, name.as_bytes()));
                }
            });
        }
        for cut in [LEN / 2, LEN, LEN / 8, LEN, 8192, LEN, 0, LEN] {
            std::thread::sleep(Duration::from_millis(20));
            o.region.set_len(cut).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut first = [0; 16];
    o.region.read_exact_at(&mut first, 0).unwrap();
    lost(o.fs.close_now(), "close");
}

fn lost_or_missing(result: Result<()>) {
    if let Err(e) = &result
        && e.errno() == libc::ENOENT
    {
        return;
    }
    lost(result, "rename or unlink");
}
