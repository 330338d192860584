//! Protection against stray stores (`protect=`).

use std::fs;
use std::path::Path;

use pramfs::pmem::free_protection_keys;
use pramfs_client::{Access, OpenOptions, Protect};
use pramfs_tests::mounted::{Mounted, wait_until};
use rustix::process::Pid;

use crate::direct::{OPTIONS, assert_checked, file, leases};
use crate::direct_write::opened;
use crate::takeover::{ON, kill, other_server};
use crate::{mounted, unmounted};

/// The rights of the server's mappings of the region, sorted.
fn rights(mount: &Mounted, server: Pid) -> Vec<String> {
    let region = mount.region();
    let maps = format!("/proc/{}/maps", server.as_raw_nonzero());
    let maps = fs::read_to_string(maps).unwrap();
    let mut rights: Vec<String> = maps
        .lines()
        .filter(|line| line.ends_with(region.to_str().unwrap()))
        .map(|line| line.split(' ').nth(1).unwrap().to_owned())
        .collect();
    rights.sort();
    rights
}

/// Whether the region is closed; the timer of the server may have it open for a moment.
fn is_closed(mount: &Mounted, server: Pid) -> bool {
    wait_until(|| rights(mount, server) == ["r--s", "r--s"])
}

fn work(at: &Path) {
    for i in 0..50_u8 {
        let name = at.join(format!("file-{i}"));
        fs::write(&name, vec![i; 20_000]).unwrap();
        fs::rename(&name, at.join(format!("moved-{i}"))).unwrap();
    }
    for i in 0..50_u8 {
        let name = at.join(format!("moved-{i}"));
        assert!(fs::read(&name).unwrap() == vec![i; 20_000]);
        fs::remove_file(name).unwrap();
    }
}

#[test]
fn mount_says_which_protection_is_in_force() {
    let Some((mount, _dog)) = unmounted("protection") else {
        return;
    };
    let said = |options: &str| {
        let out = mount.run(["-v", "-o", options]);
        let said = String::from_utf8(out.stderr).unwrap();
        (out.status.success(), said)
    };
    let (mounts, text) = said("protect=off");
    assert!(mounts && text.contains("protection: protect=off"), "{text}");
    mount.unmount();
    let (mounts, text) = said("protect=mprotect");
    assert!(
        mounts && text.contains("protection: protect=mprotect"),
        "{text}"
    );
    assert!(is_closed(&mount, mount.process()));
    work(&mount.path());
    assert!(is_closed(&mount, mount.process()));
    mount.unmount();
    let keys = free_protection_keys();
    for way in ["auto", "pkey"] {
        let (mounts, text) = said(&format!("protect={way}"));
        match &keys {
            Ok(_) => {
                assert!(
                    mounts && text.contains("protection: protect=pkey"),
                    "{text}"
                );
                work(&mount.path());
                mount.unmount();
            }
            Err(why) if way == "auto" => {
                assert!(mounts && text.contains(&format!("protection: protect=off: {why}")));
                mount.unmount();
                // Without -v, the fall-back is a warning.
                let out = mount.run(["-o", "protect=auto"]);
                let text = String::from_utf8(out.stderr).unwrap();
                let warning = format!("protect=auto protects nothing: {why}");
                assert!(text.contains(&warning), "{text}");
                mount.unmount();
            }
            Err(why) => {
                assert!(
                    !mounts && text.contains("protect=pkey is impossible"),
                    "{text}"
                );
                assert!(
                    text.contains(why) && text.contains("protect=mprotect"),
                    "{text}"
                );
                // A read-only mount opens the region for writing too, if it can.
                let (mounts, text) = said("ro,protect=pkey");
                assert!(
                    !mounts && text.contains("protect=pkey is impossible"),
                    "{text}"
                );
            }
        }
    }
}

