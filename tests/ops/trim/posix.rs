//! FITRIM and the option `discard`: space goes back to the host (xfstests 260 288 537).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pramfs_tests::mounted::wait_until;
use pramfs_tests::syscalls::Sys;

use crate::support::ioctl::{as_stranger, ioctl, words};
use crate::support::mount::Reference::Ext4;
use crate::support::mount::{agree, alone};

const TRIM: u64 = 0xc018_5879;

fn trim(path: &Path, range: [u64; 3]) -> Sys<u64> {
    let mut bytes = words(range);
    ioctl(path, TRIM, &mut bytes)?;
    let len = bytes[8..16].first_chunk().map(|b| u64::from_le_bytes(*b));
    Ok(len.unwrap_or(0))
}

#[test]
fn fitrim_checks_its_range() {
    agree("FITRIM", &[Ext4], |dir, n| {
        let all = [0, u64::MAX, 0];
        n.call("all", trim(dir, all).map(drop));
        n.call("past the end", trim(dir, [1 << 50, 1 << 20, 0]));
        n.call("nothing", trim(dir, [0, 0, 0]));
        n.call("less than a block", trim(dir, [0, 511, 0]));
        n.call(
            "runs of more than a group",
            trim(dir, [0, u64::MAX, 1 << 50]),
        );
        n.call("a stranger", as_stranger(|| trim(dir, all)));
    });
}

/// Freed space becomes memory of the host again, in whole huge pages. Blocks in use stay.
#[test]
fn fitrim_frees_host_memory() {
    alone("FITRIM and memory", "", |mount| {
        let used = || fs::metadata(mount.region()).unwrap().blocks() * 512;
        let bytes: Vec<u8> = (0..24u32 << 20).map(|i| (i / 4096) as u8).collect();
        fs::write(mount.at("goes"), &bytes).unwrap();
        fs::write(mount.at("stays"), &bytes[..8 << 20]).unwrap();
        assert!(used() >= 32 << 20);
        fs::remove_file(mount.at("goes")).unwrap();
        assert!(used() >= 32 << 20, "by itself nothing is given back");
        // FORGET and the trim are two requests that run at the same time.
        let given = || trim(&mount.path(), [0, u64::MAX, 0]).unwrap();
        assert!(wait_until(|| given() >= 40 << 20), "{}", given());
        assert!(used() < 16 << 20, "{} bytes are still used", used());
        assert!(fs::read(mount.at("stays")).unwrap() == bytes[..8 << 20]);
        // The space is available when it is needed again.
        fs::write(mount.at("again"), &bytes).unwrap();
        mount.unmount();
        mount.mount("");
        assert!(fs::read(mount.at("again")).unwrap() == bytes);
        assert!(fs::read(mount.at("stays")).unwrap() == bytes[..8 << 20]);
    });
}

#[test]
fn discard_mount_frees_host_memory() {
    alone("discard", "discard", |mount| {
        let used = || fs::metadata(mount.region()).unwrap().blocks() * 512;
        let bytes: Vec<u8> = (0..24u32 << 20).map(|i| (i / 4096) as u8).collect();
        fs::write(mount.at("goes"), &bytes).unwrap();
        fs::write(mount.at("stays"), &bytes[..8 << 20]).unwrap();
        let before = used();
        assert!(before >= 32 << 20);
        fs::remove_file(mount.at("goes")).unwrap();
        // The kernel forgets the inode at some later time. Blocks freed by live records
        // are released when those records are dead; statfs takes care of that.
        let given = || {
            rustix::fs::statvfs(mount.path()).unwrap();
            used() + (20 << 20) <= before
        };
        assert!(wait_until(given), "{} of {before} are used", used());
        fs::write(mount.at("again"), &bytes).unwrap();
        assert!(fs::read(mount.at("again")).unwrap() == bytes);
        assert!(fs::read(mount.at("stays")).unwrap() == bytes[..8 << 20]);
    });
}

/// Trims while other threads allocate and write: no blocks are lost.
#[test]
fn fitrim_beside_writers_loses_nothing() {
    alone("FITRIM under load", "", |mount| {
        let root = mount.path();
        std::thread::scope(|s| {
            for who in 0..3u8 {
                let root = &root;
                s.spawn(move || {
                    for round in 0..60u8 {
                        let path = root.join(format!("{who}-{}", round % 3));
                        let bytes = vec![who * 64 + round; 700_000];
                        fs::write(&path, &bytes).unwrap();
                        assert!(fs::read(&path).unwrap() == bytes, "{who} {round}");
                        if round % 4 == 0 {
                            fs::remove_file(&path).unwrap();
                        }
                    }
                });
            }
            s.spawn(|| {
                for _ in 0..60 {
                    trim(&root, [0, u64::MAX, 0]).unwrap();
                }
            });
        });
    });
}
