//! Pages of the new part of a growing file system that the kernel names as bad.

use std::ops::Range;

use pramfs::inode::{Credentials, Fs, Ino};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::failing_pages::{PAGE, cuts};
use pramfs_tests::region::{mount, quiet, region_of, repeatable};

const ROOT: Credentials<'static> = Credentials::ROOT;
const FROM: u64 = 1 << 20;
const TO: u64 = 3 << 20;

/// A file system in the first part of a region.
fn small(block: u32) -> SimBackend {
    let sim = SimBackend::new(TO as usize).expect("a region");
    let options = FormatOptions {
        size: Some(FROM),
        ..repeatable(block)
    };
    format(&region_of(&sim), &options).expect("formatted");
    sim
}

/// Ranges of the new part: a sector of a page, and two pages.
fn bad() -> Vec<Range<u64>> {
    let page = |n: u64| FROM + n * PAGE as u64;
    [page(40) + 512..page(40) + 1024, page(70)..page(72)].to_vec()
}

/// Fills the file system with one file, and reads it back. Returns how many bytes it took.
fn fill(fs: &Fs) -> u64 {
    let file = fs.create(&ROOT, Ino::ROOT, b"fill", 0o600).expect("made");
    let mut at = 0;
    for piece in [64 << 10, 4096, 512] {
        while let Ok(n @ 1..) = fs.write(&ROOT, file.ino, at, &vec![1; piece]) {
            at += n as u64;
        }
    }
    let mut bytes = vec![0; at as usize];
    let read = fs.read(file.ino, 0, &mut bytes).expect("read");
    assert!(read as u64 == at && bytes.iter().all(|byte| *byte == 1));
    fs.unlink(Ino::ROOT, b"fill").expect("removed");
    at
}

fn assert_clean(sim: &SimBackend, what: &str) {
    let report = check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{what}: {report}");
}

#[test]
fn bad_blocks_of_new_part_are_listed_before_they_are_allocated() {
    for (block, blocks) in [(4096, 3), (512, 17)] {
        let sound = {
            let fs = mount(&small(block), quiet()).expect("mounted");
            fs.grow(None).expect("grown");
            fs.statfs().expect("counted").free
        };
        let sim = small(block);
        let fs = mount(&sim, quiet()).expect("mounted");
        // The kernel has learned of them since the mount.
        sim.set_kernel_bad(bad());
        let grown = fs.grow(None).expect("grown");
        assert_eq!((grown.from, grown.to), (FROM, TO));
        // The list has a block, too.
        let free = fs.statfs().expect("counted").free;
        assert_eq!(free, sound - blocks - 1, "blocks of {block}");
        if block == 512 {
            assert!(fill(&fs) > TO / 2);
        }
        fs.close().expect("unmounted");
        assert_clean(&sim, "after the grow");
        // The kernel forgets them, the list does not.
        sim.set_kernel_bad(Vec::new());
        let fs = mount(&sim, quiet()).expect("mounted");
        if block == 4096 {
            assert_eq!(fs.statfs().expect("counted").free, free);
        }
        assert!(fill(&fs) > TO / 2);
        fs.close().expect("unmounted");
    }
}

#[test]
fn bad_blocks_that_mount_has_met_past_its_end_are_listed_by_grow() {
    let sim = small(4096);
    sim.set_kernel_bad(bad());
    let fs = mount(&sim, quiet()).expect("mounted");
    let before = fs.statfs().expect("counted").free;
    fs.grow(Some(FROM + (1 << 18))).expect("grown");
    fs.grow(None).expect("grown");
    let after = fs.statfs().expect("counted").free;
    assert!(after > before);
    fs.close().expect("unmounted");
    let fs = mount(&sim, quiet()).expect("mounted");
    assert_eq!(fs.statfs().expect("counted").free, after, "listed already");
    assert!(fill(&fs) > TO / 2);
    fs.close().expect("unmounted");
    assert_clean(&sim, "after the grow");
}

#[test]
fn crash_in_grow_past_bad_blocks_leaves_them_to_next_mount() {
    let sim = small(4096);
    let fs = mount(&sim, quiet()).expect("mounted");
    sim.set_kernel_bad(bad());
    let base = sim.image();
    sim.recording(true);
    fs.grow(None).expect("grown");
    sim.recording(false);
    let free = fs.statfs().expect("counted").free;
    drop(fs);
    let cuts = cuts(&base, &sim);
    assert!(cuts.len() > 15, "{}", cuts.len());
    for (n, cut) in cuts.iter().enumerate() {
        let sim = SimBackend::from_image(cut).expect("a region");
        sim.set_kernel_bad(bad());
        let fs = mount(&sim, quiet()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
        fs.grow(None).unwrap_or_else(|e| panic!("cut {n}: {e}"));
        assert_eq!(fs.statfs().expect("counted").free, free, "cut {n}");
        fs.close().expect("unmounted");
        assert_clean(&sim, &format!("cut {n}"));
    }
}
