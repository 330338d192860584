//! Growing a mounted file system, by the ioctl.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pramfs_client::Access;
use pramfs_medium::pmem::ask_to_grow;
use pramfs_tests::mounted::{Mounted, wait_until};

use crate::direct::{BLOCK, OPTIONS, assert_checked, contents, file, leases, view_contents};
use crate::direct_client::start;
use crate::direct_write::opened;
use crate::takeover::{ON, kill, other_server};
use crate::{MIB, mounted};

const B: u64 = BLOCK as u64;

pub(super) fn grow(path: &Path, size: Option<u64>) -> io::Result<(u64, u64)> {
    ask_to_grow(File::open(path)?.as_fd(), size)
}

/// Bytes of the file system, as the kernel shows them.
fn size(mount: &Mounted) -> u64 {
    let stat = rustix::fs::statvfs(mount.path()).unwrap();
    stat.f_blocks * stat.f_frsize
}

fn errno(grown: io::Result<(u64, u64)>) -> i32 {
    grown.unwrap_err().raw_os_error().unwrap()
}

/// Fills what is free before a grow, so that all that follows lies in the new part.
fn fill(mount: &Mounted) {
    let ballast = File::create(mount.at("ballast")).unwrap();
    let mut at = 0;
    for piece in [1 << 20, 64 << 10, 4096] {
        while ballast.write_all_at(&vec![1; piece], at).is_ok() {
            at += piece as u64;
        }
        at = ballast.metadata().unwrap().len();
    }
}

#[test]
fn grow_of_mount_shows_new_size_and_keeps_open_files() {
    let Some((mount, _dog)) = mounted("grow", "direct=off") else {
        return;
    };
    let open = file(&mount, "file", 4);
    fill(&mount);
    assert_eq!(size(&mount), 64 * MIB);
    assert_eq!(
        grow(&mount.path(), Some(256 * MIB)).unwrap(),
        (64 * MIB, 256 * MIB)
    );
    assert_eq!(size(&mount), 256 * MIB);
    // By a file of the mount as well, to what the region has.
    let region = File::options().write(true).open(mount.region()).unwrap();
    region.set_len(512 * MIB).unwrap();
    assert_eq!(
        grow(&mount.at("file"), None).unwrap(),
        (256 * MIB, 512 * MIB)
    );
    fs::write(mount.at("large"), vec![7; 200 << 20]).unwrap();
    open.write_all_at(&[9; 10], 0).unwrap();
    assert_eq!(errno(grow(&mount.path(), Some(MIB))), libc::EINVAL);
    assert_eq!(errno(grow(&mount.path(), Some(1 << 53))), libc::EFBIG);
    assert_eq!(size(&mount), 512 * MIB);
    drop(open);
    mount.unmount();
    assert_checked(&mount);
    mount.mount("direct=off");
    assert_eq!(fs::read(mount.at("large")).unwrap(), vec![7; 200 << 20]);
    assert_eq!(fs::read(mount.at("file")).unwrap()[..10], [9; 10]);
    mount.unmount();
}

