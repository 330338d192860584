//! Direct reading beside a live mount, from C and C++.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use pramfs_tests::mounted::{Mounted, available, program};

use crate::installed::{Linking, Program};
use crate::{example, source};

fn mounted(test: &str) -> Option<Mounted> {
    available(test).then(|| Mounted::new(&program(), 16 << 20, "direct=owner"))
}

#[test]
fn cpp_example_reads_file_of_mount() {
    let Some(mount) = mounted("reading a file of a mount from C++") else {
        return;
    };
    fs::write(mount.at("file"), "read directly\n").unwrap();
    let program = Program::build(&example("handles.cpp"), Linking::Shared);
    let said = program.run(&["--mounted".as_ref(), mount.at("file").as_os_str()]);
    assert_eq!(said, "read directly\n");
    // The lease has ended with the program.
    mount.unmount();
}

/// The program reads, says what it expects to be changed, and looks again.
#[test]
fn reader_in_c_sees_changes_through_mount() {
    let Some(mount) = mounted("reading a file of a mount from C") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, [b'a'; 10_000]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let program = Program::build(&source("leases"), Linking::Shared);
    let mut reader = program
        .start(&[path.as_os_str(), mount.at("other").as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = reader.stdin.take().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(reader.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.as_str() {
            "write" => file.write_all_at(b"bbbb", 5000).unwrap(),
            "append" => file.write_all_at(b"cccc", 10_000).unwrap(),
            "truncate" => file.set_len(100).unwrap(),
            "unlink" => fs::remove_file(&path).unwrap(),
            _ => {}
        }
        said.push(line);
        // The last line needs no answer.
        let _ended = answer.write_all(b"\n");
    }
    let status = reader.wait().unwrap();
    assert!(status.success(), "{said:?}");
    assert_eq!(
        said,
        ["write", "append", "truncate", "unlink", "leases: passed"]
    );
    drop(file);
    mount.unmount();
}

#[test]
fn mount_without_leases_is_refused_with_hint() {
    if !available("a mount without direct access, from C++") {
        return;
    }
    let mount = Mounted::new(&program(), 16 << 20, "");
    fs::write(mount.at("file"), "x").unwrap();
    let program = Program::build(&example("handles.cpp"), Linking::Shared);
    let said = program.fails(&["--mounted".as_ref(), mount.at("file").as_os_str()]);
    assert!(
        said.contains("cannot open") && said.contains("mount it with the option direct=owner"),
        "{said}"
    );
    mount.unmount();
}
