//! The expected contents of a damaged file system, and their comparison with the real ones.
//!
//! The rule for damage: an object that the damage cannot affect is unchanged; an object
//! that it may affect is unchanged, or the call reports damage. No read returns bytes
//! that were never written.

use pramfs::{
    Result,
    inode::{Credentials, Fs, Ino},
};
use pramfs_tests::snapshot::{Damage, Errors, Snapshot, Take, Tolerance};

use super::anatomy::Reach;

/// The caller in these tests.
pub const CX: Credentials<'_> = Credentials::new(0, 0);

/// Larger files are read where they have data or should have it.
const WHOLE: u64 = 1 << 20;

/// What a damaged file system shows. All that is in the model is asked for.
///
/// # Errors
/// None: what cannot be read is noted.
pub fn look(model: &Snapshot, fs: &Fs) -> Result<Snapshot, String> {
    let how = Take {
        errors: Errors::Noted,
        guide: Some(model),
        whole: WHOLE,
        ..Take::default()
    };
    Snapshot::take(fs, &how).map_err(|e| e.to_string())
}

/// Compares. Affected objects may report damage, the others may not.
pub fn compare(model: &Snapshot, fs: &Fs, reach: &Reach) -> Result<(), String> {
    compare_but(model, fs, reach, None)
}

/// The same, where an inode and all below it may show anything.
pub fn compare_but(
    model: &Snapshot,
    fs: &Fs,
    reach: &Reach,
    but: Option<Ino>,
) -> Result<(), String> {
    judge(model, &look(model, fs)?, reach, but)
}

fn judge(
    model: &Snapshot,
    found: &Snapshot,
    reach: &Reach,
    but: Option<Ino>,
) -> Result<(), String> {
    let damage = Damage {
        hits: &|way| reach.hits(way),
        hits_xattrs: &|ino| reach.hits_xattrs(ino),
        changed: but,
    };
    let text = model.differences_beyond(found, &Tolerance::Damage(&damage));
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// Compares what is no directory, and neither an inode nor below it, whatever its names.
pub fn compare_files(model: &Snapshot, fs: &Fs, but: Ino) -> Result<(), String> {
    let mut files = model.clone();
    files
        .nodes
        .retain(|path, n| !n.is_dir() && !model.on_the_way(path).contains(&but));
    let all = files.nodes.iter().map(|(path, n)| (path.clone(), n.id.0));
    let how = Take {
        totals: true,
        errors: Errors::Noted,
        guide: Some(&files),
        whole: WHOLE,
        only: Some(&|_| false),
        held: &all.collect::<Vec<_>>(),
    };
    let mut found = Snapshot::take(fs, &how).map_err(|e| e.to_string())?;
    found.nodes.retain(|path, _| files.nodes.contains_key(path));
    found
        .unread
        .retain(|(path, _), _| files.nodes.contains_key(path));
    judge(&files, &found, &Reach::Nothing, None)
}

/// Records that bytes of a file were written.
pub fn written(model: &mut Snapshot, ino: Ino, offset: u64, bytes: &[u8]) {
    for n in model.nodes.values_mut().filter(|n| n.id.0 == ino) {
        n.size = n.size.max(offset + bytes.len() as u64);
        n.data.write(offset, bytes);
    }
}

/// Directory, name in it and inode of all names, parents before children.
pub fn names(model: &Snapshot) -> Vec<(Ino, Vec<u8>, Ino)> {
    let all = model.names();
    all.map(|(dir, name, ino)| (dir, name.to_vec(), ino))
        .collect()
}

/// Directory and inode of a name that the model has once.
pub fn find(model: &Snapshot, name: &[u8]) -> (Ino, Ino) {
    let found = model.names().find(|n| n.1 == name);
    found.map(|n| (n.0, n.2)).expect("the image has it")
}

/// Names and inodes of a directory, without `.` and `..`.
pub fn entries(fs: &Fs, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut all = Vec::new();
    fs.readdir(dir, 2, &mut |e| {
        all.push((e.name.to_vec(), e.ino));
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(all)
}
