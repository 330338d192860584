//! Bitmaps with matching checksums and wrong contents.

use pramfs::{
    Error,
    inode::{Credentials, Ino},
};
use pramfs_medium::media::bitmap::GroupDesc;
use pramfs_medium::media::checksum::word_sum;
use pramfs_medium::media::superblock::BLOCK_GROUPS_OFFSET;
use pramfs_medium::media::{DiskInode, Ptr, probe_superblock};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};
use zerocopy::IntoBytes;

/// Superblocks, the journal and the bitmap itself are never allocated, whatever the bits
/// say.
#[test]
fn allocator_never_uses_format_blocks() {
    for block_size in [512, 4096] {
        let sim = formatted(1 << 20, &repeatable(block_size)).expect("formatted");
        let region = region_of(&sim);
        let geo = probe_superblock(&region).expect("a superblock").geometry();
        let owner: DiskInode = region.read_pod(BLOCK_GROUPS_OFFSET).expect("an inode");
        assert_eq!(owner.height, 0, "one block of descriptors");
        let desc_at = geo.offset(Ptr(owner.root).block()).0;
        let bitmap = {
            let desc: GroupDesc = region.read_pod(desc_at).expect("a descriptor");
            Ptr(desc.bitmap).block()
        };
        let fixed = geo.fixed_blocks().into_iter().flatten().chain([bitmap.0]);
        let fixed: Vec<_> = fixed.filter(|b| *b < geo.bits_per_group()).collect();
        let healthy = sim.image();
        for block in [fixed[0], fixed[fixed.len() / 2], fixed[fixed.len() - 1]] {
            let mut image = healthy.clone();
            let at = geo.offset(bitmap).0 as usize;
            image[at + block as usize / 8] &= !(1 << (block % 8));
            let words = image[at..at + geo.block_size as usize].as_chunks::<8>().0;
            let sum = (0..).zip(words).fold(0u64, |sum, (i, w)| {
                sum.wrapping_add(word_sum(geo.seed, i, u64::from_le_bytes(*w)))
            });
            image[desc_at as usize + 8..desc_at as usize + 16].copy_from_slice(sum.as_bytes());
            let forged = pramfs_medium::pmem::SimBackend::from_image(&image).expect("an image");
            let fs = mount(&forged, quiet()).expect("mounted");
            let made = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644);
            let wrote = made.and_then(|f| fs.write(&Credentials::ROOT, f.ino, 0, &[0xee; 100_000]));
            assert!(
                matches!(wrote, Err(Error::Corrupt { .. } | Error::NoSpace(_))),
                "block {block} of {block_size} bytes: {wrote:?}"
            );
            drop(fs);
            let after = forged.image();
            let page = |image: &[u8], at: u64| image[at as usize..][..512].to_vec();
            for at in [0, geo.copy_offset.0] {
                assert_eq!(
                    page(&after, at),
                    page(&healthy, at),
                    "superblock at {at:#x}"
                );
            }
        }
    }
}
