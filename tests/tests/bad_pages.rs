//! Failed pages of the medium, as the kernel's list names them or as a read meets them: each
//! page of an image in turn. What is not on the page stays readable or is an error by name, and
//! a repair brings back everything of which a copy exists.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one range")]

use std::collections::BTreeMap;
use std::time::Duration;

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode};
use pramfs::{Access, Error, FileSystem, OpenOptions, XattrMode};
use pramfs_fsck::{CheckOptions, Issue, Policy, RepairOptions, check, repair};
use pramfs_medium::media::{Ptr, probe_superblock};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::failing_pages::{PAGE, cuts, each_page, pages, read_all};
use pramfs_tests::readable::{tree, tree_of, worse};
use pramfs_tests::region::{formatted, inode_home, lost, mount, quiet, region_of, repeatable};
use pramfs_tests::watchdog::Watchdog;

const ROOT: Credentials<'static> = Credentials::ROOT;

fn named(name: &str, len: usize) -> Vec<u8> {
    let line = format!("DATA of {name}; ");
    line.bytes().cycle().take(len).collect()
}

/// Files of one, several and many blocks, directories with an index block, attributes in line and in blocks, links.
fn image(block: u32, len: usize) -> Vec<u8> {
    let sim = formatted(len, &repeatable(block)).expect("formatted");
    let fs = mount(&sim, quiet()).expect("mounted");
    let step = block as usize;
    for (name, blocks) in [("one", 1), ("few", 9), ("many", 90)] {
        let ino = fs
            .create(&ROOT, Ino::ROOT, name.as_bytes(), 0o644)
            .expect("made")
            .ino;
        fs.write(&ROOT, ino, 0, &named(name, blocks * step))
            .expect("written");
    }
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).expect("made").ino;
    for i in 0..150 {
        let name = format!("a file with a name {i}");
        let ino = fs
            .create(&ROOT, dir, name.as_bytes(), 0o644)
            .expect("made")
            .ino;
        if i % 10 == 0 {
            fs.write(&ROOT, ino, 0, &named(&name, 700))
                .expect("written");
        }
    }
    let few = fs.lookup(Ino::ROOT, b"few").expect("there").ino;
    fs.setxattr(&ROOT, few, b"user.large", &[7; 5000], XattrMode::Set)
        .expect("set");
    fs.setxattr(&ROOT, few, b"user.small", b"value", XattrMode::Set)
        .expect("set");
    fs.symlink(&ROOT, dir, b"link", b"one").expect("made");
    fs.close().expect("unmounted");
    sim.image()
}

fn each_page_of(block: u32, len: usize) {
    let _dog = Watchdog::new("a failed page", Duration::from_secs(500));
    let image = image(block, len);
    let found = each_page(&format!("blocks of {block}"), &image, &pages(&image), true);
    assert!(found.whole > 20 && found.worse_off > 20);
    // What a mount needs and has no copy of: one that is read-only repairs nothing.
    assert!(found.unmountable.len() <= 3, "{:?}", found.unmountable);
}

#[test]
fn failed_page_costs_only_what_is_on_it() {
    each_page_of(4096, 4 << 20);
}

#[test]
fn failed_page_of_small_blocks_costs_only_what_is_on_it() {
    each_page_of(512, 1 << 20);
}

fn page_of(image: &[u8], text: &str) -> usize {
    let at = |page: &usize| image[page * PAGE..][..text.len()] == *text.as_bytes();
    (0..image.len() / PAGE).find(at).expect("its data")
}

