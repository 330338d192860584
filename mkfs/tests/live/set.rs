//! `pramfs set`: files and directories whose bytes change as a whole or not at all.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{IFlags, ioctl_getflags};

use crate::common::{pramfs, scratch};
use crate::live;

fn is_atomic(path: &Path) -> bool {
    let flags = ioctl_getflags(File::open(path).unwrap()).unwrap();
    flags.contains(IFlags::JOURNALING)
}

#[test]
fn setting_of_directory_is_that_of_what_is_made_in_it_and_is_taken_back() {
    let Some((mount, _dog)) = live("set", "") else {
        return;
    };
    let (dir, before) = (mount.at("dir"), mount.at("dir/before"));
    fs::create_dir(&dir).unwrap();
    fs::write(&before, "x").unwrap();
    let set = |data: &str, paths: &[&Path]| {
        let paths = paths.iter().map(|path| path.to_str().unwrap());
        pramfs(["set", data].into_iter().chain(paths))
    };
    set("atomic", &[&dir]).ok();
    let (after, below) = (dir.join("after"), dir.join("more"));
    fs::write(&after, "x").unwrap();
    fs::create_dir(&below).unwrap();
    fs::write(below.join("file"), "x").unwrap();
    for path in [&dir, &after, &below, &below.join("file")] {
        assert!(is_atomic(path), "{}", path.display());
    }
    assert!(!is_atomic(&before), "it was there before");
    set("inplace", &[&after, &dir]).ok();
    assert!(!is_atomic(&after) && !is_atomic(&dir) && is_atomic(&below));
    // The first failure ends it, and names the file.
    let elsewhere = scratch();
    let missing = dir.join("missing");
    for (path, why) in [
        (elsewhere.path(), "is not in a mount of pramfs"),
        (&missing, "missing"),
    ] {
        let refused = set("atomic", &[path, &before]);
        assert!(
            refused.status != 0 && refused.err.contains(why),
            "{refused:?}"
        );
        assert!(!is_atomic(&before));
    }
}
