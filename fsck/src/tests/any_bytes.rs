//! For any bytes, a check ends with a report.

use super::clean::{Rng, fresh, quiet, run};
use super::plant::Plant;
use crate::check_fs;
use pramfs::inode::Credentials;
use pramfs::inode::Fs;
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};
use pramfs_medium::types::RegionOffset;
use pramfs_medium::types::{Ino, XattrMode};

fn copy_of(image: &[u8]) -> Region {
    let region = Region::new("copy", HeapBackend::boxed(image.len()));
    region.window().store_unflushed(0, image).unwrap();
    region
}

/// The smallest region, with structures of every kind in it.
fn small() -> Vec<u8> {
    let fs = Fs::open(fresh(256 << 10, 512), quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let dir = fs.mkdir(&ctx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    for i in 0..40 {
        let name = format!("a file with a name {i}");
        let ino = fs.create(&ctx, dir, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, ino, 0, &vec![1; i * 50])
            .unwrap();
    }
    let ino = fs.symlink(&ctx, dir, b"link", &[b'x'; 300]).unwrap().ino;
    fs.setxattr(
        &Credentials::ROOT,
        ino,
        b"user.a",
        &[2; 2000],
        XattrMode::Set,
    )
    .unwrap();
    fs.setxattr(&Credentials::ROOT, dir, b"user.b", b"short", XattrMode::Set)
        .unwrap();
    let (region, report) = check_fs(fs, &Default::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    let mut image = vec![0; 256 << 10];
    region.unwrap().read(0, &mut image).unwrap();
    image
}

#[test]
fn check_survives_any_flipped_bit() {
    let image = small();
    let region = copy_of(&image);
    let mut rng = Rng(1);
    for _ in 0..30_000 {
        let at = rng.below(image.len() as u64);
        let flipped = image[at as usize] ^ (1 << rng.below(8));
        let w = region.window();
        w.store_unflushed(at, &[flipped]).unwrap();
        run(&region);
        w.store_unflushed(at, &[image[at as usize]]).unwrap();
    }
    assert!(run(&region).is_clean());
}

#[test]
fn check_survives_overwritten_blocks() {
    let image = small();
    let mut rng = Rng(2);
    for _ in 0..2000 {
        let region = copy_of(&image);
        for _ in 0..1 + rng.below(8) {
            // Copy one block over another, or write noise. The static superblock
            // stays.
            let to = 0x200 + rng.below(image.len() as u64 - 0x400);
            let mut bytes: Vec<u8> = (0..512).map(|_| rng.below(256) as u8).collect();
            if rng.below(2) == 0 {
                let from = rng.below(image.len() as u64 / 512 - 1) * 512;
                bytes.copy_from_slice(&image[from as usize..from as usize + 512]);
            }
            region
                .window()
                .store_unflushed(to / 512 * 512 + 0x200, &bytes)
                .unwrap();
        }
        run(&region).to_string();
    }
}

#[test]
fn regions_without_file_system_are_reported() {
    for len in [1, 4096, 256 << 10, 1 << 20] {
        let mut image = vec![0; len];
        assert!(!run(&copy_of(&image)).is_clean());
        let mut rng = Rng(len as u64);
        image.iter_mut().for_each(|b| *b = rng.below(256) as u8);
        let report = run(&copy_of(&image));
        assert!(!report.complete && report.findings.len() == 1);
    }
    // A truncated region.
    let image = small();
    let report = run(&copy_of(&image[..200 << 10]));
    assert_eq!(report.issues().next().unwrap().code(), "no-superblock");
}

/// Forged pointers with valid checks form loops: a check still walks every block at
/// most once.
#[test]
fn check_of_forged_loops_terminates() {
    use pramfs_medium::media::pointer::{Ptr, PtrAt};
    use pramfs_medium::types::Bno;
    let p = Plant::new();
    let (at, _) = p.pointer_of(p.file, 0);
    let table = p.geo.block_at(RegionOffset(at)).0;
    // A map of maximum height in which every slot of every level leads to the same
    // block, as far as one word can match two places.
    let height = 5;
    p.edit(p.file, |d| {
        let place = PtrAt {
            fs_seed: p.geo.seed,
            ino: p.file,
            level: height,
            index: 0,
        };
        d.height = height as u8;
        d.root = Ptr::new(Bno(table), 0, place).0;
    });
    for slot in 0..1 << p.geo.fan_log2 {
        let place = PtrAt {
            fs_seed: p.geo.seed,
            ino: p.file,
            level: height - 1,
            index: slot,
        };
        let ptr = Ptr::new(Bno(table), 0, place);
        p.put(p.geo.bytes(table) + slot * 8, &ptr.0.to_le_bytes());
    }
    let report = p.check();
    assert!(!report.is_clean() && report.findings.len() < 1000);
}

/// A superblock with a valid checksum could make a mount take any amount of memory.
#[test]
fn impossible_inode_limit_is_refused() {
    let p = Plant::new();
    for page in p.pages() {
        p.fixed(page, |sb| sb.inodes_max = 1 << 40);
    }
    let report = p.check();
    assert_eq!(report.issues().next().unwrap().code(), "no-superblock");
    let e = Fs::open(p.region, quiet()).unwrap_err();
    assert!(e.to_string().contains("inodes"), "{e}");
}
