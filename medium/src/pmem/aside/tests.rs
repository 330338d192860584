use super::*;
use crate::pmem::HeapBackend;

const BLOCK: u64 = 4096;
/// Blocks of the region: two groups of 128.
const BLOCKS: u64 = 256;

/// A region whose blocks hold their number. The bitmap of the first group is in block 4, and has
/// the blocks below 64 in use. The second has none.
fn region() -> (Region, AsidePlan) {
    let region = Region::new("region", HeapBackend::boxed((BLOCKS * BLOCK) as usize));
    for block in 0..BLOCKS {
        store(&region, block, block as u8);
    }
    let window = region.window();
    for (word, bits) in [u64::MAX, 0].into_iter().enumerate() {
        let at = 4 * BLOCK + word as u64 * 8;
        window.store_u64_unflushed(at, bits).unwrap();
    }
    drop(window);
    let plan = AsidePlan {
        block_size: BLOCK,
        fixed: Vec::from_iter([0..1, 1..2]),
        per_group: 128,
        bitmaps: vec![Some(4), None],
        bitmap_blocks: vec![4],
        most: 1 << 30,
    };
    (region, plan)
}

fn store(region: &Region, block: u64, byte: u8) {
    let bytes = vec![byte; BLOCK as usize];
    let stored = region.window().store_unflushed(block * BLOCK, &bytes);
    stored.unwrap();
}

fn read(region: &Region, aside: &Aside, block: u64) -> u8 {
    let mut bytes = vec![0; BLOCK as usize];
    let _from_region = aside.read(region, block, &mut bytes).unwrap();
    bytes[BLOCK as usize - 1]
}

#[test]
fn read_returns_blocks_as_they_were() {
    let (region, plan) = region();
    let aside = region.begin_aside(plan).unwrap();
    for block in [0, 1, 5, 63] {
        store(&region, block, 0xee);
        store(&region, block, 0xff);
        assert_eq!(read(&region, &aside, block), block as u8);
    }
    assert_eq!(aside.held_bytes(), 4 * BLOCK);
    // One store over several, and words.
    let window = region.window();
    let zeroed = window.nt_zero(10 * BLOCK - 8, 2 * BLOCK).unwrap();
    window.store_u64_unflushed(20 * BLOCK, 1).unwrap();
    let copied = window.nt_copy(30 * BLOCK, 40 * BLOCK, 2 * BLOCK).unwrap();
    window.fence(zeroed.join(copied));
    drop(window);
    for block in [9, 10, 11, 20, 30, 31] {
        assert_eq!(read(&region, &aside, block), block as u8);
    }
    region.end_aside(&aside, AsideEnd::Closed);
    assert_eq!(aside.ended(), Some(AsideEnd::Closed));
    store(&region, 6, 0xff);
    assert_eq!(read(&region, &aside, 6), 0xff);
}

#[test]
fn store_to_free_block_copies_nothing() {
    let (region, plan) = region();
    let aside = region.begin_aside(plan).unwrap();
    for block in [64, 127, 128, 255] {
        store(&region, block, 0xff);
    }
    assert_eq!(aside.held_bytes(), 0);
    // Allocated since: it was free at the moment.
    let window = region.window();
    window.store_u64_unflushed(4 * BLOCK + 8, u64::MAX).unwrap();
    // Freed since: it was in use.
    window.store_u64_unflushed(4 * BLOCK, 0).unwrap();
    drop(window);
    store(&region, 70, 0xff);
    assert_eq!(aside.held_bytes(), 0);
    store(&region, 7, 0xff);
    assert_eq!(read(&region, &aside, 7), 7);
    // The bitmap itself is as it was, and does not count.
    assert_eq!(aside.held_bytes(), BLOCK);
    let mut bitmap = vec![0; BLOCK as usize];
    assert!(!aside.read(&region, 4, &mut bitmap).unwrap());
    assert_eq!(bitmap[..16], [[0xff; 8], [0; 8]].concat());
}

#[test]
fn released_block_is_copied_no_more_and_frees_memory() {
    let (region, plan) = region();
    let aside = region.begin_aside(plan).unwrap();
    for block in [0, 10, 20, 4] {
        store(&region, block, 0xff);
    }
    assert_eq!(aside.held_bytes(), 3 * BLOCK);
    aside.release_below(15);
    // The fixed ones are apart.
    assert_eq!(aside.held_bytes(), 2 * BLOCK);
    store(&region, 11, 0xff);
    assert_eq!(aside.held_bytes(), 2 * BLOCK);
    store(&region, 1, 0xff);
    assert_eq!(read(&region, &aside, 1), 1);
    aside.release_fixed();
    assert_eq!(aside.held_bytes(), BLOCK);
    assert_eq!(read(&region, &aside, 20), 20);
    // Of a group that is not read yet.
    assert_ne!(read(&region, &aside, 4), 0xff);
}

#[test]
fn second_begin_is_refused_until_first_has_ended() {
    let (region, plan) = region();
    let first = region.begin_aside(plan.clone()).unwrap();
    assert!(region.begin_aside(plan.clone()).is_none());
    region.end_aside(&first, AsideEnd::Closed);
    let second = region.begin_aside(plan).unwrap();
    // The first one does not end the second.
    region.end_aside(&first, AsideEnd::Closed);
    assert_eq!(second.ended(), None);
}

#[test]
fn store_without_room_waits_for_release() {
    let (region, plan) = region();
    let plan = AsidePlan {
        most: 2 * BLOCK,
        ..plan
    };
    let aside = region.begin_aside(plan).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for block in 5..60 {
                region.wait_for_aside();
                store(&region, block, 0xff);
                assert!(aside.held_bytes() <= 2 * BLOCK);
            }
        });
        for block in 5..60 {
            assert_eq!(read(&region, &aside, block), block as u8);
            aside.release_below(block + 1);
        }
        writer.join().unwrap();
    });
    assert_eq!(aside.ended(), None);
    assert_eq!(aside.held_bytes(), 0);
}

#[test]
fn wait_for_room_ends_with_the_copies() {
    let (region, plan) = region();
    let plan = AsidePlan {
        most: BLOCK,
        ..plan
    };
    let aside = region.begin_aside(plan).unwrap();
    store(&region, 5, 0xff);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| region.wait_for_aside());
        region.end_aside(&aside, AsideEnd::Closed);
        writer.join().unwrap();
    });
    // A wakeup that is missed takes so long.
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(
        (aside.ended(), aside.held_bytes()),
        (Some(AsideEnd::Closed), 0)
    );
}

#[test]
fn operation_that_needs_far_more_than_the_limit_ends_copies() {
    let len = EXCESS + (8 << 20);
    let region = Region::new("region", HeapBackend::boxed(len as usize));
    let plan = AsidePlan {
        block_size: BLOCK,
        // All of it, whatever the bitmaps say.
        fixed: Vec::from_iter([0..len / BLOCK / 2, len / BLOCK / 2..len / BLOCK]),
        per_group: 4096,
        bitmaps: vec![None; 8],
        bitmap_blocks: Vec::new(),
        most: 1 << 20,
    };
    let aside = region.begin_aside(plan).unwrap();
    let zeroed = region.window().nt_zero(0, len).unwrap();
    region.window().fence(zeroed);
    assert_eq!(
        (aside.ended(), aside.held_bytes()),
        (Some(AsideEnd::Excess), 0)
    );
}
