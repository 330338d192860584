//! Parses requests.

use zerocopy::FromBytes;

use super::operation::{ForgetList, InitRequest, MappingList, Operation};
use super::{Parts, Request};
use crate::data::Data;
use crate::error::{Malformed, RequestError};
use crate::extension::{ALIGN, Extensions};
use crate::flags::{InitFlags, SetattrValid};
use crate::name;
use crate::numbers::{MAJOR, SETXATTR_IN_SHORT_SIZE};
use crate::opcode::Opcode;
use crate::reader::Reader;
use crate::rules::{Rules, XATTR_VALUE_MAX};
use crate::wire::*;

impl<'a> Request<'a> {
    /// Parses a request that lies in one piece, as a read of `/dev/fuse` returns it.
    ///
    /// The bytes are exactly the request: none may follow.
    ///
    /// # Errors
    /// What is wrong, and the number to answer to.
    pub fn parse(bytes: &'a [u8], rules: &Rules) -> Result<Request<'a>, Malformed> {
        let (header, body) = head(bytes)?;
        request(header, bytes.len(), &[], Data::Whole(body), rules)
    }

    /// Parses a request that lies in parts, as io_uring and virtqueues deliver it.
    ///
    /// # Errors
    /// What is wrong, and the number to answer to.
    pub fn from_parts(parts: Parts<'a>, rules: &Rules) -> Result<Request<'a>, Malformed> {
        let (header, _) = head(parts.header)?;
        let found = InHeader::SIZE.saturating_add(parts.payload.len());
        let wrong = RequestError::Length {
            header: header.len,
            found: found.saturating_add(parts.operation.len()),
        };
        let operation = usize::try_from(header.len)
            .ok()
            .and_then(|len| parts.operation.get(..len.checked_sub(found)?))
            .ok_or_else(|| refused(&header, wrong))?;
        let found = found.saturating_add(operation.len());
        request(header, found, operation, parts.payload, rules)
    }
}

/// Splits the header off.
fn head(bytes: &[u8]) -> Result<(InHeader, &[u8]), Malformed> {
    InHeader::read_from_prefix(bytes).map_err(|_| Malformed {
        unique: None,
        error: RequestError::NoHeader(bytes.len()),
    })
}

fn refused(header: &InHeader, error: RequestError) -> Malformed {
    let op = Opcode::try_from(header.opcode);
    let has_reply = header.unique != 0 && op.map_or(true, Opcode::has_reply);
    Malformed {
        unique: has_reply.then_some(header.unique),
        error,
    }
}

fn request<'a>(
    header: InHeader,
    found: usize,
    operation: &'a [u8],
    payload: Data<'a>,
    rules: &Rules,
) -> Result<Request<'a>, Malformed> {
    let parsed = || {
        if usize::try_from(header.len) != Ok(found) {
            let header = header.len;
            return Err(RequestError::Length { header, found });
        }
        if found > rules.max_request {
            return Err(RequestError::TooLong(found));
        }
        let opcode = Opcode::try_from(header.opcode).map_err(RequestError::UnknownOpcode)?;
        // Forgets and the answer to a notification have no reply; the number of the latter
        // is the server's own.
        if header.unique == 0 && (opcode.has_reply() || opcode == Opcode::Interrupt) {
            return Err(RequestError::NoNumber);
        }
        let mut from = Reader::new(opcode, operation, payload);
        let extensions = extensions(&header, opcode, &mut from, rules)?;
        let operation = parse(opcode, &mut from, extensions, rules)?;
        from.end()?;
        Ok((opcode, operation))
    };
    let (opcode, operation) = parsed().map_err(|error| refused(&header, error))?;
    Ok(Request {
        header,
        opcode,
        operation,
    })
}

/// Takes the extensions from the end.
fn extensions<'a>(
    header: &InHeader,
    op: Opcode,
    from: &mut Reader<'a>,
    rules: &Rules,
) -> Result<Extensions<'a>, RequestError> {
    if header.total_extlen == 0 {
        return Ok(Extensions::default());
    }
    if !op.has_extensions() {
        return Err(RequestError::UnexpectedExtension(op));
    }
    let len = usize::from(header.total_extlen).saturating_mul(ALIGN);
    let bytes = from.split_end(len, "extensions")?;
    Extensions::parse(op, bytes, rules)
}

