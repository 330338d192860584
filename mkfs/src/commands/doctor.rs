//! `pramfs doctor`: rates a path as a region, and prints commands that improve
//! it. `pramfs_medium::pmem::probe` finds what concerns the path, `transports` what concerns a
//! mount.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs::pmem::RegionOptions;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::{self, HugePolicy, KernelBad, SourceKind};
use serde::Serialize;

use super::Subcommand;
use super::transports::Transports;
use crate::failure::{quoted, shown};
use crate::mkfs::report::{granularity, survives};
use crate::{Failure, output};
use pramfs_contents::{Foreign, foreign, ours_by_magic};
use pramfs_medium::size::human;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// File, device, directory, or a name that does not exist yet
    path: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    path: String,
    exists: bool,
    /// Whether the path is a directory: a region would be a file in it.
    directory: bool,
    /// The contents of the file or device, if known.
    holds: Option<String>,
    usable: bool,
    problem: Option<String>,
    kind: Option<&'static str>,
    persistent_memory: bool,
    granularity: Option<&'static str>,
    survives: Option<&'static str>,
    size: Option<u64>,
    allocated: Option<u64>,
    free: Option<u64>,
    alignment: u64,
    page_sizes: Vec<u64>,
    huge_pages: Option<&'static str>,
    filesystem: Option<FileSystem>,
    map_sync: Option<bool>,
    persistent_caches: bool,
    flush_instruction: &'static str,
    stream_instruction: &'static str,
    backends: Vec<&'static str>,
    /// Why the library libpmem2 is not among them on this machine.
    without_libpmem2: Option<String>,
    in_use: Option<String>,
    /// Whether stray stores can be kept from a region here.
    protection: Protection,
    /// How a mount could get its requests here.
    transports: Transports,
    warnings: Vec<String>,
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Protection {
    /// Protection keys that a process can still have; none if there are no keys.
    free_keys: Option<u32>,
    /// Why there are none.
    no_keys: Option<String>,
}

impl Protection {
    fn find() -> Protection {
        match pmem::free_protection_keys() {
            Ok(free) => Protection {
                free_keys: Some(free),
                no_keys: None,
            },
            Err(why) => Protection {
                free_keys: None,
                no_keys: Some(why),
            },
        }
    }

    fn summary(&self) -> String {
        match (self.free_keys, &self.no_keys) {
            (Some(1), _) => "protect=pkey: 1 key for a region of a process".to_owned(),
            (Some(free), _) => {
                format!("protect=pkey: {free} keys, one for each region of a process")
            }
            (None, why) => format!(
                "protect=mprotect only, which is slow: {}",
                why.as_deref().unwrap_or("no keys")
            ),
        }
    }
}

#[derive(Debug, Serialize)]
struct FileSystem {
    #[serde(rename = "type")]
    kind: String,
    mount_point: String,
    device: String,
    options: String,
}

impl Subcommand for Doctor {
    const NAME: &'static str = "doctor";
    const ABOUT: &'static str = "Rate a path as a region, and show how to improve it";

    fn run(&self) -> Result<(), Failure> {
        let mut report = Report::new(pmem::probe(&self.path)?);
        report.look_inside(&self.path);
        if self.json {
            output::json(&report)?;
        } else {
            output::line(&report.text())?;
        }
        match &report.problem {
            // The JSON object already contains the problem.
            Some(_) if self.json => Err(Failure::silent()),
            Some(why) => Err(Failure::new(
                "not-a-region",
                format!("{}: {why}", report.path),
            )),
            None => Ok(()),
        }
    }
}

impl Report {
    fn new(r: pmem::Report) -> Report {
        Report {
            path: shown(&r.path),
            exists: r.exists,
            directory: r.path.is_dir(),
            holds: None,
            usable: r.problem.is_none(),
            persistent_memory: r.is_persistent_memory(),
            kind: r.kind.map(SourceKind::name),
            granularity: r.granularity.map(granularity),
            survives: r.persistence.map(survives),
            size: r.size,
            allocated: r.allocated,
            free: r.free,
            alignment: r.alignment,
            page_sizes: r.page_sizes,
            huge_pages: r.huge_policy.map(HugePolicy::name),
            filesystem: r.filesystem.map(|f| FileSystem {
                kind: f.fs_type,
                mount_point: shown(&f.mount_point),
                device: f.device,
                options: f.options,
            }),
            map_sync: r.map_sync,
            persistent_caches: r.persistent_caches,
            flush_instruction: r.flush_instruction,
            stream_instruction: r.stream_instruction,
            backends: r.backends,
            without_libpmem2: r.without_libpmem2,
            in_use: r.in_use,
            protection: Protection::find(),
            transports: Transports::find(Path::new("/")),
            warnings: r.warnings,
            advice: r.advice,
            problem: r.problem,
        }
    }

