//! The requests that system calls cost, counted by the server, and the table of them in
//! `docs/architecture.md`, which `PRAMFS_BLESS=1` writes anew.
//!
//! The server has one thread and takes requests in their order. So when statfs(2) is answered,
//! all requests from before have been counted, those that nobody waits for (RELEASE) too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use pramfs_control::{Connection, DIRECTORY, Directory, Identity};
use pramfs_fuse_protocol::Opcode;
use pramfs_tests::mounted::Mounted;
use pramfs_tests::skip::skipped;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags};

use crate::kernel_opens::Mapping;
use crate::{mounted, unmounted};

/// The columns of the table.
const MODES: [&str; 3] = ["opens=server", "opens=kernel", "cache=writeback"];

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/architecture.md");

/// How often each operation was asked for.
type Counts = BTreeMap<String, u64>;

/// A row of the table.
struct Row {
    name: &'static str,
    /// Makes what the calls need, in a directory of an earlier mount.
    make: fn(&Path),
    /// Makes the kernel know what it is to know, and opens files.
    before: fn(&Path) -> Vec<File>,
    /// The calls that are counted.
    calls: fn(&Path, &[File]),
}

const BLOCK: [u8; 4096] = [1; 4096];

fn write(path: &Path) {
    fs::write(path, BLOCK).unwrap();
}

fn file(dir: &Path) {
    write(&dir.join("f"));
}

fn hundred(dir: &Path) {
    for n in 0..100 {
        File::create(dir.join(format!("name-{n}"))).unwrap();
    }
}

fn nothing(_: &Path) {}

fn none(_: &Path) -> Vec<File> {
    Vec::new()
}

fn stat(dir: &Path) -> Vec<File> {
    rustix::fs::stat(dir.join("f")).unwrap();
    Vec::new()
}

/// Waits until a change has another time than one before: within a tick of the kernel's clock,
/// times do not change, and are not sent.
fn wait_for_another_time() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    for _ in 0..2 {
        let begun = now();
        while now() == begun {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn open(dir: &Path, how: OFlags) -> File {
    let opened = rustix::fs::open(dir.join("f"), how | OFlags::CLOEXEC, Mode::RUSR);
    File::from(opened.unwrap())
}

/// Opens the file for reading and writing.
fn opened(dir: &Path) -> Vec<File> {
    vec![open(dir, OFlags::RDWR)]
}

fn opened_direct(dir: &Path) -> Vec<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).custom_flags(libc::O_DIRECT);
    vec![how.open(dir.join("f")).unwrap()]
}

fn read(file: &File) {
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
}

/// Reads the file, so that it is cached and no atime is due.
fn cached(dir: &Path) -> Vec<File> {
    for _ in 0..2 {
        read(&open(dir, OFlags::RDONLY));
    }
    Vec::new()
}

fn list(dir: &Path) {
    assert!(fs::read_dir(dir).unwrap().count() >= 100);
}

fn getxattr(dir: &Path) {
    let mut room = [0; 64];
    rustix::fs::getxattr(dir.join("f"), "user.a", &mut room).unwrap();
}

fn setxattr(dir: &Path) {
    rustix::fs::setxattr(dir.join("f"), "user.a", b"a", XattrFlags::empty()).unwrap();
}

