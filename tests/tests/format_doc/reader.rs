//! An independent reader of the format, written from `docs/format.md`. It shares no
//! code with the engine, verifies every checksum that it meets, and panics at the
//! first deviation from the document.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

const G: u64 = 0x9e37_79b9_7f4a_7c15;

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn crc(seed: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append((seed ^ (seed >> 32)) as u32, bytes)
}

fn word_sum(s: u64, i: u64, w: u64) -> u64 {
    if w == 0 {
        0
    } else {
        mix(w ^ s.wrapping_add((i + 1).wrapping_mul(G)))
    }
}

fn line_sum(s: u64, i: u64, line: &[u8]) -> u64 {
    let mut h = s.wrapping_add((i + 1).wrapping_mul(G));
    for k in 0..8 {
        let key = mix(G.wrapping_mul(k as u64 + 1)) | 1;
        h = h.wrapping_add(u64_at(line, k * 8).wrapping_mul(key));
    }
    mix(h)
}

fn unseal(s: u64, word: u64) -> u64 {
    let v = word & ((1 << 52) - 1);
    let check = mix(v ^ s.rotate_left(17)) & 0xfff;
    assert_eq!(word >> 52, check, "a sealed word");
    v
}

pub fn tag(hash: u64) -> u8 {
    (2 + (((hash >> 8 & 0xffff) * 254) >> 16)) as u8
}

pub fn leaf_seed(s: u64, ino: u64, first_level: u64, block: u64) -> u64 {
    mix(s ^ mix(ino ^ first_level << 58)).wrapping_add(mix(block))
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// A region.
pub struct Reader<'a> {
    bytes: &'a [u8],
    s: u64,
    log2: u32,
    f: u32,
    keys: (u64, u64),
    blocks: u64,
    inodes_max: u64,
    copy: usize,
    journal: (usize, usize),
    lanes: usize,
    slot_size: usize,
    /// Blocks with an owner.
    owned: BTreeSet<u64>,
    /// Whether file data have sums.
    has_sums: bool,
    /// Where the sums of each block group are, bytes.
    sums: BTreeMap<u64, u64>,
    /// What the lease table says of files: the end of what was appended, by inode.
    pub ends: BTreeMap<u64, u64>,
}

/// A file map.
#[derive(Clone, Copy)]
struct Map {
    root: u64,
    height: u32,
    owner: u64,
    /// The map belongs to a regular file and may have lost ranges.
    file: bool,
}

/// An inode with its contents, as found in the directory tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub size: u64,
    pub blocks: u64,
    pub rdev: u64,
    pub mtime: (i64, u32),
    pub btime: (i64, u32),
    pub generation: u64,
    /// Contents of a file or target of a symlink.
    pub data: Vec<u8>,
    /// Lost file blocks.
    pub lost: BTreeSet<u64>,
    /// File blocks whose sums need not hold.
    pub marked: std::ops::Range<u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One item of a hash tree.
struct Item {
    kind: u8,
    value: Vec<u8>,
    name: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub fn open(bytes: &'a [u8]) -> Reader<'a> {
        let sb = &bytes[..4096];
        assert_eq!(&sb[..8], b"PRAMFSrs");
        assert_eq!(u32_at(sb, 0x1fc), crc(0, &sb[..0x1fc]), "static part");
        assert_eq!(u32_at(sb, 8), 1, "version");
        let s = mix(u64_at(sb, 0x28) ^ mix(u64_at(sb, 0x30)));
        let log2 = u32_at(sb, 0xc);
        let copy = u64_at(sb, 0x98) as usize;
        assert_eq!(sb[..512], bytes[copy..copy + 512], "the copy");
        let r = Reader {
            bytes,
            s,
            log2,
            f: log2 - 3,
            keys: (u64_at(sb, 0x78), u64_at(sb, 0x80)),
            blocks: u64_at(sb, 0x90),
            inodes_max: u64_at(sb, 0xb8),
            copy,
            journal: (u64_at(sb, 0xa0) as usize, u64_at(sb, 0xa8) as usize),
            lanes: u32_at(sb, 0xb0) as usize,
            slot_size: u32_at(sb, 0xb4) as usize,
            owned: BTreeSet::new(),
            has_sums: u64_at(sb, 0x18) >> 1 & 1 != 0,
            sums: BTreeMap::new(),
            ends: BTreeMap::new(),
        };
        assert_eq!(u64_at(sb, 0x88) >> log2, r.blocks);
        r
    }

    fn bs(&self) -> usize {
        1 << self.log2
    }

    fn block(&self, b: u64) -> &'a [u8] {
        let at = (b << self.log2) as usize;
        &self.bytes[at..at + self.bs()]
    }

