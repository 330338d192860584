//! Plants one defect in an undamaged image, with all checksums around it correct.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::clean::{assert_clean, options, quiet, run};
use crate::{Issue, Report};
use pramfs::inode::Credentials;
use pramfs::inode::Fs;
use pramfs_medium::format::format;
use pramfs_medium::htree::{Image, TreeKind, TreeRef, item_parts, name_hash};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::checksum::{crc, word_sum};
use pramfs_medium::media::features::APPEND_WINDOWS;
use pramfs_medium::media::htree::{LargeValue, LeafHeader};
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::lease::{Lease, LeaseSlot};
use pramfs_medium::media::pointer::{Ptr, PtrAt};
use pramfs_medium::media::scrub::{FINISHED, ScrubRecord};
use pramfs_medium::media::superblock::*;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, SuperDynamic, SuperStatic, acl, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess, SimBackend};
use pramfs_medium::types::{FileBlock, FileType, Ino, LeaseMode, XattrMode};

/// Size of `file` when its append window was opened: not at the start of a block.
pub const WINDOW_START: u64 = (200 << 10) - 100;

/// Number of files in the directory `big`.
const FILES_IN_BIG: u32 = 300;

/// An undamaged image with structures of every kind, and their inode numbers.
pub struct Plant {
    pub sim: SimBackend,
    pub region: Region,
    pub geo: Geometry,
    pub dir: Ino,
    pub sub: Ino,
    /// A file of 300 blocks on two levels, with names `file` and `link`, and
    /// attributes.
    pub file: Ino,
    /// A file with block 5 only, and an ACL.
    pub sparse: Ino,
    pub empty: Ino,
    pub short: Ino,
    pub long: Ino,
    pub pipe: Ino,
    /// A directory with an index block.
    pub big: Ino,
    /// Unlinked and in the orphan table.
    pub gone: Ino,
    /// A removed directory in the orphan table.
    pub gone_dir: Ino,
    /// A free inode number with a place in the table.
    pub free: Ino,
}

/// Size of the region: three block groups of 1 KiB blocks, the last one short.
const LEN: usize = (20 << 20) + 300 * 1024;

impl Plant {
    pub fn new() -> Plant {
        let sim = SimBackend::new(LEN).unwrap();
        let region = || Region::new("test", Box::new(sim.clone()));
        format(&region(), &options(1024)).unwrap();
        set_thread_lane(0);
        let mapped = region();
        // A process maps `empty` beyond the unmount.
        mapped.pretend_lease(0, true);
        let fs = Fs::open(mapped, quiet()).unwrap();
        let ctx = Credentials::ROOT;
        let root = Ino::ROOT;
        let new = |name: &[u8]| fs.create(&ctx, root, name, 0o644).unwrap().ino;
        let dir = fs.mkdir(&ctx, root, b"dir", 0o755).unwrap().ino;
        let sub = fs.mkdir(&ctx, dir, b"sub", 0o755).unwrap().ino;
        let (file, sparse, empty) = (new(b"file"), new(b"sparse"), new(b"empty"));
        fs.write(&Credentials::ROOT, file, 0, &vec![0x77; 300 << 10])
            .unwrap();
        fs.link(file, root, b"link").unwrap();
        fs.setxattr(
            &Credentials::ROOT,
            file,
            b"user.small",
            b"12345",
            XattrMode::Set,
        )
        .unwrap();
        fs.setxattr(
            &Credentials::ROOT,
            file,
            b"user.large",
            &[6; 5000],
            XattrMode::Set,
        )
        .unwrap();
        fs.write(&Credentials::ROOT, sparse, 5 << 10, b"x").unwrap();
        fs.setxattr(
            &Credentials::ROOT,
            sparse,
            acl::ACCESS,
            &list(),
            XattrMode::Set,
        )
        .unwrap();
        fs.create(&ctx, sub, b"a", 0o644).unwrap();
        fs.create(&ctx, sub, b"b", 0o644).unwrap();
        let short = fs.symlink(&ctx, root, b"short", b"to/where").unwrap().ino;
        let long = fs.symlink(&ctx, root, b"long", &[b'l'; 500]).unwrap().ino;
        let pipe = fs
            .mknod(&ctx, root, b"pipe", libc::S_IFIFO | 0o600, 0)
            .unwrap()
            .ino;
        let big = fs.mkdir(&ctx, root, b"big", 0o755).unwrap().ino;
        for i in 0..FILES_IN_BIG {
            fs.create(&ctx, big, format!("file {i}").as_bytes(), 0o644)
                .unwrap();
        }
        let gone = new(b"gone");
        fs.write(&Credentials::ROOT, gone, 0, b"still here")
            .unwrap();
        fs.hold(gone).into_count();
        fs.unlink(root, b"gone").unwrap();
        let gone_dir = fs.mkdir(&ctx, root, b"gone too", 0o755).unwrap().ino;
        fs.hold(gone_dir).into_count();
        fs.rmdir(root, b"gone too").unwrap();
        let free = new(b"free");
        fs.unlink(root, b"free").unwrap();
        let generation = fs.getattr(empty).unwrap().generation;
        drop(
            fs.grant_lease(empty, generation, LeaseMode::Read, 100, 1000)
                .unwrap(),
        );
        fs.close().unwrap();
        let region = region();
        let report = assert_clean(&region);
        assert_eq!(report.counts.orphans, 2);
        let geo = probe_superblock(&region).unwrap().geometry();
        Plant {
            sim,
            region,
            geo,
            dir,
            sub,
            file,
            sparse,
            empty,
            short,
            long,
            pipe,
            big,
            gone,
            gone_dir,
            free,
        }
    }

