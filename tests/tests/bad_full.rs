//! A region that is full: no free block, or no free inode.
//!
//! Each operation that needs one is tried until it is refused: ENOSPC, and
//! everything that the file system shows is as it was. Each that frees goes
//! through. What was freed can be used again, all of it, however often.

mod bad_support;

use bad_support::model::CX;
use bad_support::{bed::still, image::pattern};
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
/// Blocks of a file that is made shorter to have just so many free.
const BALLAST: u64 = 30;

/// What is there before the region is filled, one of each that can shrink.
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

/// Fills the region to the last block: large files, then blocks one by one.
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
    // Blocks that are too few for a file and its name.
    while fs
        .append(&CX, full.file, &vec![6; full.block as usize])
        .is_ok()
    {}
    names
}

type Request = (&'static str, fn(&Full, u32) -> Result<()>);

/// What needs space, if not the first time then soon: `n` counts the calls.
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
        f.fs.fill(f.hollow, (n as u64 + 1) << 21, 1 << 16)
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

/// Calls until it is refused for want of space, and says how often it was not.
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
fn each_operation_is_refused_on_a_full_region_and_has_done_nothing() {
    for block_size in [512, 4096] {
        let mut full = make(block_size, None);
        fill(&full);
        for (what, request) in TAKE {
            // What had room at the edges takes it; then it is refused, and
            // what a refusal can leave (a level of a map, a bitmap of a group)
            // is there.
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

/// With so many blocks left that the operation gets some of what it needs, and
/// not all: wherever it is refused, it has done nothing.
#[test]
fn each_operation_that_runs_out_on_its_way_has_done_nothing() {
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
                // All but the blocks: a level that a map has grown stays.
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

/// What frees works on a region without a free block, one by one.
#[test]
fn what_frees_space_goes_through_on_a_full_region() {
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
            // Each on a region of its own that is full: nothing that one has
            // freed helps the next.
            let full = make(block_size, None);
            fill(&full);
            let before = full.fs.statfs().unwrap();
            request(&full).unwrap_or_else(|e| panic!("{what}, blocks of {block_size}: {e}"));
            let full = checked(full, what);
            let after = full.fs.statfs().unwrap();
            // The table that a cut leaf needs is the most that may be missing.
            assert!(after.free + 1 >= before.free, "{what}");
        }
    }
}

/// Rounds of filling and emptying: the same is free after each.
#[test]
fn all_of_the_space_comes_back_however_often() {
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
            // What stays is metadata that the first round has made: bitmaps,
            // the inode table, blocks of directories.
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

/// `-N`: no free inode, and blocks in plenty.
#[test]
fn without_a_free_inode_nothing_is_made_and_all_else_works() {
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
        // A name that exists is found to exist all the same.
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
        // Each that goes makes room for one, in whatever directory.
        for round in 0..3 {
            full.fs.unlink(Ino::ROOT, b"n0").unwrap();
            let made = full.fs.mkdir(&CX, full.dir, new, 0o755).unwrap();
            assert!(full.fs.create(&CX, made.ino, b"x", 0).is_err(), "{round}");
            full.fs.rmdir(full.dir, new).unwrap();
            full.fs.create(&CX, Ino::ROOT, b"n0", 0o644).unwrap();
        }
        // One that is open keeps its inode until it is let go.
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
