//! Extended attributes.
//!
//! A buffer size of 0 asks for the size of the value; a buffer that is too small gets
//! ERANGE.

use pramfs::{AtimePolicy, XattrMode, inode::Fs};
use pramfs_fuse_protocol::Errno;
use pramfs_fuse_protocol::flags::SetxattrFlags;
use pramfs_fuse_protocol::wire::{InHeader, SetxattrIn};

use super::Adapter;
use super::answer::{Answer, Reply};
use super::caller::Caller;
use super::convert::{Node, ino};
use super::serve::{Refusal, Served};
use crate::remount::{BEGIN_TO_WRITE, SERVES_GUESTS, SET_ATIMES, SET_DIR_ATIMES};

fn fit(value: Vec<u8>, room: u32) -> Served<Vec<u8>> {
    if room != 0 && value.len() > room as usize {
        return Err(Refusal::Request(
            Errno::ERANGE,
            "the caller's buffer is too small for the attribute",
        ));
    }
    Ok(value)
}

fn send(reply: impl Reply, value: &[u8], room: u32) {
    if room == 0 {
        reply.send(Answer::XattrSize(value.len() as u32))
    } else {
        reply.send(Answer::Data(value))
    }
}

/// Sets the atime policy that a remount requests with a reserved attribute name.
fn set_atimes(fs: &Fs, name: &[u8]) {
    let [never, relative, strict] = SET_ATIMES.map(|(name, _)| name.as_bytes());
    let [no_dirs, dirs] = SET_DIR_ATIMES.map(str::as_bytes);
    match name {
        n if n == never => fs.set_atime_policy(AtimePolicy::NoAtime),
        n if n == relative => fs.set_atime_policy(AtimePolicy::Relatime),
        n if n == strict => fs.set_atime_policy(AtimePolicy::StrictAtime),
        n if n == no_dirs => fs.set_dir_atime(false),
        n if n == dirs => fs.set_dir_atime(true),
        _ => {}
    }
}

/// Returns the names that are shown to a caller, each ended by a NUL. Names of `trusted.`
/// are for the administrator, like their values in the kernel. Calls `sees_trusted` only
/// if there are such names.
fn shown(names: Vec<u8>, sees_trusted: impl FnOnce() -> bool) -> Vec<u8> {
    const TRUSTED: &[u8] = b"trusted.";
    let each = || names.split_inclusive(|byte| *byte == 0);
    if !each().any(|name| name.starts_with(TRUSTED)) || sees_trusted() {
        return names;
    }
    let others = each().filter(|name| !name.starts_with(TRUSTED));
    others.flatten().copied().collect()
}

impl Adapter {
    pub(super) fn on_setxattr(
        &self,
        req: &InHeader,
        arg: &SetxattrIn,
        name: &[u8],
        value: &[u8],
        reply: impl Reply,
    ) {
        let node = Node(req.nodeid);
        // Both flags together: fails with the error of the flag that does not apply, unless
        // the attribute changes in between.
        const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        let work = |fs: &Fs, _: &mut _| {
            let ino = ino(node)?;
            let mode = match arg.flags.cast_signed() {
                0 => XattrMode::Set,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                BOTH if fs.getxattr(ino, name).is_ok() => XattrMode::Create,
                BOTH => XattrMode::Replace,
                _ => {
                    return Err(Refusal::Request(
                        Errno::EINVAL,
                        "setxattr with unknown flags",
                    ));
                }
            };
            // An ACL of a caller who is not in the file's group clears set-group-ID.
            let asked = Caller::in_group_unless_checked(req);
            let told_to_clear = arg.setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
            let is_member = |group| !told_to_clear && asked(group);
            let caller = Caller::credentials(req, &is_member);
            self.removals
                .wait_for_space(fs, || fs.setxattr(&caller, ino, name, value, mode))?;
            self.listing_is_due(fs, ino);
            Ok(())
        };
        self.serve("setxattr", node, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }

    pub(super) fn on_getxattr(&self, node: Node, name: &[u8], room: u32, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            // Asked by a remount.
            let value = match self.shared && node == Node::ROOT && name == SERVES_GUESTS.as_bytes()
            {
                true => b"1".to_vec(),
                false => fs.getxattr(ino(node)?, name)?,
            };
            fit(value, room)
        };
        self.serve("getxattr", node, reply, work, |reply, value| {
            send(reply, &value, room)
        });
    }

    pub(super) fn on_listxattr(&self, req: &InHeader, node: Node, room: u32, reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            let names = fs.listxattr(ino(node)?)?;
            fit(shown(names, || Caller::sees_trusted(req)), room)
        };
        self.serve("listxattr", node, reply, work, |reply, names| {
            send(reply, &names, room)
        });
    }

    pub(super) fn on_removexattr(&self, node: Node, name: &[u8], reply: impl Reply) {
        let work = |fs: &Fs, _: &mut _| {
            // The kernel passes a change only on a writable mount.
            if name == BEGIN_TO_WRITE.as_bytes() {
                fs.make_writable()?;
            }
            set_atimes(fs, name);
            let ino = ino(node)?;
            fs.removexattr(ino, name)?;
            self.listing_is_due(fs, ino);
            Ok(())
        };
        self.serve("removexattr", node, reply, work, |reply, ()| {
            reply.send(Answer::Done)
        });
    }
}
