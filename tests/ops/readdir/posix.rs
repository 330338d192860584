//! readdir: each name once, despite concurrent changes, and usable positions (xfstests
//! 257 310 637 676 736).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, RawDir, SeekFrom};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

fn open(path: &Path) -> std::os::fd::OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).expect("open the directory")
}

/// Reads names and the positions after them, in small calls, from a position on.
fn walk(path: &Path, from: Option<u64>, most: usize) -> Vec<(String, u64)> {
    let fd = open(path);
    if let Some(from) = from {
        rustix::fs::seek(&fd, SeekFrom::Start(from)).expect("seekdir");
    }
    let mut room = [std::mem::MaybeUninit::uninit(); 512];
    let mut dir = RawDir::new(fd, &mut room);
    let mut out = Vec::new();
    while let Some(entry) = dir.next() {
        let entry = entry.expect("an entry");
        out.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.next_entry_cookie(),
        ));
        if out.len() == most {
            break;
        }
    }
    out
}

#[test]
fn readdir_returns_each_name_once() {
    agree("readdir", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        for i in 0..700 {
            fs::write(d.join(format!("name-{i}")), "").expect("a file");
        }
        let all = walk(&d, None, usize::MAX);
        let names: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
        n.note("names", (all.len(), names.len()));
        n.note("dots", (names.contains("."), names.contains("..")));
    });
}

/// 676: from any saved position, the remaining entries are the same.
#[test]
fn readdir_resumes_from_any_position() {
    agree("seekdir", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        for i in 0..300 {
            fs::write(d.join(format!("name-{i}")), "").expect("a file");
        }
        let all = walk(&d, None, usize::MAX);
        let mut same = 0;
        for at in (0..all.len()).step_by(13).rev() {
            let rest = walk(&d, Some(all[at].1), usize::MAX);
            same += usize::from(rest == all[at + 1..]);
        }
        n.note("the same", same);
        n.note("from the start", walk(&d, Some(0), usize::MAX) == all);
    });
}

/// 637: a rewound descriptor shows names created meanwhile.
#[test]
fn rewinddir_shows_current_entries() {
    agree("rewinddir", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        fs::write(d.join("first"), "").expect("a file");
        let mut stream = Dir::new(open(&d)).expect("a stream");
        let read = |stream: &mut Dir| {
            let mut names: Vec<_> = stream
                .map(|e| {
                    e.expect("an entry")
                        .file_name()
                        .to_string_lossy()
                        .into_owned()
                })
                .collect();
            names.sort();
            names
        };
        n.note("first", read(&mut stream));
        fs::write(d.join("second"), "").expect("a file");
        stream.rewind();
        n.note("rewound", read(&mut stream));
        fs::remove_file(d.join("first")).expect("unlink");
        stream.rewind();
        n.note("one less", read(&mut stream));
    });
}

/// 310: names that stay are returned once while others come and go.
#[test]
fn readdir_returns_lasting_names_once_under_churn() {
    agree("readdir under change", &[Tmpfs], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        for i in 0..200 {
            fs::write(d.join(format!("stays-{i}")), "").expect("a file");
        }
        std::thread::scope(|s| {
            let going = s.spawn(|| {
                for i in 0..600 {
                    let path = d.join(format!("goes-{}", i % 50));
                    fs::write(&path, "").expect("a file");
                    fs::remove_file(&path).expect("unlink");
                }
            });
            let mut wrong = 0;
            while !going.is_finished() {
                let all = walk(&d, None, usize::MAX);
                let stays = all.iter().filter(|(name, _)| name.starts_with("stays"));
                let distinct: BTreeSet<_> = stays.clone().collect();
                wrong += usize::from((stays.count(), distinct.len()) != (200, 200));
            }
            n.note("wrong", wrong);
        });
    });
}
