//! The summary of a mount: the settings in force, and the warnings.

use std::fmt::Write;
use std::path::Path;

use pramfs::pmem::{Durability, Granularity, Persistence, Protect, RegionInfo, SourceKind};
use pramfs::{RecoveryReport, inode::Fs};

use crate::adapter::{CacheMode, OpenedBy};
use crate::options::MountSettings;

/// Returns the summary of a mount, some lines of text.
pub fn of(fs: &Fs, mountpoint: &Path, settings: &MountSettings) -> String {
    let info = fs.region().info();
    let mut text = String::new();
    let access = if settings.read_only {
        "read-only"
    } else {
        "read-write"
    };
    let cache = settings.cache.name();
    let opens = match settings.opens {
        OpenedBy::Server => "",
        OpenedBy::Kernel => ", opens=kernel",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{} on {} ({access}, cache={cache}{opens})",
        info.name,
        mountpoint.display()
    );
    let _ = writeln!(text, "  medium: {}", medium(&info));
    let held_back = match settings.cache {
        CacheMode::Writeback => {
            "; a write through the mount only at fsync, msync or close (cache=writeback)"
        }
        CacheMode::Auto | CacheMode::None => "",
    };
    let _ = writeln!(text, "  durability: {}{held_back}", durability(&info));
    let _ = writeln!(text, "  protection: {}", protection(&info));
    let _ = writeln!(text, "  recovery: {}", recovery(fs.recovery()));
    text
}

/// Returns the warnings to print without `-v`, one line each: volatile contents and
/// damage. A healthy mount has none, nor has an effect requested by an option, because
/// programs compare the output of mount(8).
pub fn warnings(info: &RegionInfo, report: &RecoveryReport) -> Vec<String> {
    let kind = info.kind.map_or("memory", |kind| kind.name());
    let mut all: Vec<String> = info.lock_notice.iter().cloned().collect();
    match info.persistence {
        Persistence::Power => {}
        Persistence::Reboot => all.push(format!(
            "{kind}: contents survive a reset if the firmware leaves them alone, and no loss of power"
        )),
        Persistence::Machine if info.kind == Some(SourceKind::File) => all.push(
            "the file lies on volatile memory: contents survive the death of every process, but neither a reboot nor a power failure".to_owned()
        ),
        Persistence::Machine => all.push(format!(
            "{kind} is volatile memory: contents survive the death of every process, but neither a reboot nor a power failure"
        )),
        Persistence::Process => all.push(format!(
            "{kind} is volatile memory: contents are lost when the process that serves them ends"
        )),
    }
    all.extend(info.protect_notice.iter().map(|why| {
        format!("protect=auto protects nothing: {why}; protect=mprotect works here, and is slow")
    }));
    if report.used_copy {
        all.push("the first superblock is damaged; its copy is in use".to_owned());
    }
    if report.copy_damaged {
        all.push(format!(
            "the copy of the superblock is damaged: unmount, and run `fsck.pramfs -p {}` to rewrite it",
            info.name
        ));
    }
    if let Some((first, others)) = report.damage.split_first() {
        let more = match others.len() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        all.push(format!(
            "DAMAGED: {first}{more}; unmount and run `fsck.pramfs {}`",
            info.name
        ));
    }
    all
}

fn medium(info: &RegionInfo) -> String {
    let granularity = match info.granularity {
        Granularity::Byte => "byte granularity (caches survive a power failure)",
        Granularity::CacheLine => "cache-line granularity",
        Granularity::Page => "page granularity",
    };
    let kind = info.kind.map_or("memory", |kind| kind.name());
    let survives = match info.persistence {
        Persistence::Power => "contents survive a power failure once written",
        Persistence::Reboot => {
            "contents survive a reboot if the firmware leaves them alone, and no loss of power"
        }
        Persistence::Machine => "VOLATILE: contents will not survive a reboot",
        Persistence::Process => "VOLATILE: contents will not survive this process",
    };
    format!(
        "{kind}, backend {}, {granularity}; {survives}",
        info.backend
    )
}

pub(crate) fn durability(info: &RegionInfo) -> &'static str {
    match (info.granularity, info.durability) {
        _ if info.read_only => "nothing is written: the region is mapped privately",
        (Granularity::Byte, _) => {
            "power: an operation is durable when it returns, by a store fence"
        }
        (Granularity::CacheLine, _) => {
            "power: an operation is durable when it returns, by cache-line write-back and a fence"
        }
        (Granularity::Page, Durability::Power) => {
            "power: an operation is durable when it returns, by an msync at each fence (durability=process is faster)"
        }
        (Granularity::Page, Durability::Process) => {
            "process: contents survive the death of this process at any moment, but a power failure only up to the last fsync"
        }
    }
}