    fn own(&mut self, block: u64, count: u64) {
        for b in block..block + count {
            assert!(self.owned.insert(b), "block {b} is multiply claimed");
        }
    }

    /// Checks a pointer for its place and returns block and flags.
    fn pointer(&self, p: u64, ino: u64, level: u32, index: u64) -> (u64, u64) {
        let low = p & ((1 << 48) - 1);
        let place = ino
            .wrapping_mul(G)
            .wrapping_add(index.wrapping_mul(0xd6e8_feb8_6659_fd93))
            .wrapping_add(u64::from(level) << 56);
        assert_eq!(
            p >> 48,
            mix(low ^ self.s ^ place) >> 48,
            "the check of a pointer"
        );
        assert_eq!(low >> 46, 0, "reserved bits");
        (p & ((1 << 40) - 1), low >> 44 & 3)
    }

    /// Returns all blocks of a file (file block, block, unwritten) and marks them as
    /// owned. A lost block is block 0.
    fn map(&mut self, m: Map) -> Vec<(u64, u64, bool)> {
        let mut out = Vec::new();
        self.map_entry(m, m.root, m.height, 0, &mut out);
        out
    }

    fn map_entry(
        &mut self,
        m: Map,
        p: u64,
        level: u32,
        index: u64,
        out: &mut Vec<(u64, u64, bool)>,
    ) {
        if p == 0 {
            return;
        }
        let (block, flags) = self.pointer(p, m.owner, level, index);
        let (leaf, unwritten) = (flags & 1 != 0, flags & 2 != 0);
        if block == 0 {
            assert!(m.file && unwritten && !leaf, "a pointer to block 0");
            let first = index << (self.f * level);
            out.extend((0..1 << (self.f * level)).map(|i| (first + i, 0, true)));
            return;
        }
        if level == 0 || leaf {
            assert!(!leaf || level == 1 && self.bs() == 4096 && block.is_multiple_of(512));
            let n = if leaf { 512 } else { 1 };
            self.own(block, n);
            out.extend((0..n).map(|i| ((index << (self.f * level)) + i, block + i, unwritten)));
            return;
        }
        assert!(!unwritten);
        self.own(block, 1);
        let words = self.block(block);
        for i in 0..1 << self.f {
            self.map_entry(
                m,
                u64_at(words, i * 8),
                level - 1,
                index << self.f | i as u64,
                out,
            );
        }
    }

    /// Reads the first `len` bytes of a file.
    fn contents(&self, blocks: &[(u64, u64, bool)], len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for &(index, block, unwritten) in blocks {
            let at = (index << self.log2) as usize;
            if at < len && !unwritten {
                let n = (len - at).min(self.bs());
                out[at..at + n].copy_from_slice(&self.block(block)[..n]);
            }
        }
        out
    }

    /// Returns the marked blocks of a file: their sums need not hold.
    fn marked(&self, d: &[u8]) -> std::ops::Range<u64> {
        let flagged = u32_at(d, 0x88) >> 30 & 1 != 0;
        let (from, to) = (u64_at(d, 0x90), u64_at(d, 0x98));
        assert!(!flagged || self.has_sums, "a mark without sums");
        match (flagged, from, to) {
            (false, 0, 0) => 0..0,
            (true, 0, 0) => 0..u64::MAX,
            _ => {
                assert!(flagged, "a range without a mark");
                assert!(u64_at(self.bytes, 0x18) & 1 << 6 != 0, "ranged_marks");
                let blocks = u64_at(d, 0x10).div_ceil(1 << self.log2);
                assert!(from < to && to <= blocks, "{from} to {to} of {blocks}");
                from..to
            }
        }
    }

    /// Checks the sums of the written blocks of a file that are not marked.
    fn check_sums(&self, blocks: &[(u64, u64, bool)], size: u64, marked: std::ops::Range<u64>) {
        for &(index, block, unwritten) in blocks {
            let at = index << self.log2;
            if !self.has_sums || unwritten || at >= size || marked.contains(&index) {
                continue;
            }
            let per_group = self.bs() as u64 * 8;
            let place = self.sums[&(block / per_group)] + block % per_group * 8;
            let word = u64_at(self.bytes, place as usize);
            let len = (size - at).min(self.bs() as u64);
            let sum = crc(0, &self.block(block)[..len as usize]);
            let own = self.s.wrapping_add((block + 1).wrapping_mul(G));
            let check = mix(u64::from(sum) ^ own) >> 32;
            assert_eq!(word, check << 32 | u64::from(sum), "file block {index}");
        }
    }

