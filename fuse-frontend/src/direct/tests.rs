//! The server's part of leases, without a mount and without a socket.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::Credentials;
use pramfs::pmem::RegionOptions;

use super::*;

const OWNER: u32 = 1000;
const ROOT: u32 = 0;

struct Scene {
    direct: Direct,
    file: Ino,
}

fn scene() -> Scene {
    scene_with(Policy::new(DirectPolicy::Owner, false), &[])
}

/// The region of a user: that of the tests, if it is not root.
fn owner() -> u32 {
    let own = rustix::process::geteuid();
    if own.is_root() { OWNER } else { own.as_raw() }
}

fn scene_with(policy: Policy, features: &[&str]) -> Scene {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8 << 20).unwrap();
    std::os::unix::fs::fchown(&file, Some(owner()), None).unwrap();
    let region = RegionOptions::new().from_fd(file.into(), "direct").unwrap();
    let on = |name: &&str| ((*name).to_owned(), true);
    let how = FormatOptions {
        features: features.iter().map(on).collect(),
        ..FormatOptions::default()
    };
    format(&region, &how).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    let fs = Arc::new(Fs::open(region, options).unwrap());
    let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o600);
    let file = file.unwrap().ino;
    fs.write(&Credentials::ROOT, file, 0, &[7; 10_000]).unwrap();
    let opens = Opens::of(&fs, crate::adapter::nowhere(), false);
    Scene {
        direct: Direct::new(Arc::clone(&fs), policy, "file-0-1-2.sock".into(), opens),
        file,
    }
}

fn peer(uid: u32) -> Peer {
    Peer {
        pid: 1,
        uid,
        groups: vec![uid],
    }
}

