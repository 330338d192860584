//! Makes the corpus of the fuzz targets, `fuzz/corpus/`, and the images that it
//! changes, `tests/src/exercise/bases/`.
//!
//! ```sh
//! cargo run -p pramfs-tests --example fuzz_corpus
//! ```
//!
//! Base images that are there are left alone: a case names words of them. To
//! replace one, remove its file, and look for cases that lose their meaning.
//! Seeds are always written anew; other files of the corpus (what was
//! found and mended) are not touched.

#[path = "../../fuse-protocol/tests/examples/mod.rs"]
#[allow(dead_code, reason = "its tests use more of it")]
mod requests;

use std::io::Result;
use std::path::Path;

use pramfs_control::fuzzing::{encode_reply, encode_request};
use pramfs_control::{
    Blocks, Coherence, Extent, Granted, LeaseKey, LeaseRow, Refusal, Reply, Request, Served,
    Ticket, TicketReply,
};
use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::{InitRequest, Outcome, Wanted, negotiate};
use pramfs_medium::media::{Medium, probe_superblock};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::crash::leased::places;
use pramfs_tests::exercise::bases;
use pramfs_tests::exercise::fuse::{RECORD, RIGHT_LENGTH};
use pramfs_tests::exercise::input::{Change, HEAD, How, RAW, encode};
use pramfs_tests::exercise::ops::FRAME;
use pramfs_tests::exercise::repair::Repair;
use pramfs_tests::random::Random;
use pramfs_tests::region::region_of;

fn main() -> Result<()> {
    for base in &bases::ALL {
        if !base.path().exists() {
            let runs = base.make().map_err(std::io::Error::other)?;
            println!("{}: {} bytes", base.path().display(), runs.len());
            std::fs::write(base.path(), runs)?;
        }
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut total = 0;
    let seeds = images().chain(windows()?).chain(operations());
    for (target, name, bytes) in seeds.chain(messages()).chain(fuse_requests()) {
        let dir = corpus.join(target);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("seed-{name}")), &bytes)?;
        total += bytes.len();
    }
    println!("{}: seeds of {total} bytes", corpus.display());
    Ok(())
}

