//! Failed pages of a file system that a crash has left: under the places of live records, under
//! what they copy, and under everything else.

use std::time::Duration;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::{DataMode, Error, MountOptions, RenameFlags, XattrMode};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::failing_pages::{PAGE, cuts, each_page, pages};
use pramfs_tests::region::{formatted, inode_home, lost, mount, quiet, region_of, repeatable};
use pramfs_tests::watchdog::Watchdog;

const ROOT: Credentials<'static> = Credentials::ROOT;
/// Blocks of the file, and those that the record overwrites.
const BLOCKS: usize = 40;
const CHANGED: std::ops::Range<usize> = 10..15;

fn block(what: &str, n: usize) -> Vec<u8> {
    let line = format!("{what} DATA of block {n}; ");
    line.bytes().cycle().take(PAGE).collect()
}

fn atomic() -> MountOptions {
    MountOptions {
        data: DataMode::Atomic,
        ..quiet()
    }
}

/// What a crash leaves after the record of an atomic overwrite is durable, and before its bytes
/// are copied to their places.
struct Crashed {
    image: Vec<u8>,
    file: Ino,
    /// The page of each block of the file.
    places: Vec<usize>,
    /// The page of the bytes that the record copies to each block of [`CHANGED`].
    sources: Vec<usize>,
}

fn crashed(features: &[&str]) -> Crashed {
    let mut options = repeatable(4096);
    options.features = features.iter().map(|f| ((*f).to_owned(), true)).collect();
    let sim = formatted(4 << 20, &options).expect("formatted");
    let fs = mount(&sim, atomic()).expect("mounted");
    let file = fs
        .create(&ROOT, Ino::ROOT, b"file", 0o644)
        .expect("made")
        .ino;
    let other = fs
        .create(&ROOT, Ino::ROOT, b"other", 0o644)
        .expect("made")
        .ino;
    for n in 0..BLOCKS {
        let at = (n * PAGE) as u64;
        fs.write(&ROOT, file, at, &block("OLD", n))
            .expect("written");
    }
    fs.write(&ROOT, other, 0, &block("OTHER", 0))
        .expect("written");
    let places: Vec<usize> = (0..BLOCKS)
        .map(|n| {
            let found = fs.file_extents(file, (n * PAGE) as u64, 1).expect("there");
            found[0].region_offset.expect("mapped") as usize / PAGE
        })
        .collect();
    fs.close().expect("unmounted");
    let before = sim.image();
    let fs = mount(&sim, atomic()).expect("mounted");
    let new: Vec<u8> = CHANGED.flat_map(|n| block("NEW", n)).collect();
    let at = (CHANGED.start * PAGE) as u64;
    assert_eq!(fs.write(&ROOT, file, at, &new).expect("written"), new.len());
    let mut image = sim.image();
    drop(fs);
    for n in CHANGED {
        let home = places[n] * PAGE..(places[n] + 1) * PAGE;
        image[home.clone()].copy_from_slice(&before[home]);
    }
    let source = |n| {
        let bytes = block("NEW", n);
        (0..image.len() / PAGE).find(|page| image[page * PAGE..][..PAGE] == bytes)
    };
    let sources = CHANGED
        .map(|n| source(n).expect("its bytes wait"))
        .collect();
    Crashed {
        image,
        file,
        places,
        sources,
    }
}

fn read(fs: &Fs, ino: Ino, n: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; PAGE];
    fs.read(ino, (n * PAGE) as u64, &mut bytes)?;
    Ok(bytes)
}

/// Asserts that the write is there, but one block, which is EIO.
fn assert_all_but(fs: &Fs, file: Ino, lost: Option<usize>, case: &str) {
    for n in 0..BLOCKS {
        let want = block(if CHANGED.contains(&n) { "NEW" } else { "OLD" }, n);
        match read(fs, file, n) {
            Ok(bytes) => assert!(
                bytes == want && lost != Some(n),
                "{case}: block {n}: {:?}",
                String::from_utf8_lossy(&bytes[..20])
            ),
            Err(e) => assert!(
                e.errno() == libc::EIO && lost == Some(n),
                "{case}: block {n}: {e}"
            ),
        }
    }
    let other = fs.lookup(Ino::ROOT, b"other").expect("there").ino;
    assert_eq!(
        read(fs, other, 0).expect("read"),
        block("OTHER", 0),
        "{case}"
    );
}