pub(crate) fn protection(info: &RegionInfo) -> String {
    match (info.protect, &info.protect_notice) {
        _ if info.read_only => "none needed: the region is mapped privately".to_owned(),
        (Protect::Pkey, _) => {
            "protect=pkey: only the thread of an operation can store to the region".to_owned()
        }
        (Protect::Mprotect, _) => {
            "protect=mprotect: nothing can store to the region but during an operation".to_owned()
        }
        (Protect::Off | Protect::Auto, Some(why)) => format!("protect=off: {why}"),
        (Protect::Off | Protect::Auto, None) => {
            "protect=off: stray stores of the server reach the region".to_owned()
        }
    }
}

pub(crate) fn recovery(report: &RecoveryReport) -> String {
    let mut text = if report.was_clean {
        "none needed, the last unmount was clean".to_owned()
    } else {
        format!(
            "{} records replayed, {} torn records skipped, {} orphans to free",
            report.records, report.torn, report.orphans
        )
    };
    if report.used_copy {
        text.push_str("; the first superblock is damaged and its copy is in use");
    }
    if report.copy_damaged {
        text.push_str("; the copy of the superblock is damaged");
    }
    for damage in &report.damage {
        text.push_str("; DAMAGED: ");
        text.push_str(damage);
    }
    text.push_str(&format!(" ({:.1} ms)", report.time.as_secs_f64() * 1e3));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pramfs::pmem::SourceKind;

    fn info(persistence: Persistence, granularity: Granularity) -> RegionInfo {
        RegionInfo {
            name: "/region".to_owned(),
            backend: "native",
            granularity,
            persistence,
            durability: Durability::Power,
            kind: Some(SourceKind::Tmpfs),
            read_only: false,
            lock_notice: None,
            protect: Protect::Off,
            protect_notice: None,
        }
    }

    #[test]
    fn summary_names_protection_in_force() {
        let mut info = info(Persistence::Power, Granularity::CacheLine);
        assert!(protection(&info).starts_with("protect=off: stray stores"));
        let sound = RecoveryReport::default();
        let before = warnings(&info, &sound).len();
        info.protect_notice = Some("the processor has no keys".to_owned());
        assert_eq!(protection(&info), "protect=off: the processor has no keys");
        let said = warnings(&info, &sound);
        assert_eq!(said.len(), before + 1);
        assert!(
            said[before].starts_with("protect=auto protects nothing: the processor has no keys")
        );
        info.protect_notice = None;
        for way in [Protect::Pkey, Protect::Mprotect] {
            info.protect = way;
            assert!(protection(&info).starts_with(&format!("protect={way}: ")));
        }
        info.read_only = true;
        assert!(protection(&info).starts_with("none needed"));
    }

    #[test]
    fn warnings_report_volatility_and_damage() {
        let sound = RecoveryReport::default();
        let mut disk = info(Persistence::Power, Granularity::Page);
        assert!(warnings(&disk, &sound).is_empty());
        disk.durability = Durability::Process;
        assert!(warnings(&disk, &sound).is_empty(), "it was asked for");

        for persistence in [Persistence::Machine, Persistence::Process] {
            let said = warnings(&info(persistence, Granularity::CacheLine), &sound);
            assert!(said.len() == 1 && said[0].starts_with("tmpfs is volatile"));
        }

        let said = warnings(&info(Persistence::Reboot, Granularity::CacheLine), &sound);
        assert!(said.len() == 1 && said[0].contains("no loss of power"));

        let damaged = RecoveryReport {
            used_copy: true,
            copy_damaged: true,
            damage: vec!["lane 3".to_owned(), "lane 4".to_owned()],
            ..RecoveryReport::default()
        };
        let said = warnings(&info(Persistence::Power, Granularity::Byte), &damaged);
        assert_eq!(said.len(), 3);
        assert!(said[0].contains("first superblock"));
        assert!(said[1].contains("copy of the superblock") && said[1].contains("-p /region"));
        assert!(said[2].contains("lane 3 (and 1 more)"));
        assert!(said[2].contains("`fsck.pramfs /region`"));
    }
}
