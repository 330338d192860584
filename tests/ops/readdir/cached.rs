//! Repeated listings of a directory that changes: the kernel's cache of listings must not
//! be visible (`docs/semantics.md`, Directories).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use pramfs_tests::mounted::kernel_opens;
use rustix::fs::{CWD, Mode, OFlags, RawDir, RenameFlags};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, alone};
use crate::support::transcript::Transcript;

fn names(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).expect("list");
    let name = |e: std::io::Result<fs::DirEntry>| e.expect("an entry").file_name();
    entries
        .map(|e| name(e).to_string_lossy().into_owned())
        .collect()
}

#[test]
fn listing_shows_change_at_once() {
    agree("listing after a change", &[Tmpfs, Ext4], |dir, n| {
        let (d, other) = (dir.join("d"), dir.join("other"));
        fs::create_dir(&d).expect("a directory");
        fs::create_dir(&other).expect("a directory");
        fs::write(other.join("from elsewhere"), "").expect("a file");
        let all = |what: &str, n: &mut Transcript| {
            // More than once, so that the kernel has cached the listing.
            for _ in 0..3 {
                n.note(what, names(&d));
            }
            n.note(what, names(&other));
        };
        all("empty", n);
        fs::write(d.join("file"), "").expect("a file");
        all("file", n);
        fs::create_dir(d.join("sub")).expect("a directory");
        all("mkdir", n);
        std::os::unix::fs::symlink("file", d.join("symlink")).expect("a symlink");
        all("symlink", n);
        fs::hard_link(d.join("file"), d.join("second")).expect("a link");
        all("link", n);
        fs::rename(d.join("second"), d.join("third")).expect("rename");
        all("rename", n);
        fs::rename(d.join("third"), d.join("file")).expect("rename");
        all("rename to itself", n);
        fs::rename(other.join("from elsewhere"), d.join("new")).expect("rename");
        all("rename from elsewhere", n);
        fs::rename(d.join("new"), other.join("back")).expect("rename");
        all("rename to elsewhere", n);
        let (a, b) = (d.join("sub"), other.join("back"));
        rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("exchange");
        all("exchange", n);
        let types = fs::read_dir(&d).expect("list").map(|e| {
            let e = e.expect("an entry");
            (e.file_name(), e.file_type().expect("its type").is_dir())
        });
        n.note("types", types.collect::<BTreeSet<_>>());
        fs::remove_file(d.join("sub")).expect("unlink");
        all("unlink", n);
        fs::remove_dir(other.join("back")).expect("rmdir");
        all("rmdir", n);
        for name in ["file", "symlink"] {
            fs::remove_file(d.join(name)).expect("unlink");
        }
        all("empty again", n);
    });
}

/// Reads a part of a directory, removes the entry where the reader stopped, lists the
/// directory from another descriptor, and reads the rest. `keep`: entries left in the
/// rest. Returns how many of those the reader misses.
fn interrupted(dir: &Path, keep: usize) -> usize {
    let d = dir.join(format!("d-{keep}"));
    fs::create_dir(&d).expect("a directory");
    for i in 0..500 {
        fs::write(d.join(format!("name-{i}")), "").expect("a file");
    }
    // A kernel that caches listings now has this one and serves the next from it.
    names(&d);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&d, flags, Mode::empty()).expect("open the directory");
    // Half of the runs use the buffer size of a C library.
    let mut room = vec![std::mem::MaybeUninit::uninit(); 8192];
    let mut stream = RawDir::new(fd, &mut room);
    let mut seen = BTreeSet::new();
    let mut next = |seen: &mut BTreeSet<String>| {
        let entry = stream.next()?.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(
            name.starts_with('.') || seen.insert(name.clone()),
            "{name} twice"
        );
        Some(stream.is_buffer_empty())
    };
    while seen.len() < 250 {
        next(&mut seen).expect("more entries");
    }
    // The rest of the buffer.
    while !next(&mut seen).expect("more entries") {}
    // Removes the entries read so far, and all but a few of the others.
    for name in &seen {
        fs::remove_file(d.join(name)).expect("unlink");
    }
    let rest: Vec<_> = names(&d).into_iter().collect();
    for name in &rest[keep.min(rest.len())..] {
        fs::remove_file(d.join(name)).expect("unlink");
    }
    let left = names(&d);
    for _ in 0..3 {
        assert_eq!(names(&d), left);
    }
    let mut found = BTreeSet::new();
    while next(&mut found).is_some() {}
    // Removed names may still appear. Existing ones must.
    assert!(!left.is_empty(), "nothing is left to be missed");
    left.difference(&found).count()
}