impl Scene {
    /// Ends the leases whose descriptors are closed, until so many are left. A child that another
    /// test has just forked holds all descriptors until its exec.
    fn end_all_but(&self, left: usize) {
        let begun = Instant::now();
        loop {
            self.direct.end_released();
            let leases = self.direct.fs.leases().len();
            if leases <= left {
                assert_eq!(leases, left);
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{leases} leases");
            std::thread::yield_now();
        }
    }

    fn lease(&self, uid: u32) -> Result<(Granted, OwnedFd), Refused> {
        self.lease_to(LeaseMode::Read, uid)
    }

    fn lease_to(&self, mode: LeaseMode, uid: u32) -> Result<(Granted, OwnedFd), Refused> {
        self.lease_beside(Coherence::WriteBack, mode, uid)
    }

    fn lease_beside(
        &self,
        coherence: Coherence,
        mode: LeaseMode,
        uid: u32,
    ) -> Result<(Granted, OwnedFd), Refused> {
        let ticket = self.direct.ticket(uid, &|_| false, self.file, mode)?.ticket;
        let mut sent = None;
        let key = self
            .direct
            .grant(ticket, coherence, &peer(uid), 10, &mut |granted, fd| {
                sent = Some((granted.clone(), fd.try_clone_to_owned().unwrap()));
            })?;
        let (granted, fd) = sent.expect("the answer is sent");
        assert_eq!(granted.lease, key);
        Ok((granted, fd))
    }
}

#[test]
fn policy_owner_refuses_other_users() {
    let scene = scene();
    for (uid, allowed) in [
        (ROOT, true),
        (owner(), true),
        (1001, false),
        (u32::MAX, false),
    ] {
        let lease = scene.lease(uid).map(drop).map_err(|refused| refused.reason);
        let expect = match allowed {
            true => Ok(()),
            false => Err(Refusal::NotPermitted),
        };
        assert_eq!(lease, expect, "user {uid}");
    }
}

#[test]
fn ticket_for_directory_is_refused() {
    let refused = scene()
        .direct
        .ticket(ROOT, &|_| false, Ino::ROOT, LeaseMode::Read)
        .unwrap_err();
    assert_eq!(refused.reason, Refusal::Unsupported);
}

#[test]
fn lease_ends_with_its_descriptor() {
    let scene = scene();
    let (granted, fd) = scene.lease(owner()).unwrap();
    assert_eq!(granted.blocks.size, 10_000);
    assert!(fd.as_raw_fd() > 2);
    scene.direct.end_released();
    let (rows, next) = scene.direct.list(0, 10);
    assert_eq!((rows.len(), next), (1, None));
    assert_eq!((rows[0].uid, rows[0].bytes), (owner(), 4 * 4096));
    drop(fd);
    scene.end_all_but(0);
    assert_eq!(scene.direct.list(0, 10), (Vec::new(), None));
    let ended = scene.direct.blocks(granted.lease, 0, 1).unwrap_err();
    assert_eq!(ended.reason, Refusal::Ended);
}

#[test]
fn file_replaced_since_ticket_is_not_leased() {
    let scene = scene();
    let fs = &scene.direct.fs;
    let ticket = scene
        .direct
        .ticket(ROOT, &|_| false, scene.file, LeaseMode::Read)
        .unwrap()
        .ticket;
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.free_forgotten();
    let grant = |ticket| {
        let sent = &mut |_: &Granted, _: std::os::fd::BorrowedFd<'_>| panic!("nothing is sent");
        scene
            .direct
            .grant(ticket, Coherence::WriteBack, &peer(ROOT), 1, sent)
    };
    assert_eq!(grant(ticket).unwrap_err().reason, Refusal::Ended);
}

#[test]
fn revoked_lease_gets_no_blocks_and_keeps_file() {
    let scene = scene();
    let (granted, fd) = scene.lease(owner()).unwrap();
    let other = LeaseKey {
        id: granted.lease.id + 1,
        ..granted.lease
    };
    let unknown = scene.direct.revoke(other).unwrap_err();
    assert_eq!(unknown.reason, Refusal::Ended);
    scene.direct.revoke(granted.lease).unwrap();
    let ended = scene.direct.blocks(granted.lease, 0, 1).unwrap_err();
    assert_eq!(ended.reason, Refusal::Ended);
    scene.direct.end_released();
    assert!(scene.direct.list(0, 10).0[0].revoked);
    drop(fd);
    scene.end_all_but(0);
    assert!(lock(&scene.direct.revoked).is_empty());
}

#[test]
fn listing_continues_where_it_stopped() {
    let scene = scene();
    let held: Vec<_> = (0..5).map(|_| scene.lease(ROOT).unwrap()).collect();
    let (first, next) = scene.direct.list(0, 3);
    let (rest, end) = scene.direct.list(next.unwrap(), 3);
    let slots: Vec<u32> = first
        .iter()
        .chain(&rest)
        .map(|row| row.lease.slot)
        .collect();
    assert_eq!((slots, end), (vec![0, 1, 2, 3, 4], None));
    drop(held);
}

#[test]
fn leases_of_one_user_are_bounded() {
    let scene = scene();
    let held: Vec<_> = (0..OF_USER)
        .map(|_| scene.lease(owner()).unwrap())
        .collect();
    let refused = scene.lease(owner()).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    scene.lease(ROOT).unwrap();
    drop(held);
    scene.end_all_but(0);
    scene.lease(owner()).unwrap();
}

#[test]
fn lease_to_write_takes_suid_from_users_other_than_root() {
    for (uid, mode, kept) in [
        (ROOT, LeaseMode::Write, true),
        (owner(), LeaseMode::Read, true),
        (owner(), LeaseMode::Write, false),
    ] {
        let scene = scene();
        let set = pramfs::inode::SetAttr {
            perm: Some(0o4755),
            ..Default::default()
        };
        let fs = &scene.direct.fs;
        fs.setattr(&Credentials::ROOT, scene.file, &set).unwrap();
        let _lease = scene.lease_to(mode, uid).unwrap();
        let perm = fs.getattr(scene.file).unwrap().perm;
        assert_eq!(perm & 0o4000 != 0, kept, "user {uid}, {mode:?}");
    }
}

#[test]
fn lease_that_engine_refuses_leaves_suid() {
    let scene = scene_with(Policy::new(DirectPolicy::Owner, false), &["data_checksums"]);
    let (fs, uid) = (&scene.direct.fs, owner());
    let set = pramfs::inode::SetAttr {
        perm: Some(0o4755),
        ..Default::default()
    };
    fs.setattr(&Credentials::ROOT, scene.file, &set).unwrap();
    let has_suid = || fs.getattr(scene.file).unwrap().perm & 0o4000 != 0;
    // No lease to write begins during a save.
    let save = fs.snapshot(1 << 20).unwrap();
    let refused = scene.lease_to(LeaseMode::Write, uid).unwrap_err();
    assert_eq!(refused.reason, Refusal::Busy);
    assert!(has_suid() && fs.leases().is_empty());
    drop(save);
    let _lease = scene.lease_to(LeaseMode::Write, uid).unwrap();
    assert!(!has_suid());
}

#[test]
fn lease_to_write_keeps_file_out_of_page_cache_until_it_ends() {
    let scene = scene();
    let opens = Arc::clone(&scene.direct.opens);
    let open = || opens.open_cached(scene.file, false) == OpenedHow::Cached;
    assert!(open());
    let refused = scene.lease_to(LeaseMode::Write, ROOT).unwrap_err();
    assert_eq!(refused.reason, Refusal::Busy);
    assert!(scene.direct.fs.leases().is_empty());
    // A reader may have it.
    drop(scene.lease(ROOT).unwrap());
    opens.close_cached(scene.file, false);
    let (granted, fd) = scene.lease_to(LeaseMode::Write, ROOT).unwrap();
    assert!(granted.stored > granted.view && !open());
    drop(fd);
    scene.end_all_but(0);
    assert!(open());
}

#[test]
fn coherent_reader_is_told_no_blocks_after_open_for_stores() {
    let scene = scene();
    let opens = &scene.direct.opens;
    let lease = || scene.lease_beside(Coherence::Recalled, LeaseMode::Read, ROOT);
    let (granted, fd) = lease().unwrap();
    assert_eq!(granted.coherence, Coherence::Recalled);
    let blocks = || scene.direct.blocks(granted.lease, 0, 10);
    let before = blocks().unwrap().layout;
    let how = opens.open_cached(scene.file, true);
    assert_eq!(how, OpenedHow::CachedAfterRecall);
    scene.direct.fs.recall_leases(scene.file).unwrap();
    // What the holder knows is of a layout that has passed, and the new one is not told.
    let word = scene.direct.fs.region().load_u64(granted.view).unwrap();
    assert!(word > before);
    assert_eq!(blocks().unwrap_err().reason, Refusal::Ended);
    let kept = scene
        .direct
        .cohere(granted.lease, Coherence::Kept)
        .unwrap_err();
    assert_eq!(kept.reason, Refusal::Busy);
    let leases = scene.direct.fs.leases().len();
    assert_eq!(lease().unwrap_err().reason, Refusal::Busy);
    assert_eq!(scene.direct.fs.leases().len(), leases, "no slot is written");
    drop(fd);
    scene.end_all_but(0);
    opens.close_cached(scene.file, true);
    let (granted, _fd) = lease().unwrap();
    let cohere = |coherence| scene.direct.cohere(granted.lease, coherence).unwrap();
    cohere(Coherence::Kept);
    assert_eq!(opens.open_cached(scene.file, true), OpenedHow::Direct);
    cohere(Coherence::Recalled);
    assert_eq!(
        opens.open_cached(scene.file, true),
        OpenedHow::CachedAfterRecall
    );
    opens.end_recall(scene.file, false);
    assert_eq!(
        scene
            .direct
            .blocks(granted.lease, 0, 10)
            .unwrap_err()
            .reason,
        Refusal::Ended
    );
}

#[test]
fn only_lease_to_write_fills_holes() {
    let scene = scene();
    let set = pramfs::inode::SetAttr {
        size: Some(100 << 20),
        ..Default::default()
    };
    let fs = &scene.direct.fs;
    fs.setattr(&Credentials::ROOT, scene.file, &set).unwrap();
    let (reader, _fd) = scene.lease(ROOT).unwrap();
    let refused = scene.direct.fill(reader.lease, 0..4096, false).unwrap_err();
    assert_eq!(refused.reason, Refusal::NotPermitted);
    let (writer, _fd) = scene.lease_to(LeaseMode::Write, ROOT).unwrap();
    let fill = |range| scene.direct.fill(writer.lease, range, false);
    let blocks = || fs.getattr(scene.file).unwrap().blocks;
    let before = blocks();
    assert_eq!(fill(20 << 20..(20 << 20) + 1), Ok((20 << 20) + 1));
    let filled = blocks();
    assert!(filled > before);
    // Ranges that are reversed, empty, or past the end allocate nothing.
    assert_eq!(
        fill(Range {
            start: 4096,
            end: 0
        }),
        Ok(0)
    );
    assert_eq!(fill(u64::MAX - 1..u64::MAX), Ok(100 << 20));
    assert_eq!(blocks(), filled);
    // The region has 8 MiB.
    let mut done = 0;
    let refused = loop {
        match fill(done..100 << 20) {
            Ok(end) => {
                assert!(end > done && end <= done + FILLED_AT_ONCE);
                done = end;
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.reason, Refusal::Full);
    let gone = LeaseKey {
        id: writer.lease.id + 1,
        ..writer.lease
    };
    assert_eq!(
        scene.direct.fill(gone, 0..1, false).unwrap_err().reason,
        Refusal::Ended
    );
    scene.direct.revoke(writer.lease).unwrap();
    assert!(fill(0..1).is_err());
}

#[test]
fn blocks_ahead_are_told_to_readers_and_refused_beyond_share() {
    let scene = scene();
    let (writer, _fd) = scene.lease_to(LeaseMode::Write, ROOT).unwrap();
    let fill = |range, ahead| scene.direct.fill(writer.lease, range, ahead);
    let end = |lease| scene.direct.blocks(lease, 0, 10).unwrap().end;
    assert_eq!(fill(0..1 << 20, false), Ok(10_000));
    assert_eq!(end(writer.lease), 3 * 4096);
    // First what the file has, then what it has not.
    assert_eq!(fill(0..1 << 20, true), Ok(10_000));
    assert_eq!(fill(10_000..1 << 20, true), Ok(1 << 20));
    assert_eq!(end(writer.lease), 1 << 20);
    let (reader, _fd) = scene.lease(ROOT).unwrap();
    assert_eq!(end(reader.lease), 1 << 20);
    let refused = scene.direct.fill(reader.lease, 10_000..2 << 20, true);
    assert_eq!(refused.unwrap_err().reason, Refusal::NotPermitted);
    // The region has 8 MiB.
    let refused = fill(10_000..6 << 20, true).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    scene.direct.revoke(writer.lease).unwrap();
    assert!(fill(10_000..1 << 20, true).is_err());
}

#[test]
fn only_live_lease_to_write_gets_append_window() {
    let scene = scene();
    let reason = |lease| scene.direct.window(lease, 4096, 1).map_err(|r| r.reason);
    let (reader, reader_fd) = scene.lease(ROOT).unwrap();
    assert_eq!(reason(reader.lease), Err(Refusal::NotPermitted));
    let (writer, _fd) = scene.lease_to(LeaseMode::Write, ROOT).unwrap();
    // The reader has a lease of the same file.
    assert_eq!(reason(writer.lease), Err(Refusal::Busy));
    drop(reader_fd);
    scene.end_all_but(1);
    let window = reason(writer.lease).unwrap();
    assert_eq!(window.start, 10_000);
    assert!(window.limit >= 10_000 + 4096 && window.number != 0);
    let blocks = scene.direct.blocks(writer.lease, window.start, 40).unwrap();
    assert!(blocks.size == 10_000 && blocks.end >= window.limit);
    let gone = LeaseKey {
        id: writer.lease.id + 1,
        ..writer.lease
    };
    assert_eq!(reason(gone), Err(Refusal::Ended));
    scene.direct.revoke(writer.lease).unwrap();
    assert_eq!(reason(writer.lease), Err(Refusal::Ended));
}

/// Whether the region may be written is looked at for each ticket and each lease.
#[test]
fn region_made_writable_since_mount_gives_others_no_lease() {
    const OTHER: u32 = 1001;
    let scene = scene_with(Policy::new(DirectPolicy::All, false), &[]);
    let chmod = |mode: u32| {
        let region = scene.direct.fs.region().handle().unwrap().unwrap();
        let way = format!("/proc/self/fd/{}", region.as_raw_fd());
        rustix::fs::chmod(way, mode.into()).unwrap();
    };
    chmod(0o640);
    let reason = |result: Result<(Granted, OwnedFd), Refused>| result.map_err(|r| r.reason);
    assert!(scene.lease(OTHER).is_ok());
    let ticket = scene
        .direct
        .ticket(OTHER, &|_| false, scene.file, LeaseMode::Read)
        .unwrap();
    chmod(0o642);
    let sent = &mut |_: &Granted, _: std::os::fd::BorrowedFd<'_>| panic!("nothing is sent");
    let refused = scene
        .direct
        .grant(ticket.ticket, Coherence::WriteBack, &peer(OTHER), 1, sent);
    assert_eq!(refused.unwrap_err().reason, Refusal::NotPermitted);
    let refused = reason(scene.lease(OTHER)).unwrap_err();
    assert_eq!(refused, Refusal::NotPermitted);
    assert!(scene.lease(owner()).is_ok() && scene.lease(ROOT).is_ok());
    chmod(0o644);
    assert!(scene.lease(OTHER).is_ok());
}

#[test]
fn leases_of_other_users_leave_slots_for_root_and_owner() {
    let scene = scene_with(Policy::new(DirectPolicy::All, false), &[]);
    let users = 2000..2000 + u32::try_from(OF_OTHERS / OF_USER).unwrap();
    let held: Vec<_> = users
        .flat_map(|user| std::iter::repeat_n(user, OF_USER))
        .map(|user| scene.lease(user).unwrap())
        .collect();
    assert_eq!(held.len(), OF_OTHERS);
    assert_eq!(scene.lease(3000).unwrap_err().reason, Refusal::Full);
    assert!(scene.lease(owner()).is_ok() && scene.lease(ROOT).is_ok());
}