/// "Known": the kernel has looked the name up.
const ROWS: &[Row] = &[
    Row {
        name: "open, close",
        make: file,
        before: cached,
        calls: |dir, _| drop(open(dir, OFlags::RDONLY)),
    },
    Row {
        name: "open, read of 4 KiB that is cached, close",
        make: file,
        before: cached,
        calls: |dir, _| read(&open(dir, OFlags::RDONLY)),
    },
    Row {
        name: "open, read of 4 KiB that is not cached, close",
        make: file,
        before: stat,
        calls: |dir, _| read(&open(dir, OFlags::RDONLY)),
    },
    Row {
        name: "the same, of a name that is not known",
        make: file,
        before: none,
        calls: |dir, _| read(&open(dir, OFlags::RDONLY)),
    },
    Row {
        name: "open with O_RDWR, write of 4 KiB, close",
        make: file,
        before: stat,
        calls: |dir, _| open(dir, OFlags::RDWR).write_all_at(&BLOCK, 0).unwrap(),
    },
    Row {
        name: "create, write of 4 KiB, close",
        make: nothing,
        before: none,
        calls: |dir, _| {
            let file = open(dir, OFlags::CREATE | OFlags::RDWR);
            wait_for_another_time();
            file.write_all_at(&BLOCK, 0).unwrap();
        },
    },
    Row {
        name: "open with O_TMPFILE, write of 4 KiB, close",
        make: nothing,
        before: none,
        calls: |dir, _| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(dir, flags, Mode::RUSR).unwrap();
            wait_for_another_time();
            File::from(file).write_all_at(&BLOCK, 0).unwrap();
        },
    },
    Row {
        name: "open with O_TRUNC, write of 4 KiB, close",
        make: file,
        before: stat,
        calls: |dir, _| {
            let file = open(dir, OFlags::TRUNC | OFlags::RDWR);
            wait_for_another_time();
            file.write_all_at(&BLOCK, 0).unwrap();
        },
    },
    Row {
        name: "another write of 4 KiB",
        make: file,
        before: |dir| {
            let file = open(dir, OFlags::RDWR);
            file.write_all_at(&BLOCK, 0).unwrap();
            vec![file]
        },
        calls: |_, files| files[0].write_all_at(&BLOCK, 0).unwrap(),
    },
    Row {
        name: "read of 4 KiB that is cached",
        make: file,
        before: |dir| {
            let file = open(dir, OFlags::RDONLY);
            read(&file);
            vec![file]
        },
        calls: |_, files| read(&files[0]),
    },
    Row {
        name: "O_DIRECT read of 4 KiB",
        make: file,
        before: opened_direct,
        calls: |_, files| read(&files[0]),
    },
    Row {
        name: "O_DIRECT write of 4 KiB",
        make: file,
        before: opened_direct,
        calls: |_, files| files[0].write_all_at(&BLOCK, 0).unwrap(),
    },
    Row {
        name: "append of 4 KiB",
        make: file,
        before: |dir| vec![open(dir, OFlags::WRONLY | OFlags::APPEND)],
        calls: |_, files| (&files[0]).write_all(&BLOCK).unwrap(),
    },
    Row {
        name: "store to a shared mapping, msync",
        make: file,
        before: |dir| {
            let file = open(dir, OFlags::RDWR);
            read(&file);
            vec![file]
        },
        calls: |_, files| Mapping::of(&files[0]).store_and_sync(2).unwrap(),
    },
    Row {
        name: "fsync after a write",
        make: file,
        before: |dir| {
            let file = open(dir, OFlags::RDWR);
            file.write_all_at(&BLOCK, 0).unwrap();
            vec![file]
        },
        calls: |_, files| files[0].sync_all().unwrap(),
    },
    Row {
        name: "ftruncate",
        make: file,
        before: opened,
        calls: |_, files| files[0].set_len(1).unwrap(),
    },
    Row {
        name: "fallocate",
        make: file,
        before: opened,
        calls: |_, files| {
            rustix::fs::fallocate(&files[0], FallocateFlags::empty(), 0, 8192).unwrap();
        },
    },
    Row {
        name: "lseek to data",
        make: file,
        before: opened,
        calls: |_, files| assert_eq!(rustix::fs::seek(&files[0], SeekFrom::Data(0)), Ok(0)),
    },
    Row {
        name: "copy_file_range of 4 KiB",
        make: |dir| {
            file(dir);
            write(&dir.join("g"));
        },
        before: |dir| {
            let to = OpenOptions::new().write(true).open(dir.join("g"));
            vec![open(dir, OFlags::RDONLY), to.unwrap()]
        },
        calls: |_, files| {
            let (mut from, mut to) = (0, 0);
            let copied = rustix::fs::copy_file_range(
                &files[0],
                Some(&mut from),
                &files[1],
                Some(&mut to),
                4096,
            );
            assert_eq!(copied, Ok(4096));
        },
    },
    Row {
        name: "stat of a name that is not known",
        make: file,
        before: none,
        calls: |dir, _| drop(stat(dir)),
    },
    Row {
        name: "stat of a known name",
        make: file,
        before: stat,
        calls: |dir, _| drop(stat(dir)),
    },
    Row {
        name: "stat after a write",
        make: file,
        before: |dir| {
            open(dir, OFlags::RDWR).write_all_at(&BLOCK, 0).unwrap();
            Vec::new()
        },
        calls: |dir, _| drop(stat(dir)),
    },
    Row {
        name: "mkdir",
        make: nothing,
        before: none,
        calls: |dir, _| rustix::fs::mkdir(dir.join("d"), Mode::RWXU).unwrap(),
    },
    Row {
        name: "symlink",
        make: nothing,
        before: none,
        calls: |dir, _| symlink("target", dir.join("s")).unwrap(),
    },
    Row {
        name: "readlink, the first of a known name",
        make: |dir| symlink("target", dir.join("s")).unwrap(),
        before: |dir| {
            rustix::fs::lstat(dir.join("s")).unwrap();
            Vec::new()
        },
        calls: |dir, _| drop(rustix::fs::readlink(dir.join("s"), Vec::new()).unwrap()),
    },
    Row {
        name: "link of a known name",
        make: file,
        before: stat,
        calls: |dir, _| rustix::fs::link(dir.join("f"), dir.join("g")).unwrap(),
    },
    Row {
        name: "rename of a known name to a new one",
        make: file,
        before: stat,
        calls: |dir, _| rustix::fs::rename(dir.join("f"), dir.join("g")).unwrap(),
    },
    Row {
        name: "unlink of a known name",
        make: file,
        before: stat,
        calls: |dir, _| rustix::fs::unlink(dir.join("f")).unwrap(),
    },
    Row {
        name: "rmdir of a known name",
        make: |dir| fs::create_dir(dir.join("f")).unwrap(),
        before: stat,
        calls: |dir, _| rustix::fs::rmdir(dir.join("f")).unwrap(),
    },
    Row {
        name: "first listing of 100 entries",
        make: hundred,
        before: none,
        calls: |dir, _| list(dir),
    },
    Row {
        name: "listing again",
        make: hundred,
        before: |dir| {
            list(dir);
            list(dir);
            Vec::new()
        },
        calls: |dir, _| list(dir),
    },
    Row {
        name: "chmod",
        make: file,
        before: stat,
        calls: |dir, _| rustix::fs::chmod(dir.join("f"), Mode::RWXU).unwrap(),
    },
    Row {
        name: "utimes",
        make: file,
        before: stat,
        calls: |dir, _| {
            let time = rustix::fs::Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let times = rustix::fs::Timestamps {
                last_access: time,
                last_modification: time,
            };
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(CWD, dir.join("f"), &times, flags).unwrap();
        },
    },
    Row {
        name: "setxattr",
        make: file,
        before: stat,
        calls: |dir, _| setxattr(dir),
    },
    Row {
        name: "getxattr",
        make: |dir| {
            file(dir);
            setxattr(dir);
        },
        before: stat,
        calls: |dir, _| getxattr(dir),
    },
    Row {
        name: "statfs",
        make: nothing,
        before: none,
        calls: |dir, _| assert!(rustix::fs::statfs(dir).is_ok()),
    },
];

