//! What symlink promises: the length of a target.

use pramfs::inode::Ino;
use pramfs_tests::region::quiet;

use crate::support::library::{ROOT, remount, small};

#[test]
fn symlink_target_takes_4095_bytes_or_inline() {
    let (sim, fs) = small();
    let link = |name: &[u8], len: usize| fs.symlink(&ROOT, Ino::ROOT, name, &vec![b't'; len]);
    let (short, long) = (link(b"s", 96).unwrap(), link(b"l", 4095).unwrap());
    assert_eq!((short.blocks, short.size), (0, 96));
    assert_eq!((long.blocks, long.size), (8, 4095));
    assert_eq!(link(b"x", 4096).unwrap_err().errno(), libc::ENAMETOOLONG);
    assert_eq!(link(b"x", 0).unwrap_err().errno(), libc::ENOENT);
    let fs = remount(&sim, fs, quiet());
    assert_eq!(fs.readlink(long.ino).unwrap(), [b't'; 4095]);
    assert_eq!(fs.readlink(short.ino).unwrap(), [b't'; 96]);
}
