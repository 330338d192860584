//! Whether memory files get huge pages, according to the kernel's settings.

use std::os::fd::BorrowedFd;

use super::mount_table::{self, Mount};
use super::source::SourceKind;

/// When the kernel gives huge pages to tmpfs or shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePolicy {
    /// Never.
    Never,
    /// If `madvise(MADV_HUGEPAGE)` requests them.
    Advise,
    /// If they lie inside the file.
    WithinSize,
    /// Whenever one is free.
    Always,
}

impl HugePolicy {
    /// Returns the value of the mount option `huge=`.
    pub fn name(self) -> &'static str {
        match self {
            HugePolicy::Never => "never",
            HugePolicy::Advise => "advise",
            HugePolicy::WithinSize => "within_size",
            HugePolicy::Always => "always",
        }
    }

    fn parse(word: &str) -> Option<HugePolicy> {
        match word {
            "never" | "deny" => Some(HugePolicy::Never),
            "advise" => Some(HugePolicy::Advise),
            "within_size" => Some(HugePolicy::WithinSize),
            "always" | "force" => Some(HugePolicy::Always),
            _ => None,
        }
    }
}

/// Returns the bracketed word of `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
pub(super) fn shmem_enabled() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    let word = text.split('[').nth(1)?.split(']').next()?;
    Some(word.to_owned())
}

/// Returns the free and total pages of the huge page pool of a size.
pub(super) fn pool(page: u64) -> Option<(u64, u64)> {
    let dir = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10);
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("{dir}/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    Some((free, number("nr_hugepages")?))
}

/// Returns the policy for a descriptor on tmpfs or a memfd. `None` for other kinds, or if
/// the kernel has no huge pages for shared memory.
pub(super) fn policy(fd: BorrowedFd<'_>, kind: SourceKind) -> Option<HugePolicy> {
    let global = shmem_enabled()?;
    // These two override every mount.
    if global == "deny" || global == "force" {
        return HugePolicy::parse(&global);
    }
    match kind {
        SourceKind::Memfd => HugePolicy::parse(&global),
        SourceKind::Tmpfs => {
            let dev = rustix::fs::fstat(fd).ok()?.st_dev;
            let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
            Some(mount_policy(&mount_table::read().ok()?, device))
        }
        _ => None,
    }
}

/// Returns the `huge=` option of the mount with a device number; without the option, never.
fn mount_policy(mounts: &[Mount], device: (u32, u32)) -> HugePolicy {
    mounts
        .iter()
        .filter(|mount| mount.device == device)
        .flat_map(|mount| mount.super_options.split(','))
        .find_map(|option| HugePolicy::parse(option.strip_prefix("huge=")?))
        .unwrap_or(HugePolicy::Never)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_option_is_read_from_matching_mount() {
        let text = b"22 1 0:20 / /a rw - tmpfs tmpfs rw,size=4k\n\
                    23 1 0:21 / /b rw,nosuid shared:7 - tmpfs none rw,huge=always,size=1g\n\
                    24 1 0:22 / /c rw - tmpfs none rw,huge=within_size\n";
        let policy = |minor| mount_policy(&mount_table::parse(text), (0, minor));
        assert_eq!(policy(20), HugePolicy::Never);
        assert_eq!(policy(21), HugePolicy::Always);
        assert_eq!(policy(22), HugePolicy::WithinSize);
        assert_eq!(policy(2), HugePolicy::Never);
    }
}
