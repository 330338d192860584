//! `opens=kernel`: what it is refused beside, and its price. Each test asserts what happens with
//! `opens=server`, too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pramfs::inode::{Fs, Ino};
use pramfs::pmem::RegionOptions;
use pramfs_tests::mounted::{Mounted, wait_until};
use rustix::fs::{CWD, IFlags, Mode, OFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::{MIB, mounted, unmounted};

/// The options, and whether the kernel opens files.
const BOTH: [(&str, bool); 2] = [("opens=server", false), ("opens=kernel", true)];

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap())
}

fn open_to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn set_flags(path: &Path, flags: IFlags) {
    rustix::fs::ioctl_setflags(File::open(path).unwrap(), flags).unwrap();
}

/// The refusal of a mount, which leaves nothing behind.
fn refusal(mount: &Mounted, options: &str) -> String {
    let out = mount.run(["-o", options]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{options}: {said}");
    assert!(!mount.is_mounted() && mount.processes().is_empty());
    said
}

#[test]
fn opens_kernel_beside_cache_none_or_direct_is_refused() {
    let Some((mount, _dog)) = unmounted("opens=kernel refused") else {
        return;
    };
    for other in ["cache=none", "direct=owner", "direct=group", "direct=all"] {
        for options in [
            format!("opens=kernel,{other}"),
            format!("{other},opens=kernel"),
        ] {
            let said = refusal(&mount, &options);
            let why = format!("opens=kernel cannot be combined with {other}: ");
            assert!(said.contains(&why), "{options}: {said}");
        }
    }
    for (options, by_kernel) in [
        ("opens=kernel,direct=off,cache=auto", true),
        ("opens=server,cache=none", false),
    ] {
        let out = mount.run(["-v", "-o", options]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{options}: {said}");
        assert_eq!(said.contains("opens=kernel)"), by_kernel, "{said}");
        mount.unmount();
    }
}

#[test]
fn remount_leaves_opens_as_mounted() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog)) = mounted("opens, remount", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, "x").unwrap();
        set_flags(&path, IFlags::IMMUTABLE);
        for again in ["opens=kernel", "opens=server"] {
            let out = mount.run(["-o", &format!("remount,noatime,{again}")]);
            assert!(out.status.success(), "{out:?}");
            assert!(mount.mounts_line().unwrap().contains("noatime"));
            assert_eq!(open_to_write(&path).is_ok(), by_kernel, "{options}");
        }
    }
}

#[test]
fn chattr_i_bites_at_write_and_msync_not_at_open() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog)) = mounted("chattr +i", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, [1; 8192]).unwrap();
        for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
            set_flags(&path, flag);
            let opened = open_to_write(&path);
            // A truncation is a request of its own.
            let truncating = OpenOptions::new().write(true).truncate(true).open(&path);
            assert_eq!(errno(truncating), Some(libc::EPERM), "{options}, {flag:?}");
            if !by_kernel {
                assert_eq!(errno(opened), Some(libc::EPERM), "{flag:?}");
            } else {
                let file = opened.unwrap();
                let direct = OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(&path)
                    .unwrap();
                assert_eq!(errno(file.write_at(b"x", 0)), Some(libc::EPERM), "{flag:?}");
                assert_eq!(errno(direct.write_at(b"x", 0)), Some(libc::EPERM));
                assert_eq!(errno(file.set_len(0)), Some(libc::EPERM));
            }
            set_flags(&path, IFlags::empty());
            assert_eq!(fs::read(&path).unwrap(), [1; 8192], "{options}, {flag:?}");
        }
    }
}

/// A shared mapping of the first page of a file.
pub(super) struct Mapping(*mut std::ffi::c_void);

const PAGE: usize = 4096;

