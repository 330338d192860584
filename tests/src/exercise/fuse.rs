//! Any bytes as a request of a FUSE kernel or guest, as INIT, and as the record of a
//! connection.
//!
//! The first byte has what was negotiated (bits 0 to 2), whether the length in the header
//! is made right (bit 3), and whether the rest is a record (bit 4). The second byte says
//! where a transport splits the request. The rest is the request.
//!
//! What must hold of every input: no panic; a request that is parsed is the same after it
//! is encoded, and is the same in parts; what is agreed upon at INIT is no more than was
//! offered and wanted; a record that is read is the same after it is written.

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_fuse_protocol::{
    Data, InitRequest, Negotiated, Operation, Outcome, Parts, Request, Rules, Wanted, negotiate,
    reply,
};
use zerocopy::IntoBytes;

/// Bit of the first byte: the length is made right.
pub const RIGHT_LENGTH: u8 = 8;

/// Bit of the first byte: the input is a record.
pub const RECORD: u8 = 16;

/// The rules that the bits of the first byte choose.
#[must_use]
pub fn rules(bits: u8) -> Rules {
    Rules {
        max_request: 1 << 20,
        max_reply: 1 << 20,
        setxattr_ext: bits & 1 != 0,
        security_contexts: bits & 2 != 0,
        supplementary_groups: bits & 4 != 0,
        ..Rules::BEFORE_INIT
    }
}

/// Runs a case. Returns whether it is a valid request or record.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn fuse(input: &[u8]) -> bool {
    let [bits, split, bytes @ ..] = input else {
        return false;
    };
    if bits & RECORD != 0 {
        return record(bytes);
    }
    let mut bytes = bytes.to_vec();
    if bits & RIGHT_LENGTH != 0 && bytes.len() >= InHeader::SIZE {
        let len = u32::try_from(bytes.len()).expect("no input is so long");
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }
    let rules = rules(*bits);
    in_parts(&bytes, usize::from(*split), &rules);
    let parsed = match Request::parse(&bytes, &rules) {
        Ok(parsed) => parsed,
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            if let Some(unique) = refused.unique {
                assert_ne!(unique, 0, "a notification would answer");
                let answer = reply::error(unique, refused.error.errno());
                assert_eq!(answer.to_vec().len(), 16);
            }
            return false;
        }
    };
    let again = parsed.encode(&rules);
    let mut parsed_again = Request::parse(&again, &rules).expect("it was encoded by this program");
    // The tail of INIT, and padding of extensions, are not kept.
    parsed_again.header.len = parsed.header.len;
    parsed_again.header.total_extlen = parsed.header.total_extlen;
    assert_eq!(parsed_again, parsed);
    walk(&parsed);
    true
}

/// Parses the request from parts: once as they would come from io_uring, once cut anywhere.
fn in_parts(bytes: &[u8], split: usize, rules: &Rules) {
    let header = bytes.len().min(InHeader::SIZE);
    let (header, rest) = bytes.split_at(header);
    let (operation, payload) = rest.split_at(split.min(rest.len()));
    let parts = Parts {
        header,
        operation,
        payload: Data::Whole(payload),
    };
    let _refused = Request::from_parts(parts, rules);
    let Ok(whole) = Request::parse(bytes, rules) else {
        return;
    };
    let (header, operation, payload) = whole.encode_parts(rules);
    let parts = Parts {
        header: header.as_bytes(),
        operation: &operation,
        payload: Data::Whole(&payload),
    };
    let again = Request::from_parts(parts, rules).expect("it was encoded by this program");
    assert_eq!(again.operation, whole.operation);
}

/// Reads all that a handler can read.
fn walk(request: &Request<'_>) {
    match &request.operation {
        Operation::BatchForget(list) => assert_eq!(list.iter().count(), list.len()),
        Operation::Removemapping(list) => assert_eq!(list.iter().count(), list.len()),
        Operation::Init(init) => init_with_all(init),
        Operation::Symlink { extensions, .. }
        | Operation::Mknod { extensions, .. }
        | Operation::Mkdir { extensions, .. }
        | Operation::Create { extensions, .. }
        | Operation::Tmpfile { extensions, .. } => {
            let groups = extensions.groups.into_iter().flat_map(|all| all.iter());
            let contexts = extensions.contexts.into_iter().flat_map(|all| all.iter());
            assert!(contexts.map(|(name, _)| name).all(|name| !name.is_empty()));
            assert!(groups.count() < 1 << 17);
        }
        _ => {}
    }
}

/// Agrees to all that INIT offers.
fn init_with_all(offer: &InitRequest) {
    let wanted = Wanted {
        flags: InitFlags::all() - (InitFlags::NO_EXPORT_SUPPORT | InitFlags::WRITEBACK_CACHE),
        max_stack_depth: 1,
        ..Wanted::default()
    };
    let Ok(Outcome::Agreed(agreed)) = negotiate(offer, &wanted) else {
        return;
    };
    assert!(offer.flags.contains(agreed.flags()));
    assert!((wanted.flags | InitFlags::INIT_EXT).contains(agreed.flags()));
    assert!(agreed.minor() <= offer.minor);
    assert_eq!(Negotiated::from_record(&agreed.to_record()), Ok(agreed));
}

fn record(bytes: &[u8]) -> bool {
    match Negotiated::from_record(bytes) {
        Ok(read) => {
            assert_eq!(read.to_record()[..], *bytes);
            let _rules = read.rules(255);
            assert!(read.reply(1).len() <= 80);
            true
        }
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            false
        }
    }
}
