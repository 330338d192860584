//! A program that was written against `std::fs`: it keeps the newest files of a
//! directory and lists what is left.
//!
//! Three things changed:
//!
//! - The import `std::fs::{self, File}` became `pramfs::{File, FileSystem}`.
//! - `fs` was a module. Now it is a mounted file system, which each function is given, so
//!   `fs::rename` became `fs.rename`.
//! - `File::create(path)` and `File::open(path)` became `fs.create(path)` and `fs.open(path)`.
//!
//! All other lines of `rotate` and `index` are as they were.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{File, FileSystem, MountOptions};

/// Removes all but the `keep` newest files of a directory.
pub fn rotate(fs: &FileSystem, dir: &Path, keep: usize) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs.read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    files.sort();
    let old = files.len().saturating_sub(keep);
    for (_, path) in files.drain(..old) {
        fs.remove_file(&path)?;
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Writes an index of files: their names and numbers of lines.
pub fn index(fs: &FileSystem, files: &[PathBuf], index: &Path) -> io::Result<()> {
    let unfinished = index.with_extension("tmp");
    let mut out: File = fs.create(&unfinished)?;
    for path in files {
        let lines = BufReader::new(fs.open(path)?).lines().count();
        writeln!(out, "{} {lines}", path.display())?;
    }
    out.sync_all()?;
    fs.rename(&unfinished, index)?;
    Ok(())
}

pub(crate) fn main() -> io::Result<()> {
    let region = RegionOptions::new().memfd("ported", 16 << 20)?;
    format(&region, &FormatOptions::default())?;
    let fs = FileSystem::mount(region, MountOptions::default())?;
    fs.create_dir_all("/var/log")?;
    for i in 0..10 {
        fs.write(format!("/var/log/{i}"), "line\n".repeat(i))?;
    }
    let kept = rotate(&fs, Path::new("/var/log"), 3)?;
    index(&fs, &kept, Path::new("/index"))?;
    print!("{}", fs.read_to_string("/index")?);
    Ok(())
}
