//! `pramfs save`: writes the blocks in use of a region to a file, also of a live mount.

use std::fs::{File, Metadata};
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs_control::{Connection, ControlError, Identity};
use pramfs_medium::media::lease::refuse_if_leased;
use pramfs_medium::pmem::RegionAccess;
use pramfs_medium::size::{self, human};
use serde::Serialize;
use uuid::Uuid;

use super::Subcommand;
use super::live::live_mount_itself;
use crate::archive::live::{Live, write_back};
use crate::archive::partial::{Partial, exists};
use crate::archive::restore::uuid_of;
use crate::archive::save::Source;
use crate::archive::writer::{Contents, Saved, Zeroed, write_save};
use crate::failure::{quoted, shown};
use crate::open::{self, Intent};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Save {
    /// File or device that holds the file system, or a mount point
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
    /// For a live mount: memory for blocks that programs change before they are saved
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    memory: u64,
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
    /// It was mounted.
    live: bool,
    /// Files of a live mount that were mapped for writing, saved as found.
    mapped: Vec<String>,
    /// Blocks that are zeros in the file, because the medium has failed there.
    zeroed: Zeroed,
}

impl Subcommand for Save {
    const NAME: &'static str = "save";
    const ABOUT: &'static str = "Save the used blocks of a region or a live mount to a file";

    fn run(&self) -> Result<(), Failure> {
        let name = shown(&self.region);
        let exists_now = old(&self.file)?.is_some();
        if !self.force && exists_now {
            return Err(exists(&self.file));
        }
        let report = match self.live_mount()? {
            Some((server, device)) => self.save_live(&server, device, &name)?,
            None => self.save_region(exists_now, &name)?,
        };
        if self.json {
            output::json(&report)?;
        } else {
            self.tell(&report, &name)?;
        }
        let Some(failure) = zeroed(&self.region, &report) else {
            return Ok(());
        };
        if self.json {
            // The object has the blocks already.
            eprintln!("pramfs save: {}", failure.message);
            return Err(Failure::silent());
        }
        Err(failure)
    }
}

/// Says which blocks are zeros in the file. It is there, and may be the best that there is.
fn zeroed(region: &Path, report: &Report) -> Option<Failure> {
    let found = &report.zeroed;
    let unnamed = match found.unnamed() {
        0 => String::new(),
        more => format!("; {more} more are not named here"),
    };
    (found.blocks > 0).then(|| {
        Failure::new(
            "zeroed",
            format!(
                "{}: {} blocks of the list of bad blocks are zeros in {}; `pramfs owner {} {}` names the files that have them{unnamed}",
                report.region,
                found.blocks,
                report.file,
                quoted(region),
                found.arguments(),
            ),
        )
    })
}

impl Save {
    fn tell(&self, report: &Report, name: &str) -> Result<(), Failure> {
        output::line(&format!(
            "{name}: {} of blocks in use saved to {}, {}",
            human(report.bytes),
            report.file,
            human(report.file_bytes)
        ))
    }
}

