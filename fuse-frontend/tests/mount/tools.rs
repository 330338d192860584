//! `pramfs ls`, `cat` and `tune` on a region that is mounted: through its mount.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use pramfs_client::Access;
use pramfs_tests::mounted::wait_until;

use crate::direct::{OPTIONS, file};
use crate::direct_write::opened;
use crate::{mounted, program};

/// The tool beside the program under test.
fn pramfs(arguments: &[&str]) -> (bool, String, String) {
    let tool = program().with_file_name("pramfs");
    let out = Command::new(&tool).args(arguments).output();
    let out = out.unwrap_or_else(|e| panic!("{}: {e}; type: cargo build --bins", tool.display()));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.success(), text(out.stdout), text(out.stderr))
}

fn ok(arguments: &[&str]) -> String {
    let (succeeds, out, err) = pramfs(arguments);
    assert!(succeeds, "{arguments:?}: {err}");
    out
}

#[test]
fn tools_read_mounted_region_through_its_mount() {
    let Some((mount, _dog)) = mounted("tools on a mounted region", "") else {
        return;
    };
    fs::create_dir_all(mount.at("d/e")).unwrap();
    fs::write(mount.at("d/file"), "of the mount").unwrap();
    symlink("/d/file", mount.at("link")).unwrap();
    // Absolute, and out of the file system: a path below the root of it.
    symlink("/etc/passwd", mount.at("out")).unwrap();
    let region = mount.region();
    let region = region.to_str().unwrap();
    assert_eq!(ok(&["ls", region]), "d\nlink\nout\n");
    assert_eq!(
        ok(&["cat", region, "/d/file", "/link"]),
        "of the mountof the mount"
    );
    let long = ok(&["ls", "-lR", region, "/"]);
    for part in ["drwx", "link -> /d/file", "file", "out -> /etc/passwd"] {
        assert!(long.contains(part), "{part}: {long}");
    }
    for outside in ["/out", "/../../etc/passwd", "/missing"] {
        let (succeeds, out, err) = pramfs(&["cat", region, outside]);
        assert!(!succeeds && out.is_empty(), "{outside}: {err}");
        assert!(err.contains(outside), "{err}");
    }
    // As from the region itself.
    let before = ok(&["ls", "-R", "--json", region, "/"]);
    mount.unmount();
    let after = ok(&["ls", "-R", "--json", region, "/"]);
    let names = |text: &str| -> Vec<String> {
        let rows = text
            .lines()
            .map(|line| line.split("\"size\"").next().unwrap().to_owned());
        rows.collect()
    };
    assert_eq!(names(&before), names(&after));
    // A change needs the region for itself.
    mount.mount("");
    let (succeeds, _, err) = pramfs(&["mkdir", region, "/new"]);
    assert!(
        !succeeds && err.contains(mount.path().to_str().unwrap()),
        "{err}"
    );
}

#[test]
fn tune_of_live_mount_changes_label() {
    let Some((mount, _dog)) = mounted("tune", "") else {
        return;
    };
    let (region, place) = (mount.region(), mount.path());
    let label = |path: &Path| {
        let text = ok(&["info", "--export", path.to_str().unwrap()]);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ID_FS_LABEL="));
        line.unwrap_or_default().to_owned()
    };
    for (path, new) in [
        (&place, "by mount point"),
        (&region, "by region"),
        (&place, ""),
    ] {
        ok(&["tune", "-L", new, path.to_str().unwrap()]);
        assert_eq!(label(&region), new);
    }
    let (succeeds, _, err) = pramfs(&["tune", "-L", "x", "/dev/shm"]);
    assert!(
        !succeeds && err.contains("not in a mount of pramfs"),
        "{err}"
    );
    mount.unmount();
    assert_eq!(label(&region), "");
}