    pub fn check(&self) -> Report {
        run(&self.region)
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.region.window().store_unflushed(at, bytes).unwrap();
    }

    pub fn flip(&self, at: u64, bits: u8) {
        let mut b = [0];
        self.region.read(at, &mut b).unwrap();
        self.put(at, &[b[0] ^ bits]);
    }

    // ---- superblock pages

    /// Changes the static part of a page and updates its CRC.
    pub fn fixed(&self, page: u64, f: impl FnOnce(&mut SuperStatic)) {
        let mut sb: SuperStatic = self.region.read_pod(page).unwrap();
        f(&mut sb);
        sb.crc = crc(0, &sb.as_bytes()[..SuperStatic::SIZE - 4]);
        self.put(page, sb.as_bytes());
    }

    pub fn dynamic(&self, pages: &[u64], f: impl Fn(&mut SuperDynamic)) {
        for page in pages {
            let mut d: SuperDynamic = self.region.read_pod(page + DYNAMIC_OFFSET).unwrap();
            f(&mut d);
            self.put(page + DYNAMIC_OFFSET, d.as_bytes());
        }
    }

    pub fn pages(&self) -> [u64; 2] {
        [0, self.geo.copy_offset.0]
    }

    /// Puts a record of scrubs with a number into both pages.
    pub fn put_scrub(&self, sequence: u64, f: impl FnOnce(&mut ScrubRecord)) {
        let mut record = ScrubRecord {
            state: FINISHED,
            sequence,
            ..ScrubRecord::new_zeroed()
        };
        f(&mut record);
        record.crc = record.expected_crc(self.geo.seed);
        for page in self.pages() {
            self.put(page + record.slot(), record.as_bytes());
        }
    }

    pub fn internal(&self, pages: &[u64], at: u64, f: impl Fn(&mut DiskInode)) {
        for page in pages {
            let mut d: DiskInode = self.region.read_pod(page + at).unwrap();
            f(&mut d);
            let ino = Ino(d.ino);
            d.seal(self.geo.seed, ino);
            self.put(page + at, d.as_bytes());
        }
    }

    fn internal_map(&self, at: u64) -> MapRoot {
        map_of(&self.region.read_pod(at).unwrap())
    }

    fn at(&self, root: &MapRoot, byte: u64) -> u64 {
        let leaf = root
            .find(&self.region, &self.geo, self.geo.file_block(byte))
            .unwrap();
        self.geo.offset(leaf.block.unwrap()).0 + byte % self.geo.block_size
    }

    // ---- inodes

    pub fn home(&self, ino: Ino) -> u64 {
        self.at(&self.internal_map(INODE_TABLE_OFFSET), ino.0 * INODE_SIZE)
    }

    pub fn inode(&self, ino: Ino) -> DiskInode {
        self.region.read_pod(self.home(ino)).unwrap()
    }

    pub fn put_inode(&self, ino: Ino, mut d: DiskInode) {
        d.ino = ino.0;
        d.seal(self.geo.seed, ino);
        self.put(self.home(ino), d.as_bytes());
    }

    pub fn edit(&self, ino: Ino, f: impl FnOnce(&mut DiskInode)) {
        let mut d = self.inode(ino);
        f(&mut d);
        self.put_inode(ino, d);
    }

    // ---- bitmaps

    pub fn desc_at(&self, kind: BitmapKind, group: u64) -> u64 {
        let at = match kind {
            BitmapKind::Blocks => BLOCK_GROUPS_OFFSET,
            BitmapKind::Inodes => INODE_GROUPS_OFFSET,
        };
        self.at(&self.internal_map(at), group * GroupDesc::SIZE as u64)
    }

