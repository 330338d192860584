//! The documentation site: its list of chapters is complete, and each link leads somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pramfs_manuals::book;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The targets of the links of a page, without blocks of code.
fn links(text: &str) -> Vec<String> {
    let blocks = text.split("```").step_by(2);
    let parts = blocks.flat_map(|block| block.split("](").skip(1));
    let targets = parts.filter_map(|part| part.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .map(str::to_owned)
        .collect()
}

fn pages_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn summary_lists_every_page_of_docs_once() {
    let summary = std::fs::read_to_string(root().join(book::SUMMARY)).unwrap();
    let chapters = links(&summary);
    let unique: BTreeSet<_> = chapters.iter().cloned().collect();
    assert_eq!(unique.len(), chapters.len(), "a chapter is there twice");
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(unique.contains(&name), "{} has no {name}", book::SUMMARY);
        }
    }
}

#[test]
fn every_page_of_the_site_is_a_chapter_and_its_links_have_targets() {
    let dir = tempfile::tempdir().unwrap();
    book::stage(&root(), dir.path()).unwrap();
    let summary = dir.path().join("SUMMARY.md");
    let chapters = links(&std::fs::read_to_string(&summary).unwrap());
    let chapters: BTreeSet<_> = chapters.iter().map(|link| dir.path().join(link)).collect();
    let mut pages = Vec::new();
    pages_below(dir.path(), &mut pages);
    assert!(pages.len() > 30, "{}", pages.len());
    for page in pages {
        // mdbook renders no other page.
        assert!(
            page == summary || chapters.contains(&page),
            "{} is no chapter, and a page links to it",
            page.display()
        );
        assert!(
            !page.ends_with("README.md"),
            "mdbook would rename {}",
            page.display()
        );
        for link in links(&std::fs::read_to_string(&page).unwrap()) {
            let path = link.split('#').next().unwrap();
            let target = page.parent().unwrap().join(path);
            assert!(
                path.is_empty() || target.is_file(),
                "{}: {link}",
                page.display()
            );
        }
    }
}

/// Every file with tests, and so with names that a page may give.
fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            sources(&path, text);
        } else if name.ends_with(".rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether a word is the name of a test. Functions for C and metrics begin with the name of the
/// file system, or with what follows it.
fn is_name_of_test(word: &str) -> bool {
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.matches('_').count() >= 3
        && word.chars().all(is_lower)
        && !word.starts_with("pramfs_")
        && !word.starts_with('_')
        && word != "open_by_handle_at"
}

#[test]
fn tests_named_in_pages_exist() {
    let mut all = String::new();
    sources(&root(), &mut all);
    let mut named = 0;
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let page = entry.unwrap().path();
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            // Some pages name the file, too: `file.rs::test`.
            let word = word.rsplit("::").next().unwrap();
            if !is_name_of_test(word) {
                continue;
            }
            named += 1;
            let page = page.display();
            assert!(all.contains(&format!("fn {word}(")), "{page}: {word}");
        }
    }
    assert!(named > 900, "{named}");
}
