//! Stores to mappings: when they are flushed, and which times they set.

use super::*;

#[test]
fn persisted_stores_set_times() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    let before = scene.fs.getattr(ino).unwrap();
    scene.set_mtime(ino, 1);
    scene.setup(ino, 0, 0).unwrap();
    scene.vmm.store(0, b"new");
    scene.dax.persist(&scene.fs, ino.0).unwrap();
    let after = scene.fs.getattr(ino).unwrap();
    assert!(after.mtime.sec >= before.mtime.sec && after.size == before.size);
    assert!(scene.dax.has(ino.0) && !scene.dax.has(1));
    scene.dax.persist_all(&scene.fs).unwrap();
}

#[test]
fn reads_of_a_mapping_leave_the_times_alone() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    let read = MappingFlags::READ;
    scene.set_mtime(ino, 1);
    let before = scene.fs.getattr(ino).unwrap();
    scene.setup_with(ino, 0, 0, read).unwrap();
    let mapped = scene.fs.getattr(ino).unwrap();
    scene.dax.persist(&scene.fs, ino.0).unwrap();
    scene.remove(0);
    let after = scene.fs.getattr(ino).unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, mapped.ctime));
    // The first store to a range that was read: no other map, and it counts.
    scene.setup_with(ino, 0, 0, read).unwrap();
    let messages = scene.vmm.messages();
    scene.setup(ino, 0, 0).unwrap();
    assert_eq!(scene.vmm.messages(), messages);
    scene.setup_with(ino, 0, 0, read).unwrap();
    scene.remove(0);
    assert_ne!(scene.mtime(ino), 1);
}

#[test]
fn times_that_the_guest_has_set_stay_until_it_asks_to_write_again() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    scene.vmm.store(0, b"new");
    scene.dax.note_times(&scene.fs, ino.0).unwrap();
    scene.set_mtime(ino, 1);
    scene.dax.persist(&scene.fs, ino.0).unwrap();
    scene.remove(0);
    assert_eq!(scene.mtime(ino), 1);
    scene.setup(ino, 0, 0).unwrap();
    scene.remove(0);
    assert_ne!(scene.mtime(ino), 1);
}

#[test]
fn stores_of_other_guests_are_flushed_and_their_times_left_alone() {
    let scene = Scene::new();
    let (ino, fs) = (scene.file(b"file", &[7; 100]), &scene.fs);
    let other = scene.other();
    let flushed = |dax, node| flush_others(fs, dax, node).unwrap();
    assert_eq!(flushed(Some(&other), None), 0);
    scene.setup(ino, 0, 0).unwrap();
    scene.set_mtime(ino, 1);
    for (dax, node, files) in [
        (Some(&scene.dax), None, 0),
        (Some(&other), None, 1),
        (Some(&other), Some(ino.0), 1),
        (Some(&other), Some(ino.0 + 1), 0),
        (None, Some(ino.0), 1),
    ] {
        assert_eq!(flushed(dax, node), files);
    }
    assert_eq!(scene.mtime(ino), 1);
    // Nobody knows whether those that an earlier server has let map still store.
    drop(std::mem::take(&mut *scene.dax.lock()));
    scene.dax.leased().clear();
    assert_eq!(flushed(Some(&scene.dax), Some(ino.0)), 1);
}

/// While a range is being mapped, which may take as long as the VMM likes.
#[test]
fn file_is_known_to_be_mapped_without_the_lock_of_the_table() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    let _table = scene.dax.lock();
    assert!(scene.dax.has(ino.0));
}

/// A guest chooses the size, and the flush of another guest must end.
#[test]
fn flush_of_file_with_largest_size_takes_no_time_for_its_holes() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    let largest = SetAttr {
        size: Some(i64::MAX as u64),
        ..SetAttr::default()
    };
    scene.fs.setattr(ROOT, ino, &largest).unwrap();
    scene.setup(ino, 0, 0).unwrap();
    let other = scene.other();
    assert_eq!(flush_others(&scene.fs, Some(&other), None).unwrap(), 1);
}

#[test]
fn stores_lost_at_removal_are_told_once_by_next_fsync() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    let also = scene.file(b"also", &[7; 100]);
    scene.setup(ino, 0, 0).unwrap();
    scene.setup(also, 0, RANGE).unwrap();
    scene.fs.force_shutdown().unwrap();
    scene.remove(0);
    scene.remove(RANGE);
    let persist = |ino: Ino| scene.dax.persist(&scene.fs, ino.0);
    persist(Ino(ino.0 + 1000)).unwrap();
    // sync(2) tells nobody, so it takes nothing away.
    assert!(scene.dax.persist_all(&scene.fs).is_err());
    for file in [ino, also] {
        assert_eq!(persist(file).unwrap_err().errno(), libc::EIO);
        persist(file).unwrap();
    }
    scene.dax.persist_all(&scene.fs).unwrap();
}

/// QEMU has a limit, and what it has not unmapped counts.
#[test]
fn maps_that_vmm_keeps_count_against_limit() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    scene.vmm.0.lock().unwrap().keeps_all = true;
    let setup = |number: u64| {
        let page = SetupmappingIn {
            len: PAGE,
            moffset: number * PAGE,
            ..SetupmappingIn::default()
        };
        scene.dax.setup(&scene.fs, ino.0, &page)
    };
    for number in 0..MAX_MAPS as u64 {
        // Each place once: the VMM still has what was there.
        setup(number).unwrap();
        let gone = RemovemappingOne {
            moffset: number * PAGE,
            len: PAGE,
        };
        scene.dax.remove(&scene.fs, &gone);
    }
    assert_eq!(setup(MAX_MAPS as u64), Err(Errno::EIO));
}

#[test]
fn mapping_for_writing_clears_what_a_write_clears() {
    let scene = Scene::new();
    let capability = &b"security.capability"[..];
    for (name, was_read) in [(&b"read"[..], true), (b"written", false)] {
        let ino = scene.file(name, &[7; 100]);
        let set = SetAttr {
            perm: Some(0o6755),
            ..SetAttr::default()
        };
        scene.fs.setattr(ROOT, ino, &set).unwrap();
        let mode = pramfs::XattrMode::Set;
        let set = scene.fs.setxattr(ROOT, ino, capability, b"rights", mode);
        set.unwrap();
        let rights = || {
            let perm = scene.fs.getattr(ino).unwrap().perm;
            (perm, scene.fs.getxattr(ino, capability).is_ok())
        };
        if was_read {
            scene.setup_with(ino, 0, 0, MappingFlags::READ).unwrap();
            assert_eq!(rights(), (0o6755, true));
        }
        scene.setup(ino, 0, 0).unwrap();
        assert_eq!(rights(), (0o755, false));
        scene.remove(0);
    }
}

/// After damage, what is mapped can still be stored to.
#[test]
fn mapping_without_rights_to_clear_changes_no_attribute() {
    let scene = Scene::new();
    let ino = scene.file(b"file", &[7; 100]);
    scene.setup_with(ino, 0, 0, MappingFlags::READ).unwrap();
    let before = scene.fs.getattr(ino).unwrap();
    scene.setup(ino, 0, 0).unwrap();
    assert_eq!(scene.fs.getattr(ino).unwrap().ctime, before.ctime);
}
