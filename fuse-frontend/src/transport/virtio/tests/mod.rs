//! A VMM and its guest, which tells the truth or lies in its queues.

mod vmm;

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pramfs::inode::Ino;
use pramfs_fuse_protocol::numbers::ROOT_ID;
use pramfs_fuse_protocol::wire::{EntryOut, GetattrIn, ReadIn, SetupmappingIn};
use pramfs_fuse_protocol::{Errno, Operation};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vm_memory::{Bytes, GuestAddress};
use zerocopy::FromBytes;

use super::GuestSettings;
use vmm::*;

#[test]
fn guest_mounts_writes_reads_lists_and_unlinks() {
    for pool in [0, 2] {
        let server = Server::new(&settings(pool));
        let guest = server.connect();
        guest.init().unwrap();
        let node = guest.create(b"file");
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 7) as u8).collect();
        assert_eq!(
            guest.ask(node, write(&data)).unwrap()[..4],
            (1u32 << 20).to_ne_bytes()
        );
        assert_eq!(guest.ask(node, read(0, 1 << 20)).unwrap(), data);
        assert_eq!(guest.ask(node, read(100, 1000)).unwrap(), data[100..1100]);
        let list = ReadIn {
            size: 4096,
            ..ReadIn::default()
        };
        let listed = guest.ask(ROOT_ID, Operation::Readdir(list)).unwrap();
        assert!(listed.windows(4).any(|name| name == b"file"));
        let name = b"file";
        guest.ask(ROOT_ID, Operation::Unlink { name }).unwrap();
        let found = guest.ask(ROOT_ID, Operation::Lookup { name }).unwrap();
        assert_eq!(EntryOut::read_from_bytes(&found).unwrap().nodeid, 0);
        // Still open. FORGET comes through its own queue, and has no reply.
        assert!(guest.ask(node, read(0, 1)).is_ok());
        let forget = encoded(node, Operation::Forget { nlookup: 1 });
        guest
            .memory
            .write_slice(&forget, GuestAddress(REQUEST))
            .unwrap();
        let [table, ..] = Guest::rings(0);
        guest.describe(table, 0, (REQUEST, forget.len() as u32, 0, 0));
        assert_eq!(guest.serve(0, 0), 0);
        assert!(guest.ask(node, read(0, 1)).is_ok());
    }
}

/// Whoever runs the VMM reaches the whole region then.
#[test]
fn vmm_behind_socket_that_others_reach_gets_no_window() {
    let server = Server::new(&windowed());
    let path = server.dir.path().join("socket");
    let set_mode = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o660);
    let mut turned_away = UnixStream::connect(&path).unwrap();
    assert_eq!(turned_away.read(&mut [0]).unwrap(), 0);
    set_mode(0o600);
    let guest = server.connect();
    guest.init().unwrap();
    drop(guest);
    // Without a window, it reaches files alone.
    let server = Server::new(&settings(0));
    let path = server.dir.path().join("socket");
    let open = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(&path, open).unwrap();
    server.connect().init().unwrap();
}

#[test]
fn death_of_guest_gives_back_all_it_had() {
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    let node = guest.create(b"file");
    guest
        .ask(ROOT_ID, Operation::Unlink { name: b"file" })
        .unwrap();
    assert!(server.fs.getattr(Ino(node)).is_ok());
    drop(guest);
    server.wait_until_gone(Ino(node));
    // The next one begins anew.
    let next = server.connect();
    next.init().unwrap();
    let attr = Operation::Getattr(GetattrIn::default());
    assert_eq!(next.ask(node, attr), Err(Errno::ESTALE));
}

#[test]
fn stopped_device_lets_guest_begin_anew() {
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    guest.create(b"file");
    assert_eq!(guest.init(), Err(Errno::EIO));
    for queue in 0..QUEUES {
        let served = guest.frontend.get_vring_base(queue).unwrap();
        assert_eq!(served, u32::from(guest.used(queue)));
    }
    guest.start();
    guest.works();
    guest.init().unwrap();
    guest.works();
}

/// Sends GETATTR of the root in a chain of these descriptors. The first one is at 0.
fn lie(guest: &Guest, chain: &[Descriptor]) -> u32 {
    let request = encoded(ROOT_ID, Operation::Getattr(GetattrIn::default()));
    guest
        .memory
        .write_slice(&request, GuestAddress(REQUEST))
        .unwrap();
    let [table, ..] = Guest::rings(1);
    for (at, descriptor) in (0..).zip(chain) {
        guest.describe(table, at, *descriptor);
    }
    guest.serve(1, 0)
}

