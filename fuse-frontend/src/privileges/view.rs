//! Takes the view of files away from a server that opens none any more (Landlock).
//!
//! What stays: the region itself, and for a region on persistent memory the files of `/sys` by
//! which a flush reaches the medium. The names of its sockets stay when it ends, and the next server
//! replaces them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use pramfs_kernel_sys::landlock::{Access, restrict};
use rustix::fs::{Mode, OFlags};

/// Where the kernel has its devices.
const DEVICES: &str = "/sys/devices";

/// What a server without a mount still needs of the files of this machine.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The region.
    pub region: &'a Path,
    /// The region is on a device, or a file that is mapped with DAX.
    pub on_device: bool,
}

impl View<'_> {
    /// Takes the rest away from this thread and those that it will start. The thread has given up
    /// new privileges.
    ///
    /// # Errors
    /// The kernel does not have Landlock, or refuses.
    pub(super) fn keep_only(self) -> io::Result<()> {
        let open = |path: &Path| -> io::Result<File> {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
        };
        let store = Access::READ_FILE.and(Access::WRITE_FILE);
        let mut kept = vec![(open(self.region)?, store.and(Access::TRUNCATE))];
        if self.on_device {
            kept.push((open(Path::new(DEVICES))?, store));
        }
        let rules = kept.iter().map(|(file, access)| (file.as_fd(), *access));
        restrict(&rules.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::PermissionDenied;

    /// In a thread of its own: it concerns this one alone.
    #[test]
    fn view_keeps_region_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["region", "other"] {
            std::fs::write(at(name), name).unwrap();
        }
        let (region, other) = (at("region"), at("other"));
        let thread = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            let view = View {
                region: &region,
                on_device: false,
            };
            if let Err(error) = view.keep_only() {
                return pramfs_tests::skip::skipped(format!("no Landlock: {error}"));
            }
            File::options()
                .read(true)
                .write(true)
                .open(&region)
                .unwrap();
            for path in [
                other.as_path(),
                Path::new("/etc/passwd"),
                Path::new(DEVICES),
            ] {
                let kind = File::open(path).map_err(|error| error.kind());
                assert_eq!(kind.err(), Some(PermissionDenied), "{}", path.display());
            }
            for path in [&region, &other] {
                let kind = std::fs::remove_file(path).map_err(|error| error.kind());
                assert_eq!(kind.err(), Some(PermissionDenied));
            }
        });
        thread.join().unwrap();
    }
}