#[test]
fn listing_in_progress_misses_no_name() {
    agree("interrupted listing", &[Tmpfs, Ext4], |dir, n| {
        // One directory that is still large, and one that has become small.
        for keep in [200, 5] {
            n.note("missed", interrupted(dir, keep));
        }
    });
}

/// Inode number of `..`, from a listing and from stat.
fn parent_in_listing(path: &Path) -> (u64, u64) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).expect("open the directory");
    let mut room = vec![std::mem::MaybeUninit::uninit(); 8192];
    let mut stream = RawDir::new(fd, &mut room);
    let mut listed = 0;
    while let Some(entry) = stream.next() {
        let entry = entry.expect("an entry");
        if entry.file_name() == c".." {
            listed = entry.ino();
        }
    }
    let parent = path.parent().expect("a parent");
    (listed, rustix::fs::stat(parent).expect("stat").st_ino)
}

#[test]
fn readdir_of_moved_directory_shows_new_parent() {
    for options in ["", "noatime"] {
        alone(&format!("moved directories, {options}"), options, |mount| {
            let [a, b] = ["a", "b"].map(|name| mount.at(name));
            for d in [&a, &b] {
                fs::create_dir_all(d.join("d")).expect("a directory");
            }
            let check = |path: &Path| {
                for _ in 0..3 {
                    let (listed, is) = parent_in_listing(path);
                    assert_eq!(listed, is, "{}", path.display());
                }
            };
            check(&a.join("d"));
            check(&b.join("d"));
            fs::rename(a.join("d"), b.join("moved")).expect("rename");
            check(&b.join("moved"));
            fs::create_dir(a.join("d")).expect("a directory");
            check(&a.join("d"));
            let (x, y) = (a.join("d"), b.join("d"));
            rustix::fs::renameat_with(CWD, &x, CWD, &y, RenameFlags::EXCHANGE).expect("exchange");
            check(&x);
            check(&y);
        });
    }
}

#[test]
fn listing_sets_due_atime() {
    let tick = || std::thread::sleep(Duration::from_millis(30));
    for (option, expected) in [
        // After a change of the entries, again, after chmod, a new attribute and a move
        // of the directory, and again. For the root: after a change, again, and after
        // chmod.
        (
            "relatime",
            [true, false, true, true, true, false, true, false, true],
        ),
        // With `opens=kernel`, as with relatime.
        (
            "strictatime",
            match kernel_opens() {
                false => [true; 9],
                true => [true, false, true, true, true, false, true, false, true],
            },
        ),
        ("noatime", [false; 9]),
        ("nodiratime", [false; 9]),
    ] {
        alone(&format!("listing, {option}"), option, |mount| {
            let (d, moved, root) = (mount.at("d"), mount.at("other/moved"), mount.at(""));
            fs::create_dir(&d).expect("a directory");
            fs::create_dir(mount.at("other")).expect("a directory");
            tick();
            fs::write(d.join("f"), "").expect("a file");
            let listed = |d: &Path| {
                let atime = |d: &Path| {
                    let s = rustix::fs::stat(d).expect("stat");
                    (s.st_atime, s.st_atime_nsec)
                };
                let before = atime(d);
                tick();
                names(d);
                atime(d) > before
            };
            let chmod = |d: &Path, mode| {
                tick();
                fs::set_permissions(d, fs::Permissions::from_mode(mode)).expect("chmod");
            };
            let mut got = vec![listed(&d), listed(&d)];
            chmod(&d, 0o700);
            got.push(listed(&d));
            tick();
            rustix::fs::setxattr(&d, "user.a", b"b", rustix::fs::XattrFlags::empty())
                .expect("setxattr");
            got.push(listed(&d));
            tick();
            fs::rename(&d, &moved).expect("rename");
            got.push(listed(&moved));
            got.push(listed(&moved));
            got.push(listed(&root));
            got.push(listed(&root));
            chmod(&root, 0o711);
            got.push(listed(&root));
            assert_eq!(got, expected, "{option}");
        });
    }
}