#[test]
fn chain_that_lies_is_refused_and_next_is_served() {
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    let len = encoded(ROOT_ID, Operation::Getattr(GetattrIn::default())).len() as u32;
    let (half, room) = (len / 2, (REPLY, 1000, WRITE, 0));
    let (first, second) = (
        (REQUEST, half, NEXT, 1),
        (REQUEST + u64::from(half), len - half, NEXT, 2),
    );
    // Told the truth, in pieces.
    let answered = lie(&guest, &[first, second, room]);
    assert!(body(&guest.reply(answered)).is_ok());
    let no_answer: [&[Descriptor]; 8] = [
        // In a circle.
        &[(REQUEST, half, NEXT, 0)],
        &[(REQUEST, 1, NEXT, 1), (REQUEST + 1, 1, NEXT, 0)],
        // Beyond the memory, and over its end.
        &[(MEMORY, len, NEXT, 1), room],
        &[(u64::MAX - 3, len, NEXT, 1), room],
        // To the next one, which the table does not have.
        &[(REQUEST, 4, NEXT, SIZE)],
        // No room for a header.
        &[(REQUEST, len, NEXT, 1), (REPLY, 15, WRITE, 0)],
        &[(REQUEST, len, 0, 0)],
        // Nothing at all.
        &[(REQUEST, 0, NEXT, 1), room],
    ];
    for chain in no_answer {
        assert_eq!(lie(&guest, chain), 0, "{chain:x?}");
        guest.works();
    }
    let refused: [(&[Descriptor], Errno); 6] = [
        // Room outside of the memory, after room within.
        (
            &[
                (REQUEST, len, NEXT, 1),
                (REPLY, 64, WRITE | NEXT, 2),
                (MEMORY - 8, 64, WRITE, 0),
            ],
            Errno::EINVAL,
        ),
        // To be read after room.
        (
            &[
                (REQUEST, len, NEXT, 1),
                (REPLY, 64, WRITE | NEXT, 2),
                (REQUEST, 8, 0, 0),
            ],
            Errno::EINVAL,
        ),
        // More than any request.
        (&[(REQUEST, 3 << 20, NEXT, 1), room], Errno::EINVAL),
        // Longer and shorter than the header says.
        (&[(REQUEST, len + 8, NEXT, 1), room], Errno::EIO),
        (&[(REQUEST, len - 8, NEXT, 1), room], Errno::EIO),
        // Less room than the reply needs.
        (
            &[(REQUEST, len, NEXT, 1), (REPLY, 40, WRITE, 0)],
            Errno::EIO,
        ),
    ];
    for (chain, errno) in refused {
        let answered = lie(&guest, chain);
        assert_eq!(body(&guest.reply(answered)), Err(errno), "{chain:x?}");
        guest.works();
    }
}

#[test]
fn indirect_table_is_followed_once_and_within_limits() {
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    let len = encoded(ROOT_ID, Operation::Getattr(GetattrIn::default())).len() as u32;
    let table = 2 << 20;
    guest.describe(table, 0, (REQUEST, len, NEXT, 1));
    guest.describe(table, 1, (REPLY, 1000, WRITE, 0));
    let answered = lie(&guest, &[(table, 32, INDIRECT, 0)]);
    assert!(body(&guest.reply(answered)).is_ok());
    // Not whole descriptors, none, outside of the memory.
    for (at, bytes) in [
        (table, 31),
        (table, 0),
        (MEMORY - 8, 32),
        (u64::MAX - 15, 32),
    ] {
        assert_eq!(lie(&guest, &[(at, bytes, INDIRECT, 0)]), 0);
        guest.works();
    }
    // A table in a table.
    guest.describe(table, 0, (table, 32, INDIRECT, 0));
    assert_eq!(lie(&guest, &[(table, 32, INDIRECT, 0)]), 0);
    guest.works();
    // A circle in a table, and as many pieces as fit into one.
    guest.describe(table, 0, (REQUEST, 1, NEXT, 0));
    assert_eq!(lie(&guest, &[(table, 16, INDIRECT, 0)]), 0);
    for at in 0..u16::MAX {
        guest.describe(table, at, (REQUEST, 1, NEXT, at + 1));
    }
    assert_eq!(
        lie(&guest, &[(table, 16 * u32::from(u16::MAX), INDIRECT, 0)]),
        0
    );
    guest.works();
}

#[test]
fn queue_with_senseless_indices_is_left_alone() {
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    let honest = guest.avail[1].load(Ordering::Relaxed);
    for ahead in [SIZE + 1, 1000, u16::MAX] {
        guest.set_index(1, honest.wrapping_add(ahead));
        guest.kicks[1].write(1).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(guest.used(1), honest, "something was served");
    }
    guest.set_index(1, honest);
    guest.works();
    // A head that the table does not have.
    for head in [SIZE, u16::MAX] {
        let before = guest.used(1);
        guest.make_available(1, head);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(guest.used(1), before, "it cannot be given back");
    }
    // The other queue still works.
    let [table, ..] = Guest::rings(0);
    guest.describe(table, 0, (REQUEST, 40, 0, 0));
    assert_eq!(guest.serve(0, 0), 0);
}

