//! Rows: leaves of 2 MiB, and extents, of large files in a region that has aged, before and after
//! `pramfs defrag`; ext4 that has aged in the same way, before and after e4defrag.
//!
//! Files of random sizes are written, two at a time, and removed at random, with the region three
//! quarters full, until ten times its size has been written. Then large files are written.
//! Nothing is timed: the rows count where the large files lie.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Engine, Fs, Ino};
use pramfs::pmem::RegionOptions;

use super::preload::row;
use crate::fixture::{MIB, debian_program};
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Group, Huge, Report, Rng, Row};
use crate::reproductions::sites::{EXT4, Site};

const ROWS: &[Row] = &[
    row(
        "aged-defrag",
        "large files outside of leaves, aged region, after defrag",
        "the same before",
        1.0,
    ),
    row(
        "aged-extents",
        "extents of the large files, aged region, after defrag",
        "ext4 on a RAM disk, aged in the same way, after e4defrag",
        // A leaf ends after 2 MiB, an extent of ext4 need not.
        0.5,
    ),
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const REGION: u64 = 256 * MIB;
/// Bytes of each write.
const PIECE: u64 = 16 << 10;
/// Large files, and their size.
const LARGE: u64 = 6;
const LARGE_SIZE: u64 = 4 * MIB;
const LEAF: u64 = 2 * MIB;

/// A run of a file: offset in the file, place on the medium, bytes.
type Run = (u64, u64, u64);

/// A file system that ages.
trait Aged {
    /// A file that is being written.
    type Open;
    fn create(&self, name: &str) -> Result<Self::Open>;
    fn write(&self, file: &mut Self::Open, at: u64, bytes: &[u8]) -> Result<()>;
    fn finish(&self, file: Self::Open) -> Result<()>;
    fn remove(&self, name: &str) -> Result<()>;
    /// Returns the runs of a file, in its order; neighbours may follow each other.
    fn runs(&self, name: &str) -> Result<Vec<Run>>;
}

impl Aged for Fs {
    type Open = Ino;

    fn create(&self, name: &str) -> Result<Ino> {
        let made = Engine::create(self, &Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)?;
        Ok(made.ino)
    }

    fn write(&self, file: &mut Ino, at: u64, bytes: &[u8]) -> Result<()> {
        Engine::write(self, &Credentials::ROOT, *file, at, bytes)?;
        Ok(())
    }

    fn finish(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(self.unlink(Ino::ROOT, name.as_bytes())?)
    }

    fn runs(&self, name: &str) -> Result<Vec<Run>> {
        let ino = self.lookup(Ino::ROOT, name.as_bytes())?.ino;
        let extents = self.file_extents(ino, 0, u64::MAX)?;
        let run = |e: &pramfs::FileExtent| Some((e.file_offset, e.region_offset?, e.len));
        Ok(extents.iter().filter_map(run).collect())
    }
}

/// A directory of ext4.
struct InExt4(Site);

impl Aged for InExt4 {
    type Open = File;

    fn create(&self, name: &str) -> Result<File> {
        Ok(File::create(self.0.join(name))?)
    }

    fn write(&self, file: &mut File, _: u64, bytes: &[u8]) -> Result<()> {
        Ok(file.write_all(bytes)?)
    }

    /// It allocates when it writes back, so each file has its place when it is complete.
    fn finish(&self, file: File) -> Result<()> {
        Ok(file.sync_data()?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.0.join(name))?)
    }

    fn runs(&self, name: &str) -> Result<Vec<Run>> {
        let filefrag = debian_program("filefrag", "e2fsprogs")?;
        let mut command = Command::new(filefrag);
        command.args(["-v", "-b1"]).arg(self.0.join(name));
        let out = command.output()?;
        ensure!(out.status.success(), "filefrag failed");
        let text = String::from_utf8(out.stdout)?;
        // "   0:        0.. 4095:  34816.. 38911:  4096:  last,eof"
        let run = |line: &str| {
            let number = |part: &str| part.split("..").next()?.trim().parse().ok();
            let mut parts = line.split(':');
            parts.next()?.trim().parse::<u64>().ok()?;
            Some((
                number(parts.next()?)?,
                number(parts.next()?)?,
                number(parts.next()?)?,
            ))
        };
        Ok(text.lines().filter_map(run).collect())
    }
}

