//! `pramfs image`: writes the metadata of a region to a file, without file data, for reports.

use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use pramfs_fsck::Metadata;
use pramfs_medium::media::lease::refuse_if_leased;
use pramfs_medium::size::human;
use serde::Serialize;
use uuid::Uuid;

use super::Subcommand;
use crate::archive::format::{Header, Kind};
use crate::archive::partial::{Partial, exists};
use crate::archive::writer::{Contents, Stop, Zeroed, write_save};
use crate::failure::shown;
use crate::open::{self, Intent};
use crate::{Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "The file has superblocks, journal, tables, directories, attributes and pointers, also those\n\
    that are damaged, and no file data. pramfs restore makes a region of it, in which fsck.pramfs -n\n\
    finds what it finds in the original. Names show without --scramble."
)]
pub(super) struct Image {
    /// File or device that holds the file system; it may be damaged
    region: PathBuf,
    /// File that is made
    file: PathBuf,
    /// Replace names, targets of links, and names and values of attributes
    #[arg(long)]
    scramble: bool,
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
    scrambled: bool,
    block_size: u64,
    /// Blocks of metadata.
    blocks: u64,
    /// Bytes of the file.
    file_bytes: u64,
    /// Blocks that are metadata to one owner and data to another.
    left_out: u64,
    /// Nothing is hidden behind damage.
    complete: bool,
}

impl Subcommand for Image {
    const NAME: &'static str = "image";
    const ABOUT: &'static str = "Write metadata without file data to a file, for reports";

    fn run(&self) -> Result<(), Failure> {
        pramfs::pmem::install_fault_guard()?;
        let name = shown(&self.region);
        if self.file.symlink_metadata().is_ok() {
            return Err(Failure {
                message: format!("{}: exists; name another file", shown(&self.file)),
                ..exists(&self.file)
            });
        }
        let region = open::region(&self.region, Intent::Read)?;
        let about = |e| open::not_ours(&self.region, e);
        refuse_if_leased(&region).map_err(about)?;
        let metadata = Metadata::of(&region, self.scramble).map_err(about)?;
        let fixed = metadata.fixed();
        let source = Source {
            header: Header {
                block_size_log2: fixed.block_size_log2,
                region_len: fixed.region_len,
                blocks: fixed.blocks,
                uuid: fixed.uuid,
                label: fixed.label,
                copy_offset: fixed.copy_offset,
                kind: Kind::Metadata,
            },
            metadata: &metadata,
        };
        let saved = {
            let cannot = |e: io::Error| Failure::os("cannot write", &self.file, e);
            let mut partial = Partial::of(&self.file)?;
            let bar = output::bar(source.blocks() * source.header.block_size(), &name);
            let out = BufWriter::new(&mut partial.file);
            let written = write_save(&source, out, self.level, &|n| bar.inc(n));
            bar.finish_and_clear();
            let saved = written.map_err(cannot)?;
            partial.file.sync_all().map_err(cannot)?;
            // It may have got its name meanwhile.
            partial.replace(&self.file, false, false)?;
            saved
        };
        let report = Report {
            region: name,
            file: shown(&self.file),
            uuid: Uuid::from_bytes(fixed.uuid).to_string(),
            scrambled: self.scramble,
            block_size: source.header.block_size(),
            blocks: saved.blocks,
            file_bytes: saved.len,
            left_out: metadata.left_out(),
            complete: metadata.is_complete(),
        };
        if self.json {
            return output::json(&report);
        }
        if report.left_out > 0 {
            eprintln!(
                "pramfs: warning: {}: {} blocks have two owners and are file data to one of them; they are left out",
                report.region, report.left_out
            );
        }
        output::line(&format!(
            "{}: metadata of {} written to {}, {}{}; it has no file data",
            report.region,
            human(report.blocks * report.block_size),
            report.file,
            human(report.file_bytes),
            match self.scramble {
                true => ", names scrambled",
                false => ", names as they are",
            }
        ))
    }
}

/// The blocks of an image.
struct Source<'m, 'r> {
    header: Header,
    metadata: &'m Metadata<'r>,
}

impl Contents for Source<'_, '_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn blocks(&self) -> u64 {
        self.metadata.blocks()
    }

    fn runs(&self, f: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> Result<(), Stop> {
        self.metadata.runs().try_for_each(f).map_err(Stop::Io)
    }

    fn read_blocks(&self, first: u64, into: &mut [u8], _: &mut Zeroed) -> io::Result<()> {
        let read = self.metadata.read(first, into);
        read.map_err(|e| io::Error::other(e.to_string()))
    }
}
