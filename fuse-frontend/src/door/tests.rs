//! Guests that lie, and guests that do not: requests given to doors.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::pmem::{HeapBackend, Region};
use pramfs_fuse_protocol::flags::{AttrFlags, InitFlags, OpenOutFlags, SetattrValid};
use pramfs_fuse_protocol::numbers::MAJOR;
use pramfs_fuse_protocol::wire::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, GetattrIn, InHeader, IoctlIn, OpenIn, OpenOut,
    OutHeader, ReadIn, SetattrIn,
};
use pramfs_fuse_protocol::{
    Data, Errno, Extensions, InitRequest, Message, Operation, Request, Rules,
};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};
use zerocopy::FromBytes;

use super::*;
use crate::adapter::{CacheMode, Notifier};
use crate::logging::tests::{Still, lines_of};

#[path = "xattrs_tests.rs"]
mod xattrs;

const ROOT: u64 = ROOT_ID;

/// Keeps the message to a request.
#[derive(Default)]
struct Heard(Option<Vec<u8>>);

impl Outlet for Heard {
    fn put(&mut self, message: &Message<'_>) {
        assert!(self.0.replace(message.to_vec()).is_none(), "two answers");
    }
}

struct Scene {
    fs: Arc<Fs>,
    adapter: Adapter,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(MountOptions::default())
    }

    fn with(options: MountOptions) -> Scene {
        let region = Region::new("test", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..options
        };
        let fs = Arc::new(Fs::open(region, options).unwrap());
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::Auto, Notifier::of_guest());
        Scene { fs, adapter }
    }

    fn door(&self, settings: DoorSettings, ids: Translations) -> Guest {
        Guest(Door::new(self.adapter.of_guest(), settings, ids))
    }

    /// A guest that has mounted.
    fn guest(&self) -> Guest {
        let guest = self.door(DoorSettings::default(), Translations::default());
        guest.init().unwrap();
        guest
    }

    /// A file that no guest has looked up.
    fn file(&self, name: &[u8]) -> u64 {
        let made = self.fs.create(&Credentials::ROOT, Ino::ROOT, name, 0o644);
        made.unwrap().ino.0
    }

    fn exists(&self, node: u64) -> bool {
        self.fs.getattr(Ino(node)).is_ok()
    }
}

/// The answer to a request: its body, or an error.
type Answered = Result<Vec<u8>, Errno>;

struct Guest(Door);

impl Guest {
    /// Sends a request of this user, from a process that has our number.
    fn ask_as(&self, user: u32, nodeid: u64, operation: Operation<'_>) -> Option<Answered> {
        let rules = Rules {
            max_request: 1 << 20,
            setxattr_ext: true,
            ..Rules::BEFORE_INIT
        };
        let request = Request {
            header: InHeader {
                unique: 8,
                nodeid,
                uid: user,
                gid: user,
                pid: std::process::id(),
                ..InHeader::default()
            },
            opcode: operation.opcode(),
            operation,
        };
        let mut heard = Heard::default();
        self.0.serve(&request.encode(&rules), &mut heard);
        let message = heard.0?;
        let (header, body) = OutHeader::read_from_prefix(&message).unwrap();
        assert_eq!((header.unique, header.len as usize), (8, message.len()));
        Some(match header.error {
            0 => Ok(body.to_vec()),
            error => Err(Errno::new(-error).unwrap()),
        })
    }

    fn ask(&self, node: u64, operation: Operation<'_>) -> Answered {
        self.ask_as(0, node, operation).expect("an answer")
    }

    fn init(&self) -> Answered {
        let offer = InitRequest {
            major: MAJOR,
            minor: 41,
            max_readahead: 1 << 17,
            flags: InitFlags::all().difference(InitFlags::NO_EXPORT_SUPPORT),
        };
        self.ask(0, Operation::Init(offer))
    }

    fn lookup(&self, name: &[u8]) -> Result<EntryOut, Errno> {
        let found = self.ask(ROOT, Operation::Lookup { name })?;
        Ok(EntryOut::read_from_bytes(&found).unwrap())
    }

    fn forget(&self, node: u64, nlookup: u64) {
        assert!(
            self.ask_as(0, node, Operation::Forget { nlookup })
                .is_none()
        );
    }

    fn open(&self, node: u64) -> Result<OpenOut, Errno> {
        let flags = libc::O_RDWR.cast_unsigned();
        let arg = OpenIn {
            flags,
            ..OpenIn::default()
        };
        let opened = self.ask(node, Operation::Open(arg))?;
        Ok(OpenOut::read_from_bytes(&opened).unwrap())
    }

