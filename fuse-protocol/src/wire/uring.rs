//! Requests over io_uring.

use crate::numbers::{URING_IN_OUT_HEADER_SIZE, URING_OP_IN_OUT_SIZE};

wire_structs! {
    /// What belongs to the entry of a ring.
    UringEntInOut = "fuse_uring_ent_in_out" [42] {
        flags: u64;
        /// The command that sends the reply repeats it.
        commit_id: u64;
        /// Bytes of the payload.
        payload_sz: u32;
        padding: u32;
        reserved: u64;
    }

    /// The headers of a request. The payload has a buffer of its own.
    UringReqHeader = "fuse_uring_req_header" [42] {
        /// [`InHeader`](super::InHeader), and in the reply [`OutHeader`](super::OutHeader).
        in_out: [u8; URING_IN_OUT_HEADER_SIZE];
        /// The header of the operation.
        op_in: [u8; URING_OP_IN_OUT_SIZE];
        ring_ent_in_out: UringEntInOut;
    }

    /// The command in a submission of 128 bytes.
    UringCmdReq = "fuse_uring_cmd_req" [42] {
        flags: u64;
        commit_id: u64;
        qid: u16;
        padding: [u8; 6];
    }
}