#[test]
fn live_copy_to_failed_page_costs_the_bytes_on_it_alone() {
    let Crashed {
        image,
        file,
        places,
        ..
    } = crashed(&[]);
    for kernel_knows in [false, true] {
        for read_only in [false, true] {
            let case = format!("known {kernel_knows}, read-only {read_only}");
            let bad = CHANGED.start + 2;
            let sim = lost(&image, places[bad], kernel_knows);
            let options = MountOptions {
                read_only,
                ..atomic()
            };
            let fs = mount(&sim, options).unwrap_or_else(|e| panic!("{case}: {e}"));
            assert!(fs.recovery().records > 0 && fs.recovery().damage.is_empty());
            assert_eq!(fs.is_read_only(), read_only, "{case}");
            assert_all_but(&fs, file, Some(bad), &case);
            if read_only {
                fs.make_writable().expect("writable");
            }
            drop(fs);
            // The records are dead now.
            let fs = mount(&lost(&sim.image(), places[bad], kernel_knows), atomic());
            let fs = fs.expect("mounted again");
            assert_eq!(fs.recovery().records, 0, "{case}");
            assert_all_but(&fs, file, Some(bad), &case);
            drop(fs);
            // It is taken out of use, so that nobody believes it even if it comes back.
            let region = region_of(&SimBackend::from_image(&sim.image()).expect("a region"));
            let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
            assert!(
                report.is_sound() && report.lost.len() == 1,
                "{case}: {report}"
            );
            assert!(
                check(&region, &CheckOptions::default()).is_clean(),
                "{case}"
            );
            let fs = Fs::open(region, atomic()).expect("mounted");
            assert_all_but(&fs, file, Some(bad), &case);
            let at = (bad * PAGE) as u64;
            fs.write(&ROOT, file, at, &block("NEW", bad))
                .expect("written");
            assert_all_but(&fs, file, None, &case);
            fs.close().expect("unmounted");
        }
    }
}

#[test]
fn repair_of_live_copy_to_failed_page_loses_the_bytes_on_it_alone() {
    let Crashed {
        image,
        file,
        places,
        ..
    } = crashed(&[]);
    for kernel_knows in [false, true] {
        let case = format!("known {kernel_knows}");
        let bad = CHANGED.start + 2;
        let sim = lost(&image, places[bad], kernel_knows);
        let region = region_of(&sim);
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
        assert!(
            report.is_sound() && report.lost.len() == 1,
            "{case}: {report}"
        );
        assert!(
            check(&region, &CheckOptions::default()).is_clean(),
            "{case}"
        );
        drop(region);
        let fs = mount(&sim, atomic()).expect("mounted");
        assert_all_but(&fs, file, Some(bad), &case);
        fs.close().expect("unmounted");
    }
}

#[test]
fn crash_in_replay_past_failed_page_replays_the_same_again() {
    let _dog = Watchdog::new(
        "cuts of a replay past a failed page",
        Duration::from_secs(500),
    );
    let Crashed {
        image,
        file,
        places,
        ..
    } = crashed(&[]);
    let bad = CHANGED.start + 1;
    let sim = lost(&image, places[bad], false);
    let base = sim.image();
    sim.recording(true);
    let fs = mount(&sim, atomic()).expect("mounted");
    sim.recording(false);
    drop(fs);
    let cuts = cuts(&base, &sim);
    assert!(cuts.len() > 20, "{}", cuts.len());
    for (n, cut) in cuts.iter().enumerate() {
        let sim = lost(cut, places[bad], false);
        let fs = mount(&sim, atomic()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
        assert_all_but(&fs, file, Some(bad), &format!("cut {n}"));
        fs.close().expect("unmounted");
    }
}

#[test]
fn live_copy_from_failed_page_refuses_mount_until_repair_tells_the_loss() {
    let Crashed {
        image,
        file,
        sources,
        ..
    } = crashed(&[]);
    for kernel_knows in [false, true] {
        let case = format!("known {kernel_knows}");
        let sim = lost(&image, sources[2], kernel_knows);
        let e = mount(&sim, atomic()).expect_err("the bytes exist nowhere else");
        assert_eq!(e.errno(), libc::EIO);
        assert!(e.to_string().contains("run `fsck.pramfs`"), "{case}: {e}");
        let region = region_of(&sim);
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).expect("repaired");
        assert!(
            report.is_sound() && report.lost.len() == 1,
            "{case}: {report}"
        );
        let again = check(&region, &CheckOptions::default());
        assert!(again.is_clean(), "{case}: {again}");
        drop(region);
        let fs = mount(&sim, atomic()).expect("mounted");
        assert_all_but(&fs, file, Some(CHANGED.start + 2), &case);
        fs.close().expect("unmounted");
    }
}

#[test]
fn live_record_of_metadata_on_failed_page_refuses_mount_and_names_fsck() {
    let sim = SimBackend::from_image(&crashed(&[]).image).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    let file = fs.lookup(Ino::ROOT, b"file").expect("there").ino;
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, file, &set).expect("changed");
    let image = sim.image();
    drop(fs);
    let page = inode_home(&image, file) / PAGE;
    for kernel_knows in [false, true] {
        let e = mount(&lost(&image, page, kernel_knows), quiet()).expect_err("refused");
        assert_eq!(e.errno(), libc::EIO);
        assert!(e.to_string().contains("run `fsck.pramfs`"), "{e}");
    }
}