    fn release(&self, node: u64, fh: u64) -> Answered {
        let arg = ReleaseIn {
            fh,
            ..ReleaseIn::default()
        };
        self.ask(node, Operation::Release(arg))
    }

    fn create(&self, user: u32, name: &[u8]) -> Result<(EntryOut, OpenOut), Errno> {
        self.create_with(libc::O_RDWR, user, name)
    }

    fn create_with(
        &self,
        flags: i32,
        user: u32,
        name: &[u8],
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let arg = CreateIn {
            flags: flags.cast_unsigned(),
            mode: libc::S_IFREG | 0o644,
            ..CreateIn::default()
        };
        let create = Operation::Create {
            arg,
            name,
            extensions: Extensions::default(),
        };
        let made = self.ask_as(user, ROOT, create).expect("an answer")?;
        let (entry, open) = EntryOut::read_from_prefix(&made).unwrap();
        Ok((entry, OpenOut::read_from_bytes(open).unwrap()))
    }
}

fn getattr() -> Operation<'static> {
    Operation::Getattr(GetattrIn::default())
}

#[test]
fn node_never_given_is_stale() {
    let scene = Scene::new();
    let (secret, guest) = (scene.file(b"secret"), scene.guest());
    let own = guest.create(0, b"own").unwrap().0.nodeid;
    let copy = |from: u64, nodeid_out| {
        let arg = CopyFileRangeIn {
            nodeid_out,
            len: 1,
            ..CopyFileRangeIn::default()
        };
        guest.ask(from, Operation::CopyFileRange(arg))
    };
    let (name, newname): (&[u8], &[u8]) = (b"own", b"new");
    let rename = |node, newdir| {
        let flags = 0;
        guest.ask(
            node,
            Operation::Rename {
                newdir,
                flags,
                name,
                newname,
            },
        )
    };
    for unknown in [secret, 0, 2, 3, 15, 16, u64::MAX] {
        let stale = Err(Errno::ESTALE);
        assert_eq!(guest.ask(unknown, getattr()), stale);
        assert_eq!(guest.open(unknown).map(drop), stale.clone().map(drop));
        let read = ReadIn {
            size: 10,
            ..ReadIn::default()
        };
        assert_eq!(guest.ask(unknown, Operation::Read(read)), stale);
        assert_eq!(rename(ROOT, unknown), stale);
        assert_eq!(rename(unknown, ROOT), stale);
        let oldnodeid = unknown;
        let link = Operation::Link {
            oldnodeid,
            name: newname,
        };
        assert_eq!(guest.ask(ROOT, link), stale);
        assert_eq!(copy(own, unknown), stale);
        assert_eq!(copy(unknown, own), stale);
    }
    // By its name, a guest may find everything.
    let found = guest.lookup(b"secret").unwrap();
    assert_eq!(found.nodeid, secret);
    assert!(guest.ask(secret, getattr()).is_ok());
    assert!(copy(secret, own).is_ok());
    guest.forget(secret, 1);
    assert_eq!(guest.ask(secret, getattr()), Err(Errno::ESTALE));
}

#[test]
fn forget_above_count_leaves_references_of_other_door() {
    let scene = Scene::new();
    let node = scene.file(b"file");
    // The other door's.
    scene.fs.hold(Ino(node)).into_count();
    let guest = scene.guest();
    guest.lookup(b"file").unwrap();
    for lookups in [1, 1, 1000, u64::MAX] {
        guest.forget(node, lookups);
    }
    scene.fs.unlink(Ino::ROOT, b"file").unwrap();
    assert!(scene.exists(node));
    scene.fs.forget(Ino(node), 1);
    scene.fs.free_forgotten();
    assert!(!scene.exists(node));
}

#[test]
fn release_of_file_that_is_not_open_fails() {
    let scene = Scene::new();
    let guest = scene.guest();
    let (made, open) = guest.create(0, b"file").unwrap();
    let node = made.nodeid;
    assert_eq!(guest.release(node, open.fh + 1), Err(Errno::EBADF));
    assert_eq!(guest.release(node, 0), Err(Errno::EBADF));
    assert!(guest.release(node, open.fh).is_ok());
    assert_eq!(guest.release(node, open.fh), Err(Errno::EBADF));
    let dir = Operation::Opendir(OpenIn::default());
    guest.ask(ROOT, dir).unwrap();
    assert_eq!(guest.release(ROOT, 0), Err(Errno::EBADF));
    let close = || guest.ask(ROOT, Operation::Releasedir(ReleaseIn::default()));
    assert!(close().is_ok());
    assert_eq!(close(), Err(Errno::EBADF));
}