impl Mapping {
    pub(super) fn of(file: &File) -> Mapping {
        let (prot, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, prot, how, file, 0) };
        Mapping(at.unwrap())
    }

    fn store(&self, byte: u8) {
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { self.0.cast::<u8>().write_volatile(byte) };
    }

    fn first(&self) -> u8 {
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { self.0.cast::<u8>().read_volatile() }
    }

    /// Stores a byte, and returns what msync says.
    pub(super) fn store_and_sync(&self, byte: u8) -> rustix::io::Result<()> {
        self.store(byte);
        // SAFETY: the whole mapping.
        unsafe { rustix::mm::msync(self.0, PAGE, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody else has the address.
        unsafe { rustix::mm::munmap(self.0, PAGE) }.unwrap();
    }
}

#[test]
fn store_to_immutable_or_append_only_file_fails_in_msync() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog)) = mounted("chattr, msync", options) else {
            return;
        };
        for (name, flag) in [("i", IFlags::IMMUTABLE), ("a", IFlags::APPEND)] {
            let path = mount.at(name);
            fs::write(&path, [1; PAGE]).unwrap();
            set_flags(&path, flag);
            let opened = open_to_write(&path);
            assert_eq!(opened.is_ok(), by_kernel, "{options}, {name}");
            if let Ok(file) = opened {
                let stored = Mapping::of(&file).store_and_sync(2);
                assert_eq!(stored, Err(rustix::io::Errno::PERM), "{name}");
            }
        }
        mount.unmount();
        mount.mount(options);
        for name in ["i", "a"] {
            assert_eq!(fs::read(mount.at(name)).unwrap(), [1; PAGE], "{options}");
        }
    }
}

/// What another process reads.
fn read_elsewhere(path: &Path) -> Vec<u8> {
    let out = Command::new("cat").arg(path).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    out.stdout
}

/// A refused page is clean for the kernel, which would serve it to everybody.
#[test]
fn refused_store_to_mapping_leaves_page_cache() {
    for (options, by_kernel) in BOTH {
        // An open that has to set the atime would drop the page, too.
        let options = format!("{options},noatime");
        let Some((mount, _dog)) = mounted("refused pages", &options) else {
            return;
        };
        let flags = [("i", IFlags::IMMUTABLE), ("a", IFlags::APPEND)];
        // The server permits what was mapped before `+i`.
        let refused = if by_kernel { &flags[..] } else { &flags[1..] };
        let mappings = refused.iter().map(|(name, flag)| {
            let path = mount.at(name);
            fs::write(&path, [1; 2 * PAGE]).unwrap();
            let mapping = Mapping::of(&open_to_write(&path).unwrap());
            set_flags(&path, *flag);
            let stored = mapping.store_and_sync(2);
            assert_eq!(stored, Err(rustix::io::Errno::PERM), "{options}, {name}");
            let old = || read_elsewhere(&path) == [1; 2 * PAGE];
            assert!(wait_until(old), "{options}, {name}");
            assert_eq!(mapping.first(), 1, "{options}, {name}");
            mapping
        });
        let mappings: Vec<_> = mappings.collect();
        // An unmount may come meanwhile, and waits for no more than the notification.
        for mapping in &mappings {
            assert!(mapping.store_and_sync(3).is_err(), "{options}");
        }
        drop(mappings);
        mount.unmount();
        mount.mount(&options);
        for (name, _) in refused {
            assert_eq!(fs::read(mount.at(name)).unwrap(), [1; 2 * PAGE]);
        }
    }
}

/// The server cannot tell an old mapping from a new one if no open has checked the flag.
#[test]
fn mapping_from_before_immutable_changes_file_unless_kernel_opens() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog)) = mounted("mapping before +i", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, [1; PAGE]).unwrap();
        let mapping = Mapping::of(&open_to_write(&path).unwrap());
        set_flags(&path, IFlags::IMMUTABLE);
        assert_eq!(mapping.store_and_sync(2).is_err(), by_kernel, "{options}");
        drop(mapping);
        mount.unmount();
        mount.mount(options);
        let first = if by_kernel { 1 } else { 2 };
        assert_eq!(fs::read(&path).unwrap()[0], first, "{options}");
    }
}