#[test]
fn live_sum_on_failed_page_costs_the_blocks_that_it_sums() {
    let Crashed {
        image,
        file,
        places,
        ..
    } = crashed(&["data_checksums"]);
    let sim = SimBackend::from_image(&image).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    assert_all_but(&fs, file, None, "no failure");
    drop(fs);
    // The place of a block, which has its sum.
    let bad = CHANGED.start;
    let fs = mount(&lost(&image, places[bad], false), quiet()).expect("mounted");
    assert_all_but(&fs, file, Some(bad), "its place");
    drop(fs);
    // Whichever page of sums fails, the mount succeeds, and no byte is wrong.
    let (mut refused, mut costs) = (0, 0);
    for page in 17..image.len() / PAGE {
        let Ok(fs) = mount(&lost(&image, page, false), quiet()) else {
            refused += 1;
            continue;
        };
        let Ok(file) = fs.lookup(Ino::ROOT, b"file") else {
            continue;
        };
        let mut unreadable = 0;
        for n in 0..BLOCKS {
            match read(&fs, file.ino, n) {
                Ok(bytes) => {
                    let want = block(if CHANGED.contains(&n) { "NEW" } else { "OLD" }, n);
                    assert!(bytes == want, "page {page}, block {n}");
                }
                Err(e) => {
                    assert_eq!(e.errno(), libc::EIO, "page {page}, block {n}: {e}");
                    unreadable += 1;
                }
            }
        }
        costs += usize::from(unreadable > 1);
    }
    println!("{refused} pages keep from mounting, {costs} cost more than a block");
    assert!(costs > 0, "a page of sums, or of pointers");
}

/// Images that a crash in or after some operations leaves, with live records in several lanes.
fn worked(block: u32, features: &[&str], options: &MountOptions) -> Vec<Vec<u8>> {
    let mut format = repeatable(block);
    format.features = features.iter().map(|f| ((*f).to_owned(), true)).collect();
    format.lanes = Some(4);
    set_thread_lane(0);
    let sim = formatted(2 << 20, &format).expect("formatted");
    let fs = mount(&sim, options.clone()).expect("mounted");
    let make = |dir, name: &str| {
        let made = fs.create(&ROOT, dir, name.as_bytes(), 0o644);
        made.expect("made").ino
    };
    let data = |name: &str, len: usize| -> Vec<u8> {
        let line = format!("DATA of {name}; ");
        line.bytes().cycle().take(len).collect()
    };
    let write = |ino, at, bytes: &[u8]| {
        fs.write(&ROOT, ino, at, bytes).expect("written");
    };
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).expect("made").ino;
    let large = make(Ino::ROOT, "large");
    write(large, 0, &data("large", 20 * PAGE));
    for i in 0..40 {
        let name = format!("a file with a name {i}");
        let ino = make(dir, &name);
        if i % 8 == 0 {
            write(ino, 0, &data(&name, 5000));
        }
    }
    let base = sim.image();
    sim.recording(true);
    set_thread_lane(1);
    write(
        large,
        7 * PAGE as u64 + 100,
        &data("large, later", 3 * PAGE),
    );
    set_thread_lane(2);
    fs.unlink(dir, b"a file with a name 16").expect("removed");
    fs.rename(
        &ROOT,
        dir,
        b"a file with a name 8",
        Ino::ROOT,
        b"moved",
        RenameFlags::default(),
    )
    .expect("renamed");
    set_thread_lane(3);
    let new = make(dir, "new");
    write(new, 0, &data("new", 2 * PAGE));
    fs.setxattr(&ROOT, new, b"user.large", &[7; 3000], XattrMode::Set)
        .expect("set");
    set_thread_lane(0);
    write(large, 100, &data("large, again", PAGE + 5));
    sim.recording(false);
    let cuts = cuts(&base, &sim);
    drop(fs);
    // The last of them has everything; the others lack some homes, or have a torn record.
    let n = cuts.len();
    [n / 3, 2 * n / 3, n - 1].map(|n| cuts[n].clone()).to_vec()
}

fn each_page_of_crash(what: &str, block: u32, features: &[&str], options: &MountOptions) {
    let _dog = Watchdog::new("a failed page after a crash", Duration::from_secs(500));
    for (cut, image) in worked(block, features, options).iter().enumerate() {
        // Another sample of each.
        let all = pages(image);
        let sample: Vec<usize> = all.iter().copied().skip(cut).step_by(3).collect();
        let found = each_page(&format!("{what}, cut {cut}"), image, &sample, false);
        assert!(found.whole > 5 && found.worse_off > 5);
    }
}

#[test]
fn failed_page_after_crash_costs_only_what_is_on_it() {
    each_page_of_crash("in place", 4096, &[], &quiet());
}

#[test]
fn failed_page_after_crash_of_small_blocks_costs_only_what_is_on_it() {
    each_page_of_crash("blocks of 512", 512, &[], &quiet());
}

#[test]
fn failed_page_after_crash_of_atomic_writes_costs_only_what_is_on_it() {
    each_page_of_crash("atomic", 4096, &[], &atomic());
}

#[test]
fn failed_page_after_crash_with_checksums_costs_only_what_is_on_it() {
    each_page_of_crash("checksums", 4096, &["data_checksums"], &quiet());
}
