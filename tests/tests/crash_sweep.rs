//! Crashes in each kind of operation on names and contents: see
//! [`pramfs_tests::crash::sweep`]. `crash_sweep_attributes.rs` covers attributes.
//!
//! Operations that are chains of records declare the permitted intermediate states.

use pramfs::{
    Fallocate, RenameFlags, XattrMode,
    inode::{Fs, Gathered, Ino, SetAttr},
};
use pramfs_tests::crash::sweep::{
    Allowed, CX, Case, file, fragmented, ino, pattern, setattr, sweep_all,
};
use pramfs_tests::crash::vacate;
use pramfs_tests::tree::Tree;

fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "create in an empty directory",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap();
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o640).unwrap();
            },
        ),
        Case::new(
            "create beside others",
            |fs| {
                for i in 0..5 {
                    file(fs, &format!("f{i}"), b"");
                }
            },
            |fs| {
                fs.create(&CX, Ino::ROOT, b"new", 0o640).unwrap();
            },
        ),
        Case::new(
            "create that divides a leaf",
            |fs| {
                for i in 0..6 {
                    file(fs, &format!("a-rather-long-name-{i}"), b"");
                }
            },
            |fs| {
                fs.create(
                    &CX,
                    Ino::ROOT,
                    b"a-rather-long-name-that-divides-the-leaf",
                    0o640,
                )
                .unwrap();
            },
        )
        .blocks(512),
        Case::new(
            "create that grows the inode table",
            |fs| {
                for i in 0.. {
                    let a = fs
                        .create(&CX, Ino::ROOT, format!("f{i}").as_bytes(), 0o600)
                        .unwrap();
                    // Two inodes fill a block of 512 bytes.
                    if a.ino.0 % 2 == 1 && i > 2 {
                        break;
                    }
                }
            },
            |fs| {
                for i in 0..8 {
                    fs.create(&CX, Ino::ROOT, format!("new{i}").as_bytes(), 0o640)
                        .unwrap();
                }
            },
        )
        .blocks(512)
        .allow(Allowed::Between(|before, found, after| {
            found.nodes.len() >= before.nodes.len() && found.nodes.len() <= after.nodes.len()
        })),
        Case::new(
            "mkdir",
            |_| (),
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"dir", 0o750).unwrap();
            },
        ),
        Case::new(
            "mknod",
            |_| (),
            |fs| {
                fs.mknod(&CX, Ino::ROOT, b"pipe", libc::S_IFIFO | 0o600, 0)
                    .unwrap();
            },
        ),
        Case::new(
            "symlink",
            |_| (),
            |fs| {
                fs.symlink(&CX, Ino::ROOT, b"link", b"to/there").unwrap();
            },
        ),
        Case::new(
            "symlink with a long target",
            |_| (),
            |fs| {
                fs.symlink(&CX, Ino::ROOT, b"link", &[b'x'; 3000]).unwrap();
            },
        ),
        Case::new(
            "link",
            |fs| {
                file(fs, "f", b"contents");
            },
            |fs| {
                fs.link(ino(fs, "/f"), Ino::ROOT, b"other").unwrap();
            },
        ),
        Case::new(
            "create without a name",
            |_| (),
            |fs| {
                let unnamed = fs.holding().create_unnamed(&CX, Ino::ROOT, 0o640, true);
                let (held, made) = unnamed.unwrap();
                fs.write(&CX, made.ino, 0, &pattern(3000, 1)).unwrap();
                held.into_count();
            },
        ),
        Case::new(
            "link of a file without a name",
            |fs| {
                let unnamed = fs.holding().create_unnamed(&CX, Ino::ROOT, 0o640, true);
                let (held, made) = unnamed.unwrap();
                fs.write(&CX, made.ino, 0, &pattern(3000, 1)).unwrap();
                assert_eq!(held.into_count(), Ino(17));
            },
            |fs| {
                fs.link(Ino(17), Ino::ROOT, b"named").unwrap();
            },
        ),
        Case::new(
            "unlink of one of two names",
            |fs| {
                let f = file(fs, "f", b"contents");
                fs.link(f, Ino::ROOT, b"other").unwrap();
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
        ),
        Case::new(
            "unlink of a small file",
            |fs| {
                file(fs, "f", &pattern(9000, 1));
            },
            |fs| {
                fs.unlink(Ino::ROOT, b"f").unwrap();
            },
        ),
        Case::new(
            "unlink of a file with attributes",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                for i in 0..20 {
                    fs.setxattr(
                        &CX,
                        f,
                        format!("user.{i}").as_bytes(),
                        &pattern(i * 300, 1),
                        XattrMode::Set,
                    )
                    .unwrap();
                }
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
        ),
        Case::new(
            "unlink of a fragmented file",
            |fs| {
                fragmented(fs);
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
        )
        .blocks(512),
        Case::new(
            "unlink of an open file",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                fs.hold(f).into_count();
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
        ),
        Case::new(
            "last close of an unlinked file",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                fs.hold(f).into_count();
                fs.unlink(Ino::ROOT, b"f").unwrap();
                assert_eq!(f, Ino(17));
            },
            |fs| fs.release(Ino(17), 1),
        ),
        Case::new(
            "forgotten files",
            |fs| {
                file(fs, "stays", &pattern(9000, 2));
                for i in 0..5 {
                    let f = file(fs, &format!("f{i}"), &pattern(i * 3000, 1));
                    fs.hold(f).into_count();
                    fs.unlink(Ino::ROOT, format!("f{i}").as_bytes()).unwrap();
                    fs.forget(f, 1);
                }
            },
            |fs| assert!(fs.free_forgotten()),
        ),
        Case::new(
            "forgotten files, one of them fragmented",
            |fs| {
                file(fs, "a", &pattern(3000, 1));
                fragmented(fs);
                file(fs, "z", &pattern(3000, 1));
                for (name, f) in [("a", 17), ("f", 18), ("z", 19)] {
                    fs.hold(Ino(f)).into_count();
                    fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                    assert_eq!(fs.getattr(Ino(f)).unwrap().nlink, 0);
                }
            },
            |fs| (17..20).for_each(|i| fs.forget(Ino(i), 1)),
        )
        .blocks(512),
        Case::new(
            "rmdir",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap();
            },
            |fs| {
                fs.rmdir(Ino::ROOT, b"dir").unwrap();
            },
        ),
        Case::new(
            "rename in a directory",
            |fs| {
                file(fs, "a", b"1");
                file(fs, "b", b"2");
            },
            |fs| rename(fs, "/", "a", "/", "c", RenameFlags::default()),
        ),
        Case::new(
            "rename over a file",
            |fs| {
                file(fs, "a", b"1");
                file(fs, "b", &pattern(5000, 2));
            },
            |fs| rename(fs, "/", "a", "/", "b", RenameFlags::default()),
        ),
        Case::new(
            "rename of a directory across directories",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(fs, "/d", "sub", "/e", "moved", RenameFlags::default()),
        ),
        Case::new(
            "rename over an empty directory",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(fs, "/d", "sub", "/e", "empty", RenameFlags::default()),
        ),
        Case::new(
            "rename with exchange",
            |fs| {
                two_directories(fs);
            },
            |fs| {
                rename(
                    fs,
                    "/d",
                    "sub",
                    "/e",
                    "file",
                    RenameFlags {
                        exchange: true,
                        ..Default::default()
                    },
                )
            },
        ),
        Case::new(
            "rename with a whiteout",
            |fs| {
                two_directories(fs);
            },
            |fs| {
                rename(
                    fs,
                    "/e",
                    "file",
                    "/d",
                    "file",
                    RenameFlags {
                        whiteout: true,
                        ..Default::default()
                    },
                )
            },
        ),
        Case::new(
            "append to an empty file",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                fs.append(&CX, ino(fs, "/f"), &pattern(5000, 5)).unwrap();
            },
        ),
        Case::new(
            "append within a block",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.append(&CX, ino(fs, "/f"), &pattern(500, 6)).unwrap();
            },
        ),
        Case::new(
            "append into preallocated blocks",
            |fs| {
                let f = file(fs, "f", &pattern(1000, 5));
                fs.fallocate(&CX, f, Fallocate::Allocate { keep_size: true }, 0, 64 << 10)
                    .unwrap();
            },
            |fs| {
                fs.append(&CX, ino(fs, "/f"), &pattern(9000, 6)).unwrap();
            },
        ),
        Case::new(
            "append of blocks to an open file",
            |fs| {
                file(fs, "f", &pattern(4096, 5));
                file(fs, "beside", b"one block");
            },
            |fs| {
                let f = fs.open_file(ino(fs, "/f")).unwrap();
                for blocks in [1, 1, 2, 1] {
                    f.append(&pattern(blocks * 4096, 6)).unwrap();
                }
            },
        )
        .allow(Allowed::Between(|before, found, after| {
            grown(before, found, after, &[1, 2, 3, 5, 6].map(|n| n * 4096))
        })),
        Case::new(
            "append of a block to an open file, behind those of another",
            |fs| {
                let f = file(fs, "f", &pattern(3 * 512, 5));
                file(fs, "beside", &pattern(512, 4));
                // At an offset that another file used, and a pointer block.
                file(fs, "old", &pattern(20 * 512, 3));
                fs.append(&CX, f, &pattern(512, 6)).unwrap();
                fs.unlink(Ino::ROOT, b"old").unwrap();
            },
            |fs| {
                let f = fs.open_file(ino(fs, "/f")).unwrap();
                for fill in 0..4 {
                    f.append(&pattern(512, fill)).unwrap();
                }
            },
        )
        .blocks(512)
        .allow(Allowed::Between(|before, found, after| {
            grown(before, found, after, &[4, 5, 6, 7, 8].map(|n| n * 512))
        })),
        Case::new(
            "write far past the end",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.write(&CX, ino(fs, "/f"), 300_000, &pattern(500, 6))
                    .unwrap();
            },
        ),
        // Zeros around it replace the old contents of the block.
        Case::new(
            "write into a hole, to a block that was another file's",
            |fs| {
                let f = file(fs, "f", &pattern(1300, 1));
                let old = file(fs, "old", b"");
                while fs.append(&CX, old, &pattern(4096, 3)).is_ok() {}
                fs.unlink(Ino::ROOT, b"old").unwrap();
                let longer = SetAttr {
                    size: Some(3000),
                    ..SetAttr::default()
                };
                fs.setattr(&CX, f, &longer).unwrap();
            },
            |fs| {
                fs.write(&CX, ino(fs, "/f"), 2100, &pattern(100, 2))
                    .unwrap();
            },
        )
        .blocks(512),
        Case::new(
            "write of many scattered blocks",
            |fs| {
                scatter(fs);
                file(fs, "f", b"");
            },
            |fs| {
                fs.write(&CX, ino(fs, "/f"), 0, &pattern(100_000, 8))
                    .unwrap();
            },
        )
        .blocks(512)
        .allow(Allowed::Between(|before, found, after| {
            prefix(before, found, after)
        })),
        Case::new(
            "overwrite of a word",
            |fs| {
                file(fs, "f", &pattern(5000, 5));
            },
            |fs| {
                fs.write(&CX, ino(fs, "/f"), 4096, &[9; 8]).unwrap();
            },
        )
        .allow(Allowed::Lagging),
        Case::new(
            "copy of pieces that end amid words",
            |fs| {
                let files = [file(fs, "f", b""), file(fs, "g", b"")];
                // The third block is a hole, and the source ends amid a block.
                for at in [0, 512, 1536, 2048] {
                    for f in files {
                        fs.write(&CX, f, at, &pattern(509, at)).unwrap();
                    }
                }
                file(fs, "to", &pattern(3000, 7));
            },
            |fs| {
                let copied = fs.copy_range(&CX, (ino(fs, "/f"), 5), (ino(fs, "/to"), 3), 2552);
                assert_eq!(copied.unwrap(), 2552);
            },
        )
        .blocks(512)
        .allow(Allowed::Words {
            path: "/to",
            range: (3, 2555),
        }),
        Case::new(
            "truncate to a shorter size",
            |fs| {
                file(fs, "f", &pattern(30_000, 5));
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(5000),
                        ..SetAttr::default()
                    },
                );
            },
        ),
        Case::new(
            "gather of a scattered part",
            |fs| {
                let files = [file(fs, "f", b""), file(fs, "g", b"")];
                for at in (0..30_000).step_by(512) {
                    for f in files {
                        fs.write(&CX, f, at, &pattern(512, at)).unwrap();
                    }
                }
            },
            |fs| assert_eq!(fs.gather(ino(fs, "/f"), 0).unwrap(), Gathered::Moved),
        )
        .blocks(512),
        Case::new(
            "vacate of a leaf in part",
            |fs| {
                let files = [file(fs, "f", b""), file(fs, "g", b"")];
                for at in (0..30_000).step_by(512) {
                    for f in files {
                        fs.write(&CX, f, at, &pattern(512, at)).unwrap();
                    }
                }
            },
            |fs| assert!(vacate(fs, ino(fs, "/f")).unwrap()),
        )
        .blocks(512),
        Case::new(
            "truncate of a fragmented file",
            |fs| {
                fragmented(fs);
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(700),
                        ..SetAttr::default()
                    },
                );
            },
        )
        .blocks(512),
        Case::new(
            "truncate to a longer size",
            |fs| {
                let f = file(fs, "f", &pattern(30_000, 5));
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(5000),
                        ..SetAttr::default()
                    },
                );
                fs.fsync(f, false).unwrap();
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(100_000),
                        ..SetAttr::default()
                    },
                );
            },
        ),
        Case::new(
            "fallocate",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.fallocate(
                    &CX,
                    ino(fs, "/f"),
                    Fallocate::Allocate { keep_size: false },
                    0,
                    50_000,
                )
                .unwrap();
            },
        ),
        Case::new(
            "punch a hole of whole blocks",
            |fs| {
                file(fs, "f", &pattern(40_000, 5));
            },
            |fs| {
                fs.fallocate(&CX, ino(fs, "/f"), Fallocate::PunchHole, 8192, 16384)
                    .unwrap();
            },
        ),
        Case::new(
            "fill for a mapping",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 5));
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(60_000),
                        ..SetAttr::default()
                    },
                );
                fs.fallocate(
                    &CX,
                    f,
                    Fallocate::Allocate { keep_size: true },
                    20_000,
                    10_000,
                )
                .unwrap();
            },
            |fs| fs.fill(ino(fs, "/f"), 0, 60_000).unwrap(),
        ),
        Case::new(
            "fsync of lagging times",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 5));
                fs.write(&CX, f, 0, b"x").unwrap();
            },
            |fs| fs.fsync(ino(fs, "/f"), false).unwrap(),
        ),
    ]
}

