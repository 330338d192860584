//! Damage on the medium, as a mount shows it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use pramfs::Ino;
use pramfs_tests::mounted::wait_until;
use pramfs_tests::region::inode_home;

use crate::{MIB, mounted, unmounted};

#[test]
fn a_directory_with_a_damaged_inode_can_be_listed() {
    let Some((mount, _dog)) = mounted("damaged inode", "") else {
        return;
    };
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let before = free();
    let dir = mount.at("dir");
    fs::create_dir(&dir).unwrap();
    for n in 0..8 {
        fs::write(dir.join(format!("file{n}")), vec![n; MIB as usize]).unwrap();
    }
    let hurt = fs::metadata(dir.join("file3")).unwrap().ino();
    mount.unmount();
    let image = fs::read(mount.region()).unwrap();
    let at = inode_home(&image, Ino(hurt)) + 0x18;
    let region = fs::File::options().write(true).open(mount.region());
    let byte = [!image[at]];
    region.unwrap().write_all_at(&byte, at as u64).unwrap();

    mount.mount("errors=continue");
    for _ in 0..3 {
        let listed: BTreeSet<(String, u64, bool)> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let is_file = entry.file_type().unwrap().is_file();
                use std::os::unix::fs::DirEntryExt;
                (name, entry.ino(), is_file)
            })
            .collect();
        assert_eq!(listed.len(), 8);
        for (n, (name, ino, is_file)) in listed.iter().enumerate() {
            let path = dir.join(name);
            assert_eq!((name.as_str(), *is_file), (&*format!("file{n}"), true));
            if n == 3 {
                assert_eq!(*ino, hurt);
                let error = fs::metadata(path).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EUCLEAN));
            } else {
                assert_eq!(fs::read(path).unwrap(), vec![n as u8; MIB as usize]);
            }
        }
    }
    for n in (0..8).filter(|n| *n != 3) {
        fs::remove_file(dir.join(format!("file{n}"))).unwrap();
    }
    // Listing has left no reference: all but the damaged one, which may have a
    // leaf of 2 MiB, are freed.
    assert!(
        wait_until(|| before - free() < 512 + 64),
        "{} of {before}",
        free()
    );
}

#[test]
fn a_mount_in_the_background_tells_of_damage() {
    let Some((mount, _dog)) = unmounted("damaged superblock") else {
        return;
    };
    let region = fs::File::options().write(true).open(mount.region());
    // The key of the hashes: anything but the label, which a crash may tear.
    region.unwrap().write_all_at(&[0xff; 16], 0x78).unwrap();
    let out = mount.run::<&str>([]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{said}");
    assert!(said.contains("first superblock is damaged"), "{said}");
}

#[test]
fn a_mount_tells_that_there_is_nothing_to_fall_back_on() {
    let Some((mount, _dog)) = unmounted("damaged copy") else {
        return;
    };
    let region = fs::File::options().write(true).open(mount.region());
    region.unwrap().write_all_at(&[0xff; 16], 0x10078).unwrap();
    let out = mount.run::<&str>([]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{said}");
    assert!(
        said.contains("copy of the superblock is damaged") && said.contains("fsck.pramfs -p"),
        "{said}"
    );
    // What is there is whole, and can be changed.
    fs::write(mount.at("file"), b"new").unwrap();
}
