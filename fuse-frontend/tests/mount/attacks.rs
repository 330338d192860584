//! Attacks by another user of the machine on root's mounts. None may succeed.
//!
//! Each test runs in its own mount and pid namespace. There every user may open /dev/fuse,
//! as with udev, /run is empty, and the other user has a name, which fusermount3 needs.
//! Processes that a test has started end with it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use pramfs::format::{FormatOptions, format};
use pramfs_fuse::mountinfo::AnchoredMount;
use pramfs_fuse::options::MountSettings;
use pramfs_fuse::{kernel, mountpoint};
use pramfs_medium::pmem::{RegionOptions, is_being_released};
use pramfs_tests::mounted::{self, Mounted, copy_program, wait_until};
use pramfs_tests::watchdog::Watchdog;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::{MIB, namespaces, program};

const MALLORY: u32 = 4242;

/// Names the program that the re-executed test becomes.
const BECOME: &str = "PRAMFS_TEST_BECOME";

/// The directory of a test in its own namespace.
const SCRATCH: &str = "PRAMFS_TEST_SCRATCH";

const SETUP: &str = "\
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755 scratch \"$PRAMFS_TEST_SCRATCH\"
cd \"$PRAMFS_TEST_SCRATCH\"
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
{ cat /etc/passwd; echo mallory:x:4242:4242::/:/bin/sh; } > passwd
mount --bind passwd /etc/passwd
exec \"$@\"";

/// Root's region, not mounted yet, in a directory visible to others, and the home of the
/// other user.
struct Scene {
    root: Mounted,
    scratch: PathBuf,
    _dog: Watchdog,
}

