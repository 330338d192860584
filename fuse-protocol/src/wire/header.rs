//! The headers of requests and replies, and of their extensions.

wire_structs! {
    /// The beginning of each request.
    InHeader = "fuse_in_header" {
        /// Bytes of the whole request.
        len: u32;
        /// A number of [`Opcode`](crate::Opcode), or an unknown one.
        opcode: u32;
        /// The reply repeats it.
        unique: u64;
        nodeid: u64;
        uid: u32;
        gid: u32;
        pid: u32;
        /// Bytes of the extensions at the end, in units of 8.
        total_extlen: u16;
        padding: u16;
    }

    /// The beginning of each reply and notification.
    OutHeader = "fuse_out_header" {
        /// Bytes of the whole reply.
        len: u32;
        /// 0, a negative number of errno(3), or the number of a notification.
        error: i32;
        /// That of the request; 0 for a notification.
        unique: u64;
    }

    /// The beginning of an extension. Types up to
    /// [`MAX_NR_SECCTX`](crate::numbers::MAX_NR_SECCTX) are numbers of security contexts.
    ExtHeader = "fuse_ext_header" {
        /// Bytes of the extension, with this header.
        size: u32;
        kind = "type": u32;
    }

    /// The beginning of the extension with security contexts; the same as [`ExtHeader`].
    SecctxHeader = "fuse_secctx_header" {
        /// Bytes of the extension, with this header.
        size: u32;
        nr_secctx: u32;
    }

    /// The beginning of a security context. Its name, a NUL, and the context follow.
    Secctx = "fuse_secctx" {
        /// Bytes of the context.
        size: u32;
        padding: u32;
    }

    /// The beginning of the supplementary groups. Their numbers follow, 4 bytes each.
    SuppGroups = "fuse_supp_groups" [39] {
        nr_groups: u32;
    }
}
