//! `make install` into the tree of a package.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;

/// Pages, at least one of each section.
const PAGES: [(u8, &str); 6] = [
    (1, "pramfs"),
    (1, "pramfs-ls"),
    (3, "libpramfs"),
    (5, "pramfs"),
    (7, "pramfs"),
    (8, "umount.fuse.pramfs"),
];

/// The programs with completions.
const COMPLETED: [&str; 6] = [
    "pramfs",
    "pramfs-virtiofsd",
    "mkfs.pramfs",
    "fsck.pramfs",
    "mount.pramfs",
    "umount.fuse.pramfs",
];

/// The scripts of a program by shell.
fn scripts(program: &str) -> [(&'static str, String); 3] {
    [
        ("bash", program.to_owned()),
        ("zsh", format!("_{program}")),
        ("fish", format!("{program}.fish")),
    ]
}

/// Runs make with programs that are built already, in the place of a release
/// build. The one that mounts and the libraries are not looked at, and any program
/// stands for them; capi/tests/programs/ installs the C library itself.
fn make(target: &str, built: &Path, arguments: &[String]) -> Answer {
    let programs = built.join("release");
    fs::create_dir_all(&programs).unwrap();
    for (from, to) in [
        (PRAMFS, "pramfs"),
        (MKFS, "mkfs-pramfs"),
        (FSCK, "fsck-pramfs"),
        (FSCK, "mount-pramfs"),
        (FSCK, "pramfs-virtiofsd"),
        (FSCK, "libpramfs_c.so"),
        (FSCK, "libpramfs_c.a"),
        (FSCK, "libpramfs_preload.so"),
    ] {
        // By another process: a child that another test forks meanwhile would inherit a
        // descriptor that is open for writing, and the copy could not be executed (ETXTBSY).
        let copied = Command::new("cp").arg(from).arg(programs.join(to)).status();
        assert!(copied.unwrap().success());
    }
    // The manuals are made by a crate of their own, which has tests of their contents.
    let share = programs.join("share");
    for (section, name) in PAGES {
        let dir = share.join(format!("man/man{section}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{name}.{section}")), name).unwrap();
    }
    for program in COMPLETED {
        for (shell, file) in scripts(program) {
            let dir = share.join("completions").join(shell);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), program).unwrap();
        }
    }
    let output = Command::new("make")
        .args(["--no-print-directory", target, "CARGO=no-such-cargo"])
        .arg(format!("CARGO_TARGET_DIR={}", built.display()))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    Answer {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn links_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            found.push(path);
        } else if path.is_dir() {
            links_below(&path, found);
        }
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