fn rename(fs: &Fs, from: &str, name: &str, to: &str, new_name: &str, flags: RenameFlags) {
    let (from, to) = (ino(fs, from), ino(fs, to));
    fs.rename(&CX, from, name.as_bytes(), to, new_name.as_bytes(), flags)
        .unwrap();
}

/// `/d/sub/`, `/e/file`, `/e/empty/`.
fn two_directories(fs: &Fs) {
    let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let e = fs.mkdir(&CX, Ino::ROOT, b"e", 0o755).unwrap().ino;
    fs.mkdir(&CX, d, b"sub", 0o755).unwrap();
    fs.mkdir(&CX, e, b"empty", 0o755).unwrap();
    let f = fs.create(&CX, e, b"file", 0o644).unwrap().ino;
    fs.write(&CX, f, 0, b"in e").unwrap();
}

/// A region without long runs of free blocks.
fn scatter(fs: &Fs) {
    let f = file(fs, "scattered", &pattern(200_000, 9));
    for at in (0..200_000).step_by(2048) {
        fs.fallocate(&CX, f, Fallocate::PunchHole, at, 512).unwrap();
    }
}

/// A write from offset 0 into an empty file that stopped somewhere.
fn prefix(before: &Tree, found: &Tree, after: &Tree) -> bool {
    found == before
        || found == after
        || found.nodes.keys().eq(after.nodes.keys())
            && found.nodes.iter().all(|(path, n)| {
                let whole = &after.nodes[path];
                n.data.len() as u64 == n.size && whole.data.starts_with(&n.data)
            })
}

/// Appends to `/f`, each of which is atomic.
fn grown(before: &Tree, found: &Tree, after: &Tree, sizes: &[u64]) -> bool {
    found.nodes.keys().eq(after.nodes.keys())
        && found.nodes.iter().all(|(path, n)| {
            let whole = &after.nodes[path];
            let grows = path == b"/f"
                && n.data.len() as u64 == n.size
                && n.data.len() >= before.nodes[path].data.len()
                && sizes.contains(&n.size)
                && whole.data.starts_with(&n.data);
            n == whole || grows
        })
}

#[test]
fn crash_in_operation_leaves_old_or_new_state() {
    sweep_all(&cases());
}
