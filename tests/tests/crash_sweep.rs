//! Crashes in each kind of operation: at every fence that its run records, the
//! images that a power failure could leave are mounted, and must show the file
//! system as it was before the operation or as it is after it.
//!
//! The operations that are chains of records say what may be seen between.

use std::sync::Arc;

use pramfs::journal::{Rules, set_thread_lane};
use pramfs::media::inode::{FL_IMMUTABLE, FL_NOATIME, FL_NODUMP};
use pramfs::{Ctx, Fallocate, Fs, Ino, RenameFlags, SetAttr, XattrMode};
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::oracle::Oracle;
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, recovered_tree};
use pramfs_tests::region::repeatable;
use pramfs_tests::tree::Tree;

/// What a crash in an operation may leave.
enum Allowed {
    /// The state before or after.
    Exact,
    /// The same, but times of inodes may be old.
    Lagging,
    /// Anything that the check accepts, given the states before and after.
    Between(fn(&Tree, &Tree, &Tree) -> bool),
}

struct Case {
    name: &'static str,
    block_size: u32,
    setup: fn(&Fs),
    run: fn(&Fs),
    allowed: Allowed,
}

const CX: Ctx = Ctx {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn ino(fs: &Fs, path: &str) -> Ino {
    fs.resolve(path.as_bytes()).unwrap().ino
}

fn file(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let f = fs
        .create(&CX, Ino::ROOT, name.as_bytes(), 0o644)
        .unwrap()
        .ino;
    assert_eq!(fs.write(f, 0, data).unwrap(), data.len());
    f
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

/// A region of the size of most cases.
const LEN: usize = 512 << 10;

/// Single lines, some pairs and some random combinations: what all of them
/// leave, of other operations, is the explorer's.
const LIMITS: Limits = Limits {
    lines: 3,
    pairs: 12,
    random: 6,
    torn: Torn::Edges,
};

fn sweep(case: &Case) -> usize {
    set_thread_lane(0);
    let mut format = repeatable(case.block_size);
    format.lanes = Some(2);
    let mut rec = Recorded::new(LEN, &format, Rules::default());
    // The inode table grows by a record of its own, which is another case.
    rec.fs.create(&CX, Ino::ROOT, b"first", 0o600).unwrap();
    (case.setup)(&rec.fs);
    let from = rec.now();
    let before = recovered_tree(&rec.sim.image()).unwrap();
    (case.run)(&rec.fs);
    let to = rec.now();
    let after = recovered_tree(&rec.sim.image()).unwrap();
    let live = Tree::of(&rec.fs).unwrap();
    let settled = |t: &Tree| Tree {
        free: after.free,
        free_inodes: after.free_inodes,
        ..t.clone()
    };
    if !matches!(case.allowed, Allowed::Lagging) {
        let d = after.differences(&settled(&live));
        assert!(
            d.is_empty(),
            "{}: recovery changes the state:\n{d}",
            case.name
        );
    }
    let events = rec.events()[from..to].to_vec();
    let mut oracle = Oracle::new(&Arc::default(), rec.start()).unwrap();
    let free = |t: &Tree| Tree {
        free: 0,
        free_inodes: 0,
        ..t.clone()
    };
    // The oracle's check knows what is free.
    let (before, after) = (free(&before), free(&after));
    oracle.everywhere(rec.at(from), &events, &LIMITS, &mut |moment, found| {
        let at = || format!("{}: crash at event {moment} of {}", case.name, events.len());
        let found = match found {
            Ok(state) => &state.tree,
            Err(e) => panic!("{}: {e}", at()),
        };
        let returned = moment == events.len();
        let ok = match case.allowed {
            Allowed::Exact if !returned => *found == before || *found == after,
            Allowed::Exact => *found == after,
            Allowed::Lagging => {
                let t = found.clone().timeless();
                t == before.clone().timeless() || t == after.clone().timeless()
            }
            Allowed::Between(_) if returned => *found == after,
            Allowed::Between(f) => f(&before, found, &after),
        };
        assert!(
            ok,
            "{}\n--- against the state before:\n{}--- against the state after:\n{}",
            at(),
            before.differences(found),
            after.differences(found)
        );
    })
}

fn cases() -> Vec<Case> {
    macro_rules! case {
        ($name:literal, $setup:expr, $run:expr $(, $field:ident = $value:expr)*) => {
            {
                let plain = Case { name: $name, setup: $setup, run: $run, ..plain_case() };
                $(let plain = Case { $field: $value, ..plain };)*
                plain
            }
        };
    }
    vec![
        case!(
            "create in an empty directory",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap();
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o640).unwrap();
            }
        ),
        case!(
            "create beside others",
            |fs| {
                for i in 0..5 {
                    file(fs, &format!("f{i}"), b"");
                }
            },
            |fs| {
                fs.create(&CX, Ino::ROOT, b"new", 0o640).unwrap();
            }
        ),
        case!(
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
            block_size = 512
        ),
        case!(
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
            block_size = 512,
            allowed = Allowed::Between(|before, found, after| {
                found.nodes.len() >= before.nodes.len() && found.nodes.len() <= after.nodes.len()
            })
        ),
        case!("mkdir", |_| (), |fs| {
            fs.mkdir(&CX, Ino::ROOT, b"dir", 0o750).unwrap();
        }),
        case!("mknod", |_| (), |fs| {
            fs.mknod(&CX, Ino::ROOT, b"pipe", libc::S_IFIFO | 0o600, 0)
                .unwrap();
        }),
        case!("symlink", |_| (), |fs| {
            fs.symlink(&CX, Ino::ROOT, b"link", b"to/there").unwrap();
        }),
        case!("symlink with a long target", |_| (), |fs| {
            fs.symlink(&CX, Ino::ROOT, b"link", &[b'x'; 3000]).unwrap();
        }),
        case!(
            "link",
            |fs| {
                file(fs, "f", b"contents");
            },
            |fs| {
                fs.link(ino(fs, "/f"), Ino::ROOT, b"other").unwrap();
            }
        ),
        case!(
            "unlink of one of two names",
            |fs| {
                let f = file(fs, "f", b"contents");
                fs.link(f, Ino::ROOT, b"other").unwrap();
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap()
        ),
        case!(
            "unlink of a small file",
            |fs| {
                file(fs, "f", &pattern(9000, 1));
            },
            |fs| {
                fs.unlink(Ino::ROOT, b"f").unwrap();
            }
        ),
        case!(
            "unlink of a file with attributes",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                for i in 0..20 {
                    fs.setxattr(
                        f,
                        format!("user.{i}").as_bytes(),
                        &pattern(i * 300, 1),
                        XattrMode::Set,
                    )
                    .unwrap();
                }
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
            // The name goes first, all the rest with it: recovery finishes it.
            allowed = Allowed::Exact
        ),
        case!(
            "unlink of a fragmented file",
            |fs| {
                fragmented(fs);
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap(),
            block_size = 512
        ),
        case!(
            "unlink of an open file",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                fs.pin(f, 1);
            },
            |fs| fs.unlink(Ino::ROOT, b"f").unwrap()
        ),
        case!(
            "last close of an unlinked file",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 1));
                fs.pin(f, 1);
                fs.unlink(Ino::ROOT, b"f").unwrap();
                assert_eq!(f, Ino(17));
            },
            |fs| fs.unpin(Ino(17), 1)
        ),
        case!(
            "rmdir",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap();
            },
            |fs| {
                fs.rmdir(Ino::ROOT, b"dir").unwrap();
            }
        ),
        case!(
            "rename in a directory",
            |fs| {
                file(fs, "a", b"1");
                file(fs, "b", b"2");
            },
            |fs| rename(fs, "/", "a", "/", "c", RenameFlags::default())
        ),
        case!(
            "rename over a file",
            |fs| {
                file(fs, "a", b"1");
                file(fs, "b", &pattern(5000, 2));
            },
            |fs| rename(fs, "/", "a", "/", "b", RenameFlags::default())
        ),
        case!(
            "rename of a directory across directories",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(fs, "/d", "sub", "/e", "moved", RenameFlags::default())
        ),
        case!(
            "rename over an empty directory",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(fs, "/d", "sub", "/e", "empty", RenameFlags::default())
        ),
        case!(
            "rename with exchange",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(
                fs,
                "/d",
                "sub",
                "/e",
                "file",
                RenameFlags {
                    exchange: true,
                    ..Default::default()
                }
            )
        ),
        case!(
            "rename with a whiteout",
            |fs| {
                two_directories(fs);
            },
            |fs| rename(
                fs,
                "/e",
                "file",
                "/d",
                "file",
                RenameFlags {
                    whiteout: true,
                    ..Default::default()
                }
            )
        ),
        case!(
            "chmod",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        perm: Some(0o4711),
                        ..SetAttr::default()
                    },
                );
            }
        ),
        case!(
            "chown",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        uid: Some(7),
                        gid: Some(8),
                        ..SetAttr::default()
                    },
                );
            }
        ),
        case!(
            "chmod of a file with an ACL",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| setattr(
                fs,
                "/f",
                SetAttr {
                    perm: Some(0o2751),
                    ..SetAttr::default()
                }
            )
        ),
        case!(
            "an ACL for a file that others have the right to",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| set_list(fs, ino(fs, "/f"), "access", 0o600)
        ),
        case!(
            "an ACL that a mode can say, over one that it cannot",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| fs
                .setxattr(ino(fs, "/f"), ACCESS, &list(0o604, false), XattrMode::Set)
                .unwrap()
        ),
        case!(
            "an ACL is removed",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| fs.removexattr(ino(fs, "/f"), ACCESS).unwrap()
        ),
        case!(
            "create under a default ACL",
            |fs| {
                let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
                set_list(fs, d, "default", 0o750);
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o666).unwrap();
            }
        ),
        case!(
            "mkdir under a default ACL",
            |fs| {
                let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
                set_list(fs, d, "default", 0o750);
            },
            |fs| {
                fs.mkdir(&CX, ino(fs, "/d"), b"new", 0o777).unwrap();
            },
            block_size = 512
        ),
        case!(
            "chattr",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| setattr(
                fs,
                "/f",
                SetAttr {
                    flags: Some(FL_IMMUTABLE | FL_NOATIME),
                    ..SetAttr::default()
                }
            )
        ),
        case!(
            "create in a directory that hands its flags down",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap();
                setattr(
                    fs,
                    "/d",
                    SetAttr {
                        flags: Some(FL_NODUMP | FL_NOATIME),
                        ..SetAttr::default()
                    },
                );
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o666).unwrap();
            }
        ),
        case!(
            "a trim after an unlink",
            |fs| {
                file(fs, "f", &pattern(40_000, 1));
                file(fs, "g", &pattern(9_000, 2));
                fs.unlink(Ino::ROOT, b"f").unwrap();
            },
            |fs| {
                fs.trim(0, u64::MAX, 0).unwrap();
            }
        ),
        case!(
            "a truncation by who may not keep sgid",
            |fs| {
                let f = file(fs, "f", &pattern(30_000, 5));
                let set = SetAttr {
                    perm: Some(0o2644),
                    ..SetAttr::default()
                };
                fs.setattr(&CX, f, &set).unwrap();
            },
            |fs| {
                let set = SetAttr {
                    size: Some(5000),
                    ..SetAttr::default()
                };
                let a = fs.setattr_by(&CX, ino(fs, "/f"), &set, &|_| false).unwrap();
                assert_eq!(a.perm, 0o644);
            }
        ),
        case!(
            "a truncation and a mode in one call, of a fragmented file with an ACL",
            |fs| {
                fragmented(fs);
                set_list(fs, ino(fs, "/f"), "access", 0o640);
            },
            |fs| setattr(
                fs,
                "/f",
                SetAttr {
                    size: Some(700),
                    perm: Some(0o755),
                    ..SetAttr::default()
                }
            ),
            block_size = 512
        ),
        case!(
            "setxattr",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                fs.setxattr(ino(fs, "/f"), b"user.a", b"value", XattrMode::Set)
                    .unwrap();
            }
        ),
        case!(
            "setxattr of a large value over a large value",
            |fs| {
                let f = file(fs, "f", b"");
                fs.setxattr(f, b"user.a", &pattern(20_000, 3), XattrMode::Set)
                    .unwrap();
            },
            |fs| {
                fs.setxattr(
                    ino(fs, "/f"),
                    b"user.a",
                    &pattern(30_000, 4),
                    XattrMode::Set,
                )
                .unwrap();
            }
        ),
        case!(
            "removexattr",
            |fs| {
                let f = file(fs, "f", b"");
                fs.setxattr(f, b"user.a", &pattern(20_000, 3), XattrMode::Set)
                    .unwrap();
            },
            |fs| fs.removexattr(ino(fs, "/f"), b"user.a").unwrap()
        ),
        case!(
            "append to an empty file",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                fs.append(ino(fs, "/f"), &pattern(5000, 5)).unwrap();
            }
        ),
        case!(
            "append within a block",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.append(ino(fs, "/f"), &pattern(500, 6)).unwrap();
            }
        ),
        case!(
            "append into preallocated blocks",
            |fs| {
                let f = file(fs, "f", &pattern(1000, 5));
                fs.fallocate(f, Fallocate::Allocate { keep_size: true }, 0, 64 << 10)
                    .unwrap();
            },
            |fs| {
                fs.append(ino(fs, "/f"), &pattern(9000, 6)).unwrap();
            }
        ),
        case!(
            "write far past the end",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.write(ino(fs, "/f"), 300_000, &pattern(500, 6)).unwrap();
            }
        ),
        case!(
            "write of many scattered blocks",
            |fs| {
                scatter(fs);
                file(fs, "f", b"");
            },
            |fs| {
                fs.write(ino(fs, "/f"), 0, &pattern(100_000, 8)).unwrap();
            },
            block_size = 512,
            allowed = Allowed::Between(|before, found, after| { prefix(before, found, after) })
        ),
        case!(
            "overwrite of a word",
            |fs| {
                file(fs, "f", &pattern(5000, 5));
            },
            |fs| {
                fs.write(ino(fs, "/f"), 4096, &[9; 8]).unwrap();
            },
            allowed = Allowed::Lagging
        ),
        case!(
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
            }
        ),
        case!(
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
            block_size = 512
        ),
        case!(
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
            }
        ),
        case!(
            "fallocate",
            |fs| {
                file(fs, "f", &pattern(1000, 5));
            },
            |fs| {
                fs.fallocate(
                    ino(fs, "/f"),
                    Fallocate::Allocate { keep_size: false },
                    0,
                    50_000,
                )
                .unwrap();
            }
        ),
        case!(
            "punch a hole of whole blocks",
            |fs| {
                file(fs, "f", &pattern(40_000, 5));
            },
            |fs| {
                fs.fallocate(ino(fs, "/f"), Fallocate::PunchHole, 8192, 16384)
                    .unwrap();
            }
        ),
        case!(
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
                fs.fallocate(f, Fallocate::Allocate { keep_size: true }, 20_000, 10_000)
                    .unwrap();
            },
            |fs| fs.fill(ino(fs, "/f"), 0, 60_000).unwrap()
        ),
        case!(
            "fsync of lagging times",
            |fs| {
                let f = file(fs, "f", &pattern(9000, 5));
                fs.write(f, 0, b"x").unwrap();
            },
            |fs| fs.fsync(ino(fs, "/f"), false).unwrap()
        ),
    ]
}

