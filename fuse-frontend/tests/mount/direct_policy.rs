//! Direct access for the group of the region and for everybody: who gets which lease, and
//! what a hostile reader of the region can do to later servers.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use pramfs_tests::mounted::{Mounted, unmount_when_free, wait_until};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::XattrFlags;
use rustix::process::Signal;

use crate::direct::{
    assert_checked, connection, file, in_time, leases, socket_can_be_open_to_users, ticket,
};
use crate::direct_client::{Client, as_user, start, start_in_groups};
use crate::unmounted;

const GROUP: u32 = 4250;
const OTHER_GROUP: u32 = 4260;
const MEMBER: u32 = 4251;
const STRANGER: u32 = 4252;
const OWNER: u32 = 4243;

/// An unmounted region of root's, with this mode and the group.
fn region(test: &str, mode: u32) -> Option<(Mounted, Watchdog)> {
    if !socket_can_be_open_to_users() {
        return None;
    }
    let (mount, dog) = unmounted(test)?;
    chown(mount.region(), Some(0), Some(GROUP)).unwrap();
    chmod(&mount, mode);
    Some((mount, dog))
}

/// The same, mounted, with a file that every user may read and write.
fn mounted(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    let (mount, dog) = region(test, 0o640)?;
    mount.mount(options);
    make_file(&mount);
    Some((mount, dog))
}

fn make_file(mount: &Mounted) {
    let made = file(mount, "file", 4);
    made.set_permissions(fs::Permissions::from_mode(0o666))
        .unwrap();
}

fn chmod(mount: &Mounted, mode: u32) {
    fs::set_permissions(mount.region(), fs::Permissions::from_mode(mode)).unwrap();
}

fn as_member(mount: &Mounted, what: &str) -> String {
    start_in_groups(Some(MEMBER), &[7, GROUP], mount, what, &[])
        .said
        .clone()
}

fn mount_fails(mount: &Mounted, options: &str) -> String {
    let out = mount.run(["-o", options]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && !mount.is_mounted(), "{said}");
    said
}

// ---- who gets which lease

