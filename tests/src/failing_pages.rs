//! Images with a failed page: each page in turn. What is not on the page stays readable or is an
//! error by name, and a repair brings back everything of which a copy exists.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::inode::{Fs, Ino};
use pramfs::{FileType, MountOptions};
use pramfs_fsck::{CheckOptions, Finding, Issue, Outcome, Policy, RepairOptions, check, repair};
use pramfs_medium::media::{Geometry, probe_superblock};
use pramfs_medium::pmem::{EventKind, SimBackend};

use crate::readable::{Tree, tree, tree_of, worse};
use crate::region::{lost, mount, quiet, region_of};

/// Bytes of a page that fails.
pub const PAGE: usize = 4096;

/// Pages in use, and some that are not.
pub fn pages(image: &[u8]) -> Vec<usize> {
    let used = |page: &usize| image[page * PAGE..][..PAGE].iter().any(|b| *b != 0);
    (0..image.len() / PAGE)
        .filter(|page| used(page) || page % 32 == 0)
        .collect()
}

/// Whether a page holds data of a file, which a check does not read.
fn is_data(image: &[u8], page: usize) -> bool {
    let bytes = &image[page * PAGE..][..PAGE];
    bytes.windows(8).any(|w| w == b"DATA of ") || bytes.iter().filter(|b| **b == 7).count() > 100
}

fn geometry(image: &[u8]) -> Geometry {
    let region = region_of(&SimBackend::from_image(image).expect("a region"));
    probe_superblock(&region).expect("a superblock").geometry()
}

/// Whether a page is a superblock page or of the journal.
fn is_fixed(image: &[u8], page: usize) -> bool {
    let geo = geometry(image);
    let block = (page * PAGE) as u64 / geo.block_size;
    geo.is_of_format(block, (PAGE as u64 / geo.block_size).max(1))
}

/// Mounts and reads everything; `None` if it cannot be mounted.
///
/// # Panics
/// If the error of the mount names neither a failure of the medium nor damage.
pub fn read_all(sim: &SimBackend, case: &str) -> Option<Tree> {
    let options = MountOptions {
        read_only: true,
        ..quiet()
    };
    match Fs::open(region_of(sim), options) {
        Err(e) => {
            let errno = e.errno();
            assert!([libc::EIO, libc::EUCLEAN].contains(&errno), "{case}: {e}");
            None
        }
        Ok(fs) => {
            drop(fs);
            tree_of(region_of(sim))
        }
    }
}

/// The files of pages that hold nothing but data, as a comparison names them.
fn owners(image: &[u8]) -> BTreeMap<usize, BTreeSet<String>> {
    let sim = SimBackend::from_image(image).expect("a region");
    let fs = mount(&sim, quiet()).expect("mounted");
    let mut owners: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let mut bytes: BTreeMap<usize, usize> = BTreeMap::new();
    for (path, file) in tree(image).expect("mounted") {
        if file.kind != FileType::Regular {
            continue;
        }
        let shown = path.escape_ascii().to_string();
        for extent in fs
            .file_extents(Ino(file.ino), 0, u64::MAX)
            .expect("extents")
        {
            let Some(at) = extent.region_offset else {
                continue;
            };
            let end = (at + extent.len) as usize;
            for page in at as usize / PAGE..end.div_ceil(PAGE) {
                let (from, to) = (page * PAGE, (page + 1) * PAGE);
                *bytes.entry(page).or_default() += to.min(end) - from.max(at as usize);
                owners.entry(page).or_default().insert(shown.clone());
            }
        }
    }
    owners.retain(|page, _| bytes[page] == PAGE);
    owners
}

/// What became of an image whose pages failed one after the other.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Pages without which it cannot be mounted before a repair.
    pub unmountable: BTreeSet<usize>,
    /// Repairs after which all was there.
    pub whole: usize,
    /// Repairs that told of losses.
    pub worse_off: usize,
}

