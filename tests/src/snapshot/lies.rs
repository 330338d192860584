//! A file system that contradicts itself, in each way that the reading detects.

use std::ops::Range;

use pramfs::{
    FileType, XattrMode,
    inode::{Credentials, Fs, Ino},
};

use super::source::Entry;
use super::*;
use crate::region::{SMALLEST, formatted, mount, quiet, repeatable};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    EntryInode,
    EntryKind,
    DotInode,
    ListedTwice,
    DirectoryLinks,
    FileLinks,
    ShortRead,
    TargetLength,
    Unreadable,
    XattrUnreadable,
}

struct Liar<'f>(&'f Fs, Lie);

type Result<T> = std::result::Result<T, Trouble>;

impl Source for Liar<'_> {
    type Handle = Ino;

    fn root(&self) -> Result<Ino> {
        self.0.root()
    }
    fn find(&self, dir: &Ino, name: &[u8]) -> Result<Ino> {
        self.0.find(dir, name)
    }
    fn by_ino(&self, ino: Ino) -> Option<Ino> {
        self.0.by_ino(ino)
    }
    fn attributes(&self, node: &Ino) -> Result<Node> {
        let mut n = self.0.attributes(node)?;
        let wrong = match self.1 {
            Lie::DirectoryLinks => n.is_dir(),
            Lie::FileLinks => n.kind == FileType::Regular,
            _ => false,
        };
        n.nlink += u32::from(wrong);
        Ok(n)
    }
    fn list(&self, dir: &Ino, into: &mut Vec<Entry>) -> Result<()> {
        self.0.list(dir, into)?;
        for e in into.iter_mut() {
            match self.1 {
                Lie::EntryInode if e.name == b"file" => e.ino.0 += 1,
                Lie::EntryKind if e.name == b"file" => e.kind = FileType::Fifo,
                Lie::DotInode if e.name == b".." => e.ino.0 += 1,
                _ => {}
            }
        }
        if self.1 == Lie::ListedTwice {
            self.0.list(dir, into)?;
        }
        Ok(())
    }
    fn bytes(&self, node: &Ino, at: u64, into: &mut [u8]) -> Result<usize> {
        match self.1 {
            Lie::Unreadable if at == 0 => Err(Trouble::contradiction("damaged")),
            Lie::ShortRead => Ok(self.0.bytes(node, at, into)?.saturating_sub(1)),
            _ => self.0.bytes(node, at, into),
        }
    }
    fn next_data(&self, node: &Ino, at: u64) -> Result<Option<Range<u64>>> {
        self.0.next_data(node, at)
    }
    fn allocated(&self, node: &Ino, size: u64) -> Result<Vec<Piece>> {
        self.0.allocated(node, size)
    }
    fn target(&self, node: &Ino) -> Result<Vec<u8>> {
        let mut target = self.0.target(node)?;
        if self.1 == Lie::TargetLength {
            target.pop();
        }
        Ok(target)
    }
    fn xattr_names(&self, node: &Ino) -> Result<Vec<Vec<u8>>> {
        self.0.xattr_names(node)
    }
    fn xattr(&self, node: &Ino, name: &[u8]) -> Result<Vec<u8>> {
        match self.1 {
            Lie::XattrUnreadable => Err(Trouble::contradiction("damaged")),
            _ => self.0.xattr(node, name),
        }
    }
    fn totals(&self) -> Result<(u64, u64, String)> {
        self.0.totals()
    }
}

fn filled() -> Fs {
    let sim = formatted(SMALLEST, &repeatable(512)).expect("it is formatted");
    let fs = mount(&sim, quiet()).expect("it is mounted");
    let ctx = Credentials::ROOT;
    let fill = || -> pramfs::Result<()> {
        let dir = fs.mkdir(&ctx, Ino::ROOT, b"dir", 0o755)?.ino;
        let file = fs.create(&ctx, dir, b"file", 0o644)?.ino;
        fs.write(&ctx, file, 0, &[7; 2000])?;
        fs.setxattr(&ctx, file, b"user.a", b"value", XattrMode::Set)?;
        fs.link(file, Ino::ROOT, b"other")?;
        fs.symlink(&ctx, dir, b"link", b"target")?;
        Ok(())
    };
    fill().expect("it has room");
    fs
}

#[test]
fn snapshot_detects_each_contradiction() {
    let fs = filled();
    let whole = Snapshot::of(&Liar(&fs, Lie::None)).expect("it is consistent");
    assert_eq!(
        whole.differences(&Snapshot::of(&fs).expect("so is this")),
        ""
    );
    assert_eq!(whole.nodes.len(), 5);
    for (lie, says) in [
        (Lie::EntryInode, "/dir/file: readdir shows"),
        (Lie::EntryKind, "/dir/file: readdir shows"),
        (Lie::DotInode, "\"..\" is"),
        (Lie::ListedTwice, "2 directories and a link count of 3"),
        (Lie::DirectoryLinks, "directories and a link count"),
        (Lie::FileLinks, "2 names and a link count of 3"),
        (Lie::ShortRead, "of 2000 bytes were read"),
        (Lie::TargetLength, "a target of 5 bytes, not 6"),
        (Lie::Unreadable, "damaged"),
        (Lie::XattrUnreadable, "damaged"),
    ] {
        let trouble = Snapshot::of(&Liar(&fs, lie)).expect_err("it is wrong");
        assert!(trouble.what.contains(says), "{lie:?}: {trouble}");
    }
}

#[test]
fn lenient_snapshot_notes_what_cannot_be_read() {
    let fs = filled();
    let how = Take {
        errors: Errors::Noted,
        ..Take::default()
    };
    let unread = |lie| {
        let found = Snapshot::take(&Liar(&fs, lie), &how).expect("errors are noted");
        found.unread.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(unread(Lie::None), []);
    let both = |part: Part| [(FILE.to_vec(), part.clone()), (b"/other".to_vec(), part)];
    // Only the piece that cannot be read is missing.
    assert_eq!(unread(Lie::Unreadable), both(Part::Bytes(0)));
    let xattr = Part::Xattr(b"user.a".to_vec());
    assert_eq!(unread(Lie::XattrUnreadable), both(xattr));
}

const FILE: &[u8] = b"/dir/file";
