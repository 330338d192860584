//! What `pramfs doctor` says of the transports of a mount (`mount.pramfs -o transport=`): which
//! of them this kernel allows, what is missing for the others, and which suits which load.
//!
//! It reads three settings of the kernel and changes none.

use std::path::Path;

use serde::Serialize;

/// FUSE over io_uring, for new mounts.
const FUSE_SWITCH: &str = "sys/module/fuse/parameters/enable_uring";
/// Who may use io_uring.
const URING_SWITCH: &str = "proc/sys/kernel/io_uring_disabled";

/// Which transport suits which load; the figures are those of `docs/benchmarks.md`.
const SUITS: [(&str, &str); 2] = [
    (
        "uring",
        "small requests and names (trees of files, git): 1.3 to 2.2 times as fast as dev and fuser",
    ),
    (
        "dev",
        "reads of 1 MiB that are not cached: 1.2 to 1.9 times as fast as uring, which copies more",
    ),
];

/// The kernel's switch of FUSE over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum FuseUring {
    /// New mounts may use it.
    On,
    /// They may not.
    Off,
    /// The kernel has no such switch.
    Absent,
    /// The module is not loaded, so nobody knows.
    NotLoaded,
}

/// Who may use io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum IoUring {
    /// Every process.
    All,
    /// Processes with CAP_SYS_ADMIN, and those of one group.
    Privileged,
    /// No process.
    Nobody,
}

/// The transports here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Transports {
    /// Whether `/dev/fuse` is there.
    dev_fuse: bool,
    enable_uring: FuseUring,
    io_uring: IoUring,
    /// The transports that a mount of root can use.
    usable: Vec<&'static str>,
    /// Why there is no `uring`, and what to do.
    missing: Option<String>,
    suits: Vec<Suits>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Suits {
    transport: &'static str,
    load: &'static str,
}

impl Transports {
    /// Looks at the files of the kernel below `root`.
    pub(super) fn find(root: &Path) -> Transports {
        let setting = |path: &str| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(text.trim().to_owned())
        };
        let dev_fuse = root.join("dev/fuse").exists();
        let enable_uring = match setting(FUSE_SWITCH).as_deref() {
            Some("Y" | "1") => FuseUring::On,
            Some(_) => FuseUring::Off,
            None if root.join("sys/module/fuse").exists() => FuseUring::Absent,
            None => FuseUring::NotLoaded,
        };
        // Kernels before 6.6 have no such setting and allow it.
        let io_uring = match setting(URING_SWITCH).as_deref() {
            None | Some("0") => IoUring::All,
            Some("1") => IoUring::Privileged,
            Some(_) => IoUring::Nobody,
        };
        let missing = missing(dev_fuse, enable_uring, io_uring);
        let usable = match (dev_fuse, &missing) {
            (false, _) => Vec::new(),
            (true, None) => vec!["uring", "dev", "fuser"],
            (true, Some(_)) => vec!["dev", "fuser"],
        };
        let suits = SUITS.map(|(transport, load)| Suits { transport, load });
        Transports {
            dev_fuse,
            enable_uring,
            io_uring,
            usable,
            missing,
            suits: suits.into(),
        }
    }

    /// What a mount can use, for a line of the report.
    pub(super) fn summary(&self) -> String {
        match (&self.usable[..], self.io_uring) {
            ([], _) => "none".to_owned(),
            (usable, IoUring::Privileged) if usable.contains(&"uring") => {
                format!("{} (uring for mounts of root)", usable.join(", "))
            }
            (usable, _) => usable.join(", "),
        }
    }

    /// What is missing, and which transport suits which load, in lines.
    pub(super) fn advice(&self) -> String {
        let mut text = String::new();
        if let Some(missing) = &self.missing {
            text += &format!("{missing}\n");
        }
        if self.dev_fuse {
            text += "Which transport to mount with (-o transport=):\n";
            for Suits { transport, load } in &self.suits {
                text += &format!("  {transport:<6} {load}\n");
            }
        }
        text
    }
}

/// Why a mount of root cannot use io_uring, and what to do.
fn missing(dev_fuse: bool, fuse: FuseUring, io_uring: IoUring) -> Option<String> {
    let off = match fuse {
        _ if !dev_fuse => {
            return Some(
                "No /dev/fuse: nothing can be mounted here. Type modprobe fuse; in a container, pass the device on.".to_owned(),
            );
        }
        FuseUring::NotLoaded => Some(
            "No transport=uring before the module fuse is loaded: type modprobe fuse, and run this again.",
        ),
        FuseUring::Absent => Some(
            "No transport=uring: this kernel has no FUSE over io_uring (Linux 6.14 and later have it, if built with CONFIG_FUSE_IO_URING).",
        ),
        FuseUring::Off => Some(
            "No transport=uring: it is switched off. For new mounts, type: echo Y > /sys/module/fuse/parameters/enable_uring",
        ),
        FuseUring::On => None,
    };
    let forbidden = (io_uring == IoUring::Nobody).then_some(
        "No transport=uring: no process may use io_uring. Type: sysctl kernel.io_uring_disabled=0",
    );
    let all: Vec<&str> = off.into_iter().chain(forbidden).collect();
    (!all.is_empty()).then(|| all.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is found on a machine with these files.
    fn on(files: &[(&str, &str)]) -> Transports {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        Transports::find(root.path())
    }

    const DEVICE: (&str, &str) = ("dev/fuse", "");

    #[test]
    fn each_setting_of_the_kernel_has_its_advice() {
        let (on_, off) = ((FUSE_SWITCH, "Y"), (FUSE_SWITCH, "N"));
        let old = ("sys/module/fuse/parameters/max_user_bgreq", "7866");
        let [all, root, none] = ["0", "1", "2"].map(|value| (URING_SWITCH, value));
        for (files, usable, says) in [
            (&[DEVICE, on_, all][..], "uring, dev, fuser", &[][..]),
            // Before Linux 6.6.
            (&[DEVICE, on_], "uring, dev, fuser", &[]),
            (
                &[DEVICE, on_, root],
                "uring, dev, fuser (uring for mounts of root)",
                &[],
            ),
            (&[DEVICE, on_, none], "dev, fuser", &["io_uring_disabled=0"]),
            (&[DEVICE, off, all], "dev, fuser", &["echo Y > "]),
            (
                &[DEVICE, off, none],
                "dev, fuser",
                &["echo Y > ", "io_uring_disabled=0"],
            ),
            (&[DEVICE, old, all], "dev, fuser", &["Linux 6.14"]),
            (&[DEVICE, all], "dev, fuser", &["modprobe fuse"]),
            (&[on_, all], "none", &["No /dev/fuse"]),
        ] {
            let found = on(files);
            assert_eq!(found.summary(), usable, "{files:?}");
            let advice = found.advice();
            for part in says {
                assert!(advice.contains(part), "{files:?}: {advice}");
            }
            assert_eq!(found.missing.is_some(), !says.is_empty(), "{files:?}");
            let suits = advice.contains("  uring  small requests");
            assert_eq!(suits, found.dev_fuse, "{files:?}: {advice}");
        }
    }
}
