//! `pramfs restore`: makes a region of a file that `pramfs save` has made.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::size::human;
use serde::Serialize;
use uuid::Uuid;

use super::Subcommand;
use crate::archive::format::Kind;
use crate::archive::restore::{Check, Reader, restore};
use crate::archive::resume::{Ended, check_from};
use crate::failure::{printable, shown};
use crate::mkfs::target::Target;
use crate::{Failure, output, signals};

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// File of pramfs save or pramfs image
    file: PathBuf,
    /// File or device to restore into; a missing file is made
    #[arg(required_unless_present = "check", conflicts_with = "check")]
    region: Option<PathBuf>,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Keep the position of the check in this file, and go on from there if it exists
    #[arg(long, value_name = "POSITION", requires = "check")]
    resume: Option<PathBuf>,
    /// Overwrite what the region holds
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    file: String,
    region: Option<String>,
    uuid: String,
    label: String,
    block_size: u64,
    /// Bytes of the file system.
    region_bytes: u64,
    /// Blocks in the file.
    blocks: u64,
    /// Bytes of these blocks.
    bytes: u64,
    /// An image of metadata: its files have no data.
    metadata_only: bool,
}

impl Subcommand for Restore {
    const NAME: &'static str = "restore";
    const ABOUT: &'static str =
        "Restore a region from a file of pramfs save or image, or check the file";

    fn run(&self) -> Result<(), Failure> {
        let name = shown(&self.file);
        let cannot = |e: std::io::Error| Failure::os("cannot read", &self.file, e);
        let file = File::open(&self.file).map_err(cannot)?;
        let len = file.metadata().map_err(cannot)?.len();
        let mut first = Reader::new(BufReader::new(&file), &name)?;
        let blocks = self.check(&file, len, &mut first)?;
        let header = first.header.clone();
        if let Some(path) = &self.region {
            let (region, mut made) = self.target(path, header.region_len)?;
            (&file).rewind().map_err(cannot)?;
            let bytes = blocks * header.block_size();
            let bar = output::bar(bytes.max(len), &shown(path));
            let second = Reader::new(BufReader::new(&file), &name)?;
            let done = restore(&first, second, &region, &|n| bar.inc(n));
            bar.finish_and_clear();
            done?;
            made.is_useful = true;
        }
        let label = header
            .label
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let report = Report {
            file: name,
            region: self.region.as_deref().map(shown),
            uuid: Uuid::from_bytes(header.uuid).to_string(),
            label: printable(&String::from_utf8_lossy(label)),
            block_size: header.block_size(),
            region_bytes: header.region_len,
            blocks,
            bytes: blocks * header.block_size(),
            metadata_only: header.kind == Kind::Metadata,
        };
        let note = match report.metadata_only {
            true => "; it is an image of metadata, and its files have no data",
            false => "",
        };
        if self.json {
            return output::json(&report);
        }
        output::line(&match &report.region {
            Some(region) => format!(
                "{region}: {} restored from {}, a file system of {}{note}",
                human(report.bytes),
                report.file,
                human(report.region_bytes)
            ),
            None => format!(
                "{}: sound: {} of a file system of {}, uuid {}{note}",
                report.file,
                human(report.bytes),
                human(report.region_bytes),
                report.uuid
            ),
        })
    }
}

impl Restore {
    /// Checks the whole file. Returns the number of its blocks.
    fn check(
        &self,
        file: &File,
        len: u64,
        reader: &mut Reader<BufReader<&File>>,
    ) -> Result<u64, Failure> {
        let bar = output::timed_bar(len, "checking");
        let Some(kept) = &self.resume else {
            let blocks = Check::new(reader).rest(&|at| bar.set_position(at));
            bar.finish_and_clear();
            return blocks;
        };
        let signal = signals::note_signals()?;
        let ended = check_from(file, reader, kept, &mut |at| {
            bar.set_position(at);
            signals::noted(&signal).is_some()
        });
        bar.finish_and_clear();
        match ended? {
            Ended::Sound { blocks } => Ok(blocks),
            Ended::Stopped { at } => {
                eprintln!(
                    "{}: checked {} of {}; the same command goes on from there",
                    shown(&self.file),
                    human(at),
                    human(len)
                );
                if let Some(number) = signals::noted(&signal) {
                    signals::end_by(number)?;
                }
                Err(Failure::new(
                    "interrupted",
                    format!("{}: the check was interrupted", shown(&self.file)),
                ))
            }
        }
    }

    /// Opens and locks the region, or creates it.
    fn target<'a>(
        &self,
        path: &'a Path,
        len: u64,
    ) -> Result<(pramfs::pmem::Region, Made<'a>), Failure> {
        pramfs::pmem::install_fault_guard()?;
        let to_make = match std::fs::metadata(path) {
            Ok(meta) => meta.is_file() && meta.len() == 0,
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        };
        let is_physical = pramfs_medium::pmem::is_physical(path);
        let mut target = Target::open(path, (to_make && !is_physical).then_some(len), false)?;
        if target.len() < len {
            return Err(Failure::new(
                "size",
                format!(
                    "{}: has {}, less than the {} of the saved file system",
                    shown(path),
                    human(target.len()),
                    human(len)
                ),
            ));
        }
        let objections = target.objections()?;
        if let (Some(first), false) = (objections.first(), self.force) {
            let sentences: Vec<&str> = objections.iter().map(|o| o.sentence.as_str()).collect();
            return Err(Failure::new(
                first.reason,
                format!("{}; use -f to continue", sentences.join("; ")),
            ));
        }
        let created = target.creates();
        let region = target.prepare(false)?;
        let object = region.ownership().map(|o| o.object());
        let made = Made {
            path,
            object: object.filter(|_| to_make && !is_physical),
            created,
            is_useful: false,
        };
        Ok((region, made))
    }
}

/// A file that was missing or empty, and gets into that state again unless it is useful. The error
/// says why.
struct Made<'a> {
    path: &'a Path,
    /// Device and inode, if there is something to undo.
    object: Option<(u64, u64)>,
    created: bool,
    is_useful: bool,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let found = self.path.symlink_metadata().ok();
        let found = found.map(|meta| (meta.dev(), meta.ino()));
        if self.is_useful || self.object.is_none() || found != self.object {
            return;
        }
        let _ = match self.created {
            true => std::fs::remove_file(self.path),
            false => File::options()
                .write(true)
                .open(self.path)
                .and_then(|file| file.set_len(0)),
        };
    }
}