/// The version of the binary interface of the library for C.
fn abi() -> String {
    let source = fs::read_to_string("../capi/build.rs").unwrap();
    let (_, rest) = source.split_once("const ABI: &str = \"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn check(prefix: &str, helpers: &str) {
    let (built, tree) = (scratch(), scratch());
    let root = tree.path();
    let arguments = [
        format!("DESTDIR={}", root.display()),
        format!("PREFIX={prefix}"),
        format!("HELPERDIR={helpers}"),
    ];
    make("install", built.path(), &arguments).ok();
    let at = |path: String| root.join(path.trim_start_matches('/'));
    for tool in ["mkfs", "fsck", "mount"] {
        for name in [format!("{tool}.pramfs"), format!("{tool}.fuse.pramfs")] {
            let helper = at(format!("{helpers}/{name}"));
            let program = at(format!("{prefix}/sbin/{tool}.pramfs"));
            assert_eq!(
                helper.canonicalize().unwrap(),
                program.canonicalize().unwrap(),
                "{name}"
            );
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    for (link, target) in [
        ("libpramfs.so", "libpramfs.so.1".to_owned()),
        ("libpramfs.so.1", format!("libpramfs.so.{}", abi())),
    ] {
        let link = at(format!("{prefix}/lib/{link}"));
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(&target));
        assert!(link.exists(), "{link:?}");
    }
    for file in ["lib/libpramfs.a", "include/pramfs.h"] {
        assert!(at(format!("{prefix}/{file}")).is_file(), "{file}");
    }
    // A package of the system: no trace of the tree that it was made in.
    let pc = fs::read_to_string(at(format!("{prefix}/lib/pkgconfig/pramfs.pc"))).unwrap();
    assert!(pc.contains(&format!("prefix={prefix}\n")), "{pc}");
    assert!(pc.contains(&format!("Version: {version}\n")), "{pc}");
    assert!(
        !pc.contains('@') && !pc.contains(root.to_str().unwrap()),
        "{pc}"
    );
    for (section, name) in PAGES {
        let page = at(format!("{prefix}/share/man/man{section}/{name}.{section}"));
        assert!(page.is_file(), "{page:?}");
    }
    for program in COMPLETED {
        let places = [
            "bash-completion/completions",
            "zsh/site-functions",
            "fish/vendor_completions.d",
        ];
        for (place, (_, file)) in places.iter().zip(scripts(program)) {
            let script = at(format!("{prefix}/share/{place}/{file}"));
            assert!(script.is_file(), "{script:?}");
        }
    }
    // What is unpacked elsewhere leads to itself, and not to the builder's system.
    let mut links = Vec::new();
    links_below(root, &mut links);
    assert!(!links.is_empty());
    for link in links {
        assert!(fs::read_link(&link).unwrap().is_relative(), "{link:?}");
        let end = link.canonicalize().unwrap();
        assert!(end.starts_with(root.canonicalize().unwrap()), "{link:?}");
    }
    let installed = fs::metadata(at(format!("{prefix}/bin/pramfs"))).unwrap();
    let unstripped = fs::metadata(PRAMFS).unwrap();
    assert!(installed.len() < unstripped.len(), "symbols are left");
    // The tool finds the library from its own place.
    let library = at(format!("{prefix}/lib/pramfs/libpramfs_preload.so"));
    assert!(library.is_file());
    let run = Command::new(at(format!("{prefix}/bin/pramfs")))
        .args(["run", "/usr/bin/env"])
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let shown = String::from_utf8(run.stdout).unwrap();
    assert!(
        shown.contains(&format!("LD_PRELOAD={}\n", library.display())),
        "{shown}"
    );
    // No place is left to be filled in, and each program that a unit starts is installed.
    let units = fs::read_dir(at(format!("{prefix}/lib/systemd/system"))).unwrap();
    let units: Vec<_> = units.map(|unit| unit.unwrap().path()).collect();
    assert!(units.len() >= 5, "{units:?}");
    for unit in units {
        let text = fs::read_to_string(&unit).unwrap();
        let commands = text.lines().filter_map(|line| {
            let (key, command) = line.split_once('=')?;
            key.starts_with("Exec").then_some(command)
        });
        for command in commands {
            let program = command.trim_start_matches('-').split(' ').next().unwrap();
            let is_there = program == "/bin/sh" || at(program.to_owned()).is_file();
            assert!(is_there, "{unit:?}: {program}");
        }
        let left = ["@LIB@", "@BINDIR@", "@SBINDIR@"];
        assert!(!left.iter().any(|place| text.contains(place)), "{text}");
    }
    let rule = at(format!("{prefix}/lib/udev/rules.d/60-pramfs.rules"));
    let rule = fs::read_to_string(rule).unwrap();
    let program = format!("=\"{prefix}/bin/pramfs info --export $devnode\"");
    assert!(rule.contains(&program) && !rule.contains("DIR@"), "{rule}");
    assert!(at(format!("{prefix}/share/pramfs/magic")).is_file());
    for script in ["keep-region", "collect-pstore"] {
        let text = at(format!("{prefix}/lib/pramfs/{script}"));
        let text = fs::read_to_string(text).unwrap();
        assert!(!text.contains("DIR@") && !text.contains("@LIB"), "{text}");
    }
    // What is not the helpers' directory got no file there.
    if helpers != "/sbin" {
        assert!(!root.join("sbin").exists());
    }
    make("uninstall", built.path(), &arguments).ok();
    assert_eq!(files_below(root), Vec::<PathBuf>::new());
    for dir in ["lib/pramfs", "share/doc/pramfs"] {
        assert!(!at(format!("{prefix}/{dir}")).exists(), "{dir}");
    }
}

/// Under sudo, a build would leave files of root in the target directory.
#[test]
fn install_of_nothing_built_says_what_to_do_and_installs_nothing() {
    let (built, tree) = (scratch(), scratch());
    for (profile, command) in [
        ("release", "'make build'"),
        ("dist", "'make build PROFILE=dist'"),
    ] {
        for target in ["install", "install-lib", "install-preload"] {
            // With cargo at hand: the command would be run if a recipe built.
            let output = Command::new("make")
                .args(["--no-print-directory", target, "CARGO=touch"])
                .arg(format!("PROFILE={profile}"))
                .arg(format!("CARGO_TARGET_DIR={}", built.path().display()))
                .arg(format!("DESTDIR={}", tree.path().display()))
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
                .env_remove("MAKEFLAGS")
                .output()
                .unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{target}");
            let says = err.contains("is not built yet: type") && err.contains(command);
            assert!(says, "{target}: {err}");
        }
    }
    assert_eq!(files_below(tree.path()), Vec::<PathBuf>::new());
    assert_eq!(files_below(built.path()), Vec::<PathBuf>::new());
}

/// As Debian has it, where each architecture has a directory.
#[test]
fn install_lib_puts_library_into_named_directories() {
    let (built, tree) = (scratch(), scratch());
    let arguments = [
        format!("DESTDIR={}", tree.path().display()),
        "PREFIX=/usr".to_owned(),
        "LIBDIR=/usr/lib/x86_64-linux-gnu".to_owned(),
        "INCLUDEDIR=/usr/include/pramfs".to_owned(),
    ];
    make("install-lib", built.path(), &arguments).ok();
    let mut files: Vec<_> = files_below(tree.path())
        .iter()
        .map(|path| path.strip_prefix(tree.path()).unwrap().to_owned())
        .collect();
    files.sort();
    let lib = Path::new("usr/lib/x86_64-linux-gnu");
    let expected = [
        PathBuf::from("usr/include/pramfs/pramfs.h"),
        lib.join("libpramfs.a"),
        lib.join("libpramfs.so"),
        lib.join("libpramfs.so.1"),
        lib.join(format!("libpramfs.so.{}", abi())),
        lib.join("pkgconfig/pramfs.pc"),
    ];
    assert_eq!(files, expected);
    let pc = fs::read_to_string(tree.path().join(&expected[5])).unwrap();
    assert!(
        pc.contains("libdir=/usr/lib/x86_64-linux-gnu\nincludedir=/usr/include/pramfs\n"),
        "{pc}"
    );
}

#[test]
fn install_with_merged_usr_makes_relative_links() {
    check("/usr", "/usr/sbin");
}

#[test]
fn install_in_usr_local_links_helpers_relatively() {
    check("/usr/local", "/usr/sbin");
    check("/usr/local", "/sbin");
}