impl Scene {
    /// Returns `None` if the test cannot run, and in the outer process that runs it in its
    /// own namespace.
    fn new(test: &str) -> Option<Scene> {
        if !mounted::available(test) {
            return None;
        }
        let Some(scratch) = std::env::var_os(SCRATCH) else {
            let scratch = tempfile::tempdir().unwrap();
            let mut unshare = Command::new("unshare");
            unshare
                .args([
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-ec",
                    SETUP,
                    "sh",
                ])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", &format!("attacks::{test}"), "--nocapture"])
                .env(SCRATCH, scratch.path());
            let out = namespaces::output(&mut unshare);
            let said = [&out.stdout[..], &out.stderr[..]].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(out.status.success() && said.contains("1 passed"), "{said}");
            eprint!("{said}");
            return None;
        };
        let dog = Watchdog::new(test, std::time::Duration::from_secs(60));
        let scene = Scene {
            root: Mounted::unmounted(program(), 64 * MIB),
            scratch: scratch.into(),
            _dog: dog,
        };
        let dir = scene.root.region().parent().unwrap().to_owned();
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["home", "home/m", "two"] {
            fs::create_dir(scene.at(name)).unwrap();
        }
        copy_program(program(), scene.at("mount.pramfs"));
        let region = RegionOptions::new().create(scene.at("home/img"), 16 * MIB);
        format(&region.unwrap(), &FormatOptions::default()).unwrap();
        // The other user writes into the root of their own file system.
        for name in ["home", "home/m", "home/img"] {
            chown(scene.at(name), Some(MALLORY), Some(MALLORY)).unwrap();
        }
        Some(scene)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs a shell script as the other user, with the region as `$1`, the scratch directory
    /// as `$2` and the region's directory as `$3`. The script prints "ready" and stays.
    fn mallory(&self, script: &str) -> Attacker {
        let region = self.root.region();
        let mut child = Command::new("sh")
            .args(["-ec", script, "sh"])
            .arg(&region)
            .arg(&self.scratch)
            .arg(region.parent().unwrap())
            .current_dir(self.at("home"))
            .uid(MALLORY)
            .gid(MALLORY)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let attacker = Attacker(child);
        let mut said = lines.map_while(Result::ok);
        assert!(
            said.any(|line| line == "ready"),
            "the attack does not begin: {script}"
        );
        attacker
    }

    /// Mounts the other user's own file system under the name of root's region.
    fn forged_mount(&self, before: &str) -> Attacker {
        let attacker = self.mallory(&format!(
            "{before}
            $2/mount.pramfs -f -o fsname=$1 $2/home/img $2/home/m >&2 &
            i=0
            until [ \"$(stat -c %m $2/home/m)\" = $2/home/m ]; do
                sleep 0.1; i=$((i + 1)); [ $i -lt 200 ]
            done
            echo ready
            wait"
        ));
        assert!(is_forged(&self.at("home/m")), "their own mount");
        attacker
    }

    fn mount_root(&self, place: &Path) -> Output {
        Command::new(program())
            .arg(self.root.region())
            .arg(place)
            .output()
            .unwrap()
    }

    fn let_others_read(&self) {
        fs::set_permissions(self.root.region(), PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// Checks that root's second mount shows root's region.
    fn second_mount_is_roots(&self) {
        self.root.mount("");
        fs::write(self.root.at("real"), "").unwrap();
        let two = self.at("two");
        let out = self.mount_root(&two);
        assert!(out.status.success(), "{out:?}");
        assert!(!is_forged(&two), "{}", mounts_of(&two));
        assert!(two.join("real").exists());
        mounted::unmount_when_free(&two);
    }

    /// Checks that root mounts the region although a process that may only read it has locked
    /// it, and is told so. The mount shows root's region.
    fn first_mount_passes_reader(&self) {
        let out = self.mount_root(&self.root.path());
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert!(said.contains("may only read it: process"), "{said}");
        assert!(!is_forged(&self.root.path()));
        fs::write(self.root.at("real"), "").unwrap();
        // A second mount is of the same server, whoever has the lock.
        let two = self.at("two");
        let out = self.mount_root(&two);
        assert!(out.status.success() && two.join("real").exists(), "{out:?}");
        mounted::unmount_when_free(&two);
        mounted::unmount_when_free(&self.root.path());
        // The scripts of the other user have the name of the region too.
        let is_roots = |pid: rustix::process::Pid| {
            let process = format!("/proc/{}", pid.as_raw_nonzero());
            fs::metadata(process).is_ok_and(|process| process.uid() == 0)
        };
        let ended = || !self.root.processes().into_iter().any(is_roots);
        assert!(wait_until(ended));
    }

    /// Checks that root's first mount fails and names the process that holds the region.
    fn first_mount_is_refused(&self) {
        let out = self.mount_root(&self.root.path());
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(32), "{said}");
        assert!(said.contains("in use by process"), "{said}");
        assert!(!self.root.is_mounted());
    }
}

/// A process group of the attacker, killed on drop.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _status = self.0.wait();
    }
}

fn mounts_of(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let on = format!(" {} ", path.display());
    let lines = mounts.lines().filter(|line| line.contains(&on));
    lines.collect::<Vec<_>>().join("\n")
}

/// Tells whether the mount at a path is the other user's.
fn is_forged(path: &Path) -> bool {
    mounts_of(path).contains("user_id=4242")
}

/// The other user serves an image under the region's name. The server has a descriptor that
/// looks like one of the region: a file with that path in its own mount namespace.
#[test]
fn second_mount_ignores_forged_server() {
    let Some(scene) = Scene::new("second_mount_ignores_forged_server") else {
        return;
    };
    let can = Command::new("unshare")
        .args(["-Urm", "true"])
        .uid(MALLORY)
        .gid(MALLORY)
        .status();
    if !can.is_ok_and(|status| status.success()) {
        pramfs_tests::skip::skipped("no user namespaces for users: the forged descriptor");
        return;
    }
    let _attacker = scene.forged_mount(
        "unshare -Urm sh -c 'mount -t tmpfs t /dev/shm; mkdir -p $2; : > $1; exec 9<$1; exec sleep 1000' sh $1 $3 >&2 &
        i=0
        until [ -e /proc/$!/fd/9 ]; do sleep 0.1; i=$((i + 1)); [ $i -lt 200 ]; done
        exec 9</proc/$!/fd/9
        [ \"$(readlink /proc/$$/fd/9)\" = $1 ]",
    );
    scene.second_mount_is_roots();
}

/// The region is readable by others. The other user locks it and serves a forged mount.
#[test]
fn first_mount_passes_lock_and_forged_mount_of_reader() {
    let Some(scene) = Scene::new("first_mount_passes_lock_and_forged_mount_of_reader") else {
        return;
    };
    scene.let_others_read();
    let _attacker = scene.forged_mount("exec 9<$1; flock -x 9");
    scene.first_mount_passes_reader();
}

/// The forged mount has only the name, no descriptor.
#[test]
fn second_mount_ignores_forged_source_name() {
    let Some(scene) = Scene::new("second_mount_ignores_forged_source_name") else {
        return;
    };
    let _attacker = scene.forged_mount("");
    scene.second_mount_is_roots();
}

#[test]
fn first_mount_passes_forged_source_and_lock_of_reader() {
    let Some(scene) = Scene::new("first_mount_passes_forged_source_and_lock_of_reader") else {
        return;
    };
    scene.let_others_read();
    let _mount = scene.forged_mount("");
    let _lock = scene.mallory("exec 9<$1; flock -x 9; echo ready; exec sleep 1000");
    scene.first_mount_passes_reader();
}

/// Runs in the process that [`locks_and_becomes`] starts.
fn lock_and_become() {
    let Some(program) = std::env::var_os(BECOME) else {
        return;
    };
    rustix::fs::flock(std::io::stdin(), rustix::fs::FlockOperation::LockExclusive).unwrap();
    panic!("{}", Command::new(program).arg("1000").exec());
}

/// Starts a root process that locks the region on its standard input, and then executes
/// another program.
fn locks_and_becomes(test: &str, region: &Path, program: &Path) -> Attacker {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("attacks::{test}"), "--nocapture"])
        .env(BECOME, program)
        .process_group(0)
        .stdin(File::open(region).unwrap())
        .spawn();
    Attacker(child.unwrap())
}

