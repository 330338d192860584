//! `pramfs frag`, `defrag` and `extents` on a live mount, and beside it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use pramfs::format::FormatOptions;
use pramfs_medium::pmem::{Vacated, ask_for_leaf_use, ask_for_pointers, ask_to_vacate};
use pramfs_tests::mounted::{self, Mounted};
use pramfs_tests::watchdog::Watchdog;

use crate::common::{Answer, PRAMFS, pramfs, run};
use crate::live;

/// Two files whose blocks alternate.
fn scattered(dir: &Path, len: usize) -> [Vec<u8>; 2] {
    let files = ["a", "b"].map(|name| File::create(dir.join(name)).unwrap());
    let bytes = [3, 5].map(|step| (0..len).map(|i| (i / 977 * step) as u8).collect::<Vec<_>>());
    for at in (0..len).step_by(4096) {
        for (file, bytes) in files.iter().zip(&bytes) {
            file.write_all_at(&bytes[at..len.min(at + 4096)], at as u64)
                .unwrap();
        }
    }
    files.iter().for_each(|file| file.sync_all().unwrap());
    bytes
}

fn json(command: &str, place: &Path) -> serde_json::Value {
    pramfs([command, "--json", place.to_str().unwrap()])
        .ok()
        .json()
}

#[test]
fn defragmented_mount_has_leaves_and_the_same_files() {
    let Some((mount, _dog)) = live("defrag", "cache=none") else {
        return;
    };
    let on = mount.path().to_owned();
    let len = (5 << 20) + 77;
    let bytes = scattered(&on, len);
    fs::write(on.join("small"), "small").unwrap();
    let before = json("frag", &on);
    assert_eq!(
        (before["files"].as_u64(), before["leaf_bytes"].as_u64()),
        (Some(3), Some(0))
    );
    assert_eq!(before["large_bytes"], 8 << 20);
    assert!(before["free_leaves"].as_u64().unwrap() > 4, "{before}");
    let one = json("frag", &on.join("a"));
    assert!(
        one["files"] == 1 && one["extents"].as_u64().unwrap() > 1000,
        "{one}"
    );
    // By the name of the region.
    assert_eq!(json("frag", &mount.region())["files"], 3);
    let extents = |path: &str| {
        let region = mount.region();
        let a = pramfs(["extents", "--json", region.to_str().unwrap(), path]);
        a.ok().json().as_array().unwrap().len()
    };
    assert!(extents("/a") > 1000);

    let done = json("defrag", &on);
    assert_eq!(
        (done["moved"].as_u64(), done["files"].as_u64()),
        (Some(8 << 20), Some(2))
    );
    assert_eq!(done["after"]["leaf_bytes"], 8 << 20);
    assert!(done["left"].as_object().unwrap().is_empty(), "{done}");
    assert_eq!(json("frag", &on)["leaf_bytes"], 8 << 20);
    assert!(extents("/a") < 400);
    for (name, bytes) in ["a", "b"].iter().zip(&bytes) {
        assert!(fs::read(on.join(name)).unwrap() == *bytes, "{name}");
    }
    assert_eq!(json("defrag", &on)["moved"], 0);
    let text = pramfs(["frag", on.to_str().unwrap()]).ok().out;
    assert!(
        text.contains("100.0 % of the parts of 2 MiB lie in leaves, which have 8 MiB"),
        "{text}"
    );
}

#[test]
fn image_of_mounted_region_and_frag_elsewhere_are_refused_with_reason() {
    let Some((mount, _dog)) = live("image", "cache=none") else {
        return;
    };
    let region = mount.region();
    pramfs(["image", region.to_str().unwrap(), "/nowhere/image"]).refused(&["in use"]);
    pramfs(["frag", "/"]).refused(&["not on a pramfs mount"]);
    pramfs(["defrag", "/"]).refused(&["not on a pramfs mount"]);
}

/// A command of `pramfs` as root without the capabilities to read any file.
fn without_capabilities(command: &str, place: &Path) -> Answer {
    let caps = [
        "--inh-caps=-all",
        "--bounding-set=-dac_override,-dac_read_search",
    ];
    let args = [PRAMFS, command, "--json", place.to_str().unwrap()];
    run("setpriv", caps.into_iter().chain(args))
}

