//! ioctl: the flags of lsattr(1) and chattr(1) in both of their forms, the
//! label, FITRIM, and FS_IOC_SHUTDOWN. Anything else is ENOTTY.
//!
//! FS_IOC_SHUTDOWN comes without its argument, as its number says that it has
//! none to give: it is taken for the kind that loses nothing.
//!
//! Since 5.13 the kernel itself asks for the flags and sets them, and lets
//! only owners do so, and only who may change `+i` and `+a`; an older one
//! passes the call on, so that is checked here as well.

use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use pramfs::inode::{Credentials, Fs, SetAttr};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_NOATIME, FL_NODUMP, FL_SYNC};

use super::Adapter;
use super::caller::{CAP_SYS_ADMIN, Caller};
use super::convert::ino;
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

/// Bytes of a label that an ioctl gives and takes, the NUL included.
const LABEL: usize = 256;

/// Bytes of `struct fsxattr`: flags, extent size, extents, project, extent
/// size for copy-on-write, and eight more.
const FSXATTR: usize = 28;

/// Flags of `struct fsxattr` (`FS_XFLAG_*`) and what chattr calls them.
const XFLAGS: [(u32, u32); 5] = [
    (0x08, FL_IMMUTABLE),
    (0x10, FL_APPEND),
    (0x20, FL_SYNC),
    (0x40, FL_NOATIME),
    (0x80, FL_NODUMP),
];

/// Flags of an inode as `struct fsxattr` has them.
fn to_xflags(flags: u32) -> u32 {
    let set = XFLAGS.iter().filter(|(_, fl)| flags & fl != 0);
    set.fold(0, |all, (x, _)| all | x)
}

/// Flags of an inode after they were set by a `struct fsxattr`, which cannot
/// say all of them.
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
        req: &Request,
        node: INodeNo,
        cmd: u32,
        input: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
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
                // The number of extents is only ever shown.
                let number = |at: usize| rest.get(at..at + 4).is_some_and(|n| n != [0; 4]);
                if number(0) || number(8) || number(12) {
                    return Err(Refusal::Request(
                        Errno::EOPNOTSUPP,
                        "extent sizes and project ids",
                    ));
                }
                self.set_flags(fs, req, node, |old| {
                    from_xflags(u32::from_le_bytes(*xflags), old).ok_or(Refusal::Request(
                        Errno::EOPNOTSUPP,
                        "FS_IOC_FSSETXATTR with flags that are not kept",
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
                    return invalid("a label that is not UTF-8");
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
                fs.shut_down()?;
                Ok(Vec::new())
            }
            _ => Err(Refusal::Request(Errno::ENOTTY, "unknown ioctl")),
        };
        self.serve("ioctl", node, reply, work, |reply, out| {
            reply.ioctl(0, &out)
        });
    }

    fn set_flags(
        &self,
        fs: &Fs,
        req: &Request,
        node: INodeNo,
        new: impl FnOnce(u32) -> Served<u32>,
    ) -> Served<Vec<u8>> {
        let ino = ino(node)?;
        let attr = fs.getattr(ino)?;
        let flags = new(attr.flags)?;
        let forbids = (attr.flags ^ flags) & (FL_IMMUTABLE | FL_APPEND) != 0;
        Caller::of(req)
            .may_set_flags(req.uid(), attr.uid, forbids)
            .map_err(|why| Refusal::Request(Errno::EPERM, why))?;
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::new(req.uid(), req.gid()), ino, &set)?;
        // To the kernel an ioctl changes nothing; but it sets the ctime.
        self.attributes_have_changed(node);
        self.listing_is_due(fs, ino);
        Ok(Vec::new())
    }
}

/// What only an administrator may do. The kernel asks no questions here.
fn administers(req: &Request) -> Served<()> {
    match Caller::of(req).can(CAP_SYS_ADMIN) {
        true => Ok(()),
        false => Err(Refusal::Request(
            Errno::EPERM,
            "an ioctl that needs CAP_SYS_ADMIN",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_both_kinds_mean_the_same() {
        for (x, fl) in XFLAGS {
            assert_eq!(to_xflags(fl), x);
            assert_eq!(from_xflags(x, 0), Some(fl));
            assert_eq!(from_xflags(0, fl), Some(0));
        }
        // What fsxattr has no word for stays.
        assert_eq!(from_xflags(0x80, 0x01), Some(FL_NODUMP | 0x01));
        assert_eq!(from_xflags(0x8000_0000, 0), None);
    }
}
