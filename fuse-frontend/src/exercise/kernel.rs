//! Requests of a kernel that lies: the fuzz target `kernel`.
//!
//! The first byte has what was negotiated (bits 0 to 2). The rest is a list of commands. The first
//! byte of each says what it does:
//!
//! | byte mod 4 | bytes that follow | does |
//! |---|---|---|
//! | 0 | operation (1), node (2), length (1), header of the operation, length (1), payload | serves an entry of a ring |
//! | 1 | operation (1), node (2), length of the payload (4), length (1), header of the operation, length (1), payload | the same, with any length of the payload |
//! | 2 | operation (1), node (2), length (1), body | sends a request with a right header to a server of /dev/fuse |
//! | 3 | length (1), bytes | sends any bytes to it |
//!
//! What must hold of every input: no panic, no wait without end; a reply has the number of its
//! request and the length that its header says, fits the room of the entry, and there is one at
//! most; afterwards the root answers, and the file system has no error.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::{HeapBackend, Region};
use pramfs_fuse_protocol::wire::{InHeader, OutHeader, UringReqHeader};
use pramfs_fuse_protocol::{Opcode, Rules};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Input;
use crate::adapter::{Adapter, CacheMode, Notifier};
use crate::transport::dev::buffer::Buffer;
use crate::transport::{dev, uring};

/// Bytes of the payload of an entry, and of the largest request.
const ROOM: usize = 1 << 17;

/// The number of every request.
const UNIQUE: u64 = 2;

/// The rules that the bits of the first byte choose.
fn rules(bits: u8) -> Rules {
    Rules {
        max_request: ROOM,
        max_reply: ROOM as u32,
        setxattr_ext: bits & 1 != 0,
        security_contexts: bits & 2 != 0,
        supplementary_groups: bits & 4 != 0,
        ..Rules::BEFORE_INIT
    }
}

struct Scene {
    fs: Arc<Fs>,
    adapter: Adapter,
    rules: Rules,
    /// The payload of the entry.
    payload: Vec<u8>,
    kept: Vec<u8>,
    /// The end of the kernel, and of the server.
    ends: [OwnedFd; 2],
    buffer: Buffer,
    /// Requests that were done.
    done: usize,
}

impl Scene {
    fn new(bits: u8) -> Scene {
        let region = Region::new("kernel", HeapBackend::boxed(2 << 20));
        format(&region, &FormatOptions::default()).expect("an empty region");
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Arc::new(Fs::open(region, options).expect("a new file system"));
        let root = &Credentials::ROOT;
        let made = fs.create(root, Ino::ROOT, b"kept", 0o644);
        let kept = made.expect("a new file").ino;
        let written = fs.write(root, kept, 0, b"some bytes");
        written.expect("room");
        // Nobody hears what the kernel is told by itself.
        let null = File::options().write(true).open("/dev/null");
        let notifier = Notifier::new(null.expect("it is always there").into());
        let adapter = Adapter::new(Arc::clone(&fs), CacheMode::Auto, notifier);
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .expect("descriptors");
        Scene {
            fs,
            adapter,
            rules: rules(bits),
            payload: vec![0; ROOM],
            kept: Vec::new(),
            ends: [one, other],
            buffer: Buffer::new(ROOM).unwrap_or_else(|_| panic!("no memory")),
            done: 0,
        }
    }

    /// Serves an entry of a ring.
    fn entry(&mut self, operation: u64, node: u64, payload_len: u32, head: &[u8], payload: &[u8]) {
        let header = InHeader {
            len: (InHeader::SIZE + head.len() + payload.len()) as u32,
            opcode: operation as u32,
            unique: UNIQUE,
            nodeid: node,
            ..InHeader::default()
        };
        let mut headers = UringReqHeader::new_zeroed();
        headers.in_out[..InHeader::SIZE].copy_from_slice(header.as_bytes());
        let head = &head[..head.len().min(headers.op_in.len())];
        headers.op_in[..head.len()].copy_from_slice(head);
        headers.ring_ent_in_out.payload_sz = payload_len;
        self.payload[..payload.len()].copy_from_slice(payload);
        let (room, kept) = (&mut self.payload[..], &mut self.kept);
        let (out, body) = uring::serve_entry(&self.adapter, &headers, room, &self.rules, kept);
        assert!(body <= ROOM, "a reply of {body} bytes");
        check(&out, OutHeader::SIZE + body);
        self.done += usize::from(out.error == 0);
        assert!(self.kept.is_empty(), "bytes of a reply are left");
    }

    /// Sends bytes to a server of /dev/fuse, and takes its reply.
    fn send(&mut self, bytes: &[u8]) {
        // The kernel sends nothing shorter, and a message without a byte is the end of a socket.
        if bytes.is_empty() {
            return;
        }
        let sent = rustix::net::send(&self.ends[0], bytes, SendFlags::NOSIGNAL);
        sent.expect("there is room");
        let (adapter, buffer) = (&self.adapter, &mut self.buffer);
        let goes_on = dev::serve_next(adapter, &self.ends[1], buffer, &self.rules);
        assert!(goes_on.expect("a request was sent"));
        let mut reply = vec![0; OutHeader::SIZE + ROOM];
        let mut replies = 0;
        loop {
            let mut pieces = [IoSliceMut::new(&mut reply)];
            let received = rustix::net::recvmsg(
                self.ends[0].as_fd(),
                &mut pieces,
                &mut rustix::net::RecvAncillaryBuffer::default(),
                RecvFlags::DONTWAIT,
            );
            let Ok(received) = received else { break };
            replies += 1;
            let read = OutHeader::read_from_prefix(&reply[..received.bytes]);
            let (out, _) = read.unwrap_or_else(|_| panic!("a reply is too short"));
            match InHeader::read_from_prefix(bytes) {
                Ok((header, _)) => assert_eq!(out.unique, header.unique),
                Err(_) => panic!("a reply to nothing"),
            }
            assert_eq!(out.len as usize, received.bytes);
            assert!(out.error <= 0 && out.error > -4096, "{}", out.error);
            self.done += usize::from(out.error == 0);
        }
        assert!(replies <= 1, "{replies} replies");
    }