/// Lets each page of a list fail in an image, and asserts that a mount and a repair lose no more
/// than was on it. A crash has left the image unless it `is_clean`: then a page of the journal may
/// hold what is nowhere else.
///
/// # Panics
/// If they lose more, or do not say what.
pub fn each_page(name: &str, image: &[u8], list: &[usize], is_clean: bool) -> Outcomes {
    let intact = tree(image).expect("mounted");
    let owners = owners(image);
    let image_has_sums = geometry(image).data_sums;
    assert!(owners.len() > 5, "{owners:?}");
    let mut out = Outcomes::default();
    for &page in list {
        for kernel_knows in [false, true] {
            let case = format!("{name}, page {page}, known {kernel_knows}");
            let sim = lost(image, page, kernel_knows);
            match read_all(&sim, &case) {
                None => {
                    assert!(
                        !owners.contains_key(&page),
                        "{case}: data keeps from mounting"
                    );
                    out.unmountable.insert(page);
                }
                Some(now) => {
                    // No wrong byte, and no other page's bytes missing: what differs is lost.
                    let bad = worse(&intact, &now);
                    assert!(!is_fixed(image, page) || bad.is_empty(), "{case}: {bad:?}");
                    if let Some(files) = owners.get(&page) {
                        let is_theirs = |what: &String| {
                            let file = what.strip_suffix(" has other bytes");
                            file.is_some_and(|file| files.contains(file))
                        };
                        assert!(bad.iter().all(is_theirs), "{case}: {files:?}, and {bad:?}");
                    }
                }
            }
            let sim = lost(image, page, kernel_knows);
            let region = region_of(&sim);
            let report = repair(&region, &RepairOptions::new(Policy::Yes))
                .unwrap_or_else(|e| panic!("{case}: {e}"));
            // Nothing else tells what a page of sums has told, and no repair makes sums up. While
            // any is wrong, a crash stays noted.
            let is_sum = |issue: &Issue| matches!(issue, Issue::DataSum { .. });
            let may_stay = |issue: &Issue| is_sum(issue) || matches!(issue, Issue::NotUnmounted);
            let left = |f: &Finding| f.outcome != Outcome::Fixed && !may_stay(&f.issue);
            assert!(
                report.is_sound() || image_has_sums && !report.findings.iter().any(left),
                "{case}: {report}"
            );
            let again = check(&region, &CheckOptions::default());
            let known = again.complete && again.issues().all(may_stay);
            assert!(
                again.is_clean() || known && image_has_sums,
                "{case}: {report}\nagain: {again}"
            );
            drop(region);
            let now = tree_of(region_of(&sim)).unwrap_or_else(|| panic!("{case}: not mounted"));
            let bad = worse(&intact, &now);
            match bad.is_empty() {
                true => out.whole += 1,
                false => {
                    out.worse_off += 1;
                    let may_lose = !is_fixed(image, page) || !is_clean;
                    assert!(may_lose, "{case}: {bad:?}\n{report}");
                    let tells = !report.lost.is_empty()
                        || !report.marked.is_empty()
                        || is_fixed(image, page) && !report.findings.is_empty()
                        || again.issues().any(is_sum);
                    assert!(
                        tells || is_data(image, page) && !kernel_knows,
                        "{case}: {bad:?}, and nothing says so: {report}"
                    );
                }
            }
        }
    }
    println!(
        "{name}: {} pages: {} whole, {} with losses, unmountable {:?}",
        list.len(),
        out.whole,
        out.worse_off,
        out.unmountable
    );
    out
}

/// Images that a kill between any two recorded steps of the medium leaves.
pub fn cuts(base: &[u8], sim: &SimBackend) -> Vec<Vec<u8>> {
    let mut image = base.to_vec();
    let mut out = vec![image.clone()];
    for event in sim.take_record() {
        if matches!(
            event.kind,
            EventKind::Store | EventKind::NtStore | EventKind::Discard
        ) {
            image[event.offset as usize..][..event.bytes.len()].copy_from_slice(&event.bytes);
            out.push(image.clone());
        }
    }
    out
}
