//! Guests that map files beside a mount: their stores, those of programs with leases, and what
//! other programs see of both. The VMM is played by the test, and what it would map is the
//! descriptor that the server hands over.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use pramfs_client::Access;
use pramfs_fuse_protocol::Operation;
use pramfs_fuse_protocol::flags::{MappingFlags, OpenOutFlags, SetattrValid};
use pramfs_fuse_protocol::numbers::ROOT_ID;
use pramfs_fuse_protocol::wire::{
    EntryOut, FsyncIn, OpenIn, OpenOut, ReleaseIn, SetattrIn, SetupmappingIn,
};
use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::vmm::{Guest, WINDOW, read};
use pramfs_tests::watchdog::Watchdog;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::FromBytes;

use crate::direct::{BLOCK, connection, contents, file, leases};
use crate::direct_write::{open as try_open, opened};
use crate::unmounted;

const MIB: u64 = 1 << 20;
const RANGE: u64 = 2 * MIB;

/// A mount with a socket for a guest that has a window.
fn with_window(test: &str, options: &str) -> Option<(Mounted, PathBuf, Watchdog)> {
    let (mount, dog) = unmounted(test)?;
    let socket = mount.region().with_file_name("guest");
    let window = format!("{WINDOW}");
    let out = mount.run([
        "--virtiofs",
        socket.to_str().unwrap(),
        "--dax-window",
        &window,
        "-o",
        options,
    ]);
    assert!(out.status.success(), "{out:?}");
    Some((mount, socket, dog))
}

/// A guest that has mounted the region.
fn guest(socket: &std::path::Path) -> Guest {
    let guest = Guest::new(socket);
    guest.init().unwrap();
    guest
}

fn lookup(guest: &Guest, name: &[u8]) -> u64 {
    let found = guest.ask(ROOT_ID, Operation::Lookup { name }).unwrap();
    EntryOut::read_from_bytes(&found).unwrap().nodeid
}

/// Maps the first range of a file at the begin of the window.
fn map(guest: &Guest, node: u64) {
    let arg = SetupmappingIn {
        len: RANGE,
        flags: MappingFlags::READ | MappingFlags::WRITE,
        ..SetupmappingIn::default()
    };
    guest.ask(node, Operation::Setupmapping(arg)).unwrap();
}

/// Stores byte by byte: the pieces of a range may lie anywhere in the region.
fn store(guest: &Guest, at: u64, bytes: &[u8]) {
    for (n, byte) in (at..).zip(bytes.chunks(1)) {
        guest.window.at(n, |region, place| {
            region.write_all_at(byte, place).unwrap();
        });
    }
}

fn load(guest: &Guest, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (n, byte) in (at..).zip(bytes.chunks_mut(1)) {
        guest.window.at(n, |region, place| {
            region.read_exact_at(byte, place).unwrap();
        });
    }
    bytes
}

/// All that the server was asked so far, through any door. The kernel says later what it has closed
/// and forgotten, so that does not count.
fn requests(mount: &Mounted) -> BTreeMap<String, u64> {
    let all = connection(mount).requests().unwrap();
    let is_later = |name: &str| name == "RELEASE" || name.ends_with("FORGET");
    all.into_iter()
        .filter(|(name, _)| !is_later(name))
        .collect()
}

#[test]
fn store_of_guest_and_of_lease_client_need_no_request_to_be_seen() {
    let Some((mount, socket, _dog)) = with_window("guest and lease", "direct=owner") else {
        return;
    };
    drop(file(&mount, "file", 512));
    let guest = guest(&socket);
    map(&guest, lookup(&guest, b"file"));
    let client = opened(&mount, "file");
    let view = client.map(0..RANGE, Access::Write).unwrap();
    let mut byte = [0];
    // Both have learnt all that they need.
    view.read(0, &mut byte).unwrap();
    assert_eq!((byte[0], load(&guest, 0, 1)[0]), (1, 1));
    let before = requests(&mount);
    for n in 0..200u64 {
        let at = n * 9973 % (RANGE - 8);
        store(&guest, at, &n.to_le_bytes());
        let mut seen = [0; 8];
        view.read(at, &mut seen).unwrap();
        assert_eq!(u64::from_le_bytes(seen), n);
        client.read_at(&mut seen, at).unwrap();
        assert_eq!(u64::from_le_bytes(seen), n);
        view.write(at, &(!n).to_le_bytes()).unwrap();
        assert_eq!(load(&guest, at, 8), (!n).to_le_bytes());
    }
    assert_eq!(
        requests(&mount),
        before,
        "requests between stores and loads"
    );
    // Programs without a library, on this machine and in the guest.
    store(&guest, 4096, b"of the guest");
    let plain = File::open(mount.at("file")).unwrap();
    let mut seen = [0; 12];
    plain.read_exact_at(&mut seen, 4096).unwrap();
    assert_eq!(&seen, b"of the guest");
    view.write(4096, b"of a program").unwrap();
    plain.read_exact_at(&mut seen, 4096).unwrap();
    assert_eq!(&seen, b"of a program");
    let node = lookup(&guest, b"file");
    assert_eq!(guest.ask(node, read(4096, 12)).unwrap(), b"of a program");
    drop((plain, view, client));
    mount.unmount();
}

