//! What readdir promises: lasting entries once, positions that stay valid.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pramfs::inode::Ino;
use pramfs_tests::region::quiet;

use crate::support::library::{ROOT, file, remount, small};

/// Entries come and go while a directory is read in small steps. An entry that exists all
/// the time is returned exactly once.
#[test]
fn readdir_returns_lasting_entries_once_under_churn() {
    let (_sim, fs) = small();
    let lasting: BTreeSet<Vec<u8>> = (0..500)
        .map(|i| format!("stays-{i}").into_bytes())
        .collect();
    for name in &lasting {
        fs.create(&ROOT, Ino::ROOT, name, 0o644).unwrap();
    }
    for i in 0..300 {
        file(&fs, &format!("goes-{i}"));
    }
    let (mut seen, mut cookie, mut step) = (Vec::new(), 2, 0);
    loop {
        let mut got = 0;
        fs.readdir(Ino::ROOT, cookie, &mut |e| {
            if got == 7 {
                return ControlFlow::Break(());
            }
            got += 1;
            cookie = e.cookie;
            if e.name.starts_with(b"stays") {
                seen.push(e.name.to_vec());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        if got == 0 {
            break;
        }
        if step < 300 {
            fs.unlink(Ino::ROOT, format!("goes-{step}").as_bytes())
                .unwrap();
            for i in 0..4 {
                file(&fs, &format!("comes-{step}-{i}"));
            }
        }
        step += 1;
    }
    let once: BTreeSet<Vec<u8>> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "an entry was given twice");
    assert_eq!(once, lasting);
}

#[test]
fn readdir_cookies_stay_valid_after_remount() {
    let (sim, fs) = small();
    for i in 0..200 {
        file(&fs, &format!("name-{i}"));
    }
    let mut all = Vec::new();
    let list = |fs: &pramfs::inode::Fs, from: u64, all: &mut Vec<(u64, Vec<u8>)>| {
        fs.readdir(Ino::ROOT, from, &mut |e| {
            all.push((e.cookie, e.name.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    };
    list(&fs, 0, &mut all);
    assert_eq!(all.len(), 202);
    assert_eq!(
        [&all[0], &all[1]],
        [&(1, b".".to_vec()), &(2, b"..".to_vec())]
    );
    assert!(all.iter().all(|(c, _)| *c > 0 && *c < 1 << 63));
    let fs = remount(&sim, fs, quiet());
    for from in [0, 1, 2, 50, 201] {
        let mut rest = Vec::new();
        list(&fs, if from == 0 { 0 } else { all[from - 1].0 }, &mut rest);
        assert_eq!(rest, all[from..]);
    }
}
