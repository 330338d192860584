//! The library on each kind of medium. On any machine: a file on tmpfs and an ordinary
//! one. `PRAMFS_TEST_MEDIA` names others, separated by colons: devices, or directories in
//! which a file is created. The virtual machine of `tests/vm` runs it on an fsdax file, a
//! pmem block device and a devdax device.
//!
//! **The tests overwrite the named devices.**

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{BackendKind, Region, RegionOptions, SourceKind};
use pramfs::{
    Access, MountOptions, OpenOptions,
    inode::{Credentials, Fs},
};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::kill::Record;
use pramfs_tests::random::Random;
use pramfs_tests::region::quiet;
use pramfs_tests::stress::EngineAccess;
use pramfs_tests::tree::Tree;
use pramfs_tests::watchdog::Watchdog;

const LEN: u64 = 32 << 20;
const WRITERS: u32 = 2;

/// A place for a region, and the directory created for it.
struct Medium {
    path: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Medium {
    fn with_dir(base: &Path) -> Medium {
        let mut builder = tempfile::Builder::new();
        let dir = builder.prefix("pramfs-test-").tempdir_in(base).unwrap();
        Medium {
            path: dir.path().join("region"),
            _dir: Some(dir),
        }
    }

    /// A region with a fresh file system.
    fn formatted(&self, backend: BackendKind) -> Region {
        let options = RegionOptions::new().backend(backend);
        let region = options.create(&self.path, LEN).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        region
    }

    fn open(&self, options: &RegionOptions) -> Region {
        options.open(&self.path).unwrap()
    }

    fn fsck(&self) {
        let report = fsck::check(&self.open(&RegionOptions::new()), &CheckOptions::default());
        assert!(report.is_clean(), "fsck: {report}");
    }
}

fn media() -> Vec<Medium> {
    let Some(named) = std::env::var_os("PRAMFS_TEST_MEDIA") else {
        let exe = std::env::current_exe().unwrap();
        let mut places = vec![exe.parent().unwrap().to_owned()];
        places.extend(Some(PathBuf::from("/dev/shm")).filter(|p| p.is_dir()));
        return places.iter().map(|p| Medium::with_dir(p)).collect();
    };
    std::env::split_paths(&named)
        .map(|path| {
            let kind = std::fs::metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                return Medium::with_dir(&path);
            }
            assert!(
                kind.is_block_device() || kind.is_char_device(),
                "PRAMFS_TEST_MEDIA: {} is neither a directory nor a device",
                path.display()
            );
            Medium { path, _dir: None }
        })
        .collect()
}

/// Runs on each medium, one test at a time, since all share one device.
fn on_each(test: &str, work: impl Fn(&Medium)) {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for medium in media() {
        let start = Instant::now();
        work(&medium);
        println!(
            "{test}: {}: {:.1} s",
            medium.path.display(),
            start.elapsed().as_secs_f64()
        );
    }
}

/// The backends that support a medium.
fn backends(medium: &Medium) -> Vec<BackendKind> {
    let kind = medium
        .formatted(BackendKind::Native)
        .info()
        .kind
        .expect("what it lies on");
    let mut all = vec![BackendKind::Native];
    // libpmem2 maps no block devices.
    if kind != SourceKind::BlockDevice {
        all.push(BackendKind::Libpmem2);
    }
    all
}

