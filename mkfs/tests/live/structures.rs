//! `pramfs check`, `dump` and `owner` of a live mount: they read a copy from one moment.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pramfs::format::FormatOptions;
use pramfs::pmem::RegionOptions;
use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;

use crate::common::{Answer, MKFS, PRAMFS, pramfs, run};
use crate::live;

fn with_tmpdir(dir: &str, args: &[&str]) -> Answer {
    let dir = format!("TMPDIR={dir}");
    run(
        "env",
        [&dir[..], PRAMFS].into_iter().chain(args.iter().copied()),
    )
}

#[test]
fn check_dump_and_owner_read_mount_by_region_or_mount_point() {
    let Some((mount, _dog)) = live("structures", "cache=writeback") else {
        return;
    };
    fs::create_dir(mount.at("dir")).unwrap();
    // In the page cache: the kernel is asked to write it back.
    fs::write(mount.at("dir/file"), vec![7; 300_000]).unwrap();
    let (region, on) = (mount.region(), mount.path().to_owned());
    for place in [region.to_str().unwrap(), on.to_str().unwrap()] {
        let check = pramfs(["check", "--json", place]).ok().json();
        assert_eq!(check["live"], true, "{check}");
        assert!(check["findings"].as_array().unwrap().is_empty(), "{check}");
        assert_eq!((&check["files"], &check["entries"]), (&1.into(), &2.into()));
        let text = pramfs(["check", place]).ok().out;
        assert!(text.starts_with("mounted: checked as it was"), "{text}");

        let dump = pramfs(["dump", "--json", place]).ok().json();
        assert_eq!(dump["used"], dump["accounted"], "{dump}");
        assert_eq!(dump["used"], check["used_blocks"]);

        let by_name = ["extents", "--json", region.to_str().unwrap(), "/dir/file"];
        let extents = pramfs(by_name).ok().json();
        let at = extents[0]["region_offset"].as_u64().unwrap();
        let owner = pramfs(["owner", "--json", place, &format!("{at}B")])
            .ok()
            .json();
        assert_eq!(owner[0]["paths"][0], "/dir/file", "{owner}");
    }
    let server = pramfs(["status", on.to_str().unwrap()]).ok();
    assert!(server.out.contains("rw"), "{server:?}");
}

#[test]
fn check_of_mount_that_changes_is_sound_each_time() {
    let Some((mount, _dog)) = live("structures-busy", "cache=none") else {
        return;
    };
    let done = AtomicBool::new(false);
    let region = mount.region();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (mount, done) = (&mount, &done);
            scope.spawn(move || {
                let mut i = 0;
                while !done.load(Ordering::Relaxed) {
                    let name = |i| mount.at(format!("{writer}-{}", i % 50));
                    fs::write(name(i), vec![i as u8; 1 + i * 997 % 70_000]).unwrap();
                    fs::rename(name(i), name(i + 25)).unwrap();
                    fs::remove_file(name(i + 25)).unwrap();
                    fs::write(name(i), "small").unwrap();
                    i += 1;
                }
            });
        }
        let answers: Vec<Answer> = (0..6)
            .map(|_| pramfs(["check", "--json", region.to_str().unwrap()]))
            .collect();
        done.store(true, Ordering::Relaxed);
        for answer in answers {
            let report = answer.ok().json();
            assert!(
                report["findings"].as_array().unwrap().is_empty(),
                "{report}"
            );
        }
    });
}

#[test]
fn check_of_mount_finds_damaged_data_and_changes_nothing() {
    if !mounted::available("structures-damage") {
        return;
    }
    let _dog = Watchdog::new("structures-damage", Duration::from_secs(300));
    let options = FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..FormatOptions::default()
    };
    let mount = Mounted::formatted(&mounted::program(), 64 << 20, &options);
    mount.mount("cache=none");
    fs::write(mount.at("file"), vec![7; 100_000]).unwrap();
    let region = mount.region();
    let name = region.to_str().unwrap();
    let extents = pramfs(["extents", "--json", name, "/file"]).ok().json();
    let at = extents[0]["region_offset"].as_u64().unwrap();
    let file = File::options().write(true).open(&region).unwrap();
    file.write_all_at(&[8], at + 5000).unwrap();
    let check = pramfs(["check", name]);
    assert_eq!(check.status, 4, "{check:?}");
    assert!(check.out.contains("checksum"), "{check:?}");
    fs::write(mount.at("other"), "the mount goes on").unwrap();
}