/// Where the large files lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lie {
    /// MiB outside of aligned runs of 2 MiB.
    outside: f64,
    extents: u64,
}

impl Lie {
    fn of(place: &impl Aged) -> Result<Lie> {
        let mut lie = Lie {
            outside: 0.0,
            extents: 0,
        };
        for i in 0..LARGE {
            let runs = merged(place.runs(&large_name(i))?);
            lie.extents += runs.len() as u64;
            let is_leaf = |part: &u64| {
                runs.iter().any(|(at, place, len)| {
                    part.checked_sub(*at).is_some_and(|within| {
                        within + LEAF <= *len && (place + within).is_multiple_of(LEAF)
                    })
                })
            };
            let parts = (0..LARGE_SIZE).step_by(LEAF as usize);
            let outside = parts.filter(|part| !is_leaf(part)).count() as u64 * LEAF;
            lie.outside += outside as f64 / MIB as f64;
        }
        Ok(lie)
    }

    /// Share of the large files in leaves, in percent.
    fn share(&self) -> f64 {
        let all = (LARGE * LARGE_SIZE) as f64 / MIB as f64;
        (all - self.outside) * 100.0 / all
    }
}

/// Joins runs that follow each other.
fn merged(runs: Vec<Run>) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for (at, place, len) in runs {
        match out.last_mut() {
            Some(last) if last.0 + last.2 == at && last.1 + last.2 == place => last.2 += len,
            _ => out.push((at, place, len)),
        }
    }
    out
}

fn large_name(i: u64) -> String {
    format!("large {i}")
}

/// Ages a file system of so many bytes, and writes the large files.
fn age(place: &impl Aged, size: u64) -> Result<()> {
    let (mut rng, mut files) = (Rng::new(7), Vec::new());
    let (mut used, mut made, mut written) = (0, 0, 0);
    let bytes = vec![0x5a; PIECE as usize];
    while written < 10 * size {
        // Two files of random sizes, piece by piece in turn.
        let mut two = Vec::new();
        for _ in 0..2 {
            made += 1;
            let (name, len) = (format!("file {made}"), PIECE << rng.below(7));
            let open = place.create(&name)?;
            two.push((open, len));
            files.push((name, len));
            (used, written) = (used + len, written + len);
        }
        let longest = two.iter().map(|(_, len)| *len).max().unwrap_or(0);
        for at in (0..longest).step_by(PIECE as usize) {
            for (open, _) in two.iter_mut().filter(|(_, len)| at < *len) {
                place.write(open, at, &bytes)?;
            }
        }
        for (open, _) in two {
            place.finish(open)?;
        }
        while used > size * 3 / 4 {
            let n = rng.below(files.len() as u64) as usize;
            let (name, len) = files.swap_remove(n);
            place.remove(&name)?;
            used -= len;
        }
    }
    let bytes = vec![0xa5; 4 * PIECE as usize];
    for i in 0..LARGE {
        let mut open = place.create(&large_name(i))?;
        for at in (0..LARGE_SIZE).step_by(bytes.len()) {
            place.write(&mut open, at, &bytes)?;
        }
        place.finish(open)?;
    }
    Ok(())
}

/// The region, on tmpfs.
struct Region {
    path: PathBuf,
    _dir: MountDir,
}

impl Region {
    fn open(&self) -> Result<Fs> {
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        Ok(Fs::open(RegionOptions::new().open(&self.path)?, options)?)
    }