#[test]
fn write_through_mount_is_seen_in_window_and_fsync_flushes_stores_of_guest() {
    let Some((mount, socket, _dog)) = with_window("guest and mount", "direct=owner") else {
        return;
    };
    let plain = file(&mount, "file", 3);
    let guest = guest(&socket);
    let node = lookup(&guest, b"file");
    map(&guest, node);
    plain.write_all_at(b"written", 100).unwrap();
    assert_eq!(load(&guest, 100, 7), b"written");
    // The file grows into blocks that are mapped already.
    plain.write_all_at(b"grown", MIB).unwrap();
    assert_eq!(load(&guest, MIB, 5), b"grown");
    store(&guest, MIB, b"other");
    let mut seen = [0; 5];
    plain.read_exact_at(&mut seen, MIB).unwrap();
    assert_eq!(&seen, b"other");
    // There are no pages of this machine that would not see the stores.
    let shared = map_shared(&plain);
    assert_eq!(shared.unwrap_err(), rustix::io::Errno::NODEV);
    let before = requests(&mount);
    plain.sync_all().unwrap();
    assert_ne!(requests(&mount), before);
    let sync = Operation::Fsync(FsyncIn::default());
    guest.ask(node, sync).unwrap();
    // The blocks stay while they are mapped, and go with the guest.
    drop(plain);
    fs::remove_file(mount.at("file")).unwrap();
    store(&guest, MIB, b"later");
    assert_eq!(load(&guest, MIB, 5), b"later");
    assert_eq!(leases(&mount).len(), 1);
    drop(guest);
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
}

/// A shared mapping of a file, which is refused here.
fn map_shared(file: &File) -> Result<(), rustix::io::Errno> {
    let flags = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: the kernel chooses the address, and nothing uses the mapping.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), BLOCK, flags.0, flags.1, file, 0) };
    mapped.map(drop)
}

#[test]
fn two_guests_and_a_program_share_a_file() {
    let Some((mount, socket, _dog)) = with_window("two guests", "direct=owner") else {
        return;
    };
    drop(file(&mount, "file", 512));
    mount.unmount();
    let second = mount.region().with_file_name("second");
    let window = format!("{WINDOW}");
    let out = mount.run([
        "--virtiofs",
        socket.to_str().unwrap(),
        "--virtiofs",
        second.to_str().unwrap(),
        "--dax-window",
        &window,
        "-o",
        "direct=owner",
    ]);
    assert!(out.status.success(), "{out:?}");
    let guests = [guest(&socket), guest(&second)];
    for one in &guests {
        map(one, lookup(one, b"file"));
    }
    let client = opened(&mount, "file");
    for n in 0..100u64 {
        let at = n * 4099 % (RANGE - 8);
        store(&guests[0], at, &n.to_le_bytes());
        assert_eq!(load(&guests[1], at, 8), n.to_le_bytes());
        store(&guests[1], at, &(n + 1).to_le_bytes());
        let mut seen = [0; 8];
        client.read_at(&mut seen, at).unwrap();
        assert_eq!(u64::from_le_bytes(seen), n + 1);
    }
    // One guest ends. The other one and the program keep what they have.
    let [one, other] = guests;
    drop(one);
    assert!(wait_until(|| leases(&mount).len() == 2));
    store(&other, 0, b"still");
    assert_eq!(contents(&client)[..5], *b"still");
    // What a guest has mapped is not taken from it.
    let of_guest = leases(&mount)
        .into_iter()
        .find(|lease| lease.pid != std::process::id());
    let refused = connection(&mount).revoke(of_guest.unwrap().lease);
    assert!(refused.unwrap_err().to_string().contains("a guest"));
    drop((other, client));
    mount.unmount();
}

#[test]
fn append_window_is_refused_while_guest_maps_the_file() {
    let Some((mount, socket, _dog)) = with_window("guest and append", "direct=owner") else {
        return;
    };
    drop(file(&mount, "file", 1));
    let client = opened(&mount, "file");
    let mut expect = contents(&client);
    let append = |expect: &mut Vec<u8>| {
        for n in 0..20u8 {
            client.append(&[n; 100]).unwrap();
            expect.extend([n; 100]);
        }
    };
    let writes = || connection(&mount).requests().unwrap().get("WRITE").copied();
    // Some go through the mount before the window is there.
    assert!(wait_until(|| {
        let before = writes();
        append(&mut expect);
        writes() == before
    }));
    let guest = guest(&socket);
    let node = lookup(&guest, b"file");
    map(&guest, node);
    let before = writes().unwrap_or(0);
    append(&mut expect);
    assert_eq!(
        writes().unwrap_or(0),
        before + 20,
        "an append without a request"
    );
    assert!(load(&guest, 0, expect.len()) == expect);
    assert!(guest.ask(node, read(0, 1 << 20)).unwrap() == expect);
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    drop(guest);
    append(&mut expect);
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    drop(client);
    mount.unmount();
}

