//! Limits and documented non-guarantees.

use std::sync::Arc;

use pramfs::{
    Error, Fallocate, StatFs, XattrMode,
    inode::{Credentials, Ino, SetAttr},
};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{formatted, fresh, mount, quiet, region_of, repeatable};

use super::{MIB, ROOT, Stopped, contents, file, fill, remount, small};

/// The birth time never changes, neither by operations on the file nor by calls that set
/// times.
#[test]
fn btime_never_changes() {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let fs = mount(&sim, clock.options()).unwrap();
    let ino = file(&fs, "f");
    clock.set(2_000);
    fs.append(&Credentials::ROOT, ino, b"bytes").unwrap();
    let past = SetAttr {
        mtime: Some(pramfs::inode::SetTime::At(pramfs::inode::Time {
            sec: 5,
            nsec: 0,
        })),
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &past).unwrap();
    fs.link(ino, Ino::ROOT, b"g").unwrap();
    let fs = remount(&sim, fs, clock.options());
    let a = fs.getattr(ino).unwrap();
    assert_eq!((a.btime.sec, a.mtime.sec, a.ctime.sec), (1_000, 5, 2_000));
}

/// A large value consists of few pieces. In scattered free space it fails even if enough
/// blocks are free, and nothing changes.
#[test]
fn large_xattr_value_fails_in_scattered_space() {
    let (sim, fs) = fresh(2 * MIB, 512).unwrap();
    let (holes, f) = (file(&fs, "holes"), file(&fs, "f"));
    // Pointer blocks lie between the data blocks, so more than every other block is
    // freed.
    fs.append(&Credentials::ROOT, holes, &vec![1; 512 << 10])
        .unwrap();
    fill(&fs);
    for at in (0..512 << 10).step_by(2048) {
        fs.fallocate(&Credentials::ROOT, holes, Fallocate::PunchHole, at, 1024)
            .unwrap();
    }
    // Freed blocks are available at once, not held by a record.
    let fs = remount(&sim, fs, quiet());
    let StatFs { available, .. } = fs.statfs().unwrap();
    assert!(available * 512 > 128 << 10, "{available} blocks");
    let value = vec![7; 65_536];
    let refused = fs.setxattr(&Credentials::ROOT, f, b"user.large", &value, XattrMode::Set);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert_eq!(fs.listxattr(f).unwrap(), b"");
    // A value of few pieces fits.
    fs.setxattr(
        &Credentials::ROOT,
        f,
        b"user.less",
        &value[..6 << 10],
        XattrMode::Set,
    )
    .unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        holes,
        Fallocate::PunchHole,
        0,
        512 << 10,
    )
    .unwrap();
    // It need not wait for recently freed blocks either.
    fs.setxattr(&Credentials::ROOT, f, b"user.large", &value, XattrMode::Set)
        .unwrap();
    assert_eq!(fs.getxattr(f, b"user.large").unwrap(), value);
}

/// A path of the direct API follows up to 40 symbolic links.
#[test]
fn path_follows_up_to_40_symlinks() {
    let (_sim, fs) = small();
    file(&fs, "link-0");
    for i in 1..=41 {
        let (name, target) = (format!("link-{i}"), format!("link-{}", i - 1));
        fs.symlink(&ROOT, Ino::ROOT, name.as_bytes(), target.as_bytes())
            .unwrap();
    }
    assert_eq!(fs.resolve(b"/link-40").unwrap().size, 0);
    assert_eq!(fs.resolve(b"/link-41").unwrap_err().errno(), libc::ELOOP);
}

/// Contents have no checksum: a change of the medium changes the file.
#[test]
fn flipped_data_byte_is_not_detected() {
    let (sim, fs) = small();
    let f = file(&fs, "f");
    fs.append(&Credentials::ROOT, f, &[0x5a; 4096]).unwrap();
    let at = fs.file_extents(f, 0, 4096).unwrap()[0]
        .region_offset
        .unwrap();
    fs.close().unwrap();
    let mut image = sim.image();
    image[at as usize + 100] ^= 1;
    let sim = SimBackend::from_image(&image).unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    let fs = Arc::new(mount(&sim, quiet()).unwrap());
    assert_eq!(contents(&fs, f)[99..102], [0x5a, 0x5b, 0x5a]);
}
