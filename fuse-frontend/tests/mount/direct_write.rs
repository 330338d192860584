//! Direct stores beside a mount: what others see, who is kept away from the page cache, and
//! what is left after the deaths of client and server.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

use pramfs_client::{Access, Error, MappedFile};
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_tests::mounted::{Mounted, wait_until};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::direct::{
    BLOCK, OPTIONS, aligned, assert_checked, connection, contents, file, kills, leases,
};
use crate::direct_client::{Client, start};
use crate::mounted;

const B: u64 = BLOCK as u64;

pub(super) fn open(mount: &Mounted, name: &str) -> pramfs_client::Result<pramfs_client::File> {
    let options = pramfs_client::OpenOptions::new().write(true);
    options.open(mount.at(name))
}

/// As [`open`], once the kernel has told the server of the last close.
pub(super) fn opened(mount: &Mounted, name: &str) -> pramfs_client::File {
    opened_at(&mount.at(name))
}

/// As [`opened`], by the path.
pub(super) fn opened_at(path: &Path) -> pramfs_client::File {
    let options = pramfs_client::OpenOptions::new().write(true);
    let mut opened = None;
    assert!(wait_until(|| match options.open(path) {
        Err(busy) if busy.errno() == libc::EBUSY => false,
        done => {
            opened = Some(done.unwrap());
            true
        }
    }));
    opened.unwrap()
}

/// A mount with a file of four blocks that this process can store to.
struct Scene {
    view: MappedFile,
    direct: pramfs_client::File,
    mount: Mounted,
}

fn scene(mount: Mounted) -> Scene {
    drop(file(&mount, "file", 4));
    let direct = opened(&mount, "file");
    let view = direct.map(0..4 * B, Access::Write).unwrap();
    Scene {
        view,
        direct,
        mount,
    }
}

impl Scene {
    /// Opens the file through the mount.
    fn through(&self, flags: i32) -> File {
        let mut how = File::options();
        how.read(true).write(true).custom_flags(flags);
        how.open(self.mount.at("file")).unwrap()
    }

    /// Everybody sees the same bytes.
    fn assert_same(&self, what: &str) -> Vec<u8> {
        let mount = fs::read(self.mount.at("file")).unwrap();
        let mut o_direct = vec![0; mount.len()];
        let n = self.through(libc::O_DIRECT).read_at(&mut o_direct, 0);
        assert_eq!(n.unwrap(), mount.len(), "{what}");
        assert!(o_direct == mount, "{what}: O_DIRECT");
        assert!(contents(&self.direct) == mount, "{what}: direct read");
        mount
    }

    fn end(self) {
        let Scene {
            view,
            direct,
            mount,
        } = self;
        drop((view, direct));
        assert!(wait_until(|| leases(&mount).is_empty()));
        mount.unmount();
        assert_checked(&mount);
    }
}

/// Makes a change through the mount beside direct writers, in all modes. Then stores
/// directly, and checks what everybody sees.
fn in_all_modes(test: &str, change: impl Fn(&Scene, &File), then: impl Fn(&Scene, &[u8])) {
    for (options, flags) in [("", 0), ("", libc::O_DIRECT), (",cache=none", 0)] {
        let Some((mount, _dog)) = mounted(test, &format!("{OPTIONS}{options}")) else {
            return;
        };
        let scene = scene(mount);
        scene.direct.write_all_at(&[0x51; 10], 2 * B - 5).unwrap();
        scene.view.write(B + 100, &[0x52; 10]).unwrap();
        let before = scene.assert_same(test);
        assert_eq!(before[2 * BLOCK - 5..2 * BLOCK + 5], [0x51; 10], "{test}");
        assert_eq!(before[BLOCK + 100..BLOCK + 110], [0x52; 10], "{test}");
        let through = scene.through(flags);
        change(&scene, &through);
        scene.assert_same(test);
        // To the first block, which no change takes away.
        scene.direct.write_all_at(&[0x53; 10], 0).unwrap();
        scene.view.store(16, 0x5454_5454u32).unwrap();
        let after = match scene.mount.at("file").exists() {
            true => scene.assert_same(test),
            false => contents(&scene.direct),
        };
        assert_eq!(after[..10], [0x53; 10], "{test}");
        assert_eq!(after[16..20], [0x54; 4], "{test}");
        then(&scene, &after);
        drop(through);
        scene.end();
    }
}

// ---- coherence: what direct stores and changes through the mount show each other