    /// Returns the offset and mask of a bit, and the offset of the group's sum.
    pub fn bit_at(&self, kind: BitmapKind, bit: u64) -> (u64, u64, u64) {
        let group = bit / self.geo.bits_per_group();
        let desc = self.desc_at(kind, group);
        let map = self
            .geo
            .offset(Ptr(self.region.load_u64(desc).unwrap()).block())
            .0;
        let within = bit % self.geo.bits_per_group();
        (map + within / 64 * 8, 1 << (within % 64), desc + 8)
    }

    pub fn set_bit(&self, kind: BitmapKind, bit: u64, set: bool) {
        let (at, mask, sum_at) = self.bit_at(kind, bit);
        let index = bit % self.geo.bits_per_group() / 64;
        let old = self.region.load_u64(at).unwrap();
        let new = if set { old | mask } else { old & !mask };
        let part = |w| word_sum(self.geo.seed, index, w);
        let sum = self.region.load_u64(sum_at).unwrap();
        let sum = sum.wrapping_sub(part(old)).wrapping_add(part(new));
        self.put(at, &new.to_le_bytes());
        self.put(sum_at, &sum.to_le_bytes());
    }

    /// Returns the first free block of group 0.
    pub fn free_block(&self) -> u64 {
        let free = |b: &u64| {
            let (at, mask, _) = self.bit_at(BitmapKind::Blocks, *b);
            self.region.load_u64(at).unwrap() & mask == 0
        };
        (1..self.geo.bits_per_group()).find(free).unwrap()
    }

    // ---- file maps

    /// Returns the block that holds file block `index`.
    pub fn block_of(&self, ino: Ino, index: u64) -> u64 {
        let root = map_of(&self.inode(ino));
        root.find(&self.region, &self.geo, FileBlock(index))
            .unwrap()
            .block
            .unwrap()
            .0
    }

    /// Returns the offset and place of the pointer to file block `index`.
    pub fn pointer_of(&self, ino: Ino, index: u64) -> (u64, PtrAt) {
        let root = map_of(&self.inode(ino));
        let (mut level, mut ptr) = (root.height, root.root);
        loop {
            level -= 1;
            let slot = self.geo.slot_at(level, FileBlock(index));
            let at = self.geo.offset(ptr.block()).0 + slot * 8;
            if level == 0 {
                let fs_seed = self.geo.seed;
                return (
                    at,
                    PtrAt {
                        fs_seed,
                        ino,
                        level,
                        index,
                    },
                );
            }
            ptr = Ptr(self.region.load_u64(at).unwrap());
        }
    }

    // ---- hash trees

    pub fn tree(&self, ino: Ino, kind: TreeKind) -> TreeRef {
        let d = self.inode(ino);
        let root = match kind {
            TreeKind::Directory => d.root,
            TreeKind::Xattrs => d.xattr_root,
        };
        TreeRef {
            ino,
            kind,
            root: Ptr(root),
            blocks: 0,
        }
    }

    /// Changes the only leaf of a tree and updates its sum. `f` gets its bytes and
    /// the offset of the item `name` in them. Returns the block.
    pub fn leaf(
        &self,
        ino: Ino,
        kind: TreeKind,
        name: &[u8],
        f: impl FnOnce(&mut [u8], usize),
    ) -> u64 {
        let t = self.tree(ino, kind);
        assert!(t.root.is_leaf());
        let block = t.root.block();
        let mut image = Image {
            bytes: vec![0; self.geo.block_size as usize],
        };
        self.region
            .read(self.geo.offset(block).0, &mut image.bytes)
            .unwrap();
        let item = image
            .items(&t, &self.geo.leaf)
            .unwrap()
            .into_iter()
            .find(|i| item_parts(&image.bytes, i.at).unwrap().2 == name);
        f(&mut image.bytes, item.map_or(0, |i| i.at));
        let mut header = LeafHeader::read_from_prefix(&image.bytes).unwrap().0;
        header.sum = image.sum(t.leaf_seed(&self.geo, block));
        image.bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
        self.put(self.geo.offset(block).0, &image.bytes);
        block.0
    }

    /// Makes an entry name another inode.
    pub fn entry(&self, dir: Ino, name: &[u8], ino: Ino, kind: FileType) {
        self.leaf(dir, TreeKind::Directory, name, |b, at| {
            b[at + 11] = (kind.mode_bits() >> 12) as u8;
            b[at + 12..at + 20].copy_from_slice(&ino.0.to_le_bytes());
        });
    }

    pub fn hash(&self, name: &[u8]) -> u64 {
        name_hash(&self.geo, name)
    }

    /// Changes the item of the large attribute.
    pub fn large(&self, f: impl FnOnce(&mut LargeValue)) {
        self.leaf(self.file, TreeKind::Xattrs, b"user.large", |b, at| {
            let part = &mut b[at + 12..at + 12 + LargeValue::SIZE];
            let mut v = LargeValue::read_from_bytes(part).unwrap();
            f(&mut v);
            part.copy_from_slice(v.as_bytes());
        });
    }

