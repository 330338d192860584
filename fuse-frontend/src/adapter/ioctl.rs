//! ioctl: the flags of lsattr(1) and chattr(1). Anything else is ENOTTY.

use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use pramfs::Fs;
use pramfs::types::SetAttr;

use super::Adapter;
use super::convert::{ctx, ino};
use super::serve::Refusal;

/// `FS_IOC_GETFLAGS` on a 64-bit machine.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS` on a 64-bit machine.
const SET_FLAGS: u32 = 0x4008_6602;

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
            SET_FLAGS => {
                let flags = input.first_chunk().copied().map(u32::from_le_bytes);
                if flags.is_none() {
                    return Err(Refusal::Request(
                        Errno::EINVAL,
                        "FS_IOC_SETFLAGS without flags",
                    ));
                }
                fs.setattr(
                    &ctx(req),
                    ino(node)?,
                    &SetAttr {
                        flags,
                        ..SetAttr::default()
                    },
                )?;
                Ok(Vec::new())
            }
            _ => Err(Refusal::Request(Errno::ENOTTY, "unknown ioctl")),
        };
        self.serve("ioctl", node, reply, work, |reply, out| {
            reply.ioctl(0, &out)
        });
    }
}
