//! The workflow of the hosted CI against the repository: what it calls exists and also
//! runs by hand, and it uses nothing that can change under it.

use std::path::{Path, PathBuf};

const WORKFLOW: &str = ".github/workflows/ci.yml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(path.as_ref())).unwrap()
}

/// The words of a text, without quotes and brackets around them.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace()
        .map(|w| w.trim_matches(['"', '\'', '`', '(', ')', ',', ';']))
        .collect()
}

/// The targets that a text makes: the words after `make` that are neither options nor
/// variables, up to the first other word.
fn made(line: &str) -> Vec<String> {
    let words = words(line);
    let mut targets = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, w)| **w == "make") {
        targets.extend(
            words[at + 1..]
                .iter()
                .take_while(|w| !["&&", "||", "|", "#"].contains(w))
                .filter(|w| !w.starts_with('-') && !w.contains('=') && !w.is_empty())
                .map(|w| (*w).to_owned()),
        );
    }
    targets
}

/// The commands of the workflow: what follows `run:`, blocks included.
fn commands(workflow: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut block: Option<usize> = None;
    for line in workflow.lines() {
        let indent = line.len() - line.trim_start().len();
        if let Some(from) = block {
            if line.trim().is_empty() || indent > from {
                commands.push(line.trim().to_owned());
                continue;
            }
            block = None;
        }
        let item = line.trim_start().trim_start_matches("- ");
        if let Some(command) = item.strip_prefix("run:") {
            match command.trim() {
                "|" => block = Some(indent),
                one => commands.push(one.to_owned()),
            }
        }
    }
    commands
}

fn is_target(makefile: &str, name: &str) -> bool {
    makefile
        .lines()
        .any(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(':')))
}

#[test]
fn workflow_make_targets_exist() {
    let makefile = text("Makefile");
    let mut targets = Vec::new();
    for command in commands(&text(WORKFLOW)) {
        targets.extend(made(&command));
    }
    for target in &targets {
        assert!(is_target(&makefile, target), "{WORKFLOW}: make {target}");
    }
    for needed in [
        "build",
        "test-user",
        "check-msrv",
        "check-deny",
        "check-aarch64",
        "fuzz-smoke",
        "publish-check",
        "book",
    ] {
        assert!(targets.iter().any(|t| t == needed), "no job makes {needed}");
    }
}

#[test]
fn workflow_and_makefile_scripts_are_executable() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut scripts = 0;
    for page in [WORKFLOW, "Makefile"] {
        for word in text(page).split([' ', '\t', '\n', '"', '@', ';']) {
            if !word.starts_with("scripts/") && word != ".ci/run" {
                continue;
            }
            scripts += 1;
            let file = root().join(word);
            let mode = std::fs::metadata(&file)
                .unwrap_or_else(|e| panic!("{page}: {word}: {e}"))
                .permissions()
                .mode();
            assert!(mode & 0o100 != 0, "{page}: {word} is not executable");
        }
    }
    assert!(scripts >= 10, "{scripts} scripts");
    assert!(
        commands(&text(WORKFLOW))
            .iter()
            .any(|c| words(c).contains(&".ci/run"))
    );
}

#[test]
fn workflow_actions_are_pinned_with_least_rights() {
    let workflow = text(WORKFLOW);
    let mut actions = 0;
    for line in workflow.lines() {
        let item = line.trim_start().trim_start_matches("- ");
        let Some(action) = item.strip_prefix("uses:") else {
            continue;
        };
        actions += 1;
        let (_, pin) = action.trim().split_once('@').unwrap();
        let (hash, version) = pin.split_once(" # v").unwrap_or((pin, ""));
        assert!(
            hash.len() == 40 && hash.chars().all(|c| c.is_ascii_hexdigit()),
            "{action}: not pinned to a commit"
        );
        assert_eq!(version.split('.').count(), 3, "{action}: name its version");
    }
    assert!(actions > 0);
    assert!(workflow.contains("\npermissions:\n  contents: read\n"));
    assert!(!workflow.contains(": write"), "a job may write");
    assert!(workflow.contains("\nconcurrency:\n"));
    let checkouts = workflow.matches("actions/checkout@").count();
    let without = workflow.matches("persist-credentials: false").count();
    assert_eq!(checkouts, without, "a checkout keeps its token");
}

#[test]
fn make_targets_named_in_documents_exist() {
    let makefile = text("Makefile");
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for dir in ["docs", ".github", ".github/ISSUE_TEMPLATE"] {
        let entries = std::fs::read_dir(root().join(dir)).unwrap().flatten();
        pages.extend(entries.map(|e| e.path()).filter(|p| p.is_file()));
    }
    let mut named = 0;
    for page in pages {
        // Code in a line may be wrapped.
        let text = std::fs::read_to_string(&page).unwrap().replace('\n', " ");
        for code in text.split('`') {
            let Some(rest) = code.strip_prefix("make ") else {
                continue;
            };
            let target = words(rest)[0];
            // `make devdax` is a step of the virtual machine, in tests/vm/guest.sh.
            if !target.contains('=') && target != "devdax" {
                named += 1;
                assert!(
                    is_target(&makefile, target),
                    "{}: make {target}",
                    page.display()
                );
            }
        }
    }
    assert!(named >= 20, "{named} targets");
}
