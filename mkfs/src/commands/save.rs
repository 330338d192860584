//! `pramfs save`: writes the blocks in use of a region to a file.

use std::fs::{File, Metadata};
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs_medium::media::lease::refuse_if_leased;
use pramfs_medium::pmem::{Region, RegionAccess};
use pramfs_medium::size::human;
use serde::Serialize;
use uuid::Uuid;

use super::Subcommand;
use crate::archive::partial::{Partial, exists};
use crate::archive::restore::uuid_of;
use crate::archive::save::{Saved, Source};
use crate::failure::shown;
use crate::open::{self, Intent};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Save {
    /// File or device that holds the file system, not mounted
    region: PathBuf,
    /// File that is made
    file: PathBuf,
    /// Replace an existing file, if it is a save of the same file system
    #[arg(short, long)]
    force: bool,
    /// With -f, also replace the save of another file system
    #[arg(long, requires = "force")]
    other: bool,
    /// Keep the file that is replaced as FILE.old
    #[arg(long, requires = "force")]
    keep_old: bool,
    /// Compression level of zstd, from 1 (fast) to 19 (small)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    region: String,
    file: String,
    uuid: String,
    block_size: u64,
    /// Blocks in use, all saved.
    blocks: u64,
    /// Bytes of these blocks.
    bytes: u64,
    /// Bytes of the file.
    file_bytes: u64,
}

impl Subcommand for Save {
    const NAME: &'static str = "save";
    const ABOUT: &'static str = "Save the used blocks of a region that is not mounted to a file";

    fn run(&self) -> Result<(), Failure> {
        let name = shown(&self.region);
        let exists_now = old(&self.file)?.is_some();
        if !self.force && exists_now {
            return Err(exists(&self.file));
        }
        // Replays the journal, in private memory.
        let fs = open::fs(&self.region, Intent::Read).map_err(|mut failure| {
            if failure.reason == "in-use" {
                failure.message += ". A region is saved while it is not mounted";
            }
            failure
        })?;
        if let (Some(damage), true) = (fs.recovery().damage.first(), exists_now) {
            return Err(Failure::new(
                "damaged",
                format!(
                    "{name}: {damage}; {} stays as it is. Save to another name, or run fsck.pramfs first",
                    shown(&self.file)
                ),
            ));
        }
        let (_region, report) = fs
            .close_with(|region| {
                refuse_if_leased(region).map_err(|e| Failure::about(&name, e))?;
                let source = Source::new(region, &name)?;
                self.check_replaced(region, source.header.uuid, &name)?;
                let saved = self.write(&source, region, &name)?;
                Ok::<_, Failure>(self.report(&source, saved, &name))
            })
            .map_err(|e| Failure::about(&name, e))?;
        let report = report?;
        if self.json {
            return output::json(&report);
        }
        output::line(&format!(
            "{name}: {} of blocks in use saved to {}, {}",
            human(report.bytes),
            report.file,
            human(report.file_bytes)
        ))
    }
}

impl Save {
    /// The file is complete and durable before it gets its name.
    fn write(&self, source: &Source<'_>, region: &Region, name: &str) -> Result<Saved, Failure> {
        let cannot = |e: std::io::Error| Failure::os("cannot write", &self.file, e);
        let mut partial = Partial::of(&self.file)?;
        let bar = output::bar(source.blocks * source.header.block_size(), name);
        let written = source.write(BufWriter::new(&mut partial.file), self.level, &|n| {
            bar.inc(n)
        });
        bar.finish_and_clear();
        let saved = written.map_err(cannot)?;
        // Before the file takes the place of one that may be the last good one.
        if region.faults() != 0 {
            return Err(Failure::new(
                "os",
                format!("{name}: some of its pages could not be read; nothing was saved"),
            ));
        }
        partial.file.sync_all().map_err(cannot)?;
        partial.replace(&self.file, self.force, self.keep_old)?;
        Ok(saved)
    }

    /// Whether the file may be replaced by a save of this region.
    fn check_replaced(&self, region: &Region, uuid: [u8; 16], name: &str) -> Result<(), Failure> {
        let Some(old) = old(&self.file)? else {
            return Ok(());
        };
        let target = shown(&self.file);
        if !old.is_file() {
            return Err(Failure::new(
                "not-a-file",
                format!("{target}: is not a regular file, and is not replaced"),
            ));
        }
        if region.ownership().map(|o| o.object()) == Some((old.dev(), old.ino())) {
            return Err(Failure::new(
                "same",
                format!("{target}: is the region itself"),
            ));
        }
        let saved = File::open(&self.file)
            .map_err(|e| Failure::os("cannot read", &self.file, e))
            .and_then(|file| uuid_of(file, &target));
        match saved {
            Ok(Some(other)) if other != uuid && !self.other => Err(Failure::new(
                "other",
                format!(
                    "{target}: is the save of the file system {}, and {name} has {}; choose another name, or replace it with -f --other",
                    Uuid::from_bytes(other),
                    Uuid::from_bytes(uuid),
                ),
            )),
            Err(failure) if !self.other => Err(Failure::new(
                "other",
                format!("{}; replace it with -f --other", failure.message),
            )),
            _ => Ok(()),
        }
    }

    fn report(&self, source: &Source<'_>, saved: Saved, name: &str) -> Report {
        Report {
            region: name.to_owned(),
            file: shown(&self.file),
            uuid: Uuid::from_bytes(source.header.uuid).to_string(),
            block_size: source.header.block_size(),
            blocks: saved.blocks,
            bytes: saved.blocks * source.header.block_size(),
            file_bytes: saved.len,
        }
    }
}

/// What has the name of the file, a symbolic link not followed.
fn old(file: &Path) -> Result<Option<Metadata>, Failure> {
    match file.symlink_metadata() {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::os("cannot look at", file, e)),
    }
}
