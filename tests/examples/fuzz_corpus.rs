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

use std::io::Result;
use std::path::Path;

use pramfs_tests::exercise::bases;
use pramfs_tests::exercise::input::{Change, HEAD, How, RAW, encode};
use pramfs_tests::exercise::ops::FRAME;
use pramfs_tests::exercise::repair::Repair;
use pramfs_tests::random::Random;

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
    for (target, name, bytes) in images().chain(operations()) {
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