fn plain_case() -> Case {
    Case {
        name: "",
        block_size: 4096,
        setup: |_| (),
        run: |_| (),
        allowed: Allowed::Exact,
    }
}

fn rename(fs: &Fs, from: &str, name: &str, to: &str, new_name: &str, flags: RenameFlags) {
    let (from, to) = (ino(fs, from), ino(fs, to));
    fs.rename(&CX, from, name.as_bytes(), to, new_name.as_bytes(), flags)
        .unwrap();
}

fn setattr(fs: &Fs, path: &str, set: SetAttr) {
    fs.setattr(&CX, ino(fs, path), &set).unwrap();
}

const ACCESS: &[u8] = b"system.posix_acl_access";

/// A list that allows what the mode says, and names user 9 if asked to.
fn list(mode: u32, named: bool) -> Vec<u8> {
    let digit = |shift: u32| (mode >> shift & 7) as u8;
    let nobody = u32::MAX;
    let mut entries = vec![(1, digit(6), nobody)];
    if named {
        entries.push((2, 7, 9));
    }
    entries.push((4, digit(3), nobody));
    if named {
        entries.push((16, digit(3), nobody));
    }
    entries.push((32, digit(0), nobody));
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend([tag, 0, perm, 0]);
        value.extend(u32::to_le_bytes(id));
    }
    value
}

