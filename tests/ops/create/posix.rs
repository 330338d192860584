//! create on a mount: owners in a user namespace (xfstests 317), the group of new files in
//! a setgid directory (314 633 696).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use pramfs_tests::syscalls::{as_caller, errno};
use rustix::fs::{Gid, Mode, OFlags};

use crate::support::mode::{STRANGER, chmod};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

/// 317: files created by root of a user namespace belong, outside of it, to the user who
/// maps to that root. Files of unmapped users appear as owned by nobody.
#[test]
fn create_in_user_namespace_maps_owners() {
    agree("owners in a user namespace", &[Tmpfs, Ext4], |dir, n| {
        fs::write(dir.join("of-root"), "x").expect("a file");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir, all).expect("chmod");
        // Other users reach the mount point only if they may search the directories above
        // it.
        let above = dir.parent().expect("a directory").to_owned();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&above, open).expect("chmod");
        let script = "cd \"$0\" && touch mine && mkdir d && stat -c '%n %u %g' mine d of-root";
        let out = Command::new("setpriv")
            .args(["--reuid=500", "--regid=500", "--clear-groups"])
            .args(["unshare", "-Ur", "sh", "-c", script])
            .arg(dir)
            .output()
            .expect("setpriv and unshare");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.contains("unshare failed") {
            pramfs_tests::skip::skipped(format_args!("no user namespaces here: {said}"));
        }
        n.note("inside", String::from_utf8_lossy(&out.stdout).into_owned());
        for name in ["mine", "d", "of-root"] {
            let owner = fs::metadata(dir.join(name)).map(|m| (m.uid(), m.gid()));
            n.note(name, owner.map_err(|e| e.raw_os_error()));
        }
    });
}

#[test]
fn create_in_setgid_directory_takes_group_without_sgid_right() {
    agree("setgid directories", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        let group = Some(Gid::from_raw(700));
        n.call("chown", errno(rustix::fs::chown(&d, None, group)));
        n.call("chmod", chmod(&d, 0o2777));
        for bits in [0o2755, 0o2745, 0o644, 0o4755] {
            as_caller(STRANGER, || {
                let f = d.join(format!("f{bits:o}"));
                let made = errno(rustix::fs::open(
                    &f,
                    OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
                    Mode::from_raw_mode(bits),
                ));
                n.call(format!("create {bits:o}"), made.map(drop));
                let s = d.join(format!("d{bits:o}"));
                let mode = Mode::from_raw_mode(bits);
                n.call(
                    format!("mkdir {bits:o}"),
                    errno(rustix::fs::mkdir(&s, mode)),
                );
                for path in [f, s] {
                    let seen = errno(rustix::fs::stat(&path));
                    n.note(
                        format!("{bits:o}"),
                        seen.map(|s| (s.st_uid, s.st_gid, s.st_mode)),
                    );
                }
            });
        }
    });
}
