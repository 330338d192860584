//! Flips each metadata byte in use of a 256 KiB image, one at a time.
//!
//! Each case copies an image, changes one byte, mounts it for writing, reads everything,
//! writes, reads everything again, removes everything, and unmounts. Objects that the
//! byte cannot affect must be unchanged and usable; objects that it may affect must be
//! unchanged or reported as damaged. A panic, a wrong byte, a lost name or a timeout ends
//! the test with the name of the case.
//!
//! By default each byte is flipped once, alternately all bits or one bit. In a line of 64
//! zero bytes (free slots and the like), four bytes are flipped. `PRAMFS_FLIP=all` flips
//! every byte in both ways. `PRAMFS_FLIP=N` runs each N-th case, for a quick look.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::bad_support::anatomy::{Anatomy, Owner, Reach};
use crate::bad_support::image::{End, Image, image, pattern};
use crate::bad_support::model::{Body, CX, Model, entries};
use crate::bad_support::{bytes_of, region_with, steady};
use pramfs::{
    Error, Result, XattrMode,
    inode::{Fs, Ino, SetAttr},
};
use pramfs_medium::journal::set_thread_lane;
use pramfs_tests::watchdog::Watchdog;

/// A byte and the result of flipping it.
#[derive(Debug, Clone, Copy)]
struct Flip {
    offset: u64,
    mask: u8,
}

/// An operation on an object that the damage cannot affect must succeed. Others may fail,
/// but only with an error that damage explains. Returns whether it succeeded.
fn done<T>(result: Result<T>, reached: bool, what: &str) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt { .. } | Error::NoSpace(_)) if reached => Ok(None),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

/// Writes to the objects under `/work` and creates new ones. Keeps `model` up to date.
fn change(fs: &Fs, model: &mut Model, reach: &Reach) -> Result<(), String> {
    let allocates = *reach != Reach::Nothing;
    let work = model
        .names
        .iter()
        .find(|n| n.1 == b"work")
        .expect("it is there")
        .2;
    let hit = reach.hits(&[Ino::ROOT, work]);
    let files: Vec<_> = model
        .names
        .iter()
        .filter(|n| n.0 == work)
        .cloned()
        .collect();
    for (_, name, ino) in files {
        let hit = hit || reach.hits(&[ino]);
        let Body::File(size, _) = model.objects[&ino].body else {
            continue;
        };
        let name = String::from_utf8_lossy(&name).into_owned();
        let bytes = pattern(size ^ 1, 100);
        if done(
            fs.write(&CX, ino, 7, &bytes),
            hit,
            &format!("overwrite of {name}"),
        )?
        .is_some()
        {
            model.write(ino, 7, &bytes);
        }
        let bytes = pattern(size ^ 2, 700);
        if let Some(at) = done(
            fs.append(&CX, ino, &bytes),
            hit || allocates,
            &format!("append to {name}"),
        )? {
            model.write(ino, at, &bytes);
        }
    }
    let Some(new) = done(
        fs.create(&CX, work, b"new", 0o644),
        hit || allocates,
        "create",
    )?
    else {
        return Ok(());
    };
    let bytes = pattern(77, 900);
    let written = done(
        fs.write(&CX, new.ino, 0, &bytes),
        allocates,
        "write to a new file",
    )?;
    let mut found = vec![0; bytes.len()];
    if written.is_some() {
        let n = fs
            .read(new.ino, 0, &mut found)
            .map_err(|e| format!("read of a new file: {e}"))?;
        if n != bytes.len() || found != bytes {
            return Err("a new file has other bytes than were written".into());
        }
    }
    done(
        fs.setxattr(&CX, new.ino, b"user.x", b"y", XattrMode::Set),
        allocates,
        "setxattr",
    )?;
    done(
        fs.rename(&CX, work, b"new", work, b"newer", Default::default()),
        hit || allocates,
        "rename",
    )?;
    for name in [&b"new"[..], b"newer"] {
        match fs.unlink(work, name) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(e) => {
                done(Err::<(), _>(e), hit || allocates, "unlink of the new file")?;
                // The file stays, and is not part of the model.
                let Some(Body::Dir(names)) = model.objects.get_mut(&work).map(|o| &mut o.body)
                else {
                    return Err("the directory is not in the model".into());
                };
                names.insert(name.to_vec());
            }
        }
    }
    Ok(())
}

/// Removes everything, deepest first.
fn remove_all(fs: &Fs, model: &Model, reach: &Reach) -> Result<(), String> {
    let any = *reach != Reach::Nothing;
    for (dir, name, ino) in model.names.iter().rev() {
        let what = format!("removal of {}", String::from_utf8_lossy(name));
        if let Body::Dir(_) = model.objects[ino].body {
            match fs.rmdir(*dir, name) {
                // It still contains entries that could not be removed.
                Err(Error::NotEmpty) if any => {}
                other => _ = done(other, any, &what)?,
            }
        } else {
            let removed = done(fs.unlink(*dir, name), any, &what)?;
            match fs.lookup(*dir, name) {
                _ if removed.is_none() => {}
                Err(Error::NotFound) => {}
                // Its hole cannot be told from a hole that the damage made.
                Err(Error::Corrupt { .. }) if reach.hits(&[*dir]) => {}
                found => return Err(format!("{what}: it is still there: {found:?}")),
            }
        }
    }
    if !any {
        let left = entries(fs, Ino::ROOT).map_err(|e| e.to_string())?;
        if !left.is_empty() {
            return Err("the root directory is not empty".into());
        }
    }
    Ok(())
}