    /// Detects existing contents, as mkfs.pramfs does. Leaves them out if they
    /// cannot be read.
    fn look_inside(&mut self, path: &Path) {
        if !self.usable || !self.exists || self.directory {
            return;
        }
        let ours = File::open(path).ok().and_then(|f| ours_by_magic(&f));
        let found = match ours {
            Some(found) => found,
            None => match foreign(path) {
                Ok(Foreign::Known(found)) => found,
                Ok(Foreign::Nothing | Foreign::NoBlkid) | Err(_) => return,
            },
        };
        if found.is_foreign() {
            self.warnings.push(format!(
                "It holds {}; mkfs.pramfs overwrites that only with -f.",
                found.sentence()
            ));
        }
        self.holds = Some(found.sentence());
        if let Ok(bad) = KernelBad::of_path(path) {
            if bad.bytes() > 0 {
                self.warnings.push(format!(
                    "The kernel names {} bytes of it as bad. A mount takes their blocks out of use; what they held is lost.",
                    bad.bytes()
                ));
            }
            if let Some(notice) = bad.notice {
                self.warnings.push(format!("Bad blocks: {notice}."));
            }
        }
        if let Some((bytes, region)) = unused_part(path) {
            self.advice.push(format!(
                "The file system has {} of {}. Let it use the rest: pramfs grow {}",
                human(bytes),
                human(region),
                quoted(path)
            ));
        }
    }

    fn text(&self) -> String {
        let mut s = format!("{}\n", self.path);
        let mut row = |name: &str, value: String| s += &format!("  {name:<14} {value}\n");
        if let Some(kind) = self.kind {
            let state = match (self.exists, self.size) {
                _ if self.directory => " (a new region in this directory)".to_owned(),
                (false, _) => " (does not exist yet)".to_owned(),
                (true, Some(size)) => format!(", {}", human(size)),
                (true, None) => String::new(),
            };
            row(
                if self.directory { "would be" } else { "is" },
                format!("{kind}{state}"),
            );
        }
        if let Some(holds) = &self.holds {
            row("holds", holds.clone());
        }
        if let Some(f) = &self.filesystem {
            row(
                "lies on",
                format!("{} at {} ({})", f.kind, f.mount_point, f.options),
            );
        }
        if let (Some(allocated), Some(size)) = (self.allocated, self.size) {
            row(
                "allocated",
                format!("{} of {}", human(allocated), human(size)),
            );
        }
        if let Some(free) = self.free {
            row("free there", human(free));
        }
        if let Some(survives) = self.survives {
            row("survives", survives.to_owned());
        }
        if let Some(granularity) = self.granularity {
            let how = match (granularity, self.persistent_caches) {
                ("page", _) => "page: msync makes stores durable".to_owned(),
                (g, true) => format!("{g}: the platform flushes its caches on power failure"),
                (g, false) => format!(
                    "{g}: {} and a fence make stores durable",
                    self.flush_instruction
                ),
            };
            row("granularity", how);
        }
        if let Some(map_sync) = self.map_sync {
            row(
                "MAP_SYNC",
                if map_sync {
                    "yes"
                } else {
                    "no: not a DAX file"
                }
                .to_owned(),
            );
        }
        if !self.page_sizes.is_empty() {
            let sizes: Vec<String> = self.page_sizes.iter().map(|b| human(*b)).collect();
            let policy = self
                .huge_pages
                .map(|p| format!(" (huge={p})"))
                .unwrap_or_default();
            row("pages", format!("{}{policy}", sizes.join(", ")));
        }
        if !self.backends.is_empty() {
            row("backends", self.backends.join(", "));
        }
        if let Some(why) = &self.without_libpmem2 {
            row("libpmem2", why.clone());
        }
        if let Some(who) = &self.in_use {
            row("in use", who.clone());
        }
        // A region that cannot be used is not mounted.
        if self.usable {
            row("protection", self.protection.summary());
            row("transports", self.transports.summary());
        }
        for w in &self.warnings {
            s += &format!("Warning: {w}\n");
        }
        if !self.advice.is_empty() {
            s += "To improve it, type:\n";
            for a in &self.advice {
                s += &format!("  {a}\n");
            }
        }
        if self.usable {
            s += &self.transports.advice();
        }
        s.truncate(s.trim_end().len());
        s
    }
}

/// Returns the bytes of a file system and of its region, if the region has more. Nothing if
/// that cannot be read.
fn unused_part(path: &Path) -> Option<(u64, u64)> {
    let options = RegionOptions::new().read_only(true).lock(false);
    let region = options.open(path).ok()?;
    let info = probe_superblock(&region).ok()?;
    let (bytes, len) = (info.fixed.region_len, region.len());
    (len - bytes.min(len) >= u64::from(info.block_size())).then_some((bytes, len))
}
