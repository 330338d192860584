//! The rules of docs/architecture.md that the compiler does not keep: an arrow
//! never points up, and unsafe code stays where it belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layers of each crate from the ground up; layers of one line may use each other.
/// The compiler keeps the order of the crates.
const CRATES: &[(&str, &[&[&str]])] = &[
    (
        "medium",
        &[
            &["sync", "damage", "size", "grows"],
            &["types", "error", "pmem"],
            &["media"],
            &["alloc", "journal"],
            &["volume"],
            &["map", "htree", "format"],
        ],
    ),
    (
        "pramfs-rs",
        &[&["credentials"], &["fs"], &["api"], &["inode"]],
    ),
    (
        "fuse-protocol",
        &[
            &["table"],
            &["data", "errno", "flags", "numbers", "opcode"],
            &["wire"],
            &["error", "message", "rules", "time"],
            &["reader", "extension"],
            &["name"],
            &["request"],
            &["listing", "notify", "reply"],
            &["negotiate"],
            &["record"],
        ],
    ),
];

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

/// The source files of a crate, by layer. Files of tests may use what they like.
fn files(of: &str) -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let src = root.join(of).join("src");
    let mut all = Vec::new();
    sources(&src, &mut all);
    all.into_iter()
        .filter_map(|path| {
            let inside = path.strip_prefix(&src).ok()?;
            let layer = inside.iter().next()?.to_str()?.trim_end_matches(".rs");
            let is_test =
                inside.iter().any(|p| p == "tests") || inside.to_str()?.contains("tests.rs");
            (layer != "lib" && !is_test).then(|| (layer.to_owned(), path.clone()))
        })
        .collect()
}

/// The text before the tests at its end, without comments.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = text
        .lines()
        .map(|l| l.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn height(layers: &[&[&str]], layer: &str) -> usize {
    let found = layers.iter().position(|same| same.contains(&layer));
    found.unwrap_or_else(|| {
        panic!("{layer} is not a layer of docs/architecture.md; enter it there and here")
    })
}

#[test]
fn layers_never_use_upper_layers() {
    for (of, layers) in CRATES {
        let files = files(of);
        assert!(files.len() > 10, "{of}: {} files", files.len());
        for (layer, path) in files {
            for used in code(&path).split("crate::").skip(1) {
                let used: String = used
                    .chars()
                    .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                    .collect();
                // `crate::Name` and `crate::macro!` are of the root.
                if used.is_empty() || used == layer || used == "has_bug" {
                    continue;
                }
                assert!(
                    height(layers, &used) <= height(layers, &layer),
                    "{}: {layer} uses {used}, which stands above it",
                    path.display()
                );
            }
        }
    }
}

/// The other crates of the file system forbid it to the compiler.
#[test]
fn unsafe_code_only_in_pmem_and_media() {
    for (layer, path) in files("medium") {
        if !["pmem", "media"].contains(&layer.as_str()) {
            assert!(
                !code(&path).contains("unsafe"),
                "{} has unsafe code",
                path.display()
            );
        }
    }
    for of in ["pramfs-rs", "fsck", "fuse-protocol"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = std::fs::read_to_string(root.join(of).join("src/lib.rs")).unwrap();
        assert!(root.contains("#![forbid(unsafe_code)]"), "{of}");
    }
}

/// The folders and files of `fs/`, from the lowest up, as `fs/mod.rs` lists them.
const FS: &[&str] = &[
    "survivor",
    "clock",
    "options",
    "policy",
    "cache",
    "inode",
    "engine",
    "steps",
    "ops",
    "scrub",
    "mount",
    "inode_ref",
];

/// A module of `fs/` by its path (`ops/read`; `engine` for `engine/mod.rs`), and its code.
type Module = (String, String);

fn modules_of_fs() -> Vec<Module> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fs");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let name = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let name = name.trim_end_matches(".rs").trim_end_matches("/mod");
        (name != "mod" && !name.ends_with("_tests")).then(|| name.to_owned())
    };
    let modules = paths.iter().filter_map(|p| Some((name(p)?, code(p))));
    modules.collect()
}

/// The identifier at the beginning of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// For each function that only one module of `fs/` defines, that module.
fn functions(modules: &[Module]) -> BTreeMap<&str, &str> {
    let mut found: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (name, code) in modules {
        for rest in code.split("fn ").skip(1) {
            let only = found.entry(identifier(rest)).or_insert(Some(name));
            *only = only.filter(|by| by == name);
        }
    }
    found
        .into_iter()
        .filter_map(|(f, by)| Some((f, by?)))
        .collect()
}

/// The modules that a module names in a path.
fn named<'a>(modules: &'a [Module], (name, code): &Module) -> BTreeSet<&'a str> {
    let folder = name.split('/').next().unwrap_or_default();
    let paths = (code.split("crate::fs::").skip(1).map(|p| (None, p)))
        .chain(code.split("super::").skip(1).map(|p| (Some(folder), p)));
    let mut used = BTreeSet::new();
    for (within, path) in paths {
        let mut parts: Vec<&str> = within.into_iter().collect();
        for part in path.split("::") {
            parts.push(identifier(part));
            if identifier(part).len() != part.len() {
                break;
            }
        }
        // The longest part of the path that is a module.
        let longest = (1..=parts.len()).rev().find_map(|n| {
            let path = parts[..n].join("/");
            modules.iter().find(|(m, _)| *m == path)
        });
        used.extend(longest.map(|(m, _)| m.as_str()));
    }
    used
}

/// For each module of `fs/`, the modules that it uses: by a path, or by calling a method
/// of the engine that another module defines.
fn uses(modules: &[Module]) -> BTreeMap<&str, BTreeSet<&str>> {
    let functions = functions(modules);
    let mut uses = BTreeMap::new();
    for module in modules {
        let mut used = named(modules, module);
        for call in module.1.split("self.").skip(1) {
            let method = identifier(call);
            let is_call = call[method.len()..].starts_with(['(', ':']);
            used.extend(functions.get(method).filter(|_| is_call));
        }
        used.remove(module.0.as_str());
        uses.insert(module.0.as_str(), used);
    }
    uses
}

/// Returns the modules of a circle that begins with the last of `path`, if there is one.
fn circle<'a>(
    uses: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    path: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> bool {
    let last = path[path.len() - 1];
    for next in uses.get(last).into_iter().flatten() {
        let again = path.contains(next);
        if again || !done.contains(next) {
            path.push(next);
            if again || circle(uses, path, done) {
                return true;
            }
            path.pop();
        }
    }
    done.insert(last);
    false
}

#[test]
fn fs_has_no_circles() {
    let modules = modules_of_fs();
    assert!(modules.len() > 40, "{} modules", modules.len());
    let uses = uses(&modules);
    // The search sees what it must: an import, and a call of a method.
    assert!(uses["ops/write"].contains("engine/change"), "{uses:?}");
    assert!(uses["ops/write"].contains("steps/resize"), "{uses:?}");
    let mut done = BTreeSet::new();
    for module in uses.keys() {
        let mut path = vec![*module];
        assert!(
            !circle(&uses, &mut path, &mut done),
            "{}",
            path.join(" -> ")
        );
    }
    let height = |module: &str| {
        let folder = module.split('/').next();
        let at = FS.iter().position(|f| Some(*f) == folder);
        at.unwrap_or_else(|| panic!("{module} is not in the list of fs/mod.rs"))
    };
    for (module, used) in &uses {
        for lower in used {
            assert!(
                height(lower) <= height(module),
                "{module} uses {lower}, which is above it"
            );
        }
    }
}
