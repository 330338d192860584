//! A server that hangs blocks the calls to its own mount, and no others for long. Needs root, `/dev/fuse`
//! and a C compiler.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;

use pramfs_tests::mounted::{self, Mounted};
use rustix::process::Signal;
use support::{end, preloaded, probe};

const REGION: u64 = 16 << 20;

#[test]
fn server_that_hangs_blocks_no_call_to_another_mount_and_no_fork() {
    let Some((mount, _dog)) = support::mount("a server that hangs", &["cc"], REGION) else {
        return;
    };
    let other = Mounted::unmounted(&mounted::program(), REGION);
    other.mount("direct=owner");
    let mut child = preloaded(probe("hung"))
        .args([mount.at("file"), other.at("file")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    assert_eq!(line(), "ready");
    mount.stop();
    input.write_all(b"x").unwrap();
    // One thread waits for its server amid the last read, and all others have gone on.
    assert_eq!(line(), "64");
    mount.signal(Signal::CONT);
    input.write_all(b"x").unwrap();
    assert_eq!(line(), "128");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(child.wait().unwrap().success());
    end(&mount);
    end(&other);
}
