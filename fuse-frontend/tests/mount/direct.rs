//! Direct access beside a mount: leases, with the kernel, real processes and their deaths.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use pramfs_client::{Access, Error, MappedFile};
use pramfs_control::{Connection, DIRECTORY, Directory, Identity, LeaseRow, Refusal, Ticket};
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::direct_client::{as_user, start};
use crate::{mounted, unmounted};

pub(super) const BLOCK: usize = 4096;
pub(super) const OPTIONS: &str = "direct=owner";

pub(super) fn connection(mount: &Mounted) -> Connection {
    let directory = Directory::open(DIRECTORY).unwrap().unwrap();
    let name = Identity::of_path(&mount.region()).unwrap().socket_name();
    Connection::open(&directory, &name).unwrap().unwrap()
}

pub(super) fn leases(mount: &Mounted) -> Vec<LeaseRow> {
    connection(mount).leases().unwrap()
}

/// A file of `blocks` blocks; the bytes of a block are its number, from 1.
pub(super) fn file(mount: &Mounted, name: &str, blocks: usize) -> File {
    let options = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .clone();
    let file = options.open(mount.at(name)).unwrap();
    let bytes: Vec<u8> = (0..blocks * BLOCK).map(|i| (i / BLOCK + 1) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file
}

pub(super) fn contents(file: &pramfs_client::File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.len().unwrap() as usize + 100];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

pub(super) fn view_contents(view: &MappedFile) -> Vec<u8> {
    let mut bytes = vec![0xee; view.len() as usize];
    view.read(0, &mut bytes).unwrap();
    bytes
}

// ---- coherence: what a change through the mount shows a direct reader

/// Checks a change by a process with the mount: a direct reader, opened before it, sees the
/// file as the mount shows it. Returns the view that was made before, and whether it still
/// counts as current.
fn seen_after(
    test: &str,
    options: &str,
    change: impl Fn(&Mounted, &File),
) -> Option<(Vec<u8>, bool)> {
    let (mount, _dog) = mounted(test, &format!("{OPTIONS}{options}"))?;
    let through = file(&mount, "file", 4);
    let direct = pramfs_client::File::open(mount.at("file")).unwrap();
    let view = direct.map(0..4 * BLOCK as u64, Access::Read).unwrap();
    assert_eq!(contents(&direct), fs::read(mount.at("file")).unwrap());
    change(&mount, &through);
    let size = through.metadata().unwrap().len() as usize;
    let mut expect = vec![0; size];
    through.read_exact_at(&mut expect, 0).unwrap();
    assert!(contents(&direct) == expect, "{test}{options}");
    // A reader that opens it afterwards.
    if let Ok(later) = pramfs_client::File::open(mount.at("file")) {
        assert!(contents(&later) == expect, "{test}{options}, later");
    }
    let shown = (view_contents(&view), view.is_current().unwrap());
    drop((through, direct, view));
    mount.unmount();
    Some(shown)
}

/// The modes in which a file can be changed through a mount.
const MODES: [(&str, i32); 3] = [("", 0), ("", libc::O_DIRECT), (",cache=none", 0)];

fn in_all_modes(test: &str, change: impl Fn(&File)) -> Vec<(Vec<u8>, bool)> {
    let mut shown = Vec::new();
    for (options, flags) in MODES {
        shown.extend(seen_after(test, options, |mount, _| {
            let mut how = File::options();
            how.read(true).write(true).custom_flags(flags);
            change(&how.open(mount.at("file")).unwrap());
        }));
    }
    shown
}

#[test]
fn write_through_mount_is_seen_at_once() {
    for (view, current) in in_all_modes("write", |file| {
        file.write_all_at(&aligned(9), BLOCK as u64).unwrap();
    }) {
        assert_eq!(view[BLOCK], 9);
        assert!(current);
    }
}

/// A block of this byte, aligned as O_DIRECT wants it.
pub(super) fn aligned(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

#[test]
fn append_through_mount_is_seen_at_once() {
    for (view, current) in in_all_modes("append", |file| {
        file.write_all_at(&aligned(9), 4 * BLOCK as u64).unwrap();
    }) {
        assert_eq!(view[..BLOCK], [1; BLOCK]);
        assert!(current);
    }
}

#[test]
fn truncation_through_mount_is_seen_at_once() {
    for (view, current) in in_all_modes("truncate", |file| {
        file.set_len(BLOCK as u64 + 10).unwrap();
    }) {
        // The view keeps its blocks.
        assert_eq!(view[3 * BLOCK..], [4; BLOCK]);
        assert!(!current);
    }
}

#[test]
fn truncation_and_growth_through_mount_read_zeros() {
    in_all_modes("truncate and grow", |file| {
        file.set_len(10).unwrap();
        file.set_len(5 * BLOCK as u64).unwrap();
    });
}

#[test]
fn punch_through_mount_is_seen_at_once() {
    for (view, current) in in_all_modes("punch", |file| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, BLOCK as u64 + 5, 2 * BLOCK as u64).unwrap();
    }) {
        assert_eq!((view[BLOCK + 4], view[BLOCK + 5]), (2, 0));
        assert!(current, "the blocks are where they were");
    }
}

