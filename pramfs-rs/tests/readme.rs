//! The README and the pages of `docs/` against the repository: the code they
//! show is the code that is compiled, and what they link to is there.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(path.as_ref())).unwrap()
}

#[test]
fn the_readme_shows_the_twenty_lines() {
    let example = text("pramfs-rs/examples/twenty_lines.rs");
    let code = example
        .split_once("\n\n")
        .map(|(_title, code)| code)
        .unwrap();
    assert!(
        text("README.md").contains(&format!("```rust\n{code}```\n")),
        "the block in README.md differs from pramfs-rs/examples/twenty_lines.rs"
    );
}

/// Targets of links to files of the repository, relative to the page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.starts_with('#'))
}

/// In /dev/shm everybody makes names: a region of root's that stands there may be
/// somebody else's file.
#[test]
fn no_command_that_is_shown_makes_a_region_where_everybody_makes_names() {
    let mut shown = vec![
        root().join("README.md"),
        root().join("scripts/demo.sh"),
        root().join("pramfs-rs/src/pmem/probe/advice.rs"),
        root().join("pramfs-rs/examples/log_and_counters.rs"),
    ];
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    shown.extend(docs.flatten().map(|entry| entry.path()));
    for page in shown {
        let text = std::fs::read_to_string(&page).unwrap();
        for word in text.split_whitespace() {
            for place in ["/dev/shm/", "/tmp/", "/var/tmp/"] {
                let name = word.trim_matches(['"', '`', '(', ')', ',', '.']);
                let below = name.strip_prefix(place).unwrap_or("");
                assert!(
                    below.is_empty()
                        || below.contains('/')
                        || below.contains("XXXXXX")
                        || text.contains(&format!("mkdir -m 0700 {name}")),
                    "{}: {word}",
                    page.display()
                );
            }
        }
    }
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn each_test_that_the_page_on_security_names_exists() {
    let mut files = Vec::new();
    for dir in ["pramfs-rs", "control", "fuse-frontend", "mkfs", "tests"] {
        let dir = root().join(dir);
        for part in ["src", "tests", "posix"] {
            if dir.join(part).is_dir() {
                sources(&dir.join(part), &mut files);
            }
        }
    }
    let page = text("docs/security.md");
    let mut named = 0;
    for quoted in page.split('`').skip(1).step_by(2) {
        let Some((file, test)) = quoted.split_once("::") else {
            continue;
        };
        if !file.ends_with(".rs") {
            continue;
        }
        named += 1;
        let found = files
            .iter()
            .filter(|path| path.ends_with(file))
            .any(|path| {
                std::fs::read_to_string(path)
                    .unwrap()
                    .contains(&format!("fn {test}()"))
            });
        assert!(found, "docs/security.md: there is no test {quoted}");
    }
    assert!(named >= 20, "{named} tests are named");
}

#[test]
fn links_lead_somewhere() {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    pages.extend(
        std::fs::read_dir(root().join("docs"))
            .unwrap()
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "md")),
    );
    assert!(pages.len() >= 6);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = page.parent().unwrap().join(path);
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !anchor.is_empty() {
                let heads = std::fs::read_to_string(&target).unwrap().to_lowercase();
                let found = heads
                    .lines()
                    .filter(|l| l.starts_with('#'))
                    .any(|l| anchor_of(l.trim_start_matches('#').trim()) == anchor);
                assert!(found, "{}: {link} has no such heading", page.display());
            }
        }
    }
}

/// As hosts of Markdown make it of a heading: punctuation goes.
fn anchor_of(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
