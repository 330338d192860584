//! `pramfs extents`: prints the extents of a file in its region, also of one that is mounted.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use rustix::fs::OFlags;
use serde::Serialize;

use super::Subcommand;
use super::frag::FileAt;
use crate::files::{Files, below};
use crate::tree::Follow;
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Extents {
    /// File or device that holds the file system, mounted or not
    region: PathBuf,
    /// Path in the file system
    path: OsString,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    file_offset: u64,
    /// `null` for a hole and for a lost range.
    region_offset: Option<u64>,
    len: u64,
    unwritten: bool,
    lost: bool,
}

impl Subcommand for Extents {
    const NAME: &'static str = "extents";
    const ABOUT: &'static str = "Show the extents of a file in the region, in bytes";

    fn run(&self) -> Result<(), Failure> {
        let files = Files::open(&self.region)?;
        let path = self.path.as_bytes();
        let attr = files.find(path, Follow::Yes)?;
        let list = match &files {
            Files::Region(fs) => FileAt::Region(fs, attr.ino).extents(path)?,
            Files::Mount(root) => {
                let file = File::from(below(root, path, OFlags::RDONLY | OFlags::NONBLOCK)?);
                FileAt::Mount(&file).extents(path)?
            }
        };
        let rows: Vec<Row> = list
            .iter()
            .map(|e| Row {
                file_offset: e.file_offset,
                region_offset: e.region_offset,
                len: e.len,
                unwritten: e.unwritten,
                lost: e.lost,
            })
            .collect();
        if self.json {
            return output::json(&rows);
        }
        output::line(&format!(
            "{:>16} {:>16} {:>16}  state",
            "file offset", "region offset", "bytes"
        ))?;
        for r in &rows {
            let (place, state) = match (r.region_offset, r.unwritten) {
                (None, _) if r.lost => ("-".to_owned(), "lost"),
                (None, _) => ("-".to_owned(), "hole"),
                (Some(at), true) => (at.to_string(), "unwritten"),
                (Some(at), false) => (at.to_string(), "data"),
            };
            output::line(&format!(
                "{:>16} {place:>16} {:>16}  {state}",
                r.file_offset, r.len
            ))?;
        }
        let mapped = rows.iter().filter(|r| r.region_offset.is_some());
        let (count, bytes) = mapped.fold((0, 0), |(n, b), r| (n + 1, b + r.len));
        output::line(&format!(
            "{count} extent{}, {bytes} of {} bytes in the region",
            if count == 1 { "" } else { "s" },
            attr.size
        ))
    }
}
