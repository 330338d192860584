//! Warnings about a path, and commands to improve it.

use rustix::fs::FileType;

use super::{Report, Subject};
use crate::pmem::backend::{Granularity, Persistence};
use crate::pmem::hugepage::HugePolicy;
use crate::pmem::mapping::HUGE_2M;
use crate::pmem::source::{SourceKind, SysDevice};

/// The smallest region, in bytes.
const MIN_REGION: u64 = 256 << 10;

/// Fills the warnings and the advice of a report.
pub(super) fn advise(report: &mut Report, subject: &Subject) {
    if let Some(holder) = report.in_use.clone() {
        report
            .warnings
            .push(format!("{} {holder}.", report.path.display()));
    }
    let Some(kind) = report.kind else {
        if let Some(problem) = report.problem.clone() {
            let path = report.path.display();
            report.warnings.push(if report.exists {
                format!("{path} cannot hold a region: it {problem}.")
            } else {
                format!("{path} cannot hold a region: {problem}.")
            });
        }
        return;
    };
    durability(report, kind);
    match kind {
        SourceKind::Tmpfs | SourceKind::Memfd => tmpfs(report, kind),
        SourceKind::Hugetlbfs => hugetlbfs(report),
        SourceKind::FsDax => fsdax(report),
        SourceKind::File => file(report, subject),
        SourceKind::BlockDevice => block_device(report, subject),
        SourceKind::DevDax => devdax(report, subject),
        SourceKind::Physical => {}
    }
    length(report);
    sparse(report, kind);
}

fn durability(report: &mut Report, kind: SourceKind) {
    match report.persistence {
        Some(Persistence::Power) | None => {}
        Some(p @ Persistence::Reboot) => {
            report.warnings.push(format!(
                "The contents {} (docs/warm-reboot.md).",
                p.describe()
            ));
        }
        Some(p) => {
            report.warnings.push(format!(
                "The contents {}: not for data you want to keep.",
                p.describe()
            ));
        }
    }
    if report.granularity == Some(Granularity::Page) {
        report.warnings.push(
            "Stores become durable by the page and through msync: each durable operation costs a write-out of the device, unless it is mounted with -o durability=process (durable at fsync, sync and unmount only, and much faster)."
                .into(),
        );
    }
    if kind.is_dax() && report.flush_instruction == "clflush" {
        report.warnings.push(
            "This processor has neither clwb nor clflushopt: it flushes lines one by one, slowly."
                .into(),
        );
    }
}

fn tmpfs(report: &mut Report, kind: SourceKind) {
    if report.huge_policy.is_some_and(|p| p != HugePolicy::Never) {
        return;
    }
    report
        .warnings
        .push("It is mapped in 4 KiB pages; random access is slower than in huge pages.".into());
    match (report.shmem_enabled.as_deref(), &report.filesystem) {
        (None, _) => report.warnings.push("This kernel has no huge pages for tmpfs.".into()),
        (Some("deny"), _) => report.advice.push(
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled # lets tmpfs have huge pages again".into(),
        ),
        (Some(_), Some(fs)) if kind == SourceKind::Tmpfs && fs.fs_type == "tmpfs" => {
            let point = fs.mount_point.display();
            report.advice.push(format!("mount -o remount,huge=always {point} # huge pages for all files made there from now on"));
            report.advice.push(
                "mkdir -p /mnt/pramfs && mount -t tmpfs -o huge=always,size=1G tmpfs /mnt/pramfs # a tmpfs of huge pages for regions alone".into(),
            );
        }
        _ => report.advice.push(
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled # huge pages for shared memory that asks for them".into(),
        ),
    }
}

fn hugetlbfs(report: &mut Report) {
    let Some((free, total)) = report.huge_pool else {
        return;
    };
    let need = report.size.unwrap_or(1 << 30).div_ceil(report.alignment);
    let have = report.allocated.unwrap_or(0) / report.alignment;
    if free + have < need {
        let kib = report.alignment >> 10;
        report.warnings.push(format!(
            "The pool has {free} of {total} huge pages of {kib} KiB free."
        ));
        report.advice.push(format!(
            "echo {} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages # a pool large enough for {} bytes",
            total + need - free - have,
            need * report.alignment,
        ));
    }
}

fn fsdax(report: &mut Report) {
    if report.map_sync == Some(false) {
        report.warnings.push(
            "Its file system is DAX but refuses MAP_SYNC (virtiofs, or an old kernel): each fence is an msync.".into(),
        );
    }
    report.advice.push(format!(
        "fallocate -l SIZE {} # blocks set aside now are contiguous, and then mapped in 2 MiB pages",
        report.target().display()
    ));
}

fn file(report: &mut Report, subject: &Subject) {
    let disk = SysDevice::block(subject.stat.st_dev);
    let dax_queue = |d: &SysDevice| d.text("queue/dax").or_else(|| d.text("../queue/dax"));
    let fs = report.filesystem.clone();
    if dax_queue(&disk).as_deref() == Some("1")
        && let Some(fs) = fs.filter(|fs| fs.fs_type == "ext4" || fs.fs_type == "xfs")
    {
        report.warnings.push(format!(
            "{} is persistent memory, but {} on it is not mounted with DAX.",
            fs.device, fs.fs_type
        ));
        let (device, point) = (&fs.device, fs.mount_point.display());
        report.advice.push(format!(
            "umount {point} && mount -o dax=always {device} {point} # DAX for every file there"
        ));
        report.advice.push(format!(
            "xfs_io -c 'chattr +x' {} # DAX for files made in that directory from now on",
            directory(report, subject)
        ));
        return;
    }
    to_persistent_memory(report);
}

