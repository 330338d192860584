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
fn readme_shows_twenty_lines_example() {
    let example = text("pramfs-rs/examples/twenty_lines.rs");
    let code = example
        .split_once("\n\n")
        .map(|(_title, code)| code)
        .unwrap();
    for page in ["README.md", "pramfs-rs/README.md"] {
        assert!(
            text(page).contains(&format!("```rust\n{code}```\n")),
            "the block in {page} differs from pramfs-rs/examples/twenty_lines.rs"
        );
    }
}

#[test]
fn readme_has_at_most_100_lines() {
    let lines = text("README.md").lines().count();
    assert!(lines <= 100, "{lines} lines: docs/ has room for details");
}

#[test]
fn documents_name_manifest_rust_version() {
    let manifest = text("Cargo.toml");
    let (_, rest) = manifest.split_once("rust-version = \"").unwrap();
    let version = rest.split('"').next().unwrap();
    for page in ["README.md", "docs/install.md"] {
        assert!(
            text(page).contains(&format!("Rust {version} or newer")),
            "{page} names another version than {version}"
        );
    }
}

/// Targets of links to files of the repository, relative to the page, or to headings of
/// the page itself. Code is not searched.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_block = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose += line;
            prose.push('\n');
        }
    }
    for rest in prose.split("](").skip(1) {
        links.extend(rest.split(')').next().map(str::to_owned));
    }
    // [name]: target
    for line in prose.lines().filter(|line| line.starts_with('[')) {
        if let Some((_, target)) = line.split_once("]: ") {
            links.push(target.trim().to_owned());
        }
    }
    links.retain(|link| !link.contains("://"));
    links
}

/// The Markdown files of the repository.
fn pages(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() {
            // Build output, and what the fuzzer found.
            let skipped = ["target", "corpus", "work", "artifacts", "coverage"];
            if (!name.starts_with('.') || name == ".github") && !skipped.contains(&&*name) {
                pages(&path, into);
            }
        } else if path.extension().is_some_and(|e| e == "md") {
            into.push(path);
        }
    }
}

/// In /dev/shm everybody makes names: a region of root's that stands there may be
/// somebody else's file.
#[test]
fn shown_commands_create_no_region_in_dev_shm() {
    let mut shown = vec![
        root().join("README.md"),
        root().join("scripts/demo.sh"),
        root().join("medium/src/pmem/probe/advice.rs"),
        root().join("pramfs-rs/examples/log_and_counters.rs"),
    ];
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let pages = docs.flatten().map(|entry| entry.path());
    shown.extend(pages.filter(|path| path.is_file()));
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
fn tests_named_in_security_doc_exist() {
    let mut files = Vec::new();
    for dir in [
        "pramfs-rs",
        "medium",
        "fsck",
        "control",
        "fuse-frontend",
        "kernel-sys",
        "mkfs",
        "client",
        "preload",
        "tests",
    ] {
        let dir = root().join(dir);
        for part in ["src", "tests", "ops"] {
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
fn document_links_have_targets() {
    let mut all = Vec::new();
    pages(&root(), &mut all);
    assert!(all.len() >= 20, "{} pages", all.len());
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(path)
            };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !anchor.is_empty() {
                let found = std::fs::read_to_string(&target)
                    .unwrap()
                    .to_lowercase()
                    .lines()
                    .filter(|l| l.starts_with('#'))
                    .any(|l| anchor_of(l.trim_start_matches('#').trim()) == anchor);
                assert!(found, "{}: {link} has no such heading", page.display());
            }
        }
    }
}

#[test]
fn every_document_is_reachable_from_readme() {
    let linked = links(&text("README.md"));
    for entry in std::fs::read_dir(root().join("docs")).unwrap().flatten() {
        if entry.path().is_dir() {
            // Pictures, which a page shows.
            continue;
        }
        let name = format!("docs/{}", entry.file_name().into_string().unwrap());
        assert!(
            linked
                .iter()
                .any(|link| link.split('#').next() == Some(&name)),
            "README.md has no link to {name}"
        );
    }
}

/// As hosts of Markdown make it of a heading: punctuation goes.
fn anchor_of(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
