//! Fixtures of the comparisons: pramfs regions, opened in this process or mounted by
//! `mount.pramfs`, and the competitors' files.
//!
//! Everything is prefaulted before a clock starts: the pages of every file exist and
//! were written, and the page tables of every mapping are filled. The first touch of a
//! tmpfs page costs many microseconds and would hide the difference under test.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pramfs::File as DirectFile;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Ino};
use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};

use crate::harness::daemon::Daemon;
use crate::harness::scratch::MountDir;
use crate::harness::{Context, Huge, Rng};
use crate::sys::{Aligned, PAGE};

/// The server's program as cargo names it; it is installed as `mount.pramfs`.
pub const SERVER: &str = "mount-pramfs";
/// The program that makes a file system, as cargo names it.
pub const MKFS: &str = "mkfs-pramfs";

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// Extra space on a tmpfs, besides the compared files.
const SPARE: u64 = 64 * MIB + crate::raw_medium::SIZE;

/// Makes a file of `len` bytes and writes every page of it.
///
/// # Errors
/// If the file cannot be made or written.
pub fn filled_file(path: &Path, len: u64) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| path.display().to_string())?;
    fill(&file, 0, len).with_context(|| path.display().to_string())?;
    Ok(file)
}

/// Writes `len` arbitrary bytes from `offset`, a MiB at a time.
///
/// # Errors
/// Write errors.
pub fn fill(file: &File, offset: u64, len: u64) -> Result<()> {
    let chunk = Aligned::filled(MIB as usize, 0x5a)?;
    let mut at = offset;
    while at < offset + len {
        let n = MIB.min(offset + len - at);
        file.write_all_at(&chunk.bytes()[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

/// Makes files of zeros whose pages all exist, alternating between the files after
/// each MiB. The page frames of a file are random and change the speed of long reads
/// by a third; alternation gives all sides the same mix.
fn page_files(files: &[(&Path, u64)]) -> Result<()> {
    let zeros = vec![0u8; MIB as usize];
    let open = |&(path, len): &(&Path, u64)| {
        let file = File::create_new(path).with_context(|| path.display().to_string())?;
        Ok((file, len))
    };
    let files = files.iter().map(open).collect::<Result<Vec<_>>>()?;
    let longest = files.iter().map(|f| f.1).max().unwrap_or(0);
    for at in (0..longest).step_by(MIB as usize) {
        for (file, len) in &files {
            let left = len.saturating_sub(at).min(MIB);
            file.write_all_at(&zeros[..left as usize], at)?;
        }
    }
    Ok(())
}

/// A region on a tmpfs of its own, opened in this process.
#[derive(Debug)]
pub struct Direct {
    /// The engine.
    pub fs: Fs,
    /// Credentials of its operations.
    pub cx: Credentials<'static>,
    /// The tmpfs, also for the competitor's files. Dropped after `fs`.
    pub tmpfs: MountDir,
}

impl Direct {
    /// Formats a region of `region` bytes on a new tmpfs with `more` bytes of space
    /// for other files, and opens it.
    ///
    /// # Errors
    /// If a step fails.
    pub fn new(cx: &Context, name: &str, region: u64, more: u64, huge: Huge) -> Result<Direct> {
        let tmpfs = cx.scratch.tmpfs(name, region + more + SPARE, huge)?;
        page_files(&[(&tmpfs.join("region"), region)])?;
        Direct::open(tmpfs, &[])
    }

    /// Like [`new`](Self::new), with features of the file system.
    ///
    /// # Errors
    /// Like [`new`](Self::new).
    pub fn with_features(
        cx: &Context,
        name: &str,
        region: u64,
        more: u64,
        huge: Huge,
        features: &[&str],
    ) -> Result<Direct> {
        let tmpfs = cx.scratch.tmpfs(name, region + more + SPARE, huge)?;
        page_files(&[(&tmpfs.join("region"), region)])?;
        Direct::open(tmpfs, features)
    }

    /// Like [`new`](Self::new), with a competitor's file `theirs` of `size` bytes
    /// beside it. Their pages are made alternately.
    ///
    /// # Errors
    /// Like [`new`](Self::new).
    pub fn beside(cx: &Context, name: &str, region: u64, size: u64) -> Result<(Direct, File)> {
        let tmpfs = cx.scratch.tmpfs(name, region + size + SPARE, Huge::Never)?;
        let theirs = tmpfs.join("theirs");
        page_files(&[(&tmpfs.join("region"), region), (&theirs, size)])?;
        Ok((Direct::open(tmpfs, &[])?, open_rw(&theirs, false)?))
    }

    fn open(tmpfs: MountDir, features: &[&str]) -> Result<Direct> {
        let path = tmpfs.join("region");
        let opened = RegionOptions::new().open(&path)?;
        let options = FormatOptions {
            features: features
                .iter()
                .map(|name| ((*name).to_owned(), true))
                .collect(),
            ..FormatOptions::default()
        };
        format(&opened, &options)?;
        let fs = Fs::open(opened, MountOptions::default())?;
        let direct = Direct {
            fs,
            cx: Credentials::ROOT,
            tmpfs,
        };
        direct.prefault()?;
        Ok(direct)
    }

    /// Makes a directory in the root.
    ///
    /// # Errors
    /// Engine errors.
    pub fn directory(&self, name: &str) -> Result<Ino> {
        Ok(self
            .fs
            .mkdir(&self.cx, Ino::ROOT, name.as_bytes(), 0o755)?
            .ino)
    }

    /// Makes a file in the root and opens it for direct access.
    ///
    /// # Errors
    /// Engine errors.
    pub fn create(&self, name: &str) -> Result<DirectFile> {
        let made = self
            .fs
            .create(&self.cx, Ino::ROOT, name.as_bytes(), 0o644)?;
        Ok(self.fs.open_file(made.ino)?)
    }

    /// Fills the page tables of the whole region.
    ///
    /// # Errors
    /// If the kernel refuses (before Linux 5.14).
    pub fn prefault(&self) -> Result<()> {
        let region = self.fs.region();
        region
            .populate(0, region.len())
            .context("filling the page tables of the region")
    }

    /// Describes the region, for the notes.
    pub fn describe(&self) -> String {
        let info = self.fs.region().info();
        format!(
            "region: {} MiB on tmpfs, backend {}, durable at {:?} granularity",
            self.fs.region().len() / MIB,
            info.backend,
            info.granularity
        )
    }
}

/// A FUSE server whose memory is a file on a tmpfs of its own, with 4 KiB
/// pages.
#[derive(Debug)]
pub struct Mounted {
    /// The server and its mount point. Dropped before the tmpfs.
    pub daemon: Daemon,
    /// The tmpfs that holds its memory.
    pub tmpfs: MountDir,
}

impl Mounted {
    /// Formats a region and mounts it with the default options.
    ///
    /// # Errors
    /// If a step fails.
    pub fn pramfs(cx: &Context, name: &str, region: u64) -> Result<Mounted> {
        let (tmpfs, path) = memory(cx, name, region)?;
        page_files(&[(&path, region)])?;
        serve_pramfs(cx, name, tmpfs, &path)
    }

    /// Like [`pramfs`](Self::pramfs), with more options.
    ///
    /// # Errors
    /// If a step fails.
    pub fn with_options(cx: &Context, name: &str, region: u64, more: &str) -> Result<Mounted> {
        let (tmpfs, path) = memory(cx, name, region)?;
        page_files(&[(&path, region)])?;
        format(
            &RegionOptions::new().open(&path)?,
            &FormatOptions::default(),
        )?;
        serve_program(cx, &cx.program(SERVER)?, name, tmpfs, &path, more)
    }

    /// Mounts [`pramfs`](Self::pramfs) of the new build, the old one, and the old one
    /// again. Each build formats with its own mkfs. Their pages are made alternately.
    ///
    /// # Errors
    /// If a step fails.
    pub fn builds(cx: &Context, region: u64) -> Result<[Mounted; 3]> {
        let builds = cx.builds.as_ref().context("there are no two builds")?;
        let (new, new_path) = memory(cx, "new", region)?;
        let (old, old_path) = memory(cx, "old", region)?;
        let (control, control_path) = memory(cx, "control", region)?;
        page_files(&[
            (&new_path, region),
            (&old_path, region),
            (&control_path, region),
        ])?;
        let serve = |programs: &Path, name, tmpfs, region: &Path| {
            let mut mkfs = Command::new(programs.join(MKFS));
            let made = mkfs.arg("-f").arg(region).output();
            let made = made.with_context(|| format!("{mkfs:?}"))?;
            ensure!(
                made.status.success(),
                "{mkfs:?}: {}",
                String::from_utf8_lossy(&made.stderr)
            );
            serve_program(cx, &programs.join(SERVER), name, tmpfs, region, "")
        };
        Ok([
            serve(&builds.new, "new", new, &new_path)?,
            serve(&builds.old, "old", old, &old_path)?,
            serve(&builds.old, "control", control, &control_path)?,
        ])
    }

    /// Formats a region and mounts it with leases for root; opens another one in this
    /// process; and makes a competitor's file of `size` bytes. All lie on tmpfs with huge
    /// pages. Their pages are made alternately.
    ///
    /// # Errors
    /// If a step fails.
    pub fn beside_direct(cx: &Context, region: u64, size: u64) -> Result<(Mounted, Direct, File)> {
        let tmpfs =
            |name, bytes| -> Result<MountDir> { cx.scratch.tmpfs(name, bytes, Huge::Always) };
        let served = tmpfs("leased.tmpfs", region + SPARE)?;
        let opened = tmpfs("in-process", region + size + SPARE)?;
        let (path, theirs) = (served.join("memory"), opened.join("theirs"));
        page_files(&[
            (&path, region),
            (&opened.join("region"), region),
            (&theirs, size),
        ])?;
        let formatted = RegionOptions::new().open(&path)?;
        format(&formatted, &FormatOptions::default())?;
        drop(formatted);
        let program = cx.program(SERVER)?;
        let mounted = serve_program(cx, &program, "leased", served, &path, ",direct=owner")?;
        Ok((
            mounted,
            Direct::open(opened, &[])?,
            open_rw(&theirs, false)?,
        ))
    }

    /// Mounts a region on huge pages that gives leases.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn for_clients(cx: &Context, region: u64) -> Result<Mounted> {
        let tmpfs = cx
            .scratch
            .tmpfs("clients.tmpfs", region + SPARE, Huge::Always)?;
        let path = tmpfs.join("memory");
        page_files(&[(&path, region)])?;
        let formatted = RegionOptions::new().open(&path)?;
        format(&formatted, &FormatOptions::default())?;
        drop(formatted);
        let program = cx.program(SERVER)?;
        serve_program(cx, &program, "clients", tmpfs, &path, ",direct=owner")
    }

    /// Starts the minimal FUSE server of this package, in a process of its own,
    /// with a file of `size` bytes.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn minimal(cx: &Context, name: &str, size: u64) -> Result<Mounted> {
        let (tmpfs, path) = memory(cx, name, size)?;
        page_files(&[(&path, size)])?;
        serve_minimal(cx, name, tmpfs, &path)
    }

    /// Starts [`pramfs`](Self::pramfs) and [`minimal`](Self::minimal). Their pages are
    /// made alternately.
    ///
    /// # Errors
    /// Like those two.
    pub fn pair(cx: &Context, region: u64, size: u64) -> Result<[Mounted; 2]> {
        let (ours, region_path) = memory(cx, "ours", region)?;
        let (theirs, file_path) = memory(cx, "theirs", size)?;
        page_files(&[(&region_path, region), (&file_path, size)])?;
        Ok([
            serve_pramfs(cx, "ours", ours, &region_path)?,
            serve_minimal(cx, "theirs", theirs, &file_path)?,
        ])
    }
}

/// Makes a tmpfs for a file of `size` bytes, and returns the path of the file.
fn memory(cx: &Context, name: &str, size: u64) -> Result<(MountDir, PathBuf)> {
    let tmpfs = cx
        .scratch
        .tmpfs(&format!("{name}.tmpfs"), size + 64 * MIB, Huge::Never)?;
    let path = tmpfs.join("memory");
    Ok((tmpfs, path))
}

fn serve_pramfs(cx: &Context, name: &str, tmpfs: MountDir, region: &Path) -> Result<Mounted> {
    format(
        &RegionOptions::new().open(region)?,
        &FormatOptions::default(),
    )?;
    serve_program(cx, &cx.program(SERVER)?, name, tmpfs, region, "")
}

/// `more` is appended to the mount options.
fn serve_program(
    cx: &Context,
    program: &Path,
    name: &str,
    tmpfs: MountDir,
    region: &Path,
    more: &str,
) -> Result<Mounted> {
    let mount_dir = cx.scratch.mount_dir(name)?;
    let mut command = Command::new(program);
    // As many threads as the minimal server gets.
    let options = format!("threads={}{more}", cx.cpus.len().clamp(2, 8));
    command
        .arg(region)
        .arg(mount_dir.path())
        .args(["-f", "-o", &options]);
    let daemon = Daemon::start(cx, "mount.pramfs", command, mount_dir)?;
    Ok(Mounted { daemon, tmpfs })
}

fn serve_minimal(cx: &Context, name: &str, tmpfs: MountDir, file: &Path) -> Result<Mounted> {
    let mount_dir = cx.scratch.mount_dir(name)?;
    let mut command = Command::new(std::env::current_exe()?);
    let threads = cx.cpus.len().clamp(2, 8).to_string();
    command.arg("minimal").arg(mount_dir.path()).arg(file);
    command.args(["--threads", &threads]);
    let daemon = Daemon::start(cx, "the minimal server", command, mount_dir)?;
    read_ahead(daemon.path(), 1024)?;
    Ok(Mounted { daemon, tmpfs })
}

/// Sets the kernel's read-ahead in KiB, as `mount.pramfs` does for its mounts.
fn read_ahead(mount_point: &Path, kib: u32) -> Result<()> {
    let device = std::fs::metadata(mount_point)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&path, kib.to_string()).with_context(|| path)
}

/// Opens for reading and writing; bypasses the page cache if `direct`.
///
/// # Errors
/// Errors of open(2), with the path.
pub fn open_rw(path: &Path, direct: bool) -> Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .with_context(|| path.display().to_string())
}

/// Returns `count` different names of 13 characters in random order.
pub fn names(seed: u64, count: usize) -> Vec<CString> {
    let mut rng = Rng::new(seed);
    let mut all: Vec<CString> = (0..count)
        .filter_map(|i| {
            CString::new(format!("n{:012x}", i as u64 * 0x1_0001 + rng.below(0xffff))).ok()
        })
        .collect();
    rng.shuffle(&mut all);
    all
}

/// Returns the byte offset of a random page of a file.
#[inline]
pub fn random_page(rng: &mut Rng, pages: u64) -> u64 {
    rng.below(pages) * PAGE as u64
}

/// Finds a program of a Debian package.
///
/// # Errors
/// If it is not installed; the message names the command to install it.
pub fn debian_program(name: &str, package: &str) -> Result<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|d| Path::new(d).join(name))
        .find(|p| p.is_file())
        .with_context(|| format!("{name} is not installed: apt-get install {package}"))
}
