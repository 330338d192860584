//! Requests that no kernel here sends, given to the handlers.

use std::cell::RefCell;
use std::sync::Arc;

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, Outcomes, SetAttr, Survivor};
use pramfs::pmem::{HeapBackend, Region};
use pramfs::{Error, MountOptions};
use pramfs_fuse_protocol::flags::{InitFlags, OpenInFlags, OpenOutFlags};
use pramfs_fuse_protocol::numbers::UNIQUE_RESEND;
use pramfs_fuse_protocol::wire::{CreateIn, InHeader, MkdirIn, MknodIn, OpenIn, OpenOut};
use pramfs_fuse_protocol::{Errno, Extensions, Opcode, Operation, Request, Rules, numbers};
use zerocopy::IntoBytes;

use super::answer::{Answer, Reply};
use super::{Adapter, CacheMode, OpenedBy, nowhere};
use crate::takeover::memory::Memory;

const SELINUX: &[u8] = b"security.selinux";
const LABEL: &[u8] = b"user_u:object_r:tmp_t\0";

/// Keeps an answer: the mode of the node that it has, or an error.
struct Heard(RefCell<Option<Result<u32, Errno>>>);

impl Reply for &Heard {
    fn send(self, answer: Answer<'_>) {
        let heard = match answer {
            Answer::Refused(errno) => Err(errno),
            Answer::Entry(entry) | Answer::Created(entry, _) => Ok(entry.attr.mode),
            _ => Ok(0),
        };
        assert!(self.0.replace(Some(heard)).is_none(), "two answers");
    }

    fn dismiss(self) {}
}

/// Keeps how a new file is opened.
struct HeardOpen(RefCell<Option<OpenOut>>);

impl Reply for &HeardOpen {
    fn send(self, answer: Answer<'_>) {
        if let Answer::Created(_, open) = answer {
            self.0.replace(Some(open));
        }
    }

    fn dismiss(self) {}
}

struct Scene {
    fs: Arc<Fs>,
    adapter: Adapter,
}

