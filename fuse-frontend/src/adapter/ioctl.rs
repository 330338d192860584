//! ioctl: the flags of lsattr(1) and chattr(1) in both forms, the label, FITRIM, and
//! FS_IOC_SHUTDOWN, growing, scrubbing, places of blocks, and tickets for direct access. Any other
//! one gives ENOTTY.
//!
//! FS_IOC_SHUTDOWN arrives without its argument, because its number declares no input. It
//! is treated as the variant that loses no data.
//!
//! Since 5.13 the kernel itself reads and sets the flags. It lets only owners change them,
//! and requires the capability for `+i` and `+a`. An older kernel passes the call on, so
//! the server checks both as well, unless the kernel gives no ids (6.12).

use pramfs::inode::{Fs, LeaseMode, ScrubOptions, SetAttr};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_NOATIME, FL_NODUMP, FL_SYNC};
use pramfs_medium::pmem::{
    EXTENTS, EXTENTS_MAX, FREE_SPACE, FreeRuns, GATHER, GROW, LEAF_USE, LEAF_USE_MAX, LEASE_TICKET,
    POINTERS, POINTERS_MAX, SCRUB, SCRUB_FINDING, ScrubRequest, VACATE, WRITE_LEASE_TICKET,
    decode_extents, decode_free_space, decode_gather, decode_grow, decode_leaf_use,
    decode_pointers, decode_scrub, decode_scrub_finding, decode_vacate, encode_extents,
    encode_free_space, encode_gathered, encode_grown, encode_leaf_use, encode_pointers,
    encode_scrub_finding, encode_vacated,
};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::caller::{CAP_SYS_ADMIN, Caller};
use super::convert::{Handle, Node, ino};
use super::open::allows;
use super::serve::{Refusal, Served};

/// `FS_IOC_GETFLAGS` on a 64-bit machine.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS` on a 64-bit machine.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
const GET_XFLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_XFLAGS: u32 = 0x401c_5820;

/// `FS_IOC_GETFSLABEL`.
const GET_LABEL: u32 = 0x8100_9431;
/// `FS_IOC_SETFSLABEL`.
const SET_LABEL: u32 = 0x4100_9432;
/// `FITRIM`.
const TRIM: u32 = 0xc018_5879;
/// `FS_IOC_SHUTDOWN`.
const SHUTDOWN: u32 = 0x8004_587d;

/// Bytes of a label in an ioctl, including the NUL.
const LABEL: usize = 256;

/// Bytes of `struct fsxattr`: flags, extent size, extents, project, extent
/// size for copy-on-write, and eight more.
const FSXATTR: usize = 28;

/// Flags of `struct fsxattr` (`FS_XFLAG_*`) and the corresponding chattr flags.
const XFLAGS: [(u32, u32); 5] = [
    (0x08, FL_IMMUTABLE),
    (0x10, FL_APPEND),
    (0x20, FL_SYNC),
    (0x40, FL_NOATIME),
    (0x80, FL_NODUMP),
];

/// Converts the flags of an inode to those of `struct fsxattr`.
fn to_xflags(flags: u32) -> u32 {
    let set = XFLAGS.iter().filter(|(_, fl)| flags & fl != 0);
    set.fold(0, |all, (x, _)| all | x)
}

/// Returns the flags of an inode after a `struct fsxattr` was set. Flags that it cannot
/// express stay. Returns `None` if it has unknown flags.
fn from_xflags(xflags: u32, old: u32) -> Option<u32> {
    let (mut flags, mut left) = (old, xflags);
    for (x, fl) in XFLAGS {
        flags &= !fl;
        if xflags & x != 0 {
            flags |= fl;
        }
        left &= !x;
    }
    (left == 0).then_some(flags)
}

fn invalid<T>(why: &'static str) -> Served<T> {
    Err(Refusal::Request(Errno::EINVAL, why))
}

