//! The programs that the server starts, by absolute path: a bare name would be looked up
//! in the caller's PATH.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Possible places of fusermount3: packages, a local build, NixOS.
const FUSERMOUNT3: [&str; 4] = [
    "/usr/bin/fusermount3",
    "/bin/fusermount3",
    "/usr/local/bin/fusermount3",
    "/run/wrappers/bin/fusermount3",
];

/// Returns a command for fusermount3 with an empty environment.
///
/// # Errors
/// `NotFound` if it is not installed.
pub fn fusermount3() -> io::Result<Command> {
    let mut command = Command::new(first(&FUSERMOUNT3)?);
    command.env_clear();
    Ok(command)
}

fn first(places: &[&str]) -> io::Result<PathBuf> {
    let found = places.iter().map(Path::new).find(|path| path.is_file());
    found
        .map(Path::to_owned)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_programs_have_absolute_paths() {
        assert!(FUSERMOUNT3.iter().all(|path| Path::new(path).is_absolute()));
        assert_eq!(
            first(&["/nowhere/at/all"]).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            first(&["/nowhere", "/bin/sh"]).unwrap(),
            Path::new("/bin/sh")
        );
    }
}
