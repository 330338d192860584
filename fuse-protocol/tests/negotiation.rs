//! INIT: what is offered, what is wanted, and what comes of it; and records of it.

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::wire::InitOut;
use pramfs_fuse_protocol::{
    Errno, InitRequest, Negotiated, NegotiationError, Outcome, RECORD_SIZE, RecordError, Wanted,
    negotiate, other_major,
};
use proptest::prelude::*;
use zerocopy::FromBytes;

fn offer(minor: u32, flags: InitFlags) -> InitRequest {
    InitRequest {
        major: 7,
        minor,
        max_readahead: 131_072,
        flags,
    }
}

fn wanting(flags: InitFlags) -> Wanted {
    Wanted {
        flags,
        max_stack_depth: 1,
        request_timeout: 30,
        ..Wanted::default()
    }
}

fn agree(offer: &InitRequest, wanted: &Wanted) -> Negotiated {
    match negotiate(offer, wanted) {
        Ok(Outcome::Agreed(agreed)) => agreed,
        other => panic!("{offer:?}: {other:?}"),
    }
}

/// The body of the reply, with zeros where a short one ends.
fn out(agreed: &Negotiated) -> InitOut {
    let reply = agreed.reply(5);
    assert_eq!((reply.header().error, reply.header().unique), (0, 5));
    let mut body = reply.to_vec()[16..].to_vec();
    body.resize(InitOut::SIZE, 0);
    InitOut::read_from_bytes(&body).unwrap()
}

#[test]
fn reply_has_length_of_older_version() {
    for (minor, len) in [(12, 24), (22, 24), (23, 64), (36, 64), (45, 64), (99, 64)] {
        let agreed = agree(&offer(minor, InitFlags::ASYNC_READ), &Wanted::default());
        assert_eq!(agreed.reply(1).body_len(), len, "7.{minor}");
        assert_eq!(agreed.minor(), minor.min(45));
        let out = out(&agreed);
        assert_eq!((out.major, out.minor), (7, minor.min(45)));
    }
}

#[test]
fn versions_that_are_too_old_are_refused() {
    for (major, minor) in [(7, 11), (7, 0), (6, 99), (0, 0)] {
        let offer = InitRequest {
            major,
            ..offer(minor, InitFlags::empty())
        };
        let refused = negotiate(&offer, &Wanted::default()).unwrap_err();
        assert_eq!(refused, NegotiationError::TooOld { major, minor });
        assert_eq!(refused.errno(), Errno::EPROTO);
    }
}

#[test]
fn newer_major_version_gets_ours_and_begins_again() {
    let newer = InitRequest {
        major: 8,
        ..offer(0, InitFlags::empty())
    };
    assert_eq!(
        negotiate(&newer, &Wanted::default()),
        Ok(Outcome::OtherMajor)
    );
    let reply = other_major(3).to_vec();
    assert_eq!(reply.len(), 16 + 64);
    assert_eq!(reply[16..20], 7u32.to_ne_bytes());
}

#[test]
fn flags_are_those_offered_and_wanted() {
    let wanted = wanting(InitFlags::ASYNC_READ | InitFlags::POSIX_ACL);
    let agreed = agree(&offer(31, InitFlags::all()), &wanted);
    assert_eq!(agreed.flags(), wanted.flags);
    let agreed = agree(&offer(31, InitFlags::ASYNC_READ), &wanted);
    assert_eq!(agreed.flags(), InitFlags::ASYNC_READ);
    let required = Wanted {
        required: InitFlags::POSIX_ACL,
        ..wanted
    };
    let refused = negotiate(&offer(31, InitFlags::ASYNC_READ), &required);
    assert_eq!(
        refused,
        Err(NegotiationError::Missing(InitFlags::POSIX_ACL))
    );
    let auto = wanting(InitFlags::READDIRPLUS_AUTO);
    let agreed = agree(&offer(31, InitFlags::all()), &auto);
    assert_eq!(agreed.flags(), InitFlags::empty());
}

