//! `pramfs requests`: the requests that a mount has served.

use std::fs;
use std::process::Command;

use pramfs_tests::mounted::program;

use crate::support::mount::mounted;

/// What the program prints, or its message.
fn requests(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program().with_file_name("pramfs"));
    let out = command.arg("requests").args(arguments).output();
    let out = out.expect("pramfs, built by: cargo build --bins");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match out.status.success() {
        true => Ok(text(out.stdout)),
        false => Err(text(out.stderr)),
    }
}

#[test]
fn pramfs_requests_counts_what_mount_has_served() {
    let Some((_guard, mount)) = mounted("pramfs requests", "") else {
        return;
    };
    for n in 0..7 {
        fs::create_dir(mount.at(format!("dir-{n}"))).unwrap();
    }
    let (point, region) = (mount.path(), mount.region());
    for place in [point.to_str().unwrap(), region.to_str().unwrap()] {
        let json = requests(&["--json", place]).unwrap();
        let counts: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&counts["MKDIR"], &counts["UNLINK"]),
            (&7.into(), &().into())
        );
        let text = requests(&[place]).unwrap();
        assert!(text.contains("  7  MKDIR\n"), "{text}");
        assert!(text.contains("in all, since the mount"), "{text}");
    }
    mount.unmount();
    let refused = requests(&[region.to_str().unwrap()]).unwrap_err();
    assert!(
        refused.contains("no server of root answers for it"),
        "{refused}"
    );
}
