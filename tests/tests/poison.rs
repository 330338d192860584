//! Poisoned memory, by `madvise(MADV_HWPOISON)`: the kernel takes a page of the region away, as
//! after a machine check. It stays away until the machine boots again, so this runs only where
//! `PRAMFS_TEST_MEDIA` names media, as in the virtual machine of `tests/vm`, as root.
//!
//! **The test overwrites the named devices.**

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{BackendKind, RegionOptions};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::region::quiet;
use pramfs_tests::skip::skipped;
use pramfs_tests::watchdog::Watchdog;

const LEN: u64 = 32 << 20;
const PAGE: usize = 4096;
const BLOCKS: usize = 64;
const ROOT: Credentials<'static> = Credentials::ROOT;

/// Takes a page away. Returns the errno if the kernel refuses.
fn poison(fs: &Fs, offset: u64) -> Result<(), i32> {
    let range = fs
        .region_to_damage()
        .raw_range(offset, PAGE as u64)
        .expect("in the region");
    // SAFETY: the page lies in the mapping of a region, which the test owns; the handler of the
    // region covers it when it fails.
    let done = unsafe { libc::madvise(range.cast(), PAGE, libc::MADV_HWPOISON) };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL)),
    }
}

fn place(fs: &Fs, ino: Ino, block: usize) -> u64 {
    let at = (block * PAGE) as u64;
    let found = fs.file_extents(ino, at, 1).expect("there");
    found.first().and_then(|e| e.region_offset).expect("mapped")
}

fn read(fs: &Fs, ino: Ino, block: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; PAGE];
    match fs.read(ino, (block * PAGE) as u64, &mut bytes) {
        Ok(_) => Ok(bytes),
        Err(e) => Err(e.errno()),
    }
}

fn assert_same(is: &Result<Vec<u8>, i32>, want: &Result<Vec<u8>, i32>, what: &str, block: usize) {
    let byte = |read: &Result<Vec<u8>, i32>| read.clone().map(|bytes| bytes[0]);
    let (shown, wanted) = (byte(is), byte(want));
    assert!(
        is == want,
        "block {block} of {what}: {shown:?}, not {wanted:?}"
    );
}

fn on_medium(path: &Path) {
    let options = RegionOptions::new().backend(BackendKind::Native);
    let region = options.create(path, LEN).expect("a region");
    format(&region, &FormatOptions::default()).expect("formatted");
    let fs = Fs::open(region, quiet()).expect("mounted");
    let file = fs
        .create(&ROOT, Ino::ROOT, b"file", 0o644)
        .expect("made")
        .ino;
    let other = fs
        .create(&ROOT, Ino::ROOT, b"other", 0o644)
        .expect("made")
        .ino;
    for block in 0..BLOCKS {
        for ino in [file, other] {
            let bytes = [block as u8 + 1; PAGE];
            fs.write(&ROOT, ino, (block * PAGE) as u64, &bytes)
                .expect("written");
        }
    }
    fs.sync().expect("synced");
    let bad = 7;
    let gone = place(&fs, file, bad);
    if let Err(errno) = poison(&fs, gone) {
        return skipped(format_args!("no page can be poisoned: errno {errno}"));
    }
    println!("poisoned the page at {gone:#x} of {}", path.display());
    let whole = |fs: &Fs, of_bad: Result<Vec<u8>, i32>| {
        for block in 0..BLOCKS {
            let want = Ok(vec![block as u8 + 1; PAGE]);
            assert_same(&read(fs, other, block), &want, "the other file", block);
            let want = if block == bad { of_bad.clone() } else { want };
            assert_same(&read(fs, file, block), &want, "the file", block);
        }
    };
    whole(&fs, Err(libc::EIO));
    whole(&fs, Err(libc::EIO));
    let at = (bad * PAGE) as u64;
    let part = fs
        .write(&ROOT, file, at + 1, b"part")
        .map_err(|e| e.errno());
    assert_eq!(part, Err(libc::EIO));
    assert!(fs.lost_ranges(file).expect("listed").is_empty());
    assert_eq!(
        fs.write(&ROOT, file, at, &[0xee; PAGE]).expect("written"),
        PAGE
    );
    assert_ne!(place(&fs, file, bad), gone);
    whole(&fs, Ok(vec![0xee; PAGE]));
    fs.close().expect("unmounted");
    // The page is still away, and nothing needs it.
    let region = options.open(path).expect("opened");
    let fs = Fs::open(region, quiet()).expect("mounted");
    whole(&fs, Ok(vec![0xee; PAGE]));
    fs.unlink(Ino::ROOT, b"file").expect("removed");
    fs.close().expect("unmounted");
    let report = check(
        &options.open(path).expect("opened"),
        &CheckOptions::default(),
    );
    let told = |f: &pramfs_fsck::Finding| f.issue.to_string().contains("recorded");
    assert!(
        report.complete && report.findings.iter().all(told),
        "{report}"
    );
    println!("passed on {}", path.display());
}

#[test]
fn poisoned_page_costs_its_bytes_and_is_taken_out_of_use() {
    let Some(named) = std::env::var_os("PRAMFS_TEST_MEDIA") else {
        return println!("PRAMFS_TEST_MEDIA names no medium whose pages may be poisoned");
    };
    let _dog = Watchdog::new("a poisoned page", Duration::from_secs(120));
    for path in std::env::split_paths(&named) {
        let kind = std::fs::metadata(&path).expect("there").file_type();
        if kind.is_block_device() {
            skipped(
                "a page of a block device is one of the page cache: the kernel reads it again if it is clean, and does not take it away if it is dirty",
            );
            continue;
        }
        if kind.is_char_device() {
            on_medium(&path);
            continue;
        }
        let dir = tempfile::tempdir_in(&path).expect("a directory");
        on_medium(&dir.path().join("region"));
    }
}