    fn aged(cx: &Context) -> Result<Region> {
        let dir = cx.scratch.tmpfs("aged", REGION + 64 * MIB, Huge::Never)?;
        let path = dir.join("region");
        let region = RegionOptions::new().create(&path, REGION)?;
        format(&region, &FormatOptions::default())?;
        drop(region);
        let region = Region { path, _dir: dir };
        let fs = region.open()?;
        age(&fs, REGION)?;
        fs.close()?;
        Ok(region)
    }

    fn lie(&self) -> Result<Lie> {
        let fs = self.open()?;
        let lie = Lie::of(&fs)?;
        fs.close()?;
        Ok(lie)
    }

    /// Runs `pramfs defrag`. Returns its report.
    fn defrag(&self, cx: &Context, options: &[&str]) -> Result<serde_json::Value> {
        let mut command = Command::new(cx.program("pramfs")?);
        command.args(["defrag", "--json"]).args(options);
        let out = command.arg(&self.path).output()?;
        ensure!(
            out.status.success(),
            "pramfs defrag: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
        Ok(serde_json::from_slice(&out.stdout)?)
    }
}

fn ext4(cx: &Context) -> Result<(Lie, Option<Lie>)> {
    let place = InExt4(EXT4.of_size(cx, REGION)?);
    let room = rustix::fs::statvfs(&place.0.dir)?;
    age(&place, room.f_blocks * room.f_frsize)?;
    let before = Lie::of(&place)?;
    let Ok(e4defrag) = debian_program("e4defrag", "e2fsprogs") else {
        return Ok((before, None));
    };
    let done = Command::new(e4defrag)
        .arg(Path::new(&place.0.dir))
        .output()?;
    ensure!(done.status.success(), "e4defrag failed");
    Ok((before, Some(Lie::of(&place)?)))
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let region = Region::aged(cx)?;
    let before = region.lie()?;
    region.defrag(cx, &["--no-compact"])?;
    let gathered = region.lie()?;
    let report = region.defrag(cx, &[])?;
    let after = region.lie()?;
    ensure!(after.outside <= before.outside, "defrag scattered files");
    let number = |keys: [&str; 2]| -> Result<u64> {
        let number = report[keys[0]][keys[1]].as_u64();
        number.with_context(|| format!("no {keys:?} in {report}"))
    };
    let notes = format!(
        "{:.0} % of the large files in leaves before, {:.0} % after defrag --no-compact, {:.0} % after defrag; \
         {} leaves made free of {} chosen, by moving {:.1} MiB",
        before.share(),
        gathered.share(),
        after.share(),
        number(["compacted", "gained"])?,
        number(["compacted", "chosen"])?,
        number(["compacted", "moved"])? as f64 / MIB as f64,
    );
    // One more, so that none outside is no division by zero.
    let outside = (after.outside + 1.0, before.outside + 1.0);
    out.record_count(&ROWS[0], outside, "MiB", &[notes]);
    match ext4(cx) {
        Ok((theirs, defragged)) => {
            let last = defragged.unwrap_or(theirs);
            let notes = format!(
                "extents of {LARGE} files of 4 MiB: {} before, {} after; ext4: {} before ({:.0} % in aligned runs of 2 MiB), {}",
                before.extents,
                after.extents,
                theirs.extents,
                theirs.share(),
                match defragged {
                    Some(lie) => format!("{} after e4defrag ({:.0} %)", lie.extents, lie.share()),
                    None => "e4defrag is not installed".to_owned(),
                }
            );
            let extents = (after.extents as f64, last.extents as f64);
            out.record_count(&ROWS[1], extents, "extents", &[notes]);
        }
        Err(e) => out.cannot(&ROWS[1], &format!("{e:#}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_follow_each_other_are_one_extent() {
        let runs = vec![(0, 100, 10), (10, 110, 5), (15, 200, 5), (25, 205, 5)];
        assert_eq!(merged(runs), [(0, 100, 15), (15, 200, 5), (25, 205, 5)]);
    }
}
