//! Writes the man pages and the shell completions into a directory; with `--book`, the sources
//! of the documentation site. What an older build has left there goes.
#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let (dir, result) = match &arguments[..] {
        [flag, dir] if flag == "--book" => (dir, book(Path::new(dir))),
        [dir] if dir != "--book" => (dir, manuals(Path::new(dir))),
        _ => {
            eprintln!("usage: pramfs-manuals [--book] DIRECTORY");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pramfs-manuals: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn manuals(dir: &Path) -> io::Result<()> {
    for part in ["man", "completions"] {
        remove(&dir.join(part))?;
    }
    pramfs_manuals::write_all(dir)
}

fn book(dir: &Path) -> io::Result<()> {
    remove(dir)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    pramfs_manuals::book::stage(&root, dir)
}

fn remove(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
