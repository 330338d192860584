//! [`HugePool`]: huge pages for tests of several crates.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::sync::{Mutex, MutexGuard, rank};

/// A private hugetlbfs, mounted nowhere, with pages in the pool. Dropping it shrinks the
/// pool again.
#[derive(Debug)]
pub struct HugePool {
    dir: PathBuf,
    added: u64,
    _mount: OwnedFd,
    _turn: MutexGuard<'static, ()>,
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

impl HugePool {
    /// Adds `pages` of 2 MiB to the pool. Returns `None`, and prints the reason, if the
    /// system does not allow it.
    pub fn borrow(pages: u64) -> Option<HugePool> {
        static TURN: Mutex<(), rank::HugePool> = Mutex::new(());
        let turn = TURN.lock();
        match HugePool::try_borrow(pages, turn) {
            Ok(pool) => Some(pool),
            Err(why) => {
                skipped(format_args!(
                    "hugetlbfs: {why} (run as root with 2 MiB pages free)"
                ));
                None
            }
        }
    }

    fn try_borrow(pages: u64, turn: MutexGuard<'static, ()>) -> Result<HugePool, String> {
        use rustix::mount as m;
        let err = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
        let fs = m::fsopen("hugetlbfs", m::FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|e| err("fsopen", &e))?;
        m::fsconfig_create(fs.as_fd()).map_err(|e| err("fsconfig", &e))?;
        let mount = m::fsmount(
            fs.as_fd(),
            m::FsMountFlags::FSMOUNT_CLOEXEC,
            m::MountAttrFlags::empty(),
        )
        .map_err(|e| err("fsmount", &e))?;
        let number = |name: &str| -> Result<u64, String> {
            let text =
                std::fs::read_to_string(format!("{POOL}/{name}")).map_err(|e| err(name, &e))?;
            text.trim().parse().map_err(|e| err(name, &e))
        };
        let have = number("nr_hugepages")?;
        std::fs::write(format!("{POOL}/nr_hugepages"), (have + pages).to_string())
            .map_err(|e| err("nr_hugepages", &e))?;
        let added = number("nr_hugepages")?.saturating_sub(have);
        let dir = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        let pool = HugePool {
            dir,
            added,
            _mount: mount,
            _turn: turn,
        };
        if added < pages {
            Err("the pool cannot grow".into())
        } else {
            Ok(pool)
        }
    }

    /// Its root directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        let file = format!("{POOL}/nr_hugepages");
        if let Ok(now) = std::fs::read_to_string(&file) {
            let now: u64 = now.trim().parse().unwrap_or(0);
            let _ = std::fs::write(&file, now.saturating_sub(self.added).to_string());
        }
    }
}

/// Reports on stderr that something is not tested. The test harness does not capture it.
pub(in crate::pmem) fn skipped(what: impl std::fmt::Display) {
    use std::io::Write;
    let line = format!("\n*** SKIPPED: {what} ***\n\n");
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