#[test]
fn members_of_group_read_and_others_get_nothing() {
    let Some((mount, _dog)) = mounted("group", "direct=group") else {
        return;
    };
    assert_eq!(as_member(&mount, "open"), "opened");
    // By the group of the process itself.
    assert_eq!(as_user(GROUP, &mount, "open", &[]), "opened");
    let reader = start_in_groups(Some(MEMBER), &[GROUP], &mount, "hold", &[]);
    assert_eq!(reader.said, "holding");
    assert!(
        leases(&mount)
            .iter()
            .any(|row| row.uid == MEMBER && !row.write)
    );
    let said = as_member(&mount, "open-for-writing");
    assert!(said.starts_with("error: 13"), "{said}");
    // Nothing else than leases.
    assert_eq!(as_member(&mount, "leases"), "refused: NotPermitted");
    assert_eq!(as_member(&mount, "revoke"), "refused: NotPermitted");
    let said = as_user(STRANGER, &mount, "open", &[]);
    assert!(said.starts_with("error: 13"), "{said}");
    let said = as_user(STRANGER, &mount, "leases", &[]);
    assert_eq!(said, "no connection");
    drop(reader);
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn group_of_region_at_grant_decides() {
    let Some((mount, _dog)) = mounted("chgrp", "direct=group") else {
        return;
    };
    assert_eq!(as_member(&mount, "open"), "opened");
    chown(mount.region(), None, Some(OTHER_GROUP)).unwrap();
    let said = as_member(&mount, "open");
    assert!(said.starts_with("error: 13"), "{said}");
    mount.unmount();
}

#[test]
fn everybody_reads_and_nobody_writes_with_policy_all() {
    let Some((mount, _dog)) = mounted("all", "direct=all") else {
        return;
    };
    assert_eq!(as_user(STRANGER, &mount, "open", &[]), "opened");
    let said = as_user(STRANGER, &mount, "open-for-writing", &[]);
    assert!(said.starts_with("error: 13"), "{said}");
    let said = as_user(STRANGER, &mount, "leases", &[]);
    assert_eq!(said, "refused: NotPermitted");
    let said = as_user(STRANGER, &mount, "revoke", &[]);
    assert_eq!(said, "refused: NotPermitted");
    let said = as_user(STRANGER, &mount, "pass", &[]);
    assert_eq!(said, "refused: Operation not permitted (os error 1)");
    mount.unmount();
}

#[test]
fn descriptor_for_reading_cannot_be_opened_for_writing() {
    let Some((mount, _dog)) = mounted("reopen", "direct=all") else {
        return;
    };
    let said = as_user(STRANGER, &mount, "reopen", &[]);
    assert_eq!(said, "refused: Permission denied (os error 13)");
    mount.unmount();
}

#[test]
fn users_of_policy_write_only_if_administrator_says_so() {
    for (options, member, stranger) in [
        ("direct=group,direct-write-is-root=yes", true, false),
        ("direct=all,direct-write-is-root=yes", true, true),
    ] {
        let Some((mount, _dog)) = mounted("writing", options) else {
            return;
        };
        for (said, expect) in [
            (as_member(&mount, "open-for-writing"), member),
            (as_user(STRANGER, &mount, "open-for-writing", &[]), stranger),
        ] {
            let found = match expect {
                true => said == "opened",
                false => said.starts_with("error: 13"),
            };
            assert!(found, "{options}: {said}");
        }
        mount.unmount();
        assert_checked(&mount);
    }
}

#[test]
fn mount_tells_what_policy_gives_away() {
    let Some((mount, _dog)) = region("warning", 0o600) else {
        return;
    };
    for (options, says) in [
        ("direct=group", "every member of group 4250 can read"),
        ("direct=all", "every user can read every file"),
        ("direct=all,direct-write-is-root=yes", "become root"),
    ] {
        let out = mount.run(["-o", options]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() && said.contains(says), "{said}");
        mount.unmount();
    }
    let out = mount.run(["-o", "direct=owner,direct-write-is-root=yes"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("direct=group"), "{said}");
}

// ---- a region that others may write

fn set_acl(mount: &Mounted) {
    // USER_OBJ rw, USER 4252 rw, GROUP_OBJ r, MASK r, OTHER none.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 6, STRANGER),
        (4, 4, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(rights.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let region = File::open(mount.region()).unwrap();
    let name = "system.posix_acl_access";
    rustix::fs::fsetxattr(&region, name, &acl, XattrFlags::empty()).unwrap();
}

#[test]
fn region_that_others_may_write_is_not_mounted_for_them() {
    for (mode, with_acl, says) in [
        (0o660, false, "its group"),
        (0o602, false, "everybody"),
        (0o640, true, "user 4252"),
    ] {
        let Some((mount, _dog)) = region("writable", mode) else {
            return;
        };
        if with_acl {
            set_acl(&mount);
        }
        for policy in ["direct=group", "direct=all"] {
            let said = mount_fails(&mount, policy);
            assert!(said.contains(says) && said.contains("chmod go-w"), "{said}");
        }
        // These users may write it anyway, or need not be asked.
        for options in ["direct=all,direct-write-is-root=yes", "direct=owner"] {
            mount.mount(options);
            mount.unmount();
        }
    }
}

#[test]
fn region_made_writable_after_mount_gives_no_lease() {
    let Some((mount, _dog)) = mounted("made writable", "direct=all") else {
        return;
    };
    let denied = |what: &str| {
        let said = as_user(STRANGER, &mount, "open", &[]);
        assert!(said.starts_with("error: 13"), "{what}: {said}");
        assert_eq!(start(None, &mount, "open", &[]).said, "opened");
    };
    assert_eq!(as_user(STRANGER, &mount, "open", &[]), "opened");
    chmod(&mount, 0o660);
    denied("by its group");
    chmod(&mount, 0o640);
    assert_eq!(as_user(STRANGER, &mount, "open", &[]), "opened");
    set_acl(&mount);
    denied("by an ACL");
    mount.unmount();
}

// ---- tickets and connections

#[test]
fn ticket_of_other_user_is_refused_with_policy_all() {
    let Some((mount, _dog)) = mounted("stolen", "direct=all") else {
        return;
    };
    let file = File::open(mount.at("file")).unwrap();
    in_time(|| {
        let ticket = ticket(&file);
        for stolen in [ticket, pramfs_control::Ticket([7; 16])] {
            let said = as_user(STRANGER, &mount, "redeem", &[stolen.to_string()]);
            assert_eq!(said, "refused: Ticket");
        }
        let leased = connection(&mount).lease(ticket);
        leased.map(drop).map_err(|refused| refused.to_string())
    });
    drop(file);
    mount.unmount();
}

#[test]
fn connections_of_other_users_are_bounded() {
    let Some((mount, _dog)) = mounted("connections", "direct=all") else {
        return;
    };
    let floods: Vec<Client> = (0..10)
        .map(|n| start(Some(STRANGER + n), &mount, "connections", &[]))
        .collect();
    for flood in &floods {
        let served: usize = flood.said.parse().unwrap();
        assert!(served <= 8, "{served} connections of one user");
    }
    assert_eq!(floods[0].said, "8");
    assert_eq!(leases(&mount), []);
    // Nobody's silence fills the places for long.
    assert!(wait_until(
        || as_user(MEMBER, &mount, "open", &[]) == "opened"
    ));
    drop(floods);
    mount.unmount();
}

// ---- readers that take the lock of the region

/// Kills the server while a client waits for its lock. Returns the client, which has it now.
fn locked_by(mount: &Mounted, what: &str) -> Client {
    let mut rogue = start(Some(STRANGER), mount, what, &[]);
    assert_eq!(rogue.said, "leased");
    mount.signal(Signal::KILL);
    assert!(wait_until(|| mount.processes().is_empty()));
    assert_eq!(rogue.says().as_deref(), Some("locked"));
    rogue
}

fn mount_says(mount: &Mounted, options: &str) -> String {
    let out = mount.run(["-o", options]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    said
}

/// Whether the server has the usual lock of the region.
fn has_lock(mount: &Mounted) -> bool {
    let process = format!("/proc/{}/fdinfo", mount.process().as_raw_nonzero());
    let mut descriptors = fs::read_dir(process).unwrap().flatten();
    descriptors.any(|descriptor| {
        let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
        info.contains("FLOCK  ADVISORY  WRITE")
    })
}

#[test]
fn reader_that_locks_region_does_not_stop_next_mount() {
    let Some((mount, _dog)) = mounted("rogue", "direct=all") else {
        return;
    };
    let mut rogue = locked_by(&mount, "lock");
    let said = mount_says(&mount, "direct=all");
    let name = format!("process {} (", rogue.child.id());
    assert!(
        said.contains("may only read it") && said.contains(&name),
        "{said}"
    );
    // Its blocks stay parked.
    let adopted = leases(&mount);
    assert!(adopted.len() == 1 && adopted[0].adopted, "{adopted:?}");
    fs::remove_file(mount.at("file")).unwrap();
    fs::write(mount.at("filler"), vec![9; 50 << 20]).unwrap();
    assert_eq!(rogue.asks().as_deref(), Some("1"), "its first block");
    // A second server is refused, although the lock says nothing about the first one.
    let refused = pramfs::pmem::RegionOptions::new().open(mount.region());
    let server = format!("process {} (", mount.process().as_raw_nonzero());
    let refused = refused.unwrap_err();
    assert!(refused.to_string().contains(&server), "{refused}");
    // When the lock is free, the server takes it.
    assert!(!has_lock(&mount));
    drop(rogue);
    assert!(wait_until(|| has_lock(&mount) && leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn lock_in_socket_does_not_stop_next_mount() {
    let Some((mount, _dog)) = mounted("in flight", "direct=all") else {
        return;
    };
    let rogue = locked_by(&mount, "lock-in-socket");
    let said = mount_says(&mount, "direct=all");
    assert!(said.contains("no process shows"), "{said}");
    assert!(leases(&mount)[0].adopted);
    drop(rogue);
    assert!(wait_until(|| has_lock(&mount) && leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn reader_that_locks_region_does_not_stop_tools() {
    let Some((mount, _dog)) = mounted("tools", "direct=all") else {
        return;
    };
    let rogue = locked_by(&mount, "lock");
    mount.detach();
    // What fsck and mkfs open a region by. (mkfs refuses it then, since blocks are mapped.)
    for read_only in [true, false] {
        let region = pramfs::pmem::RegionOptions::new()
            .read_only(read_only)
            .open(mount.region())
            .unwrap();
        let notice = region.info().lock_notice.unwrap();
        assert!(notice.contains("may only read it"), "{notice}");
    }
    // They wait for a server that ends, as without such a reader.
    mount.mount("");
    unmount_when_free(&mount.path());
    pramfs::pmem::RegionOptions::new()
        .open(mount.region())
        .unwrap();
    drop(rogue);
    mount.mount("");
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn process_of_owner_with_lock_stops_next_mount() {
    let Some((mount, _dog)) = mounted("owner's", "direct=all") else {
        return;
    };
    let rogue = locked_by(&mount, "lock");
    // The same process may write the region by now, so it may serve it.
    chown(mount.region(), Some(STRANGER), None).unwrap();
    let said = mount_fails_dead(&mount);
    assert!(
        said.contains(&format!("process {} (", rogue.child.id())),
        "{said}"
    );
    drop(rogue);
    chown(mount.region(), Some(0), None).unwrap();
    mount.mount("");
    mount.unmount();
}

/// Mounts in vain over the mount of a dead server.
fn mount_fails_dead(mount: &Mounted) -> String {
    mount.detach();
    mount_fails(mount, "direct=all")
}

/// Processes of root and of the owner open the region again and again, as servers do, while a
/// reader takes and releases its lock. Two of them never have it at once.
#[test]
fn racing_servers_exclude_each_other_whatever_reader_locks() {
    let Some((mount, _dog)) = region("race", 0o640) else {
        return;
    };
    chown(mount.region(), Some(OWNER), Some(GROUP)).unwrap();
    mount.mount("direct=all");
    make_file(&mount);
    let mut rogue = start(Some(STRANGER), &mount, "flicker", &[]);
    assert_eq!(rogue.said, "leased");
    mount.signal(Signal::KILL);
    assert!(wait_until(|| mount.processes().is_empty()));
    mount.detach();
    assert_eq!(rogue.asks().as_deref(), Some("flickers"));
    let signs = sign_directory(&mount);
    let sign = signs.join("alive").display().to_string();
    let users = [None, None, None, Some(OWNER), Some(OWNER)];
    let mut servers: Vec<Client> = users
        .iter()
        .map(|user| start(*user, &mount, "serve", std::slice::from_ref(&sign)))
        .collect();
    let mut served = 0;
    for server in &mut servers {
        let said = server.says().expect("it has ended well");
        served += said.parse::<u32>().unwrap_or_else(|_| panic!("{said}"));
    }
    println!("{served} servers, one after the other");
    assert!(served > 0);
    drop((rogue, servers));
    mount.mount("");
    mount.unmount();
    assert_checked(&mount);
}

fn sign_directory(mount: &Mounted) -> PathBuf {
    let path = mount.path().parent().unwrap().join("signs");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    path
}
