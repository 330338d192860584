//! Requests: each operation, cut at each length, in parts, and changed at random.

mod examples;

use examples::{RULES, all, request};
use pramfs_fuse_protocol::wire::{InHeader, InitIn};
use pramfs_fuse_protocol::{
    Data, Errno, Malformed, Opcode, Operation, Parts, Request, RequestError, Rules,
};
use proptest::prelude::*;

fn error(bytes: &[u8]) -> RequestError {
    Request::parse(bytes, &RULES).unwrap_err().error
}

/// Parses, and checks that what is parsed is the same after it is encoded.
fn check(bytes: &[u8], rules: &Rules) -> Result<(), Malformed> {
    let parsed = Request::parse(bytes, rules)?;
    let again = parsed.encode(rules);
    let mut parsed_again = Request::parse(&again, rules).expect("it was encoded by this crate");
    // INIT may have a tail, and extensions padding, that are not kept.
    parsed_again.header.len = parsed.header.len;
    parsed_again.header.total_extlen = parsed.header.total_extlen;
    assert_eq!(parsed_again, parsed);
    Ok(())
}

#[test]
fn every_operation_is_parsed_and_encoded_again() {
    let mut seen = Vec::new();
    for (opcode, bytes) in all() {
        let parsed = Request::parse(&bytes, &RULES).unwrap_or_else(|e| panic!("{opcode:?}: {e}"));
        assert_eq!(parsed.opcode, opcode);
        assert_eq!(parsed.encode(&RULES), bytes, "{opcode:?}");
        check(&bytes, &RULES).unwrap();
        seen.push(opcode);
    }
    for opcode in Opcode::ALL {
        assert!(seen.contains(opcode), "there is no example of {opcode:?}");
    }
}

#[test]
fn every_operation_is_refused_at_every_shorter_length() {
    for (opcode, bytes) in all() {
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            let refused = Request::parse(cut, &RULES).unwrap_err();
            let expected = match len {
                0..InHeader::SIZE => RequestError::NoHeader(len),
                _ => RequestError::Length {
                    header: bytes.len() as u32,
                    found: len,
                },
            };
            assert_eq!(refused.error, expected, "{opcode:?}");
            // The same with a header that says so.
            if len >= InHeader::SIZE {
                let mut cut = cut.to_vec();
                cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                let result = check(&cut, &RULES);
                let may_be_shorter = opcode == Opcode::Init && len >= InHeader::SIZE + 16;
                assert_eq!(result.is_ok(), may_be_shorter, "{opcode:?} of {len} bytes");
            }
        }
    }
}

#[test]
fn every_operation_is_refused_with_bytes_after_it() {
    for (opcode, bytes) in all() {
        for n in [1, 7, 8, 16] {
            let mut longer = bytes.clone();
            longer.resize(bytes.len() + n, 0);
            assert!(matches!(error(&longer), RequestError::Length { .. }));
            let len = longer.len() as u32;
            longer[..4].copy_from_slice(&len.to_ne_bytes());
            // What is unknown of INIT is ignored.
            let ok = opcode == Opcode::Init;
            let result = check(&longer, &RULES);
            assert_eq!(result.is_ok(), ok, "{opcode:?} and {n} bytes: {result:?}");
        }
    }
}

#[test]
fn every_operation_in_parts_equals_it_in_one_piece() {
    for (opcode, bytes) in all() {
        let whole = Request::parse(&bytes, &RULES).unwrap();
        let (header, operation, payload) = whole.encode_parts(&RULES);
        // As in io_uring: each header has more room than it needs.
        let mut room = zerocopy::IntoBytes::as_bytes(&header).to_vec();
        room.resize(128, 0xee);
        let mut op_room = operation.clone();
        op_room.resize(128, 0xee);
        let middle = payload.len() / 2;
        let pieces: [&[u8]; 3] = [&payload[..middle], b"", &payload[middle..]];
        let mut parts = Parts {
            header: &room,
            operation: &op_room,
            payload: Data::Whole(&payload),
        };
        assert_eq!(Request::from_parts(parts, &RULES).as_ref(), Ok(&whole));
        parts.payload = Data::Pieces(&pieces);
        let scattered = Request::from_parts(parts, &RULES);
        match opcode {
            Opcode::Write | Opcode::Ioctl | Opcode::NotifyReply => {
                assert_eq!(scattered.as_ref(), Ok(&whole));
            }
            _ if middle == 0 => assert_eq!(scattered.as_ref(), Ok(&whole)),
            _ => {
                let error = scattered.unwrap_err().error;
                assert!(matches!(error, RequestError::Scattered(..)), "{error}");
            }
        }
        // A payload that is longer or shorter than the header says moves the boundary.
        let longer = [&payload[..], &[0; 200]].concat();
        parts.payload = Data::Whole(&longer);
        assert!(Request::from_parts(parts, &RULES).is_err(), "{opcode:?}");
        parts.payload = Data::EMPTY;
        parts.operation = &[];
        let nothing = Request::from_parts(parts, &RULES);
        assert_eq!(nothing.is_ok(), bytes.len() == InHeader::SIZE, "{opcode:?}");
    }
}

