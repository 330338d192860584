//! `scripts/deps.sh` by sudo, where only the user who calls sudo has a Rust. The system is made
//! up: all packages are installed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pramfs_tests::skip;
use tempfile::TempDir;

/// The user who calls sudo: any but root.
const CALLER: (&str, u32) = ("nobody", 65534);

/// What the script needs of the system.
const TOOLS: [&str; 13] = [
    "awk", "bash", "cat", "cut", "dirname", "env", "head", "id", "rm", "runuser", "sed", "sh",
    "sort",
];

/// A stand-in for cargo. It logs the user that runs it, and installs suites that log theirs.
const CARGO: &str = r#"#!/bin/bash
echo "$(id -u) $HOME cargo $1" >>"$HOME/log"
root=$5 crate=$6
mkdir -p "$root/bin"
printf '#!/bin/bash\necho "$(id -u) $HOME suite" >>"$HOME/log"\necho "suite %s"\n' "${crate#*@}" >"$root/bin/${crate%@*}"
chmod 755 "$root/bin/${crate%@*}"
"#;

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

struct System {
    dir: TempDir,
}

impl System {
    /// A Rust of this version in the home directory of the caller. `None` without what the test
    /// needs.
    fn with_rust(version: &str, test: &str) -> Option<System> {
        let path = std::env::var_os("PATH")?;
        let real = |tool: &str| -> Option<PathBuf> {
            let mut all = std::env::split_paths(&path).map(|dir| dir.join(tool));
            all.find(|tool| tool.exists())
        };
        if !rustix::process::geteuid().is_root() || real("runuser").is_none() {
            skip::skipped(format_args!(
                "not root, or no runuser: {test} has not been run"
            ));
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let system = System { dir };
        for tool in TOOLS {
            let link = system.at("bin").join(tool);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(real(tool).expect(tool), link).unwrap();
        }
        let installed = "#!/bin/bash\necho installed\n";
        program(&system.at("bin/dpkg-query"), installed);
        let (user, home) = (CALLER.0, system.at("caller"));
        let line = format!("{user}:x:{0}:{0}::{1}:/bin/sh", CALLER.1, home.display());
        let getent = format!("#!/bin/bash\n[[ $* == 'passwd {user}' ]] && echo '{line}'\n");
        program(&system.at("bin/getent"), &getent);
        // Programs of the caller have more tools.
        let path = "PATH=$PATH:/usr/bin:/bin\n";
        let head = "#!/bin/bash\n";
        let cargo = CARGO.replacen(head, &format!("{head}{path}"), 1);
        program(&home.join(".cargo/bin/cargo"), &cargo);
        let rustc = format!(
            "{head}{path}echo \"$(id -u) $HOME rustc\" >>\"$HOME/log\"\necho 'rustc {version} (x)'\n"
        );
        program(&home.join(".cargo/bin/rustc"), &rustc);
        program(&home.join(".cargo/bin/rustup"), head);
        fs::create_dir(system.at("target")).unwrap();
        for dir in [home, system.at("target")] {
            chown(dir, Some(CALLER.1), Some(CALLER.1)).unwrap();
        }
        Some(system)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn deps(&self, switch: &str) -> Output {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/deps.sh");
        let mut deps = Command::new(script);
        deps.arg(switch).current_dir(self.dir.path()).env_clear();
        deps.env("PATH", self.at("bin"))
            .env("HOME", self.at("root"));
        deps.env("SUDO_USER", CALLER.0)
            .env("CARGO_TARGET_DIR", self.at("target"));
        deps.output().unwrap()
    }

    /// The programs of the caller that ran since the last call: all by the caller.
    fn ran(&self) -> Vec<String> {
        let log = self.at("caller/log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _none = fs::remove_file(log);
        let who = format!("{} {} ", CALLER.1, self.at("caller").display());
        let by_caller = |line: &str| line.strip_prefix(&who).expect(&text).to_owned();
        text.lines().map(by_caller).collect()
    }
}

fn said(done: &Output) -> String {
    String::from_utf8(done.stderr.clone()).unwrap()
}

#[test]
fn deps_by_sudo_with_rust_of_caller_alone_builds_suites_as_caller() {
    let test = "deps_by_sudo_with_rust_of_caller_alone_builds_suites_as_caller";
    let Some(system) = System::with_rust("9.9.9", test) else {
        return;
    };
    let done = system.deps("--suites");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(system.ran(), ["rustc", "cargo install", "cargo install"]);
    let said = said(&done);
    assert_eq!(
        said.matches("Building the test suite ").count(),
        2,
        "{said}"
    );
    assert!(said.contains(" as nobody\n"), "{said}");
    // Then nothing is missing.
    let done = system.deps("--suites");
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert_eq!(system.ran(), ["rustc", "suite", "suite"]);
}

#[test]
fn deps_by_sudo_with_old_rust_of_caller_says_what_caller_types() {
    let test = "deps_by_sudo_with_old_rust_of_caller_says_what_caller_types";
    let Some(system) = System::with_rust("1.2.3", test) else {
        return;
    };
    let done = system.deps("--packages");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = said(&done);
    assert!(said.starts_with("Rust 1.2.3 is too old: "), "{said}");
    assert!(
        said.ends_with("Type as nobody:  rustup update stable\n"),
        "{said}"
    );
    assert_eq!(system.ran(), ["rustc"]);
}
