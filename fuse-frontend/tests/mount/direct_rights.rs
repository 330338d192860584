//! What a lease and a descriptor give a right to, beside a mount: asked for on the connection that has
//! the lease, of files that were unlinked or closed to others since, and while a holder is
//! stopped in the middle of an append.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};

use pramfs_client::Access;
use pramfs_control::{Connection, ControlError, Granted, Refusal, TicketReply};
use pramfs_medium::media::lease::{
    APPENDING_OFFSET, AppendWindow, END_OFFSET, STORED_OFFSET, VIEW_OFFSET,
};
use pramfs_medium::pmem::{RegionAccess as _, RegionOptions, lease_ticket};
use pramfs_medium::types::LeaseMode;
use pramfs_tests::mounted::wait_until;

use crate::direct::{BLOCK, OPTIONS, assert_checked, connection, file, leases};
use crate::mounted;

const B: u64 = BLOCK as u64;

/// Gets a lease without the client library.
fn lease(server: &Connection, file: &File, mode: LeaseMode) -> Result<(Granted, OwnedFd), String> {
    let ticket = lease_ticket(file.as_fd(), mode).map_err(|e| e.to_string())?;
    let ticket = TicketReply::decode(&ticket).unwrap().ticket;
    server.lease(ticket).map_err(|e| e.to_string())
}

