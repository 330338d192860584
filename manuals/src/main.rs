//! Writes the man pages and the shell completions into a directory, which it makes anew.
#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(dir), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: pramfs-manuals DIRECTORY");
        return ExitCode::from(2);
    };
    let dir = Path::new(&dir);
    match renew(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pramfs-manuals: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

/// Pages of an older build do not stay.
fn renew(dir: &Path) -> io::Result<()> {
    for part in ["man", "completions"] {
        match std::fs::remove_dir_all(dir.join(part)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    pramfs_manuals::write_all(dir)
}