#[test]
fn second_word_of_flags_needs_its_version_and_its_flag() {
    let second = InitFlags::HAS_RESEND | InitFlags::SECURITY_CTX | InitFlags::CREATE_SUPP_GROUP;
    let wanted = wanting(second);
    let with_ext = second | InitFlags::INIT_EXT;
    let flags = |minor, flags| agree(&offer(minor, flags), &wanted).flags();
    assert_eq!(flags(45, with_ext), with_ext);
    assert_eq!(flags(45, second), InitFlags::empty());
    assert_eq!(flags(35, with_ext), InitFlags::empty());
    // 7.37 does not say where extensions begin.
    let resend = InitFlags::HAS_RESEND | InitFlags::INIT_EXT;
    assert_eq!(flags(37, with_ext), resend);
    let out = out(&agree(&offer(45, with_ext), &wanted));
    assert_eq!(out.flags, 1 << 30);
    assert_eq!(out.flags2, 1 << 7 | 1 << 2 | 1);
}

#[test]
fn sizes_keep_to_what_the_other_side_can() {
    let wanted = Wanted {
        flags: InitFlags::MAX_PAGES,
        max_write: (1 << 20) + 1,
        max_readahead: 4096,
        ..Wanted::default()
    };
    let agreed = agree(&offer(31, InitFlags::MAX_PAGES), &wanted);
    assert_eq!(
        (agreed.max_write(), agreed.max_readahead()),
        (1_048_577, 4096)
    );
    assert_eq!(out(&agreed).max_pages, 257);
    assert_eq!(agreed.rules(255).max_reply, 257 * 4096);
    assert!(agreed.max_request() > 1_048_577 + 80);
    // Without the flag there are 32 pages.
    let agreed = agree(&offer(27, InitFlags::empty()), &wanted);
    assert_eq!(agreed.max_write(), 131_072);
    assert_eq!(out(&agreed).max_pages, 0);
    assert_eq!(agreed.rules(255).max_reply, 131_072);
}

#[test]
fn values_are_sent_only_with_their_flags() {
    let flags = InitFlags::MAP_ALIGNMENT | InitFlags::PASSTHROUGH | InitFlags::REQUEST_TIMEOUT;
    let wanted = wanting(flags);
    let values = |flags: InitFlags| {
        let out = out(&agree(&offer(45, flags | InitFlags::INIT_EXT), &wanted));
        (out.map_alignment, out.max_stack_depth, out.request_timeout)
    };
    assert_eq!(values(flags), (12, 1, 30));
    assert_eq!(values(InitFlags::empty()), (0, 0, 0));
    assert_eq!(values(InitFlags::REQUEST_TIMEOUT), (0, 0, 30));
}

#[test]
fn wishes_that_contradict_each_other_are_refused() {
    let passthrough = wanting(InitFlags::PASSTHROUGH);
    let both = InitFlags::EXPORT_SUPPORT | InitFlags::NO_EXPORT_SUPPORT;
    for wanted in [
        Wanted {
            max_stack_depth: 0,
            ..passthrough
        },
        Wanted {
            required: InitFlags::WRITEBACK_CACHE,
            ..passthrough
        },
        wanting(both),
        Wanted {
            time_gran: 0,
            ..Wanted::default()
        },
        Wanted {
            time_gran: 1_000_000_001,
            ..Wanted::default()
        },
        Wanted {
            page_size: 5000,
            ..Wanted::default()
        },
        Wanted {
            max_write: 4095,
            ..Wanted::default()
        },
    ] {
        let refused = negotiate(&offer(45, InitFlags::all()), &wanted).unwrap_err();
        assert!(matches!(refused, NegotiationError::Contradiction(_)));
        assert_eq!(refused.errno(), Errno::EINVAL);
    }
}

fn example() -> Negotiated {
    let flags = InitFlags::MAX_PAGES | InitFlags::HAS_RESEND | InitFlags::REQUEST_TIMEOUT;
    agree(&offer(45, InitFlags::all()), &wanting(flags))
}

#[test]
fn record_of_other_version_or_length_is_refused() {
    let record = example().to_record();
    for len in 0..RECORD_SIZE {
        let refused = Negotiated::from_record(&record[..len]).unwrap_err();
        let expected = match len {
            0..12 => RecordError::NoRecord,
            _ => RecordError::Invalid("length"),
        };
        assert_eq!(refused, expected, "{len} bytes");
    }
    let longer = [&record[..], &[0]].concat();
    let refused = Negotiated::from_record(&longer);
    assert_eq!(refused, Err(RecordError::Invalid("length")));
    let mut newer = longer;
    newer[8] = 2;
    assert_eq!(
        Negotiated::from_record(&newer),
        Err(RecordError::Version(2))
    );
    newer[0] = b'X';
    assert_eq!(Negotiated::from_record(&newer), Err(RecordError::NoRecord));
}

