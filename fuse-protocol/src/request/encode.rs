//! Encodes requests: what the kernel does. Tests of a server and of its transports use it.

use zerocopy::{Immutable, IntoBytes};

use super::Request;
use super::operation::{InitRequest, Operation};
use crate::extension::{ALIGN, Extensions};
use crate::flags::InitFlags;
use crate::numbers::{EXT_GROUPS, SETXATTR_IN_SHORT_SIZE};
use crate::opcode::Opcode;
use crate::rules::Rules;
use crate::wire::*;

/// Collects the two parts of a body.
#[derive(Default)]
struct Body {
    operation: Vec<u8>,
    payload: Vec<u8>,
}

impl Body {
    fn head<T: IntoBytes + Immutable>(&mut self, arg: &T) {
        self.operation.extend_from_slice(arg.as_bytes());
    }

    fn name(&mut self, name: &[u8]) {
        self.payload.extend_from_slice(name);
        self.payload.push(0);
    }

    fn pad(&mut self) {
        let padded = self.payload.len().next_multiple_of(ALIGN);
        self.payload.resize(padded, 0);
    }

    /// Appends one extension, and returns its length.
    fn extension(&mut self, kind: u32, bytes: &[u8]) {
        let size = ExtHeader::SIZE + bytes.len().next_multiple_of(ALIGN);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let head = ExtHeader { size, kind };
        let begin = self.payload.len();
        self.payload.extend_from_slice(head.as_bytes());
        self.payload.extend_from_slice(bytes);
        let padded = (self.payload.len() - begin).next_multiple_of(ALIGN);
        self.payload.resize(begin + padded, 0);
    }

    /// Appends extensions, and returns their length in units of 8 bytes.
    fn extensions(&mut self, all: &Extensions<'_>) -> u16 {
        let begin = self.payload.len();
        if let Some(contexts) = all.contexts {
            let mut part = Body::default();
            let mut count = 0;
            for (name, value) in contexts.iter() {
                let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
                let head = Secctx { size, padding: 0 };
                part.payload.extend_from_slice(head.as_bytes());
                part.name(name);
                part.payload.extend_from_slice(value);
                part.pad();
                count += 1;
            }
            self.extension(count, &part.payload);
        }
        if let Some(groups) = all.groups {
            let numbers: Vec<u32> = groups.iter().collect();
            let nr_groups = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            let mut part = SuppGroups { nr_groups }.as_bytes().to_vec();
            part.extend_from_slice(numbers.as_bytes());
            self.extension(EXT_GROUPS, &part);
        }
        let len = (self.payload.len() - begin) / ALIGN;
        u16::try_from(len).unwrap_or(u16::MAX)
    }
}

impl Request<'_> {
    /// Encodes the request: the header, the header of the operation, and the payload.
    /// Lengths in the header and number of the operation are computed.
    #[must_use]
    pub fn encode_parts(&self, rules: &Rules) -> (InHeader, Vec<u8>, Vec<u8>) {
        let mut body = Body::default();
        let mut header = InHeader {
            opcode: self.opcode.number(),
            total_extlen: 0,
            ..self.header
        };
        encode(self, &mut body, &mut header, rules);
        let len = InHeader::SIZE + body.operation.len() + body.payload.len();
        header.len = u32::try_from(len).unwrap_or(u32::MAX);
        (header, body.operation, body.payload)
    }

    /// Encodes the request in one piece.
    ///
    /// ```
    /// use pramfs_fuse_protocol::{Opcode, Operation, Request, Rules, wire::InHeader};
    /// let request = Request {
    ///     header: InHeader { unique: 2, nodeid: 1, ..InHeader::default() },
    ///     opcode: Opcode::Lookup,
    ///     operation: Operation::Lookup { name: b"file" },
    /// };
    /// let bytes = request.encode(&Rules::BEFORE_INIT);
    /// let parsed = Request::parse(&bytes, &Rules::BEFORE_INIT).unwrap();
    /// assert_eq!(parsed.operation, request.operation);
    /// ```
    #[must_use]
    pub fn encode(&self, rules: &Rules) -> Vec<u8> {
        let (header, operation, payload) = self.encode_parts(rules);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&operation);
        bytes.extend_from_slice(&payload);
        bytes
    }
}

