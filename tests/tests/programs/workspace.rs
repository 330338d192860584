//! Builds this workspace on a mount, and runs the result there.

use pramfs_tests::suite::{Run, mount_for, say, unmount_and_check};

use crate::{TIMEOUT, alone, full, sources};

/// The current sources, without build outputs.
const COPY: &str = r#"
tar -C "$1" --exclude=./target --exclude=./.git --exclude=./fuzz/target -cf - . | tar -C "$2" -xf -
diff -r --no-dereference --exclude=target --exclude=.git "$1" "$2"
"#;

/// A region inside of the region, created and checked by the new programs.
const USE: &str = r#"
"$1/mkfs-pramfs" "$2/inner" 128M
"$1/pramfs" put "$2/inner" "$1/mkfs-pramfs" /program
"$1/pramfs" cat "$2/inner" /program | cmp - "$1/mkfs-pramfs"
"$1/fsck-pramfs" -n "$2/inner"
"#;

#[test]
fn workspace_builds_on_mount() {
    let test = "cargo build in a mount";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["tar", "diff"], 6144, "") else {
        return;
    };
    let dir = mount.at("sources");
    std::fs::create_dir(&dir).unwrap();
    Run::script("copy the sources", COPY, TIMEOUT)
        .arg(sources())
        .arg(&dir)
        .succeed();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = mount.at("target");
    let run = |arguments: &[&str]| {
        let run = Run::new("cargo", &cargo, 2 * TIMEOUT)
            .dir(&dir)
            .args(arguments)
            .arg("--offline")
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_INCREMENTAL", "1")
            // For the sample, the files matter, not the code.
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        let run = if full() {
            run
        } else {
            run.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
                .args(["--config", "profile.dev.package.\"*\".opt-level=0"])
        };
        run.succeed()
    };
    // The library; build scripts run on the mount for it.
    let what = if full() {
        ["build", "-p", "pramfs-tools"]
    } else {
        ["build", "-p", "pramfs"]
    };
    let built = run(&what);
    // Unchanged sources are not rebuilt, so the times are correct.
    let again = run(&what);
    assert!(!again.text.contains("Compiling"), "{}", again.text);
    if full() {
        Run::script("use what was built", USE, TIMEOUT)
            .arg(target.join("debug"))
            .arg(mount.path())
            .succeed();
        run(&["test", "-p", "pramfs", "--lib"]);
    }
    // With cold caches.
    mount.unmount();
    mount.mount("");
    let again = run(&what);
    assert!(
        !again.text.contains("Compiling"),
        "after a remount: {}",
        again.text
    );
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {:.0} s; fsck: {check}",
        built.took.as_secs_f64()
    ));
}
