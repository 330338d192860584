//! INIT.

wire_structs! {
    /// The body of INIT. Before 7.36 it ends after `flags`.
    InitIn = "fuse_init_in" {
        major: u32;
        minor: u32;
        max_readahead: u32;
        flags: u32;
        /// Counts with [`INIT_EXT`](crate::flags::InitFlags::INIT_EXT).
        flags2: u32;
        unused: [u32; 11];
    }

    /// The reply to INIT. Before 7.23 it ends after `max_write`.
    InitOut = "fuse_init_out" {
        major: u32;
        minor: u32;
        max_readahead: u32;
        flags: u32;
        max_background: u16;
        congestion_threshold: u16;
        max_write: u32;
        /// Granularity of times, in nanoseconds.
        time_gran: u32;
        max_pages: u16;
        /// Binary logarithm of the alignment of mappings.
        map_alignment: u16;
        flags2: u32;
        max_stack_depth: u32 [40];
        /// In seconds.
        request_timeout: u16 [43];
        unused: [u16; 11] [43];
    }
}
