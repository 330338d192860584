//! The pages against the programs, and against the programs that show pages.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;

use crate::shells::has;
use pramfs_fuse::options;
use pramfs_manuals::pages::{self, is_shown};
use pramfs_manuals::{Page, programs};

fn all() -> Vec<Page> {
    pages::all().unwrap()
}

/// The page as words, without fonts and escapes.
fn plain(page: &Page) -> String {
    let text = page.text.replace("\\-", "-").replace("\\*(Aq", "'");
    let text = text.replace("\\fB", "").replace("\\fI", "");
    let text = text.replace("\\fR", "").replace("\\&", "");
    text.replace("\\\\", "\\")
}

fn page(name: &str, section: u8) -> Page {
    let pages = all();
    let found = pages
        .into_iter()
        .find(|p| p.name == name && p.section == section);
    found.unwrap_or_else(|| panic!("there is no {name}({section})"))
}

/// Every command line with the name of its page.
fn command_lines() -> Vec<(String, u8, clap::Command)> {
    let mut all = Vec::new();
    for program in programs() {
        let mut command = program.command;
        command.build();
        for sub in command.get_subcommands().filter(|sub| is_shown(sub)) {
            let name = format!("{}-{}", program.name, sub.get_name());
            all.push((name, program.section, sub.clone()));
        }
        all.push((program.name.to_owned(), program.section, command));
    }
    all
}

#[test]
fn every_option_of_help_is_in_its_page() {
    let mut options = 0;
    for (name, section, mut command) in command_lines() {
        let text = plain(&page(&name, section));
        let help = command.render_long_help().to_string();
        for line in help.lines().map(str::trim_start) {
            // Words in the text may begin so, too; an option stands at the start.
            let words = line.split([' ', ',']).filter(|word| !word.is_empty());
            for option in words.take_while(|word| word.starts_with('-')).take(2) {
                let option = option.trim_end_matches(['.', ';']);
                options += 1;
                assert!(text.contains(option), "{name}({section}) lacks {option}");
            }
        }
    }
    assert!(options > 80, "{options}");
}

#[test]
fn every_sentence_after_the_options_of_help_is_in_its_page() {
    for (name, section, command) in command_lines() {
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default().replace(&options::help(), "");
        // The title of the section says it.
        let help = help.replace("Exit status: ", "");
        let text = plain(&page(&name, section));
        for word in help.split_whitespace() {
            assert!(text.contains(word), "{name}({section}) lacks {word}");
        }
    }
}

#[test]
fn every_mount_option_is_in_page_of_section_5() {
    let text = plain(&page("pramfs", 5));
    let mut all = 0;
    for option in options::documented() {
        all += 1;
        for words in [&option.spelled, &option.meaning] {
            assert!(text.contains(&**words), "pramfs(5) lacks {words}");
        }
        for also in option.also {
            assert!(text.contains(also), "pramfs(5) lacks {also}");
        }
    }
    for option in options::accepted() {
        assert!(text.contains(option), "pramfs(5) lacks {option}");
    }
    assert!(all > 30, "{all}");
}

#[test]
fn every_program_and_subcommand_has_a_page_with_examples() {
    let pages = all();
    for (name, section, _) in command_lines() {
        let page = pages
            .iter()
            .find(|p| p.name == name && p.section == section);
        let page = page.unwrap_or_else(|| panic!("there is no {name}({section})"));
        for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES"] {
            let heading = format!(".SH {title}\n");
            let quoted = format!(".SH \"{title}\"\n");
            assert!(
                page.text.contains(&heading) || page.text.contains(&quoted),
                "{name}({section}) lacks {title}"
            );
        }
    }
    for also in ["mkfs", "fsck", "mount"] {
        let alias = page(&format!("{also}.fuse.pramfs"), 8);
        assert_eq!(alias.text, format!(".so man8/{also}.pramfs.8\n"));
    }
}

#[test]
fn every_file_of_pages_belongs_to_a_page() {
    let names: BTreeSet<_> = all().iter().map(Page::file_name).collect();
    for entry in std::fs::read_dir(pages::sources()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.strip_suffix(".md").unwrap();
        assert!(names.contains(name), "{file} is the text of no page");
    }
}

