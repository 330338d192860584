//! A crash while the holder of a lease appends in its window, and while the server changes the
//! file before it has merged what was appended. Nobody has looked at the file in between, so
//! the size is in the slot alone.
//!
//! `crash_explorer.rs` has sequences with other operations; it looks after each.

use pramfs::Fallocate;
use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, SetAttr};
use pramfs_tests::appender::{Appended, Appender};
use pramfs_tests::crash::sweep::{Allowed, file, ino, pattern, sweep_all};
use pramfs_tests::leased_file::{case, lease, leased, set_size};

const CX: Credentials<'_> = Credentials::ROOT;
/// Not a whole number of blocks.
const SIZE: usize = 700;
/// `FS_IMMUTABLE_FL`.
const IMMUTABLE: u32 = 0x10;

fn holder(fs: &Fs) -> Appender {
    Appender::of(fs, fs.leases()[0].ino).unwrap()
}

fn append(fs: &Fs, len: usize, seed: u64) {
    let done = holder(fs).append(fs, &pattern(len, seed)).unwrap();
    assert_eq!(done, Appended::Yes);
}

/// A file of which a process has a window.
fn window(fs: &Fs) {
    file(fs, "f", &pattern(SIZE, 1));
    file(fs, "other", &pattern(600, 9));
    lease(fs, LeaseMode::Write);
    holder(fs).open(fs, 3000).unwrap();
}

/// The same, with bytes that nobody has merged.
fn appended(fs: &Fs) {
    window(fs);
    append(fs, 900, 2);
}

/// The bytes of an operation that stores to blocks in place.
fn words(path: &'static str, from: u64, to: u64) -> Allowed {
    Allowed::Words {
        path,
        range: (from, to),
    }
}

/// The states before and after an operation are those with all that was appended before.
#[test]
fn crash_in_any_change_beside_append_window_keeps_what_was_appended() {
    let keep = |_: &Fs| ();
    sweep_all(&[
        case("append in window", window, |fs| append(fs, 10, 2)),
        case("append in window over a block", window, |fs| {
            append(fs, 400, 2)
        }),
        case("second append in window", appended, |fs| append(fs, 300, 3)),
        case("merge", appended, |fs| {
            fs.getattr(leased(fs)).unwrap();
        }),
        case("nothing", appended, keep),
        case(
            "first window",
            |fs| {
                file(fs, "f", &pattern(SIZE, 1));
                lease(fs, LeaseMode::Write);
            },
            |fs| {
                holder(fs).open(fs, 3000).unwrap();
            },
        ),
        case("next window", appended, |fs| {
            holder(fs).open(fs, 5000).unwrap();
        }),
        case("truncate below the window", appended, |fs| {
            set_size(fs, 100)
        }),
        case("truncate in the window", appended, |fs| set_size(fs, 1200)),
        case(
            "truncate in the window and longer",
            |fs| {
                appended(fs);
                set_size(fs, 1200);
            },
            |fs| set_size(fs, 3000),
        ),
        case("truncate longer", appended, |fs| set_size(fs, 2600)),
        case("append through the mount", appended, |fs| {
            fs.append(&CX, leased(fs), &pattern(200, 4)).unwrap();
        }),
        case("unlink", appended, |fs| {
            fs.unlink(Ino::ROOT, b"f").unwrap();
        }),
        case("rename over", appended, |fs| {
            let flags = pramfs::RenameFlags::default();
            fs.rename(&CX, Ino::ROOT, b"other", Ino::ROOT, b"f", flags)
                .unwrap();
        }),
        case("fallocate keep", appended, |fs| {
            let what = Fallocate::Allocate { keep_size: true };
            fs.fallocate(&CX, leased(fs), what, 0, 6000).unwrap();
        }),
        case("punch below the window", appended, |fs| {
            fs.fallocate(&CX, leased(fs), Fallocate::PunchHole, 100, 450)
                .unwrap();
        })
        .allow(words("/f", 100, 550)),
        case("punch in the window", appended, |fs| {
            fs.fallocate(&CX, leased(fs), Fallocate::PunchHole, 600, 900)
                .unwrap();
        })
        .allow(words("/f", 600, 1500)),
        case("zero range in the window", appended, |fs| {
            let what = Fallocate::ZeroRange { keep_size: true };
            fs.fallocate(&CX, leased(fs), what, 600, 900).unwrap();
        })
        .allow(words("/f", 600, 1500)),
        case("zero range past the window", appended, |fs| {
            let what = Fallocate::ZeroRange { keep_size: false };
            fs.fallocate(&CX, leased(fs), what, 1000, 2000).unwrap();
        })
        .allow(words("/f", 1000, 3000)),
        case("copy to the window", appended, |fs| {
            let other = ino(fs, "/other");
            let copied = fs.copy_range(&CX, (other, 0), (leased(fs), 1500), 600);
            assert_eq!(copied.unwrap(), 600);
        })
        .allow(words("/f", 1500, 2100)),
        case("copy of the window", appended, |fs| {
            let other = ino(fs, "/other");
            let copied = fs.copy_range(&CX, (leased(fs), 600), (other, 100), 900);
            assert_eq!(copied.unwrap(), 900);
        })
        .allow(words("/other", 100, 1000)),
        case("chattr", appended, |fs| {
            let set = SetAttr {
                flags: Some(IMMUTABLE),
                ..SetAttr::default()
            };
            fs.setattr(&CX, leased(fs), &set).unwrap();
        }),
        case("rename of the file", appended, |fs| {
            let flags = pramfs::RenameFlags::default();
            fs.rename(&CX, Ino::ROOT, b"f", Ino::ROOT, b"g", flags)
                .unwrap();
        }),
        case("another lease", appended, |fs| lease(fs, LeaseMode::Read)),
        case("end of the lease", appended, |fs| {
            let slot = holder(fs).lease.0;
            fs.region_to_damage().pretend_lease(slot, false);
            assert_eq!(fs.end_released_leases().unwrap(), 1);
        }),
        case(
            "end of the lease of an unlinked file",
            |fs| {
                appended(fs);
                fs.unlink(Ino::ROOT, b"f").unwrap();
            },
            |fs| {
                let slot = holder(fs).lease.0;
                fs.region_to_damage().pretend_lease(slot, false);
                assert_eq!(fs.end_released_leases().unwrap(), 1);
            },
        ),
    ]);
}
