//! Queues of a guest out of arbitrary bytes: the fuzz target `virtqueue`.
//!
//! The input is a list of commands. The first byte of each says what it does:
//!
//! | byte mod 6 | bytes that follow | does |
//! |---|---|---|
//! | 0 | address (2), length (1), bytes | stores bytes to the memory of the guest |
//! | 1 | place (1), address (4), length (4), flags (1), next (1) | writes a descriptor |
//! | 2 | head (2) | makes a chain available |
//! | 3 | index (2) | sets the index of what is available |
//! | 4 | operation (1), node (1), length (1), body | writes a request with a right header, and has it served |
//! | 5 | | has the queue served |
//!
//! What must hold of every input: no panic, no wait without end, and after the end of the guest the
//! engine has no reference of it: a file of another door stays, and others go when they are
//! removed. The file system has no error.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{HeapBackend, Region};
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_fuse_protocol::{Message, Opcode};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::{Input, init};
use crate::adapter::{Adapter, CacheMode, Notifier};
use crate::door::{Door, DoorSettings, Outlet, Translations};
use crate::transport::dev::buffer::Buffer;
use crate::transport::virtio::{buffer, chain};

/// Bytes of the guest's memory.
const MEMORY: usize = 1 << 18;
/// Entries of the queue.
const SIZE: u16 = 16;
/// Descriptors, what is available, what is used.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
/// Requests that are right, and their replies.
const REQUEST: u64 = 0x1_0000;
const REPLY: u64 = 0x2_0000;

/// Hears nothing.
struct Deaf;

impl Outlet for Deaf {
    fn put(&mut self, _: &Message<'_>) {}
}

struct Scene {
    fs: Arc<Fs>,
    door: Door,
    memory: GuestMemoryMmap,
    queue: Queue,
    buffer: Buffer,
    available: u16,
    /// Chains that were served.
    served: usize,
}

impl Scene {
    fn new() -> Scene {
        let region = Region::new("virtqueue", HeapBackend::boxed(2 << 20));
        format(&region, &FormatOptions::default()).expect("an empty region");
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Arc::new(Fs::open(region, options).expect("a new file system"));
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::Auto, Notifier::of_guest());
        let mut queue = Queue::new(SIZE).expect("a size that is allowed");
        queue.set_desc_table_address(Some(TABLE as u32), None);
        queue.set_avail_ring_address(Some(AVAILABLE as u32), None);
        queue.set_used_ring_address(Some(USED as u32), None);
        queue.set_ready(true);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]);
        let scene = Scene {
            fs,
            door: Door::new(adapter, DoorSettings::default(), Translations::default()),
            memory: memory.expect("memory"),
            queue,
            buffer: buffer().expect("memory"),
            available: 0,
            served: 0,
        };
        scene.door.serve(&init(), &mut Deaf);
        scene
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        // What lies outside is left out.
        let _ = self.memory.write(bytes, GuestAddress(at));
    }

    fn describe(&self, place: u64, address: u64, len: u64, flags: u64, next: u64) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(&len.to_le_bytes()[..4]);
        bytes.extend(&flags.to_le_bytes()[..2]);
        bytes.extend(&next.to_le_bytes()[..2]);
        self.store(TABLE + 16 * place, &bytes);
    }

    fn make_available(&mut self, head: u64) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % SIZE);
        self.store(at, &head.to_le_bytes()[..2]);
        self.available = self.available.wrapping_add(1);
        self.store(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    /// Serves what is available, as a thread of a queue does.
    fn serve(&mut self) {
        let memory = &self.memory;
        for _ in 0..SIZE {
            let chain = match self.queue.iter(memory) {
                Ok(mut chains) => chains.next(),
                Err(_) => None,
            };
            let Some(chain) = chain else { break };
            let head = chain.head_index();
            let written = chain::serve(&self.door, memory, chain, &mut self.buffer);
            let _ = self.queue.add_used(memory, head, written);
            self.served += 1;
        }
    }

    fn request(&mut self, operation: u64, node: u64, body: &[u8]) {
        let header = InHeader {
            len: (InHeader::SIZE + body.len()) as u32,
            opcode: operation as u32,
            unique: 2,
            nodeid: node,
            ..InHeader::default()
        };
        self.store(REQUEST, header.as_bytes());
        self.store(REQUEST + InHeader::SIZE as u64, body);
        self.describe(0, REQUEST, header.len.into(), 1, 1);
        self.describe(1, REPLY, 0x1_0000, 2, 0);
        let index = self
            .memory
            .load(GuestAddress(AVAILABLE + 2), Ordering::Relaxed);
        self.available = index.unwrap_or(self.available);
        self.make_available(0);
        self.serve();
    }

    /// Runs a command. `None` at the end of the input.
    fn run(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.number(1)? % 6 {
            0 => {
                let (at, len) = (input.number(2)?, input.number(1)?);
                self.store(at, input.bytes(len as usize)?);
            }
            1 => {
                let (place, address) = (input.number(1)?, input.number(4)?);
                let (len, flags) = (input.number(4)?, input.number(1)?);
                self.describe(place % 32, address, len, flags, input.number(1)?);
            }
            2 => {
                let head = input.number(2)?;
                self.make_available(head);
            }
            3 => {
                self.available = input.number(2)? as u16;
                self.store(AVAILABLE + 2, &self.available.to_le_bytes());
            }
            4 => {
                let (operation, node) = (input.number(1)?, input.number(1)?);
                let len = input.number(1)?;
                self.request(operation, node, input.bytes(len as usize)?);
            }
            _ => self.serve(),
        }
        Some(())
    }
}

