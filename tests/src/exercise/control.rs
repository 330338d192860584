//! Any bytes as messages of a control socket, at both ends.
//!
//! Each line of the input is a message: the server decodes it as a request, a client as a
//! reply and as a ticket. What the answers say of the blocks of a file, a client puts
//! together. The whole input is also taken for such answers without JSON, because few
//! changes of a text leave it valid ([`answers`]).
//!
//! What must hold of every input: no panic and no hang; a message that is decoded is the
//! same after it is encoded; a client accepts no answer that leaves a gap or overlaps
//! itself; the pieces of any range cover it, and are where the answers have said.

use pramfs_client::fuzzing::Learned;
use pramfs_control::fuzzing::{encode_reply, encode_request, reply, request};
use pramfs_control::{Blocks, Extent, MAX_MESSAGE, Reply, TicketReply};

/// Runs a case. Returns how many answers a client has accepted.
///
/// # Panics
/// When something happens that must not happen to any input.
pub fn control(input: &[u8]) -> usize {
    let mut said = Vec::new();
    for line in input.split(|byte| *byte == b'\n') {
        said.extend(message(&line[..line.len().min(MAX_MESSAGE)]));
    }
    learn(&said) + learn(&answers(input))
}

/// Decodes a message at both ends. Returns the blocks that it has.
fn message(bytes: &[u8]) -> Option<Blocks> {
    ticket(bytes);
    match request(bytes) {
        Ok(decoded) => {
            let again = encode_request(&decoded).expect("no request is long");
            assert_eq!(request(&again), Ok(decoded));
        }
        // The server sends it, or says that it is too long.
        Err(refusal) => _ = encode_reply(&refusal),
    }
    let decoded = match reply(bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    if let Ok(again) = encode_reply(&decoded) {
        let again = reply(&again).expect("it was encoded by this program");
        assert_eq!(again, decoded);
    }
    match decoded {
        Reply::Blocks(blocks) => Some(blocks),
        Reply::Granted(granted) => Some(granted.blocks),
        _ => None,
    }
}

/// Takes a message for the answer of the ioctl.
fn ticket(bytes: &[u8]) {
    let mut answer = [0; TicketReply::SIZE];
    let len = bytes.len().min(answer.len());
    answer[..len].copy_from_slice(&bytes[..len]);
    let Ok(decoded) = TicketReply::decode(&answer) else {
        return;
    };
    assert!(
        !decoded.socket.contains('/'),
        "it leads out of the directory"
    );
    // A name that fills its place has no end, and no server sends it.
    if let Some(again) = decoded.encode() {
        let again = TicketReply::decode(&again).expect("it was encoded by this program");
        assert_eq!(again, decoded);
    }
}

/// Answers without JSON. The first byte of each has the number of extents, the layout, and
/// whether numbers are near 2^64. Two bytes are the start and the end, and each extent has
/// three: distance to the one before it, place, length.
pub fn answers(input: &[u8]) -> Vec<Blocks> {
    let mut bytes = input.iter().copied();
    let mut all = Vec::new();
    while let Some(head) = bytes.next() {
        let base = if head & 0x80 != 0 { u64::MAX - 300 } else { 0 };
        let mut number = || u64::from(bytes.next().unwrap_or(0));
        let (start, len) = (number(), number());
        let mut at = base.wrapping_add(start);
        let mut extent = || {
            // Also some that go back.
            at = at.wrapping_add(number()).wrapping_sub(8);
            let (place, len) = (number(), number() % 32);
            let extent = Extent {
                file_offset: at,
                region_offset: base.wrapping_add(place << 8),
                len,
            };
            at = at.wrapping_add(len);
            extent
        };
        let extents: Vec<_> = (0..head & 7).map(|_| extent()).collect();
        let end = base.wrapping_add(start).wrapping_add(len);
        all.push(Blocks {
            layout: u64::from(head >> 3 & 1),
            size: end,
            start: if head & 0x10 != 0 {
                0
            } else {
                base.wrapping_add(start)
            },
            end,
            extents,
        });
    }
    all
}

/// Lets a client learn the blocks of a file from answers, and checks what it has learned
/// against the answers.
fn learn(all: &[Blocks]) -> usize {
    let mut accepted: Vec<&Blocks> = Vec::new();
    let mut learned = None;
    for answer in all {
        let taken = match &mut learned {
            None => {
                learned = Learned::first(answer);
                learned.is_some()
            }
            Some(learned) => learned.next(answer),
        };
        if taken {
            let before = accepted.last().map_or(0, |last: &&Blocks| last.layout);
            assert!(accepted.is_empty() || answer.layout == before);
            accepted.push(answer);
        }
    }
    let Some(learned) = learned else {
        return 0;
    };
    let end = accepted.iter().map(|answer| answer.end).max();
    assert_eq!(Some(learned.end()), end);
    let mut edges = vec![0, learned.end()];
    for extent in accepted.iter().flat_map(|answer| &answer.extents).take(100) {
        for edge in [extent.file_offset, extent.file_offset + extent.len] {
            edges.extend([edge.saturating_sub(1), edge, edge.saturating_add(1)]);
        }
    }
    edges.retain(|edge| *edge <= learned.end());
    for from in &edges {
        check(&learned, &accepted, *from, learned.end());
        check(
            &learned,
            &accepted,
            *from,
            from.saturating_add(20).min(learned.end()),
        );
    }
    accepted.len()
}

/// Checks the pieces of a range.
fn check(learned: &Learned, accepted: &[&Blocks], from: u64, to: u64) {
    let (mut at, mut count) = (from, 0);
    for (place, len) in learned.pieces(from, to) {
        assert!(
            len > 0 && len <= to - at,
            "a piece of {len} at {at}, of {from}..{to}"
        );
        for within in [0, len / 2, len - 1] {
            let expected = place_in(accepted, at + within);
            assert_eq!(
                place.map(|place| place + within),
                expected,
                "at {}",
                at + within
            );
            assert_eq!(learned.place(at + within), expected);
        }
        at += len;
        count += 1;
        assert!(count < 1 << 20, "pieces without end");
    }
    assert_eq!(at, to, "the pieces of {from}..{to}");
}

/// Where the answers say that a byte is: the first that reaches so far.
fn place_in(accepted: &[&Blocks], offset: u64) -> Option<u64> {
    let answer = accepted.iter().find(|answer| offset < answer.end)?;
    let mut extents = answer.extents.iter();
    let extent = extents.find(|e| (e.file_offset..e.file_offset + e.len).contains(&offset))?;
    Some(extent.region_offset + (offset - extent.file_offset))
}