#[test]
fn fallocate_through_mount_is_seen_at_once() {
    for (_, current) in in_all_modes("fallocate", |file| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 9 * BLOCK as u64).unwrap();
    }) {
        assert!(current, "unwritten blocks read as the hole did");
    }
}

#[test]
fn zero_range_through_mount_is_seen_at_once() {
    for (view, current) in in_all_modes("zero range", |file| {
        let flags = FallocateFlags::ZERO_RANGE;
        rustix::fs::fallocate(file, flags, 2 * BLOCK as u64, 6 * BLOCK as u64).unwrap();
    }) {
        assert_eq!((view[2 * BLOCK - 1], view[2 * BLOCK]), (2, 0));
        assert!(current, "the blocks are where they were");
    }
}

#[test]
fn copy_file_range_through_mount_is_seen_at_once() {
    for (view, _) in in_all_modes("copy_file_range", |file| {
        let (mut from, mut to) = (0, 2 * BLOCK as u64);
        let n = rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), BLOCK);
        assert_eq!(n, Ok(BLOCK));
    }) {
        assert_eq!(view[2 * BLOCK], 1);
    }
}

#[test]
fn write_into_hole_through_mount_is_seen_at_once() {
    in_all_modes("hole", |file| {
        file.set_len(20 * BLOCK as u64).unwrap();
        file.write_all_at(&aligned(9), 10 * BLOCK as u64).unwrap();
        file.write_all_at(&aligned(8), 5 * BLOCK as u64).unwrap();
    });
}

#[test]
fn write_past_end_into_last_hole_is_seen_at_once() {
    in_all_modes("last hole", |file| {
        file.set_len(5 * BLOCK as u64 + 100).unwrap();
    });
    let shown = seen_after("last hole, filled", "", |mount, file| {
        file.set_len(5 * BLOCK as u64 + 100).unwrap();
        let reader = pramfs_client::File::open(mount.at("file")).unwrap();
        let zeros = contents(&reader)[5 * BLOCK..].to_vec();
        assert_eq!(zeros, [0; 100]);
        file.write_all_at(b"new", 5 * BLOCK as u64 + 200).unwrap();
        assert_eq!(contents(&reader)[5 * BLOCK + 200..], *b"new");
    });
    assert!(shown.is_none_or(|(_, current)| !current));
}

#[test]
fn store_through_mapping_of_mount_is_seen_after_msync() {
    let shown = seen_after("mmap", "", |_, file| {
        // SAFETY: a new mapping of the file at an address that the kernel chooses.
        unsafe {
            let at = rustix::mm::mmap(
                std::ptr::null_mut(),
                BLOCK,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            );
            let at = at.unwrap();
            at.cast::<u8>().add(100).write_volatile(77);
            rustix::mm::msync(at, BLOCK, MsyncFlags::SYNC).unwrap();
            rustix::mm::munmap(at, BLOCK).unwrap();
        }
    });
    if let Some((view, current)) = shown {
        assert!(view[100] == 77 && current);
    }
}

