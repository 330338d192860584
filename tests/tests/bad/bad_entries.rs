//! Impossible entry names, as a hostile image may contain them: messages on the terminal
//! and in the log escape them, so that they cannot move the cursor.

use crate::bad_support::model::{CX, entries};
use crate::bad_support::{region_with, steady};
use pramfs::{
    Error,
    inode::{Fs, Ino},
};
use pramfs_medium::media::checksum::{line_sum, mix64};
use pramfs_medium::media::{DiskInode, Ptr};
use pramfs_tests::region::{SMALLEST, formatted, inode_home, mount, repeatable};
use zerocopy::FromBytes;

const NAME: &[u8] = b"a\x1b[2Jb\nc";

/// An image with a directory whose entry points to `ino`.
fn image(ino: Ino) -> (Vec<u8>, Ino) {
    let sim = formatted(SMALLEST, &repeatable(4096)).expect("formatted");
    let fs = mount(&sim, steady()).expect("mounted");
    let dir = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).expect("made").ino;
    let there = fs.create(&CX, dir, NAME, 0o644).expect("made").ino;
    let geo = fs.superblock().geometry();
    fs.close().expect("unmounted");
    let mut bytes = sim.image();
    let home = inode_home(&bytes, dir);
    let d = DiskInode::read_from_bytes(&bytes[home..home + 256]).expect("256 bytes");
    let block = Ptr(d.root).block();
    let at = geo.offset(block).0 as usize;
    let leaf = &mut bytes[at..at + 4096];
    let entry = [&there.0.to_le_bytes()[..], NAME].concat();
    let value = leaf.windows(entry.len()).position(|w| w == entry);
    let value = value.expect("the entry is in the only leaf");
    leaf[value..value + 8].copy_from_slice(&ino.0.to_le_bytes());
    let seed = mix64(geo.seed ^ mix64(dir.0 ^ 16 << 58)).wrapping_add(mix64(block.0));
    leaf[8..16].fill(0);
    let sum = leaf.as_chunks::<64>().0.iter().enumerate();
    let sum = sum.fold(0u64, |sum, (i, line)| {
        sum.wrapping_add(line_sum(seed, i as u64, line))
    });
    leaf[8..16].copy_from_slice(&sum.to_le_bytes());
    (bytes, dir)
}

fn escaped<T: std::fmt::Debug>(result: pramfs::Result<T>) {
    let e = result.expect_err("the entry cannot be");
    assert!(matches!(e, Error::Corrupt { .. }), "{e}");
    let text = e.to_string();
    assert!(text.contains("a\\x1b[2Jb\\nc"), "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
fn error_escapes_name_of_missing_inode() {
    let (bytes, dir) = image(Ino(40));
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    escaped(fs.lookup(dir, NAME));
    escaped(fs.unlink(dir, NAME));
    escaped(fs.rename(&CX, dir, NAME, dir, b"new", Default::default()));
}

#[test]
fn error_escapes_impossible_entry() {
    let (bytes, dir) = image(Ino(5));
    let fs = Fs::open(region_with(&bytes), steady()).expect("it mounts");
    escaped(entries(&fs, dir));
    escaped(fs.lookup(dir, NAME));
}
