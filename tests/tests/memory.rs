//! Anonymous memory of a mounted file system: measures the figures of
//! docs/architecture.md for an inode, a reference and a bitmap.
//!
//! One test in one process, since it measures the whole process.

use std::ops::ControlFlow;

use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};
use pramfs_tests::region::{formatted, mount, quiet, repeatable};

/// Anonymous memory of this process, in bytes. Regions are shared memory and do not
/// count.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

fn walk(fs: &Fs, dir: Ino, keep: bool) -> u64 {
    let mut cookie = 0;
    let mut seen = 0;
    loop {
        let mut all = Vec::new();
        fs.readdir(dir, cookie, &mut |e| {
            if all.len() == 1000 {
                return ControlFlow::Break(());
            }
            cookie = e.cookie;
            all.push(e.ino);
            ControlFlow::Continue(())
        })
        .unwrap();
        if all.is_empty() {
            return seen;
        }
        for ino in all {
            fs.getattr(ino).unwrap();
            if keep {
                fs.hold(ino).into_count();
            }
            seen += 1;
        }
    }
}

#[test]
fn memory_of_inodes_references_and_bitmaps_is_bounded() {
    const FILES: u64 = 200_000;
    let sim = formatted(512 << 20, &repeatable(4096)).unwrap();
    // A small cache: bitmaps and a bounded number of inodes, however many files are
    // created and walked.
    let small = MountOptions {
        cache_bytes: 4 << 20,
        ..quiet()
    };
    let before = anonymous();
    let fs = mount(&sim, small).unwrap();
    for i in 0..FILES {
        let name = format!("file-{i}");
        fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap();
    }
    assert_eq!(walk(&fs, Ino::ROOT, false), FILES + 2);
    fs.statfs().unwrap();
    let used = anonymous().saturating_sub(before);
    println!(
        "cache_bytes of 4 MiB: {} KiB in all, {:?}",
        used >> 10,
        fs.memory()
    );
    assert!(fs.memory().inode_bytes <= 4 << 20);
    assert!(used < 10 << 20, "{used} bytes");
    fs.close().unwrap();

    // A cache just large enough for all of them: the cost of each.
    let large = MountOptions {
        cache_bytes: 160 << 20,
        ..quiet()
    };
    let before = anonymous();
    let fs = mount(&sim, large).unwrap();
    walk(&fs, Ino::ROOT, false);
    let each = anonymous().saturating_sub(before) / FILES;
    println!("{each} bytes a cached inode");
    assert!(
        (256..=704).contains(&each),
        "{each} bytes an inode, and the cache counts 704"
    );

    let before = anonymous();
    walk(&fs, Ino::ROOT, true);
    let each = anonymous().saturating_sub(before) / FILES;
    println!("{each} bytes a reference");
    assert!(
        (16..=48).contains(&each),
        "{each} bytes an inode that has references"
    );
    assert_eq!(fs.memory().referenced, FILES + 1);
}