type Seed = (&'static str, String, Vec<u8>);

/// Each base as it is, mounted in each way; with a change that checksums catch,
/// and with one that they are renewed for.
fn images() -> impl Iterator<Item = Seed> {
    let of_base = |(i, base): (usize, &bases::Base)| {
        let n = i as u8 + 1;
        let case = |what: &str, bytes| ("image", format!("{}-{what}", base.name), bytes);
        let middle = base.words()[base.words().len() / 2] * 8 % (256 << 10);
        let changes = [
            Change::Flip(middle + 3, 0x10),
            // First bytes of the internal inode of the inode table, and a label.
            Change::Set(0x410, vec![0xff; 3]),
            Change::Set(0x38, b"label".to_vec()),
        ];
        vec![
            case("as-it-is", encode(n, Repair::NONE, How(0), n, &[])),
            case("read-only", encode(n, Repair::ALL, How(1), n, &[])),
            case("killed", encode(n, Repair::ALL, How(4 | 8), n * 7, &[])),
            case("mapped", encode(n, Repair::ALL, How(0x34), n, &[])),
            case("leased", encode(n, Repair::ALL, How(0x64), n, &[])),
            case("damaged", encode(n, Repair::NONE, How(2), n, &changes[..1])),
            case("forged", encode(n, Repair::ALL, How(0), n, &changes)),
        ]
    };
    let others = [
        ("nothing", Vec::new()),
        ("zeros", vec![0; HEAD]),
        (
            "raw",
            [&[RAW, Repair::ALL.0, 0, 0], &b"PRAMFSrs\x01\0\0\0\x0c"[..]].concat(),
        ),
        ("truncated", encode(1, Repair::ALL, How(0xf0), 3, &[])),
    ];
    let others = others.map(|(name, bytes)| ("image", name.to_owned(), bytes));
    bases::ALL
        .iter()
        .enumerate()
        .flat_map(of_base)
        .chain(others)
}

/// Lists of operations: of every kind, and of those that fill a region.
fn operations() -> impl Iterator<Item = Seed> {
    (0..12u8).map(|i| {
        let mut random = Random::new(u64::from(i) + 1);
        let mut bytes = vec![0; 1 + FRAME * (20 + usize::from(i) * 8)];
        random.fill(&mut bytes);
        bytes[0] = (i % 4) | if i > 7 { 0x30 } else { 0 };
        let some: [&[u8]; 4] = [
            &[],
            &[0, 6, 13, 20, 26, 57],
            &[1, 30, 36, 41, 44, 45, 61],
            &[2, 50, 54, 59, 62, 12],
        ];
        let some = some[usize::from(i) % 4];
        if !some.is_empty() {
            for frame in bytes[1..].chunks_mut(FRAME) {
                frame[0] = some[usize::from(frame[0]) % some.len()];
            }
        }
        ("ops", format!("{i:02}"), bytes)
    })
}

/// Append windows of the base that has some: with damage, and with impossible values under
/// right checks.
fn windows() -> Result<Vec<Seed>> {
    let all = bases::ALL.iter().zip(1u8..);
    let found = all.filter(|(base, _)| base.name == "windows-1024").last();
    let (base, n) = found.expect("the base exists");
    let sim = SimBackend::from_image(base.image()).map_err(std::io::Error::other)?;
    let region = region_of(&sim);
    let geo = probe_superblock(&region)
        .map_err(std::io::Error::other)?
        .geometry();
    let medium = Medium {
        region: &region,
        geo: &geo,
    };
    let places = places(medium).map_err(std::io::Error::other)?;
    // Slot 2, whose window is full.
    let at = |offset: u64| (places[2] + offset).0 as u32;
    let word = |offset, word: u64| Change::Set(at(offset), word.to_le_bytes().to_vec());
    let damage = [
        ("line-0", Change::Flip(at(0x10), 0x10)),
        ("window", Change::Flip(at(0xc0), 0x10)),
        ("end", Change::Flip(at(0x88), 0x10)),
        ("end-lost", word(0x88, 0)),
    ];
    let forged = [
        ("end-past-window", word(0x88, 0xffff_ffff)),
        ("start-past-end", word(0xc8, 5000)),
        ("limit-past-blocks", word(0xd0, 20 << 10)),
        ("limit-of-largest-file", word(0xd0, i64::MAX as u64)),
        ("start-near-2-64", word(0xc8, u64::MAX - 100)),
        ("number-0", word(0xc0, 0)),
        ("two-of-one-file", word(0x00, 17)),
    ];
    let case = |repair, how| {
        move |(what, change)| {
            let name = format!("windows-{what}");
            ("image", name, encode(n, repair, How(how), n, &[change]))
        }
    };
    let damage = damage.into_iter().map(case(Repair::NONE, 0));
    Ok(damage
        .chain(forged.into_iter().map(case(Repair::ALL, 0x34)))
        .collect())
}

/// Messages of every kind, by one line each; and answers without JSON.
fn messages() -> impl Iterator<Item = Seed> {
    let lease = LeaseKey { slot: 3, id: 77 };
    let ticket = Ticket([0xa7; 16]);
    let requests = [
        Request::Status,
        Request::Connection,
        Request::Lease {
            ticket,
            coherence: Coherence::Kept,
        },
        Request::Cohere {
            lease,
            coherence: Coherence::Recalled,
        },
        Request::Blocks {
            lease,
            offset: 8192,
        },
        Request::Release { lease },
        Request::Leases { from: 5 },
        Request::Revoke { lease },
    ];
    let blocks = |start, extents: &[(u64, u64, u64)]| Blocks {
        layout: 9,
        size: start + 65_000,
        start,
        end: start + 65_536,
        extents: extents
            .iter()
            .map(|&(file_offset, region_offset, len)| Extent {
                file_offset,
                region_offset,
                len,
            })
            .collect(),
    };
    let first = blocks(0, &[(0, 1 << 20, 8192), (16_384, 1 << 21, 49_152)]);
    let next = blocks(65_536, &[(65_536, (1 << 21) + 49_152, 4096)]);
    let granted = Granted {
        lease,
        filesystem: (1, 2),
        inode: 70,
        generation: 2,
        block_size: 4096,
        view: 0x4040,
        stored: 0x4080,
        coherence: Coherence::Kept,
        blocks: first.clone(),
    };
    let row = LeaseRow {
        lease,
        inode: 70,
        pid: 1234,
        uid: 0,
        write: true,
        bytes: 65_536,
        granted_sec: -1,
        adopted: true,
        revoked: false,
    };
    let served = Served {
        device: (0, 77),
        user_id: 0,
        read_only: false,
        nosuid: true,
        nodev: true,
        noexec: false,
        nosymfollow: false,
    };
    let refused = Reply::Refused {
        reason: Refusal::Damaged,
        message: "the file is damaged there".into(),
    };
    let replies = [
        ("serves", vec![Reply::Serves(served)]),
        (
            "granted",
            vec![
                Reply::Granted(Box::new(granted)),
                Reply::Blocks(next.clone()),
            ],
        ),
        ("blocks", vec![Reply::Blocks(first), Reply::Blocks(next)]),
        (
            "leases",
            vec![Reply::Leases {
                leases: vec![row; 2],
                next: Some(4),
            }],
        ),
        ("done", vec![Reply::Done, refused]),
    ];
    let socket = "file-0-27-5251.sock".to_owned();
    let answer = TicketReply { ticket, socket };
    let others = [
        (
            "ticket",
            answer.encode().expect("the name is short").to_vec(),
        ),
        (
            "other-version",
            br#"{"version":2,"request":"status"}"#.to_vec(),
        ),
        (
            "unknown",
            br#"{"version":1,"request":"grow","by":1}"#.to_vec(),
        ),
        // Answers without JSON: two extents; one that follows; one that repeats.
        (
            "numbers",
            [
                &[2, 0, 100, 8, 1, 20, 30, 9, 20][..],
                &[1, 100, 50, 8, 4, 9],
                &[0x12, 90, 90, 100, 7, 31, 20, 3, 8],
            ]
            .concat(),
        ),
        ("large-numbers", vec![0x90, 0, 200, 0x91, 4, 200, 9, 0, 30]),
    ];
    let requests = requests.into_iter().enumerate().map(|(i, request)| {
        let bytes = encode_request(&request).expect("no request is long");
        (format!("request-{i}"), bytes)
    });
    let replies = replies.map(|(name, all)| {
        let lines = all.iter().map(|r| encode_reply(r).expect("it is short"));
        (
            format!("reply-{name}"),
            lines.collect::<Vec<_>>().join(&b'\n'),
        )
    });
    let others = others.map(|(name, bytes)| (name.to_owned(), bytes));
    requests
        .chain(replies)
        .chain(others)
        .map(|(name, bytes)| ("control", name, bytes))
}

/// A request of each operation, with all that was negotiated, and a record.
fn fuse_requests() -> impl Iterator<Item = Seed> {
    let requests = requests::all().into_iter().enumerate();
    let requests = requests.map(|(i, (opcode, request))| {
        let name = format!("{opcode:?}-{i}").to_lowercase();
        let bytes = [&[7 | RIGHT_LENGTH, 16], &request[..]].concat();
        ("fuse_request", name, bytes)
    });
    let offer = InitRequest {
        major: 7,
        minor: 45,
        max_readahead: 1 << 17,
        flags: InitFlags::all(),
    };
    let wanted = Wanted {
        flags: InitFlags::MAX_PAGES | InitFlags::SETXATTR_EXT | InitFlags::HAS_RESEND,
        ..Wanted::default()
    };
    let Ok(Outcome::Agreed(agreed)) = negotiate(&offer, &wanted) else {
        panic!("both speak 7.45");
    };
    let record = [&[RECORD, 0], &agreed.to_record()[..]].concat();
    requests.chain([("fuse_request", "record".to_owned(), record)])
}
