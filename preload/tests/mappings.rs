//! What a call makes durable: stores through mappings whose lease was given up, whatever has become
//! of the mappings. They need root, `/dev/fuse`, strace and a C compiler.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Share, end, library, probe, text};

/// Addresses, and lengths in bytes.
type Ranges = Vec<(u64, u64)>;

/// A call, its first argument, and what was made durable before it.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    name: String,
    first: String,
    ranges: Ranges,
}

fn hexadecimal(number: &str) -> u64 {
    u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap()
}

/// What the program says of its next calls: "fsync 3: 7f0000001000+4096 ...".
fn expected(said: &str) -> Vec<Call> {
    let call = |line: &str| {
        let (call, ranges) = line.split_once(':')?;
        let (name, first) = call.split_once(' ')?;
        let range = |range: &str| {
            let (at, len) = range.split_once('+').unwrap();
            (hexadecimal(at), len.parse().unwrap())
        };
        Some(Call {
            name: name.into(),
            first: first.into(),
            ranges: ranges.split_whitespace().map(range).collect(),
        })
    };
    said.lines().filter_map(call).collect()
}

/// The calls that strace has seen: "123 fsync(3) = 0".
fn seen(trace: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut ranges = Ranges::new();
    for line in trace.lines() {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let Some((name, rest)) = call.split_once('(') else {
            continue;
        };
        let arguments: Vec<_> = rest.split([',', ')']).map(str::trim).collect();
        match name {
            "msync" => {
                assert!(call.contains("MS_SYNC"), "{call}");
                ranges.push((hexadecimal(arguments[0]), arguments[1].parse().unwrap()));
            }
            _ => calls.push(Call {
                name: name.into(),
                first: arguments[0].into(),
                ranges: std::mem::take(&mut ranges),
            }),
        }
    }
    calls
}

/// Runs the program. Returns what it says, and the system calls that it makes.
fn traced(directory: &Path, file: &Path, mode: &[&str]) -> (String, String, u64) {
    let trace = directory.join("trace");
    let out = Command::new("strace")
        .args(["-f", "-o"])
        .arg(&trace)
        .args([
            "-e",
            "trace=openat,msync,munmap,mmap,mremap,fsync,fdatasync,sync_file_range,sync,syncfs",
        ])
        .args(["-e", "signal=none"])
        .args(["-E", &format!("LD_PRELOAD={}", library().display())])
        .args(["-E", "PRAMFS_PRELOAD_STATS=1"])
        .arg(probe("mappings"))
        .arg(file)
        .args(mode)
        .output()
        .unwrap();
    let said = text(&out);
    let served = Share::of(&String::from_utf8_lossy(&out.stderr)).served();
    (said, fs::read_to_string(trace).unwrap(), served)
}

/// The list of mappings is exact, and every call that makes a file durable covers those of the file.
#[test]
fn sync_after_lease_is_given_up_covers_mappings_that_are_there() {
    let mount = support::mount("mappings", &["cc", "strace"], 64 << 20);
    let Some((mount, _dog)) = mount else {
        return;
    };
    let directory = mount.region().parent().unwrap().to_owned();
    // A file may be found busy, on a machine under load: then the kernel maps it.
    let mut runs = (0..5).map(|_| traced(&directory, &mount.at("file"), &[]));
    let (said, trace, _) = runs
        .find(|(_, _, served)| *served >= 2)
        .expect("the files were never mapped by the library");
    drop(runs);
    assert!(said.ends_with("done\n"), "{said}");
    let mut seen = seen(&trace).into_iter();
    let expected = expected(&said);
    assert!(expected.len() > 20, "{said}");
    for call in expected {
        // The loader may have unmapped something at the same address before.
        let same = |other: &Call| match &call.name[..] {
            "munmap" => *other == call,
            _ => (&other.name, &other.first) == (&call.name, &call.first),
        };
        let found = seen.find(same);
        assert_eq!(found.as_ref(), Some(&call), "{said}\n{trace}");
    }
    end(&mount);
}

/// What was made durable covers a range, maybe in parts, and more.
fn covers(found: &Ranges, (at, len): (u64, u64)) -> bool {
    let mut reached = at;
    let mut sorted = found.clone();
    sorted.sort_unstable();
    for (start, len) in sorted {
        if start <= reached {
            reached = reached.max(start + len);
        }
    }
    reached >= at + len
}

/// The list of mappings is of no use in such a child: the kernel's takes its place.
#[test]
fn child_forked_amid_change_of_mapping_makes_all_mappings_durable() {
    let mount = support::mount("children", &["cc", "strace"], 64 << 20);
    let Some((mount, _dog)) = mount else {
        return;
    };
    let directory = mount.region().parent().unwrap().to_owned();
    // A child may be forked between two changes, and the file may be found busy.
    let mut runs = (0..5).map(|_| traced(&directory, &mount.at("file"), &["forks"]));
    let looked = |trace: &str| trace.contains("\"/proc/self/maps\"");
    let (said, trace, _) = runs
        .find(|(_, trace, served)| *served >= 1 && looked(trace))
        .expect("no child was forked amid a change");
    drop(runs);
    assert!(said.ends_with("done\n"), "{said}");
    let expected = expected(&said);
    assert_eq!(expected.len(), 60);
    let parent = trace.split(' ').next().unwrap();
    let mut children: Vec<&str> = Vec::new();
    for line in trace.lines().filter(|line| line.contains(" fsync(")) {
        children.extend(line.split(' ').next());
    }
    assert_eq!(children.len(), 20, "{trace}");
    for (child, expected) in children.iter().zip(expected.chunks(3)) {
        assert_ne!(*child, parent);
        let of_child = |line: &&str| line.split(' ').next() == Some(child);
        let lines: Vec<_> = trace.lines().filter(of_child).collect();
        let mut seen = seen(&lines.join("\n")).into_iter();
        for call in expected {
            let same = |other: &Call| (&other.name, &other.first) == (&call.name, &call.first);
            // What is made durable in between by others of the library counts too.
            let mut found = Ranges::new();
            loop {
                let other = seen.next().expect("a call is missing");
                found.extend(&other.ranges);
                if same(&other) {
                    break;
                }
            }
            let is_covered = |range: &(u64, u64)| covers(&found, *range);
            assert!(
                call.ranges.iter().all(is_covered),
                "{call:?} {found:?}\n{trace}"
            );
        }
    }
    end(&mount);
}
