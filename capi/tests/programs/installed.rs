//! The library in a tree of its own, and programs that are built against it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

const PREFIX: &str = "/opt/pramfs";

/// What `make install-lib` has made.
#[derive(Debug)]
pub(crate) struct Installed {
    tree: PathBuf,
}

/// Installs the library of this build, once.
pub(crate) fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("built");
        for dir in [&tree, &built] {
            // Of an earlier run.
            let _missing = fs::remove_dir_all(dir);
        }
        fs::create_dir_all(built.join("release")).unwrap();
        // Cargo builds the library for this test, beside it.
        let test = std::env::current_exe().unwrap();
        for name in ["libpramfs_c.so", "libpramfs_c.a"] {
            let from = test.with_file_name(name);
            let to = built.join("release").join(name);
            fs::hard_link(&from, &to)
                .or_else(|_| fs::copy(&from, &to).map(drop))
                .unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        }
        let output = Command::new("make")
            .args(["--no-print-directory", "install-lib", "CARGO=no-such-cargo"])
            .arg(format!("CARGO_TARGET_DIR={}", built.display()))
            .arg(format!("DESTDIR={}", tree.display()))
            .arg(format!("PREFIX={PREFIX}"))
            // valgrind shall name functions.
            .arg("STRIP=true")
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("MAKEFLAGS")
            .output()
            .unwrap();
        succeeded(&output, "make install-lib");
        Installed { tree }
    })
}

fn succeeded(output: &Output, what: &str) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{what}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}

/// Runs a tool, and returns what it prints.
pub(crate) fn tool(name: &str, args: &[&OsStr]) -> String {
    let output = Command::new(name).args(args).output();
    succeeded(&output.unwrap_or_else(|e| panic!("{name}: {e}")), name)
}

impl Installed {
    fn prefix(&self) -> PathBuf {
        self.tree.join(PREFIX.trim_start_matches('/'))
    }

    /// The root of the tree.
    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    /// A file of the library directory.
    pub(crate) fn lib(&self, name: &str) -> PathBuf {
        self.prefix().join("lib").join(name)
    }

    pub(crate) fn header(&self) -> PathBuf {
        self.prefix().join("include/pramfs.h")
    }

    /// What pkg-config says of the package, for the tree.
    pub(crate) fn pkg_config(&self, args: &[&str]) -> String {
        let output = Command::new("pkg-config")
            .args(args)
            .arg("pramfs")
            .env("PKG_CONFIG_PATH", self.lib("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &self.tree)
            .output()
            .unwrap();
        succeeded(&output, "pkg-config")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linking {
    Shared,
    Static,
}

/// A program that was built against the installed library.
#[derive(Debug)]
pub(crate) struct Program {
    dir: TempDir,
}

impl Program {
    /// Compiles a source in C or C++, with all warnings as errors.
    pub(crate) fn build(source: &Path, linking: Linking) -> Program {
        let (compiler, standard) = match source.extension().and_then(OsStr::to_str) {
            Some("c") => ("cc", "-std=gnu99"),
            _ => ("c++", "-std=c++11"),
        };
        let flags = match linking {
            Linking::Shared => installed().pkg_config(&["--cflags", "--libs"]),
            // Without a preference, the linker takes the shared library.
            Linking::Static => installed()
                .pkg_config(&["--static", "--cflags", "--libs"])
                .replace("-lpramfs", "-l:libpramfs.a"),
        };
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(compiler)
            .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic"])
            .args(["-Werror", "-pthread", "-o"])
            .arg(dir.path().join("program"))
            .arg(source)
            .args(flags.split_whitespace())
            .output()
            .unwrap_or_else(|e| panic!("{compiler}: {e}"));
        succeeded(&output, &format!("{compiler} {}", source.display()));
        Program { dir }
    }

    fn command(&self, before: &[&str]) -> Command {
        let program = self.dir.path().join("program");
        let mut command = match before {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command
            .current_dir(self.dir.path())
            .env("LD_LIBRARY_PATH", installed().lib(""));
        command
    }

    /// A command that runs it.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.command(&[]);
        command.args(args);
        command
    }

    /// Runs it, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        let output = self.command(&[]).args(args).output().unwrap();
        succeeded(&output, "the program")
    }

    /// Runs it, and returns its message.
    ///
    /// # Panics
    /// If it does not fail.
    pub(crate) fn fails<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        let output = self.command(&[]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }

    /// As [`run`](Self::run), and fails if memory is used wrongly or, with `leaks`, lost.
    pub(crate) fn run_under_valgrind<S: AsRef<OsStr>>(&self, args: &[S], leaks: bool) -> String {
        let valgrind = [
            "valgrind",
            "--quiet",
            "--error-exitcode=99",
            match leaks {
                true => "--leak-check=full",
                false => "--leak-check=no",
            },
            // Hash tables are reached by pointers to their middle, which is possibly lost.
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
            "--fair-sched=yes",
            concat!(
                "--suppressions=",
                env!("CARGO_MANIFEST_DIR"),
                "/tests/programs/valgrind.supp"
            ),
        ];
        let output = self.command(&valgrind).args(args).output().unwrap();
        succeeded(&output, "the program under valgrind")
    }
}