/// The kernel identifies the processes of root; the name of a process does not count.
#[test]
fn open_does_not_wait_for_process_named_as_server() {
    let test = "open_does_not_wait_for_process_named_as_server";
    lock_and_become();
    let Some(scene) = Scene::new(test) else {
        return;
    };
    scene.let_others_read();
    let region = scene.root.region();
    for name in ["fake", "link"] {
        fs::create_dir(scene.at(name)).unwrap();
    }
    let fake = scene.at("fake/mount.pramfs");
    copy_program("/bin/sleep", &fake);
    let hold = "exec 9<$1; flock -x 9; echo ready; exec $2/fake/mount.pramfs 1000";
    let is_named = |child: &Child| {
        let name = format!("/proc/{}/comm", child.id());
        wait_until(|| fs::read_to_string(&name).is_ok_and(|name| name == "mount.pramfs\n"))
    };
    {
        let attacker = scene.mallory(hold);
        assert!(is_named(&attacker.0));
        assert!(!is_being_released(&region));
        scene.first_mount_passes_reader();
        let opened = RegionOptions::new().open(&region).unwrap();
        assert!(opened.info().lock_notice.is_some());
    }
    // A root process that was passed the region, as any user can do with a set-user-ID
    // program.
    let roots = Command::new(&fake)
        .arg("1000")
        .process_group(0)
        .stdin(File::open(&region).unwrap())
        .spawn()
        .unwrap();
    let roots = Attacker(roots);
    assert!(is_named(&roots.0) && !is_being_released(&region));
    drop(roots);
    // The same with a link of that name, after it has locked the region.
    let link = scene.at("link/mount.pramfs");
    symlink("/bin/sleep", &link).unwrap();
    let roots = locks_and_becomes(test, &region, &link);
    assert!(is_named(&roots.0) && !is_being_released(&region));
    scene.first_mount_is_refused();
    drop(roots);
    // The helper waits for a root process that is this program and holds the lock.
    let roots = locks_and_becomes(test, &region, &fake);
    assert!(is_named(&roots.0) && is_being_released(&region));
    drop(roots);

    // A process that waits for the lock gets it at the unmount.
    assert!(wait_until(|| scene
        .mount_root(&scene.root.path())
        .status
        .success()));
    let attacker = scene.mallory("exec 9<$1; echo ready; flock -x 9; exec sleep 1000");
    let out = Command::new(program())
        .arg0("/sbin/umount.fuse.pramfs")
        .arg(scene.root.path())
        .output()
        .unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    drop(attacker);
}

