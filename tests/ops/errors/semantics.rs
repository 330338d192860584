//! What an operation does that meets damage or a failing medium: `errors=`, EUCLEAN, EIO.

use pramfs_medium::pmem::RegionAccess as _;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::Command;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::{Error, ErrorPolicy, MountOptions};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{mount, quiet, region_of};

use crate::support::library::{ROOT, contents, file, find, small};
use crate::support::mount::one_at_a_time;

/// A file system with a damaged directory, and an intact file.
fn damaged(errors: ErrorPolicy) -> Fs {
    let (sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    fs.create(&ROOT, dir, b"an entry of its own", 0o644)
        .unwrap();
    let whole = file(&fs, "whole");
    fs.append(&Credentials::ROOT, whole, b"unharmed").unwrap();
    fs.close().unwrap();
    // The leaf of `dir` is the block that contains this name.
    let image = sim.image();
    let name = b"an entry of its own";
    let at = image.windows(name.len()).position(|w| w == name).unwrap();
    let region = region_of(&sim);
    let pending = region.window().store(at as u64, b"A").unwrap();
    let _ = region.window().fence(pending);
    mount(&sim, MountOptions { errors, ..quiet() }).unwrap()
}

fn meet(fs: &Fs) -> Error {
    let dir = find(fs, "dir").unwrap();
    fs.lookup(dir, b"an entry of its own").unwrap_err()
}

#[test]
fn damage_gives_euclean_and_spares_other_objects() {
    for errors in [ErrorPolicy::Continue, ErrorPolicy::RemountRo] {
        let fs = damaged(errors);
        let e = meet(&fs);
        assert_eq!(e.errno(), libc::EUCLEAN);
        assert!(e.to_string().contains("run `fsck.pramfs`"), "{e}");
        assert_eq!(contents(&fs, find(&fs, "whole").unwrap()), b"unharmed");
    }
}

#[test]
fn errors_continue_writes_and_remount_ro_stops() {
    let fs = damaged(ErrorPolicy::Continue);
    meet(&fs);
    file(&fs, "new");
    assert!(!fs.is_read_only());
    let fs = damaged(ErrorPolicy::RemountRo);
    file(&fs, "before");
    meet(&fs);
    assert!(fs.is_read_only());
    let after = fs.create(&ROOT, Ino::ROOT, b"after", 0o644);
    assert_eq!(after.unwrap_err().errno(), libc::EROFS);
    // Until fsck has checked it.
    assert_eq!(fs.make_writable().unwrap_err().errno(), libc::EROFS);
    assert!(fs.is_read_only());
}

const CHILD: &str = "PRAMFS_TEST_ERRORS_PANIC";

#[test]
fn errors_panic_aborts_process() {
    let _one = one_at_a_time();
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os(CHILD).is_some() {
        meet(&damaged(ErrorPolicy::Panic));
        std::process::exit(0);
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "errors::semantics::errors_panic_aborts_process"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT));
}

/// The superblock records the times of the first and of the latest error.
#[test]
fn errors_are_recorded_in_superblock() {
    let fs = damaged(ErrorPolicy::Continue);
    let noted = |fs: &Fs| {
        pramfs_medium::media::probe_superblock(fs.region())
            .unwrap()
            .dynamic
    };
    assert_eq!(noted(&fs).first_error.time_sec, 0);
    meet(&fs);
    meet(&fs);
    let noted = noted(&fs);
    assert_eq!(noted.first_error.errno, libc::EUCLEAN as u32);
    assert_eq!((noted.first_error.count, noted.last_error.count), (1, 2));
    let dir = find(&fs, "dir").unwrap();
    assert_eq!(
        (noted.first_error.ino, noted.last_error.ino),
        (dir.0, dir.0)
    );
}

/// The region's file is truncated under the mount: EIO, and the process lives.
#[test]
fn truncated_region_under_mount_gives_eio() {
    use pramfs::format::format;
    use pramfs::pmem::{RegionOptions, install_fault_guard};
    install_fault_guard().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
    format(&region, &Default::default()).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[1; 100_000]).unwrap();
    let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(4096).unwrap();
    let e = fs.read(ino, 0, &mut [0; 100_000]).unwrap_err();
    assert_eq!(e.errno(), libc::EIO);
    let e = fs.create(&ROOT, Ino::ROOT, b"g", 0o644).unwrap_err();
    assert!(
        [libc::EIO, libc::EUCLEAN, libc::EROFS].contains(&e.errno()),
        "{e}"
    );
}

