//! A repair that closes append windows, interrupted: the bytes appended are never lost.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode};
use pramfs_fsck::{Policy, RepairOptions, repair};
use pramfs_medium::pmem::{EventKind, SimBackend};
use pramfs_tests::crash::Machine;
use pramfs_tests::random::Random;
use pramfs_tests::readable::copy_of;
use pramfs_tests::region::{SMALLEST, formatted, mount, quiet, region_of, repeatable};
use pramfs_tests::windows::{Window, plant};

const END: u64 = 1900;

/// The window leaves its slot after the size of the file is stored, also in a repair of
/// several batches, in which the slot comes before the inode on the medium.
#[test]
fn interrupted_repair_loses_no_appended_byte() {
    let sim = formatted(SMALLEST * 8, &repeatable(512)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let lease = |ino: Ino, slot: u32| {
        let generation = fs.getattr(ino).unwrap().generation;
        let grant = fs.grant_lease(ino, generation, LeaseMode::Write, 1, 0);
        assert_eq!(grant.unwrap().lease().slot, slot);
        fs.region_to_damage().pretend_lease(slot, true);
    };
    let first = fs.create(&ctx, Ino::ROOT, b"first", 0o644).unwrap().ino;
    lease(first, 0);
    for d in 0..6 {
        let name = format!("{d}");
        let dir = fs.mkdir(&ctx, Ino::ROOT, name.as_bytes(), 0o755).unwrap();
        for i in 0..130 {
            let name = format!("a file with a name of some length, {i}");
            fs.create(&ctx, dir.ino, name.as_bytes(), 0o644).unwrap();
        }
    }
    let last = fs.create(&ctx, Ino::ROOT, b"last", 0o644).unwrap().ino;
    fs.write(&ctx, last, 0, &[7; 2048]).unwrap();
    lease(last, 1);
    let geo = fs.superblock().geometry();
    fs.close().unwrap();
    let window = Window {
        slot: 1,
        start: 1000,
        limit: 2048,
        size: 1000,
        end: END,
    };
    plant(&region_of(&sim), window).unwrap();
    let mut bad = sim.image();
    // Directories to be rebuilt: pointers of their index blocks are damaged.
    let mut leaves = 0;
    for block in bad.chunks_mut(512) {
        if block.starts_with(b"hlf1") {
            leaves += 1;
            block[6] ^= 0x55;
            block[0x20] ^= 0x33;
        } else if leaves > 0 && block.chunks(8).filter(|w| w[5] & 0x10 != 0).count() > 40 {
            for word in block.chunks_mut(8).step_by(7).filter(|w| w[5] & 0x10 != 0) {
                word[0] ^= 0x81;
                word[6] ^= 0x42;
            }
        }
    }
    let sim = SimBackend::from_image(&bad).unwrap();
    sim.recording(true);
    let yes = RepairOptions::new(Policy::Yes);
    let report = repair(&region_of(&sim), &yes).unwrap();
    sim.recording(false);
    assert!(report.is_sound(), "{report}");
    let size = |image: &[u8]| {
        let fs = Fs::open(copy_of(image), quiet()).unwrap();
        fs.getattr(last).unwrap().size
    };
    assert_eq!(size(&sim.image()), END);
    let events = sim.take_record();
    let first_slot = geo.slot_offset(0, 0).0;
    let batches = events
        .iter()
        .filter(|e| e.offset == first_slot && e.bytes.starts_with(b"prec"));
    let batches = batches.filter(|e| e.kind == EventKind::NtStore).count();
    assert!(batches >= 3, "{batches} batches");
    let (mut machine, mut random) = (Machine::new(bad), Random::new(7));
    for e in &events {
        machine.run(e);
        if !random.one_in(1 + events.len() as u64 / 200) {
            continue;
        }
        for cut in [machine.least(), machine.most()] {
            let sim = SimBackend::from_image(&cut).unwrap();
            let report = repair(&region_of(&sim), &yes).unwrap();
            assert!(report.is_sound(), "event {}: {report}", e.seq);
            assert_eq!(size(&sim.image()), END, "event {}: {report}", e.seq);
        }
    }
}