/// Whether reading moves the atime of a file.
fn moves_atime(path: &Path, read: impl FnOnce()) -> bool {
    let atime = || {
        let of = fs::metadata(path).unwrap();
        (of.atime(), of.atime_nsec())
    };
    let before = atime();
    // More than a tick of the clock of times.
    std::thread::sleep(Duration::from_millis(20));
    read();
    atime() > before
}

#[test]
fn cached_read_sets_no_atime_if_kernel_opens() {
    for policy in ["relatime", "strictatime"] {
        for (options, by_kernel) in BOTH {
            let options = format!("{options},{policy}");
            let Some((mount, _dog)) = mounted("atime", &options) else {
                return;
            };
            let path = mount.at("file");
            let cached = || assert_eq!(fs::read(&path).unwrap(), [1; PAGE]);
            // A write leaves its pages in the cache.
            fs::write(&path, [1; PAGE]).unwrap();
            assert_eq!(moves_atime(&path, cached), !by_kernel, "{options}");
            // Reads that the server sees set it in both modes.
            fs::write(&path, [1; PAGE]).unwrap();
            let direct = || {
                let mut file = OpenOptions::new();
                let file = file.read(true).custom_flags(libc::O_DIRECT).open(&path);
                file.unwrap().read_exact_at(&mut [0; 512], 0).unwrap();
            };
            assert!(moves_atime(&path, direct), "{options}");
            fs::write(&path, [1; PAGE]).unwrap();
            mount.unmount();
            mount.mount(&options);
            assert!(moves_atime(&path, cached), "{options}");
        }
    }
}

#[test]
fn repeated_listing_sets_no_atime_if_kernel_opens() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog)) = mounted("atime", &format!("{options},strictatime")) else {
            return;
        };
        let dir = mount.at("dir");
        fs::create_dir(&dir).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(dir.join("file"), "").unwrap();
        let list = || assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert!(moves_atime(&dir, list), "{options}, first");
        assert_eq!(moves_atime(&dir, list), !by_kernel, "{options}, cached");
    }
}

/// The kernel does not know whether a descriptor may have stored through a mapping.
#[test]
fn each_close_writes_back_if_kernel_opens() {
    let Some((mount, _dog)) = mounted("close", "opens=kernel") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, [1; PAGE]).unwrap();
    let reader = File::open(&path).unwrap();
    let mapping = Mapping::of(&open_to_write(&path).unwrap());
    mapping.store(2);
    drop(reader);
    // What the medium has by now is there after a crash.
    mount.crash();
    drop(mapping);
    mount.mount("");
    assert_eq!(fs::read(&path).unwrap()[0], 2);
}

/// The state of a thread and the call in which it waits, from `/proc`.
fn waits_in_pwrite(thread: i32) -> Option<char> {
    const PWRITE: &str = "18 ";
    let dir = format!("/proc/self/task/{thread}");
    let call = fs::read_to_string(format!("{dir}/syscall")).ok()?;
    let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    call.starts_with(PWRITE).then_some(state)
}

/// The server stands still, so that a writer whose request has been sent waits for it (S), and
/// one that waits for the lock of the file in the kernel shows it (D).
#[test]
fn direct_writers_of_one_file_take_turns_if_kernel_opens() {
    if !cfg!(target_arch = "x86_64") || fs::read("/proc/self/syscall").is_err() {
        pramfs_tests::skip::skipped("/proc does not tell in which call a thread waits");
        return;
    }
    for (options, by_kernel) in BOTH {
        // FUSE over io_uring has a state of its own while it waits.
        let options = format!("{options},transport=dev");
        let Some((mount, _dog)) = mounted("O_DIRECT writers", &options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, vec![0; 2 * PAGE]).unwrap();
        let open = || {
            let mut how = OpenOptions::new();
            let how = how.write(true).custom_flags(libc::O_DIRECT);
            how.open(&path).unwrap()
        };
        let writers = [(open(), 0), (open(), PAGE as u64)];
        mount.stop();
        std::thread::scope(|scope| {
            for ((file, at), state) in writers.iter().zip(['S', if by_kernel { 'D' } else { 'S' }])
            {
                let (say, said) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    say.send(rustix::thread::gettid().as_raw_nonzero().get())
                        .unwrap();
                    file.write_all_at(&[1; 512], *at).unwrap();
                });
                let thread = said.recv().unwrap();
                let waits = wait_until(|| waits_in_pwrite(thread) == Some(state));
                if !waits {
                    mount.signal(rustix::process::Signal::CONT);
                }
                assert!(waits, "{options}: {:?}", waits_in_pwrite(thread));
            }
            mount.signal(rustix::process::Signal::CONT);
        });
        let got = fs::read(&path).unwrap();
        assert_eq!((got[0], got[PAGE]), (1, 1), "{options}");
    }
}