fn parse<'a>(
    op: Opcode,
    from: &mut Reader<'a>,
    extensions: Extensions<'a>,
    rules: &Rules,
) -> Result<Operation<'a>, RequestError> {
    let component = |from: &mut Reader<'a>| name::component(from, op, rules);
    let fits = |size: u32, max: u32| {
        let too_much = RequestError::TooMuch(op, size);
        if size > max { Err(too_much) } else { Ok(()) }
    };
    // Offsets of files are signed, and the last page of the longest file ends here.
    let within = |offset: u64, len: u64| match offset.checked_add(len) {
        Some(end) if end <= 1 << 63 => Ok(()),
        _ => Err(RequestError::Range(op, offset, len)),
    };
    let read = |from: &mut Reader<'a>| {
        let arg: ReadIn = from.take()?;
        fits(arg.size, rules.max_reply)?;
        Ok(arg)
    };
    Ok(match op {
        Opcode::Lookup => Operation::Lookup {
            name: component(from)?,
        },
        Opcode::Forget => Operation::Forget {
            nlookup: from.take::<ForgetIn>()?.nlookup,
        },
        Opcode::BatchForget => {
            let arg: BatchForgetIn = from.take()?;
            Operation::BatchForget(ForgetList(from.list(arg.count, ForgetOne::SIZE)?))
        }
        Opcode::Getattr => Operation::Getattr(from.take()?),
        Opcode::Statx => Operation::Statx(from.take()?),
        Opcode::Setattr => {
            let arg: SetattrIn = from.take()?;
            if arg.valid.contains(SetattrValid::SIZE) {
                within(arg.size, 0)?;
            }
            if !arg.has_valid_times() {
                return Err(RequestError::Time(op));
            }
            Operation::Setattr(arg)
        }
        Opcode::Readlink => Operation::Readlink,
        Opcode::Symlink => Operation::Symlink {
            name: component(from)?,
            target: name::target(from, op, rules)?,
            extensions,
        },
        Opcode::Mknod => Operation::Mknod {
            arg: from.take()?,
            name: component(from)?,
            extensions,
        },
        Opcode::Mkdir => Operation::Mkdir {
            arg: from.take()?,
            name: component(from)?,
            extensions,
        },
        Opcode::Create => Operation::Create {
            arg: from.take()?,
            name: component(from)?,
            extensions,
        },
        Opcode::Tmpfile => Operation::Tmpfile {
            arg: from.take()?,
            placeholder: from.until_nul("name")?,
            extensions,
        },
        Opcode::Unlink => Operation::Unlink {
            name: component(from)?,
        },
        Opcode::Rmdir => Operation::Rmdir {
            name: component(from)?,
        },
        Opcode::Rename => Operation::Rename {
            newdir: from.take::<RenameIn>()?.newdir,
            flags: 0,
            name: component(from)?,
            newname: component(from)?,
        },
        Opcode::Rename2 => {
            let arg: Rename2In = from.take()?;
            Operation::Rename {
                newdir: arg.newdir,
                flags: arg.flags,
                name: component(from)?,
                newname: component(from)?,
            }
        }
        Opcode::Link => Operation::Link {
            oldnodeid: from.take::<LinkIn>()?.oldnodeid,
            name: component(from)?,
        },
        Opcode::Open => Operation::Open(from.take()?),
        Opcode::Opendir => Operation::Opendir(from.take()?),
        Opcode::Read => {
            let arg = read(from)?;
            within(arg.offset, arg.size.into())?;
            Operation::Read(arg)
        }
        // The offset in a listing is a number of the server's own.
        Opcode::Readdir => Operation::Readdir(read(from)?),
        Opcode::Readdirplus => Operation::Readdirplus(read(from)?),
        Opcode::Write => {
            let arg: WriteIn = from.take()?;
            within(arg.offset, arg.size.into())?;
            let data = from.data(arg.size)?;
            Operation::Write { arg, data }
        }
        Opcode::Statfs => Operation::Statfs,
        Opcode::Syncfs => {
            let _: SyncfsIn = from.take()?;
            Operation::Syncfs
        }
        Opcode::Release => Operation::Release(from.take()?),
        Opcode::Releasedir => Operation::Releasedir(from.take()?),
        Opcode::Flush => Operation::Flush(from.take()?),
        Opcode::Fsync => Operation::Fsync(from.take()?),
        Opcode::Fsyncdir => Operation::Fsyncdir(from.take()?),
        Opcode::Setxattr => setxattr(from, op, rules)?,
        Opcode::Getxattr => {
            let arg: GetxattrIn = from.take()?;
            fits(arg.size, rules.max_reply.max(XATTR_VALUE_MAX))?;
            Operation::Getxattr {
                size: arg.size,
                name: name::attribute(from, op)?,
            }
        }
        Opcode::Listxattr => {
            let arg: GetxattrIn = from.take()?;
            fits(arg.size, rules.max_reply.max(XATTR_VALUE_MAX))?;
            Operation::Listxattr { size: arg.size }
        }
        Opcode::Removexattr => Operation::Removexattr {
            name: name::attribute(from, op)?,
        },
        Opcode::Init => init(from)?,
        Opcode::Destroy => Operation::Destroy,
        Opcode::Getlk => Operation::Getlk(from.take()?),
        Opcode::Setlk => Operation::Setlk(from.take()?),
        Opcode::Setlkw => Operation::Setlkw(from.take()?),
        Opcode::Access => Operation::Access {
            mask: from.take::<AccessIn>()?.mask,
        },
        Opcode::Interrupt => Operation::Interrupt {
            unique: from.take::<InterruptIn>()?.unique,
        },
        Opcode::Bmap => Operation::Bmap(from.take()?),
        Opcode::Ioctl => {
            let arg: IoctlIn = from.take()?;
            fits(arg.out_size, rules.max_reply)?;
            let data = from.data(arg.in_size)?;
            Operation::Ioctl { arg, data }
        }
        Opcode::Poll => Operation::Poll(from.take()?),
        Opcode::NotifyReply => {
            let arg: NotifyRetrieveIn = from.take()?;
            let data = from.data(arg.size)?;
            Operation::NotifyReply { arg, data }
        }
        Opcode::Fallocate => {
            let arg: FallocateIn = from.take()?;
            within(arg.offset, arg.length)?;
            Operation::Fallocate(arg)
        }
        Opcode::Lseek => Operation::Lseek(from.take()?),
        Opcode::CopyFileRange => Operation::CopyFileRange(from.take()?),
        Opcode::CopyFileRange64 => Operation::CopyFileRange64(from.take()?),
        Opcode::Setupmapping => Operation::Setupmapping(from.take()?),
        Opcode::Removemapping => {
            let arg: RemovemappingIn = from.take()?;
            let list = from.list(arg.count, RemovemappingOne::SIZE)?;
            Operation::Removemapping(MappingList(list))
        }
    })
}

