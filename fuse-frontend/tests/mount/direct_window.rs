//! Appends in a window, which need no request, and calls of another process that find it open.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use pramfs_tests::mounted::{Mounted, wait_until};

use crate::direct::{OPTIONS, connection, contents, file};
use crate::direct_append::{bytes, end};
use crate::direct_write::opened;
use crate::mounted;

/// Appends until that needs no request: the holder has a window then.
fn append_in_window(mount: &Mounted, direct: &pramfs_client::File, expect: &mut Vec<u8>) {
    let server = connection(mount);
    let writes = || server.requests().unwrap().get("WRITE").copied();
    // After a refusal, the client appends some through the mount first.
    let has_window = || {
        let before = writes();
        for seed in 0..8 {
            let more = bytes(700, seed);
            assert_eq!(direct.append(&more).unwrap(), expect.len() as u64);
            expect.extend(&more);
        }
        writes() == before
    };
    assert!(wait_until(has_window), "no append has used a window");
}

/// An open closes the window. Calls by path find it.
#[test]
fn changes_by_path_of_other_process_meet_window() {
    let Some((mount, _dog)) = mounted("by-path", OPTIONS) else {
        return;
    };
    drop(file(&mount, "file", 1));
    let direct = opened(&mount, "file");
    let mut expect = contents(&direct);
    type Change = (&'static str, fn(&mut Vec<u8>));
    let changes: [Change; 8] = [
        ("os.stat(f)", |_| ()),
        ("os.truncate(f, os.stat(f).st_size // 2)", |all| {
            all.truncate(all.len() / 2);
        }),
        ("os.truncate(f, os.stat(f).st_size + 9000)", |all| {
            all.resize(all.len() + 9000, 0);
        }),
        ("os.truncate(f, os.stat(f).st_size)", |_| ()),
        ("os.chmod(f, 0o640); os.chown(f, 3, 4)", |_| ()),
        ("os.rename(f, f + '2'); os.rename(f + '2', f)", |_| ()),
        ("os.link(f, f + '2'); os.unlink(f + '2')", |_| ()),
        ("os.utime(f, (1, 1))", |_| ()),
    ];
    let run = |code: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", &format!("import os, sys; f = sys.argv[1]; {code}")]);
        assert!(python.arg(mount.at("file")).status().unwrap().success());
    };
    for (code, change) in changes {
        append_in_window(&mount, &direct, &mut expect);
        run(code);
        change(&mut expect);
        let size = fs::metadata(mount.at("file")).unwrap().len();
        assert_eq!(size, expect.len() as u64, "{code}");
        assert_eq!(direct.len().unwrap(), size, "{code}");
        assert!(contents(&direct) == expect, "{code}");
    }
    // The holder says that it has stored, and the server sets the time.
    append_in_window(&mount, &direct, &mut expect);
    let modified = || fs::metadata(mount.at("file")).unwrap().modified().unwrap();
    let early = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    assert!(wait_until(|| modified() > early));
    assert!(fs::read(mount.at("file")).unwrap() == expect);
    // A file without a name has an end, too.
    append_in_window(&mount, &direct, &mut expect);
    run("os.unlink(f)");
    append_in_window(&mount, &direct, &mut expect);
    assert!(contents(&direct) == expect);
    drop(direct);
    end(&mount);
}