#[test]
fn errors_remount_ro_bites_at_write_not_at_open() {
    for (options, by_kernel) in BOTH {
        let Some((mount, _dog, _)) = crate::damage::hurt("errors, opens") else {
            return;
        };
        mount.mount(&format!("{options},errors=remount-ro"));
        let path = mount.at("whole");
        // It keeps the kernel from remounting the file system read-only.
        let writer = open_to_write(&path).unwrap();
        let damaged = fs::metadata(mount.at("dir/hurt"));
        assert_eq!(errno(damaged), Some(libc::EUCLEAN));
        let opened = open_to_write(&path);
        match by_kernel {
            false => assert_eq!(errno(opened), Some(libc::EROFS)),
            true => {
                let refused = errno(opened.unwrap().write_at(b"x", 0));
                assert_eq!(refused, Some(libc::EROFS));
            }
        }
        assert_eq!(errno(writer.write_at(b"x", 0)), Some(libc::EROFS));
        assert_eq!(fs::read(&path).unwrap(), b"unharmed");
    }
}

/// The mtime that the medium has, as a mount after a crash would show it. `None` if the copy was
/// made while the medium changed.
fn mtime_on_medium(mount: &Mounted, name: &str) -> Option<(i64, i64)> {
    let copy = mount.region().with_file_name("copy");
    fs::copy(mount.region(), &copy).unwrap();
    let region = RegionOptions::new().open(&copy).ok()?;
    let fs = Fs::open(region, pramfs::MountOptions::default()).ok()?;
    let mtime = fs.lookup(Ino::ROOT, name.as_bytes()).ok()?.mtime;
    Some((mtime.sec, mtime.nsec.into()))
}

