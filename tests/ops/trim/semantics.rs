//! What a trim promises: it discards free blocks only.

use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::{fresh, quiet};

use crate::support::library::{contents, file, find, small};

/// The simulated medium fills discarded blocks with garbage. No read returns any of it.
#[test]
fn trim_discards_only_free_blocks() {
    use pramfs::Access;
    let (sim, fs) = small();
    let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 512) as u8).collect();
    let (stays, goes) = (file(&fs, "stays"), file(&fs, "goes"));
    for ino in [stays, goes] {
        fs.append(&Credentials::ROOT, ino, &bytes).unwrap();
    }
    // A view holds its blocks after the file has freed them.
    let view = fs
        .open_file(goes)
        .unwrap()
        .map(0..1 << 20, Access::Write)
        .unwrap();
    fs.unlink(Ino::ROOT, b"goes").unwrap();
    let given = |start, len, least| fs.trim(start, len, least).unwrap();
    let free = fs.statfs().unwrap().available * 4096;
    let all = given(0, u64::MAX, 0);
    assert!(all >= free && all >= 2 << 20, "{all} of {free}");
    let mut seen = vec![0; 1 << 20];
    view.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    drop(view);
    assert!(given(0, u64::MAX, 0) >= all + (1 << 20));
    assert_eq!(given(0, u64::MAX, 128 << 20), 0, "no run is so long");
    assert!(given(1 << 20, 1 << 20, 0) <= 1 << 20);
    assert!(contents(&fs, stays) == bytes);
    file(&fs, "more");
    // Also after a crash: contents of free blocks never matter.
    let image = pramfs_medium::pmem::SimBackend::from_image(&sim.image()).unwrap();
    drop(fs);
    let fs = pramfs_tests::region::mount(&image, quiet()).unwrap();
    assert!(contents(&fs, stays) == bytes);
    let errno = |start, len, least| fs.trim(start, len, least).unwrap_err().errno();
    assert_eq!(errno(8 << 20, 4096, 0), libc::EINVAL);
    assert_eq!(errno(0, 4095, 0), libc::EINVAL);
    assert_eq!(errno(0, u64::MAX, 1 << 40), libc::EINVAL);
    fs.close().unwrap();
    let region = pramfs_tests::region::region_of(&image);
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}

/// Groups get their bitmaps while free blocks are trimmed: no bitmap is lost.
#[test]
fn trim_spares_bitmaps_being_created() {
    // 512-byte blocks: a group has 2 MiB.
    let (sim, fs) = fresh(48 << 20, 512).unwrap();
    let chunk = vec![0x77; 300_000];
    std::thread::scope(|s| {
        let writing = s.spawn(|| {
            for i in 0..100 {
                let ino = file(&fs, &format!("f{i}"));
                fs.append(&Credentials::ROOT, ino, &chunk).unwrap();
            }
        });
        while !writing.is_finished() {
            fs.trim(0, u64::MAX, 0).unwrap();
        }
    });
    for i in 0..100 {
        let ino = find(&fs, &format!("f{i}")).unwrap();
        assert!(contents(&fs, ino) == chunk);
    }
    fs.close().unwrap();
    let region = pramfs_tests::region::region_of(&sim);
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}
