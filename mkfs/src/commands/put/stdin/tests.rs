//! `put -` with input that fails half-way, and with attributes to keep.

use std::io;
use std::path::PathBuf;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::Time;
use pramfs::pmem::RegionOptions;

use super::*;

/// Gives some bytes, and then an error.
struct Broken(u64);

impl Read for Broken {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the pipe broke"));
        }
        let n = into.len().min(self.0 as usize);
        into[..n].fill(b'n');
        self.0 -= n as u64;
        Ok(n)
    }
}

fn mounted() -> Fs {
    let region = RegionOptions::new().memfd("put", 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    Fs::open(region, MountOptions::default()).unwrap()
}

fn to(path: &str) -> Put {
    Put {
        region: PathBuf::new(),
        source: vec!["-".into()],
        destination: path.into(),
        recursive: false,
        force: true,
    }
}

fn contents(fs: &Fs, path: &str) -> Vec<u8> {
    let found = fs.resolve(path).unwrap();
    let mut bytes = vec![0; found.size as usize];
    assert_eq!(fs.read(found.ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn all_names(fs: &Fs, dir: Ino) -> Vec<Vec<u8>> {
    let entries = tree::entries(fs, b"/", dir).unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn put_of_input_that_fails_half_way_leaves_old_file_and_nothing_else() {
    let fs = mounted();
    copy(&to("/file"), &fs, &b"the old contents"[..]).unwrap();
    let (before, free) = (fs.resolve("/file").unwrap(), fs.statfs().unwrap());
    for bytes in [1, 3 * CHUNK as u64 + 5] {
        for path in ["/file", "/new"] {
            let failure = copy(&to(path), &fs, Broken(bytes)).unwrap_err();
            assert!(failure.message.contains("standard input"), "{failure:?}");
        }
    }
    assert_eq!(contents(&fs, "/file"), b"the old contents");
    assert_eq!(fs.resolve("/file").unwrap().ino, before.ino);
    assert_eq!(all_names(&fs, Ino::ROOT), [b"file"]);
    // Nor does a file without a name keep blocks.
    assert_eq!(fs.statfs().unwrap().free_inodes, free.free_inodes);
}

#[test]
fn put_over_file_keeps_owner_mode_flags_and_attributes() {
    let fs = mounted();
    let root = &Credentials::ROOT;
    let dir = fs.mkdir(root, Ino::ROOT, b"d", 0o2755).unwrap();
    let old = fs.create(&Credentials::new(7, 8), dir.ino, b"file", 0o640);
    let old = old.unwrap();
    let xattr = (b"user.colour", b"blue");
    fs.setxattr(root, old.ino, xattr.0, xattr.1, XattrMode::Set)
        .unwrap();
    // FS_NOATIME_FL.
    let set = SetAttr {
        uid: Some(7),
        gid: Some(8),
        perm: Some(0o4751),
        flags: Some(0x80),
        ..SetAttr::default()
    };
    let set_uid = SetAttr {
        perm: set.perm,
        ..SetAttr::default()
    };
    fs.setattr(root, old.ino, &set).unwrap();
    fs.setattr(root, old.ino, &set_uid).unwrap();
    // Another file has taken the name that would be used first.
    fs.create(root, dir.ino, b".pramfs-put-0", 0o600).unwrap();
    fs.symlink(root, Ino::ROOT, b"link", b"d/file").unwrap();

    copy(&to("/link"), &fs, &b"new"[..]).unwrap();
    let new = fs.resolve("/d/file").unwrap();
    assert_eq!(contents(&fs, "/d/file"), b"new");
    let told = |a: &Attr| (a.uid, a.gid, a.perm, a.flags, a.nlink);
    assert_eq!(told(&new), (7, 8, 0o4751, 0x80, 1));
    assert_eq!(fs.getxattr(new.ino, xattr.0).unwrap(), xattr.1);
    assert_eq!(
        all_names(&fs, dir.ino),
        [&b".pramfs-put-0"[..], &b"file"[..]]
    );
    assert_ne!(new.mtime, Time::default());
    let link = fs.lookup(Ino::ROOT, b"link").unwrap();
    assert_eq!(link.kind, FileType::Symlink);
}

#[test]
fn put_over_immutable_file_is_refused_before_reading() {
    let fs = mounted();
    copy(&to("/file"), &fs, &b"old"[..]).unwrap();
    let ino = fs.resolve("/file").unwrap().ino;
    let set = SetAttr {
        flags: Some(FL_IMMUTABLE),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
    let failure = copy(&to("/file"), &fs, Broken(0)).unwrap_err();
    assert!(failure.message.contains("/file"), "{failure:?}");
    assert_eq!(contents(&fs, "/file"), b"old");
}

#[test]
fn put_to_links_in_a_circle_is_refused() {
    let fs = mounted();
    let root = &Credentials::ROOT;
    fs.symlink(root, Ino::ROOT, b"a", b"b").unwrap();
    fs.symlink(root, Ino::ROOT, b"b", b"/a").unwrap();
    let failure = copy(&to("/a"), &fs, &b""[..]).unwrap_err();
    assert!(failure.message.starts_with("/a: "), "{failure:?}");
    // A link that leads nowhere makes the file there.
    fs.symlink(root, Ino::ROOT, b"ahead", b"made").unwrap();
    copy(&to("/ahead"), &fs, &b"x"[..]).unwrap();
    assert_eq!(contents(&fs, "/made"), b"x");
}