#[test]
fn write_through_mount_and_direct_stores_are_seen_at_once() {
    in_all_modes(
        "write",
        |_, file| file.write_all_at(&aligned(9), B).unwrap(),
        |scene, after| {
            assert_eq!(after[B as usize..2 * BLOCK], [9; BLOCK]);
            assert_eq!(scene.view.load::<u8>(B).unwrap(), 9);
        },
    );
}

#[test]
fn append_through_mount_beside_direct_stores_is_seen_at_once() {
    in_all_modes(
        "append",
        |_, file| file.write_all_at(&aligned(9), 4 * B).unwrap(),
        |scene, after| {
            assert_eq!(after[4 * BLOCK..], [9; BLOCK]);
            // The new block can be stored to as well.
            scene.direct.write_all_at(&[8; 100], 4 * B + 7).unwrap();
            assert_eq!(scene.assert_same("append")[4 * BLOCK + 7], 8);
        },
    );
}

#[test]
fn store_to_truncated_block_is_zero_after_growth() {
    in_all_modes(
        "truncate",
        |scene, file| {
            file.set_len(B + 10).unwrap();
            // Blocks past the end still belong to the file, and to nothing else.
            scene.view.write(B + 10, &[0x77; 2 * BLOCK]).unwrap();
            scene.view.persist(B..3 * B).unwrap();
            file.set_len(4 * B).unwrap();
        },
        |_, after| assert_eq!(after[BLOCK + 10..], [0; 3 * BLOCK - 10]),
    );
}

#[test]
fn direct_write_past_truncation_goes_through_mount() {
    in_all_modes(
        "truncate",
        |scene, file| {
            file.set_len(B).unwrap();
            scene.direct.write_all_at(&[0x66; 10], 3 * B).unwrap();
        },
        |_, after| {
            assert_eq!(after.len(), 3 * BLOCK + 10);
            assert_eq!(after[BLOCK..3 * BLOCK], [0; 2 * BLOCK]);
            assert_eq!(after[3 * BLOCK..], [0x66; 10]);
        },
    );
}

#[test]
fn punch_and_zero_range_beside_direct_stores_are_seen_at_once() {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for flags in [punch, FallocateFlags::ZERO_RANGE] {
        in_all_modes(
            "punch",
            |_, file| rustix::fs::fallocate(file, flags, B, 2 * B).unwrap(),
            |scene, after| {
                assert_eq!(after[BLOCK..3 * BLOCK], [0; 2 * BLOCK]);
                scene.view.store(B, 5u64).unwrap();
                assert_eq!(scene.assert_same("punch")[BLOCK], 5);
            },
        );
    }
}

#[test]
fn fallocate_beside_direct_stores_keeps_them() {
    in_all_modes(
        "fallocate",
        |_, file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 8 * B).unwrap(),
        |scene, after| {
            assert_eq!(after.len(), 8 * BLOCK);
            scene.direct.write_all_at(&[3; 20], 6 * B - 10).unwrap();
            assert_eq!(scene.assert_same("fallocate")[6 * BLOCK], 3);
        },
    );
}

#[test]
fn copy_file_range_beside_direct_stores_copies_them() {
    in_all_modes(
        "copy_file_range",
        |_, file| {
            let (mut from, mut to) = (B, 3 * B);
            let n = rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), BLOCK);
            assert_eq!(n.unwrap(), BLOCK);
        },
        |_, after| assert_eq!(after[3 * BLOCK + 100..3 * BLOCK + 110], [0x52; 10]),
    );
}

/// The record of the write is retired before it returns: what is stored later is not undone, not
/// even by a replay after the death of the server.
#[test]
fn atomic_write_beside_direct_stores_keeps_both() {
    let Some((mount, _dog)) = mounted("atomic writes", &format!("{OPTIONS},data=atomic")) else {
        return;
    };
    let scene = scene(mount);
    for round in 0..20 {
        let through = scene.through(libc::O_DIRECT);
        let bytes = vec![round; 2 * BLOCK];
        through.write_all_at(&bytes, B).unwrap();
        assert_eq!(scene.assert_same("atomic write")[BLOCK..3 * BLOCK], bytes);
        // Into what was written.
        let mark = [0xa0 + round; 10];
        scene.direct.write_all_at(&mark, 2 * B - 5).unwrap();
        scene.view.write(B + 100, &mark).unwrap();
        scene.view.persist(B..2 * B).unwrap();
        let both = scene.assert_same("stores after an atomic write");
        assert_eq!(both[2 * BLOCK - 5..2 * BLOCK + 5], mark);
        assert_eq!(both[BLOCK + 100..BLOCK + 110], mark);
    }
    scene.mount.crash();
    scene.mount.mount(&format!("{OPTIONS},data=atomic"));
    let now = fs::read(scene.mount.at("file")).unwrap();
    assert_eq!(now[2 * BLOCK - 5..2 * BLOCK + 5], [0xa0 + 19; 10]);
    assert_eq!(now[BLOCK + 100..BLOCK + 110], [0xa0 + 19; 10]);
    scene.end();
}