#[test]
fn record_with_what_cannot_be_agreed_upon_is_refused() {
    let record = example().to_record();
    let changed = |at: usize, byte: u8| {
        let mut record = record;
        assert_ne!(record[at], byte, "byte {at} does not change");
        record[at] = byte;
        Negotiated::from_record(&record)
    };
    let invalid = |why| Err(RecordError::Invalid(why));
    assert_eq!(changed(12, 63), invalid("length"));
    // The flags: an unknown one, a reserved one, the second word without its flag.
    assert_eq!(changed(23, 0x80), invalid("flags"));
    assert_eq!(changed(19, 0xc0), invalid("flags"));
    assert_eq!(changed(19, 0), invalid("flags"));
    for minor in [0, 11, 46] {
        assert_eq!(changed(24, minor), invalid("minor version"));
    }
    // 7.35 has no second word.
    assert_eq!(changed(24, 35), invalid("flags"));
    assert_eq!(changed(34, 0xff), invalid("sizes"));
    assert_eq!(changed(34, 0), invalid("sizes"));
    assert_eq!(changed(36, 0), invalid("granularity of times"));
    assert_eq!(changed(40, 1), invalid("a value without its flag"));
    assert_eq!(changed(45, 0x11), invalid("sizes"));
    assert_eq!(changed(RECORD_SIZE - 1, 1), invalid("length"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agreement_is_within_offer_and_wishes(
        major in prop_oneof![9 => Just(7u32), 1 => any::<u32>()],
        minor in prop_oneof![0u32..60, any::<u32>()],
        max_readahead in any::<u32>(),
        bits in any::<(u64, u64, u64)>(),
        max_write in prop_oneof![4096u32..1 << 21, any::<u32>()],
        page_shift in 11u32..18,
        others in any::<(u16, u16, u16, u32, u16)>(),
    ) {
        let flags = InitFlags::from_bits_retain(bits.0);
        let offer = InitRequest { major, minor, max_readahead, flags };
        let wanted = Wanted {
            flags: InitFlags::from_bits_retain(bits.1),
            required: InitFlags::from_bits_retain(bits.2 & bits.1 & bits.0 & 0xff),
            max_readahead: u32::MAX - max_readahead,
            max_write,
            max_background: others.0,
            congestion_threshold: others.1,
            time_gran: 1,
            page_size: 1 << page_shift,
            map_alignment: others.2,
            max_stack_depth: others.3,
            request_timeout: others.4,
        };
        if let Ok(Outcome::Agreed(agreed)) = negotiate(&offer, &wanted) {
            prop_assert!(offer.flags.contains(agreed.flags()));
            prop_assert!((wanted.flags | InitFlags::INIT_EXT).contains(agreed.flags()));
            prop_assert!(InitFlags::all().contains(agreed.flags()));
            prop_assert!(agreed.minor() <= minor && agreed.max_write() <= max_write);
            prop_assert!(agreed.max_readahead() <= max_readahead.min(wanted.max_readahead));
            let rules = agreed.rules(255);
            prop_assert!(agreed.max_write() <= rules.max_reply);
            prop_assert!(rules.max_request as u64 > u64::from(agreed.max_write()) + 80);
            let record = agreed.to_record();
            prop_assert_eq!(Negotiated::from_record(&record), Ok(agreed));
        }
    }

    #[test]
    fn changed_record_is_refused_or_says_what_it_says(
        changes in prop::collection::vec((0..RECORD_SIZE, any::<u8>()), 1..4),
    ) {
        let mut record = example().to_record();
        for (at, byte) in changes {
            record[at] = byte;
        }
        if let Ok(read) = Negotiated::from_record(&record) {
            prop_assert_eq!(read.to_record(), record);
            prop_assert!(read.reply(1).len() <= 80);
        }
    }
}