#[test]
fn file_that_guest_has_open_without_window_gets_no_lease_to_write() {
    let Some((mount, _dog)) = unmounted("guest without a window") else {
        return;
    };
    let socket = mount.region().with_file_name("guest");
    let out = mount.run(["--virtiofs", socket.to_str().unwrap(), "-o", "direct=owner"]);
    assert!(out.status.success(), "{out:?}");
    drop(file(&mount, "file", 2));
    let guest = guest(&socket);
    let node = lookup(&guest, b"file");
    let open = || {
        let arg = OpenIn {
            flags: libc::O_RDWR.cast_unsigned(),
            ..OpenIn::default()
        };
        let opened = guest.ask(node, Operation::Open(arg)).unwrap();
        OpenOut::read_from_bytes(&opened).unwrap()
    };
    let cached = open();
    assert!(!cached.open_flags.contains(OpenOutFlags::DIRECT_IO));
    let refused = try_open(&mount, "file");
    assert_eq!(refused.unwrap_err().errno(), libc::EBUSY);
    let release = ReleaseIn {
        fh: cached.fh,
        ..ReleaseIn::default()
    };
    guest.ask(node, Operation::Release(release)).unwrap();
    let client = opened(&mount, "file");
    assert!(open().open_flags.contains(OpenOutFlags::DIRECT_IO));
    client.write_at(b"stored", 10).unwrap();
    assert_eq!(guest.ask(node, read(10, 6)).unwrap(), b"stored");
    drop((guest, client));
    mount.unmount();
}

/// A guest shortens a log that a program of this machine has open.
#[test]
fn append_of_mount_after_truncation_by_guest_goes_to_the_end() {
    let Some((mount, socket, _dog)) = with_window("guest that truncates", "direct=owner") else {
        return;
    };
    drop(file(&mount, "file", 2));
    let log = File::options().append(true).open(mount.at("file")).unwrap();
    let guest = guest(&socket);
    let node = lookup(&guest, b"file");
    let arg = SetattrIn {
        valid: SetattrValid::SIZE,
        size: 5,
        ..SetattrIn::default()
    };
    guest.ask(node, Operation::Setattr(arg)).unwrap();
    (&log).write_all(b"line").unwrap();
    assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), 9);
    assert_eq!(
        guest.ask(node, read(0, 100)).unwrap(),
        b"\x01\x01\x01\x01\x01line"
    );
    drop((guest, log));
    mount.unmount();
}

/// A kernel drops its pages of a file when mtime or size has changed, and may read between two
/// overwrites of one tick of the clock.
#[test]
fn changes_beside_guests_never_have_the_same_mtime() {
    let Some((mount, _socket, _dog)) = with_window("times beside guests", "cache=none") else {
        return;
    };
    let file = File::create_new(mount.at("file")).unwrap();
    let mut times = std::collections::BTreeSet::new();
    for n in 0..200u8 {
        file.write_all_at(&[n; 100], 0).unwrap();
        let meta = file.metadata().unwrap();
        let (mtime, ctime) = (
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        );
        assert_eq!(mtime, ctime);
        assert!(times.insert(mtime), "{n}: {mtime:?} again");
    }
}

#[test]
fn remount_of_mount_with_guests_keeps_nosuid_and_nodev() {
    let Some((mount, _dog)) = unmounted("remount beside guests") else {
        return;
    };
    let socket = mount.region().with_file_name("guest");
    let out = mount.run(["--virtiofs", socket.to_str().unwrap()]);
    assert!(out.status.success(), "{out:?}");
    let kept = || {
        let line = mount.mounts_line().unwrap();
        line.contains("nosuid") && line.contains("nodev")
    };
    // Also while the mount is read-only: the guests may still write.
    for now in ["rw", "ro"] {
        let remount = |options: &str| mount.run(["-o", &format!("remount,{now},{options}")]);
        let out = remount("noatime");
        assert!(out.status.success(), "{out:?}");
        for option in ["suid", "dev", "suid,dev"] {
            let out = remount(option);
            assert_eq!(out.status.code(), Some(32), "{out:?}");
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(said.contains("--virtiofs cannot be combined"), "{said}");
            assert!(kept(), "{now},{option}");
        }
    }
    mount.unmount();
}
