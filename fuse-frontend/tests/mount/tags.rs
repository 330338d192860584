//! A region named by its uuid or label. Where it is looked for, `src/tags/places.rs` tests.

use std::path::Path;
use std::process::{Command, Output};

use pramfs::format::FormatOptions;
use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;

use crate::{MIB, namespaces, program};

const UUID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

fn formatted(label: &str) -> Mounted {
    let options = FormatOptions {
        label: label.into(),
        uuid: Some(*uuid::Uuid::parse_str(UUID).unwrap().as_bytes()),
        ..FormatOptions::default()
    };
    Mounted::formatted(program(), 16 * MIB, &options)
}

/// Runs a script in a mount namespace of its own, where /etc has only the list of regions.
fn with_list(list: &str, script: &str, arguments: &[&Path]) -> Output {
    let script = format!(
        "set -e; mount -t tmpfs none /etc; mkdir /etc/pramfs; printf '{list}' >/etc/pramfs/regions; {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    namespaces::output(command.args(arguments))
}

#[test]
fn region_of_list_is_mounted_by_uuid_and_label() {
    if !mounted::available("UUID= and LABEL=") {
        return;
    }
    let _dog = Watchdog::new("tags", std::time::Duration::from_secs(60));
    let mount = formatted("of test 1");
    let (region, place) = (mount.region(), mount.path());
    for tag in [
        format!("UUID={UUID}"),
        format!("pramfs:UUID={}", UUID.to_uppercase()),
        "LABEL=of test 1".to_owned(),
        "pramfs:LABEL=\"of test 1\"".to_owned(),
    ] {
        let script = "\"$1\" \"$2\" \"$3\"; grep \" $3 \" /proc/self/mounts; umount -i \"$3\"";
        let list = format!("# a comment\\n{}\\n", region.display());
        let out = with_list(&list, script, &[program(), Path::new(&tag), &place]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{tag}: {said}");
        // Tables of mounts have the path.
        let line = String::from_utf8(out.stdout).unwrap();
        assert!(line.starts_with(region.to_str().unwrap()), "{line}");
        mount.wait_for_end();
    }
}

#[test]
fn two_regions_of_one_uuid_are_refused() {
    if !mounted::available("two regions of one uuid") {
        return;
    }
    let (one, two) = (formatted("one"), formatted("two"));
    let list = format!("{}\\n{}\\n", one.region().display(), two.region().display());
    let tag = format!("UUID={UUID}");
    let out = with_list(
        &list,
        "exec \"$1\" \"$2\" \"$3\"",
        &[program(), Path::new(&tag), &one.path()],
    );
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(32), "{said}");
    for name in [one.region(), two.region()] {
        assert!(said.contains(name.to_str().unwrap()), "{said}");
    }
}

#[test]
fn region_that_is_nowhere_is_refused_with_places() {
    let directory = tempfile::tempdir().unwrap();
    let run = |source: &str| {
        let mut command = Command::new(program());
        let out = command.arg(source).arg(directory.path()).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (status, said) = run("LABEL=no region has this label");
    assert_eq!(status, Some(32), "{said}");
    for place in ["/dev/disk/by-label", "/dev/pmem*", "/etc/pramfs/regions"] {
        assert!(said.contains(place), "{place}: {said}");
    }
    let (status, said) = run("UUID=12");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("not a uuid"), "{said}");
}