fn block_device(report: &mut Report, subject: &Subject) {
    let device = SysDevice::block(subject.stat.st_rdev);
    if !device.is_nvdimm() {
        return to_persistent_memory(report);
    }
    report.warnings.push(
        "This is persistent memory used as a disk: a block device is mapped through the page cache and not directly.".into(),
    );
    provider(report, &device);
    let path = report.path.display().to_string();
    if device.text("queue/dax").as_deref() == Some("1") {
        report.advice.push(format!(
            "mkfs.ext4 {path} && mkdir -p /mnt/pmem && mount -o dax=always {path} /mnt/pmem # then put the region in a file there (destroys the contents of the device)"
        ));
    }
    let namespace = component(&device, b"namespace").unwrap_or_else(|| "namespaceX.Y".into());
    report.advice.push(format!(
        "ndctl create-namespace -f -e {namespace} --mode=fsdax # persistent memory for a DAX file system (destroys its contents)"
    ));
    report.advice.push(format!(
        "ndctl create-namespace -f -e {namespace} --mode=devdax # a /dev/daxX.Y that is a region as a whole (destroys its contents)"
    ));
}

fn devdax(report: &mut Report, subject: &Subject) {
    let device = SysDevice::character(subject.stat.st_rdev);
    if device.is_nvdimm() {
        return provider(report, &device);
    }
    report.warnings.push(
        "This devdax device is not on the bus of persistent memory, but ordinary or CXL memory."
            .into(),
    );
}

/// Warns of persistent memory that the firmware does not confirm.
fn provider(report: &mut Report, device: &SysDevice) {
    if let Some(bus) = component(device, b"ndbus")
        && let Ok(name) = std::fs::read_to_string(format!("/sys/bus/nd/devices/{bus}/provider"))
        && name.trim() == "e820"
    {
        report.warnings.push(
            "memmap= or an old firmware table declares this memory. If it is plain DRAM, a power failure loses it, and so does a reboot if the firmware clears it.".into(),
        );
    }
    if let Some(region) = component(device, b"region")
        && let Ok(domain) =
            std::fs::read_to_string(format!("/sys/bus/nd/devices/{region}/persistence_domain"))
        && !matches!(domain.trim(), "memory_controller" | "cpu_cache")
    {
        report.warnings.push(format!(
            "The platform does not report that flushed lines survive a power failure (persistence domain: {}).",
            if domain.trim().is_empty() { "unknown" } else { domain.trim() }
        ));
    }
}

/// Returns the component of a device's sysfs path that begins with `prefix`, followed by a
/// digit.
fn component(device: &SysDevice, prefix: &[u8]) -> Option<String> {
    device.dir.components().find_map(|c| {
        let rest = c.as_os_str().as_encoded_bytes().strip_prefix(prefix)?;
        rest.first()?
            .is_ascii_digit()
            .then(|| c.as_os_str().to_string_lossy().into_owned())
    })
}

fn to_persistent_memory(report: &mut Report) {
    report.advice.push(
        "mkdir -m 0700 /dev/shm/pramfs && mkfs.pramfs /dev/shm/pramfs/region SIZE # for trying it out: memory, at full speed, lost at reboot".into(),
    );
    report.advice.push(
        "ndctl create-namespace --mode=fsdax # if the machine has unused persistent memory; then mkfs.ext4 and mount -o dax=always".into(),
    );
}

fn length(report: &mut Report) {
    let Some(size) = report.size else { return };
    let path = report.path.display();
    if size == 0 {
        report.warnings.push("It is empty.".into());
        report
            .advice
            .push(format!("mkfs.pramfs {path} SIZE # makes a region of it"));
    } else if size < MIN_REGION {
        report.warnings.push(format!(
            "Its {size} bytes are too few; a region needs at least {MIN_REGION}."
        ));
    } else if !size.is_multiple_of(report.alignment) && report.kind != Some(SourceKind::BlockDevice)
    {
        let up = size.next_multiple_of(report.alignment);
        report.warnings.push(format!(
            "Its {size} bytes are not a multiple of {}: it cannot be opened.",
            report.alignment
        ));
        report.advice.push(format!(
            "truncate -s {up} {path} # extends it to whole units"
        ));
    }
}

/// A store into a hole takes memory or a block, and fails if none is free.
fn sparse(report: &mut Report, kind: SourceKind) {
    let (Some(size), Some(allocated), Some(free)) = (report.size, report.allocated, report.free)
    else {
        return;
    };
    let missing = size.saturating_sub(allocated);
    if missing > free && kind != SourceKind::Hugetlbfs {
        report.warnings.push(format!(
            "It is sparse and may still need {missing} bytes, but its file system has only {free} bytes free. When they run out, stores fail with EIO."
        ));
    } else if missing >= HUGE_2M as u64 && kind == SourceKind::File {
        report.advice.push(format!(
            "fallocate -l {size} {} # reserves its space, so that no store can fail for lack of it",
            report.path.display()
        ));
    }
}

fn directory(report: &Report, subject: &Subject) -> String {
    let dir = match subject.file_type {
        FileType::Directory => Some(report.subject.as_path()),
        _ => report.subject.parent(),
    };
    dir.map_or_else(|| ".".into(), |d| d.display().to_string())
}