    /// Runs a command. `None` at the end of the input.
    fn run(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.number(1)? % 4 {
            0 => {
                let (operation, node) = (input.number(1)?, input.number(2)?);
                let len = input.number(1)? as usize;
                let head = input.bytes(len)?;
                let len = input.number(1)? as usize;
                let payload = input.bytes(len)?;
                self.entry(operation, node, payload.len() as u32, head, payload);
            }
            1 => {
                let (operation, node) = (input.number(1)?, input.number(2)?);
                let payload_len = input.number(4)? as u32;
                let len = input.number(1)? as usize;
                let head = input.bytes(len)?;
                let len = input.number(1)? as usize;
                let payload = input.bytes(len)?;
                self.entry(operation, node, payload_len, head, payload);
            }
            2 => {
                let (operation, node) = (input.number(1)?, input.number(2)?);
                let len = input.number(1)? as usize;
                let body = input.bytes(len)?;
                self.send(&request(operation as u32, node, body));
            }
            _ => {
                let len = input.number(1)? as usize;
                let bytes = input.bytes(len)?;
                self.send(bytes);
            }
        }
        Some(())
    }
}

fn check(out: &OutHeader, len: usize) {
    assert_eq!(out.unique, UNIQUE);
    assert_eq!(out.len as usize, len);
    assert!(out.error <= 0 && out.error > -4096, "{}", out.error);
    assert!(
        out.error == 0 || len == OutHeader::SIZE,
        "an error with a body"
    );
}

/// A request with a right header.
fn request(operation: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (InHeader::SIZE + body.len()) as u32,
        opcode: operation,
        unique: UNIQUE,
        nodeid: node,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

/// Runs a case. Returns how many requests were done.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn exercise(input: &[u8]) -> usize {
    let mut input = Input(input);
    let Some(bits) = input.number(1) else {
        return 0;
    };
    let mut scene = Scene::new(bits as u8);
    while scene.run(&mut input).is_some() {}
    // A handler that has panicked lets nothing pass any more.
    let mut headers = UringReqHeader::new_zeroed();
    let statfs = request(Opcode::Statfs.number(), Ino::ROOT.0, &[]);
    headers.in_out[..InHeader::SIZE].copy_from_slice(&statfs);
    let (room, kept) = (&mut scene.payload[..], &mut scene.kept);
    let (out, _) = uring::serve_entry(&scene.adapter, &headers, room, &scene.rules, kept);
    assert_eq!(out.error, 0, "the root does not answer");
    scene.fs.sync().expect("the file system has no error");
    scene.done
}

/// Cases that a fuzzer can begin with.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let command = |how: u8, operation: Opcode, node: u16, body: &[u8]| {
        let mut bytes = vec![how, operation.number() as u8];
        bytes.extend(node.to_le_bytes());
        bytes.push(body.len() as u8);
        bytes.extend(body);
        bytes
    };
    // In a ring, names and data lie in the payload.
    let entry = |operation: Opcode, node: u16, head: &[u8], payload: &[u8]| {
        let mut bytes = command(0, operation, node, head);
        bytes.push(payload.len() as u8);
        bytes.extend(payload);
        bytes
    };
    let mut create = [0; 16];
    create[0] = 2;
    create[4..8].copy_from_slice(&(libc::S_IFREG | 0o644).to_le_bytes());
    // Handle, offset, size.
    let mut read = [0; 40];
    read[17] = 2;
    let mut write = [0; 40];
    write[16] = 4;
    let mut lying = vec![1, Opcode::Write.number() as u8, 16, 0];
    lying.extend(u32::MAX.to_le_bytes());
    lying.push(40);
    lying.extend(write);
    lying.extend([4, 1, 2, 3, 4]);
    let ring = [
        vec![7],
        entry(Opcode::Lookup, 1, b"", b"kept\0"),
        entry(Opcode::Create, 1, &create, b"f\0"),
        entry(Opcode::Write, 16, &write, b"data"),
        entry(Opcode::Read, 16, &read, b""),
        entry(Opcode::Readdirplus, 1, &read, b""),
    ];
    let device = [
        vec![0],
        command(2, Opcode::Lookup, 1, b"kept\0"),
        command(2, Opcode::Read, 16, &read),
        command(2, Opcode::Unlink, 1, b"kept\0"),
        command(2, Opcode::Forget, 16, &[9, 0, 0, 0, 0, 0, 0, 0]),
        command(2, Opcode::Getattr, 16, &[0; 16]),
        vec![3, 6, 40, 0, 0, 0, 255, 255],
    ];
    let lies = [vec![0], lying, command(2, Opcode::Init, 0, &[7, 0, 0, 0])];
    vec![
        ("ring", ring.concat()),
        ("device", device.concat()),
        ("lies", lies.concat()),
    ]
}