#[test]
fn unlinked_file_is_stored_to_as_before() {
    in_all_modes(
        "unlink",
        |scene, _| {
            fs::hard_link(scene.mount.at("file"), scene.mount.at("again")).unwrap();
            fs::remove_file(scene.mount.at("file")).unwrap();
            fs::rename(scene.mount.at("again"), scene.mount.at("file")).unwrap();
        },
        |scene, _| {
            fs::remove_file(scene.mount.at("file")).unwrap();
            fs::write(scene.mount.at("filler"), vec![9; 40 << 20]).unwrap();
            scene.view.write(0, &[0x42; 4 * BLOCK]).unwrap();
            scene.view.persist(0..4 * B).unwrap();
            let filler = fs::read(scene.mount.at("filler")).unwrap();
            assert!(filler.iter().all(|byte| *byte == 9), "another file is hit");
        },
    );
}

#[test]
fn chmod_leaves_direct_writer_like_open_descriptor() {
    in_all_modes(
        "chmod",
        |_, file| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
            file.set_permissions(mode).unwrap();
        },
        |scene, _| scene.direct.write_all_at(b"still", 50).unwrap(),
    );
}

// ---- the page cache of the kernel

#[test]
fn file_open_through_page_cache_gets_no_write_lease() {
    let Some((mount, _dog)) = mounted("page cache", OPTIONS) else {
        return;
    };
    let cached = file(&mount, "file", 4);
    let refused = open(&mount, "file").unwrap_err();
    assert_eq!(refused.errno(), libc::EBUSY, "{refused}");
    assert!(refused.to_string().contains("page cache"), "{refused}");
    // A mapping counts, after its descriptor is closed too.
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            BLOCK,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &cached,
            0,
        )
    }
    .unwrap();
    drop(cached);
    assert!(open(&mount, "file").is_err());
    // Readers have no quarrel with the page cache.
    drop(pramfs_client::File::open(mount.at("file")).unwrap());
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { rustix::mm::munmap(map, BLOCK) }.unwrap();
    // The kernel sends the release later.
    assert!(wait_until(|| open(&mount, "file").is_ok()));
    mount.unmount();
}

#[test]
fn mapping_of_mount_beside_direct_writer_is_refused_until_it_ends() {
    let Some((mount, _dog)) = mounted("map", OPTIONS) else {
        return;
    };
    let scene = scene(mount);
    let map = |file: &File, how| {
        // SAFETY: a new mapping at an address that the kernel chooses, if it succeeds.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), BLOCK, ProtFlags::READ, how, file, 0) }
    };
    let through = scene.through(0);
    assert_eq!(map(&through, MapFlags::SHARED).unwrap_err(), Errno::NODEV);
    scene.view.store(0, 0x11u8).unwrap();
    let private = map(&through, MapFlags::PRIVATE).unwrap();
    // SAFETY: the mapping has a page, and nothing else refers to it.
    assert_eq!(unsafe { private.cast::<u8>().read_volatile() }, 0x11);
    scene.view.store(0, 0x22u8).unwrap();
    let path = scene.mount.at("file");
    let Scene {
        view,
        direct,
        mount,
    } = scene;
    drop((view, direct));
    assert!(wait_until(|| leases(&mount).is_empty()));
    // From now on through the page cache, which has no page from before.
    let cached = File::open(path).unwrap();
    let mut byte = [0];
    cached.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [0x22]);
    let shared = map(&cached, MapFlags::SHARED).unwrap();
    // SAFETY: the mappings have a page each, and nothing else refers to them.
    unsafe {
        assert_eq!(shared.cast::<u8>().read_volatile(), 0x22);
        rustix::mm::munmap(shared, BLOCK).unwrap();
        rustix::mm::munmap(private, BLOCK).unwrap();
    }
    drop((cached, through));
    mount.unmount();
}

