//! `pramfs run`: starts a program with the preload library.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::Subcommand;
use crate::Failure;
use crate::failure::shown;

const LIBRARY: &str = "libpramfs_preload.so";
/// Names the library, for a build that is not installed.
const VARIABLE: &str = "PRAMFS_PRELOAD_LIBRARY";

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Subcommand for Run {
    const NAME: &'static str = "run";
    const ABOUT: &'static str = "Run a program with direct access to files of mounts";

    fn run(&self) -> Result<(), Failure> {
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(Failure::usage("name a program"));
        };
        let library = library()?;
        let preload = with_library(&library, std::env::var_os("LD_PRELOAD").as_deref())
            .ok_or_else(|| {
                Failure::new(
                    "library",
                    format!(
                        "{}: the dynamic linker takes no path with a space or a colon",
                        shown(&library)
                    ),
                )
            })?;
        let error = Command::new(program)
            .args(arguments)
            .env("LD_PRELOAD", preload)
            .exec();
        Err(Failure::os("cannot run", program, error))
    }
}

/// Finds the library: where the variable says, beside this program (a build), or where
/// `make install` puts it.
fn library() -> Result<PathBuf, Failure> {
    let given = std::env::var_os(VARIABLE).map(PathBuf::from);
    let places = match given {
        Some(given) => vec![given],
        None => {
            let own = std::env::current_exe().unwrap_or_default();
            let bin = own.parent().unwrap_or(Path::new("/"));
            let prefix = bin.parent().unwrap_or(Path::new("/"));
            vec![
                bin.join(LIBRARY),
                prefix.join("lib/pramfs").join(LIBRARY),
                prefix.join("lib64/pramfs").join(LIBRARY),
                Path::new("/usr/local/lib/pramfs").join(LIBRARY),
                Path::new("/usr/lib/pramfs").join(LIBRARY),
            ]
        }
    };
    let found = places.iter().find_map(|place| {
        let absolute = std::path::absolute(place).ok()?;
        absolute.is_file().then_some(absolute)
    });
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| shown(place)).collect();
        Failure::new(
            "library",
            format!(
                "the preload library is not installed (looked for {}); make install installs it, {VARIABLE} names another place",
                places.join(", ")
            ),
        )
    })
}

/// Returns the value of LD_PRELOAD: the library, and then what is there already. `None` if
/// the path has a character that separates paths there.
fn with_library(library: &Path, before: Option<&OsStr>) -> Option<OsString> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| b" :".contains(byte)) {
        return None;
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_comes_before_other_preloads() {
        let library = Path::new("/lib/a.so");
        let value = |before: Option<&str>| with_library(library, before.map(OsStr::new));
        assert_eq!(value(None).unwrap(), "/lib/a.so");
        assert_eq!(value(Some("")).unwrap(), "/lib/a.so");
        assert_eq!(value(Some("b.so c.so")).unwrap(), "/lib/a.so:b.so c.so");
        for bad in ["/a b/c.so", "/a:b/c.so"] {
            assert_eq!(with_library(Path::new(bad), None), None);
        }
    }
}
