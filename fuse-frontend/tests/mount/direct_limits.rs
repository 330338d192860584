//! Direct access at its limits: files in many pieces, small blocks, huge pages, no address
//! space. Each works, or is a clear error, and the mount goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use pramfs_client::{Access, Error};
use pramfs_medium::format::FormatOptions;
use pramfs_tests::mounted::{self, Mounted, wait_until};
use pramfs_tests::skip::skipped;
use pramfs_tests::watchdog::Watchdog;
use tempfile::TempDir;

use crate::direct::{BLOCK, OPTIONS, assert_checked, contents, file, leases};
use crate::direct_client::start;
use crate::direct_write::opened;
use crate::{MIB, program};

/// Extents of the file in many pieces.
const EXTENTS: u64 = 10_000;

fn bytes_of(index: u64) -> [u8; 8] {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
}

/// Makes a file whose blocks all lie apart in the region.
fn scatter(mount: &Mounted, name: &str, blocks: u64) {
    let create = |name: &str| File::create(mount.at(name)).unwrap();
    let (file, other) = (create(name), create("other"));
    let mut block = vec![0; BLOCK];
    for index in 0..blocks {
        block[..8].copy_from_slice(&bytes_of(index));
        file.write_all_at(&block, index * BLOCK as u64).unwrap();
        other.write_all_at(&[1], index * BLOCK as u64).unwrap();
    }
}

/// A mount of a region that was formatted so.
fn formatted(test: &str, len: u64, options: &FormatOptions) -> Option<(Mounted, Watchdog)> {
    if !mounted::available(test) {
        return None;
    }
    let dog = Watchdog::new(test, Duration::from_secs(120));
    let mount = Mounted::formatted(program(), len, options);
    mount.mount(OPTIONS);
    Some((mount, dog))
}

#[track_caller]
fn assert_names_pages(error: &Error) {
    let said = error.to_string();
    assert!(said.contains("do not begin at pages of"), "{said}");
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{said}");
}

fn end(mount: &Mounted) {
    assert!(wait_until(|| leases(mount).is_empty()));
    mount.unmount();
    assert_checked(mount);
}

#[test]
fn file_of_ten_thousand_extents_is_read_stored_and_mapped() {
    let Some((mount, _dog)) = formatted("many extents", 160 * MIB, &FormatOptions::default())
    else {
        return;
    };
    let blocks = EXTENTS;
    scatter(&mount, "file", blocks);
    let direct = opened(&mount, "file");
    let view = direct.map(0..blocks * BLOCK as u64, Access::Write).unwrap();
    for index in (0..blocks).rev() {
        let at = index * BLOCK as u64;
        let mut word = [0; 8];
        direct.read_exact_at(&mut word, at).unwrap();
        assert_eq!(word, bytes_of(index), "block {index}");
        assert_eq!(view.load::<u64>(at).unwrap().to_le_bytes(), word);
        direct.write_all_at(&[index as u8], at + 100).unwrap();
        view.store(at + 104, index as u32).unwrap();
    }
    let pieces = direct
        .places(0..blocks * BLOCK as u64, Access::Write)
        .unwrap()
        .pieces;
    assert!(pieces.len() as u64 > blocks * 9 / 10, "{}", pieces.len());
    view.persist(0..view.len()).unwrap();
    let through = File::open(mount.at("file")).unwrap();
    for index in [0, 1, blocks / 2, blocks - 1] {
        let mut seen = [0; 8];
        through
            .read_exact_at(&mut seen, index * BLOCK as u64 + 100)
            .unwrap();
        assert_eq!(seen[0], index as u8);
        assert_eq!(seen[4..8], (index as u32).to_le_bytes());
    }
    drop((view, direct, through));
    end(&mount);
}