/// Queues that flip between ready and not, while the guest floods them.
#[test]
fn guest_that_floods_its_queues_does_not_hold_up_the_end() {
    let server = Server::new(&settings(1));
    let guest = server.connect();
    guest.init().unwrap();
    let request = encoded(ROOT_ID, Operation::Getattr(GetattrIn::default()));
    guest
        .memory
        .write_slice(&request, GuestAddress(REQUEST))
        .unwrap();
    let [table, ..] = Guest::rings(1);
    guest.describe(table, 0, (REQUEST, request.len() as u32, NEXT, 1));
    guest.describe(table, 1, (REPLY, 1000, WRITE, 0));
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                // All entries again, as soon as any was taken.
                guest.set_index(1, guest.used(1).wrapping_add(SIZE));
                let _full = guest.kicks[1].write(1);
            }
        });
        let mut frontend = guest.frontend.clone();
        // The count wraps, and may be what it was in the end.
        let mut is_served = false;
        for n in 0..50 {
            std::thread::sleep(Duration::from_millis(2));
            frontend.set_vring_enable(1, n % 2 == 0).unwrap();
            is_served |= guest.used(1) != 1;
        }
        frontend.set_vring_enable(1, true).unwrap();
        let begun = Instant::now();
        while !is_served {
            assert!(begun.elapsed() < PATIENCE, "nothing is served");
            is_served = guest.used(1) != 1;
        }
        server.stop.stop();
        let begun = Instant::now();
        while !server.thread.as_ref().unwrap().is_finished() {
            assert!(begun.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn server_tells_tag_and_queues_if_it_has_a_tag() {
    let tagged = GuestSettings {
        tag: Some("region".into()),
        ..settings(0)
    };
    let server = Server::new(&tagged);
    let path = server.dir.path().join("socket");
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
    let mut guest = server.connect();
    let offered = guest.frontend.get_protocol_features().unwrap();
    assert!(offered.contains(VhostUserProtocolFeatures::CONFIG));
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
    let (_, config) = guest.frontend.get_config(0, 40, flags, &[0; 40]).unwrap();
    assert_eq!(config[..7], *b"region\0");
    assert_eq!(config[36..], 1u32.to_le_bytes());
}

const RANGE: u64 = 2 << 20;

fn setup() -> Operation<'static> {
    Operation::Setupmapping(SetupmappingIn {
        len: RANGE,
        moffset: RANGE,
        ..SetupmappingIn::default()
    })
}

fn windowed() -> GuestSettings {
    GuestSettings {
        window: Some(WINDOW),
        ..settings(0)
    }
}

#[test]
fn guest_with_window_maps_until_its_end() {
    let server = Server::new(&windowed());
    let guest = server.connect();
    let agreed = guest.init().unwrap();
    assert_ne!(agreed.len(), 0);
    let node = guest.create(b"file");
    guest.ask(node, write(&[7; 5000])).unwrap();
    guest.ask(node, setup()).unwrap();
    let maps = guest.window.0.lock().unwrap().settled;
    assert_eq!(maps, guest.window.0.lock().unwrap().there.len());
    guest.window.wait_for(RANGE);
    // Bytes of the medium are copied, not lent.
    assert_eq!(guest.ask(node, read(0, 5000)).unwrap(), [7; 5000]);
    guest.ask(0, Operation::Destroy).unwrap();
    guest.window.wait_for(0);
    // Without a window, the kernel of the guest hears that there is none.
    let server = Server::new(&settings(0));
    let guest = server.connect();
    guest.init().unwrap();
    assert_eq!(
        guest.ask(guest.create(b"file"), setup()),
        Err(Errno::ENOSYS)
    );
}

/// The thread that would answer waits for the queue to stop.
#[test]
fn queue_stops_while_vmm_answers_nothing() {
    let server = Server::new(&windowed());
    let guest = server.connect();
    guest.init().unwrap();
    let node = guest.create(b"file");
    guest.window.0.lock().unwrap().silent = true;
    let request = encoded(node, setup());
    guest
        .memory
        .write_slice(&request, GuestAddress(REQUEST))
        .unwrap();
    let [table, ..] = Guest::rings(1);
    guest.describe(table, 0, (REQUEST, request.len() as u32, NEXT, 1));
    guest.describe(table, 1, (REPLY, 1000, WRITE, 0));
    let before = guest.used(1);
    let asked = guest.window.0.lock().unwrap().asked;
    guest.make_available(1, 0);
    guest.window.wait_until_asked(asked + 1);
    assert_eq!(guest.used(1), before, "it waits for the VMM");
    let begun = Instant::now();
    guest.frontend.get_vring_base(1).unwrap();
    assert!(begun.elapsed() < PATIENCE / 2);
    assert_eq!(guest.used(1), before + 1);
    assert_eq!(body(&guest.reply(16)), Err(Errno::EIO));
    // What is mapped too late is unmapped again.
    guest.window.0.lock().unwrap().silent = false;
    guest.window.wait_until_asked(asked + 2);
    guest.window.wait_for(0);
    guest.frontend.get_vring_base(0).unwrap();
    guest.start();
    guest.ask(node, setup()).unwrap();
    guest.window.wait_for(RANGE);
    // A VMM that has stopped answering does not hold up the end.
    guest.window.0.lock().unwrap().silent = true;
    server.stop.stop();
    drop(server);
    guest.window.0.lock().unwrap().silent = false;
}