    fn check_inode(&self, d: &[u8], ino: u64) {
        assert_eq!(
            u32_at(d, 0),
            crc(self.s ^ ino.wrapping_mul(G), &d[4..256]),
            "inode {ino}"
        );
        assert_eq!(u64_at(d, 0x80), ino);
    }

    fn map_of(&self, d: &[u8], ino: u64) -> Map {
        Map {
            root: u64_at(d, 0x40),
            height: d[0xc].into(),
            owner: ino,
            file: ino >= 16 && ino < self.inodes_max && u32_at(d, 4) >> 12 == 8,
        }
    }

    /// Reads the map of an internal inode.
    fn internal(&mut self, at: usize, ino: u64) -> Vec<(u64, u64, bool)> {
        let d = &self.bytes[at..at + 256];
        self.check_inode(d, ino);
        assert_eq!(
            *d,
            self.bytes[self.copy + at..self.copy + at + 256],
            "both pages"
        );
        let before = self.owned.len() as u64;
        let map = self.map(self.map_of(d, ino));
        assert_eq!(u64_at(d, 0x18), self.owned.len() as u64 - before, "blocks");
        map
    }

    /// Returns the set bits of the bitmap with these descriptors.
    fn bitmap(&mut self, descs: &[(u64, u64, bool)], ino: u64, bits: u64) -> BTreeSet<u64> {
        let per_group = self.bs() as u64 * 8;
        let table = self.contents(descs, bits.div_ceil(per_group) as usize * 32);
        let mut set = BTreeSet::new();
        for (g, desc) in table.chunks(32).enumerate() {
            let g = g as u64;
            let (block, flags) = self.pointer(u64_at(desc, 0), ino, 0, g | 1 << 62);
            assert_eq!(flags, 0);
            if block == 0 {
                assert_eq!(u64_at(desc, 8), 0);
                continue;
            }
            let mut own = (block, 1);
            if self.has_sums && ino == 0xffff_ffff_ff03 {
                own = (block - 64, 65);
                self.sums.insert(g, (block - 64) << self.log2);
            }
            self.own(own.0, own.1);
            let mut sum = 0u64;
            for (i, w) in self.block(block).chunks(8).enumerate() {
                let w = u64_at(w, 0);
                sum = sum.wrapping_add(word_sum(self.s, i as u64, w));
                let bits = (0..64).filter(|b| w >> b & 1 != 0);
                set.extend(bits.map(|b| g * per_group + i as u64 * 64 + b));
            }
            assert_eq!(sum, u64_at(desc, 8), "the sum of a group");
        }
        set
    }

    /// Returns all items of a tree.
    fn tree(&mut self, root: u64, ino: u64, first_level: u64) -> Vec<Item> {
        let mut out = Vec::new();
        self.tree_entry(root, (ino, first_level), 0, 0, &mut out);
        out
    }

    /// Reads a subtree and returns the number of slots that name it.
    fn tree_entry(
        &mut self,
        p: u64,
        t: (u64, u64),
        level: u32,
        index: u64,
        out: &mut Vec<Item>,
    ) -> usize {
        if p == 0 {
            return 1;
        }
        let (block, flags) = self.pointer(p, t.0, t.1 as u32 + level, index);
        let bits = self.f * level;
        if flags & 1 != 0 {
            self.own(block, 1);
            let depth = self.leaf(block, t, bits, index, out);
            return 1 << (bits - depth);
        }
        self.own(block, 1);
        let words = self.block(block);
        let mut slot = 0;
        while slot < 1 << self.f {
            let first = u64_at(words, slot * 8);
            let at = index << self.f | slot as u64;
            let run = self.tree_entry(first, t, level + 1, at, out);
            for i in 1..run {
                let other = self.pointer(
                    u64_at(words, (slot + i) * 8),
                    t.0,
                    t.1 as u32 + level + 1,
                    at + i as u64,
                );
                assert_eq!(
                    other,
                    self.pointer(first, t.0, t.1 as u32 + level + 1, at),
                    "slots of one leaf"
                );
            }
            slot += run;
        }
        1
    }