fn mounted(bytes: &[u8], reach: &Reach) -> Result<Option<Fs>, String> {
    match Fs::open(region_with(bytes), steady()) {
        Ok(fs) => Ok(Some(fs)),
        Err(Error::Corrupt { .. } | Error::NotMountable(_)) if *reach == Reach::All => Ok(None),
        Err(e) => Err(format!("mount: {e}")),
    }
}

fn run(image: &Image, owner: Owner, reach: &Reach, flip: Flip) -> Result<(), String> {
    let in_journal = owner == Owner::Journal;
    let mut bytes = image.bytes.clone();
    bytes[flip.offset as usize] ^= flip.mask;
    let Some(fs) = mounted(&bytes, reach)? else {
        return Ok(());
    };
    // A damaged last record cannot be told from one in progress at the power failure: its
    // operation has not happened.
    let whole = image.model.compare(&fs, reach);
    let older = image
        .without
        .iter()
        .find(|m| whole.is_err() && m.compare(&fs, reach).is_ok());
    let mut model = match older {
        Some(m) if in_journal => m.clone(),
        _ => image.model.clone(),
    };
    model
        .compare(&fs, reach)
        .map_err(|e| format!("before any change: {e}"))?;
    change(&fs, &mut model, reach)?;
    model
        .compare(&fs, reach)
        .map_err(|e| format!("after changes: {e}"))?;
    if flip.offset.is_multiple_of(4) {
        // The process dies here. The next mount finds the same state.
        let bytes = bytes_of(fs.region());
        if let Some(fs) = mounted(&bytes, reach).map_err(|e| format!("second {e}"))? {
            model
                .compare(&fs, reach)
                .map_err(|e| format!("after a second mount: {e}"))?;
        }
    }
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    for (ino, o) in &model.objects {
        if matches!(o.body, Body::File(..)) {
            done(
                fs.setattr(&CX, *ino, &set),
                *reach != Reach::Nothing,
                "truncation",
            )?;
        }
    }
    remove_all(&fs, &model, reach)?;
    fs.statfs().map_err(|e| format!("statfs: {e}"))?;
    done(fs.close_now(), *reach != Reach::Nothing, "unmount")?;
    Ok(())
}

/// The flips of an image by the rule in the head of this file.
fn flips(image: &Image, anatomy: &Anatomy) -> Vec<Flip> {
    let how = std::env::var("PRAMFS_FLIP").unwrap_or_default();
    let mut out = Vec::new();
    for offset in anatomy.metadata() {
        let line = offset as usize / 64 * 64;
        let zeros = image.bytes[line..line + 64].iter().all(|&b| b == 0);
        let bit = Flip {
            offset,
            mask: 1 << ((offset ^ offset >> 3) % 8),
        };
        let whole = Flip { offset, mask: 0xff };
        if how == "all" {
            out.extend([bit, whole]);
        } else if !zeros || offset % 16 == 5 {
            out.push(if (offset + (offset >> 6)) % 2 == 0 {
                bit
            } else {
                whole
            });
        }
    }
    let step = how.parse().unwrap_or(1);
    out.into_iter().step_by(step).collect()
}

/// Runs the cases of an image on all processors.
fn flip_all(image: &Image) {
    let anatomy = Anatomy::of(&region_with(&image.bytes)).expect("the image is undamaged");
    let cases = flips(image, &anatomy);
    println!(
        "{}: {} cases; bytes: {:?}",
        image.name,
        cases.len(),
        anatomy.census()
    );
    run(
        image,
        Owner::Free,
        &Reach::Nothing,
        Flip { offset: 0, mask: 0 },
    )
    .expect("the image without damage");

    let dog = Watchdog::new(&image.name, Duration::from_secs(60));
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                set_thread_lane(0);
                while let Some(&flip) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (owner, reach) = (anatomy.owner(flip.offset), anatomy.reach(flip.offset));
                    let result = catch_unwind(AssertUnwindSafe(|| run(image, owner, &reach, flip)));
                    dog.touch();
                    let why = match result {
                        Ok(Ok(())) => continue,
                        Ok(Err(why)) => why,
                        Err(_) => "a panic".into(),
                    };
                    let case = format!(
                        "{:#x} ^ {:#x} ({owner:?}, {reach:?}): {why}",
                        flip.offset, flip.mask
                    );
                    failures.lock().expect("no case panics with it").push(case);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no case panics with it");
    for f in failures.iter().take(40) {
        println!("{f}");
    }
    assert!(
        failures.is_empty(),
        "{}: {} of {} cases failed",
        image.name,
        failures.len(),
        cases.len()
    );
}

#[test]
fn flip_in_clean_image_with_large_blocks_is_harmless_or_reported() {
    flip_all(&image(4096, End::Clean).expect("the image is made"));
}

#[test]
fn flip_in_clean_image_with_small_blocks_is_harmless_or_reported() {
    flip_all(&image(512, End::Clean).expect("the image is made"));
}

#[test]
fn flip_in_image_of_killed_process_is_harmless_or_reported() {
    flip_all(&image(4096, End::Killed).expect("the image is made"));
}

#[test]
fn flip_in_killed_image_with_small_blocks_is_harmless_or_reported() {
    flip_all(&image(512, End::Killed).expect("the image is made"));
}

#[test]
fn flip_in_image_after_power_loss_is_harmless_or_reported() {
    flip_all(&image(1024, End::PowerLost).expect("the image is made"));
}
