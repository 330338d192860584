//! The tables of `docs/format.md` that are not those of structures.

use std::fmt::{Display, Write};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{HeapBackend, Region};
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};
use pramfs_medium::media::features::{FEATURES, Mask};
use pramfs_medium::media::htree::{self, ItemHeader};
use pramfs_medium::media::record::{EntryKind, RECORD_MAGIC};
use pramfs_medium::media::superblock::*;
use pramfs_medium::media::{Geometry, checksum, geometry, inode, pointer};

use crate::reader;

/// Returns name and text of each table.
pub fn others() -> Vec<(String, String)> {
    vec![
        ("constants".into(), constants()),
        ("kinds".into(), kinds()),
        ("features".into(), features()),
        ("limits".into(), limits()),
        ("vectors".into(), vectors()),
    ]
}

fn rows(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut out = format!(
        "| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out
}

fn row(cells: &[&dyn Display]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

fn hex(n: u64) -> String {
    format!("{n:#x}")
}

fn constants() -> String {
    let magic = |n: u64| format!("{n:#x}");
    rows(
        &["name", "value", "meaning"],
        vec![
            row(&[
                &"`MAGIC`",
                &magic(MAGIC),
                &"first word of a superblock page: `PRAMFSrs`",
            ]),
            row(&[&"`VERSION`", &VERSION, &"version of the format"]),
            row(&[&"`PAGE`", &PAGE, &"size of a superblock page, bytes"]),
            row(&[
                &"`COPY_OFFSET`",
                &hex(COPY_OFFSET),
                &"offset of the superblock copy that mkfs writes",
            ]),
            row(&[
                &"`MIN_REGION`",
                &hex(MIN_REGION),
                &"size of the smallest region, bytes",
            ]),
            row(&[&"`STATE_CLEAN`", &STATE_CLEAN, &"`state`: clean"]),
            row(&[
                &"`STATE_ACTIVE`",
                &STATE_ACTIVE,
                &"`state`: mounted or crashed",
            ]),
            row(&[
                &"`INODE_SIZE`",
                &inode::INODE_SIZE,
                &"size of an inode, bytes",
            ]),
            row(&[
                &"`INLINE_TARGET`",
                &inode::INLINE_TARGET,
                &"longest symlink target in the inode, bytes",
            ]),
            row(&[
                &"`LINK_MAX`",
                &inode::LINK_MAX,
                &"maximum links to an inode",
            ]),
            row(&[&"`LEAF`", &hex(pointer::LEAF), &"flag of a pointer"]),
            row(&[
                &"`UNWRITTEN`",
                &hex(pointer::UNWRITTEN),
                &"flag of a pointer",
            ]),
            row(&[
                &"`SHARED`",
                &hex(pointer::SHARED),
                &"flag of a pointer, reserved",
            ]),
            row(&[
                &"`LEAF_MAGIC`",
                &hex(htree::LEAF_MAGIC.into()),
                &"first bytes of a leaf: `hlf1`",
            ]),
            row(&[&"`SLOT`", &htree::SLOT, &"size of a leaf slot, bytes"]),
            row(&[&"`TAG_FREE`", &htree::TAG_FREE, &"tag of a free slot"]),
            row(&[
                &"`TAG_NEXT`",
                &htree::TAG_NEXT,
                &"tag of a slot that continues an item",
            ]),
            row(&[
                &"`VALUE_INLINE`",
                &htree::VALUE_INLINE,
                &"kind of an attribute: value in the item",
            ]),
            row(&[
                &"`VALUE_IN_BLOCKS`",
                &htree::VALUE_IN_BLOCKS,
                &"kind of an attribute: value in blocks",
            ]),
            row(&[
                &"`VALUE_MAX`",
                &htree::VALUE_MAX,
                &"longest value of an attribute, bytes",
            ]),
            row(&[
                &"`RECORD_MAGIC`",
                &hex(RECORD_MAGIC.into()),
                &"first bytes of a record: `prec`",
            ]),
            row(&[
                &"`LANE_LINE`",
                &geometry::LANE_LINE,
                &"size of a lane's line, bytes",
            ]),
            row(&[
                &"`SEALED_BITS`",
                &checksum::SEALED_BITS,
                &"width of a sealed value, bits",
            ]),
            row(&[&"`ROOT`", &Ino::ROOT.0, &"inode of the root directory"]),
            row(&[&"`ORPHANS`", &Ino::ORPHANS.0, &"inode of the orphan table"]),
            row(&[&"`LEASES`", &Ino::LEASES.0, &"inode of the lease table"]),
            row(&[
                &"`FIRST_FREE`",
                &Ino::FIRST_FREE.0,
                &"first inode number of user files",
            ]),
            row(&[
                &"`INODE_TABLE`",
                &hex(Ino::INODE_TABLE.0),
                &"number of the internal inode of the inode table",
            ]),
            row(&[
                &"`INODE_GROUPS`",
                &hex(Ino::INODE_GROUPS.0),
                &"number of the internal inode of the inode-group table",
            ]),
            row(&[
                &"`BLOCK_GROUPS`",
                &hex(Ino::BLOCK_GROUPS.0),
                &"number of the internal inode of the block-group table",
            ]),
        ],
    )
}

/// Returns payload and effect of a kind. A new kind does not compile without a row.
fn payload(kind: EntryKind) -> (&'static str, &'static str) {
    match kind {
        EntryKind::Inode => (
            "bytes",
            "replaces part of an inode, in the table or in a superblock page",
        ),
        EntryKind::Pointer => ("words", "replaces pointers of a file map or an index block"),
        EntryKind::Leaf => ("bytes", "replaces part of a leaf of a hash tree"),
        EntryKind::Desc => (
            "32 bytes, group word",
            "replaces a group descriptor by the 32 bytes",
        ),
        EntryKind::Slot => ("words", "replaces slots of the orphan or lease table"),
        EntryKind::SetBits => (
            "mask, group word",
            "sets the bits of the mask in one word of a bitmap",
        ),
        EntryKind::ClearBits => (
            "mask, group word",
            "clears the bits of the mask in one word of a bitmap",
        ),
        EntryKind::Zero => ("n", "zeroes n words"),
        EntryKind::Copy => (
            "source, n",
            "copies n bytes of free blocks, or zeros, to file data",
        ),
        EntryKind::More => (
            "n, CRC",
            "the record continues with the n bytes at the place of the entry",
        ),
        EntryKind::Sum => ("words", "replaces sums of file data"),
    }
}

fn kinds() -> String {
    let all = (0..32).filter_map(|code| Some((code, EntryKind::from_code(code)?)));
    let cells = all.map(|(code, kind)| {
        let (payload, effect) = payload(kind);
        row(&[&code, &format!("`{kind:?}`"), &payload, &effect])
    });
    rows(&["kind", "name", "payload", "effect"], cells.collect())
}

fn features() -> String {
    let cells = FEATURES.iter().map(|f| {
        let mask = match f.mask {
            Mask::Compat => "compat",
            Mask::RoCompat => "ro_compat",
            Mask::Incompat => "incompat",
        };
        let state = if f.supported { "in use" } else { "reserved" };
        row(&[&format!("`{}`", f.name), &mask, &f.bit, &state, &f.doc])
    });
    rows(
        &["feature", "mask", "bit", "state", "meaning"],
        cells.collect(),
    )
}

/// Formats a number of bytes in the largest unit that divides it.
fn bytes(n: u128) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut at = 0;
    let mut n = n;
    while n >= 1024 && n.is_multiple_of(1024) && at + 1 < units.len() {
        (n, at) = (n / 1024, at + 1);
    }
    format!("{n} {}", units[at])
}

fn limits() -> String {
    let sizes = [512, 1024, 2048, 4096];
    let geos: Vec<_> = sizes
        .iter()
        .map(|&block_size| {
            let options = FormatOptions {
                block_size,
                ..FormatOptions::default()
            };
            Geometry::new(&options.superblock(1 << 30).expect("a usual size"))
        })
        .collect();
    let line = |what: &str, f: &dyn Fn(&Geometry) -> String| {
        let mut cells = vec![what.to_owned()];
        cells.extend(geos.iter().map(f));
        cells
    };
    let file = |g: &Geometry, height: u32| {
        bytes((1u128 << (g.fan_log2 * height + g.block_size.ilog2())).min(1 << 63))
    };
    let cells = vec![
        line("largest region that pointers can address", &|g| {
            bytes(1u128 << (40 + g.block_size.ilog2()))
        }),
        // The descriptors of all groups take fewer blocks than a group has.
        line("size of regions that mkfs makes, less than", &|g| {
            let groups = g.bits_per_group() * (g.block_size / 32);
            bytes(u128::from(groups * g.bits_per_group()) << g.block_size.ilog2())
        }),
        line("bits of a group", &|g| g.bits_per_group().to_string()),
        line("bytes that a block group covers", &|g| {
            bytes(u128::from(g.bits_per_group()) << g.block_size.ilog2())
        }),
        line("descriptors in a block", &|g| {
            (g.block_size / 32).to_string()
        }),
        line("inodes in a block", &|g| g.inodes_per_block().to_string()),
        line("pointers in a block (2^f)", &|g| {
            format!("{} (f = {})", 1 << g.fan_log2, g.fan_log2)
        }),
        line("file with height 0", &|g| file(g, 0)),
        line("file with height 1", &|g| file(g, 1)),
        line("file with height 2", &|g| file(g, 2)),
        line("file with height 3", &|g| file(g, 3)),
        line("largest height", &|g| g.max_height().to_string()),
        line("leaf: slots", &|g| g.leaf.slots.to_string()),
        line("leaf: offset of the first slot", &|g| {
            g.leaf.slots_at.to_string()
        }),
        line("leaf: bytes of the largest item", &|g| {
            g.leaf.max_item().to_string()
        }),
        line("largest attribute in the item, value and name", &|g| {
            (g.leaf.max_item().min(1024) - ItemHeader::SIZE).to_string()
        }),
        line("2 MiB leaves", &|g| {
            if g.huge_leaves {
                "yes".into()
            } else {
                "no".into()
            }
        }),
    ];
    rows(&["block size", "512", "1024", "2048", "4096"], cells)
}

fn word(n: u64) -> String {
    format!("`{n:#018x}`")
}

fn vectors() -> String {
    let options = FormatOptions {
        uuid: Some(std::array::from_fn(|i| i as u8)),
        hash_seed: Some(std::array::from_fn(|i| 0x10 + i as u8)),
        ..FormatOptions::default()
    };
    let geo = Geometry::new(&options.superblock(4 << 20).expect("a usual size"));
    let s = geo.seed;
    let line: [u8; 64] = std::array::from_fn(|i| i as u8);
    let at = |ino, level, index| pointer::PtrAt {
        fs_seed: s,
        ino: Ino(ino),
        level,
        index,
    };
    let ptr = |block, flags, at| word(pointer::Ptr::new(pramfs::inode::Bno(block), flags, at).0);
    // Get the hash of a name from the cookie of its entry.
    let region = Region::new("test vectors", HeapBackend::boxed(4 << 20));
    format(&region, &options).expect("a usual size");
    let fs = Fs::open(
        region,
        MountOptions {
            background: false,
            ..Default::default()
        },
    )
    .expect("a fresh one");
    fs.create(&Credentials::ROOT, Ino::ROOT, b"hello", 0o644)
        .expect("a first file");
    let mut hash = 0;
    fs.readdir(Ino::ROOT, 2, &mut |e| {
        hash = e.cookie;
        std::ops::ControlFlow::Continue(())
    })
    .expect("the root directory");
    let cells = vec![
        row(&[&"`mix(1)`", &word(checksum::mix64(1))]),
        row(&[&"S", &word(s)]),
        row(&[
            &"`crc(0, \"123456789\")`",
            &format!("`{:#010x}`", checksum::crc(0, b"123456789")),
        ]),
        row(&[
            &"`crc(S, \"123456789\")`",
            &format!("`{:#010x}`", checksum::crc(s, b"123456789")),
        ]),
        row(&[
            &"`word_sum(S, 5, 0xff)`",
            &word(checksum::word_sum(s, 5, 0xff)),
        ]),
        row(&[
            &"`line_sum(S, 3, bytes 0, 1, ..., 63)`",
            &word(checksum::line_sum(s, 3, &line)),
        ]),
        row(&[&"`seal(S, 123456)`", &word(checksum::seal(s, 123_456))]),
        row(&[
            &"pointer to block 1234: inode 17, level 0, index 5",
            &ptr(1234, 0, at(17, 0, 5)),
        ]),
        row(&[
            &"the same, UNWRITTEN",
            &ptr(1234, pointer::UNWRITTEN, at(17, 0, 5)),
        ]),
        row(&[
            &"lost: inode 17, level 0, index 5",
            &ptr(0, pointer::UNWRITTEN, at(17, 0, 5)),
        ]),
        row(&[
            &"2 MiB leaf at block 1024: inode 17, level 1, index 2",
            &ptr(1024, pointer::LEAF, at(17, 1, 2)),
        ]),
        row(&[
            &"bitmap of block group 3 in block 99",
            &ptr(99, 0, at(Ino::BLOCK_GROUPS.0, 0, 3 | 1 << 62)),
        ]),
        row(&[
            &"root pointer of directory 2 to leaf block 100",
            &ptr(100, pointer::LEAF, at(2, 16, 0)),
        ]),
        row(&[&"hash of the name `hello`", &word(hash)]),
        row(&[&"tag of that hash", &reader::tag(hash)]),
        row(&[
            &"L of the leaf in block 100 of directory 2",
            &word(reader::leaf_seed(s, 2, 16, 100)),
        ]),
        row(&[
            &"orphan slot 3 that names inode 17",
            &word(checksum::seal(s ^ 3 << 32, 17)),
        ]),
        row(&[&"`retired` of 1000", &word(checksum::seal(s, 1000))]),
    ];
    rows(&["what", "value"], cells)
}
