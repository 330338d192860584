//! Images of 256 KiB to be damaged, each with its model.
//!
//! Each image has one object of each kind: directories, one of them with several blocks;
//! files that are empty, short, of several blocks, preallocated, and sparse over a
//! terabyte; hard links, symbolic links in the inode and in a block, a pipe, a socket, a
//! device; attributes in line, in a block and with their own blocks; an unlinked file
//! that is still open; and a journal that two lanes have written alternately.

use pramfs::{
    Fallocate, Result, XattrMode,
    inode::{Fs, Ino, SetAttr},
};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{SMALLEST, formatted, mount, repeatable};

use super::model::{CX, Model};
use super::steady;

/// How the last mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Unmounted.
    Clean,
    /// The process was killed: all its stores are there.
    Killed,
    /// The power failed: the last record of each lane is there, and none of its
    /// after-images.
    PowerLost,
}

/// An image and its model.
#[derive(Debug, Clone)]
pub struct Image {
    pub name: String,
    pub bytes: Vec<u8>,
    pub model: Model,
    /// The model without the last record of one of the lanes.
    pub without: Vec<Model>,
}

/// Bytes that encode their offset.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = pramfs_tests::random::Random::new(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

fn file(fs: &Fs, dir: Ino, name: &[u8], parts: &[(u64, usize)]) -> Result<Ino> {
    let ino = fs
        .create(&CX, dir, name, 0o600 | (name.len() as u32 & 7))?
        .ino;
    for &(at, len) in parts {
        let bytes = pattern(ino.0 << 20 ^ at, len);
        assert_eq!(fs.write(&CX, ino, at, &bytes)?, len);
    }
    Ok(ino)
}

fn fill(fs: &Fs, bs: usize) -> Result<()> {
    set_thread_lane(0);
    let keep = fs.mkdir(&CX, Ino::ROOT, b"keep", 0o755)?.ino;
    let work = fs.mkdir(&CX, Ino::ROOT, b"work", 0o700)?.ino;
    let short = file(fs, keep, b"short", &[(0, 300)])?;
    file(fs, keep, b"empty", &[])?;
    file(fs, keep, b"two", &[(0, bs + 77)])?;
    file(
        fs,
        keep,
        b"sparse",
        &[(5, 40), (4 << 20, 90), (1 << 40, 10)],
    )?;
    let ahead = file(fs, keep, b"ahead", &[(0, 100)])?;
    let allocate = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&CX, ahead, allocate, 0, 2 * bs as u64)?;
    let attrs = file(fs, keep, b"attributes", &[(0, 64)])?;
    fs.setxattr(&CX, attrs, b"user.small", b"value", XattrMode::Set)?;
    fs.setxattr(
        &CX,
        attrs,
        b"security.other",
        &pattern(9, 90),
        XattrMode::Set,
    )?;
    fs.setxattr(
        &CX,
        attrs,
        b"user.large",
        &pattern(10, bs + 900),
        XattrMode::Set,
    )?;
    fs.setxattr(&CX, keep, b"trusted.on.a.directory", b"1", XattrMode::Set)?;
    fs.symlink(&CX, keep, b"near", b"short")?;
    fs.symlink(&CX, keep, b"far", &b"../".repeat(60))?;
    let deep = fs.mkdir(&CX, keep, b"deep", 0o711)?.ino;
    file(fs, deep, b"below", &[(0, 20)])?;
    fs.mknod(&CX, deep, b"pipe", libc::S_IFIFO | 0o600, 0)?;
    fs.mknod(&CX, deep, b"socket", libc::S_IFSOCK | 0o600, 0)?;
    fs.mknod(&CX, deep, b"device", libc::S_IFCHR | 0o600, 0x103)?;
    let many = fs.mkdir(&CX, keep, b"many", 0o755)?.ino;
    for i in 0..20 {
        let name = format!("{i:02}-{}", "long".repeat(48));
        fs.link(short, many, name.as_bytes())?;
    }
    for (name, len) in [(b"a", bs + 10), (b"b", 200), (b"c", bs)] {
        file(fs, work, name, &[(0, len)])?;
    }
    fs.mkdir(&CX, work, b"hollow", 0o755)?;
    fs.symlink(&CX, work, b"link", b"a")?;
    file(fs, work, b"removed", &[(0, bs)])?;
    fs.unlink(work, b"removed")?;

    let open = file(fs, work, b"open", &[(0, bs + 1)])?;
    fs.hold(open).into_count();
    fs.unlink(work, b"open")?;

    // A file that both lanes change: the first lane's changes are retired and must stay.
    let handed = file(fs, keep, b"handed", &[(0, 50)])?;
    set_thread_lane(1);
    for i in 1..6 {
        fs.append(&CX, handed, &pattern(i, 60))?;
    }
    fs.setattr(
        &CX,
        handed,
        &SetAttr {
            perm: Some(0o640),
            ..SetAttr::default()
        },
    )?;
    fs.rename(&CX, work, b"b", work, b"renamed", Default::default())?;
    let deep = fs.lookup(keep, b"deep")?.ino;
    fs.create(&CX, deep, b"prior", 0o600)?;
    set_thread_lane(0);
    Ok(())
}