#[test]
fn unlinked_and_replaced_file_stays_as_it_is() {
    for (name, rename) in [("unlink", false), ("rename", true)] {
        let shown = seen_after(name, "", |mount, _| {
            if rename {
                fs::write(mount.at("other"), "another file").unwrap();
                fs::rename(mount.at("other"), mount.at("file")).unwrap();
                // The reader that opens it later finds the other one.
                fs::remove_file(mount.at("file")).unwrap();
            } else {
                fs::remove_file(mount.at("file")).unwrap();
            }
            fs::write(mount.at("filler"), vec![9; 40 << 20]).unwrap();
        });
        if let Some((view, current)) = shown {
            assert_eq!(
                (view[0], view[4 * BLOCK - 1], current),
                (1, 4, true),
                "{name}"
            );
        }
    }
}

#[test]
fn chmod_leaves_lease_like_open_descriptor() {
    let shown = seen_after("chmod", "", |mount, file| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
        file.set_permissions(mode).unwrap();
        fs::write(mount.at("file"), "root may still write it").unwrap();
    });
    assert!(shown.is_none_or(|(_, current)| !current));
}

// ---- who gets a lease

#[test]
fn mount_without_direct_access_refuses_tickets() {
    let Some((mount, _dog)) = mounted("direct=off", "") else {
        return;
    };
    drop(file(&mount, "file", 1));
    let refused = pramfs_client::File::open(mount.at("file")).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{refused}");
    assert!(refused.to_string().contains("direct=owner"), "{refused}");
    // Another file system.
    let other = tempfile::NamedTempFile::new().unwrap();
    let refused = pramfs_client::File::open(other.path()).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOTTY, "{refused}");
    mount.unmount();
}