/// Each refusal is ENOMEM, and names what there is none of; then there is room again.
#[test]
fn client_without_addresses_or_mappings_gets_clear_error() {
    let Some((mount, _dog)) = formatted("no room", 64 * MIB, &FormatOptions::default()) else {
        return;
    };
    // In pieces: each is a mapping of its own.
    scatter(&mount, "file", 300);
    // A child that another lease does not disturb.
    drop(opened(&mount, "file"));
    let mut client = start(None, &mount, "no-room", &[]);
    let mut said = vec![client.said.clone()];
    while let Some(line) = client.says() {
        said.push(line);
    }
    assert!(said.len() >= 3, "{said:?}");
    for line in &said {
        match line.strip_prefix("skipped: ") {
            Some(why) => skipped(format_args!("no mappings left: {why}")),
            None => assert!(
                line.starts_with("errno 12: ") && line.contains("map"),
                "{line}"
            ),
        }
    }
    assert!(fs::read(mount.at("file")).unwrap()[8] == 7, "{said:?}");
    drop(client);
    end(&mount);
}

#[test]
fn blocks_smaller_than_page_are_read_stored_and_mapped_or_refused() {
    for block_size in [512, 1024, 2048] {
        let options = FormatOptions {
            block_size,
            ..FormatOptions::default()
        };
        let test = format!("blocks of {block_size} bytes");
        let Some((mount, _dog)) = formatted(&test, 64 * MIB, &options) else {
            return;
        };
        drop(file(&mount, "file", 4));
        let direct = opened(&mount, "file");
        direct.write_all_at(&[7; 100], 5000).unwrap();
        match direct.map(0..4 * BLOCK as u64, Access::Write) {
            Ok(view) => {
                view.store(8192, 0x0909_0909u32).unwrap();
                let mut seen = [0; 4];
                direct.read_exact_at(&mut seen, 8192).unwrap();
                assert_eq!(seen, [9; 4], "{test}");
            }
            // Blocks that are not whole pages cannot be mapped.
            Err(error) => assert_names_pages(&error),
        }
        assert!(direct.append(&[8; 300]).is_ok());
        assert!(contents(&direct) == fs::read(mount.at("file")).unwrap());
        drop(direct);
        end(&mount);
    }
}

/// Pages of 2 MiB that a test adds to the pool of the system.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// A hugetlbfs that is mounted for a test.
struct Hugetlbfs {
    dir: TempDir,
    added: u64,
}

fn pool() -> Option<u64> {
    fs::read_to_string(POOL).ok()?.trim().parse().ok()
}

impl Hugetlbfs {
    fn new(pages: u64) -> Option<Hugetlbfs> {
        let why = "direct access to it has not been tested";
        let Some(before) = pool() else {
            skipped(format_args!("there are no pages of 2 MiB: {why}"));
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let grown = fs::write(POOL, (before + pages).to_string());
        let added = pool().unwrap_or(before).saturating_sub(before);
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"]);
        let mounted = mount.arg(dir.path()).status();
        let hugetlbfs = Hugetlbfs { dir, added };
        if grown.is_err() || added < pages || !mounted.is_ok_and(|status| status.success()) {
            skipped(format_args!(
                "hugetlbfs cannot be mounted with {pages} pages: {why}"
            ));
            return None;
        }
        Some(hugetlbfs)
    }
}

impl Drop for Hugetlbfs {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg(self.dir.path()).status();
        if let Some(now) = pool() {
            let _shrunk = fs::write(POOL, now.saturating_sub(self.added).to_string());
        }
    }
}

#[test]
fn region_on_hugetlbfs_gives_leases_or_names_reason() {
    let test = "hugetlbfs";
    if !mounted::available(test) {
        return;
    }
    let _dog = Watchdog::new(test, Duration::from_secs(120));
    let Some(pages) = Hugetlbfs::new(32) else {
        return;
    };
    let base = pages.dir.path();
    let mount = Mounted::formatted_in(base, program(), 32 * MIB, &FormatOptions::default());
    mount.mount(OPTIONS);
    drop(file(&mount, "file", 4));
    let options = pramfs_client::OpenOptions::new().write(true);
    match options.open(mount.at("file")) {
        Ok(direct) => {
            direct.write_all_at(&[7; 100], 5000).unwrap();
            match direct.map(0..4 * BLOCK as u64, Access::Write) {
                Ok(view) => view.store(16, 9u32).unwrap(),
                // The file does not begin at a huge page.
                Err(error) => assert_names_pages(&error),
            }
            assert!(contents(&direct) == fs::read(mount.at("file")).unwrap());
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("lease"), "{said}");
            println!("hugetlbfs: {said}");
        }
    }
    fs::write(mount.at("another"), "the mount goes on").unwrap();
    end(&mount);
}