#[test]
fn names_of_more_or_less_than_one_component_are_refused() {
    let lookup = |name: &[u8]| request(Opcode::Lookup, &[name]);
    let invalid = RequestError::Name(Opcode::Lookup);
    assert_eq!(error(&lookup(b"\0")), invalid);
    assert_eq!(error(&lookup(b"a/b\0")), invalid);
    assert_eq!(error(&lookup(b"/\0")), invalid);
    let trailing = RequestError::Trailing(Opcode::Lookup, 2);
    assert_eq!(error(&lookup(b"a\0b\0")), trailing);
    let truncated = RequestError::Truncated(Opcode::Lookup, "name");
    assert_eq!(error(&lookup(b"a")), truncated);
    assert_eq!(error(&lookup(b"")), truncated);
    let longest = [vec![b'n'; 255], vec![0]].concat();
    assert!(Request::parse(&lookup(&longest), &RULES).is_ok());
    let longer = [vec![b'n'; 256], vec![0]].concat();
    let refused = error(&lookup(&longer));
    assert_eq!(refused, RequestError::NameTooLong(Opcode::Lookup, 256));
    assert_eq!(refused.errno(), Errno::ENAMETOOLONG);
    for dots in [&b".\0"[..], b"..\0"] {
        assert!(Request::parse(&lookup(dots), &RULES).is_ok());
        let unlink = request(Opcode::Unlink, &[dots]);
        assert_eq!(error(&unlink), RequestError::Name(Opcode::Unlink));
    }
}

#[test]
fn unknown_operation_is_answered_with_enosys() {
    for number in [0, 7, 19, 54, 4096, 436_207_616, u32::MAX] {
        let mut bytes = request(Opcode::Statfs, &[]);
        bytes[4..8].copy_from_slice(&number.to_ne_bytes());
        let refused = Request::parse(&bytes, &RULES).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::ENOSYS);
        assert_eq!(refused.unique, Some(examples::UNIQUE));
    }
}

#[test]
fn malformed_request_without_reply_has_no_number_to_answer() {
    for (opcode, bytes) in all() {
        let mut bytes = bytes.clone();
        bytes.push(0);
        let refused = Request::parse(&bytes, &RULES).unwrap_err();
        assert_eq!(refused.unique.is_some(), opcode.has_reply(), "{opcode:?}");
    }
    assert_eq!(Request::parse(b"short", &RULES).unwrap_err().unique, None);
}

#[test]
fn number_zero_is_refused_unless_nothing_is_answered() {
    for (opcode, mut bytes) in all() {
        bytes[8..16].fill(0);
        let silent = matches!(
            opcode,
            Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply
        );
        match Request::parse(&bytes, &RULES) {
            Ok(_) => assert!(silent, "{opcode:?}"),
            Err(refused) => {
                assert!(!silent, "{opcode:?}");
                assert_eq!(
                    (refused.unique, refused.error),
                    (None, RequestError::NoNumber)
                );
            }
        }
    }
}

#[test]
fn counts_that_overflow_are_refused() {
    let one = [0; 16];
    for count in [0u32, 2, 1 << 28, (1 << 28) + 1, u32::MAX] {
        let head = [count, 0];
        let head = zerocopy::IntoBytes::as_bytes(&head);
        for bytes in [
            request(Opcode::BatchForget, &[head, &one]),
            request(Opcode::Removemapping, &[&head[..4], &one]),
        ] {
            assert!(matches!(error(&bytes), RequestError::Announced(..)));
        }
    }
    let mut write = request(Opcode::Write, &[&[0; 40], b"data"]);
    for size in [0u32, 3, 5, u32::MAX] {
        write[56..60].copy_from_slice(&size.to_ne_bytes());
        assert_eq!(
            error(&write),
            RequestError::Announced(Opcode::Write, size.into(), 4)
        );
    }
}