#[test]
fn descriptor_not_open_for_reading_gets_no_ticket() {
    let Some((mount, _dog)) = mounted("write-only", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let write_only = OpenOptions::new().write(true).open(mount.at("file"));
    let refused = lease_ticket(write_only.unwrap().as_fd(), LeaseMode::Read).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    let directory = File::open(mount.path()).unwrap();
    assert!(lease_ticket(directory.as_fd(), LeaseMode::Read).is_err());
    drop(directory);
    mount.unmount();
}

/// A ticket to read a file.
pub(super) fn ticket(file: &File) -> Ticket {
    let bytes = lease_ticket(file.as_fd(), LeaseMode::Read).unwrap();
    pramfs_control::TicketReply::decode(&bytes).unwrap().ticket
}

/// Runs work with a fresh ticket, which lives ten seconds. A failure after eight of them, on a
/// machine under load, is tried again.
pub(super) fn in_time(mut work: impl FnMut() -> Result<(), String>) {
    loop {
        let begun = Instant::now();
        match work() {
            Ok(()) => return,
            Err(_) if begun.elapsed() > Duration::from_secs(8) => (),
            Err(why) => panic!("{why}"),
        }
    }
}

#[test]
fn stolen_forged_and_used_tickets_are_refused() {
    let Some((mount, _dog)) = mounted("tickets", OPTIONS) else {
        return;
    };
    let file = file(&mount, "file", 1);
    // Each time by a new connection: a silent one is closed after some seconds.
    let reason = |ticket| match connection(&mount).lease(ticket) {
        Ok(_) => None,
        Err(pramfs_control::ControlError::Refused { reason, .. }) => Some(reason),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(reason(Ticket([7; 16])), Some(Refusal::Ticket));
    in_time(|| {
        let ticket = ticket(&file);
        // Another user has stolen it, and cannot reach the socket.
        let stolen = as_user(4242, &mount, "redeem", &[ticket.to_string()]);
        assert!(stolen.contains("no connection"), "{stolen}");
        let refused = reason(ticket);
        assert_eq!(reason(ticket), Some(Refusal::Ticket), "it is used up now");
        match refused {
            None => Ok(()),
            Some(reason) => Err(format!("it was used up: {reason:?}")),
        }
    });
    drop(file);
    mount.unmount();
}

#[test]
fn other_user_gets_no_lease_and_cannot_administer() {
    let Some((mount, _dog)) = mounted("other users", OPTIONS) else {
        return;
    };
    let file = file(&mount, "file", 1);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(mode).unwrap();
    let said = as_user(4242, &mount, "open", &[]);
    assert!(said.contains("error: 13"), "{said}");
    let said = as_user(4242, &mount, "leases", &[]);
    assert!(said.contains("no connection"), "{said}");
    drop(file);
    mount.unmount();
}

/// The region of another user, mounted by root.
fn mounted_for_owner(test: &str, mode: u32) -> Option<(Mounted, Watchdog)> {
    let (mount, dog) = unmounted(test)?;
    std::os::unix::fs::chown(mount.region(), Some(OWNER), None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(mount.region(), mode).unwrap();
    mount.mount(OPTIONS);
    let file = file(&mount, "file", 4);
    std::os::unix::fs::chown(mount.at("file"), Some(OWNER), None).unwrap();
    drop(file);
    Some((mount, dog))
}

const OWNER: u32 = 4243;

/// `SO_PASSRIGHTS` can refuse descriptors. Without it, only root gets leases.
pub(super) fn socket_can_be_open_to_users() -> bool {
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    match pramfs_kernel_sys::socket::refuse_descriptors(socket.as_fd()) {
        Ok(()) => true,
        Err(error) => {
            pramfs_tests::skip::skipped(format!("no SO_PASSRIGHTS: {error}"));
            false
        }
    }
}

#[test]
fn owner_of_region_gets_leases_and_nobody_else_does() {
    if !socket_can_be_open_to_users() {
        return;
    }
    let Some((mount, _dog)) = mounted_for_owner("owner", 0o600) else {
        return;
    };
    assert_eq!(as_user(OWNER, &mount, "open", &[]), "opened");
    // To write too, although only its owner may open the region.
    let mut writer = start(Some(OWNER), &mount, "hold-for-writing", &[]);
    assert_eq!(writer.said, "holding");
    // The lease of the process before may end a little later.
    assert!(wait_until(|| leases(&mount).len() == 1));
    let row = &leases(&mount)[0];
    assert!(row.uid == OWNER && row.write, "{row:?}");
    // Nothing else than leases.
    for other in ["leases", "requests"] {
        let said = as_user(OWNER, &mount, other, &[]);
        assert_eq!(said, "refused: NotPermitted", "{other}");
    }
    // Others do not even reach the socket.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(mount.at("file"), mode).unwrap();
    let said = as_user(4242, &mount, "open", &[]);
    assert!(said.contains("error: 13"), "{said}");
    let said = as_user(4242, &mount, "leases", &[]);
    assert!(said.contains("no connection"), "{said}");
    writer.child.kill().unwrap();
    writer.child.wait().unwrap();
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn server_for_owner_keeps_one_more_capability() {
    if !socket_can_be_open_to_users() {
        return;
    }
    const DAC_OVERRIDE: u64 = 1 << 1;
    let effective = |mount: &Mounted| {
        let status = format!("/proc/{}/status", mount.process().as_raw_nonzero());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    };
    let Some((mount, _dog)) = mounted_for_owner("capability", 0o600) else {
        return;
    };
    assert_ne!(effective(&mount) & DAC_OVERRIDE, 0);
    mount.unmount();
    mount.mount("");
    assert_eq!(effective(&mount) & DAC_OVERRIDE, 0);
    mount.unmount();
}

/// The close of a descriptor may take long; the thread of the socket would wait for it.
#[test]
fn descriptor_passed_to_control_socket_is_refused() {
    if !socket_can_be_open_to_users() {
        return;
    }
    let Some((mount, _dog)) = mounted_for_owner("passing", 0o600) else {
        return;
    };
    assert_eq!(
        as_user(OWNER, &mount, "pass", &[]),
        "refused: Operation not permitted (os error 1)"
    );
    assert_eq!(leases(&mount), []);
    mount.unmount();
}

/// The memory of the server in KiB, and its descriptors.
fn used(mount: &Mounted) -> (u64, usize) {
    let server = mount.process().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.unwrap().trim().trim_end_matches(" kB");
    let descriptors = fs::read_dir(format!("/proc/{server}/fd")).unwrap();
    (kib.parse().unwrap(), descriptors.count())
}

#[test]
fn leases_up_to_their_limit_cost_server_no_descriptors() {
    const LEASES: usize = 4096;
    const OF_ONE: usize = 512;
    let Some((mount, _dog)) = mounted("many leases", OPTIONS) else {
        return;
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|most| most < LEASES as u64 + 100) {
        pramfs_tests::skip::skipped(format_args!(
            "{LEASES} leases need as many descriptors: raise the limit with `ulimit -n 8192`"
        ));
        return;
    }
    let file = file(&mount, "file", 4);
    let (kib, descriptors) = used(&mount);
    let connections: Vec<_> = (0..=LEASES / OF_ONE).map(|_| connection(&mount)).collect();
    let mut held = Vec::new();
    let mut lease = |turn: usize| {
        let leased = connections[turn % connections.len()].lease(ticket(&file));
        leased.map(|lease| held.push(lease))
    };
    (0..LEASES).for_each(|turn| lease(turn).unwrap());
    let refused = lease(LEASES).unwrap_err();
    assert!(
        matches!(
            refused,
            pramfs_control::ControlError::Refused {
                reason: Refusal::Full,
                ..
            }
        ),
        "{refused}"
    );
    // One that the server has just sent may not be closed yet.
    let bound = descriptors + connections.len();
    assert!(wait_until(|| used(&mount).1 <= bound), "{:?}", used(&mount));
    let kib_now = used(&mount).0;
    println!("{LEASES} leases: {kib} KiB before, {kib_now} KiB afterwards");
    assert!(kib_now < kib + (16 << 10), "{kib_now} KiB");
    drop((held, connections, file));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn connections_of_owner_leave_room_for_root() {
    if !socket_can_be_open_to_users() {
        return;
    }
    let Some((mount, _dog)) = mounted_for_owner("connections", 0o600) else {
        return;
    };
    let (kib, descriptors) = used(&mount);
    let flood = start(Some(OWNER), &mount, "connect", &[]);
    assert_eq!(flood.said, "connected");
    assert_eq!(leases(&mount), []);
    let (kib_now, descriptors_now) = used(&mount);
    println!(
        "10000 connections: {kib} KiB and {descriptors} descriptors before, {kib_now} KiB and \
         {descriptors_now} descriptors afterwards"
    );
    assert!(descriptors_now <= descriptors + 256, "{descriptors_now}");
    assert!(kib_now < kib + (16 << 10), "{kib_now} KiB");
    drop(flood);
    mount.unmount();
}

// ---- deaths

#[test]
fn killed_client_leaves_no_lease() {
    let Some((mount, _dog)) = mounted("killed client", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 100));
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let mut client = start(None, &mount, "hold", &[]);
    assert_eq!(leases(&mount).len(), 1);
    let before = free();
    fs::remove_file(mount.at("file")).unwrap();
    assert!(free() < before + 100, "its blocks are given away");
    client.child.kill().unwrap();
    client.child.wait().unwrap();
    assert!(wait_until(|| leases(&mount).is_empty()));
    assert!(wait_until(|| free() >= before + 100));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn client_reads_on_after_death_of_server() {
    let Some((mount, _dog)) = mounted("killed server", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let direct = pramfs_client::File::open(mount.at("file")).unwrap();
    let view = direct.map(0..4 * BLOCK as u64, Access::Read).unwrap();
    mount.crash();
    let mut byte = [0];
    direct.read_exact_at(&mut byte, 3 * BLOCK as u64).unwrap();
    assert_eq!((byte, view.load::<u8>(0).unwrap()), ([4], 1));
    // What it does not know needs a server.
    assert!(File::open(mount.at("file")).is_err());
    mount.mount(OPTIONS);
    let adopted = leases(&mount);
    assert!(adopted.len() == 1 && adopted[0].adopted, "{adopted:?}");
    // The next server gives none of its blocks away.
    fs::remove_file(mount.at("file")).unwrap();
    fs::write(mount.at("filler"), vec![9; 50 << 20]).unwrap();
    assert_eq!(view_contents(&view)[3 * BLOCK..], [4; BLOCK]);
    // The layout has moved on, and the name is gone.
    let gone = direct.read_exact_at(&mut byte, 0).unwrap_err();
    assert!(
        matches!(gone, Error::ServerGone | Error::Open { .. }),
        "{gone}"
    );
    drop((view, direct));
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn client_takes_up_again_with_next_server() {
    let Some((mount, _dog)) = mounted("next server", OPTIONS) else {
        return;
    };
    let through = file(&mount, "file", 4);
    let direct = pramfs_client::File::open(mount.at("file")).unwrap();
    drop(through);
    mount.crash();
    mount.mount(OPTIONS);
    let through = OpenOptions::new().write(true).open(mount.at("file"));
    through.unwrap().set_len(10).unwrap();
    assert_eq!(contents(&direct), [1; 10]);
    fs::write(mount.at("file"), "new contents").unwrap();
    assert_eq!(contents(&direct), b"new contents");
    // The lease of the dead server has ended, the new one lives.
    assert!(wait_until(|| leases(&mount).len() == 1));
    assert!(!leases(&mount)[0].adopted);
    drop(direct);
    mount.unmount();
    assert_checked(&mount);
}

/// Server and client die at once.
#[test]
fn both_deaths_leave_no_lease() {
    let Some((mount, _dog)) = mounted("both", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let mut client = start(None, &mount, "hold", &[]);
    let server = mount.process();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    client.child.kill().unwrap();
    mount.crash();
    client.child.wait().unwrap();
    mount.mount(OPTIONS);
    // A process that reads /proc may keep the memory of the dead client, and its lock, for a moment.
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn unmounted_region_keeps_lease_of_live_client() {
    let Some((mount, _dog)) = mounted("unmount", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let client = start(None, &mount, "hold-only-view", &[]);
    mount.unmount();
    // Nobody may format or repair it meanwhile.
    let region = pramfs::pmem::RegionOptions::new()
        .open(mount.region())
        .unwrap();
    let refused = pramfs::format::format(&region, &Default::default()).unwrap_err();
    assert_eq!(refused.errno(), libc::EBUSY, "{refused}");
    drop(region);
    mount.mount(OPTIONS);
    assert!(leases(&mount)[0].adopted);
    drop(client);
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// No socket, no descriptor and no name: the mapping alone keeps the blocks from others.
#[test]
fn unlinked_file_keeps_its_blocks_as_long_as_its_mapping() {
    let Some((mount, _dog)) = mounted("mapping", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let mut client = start(None, &mount, "map-only", &[]);
    assert_eq!(client.said, "mapped");
    std::fs::remove_file(mount.at("file")).unwrap();
    // More than one round: what is freed late would be taken by a later file.
    for _ in 0..2 {
        fill(&mount);
        assert_eq!(client.asks().as_deref(), Some("[1, 2, 3, 4]"));
        assert_eq!(leases(&mount).len(), 1);
        std::fs::remove_file(mount.at("filler")).unwrap();
    }
    mount.crash();
    mount.mount(OPTIONS);
    fill(&mount);
    assert_eq!(client.asks().as_deref(), Some("[1, 2, 3, 4]"));
    drop(client);
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// Fills the file system with a file.
fn fill(mount: &Mounted) {
    let mut filler = File::create(mount.at("filler")).unwrap();
    let error = loop {
        if let Err(error) = filler.write_all(&[0xee; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

/// Many times: a client dies at any moment of opening, reading and closing.
#[test]
fn client_killed_at_any_moment_leaves_no_lease() {
    let Some((mount, _dog)) = mounted("any moment", OPTIONS) else {
        return;
    };
    for n in 0..8 {
        drop(file(&mount, &format!("file{n}"), 10));
    }
    for round in 0..kills(30) {
        let mut client = start(None, &mount, "churn", &[]);
        std::thread::sleep(std::time::Duration::from_micros(500 * (round % 7)));
        client.child.kill().unwrap();
        client.child.wait().unwrap();
    }
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

/// How often a test kills a process. `scripts/sigkill.sh` asks for more.
pub(super) fn kills(usual: u64) -> u64 {
    let asked = std::env::var("PRAMFS_TEST_KILLS").ok();
    asked.map_or(usual, |kills| {
        kills.parse().expect("PRAMFS_TEST_KILLS is a number")
    })
}

pub(super) fn assert_checked(mount: &Mounted) {
    let region = pramfs::pmem::RegionOptions::new()
        .read_only(true)
        .open(mount.region())
        .unwrap();
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");
}
