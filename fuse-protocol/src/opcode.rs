//! The operations that a request can ask for.

wire_enum! {
    /// An operation. Those of CUSE, a protocol for character devices, are not here.
    Opcode: u32 {
        /// Finds a name in a directory.
        Lookup = "FUSE_LOOKUP", 1;
        /// Drops references to a node. It has no reply.
        Forget = "FUSE_FORGET", 2;
        /// Reads attributes.
        Getattr = "FUSE_GETATTR", 3;
        /// Changes attributes.
        Setattr = "FUSE_SETATTR", 4;
        /// Reads the target of a symbolic link.
        Readlink = "FUSE_READLINK", 5;
        /// Makes a symbolic link.
        Symlink = "FUSE_SYMLINK", 6;
        /// Makes a file of any type but directory and symbolic link.
        Mknod = "FUSE_MKNOD", 8;
        /// Makes a directory.
        Mkdir = "FUSE_MKDIR", 9;
        /// Removes a name that is not of a directory.
        Unlink = "FUSE_UNLINK", 10;
        /// Removes a directory.
        Rmdir = "FUSE_RMDIR", 11;
        /// Renames, without flags.
        Rename = "FUSE_RENAME", 12;
        /// Makes another name for a node.
        Link = "FUSE_LINK", 13;
        /// Opens a file.
        Open = "FUSE_OPEN", 14;
        /// Reads from a file.
        Read = "FUSE_READ", 15;
        /// Writes to a file.
        Write = "FUSE_WRITE", 16;
        /// Asks for the state of the file system.
        Statfs = "FUSE_STATFS", 17;
        /// Closes a file after its last descriptor and mapping.
        Release = "FUSE_RELEASE", 18;
        /// Makes a file durable.
        Fsync = "FUSE_FSYNC", 20;
        /// Sets an extended attribute.
        Setxattr = "FUSE_SETXATTR", 21;
        /// Reads an extended attribute.
        Getxattr = "FUSE_GETXATTR", 22;
        /// Lists the names of extended attributes.
        Listxattr = "FUSE_LISTXATTR", 23;
        /// Removes an extended attribute.
        Removexattr = "FUSE_REMOVEXATTR", 24;
        /// Comes at each close of a descriptor.
        Flush = "FUSE_FLUSH", 25;
        /// Negotiates; the first request.
        Init = "FUSE_INIT", 26;
        /// Opens a directory.
        Opendir = "FUSE_OPENDIR", 27;
        /// Lists a directory.
        Readdir = "FUSE_READDIR", 28;
        /// Closes a directory.
        Releasedir = "FUSE_RELEASEDIR", 29;
        /// Makes a directory durable.
        Fsyncdir = "FUSE_FSYNCDIR", 30;
        /// Tests for a lock.
        Getlk = "FUSE_GETLK", 31;
        /// Takes or releases a lock, without waiting.
        Setlk = "FUSE_SETLK", 32;
        /// Takes a lock, and waits for it.
        Setlkw = "FUSE_SETLKW", 33;
        /// Checks permissions.
        Access = "FUSE_ACCESS", 34;
        /// Makes a file and opens it.
        Create = "FUSE_CREATE", 35;
        /// Interrupts another request. It usually has no reply.
        Interrupt = "FUSE_INTERRUPT", 36;
        /// Translates a block of a file to one of the device.
        Bmap = "FUSE_BMAP", 37;
        /// Ends the connection.
        Destroy = "FUSE_DESTROY", 38;
        /// Passes an ioctl on.
        Ioctl = "FUSE_IOCTL", 39;
        /// Asks which events are there.
        Poll = "FUSE_POLL", 40;
        /// Brings the bytes that a notification asked for. It has no reply.
        NotifyReply = "FUSE_NOTIFY_REPLY", 41;
        /// Drops references to many nodes. It has no reply.
        BatchForget = "FUSE_BATCH_FORGET", 42;
        /// Allocates or punches a range.
        Fallocate = "FUSE_FALLOCATE", 43;
        /// Lists a directory with attributes.
        Readdirplus = "FUSE_READDIRPLUS", 44;
        /// Renames, with flags.
        Rename2 = "FUSE_RENAME2", 45;
        /// Finds data or a hole.
        Lseek = "FUSE_LSEEK", 46;
        /// Copies between files. The reply has 32 bits for the length.
        CopyFileRange = "FUSE_COPY_FILE_RANGE", 47;
        /// Maps a range of a file into the window of a guest.
        Setupmapping = "FUSE_SETUPMAPPING", 48;
        /// Unmaps ranges of that window.
        Removemapping = "FUSE_REMOVEMAPPING", 49;
        /// Makes the file system durable.
        Syncfs = "FUSE_SYNCFS", 50;
        /// Makes a file without a name and opens it.
        Tmpfile = "FUSE_TMPFILE", 51;
        /// Reads attributes, with the time of birth.
        Statx = "FUSE_STATX", 52, 39;
        /// Copies between files. The reply has 64 bits for the length.
        CopyFileRange64 = "FUSE_COPY_FILE_RANGE_64", 53, 45;
    }
}

impl Opcode {
    /// Whether the other side waits for a reply. After an interrupt it does not, but
    /// accepts EAGAIN (the request to interrupt is not known yet) and ENOSYS.
    #[must_use]
    pub const fn has_reply(self) -> bool {
        !matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply | Opcode::Interrupt
        )
    }

    /// Whether extensions may follow the body of the request.
    #[must_use]
    pub const fn has_extensions(self) -> bool {
        matches!(
            self,
            Opcode::Symlink | Opcode::Mknod | Opcode::Mkdir | Opcode::Create | Opcode::Tmpfile
        )
    }
}
