//! A VMM and its guest, for tests of what serves guests: it connects to a socket of vhost-user, puts
//! requests into the queues, and plays the window in which files are mapped.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::numbers::{MAJOR, ROOT_ID};
use pramfs_fuse_protocol::wire::{
    CreateIn, EntryOut, GetattrIn, InHeader, OpenOut, OutHeader, ReadIn, WriteIn,
};
use pramfs_fuse_protocol::{Data, Errno, Extensions, InitRequest, Operation, Request, Rules};
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{
    VhostUserMMap, VhostUserProtocolFeatures, VhostUserSharedMsg, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{
    Error as VhostUserError, Frontend, FrontendReqHandler, VhostUserFrontend,
    VhostUserFrontendReqHandler,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;
use zerocopy::FromBytes;

/// Bytes of the guest's memory, which begins at 0.
pub const MEMORY: u64 = 8 << 20;
/// Where the VMM has it.
pub const USER: u64 = 0x7000_0000_0000;
/// Entries of a queue.
pub const SIZE: u16 = 64;
/// Queues, with that for FORGET.
pub const QUEUES: usize = 2;
/// Where requests and replies lie, in the tests that need no other place.
pub const REQUEST: u64 = 1 << 20;
/// Where replies lie.
pub const REPLY: u64 = 4 << 20;
/// Bytes of room for a reply.
pub const ROOM: u32 = 1 << 21;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
/// The server writes there.
pub const WRITE: u16 = 2;
/// It leads to another table.
pub const INDIRECT: u16 = 4;

/// Bytes of a window, where there is one.
pub const WINDOW: u64 = 16 << 20;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A descriptor: address, bytes, flags, next.
pub type Descriptor = (u64, u32, u16, u16);

/// What the VMM does with its window.
#[derive(Default)]
pub struct Maps {
    /// Maps that are there: place and length.
    pub there: Vec<(u64, u64)>,
    /// What they show: descriptor, and where it begins there.
    pub shown: Vec<(File, u64)>,
    /// How many were there when they were settled last.
    pub settled: usize,
    /// How often it was asked for something, answered or not.
    pub asked: usize,
    /// It does not answer.
    pub silent: bool,
}

/// The window that the VMM plays.
#[derive(Default)]
pub struct WindowOfVmm(pub Mutex<Maps>);

impl WindowOfVmm {
    fn note(&self, change: impl FnOnce(&mut Maps)) -> io::Result<u64> {
        self.0.lock().unwrap().asked += 1;
        while self.0.lock().unwrap().silent {
            std::thread::sleep(Duration::from_millis(2));
        }
        change(&mut self.0.lock().unwrap());
        Ok(0)
    }

    /// Waits until it was asked so often.
    ///
    /// # Panics
    /// It is not.
    pub fn wait_until_asked(&self, count: usize) {
        let begun = Instant::now();
        let asked = || self.0.lock().unwrap().asked;
        while asked() < count {
            assert!(begun.elapsed() < PATIENCE, "{} messages came", asked());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until so many bytes are mapped.
    pub fn wait_for(&self, bytes: u64) {
        let begun = Instant::now();
        let mapped = || -> u64 {
            self.0
                .lock()
                .unwrap()
                .there
                .iter()
                .map(|(_, len)| len)
                .sum()
        };
        while mapped() != bytes {
            assert!(begun.elapsed() < PATIENCE, "{} bytes are mapped", mapped());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl WindowOfVmm {
    /// Calls with the descriptor that is mapped at a place of the window, and the place in it.
    ///
    /// # Panics
    /// Nothing is mapped there.
    pub fn at<T>(&self, place: u64, with: impl FnOnce(&File, u64) -> T) -> T {
        let maps = self.0.lock().unwrap();
        let found = maps
            .there
            .iter()
            .position(|(at, len)| (*at..at + len).contains(&place));
        let n = found.expect("nothing is mapped there");
        let (file, from) = &maps.shown[n];
        with(file, from + (place - maps.there[n].0))
    }
}

/// Copies a descriptor of this process by its number.
fn pidfd_copy(number: std::os::fd::RawFd) -> io::Result<File> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(this, number, PidfdGetfdFlags::empty())?.into())
}

impl VhostUserFrontendReqHandler for WindowOfVmm {
    fn shmem_map(&self, map: &VhostUserMMap, file: &dyn AsRawFd) -> io::Result<u64> {
        // A copy of the descriptor, which keeps the lock of the lease, and not another open.
        let kept = pidfd_copy(file.as_raw_fd())?;
        self.note(|maps| {
            maps.there.push((map.shm_offset, map.len));
            maps.shown.push((kept, map.fd_offset));
        })
    }

    fn shared_object_remove(&self, _: &VhostUserSharedMsg) -> io::Result<u64> {
        self.note(|maps| maps.settled = maps.there.len())?;
        Err(io::ErrorKind::NotFound.into())
    }

    fn shmem_unmap(&self, map: &VhostUserMMap) -> io::Result<u64> {
        let (at, len) = (map.shm_offset, map.len);
        self.note(|maps| {
            let gone = maps.there.iter().position(|there| *there == (at, len));
            if let Some(n) = gone {
                maps.there.remove(n);
                maps.shown.remove(n);
            }
        })
    }
}

/// A VMM with its guest.
pub struct Guest {
    /// Its window.
    pub window: Arc<WindowOfVmm>,
    /// The connection to the server.
    pub frontend: Frontend,
    /// The memory of the guest.
    pub memory: GuestMemoryMmap,
    /// What tells the server of a queue.
    pub kicks: Vec<EventFd>,
    /// How many chains each queue was given.
    pub avail: [AtomicU16; QUEUES],
}

impl Guest {
    /// Connects to a server.
    ///
    /// # Panics
    /// It offers something else than expected.
    pub fn new(path: &std::path::Path) -> Guest {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY).unwrap();
        let file = File::from(file);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        let mut frontend = Frontend::connect(path, QUEUES as u64).unwrap();
        frontend.set_owner().unwrap();
        let offered = frontend.get_features().unwrap();
        assert_ne!(
            offered & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(),
            0
        );
        frontend.set_features(offered & !(1 << 29)).unwrap();
        let offered = frontend.get_protocol_features().unwrap();
        assert!(!offered.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS));
        assert!(!offered.contains(VhostUserProtocolFeatures::LOG_SHMFD));
        frontend.set_protocol_features(offered).unwrap();
        let window = Arc::new(WindowOfVmm::default());
        if offered.contains(VhostUserProtocolFeatures::SHMEM) {
            let config = frontend.get_shmem_config().unwrap();
            assert_eq!((config.nregions, config.memory_sizes[0]), (1, WINDOW));
            let mut handler = FrontendReqHandler::new(Arc::clone(&window)).unwrap();
            handler.set_reply_ack_flag(true);
            struct Fd(std::os::fd::RawFd);
            impl AsRawFd for Fd {
                fn as_raw_fd(&self) -> std::os::fd::RawFd {
                    self.0
                }
            }
            frontend
                .set_backend_request_fd(&Fd(handler.get_tx_raw_fd()))
                .unwrap();
            std::thread::spawn(move || {
                // Its own refusals are errors, too.
                while !matches!(handler.handle_request(), Err(VhostUserError::Disconnected)) {}
            });
        }
        assert!(frontend.get_queue_num().unwrap() >= QUEUES as u64);
        frontend.set_mem_table(&[region]).unwrap();
        let range = (
            GuestAddress(0),
            MEMORY as usize,
            Some(FileOffset::new(file, 0)),
        );
        let guest = Guest {
            window,
            frontend,
            memory: GuestMemoryMmap::from_ranges_with_files([range]).unwrap(),
            kicks: (0..QUEUES).map(|_| EventFd::new(0).unwrap()).collect(),
            avail: Default::default(),
        };
        guest.start();
        guest
    }

    /// The rings of a queue: descriptors, what is available, what is used.
    pub fn rings(queue: usize) -> [u64; 3] {
        let base = 0x1_0000 * (queue as u64 + 1);
        [base, base + 0x4000, base + 0x8000]
    }

    /// Starts the queues.
    pub fn start(&self) {
        let mut frontend = self.frontend.clone();
        for queue in 0..QUEUES {
            let [table, avail, used] = Guest::rings(queue);
            self.memory
                .write_slice(&[0; 0x8000], GuestAddress(avail))
                .unwrap();
            self.avail[queue].store(0, Ordering::Relaxed);
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: USER + table,
                used_ring_addr: USER + used,
                avail_ring_addr: USER + avail,
                log_addr: None,
            };
            let call = EventFd::new(0).unwrap();
            frontend.set_vring_num(queue, SIZE).unwrap();
            frontend.set_vring_base(queue, 0).unwrap();
            frontend.set_vring_addr(queue, &config).unwrap();
            frontend.set_vring_call(queue, &call).unwrap();
            frontend.set_vring_kick(queue, &self.kicks[queue]).unwrap();
            frontend.set_vring_enable(queue, true).unwrap();
        }
    }

    /// Writes a descriptor into a table.
    pub fn describe(&self, table: u64, at: u16, (addr, len, flags, next): Descriptor) {
        let mut bytes = addr.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let at = GuestAddress(table + 16 * u64::from(at));
        self.memory.write_slice(&bytes, at).unwrap();
    }

    /// Gives the server a chain that begins at this descriptor.
    pub fn make_available(&self, queue: usize, head: u16) {
        let [_, avail, _] = Guest::rings(queue);
        let index = self.avail[queue].fetch_add(1, Ordering::Relaxed);
        let at = GuestAddress(avail + 4 + 2 * u64::from(index % SIZE));
        self.memory.write_obj(head.to_le(), at).unwrap();
        self.set_index(queue, index.wrapping_add(1));
        self.kicks[queue].write(1).unwrap();
    }

    /// Sets how many chains a queue was given.
    pub fn set_index(&self, queue: usize, index: u16) {
        let [_, avail, _] = Guest::rings(queue);
        let at = GuestAddress(avail + 2);
        self.memory
            .store(index.to_le(), at, Ordering::Release)
            .unwrap();
    }

    /// How many chains of a queue came back.
    pub fn used(&self, queue: usize) -> u16 {
        let [_, _, used] = Guest::rings(queue);
        self.memory
            .load(GuestAddress(used + 2), Ordering::Acquire)
            .unwrap()
    }

    /// Has a chain served. Returns what the server says that it has written.
    pub fn serve(&self, queue: usize, head: u16) -> u32 {
        let before = self.used(queue);
        self.make_available(queue, head);
        let begun = Instant::now();
        while self.used(queue) == before {
            assert!(begun.elapsed() < PATIENCE, "a chain does not come back");
            std::thread::yield_now();
        }
        assert_eq!(self.used(queue), before.wrapping_add(1));
        let [_, _, used] = Guest::rings(queue);
        let at = used + 4 + 8 * u64::from(before % SIZE);
        let of: u32 = self.memory.read_obj(GuestAddress(at)).unwrap();
        assert_eq!(of, u32::from(head), "another chain comes back");
        self.memory.read_obj(GuestAddress(at + 4)).unwrap()
    }

    /// Sends a request in pieces of this many bytes, with that much room for the reply.
    pub fn send(&self, request: &[u8], piece: usize, room: u32) -> Vec<u8> {
        self.memory
            .write_slice(request, GuestAddress(REQUEST))
            .unwrap();
        let [table, ..] = Guest::rings(1);
        let mut at = 0;
        for (n, bytes) in request.chunks(piece).enumerate() {
            let place = REQUEST + (n * piece) as u64;
            self.describe(table, at, (place, bytes.len() as u32, NEXT, at + 1));
            at += 1;
        }
        // In two pieces, which meet within the header.
        self.describe(table, at, (REPLY, room.min(10), WRITE | NEXT, at + 1));
        let rest = room.saturating_sub(10);
        self.describe(table, at + 1, (REPLY + 10, rest, WRITE, 0));
        let len = self.serve(1, 0);
        self.reply(len)
    }

    /// Returns the bytes of a reply.
    pub fn reply(&self, len: u32) -> Vec<u8> {
        let mut reply = vec![0; len as usize];
        self.memory
            .read_slice(&mut reply, GuestAddress(REPLY))
            .unwrap();
        reply
    }

    /// Has a request served.
    ///
    /// # Errors
    /// Those of the reply.
    pub fn ask(&self, nodeid: u64, operation: Operation<'_>) -> Result<Vec<u8>, Errno> {
        let request = encoded(nodeid, operation);
        let piece = request.len().div_ceil(usize::from(SIZE) - 4).max(40);
        body(&self.send(&request, piece, ROOM))
    }

    /// Mounts.
    ///
    /// # Errors
    /// The server refuses.
    pub fn init(&self) -> Result<Vec<u8>, Errno> {
        let offer = InitRequest {
            major: MAJOR,
            minor: 41,
            max_readahead: 1 << 20,
            flags: InitFlags::all().difference(InitFlags::NO_EXPORT_SUPPORT),
        };
        self.ask(0, Operation::Init(offer))
    }

    /// Makes a file in the root, and opens it. Returns its node.
    pub fn create(&self, name: &[u8]) -> u64 {
        let arg = CreateIn {
            flags: libc::O_RDWR.cast_unsigned(),
            mode: libc::S_IFREG | 0o644,
            ..CreateIn::default()
        };
        let extensions = Extensions::default();
        let made = self.ask(
            ROOT_ID,
            Operation::Create {
                arg,
                name,
                extensions,
            },
        );
        let made = made.unwrap();
        let (entry, open) = EntryOut::read_from_prefix(&made).unwrap();
        assert_ne!(OpenOut::read_from_bytes(open).unwrap().fh, 0);
        entry.nodeid
    }

    /// Honest requests are served.
    pub fn works(&self) {
        let attr = Operation::Getattr(GetattrIn::default());
        assert!(self.ask(ROOT_ID, attr).is_ok());
    }
}

/// The bytes of a request.
pub fn encoded(nodeid: u64, operation: Operation<'_>) -> Vec<u8> {
    let rules = Rules {
        max_request: 1 << 21,
        setxattr_ext: true,
        ..Rules::BEFORE_INIT
    };
    let request = Request {
        header: InHeader {
            unique: 6,
            nodeid,
            ..InHeader::default()
        },
        opcode: operation.opcode(),
        operation,
    };
    request.encode(&rules)
}

/// The body of a reply.
///
/// # Errors
/// The error of its header.
pub fn body(message: &[u8]) -> Result<Vec<u8>, Errno> {
    let (header, body) = OutHeader::read_from_prefix(message).expect("a header");
    assert_eq!((header.unique, header.len as usize), (6, message.len()));
    match header.error {
        0 => Ok(body.to_vec()),
        error => Err(Errno::new(-error).unwrap()),
    }
}

/// A request to read.
pub fn read(offset: u64, size: u32) -> Operation<'static> {
    Operation::Read(ReadIn {
        offset,
        size,
        ..ReadIn::default()
    })
}

/// A request to write at the begin of a file.
pub fn write(data: &[u8]) -> Operation<'_> {
    let arg = WriteIn {
        size: data.len() as u32,
        ..WriteIn::default()
    };
    let data = Data::Whole(data);
    Operation::Write { arg, data }
}
