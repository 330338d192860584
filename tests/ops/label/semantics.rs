//! The label of a file system, its default options and its reserve: a change is atomic.

use pramfs::inode::Ino;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{mount, quiet};

use crate::support::library::{ROOT, small};

/// The page that a mount reads first is stored last, and each page is fenced.
#[test]
fn crash_in_label_change_leaves_old_or_new() {
    use pramfs_fsck::{Issue, check};
    const COPY: usize = 64 << 10;
    let (sim, fs) = small();
    fs.set_label("before").unwrap();
    let old = sim.image();
    fs.set_label("afterwards").unwrap();
    assert_eq!(fs.label(), "afterwards");
    let new = sim.image();
    drop(fs);
    // The new part of the static areas of the two pages, 512 bytes each.
    for (copy, first, label) in [
        (0, 0, "before"),
        (60, 0, "before"),
        (512, 0, "before"),
        (512, 60, "afterwards"),
        (512, 512, "afterwards"),
    ] {
        let mut image = old.clone();
        image[COPY..COPY + copy].copy_from_slice(&new[COPY..COPY + copy]);
        image[..first].copy_from_slice(&new[..first]);
        let sim = SimBackend::from_image(&image).unwrap();
        let region = || pramfs_tests::region::region_of(&sim);
        let report = check(&region(), &Default::default());
        if (copy, first) == (512, 0) {
            assert!(
                report.issues().any(|i| *i == Issue::LabelsDiffer),
                "{report}"
            );
        }
        // The mount finishes the change: no damage, and the mount is writable.
        let fs = mount(&sim, quiet()).unwrap();
        assert_eq!(fs.label(), label, "{copy} {first}");
        assert!(fs.recovery().damage.is_empty(), "{:?}", fs.recovery());
        fs.create(&ROOT, Ino::ROOT, b"f", 0o644).unwrap();
        fs.close().unwrap();
        let report = check(&region(), &Default::default());
        assert!(report.is_clean(), "{copy} {first}: {report}");
    }
}

/// As of the label.
#[test]
fn crash_in_change_of_default_options_or_reserve_leaves_old_or_new() {
    use pramfs_fsck::check;
    use pramfs_medium::media::default_options::DefaultOptions;
    const COPY: usize = 64 << 10;
    let (sim, fs) = small();
    let mut noatime = DefaultOptions::default();
    noatime.change("noatime").unwrap();
    let reserve = fs.superblock().fixed.reserve_blocks + 1;
    for of_reserve in [false, true] {
        let before = (fs.default_options(), fs.superblock().fixed.reserve_blocks);
        let old = sim.image();
        let after = match of_reserve {
            false => {
                fs.set_default_options(noatime).unwrap();
                (noatime, before.1)
            }
            true => {
                fs.set_reserve(reserve).unwrap();
                (before.0, reserve)
            }
        };
        let new = sim.image();
        for (copy, first, expected) in [
            (500, 0, before),
            (512, 0, before),
            (512, 500, after),
            (512, 512, after),
        ] {
            let mut image = old.clone();
            image[COPY..COPY + copy].copy_from_slice(&new[COPY..COPY + copy]);
            image[..first].copy_from_slice(&new[..first]);
            let sim = SimBackend::from_image(&image).unwrap();
            let fs = mount(&sim, quiet()).unwrap();
            let found = (fs.default_options(), fs.superblock().fixed.reserve_blocks);
            assert_eq!(found, expected, "{copy} {first}");
            assert!(fs.recovery().damage.is_empty(), "{:?}", fs.recovery());
            fs.close().unwrap();
            let report = check(&pramfs_tests::region::region_of(&sim), &Default::default());
            assert!(report.is_clean(), "{copy} {first}: {report}");
        }
    }
}