fn encode(request: &Request<'_>, body: &mut Body, header: &mut InHeader, rules: &Rules) {
    match &request.operation {
        Operation::Lookup { name }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Removexattr { name } => body.name(name),
        Operation::Forget { nlookup } => body.head(&ForgetIn { nlookup: *nlookup }),
        Operation::BatchForget(list) => {
            let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
            body.head(&BatchForgetIn { count, dummy: 0 });
            body.payload.extend_from_slice(list.0);
        }
        Operation::Getattr(arg) => body.head(arg),
        Operation::Statx(arg) => body.head(arg),
        Operation::Setattr(arg) => body.head(arg),
        Operation::Readlink | Operation::Statfs | Operation::Destroy => {}
        Operation::Symlink {
            name,
            target,
            extensions,
        } => {
            body.name(name);
            body.name(target);
            header.total_extlen = body.extensions(extensions);
        }
        Operation::Mknod {
            arg,
            name,
            extensions,
        } => {
            body.head(arg);
            body.name(name);
            header.total_extlen = body.extensions(extensions);
        }
        Operation::Mkdir {
            arg,
            name,
            extensions,
        } => {
            body.head(arg);
            body.name(name);
            header.total_extlen = body.extensions(extensions);
        }
        Operation::Create {
            arg,
            name,
            extensions,
        }
        | Operation::Tmpfile {
            arg,
            placeholder: name,
            extensions,
        } => {
            body.head(arg);
            body.name(name);
            header.total_extlen = body.extensions(extensions);
        }
        Operation::Rename {
            newdir,
            flags,
            name,
            newname,
        } => {
            let (newdir, flags) = (*newdir, *flags);
            if request.opcode == Opcode::Rename {
                body.head(&RenameIn { newdir });
            } else {
                let padding = 0;
                body.head(&Rename2In {
                    newdir,
                    flags,
                    padding,
                });
            }
            body.name(name);
            body.name(newname);
        }
        Operation::Link { oldnodeid, name } => {
            let oldnodeid = *oldnodeid;
            body.head(&LinkIn { oldnodeid });
            body.name(name);
        }
        Operation::Open(arg) | Operation::Opendir(arg) => body.head(arg),
        Operation::Read(arg) | Operation::Readdir(arg) | Operation::Readdirplus(arg) => {
            body.head(arg);
        }
        Operation::Write { arg, data } => {
            body.head(arg);
            body.payload = data.to_vec();
        }
        Operation::Syncfs => body.head(&SyncfsIn::default()),
        Operation::Release(arg) | Operation::Releasedir(arg) => body.head(arg),
        Operation::Flush(arg) => body.head(arg),
        Operation::Fsync(arg) | Operation::Fsyncdir(arg) => body.head(arg),
        Operation::Setxattr { arg, name, value } => {
            body.head(arg);
            if !rules.setxattr_ext {
                body.operation.truncate(SETXATTR_IN_SHORT_SIZE);
            }
            body.name(name);
            body.payload.extend_from_slice(value);
        }
        Operation::Getxattr { size, name } => {
            let (size, padding) = (*size, 0);
            body.head(&GetxattrIn { size, padding });
            body.name(name);
        }
        Operation::Listxattr { size } => {
            let (size, padding) = (*size, 0);
            body.head(&GetxattrIn { size, padding });
        }
        Operation::Init(arg) => init(arg, body),
        Operation::Getlk(arg) | Operation::Setlk(arg) | Operation::Setlkw(arg) => body.head(arg),
        Operation::Access { mask } => {
            let (mask, padding) = (*mask, 0);
            body.head(&AccessIn { mask, padding });
        }
        Operation::Interrupt { unique } => body.head(&InterruptIn { unique: *unique }),
        Operation::Bmap(arg) => body.head(arg),
        Operation::Ioctl { arg, data } => {
            body.head(arg);
            body.payload = data.to_vec();
        }
        Operation::Poll(arg) => body.head(arg),
        Operation::NotifyReply { arg, data } => {
            body.head(arg);
            body.payload = data.to_vec();
        }
        Operation::Fallocate(arg) => body.head(arg),
        Operation::Lseek(arg) => body.head(arg),
        Operation::CopyFileRange(arg) | Operation::CopyFileRange64(arg) => body.head(arg),
        Operation::Setupmapping(arg) => body.head(arg),
        Operation::Removemapping(list) => {
            let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
            body.head(&RemovemappingIn { count });
            body.payload.extend_from_slice(list.0);
        }
    }
}

/// With the length of its version: 64 bytes from 7.36 on.
fn init(arg: &InitRequest, body: &mut Body) {
    let (flags, flags2) = arg.flags.split();
    body.head(&InitIn {
        major: arg.major,
        minor: arg.minor,
        max_readahead: arg.max_readahead,
        flags,
        flags2,
        unused: [0; 11],
    });
    if !arg.flags.contains(InitFlags::INIT_EXT) {
        body.operation.truncate(16);
    }
}