impl Adapter {
    pub(super) fn on_ioctl(
        &self,
        req: &InHeader,
        (node, handle): (Node, Handle),
        cmd: u32,
        input: &[u8],
        out_size: u32,
        reply: impl Reply,
    ) {
        let work = |fs: &Fs, _: &mut _| match cmd {
            GET_FLAGS => {
                let mut out = fs.getattr(ino(node)?)?.flags.to_le_bytes().to_vec();
                out.resize((out_size as usize).clamp(4, 8), 0);
                Ok(out)
            }
            SET_FLAGS => match input.first_chunk() {
                Some(flags) => self.set_flags(fs, req, node, |_| Ok(u32::from_le_bytes(*flags))),
                None => invalid("FS_IOC_SETFLAGS without flags"),
            },
            GET_XFLAGS => {
                let mut out = to_xflags(fs.getattr(ino(node)?)?.flags)
                    .to_le_bytes()
                    .to_vec();
                out.resize(FSXATTR, 0);
                Ok(out)
            }
            SET_XFLAGS => {
                let Some((xflags, rest)) = input.split_first_chunk() else {
                    return invalid("FS_IOC_FSSETXATTR without flags");
                };
                // The number of extents is read-only and ignored here.
                let number = |at: usize| rest.get(at..at + 4).is_some_and(|n| n != [0; 4]);
                if number(0) || number(8) || number(12) {
                    return Err(Refusal::Request(
                        Errno::EOPNOTSUPP,
                        "extent sizes and project ids are not supported",
                    ));
                }
                self.set_flags(fs, req, node, |old| {
                    from_xflags(u32::from_le_bytes(*xflags), old).ok_or(Refusal::Request(
                        Errno::EOPNOTSUPP,
                        "FS_IOC_FSSETXATTR with unsupported flags",
                    ))
                })
            }
            GET_LABEL => {
                let mut out = fs.label().into_bytes();
                out.resize(LABEL, 0);
                Ok(out)
            }
            SET_LABEL => {
                administers(req)?;
                let end = input.iter().position(|byte| *byte == 0);
                let label = std::str::from_utf8(&input[..end.unwrap_or(input.len())]);
                let Ok(label) = label else {
                    return invalid("the label is not UTF-8");
                };
                fs.set_label(label)?;
                Ok(Vec::new())
            }
            TRIM => {
                administers(req)?;
                let (&[start, len, least], []) = input.as_chunks::<8>() else {
                    return invalid("FITRIM without a range");
                };
                let [start, len, least] = [start, len, least].map(u64::from_le_bytes);
                let done = fs.trim(start, len, least)?;
                Ok([start, done, least]
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect())
            }
            SHUTDOWN => {
                administers(req)?;
                fs.force_shutdown()?;
                Ok(Vec::new())
            }
            GROW => {
                owns_mount(req)?;
                let size = decode_grow(input).or_else(invalid)?;
                let grown = fs.grow(size)?;
                Ok(encode_grown(grown.from, grown.to))
            }
            SCRUB => {
                owns_mount(req)?;
                self.scrub(fs, decode_scrub(input).or_else(invalid)?)
            }
            SCRUB_FINDING => {
                owns_mount(req)?;
                let number = decode_scrub_finding(input).or_else(invalid)?;
                let found = fs.scrub_finding(number);
                let text = found.as_ref().map(|found| found.text.as_str());
                Ok(encode_scrub_finding(text))
            }
            GATHER => {
                owns_mount(req)?;
                let offset = decode_gather(input).or_else(invalid)?;
                let done = fs.gather(ino(node)?, offset)?;
                Ok(encode_gathered(done, fs.gather_unit()))
            }
            EXTENTS => {
                let offset = decode_extents(input).or_else(invalid)?;
                let node = ino(node)?;
                let size = fs.getattr(node)?.size;
                // No more than the reply has room for: a file may have millions.
                let extents = fs.first_extents(node, offset, EXTENTS_MAX)?;
                Ok(encode_extents(&extents, size))
            }
            FREE_SPACE => {
                owns_mount(req)?;
                decode_free_space(input).or_else(invalid)?;
                let free = fs.free_space()?;
                Ok(encode_free_space(&FreeRuns {
                    blocks: free.blocks,
                    leaves: free.leaves,
                    block_size: fs.statfs()?.block_size.into(),
                    part: fs.gather_unit() / u64::from(fs.statfs()?.block_size),
                    runs: free.runs,
                }))
            }
            VACATE => {
                owns_mount(req)?;
                let (offset, leaf) = decode_vacate(input).or_else(invalid)?;
                let done = fs.vacate(ino(node)?, offset, leaf)?;
                Ok(encode_vacated(done, fs.gather_unit()))
            }
            POINTERS => {
                owns_mount(req)?;
                let offset = decode_pointers(input).or_else(invalid)?;
                let node = ino(node)?;
                let size = fs.getattr(node)?.size;
                let (blocks, next) = fs.pointer_blocks(node, offset, POINTERS_MAX)?;
                Ok(encode_pointers(&blocks, next, size))
            }
            LEAF_USE => {
                owns_mount(req)?;
                let first = decode_leaf_use(input).or_else(invalid)?;
                Ok(encode_leaf_use(&fs.leaf_use(first, LEAF_USE_MAX)?))
            }
            LEASE_TICKET => self.ticket(req, node, handle, LeaseMode::Read),
            WRITE_LEASE_TICKET => self.ticket(req, node, handle, LeaseMode::Write),
            _ => Err(Refusal::Request(Errno::ENOTTY, "unknown ioctl")),
        };
        self.serve("ioctl", node, reply, work, |reply, out| {
            reply.send(Answer::Ioctl(&out))
        });
    }