fn reason<T: std::fmt::Debug>(asked: Result<T, ControlError>) -> Refusal {
    match asked {
        Err(ControlError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lease_to_read_gives_no_right_to_write_on_its_connection() {
    let Some((mount, _dog)) = mounted("rights of a lease", OPTIONS) else {
        return;
    };
    let through = file(&mount, "file", 2);
    through.set_len(4 * B).unwrap();
    let reader = File::open(mount.at("file")).unwrap();
    let server = connection(&mount);
    let (granted, descriptor) = lease(&server, &reader, LeaseMode::Read).unwrap();
    let before = through.metadata().unwrap();
    for ahead in [false, true] {
        let filled = server.fill(granted.lease, 0..8 * B, ahead);
        assert_eq!(reason(filled), Refusal::NotPermitted, "ahead: {ahead}");
    }
    let window = server.window(granted.lease, B, 2);
    assert_eq!(reason(window), Refusal::NotPermitted);
    // Its descriptor of the region is for reading, and stays one.
    let flags = rustix::fs::fcntl_getfl(&descriptor).unwrap();
    assert_eq!(
        flags & rustix::fs::OFlags::ACCMODE,
        rustix::fs::OFlags::RDONLY
    );
    let stored = rustix::io::pwrite(&descriptor, b"x", 0);
    assert_eq!(stored, Err(rustix::io::Errno::BADF));
    // The connection goes on, and nothing has changed.
    server.blocks(granted.lease, 0).unwrap();
    let after = through.metadata().unwrap();
    assert_eq!(after.len(), before.len());
    assert_eq!(
        std::os::unix::fs::MetadataExt::blocks(&after),
        std::os::unix::fs::MetadataExt::blocks(&before)
    );
    drop((server, descriptor, reader, through));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// A descriptor keeps its right, as for read(2), and no other comes of it.
#[test]
fn descriptor_of_file_that_was_unlinked_or_closed_to_others_keeps_its_right_only() {
    let Some((mount, _dog)) = mounted("old descriptors", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 2));
    let reader = File::open(mount.at("file")).unwrap();
    fs::set_permissions(mount.at("file"), PermissionsExt::from_mode(0o000)).unwrap();
    let server = connection(&mount);
    let way = format!("/proc/self/fd/{}", reader.as_raw_fd());
    for change in ["chmod", "unlink"] {
        if change == "unlink" {
            fs::remove_file(mount.at("file")).unwrap();
        }
        let (granted, descriptor) = lease(&server, &reader, LeaseMode::Read).expect(change);
        let stored = rustix::io::pwrite(&descriptor, b"x", 0);
        assert_eq!(stored, Err(rustix::io::Errno::BADF), "{change}");
        drop(descriptor);
        server.release(granted.lease).unwrap();
        let refused = lease_ticket(reader.as_fd(), LeaseMode::Write).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBADF), "{change}");
        // By its number too: root may open it again; for the lease that is another open.
        let again = File::open(&way).expect(change);
        let direct = pramfs_client::OpenOptions::new()
            .from_file(again)
            .expect(change);
        let mut byte = [0];
        assert_eq!(direct.read_at(&mut byte, B).unwrap(), 1, "{change}");
        assert_eq!(byte, [2], "{change}");
        assert!(direct.map(0..B, Access::Write).is_err(), "{change}");
    }
    // Another file under the same name has nothing to do with it.
    drop(file(&mount, "file", 1));
    let (old, old_descriptor) = lease(&server, &reader, LeaseMode::Read).unwrap();
    let new = File::open(mount.at("file")).unwrap();
    let (granted, new_descriptor) = lease(&server, &new, LeaseMode::Read).unwrap();
    assert_ne!(
        (old.inode, old.generation),
        (granted.inode, granted.generation)
    );
    drop((server, old_descriptor, new_descriptor, new, reader));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// What has no block is written through the mount, by the descriptor of the lease.
#[test]
fn descriptor_that_appends_gets_no_lease_to_write_and_later_flag_moves_no_write() {
    let Some((mount, _dog)) = mounted("append flag", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let open = |flags| {
        File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT | flags)
            .open(mount.at("file"))
            .unwrap()
    };
    open(0).set_len(64 * B).unwrap();
    let refused = lease_ticket(open(libc::O_APPEND).as_fd(), LeaseMode::Write).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    let own = open(0);
    let shared = own.try_clone().unwrap();
    let direct = pramfs_client::OpenOptions::new()
        .write(true)
        .from_file(own)
        .unwrap();
    rustix::fs::fcntl_setfl(&shared, rustix::fs::OFlags::APPEND).unwrap();
    assert_eq!(direct.write_at(&[7; 100], 10 * B).unwrap(), 100);
    assert_eq!(direct.len().unwrap(), 64 * B);
    let mut bytes = [0; 100];
    assert_eq!(direct.read_at(&mut bytes, 10 * B).unwrap(), 100);
    assert_eq!(bytes, [7; 100]);
    drop((direct, shared));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// The holder is stopped between its two words, as by SIGSTOP, and then goes on.
#[test]
fn open_for_writing_beside_stopped_append_is_busy_and_then_served() {
    let Some((mount, _dog)) = mounted("stopped appender", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let opened = |write: bool, flags: i32| {
        let mut how = OpenOptions::new();
        how.read(true).write(write).custom_flags(flags);
        how.open(mount.at("file"))
    };
    let errno = |done: io::Result<File>| done.err().and_then(|e| e.raw_os_error());
    let server = connection(&mount);
    let own = opened(true, libc::O_DIRECT).unwrap();
    let mut held = None;
    assert!(wait_until(|| {
        held = lease(&server, &own, LeaseMode::Write).ok();
        held.is_some()
    }));
    let (granted, descriptor) = held.unwrap();
    let region = RegionOptions::new()
        .lock(false)
        .from_fd(descriptor, "the region")
        .unwrap();
    let given = server.window(granted.lease, 2 * B, 1).unwrap();
    let window = AppendWindow {
        number: given.number,
        start: given.start,
        limit: given.limit,
        key: given.key,
    };
    let word = window.word_of(given.start + 3);
    let announced = granted.view + (APPENDING_OFFSET - VIEW_OFFSET);
    let end = granted.stored + (END_OFFSET - STORED_OFFSET);
    region
        .window()
        .store_u64_unflushed(announced, word)
        .unwrap();
    // An open for writing would have a size that is too small. One for reading has the end as it was.
    assert_eq!(errno(opened(true, 0)), Some(libc::EBUSY));
    assert_eq!(errno(opened(true, libc::O_APPEND)), Some(libc::EBUSY));
    let reader = opened(false, 0).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), B);
    let cut = rustix::fs::open(
        mount.at("file"),
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
        rustix::fs::Mode::empty(),
    );
    assert_eq!(cut.unwrap_err(), rustix::io::Errno::BUSY);
    // It goes on: its bytes, its end, and the word that says so.
    let blocks = server.blocks(granted.lease, given.start).unwrap();
    let place = blocks.extents[0].region_offset;
    let stored = region.window().nt_store(place, b"end").unwrap();
    region.window().fence(stored);
    region.window().store_u64_unflushed(end, word).unwrap();
    region.window().store_u64_unflushed(announced, 0).unwrap();
    let writer = opened(true, 0).unwrap();
    assert_eq!(writer.metadata().unwrap().len(), B + 3);
    writer.write_all_at(b"!", B + 3).unwrap();
    let found = fs::read(mount.at("file")).unwrap();
    assert_eq!(found[BLOCK..], *b"end!");
    drop((region, server, own, reader, writer));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}
