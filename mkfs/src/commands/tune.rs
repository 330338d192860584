//! `pramfs tune`: changes what mkfs has chosen, on a live mount through the kernel, or without one.
//!
//! The engine stores a new label to the copy of the superblock first, then to the first page, each
//! fenced: a crash leaves the old label or the new one, and the next mount makes both pages equal.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs_kernel_sys::label::set_label;
use serde::Serialize;

use super::Subcommand;
use crate::failure::{printable, shown};
use crate::open::{self, Intent};
use crate::{Failure, busy, output};

/// Longest label, bytes.
const MAX_LABEL: usize = 63;

#[derive(Debug, Args)]
pub(super) struct Tune {
    /// Mount point, or file or device that holds the file system
    place: PathBuf,
    /// New label, at most 63 bytes; "" removes it
    #[arg(short = 'L', long, required_unless_present = "uuid")]
    label: Option<String>,
    /// Refused: every checksum of the file system begins with the uuid
    #[arg(
        short = 'U',
        long,
        value_name = "UUID",
        conflicts_with = "label",
        hide = true
    )]
    uuid: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    place: String,
    mounted: bool,
    label: String,
}

impl Subcommand for Tune {
    const NAME: &'static str = "tune";
    const ABOUT: &'static str = "Change the label, mounted or not";

    fn run(&self) -> Result<(), Failure> {
        if self.uuid.is_some() {
            return Err(Failure::usage(
                "the uuid cannot be changed: every checksum of the file system begins with it; make a file system with the new one (mkfs.pramfs -U) and copy the files (pramfs get, pramfs put -r)",
            ));
        }
        let label = self.label.as_deref().unwrap_or_default();
        if label.len() > MAX_LABEL || label.contains('\0') {
            return Err(Failure::new(
                "options",
                format!(
                    "a label has at most {MAX_LABEL} bytes and no NUL; this one has {}",
                    label.len()
                ),
            ));
        }
        let meta = std::fs::metadata(&self.place)
            .map_err(|e| Failure::os("cannot find", shown(&self.place), e))?;
        let mount = match meta.is_dir() {
            true => Some(self.place.clone()),
            false => busy::mount_point(&self.place),
        };
        match &mount {
            Some(on) => ask(on, label)?,
            None => self.offline(label)?,
        }
        let report = Report {
            place: shown(&self.place),
            mounted: mount.is_some(),
            label: label.to_owned(),
        };
        match self.json {
            true => output::json(&report),
            false => output::line(&format!(
                "{}: the label is \"{}\"",
                report.place,
                printable(label)
            )),
        }
    }
}

impl Tune {
    fn offline(&self, label: &str) -> Result<(), Failure> {
        let fs = open::fs(&self.place, Intent::Write)?;
        let changed = fs.set_label(label);
        open::close(&self.place, fs)?;
        changed.map_err(|e| Failure::about(shown(&self.place), e))
    }
}

/// Asks the server of a mount, by the ioctl that every file system has for its label.
fn ask(on: &Path, label: &str) -> Result<(), Failure> {
    let mount = File::open(on).map_err(|e| Failure::os("cannot open", on, e))?;
    let kind = rustix::fs::fstatfs(&mount).map_err(|e| Failure::os("cannot look at", on, e))?;
    if kind.f_type != super::set::FUSE {
        let text = format!("{} is not in a mount of pramfs", shown(on));
        return Err(Failure::new("not-mounted", text));
    }
    set_label(&mount, label).map_err(|e| Failure::os("cannot change the label of", on, e))
}