/// Asks the server of a mount for its counts.
struct Server {
    connection: Connection,
    root: PathBuf,
}

impl Server {
    fn of(mount: &Mounted) -> Server {
        let directory = Directory::open(DIRECTORY).unwrap().unwrap();
        let name = Identity::of_path(&mount.region()).unwrap().socket_name();
        let connection = Connection::open(&directory, &name).unwrap().unwrap();
        Server {
            connection,
            root: mount.path(),
        }
    }

    /// The counts after all requests from before, and one STATFS more than these.
    fn counts(&self) -> Counts {
        rustix::fs::statfs(&self.root).unwrap();
        self.connection.requests().unwrap()
    }

    /// What calls cost. When the kernel forgets inodes is up to its memory, so that does not
    /// count.
    fn cost(&self, calls: impl FnOnce()) -> Counts {
        let before = self.counts();
        calls();
        let mut after = self.counts();
        for (name, count) in before {
            *after.get_mut(&name).unwrap() -= count;
        }
        *after.get_mut("STATFS").unwrap() -= 1;
        after.retain(|name, count| *count > 0 && !name.ends_with("FORGET"));
        after
    }
}

/// The counts as the table shows them, in the order of the numbers of the protocol.
fn shown(cost: &Counts) -> String {
    let name = |one: &Opcode| one.name().trim_start_matches("FUSE_");
    let counted = Opcode::ALL.iter().filter_map(|one| {
        Some(match cost.get(name(one))? {
            1 => name(one).to_owned(),
            n => format!("{n} {}", name(one)),
        })
    });
    let all: Vec<String> = counted.collect();
    if all.is_empty() {
        return "none".into();
    }
    all.join(", ")
}

