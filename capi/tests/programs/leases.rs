//! Reading and storing beside a live mount, from C and C++.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::UNIX_EPOCH;

use pramfs_tests::mounted::{Mounted, available, program, wait_until};

use crate::installed::{Linking, Program};
use crate::{example, source};

fn mounted(test: &str) -> Option<Mounted> {
    available(test).then(|| Mounted::new(&program(), 16 << 20, "direct=owner"))
}

/// Runs a program that stops after each line that it prints, until `step` has returned.
/// Returns the lines.
fn in_steps(program: &Program, args: &[&OsStr], mut step: impl FnMut(&str)) -> Vec<String> {
    let mut child = program
        .start(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = child.stdin.take().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        step(&line);
        said.push(line);
        // The last line needs no answer.
        let _ended = answer.write_all(b"\n");
    }
    assert!(child.wait().unwrap().success(), "{said:?}");
    said
}

#[test]
fn cpp_example_reads_and_stores_to_file_of_mount() {
    let Some(mount) = mounted("a file of a mount from C++") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, "read directly\n").unwrap();
    let program = Program::build(&example("handles.cpp"), Linking::Shared);
    let said = program.run(&["--mounted".as_ref(), path.as_os_str()]);
    assert_eq!(said, "read directly\n");
    // Once the kernel has told the server that `fs::write` has closed the file.
    let writer = pramfs_client::OpenOptions::new().write(true);
    assert!(wait_until(|| writer.open(&path).is_ok()));
    let stored = "STORED";
    let said = program.run(&["--mounted".as_ref(), path.as_os_str(), stored.as_ref()]);
    assert_eq!(said, "STOREDirectly\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), said);
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
    let other = mount.at("other");
    let said = in_steps(
        &program,
        &[path.as_os_str(), other.as_os_str()],
        |line| match line {
            "write" => file.write_all_at(b"bbbb", 5000).unwrap(),
            "append" => file.write_all_at(b"cccc", 10_000).unwrap(),
            "truncate" => file.set_len(100).unwrap(),
            "unlink" => fs::remove_file(&path).unwrap(),
            _ => {}
        },
    );
    assert_eq!(
        said,
        ["write", "append", "truncate", "unlink", "leases: passed"]
    );
    drop(file);
    mount.unmount();
}

/// The program stores, and the file is looked at through the mount.
#[test]
fn stores_in_c_are_seen_through_mount() {
    let Some(mount) = mounted("storing to a file of a mount from C") else {
        return;
    };
    const BLOCK: usize = 4096;
    let (path, sparse) = (mount.at("file"), mount.at("sparse"));
    let file = fs::File::create_new(&path).unwrap();
    file.write_all_at(&[b'a'; BLOCK], 0).unwrap();
    file.write_all_at(&[b'c'; BLOCK], 2 * BLOCK as u64).unwrap();
    drop(file);
    let larger_than_region = fs::File::create_new(&sparse).unwrap();
    larger_than_region.set_len(64 << 20).unwrap();
    drop(larger_than_region);

    let mut expected = [[b'a'; BLOCK], [0; BLOCK], [b'c'; BLOCK]].concat();
    let put = |bytes: &mut Vec<u8>, at: usize, new: &[u8]| {
        bytes[at..at + new.len()].copy_from_slice(new);
    };
    let modified = || fs::metadata(&path).unwrap().modified().unwrap();
    let set_len = |len: usize| {
        let through = fs::File::options().write(true).open(&path).unwrap();
        through.set_len(len as u64).unwrap();
    };
    let program = Program::build(&source("stores"), Linking::Shared);
    let args = [path.as_os_str(), sparse.as_os_str()];
    let said = in_steps(&program, &args, |line| {
        match line {
            "written" => {
                put(&mut expected, 10, b"d");
                put(&mut expected, 20, b"over");
                put(&mut expected, BLOCK - 2, b"hole");
                expected.extend(b"last");
            }
            "appended" => {
                let shown = fs::read(&path).unwrap();
                assert_eq!(shown[3 * BLOCK..], *b"lastmorebytes");
                set_len(3 * BLOCK + 4);
            }
            "stored" => {
                put(&mut expected, 200, b"stored");
                assert_ne!(modified(), UNIX_EPOCH, "persist does not set mtime");
            }
            "flushed" => {
                put(&mut expected, BLOCK + 200, b"one");
                put(&mut expected, 2 * BLOCK + 200, b"two");
                assert_ne!(modified(), UNIX_EPOCH, "drain does not set mtime");
            }
            "grow" => {
                put(&mut expected, 100, b"child");
                expected.resize(10 * BLOCK, 0);
                set_len(10 * BLOCK);
            }
            "forked" => put(&mut expected, 8 * BLOCK, b"h"),
            "truncate" => {
                expected.truncate(BLOCK);
                set_len(BLOCK);
            }
            _ => {}
        }
        assert!(fs::read(&path).unwrap() == expected, "after {line}");
        if ["written", "stored"].contains(&line) {
            // The note of the stores before is taken.
            modified();
            let through = fs::File::options().write(true).open(&path).unwrap();
            through.set_modified(UNIX_EPOCH).unwrap();
            assert_eq!(modified(), UNIX_EPOCH);
        }
    });
    assert_eq!(
        said,
        [
            "written",
            "appended",
            "stored",
            "flushed",
            "grow",
            "forked",
            "truncate",
            "stores: passed"
        ]
    );
    // The leases have ended, and what was stored past the end is gone.
    expected.resize(3 * BLOCK, 0);
    set_len(3 * BLOCK);
    assert!(fs::read(&path).unwrap() == expected);
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
