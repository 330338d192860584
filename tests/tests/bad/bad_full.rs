//! A full region: no free block, or no free inode.
//!
//! Each operation that needs one is repeated until it fails with ENOSPC; everything
//! visible must be unchanged then. Each operation that frees space succeeds. All freed
//! space can be used again, any number of times.

use crate::bad_support::model::CX;
use crate::bad_support::{fixture::still, image::pattern};
use pramfs::format::FormatOptions;
use pramfs::{
    Error, Fallocate, RenameFlags, Result, XattrMode,
    inode::{Fs, Ino, SetAttr},
};
use pramfs_fsck as fsck;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{formatted, mount, region_of, repeatable};
use pramfs_tests::tree::Tree;

const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };
const HUGE: u64 = 2 << 20;
/// Blocks of a file that is truncated to leave an exact number of free blocks.
const BALLAST: u64 = 30;

/// Objects created before the region is filled, one of each kind that can shrink.
struct Full {
    sim: SimBackend,
    fs: Fs,
    dir: Ino,
    /// Some thousands of bytes.
    file: Ino,
    /// With a leaf of 2 MiB where blocks are large enough.
    large: Ino,
    /// A mebibyte of hole.
    hollow: Ino,
    block: u64,
}

fn make(block_size: u32, max_inodes: Option<u64>) -> Full {
    let options = FormatOptions {
        max_inodes,
        ..repeatable(block_size)
    };
    let sim = formatted(12 << 20, &options).unwrap();
    let fs = mount(&sim, still()).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let file = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.append(&CX, file, &pattern(1, 20_000)).unwrap();
    fs.setxattr(&CX, file, b"user.large", &pattern(2, 9000), XattrMode::Set)
        .unwrap();
    fs.setxattr(&CX, file, b"user.small", b"value", XattrMode::Set)
        .unwrap();
    let large = fs.create(&CX, dir, b"large", 0o644).unwrap().ino;
    fs.write(&CX, large, 0, &pattern(3, 2 * HUGE as usize))
        .unwrap();
    let hollow = fs.create(&CX, dir, b"hollow", 0o644).unwrap().ino;
    let set = size(1 << 20);
    fs.setattr(&CX, hollow, &set).unwrap();
    fs.mkdir(&CX, dir, b"empty", 0o755).unwrap();
    fs.symlink(&CX, dir, b"long", &[b't'; 4000]).unwrap();
    let ballast = fs.create(&CX, dir, b"ballast", 0o644).unwrap().ino;
    fs.append(
        &CX,
        ballast,
        &vec![1; (BALLAST * u64::from(block_size)) as usize],
    )
    .unwrap();
    Full {
        sim,
        fs,
        dir,
        file,
        large,
        hollow,
        block: block_size.into(),
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// Fills the region to the last block: first large files, then single blocks.
fn fill(full: &Full) -> Vec<String> {
    let fs = &full.fs;
    let mut names = Vec::new();
    for len in [1 << 20, 64 << 10, full.block as usize] {
        for i in 0.. {
            let name = format!("fill-{len}-{i}");
            let Ok(a) = fs.create(&CX, Ino::ROOT, name.as_bytes(), 0o600) else {
                break;
            };
            names.push(name);
            if fs.append(&CX, a.ino, &vec![0x55; len]).is_err() {
                break;
            }
        }
    }
    // Too few blocks for a file and its name are left.
    while fs
        .append(&CX, full.file, &vec![6; full.block as usize])
        .is_ok()
    {}
    names
}

type Request = (&'static str, fn(&Full, u32) -> Result<()>);

/// Operations that need space, at the latest after some calls: `n` counts the calls.
const TAKE: [Request; 19] = [
    ("create", |f, n| {
        let name = format!("create-{n:0100}");
        f.fs.create(&CX, f.dir, name.as_bytes(), 0o644).map(drop)
    }),
    ("mkdir", |f, n| {
        let name = format!("mkdir-{n:0100}");
        f.fs.mkdir(&CX, f.dir, name.as_bytes(), 0o755).map(drop)
    }),
    ("mknod", |f, n| {
        let name = format!("mknod-{n:0200}");
        f.fs.mknod(&CX, f.dir, name.as_bytes(), libc::S_IFIFO | 0o600, 0)
            .map(drop)
    }),
    ("short symlink", |f, n| {
        let name = format!("short-{n:0100}");
        f.fs.symlink(&CX, f.dir, name.as_bytes(), b"t").map(drop)
    }),
    ("long symlink", |f, n| {
        let name = format!("long-{n}");
        f.fs.symlink(&CX, f.dir, name.as_bytes(), &[b't'; 4095])
            .map(drop)
    }),
    ("link", |f, n| {
        let name = format!("link-{n:0240}");
        f.fs.link(f.file, f.dir, name.as_bytes()).map(drop)
    }),
    ("rename to longer names", |f, n| {
        let name = format!("longer-{n:0240}");
        f.fs.link(f.hollow, f.dir, b"to go")?;
        let flags = RenameFlags::default();
        f.fs.rename(&CX, f.dir, b"to go", f.dir, name.as_bytes(), flags)
            .inspect_err(|_| f.fs.unlink(f.dir, b"to go").unwrap())
    }),
    ("rename into another directory", |f, n| {
        let name = format!("across-{n:0200}");
        f.fs.link(f.hollow, f.dir, b"to go")?;
        f.fs.rename(
            &CX,
            f.dir,
            b"to go",
            Ino::ROOT,
            name.as_bytes(),
            RenameFlags::default(),
        )
        .inspect_err(|_| f.fs.unlink(f.dir, b"to go").unwrap())
    }),
    ("write to a hole", |f, n| {
        let at = u64::from(n) * f.block;
        f.fs.write(&CX, f.hollow, at, b"x").map(drop)
    }),
    ("write past the end", |f, n| {
        let at = (16 << 40) + u64::from(n) * (1 << 30);
        f.fs.write(&CX, f.hollow, at, b"x").map(drop)
    }),
    ("append", |f, _| {
        f.fs.append(&CX, f.file, &vec![1; f.block as usize])
            .map(drop)
    }),
    ("a large append", |f, _| {
        f.fs.append(&CX, f.file, &vec![1; 1 << 20]).map(drop)
    }),
    ("fallocate", |f, n| {
        f.fs.fallocate(&CX, f.hollow, KEEP, u64::from(n) * f.block, 1)
    }),
    ("a large fallocate", |f, _| {
        let extend = Fallocate::Allocate { keep_size: false };
        f.fs.fallocate(&CX, f.hollow, extend, 0, 64 << 20)
    }),
    ("zero range", |f, n| {
        let zero = Fallocate::ZeroRange { keep_size: false };
        f.fs.fallocate(&CX, f.hollow, zero, (n as u64 + 1) << 21, 1 << 16)
    }),
    ("fill for a view", |f, n| {
        // Within the file: past its end nothing is filled.
        f.fs.fill(f.hollow, (n as u64 % 16) << 16, 1 << 16)
    }),
    ("a small attribute", |f, n| {
        let name = format!("user.{n:0200}");
        f.fs.setxattr(&CX, f.dir, name.as_bytes(), &[1; 60], XattrMode::Set)
    }),
    ("a large attribute", |f, n| {
        let name = format!("user.{n}");
        f.fs.setxattr(&CX, f.file, name.as_bytes(), &[1; 65_536], XattrMode::Set)
    }),
    ("a larger attribute for a small one", |f, _| {
        f.fs.setxattr(&CX, f.file, b"user.small", &[1; 60_000], XattrMode::Replace)
    }),
];

#[track_caller]
fn unchanged(before: &Tree, fs: &Fs, what: &str) {
    let after = Tree::of(fs).unwrap();
    assert!(*before == after, "{what}:\n{}", before.differences(&after));
}

/// Repeats a call until it fails with ENOSPC. Returns the number of successes.
#[track_caller]
fn until_refused(full: &Full, what: &str, request: fn(&Full, u32) -> Result<()>) -> u32 {
    for n in 0..20_000 {
        match request(full, n) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return n,
            Err(e) => panic!("{what}, {n}: {e}"),
        }
    }
    panic!("{what} is never refused")
}

/// Unmounts, checks, and mounts again.
#[track_caller]
fn checked(full: Full, what: &str) -> Full {
    full.fs.close().unwrap();
    let report = fsck::check(&region_of(&full.sim), &Default::default());
    assert!(report.is_clean(), "{what}: {report}");
    let fs = mount(&full.sim, still()).unwrap();
    Full { fs, ..full }
}

#[test]
fn operation_on_full_region_fails_without_change() {
    for block_size in [512, 4096] {
        let mut full = make(block_size, None);
        fill(&full);
        for (what, request) in TAKE {
            // Partially used blocks absorb some calls before the failure. A failure can
            // leave a map level or a bitmap of a group behind.
            let n = until_refused(&full, what, request);
            let before = Tree::of(&full.fs).unwrap();
            for _ in 0..3 {
                let e = request(&full, n).expect_err(what);
                assert_eq!(e.errno(), libc::ENOSPC, "{what}: {e}");
            }
            println!("{what}: {n} times");
            // A rename that needs a link first has made and removed it.
            let compare = |t: Tree| {
                if what.starts_with("rename") {
                    t.timeless()
                } else {
                    t
                }
            };
            let after = compare(Tree::of(&full.fs).unwrap());
            let before = compare(before);
            assert!(before == after, "{what}:\n{}", before.differences(&after));
        }
        full = checked(full, "after refusals");
        let all = Tree::of(&full.fs).unwrap();
        unchanged(&all, &full.fs, "after a mount");
    }
}

/// With an exact number of blocks left, so that the operation gets some of its blocks but
/// not all. A failure at any point changes nothing.
#[test]
fn operation_running_out_of_space_changes_nothing() {
    let mut halfway = 0;
    for block_size in [512, 4096] {
        for left in [1, 2, 3, 5, 9, 16] {
            for (what, request) in TAKE {
                let full = make(block_size, None);
                fill(&full);
                let ballast = full.fs.lookup(full.dir, b"ballast").unwrap().ino;
                let set = size((BALLAST - left) * full.block);
                full.fs.setattr(&CX, ballast, &set).unwrap();
                let what = format!("{what}, {left} blocks of {block_size}");
                let shown = |fs: &Fs| {
                    let tree = Tree::of(fs).unwrap();
                    if what.starts_with("rename") {
                        tree.timeless()
                    } else {
                        tree
                    }
                };
                // Block counts may differ: a grown level of a map stays.
                let without_blocks = |mut tree: Tree| {
                    tree.nodes.values_mut().for_each(|n| n.blocks = 0);
                    tree.free = 0;
                    tree
                };
                let start = shown(&full.fs);
                let n = match request(&full, 0) {
                    Ok(()) => continue,
                    Err(Error::NoSpace(_)) => 0,
                    Err(e) => panic!("{what}: {e}"),
                };
                halfway += 1;
                let refused = shown(&full.fs);
                // Levels of the map, a bitmap, and a step of the inode table.
                assert!(start.free - refused.free <= 9 + 1 + 16, "{what}");
                let (a, b) = (without_blocks(start), without_blocks(refused.clone()));
                assert!(a == b, "{what}:\n{}", a.differences(&b));
                let e = request(&full, n).expect_err(&what);
                assert_eq!(e.errno(), libc::ENOSPC, "{what}");
                let again = shown(&full.fs);
                assert!(refused == again, "{what}:\n{}", refused.differences(&again));
                checked(full, &what);
            }
        }
    }
    println!("{halfway} refusals");
    assert!(halfway > 60, "what is never refused proves nothing");
}

/// Operations that free space work without a free block, each on its own.
#[test]
fn freeing_operations_succeed_on_full_region() {
    type Free = (&'static str, fn(&Full) -> Result<()>);
    const EXCHANGE: RenameFlags = RenameFlags {
        exchange: true,
        noreplace: false,
        whiteout: false,
    };
    const FREE: [Free; 14] = [
        ("punch in the middle of a leaf", |f| {
            f.fs.fallocate(&CX, f.large, Fallocate::PunchHole, 300_000, 4 * f.block)
        }),
        ("truncate into a leaf", |f| {
            f.fs.setattr(&CX, f.large, &size(HUGE + 77_777)).map(drop)
        }),
        ("truncate by one block", |f| {
            f.fs.setattr(&CX, f.file, &size(4000)).map(drop)
        }),
        ("grow as a hole", |f| {
            f.fs.setattr(&CX, f.file, &size(1 << 40)).map(drop)
        }),
        ("zero what is written", |f| {
            let zero = Fallocate::ZeroRange { keep_size: true };
            f.fs.fallocate(&CX, f.large, zero, 5, 1000)
        }),
        ("overwrite", |f| {
            f.fs.write(&CX, f.large, 100, &[1; 900]).map(drop)
        }),
        ("chmod and times", |f| {
            let set = SetAttr {
                perm: Some(0o600),
                mtime: Some(pramfs::inode::SetTime::Now),
                ..SetAttr::default()
            };
            f.fs.setattr(&CX, f.dir, &set).map(drop)
        }),
        ("removexattr, large", |f| {
            f.fs.removexattr(f.file, b"user.large")
        }),
        ("removexattr, small", |f| {
            f.fs.removexattr(f.file, b"user.small")
        }),
        ("exchange", |f| {
            f.fs.rename(&CX, f.dir, b"file", f.dir, b"large", EXCHANGE)
        }),
        ("rename over another", |f| {
            let flags = RenameFlags::default();
            f.fs.rename(&CX, f.dir, b"long", f.dir, b"hollow", flags)
        }),
        ("rmdir", |f| f.fs.rmdir(f.dir, b"empty")),
        ("unlink", |f| f.fs.unlink(f.dir, b"file")),
        ("unlink of the last", |f| f.fs.unlink(f.dir, b"hollow")),
    ];
    for block_size in [512, 1024, 4096] {
        for (what, request) in FREE {
            // Each runs on its own full region, so that no freed space helps the next
            // one.
            let full = make(block_size, None);
            fill(&full);
            let before = full.fs.statfs().unwrap();
            request(&full).unwrap_or_else(|e| panic!("{what}, blocks of {block_size}: {e}"));
            let full = checked(full, what);
            let after = full.fs.statfs().unwrap();
            // At most the table that a split leaf needs is missing.
            assert!(after.free + 1 >= before.free, "{what}");
        }
    }
}

/// After each round of filling and emptying, the same amount is free.
#[test]
fn fill_and_empty_rounds_leak_no_space() {
    for block_size in [512, 1024, 2048, 4096] {
        let mut full = make(block_size, None);
        let start = full.fs.statfs().unwrap();
        let mut rounds = Vec::new();
        for round in 0..4 {
            let names = fill(&full);
            let mut made = Vec::new();
            for n in 0..2000 {
                let name = format!("small-{n:0150}");
                match full.fs.create(&CX, full.dir, name.as_bytes(), 0o600) {
                    Ok(_) => made.push(name),
                    Err(e) => {
                        assert_eq!(e.errno(), libc::ENOSPC);
                        break;
                    }
                }
            }
            for name in made {
                full.fs.unlink(full.dir, name.as_bytes()).unwrap();
            }
            for name in &names {
                full.fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
            }
            full.fs.setattr(&CX, full.file, &size(20_000)).unwrap();
            full = checked(full, "a round");
            let s = full.fs.statfs().unwrap();
            rounds.push((s.free, s.available, s.free_inodes, names.len()));
            assert_eq!(s.free_inodes, start.free_inodes);
            // Metadata created in the first round stays: bitmaps, the inode table, blocks
            // of directories.
            assert!(
                start.free - s.free < 12 + start.inodes * 256 / u64::from(block_size),
                "round {round}: {} of {}",
                s.free,
                start.free
            );
        }
        assert_eq!(rounds[1].0, rounds[2].0, "{rounds:?}");
        assert_eq!(rounds[1], rounds[3], "{rounds:?}");
    }
}

/// `-N`: no free inode, but many free blocks.
#[test]
fn create_without_free_inode_fails_and_rest_works() {
    for block_size in [512, 4096] {
        let full = make(block_size, Some(64));
        let free = full.fs.statfs().unwrap().free_inodes;
        for n in 0..free {
            let name = format!("n{n}");
            full.fs
                .create(&CX, Ino::ROOT, name.as_bytes(), 0o644)
                .unwrap();
        }
        let before = Tree::of(&full.fs).unwrap();
        assert_eq!(before.free_inodes, 0);
        let flags = RenameFlags {
            whiteout: true,
            ..RenameFlags::default()
        };
        let new = b"new".as_slice();
        let refused: [(&str, Result<()>); 8] = [
            ("create", full.fs.create(&CX, full.dir, new, 0).map(drop)),
            ("mkdir", full.fs.mkdir(&CX, full.dir, new, 0).map(drop)),
            (
                "mknod",
                full.fs
                    .mknod(&CX, full.dir, new, libc::S_IFIFO, 0)
                    .map(drop),
            ),
            (
                "symlink",
                full.fs.symlink(&CX, full.dir, new, b"t").map(drop),
            ),
            (
                "long symlink",
                full.fs.symlink(&CX, full.dir, new, &[b't'; 4000]).map(drop),
            ),
            (
                "create with a reference",
                full.fs.holding().create(&CX, full.dir, new, 0).map(drop),
            ),
            (
                "whiteout",
                full.fs.rename(&CX, full.dir, b"file", full.dir, new, flags),
            ),
            (
                "whiteout across",
                full.fs
                    .rename(&CX, full.dir, b"file", Ino::ROOT, new, flags),
            ),
        ];
        for (what, result) in refused {
            assert_eq!(result.expect_err(what).errno(), libc::ENOSPC, "{what}");
        }
        unchanged(&before, &full.fs, "without inodes");
        // An existing name still gives EEXIST.
        let there = full.fs.create(&CX, full.dir, b"file", 0).unwrap_err();
        assert_eq!(there.errno(), libc::EEXIST);

        full.fs.link(full.file, full.dir, b"another").unwrap();
        full.fs.append(&CX, full.file, b"more").unwrap();
        full.fs.write(&CX, full.hollow, 0, &[1; 9000]).unwrap();
        full.fs
            .setxattr(&CX, full.dir, b"user.x", &[1; 5000], XattrMode::Set)
            .unwrap();
        full.fs
            .rename(
                &CX,
                full.dir,
                b"file",
                Ino::ROOT,
                b"moved",
                RenameFlags::default(),
            )
            .unwrap();
        // Each removed file makes room for one, in any directory.
        for round in 0..3 {
            full.fs.unlink(Ino::ROOT, b"n0").unwrap();
            let made = full.fs.mkdir(&CX, full.dir, new, 0o755).unwrap();
            assert!(full.fs.create(&CX, made.ino, b"x", 0).is_err(), "{round}");
            full.fs.rmdir(full.dir, new).unwrap();
            full.fs.create(&CX, Ino::ROOT, b"n0", 0o644).unwrap();
        }
        // An open file keeps its inode until it is closed.
        let open = full
            .fs
            .open_file(full.fs.lookup(Ino::ROOT, b"n1").unwrap().ino);
        full.fs.unlink(Ino::ROOT, b"n1").unwrap();
        assert!(full.fs.create(&CX, full.dir, new, 0).is_err());
        drop(open);
        full.fs.create(&CX, full.dir, new, 0o644).unwrap();
        checked(full, "without inodes");
    }
}