fn set_list(fs: &Fs, ino: Ino, which: &str, mode: u32) {
    let name = format!("system.posix_acl_{which}");
    fs.setxattr(ino, name.as_bytes(), &list(mode, true), XattrMode::Set)
        .unwrap();
}

/// `/d/sub/`, `/e/file`, `/e/empty/`.
fn two_directories(fs: &Fs) {
    let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let e = fs.mkdir(&CX, Ino::ROOT, b"e", 0o755).unwrap().ino;
    fs.mkdir(&CX, d, b"sub", 0o755).unwrap();
    fs.mkdir(&CX, e, b"empty", 0o755).unwrap();
    let f = fs.create(&CX, e, b"file", 0o644).unwrap().ino;
    fs.write(f, 0, b"in e").unwrap();
}

/// A region without long runs of free blocks.
fn scatter(fs: &Fs) {
    let f = file(fs, "scattered", &pattern(200_000, 9));
    for at in (0..200_000).step_by(2048) {
        fs.fallocate(f, Fallocate::PunchHole, at, 512).unwrap();
    }
}

/// `/f`, whose blocks take several records to free.
fn fragmented(fs: &Fs) {
    let f = file(fs, "f", b"");
    for i in 0..40u64 {
        fs.write(f, i << 24, &pattern(600, i)).unwrap();
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

#[test]
fn a_crash_in_an_operation_leaves_the_state_before_or_after() {
    let mut images = 0;
    let only = std::env::var("CASE").ok();
    for case in cases() {
        if only
            .as_ref()
            .is_some_and(|o| !case.name.contains(o.as_str()))
        {
            continue;
        }
        let n = sweep(&case);
        println!("{:50} {n:5} images", case.name);
        images += n;
    }
    println!("{images} images");
}