impl Scene {
    fn new() -> Scene {
        let region = Region::new("test", HeapBackend::boxed(4 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Arc::new(Fs::open(region, MountOptions::default()).unwrap());
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::Auto, nowhere());
        Scene { fs, adapter }
    }

    /// Has a request of this user and this group served. No process is known to have sent it.
    fn ask(
        &self,
        node: Ino,
        (uid, gid): (u32, u32),
        operation: Operation<'_>,
    ) -> Result<u32, Errno> {
        let header = InHeader {
            nodeid: super::convert::node(node).0,
            uid,
            gid,
            ..InHeader::default()
        };
        let heard = Heard(RefCell::default());
        self.adapter.serve_request(&header, operation, &heard);
        heard.0.into_inner().expect("an answer")
    }

    fn mode(&self, ino: Ino) -> u32 {
        self.fs.getattr(ino).unwrap().perm
    }

    fn find(&self, name: &[u8]) -> Result<Ino, Error> {
        self.fs.lookup(Ino::ROOT, name).map(|attr| attr.ino)
    }
}

fn chmod(fs: &Fs, ino: Ino, perm: u32) {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
}

#[test]
fn open_with_kill_bit_clears_suid_and_sgid() {
    let scene = Scene::new();
    let root = &Credentials::ROOT;
    let file = scene.fs.create(root, Ino::ROOT, b"file", 0o755).unwrap();
    let open = |open_flags| {
        let flags = (libc::O_WRONLY | libc::O_TRUNC).cast_unsigned();
        let arg = OpenIn { flags, open_flags };
        scene.ask(file.ino, (1000, 1000), Operation::Open(arg))
    };
    chmod(&scene.fs, file.ino, 0o6755);
    assert_eq!(open(OpenInFlags::empty()), Ok(0));
    assert_eq!(scene.mode(file.ino), 0o6755);
    assert_eq!(open(OpenInFlags::KILL_SUIDGID), Ok(0));
    assert_eq!(scene.mode(file.ino), 0o755);
    // A refused open clears nothing.
    chmod(&scene.fs, file.ino, 0o6755);
    let set = SetAttr {
        flags: Some(pramfs_medium::media::inode::FL_IMMUTABLE),
        ..SetAttr::default()
    };
    scene.fs.setattr(root, file.ino, &set).unwrap();
    assert_eq!(open(OpenInFlags::KILL_SUIDGID), Err(Errno::EPERM));
    assert_eq!(scene.mode(file.ino), 0o6755);
}

#[test]
fn unnamed_file_has_handle_0_and_cache_if_kernel_opens() {
    for opened_by in [OpenedBy::Server, OpenedBy::Kernel] {
        let mut scene = Scene::new();
        scene.adapter = scene.adapter.with_files_opened_by(opened_by);
        for more in [0, libc::O_DIRECT] {
            let arg = CreateIn {
                flags: (libc::O_TMPFILE | libc::O_RDWR | more).cast_unsigned(),
                ..CreateIn::default()
            };
            let header = InHeader {
                nodeid: numbers::ROOT_ID,
                ..InHeader::default()
            };
            let heard = HeardOpen(RefCell::default());
            let extensions = Extensions::default();
            scene.adapter.on_tmpfile(&header, &arg, extensions, &heard);
            let open = heard.0.into_inner().expect("an open file");
            let (by_kernel, direct) = (opened_by == OpenedBy::Kernel, more != 0);
            assert_eq!(open.fh == 0, by_kernel, "{opened_by:?}, {more:o}");
            let has = |flag| open.open_flags.contains(flag);
            assert_eq!(has(OpenOutFlags::DIRECT_IO), direct && !by_kernel);
            assert_eq!(has(OpenOutFlags::KEEP_CACHE), !direct || by_kernel);
            if by_kernel {
                assert_eq!(open.open_flags, OpenOutFlags::KEEP_CACHE);
            }
        }
    }
}

/// Whether a new program in a setgid directory of group 9 keeps sgid. The mode of `mknod` has a
/// type, too.
fn keeps_sgid(offered: InitFlags, caller: (u32, u32)) -> bool {
    let scene = Scene::new();
    scene.adapter.note_offer(offered);
    let nine = Credentials::new(5, 9);
    let dir = scene.fs.mkdir(&nine, Ino::ROOT, b"dir", 0o2777).unwrap();
    let extensions = Extensions::default();
    let arg = CreateIn {
        mode: libc::S_IFREG | 0o2755,
        ..CreateIn::default()
    };
    let name = b"created";
    let created = Operation::Create {
        arg,
        name,
        extensions,
    };
    let arg = MknodIn {
        mode: libc::S_IFIFO | 0o2755,
        ..MknodIn::default()
    };
    let name = b"made";
    let made = Operation::Mknod {
        arg,
        name,
        extensions,
    };
    let [created, made] = [created, made].map(|op| scene.ask(dir.ino, caller, op).unwrap());
    assert_eq!(created & libc::S_IFMT, libc::S_IFREG);
    assert_eq!(made & libc::S_IFMT, libc::S_IFIFO);
    assert_eq!(created & 0o7777, made & 0o7777);
    created & libc::S_ISGID != 0
}

#[test]
fn old_kernel_has_server_clear_sgid_of_program_in_setgid_directory() {
    let (old, new) = (InitFlags::empty(), InitFlags::CREATE_SUPP_GROUP);
    assert!(!keeps_sgid(old, (7, 8)), "outside the group");
    assert!(keeps_sgid(old, (7, 9)), "in the group");
    assert!(keeps_sgid(old, (0, 0)), "root");
    assert!(keeps_sgid(new, (7, 8)), "the kernel has decided");
}

/// Name and value of a security context.
type Label<'a> = (&'a [u8], &'a [u8]);

/// The extension with these contexts.
fn contexts(all: &[Label<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in all {
        bytes.extend([value.len() as u32, 0].as_bytes());
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let head = [8 + bytes.len() as u32, all.len() as u32];
    [head.as_bytes(), &bytes].concat()
}

/// Has a request with security contexts parsed and served.
fn label(scene: &Scene, opcode: Opcode, body: &[&[u8]], all: &[Label<'_>]) -> Result<u32, Errno> {
    let (body, extensions) = (body.concat(), contexts(all));
    let header = InHeader {
        len: (InHeader::SIZE + body.len() + extensions.len()) as u32,
        opcode: opcode.number(),
        unique: 2,
        nodeid: numbers::ROOT_ID,
        total_extlen: (extensions.len() / 8) as u16,
        ..InHeader::default()
    };
    let bytes = [header.as_bytes(), &body, &extensions].concat();
    let rules = Rules {
        max_request: 1 << 20,
        security_contexts: true,
        ..Rules::BEFORE_INIT
    };
    let request = Request::parse(&bytes, &rules).expect("a request");
    let heard = Heard(RefCell::default());
    let operation = request.operation;
    scene.adapter.serve_request(&header, operation, &heard);
    heard.0.into_inner().expect("an answer")
}

#[test]
fn new_files_of_all_kinds_get_their_security_contexts() {
    let scene = Scene::new();
    let long = vec![7; 5000];
    let labels = [(SELINUX, LABEL), (b"security.other", &long)];
    let (create, mkdir) = (CreateIn::default(), MkdirIn::default());
    let mknod = MknodIn {
        mode: libc::S_IFIFO | 0o600,
        ..MknodIn::default()
    };
    let requests: [(Opcode, &[&[u8]]); 4] = [
        (Opcode::Create, &[create.as_bytes(), b"file\0"]),
        (Opcode::Mkdir, &[mkdir.as_bytes(), b"dir\0"]),
        (Opcode::Mknod, &[mknod.as_bytes(), b"fifo\0"]),
        (Opcode::Symlink, &[b"link\0", b"target\0"]),
    ];
    for (opcode, body) in requests {
        label(&scene, opcode, body, &labels).unwrap();
    }
    for name in [&b"file"[..], b"dir", b"fifo", b"link"] {
        let made = scene.find(name).unwrap();
        for (label, value) in labels {
            assert_eq!(scene.fs.getxattr(made, label).unwrap(), value);
        }
    }
    let body: &[&[u8]] = &[create.as_bytes(), b"/\0"];
    label(&scene, Opcode::Tmpfile, body, &labels).unwrap();
    let next = scene.find(b"link").unwrap().0 + 1;
    assert_eq!(scene.fs.getattr(Ino(next)).unwrap().nlink, 0);
    assert_eq!(scene.fs.getxattr(Ino(next), SELINUX).unwrap(), LABEL);
    let link = scene.find(b"link").unwrap();
    assert_eq!(scene.fs.readlink(link).unwrap(), b"target");
    // The kernel sends the extension with no contexts if no module has one.
    label(&scene, Opcode::Create, &[create.as_bytes(), b"bare\0"], &[]).unwrap();
    let bare = scene.find(b"bare").unwrap();
    assert!(scene.fs.listxattr(bare).unwrap().is_empty());
}

#[test]
fn file_whose_security_context_is_refused_is_not_made() {
    let scene = Scene::new();
    let before = scene.fs.statfs().unwrap().free;
    let too_long = vec![7; 65_537];
    let acl: &[u8] = b"system.posix_acl_access";
    let refused: [(&[Label<'_>], i32); 5] = [
        (&[(b"user.label", b"x")], libc::EOPNOTSUPP),
        (&[(acl, b"x")], libc::EOPNOTSUPP),
        (&[(SELINUX, LABEL), (b"trusted.x", b"x")], libc::EOPNOTSUPP),
        (&[(SELINUX, LABEL), (SELINUX, b"other")], libc::EINVAL),
        (&[(SELINUX, &too_long)], libc::E2BIG),
    ];
    let create = CreateIn::default();
    for (labels, errno) in refused {
        let body: &[&[u8]] = &[create.as_bytes(), b"file\0"];
        let made = label(&scene, Opcode::Create, body, labels);
        assert_eq!(made.map_err(Errno::number), Err(errno), "{labels:?}");
        assert!(matches!(scene.find(b"file"), Err(Error::NotFound)));
    }
    assert_eq!(scene.fs.statfs().unwrap().free, before);
}

#[test]
fn takeover_asks_for_requests_again() {
    let fs = Scene::new().fs;
    let adapter = || Adapter::new(Arc::clone(&fs), CacheMode::Auto, nowhere());
    let resend = InitFlags::HAS_RESEND;
    assert!(!adapter().wanted().contains(resend) && adapter().required().is_empty());
    let memory = Arc::new(Memory::create().unwrap());
    let adapter = adapter().with_takeover(memory);
    assert!(adapter.has_takeover());
    assert!(adapter.wanted().contains(resend) && adapter.required() == resend);
    adapter.note_offer(resend | InitFlags::CREATE_SUPP_GROUP);
    assert!(adapter.offered().contains(InitFlags::CREATE_SUPP_GROUP));
}

/// A request that kills servers must not kill all of them.
#[test]
fn request_that_two_servers_died_of_is_answered_eio_and_not_served() {
    const ASKED: u64 = 10;
    let mut scene = Scene::new();
    let mut memory = Memory::create().unwrap();
    memory.prepare(1000).unwrap();
    for death in 0..2 {
        memory = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                std::mem::forget(memory.begin(match death {
                    0 => ASKED,
                    _ => ASKED | UNIQUE_RESEND,
                }));
                let kept = memory.descriptors().unwrap();
                let [requests, references] = kept.map(|fd| fd.try_clone_to_owned().unwrap());
                let next = Memory::adopt(requests, references).unwrap();
                next.prepare(1000).unwrap();
                next.settle(&|_| false);
                next
            });
            server.join().unwrap()
        });
    }
    scene.adapter = scene.adapter.with_takeover(Arc::new(memory));
    let ask = |unique| {
        let header = InHeader {
            unique,
            nodeid: numbers::ROOT_ID,
            ..InHeader::default()
        };
        let name = c"dir".to_bytes();
        let arg = MkdirIn::default();
        let heard = Heard(RefCell::default());
        let asked = Operation::Mkdir {
            arg,
            name,
            extensions: Extensions::default(),
        };
        scene.adapter.serve_request(&header, asked, &heard);
        heard.0.into_inner().expect("an answer")
    };
    assert_eq!(ask(ASKED | UNIQUE_RESEND), Err(Errno::EIO));
    assert!(matches!(scene.find(b"dir"), Err(Error::NotFound)));
    // Another one is served.
    ask(ASKED + 2).unwrap();
    scene.find(b"dir").unwrap();
}

/// Otherwise one fails with ENOSPC while another still frees.
#[test]
fn adapter_of_guest_waits_for_what_other_doors_free() {
    let scene = Scene::new();
    let guest = scene.adapter.of_guest();
    assert!(Arc::ptr_eq(&guest.removals, &scene.adapter.removals));
}
