//! `pramfs leases`: who maps files of a mount directly, and an end to their requests.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use pramfs_control::{
    Connection, ControlError, DIRECTORY, Directory, Granted, Identity, Refusal, TicketReply,
};
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_tests::mounted::{Mounted, wait_until};

use crate::common::{pramfs, scratch};
use crate::live;

fn connection(mount: &Mounted) -> Connection {
    let directory = Directory::open(DIRECTORY).unwrap().unwrap();
    let name = Identity::of_path(&mount.region()).unwrap().socket_name();
    Connection::open(&directory, &name).unwrap().unwrap()
}

/// Gets a lease of a file for this process. The RELEASE of a close that has returned may still be
/// on its way: until then the file counts as open through the page cache.
fn lease(path: &Path, server: &Connection, mode: LeaseMode) -> (File, Granted, OwnedFd) {
    let mut how = File::options();
    let file = how.read(true).write(mode == LeaseMode::Write);
    let file = file.custom_flags(libc::O_DIRECT);
    let file = file.open(path).unwrap();
    let mut leased = None;
    let granted = wait_until(|| {
        let bytes = lease_ticket(file.as_fd(), mode).unwrap();
        let ticket = TicketReply::decode(&bytes).unwrap().ticket;
        match server.lease(ticket) {
            Ok(lease) => leased = Some(lease),
            Err(ControlError::Refused {
                reason: Refusal::Busy,
                ..
            }) => {}
            Err(other) => panic!("{other}"),
        }
        leased.is_some()
    });
    assert!(granted, "the file stays open through the page cache");
    let (granted, descriptor) = leased.unwrap();
    (file, granted, descriptor)
}

#[test]
fn leases_are_listed_with_process_and_file_and_revoked_by_id() {
    let Some((mount, _dog)) = live("leases", "direct=owner") else {
        return;
    };
    let place = mount.path();
    let place = place.to_str().unwrap();
    let list = |more: &[&str]| pramfs(["leases", place].iter().chain(more)).ok();
    let empty = list(&[]).out;
    assert!(empty.contains("no process maps files"), "{empty}");
    assert_eq!(list(&["--json"]).json(), serde_json::json!([]));

    let plain = mount.at("a file");
    // A name that is no text, and would turn the line around.
    let odd = mount.path().join(OsStr::from_bytes(b"odd\xff\xe2\x80\xae"));
    for path in [&plain, &odd] {
        std::fs::write(path, vec![7; 10_000]).unwrap();
    }
    let server = connection(&mount);
    let (_plain, _, _first) = lease(&plain, &server, LeaseMode::Write);
    let (_odd, _, _second) = lease(&odd, &server, LeaseMode::Read);

    let rows = list(&["--json"]).json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let (yes, no) = (serde_json::json!(true), serde_json::json!(false));
    let user = rustix::process::getuid().as_raw();
    for (row, mode) in rows.iter().zip(["write", "read"]) {
        assert_eq!(row["process"], std::process::id());
        assert_eq!(row["user"], user);
        assert_eq!(row["mode"], mode);
        // Three blocks and a pointer block.
        assert_eq!(row["bytes"], 16_384);
        assert_eq!((&row["outlived_server"], &row["revoked"]), (&no, &no));
    }
    assert_eq!(rows[0]["file"], plain.to_str().unwrap());
    let text = list(&[]).out;
    let raw = list(&["--json"]).out;
    assert!(!raw.contains('\u{202e}'), "{raw}");
    let escaped = rows[1]["file"].as_str().unwrap();
    let in_json = r"odd\xff".to_owned() + "\u{202e}";
    assert!(escaped.ends_with(&in_json), "{escaped}");
    assert!(text.contains("odd") && !text.contains('\u{202e}'), "{text}");
    let named = text.contains("16384") && text.contains(plain.to_str().unwrap());
    assert!(named, "{text}");

    let id = rows[0]["id"].as_str().unwrap();
    list(&["--revoke", id]);
    let after = list(&["--json"]).json();
    assert_eq!((&after[0]["revoked"], &after[1]["revoked"]), (&yes, &no));
    for (wrong, why) in [
        ("0-0000000000000001", "lease"),
        ("first", "is not the ID of a lease"),
    ] {
        let refused = pramfs(["leases", place, "--revoke", wrong]);
        assert!(
            refused.status != 0 && refused.err.contains(why),
            "{refused:?}"
        );
    }
}

/// What the holder stores meanwhile is in the save or not, so it must be named.
#[test]
fn save_beside_leases_names_files_of_writers_and_keeps_their_leases() {
    let Some((mount, _dog)) = live("save beside leases", "direct=owner") else {
        return;
    };
    let (place, scratch) = (mount.path(), scratch());
    let (saved, second) = (scratch.path().join("saved"), scratch.path().join("second"));
    let odd = mount.path().join(OsStr::from_bytes(b"odd\x1b[2J"));
    let (read, plain) = (mount.at("read"), mount.at("plain"));
    for path in [&odd, &read, &plain] {
        std::fs::write(path, vec![7; 100_000]).unwrap();
    }
    let server = connection(&mount);
    let _first = lease(&odd, &server, LeaseMode::Write);
    let _second = lease(&read, &server, LeaseMode::Read);
    let before = server.leases().unwrap();
    let out = pramfs([
        OsStr::new("save"),
        "--json".as_ref(),
        place.as_os_str(),
        saved.as_os_str(),
    ])
    .ok();
    let mapped = out.json()["mapped"].clone();
    // By its number: the server need not know a path.
    let inode = std::fs::metadata(&odd).unwrap().ino();
    assert_eq!(mapped, serde_json::json!([format!("inode {inode}")]));
    let warned = out
        .err
        .contains(&format!("inode {inode} is mapped for writing"));
    assert!(warned, "{out:?}");
    assert_eq!(server.leases().unwrap(), before);
    pramfs([OsStr::new("restore"), saved.as_os_str(), second.as_os_str()]).ok();
    // The lease of the moment is one whose holder is gone.
    let region = pramfs::pmem::RegionOptions::new().open(&second).unwrap();
    let fs = pramfs::inode::Fs::open(region, pramfs::MountOptions::default()).unwrap();
    let root = pramfs::inode::Ino::ROOT;
    for name in [&b"odd\x1b[2J"[..], b"read", b"plain"] {
        let ino = fs.lookup(root, name).unwrap().ino;
        let mut bytes = vec![0; 100_001];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), 100_000);
        assert!(bytes[..100_000].iter().all(|byte| *byte == 7));
    }
    let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).unwrap();
    assert!(report.is_clean(), "{report}");
}