#[test]
fn end_of_session_gives_back_lookups_and_opens() {
    for destroys in [true, false] {
        let scene = Scene::new();
        let guest = scene.guest();
        let (made, _) = guest.create(0, b"open").unwrap();
        let (looked_up, open) = guest.create(0, b"looked up").unwrap();
        guest.release(looked_up.nodeid, open.fh).unwrap();
        for _ in 0..3 {
            guest.lookup(b"open").unwrap();
        }
        // A listing counts too.
        let list = ReadIn {
            size: 4096,
            ..ReadIn::default()
        };
        guest.ask(ROOT, Operation::Readdirplus(list)).unwrap();
        for name in [&b"open"[..], b"looked up"] {
            guest.ask(ROOT, Operation::Unlink { name }).unwrap();
        }
        assert!(scene.exists(made.nodeid) && scene.exists(looked_up.nodeid));
        match destroys {
            true => assert_eq!(guest.ask(0, Operation::Destroy), Ok(vec![])),
            false => guest.0.end(),
        }
        scene.fs.free_forgotten();
        assert!(!scene.exists(made.nodeid) && !scene.exists(looked_up.nodeid));
        assert_eq!(guest.0.holds(), (0, 0));
    }
}

#[test]
fn requests_outside_of_a_session_fail() {
    let scene = Scene::new();
    let guest = scene.door(DoorSettings::default(), Translations::default());
    assert_eq!(guest.ask(ROOT, getattr()), Err(Errno::EIO));
    guest.forget(ROOT, 1);
    guest.init().unwrap();
    assert!(guest.ask(ROOT, getattr()).is_ok());
    assert_eq!(guest.init(), Err(Errno::EIO), "a second INIT");
    assert!(guest.ask(ROOT, getattr()).is_ok());
    let node = guest.create(0, b"file").unwrap().0.nodeid;
    guest.ask(0, Operation::Destroy).unwrap();
    assert_eq!(guest.ask(ROOT, getattr()), Err(Errno::EIO));
    assert_eq!(guest.ask(0, Operation::Destroy), Ok(vec![]));
    guest.init().unwrap();
    assert_eq!(guest.ask(node, getattr()), Err(Errno::ESTALE));
    // A guest that was reset has sent no DESTROY.
    guest.lookup(b"file").unwrap();
    guest.0.note_stop();
    assert!(guest.ask(node, getattr()).is_ok(), "it was paused");
    guest.init().unwrap();
    assert_eq!(guest.ask(node, getattr()), Err(Errno::ESTALE));
    assert_eq!(guest.init(), Err(Errno::EIO));
}

