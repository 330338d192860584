//! The sources of the documentation site, as mdbook wants them: all in one directory.
//!
//! The pages of `docs/` stay where they are. What they link to elsewhere in the repository
//! goes below `repository/`, and the links follow. A link to a directory becomes plain text.
//! A `README.md` becomes `overview.md`: mdbook would rename it, and not the links to it. That of
//! the repository is the first page, and stands for the list of chapters, which is no page.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The list of chapters, in `docs/`.
pub const SUMMARY: &str = "docs/SUMMARY.md";
/// The first page.
const FIRST: &str = "README.md";
/// Where the rest of the repository goes.
const ELSEWHERE: &str = "repository";

/// Writes the sources of the site of the repository `root` into `dir`.
///
/// # Errors
/// A page links to something that does not exist; a file cannot be read or written.
pub fn stage(root: &Path, dir: &Path) -> io::Result<()> {
    let mut todo = vec![PathBuf::from(SUMMARY)];
    let mut done = BTreeSet::new();
    while let Some(page) = todo.pop() {
        if !done.insert(page.clone()) {
            continue;
        }
        let to = dir.join(staged(&page));
        if let Some(above) = to.parent() {
            std::fs::create_dir_all(above)?;
        }
        if page.extension().is_none_or(|extension| extension != "md") {
            std::fs::copy(root.join(&page), to)?;
            continue;
        }
        let text = std::fs::read_to_string(root.join(&page))?;
        let mut linked = Vec::new();
        let text = with_links(&text, |link| {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if path.is_empty() || link.contains("://") {
                return Some(link.to_owned());
            }
            let target = normal(&page.parent().unwrap_or(Path::new("")).join(path));
            let target = match target == Path::new(SUMMARY) {
                true => PathBuf::from(FIRST),
                false => target,
            };
            if root.join(&target).is_dir() {
                return None;
            }
            linked.push(target.clone());
            let path = relative(&staged(&page), &staged(&target));
            Some(match anchor.is_empty() {
                true => path,
                false => format!("{path}#{anchor}"),
            })
        });
        for target in &linked {
            if !root.join(target).is_file() {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{} links to {}", page.display(), target.display()),
                ));
            }
        }
        std::fs::write(to, text)?;
        todo.extend(linked);
    }
    Ok(())
}

/// The place of a file of the repository on the site.
fn staged(path: &Path) -> PathBuf {
    let name = match path.file_name() {
        Some(name) if name == "README.md" => "overview.md".as_ref(),
        name => name.unwrap_or_default(),
    };
    if path == Path::new(FIRST) {
        return PathBuf::from(name);
    }
    match path.strip_prefix("docs") {
        Ok(inside) => inside.with_file_name(name),
        Err(_) => Path::new(ELSEWHERE).join(path).with_file_name(name),
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The link from one file to another.
fn relative(from: &Path, to: &Path) -> String {
    let dirs = from.components().count() - 1;
    let same = from.components().zip(to.components());
    let same = same.take(dirs).take_while(|(a, b)| a == b).count();
    let mut path = "../".repeat(dirs - same);
    let rest: PathBuf = to.components().skip(same).collect();
    path.push_str(&rest.to_string_lossy());
    path
}

/// Changes the targets of the links of a page; without a target, only the text of the link
/// stays. Blocks of code are left alone.
fn with_links(text: &str, mut change: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut in_block = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        let named = line
            .starts_with('[')
            .then(|| line.split_once("]: "))
            .flatten();
        match named {
            _ if in_block => out.push_str(line),
            Some((name, target)) => {
                let changed = change(target.trim()).unwrap_or_default();
                out.push_str(&format!("{name}]: {changed}\n"));
            }
            None => line_with_links(line, &mut change, &mut out),
        }
    }
    out
}

fn line_with_links(line: &str, change: &mut impl FnMut(&str) -> Option<String>, out: &mut String) {
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else {
            break;
        };
        match (change(target), before.rfind('[')) {
            (None, Some(at)) => {
                out.push_str(&before[..at]);
                out.push_str(&before[at + 1..]);
            }
            (changed, _) => {
                out.push_str(before);
                out.push_str(&format!("]({})", changed.as_deref().unwrap_or(target)));
            }
        }
        rest = after;
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_out_of_docs_leads_into_the_repository_folder() {
        let page = Path::new("install.md");
        assert_eq!(relative(page, Path::new("mounting.md")), "mounting.md");
        let readme = staged(Path::new("README.md"));
        assert_eq!(relative(page, &readme), "overview.md");
        assert_eq!(relative(&readme, page), "install.md");
        let bench = staged(Path::new("bench/README.md"));
        assert_eq!(relative(page, &bench), "repository/bench/overview.md");
        assert_eq!(relative(&bench, &readme), "../../overview.md");
        let licence = staged(Path::new("LICENSE-MIT"));
        assert_eq!(relative(&bench, &licence), "../LICENSE-MIT");
        assert_eq!(normal(Path::new("docs/../bench/./x")), Path::new("bench/x"));
    }

    #[test]
    fn links_change_outside_of_code_only() {
        let text = "[a](x) and [b](y).\n```\n[c](x)\n```\n[d]: x\n";
        let changed = with_links(text, |link| (link == "x").then(|| "z".to_owned()));
        assert_eq!(changed, "[a](z) and b.\n```\n[c](x)\n```\n[d]: z\n");
    }
}