impl Save {
    /// Returns the server of a mount point, or of a region that is mounted.
    fn live_mount(&self) -> Result<Option<(Connection, u64)>, Failure> {
        match live_mount_itself(&self.region) {
            Ok(live) => Ok(Some(live)),
            // Not even its kind could be looked up.
            Err(failure) if failure.reason == "no-answer" => Err(failure),
            // Opening it says what it is. Only root can look for servers.
            Err(_) if !self.region.is_dir() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Saves a live mount from one moment.
    fn save_live(&self, server: &Connection, device: u64, name: &str) -> Result<Report, Failure> {
        let about = |e: ControlError| Failure::new("os", format!("{name}: {e}"));
        let beside = (self.file.parent())
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if std::fs::metadata(beside).is_ok_and(|dir| dir.dev() == device) {
            return Err(Failure::new(
                "same",
                format!(
                    "{}: is on the mount that is to be saved, which would wait for itself; name a file elsewhere",
                    shown(&self.file)
                ),
            ));
        }
        write_back(&self.region, name)?;
        let region = server.region().map_err(about)?;
        let region = Identity::of(&region).map_err(about)?;
        if Identity::of_path(&self.file).is_ok_and(|file| file == region) {
            return Err(is_region(&self.file));
        }
        let live = Live::new(server.snapshot(self.memory).map_err(about)?, name)?;
        self.check_replaced(live.header().uuid, name)?;
        let mut mapped = Vec::new();
        let saved = self.write(&live, name, || {
            mapped = (live.mapped()).map_err(|e| Failure::os("cannot read", name, e))?;
            Ok(())
        })?;
        for file in &mapped {
            eprintln!(
                "pramfs: warning: {name}: {file} is mapped for writing; it was saved as it was found"
            );
        }
        Ok(Report {
            live: true,
            mapped,
            ..self.report(&live, saved, name)
        })
    }

    /// Saves a region that is not mounted.
    fn save_region(&self, exists_now: bool, name: &str) -> Result<Report, Failure> {
        // Replays the journal, in private memory.
        let fs = open::fs(&self.region, Intent::Read).map_err(|mut failure| {
            if failure.reason == "in-use" {
                failure.message += ". A program has it open: a region is saved while it is not in use, or while root has it mounted";
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
                refuse_if_leased(region).map_err(|e| Failure::about(name, e))?;
                let source = Source::new(region, name)?;
                if let Some(old) = old(&self.file)?
                    && region.ownership().map(|o| o.object()) == Some((old.dev(), old.ino()))
                {
                    return Err(is_region(&self.file));
                }
                self.check_replaced(source.header().uuid, name)?;
                let saved = self.write(&source, name, || match source.faults() {
                    0 => Ok(()),
                    _ => Err(Failure::new(
                        "os",
                        format!("{name}: some of its pages could not be read; nothing was saved"),
                    )),
                })?;
                Ok(self.report(&source, saved, name))
            })
            .map_err(|e| Failure::about(name, e))?;
        report
    }

    /// The file is complete, durable and passed `check` before it gets its name, and perhaps
    /// takes the place of one that may be the last good one.
    fn write(
        &self,
        source: &dyn Contents,
        name: &str,
        check: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Saved, Failure> {
        let cannot = |e: std::io::Error| Failure::os("cannot write", &self.file, e);
        let mut partial = Partial::of(&self.file)?;
        let bar = output::bar(source.blocks() * source.header().block_size(), name);
        let out = BufWriter::new(&mut partial.file);
        let written = write_save(source, out, self.level, &|n| bar.inc(n));
        bar.finish_and_clear();
        let saved = written.map_err(cannot)?;
        check()?;
        partial.file.sync_all().map_err(cannot)?;
        partial.replace(&self.file, self.force, self.keep_old)?;
        Ok(saved)
    }

    /// Whether the file may be replaced by a save of this region.
    fn check_replaced(&self, uuid: [u8; 16], name: &str) -> Result<(), Failure> {
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

    fn report(&self, source: &dyn Contents, saved: Saved, name: &str) -> Report {
        let header = source.header();
        Report {
            region: name.to_owned(),
            file: shown(&self.file),
            uuid: Uuid::from_bytes(header.uuid).to_string(),
            block_size: header.block_size(),
            blocks: saved.blocks,
            bytes: saved.blocks * header.block_size(),
            file_bytes: saved.len,
            live: false,
            mapped: Vec::new(),
            zeroed: saved.zeroed,
        }
    }
}

fn is_region(file: &Path) -> Failure {
    Failure::new("same", format!("{}: is the region itself", shown(file)))
}

/// What has the name of the file, a symbolic link not followed.
fn old(file: &Path) -> Result<Option<Metadata>, Failure> {
    match file.symlink_metadata() {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::os("cannot look at", file, e)),
    }
}
