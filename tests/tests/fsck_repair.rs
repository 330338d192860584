//! Repairs of damaged images: every byte in turn, many places at once, images of the fuzz
//! corpus with valid checksums over wrong contents, and repairs interrupted by a power
//! failure.
//!
//! After each repair, either a check finds nothing, or the repair has reported that it
//! cannot repair the image and has not changed a byte. Everything readable before is
//! readable and unchanged. `PRAMFS_FSCK=all` flips every byte of the image; otherwise the
//! test flips some of them, and `PRAMFS_FSCK=N` shifts the selection.

use std::mem::offset_of;

use pramfs::{
    XattrMode,
    inode::{Credentials, Fs, Ino},
};
use pramfs_fsck::{CheckOptions, Done, Outcome, Policy, RepairOptions, Report, check, repair};
use pramfs_medium::media::checksum::{SEALED_BITS, seal};
use pramfs_medium::media::superblock::DYNAMIC_OFFSET;
use pramfs_medium::media::{SuperDynamic, probe_superblock};
use pramfs_medium::pmem::{EventKind, RegionAccess, SimBackend};
use pramfs_tests::crash::Machine;
use pramfs_tests::crash::images::{Limits, everywhere};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::exercise::bases;
use pramfs_tests::exercise::repair::{Repair, repair as renew_checksums};
use pramfs_tests::random::Random;
use pramfs_tests::readable::{Tree, bytes_of, copy_of, grow, tree, worse};
use pramfs_tests::region::{SMALLEST, formatted, mount, quiet, region_of, repeatable};

fn run(region: &pramfs::pmem::Region, policy: Policy) -> Result<Report, String> {
    repair(region, &RepairOptions::new(policy)).map_err(|e| e.to_string())
}

/// Repairs an image. Returns the errors of the result.
fn repaired(image: &[u8]) -> Result<(Vec<u8>, Report), String> {
    let region = copy_of(image);
    let looked = run(&region, Policy::No)?;
    if bytes_of(&region) != image {
        return Err("a look has changed it".into());
    }
    let report = run(&region, Policy::Yes)?;
    let after = bytes_of(&region);
    let again = check(&region, &CheckOptions::default());
    if !report.complete {
        return match after == image {
            true => Ok((after, report)),
            false => Err(format!("given up, and changed:\n{report}")),
        };
    }
    let full = report.left().any(|f| f.outcome == Outcome::NoSpace);
    if full && again.complete && again.findings.len() <= looked.findings.len() {
        // Reported, and not worse than before.
        return Ok((after, report));
    }
    if !report.is_sound() || !again.is_clean() {
        return Err(format!("left:\n{report}\nfound again:\n{again}"));
    }
    if looked.is_clean() && looked.replayed == 0 && after != image {
        return Err("nothing was found, and it was changed".into());
    }
    Ok((after, report))
}

/// Like [`repaired`]; also requires that everything readable before is unchanged.
fn harmless(image: &[u8]) -> Result<(Report, Tree), String> {
    let mut before = tree(image).unwrap_or_default();
    let (after, report) = repaired(image)?;
    if !report.complete {
        return Ok((report, before));
    }
    let Some(now) = tree(&after) else {
        return Err(format!("it cannot be mounted:\n{report}"));
    };
    let windows = report.issues().filter(|i| i.code().starts_with("append-"));
    let appended: Vec<_> = windows.filter_map(|i| Some(i.ino()?.0)).collect();
    grow(&mut before, &now, &appended);
    match &worse(&before, &now)[..] {
        [] => Ok((report, now)),
        worse => Err(format!("{worse:?}\n{report}")),
    }
}