#[test]
fn sizes_that_no_reply_can_have_are_refused() {
    for opcode in [Opcode::Read, Opcode::Readdir, Opcode::Readdirplus] {
        let mut read = request(opcode, &[&[0; 40]]);
        read[56..60].copy_from_slice(&RULES.max_reply.to_ne_bytes());
        assert!(Request::parse(&read, &RULES).is_ok());
        read[56..60].copy_from_slice(&(RULES.max_reply + 1).to_ne_bytes());
        assert_eq!(
            error(&read),
            RequestError::TooMuch(opcode, RULES.max_reply + 1)
        );
    }
    let long = vec![0; RULES.max_request];
    let write = request(Opcode::Write, &[&long]);
    assert_eq!(error(&write), RequestError::TooLong(long.len() + 40));
}

#[test]
fn ranges_that_no_file_has_are_refused() {
    let offset_and_size = |opcode, offset: u64, size: u32| {
        let mut bytes = request(opcode, &[&[0; 40]]);
        bytes[48..56].copy_from_slice(&offset.to_ne_bytes());
        bytes[56..60].copy_from_slice(&size.to_ne_bytes());
        bytes
    };
    let last_page = (1 << 63) - 4096;
    assert!(Request::parse(&offset_and_size(Opcode::Read, last_page, 4096), &RULES).is_ok());
    for (offset, size) in [(last_page + 1, 4096), (u64::MAX, 1), (u64::MAX, 0)] {
        let range = |opcode| RequestError::Range(opcode, offset, size.into());
        let read = offset_and_size(Opcode::Read, offset, size);
        assert_eq!(error(&read), range(Opcode::Read));
        let write = offset_and_size(Opcode::Write, offset, size);
        assert_eq!(error(&write), range(Opcode::Write));
        let mut fallocate = request(Opcode::Fallocate, &[&[0; 32]]);
        fallocate[48..56].copy_from_slice(&offset.to_ne_bytes());
        fallocate[56..64].copy_from_slice(&u64::from(size).to_ne_bytes());
        assert_eq!(error(&fallocate), range(Opcode::Fallocate));
        // The offset in a listing is a number of the server's own.
        let readdir = offset_and_size(Opcode::Readdir, offset, size);
        assert!(Request::parse(&readdir, &RULES).is_ok());
    }
}

#[test]
fn setattr_with_impossible_size_or_time_is_refused() {
    use pramfs_fuse_protocol::flags::SetattrValid;
    use pramfs_fuse_protocol::wire::SetattrIn;
    let setattr = |arg: &SetattrIn| request(Opcode::Setattr, &[zerocopy::IntoBytes::as_bytes(arg)]);
    let mut arg = SetattrIn {
        size: u64::MAX,
        ctimensec: 1_000_000_000,
        ..SetattrIn::default()
    };
    assert!(Request::parse(&setattr(&arg), &RULES).is_ok());
    arg.valid = SetattrValid::CTIME;
    assert_eq!(error(&setattr(&arg)), RequestError::Time(Opcode::Setattr));
    arg.valid = SetattrValid::SIZE;
    let range = RequestError::Range(Opcode::Setattr, u64::MAX, 0);
    assert_eq!(error(&setattr(&arg)), range);
}

#[test]
fn extensions_are_refused_where_they_were_not_negotiated() {
    let with_both = examples::create_with_extensions();
    assert!(Request::parse(&with_both, &RULES).is_ok());
    for rules in [
        Rules {
            security_contexts: false,
            ..RULES
        },
        Rules {
            supplementary_groups: false,
            ..RULES
        },
    ] {
        let refused = Request::parse(&with_both, &rules).unwrap_err();
        assert!(matches!(refused.error, RequestError::Extension(..)));
    }
    // Extensions of an operation that has none.
    let mut bytes = request(Opcode::Lookup, &[b"name\0", &[0; 8]]);
    bytes[36] = 1;
    let unexpected = RequestError::UnexpectedExtension(Opcode::Lookup);
    assert_eq!(error(&bytes), unexpected);
}

#[test]
fn extensions_bring_groups_and_contexts() {
    let bytes = examples::create_with_extensions();
    let parsed = Request::parse(&bytes, &RULES).unwrap();
    let Operation::Create {
        name, extensions, ..
    } = parsed.operation
    else {
        panic!("{parsed:?}");
    };
    assert_eq!(name, b"name");
    let groups: Vec<u32> = extensions.groups.unwrap().iter().collect();
    assert_eq!(groups, [27]);
    let contexts: Vec<_> = extensions.contexts.unwrap().iter().collect();
    assert_eq!(
        contexts,
        [
            (&b"security.selinux"[..], &b"label"[..]),
            (b"security.x", b"")
        ]
    );
}

#[test]
fn padding_of_contexts_means_nothing() {
    let good = examples::create_with_extensions();
    let begin = good.len() - examples::EXTENSIONS_LEN;
    let mut padded = good.clone();
    padded[begin + 63] = 0xc1;
    let [good, padded] = [&good, &padded].map(|bytes| Request::parse(bytes, &RULES).unwrap());
    assert_eq!(good, padded);
}

