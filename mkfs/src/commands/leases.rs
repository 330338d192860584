//! `pramfs leases`: which processes map files of a mount directly, and an end to their
//! requests.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use pramfs_control::{ControlError, LeaseKey, LeaseRow};
use serde::Serialize;

use super::Subcommand;
use super::live::{self, live_mount};
use crate::tree::Name;
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Leases {
    /// Mount point, or the region that is mounted
    place: PathBuf,
    /// End the requests of this lease. Its process keeps the blocks that it maps until it
    /// unmaps them or ends
    #[arg(long, value_name = "ID")]
    revoke: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A line of the listing.
#[derive(Debug, Serialize)]
struct Line {
    id: String,
    process: u32,
    command: Option<Name>,
    user: u32,
    mode: &'static str,
    /// Bytes of the file that the lease keeps allocated.
    bytes: u64,
    age_sec: u64,
    inode: u64,
    /// Where the process has the file open. It may have chosen any bytes as the name.
    file: Option<Name>,
    outlived_server: bool,
    revoked: bool,
}

impl Subcommand for Leases {
    const NAME: &'static str = "leases";
    const ABOUT: &'static str = "List the processes that map files of a mount directly";

    fn run(&self) -> Result<(), Failure> {
        let about = |e: ControlError| live::about(&self.place, &e);
        let (server, device) = live_mount(&self.place)?;
        if let Some(id) = &self.revoke {
            let lease = key(id).ok_or_else(|| {
                Failure::usage(format!(
                    "{id} is not the ID of a lease; pramfs leases lists them"
                ))
            })?;
            return server.revoke(lease).map_err(about);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let rows = server.leases().map_err(about)?;
        let lines: Vec<Line> = rows.iter().map(|row| line(row, now, device)).collect();
        if self.json {
            return output::json(&lines);
        }
        if lines.is_empty() {
            return output::line("no process maps files of this mount directly");
        }
        output::line(&format!(
            "{:<21} {:>7} {:>6} {:<5} {:>14} {:>8}  FILE",
            "ID", "PROCESS", "USER", "MODE", "BYTES", "AGE (s)"
        ))?;
        lines.iter().try_for_each(|line| output::line(&line.text()))
    }
}

fn line(row: &LeaseRow, now: u64, device: u64) -> Line {
    let command = std::fs::read(format!("/proc/{}/comm", row.pid));
    Line {
        id: format!("{}-{:016x}", row.lease.slot, row.lease.id),
        process: row.pid,
        // A process may choose any name, with any characters.
        command: command.ok().map(|name| Name(name.trim_ascii().to_vec())),
        user: row.uid,
        mode: if row.write { "write" } else { "read" },
        bytes: row.bytes,
        age_sec: now.saturating_sub(u64::try_from(row.granted_sec).unwrap_or(0)),
        inode: row.inode,
        file: open_file(row.pid, device, row.inode)
            .map(|path| Name(path.into_os_string().into_vec())),
        outlived_server: row.adopted,
        revoked: row.revoked,
    }
}

/// Returns the path at which a process has an inode open.
fn open_file(pid: u32, device: u64, inode: u64) -> Option<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut paths = files.flatten().map(|entry| entry.path());
    let found = paths.find(|path| {
        // Asks no server: the numbers never change.
        let flags = rustix::fs::AtFlags::STATX_DONT_SYNC;
        let wanted = rustix::fs::StatxFlags::INO;
        rustix::fs::statx(rustix::fs::CWD, path, flags, wanted).is_ok_and(|stat| {
            let stat_device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            (stat_device, stat.stx_ino) == (device, inode)
        })
    });
    std::fs::read_link(found?).ok()
}

fn key(id: &str) -> Option<LeaseKey> {
    let (slot, id) = id.split_once('-')?;
    Some(LeaseKey {
        slot: slot.parse().ok()?,
        id: u64::from_str_radix(id, 16).ok()?,
    })
}

impl Line {
    fn text(&self) -> String {
        let file = match &self.file {
            Some(path) => path.to_string(),
            None => format!("inode {}", self.inode),
        };
        let mut notes = String::new();
        if let Some(command) = &self.command {
            notes += &format!(" ({command})");
        }
        if self.outlived_server {
            notes += " (since an earlier mount)";
        }
        if self.revoked {
            notes += " (revoked)";
        }
        format!(
            "{:<21} {:>7} {:>6} {:<5} {:>14} {:>8}  {file}{notes}",
            self.id, self.process, self.user, self.mode, self.bytes, self.age_sec
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_in_listing_is_accepted_by_revoke() {
        let lease = LeaseKey {
            slot: 4095,
            id: u64::MAX,
        };
        let row = LeaseRow {
            lease,
            inode: 77,
            pid: u32::MAX,
            uid: 1000,
            write: true,
            bytes: 8192,
            granted_sec: 100,
            adopted: true,
            revoked: true,
        };
        let line = line(&row, 160, 0);
        assert_eq!(key(&line.id), Some(lease));
        let text = line.text();
        assert!(
            text.contains("inode 77 (since an earlier mount) (revoked)"),
            "{text}"
        );
        assert!(text.contains(" 8192 "), "{text}");
        assert_eq!(line.age_sec, 60);
        for wrong in ["", "1", "1-", "-1", "x-1", "1-g", "1-1-1"] {
            assert_eq!(key(wrong), None, "{wrong}");
        }
    }
}
