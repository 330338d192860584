//! The man pages and the shell completions of the programs of pramfs, and the sources of the
//! documentation site.
//!
//! Everything that `--help` says comes from the same definition as `--help`: options and
//! usage from the programs' command lines, mount options from the table of `mount.pramfs`,
//! functions of C from `pramfs.h`. The files in `pages/` add what no definition has: examples,
//! files, the environment, other pages to see.
//!
//! `make build` runs [`write_all`], and `make install` copies its files.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod book;
pub mod completions;
mod exit_status;
pub mod header;
mod markdown;
mod page;
pub mod pages;
mod programs;

pub use page::Page;
pub use programs::{Program, programs};

use programs::with_values;

use std::io;
use std::path::Path;

/// Writes `man/manN/NAME.N` and `completions/SHELL/FILE` below `dir`.
///
/// # Errors
/// A source cannot be read or is not understood; a file cannot be written.
pub fn write_all(dir: &Path) -> io::Result<()> {
    for page in pages::all()? {
        let section = dir.join(format!("man/man{}", page.section));
        std::fs::create_dir_all(&section)?;
        std::fs::write(section.join(page.file_name()), &page.text)?;
    }
    for script in completions::all() {
        let of_shell = dir.join("completions").join(script.shell);
        std::fs::create_dir_all(&of_shell)?;
        std::fs::write(of_shell.join(script.file), &script.text)?;
    }
    Ok(())
}