#[test]
fn extension_with_a_lie_is_refused() {
    let good = examples::create_with_extensions();
    let begin = good.len() - examples::EXTENSIONS_LEN;
    // The sizes and counts of both extensions, of the first context, and of the groups.
    for at in [0, 4, 8, 64, 68, 72] {
        for lie in [9u32, 1 << 16, 1 << 31, u32::MAX] {
            let mut bytes = good.clone();
            bytes[begin + at..begin + at + 4].copy_from_slice(&lie.to_ne_bytes());
            let error = error(&bytes);
            assert!(
                matches!(error, RequestError::Extension(..)),
                "{lie} at {at}: {error}"
            );
        }
    }
    // The length in the header reaches into the name, and past the beginning.
    for units in [1u16, 20, u16::MAX] {
        let mut bytes = good.clone();
        bytes[36..38].copy_from_slice(&units.to_ne_bytes());
        assert!(Request::parse(&bytes, &RULES).is_err(), "{units}");
    }
    // The same extension twice.
    let groups = examples::groups();
    let twice = examples::create(&[&groups[..], &groups].concat());
    assert_eq!(
        error(&twice),
        RequestError::Extension(Opcode::Create, "twice")
    );
}

#[test]
fn init_counts_second_word_only_with_its_flag() {
    use pramfs_fuse_protocol::flags::InitFlags;
    let init = |arg: &InitIn, len: usize| {
        let bytes = request(Opcode::Init, &[&zerocopy::IntoBytes::as_bytes(arg)[..len]]);
        let Operation::Init(init) = Request::parse(&bytes, &Rules::BEFORE_INIT)
            .unwrap()
            .operation
        else {
            panic!("it is INIT");
        };
        init
    };
    let mut arg = InitIn {
        major: 7,
        minor: 40,
        max_readahead: 4096,
        flags: 1,
        flags2: 1 << 5,
        unused: [0; 11],
    };
    assert_eq!(init(&arg, 64).flags, InitFlags::ASYNC_READ);
    arg.flags |= 1 << 30;
    let with_ext = InitFlags::ASYNC_READ | InitFlags::INIT_EXT;
    assert_eq!(init(&arg, 64).flags, with_ext | InitFlags::PASSTHROUGH);
    assert_eq!(init(&arg, 16).flags, with_ext);
    // Of another major version only the versions count.
    arg.major = 8;
    for len in [8, 16, 64] {
        let init = init(&arg, len);
        assert_eq!((init.major, init.minor, init.max_readahead), (8, 40, 0));
        assert_eq!(init.flags, InitFlags::empty());
    }
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (any::<(bool, bool, bool)>(), 0usize..300).prop_map(|((a, b, c), name_max)| Rules {
        setxattr_ext: a,
        security_contexts: b,
        supplementary_groups: c,
        name_max,
        ..RULES
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_bytes_cause_no_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        rules in any_rules(),
    ) {
        let _refused = check(&bytes, &rules);
    }

    #[test]
    fn arbitrary_bodies_cause_no_panic(
        opcode in 0u32..56,
        extlen in prop_oneof![Just(0u16), 0u16..12],
        body in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200),
        rules in any_rules(),
    ) {
        let mut bytes = request(Opcode::Statfs, &[&body]);
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[36..38].copy_from_slice(&extlen.to_ne_bytes());
        let _refused = check(&bytes, &rules);
    }

    #[test]
    fn changed_requests_cause_no_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        cut in 0usize..30,
        rules in any_rules(),
    ) {
        let all = all();
        let mut bytes = which.get(&all).1.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut < 10 {
            bytes.truncate((bytes.len() - cut).max(4));
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        let _refused = check(&bytes, &rules);
    }

    #[test]
    fn arbitrary_parts_cause_no_panic(
        which in any::<prop::sample::Index>(),
        split in any::<(prop::sample::Index, prop::sample::Index)>(),
        len in prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some)],
    ) {
        let all = all();
        let mut bytes = which.get(&all).1.clone();
        if let Some(len) = len {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        let (a, b) = (split.0.index(bytes.len()), split.1.index(bytes.len()));
        let (header, rest) = bytes.split_at(a.min(b));
        let (operation, payload) = rest.split_at(a.max(b) - a.min(b));
        let parts = Parts { header, operation, payload: Data::Whole(payload) };
        if let Ok(parsed) = Request::from_parts(parts, &RULES) {
            prop_assert!(!parsed.encode(&RULES).is_empty());
        }
    }
}
