//! getattr, setattr and statfs.

use fuser::{INodeNo, ReplyAttr, ReplyStatfs, Request};
use pramfs::Fs;
use pramfs::types::{Attr, SetAttr};

use super::Adapter;
use super::caller::Caller;
use super::convert::{attr, ctx, ino};
use super::namespace::attr_ttl;

fn send_attr(reply: ReplyAttr, of: Attr) {
    reply.attr(&attr_ttl(&of), &attr(&of));
}

impl Adapter {
    pub(super) fn on_getattr(&self, node: INodeNo, reply: ReplyAttr) {
        let work = |fs: &Fs, _: &mut _| Ok(fs.getattr(ino(node)?)?);
        self.serve("getattr", node, reply, work, send_attr);
    }

    pub(super) fn on_setattr(&self, req: &Request, node: INodeNo, set: &SetAttr, reply: ReplyAttr) {
        let work = |fs: &Fs, _: &mut _| {
            let (ino, in_group) = (ino(node)?, Caller::in_group(req));
            let attr = fs.setattr_by(&ctx(req, 0), ino, set, &in_group)?;
            self.listing_is_due(fs, ino);
            Ok(attr)
        };
        self.serve("setattr", node, reply, work, send_attr);
    }

    pub(super) fn on_statfs(&self, reply: ReplyStatfs) {
        self.serve(
            "statfs",
            INodeNo::ROOT,
            reply,
            |fs, _| Ok(fs.statfs()?),
            |reply, of| {
                reply.statfs(
                    of.blocks,
                    of.free,
                    of.available_to_data(),
                    of.inodes,
                    of.free_inodes,
                    of.block_size,
                    of.name_max,
                    of.block_size,
                );
            },
        );
    }
}