#[test]
fn stored_data_is_readable_with_each_backend() {
    on_each("stores", |medium| {
        for backend in backends(medium) {
            let region = medium.formatted(backend);
            println!("{:?}", region.info());
            let mut random = Random::new(backend as u64);
            let mut model = vec![0; 1 << 20];
            region.read(0, &mut model).unwrap();
            let w = region.window();
            for _ in 0..300 {
                let mut bytes = vec![0; 1 + random.below(5000) as usize];
                random.fill(&mut bytes);
                let at = random.below((model.len() - bytes.len()) as u64);
                let range = at as usize..at as usize + bytes.len();
                match random.below(3) {
                    0 => w.fence(w.store(at, &bytes).unwrap()),
                    1 => w.fence(w.nt_store(at, &bytes).unwrap()),
                    _ => {
                        bytes.fill(0);
                        w.fence(w.nt_zero(at, bytes.len() as u64).unwrap())
                    }
                };
                model[range].copy_from_slice(&bytes);
            }
            let mut got = vec![0; model.len()];
            region.read(0, &mut got).unwrap();
            assert!(got == model);
            drop(w);
            region.sync_all().unwrap();
            drop(region);
            let region = medium.open(&RegionOptions::new().read_only(true));
            region.read(0, &mut got).unwrap();
            assert!(got == model, "another opening reads other bytes");
            assert_eq!(region.faults(), 0);
        }
    });
}

#[test]
fn writers_find_all_operations_after_unmount() {
    on_each("writers", |medium| {
        for backend in backends(medium) {
            let logs = tempfile::tempdir().unwrap();
            let record = Record::new(logs.path(), WRITERS, 11);
            let fs = Fs::open(medium.formatted(backend), quiet()).unwrap();
            record.begin(&EngineAccess(&fs)).unwrap();
            for w in 0..WRITERS {
                record.live(&EngineAccess(&fs), w, 400).unwrap();
            }
            fs.close().unwrap();
            medium.fsck();
            let region = medium.open(&RegionOptions::new().backend(backend));
            let fs = Fs::open(region, quiet()).unwrap();
            assert!(fs.recovery().was_clean);
            let outcome = record.check(&EngineAccess(&fs)).unwrap();
            assert_eq!((outcome.returned, outcome.before), (800, WRITERS));
            fs.close().unwrap();
        }
    });
}

/// Where a fence writes pages back, it writes only changed ones. Larger pieces of the
/// page cache are written as a whole.
#[test]
fn fence_writes_only_changed_pages() {
    const PAGES: u64 = 4000;
    on_each("pages of a fence", |medium| {
        let region = medium.formatted(BackendKind::Native);
        if region.info().granularity != pramfs::pmem::Granularity::Page {
            println!("{}: not written by pages", medium.path.display());
            return;
        }
        let written = || {
            let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
            let line = io.lines().find_map(|l| l.strip_prefix("write_bytes: "))?;
            line.parse::<u64>().ok()
        };
        let Some(before) = written() else {
            pramfs_tests::skip::skipped("the kernel counts no bytes (/proc/thread-self/io)");
            return;
        };
        // As a writable mount does. For a sequential reader such as fsck, the kernel
        // reads ahead.
        region.backend().advise_random();
        let w = region.window();
        for page in 0..PAGES {
            let pending = w
                .store((16 << 20) + page * 4096, &page.to_le_bytes())
                .unwrap();
            let _ = w.fence(pending);
        }
        let written = written().unwrap() - before;
        println!("{} bytes written for each page", written / PAGES);
        assert!(written <= PAGES * 4096 * 2, "{written} bytes");
    });
}

#[test]
fn store_through_view_is_read_by_engine() {
    on_each("views", |medium| {
        let fs = Fs::open(medium.formatted(BackendKind::Auto), quiet()).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(&fs, "/view")
            .unwrap();
        // Whole leaves of 2 MiB, which every medium can map.
        let len = 4 << 20;
        let all = pramfs::Fallocate::Allocate { keep_size: false };
        let ino = fs.lookup(pramfs::inode::Ino::ROOT, b"view").unwrap().ino;
        fs.fallocate(&Credentials::ROOT, ino, all, 0, len).unwrap();
        let view = file.map(0..len, Access::Write).unwrap();
        let mut random = Random::new(3);
        for _ in 0..200 {
            let (at, word) = (random.below(len / 8) * 8, random.word());
            view.store::<u64>(at, word).unwrap();
            view.persist(at..at + 8).unwrap();
            let mut back = [0; 8];
            file.read_at(&mut back, at).unwrap();
            assert_eq!(u64::from_le_bytes(back), word);
            file.write_at(&(!word).to_le_bytes(), at).unwrap();
            assert_eq!(view.load::<u64>(at).unwrap(), !word);
        }
        let mut seen = vec![0; len as usize];
        view.read(0, &mut seen).unwrap();
        drop((view, file));
        fs.close().unwrap();
        medium.fsck();
        let fs = Fs::open(medium.open(&RegionOptions::new()), quiet()).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&fs, "/view")
            .unwrap();
        let mut back = vec![0; len as usize];
        file.read_at(&mut back, 0).unwrap();
        assert!(back == seen);
        drop(file);
        fs.close().unwrap();
    });
}