/// Runs a case. Returns how many chains were served.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn exercise(input: &[u8]) -> usize {
    let mut scene = Scene::new();
    let root = &Credentials::ROOT;
    let kept = scene.fs.create(root, Ino::ROOT, b"kept", 0o644);
    let kept = kept.expect("a new file").ino;
    // The other door's.
    scene.fs.hold(kept).into_count();
    let mut input = Input(input);
    while scene.run(&mut input).is_some() {}
    scene.door.end();
    assert_eq!(scene.door.holds(), (0, 0));
    assert!(scene.fs.getattr(kept).is_ok(), "the guest took it away");
    scene.fs.forget(kept, 1);
    let mut names = Vec::new();
    let listed = scene.fs.readdir(Ino::ROOT, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        std::ops::ControlFlow::Continue(())
    });
    listed.expect("the root can be listed");
    for (name, ino) in names.iter().filter(|(name, _)| !name.starts_with(b".")) {
        let removed = scene.fs.unlink(Ino::ROOT, name);
        if removed.is_ok() && scene.fs.getattr(*ino).is_ok_and(|attr| attr.nlink == 0) {
            scene.fs.free_forgotten();
            assert!(scene.fs.getattr(*ino).is_err(), "a reference is left");
        }
    }
    scene.fs.sync().expect("the file system has no error");
    scene.served
}

/// Cases that a fuzzer can begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let request = |operation: Opcode, node: u8, body: &[u8]| {
        let mut bytes = vec![4, operation.number() as u8, node, body.len() as u8];
        bytes.extend(body);
        bytes
    };
    let mut open = [0; 16];
    open[0] = 2;
    // Flags, mode, umask, flags of the open; the name.
    let mut create = [0; 16 + 2];
    create[0] = 2;
    create[4..8].copy_from_slice(&(libc::S_IFREG | 0o644).to_le_bytes());
    create[16] = b'f';
    let create = request(Opcode::Create, 1, &create);
    let lookup = request(Opcode::Lookup, 1, b"kept\0");
    let forget = request(Opcode::Forget, 16, &[9, 0, 0, 0, 0, 0, 0, 0]);
    let unlink = request(Opcode::Unlink, 1, b"f\0");
    // One descriptor in a circle, given twice, and a table in a table.
    let mut circle = vec![1, 3];
    circle.extend([0, 0, 1, 0, 40, 0, 0, 0, 1, 3, 2, 3, 0, 2, 3, 0, 5]);
    let mut table = vec![1, 0];
    table.extend([
        0, 2, 0, 0, 32, 0, 0, 0, 4, 0, 1, 32, 0, 2, 0, 0, 16, 0, 0, 0, 4, 0,
    ]);
    table.extend([2, 0, 0, 5, 3, 255, 255, 5]);
    vec![
        (
            "lookup_open",
            [lookup.clone(), request(Opcode::Open, 16, &open[..8])].concat(),
        ),
        ("forget", [lookup, forget.clone(), forget].concat()),
        ("create_unlink", [create.clone(), unlink].concat()),
        (
            "destroy",
            [create, request(Opcode::Destroy, 0, &[])].concat(),
        ),
        ("circle", circle),
        ("table", table),
    ]
}