#[test]
fn grow_of_protected_mount_gives_room_that_is_protected() {
    let Some((mount, _dog)) = mounted("protected grow", "direct=off,protect=mprotect") else {
        return;
    };
    fill(&mount);
    let grown = grow(&mount.path(), Some(256 * MIB)).unwrap();
    assert_eq!(grown, (64 * MIB, 256 * MIB));
    fs::write(mount.at("large"), vec![7; 100 << 20]).unwrap();
    let maps = format!("/proc/{}/maps", mount.process().as_raw_nonzero());
    let region = mount.region();
    let is_closed = || {
        let maps = fs::read_to_string(&maps).unwrap();
        let of_region = maps
            .lines()
            .filter(|line| line.ends_with(region.to_str().unwrap()));
        !of_region.into_iter().any(|line| line.contains(" rw-s "))
    };
    assert!(wait_until(is_closed));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn grow_by_other_user_is_refused() {
    let Some((mount, _dog)) = mounted("grow by others", "direct=off,allow_other") else {
        return;
    };
    drop(file(&mount, "file", 1));
    let path = mount.path();
    let said = start(Some(4242), &mount, "grow", &[path.display().to_string()]);
    assert_eq!(said.said, format!("errno {}", libc::EPERM));
    assert_eq!(size(&mount), 64 * MIB);
    let said = start(None, &mount, "grow", &[path.display().to_string()]);
    assert_eq!(said.said, format!("grown to {}", 128 * MIB));
    drop(said);
    mount.unmount();
}

#[test]
fn grow_of_read_only_mount_is_refused() {
    let Some((mount, _dog)) = mounted("grow of ro", "ro") else {
        return;
    };
    assert_eq!(errno(grow(&mount.path(), Some(128 * MIB))), libc::EROFS);
    assert_eq!(fs::metadata(mount.region()).unwrap().len(), 64 * MIB);
    mount.unmount();
}

/// Clients map the region themselves, from before the grow.
#[test]
fn grow_beside_direct_access_keeps_views_and_serves_new_part() {
    let Some((mount, _dog)) = mounted("grow beside leases", OPTIONS) else {
        return;
    };
    drop((file(&mount, "file", 4), file(&mount, "read", 4)));
    drop(file(&mount, "later", 1));
    let writer = opened(&mount, "file");
    let written = writer.map(0..4 * B, Access::Write).unwrap();
    let reader = pramfs_client::File::open(mount.at("read")).unwrap();
    let read = reader.map(0..4 * B, Access::Read).unwrap();
    let addresses = (written.as_ptr(), read.as_ptr());
    let before = view_contents(&read);
    fill(&mount);
    grow(&mount.path(), Some(1024 * MIB)).unwrap();
    // The views are where they were, and what they were.
    assert_eq!((written.as_ptr(), read.as_ptr()), addresses);
    written.write(B, &[5; 100]).unwrap();
    written.persist(B..B + 100).unwrap();
    assert_eq!(
        fs::read(mount.at("file")).unwrap()[BLOCK..BLOCK + 100],
        [5; 100]
    );
    assert!(view_contents(&read) == before && read.is_current().unwrap());
    // All that is new lies past the end that the clients have mapped.
    let data: Vec<u8> = (0..8 << 20).map(|i| (i / 1000) as u8).collect();
    fs::write(mount.at("read"), &data).unwrap();
    assert!(contents(&reader) == data, "a reader from before the grow");
    let view = reader.map(0..8 << 20, Access::Read).unwrap();
    assert!(view_contents(&view) == data);
    assert_eq!(writer.append(&data[..1 << 20]).unwrap(), 4 * B);
    let appended = fs::read(mount.at("file")).unwrap();
    assert!(appended[4 * BLOCK..] == data[..1 << 20]);
    let later = opened(&mount, "later");
    later.write_all_at(&[6; 100], 10).unwrap();
    drop((writer, written, reader, read, view, later));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn killed_server_after_grow_is_replaced_with_new_size() {
    let Some((mount, _dog)) = mounted("grow and takeover", ON) else {
        return;
    };
    let server = mount.process();
    let open = file(&mount, "file", 4);
    fill(&mount);
    grow(&mount.path(), Some(512 * MIB)).unwrap();
    // More inodes than there were before, which the next server counts.
    for n in 0..100 {
        fs::write(mount.at(format!("new{n}")), "x").unwrap();
    }
    kill(&mount);
    open.write_all_at(&[3; 10], 0).unwrap();
    other_server(&mount, server);
    assert_eq!(size(&mount), 512 * MIB);
    fs::write(mount.at("large"), vec![7; 100 << 20]).unwrap();
    assert_eq!(
        grow(&mount.path(), Some(600 * MIB)).unwrap(),
        (512 * MIB, 600 * MIB)
    );
    drop(open);
    mount.unmount();
    assert_checked(&mount);
}