    fn leaf(&self, block: u64, t: (u64, u64), bits: u32, index: u64, out: &mut Vec<Item>) -> u32 {
        let b = self.block(block);
        assert_eq!(&b[..4], b"hlf1");
        assert_eq!(u64_at(b, 0x10), t.0, "owner");
        let seed = leaf_seed(self.s, t.0, t.1, block);
        let sum = b.chunks(64).enumerate().fold(0u64, |sum, (i, line)| {
            let mut line = line.to_vec();
            if i == 0 {
                line[8..16].fill(0);
            }
            sum.wrapping_add(line_sum(seed, i as u64, &line))
        });
        assert_eq!(sum, u64_at(b, 8), "the sum of a leaf");
        let depth = u32::from(u16_at(b, 4));
        let top = |hash: u64| hash.checked_shr(63 - depth).unwrap_or(0);
        assert_eq!(top(u64_at(b, 0x18)), index >> (bits - depth), "prefix");
        let slots = (self.bs() - 64) / 33;
        let slots_at = (64 + slots).next_multiple_of(32);
        let slots = slots.min((self.bs() - slots_at) / 32);
        let (mut slot, mut items, mut used) = (0, 0, 0);
        while slot < slots {
            let tags = &b[64 + slot..64 + slots];
            if tags[0] == 0 {
                slot += 1;
                continue;
            }
            let item = &b[slots_at + slot * 32..];
            let hash = u64::from(u32_at(item, 4)) << 32 | u64::from(u32_at(item, 0));
            let (value_len, name_len) = (usize::from(u16_at(item, 8)), usize::from(item[10]));
            let n = (12 + value_len + name_len).div_ceil(32);
            assert_eq!(tags[0], tag(hash));
            assert!(tags[1..n].iter().all(|t| *t == 1));
            let name = item[12 + value_len..12 + value_len + name_len].to_vec();
            assert_eq!(hash & !0xff, self.hash(&name));
            assert_eq!(top(hash), top(u64_at(b, 0x18)));
            out.push(Item {
                kind: item[11],
                value: item[12..12 + value_len].to_vec(),
                name,
            });
            (slot, items, used) = (slot + n, items + 1, used + n as u16);
        }
        assert_eq!(
            (items, used),
            (u16_at(b, 6), u16_at(b, 0x20)),
            "items and slots"
        );
        depth
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let mut h = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        h.write(name);
        (h.finish() >> 1 & !0xff).max(256)
    }

    fn xattrs(&mut self, root: u64, ino: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut out = BTreeMap::new();
        for i in self.tree(root, ino, 32) {
            let value = if i.kind == 1 {
                i.value
            } else {
                assert_eq!((i.kind, i.value.len()), (2, 20));
                let owner = ino ^ self.hash(&i.name).rotate_left(13);
                let map = self.map(Map {
                    root: u64_at(&i.value, 0),
                    height: u32_at(&i.value, 8),
                    owner,
                    file: false,
                });
                let value = self.contents(&map, u32_at(&i.value, 12) as usize);
                assert_eq!(
                    crc(self.s, &value),
                    u32_at(&i.value, 16),
                    "a large attribute"
                );
                value
            };
            assert!(out.insert(i.name, value).is_none());
        }
        out
    }

    /// Reads all files of a clean, unmounted region, by path.
    pub fn files(&mut self) -> BTreeMap<Vec<u8>, Node> {
        assert_eq!(u64_at(self.bytes, 0x200), 1, "clean");
        unseal(self.s, u64_at(self.bytes, 0x210));
        for (at, len) in [(0, 4096), (self.copy, 4096), self.journal] {
            self.own((at >> self.log2) as u64, (len >> self.log2) as u64);
        }
        let table = self.internal(0x400, 0xffff_ffff_ff01);
        let inode_groups = self.internal(0x500, 0xffff_ffff_ff02);
        let block_groups = self.internal(0x600, 0xffff_ffff_ff03);
        let inodes = self.bitmap(&inode_groups, 0xffff_ffff_ff02, self.inodes_max);
        let blocks = self.bitmap(&block_groups, 0xffff_ffff_ff03, self.blocks);
        let table: BTreeMap<u64, u64> = table.into_iter().map(|(i, b, _)| (i, b)).collect();

        let mut out = BTreeMap::new();
        let mut seen = BTreeMap::new();
        self.orphans(&table);
        self.walk(&table, 2, 2, Vec::new(), &mut out, &mut seen);
        let in_use: BTreeSet<u64> = seen.keys().copied().chain(0..16).collect();
        assert_eq!(inodes, in_use, "the inode bitmap");
        assert_eq!(blocks, self.owned, "the block bitmap");
        out
    }