/// The smallest region, with an object of each kind.
fn small(block_size: u32) -> (Vec<u8>, Tree) {
    let len = SMALLEST << (block_size / 4096);
    let sim = formatted(len, &repeatable(block_size)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let dir = fs.mkdir(&ctx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let sub = fs.mkdir(&ctx, dir, b"sub", 0o755).unwrap().ino;
    for i in 0..40usize {
        let name = format!("a file with a name {i}");
        let to = if i % 3 == 0 { sub } else { dir };
        let ino = fs.create(&ctx, to, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, ino, 0, &vec![i as u8; i * 50])
            .unwrap();
    }
    let one = fs.lookup(dir, b"a file with a name 1").unwrap().ino;
    fs.link(one, sub, b"second name").unwrap();
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
    fs.symlink(&ctx, Ino::ROOT, b"short", b"dir/sub").unwrap();
    fs.close().unwrap();
    let image = sim.image();
    let tree = tree(&image).unwrap();
    assert!(tree.len() > 44);
    (image, tree)
}

#[test]
fn repair_handles_any_damaged_byte() {
    let (image, intact) = small(512);
    let choice = std::env::var("PRAMFS_FSCK").unwrap_or_default();
    let all = choice == "all";
    let first = choice.parse::<usize>().unwrap_or(0) % 7;
    let (mut cases, mut found, mut whole, mut fatal) = (0, 0, 0, 0);
    let mut failed = Vec::new();
    let region = copy_of(&image);
    for at in (0..image.len())
        .skip(if all { 0 } else { first })
        .step_by(if all { 1 } else { 7 })
    {
        let line = at / 64 * 64;
        if image[line..line + 64].iter().all(|b| *b == 0) && at % 16 != 0 && !all {
            continue;
        }
        let mask = if at % 2 == 0 { 0xff } else { 1 << (at / 2 % 8) };
        cases += 1;
        region
            .window()
            .store_unflushed(at as u64, &[image[at] ^ mask])
            .unwrap();
        let clean = check(&region, &CheckOptions::default()).is_clean();
        region
            .window()
            .store_unflushed(at as u64, &[image[at]])
            .unwrap();
        if clean {
            continue;
        }
        found += 1;
        let mut bad = image.clone();
        bad[at] ^= mask;
        match harmless(&bad) {
            Err(e) => failed.push(format!("byte {at:#x} ^ {mask:#x}: {e}")),
            Ok((report, now)) => {
                fatal += usize::from(!report.complete);
                whole += usize::from(worse(&intact, &now).is_empty());
            }
        }
    }
    println!(
        "{cases} bytes: {found} found, everything is back after {whole} of them, {fatal} given up"
    );
    assert!(found > 1000, "the image has hardly any metadata");
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

/// Damages many places at once: bits, bytes, blocks of random bytes, exchanged blocks.
fn spoil(image: &mut [u8], block: usize, random: &mut Random) {
    let len = image.len() as u64;
    for _ in 0..1 + random.below(6) {
        let at = random.below(len) as usize;
        match random.below(6) {
            0 | 1 => image[at] ^= 1 << random.below(8),
            2 => image[at] = random.word() as u8,
            3 => {
                let end = (at + 1 + random.below(40) as usize).min(image.len());
                random.fill(&mut image[at..end]);
            }
            kind => {
                let to = at / block * block;
                let from = random.below(len) as usize / block * block;
                let mut bytes = vec![0; block];
                if kind == 4 {
                    bytes.copy_from_slice(&image[from..from + block]);
                } else if random.one_in(2) {
                    random.fill(&mut bytes);
                }
                image[to..to + block].copy_from_slice(&bytes);
            }
        }
    }
}

#[test]
fn repair_handles_many_damaged_places() {
    let seed = std::env::var("PRAMFS_FSCK_SEED").map_or(1, |s| s.parse().unwrap());
    let mut failed = Vec::new();
    let mut fatal = 0;
    for block_size in [512usize, 1024, 4096] {
        let (image, _) = small(block_size as u32);
        for round in 0..300 {
            let mut random = Random::new(seed << 32 | (block_size as u64) << 16 | round);
            let mut bad = image.clone();
            spoil(&mut bad, block_size, &mut random);
            match harmless(&bad) {
                Ok((report, _)) => fatal += usize::from(!report.complete),
                Err(e) => failed.push(format!("blocks of {block_size}, round {round}: {e}")),
            }
        }
    }
    println!("900 images, {fatal} given up");
    assert!(fatal < 150, "{fatal} images were given up");
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

/// Wrong contents with valid checksums, as a bug of the engine or an attacker could write
/// them.
#[test]
fn fuzz_corpus_images_are_repaired() {
    let mut failed = Vec::new();
    let mut fatal = 0;
    for base in &bases::ALL {
        let image = base.image();
        if let Err(e) = harmless(image) {
            failed.push(format!("{}: {e}", base.name));
        }
        for round in 0..120u64 {
            let mut random = Random::new(round << 8 | 7);
            let mut bad = image.to_vec();
            for _ in 0..1 + random.below(4) {
                let words = base.words();
                let at = words[random.below(words.len() as u64) as usize] as usize * 8;
                let at = at + random.below(8) as usize;
                bad[at] ^= 1 << random.below(8);
            }
            let region = copy_of(&bad);
            renew_checksums(&region, Repair::ALL);
            match repaired(&bytes_of(&region)) {
                Ok((_, report)) => fatal += usize::from(!report.complete),
                Err(e) => failed.push(format!("{}, round {round}: {e}", base.name)),
            }
        }
    }
    println!("{} images, {fatal} given up", bases::ALL.len() * 121);
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

/// A power failure or a kill at any store of a repair: the next repair completes it, and
/// nothing readable is lost.
#[test]
fn interrupted_repair_is_completed_by_next() {
    let mut cuts = 0;
    let mut failed = Vec::new();
    for (block_size, round) in [
        (512u32, 3u64),
        (512, 4),
        (1024, 5),
        (4096, 6),
        (512, 7),
        (1024, 8),
    ] {
        let (image, _) = small(block_size);
        let mut random = Random::new(round);
        let mut bad = image.clone();
        // Enough for several batches: half of the inodes, or whole blocks.
        for _ in 0..30 {
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 0x5a;
        }
        spoil(&mut bad, block_size as usize, &mut random);
        let before = tree(&bad).unwrap_or_default();
        let sim = SimBackend::from_image(&bad).unwrap();
        sim.recording(true);
        let report = run(&region_of(&sim), Policy::Yes).unwrap();
        sim.recording(false);
        let events = sim.take_record();
        if report.stored == 0 {
            continue;
        }
        let mut machine = Machine::new(bad.clone());
        for e in &events {
            machine.run(e);
            if !random.one_in(4) {
                continue;
            }
            for cut in [machine.least(), machine.most(), machine.random(&mut random)] {
                cuts += 1;
                // The state that the next mount would find.
                let seen = tree(&cut).unwrap_or_default();
                let mut bad = worse(&before, &seen);
                bad.truncate(3);
                match repaired(&cut) {
                    Ok((after, report)) if report.complete => {
                        bad.extend(worse(&before, &tree(&after).unwrap_or_default()));
                    }
                    Ok((_, report)) => bad.push(format!("given up: {report}")),
                    Err(e) => bad.push(e),
                }
                if !bad.is_empty() {
                    failed.push(format!(
                        "round {round}, event {}: {}",
                        e.seq,
                        bad.join("; ")
                    ));
                }
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 200, "hardly anything was stored");
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed[..failed.len().min(10)].join("\n\n")
    );
}

/// A repair with many batches: leaves, index blocks and bits, and one directory that is
/// rebuilt while the blocks of another are freed.
#[test]
fn interrupted_long_repair_is_completed_by_next() {
    // Just below 1 MiB there are two lanes: batches of 16 KiB.
    let sim = formatted((1 << 20) - 4096, &repeatable(512)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    let mut inos = Vec::new();
    for d in 0..3 {
        let dir = fs
            .mkdir(&ctx, Ino::ROOT, format!("{d}").as_bytes(), 0o755)
            .unwrap()
            .ino;
        for i in 0..130 {
            let name = format!("a file with a name of some length, {i}");
            let ino = fs.create(&ctx, dir, name.as_bytes(), 0o644).unwrap().ino;
            fs.write(&Credentials::ROOT, ino, 0, name.as_bytes())
                .unwrap();
            inos.push(ino);
        }
    }
    let geo = fs.superblock().geometry();
    fs.close().unwrap();
    let mut bad = sim.image();
    // Each leaf has two wrong counts, and some index blocks have two damaged bytes in
    // several pointers.
    let mut leaves = 0;
    for block in bad.chunks_mut(512) {
        if block.starts_with(b"hlf1") {
            leaves += 1;
            block[6] ^= 0x55;
            block[0x20] ^= 0x33;
        } else if leaves % 5 == 1 && block.chunks(8).filter(|w| w[5] & 0x10 != 0).count() > 40 {
            for word in block.chunks_mut(8).step_by(7).filter(|w| w[5] & 0x10 != 0) {
                word[0] ^= 0x81;
                word[6] ^= 0x42;
            }
        }
    }
    assert!(leaves > 60, "{leaves} leaves");
    let before = tree(&bad).unwrap();
    let sim = SimBackend::from_image(&bad).unwrap();
    sim.recording(true);
    let report = run(&region_of(&sim), Policy::Yes).unwrap();
    sim.recording(false);
    assert!(report.is_sound(), "{report}");
    let events = sim.take_record();
    let first_slot = geo.slot_offset(0, 0).0;
    let batches = events
        .iter()
        .filter(|e| e.offset == first_slot && e.bytes.starts_with(b"prec"));
    let batches = batches.filter(|e| e.kind == EventKind::NtStore).count();
    println!(
        "{batches} batches, {} events, {} bytes",
        events.len(),
        report.stored
    );
    assert!(batches >= 3, "{batches} batches");
    let after = tree(&sim.image()).unwrap();
    // All names in the undamaged half and in items that pass the checks.
    assert!(
        after.len() >= before.len() && after.len() > 390,
        "{} of 393",
        after.len()
    );
    let mut random = Random::new(99);
    let mut machine = Machine::new(bad);
    let mut failed = Vec::new();
    let mut cuts = 0;
    for e in &events {
        machine.run(e);
        if !random.one_in(1 + events.len() as u64 / 150) {
            continue;
        }
        for cut in [machine.least(), machine.most(), machine.random(&mut random)] {
            cuts += 1;
            let mut bad = worse(&before, &tree(&cut).unwrap_or_default());
            match repaired(&cut) {
                Ok((image, report)) if report.complete => {
                    let now = tree(&image).unwrap_or_default();
                    bad.extend(worse(&before, &now));
                    if now.len() < after.len() {
                        bad.push(format!("{} names of {}", now.len(), after.len()));
                    }
                }
                Ok((_, report)) => bad.push(format!("given up: {report}")),
                Err(e) => bad.push(e),
            }
            bad.truncate(3);
            if !bad.is_empty() {
                failed.push(format!("event {}: {}", e.seq, bad.join("; ")));
            }
        }
    }
    println!("{cuts} cuts");
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed[..failed.len().min(10)].join("\n\n")
    );
}

/// At each fence of a repair, each unfenced line alone and all but it are on the medium
/// or not. The result is no worse, and the next repair gives the same state.
#[test]
fn repair_after_power_loss_is_completed_by_next() {
    // A directory to be rebuilt: pointers of its index are damaged beyond correction by a
    // sum.
    let sim = formatted(SMALLEST, &repeatable(512)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    for i in 0..110 {
        let name = format!("a file with a name of some length, {i}");
        fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap();
    }
    fs.close().unwrap();
    let mut bad = sim.image();
    let used = |w: &&[u8]| w[5] & 0x10 != 0;
    let index = bad
        .chunks_mut(512)
        .find(|b| b.chunks(8).filter(used).count() > 40)
        .unwrap();
    for word in index.chunks_mut(8).step_by(7).filter(|w| w[5] & 0x10 != 0) {
        word[0] ^= 0x81;
        word[6] ^= 0x42;
    }
    let before = tree(&bad).unwrap_or_default();
    let sim = SimBackend::from_image(&bad).unwrap();
    sim.recording(true);
    let report = run(&region_of(&sim), Policy::Yes).unwrap();
    sim.recording(false);
    assert!(report.is_sound(), "{report}");
    let after = tree(&sim.image()).unwrap();
    let events = sim.take_record();
    let limits = Limits {
        lines: 2,
        pairs: 0,
        random: 2,
        torn: Torn::Edges,
    };
    let mut failed = Vec::new();
    let mut looked = 0u64;
    let images = everywhere(
        Machine::new(bad),
        &events,
        &limits,
        7,
        &mut |moment, cut| {
            looked += 1;
            let mut bad = worse(&before, &tree(cut).unwrap_or_default());
            match repaired(cut) {
                Ok((image, report)) if report.complete => {
                    bad.extend(worse(&after, &tree(&image).unwrap_or_default()));
                }
                Ok((_, report)) => bad.push(format!("given up: {report}")),
                Err(e) => bad.push(e),
            }
            bad.truncate(3);
            if !bad.is_empty() && failed.len() < 10 {
                failed.push(format!("event {moment}: {}", bad.join("; ")));
            }
        },
    );
    println!("{images} images of {} events", events.len());
    assert!(looked > 100, "{looked}");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// A repair that fits the journal slots is atomic: at each of its fences, whichever lines
/// are on the medium, the next check finds either all of the findings or none.
#[test]
fn repair_of_one_batch_is_atomic() {
    let (mut bad, _) = small(512);
    // One byte in each leaf of a directory, so that each needs its own change.
    for block in bad.chunks_mut(512).filter(|b| b.starts_with(b"hlf1")) {
        block[0x20] ^= 0x33;
    }
    // Torn slots are reported; nothing else may differ.
    let found = |image: &[u8]| {
        let report = run(&copy_of(image), Policy::No).unwrap();
        assert!(report.complete, "{report}");
        let issues = report.issues().filter(|i| {
            let code = i.code();
            !["record-torn", "lane-damaged", "dynamic-words-differ"].contains(&code)
        });
        issues.map(ToString::to_string).collect::<Vec<_>>()
    };
    let before = found(&bad);
    assert!(before.len() > 5, "{before:#?}");
    let sim = SimBackend::from_image(&bad).unwrap();
    sim.recording(true);
    let report = run(&region_of(&sim), Policy::Yes).unwrap();
    sim.recording(false);
    assert!(report.is_sound(), "{report}");
    let events = sim.take_record();
    let limits = Limits {
        lines: 3,
        pairs: 50,
        random: 10,
        torn: Torn::Edges,
    };
    let mut seen = [0u64; 2];
    let mut failed = Vec::new();
    everywhere(
        Machine::new(bad),
        &events,
        &limits,
        7,
        &mut |moment, cut| {
            let now = found(cut);
            if now.is_empty() {
                seen[1] += 1;
            } else if now == before && moment < events.len() {
                seen[0] += 1;
            } else if failed.len() < 10 {
                failed.push(format!(
                    "event {moment} of {}: {} of {} findings:\n{now:#?}",
                    events.len(),
                    now.len(),
                    before.len()
                ));
            }
        },
    );
    println!("{} images with none of it, {} with all", seen[0], seen[1]);
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(seen[0] > 50 && seen[1] > 50, "{seen:?}");
}

/// The state after a kill during work is replayed first and then repaired.
#[test]
fn repair_replays_journal_first() {
    let (image, _) = small(1024);
    let sim = SimBackend::from_image(&image).unwrap();
    let fs: Fs = mount(&sim, quiet()).unwrap();
    let ctx = Credentials::ROOT;
    for i in 0..20 {
        fs.create(&ctx, Ino::ROOT, format!("late {i}").as_bytes(), 0o600)
            .unwrap();
    }
    let crashed = sim.image();
    drop(fs);
    let before = tree(&crashed).unwrap();
    let (after, report) = repaired(&crashed).unwrap();
    assert!(report.replayed > 0 && report.complete, "{report}");
    assert_eq!(worse(&before, &tree(&after).unwrap()), [""; 0]);
}

/// The restart of record numbers: no cut makes an old record live again, or loses one.
#[test]
fn interrupted_renumbering_is_completed_by_next() {
    let (image, _) = small(4096);
    let sim = SimBackend::from_image(&image).unwrap();
    let region = region_of(&sim);
    let geo = probe_superblock(&region).unwrap().geometry();
    let newest = seal(geo.seed, (1 << (SEALED_BITS - 1)) + 1);
    for page in [0, geo.copy_offset.0] {
        let at = page + DYNAMIC_OFFSET + offset_of!(SuperDynamic, checkpoint) as u64;
        region
            .window()
            .store_unflushed(at, &newest.to_le_bytes())
            .unwrap();
    }
    drop(region);
    // Live records with high numbers, some of them of files that are gone again.
    let fs: Fs = mount(&sim, quiet()).unwrap();
    for i in 0..20 {
        let name = format!("late {i}");
        fs.create(&Credentials::ROOT, Ino::ROOT, name.as_bytes(), 0o600)
            .unwrap();
        if i % 2 == 0 {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
    }
    let crashed = sim.image();
    drop(fs);
    let before = tree(&crashed).unwrap();
    let sim = SimBackend::from_image(&crashed).unwrap();
    sim.recording(true);
    let report = run(&region_of(&sim), Policy::Yes).unwrap();
    sim.recording(false);
    let renumbered = report
        .findings
        .iter()
        .any(|f| f.done == Some(Done::Renumbered));
    assert!(renumbered && report.replayed > 0, "{report}");
    let mut random = Random::new(1);
    let mut machine = Machine::new(crashed);
    for event in &sim.take_record() {
        machine.run(event);
        for cut in [machine.least(), machine.most(), machine.random(&mut random)] {
            let found = tree(&cut).unwrap();
            assert!(
                found == before,
                "event {}: {:?}",
                event.seq,
                worse(&before, &found)
            );
            let (after, report) = repaired(&cut).unwrap();
            assert!(report.complete, "event {}: {report}", event.seq);
            assert!(tree(&after).unwrap() == before, "event {}", event.seq);
        }
    }
}
