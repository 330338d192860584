//! Programs in C, C++ and Go against the installed library: shared and static, alone and under
//! valgrind.
//!
//! `make install-lib` puts the library of this build into a tree, and pkg-config finds it
//! there, as a program of a user would.

mod go;
mod installed;
mod leases;

use std::path::{Path, PathBuf};
use std::process::Command;

use installed::{Linking, Program, installed, tool};
use pramfs_tests::skip::skipped;

/// The programs of this folder, and the examples, as they are given a new region.
const PROGRAMS: [&str; 5] = ["errors", "names", "closing", "threads", "forks"];

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(format!("{name}.c"))
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

/// A place for a region, in memory where there is such a directory.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => tempfile::tempdir_in(shm).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn passes(name: &str, linking: Linking) {
    let program = Program::build(&source(name), linking);
    let dir = scratch();
    let said = program.run(&[dir.path().join("region")]);
    assert_eq!(said, format!("{name}: passed\n"));
}

#[test]
fn errors_are_negative_errno_with_message() {
    passes("errors", Linking::Shared);
}

#[test]
fn names_and_files_work_from_c() {
    passes("names", Linking::Shared);
}

#[test]
fn handles_close_in_every_order() {
    passes("closing", Linking::Shared);
}

#[test]
fn threads_share_handles() {
    passes("threads", Linking::Shared);
}

#[test]
fn forked_child_is_refused_and_harmless() {
    passes("forks", Linking::Shared);
}

#[test]
fn programs_pass_with_static_library() {
    for name in PROGRAMS {
        passes(name, Linking::Static);
    }
}

#[test]
fn c_example_counts_its_runs() {
    for linking in [Linking::Shared, Linking::Static] {
        let program = Program::build(&example("log_and_counters.c"), linking);
        let dir = scratch();
        let region = dir.path().join("region");
        assert_eq!(program.run(&[&region]), "run 1\n");
        assert_eq!(program.run(&[&region]), "run 1\nrun 2\n");
        // What it says of a region that it cannot use.
        let said = program.fails(&[dir.path().join("no/region")]);
        assert!(said.starts_with("log_and_counters: cannot open "), "{said}");
    }
}

#[test]
fn cpp_example_closes_handles_in_any_order() {
    for linking in [Linking::Shared, Linking::Static] {
        let program = Program::build(&example("handles.cpp"), linking);
        let dir = scratch();
        let said = program.run(&[dir.path().join("region")]);
        assert_eq!(
            said,
            "HELLO\nerrno 2: cannot open /missing: no such file or directory\n"
        );
    }
}

#[test]
fn program_of_guide_counts_its_runs() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/c-api.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, code) = guide.split_once("```c\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let dir = scratch();
    let source = dir.path().join("program.c");
    std::fs::write(&source, code).unwrap();
    let program = Program::build(&source, Linking::Shared);
    let region = dir.path().join("region");
    assert_eq!(program.run(&[&region]), "run 1\n");
    assert_eq!(program.run(&[&region]), "run 2\n");
}

/// No access outside of what was allocated, no use of what is uninitialised or freed, and
/// nothing lost.
#[test]
fn programs_pass_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped("valgrind is missing: the programs in C have not been run under it");
        assert!(std::env::var_os("CI").is_none(), "make deps-test");
        return;
    }
    let examples = ["log_and_counters.c", "handles.cpp"].map(example);
    for path in PROGRAMS.map(source).into_iter().chain(examples) {
        let program = Program::build(&path, Linking::Shared);
        let dir = scratch();
        // A forked child loses what other threads of its parent had on their stacks.
        let leaks = !path.ends_with("forks.c");
        let said = program.run_under_valgrind(&[dir.path().join("region")], leaks);
        assert!(!said.is_empty(), "{}", path.display());
    }
}

#[test]
fn shared_library_has_its_name_and_exports_interface_only() {
    let library = installed().lib("libpramfs.so.1");
    let dynamic = tool("readelf", &["-d".as_ref(), library.as_os_str()]);
    assert!(dynamic.contains("soname: [libpramfs.so.1]"), "{dynamic}");

    let symbols = tool(
        "nm",
        &[
            "-D".as_ref(),
            "--defined-only".as_ref(),
            "-P".as_ref(),
            library.as_os_str(),
        ],
    );
    let mut exported: Vec<_> = symbols
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    exported.sort();
    // What the header declares.
    let header = std::fs::read_to_string(installed().header()).unwrap();
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']))
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            Some(name.to_owned())
        })
        .collect();
    declared.sort();
    assert_eq!(exported, declared);
}

#[test]
fn pkg_config_names_version_and_directories() {
    let version = installed().pkg_config(&["--modversion"]);
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    let flags = installed().pkg_config(&["--cflags", "--libs"]);
    assert!(flags.contains("-lpramfs"), "{flags}");
    assert!(
        !flags.contains("pmem2"),
        "the shared library knows: {flags}"
    );
    let flags = installed().pkg_config(&["--static", "--libs"]);
    assert!(flags.contains("-lgcc_s"), "{flags}");
}