/// The visible state of a file: size, mode, contents.
type Shown = (u64, u32, Vec<u8>);

/// The visible state of each name of the root.
fn shown(fs: &Fs) -> pramfs::Result<BTreeMap<String, Shown>> {
    let mut all = BTreeMap::new();
    let mut found = Vec::new();
    fs.readdir(Ino::ROOT, 0, &mut |e| {
        found.push(String::from_utf8_lossy(e.name).into_owned());
        ControlFlow::Continue(())
    })?;
    for name in found.into_iter().filter(|name| !name.starts_with('.')) {
        let attr = fs.lookup(Ino::ROOT, name.as_bytes())?;
        let mut bytes = vec![0; attr.size as usize];
        fs.read(attr.ino, 0, &mut bytes)?;
        all.insert(name, (attr.size, attr.perm, bytes));
    }
    Ok(all)
}

/// Restores an older version of a page of the region, one at a time for each page that
/// differs.
#[test]
fn stale_page_is_detected_or_shows_old_state() {
    const PAGE: usize = 4096;
    let (sim, fs) = small();
    for n in 0..6 {
        let ino = file(&fs, &format!("f{n}"));
        fs.append(&Credentials::ROOT, ino, &[n; 20_000]).unwrap();
    }
    fs.close().unwrap();
    let before = sim.image();
    let old = shown(&mount(&sim, quiet()).unwrap()).unwrap();

    let fs = mount(&sim, quiet()).unwrap();
    let ino = |n| find(&fs, n).unwrap();
    fs.write(&Credentials::ROOT, ino("f0"), 0, &[100; 20_000])
        .unwrap();
    let mode = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino("f1"), &mode).unwrap();
    fs.append(&Credentials::ROOT, ino("f2"), &[102; 300_000])
        .unwrap();
    fs.unlink(Ino::ROOT, b"f3").unwrap();
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino("f4"), &size).unwrap();
    for n in 6..9 {
        let ino = file(&fs, &format!("f{n}"));
        fs.append(&Credentials::ROOT, ino, &[n; 20_000]).unwrap();
    }
    fs.close().unwrap();
    let after = sim.image();
    let new = shown(&mount(&sim, quiet()).unwrap()).unwrap();

    let (mut by_engine, mut by_check, mut by_nobody) = (0, 0, 0);
    for at in (0..after.len()).step_by(PAGE) {
        let page = at..at + PAGE;
        if before[page.clone()] == after[page.clone()] {
            continue;
        }
        let mut image = after.clone();
        let stale = &before[page.clone()];
        image[page].copy_from_slice(stale);
        let sim = SimBackend::from_image(&image).unwrap();
        let region = region_of(&sim);
        let clean = pramfs_fsck::check(&region, &Default::default()).is_clean();
        let seen = mount(&sim, quiet()).and_then(|fs| shown(&fs));
        match seen {
            Err(e) => {
                assert!(matches!(e.errno(), libc::EUCLEAN | libc::EINVAL), "{e}");
                by_engine += 1;
            }
            Ok(_) if !clean => by_check += 1,
            Ok(seen) => {
                for (name, (size, mode, bytes)) in &seen {
                    let once = [old.get(name), new.get(name)];
                    let was =
                        |f: &dyn Fn(&Shown) -> bool| once.iter().flatten().any(|then| f(then));
                    assert!(was(&|then| then.0 == *size), "size of {name}, page {at:#x}");
                    assert!(was(&|then| then.1 == *mode), "mode of {name}, page {at:#x}");
                    // Compared byte by byte: a page has one state and its neighbour the
                    // other, and a new block had other contents before.
                    for (i, byte) in bytes.iter().enumerate() {
                        let known =
                            was(&|then| then.2.get(i) == Some(byte)) || stale.contains(byte);
                        assert!(known, "byte {i} of {name}, page {at:#x}");
                    }
                }
                if seen != new {
                    by_nobody += 1;
                }
            }
        }
    }
    println!(
        "stale pages: {by_engine} by the engine, {by_check} by the check, {by_nobody} by nobody"
    );
    assert!(
        by_engine + by_check > 0,
        "names, pointers and bits disagree"
    );
    assert!(by_nobody >= 4, "pages of the contents of f0: {by_nobody}");
}