/// The last operations of the two lanes. Lane 1 changes the same directory as before, so
/// its last two records overlap.
fn last_changes(fs: &Fs) -> Result<()> {
    let keep = fs.lookup(Ino::ROOT, b"keep")?.ino;
    let deep = fs.lookup(keep, b"deep")?.ino;
    let two = fs.lookup(keep, b"two")?.ino;
    set_thread_lane(1);
    fs.create(&CX, deep, b"late", 0o604)?;
    set_thread_lane(0);
    let allocate = Fallocate::Allocate { keep_size: true };
    fs.fallocate(
        &CX,
        two,
        allocate,
        2 * fs.superblock().geometry().block_size,
        1,
    )
}

/// An image with blocks of `block_size` bytes.
pub fn image(block_size: u32, end: End) -> Result<Image> {
    let mut options = repeatable(block_size);
    options.max_inodes = Some(64);
    let sim: SimBackend = formatted(SMALLEST, &options)?;
    let fs = mount(&sim, steady())?;
    fill(&fs, block_size as usize)?;
    let before = sim.image();
    last_changes(&fs)?;
    let mut bytes = sim.image();
    let mut without = Vec::new();
    match end {
        End::Killed => {}
        End::Clean => {
            fs.close()?;
            bytes = sim.image();
        }
        End::PowerLost => {
            let geo = fs.superblock().geometry();
            let (from, to) = (
                geo.journal_offset.0 as usize,
                (geo.journal_offset.0 + geo.journal_len) as usize,
            );
            let journal = bytes[from..to].to_vec();
            bytes = before;
            bytes[from..to].copy_from_slice(&journal);
            for lane in 0..2 {
                let mut bytes = bytes.clone();
                bytes[newest_record(&fs, lane) as usize] ^= 1;
                without.push(model_of(&bytes)?);
            }
        }
    }
    Ok(Image {
        name: format!("{end:?}, blocks of {block_size}"),
        model: model_of(&bytes)?,
        bytes,
        without,
    })
}

fn model_of(bytes: &[u8]) -> Result<Model> {
    Model::of(&mount(&SimBackend::from_image(bytes)?, steady())?)
}

/// Offset of the last record of a lane.
fn newest_record(fs: &Fs, lane: u32) -> u64 {
    let geo = fs.superblock().geometry();
    let slots = (0..2).map(|slot| geo.slot_offset(lane, slot).0);
    let lsn = |at: &u64| {
        fs.region()
            .load_u64(at + 8)
            .expect("slots lie in the region")
    };
    slots.max_by_key(lsn).expect("a lane has slots")
}