    fn inode(&self, table: &BTreeMap<u64, u64>, ino: u64) -> &'a [u8] {
        let at = ino * 256;
        let b = self.block(table[&(at >> self.log2)]);
        let d = &b[at as usize % self.bs()..][..256];
        self.check_inode(d, ino);
        d
    }

    /// Checks that the orphan table is empty, and reads the lease table.
    fn orphans(&mut self, table: &BTreeMap<u64, u64>) {
        let d = self.inode(table, 3);
        let map = self.map(self.map_of(d, 3));
        let words = self.contents(&map, u64_at(d, 0x10) as usize);
        assert!(!words.is_empty() && words.iter().all(|b| *b == 0));
        let d = self.inode(table, 4);
        let map = self.map(self.map_of(d, 4));
        let slots = self.contents(&map, u64_at(d, 0x10) as usize);
        for (n, slot) in (0u64..).zip(slots.chunks(256)) {
            self.lease(table, n, slot);
        }
    }

    /// Reads a slot of the lease table.
    fn lease(&mut self, table: &BTreeMap<u64, u64>, n: u64, slot: &[u8]) {
        let (line0, line3) = (&slot[..64], &slot[192..]);
        let sum = |key: u64, line: &[u8]| {
            let mut line = line.to_vec();
            line[56..].fill(0);
            line_sum(self.s ^ key, n, &line)
        };
        if line0.iter().all(|b| *b == 0) {
            assert!(line3.iter().all(|b| *b == 0), "line 3 of the free slot {n}");
            return;
        }
        assert!(u64_at(self.bytes, 0x18) & 1 != 0, "parked_leases");
        assert_eq!(u64_at(line0, 0x38), sum(0x6c65_6173_6573_6c6f, line0));
        let (ino, mode) = (u64_at(line0, 0), u32_at(line0, 0x18));
        assert!(mode == 1 || mode == 2, "mode {mode}");
        let d = self.inode(table, ino);
        assert_eq!(u64_at(line0, 8), u64_at(d, 0x50), "the generation");
        assert_eq!(u32_at(d, 4) >> 12, 8, "a regular file");
        if line3.iter().all(|b| *b == 0) {
            return;
        }
        assert!(u64_at(self.bytes, 0x20) & 1 << 4 != 0, "append_windows");
        assert_eq!(mode, 2);
        let (number, start, limit) = (u64_at(line3, 0), u64_at(line3, 8), u64_at(line3, 0x10));
        assert!(number != 0 && number != u64::MAX);
        assert!(start <= limit && limit - start <= 1 << 30);
        let check = u64_at(line3, 0x38);
        assert_eq!(
            check,
            sum(0x7769_6e64_6f77_7321 ^ u64_at(line0, 0x10), line3)
        );
        let size = u64_at(d, 0x10);
        assert!((start..=limit).contains(&size), "the size {size}");
        let word = u64_at(slot, 0x88);
        let a = word & 0xffff_ffff;
        let c = (a + 1).wrapping_mul(check | 1) >> 32;
        assert!(word == 0 || word >> 32 == c, "the check of end");
        assert!(start + a <= limit);
        let other = self.ends.insert(ino, size.max(start + a));
        assert_eq!(other, None, "two windows of {ino}");
    }

    fn walk(
        &mut self,
        table: &BTreeMap<u64, u64>,
        ino: u64,
        parent: u64,
        path: Vec<u8>,
        out: &mut BTreeMap<Vec<u8>, Node>,
        seen: &mut BTreeMap<u64, Node>,
    ) {
        if let Some(node) = seen.get(&ino) {
            out.insert(path, node.clone());
            return;
        }
        let d = self.inode(table, ino);
        let mut node = Node {
            ino,
            mode: u32_at(d, 4),
            nlink: u32_at(d, 8),
            uid: u32_at(d, 0x58),
            size: self.ends.get(&ino).map_or(u64_at(d, 0x10), |end| *end),
            blocks: u64_at(d, 0x18),
            mtime: (u64_at(d, 0x20) as i64, u32_at(d, 0x30)),
            btime: (u64_at(d, 0x68) as i64, u32_at(d, 0x74)),
            generation: u64_at(d, 0x50),
            ..Node::default()
        };
        let before = self.owned.len() as u64;
        node.xattrs = self.xattrs(u64_at(d, 0x48), ino);
        let mut entries = Vec::new();
        match node.mode >> 12 {
            4 => {
                assert_eq!(u64_at(d, 0x78), parent);
                entries = self.tree(u64_at(d, 0x40), ino, 16);
                assert_eq!(entries.len() as u64, node.size);
            }
            8 => {
                let map = self.map(self.map_of(d, ino));
                node.lost = map.iter().filter(|b| b.1 == 0).map(|b| b.0).collect();
                let flagged = u32_at(d, 0x88) >> 31 != 0;
                assert_eq!(flagged, !node.lost.is_empty(), "the hint of lost ranges");
                node.marked = self.marked(d);
                self.check_sums(&map, node.size, node.marked.clone());
                node.data = self.contents(&map, node.size as usize);
            }
            10 if node.size <= 96 => node.data = d[0xa0..0xa0 + node.size as usize].to_vec(),
            10 => {
                let map = self.map(self.map_of(d, ino));
                node.data = self.contents(&map, node.size as usize);
                assert_eq!(u32_at(d, 0xa0), crc(self.s, &node.data), "a long target");
            }
            _ => {
                assert_eq!((u64_at(d, 0x40), node.size), (0, 0));
                node.rdev = u64_at(d, 0x78);
            }
        }
        assert_eq!(
            node.blocks,
            self.owned.len() as u64 - before,
            "blocks of inode {ino}"
        );
        seen.insert(ino, node.clone());
        for e in entries {
            let child = u64_at(&e.value, 0);
            let mut below = path.clone();
            below.push(b'/');
            below.extend_from_slice(&e.name);
            assert_eq!(u32::from(e.kind), u32_at(self.inode(table, child), 4) >> 12);
            self.walk(table, child, ino, below, out, seen);
        }
        out.insert(path, node);
    }

    /// Returns the LSNs of the live records after the check of every entry that the
    /// document describes.
    pub fn live_records(&self) -> Vec<u64> {
        let (at, _) = self.journal;
        let slots = at + (self.lanes * 64).next_multiple_of(4096);
        let pages = [0, self.copy].map(|page| unseal(self.s, u64_at(self.bytes, page + 0x210)));
        let checkpoint = pages[0].max(pages[1]);
        let mut live = Vec::new();
        for lane in 0..self.lanes {
            let retired = [self.s, !self.s].into_iter().enumerate().map(|(copy, s)| {
                match u64_at(self.bytes, at + lane * 64 + copy * 8) {
                    0 => 0,
                    word => unseal(s, word),
                }
            });
            let retired = retired.min().unwrap();
            for slot in 0..2 {
                let r = &self.bytes[slots + (lane * 2 + slot) * self.slot_size..][..self.slot_size];
                if r[..32].iter().all(|b| *b == 0) {
                    continue;
                }
                assert_eq!(&r[..4], b"prec");
                let r = &r[..u32_at(r, 0x10) as usize];
                assert_eq!(u32_at(r, 4), crc(self.s, &r[8..]), "a record");
                assert_eq!(
                    (u32_at(r, 0x18), u32_at(r, 0x1c)),
                    (lane as u32, slot as u32)
                );
                let (mut pos, mut entries) = (32, 0);
                while pos < r.len() {
                    let w = u64_at(r, pos);
                    let (offset, words, kind) =
                        ((w & ((1 << 49) - 1)) * 8, w >> 49 & 1023, w >> 59);
                    match kind {
                        4 => assert_eq!(words, 5),
                        6 | 7 => assert_eq!(words, 2),
                        8 => assert_eq!(words, 1),
                        9 | 10 => assert_eq!(words, 2),
                        1..=5 | 11 => {}
                        _ => panic!("an entry of kind {kind}"),
                    }
                    assert!(offset < self.bytes.len() as u64);
                    (pos, entries) = (pos + 8 + words as usize * 8, entries + 1);
                }
                assert_eq!((pos, entries), (r.len(), u32_at(r, 0x14)));
                let lsn = u64_at(r, 8);
                if lsn > checkpoint && lsn > retired {
                    live.push(lsn);
                }
            }
        }
        live
    }
}