fn read(fs: &Fs, ino: Ino, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    let n = fs.read(ino, at, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

fn is_eio<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    result.is_err_and(|e| e.errno() == libc::EIO)
}

fn check_sim(sim: &SimBackend) -> pramfs_fsck::Report {
    check(&region_of(sim), &CheckOptions::default())
}

fn assert_only_errors_recorded(sim: &SimBackend) {
    let report = check_sim(sim);
    let told = |f: &pramfs_fsck::Finding| f.issue.to_string().contains("recorded");
    assert!(
        report.complete && report.findings.iter().all(told),
        "{report}"
    );
}

#[test]
fn write_over_failed_block_gets_another_block_and_keeps_the_rest() {
    let image = image(4096, 4 << 20);
    let sim = SimBackend::from_image(&image).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    let many = fs.lookup(Ino::ROOT, b"many").expect("there").ino;
    let place = fs
        .file_extents(many, 5 * PAGE as u64, PAGE as u64)
        .expect("there");
    let page = place.first().and_then(|e| e.region_offset).expect("mapped") as usize / PAGE;
    fs.close().expect("unmounted");
    for kernel_knows in [false, true] {
        let sim = lost(&sim.image(), page, kernel_knows);
        let fs = mount(&sim, quiet()).expect("mounted");
        let at = 5 * PAGE as u64;
        let want = named("many", 90 * PAGE);
        assert!(is_eio(read(&fs, many, at, 10)));
        assert!(
            is_eio(fs.write(&ROOT, many, at + 5, b"part")),
            "a part is not enough"
        );
        assert_eq!(
            read(&fs, many, 0, 5 * PAGE + 100).expect("up to it"),
            want[..5 * PAGE]
        );
        let lost = fs.lost_ranges(many).expect("listed");
        assert!(lost.is_empty(), "the rest may be readable: {lost:?}");
        let new = vec![9; PAGE];
        assert_eq!(fs.write(&ROOT, many, at, &new).expect("written"), PAGE);
        assert_eq!(read(&fs, many, at, PAGE).expect("there"), new);
        assert!(fs.lost_ranges(many).expect("listed").is_empty());
        assert_eq!(
            read(&fs, many, 6 * PAGE as u64, 84 * PAGE).expect("there"),
            want[6 * PAGE..]
        );
        // It is never allocated again.
        fs.unlink(Ino::ROOT, b"many").expect("removed");
        let fill = fs
            .create(&ROOT, Ino::ROOT, b"fill", 0o600)
            .expect("made")
            .ino;
        let mut at = 0;
        while let Ok(n) = fs.write(&ROOT, fill, at, &[1; 64 << 10])
            && n > 0
        {
            at += n as u64;
        }
        assert!(at > 2 << 20);
        assert_eq!(
            read(&fs, fill, 0, at as usize).expect("readable").len() as u64,
            at
        );
        fs.unlink(Ino::ROOT, b"fill").expect("removed");
        fs.close().expect("unmounted");
        assert_only_errors_recorded(&sim);
    }
}

#[test]
fn free_block_named_by_kernel_is_listed_once_and_never_allocated() {
    let image = image(4096, 4 << 20);
    let free = image.len() / PAGE - 40;
    let range = (free * PAGE + 512) as u64..((free + 3) * PAGE) as u64;
    let sim = SimBackend::from_image(&image).expect("a region");
    sim.set_kernel_bad(vec![range]);
    let blocks_free = |fs: &Fs| fs.statfs().expect("counted").free;
    let mut before = None;
    for _ in 0..3 {
        let fs = mount(&sim, quiet()).expect("mounted");
        let now = blocks_free(&fs);
        assert_eq!(*before.get_or_insert(now), now, "listed again");
        fs.close().expect("unmounted");
        assert!(check_sim(&sim).is_clean(), "{}", check_sim(&sim));
    }
    // The kernel forgets, the list does not.
    sim.set_kernel_bad(Vec::new());
    let fs = mount(&sim, quiet()).expect("mounted");
    assert_eq!(before, Some(blocks_free(&fs)));
    fs.close().expect("unmounted");
    let plain =
        mount(&SimBackend::from_image(&image).expect("a region"), quiet()).expect("mounted");
    // Three blocks, and the block of the list.
    assert_eq!(Some(blocks_free(&plain) - 4), before);
}

#[test]
fn damaged_list_of_bad_blocks_is_made_anew_by_repair() {
    let image = image(4096, 4 << 20);
    let free = image.len() / PAGE - 40;
    let range = (free * PAGE) as u64..((free + 3) * PAGE) as u64;
    let sim = SimBackend::from_image(&image).expect("a region");
    sim.set_kernel_bad(vec![range.clone()]);
    let fs = mount(&sim, quiet()).expect("mounted");
    let before = fs.statfs().expect("counted").free;
    fs.close().expect("unmounted");
    let mut image = sim.image();
    let fixed = probe_superblock(&region_of(&sim))
        .expect("a superblock")
        .fixed;
    let list = Ptr(fixed.badblock_root).block().0 as usize * PAGE;
    // Its magic, its sum, the number of extents, the pointer to the next, an extent.
    for at in [0, 4, 8, 16, 32] {
        image[list + at] ^= 4;
        let sim = SimBackend::from_image(&image).expect("a region");
        sim.set_kernel_bad(vec![range.clone()]);
        let region = region_of(&sim);
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
        let is_list = |issue: &Issue| matches!(issue, Issue::BadBlockListDamaged { .. });
        assert!(report.issues().any(is_list), "byte {at}: {report}");
        assert!(
            report.is_sound() && report.lost.is_empty(),
            "byte {at}: {report}"
        );
        assert!(check(&region, &CheckOptions::default()).is_clean());
        drop(region);
        let fs = mount(&sim, quiet()).expect("mounted");
        assert_eq!(fs.statfs().expect("counted").free, before, "byte {at}");
        fs.close().expect("unmounted");
        image[list + at] ^= 4;
    }
}

#[test]
fn failed_superblock_page_is_read_from_its_copy_and_written_anew() {
    let image = image(4096, 4 << 20);
    let intact = tree(&image).expect("mounted");
    for page in [0, 16] {
        let sim = lost(&image, page, true);
        let now = read_all(&sim, "superblock").expect("the other page serves");
        assert!(worse(&intact, &now).is_empty());
        let region = region_of(&sim);
        let report = repair(&region, &RepairOptions::new(Policy::Preen)).expect("repaired");
        assert!(report.is_sound() && report.lost.is_empty(), "{report}");
        assert!(check(&region, &CheckOptions::default()).is_clean());
    }
}

#[test]
fn lost_bytes_are_exactly_those_of_the_failed_pages() {
    let image = image(4096, 4 << 20);
    let page = page_of(&image, "DATA of one");
    let sim = lost(&image, page, true);
    let intact = tree(&image).expect("mounted");
    let now = read_all(&sim, "data").expect("mounted");
    let changed: BTreeMap<_, _> = intact
        .iter()
        .filter(|(path, old)| now.get(*path) != Some(old))
        .collect();
    assert_eq!(
        changed.keys().map(|path| &path[..]).collect::<Vec<_>>(),
        [b"/one"]
    );
}

/// The pages of a file at an offset.
fn page_at(fs: &Fs, ino: Ino, offset: u64) -> usize {
    let found = fs.file_extents(ino, offset, 1).expect("there");
    found.first().and_then(|e| e.region_offset).expect("mapped") as usize / PAGE
}

#[test]
fn crash_while_blocks_are_taken_out_of_use_leaves_both_or_neither() {
    let _dog = Watchdog::new(
        "cuts while blocks are taken out of use",
        Duration::from_secs(500),
    );
    let image = image(4096, 1 << 20);
    let free = image.len() / PAGE - 20;
    let bad = vec![(free * PAGE) as u64..((free + 2) * PAGE) as u64];
    let sim = SimBackend::from_image(&image).expect("a region");
    sim.set_kernel_bad(bad.clone());
    sim.recording(true);
    let fs = mount(&sim, quiet()).expect("mounted");
    sim.recording(false);
    let free_blocks = fs.statfs().expect("counted").free;
    drop(fs);
    let cuts_of_mount = cuts(&image, &sim);
    assert!(cuts_of_mount.len() > 20);
    for (n, cut) in cuts_of_mount.iter().enumerate() {
        let sim = SimBackend::from_image(cut).expect("a region");
        sim.set_kernel_bad(bad.clone());
        let fs = mount(&sim, quiet()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
        assert_eq!(fs.statfs().expect("counted").free, free_blocks, "cut {n}");
        fs.close().expect("unmounted");
        let report = check_sim(&sim);
        assert!(report.is_clean(), "cut {n}: {report}");
    }
    // A block of a file, met by a write.
    let sim = SimBackend::from_image(&image).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    let many = fs.lookup(Ino::ROOT, b"many").expect("there").ino;
    let at = 7 * PAGE as u64;
    let page = page_at(&fs, many, at);
    sim.lose_page(page);
    let base = sim.image();
    sim.recording(true);
    assert_eq!(
        fs.write(&ROOT, many, at, &[3; PAGE]).expect("written"),
        PAGE
    );
    sim.recording(false);
    drop(fs);
    let (mut before, mut after) = (0, 0);
    let want = named("many", 90 * PAGE);
    for (n, cut) in cuts(&base, &sim).iter().enumerate() {
        let sim = lost(cut, page, false);
        let fs = mount(&sim, quiet()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
        match read(&fs, many, at, PAGE) {
            Ok(bytes) => {
                assert_eq!(bytes, [3; PAGE], "cut {n}");
                after += 1;
            }
            Err(e) => {
                assert_eq!(e.errno(), libc::EIO, "cut {n}");
                before += 1;
            }
        }
        assert_eq!(
            read(&fs, many, 0, 7 * PAGE).expect("there"),
            want[..7 * PAGE],
            "cut {n}"
        );
        drop(fs);
        assert_only_errors_recorded(&sim);
    }
    assert!(before > 3 && after > 0, "{before} before, {after} after");
}

#[test]
fn failed_page_under_leased_file_stays_in_it_until_lease_ends() {
    let sim = SimBackend::from_image(&image(4096, 4 << 20)).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    let many = fs.lookup(Ino::ROOT, b"many").expect("there").ino;
    let generation = fs.getattr(many).expect("there").generation;
    let grant = fs
        .grant_lease(many, generation, LeaseMode::Read, 1, 1)
        .expect("granted");
    fs.region_to_damage()
        .pretend_lease(grant.lease().slot, true);
    let at = 3 * PAGE as u64;
    let page = page_at(&fs, many, at);
    sim.lose_page(page);
    for _ in 0..2 {
        assert!(is_eio(read(&fs, many, at, 10)));
        assert!(is_eio(fs.write(&ROOT, many, at, &[5; PAGE])));
        assert_eq!(page_at(&fs, many, at), page, "its holder maps it");
    }
    assert_eq!(
        read(&fs, many, at + PAGE as u64, PAGE)
            .expect("there")
            .len(),
        PAGE
    );
    let slot = grant.lease().slot;
    drop(grant);
    fs.region_to_damage().pretend_lease(slot, false);
    fs.end_released_leases().expect("ended");
    assert_eq!(
        fs.write(&ROOT, many, at, &[5; PAGE]).expect("written"),
        PAGE
    );
    assert_ne!(page_at(&fs, many, at), page);
    assert_eq!(read(&fs, many, at, PAGE).expect("there"), [5; PAGE]);
    fs.close().expect("unmounted");
}

#[test]
fn failed_page_of_huge_leaf_costs_its_bytes_only() {
    let sim = formatted(16 << 20, &repeatable(4096)).expect("formatted");
    let fs = mount(&sim, quiet()).expect("mounted");
    let huge = fs
        .create(&ROOT, Ino::ROOT, b"huge", 0o644)
        .expect("made")
        .ino;
    let want = named("huge", 4 << 20);
    fs.write(&ROOT, huge, 0, &want).expect("written");
    let extents = fs.file_extents(huge, 0, 4 << 20).expect("there");
    let at = (2 << 20) + 9 * PAGE as u64;
    let page = page_at(&fs, huge, at);
    fs.close().expect("unmounted");
    let image = sim.image();
    let whole = |fs: &Fs, what: &[u8]| {
        let mut offset = 0;
        while offset < 4 << 20 {
            let bytes = read(fs, huge, offset, PAGE);
            match bytes {
                Err(e) => assert!(e.errno() == libc::EIO && offset == at, "at {offset}: {e}"),
                Ok(bytes) if offset == at => assert_eq!(bytes, what),
                Ok(bytes) => assert_eq!(bytes, want[offset as usize..][..PAGE], "at {offset}"),
            }
            offset += PAGE as u64;
        }
    };
    // By a write.
    let sim = lost(&image, page, true);
    let fs = mount(&sim, quiet()).expect("mounted");
    whole(&fs, &[]);
    fs.write(&ROOT, huge, at, &[8; PAGE]).expect("written");
    whole(&fs, &[8; PAGE]);
    fs.close().expect("unmounted");
    // By fsck.
    let sim = lost(&image, page, true);
    let region = region_of(&sim);
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
    assert!(
        report.is_sound() && report.lost.len() == 1,
        "{extents:?} {report}"
    );
    assert!(check(&region, &CheckOptions::default()).is_clean());
    drop(region);
    let fs = mount(&sim, quiet()).expect("mounted");
    whole(&fs, &[]);
    assert_eq!(
        fs.lost_ranges(huge).expect("listed"),
        [at..at + PAGE as u64]
    );
    fs.close().expect("unmounted");
}

#[test]
fn failed_page_of_lane_hides_no_record_after_unmount() {
    let image = image(4096, 4 << 20);
    let intact = tree(&image).expect("mounted");
    let region = region_of(&SimBackend::from_image(&image).expect("a region"));
    let geo = probe_superblock(&region).expect("a superblock").geometry();
    let lines = geo.retired_offset(0).0 as usize / PAGE;
    let slot = geo.slot_offset(1, 1).0 as usize / PAGE;
    for page in [lines, slot] {
        for kernel_knows in [false, true] {
            let sim = lost(&image, page, kernel_knows);
            let fs = mount(&sim, quiet()).expect("mounted");
            assert!(fs.is_read_only() && !fs.recovery().damage.is_empty());
            drop(fs);
            let now = read_all(&sim, "lane").expect("mounted again");
            assert!(worse(&intact, &now).is_empty());
            let region = region_of(&sim);
            let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
            assert!(report.is_sound() && report.lost.is_empty(), "{report}");
            assert!(check(&region, &CheckOptions::default()).is_clean());
            drop(region);
            let fs = mount(&sim, quiet()).expect("mounted");
            fs.create(&ROOT, Ino::ROOT, b"new", 0o600).expect("made");
            fs.close().expect("unmounted");
        }
    }
}

#[test]
fn failed_page_of_inode_table_costs_its_inodes_only() {
    let image = image(4096, 4 << 20);
    let fs = mount(&SimBackend::from_image(&image).expect("a region"), quiet()).expect("mounted");
    let one = fs.lookup(Ino::ROOT, b"one").expect("there").ino;
    drop(fs);
    let page = inode_home(&image, one) / PAGE;
    let sim = lost(&image, page, true);
    let fs = mount(&sim, quiet()).expect("mounted");
    assert!(is_eio(fs.getattr(one)));
    let intact = tree(&image).expect("mounted");
    let far = format!("/dir/a file with a name {}", 140);
    let now = tree_of(region_of(&lost(&image, page, true))).expect("mounted");
    // "dir" itself is on the page.
    assert!(!now.contains_key(far.as_bytes()));
    drop(fs);
    let region = region_of(&sim);
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
    assert!(report.is_sound() && !report.lost.is_empty(), "{report}");
    assert!(check(&region, &CheckOptions::default()).is_clean());
    drop(region);
    let after = tree_of(region_of(&sim)).expect("mounted");
    let old = &intact[far.as_bytes()];
    let found = after.values().any(|new| new == old);
    assert!(
        found,
        "its inode is on another page: {:?}",
        after
            .keys()
            .map(|k| k.escape_ascii().to_string())
            .collect::<Vec<_>>()
    );
}

#[test]
fn view_of_failed_block_keeps_it_while_file_gets_another() {
    let sim = SimBackend::from_image(&image(4096, 4 << 20)).expect("a region");
    let fs = FileSystem::from(mount(&sim, quiet()).expect("mounted"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/many")
        .expect("opened");
    let at = 4 * PAGE as u64;
    let view = file
        .map(at..at + PAGE as u64, Access::Read)
        .expect("mapped");
    let free = fs.statfs().expect("counted").free;
    let engine = mount(
        &SimBackend::from_image(&sim.image()).expect("a region"),
        quiet(),
    )
    .expect("mounted");
    let many = engine.lookup(Ino::ROOT, b"many").expect("there").ino;
    let page = page_at(&engine, many, at);
    drop(engine);
    sim.lose_page(page);
    let mut bytes = [0; 16];
    assert!(
        file.read_at(&mut bytes, at)
            .is_err_and(|e| e.errno() == libc::EIO)
    );
    assert_eq!(file.write_at(&[6; PAGE], at).expect("written"), PAGE);
    assert_eq!(file.read_at(&mut bytes, at).expect("there"), 16);
    assert_eq!(bytes, [6; 16]);
    drop(view);
    assert!(
        fs.statfs().expect("counted").free < free,
        "the failed block is not freed"
    );
    drop((file, fs));
    assert_only_errors_recorded(&sim);
}