#[test]
fn guest_that_negotiates_again_and_again_is_logged_once() {
    let scene = Scene::with(MountOptions {
        clock: Arc::new(Still),
        ..MountOptions::default()
    });
    let guest = scene.guest();
    let lines = lines_of(|| {
        for _ in 0..100 {
            assert_eq!(guest.init(), Err(Errno::EIO));
        }
        for _ in 0..100 {
            guest.ask(0, Operation::Destroy).unwrap();
            guest.init().unwrap();
            guest.0.note_stop();
            guest.init().unwrap();
        }
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("a second time"), "{lines:?}");
}

#[test]
fn with_other_doors_nothing_is_cached() {
    let scene = Scene::new();
    let node = scene.file(b"file");
    for (shared, nothing) in [(false, false), (true, false), (false, true)] {
        let settings = DoorSettings {
            shared,
            caches_nothing: nothing,
            ..DoorSettings::default()
        };
        let guest = scene.door(settings, Translations::default());
        let agreed = guest.init().unwrap();
        let flags = u32::from_ne_bytes(*agreed[12..].first_chunk().unwrap());
        let flags = InitFlags::from_bits_retain(flags.into());
        assert_eq!(flags.contains(InitFlags::AUTO_INVAL_DATA), shared);
        assert!(!flags.contains(InitFlags::EXPORT_SUPPORT));
        let found = guest.lookup(b"file").unwrap();
        let caches = !shared && !nothing;
        assert_eq!(
            (found.entry_valid != 0, found.attr_valid != 0),
            (caches, caches)
        );
        let missing = guest.lookup(b"missing").unwrap();
        assert_eq!((missing.nodeid, missing.entry_valid != 0), (0, caches));
        let attr = AttrOut::read_from_bytes(&guest.ask(node, getattr()).unwrap()).unwrap();
        assert_eq!(attr.attr_valid != 0, caches);
        assert_eq!(attr.attr.flags, AttrFlags::empty());
        // An open to read may set the atime, which needs an empty cache.
        let arg = OpenIn {
            flags: libc::O_WRONLY.cast_unsigned(),
            ..OpenIn::default()
        };
        let opened = guest.ask(node, Operation::Open(arg)).unwrap();
        let opened = OpenOut::read_from_bytes(&opened).unwrap();
        assert_eq!(
            opened.open_flags.contains(OpenOutFlags::KEEP_CACHE),
            !shared
        );
    }
}

/// Two guests see each other's changes at once.
#[test]
fn guests_share_a_region() {
    let scene = Scene::new();
    let shared = DoorSettings {
        shared: true,
        ..DoorSettings::default()
    };
    let [one, other] = [(); 2].map(|()| {
        let guest = scene.door(shared, Translations::default());
        guest.init().unwrap();
        guest
    });
    let node = one.create(0, b"file").unwrap().0.nodeid;
    assert_eq!(other.ask(node, getattr()), Err(Errno::ESTALE));
    let found = other.lookup(b"file").unwrap();
    assert_eq!(found.nodeid, node);
    one.ask(ROOT, Operation::Unlink { name: b"file" }).unwrap();
    drop(one);
    assert!(other.ask(node, getattr()).is_ok(), "the other still has it");
    assert_eq!(other.lookup(b"file").unwrap().nodeid, 0);
    drop(other);
    scene.fs.free_forgotten();
    assert!(!scene.exists(node));
}

/// Both kernels have looked a name up, and found nothing.
#[test]
fn create_after_that_of_another_guest_makes_the_kernel_look_up_again() {
    let scene = Scene::new();
    let settings = DoorSettings {
        shared: true,
        ..DoorSettings::default()
    };
    let guests = [(); 2].map(|()| {
        let guest = scene.door(settings, Translations::default());
        guest.init().unwrap();
        assert_eq!(guest.lookup(b"file").unwrap().nodeid, 0);
        guest
    });
    let flags = libc::O_RDWR | libc::O_CREAT;
    let (made, _) = guests[0].create_with(flags, 0, b"file").unwrap();
    let other = &guests[1];
    let again = other.create_with(flags, 1000, b"file");
    assert_eq!(again.map(drop), Err(Errno::ESTALE));
    assert_eq!(other.lookup(b"file").unwrap().nodeid, made.nodeid);
    assert!(other.open(made.nodeid).is_ok());
    // A program that asks for a new file is told.
    let exclusive = other.create_with(flags | libc::O_EXCL, 1000, b"file");
    assert_eq!(exclusive.map(drop), Err(Errno::new(libc::EEXIST).unwrap()));
}

#[test]
fn guest_has_no_rights_of_processes_of_this_machine() {
    let scene = Scene::new();
    let guest = scene.guest();
    // FS_IOC_SHUTDOWN: our process may, if it is root.
    let arg = IoctlIn {
        cmd: 0x8004_587d,
        out_size: 4,
        ..IoctlIn::default()
    };
    let data = Data::EMPTY;
    assert_eq!(
        guest.ask(ROOT, Operation::Ioctl { arg, data }),
        Err(Errno::EPERM)
    );
    guest.create(0, b"file").unwrap();
    for name in [BEGIN_TO_WRITE, SET_ATIMES[0].0, SET_DIR_ATIMES[0]] {
        let name = name.as_bytes();
        let remove = Operation::Removexattr { name };
        assert_eq!(guest.ask(ROOT, remove), Err(Errno::EPERM));
    }
}

#[test]
fn door_that_is_read_only_refuses_changes() {
    let scene = Scene::new();
    let node = scene.file(b"file");
    let settings = DoorSettings {
        read_only: true,
        ..DoorSettings::default()
    };
    let guest = scene.door(settings, Translations::default());
    guest.init().unwrap();
    assert_eq!(guest.create(0, b"new").map(drop), Err(Errno::EROFS));
    assert_eq!(guest.lookup(b"file").unwrap().nodeid, node);
    assert_eq!(guest.open(node).map(drop), Err(Errno::EROFS));
    assert!(guest.ask(node, Operation::Open(OpenIn::default())).is_ok());
    let unlink = Operation::Unlink { name: b"file" };
    assert_eq!(guest.ask(ROOT, unlink), Err(Errno::EROFS));
}

#[test]
fn ids_are_translated_in_requests_and_replies() {
    let scene = Scene::new();
    let mut ids = Translations::default();
    for all in [&mut ids.users, &mut ids.groups] {
        all.add("map:0:100000:1000").unwrap();
        all.add("forbid-guest:1000:1").unwrap();
    }
    let guest = scene.door(DoorSettings::default(), ids);
    guest.init().unwrap();
    let made = guest.create(5, b"file").unwrap().0;
    assert_eq!((made.attr.uid, made.attr.gid), (5, 5));
    let kept = scene.fs.getattr(Ino(made.nodeid)).unwrap();
    assert_eq!((kept.uid, kept.gid), (100_005, 100_005));
    assert_eq!(guest.create(1000, b"other").map(drop), Err(Errno::EPERM));
    let chown = |uid| {
        let arg = SetattrIn {
            valid: SetattrValid::UID,
            uid,
            ..SetattrIn::default()
        };
        guest.ask(made.nodeid, Operation::Setattr(arg))
    };
    assert_eq!(chown(1000), Err(Errno::EPERM));
    let changed = AttrOut::read_from_bytes(&chown(7).unwrap()).unwrap();
    assert_eq!(changed.attr.uid, 7);
    assert_eq!(scene.fs.getattr(Ino(made.nodeid)).unwrap().uid, 100_007);
}

#[test]
fn full_tables_refuse_with_enfile_and_keep_nothing() {
    let scene = Scene::new();
    let (one, two) = (scene.file(b"one"), scene.file(b"two"));
    let mut guest = scene.door(DoorSettings::default(), Translations::default());
    guest.0.nodes = Nodes::with_limits(1, 1);
    guest.init().unwrap();
    guest.lookup(b"one").unwrap();
    assert_eq!(guest.lookup(b"two").map(drop), Err(Errno::ENFILE));
    assert_eq!(guest.create(0, b"new").map(drop), Err(Errno::ENFILE));
    guest.open(one).unwrap();
    assert_eq!(guest.open(one).map(drop), Err(Errno::ENFILE));
    let list = ReadIn {
        size: 4096,
        ..ReadIn::default()
    };
    assert!(guest.ask(ROOT, Operation::Readdir(list)).is_ok());
    assert_eq!(guest.0.holds(), (1, 1));
    // Nothing of what was refused is left in the engine.
    let new = scene.fs.lookup(Ino::ROOT, b"new").unwrap().ino;
    for name in [&b"two"[..], b"new"] {
        scene.fs.unlink(Ino::ROOT, name).unwrap();
    }
    scene.fs.free_forgotten();
    assert!(!scene.exists(two) && !scene.exists(new.0));
}

/// A window that nothing is mapped in.
struct Unused;

impl Window for Unused {
    fn size(&self) -> u64 {
        LARGEST_WINDOW
    }

    fn map(&self, _: BorrowedFd<'_>, _: u64, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unmap(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The guest's kernel then reads them through requests.
#[test]
fn file_that_cannot_be_mapped_has_no_dax_flag() {
    let scene = Scene::new();
    let node = scene.file(b"file");
    let settings = DoorSettings {
        maps: true,
        copies: true,
        ..DoorSettings::default()
    };
    let guest = scene.door(settings, Translations::default());
    guest.0.open_window(Arc::new(Unused));
    guest.init().unwrap();
    for (flags, maps) in [(FL_IMMUTABLE, false), (FL_APPEND, false), (0, true)] {
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        let root = &Credentials::ROOT;
        scene.fs.setattr(root, Ino(node), &set).unwrap();
        let found = guest.lookup(b"file").unwrap().attr;
        assert_eq!(found.flags.contains(AttrFlags::DAX), maps);
        let attr = AttrOut::read_from_bytes(&guest.ask(node, getattr()).unwrap()).unwrap();
        assert_eq!(attr.attr.flags.contains(AttrFlags::DAX), maps);
        // In a listing, where it follows `.` and `..`.
        let list = ReadIn {
            size: 4096,
            ..ReadIn::default()
        };
        let listing = guest.ask(ROOT, Operation::Readdirplus(list)).unwrap();
        let starts = (0..listing.len()).step_by(8);
        let entries = starts.filter_map(|at| EntryOut::read_from_prefix(&listing[at..]).ok());
        let (entry, _) = entries
            .into_iter()
            .find(|(entry, _)| entry.nodeid == node && entry.attr.ino == node)
            .unwrap();
        assert_eq!(entry.attr.flags.contains(AttrFlags::DAX), maps);
    }
    let root = AttrOut::read_from_bytes(&guest.ask(ROOT, getattr()).unwrap()).unwrap();
    assert!(!root.attr.flags.contains(AttrFlags::DAX));
}