/// Returns a column of the table.
fn column(mode: &str) -> Option<Vec<String>> {
    let options = format!("transport=dev,threads=1,cache=auto,relatime,{mode}");
    let (mount, _dog) = mounted("requests", &options)?;
    let dir = |kind: &str, n: usize| mount.at(format!("{kind}-{n}"));
    for kind in ["first", "counted"] {
        for (n, row) in ROWS.iter().enumerate() {
            fs::create_dir(dir(kind, n)).unwrap();
            (row.make)(&dir(kind, n));
        }
    }
    // Now the kernel knows nothing.
    mount.unmount();
    mount.mount(&options);
    let server = Server::of(&mount);
    let mut cells = Vec::new();
    // The kernel learns some things by the first request of a kind.
    for kind in ["first", "counted"] {
        cells.clear();
        for (n, row) in ROWS.iter().enumerate() {
            let dir = dir(kind, n);
            rustix::fs::stat(&dir).unwrap();
            let files = (row.before)(&dir);
            cells.push(shown(&server.cost(|| (row.calls)(&dir, &files))));
        }
    }
    Some(cells)
}

fn release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<&str> = text.split(['.', '-']).take(2).collect();
    numbers.join(".")
}

fn table(columns: &[Vec<String>]) -> String {
    let mut text = format!("Linux {}:\n\n| calls |", release());
    for mode in MODES {
        let _ = write!(text, " `{mode}` |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(MODES.len()));
    for (n, row) in ROWS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| &*column[n]).collect();
        let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
    }
    text
}

#[test]
fn calls_cost_the_requests_that_the_document_says() {
    let page = fs::read_to_string(DOCUMENT).unwrap();
    let (start, end) = ("<!-- requests -->\n", "<!-- end of requests -->");
    let (before, rest) = page.split_once(start).expect("the mark before the table");
    let (found, after) = rest.split_once(end).expect("the mark after the table");
    let counted = || {
        let columns: Option<Vec<_>> = MODES.into_iter().map(column).collect();
        columns.map(|columns| table(&columns))
    };
    let Some(mut wanted) = counted() else { return };
    // A sync(2) of somebody else writes back what the calls have left to the kernel.
    if wanted != found {
        let Some(again) = counted() else { return };
        wanted = again;
    }
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        fs::write(DOCUMENT, format!("{before}{start}{wanted}{end}{after}")).unwrap();
        return;
    }
    let rows = |text: &str| text.split_once("\n\n").unwrap().1.to_owned();
    if rows(found) == rows(&wanted) {
        return;
    }
    let of = found.lines().next().unwrap();
    if of != format!("Linux {}:", release()) {
        skipped(format_args!(
            "the table of requests is of {of} This kernel differs, which has not been judged:\n{wanted}"
        ));
        return;
    }
    assert_eq!(
        found, wanted,
        "PRAMFS_BLESS=1 rewrites docs/architecture.md"
    );
}

/// By each transport, with the kernel's first OPEN among them.
#[test]
fn kernel_that_opens_sends_no_open_or_release() {
    for transport in ["fuser", "dev", "auto"] {
        for mode in MODES {
            let by_kernel = mode == "opens=kernel";
            let Some((mount, _dog)) = unmounted("opens") else {
                return;
            };
            mount.mount(&format!("transport={transport},{mode}"));
            for n in 0..10 {
                let path = mount.at(format!("file-{n}"));
                write(&path);
                assert_eq!(fs::read(&path).unwrap(), BLOCK);
                assert_eq!(fs::read_dir(mount.path()).unwrap().count(), n + 1);
            }
            let counts = Server::of(&mount).counts();
            let count = |name: &str| counts.get(name).copied().unwrap_or(0);
            let of_opens = ["OPEN", "CREATE", "MKNOD", "RELEASE"].map(count);
            let what = format!("{transport}, {mode}: {counts:?}");
            match by_kernel {
                // The last of the releases may be under way.
                false => assert_eq!(of_opens[..3], [10, 10, 0], "{what}"),
                true => assert_eq!(of_opens, [1, 1, 10, 0], "{what}"),
            }
            assert!(count("OPENDIR") <= 1 && count("RELEASEDIR") == 0, "{what}");
        }
    }
}
