//! `pramfs tune`: changes what mkfs has chosen, on a live mount through the kernel, or without one.
//!
//! The engine stores a new value to the copy of the superblock first, then to the first page, each
//! fenced: a crash leaves the old value or the new one, and the next mount makes both pages equal.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use pramfs::inode::Fs;
use pramfs_kernel_sys::label::set_label;
use pramfs_medium::media::default_options::DefaultOptions;
use serde::Serialize;

use super::Subcommand;
use crate::busy::{self, Root};
use crate::failure::{printable, shown};
use crate::open::{self, Intent};
use crate::{Failure, output};

/// Longest label, bytes.
const MAX_LABEL: usize = 63;

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("change").multiple(true).required(true),
    after_help = "Default options are noatime, strictatime, nodiratime, data=atomic, discard, nosuid, nodev\n\
    and noexec. mount.pramfs behaves as if they stood before its own options."
)]
pub(super) struct Tune {
    /// Mount point, or file or device that holds the file system
    place: PathBuf,
    /// New label, at most 63 bytes; "" removes it
    #[arg(short = 'L', long, group = "change")]
    label: Option<String>,
    /// Default options to add, separated by commas; ^OPTION takes one back
    #[arg(short = 'o', long, value_name = "OPTIONS", group = "change")]
    default_options: Option<String>,
    /// Blocks that are kept for removals in a full file system
    #[arg(short = 'r', long, value_name = "BLOCKS", group = "change")]
    reserve: Option<u64>,
    /// Refused: every checksum of the file system begins with the uuid
    #[arg(
        short = 'U',
        long,
        value_name = "UUID",
        group = "change",
        conflicts_with_all = ["label", "default_options", "reserve"],
        hide = true
    )]
    uuid: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What is there after the change; of a mounted file system, only what has changed.
#[derive(Debug, Default, Serialize)]
struct Report {
    place: String,
    mounted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_options: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_blocks: Option<u64>,
}

impl Subcommand for Tune {
    const NAME: &'static str = "tune";
    const ABOUT: &'static str = "Change the label, the default options of mounts, or the reserve";

    fn run(&self) -> Result<(), Failure> {
        if self.uuid.is_some() {
            return Err(Failure::usage(
                "the uuid cannot be changed: every checksum of the file system begins with it; make a file system with the new one (mkfs.pramfs -U) and copy the files (pramfs get, pramfs put -r)",
            ));
        }
        if let Some(label) = &self.label
            && (label.len() > MAX_LABEL || label.contains('\0'))
        {
            return Err(Failure::new(
                "options",
                format!(
                    "a label has at most {MAX_LABEL} bytes and no NUL; this one has {}",
                    label.len()
                ),
            ));
        }
        // Before anything is opened: a wrong word changes nothing.
        if let Some(list) = &self.default_options {
            DefaultOptions::default()
                .change(list)
                .map_err(|e| Failure::usage(e.to_string()))?;
        }
        let meta = std::fs::metadata(&self.place)
            .map_err(|e| Failure::os("cannot find", shown(&self.place), e))?;
        let mount = busy::open_place(&self.place, meta.is_dir())?;
        let report = match (&mount, &self.label) {
            (Some(on), Some(label)) if self.default_options.is_none() && self.reserve.is_none() => {
                ask(on, label)?;
                Report {
                    mounted: true,
                    label: Some(label.clone()),
                    ..Report::default()
                }
            }
            (Some(on), _) => {
                of_pramfs(on)?;
                return Err(Failure::new(
                    "in-use",
                    format!(
                        "{}: is mounted; default options and the reserve hold from the next mount on and are changed without one: unmount it first",
                        shown(&on.at)
                    ),
                ));
            }
            (None, _) => self.offline()?,
        };
        let report = Report {
            place: shown(&self.place),
            ..report
        };
        if self.json {
            return output::json(&report);
        }
        let Report {
            place,
            label,
            default_options,
            reserved_blocks,
            ..
        } = &report;
        if let Some(label) = label {
            output::line(&format!("{place}: the label is \"{}\"", printable(label)))?;
        }
        if let Some(options) = default_options {
            let options = match options.as_str() {
                "" => "there are no default options".to_owned(),
                options => format!("the default options are {options}"),
            };
            output::line(&format!("{place}: {options}"))?;
        }
        if let Some(blocks) = reserved_blocks {
            output::line(&format!("{place}: {blocks} blocks are kept for removals"))?;
        }
        Ok(())
    }
}

impl Tune {
    fn offline(&self) -> Result<Report, Failure> {
        let fs = open::fs(&self.place, Intent::Write)?;
        let mut report = Report::default();
        let changed = self.change(&fs, &mut report);
        let closed = open::close(&self.place, fs);
        // What went wrong first is said, and what has been changed even so.
        changed
            .map_err(|e| Failure::about(shown(&self.place), e))
            .and(closed)
            .map_err(|failure| report.told_with(failure))?;
        Ok(report)
    }

    /// Each value by a durable change of its own, which the report has then. The reserve comes
    /// first: only it may be refused.
    fn change(&self, fs: &Fs, report: &mut Report) -> Result<(), pramfs::Error> {
        if let Some(blocks) = self.reserve {
            fs.set_reserve(blocks)?;
            report.reserved_blocks = Some(blocks);
        }
        if let Some(list) = &self.default_options {
            let mut options = fs.default_options();
            // It was checked before.
            options
                .change(list)
                .map_err(|_| pramfs::Error::Invalid("an unknown default option"))?;
            fs.set_default_options(options)?;
            report.default_options = Some(options.to_string());
        }
        if let Some(label) = &self.label {
            fs.set_label(label)?;
            report.label = Some(label.clone());
        }
        Ok(())
    }
}

impl Report {
    /// Adds to the failure of a change what was changed before it, and stays so.
    fn told_with(&self, mut failure: Failure) -> Failure {
        let changed = [
            ("the reserve", self.reserved_blocks.is_some()),
            ("the default options", self.default_options.is_some()),
            ("the label", self.label.is_some()),
        ];
        let changed: Vec<&str> = changed
            .into_iter()
            .filter_map(|(what, is_changed)| is_changed.then_some(what))
            .collect();
        if !changed.is_empty() {
            let changed = changed.join(" and ");
            failure.message += &format!("; {changed} had been changed before");
        }
        failure
    }
}

/// Refuses a directory that is not in a mount of pramfs.
fn of_pramfs(root: &Root) -> Result<(), Failure> {
    let kind = rustix::fs::fstatfs(&root.directory)
        .map_err(|e| Failure::os("cannot look at", &root.at, e))?;
    if kind.f_type != super::set::FUSE {
        let text = format!("{} is not in a mount of pramfs", shown(&root.at));
        return Err(Failure::new("not-mounted", text));
    }
    Ok(())
}

/// Asks the server of a mount, by the ioctl that every file system has for its label.
fn ask(root: &Root, label: &str) -> Result<(), Failure> {
    of_pramfs(root)?;
    set_label(&root.directory, label)
        .map_err(|e| Failure::os("cannot change the label of", &root.at, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_later_change_names_earlier_ones() {
        let told = |report: Report| report.told_with(Failure::new("os", "cannot")).message;
        assert_eq!(told(Report::default()), "cannot");
        let report = Report {
            reserved_blocks: Some(7),
            default_options: Some(String::new()),
            ..Report::default()
        };
        assert_eq!(
            told(report),
            "cannot; the reserve and the default options had been changed before"
        );
    }
}