#[test]
fn pages_from_before_direct_stores_are_not_shown_after_them() {
    let Some((mount, _dog)) = mounted("old pages", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    assert_eq!(fs::read(mount.at("file")).unwrap()[0], 1);
    for round in 2..10 {
        let direct = opened(&mount, "file");
        direct.write_all_at(&[round; 100], 0).unwrap();
        assert_eq!(fs::read(mount.at("file")).unwrap()[..100], [round; 100]);
        direct.write_all_at(&[round + 100; 100], 0).unwrap();
        drop(direct);
        assert!(wait_until(|| leases(&mount).is_empty()));
        assert_eq!(
            fs::read(mount.at("file")).unwrap()[..100],
            [round + 100; 100]
        );
    }
    mount.unmount();
    assert_checked(&mount);
}

/// The kernel serves `sendfile` and `splice` from its page cache, whatever the server asks.
/// With O_DIRECT it does not.
#[test]
fn sendfile_beside_direct_writer_shows_stores_within_a_second() {
    let Some((mount, _dog)) = mounted("sendfile", OPTIONS) else {
        return;
    };
    let scene = scene(mount);
    let sent = |file: &File| {
        let (mut from, to) = (0, tempfile::tempfile().unwrap());
        rustix::fs::sendfile(&to, file, Some(&mut from), 1).unwrap();
        let mut byte = [0];
        to.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    };
    let (plain, o_direct) = (scene.through(0), scene.through(libc::O_DIRECT));
    for value in [0x41, 0x42, 0x43] {
        scene.direct.write_all_at(&[value], 0).unwrap();
        assert_eq!(sent(&o_direct), value);
        // Half of the times, a stat takes the note of the stores before the timer.
        if value % 2 == 0 {
            plain.metadata().unwrap();
        }
        assert!(wait_until(|| sent(&plain) == value));
    }
    drop((plain, o_direct));
    scene.end();
}

// ---- times, rights, refusals

#[test]
fn direct_stores_set_mtime_and_ctime() {
    let Some((mount, _dog)) = mounted("times", OPTIONS) else {
        return;
    };
    let scene = scene(mount);
    let stat = || fs::metadata(scene.mount.at("file")).unwrap();
    let old = SystemTime::UNIX_EPOCH;
    for store in [
        &(|| scene.direct.write_all_at(b"x", 0).unwrap()) as &dyn Fn(),
        &|| {
            scene.view.store(0, 1u8).unwrap();
            scene.view.persist(0..1).unwrap();
        },
    ] {
        scene.through(0).set_modified(old).unwrap();
        assert_eq!(stat().modified().unwrap(), old);
        let before = SystemTime::now() - std::time::Duration::from_secs(2);
        store();
        let now = stat();
        assert!(now.modified().unwrap() >= before, "{now:?}");
        assert!(now.ctime() > 0);
    }
    // Also after the end of the lease, and the unmount.
    scene.through(0).set_modified(old).unwrap();
    scene.direct.write_all_at(b"y", 0).unwrap();
    let Scene {
        view,
        direct,
        mount,
    } = scene;
    drop((view, direct));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    mount.mount("");
    assert_ne!(
        fs::metadata(mount.at("file")).unwrap().modified().unwrap(),
        old
    );
    mount.unmount();
}

#[test]
fn write_lease_drops_capability_of_program() {
    let Some((mount, _dog)) = mounted("capability", OPTIONS) else {
        return;
    };
    let scene = scene(mount);
    let path = scene.mount.at("file");
    // Version 2, CAP_NET_RAW.
    let mut value = [0u8; 20];
    (value[3], value[5]) = (2, 0x20);
    let name = "security.capability";
    rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
    drop(opened(&scene.mount, "file"));
    let mut read = [0u8; 20];
    let gone = rustix::fs::getxattr(&path, name, &mut read[..]);
    assert_eq!(gone.unwrap_err(), Errno::NODATA);
    scene.end();
}

#[test]
fn immutable_and_append_only_files_get_no_write_lease() {
    let Some((mount, _dog)) = mounted("chattr", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let through = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at("file"))
        .unwrap();
    for flag in [rustix::fs::IFlags::IMMUTABLE, rustix::fs::IFlags::APPEND] {
        rustix::fs::ioctl_setflags(&through, flag).unwrap();
        let refused = lease_ticket(through.as_fd(), LeaseMode::Write).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(lease_ticket(through.as_fd(), LeaseMode::Read).is_ok());
    }
    rustix::fs::ioctl_setflags(&through, rustix::fs::IFlags::empty()).unwrap();
    drop(through);
    mount.unmount();
}

#[test]
fn ticket_to_read_gives_no_right_to_write() {
    let Some((mount, _dog)) = mounted("read only", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let read_only = File::open(mount.at("file")).unwrap();
    let refused = lease_ticket(read_only.as_fd(), LeaseMode::Write).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    let direct = pramfs_client::File::open(mount.at("file")).unwrap();
    assert!(matches!(direct.write_at(b"x", 0), Err(Error::NotWritable)));
    assert!(matches!(
        direct.map(0..B, Access::Write),
        Err(Error::NotWritable)
    ));
    let view = direct.map(0..B, Access::Read).unwrap();
    assert_eq!(view.store(0, 1u8).unwrap_err().errno(), libc::EACCES);
    // Its lease does not allow to fill holes, and the lease of another is none of its.
    let lease = leases(&mount)[0].lease;
    assert!(connection(&mount).fill(lease, 0..B, false).is_err());
    drop((view, direct, read_only));
    mount.unmount();
}

// ---- holes

#[test]
fn view_for_stores_has_no_holes() {
    let Some((mount, _dog)) = mounted("holes", OPTIONS) else {
        return;
    };
    let through = file(&mount, "file", 1);
    through.set_len(100 * B).unwrap();
    through.write_all_at(&[7; 10], 50 * B).unwrap();
    rustix::fs::fallocate(&through, FallocateFlags::empty(), 60 * B, 10 * B).unwrap();
    drop(through);
    let direct = opened(&mount, "file");
    let view = direct.map(10..100 * B - 3, Access::Write).unwrap();
    let bytes = vec![0x33; view.len() as usize];
    view.write(0, &bytes).unwrap();
    view.persist(0..view.len()).unwrap();
    let shown = fs::read(mount.at("file")).unwrap();
    assert!(shown[10..100 * BLOCK - 3] == bytes);
    assert_eq!((shown[9], shown[100 * BLOCK - 3]), (1, 0));
    assert!(matches!(
        direct.map(99 * B..101 * B, Access::Write),
        Err(Error::Range)
    ));
    drop((view, direct));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn view_for_stores_on_full_region_is_enospc() {
    let Some((mount, _dog)) = mounted("full", OPTIONS) else {
        return;
    };
    let through = file(&mount, "file", 1);
    through.set_len(200 << 20).unwrap();
    drop(through);
    let direct = opened(&mount, "file");
    let refused = direct.map(0..200 << 20, Access::Write).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    drop(direct);
    mount.unmount();
    assert_checked(&mount);
}

// ---- several processes, and deaths

#[test]
fn stores_of_two_processes_are_atomic() {
    let Some((mount, _dog)) = mounted("two", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let through = File::options().write(true).open(mount.at("file")).unwrap();
    through.write_all_at(&[0; 8], 64).unwrap();
    drop(through);
    let mut both = [
        start(None, &mount, "count", &[]),
        start(None, &mount, "count", &[]),
    ];
    for client in &mut both {
        assert_eq!(client.says().unwrap(), "done");
    }
    drop(both);
    let bytes = fs::read(mount.at("file")).unwrap();
    let sum = u64::from_le_bytes(bytes[64..72].try_into().unwrap());
    assert_eq!(sum, 200_000);
    mount.unmount();
}

#[test]
fn writes_of_killed_client_that_returned_are_there() {
    let Some((mount, _dog)) = mounted("killed writer", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    for round in 0..kills(20) {
        let mut writer = Writer::start(&mount, round % 7 * 3);
        writer.client.child.kill().unwrap();
        writer.assert_written(&mount);
    }
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// Client and server die, in either order, and the next server shows what had returned.
#[test]
fn writes_that_returned_are_there_after_both_deaths() {
    let Some((mount, _dog)) = mounted("both killed", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    for round in 0..kills(6) {
        let mut writer = Writer::start(&mount, round % 5 * 4);
        match round % 3 {
            0 => {
                writer.client.child.kill().unwrap();
                mount.crash();
            }
            1 => {
                mount.crash();
                writer.client.child.kill().unwrap();
            }
            // It stores on for a while without a server.
            _ => {
                mount.crash();
                (0..20).for_each(|_| writer.one_more());
                writer.client.child.kill().unwrap();
            }
        }
        mount.mount(OPTIONS);
        writer.assert_written(&mount);
    }
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// A process that writes numbers directly, each to its own place, and says them afterwards.
struct Writer {
    client: Client,
    last: u64,
}

impl Writer {
    fn start(mount: &Mounted, writes: u64) -> Writer {
        let client = start(None, mount, "write", &[]);
        let mut writer = Writer {
            last: client.said.parse().unwrap(),
            client,
        };
        (0..writes).for_each(|_| writer.one_more());
        writer
    }

    fn one_more(&mut self) {
        self.last = self.client.says().unwrap().parse().unwrap();
    }

    /// It is dead. What it has said is in the file.
    fn assert_written(mut self, mount: &Mounted) {
        self.client.child.wait().unwrap();
        while let Some(said) = self.client.says() {
            self.last = said.parse().unwrap();
        }
        let bytes = fs::read(mount.at("file")).unwrap();
        let at = (self.last % (B / 8) * 8) as usize;
        let found = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        // The next one may have been written, and not said.
        assert!(found == self.last, "{found} instead of {}", self.last);
    }
}

#[test]
fn client_stores_on_after_death_of_server() {
    let Some((mount, _dog)) = mounted("killed server", OPTIONS) else {
        return;
    };
    let scene = scene(mount);
    scene.mount.crash();
    scene.direct.write_all_at(&[0x61; 100], B).unwrap();
    scene.view.store(2 * B, 0x62u8).unwrap();
    scene.view.persist(2 * B..2 * B + 1).unwrap();
    // What lies past the end needs the server.
    let gone = scene.direct.write_at(b"x", 5 * B).unwrap_err();
    assert!(gone.is_server_gone(), "{gone}");
    // A mount without opens, or whose size of the file is the kernel's, cannot do what the
    // next one does.
    for options in ["opens=kernel", "cache=writeback"] {
        let refused = scene.mount.run(["-o", options]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(32), "{said}");
        assert!(said.contains("by a lease of an earlier mount"), "{said}");
    }
    // Without direct access too, the mount keeps the file out of the page cache.
    scene.mount.mount("opens=server");
    let shown = fs::read(scene.mount.at("file")).unwrap();
    assert_eq!((shown[BLOCK], shown[2 * BLOCK]), (0x61, 0x62));
    scene.view.store(0, 0x63u8).unwrap();
    assert_eq!(fs::read(scene.mount.at("file")).unwrap()[0], 0x63);
    scene.mount.unmount();
    scene.mount.mount(OPTIONS);
    let adopted = leases(&scene.mount);
    assert!(adopted.len() == 1 && adopted[0].adopted && adopted[0].write);
    scene.view.store(0, 0x64u8).unwrap();
    assert_eq!(scene.assert_same("after the mount")[0], 0x64);
    // A new lease beside the old one.
    scene.direct.write_all_at(b"x", 5 * B).unwrap();
    assert_eq!(scene.assert_same("past the end").len(), 5 * BLOCK + 1);
    scene.end();
}

/// The region is cut under a client, as by a host that has lost a part of it.
#[test]
fn store_to_failed_page_is_eio_and_not_success() {
    let Some((mount, _dog)) = mounted("failed page", OPTIONS) else {
        return;
    };
    pramfs::pmem::install_fault_guard().unwrap();
    drop(file(&mount, "file", 4096));
    let direct = opened(&mount, "file");
    let last = 4095 * B;
    let view = direct.map(last..last + B, Access::Write).unwrap();
    direct.write_all_at(b"before", last).unwrap();
    let region = File::options().write(true).open(mount.region()).unwrap();
    region.set_len(4 << 20).unwrap();
    for _ in 0..2 {
        // The page fails once, and stays bad.
        let failed = direct.write_at(b"after", last).unwrap_err();
        assert_eq!(failed.errno(), libc::EIO, "{failed}");
    }
    view.write(0, b"after").unwrap();
    assert_eq!(view.persist(0..B).unwrap_err().errno(), libc::EIO);
    drop((view, direct));
    mount.crash();
}

#[test]
fn listing_shows_who_stores() {
    let Some((mount, _dog)) = mounted("listing", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let mut client = start(None, &mount, "hold-for-writing", &[]);
    let rows = leases(&mount);
    assert!(rows.len() == 1 && rows[0].write, "{rows:?}");
    assert_eq!(rows[0].pid, client.child.id());
    client.child.kill().unwrap();
    client.child.wait().unwrap();
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
}