#[test]
fn every_page_of_ours_that_is_named_exists() {
    let pages = all();
    let names: BTreeSet<_> = pages
        .iter()
        .map(|page| format!("{}({})", page.name, page.section))
        .collect();
    let mut named = 0;
    for page in &pages {
        for word in plain(page).split([' ', '\n', ',', ';']) {
            let word = word.trim_end_matches(['.', ':']);
            let is_ours = word.contains("pramfs") && !word.contains(['/', '_', '=']);
            if is_ours && word.ends_with(')') && word.contains('(') {
                named += 1;
                assert!(names.contains(word), "{}: {word}", page.file_name());
            }
        }
    }
    assert!(named > 100, "{named}");
}

/// The lines of the blocks of code in the files of `pages/` that start a program of ours.
fn examples() -> Vec<(String, String)> {
    let mut examples = Vec::new();
    for entry in std::fs::read_dir(pages::sources()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for block in text.split("```\n").skip(1).step_by(2) {
            for line in block.lines() {
                let line = line.split(['|', '#', ')']).next().unwrap().trim();
                let line = line.trim_start_matches("source <(");
                let first = line.split(' ').next().unwrap();
                if programs().iter().any(|program| program.name == first) {
                    examples.push((path.display().to_string(), line.to_owned()));
                }
            }
        }
    }
    examples
}

#[test]
fn every_example_is_a_valid_command_line() {
    let examples = examples();
    assert!(examples.len() > 40, "{}", examples.len());
    for (path, line) in examples {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let result = match words[0].to_str().unwrap() {
            "mount.pramfs" => pramfs_fuse::cli::read(words).map(drop),
            "pramfs-virtiofsd" => pramfs_fuse::virtiofsd::cli::read(words).map(drop),
            name => {
                let program = programs().into_iter().find(|p| p.name == name).unwrap();
                let parsed = program.command.try_get_matches_from(words);
                assert!(parsed.is_ok(), "{path}: {line}: {}", parsed.unwrap_err());
                Ok(())
            }
        };
        assert!(result.is_ok(), "{path}: {line}: {result:?}");
    }
}

#[test]
fn functions_named_in_library_page_are_in_the_header() {
    let text = std::fs::read_to_string(pages::sources().join("libpramfs.3.md")).unwrap();
    let functions = pramfs_manuals::header::functions(pramfs_manuals::header::HEADER);
    let mut named = 0;
    for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        if word.starts_with("pramfs_") && word != "pramfs_fs" {
            named += 1;
            assert!(functions.iter().any(|f| f.name == word), "{word}");
        }
    }
    assert!(named > 5, "{named}");
}

/// Writes everything into a scratch directory.
fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pramfs_manuals::write_all(dir.path()).unwrap();
    dir
}

#[test]
fn pages_are_shown_by_man_without_a_warning() {
    if !has("man", "pages_are_shown_by_man_without_a_warning") {
        return;
    }
    let dir = written();
    for page in all() {
        // Where the page of a `.so` is looked for.
        let man = dir.path().join("man");
        let file = format!("man{}/{}", page.section, page.file_name());
        let shown = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", &file])
            .current_dir(&man)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80")
            .env("MANROFFSEQ", "")
            .output()
            .unwrap();
        let warnings = String::from_utf8_lossy(&shown.stderr);
        assert!(
            shown.status.success() && warnings.is_empty(),
            "{file}: {warnings}"
        );
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.lines().count() > 15, "{file}: {text}");
    }
}

#[test]
fn pages_are_clean_for_mandoc() {
    if !has("mandoc", "pages_are_clean_for_mandoc") {
        return;
    }
    let dir = written();
    // It has a warning for each `.so`, whatever it leads to.
    for page in all().iter().filter(|page| !page.text.starts_with(".so")) {
        let file = format!("man{}/{}", page.section, page.file_name());
        let checked = Command::new("mandoc")
            .args(["-T", "lint", "-W", "warning", &file])
            .current_dir(dir.path().join("man"))
            .output()
            .unwrap();
        let found = String::from_utf8_lossy(&checked.stdout);
        // A page has no date: the build is the same on every day.
        let found: Vec<_> = found
            .lines()
            .filter(|line| !line.contains("missing date"))
            .collect();
        assert!(found.is_empty(), "{file}: {found:#?}");
    }
}