#[test]
fn mount_applies_default_options_of_region_before_its_own() {
    let Some((mount, _dog)) = mounted("default options", "") else {
        return;
    };
    let (region, place) = (mount.region(), mount.path());
    let region = region.to_str().unwrap();
    let status = || {
        let text = ok(&["status", "--json", place.to_str().unwrap()]);
        let options = text.split("\"options\":\"").nth(1).unwrap();
        options.split('"').next().unwrap().to_owned()
    };
    let (succeeds, _, err) = pramfs(&["tune", "-o", "noatime", region]);
    assert!(!succeeds && err.contains("unmount it first"), "{err}");
    mount.unmount();
    ok(&["tune", "-o", "noatime,nodev,data=atomic", region]);
    mount.mount("");
    let has = |options: &str, name: &str| options.split(',').any(|option| option == name);
    let options = status();
    for name in ["noatime", "nodev", "data=atomic"] {
        assert!(has(&options, name), "{name}: {options}");
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(place.to_str().unwrap()));
    assert!(line.unwrap().contains("noatime"), "{line:?}");
    mount.unmount();
    mount.mount("relatime,data=inplace");
    let options = status();
    assert!(
        has(&options, "relatime") && has(&options, "nodev"),
        "{options}"
    );
    assert!(
        !has(&options, "noatime") && !has(&options, "data=atomic"),
        "{options}"
    );
    // Bits of a later version.
    mount.unmount();
    let mut bytes = std::fs::read(region).unwrap();
    for page in [0, 64 << 10] {
        let page = &mut bytes[page..][..512];
        page[0x1b8..][..8].copy_from_slice(&(1u64 << 40 | 1 << 6).to_le_bytes());
        let sum = pramfs_medium::media::checksum::crc(0, &page[..508]);
        page[508..].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(region, bytes).unwrap();
    mount.mount("");
    assert!(has(&status(), "nodev"));
}

/// A restore replaces every byte: neither a mount nor a client may have the region.
#[test]
fn restore_over_region_in_use_is_refused() {
    let Some((mount, _dog)) = mounted("restore", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 4));
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (saved, region) = (path(&saved), path(&mount.region()));
    ok(&["save", &region, &saved]);
    let direct = opened(&mount, "file");
    let view = direct.map(0..16, Access::Write).unwrap();
    let refused = |what: &str, why: &str| {
        let (succeeds, _, err) = pramfs(&["restore", "-f", &saved, &region]);
        assert!(!succeeds, "{what}");
        assert!(err.contains(why), "{what}: {err}");
        view.write(0, &[7; 16]).unwrap();
        view.persist(0..16).unwrap();
    };
    refused("mounted", "in use");
    mount.crash();
    // The client still has its view.
    refused("beside a client", "still maps files");
    drop((view, direct));
    // A child that is being started has copies of the descriptors.
    assert!(wait_until(|| pramfs(&["restore", "-f", &saved, &region]).0));
    mount.mount(OPTIONS);
    assert_ne!(fs::read(mount.at("file")).unwrap()[..16], [7; 16]);
    mount.unmount();
}

/// A view would go on storing to the old blocks.
#[test]
fn defrag_leaves_file_of_client_with_view_and_names_it() {
    let Some((mount, _dog)) = mounted("defrag beside a client", OPTIONS) else {
        return;
    };
    let files = ["a", "b"].map(|name| fs::File::create(mount.at(name)).unwrap());
    for at in (0..2u64 << 20).step_by(4096) {
        for file in &files {
            file.write_all_at(&[at as u8; 4096], at).unwrap();
        }
    }
    for file in files {
        file.sync_all().unwrap();
    }
    let direct = opened(&mount, "a");
    let view = direct.map(0..16, Access::Write).unwrap();
    let place = mount.path();
    let done = ok(&["defrag", "--json", place.to_str().unwrap()]);
    for part in [
        r#""left":{"leased":{"files":1,"named":["/a"]}}"#,
        r#""moved":2097152,"files":1,"#,
    ] {
        assert!(done.contains(part), "{part}: {done}");
    }
    view.write(0, &[7; 16]).unwrap();
    view.persist(0..16).unwrap();
    drop((view, direct));
    assert_eq!(fs::read(mount.at("a")).unwrap()[..16], [7; 16]);
    mount.unmount();
}
