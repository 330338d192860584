//! A mount shown a second time with other owners: user 0 of the medium as user
//! [`SHIFT`], user 1 as the next, and so on.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use tempfile::TempDir;

use crate::syscalls;

/// Where user 0 and group 0 of the medium are shown.
pub const SHIFT: u32 = 100_000;

/// How many ids are mapped.
pub const COUNT: u32 = 70_000;

/// A mapped mount, unmounted on drop.
#[derive(Debug)]
pub struct Idmapped {
    dir: TempDir,
}

impl Idmapped {
    /// Mounts a mount once more, mapped.
    ///
    /// # Errors
    /// Of mount_setattr.
    ///
    /// # Panics
    /// Where anything else fails.
    pub fn of(mount: &Path) -> Result<Idmapped, Errno> {
        let namespace = Namespace::new();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, mount, flags).expect("open_tree");
        syscalls::map_ids(&tree, &namespace.open())?;
        let dir = tempfile::Builder::new()
            .prefix("pramfs-idmapped-")
            .tempdir()
            .expect("a mount point");
        let attach = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", CWD, dir.path(), attach).expect("move_mount");
        Ok(Idmapped { dir })
    }

    /// A path in the mapped mount.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Idmapped {
    fn drop(&mut self) {
        // A failed test may leave files open.
        if let Err(error) = unmount(self.dir.path(), UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.dir.path().display());
        }
    }
}

/// A process whose user namespace has the map.
struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let mut child = Command::new("unshare")
            .args(["--user", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        // What comes back shows that the namespace is there.
        let said = child.stdin.as_mut().expect("stdin").write_all(b"x");
        let mut heard = [0];
        let heard = child
            .stdout
            .as_mut()
            .expect("stdout")
            .read_exact(&mut heard);
        said.and(heard).expect("unshare --user");
        let namespace = Namespace(child);
        for map in ["uid_map", "gid_map"] {
            let line = format!("0 {SHIFT} {COUNT}");
            fs::write(namespace.path(map), line).expect("the map");
        }
        namespace
    }

    fn path(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0.id()).into()
    }

    fn open(&self) -> File {
        File::open(self.path("ns/user")).expect("the namespace")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _status = self.0.wait();
    }
}