/// The path to the mount point is replaced after the check.
#[test]
fn mount_on_replaced_path_uses_checked_directory() {
    let Some(scene) = Scene::new("mount_on_replaced_path_uses_checked_directory") else {
        return;
    };
    let at = |name: &str| scene.at(name);
    fs::create_dir_all(at("home/way/point")).unwrap();
    fs::create_dir_all(at("victim/point")).unwrap();
    let point = mountpoint::prepare(&at("home/way/point"), false).unwrap();
    fs::rename(at("home/way"), at("home/moved")).unwrap();
    symlink(at("victim"), at("home/way")).unwrap();
    let settings = MountSettings::default();
    let (connection, place) = kernel::connect(&point, "region", &settings).unwrap();
    assert_eq!(mounts_of(&at("victim/point")), "");
    let line = mounts_of(&at("home/moved/point"));
    assert!(line.starts_with("region ") && line.contains(" fuse.pramfs rw,relatime,user_id=0"));
    // Unmounting works wherever the directory has moved.
    fs::rename(at("home/moved"), at("home/again")).unwrap();
    place.detach().unwrap();
    assert_eq!(mounts_of(&at("home/again/point")), "");
    drop(connection);
}

/// A mount that has replaced the found one is not unmounted.
#[test]
fn unmount_of_replaced_path_removes_nothing_else() {
    let Some(scene) = Scene::new("unmount_of_replaced_path_removes_nothing_else") else {
        return;
    };
    let at = |name: &str| scene.at(name);
    for name in ["home/a", "victim", "victim/a"] {
        fs::create_dir(at(name)).unwrap();
    }
    let mount = |name: &str| {
        rustix::mount::mount("t", at(name), "tmpfs", MountFlags::empty(), c"").unwrap();
    };
    mount("home/a");
    mount("victim/a");
    let anchored = AnchoredMount::of_path(&at("home/a")).unwrap();
    // A symbolic link in the path does not redirect it.
    fs::rename(at("home"), at("moved")).unwrap();
    symlink(at("victim"), at("home")).unwrap();
    // Another mount on top is not unmounted instead.
    mount("moved/a");
    let error = kernel::unmount(&anchored, UnmountFlags::DETACH).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    assert_eq!(mounts_of(&at("moved/a")).lines().count(), 2);
    rustix::mount::unmount(at("moved/a"), UnmountFlags::empty()).unwrap();
    kernel::unmount(&anchored, UnmountFlags::DETACH).unwrap();
    assert_eq!(mounts_of(&at("moved/a")), "");
    assert_ne!(mounts_of(&at("victim/a")), "");
}

/// Root remounts only its own mounts, whatever names other users choose.
#[test]
fn remount_of_other_users_mount_fails() {
    let Some(scene) = Scene::new("remount_of_other_users_mount_fails") else {
        return;
    };
    let _attacker = scene.forged_mount("");
    let out = Command::new(program())
        .arg(scene.root.region())
        .arg(scene.at("home/m"))
        .args(["-o", "remount,suid,dev"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(32), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("another user"), "{said}");
    assert!(mounts_of(&scene.at("home/m")).contains("nosuid,nodev"));
}