/// A remount does not open the region, and `ro` needs no protection.
#[test]
fn remount_leaves_region_protected() {
    let Some((mount, _dog)) = mounted("protected remount", "protect=mprotect") else {
        return;
    };
    for flags in ["remount,ro", "remount,rw,protect=off"] {
        let out = mount.run(["-o", flags]);
        assert!(out.status.success(), "{out:?}");
    }
    work(&mount.path());
    assert!(is_closed(&mount, mount.process()));
    mount.unmount();
    mount.mount("ro,protect=mprotect");
    assert!(fs::read_dir(mount.path()).is_ok());
}

#[test]
fn next_server_is_protected_as_the_one_before() {
    let options = format!("{ON},protect=mprotect");
    let Some((mount, _dog)) = mounted("protected takeover", &options) else {
        return;
    };
    work(&mount.path());
    let first = kill(&mount);
    let second = other_server(&mount, first);
    work(&mount.path());
    assert!(is_closed(&mount, second));
}

/// A client maps its files itself: the protection is that of the server.
#[test]
fn client_with_lease_stores_beside_protected_server() {
    let options = "direct=owner,protect=mprotect";
    let Some((mount, _dog)) = mounted("protected leases", options) else {
        return;
    };
    fs::write(mount.at("file"), [1; 10_000]).unwrap();
    let file = opened(&mount, "file");
    file.write_at(&[2; 5000], 4000).unwrap();
    drop(file);
    let read = fs::read(mount.at("file")).unwrap();
    assert_eq!(
        (read[3999], read[4000], read[8999], read[9000]),
        (1, 2, 2, 1)
    );
    work(&mount.path());
    assert!(is_closed(&mount, mount.process()));
}

/// Pages of the region that this process can store to, in KiB.
fn writable(mount: &Mounted) -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let region = mount.region();
    let of_region = maps
        .lines()
        .filter(|line| line.ends_with(region.to_str().unwrap()) && line.contains(" rw-s "));
    let bytes = of_region.map(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        to - from
    });
    bytes.sum::<u64>() >> 10
}

#[test]
fn client_protects_region_but_for_its_views() {
    let Some((mount, _dog)) = mounted("protected client", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let options = OpenOptions::new().write(true);
    let open = |protect| {
        let mut opened = None;
        let options = options.clone().protect(protect);
        assert!(wait_until(|| match options.open(mount.at("file")) {
            Err(busy) if busy.errno() == libc::EBUSY => false,
            done => {
                opened = Some(done);
                true
            }
        }));
        opened.unwrap()
    };
    let unprotected = open(Protect::Off).unwrap();
    unprotected.write_at(b"open", 0).unwrap();
    assert!(writable(&mount) >= 32 << 10, "all of the region");
    drop(unprotected);
    let file = open(Protect::Mprotect).unwrap();
    assert_eq!(writable(&mount), 0);
    file.write_all_at(b"closed", 4096).unwrap();
    assert_eq!(writable(&mount), 0);
    let view = file.map(4096..8192, Access::Write).unwrap();
    assert_eq!(writable(&mount), 4, "the page of the view");
    view.store(8, 7_u64).unwrap();
    view.persist(8..16).unwrap();
    drop(view);
    // At the end, in blocks that the server has allocated ahead.
    let end = file.len().unwrap();
    for i in 0..100_u64 {
        assert_eq!(file.append(&[3; 300]).unwrap(), end + i * 300);
    }
    assert_eq!(writable(&mount), 0);
    let bytes = fs::read(mount.at("file")).unwrap();
    assert_eq!(&bytes[4096..4102], b"closed");
    assert_eq!(bytes[4104], 7);
    assert!(bytes[end as usize..] == vec![3; 30_000]);
    match (free_protection_keys(), open(Protect::Pkey)) {
        (Ok(_), opened) => drop(opened.unwrap().write_at(b"key", 0).unwrap()),
        (Err(why), Err(e)) => assert!(e.to_string().contains(&why), "{e}"),
        (Err(why), Ok(_)) => panic!("protected without a key: {why}"),
    }
    drop(file);
    assert!(wait_until(|| leases(&mount).is_empty()));
    mount.unmount();
    assert_checked(&mount);
}