/// Neither open nor close nor fsync is there to store it.
#[test]
fn lagging_mtime_reaches_medium_without_close() {
    for (options, _) in BOTH {
        let Some((mount, _dog)) = mounted("lagging mtime", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, [1; PAGE]).unwrap();
        let before = fs::metadata(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let file = open_to_write(&path).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        let after = fs::metadata(&path).unwrap();
        let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
        assert!(times(&after) > times(&before));
        assert!(
            wait_until(|| mtime_on_medium(&mount, "file") == Some(times(&after))),
            "{options}"
        );
        drop(file);
    }
}

#[test]
fn unlinked_file_lives_while_open_whoever_opens() {
    for (options, _) in BOTH {
        let Some((mount, _dog)) = mounted("unlinked", options) else {
            return;
        };
        let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
        let before = free();
        let path = mount.at("file");
        let mut how = OpenOptions::new();
        let mut file = how
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(&vec![7; MIB as usize]).unwrap();
        let again = open_to_write(&path).unwrap();
        fs::remove_file(&path).unwrap();
        drop(file);
        // A page that is dropped from the cache comes back from the medium.
        rustix::fs::fadvise(&again, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file = again;
        file.seek(io::SeekFrom::End(0)).unwrap();
        file.write_all(b"more").unwrap();
        file.rewind().unwrap();
        let mut got = Vec::new();
        file.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(b"more") && got.len() as u64 == MIB + 4);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert!(before - free() >= 256, "{options}");
        drop(file);
        // A few blocks of metadata may stay.
        assert!(wait_until(|| before - free() < 64), "{options}: {}", free());
    }
}

#[test]
fn file_unlinked_while_open_is_freed_by_next_mount_whoever_opens() {
    for (options, _) in BOTH {
        let Some((mount, _dog)) = mounted("orphan", options) else {
            return;
        };
        let stat = || rustix::fs::statvfs(mount.path()).unwrap();
        fs::write(mount.at("keep"), "").unwrap();
        let before = stat();
        let mut file = File::create_new(mount.at("orphan")).unwrap();
        file.write_all(&vec![1; 4 << 20]).unwrap();
        fs::remove_file(mount.at("orphan")).unwrap();
        assert!(before.f_bfree - stat().f_bfree >= 1024, "{options}");
        mount.crash();
        drop(file);
        mount.mount(options);
        let freed = || before.f_bfree - stat().f_bfree < 64 && before.f_ffree - stat().f_ffree < 8;
        assert!(wait_until(freed), "{options}");
        assert!(mount.at("keep").exists() && !mount.at("orphan").exists());
    }
}

/// O_TMPFILE opens by its reply. Whether its RELEASE comes depends on whether the kernel has
/// asked for an OPEN before.
#[test]
fn unnamed_file_lives_until_last_close_whoever_opens() {
    for (options, _) in BOTH {
        // One thread: what is answered after a request was served after it.
        let options = format!("{options},transport=dev,threads=1");
        let Some((mount, _dog)) = mounted("unnamed", &options) else {
            return;
        };
        let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
        let unnamed = || {
            let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR);
            File::from(rustix::fs::open(mount.path(), flags | OFlags::CLOEXEC, mode).unwrap())
        };
        let before = free();
        for name in ["before the first OPEN", "after it"] {
            let mut file = unnamed();
            file.write_all(&vec![7; MIB as usize]).unwrap();
            assert!(before - free() >= 256, "{options}, {name}");
            drop(file);
            // A few blocks of metadata may stay.
            assert!(
                wait_until(|| before.saturating_sub(free()) < 64),
                "{options}, {name}"
            );

            let mut file = unnamed();
            file.write_all(b"contents").unwrap();
            let empty = rustix::fs::AtFlags::EMPTY_PATH;
            rustix::fs::linkat(&file, "", CWD, mount.at(name), empty).unwrap();
            drop(file);
            let file = File::open(mount.at(name)).unwrap();
            fs::remove_file(mount.at(name)).unwrap();
            // It frees what nobody refers to.
            free();
            let mut got = [0; 8];
            file.read_exact_at(&mut got, 0).unwrap();
            assert_eq!(&got, b"contents", "{options}, {name}");
            file.sync_all().unwrap();
        }
    }
}

/// Without CREATE, the kernel makes the file and opens it by itself.
#[test]
fn create_opens_what_it_makes_whoever_opens() {
    for (options, _) in BOTH {
        let Some((mount, _dog)) = mounted("create", options) else {
            return;
        };
        let create = |name: &str, mode: u32| {
            let mut how = OpenOptions::new();
            how.read(true).write(true).create_new(true).mode(mode);
            how.open(mount.at(name))
        };
        // More than once: the first time, the kernel learns how.
        for name in ["a", "b"] {
            // Open for writing, although nobody may open it so from now on.
            let mut file = create(name, 0o400).unwrap();
            file.write_all(b"contents").unwrap();
            let mode = file.metadata().unwrap().mode();
            assert_eq!(mode & 0o7777, 0o400, "{options}");
            assert_eq!(errno(create(name, 0o600)), Some(libc::EEXIST));
            assert_eq!(fs::read(mount.at(name)).unwrap(), b"contents");
        }
        // Not new: opened, and truncated by a request of its own.
        fs::write(mount.at("a"), "short").unwrap();
        assert_eq!(fs::read(mount.at("a")).unwrap(), b"short", "{options}");
        let missing = File::create(mount.at("missing/file"));
        assert_eq!(errno(missing), Some(libc::ENOENT));
    }
}