#[test]
fn unreadable_files_and_other_file_systems_do_not_end_frag_and_defrag() {
    let Some((mount, _dog)) = live("defrag-past", "cache=none") else {
        return;
    };
    let on = mount.path().to_owned();
    scattered(&on, 4 << 20);
    for i in 0..13 {
        fs::write(on.join(format!("closed-{i:02}")), "secret").unwrap();
        fs::set_permissions(
            on.join(format!("closed-{i:02}")),
            fs::Permissions::from_mode(0o000),
        )
        .unwrap();
    }
    let other = on.join("other");
    fs::create_dir(&other).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &other, "tmpfs", flags, c"").unwrap();
    fs::write(other.join("foreign"), "foreign").unwrap();
    let as_root = json("frag", &on);
    let text = pramfs(["frag", on.to_str().unwrap()]);
    let [frag, defrag] = ["frag", "defrag"].map(|command| without_capabilities(command, &on));
    mounted::unmount_when_free(&other);

    assert_eq!(as_root["files"], 15);
    assert_eq!(as_root["other_file_systems"], 1);
    assert!(
        text.ok()
            .out
            .contains("1 mount points of other file systems")
    );
    for answer in [&frag, &defrag] {
        assert_eq!(answer.status, 1, "{answer:?}");
        let report = answer.json();
        assert_eq!(report["not_examined"], 13, "{report}");
        assert_eq!(report["other_file_systems"], 1, "{report}");
        let named = answer.err.matches("/closed-").count();
        assert_eq!(named, 10, "{answer:?}");
        assert!(
            answer
                .err
                .contains("cannot read /closed-00: Permission denied")
        );
        assert!(answer.err.contains("3 more files"), "{answer:?}");
        assert!(
            answer
                .err
                .contains("13 files or directories could not be examined")
        );
    }
    assert_eq!(frag.json()["files"], 2);
    assert_eq!(defrag.json()["moved"], 8 << 20);
}

#[test]
fn file_system_without_leaves_is_defragmented_into_runs() {
    if !mounted::available("defrag-runs") {
        return;
    }
    let _dog = Watchdog::new("defrag-runs", Duration::from_secs(300));
    let no_leaves = vec![("huge_leaves".to_owned(), false)];
    for (block_size, features, part) in [(1024, Vec::new(), 128 << 10), (4096, no_leaves, 2 << 20)]
    {
        let options = FormatOptions {
            block_size,
            features,
            ..FormatOptions::default()
        };
        let mount = Mounted::formatted(&mounted::program(), 64 << 20, &options);
        mount.mount("cache=none");
        let on = mount.path().to_owned();
        let len = 5 * part + 5000;
        let bytes = scattered(&on, len);
        let before = json("frag", &on);
        assert_eq!(before["leaf"], part, "{before}");
        assert!(before["free_leaves"].is_null(), "{before}");
        // The last part of a file counts too.
        assert!(
            before["large_bytes"].as_u64().unwrap() >= 2 * len as u64,
            "{before}"
        );
        let bytes_of = |key: &str| before[key].as_u64().unwrap();
        let scattered = bytes_of("large_bytes") - bytes_of("leaf_bytes");
        assert!(scattered > 2 * len as u64 * 9 / 10, "{before}");

        let done = json("defrag", &on);
        assert_eq!(done["after"]["leaf_bytes"], before["large_bytes"], "{done}");
        assert_eq!(done["moved"], scattered, "{done}");
        assert!(done["free_leaves"].is_null(), "{done}");
        assert_eq!(json("defrag", &on)["moved"], 0);
        for command in ["frag", "defrag"] {
            let text = pramfs([command, on.to_str().unwrap()]).ok().out;
            assert!(text.contains("100.0 % of the parts"), "{text}");
            assert!(text.contains("lie in one run"), "{text}");
            assert!(text.contains("no leaves of 2 MiB"), "{text}");
        }
        for (name, bytes) in ["a", "b"].iter().zip(&bytes) {
            assert!(fs::read(on.join(name)).unwrap() == *bytes, "{name}");
        }
        mount.unmount();
        // Without the mount.
        let after = json("frag", &mount.region());
        assert_eq!(after["leaf_bytes"], before["large_bytes"], "{after}");
        assert_eq!(json("defrag", &mount.region())["moved"], 0);
    }
}

/// A file system with small files in every leaf, and two scattered files of 4 MiB. Returns the
/// bytes of these.
fn aged(dir: &Path) -> [Vec<u8>; 2] {
    let small = |i: usize| dir.join(format!("small {i}"));
    let mut count = 0;
    while fs::write(small(count), vec![count as u8; 256 << 10]).is_ok() {
        count += 1;
    }
    assert!(count > 150, "{count} files");
    let goes = |i: usize| !i.is_multiple_of(4) || i == count;
    for i in (0..=count).filter(|i| goes(*i)) {
        // Of one that did not fit, a part may be there.
        let _ = fs::remove_file(small(i));
    }
    scattered(dir, 4 << 20)
}

