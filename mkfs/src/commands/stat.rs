//! `pramfs stat`: prints the attributes of inodes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use pramfs::{
    FileType,
    inode::{Attr, Fs, VerifiedData},
};
use serde::Serialize;

use super::Subcommand;
use crate::open::{self, Intent};
use crate::tree::{self, Follow, Name, Timestamp, kind_name, mode_string};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Stat {
    /// File or device that holds the file system
    region: PathBuf,
    /// Paths in the file system
    #[arg(required = true)]
    path: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print a JSON object for each file
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    path: Name,
    kind: &'static str,
    inode: u64,
    generation: u64,
    /// Type and permission bits, octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    /// Bytes; for a directory, entries.
    size: u64,
    /// In units of 512 bytes.
    blocks: u64,
    rdev: Option<(u32, u32)>,
    target: Option<Name>,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    flags: u32,
    change: u64,
    xattrs: Vec<Name>,
    /// Ranges that a repair could not recover.
    lost: Vec<Range>,
    /// Blocks whose checksum does not match.
    wrong_checksums: Vec<Range>,
    /// Some of its blocks are or were mapped for writing, so their checksums do not hold.
    unsummed: bool,
    /// These blocks.
    unsummed_ranges: Vec<Range>,
}

#[derive(Debug, Serialize)]
struct Range {
    offset: u64,
    len: u64,
}

impl Subcommand for Stat {
    const NAME: &'static str = "stat";
    const ABOUT: &'static str = "Show the attributes of files";

    fn run(&self) -> Result<(), Failure> {
        let fs = open::fs(&self.region, Intent::Read)?;
        let follow = if self.dereference {
            Follow::Yes
        } else {
            Follow::No
        };
        for path in &self.path {
            let path = path.as_bytes();
            let attr = tree::find(&fs, path, follow)?;
            let report = report(&fs, path, &attr)?;
            if self.json {
                output::json(&report)?;
            } else {
                output::line(&text(&report, &attr))?;
            }
        }
        Ok(())
    }
}

fn report(fs: &Fs, path: &[u8], a: &Attr) -> Result<Report, Failure> {
    let target = match a.kind {
        FileType::Symlink => Some(fs.readlink(a.ino).map_err(|e| tree::about(path, e))?),
        _ => None,
    };
    let names = fs.listxattr(a.ino).map_err(|e| tree::about(path, e))?;
    let lost = match a.kind {
        FileType::Regular => fs.lost_ranges(a.ino).map_err(|e| tree::about(path, e))?,
        _ => Vec::new(),
    };
    let data = match a.kind {
        FileType::Regular => {
            (fs.verify_data(a.ino, 0..a.size)).map_err(|e| tree::about(path, e))?
        }
        _ => VerifiedData::default(),
    };
    let device = matches!(a.kind, FileType::CharDevice | FileType::BlockDevice);
    Ok(Report {
        path: path.into(),
        kind: kind_name(a.kind),
        inode: a.ino.0,
        generation: a.generation,
        mode: format!("{:o}", a.kind.mode_bits() | a.perm),
        links: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        blocks: a.blocks,
        rdev: device.then(|| (rustix::fs::major(a.rdev), rustix::fs::minor(a.rdev))),
        target: target.map(Name),
        atime: Timestamp(a.atime),
        mtime: Timestamp(a.mtime),
        ctime: Timestamp(a.ctime),
        btime: Timestamp(a.btime),
        flags: a.flags,
        change: a.change,
        xattrs: names
            .split(|&b| b == 0)
            .filter(|n| !n.is_empty())
            .map(Name::from)
            .collect(),
        lost: ranges(&lost),
        wrong_checksums: ranges(&data.wrong),
        unsummed: data.is_marked,
        unsummed_ranges: ranges(&data.unsummed),
    })
}

fn ranges(all: &[std::ops::Range<u64>]) -> Vec<Range> {
    let range = |r: &std::ops::Range<u64>| Range {
        offset: r.start,
        len: r.end - r.start,
    };
    all.iter().map(range).collect()
}

fn text(r: &Report, a: &Attr) -> String {
    let target = r
        .target
        .as_ref()
        .map(|t| format!(" -> {t}"))
        .unwrap_or_default();
    let device = r
        .rdev
        .map(|(major, minor)| format!("  device {major}:{minor}"))
        .unwrap_or_default();
    let mut s = format!(
        "  File: {}{target}\n  Size: {:<14} Blocks: {:<10} {}{device}\n Inode: {:<14} Links: {:<11} Generation: {}\n",
        r.path, r.size, r.blocks, r.kind, r.inode, r.links, r.generation
    );
    s += &format!(
        "  Mode: {:04o}/{}  Uid: {}  Gid: {}  Flags: {:#x}\n",
        a.perm,
        mode_string(a),
        r.uid,
        r.gid,
        r.flags
    );
    s += &format!(
        "Access: {}\nModify: {}\nChange: {}\n Birth: {}",
        r.atime, r.mtime, r.ctime, r.btime
    );
    for name in &r.xattrs {
        s += &format!("\n Xattr: {name}");
    }
    for range in &r.lost {
        s += &format!("\n  Lost: {} bytes at offset {}", range.len, range.offset);
    }
    for range in &r.wrong_checksums {
        let Range { offset, len } = range;
        s += &format!("\n Wrong: the checksum of {len} bytes at offset {offset} does not match");
    }
    for range in &r.unsummed_ranges {
        let Range { offset, len } = range;
        s += &format!(
            "\n  Note: {len} bytes at offset {offset} were mapped for writing, and have no checksums yet"
        );
    }
    s
}