fn setxattr<'a>(
    from: &mut Reader<'a>,
    op: Opcode,
    rules: &Rules,
) -> Result<Operation<'a>, RequestError> {
    let arg: SetxattrIn = if rules.setxattr_ext {
        from.take()?
    } else {
        let short = from.bytes(SETXATTR_IN_SHORT_SIZE, "header")?;
        prefix(short)
    };
    let name = name::attribute(from, op)?;
    let scattered = RequestError::Scattered(op, "value");
    let value = from.data(arg.size)?.as_slice().ok_or(scattered)?;
    Ok(Operation::Setxattr { arg, name, value })
}

/// INIT comes before anything is agreed upon: it is as long as the other side's version
/// demands, and what this version does not know is ignored. If the major versions differ,
/// only they count.
fn init<'a>(from: &mut Reader<'a>) -> Result<Operation<'a>, RequestError> {
    let versions = from.bytes(2 * size_of::<u32>(), "versions")?;
    let InitIn { major, minor, .. } = prefix(versions);
    let left = from.left();
    if major != MAJOR {
        let _ignored = from.bytes(left, "rest")?;
        return Ok(Operation::Init(InitRequest {
            major,
            minor,
            max_readahead: 0,
            flags: InitFlags::empty(),
        }));
    }
    let most = left.max(2 * size_of::<u32>());
    let mut all = [0; InitIn::SIZE];
    for (to, byte) in all
        .iter_mut()
        .zip(versions.iter().chain(from.bytes(most, "flags")?))
    {
        *to = *byte;
    }
    let arg: InitIn = prefix(&all);
    let flags = InitFlags::join(arg.flags, arg.flags2);
    let flags = if flags.contains(InitFlags::INIT_EXT) {
        flags
    } else {
        flags.difference(flags.second_word())
    };
    Ok(Operation::Init(InitRequest {
        major,
        minor,
        max_readahead: arg.max_readahead,
        flags,
    }))
}

/// Reads a structure of which only the first bytes are there. The others are 0.
fn prefix<T: FromBytes + zerocopy::IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    for (to, byte) in value.as_mut_bytes().iter_mut().zip(bytes) {
        *to = *byte;
    }
    value
}
