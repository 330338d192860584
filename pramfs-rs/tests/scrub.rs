//! Scrubbing by the library: beside views that store, and on a medium that loses pages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Fs, ScrubFinding, ScrubOptions, ScrubStatus};
use pramfs::pmem::{Region, RegionOptions, install_fault_guard};
use pramfs::{Access, Damage, FileSystem, MountOptions};

const MIB: u64 = 1 << 20;

/// A file that the test removes.
struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn temp(name: &str) -> Temp {
    let shm = PathBuf::from("/dev/shm");
    let dir = if shm.is_dir() {
        shm
    } else {
        std::env::temp_dir()
    };
    Temp(dir.join(format!("pramfs-scrub-{name}-{}", std::process::id())))
}

fn made(temp: &Temp, len: u64) -> Region {
    let region = RegionOptions::new().create_new(&temp.0, len).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    region
}

fn scrubbed(fs: &Fs) -> (ScrubStatus, Vec<ScrubFinding>) {
    fs.start_scrub(ScrubOptions::default()).unwrap();
    while fs.wait_for_scrub(Duration::from_secs(10)).running {}
    let status = fs.scrub_status();
    let found = (0..).map_while(|n| fs.scrub_finding(n)).collect();
    (status, found)
}

#[test]
fn stores_through_views_are_no_findings() {
    let temp = temp("views");
    let fs = FileSystem::mount(made(&temp, 64 * MIB), MountOptions::default()).unwrap();
    let file = fs.create("/mapped").unwrap();
    file.write_all_at(&vec![1; 8 << 20], 0).unwrap();
    let view = file.map(0..8 * MIB, Access::Write).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let at = i * 7919 % (8 * MIB - 64);
                view.write(at, &[i as u8; 64]).unwrap();
                view.persist(at..at + 64).unwrap();
            }
        });
        for _ in 0..10 {
            let (status, found) = scrubbed(fs.inodes());
            let bad = !found.is_empty() || status.errno != 0;
            stop.store(bad, Ordering::Relaxed);
            assert_eq!((found, status.errno), (Vec::new(), 0));
            assert!(status.done > 8 * MIB);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop((view, file));
    fs.unmount().unwrap();
}

#[test]
fn lost_pages_of_data_are_found_with_file_and_offset() {
    install_fault_guard().unwrap();
    let temp = temp("lost");
    let fs = FileSystem::mount(made(&temp, 8 * MIB), MountOptions::default()).unwrap();
    let file = fs.create("/file").unwrap();
    // To the end of the region.
    let mut len = 0;
    while file.write_all_at(&[7; 4096], len).is_ok() {
        len += 4096;
    }
    let ino = file.ino().0;
    drop(file);
    assert_eq!(scrubbed(fs.inodes()).0.found, 0);
    let host = std::fs::File::options().write(true).open(&temp.0).unwrap();
    host.set_len(8 * MIB - 64 * 1024).unwrap();
    let (status, found) = scrubbed(fs.inodes());
    assert_eq!(status.found, found.len() as u64);
    let data: Vec<_> = found
        .iter()
        .filter(|found| found.ino.map(|ino| ino.0) == Some(ino))
        .collect();
    assert!(data.len() > 10 && data.len() <= 16, "{found:?}");
    for found in data {
        assert_eq!(found.kind, Damage::Unreadable);
        let offset = found.offset.unwrap();
        assert!(offset.is_multiple_of(4096) && offset < len, "{found:?}");
        assert!(found.text.contains("backup"), "{found:?}");
    }
    assert_eq!(&status.last.kind[..11], b"unreadable\0");
    // Its last pages are lost: what can be unmounted is.
    let _ = fs.unmount();
}
