//! Trims a block device while threads create and remove directories, links and files on
//! it. Every object exists until it is removed.
//!
//! Uses `durability=process`, where the kernel reads ahead in large folios. Linux 6.18
//! loses stores through a mapping to a large folio when a part of it is punched out, so
//! blocks of a block device are discarded in whole folios.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{Durability, RegionOptions};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_tests::random::Random;
use pramfs_tests::watchdog::Watchdog;

use crate::support::mount::one_at_a_time;

/// With page-sized pieces, one of four runs of eight seconds lost data.
const TIME: Duration = Duration::from_secs(12);
const TARGET: [u8; 200] = [b'x'; 200];

/// A loop device; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// A loop device, or `None` after reporting the reason.
    fn over(image: &Path) -> Option<Loop> {
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output();
        match out {
            Ok(out) if out.status.success() => {
                let name = String::from_utf8(out.stdout).unwrap();
                Some(Loop(name.trim().into()))
            }
            refused => {
                pramfs_tests::skip::skipped(format_args!(
                    "no loop device, so none is trimmed: {refused:?}"
                ));
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.0).status();
        if !detached.is_ok_and(|s| s.success()) {
            eprintln!("{} stays attached", self.0.display());
        }
    }
}

/// Creates, checks and removes directories of a thread, each with a file, a link and a
/// pipe, depending on `round`. Returns the objects that are not as created.
fn round(fs: &Fs, thread: usize, round: u64) -> Result<(), String> {
    let ctx = Credentials::ROOT;
    let e = |e: pramfs::Error| format!("round {round}: {e}");
    let top = fs.mkdir(&ctx, Ino::ROOT, format!("t{thread}").as_bytes(), 0o755);
    let top = top.map_err(e)?.ino;
    let bytes = [round as u8; 5000];
    let mut made = Vec::new();
    for name in (0..20).map(|i| format!("directory-{i}")) {
        let dir = fs.mkdir(&ctx, top, name.as_bytes(), 0o755).map_err(e)?.ino;
        let file = fs.create(&ctx, dir, b"file", 0o644).map_err(e)?.ino;
        fs.write(&Credentials::ROOT, file, 0, &bytes).map_err(e)?;
        let link = fs.symlink(&ctx, dir, b"link", &TARGET).map_err(e)?.ino;
        let mode = libc::S_IFIFO | 0o600;
        fs.mknod(&ctx, dir, b"pipe", mode, 0).map_err(e)?;
        made.push((name, dir, file, link));
    }
    for (name, dir, file, link) in &made {
        let mut found = [0; 5000];
        fs.read(*file, 0, &mut found).map_err(e)?;
        if found != bytes || fs.readlink(*link).map_err(e)? != TARGET {
            return Err(format!("round {round}: {name} is not as it was made"));
        }
        for entry in [&b"file"[..], b"link", b"pipe"] {
            fs.unlink(*dir, entry).map_err(e)?;
        }
        fs.rmdir(top, name.as_bytes()).map_err(e)?;
    }
    fs.rmdir(Ino::ROOT, format!("t{thread}").as_bytes())
        .map_err(e)
}

#[test]
fn trim_of_block_device_beside_changes_loses_nothing() {
    let _one = one_at_a_time();
    let _dog = Watchdog::new("a trimmed block device", Duration::from_secs(120));
    // On a disk; a loop device over tmpfs would work as well.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image)
        .and_then(|f| f.set_len(512 << 20))
        .unwrap();
    let Some(device) = Loop::over(&image) else {
        return;
    };
    let open = || {
        let options = RegionOptions::new().durability(Durability::Process);
        options.open(&device.0).unwrap()
    };
    let region = open();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let stopped = || stop.load(Ordering::Relaxed) || start.elapsed() > TIME;
    let counts: Vec<Result<u64, String>> = std::thread::scope(|s| {
        let (fs, stop, stopped) = (&fs, &stop, &stopped);
        let workers: Vec<_> = (0..3)
            .map(|thread| {
                s.spawn(move || {
                    let mut n = 0;
                    while !stopped() {
                        n += 1;
                        round(fs, thread, n)
                            .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                    }
                    Ok(n)
                })
            })
            .collect();
        let mut random = Random::new(1);
        while !stopped() {
            let (at, len) = (random.below(256 << 20), random.below(64 << 20) + 4096);
            fs.trim(at, len, 4096).unwrap();
        }
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    println!("rounds of each thread: {counts:?}");
    assert!(counts.iter().all(Result::is_ok), "{counts:?}");
    fs.close().unwrap();
    let report = fsck::check(&open(), &CheckOptions::default());
    assert!(report.is_clean(), "{report:?}");
}