    /// Starts or cancels the scrub, whose thread works on, and returns how far it is.
    fn scrub(&self, fs: &Fs, request: ScrubRequest) -> Served<Vec<u8>> {
        match request {
            ScrubRequest::Status => {}
            ScrubRequest::Start { resume, limit } => {
                fs.start_scrub(ScrubOptions { limit, resume })?;
            }
            ScrubRequest::Cancel => {
                if !fs.cancel_scrub() {
                    return Err(Refusal::Request(Errno::ENOENT, "no scrub runs"));
                }
            }
        }
        Ok(fs.scrub_status().encode())
    }

    /// Issues a ticket for direct access to an open file.
    fn ticket(
        &self,
        req: &InHeader,
        node: Node,
        handle: Handle,
        mode: LeaseMode,
    ) -> Served<Vec<u8>> {
        let Some(direct) = &self.direct else {
            return Err(Refusal::Request(
                Errno::EOPNOTSUPP,
                "this mount has no direct access",
            ));
        };
        if !allows(handle, mode) {
            return Err(Refusal::Request(
                Errno::EBADF,
                "a ticket needs a file that is open for reading, and for writing without O_APPEND if the lease is",
            ));
        }
        let Some(user) = Caller::user(req) else {
            return Err(Refusal::Request(
                Errno::EACCES,
                "the server cannot see the process that wants direct access",
            ));
        };
        let is_member = |group| Caller::of(req).is_in(group);
        let reply = direct
            .ticket(user, &is_member, ino(node)?, mode)
            .map_err(|refused| {
                let errno = match refused.reason {
                    pramfs_control::Refusal::NotPermitted => Errno::EACCES,
                    pramfs_control::Refusal::Immutable => Errno::EPERM,
                    pramfs_control::Refusal::Ended => Errno::ESTALE,
                    pramfs_control::Refusal::Unsupported => Errno::EOPNOTSUPP,
                    _ => Errno::EIO,
                };
                Refusal::Request(errno, "no ticket for direct access")
            })?;
        match reply.encode() {
            Some(bytes) => Ok(bytes.to_vec()),
            None => Err(Refusal::Request(
                Errno::EIO,
                "the name of the control socket is too long",
            )),
        }
    }

    fn set_flags(
        &self,
        fs: &Fs,
        req: &InHeader,
        node: Node,
        new: impl FnOnce(u32) -> Served<u32>,
    ) -> Served<Vec<u8>> {
        let ino = ino(node)?;
        let attr = fs.getattr(ino)?;
        let flags = new(attr.flags)?;
        let forbids = (attr.flags ^ flags) & (FL_IMMUTABLE | FL_APPEND) != 0;
        Caller::may_set_flags(req, attr.uid, forbids)
            .map_err(|why| Refusal::Request(Errno::EPERM, why))?;
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        fs.setattr(&Caller::credentials(req, &Caller::in_group(req)), ino, &set)?;
        // The kernel assumes that an ioctl changes no attributes, but this sets the ctime.
        self.attributes_have_changed(node);
        self.listing_is_due(fs, ino);
        Ok(Vec::new())
    }
}

/// Checks that the caller has CAP_SYS_ADMIN. The kernel does not check these ioctls.
fn administers(req: &InHeader) -> Served<()> {
    match Caller::of(req).can(CAP_SYS_ADMIN) {
        true => Ok(()),
        false => Err(Refusal::Request(
            Errno::EPERM,
            "this ioctl needs CAP_SYS_ADMIN",
        )),
    }
}

/// Checks that the caller is root or runs the server. A guest of a virtual machine is neither.
fn owns_mount(req: &InHeader) -> Served<()> {
    match Caller::owns_server(req) {
        true => Ok(()),
        false => Err(Refusal::Request(
            Errno::EPERM,
            "only root and the user who mounted the file system may change how it is stored",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xflags_and_chattr_flags_convert_both_ways() {
        for (x, fl) in XFLAGS {
            assert_eq!(to_xflags(fl), x);
            assert_eq!(from_xflags(x, 0), Some(fl));
            assert_eq!(from_xflags(0, fl), Some(0));
        }
        // A flag that fsxattr cannot express stays.
        assert_eq!(from_xflags(0x80, 0x01), Some(FL_NODUMP | 0x01));
        assert_eq!(from_xflags(0x8000_0000, 0), None);
    }
}