#[test]
fn copy_of_mount_without_a_place_is_refused_with_reason() {
    let Some((mount, _dog)) = live("structures-tmpdir", "cache=none") else {
        return;
    };
    fs::write(mount.at("file"), vec![7; 2 << 20]).unwrap();
    let region = mount.region();
    let name = region.to_str().unwrap();
    let on = mount.path().to_str().unwrap().to_owned();
    let check = with_tmpdir(&on, &["check", name]);
    assert_eq!(check.status, 8, "{check:?}");
    assert!(
        check.err.contains("would wait for itself; set TMPDIR"),
        "{check:?}"
    );
    with_tmpdir("/nowhere", &["dump", name]).refused(&["/nowhere", "No such file"]);

    let small = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", small.path(), "tmpfs", flags, c"size=1M").unwrap();
    let owner = with_tmpdir(small.path().to_str().unwrap(), &["owner", name, "0"]);
    mounted::unmount_when_free(small.path());
    owner.refused(&["has no room; set TMPDIR"]);
}

#[test]
fn structures_of_region_in_use_by_a_program_are_refused_with_reason() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("region");
    let name = path.to_str().unwrap();
    run(crate::common::MKFS, ["-q", name, "16M"]).ok();
    let _held = RegionOptions::new().open(&path).unwrap();
    let words = ["in use", "While it is mounted by root"];
    pramfs(["dump", name]).refused(&words);
    pramfs(["owner", name, "0"]).refused(&words);
    let check = pramfs(["check", name]);
    assert_eq!(check.status, 8, "{check:?}");
    assert!(
        words.iter().all(|word| check.err.contains(word)),
        "{check:?}"
    );
}

/// A region in a file of a mount, by each of its names, is not the mount that it is on.
#[test]
fn save_check_and_dump_of_region_in_mount_take_that_region() {
    let Some((mount, _dog)) = live("region in a mount", "") else {
        return;
    };
    let dir = crate::common::scratch();
    let (inner, beside) = (mount.at("inner"), dir.path().join("beside"));
    let uuids = ["1", "2"].map(|digit| [8, 4, 4, 4, 12].map(|n| digit.repeat(n)).join("-"));
    for (region, uuid) in [(&inner, &uuids[0]), (&beside, &uuids[1])] {
        let region = region.to_str().unwrap();
        run(MKFS, ["-U", uuid, region, "8M"]).ok();
    }
    let link = mount.at("link");
    std::os::unix::fs::symlink(&beside, &link).unwrap();
    let depth = mount.path().components().count() - 1;
    let up = mount.at("../".repeat(depth));
    let up = up.join(beside.strip_prefix("/").unwrap());
    for (number, (name, uuid)) in [(&inner, &uuids[0]), (&link, &uuids[1]), (&up, &uuids[1])]
        .into_iter()
        .enumerate()
    {
        let name = name.to_str().unwrap();
        let saved = dir.path().join(format!("saved-{number}"));
        let saved = saved.to_str().unwrap();
        let report = pramfs(["save", "--json", name, saved]).ok().json();
        assert_eq!(
            (&report["uuid"], &report["live"]),
            (&uuid[..].into(), &false.into())
        );
        let check = pramfs(["restore", "--check", "--json", saved]).ok().json();
        assert_eq!(check["uuid"], uuid[..]);
        // While a program has it open, there is no other file system to take.
        let open = RegionOptions::new().open(name).unwrap();
        for arguments in [
            &["save", "-f", name, saved][..],
            &["check", name],
            &["dump", name],
            &["owner", name, "0"],
        ] {
            let answer = pramfs(arguments);
            assert!(
                answer.status != 0 && answer.err.contains("in use"),
                "{answer:?}"
            );
        }
        drop(open);
    }
    // The mount of a file is asked by the other commands.
    let file = mount.at("file");
    fs::write(&file, "x").unwrap();
    let status = pramfs(["status", "--json", file.to_str().unwrap()])
        .ok()
        .json();
    assert_eq!(status["region"], mount.region().to_str().unwrap());
    pramfs(["status", up.to_str().unwrap()]).refused(&["no server of root"]);
}
