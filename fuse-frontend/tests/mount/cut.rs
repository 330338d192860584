//! A region whose file is truncated under a mount, at many lengths. The lost part gives
//! EIO, the rest is readable, and the server survives and can be unmounted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;

use crate::{MIB, program};

const LEN: u64 = 16 * MIB;
const PAGE: u64 = 4096;

fn bytes(n: u64, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(37) ^ n.wrapping_mul(91) ^ i >> 9) as u8)
        .collect()
}

/// Alternates small files, whose one block pointer is in the inode, and large ones.
fn len_of(n: u64) -> u64 {
    if n.is_multiple_of(2) { 3000 } else { 300_000 }
}

const FILES: u64 = 60;

/// Returns the region offsets of the blocks of small files.
fn places(mount: &Mounted) -> Vec<Option<u64>> {
    let region = RegionOptions::new().read_only(true).open(mount.region());
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Fs::open(region.unwrap(), options).unwrap();
    (0..FILES)
        .map(|n| {
            let ino = fs.resolve(format!("/f{n}")).unwrap().ino;
            let extents = fs.file_extents(ino, 0, u64::MAX).unwrap();
            extents[0].region_offset.filter(|_| len_of(n) < PAGE)
        })
        .collect()
}

#[track_caller]
fn lost<T>(result: io::Result<T>, what: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(0);
            // Without the bitmap, no block is known to be free: ENOSPC.
            let fits = [
                libc::EIO,
                libc::EUCLEAN,
                libc::EROFS,
                libc::ESTALE,
                libc::ENOSPC,
            ];
            assert!(fits.contains(&errno), "{what}: {e}");
            None
        }
    }
}

fn cut_at(cut: u64, options: &str, dog: &Watchdog) -> (u32, u32) {
    let mount = Mounted::new(program(), LEN, options);
    for n in 0..FILES {
        fs::write(mount.at(format!("f{n}")), bytes(n, len_of(n))).unwrap();
    }
    mount.unmount();
    let places = places(&mount);
    // The page cache is cold. The files are open.
    mount.mount(options);
    let files: Vec<_> = (0..FILES)
        .map(|n| {
            let path = mount.at(format!("f{n}"));
            File::options().read(true).write(true).open(path).unwrap()
        })
        .collect();
    let region = File::options().write(true).open(mount.region()).unwrap();
    region.set_len(cut).unwrap();
    let (mut whole, mut gone) = (0, 0);
    for (n, file) in files.iter().enumerate() {
        let want = bytes(n as u64, len_of(n as u64));
        for (i, want) in want.chunks(PAGE as usize).enumerate() {
            let mut found = vec![0; want.len()];
            let what = format!("{options}: f{n}, page {i}, cut at {cut:#x}");
            let read = file.read_exact_at(&mut found, i as u64 * PAGE);
            if places[n].is_some_and(|at| at + PAGE <= cut) {
                read.as_ref().unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            // The page that contains the cut is valid up to the cut.
            let in_cut = places[n].is_some_and(|at| at < cut && cut < at + PAGE);
            match lost(read, &what) {
                Some(()) if !in_cut => {
                    whole += 1;
                    let aligned = cut.is_multiple_of(PAGE);
                    assert!(found == want || !aligned && places[n].is_none(), "{what}");
                }
                Some(()) => {}
                None => gone += 1,
            }
        }
    }
    for (n, file) in files.iter().enumerate() {
        lost(file.write_at(b"more", 10), "write");
        lost(file.set_len(5), "truncate");
        lost(fs::write(mount.at(format!("new{n}")), "x"), "create");
        lost(fs::metadata(mount.at(format!("f{n}"))), "stat");
        lost(fs::remove_file(mount.at(format!("f{n}"))), "unlink");
    }
    lost(fs::read_dir(mount.path()).map(|d| d.count()), "readdir");
    lost(file_sync(&files[0]), "fsync");
    drop(files);
    mount.process();
    mount.unmount();
    // At its old length again: it can be mounted, or the error names the region.
    region.set_len(LEN).unwrap();
    let out = mount.run::<&str>([]);
    if out.status.success() {
        lost(fs::read_dir(mount.path()).map(|d| d.count()), "readdir");
        mount.process();
        mount.unmount();
    } else {
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(32), "{said}");
        assert!(
            said.contains("region: ") && !said.contains("panicked"),
            "{said}"
        );
    }
    dog.touch();
    (whole, gone)
}

fn file_sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

#[test]
fn region_truncated_to_any_length_under_mount_keeps_rest_readable() {
    if !mounted::available("regions cut under a mount") {
        return;
    }
    let dog = Watchdog::new(
        "regions cut under a mount",
        std::time::Duration::from_secs(60),
    );
    let (mut whole, mut gone) = (0, 0);
    for options in ["cache=none", "cache=auto"] {
        for cut in [
            0,
            4096,
            64 << 10,
            300_000,
            MIB,
            3 * MIB + 77,
            6 * MIB,
            9 * MIB,
        ] {
            let (a, b) = cut_at(cut, options, &dog);
            (whole, gone) = (whole + a, gone + b);
        }
    }
    println!("{whole} pages as they were, {gone} gone");
    assert!(whole > 100 && gone > 100);
}