/// Checks the files of [`aged`].
fn has_kept(dir: &Path, bytes: &[Vec<u8>; 2]) {
    for (name, bytes) in ["a", "b"].iter().zip(bytes) {
        assert!(fs::read(dir.join(name)).unwrap() == *bytes, "{name}");
    }
    let mut small = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if let Some(i) = name.strip_prefix("small ") {
            let byte = i.parse::<usize>().unwrap() as u8;
            let bytes = fs::read(entry.path()).unwrap();
            assert!(bytes == vec![byte; 256 << 10], "{name}");
            small += 1;
        }
    }
    assert!(small > 35, "{small} files");
}

/// What compaction of [`aged`] comes to.
fn has_compacted(report: &serde_json::Value) {
    let of = |key: &str| report["compacted"][key].as_u64().unwrap();
    assert!(
        of("gained") >= 1 && of("gained") <= of("chosen"),
        "{report}"
    );
    assert!(of("moved") <= of("chosen") << 20, "{report}");
    assert_eq!(report["after"]["leaf_bytes"], 8 << 20, "{report}");
    assert!(report["left"].as_object().unwrap().is_empty(), "{report}");
}

#[test]
fn defrag_of_aged_mount_makes_leaves_free_first() {
    let Some((mount, _dog)) = live("compact", "cache=none") else {
        return;
    };
    let on = mount.path().to_owned();
    let bytes = aged(&on);
    let text = pramfs(["defrag", "--no-compact", on.to_str().unwrap()]).ok();
    assert!(!text.out.contains("compacted"), "{text:?}");
    let before = json("frag", &on);
    assert!(
        before["leaf_bytes"].as_u64() < before["large_bytes"].as_u64(),
        "{before}"
    );
    // One file: it is not known what others have.
    let one = json("defrag", &on.join("a"));
    assert!(one["compacted"].is_null(), "{one}");
    // A file in the way is named, and its leaf stays.
    let held = on.join("small 0");
    let chattr = |flag| assert_eq!(run("chattr", [flag, held.to_str().unwrap()]).status, 0);
    chattr("+i");
    let report = json("defrag", &on);
    chattr("-i");
    has_compacted(&report);
    has_kept(&on, &bytes);
    let text = pramfs(["defrag", on.to_str().unwrap()]).ok().out;
    assert!(
        text.contains("compacted: 0 of 0 leaves made free"),
        "{text}"
    );
    mount.unmount();
    let region = mount.region();
    let checked = run(crate::common::FSCK, ["-n", region.to_str().unwrap()]);
    assert_eq!(checked.status, 0, "{checked:?}");
}

#[test]
fn defrag_of_aged_region_makes_leaves_free_first() {
    let Some((mount, _dog)) = live("compact-offline", "cache=none") else {
        return;
    };
    let bytes = aged(&mount.path());
    mount.unmount();
    let region = mount.region();
    pramfs(["defrag", "--no-compact", region.to_str().unwrap()]).ok();
    has_compacted(&json("defrag", &region));
    let checked = run(crate::common::FSCK, ["-n", region.to_str().unwrap()]);
    assert_eq!(checked.status, 0, "{checked:?}");
    mount.mount("cache=none");
    has_kept(&mount.path(), &bytes);
}

#[test]
fn compaction_ioctls_refuse_other_users_and_hostile_places() {
    let Some((mount, _dog)) = live("compact-refused", "cache=none") else {
        return;
    };
    let on = mount.path().to_owned();
    fs::write(on.join("a"), vec![7; 100_000]).unwrap();
    let file = File::open(on.join("a")).unwrap();
    let root = File::open(&on).unwrap();
    let errno = |e: std::io::Error| e.raw_os_error().unwrap();
    for place in [
        1,
        4096,
        64 << 20,
        (64 << 20) - 4096,
        u64::MAX,
        u64::MAX << 21,
    ] {
        let refused = ask_to_vacate(file.as_fd(), 0, place).map_err(errno);
        assert_eq!(refused, Err(libc::EINVAL), "{place:#x}");
    }
    let past_the_end = ask_to_vacate(file.as_fd(), u64::MAX, 0);
    assert_eq!(past_the_end.unwrap(), Vacated::Nothing);
    let of_directory = ask_to_vacate(root.as_fd(), 0, 0).map_err(errno);
    assert_eq!(of_directory, Err(libc::EISDIR));
    assert_eq!(ask_for_leaf_use(root.as_fd()).unwrap().len(), 32);
    assert_eq!(ask_for_pointers(file.as_fd()).unwrap().len(), 1);
    // The ids are those of the thread.
    let refusals = std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            let nobody = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            [
                ask_to_vacate(file.as_fd(), 0, 0).map(drop).map_err(errno),
                ask_for_leaf_use(root.as_fd()).map(drop).map_err(errno),
                ask_for_pointers(file.as_fd()).map(drop).map_err(errno),
            ]
        });
        other.join().unwrap()
    });
    assert_eq!(refusals, [Err(libc::EPERM); 3]);
}