    // ---- tables

    /// Returns the offset of a slot of the orphan table.
    pub fn orphan_slot(&self, slot: u64) -> u64 {
        self.at(&map_of(&self.inode(Ino::ORPHANS)), slot * 8)
    }

    /// Returns the offset of a slot of the lease table. Slot 0 names `empty`.
    pub fn lease_slot(&self, slot: u64) -> u64 {
        self.at(
            &map_of(&self.inode(Ino::LEASES)),
            slot * LeaseSlot::SIZE as u64,
        )
    }

    /// Makes slot 1 of the lease table name an inode.
    pub fn put_lease(&self, ino: Ino, generation: u64) {
        self.put_lease_in(1, ino, generation);
    }

    pub fn put_lease_in(&self, slot: u32, ino: Ino, generation: u64) {
        let lease = Lease {
            ino,
            generation,
            id: 5,
            mode: LeaseMode::Read,
            pid: 100,
            uid: 1000,
            granted_sec: 0,
        };
        let home = LeaseSlot::new(self.geo.seed, slot, &lease);
        self.put(self.lease_slot(slot.into()), home.recorded());
    }

    /// Lets a process append to `file`: 100 KiB in slot 1, of which it has appended 1000 bytes.
    /// `f` changes the lines of the window and of the holder.
    pub fn put_window(&self, f: impl FnOnce(&mut LeaseSlot)) {
        self.put_window_of(LeaseMode::Write, (WINDOW_START, 300 << 10), f);
    }

    pub fn put_window_of(
        &self,
        mode: LeaseMode,
        (start, limit): (u64, u64),
        f: impl FnOnce(&mut LeaseSlot),
    ) {
        for page in self.pages() {
            self.fixed(page, |sb| sb.incompat |= APPEND_WINDOWS);
        }
        let lease = Lease {
            ino: self.file,
            generation: self.inode(self.file).generation,
            id: 7,
            mode,
            pid: 100,
            uid: 1000,
            granted_sec: 0,
        };
        let window = LeaseSlot::new_window(self.geo.seed, 1, lease.id, start, limit);
        let mut slot = LeaseSlot {
            window: window.window,
            window_start: window.window_start,
            window_limit: window.window_limit,
            window_check: window.window_check,
            ..LeaseSlot::new(self.geo.seed, 1, &lease)
        };
        if let Ok(Some(window)) = slot.append_window(self.geo.seed, 1) {
            slot.end = window.word_of(start + 1000);
        }
        f(&mut slot);
        self.put(self.lease_slot(1), slot.as_bytes());
        self.edit(self.file, |d| d.size = WINDOW_START);
        let orphan = self.slot_word(50, self.file);
        self.put(self.orphan_slot(50), &orphan.to_le_bytes());
    }

    /// Returns the orphan slot that names an inode.
    pub fn slot_of(&self, ino: Ino) -> u64 {
        let names = |s: &u64| {
            let word = self.region.load_u64(self.orphan_slot(*s)).unwrap();
            self.slot_word(*s, ino) == word
        };
        (0..128).find(names).unwrap()
    }

    pub fn slot_word(&self, slot: u64, ino: Ino) -> u64 {
        pramfs_medium::media::checksum::seal(self.geo.seed ^ slot << 32, ino.0)
    }
}

/// An ACL: read and write for the owner, everything that the mask allows for
/// user 7, read for the group.
fn list() -> Vec<u8> {
    let none = acl::NO_ID;
    let entries = [
        (acl::USER_OBJ, 6, none),
        (acl::USER, 7, 7),
        (acl::GROUP_OBJ, 4, none),
        (acl::MASK, 6, none),
        (acl::OTHER, 0, none),
    ];
    let mut value = acl::VERSION.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(u16::to_le_bytes(perm));
        value.extend(u32::to_le_bytes(id));
    }
    value
}

fn map_of(d: &DiskInode) -> MapRoot {
    MapRoot {
        ino: Ino(d.ino),
        root: Ptr(d.root),
        height: u32::from(d.height),
    }
}

/// Plants a defect and returns the expected issues.
pub type Case = fn(&Plant) -> Vec<Issue>;

/// Plants a defect and expects exactly the issues of the case, each with a
/// sentence of one line.
#[track_caller]
pub fn expect(case: Case) {
    let p = Plant::new();
    let expected = case(&p);
    let report = p.check();
    let found: Vec<_> = report.issues().cloned().collect();
    assert_eq!(found, expected, "\n{report}");
    for f in &report.findings {
        assert!(!f.to_string().contains('\n'));
    }
}
