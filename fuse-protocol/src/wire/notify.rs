//! Notifications, and the request that answers one of them.

use crate::flags::InvalEntryFlags;

wire_structs! {
    /// Wakes those who poll.
    NotifyPollWakeupOut = "fuse_notify_poll_wakeup_out" {
        kh: u64;
    }

    /// Invalidates attributes and a range of the page cache.
    NotifyInvalInodeOut = "fuse_notify_inval_inode_out" {
        ino: u64;
        /// Negative: only attributes.
        off: i64;
        /// 0 or less: to the end.
        len: i64;
    }

    /// Invalidates a name. The name and a NUL follow.
    NotifyInvalEntryOut = "fuse_notify_inval_entry_out" {
        parent: u64;
        namelen: u32;
        flags: InvalEntryFlags;
    }

    /// Says that a name is gone. The name and a NUL follow.
    NotifyDeleteOut = "fuse_notify_delete_out" {
        parent: u64;
        child: u64;
        namelen: u32;
        padding: u32;
    }

    /// Stores bytes in the page cache. They follow.
    NotifyStoreOut = "fuse_notify_store_out" {
        nodeid: u64;
        offset: u64;
        size: u32;
        padding: u32;
    }

    /// Asks for bytes of the page cache.
    NotifyRetrieveOut = "fuse_notify_retrieve_out" {
        /// The request NOTIFY_REPLY repeats it as its number.
        notify_unique: u64;
        nodeid: u64;
        offset: u64;
        size: u32;
        padding: u32;
    }

    /// The beginning of NOTIFY_REPLY. The bytes follow.
    NotifyRetrieveIn = "fuse_notify_retrieve_in" {
        dummy1: u64;
        offset: u64;
        size: u32;
        dummy2: u32;
        dummy3: u64;
        dummy4: u64;
    }

    /// Drops cached nodes that are not in use. Their numbers follow, 8 bytes each.
    NotifyPruneOut = "fuse_notify_prune_out" [45] {
        count: u32;
        padding: u32;
        spare: u64;
    }
}