#[test]
fn region_has_one_writer_process_or_many_readers() {
    on_each("locks", |medium| {
        let writer = medium.formatted(BackendKind::Auto);
        let errno = |options: &RegionOptions| options.open(&medium.path).unwrap_err().errno();
        assert_eq!(errno(&RegionOptions::new()), libc::EBUSY);
        assert_eq!(errno(&RegionOptions::new().read_only(true)), libc::EBUSY);
        let kind = writer.info().kind;
        drop(writer);
        let reader = medium.open(&RegionOptions::new().read_only(true));
        assert_eq!(errno(&RegionOptions::new()), libc::EBUSY);
        // The kernel grants a block device to one process only.
        let second = RegionOptions::new().read_only(true).open(&medium.path);
        assert_eq!(second.is_ok(), kind != Some(SourceKind::BlockDevice));
        drop((reader, second));
        medium.open(&RegionOptions::new());
    });
}

/// Region and logs of a process that is to be killed.
const CHILD: &str = "PRAMFS_TEST_MEDIA_CHILD";

#[test]
fn killed_process_image_recovers_ro_then_rw() {
    let name = "killed_process_image_recovers_ro_then_rw";
    if let Ok(child) = std::env::var(CHILD) {
        let (region, logs) = child.split_once('\n').unwrap();
        let record = Record::new(Path::new(logs), WRITERS, 12);
        let region = RegionOptions::new().open(region).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        let (record, access) = (&record, &EngineAccess(&fs));
        std::thread::scope(|scope| {
            for w in 0..WRITERS {
                scope.spawn(move || record.live(access, w, u64::MAX).unwrap());
            }
        });
        return;
    }
    on_each("deaths", |medium| {
        let logs = tempfile::tempdir().unwrap();
        let record = Record::new(logs.path(), WRITERS, 12);
        let fs = Fs::open(medium.formatted(BackendKind::Auto), quiet()).unwrap();
        record.begin(&EngineAccess(&fs)).unwrap();
        fs.close().unwrap();
        for _ in 0..3 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(
                    CHILD,
                    format!("{}\n{}", medium.path.display(), logs.path().display()),
                )
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let log = logs.path().join("w0.log");
            let _dog = Watchdog::new("writers to be killed", Duration::from_secs(120));
            while std::fs::metadata(&log).map_or(0, |m| m.len()) < 100 * 8 {
                assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();

            let bytes = || {
                let region = RegionOptions::new().read_only(true);
                let region = medium.open(&region);
                let mut bytes = vec![0; LEN as usize];
                region.read(0, &mut bytes).unwrap();
                crc32c::crc32c(&bytes)
            };
            let before = bytes();
            let region = medium.open(&RegionOptions::new().read_only(true));
            let fs = Fs::open(region, quiet()).unwrap();
            let seen = Tree::of(&fs).unwrap();
            fs.close().unwrap();
            assert_eq!(
                bytes(),
                before,
                "a read-only opening has changed the medium"
            );

            let fs = Fs::open(medium.open(&RegionOptions::new()), quiet()).unwrap();
            let found = Tree::of(&fs).unwrap();
            assert!(seen.nodes == found.nodes, "{}", seen.differences(&found));
            println!("{:?}", record.check(&EngineAccess(&fs)).unwrap());
            fs.close().unwrap();
            medium.fsck();
        }
    });
}
