//! Maps with damaged or forged pointers: an error or the right answer, in bounded time.

use super::*;
use crate::types::FileBlock;

#[test]
fn flipped_pointer_byte_is_detected_or_harmless() {
    for (block_size, len) in [(512, 2 << 20), (4096, 16 << 20)] {
        let mut fixture = Fixture::new(block_size, len, 99);
        for _ in 0..12 {
            fixture.insert();
            if block_size == 4096 {
                fixture.insert_huge();
            }
        }
        let mut tables = Vec::new();
        visit(&fixture.vol, &fixture.map, &mut |n| {
            if let Node::Table {
                level,
                first,
                block,
            } = n
            {
                tables.push((level, first, block));
            }
            Ok(())
        })
        .unwrap();
        assert!(tables.len() > 4);
        let geo = fixture.vol.geo.clone();
        let w = fixture.vol.region.window();
        let (mut tested, mut escaped) = (0u32, 0u32);
        for (level, first, block) in tables {
            for byte in 0..geo.block_size {
                let index = first.0 + byte / 8 * geo.span(level);
                let place = geo.offset(block).word(byte / 8);
                let old = fixture.vol.region.load_u64(place.0).unwrap();
                for flip in [1u64, 0x80, 0xff] {
                    w.store_u64_unflushed(place.0, old ^ flip << (byte % 8 * 8))
                        .unwrap();
                    // A changed pointer or hole is refused, except for one in
                    // 65,536, which still cannot lead outside the region.
                    tested += 1;
                    if let Ok(leaf) = find(&fixture.vol, &fixture.map, index) {
                        assert!(leaf.block.is_none_or(|b| b.0 + leaf.count <= geo.blocks()));
                        escaped += 1;
                        continue;
                    }
                    assert!(matches!(
                        run(&fixture.vol, &fixture.map, index, 9),
                        Err(Error::Corrupt { .. })
                    ));
                    if byte % 41 == 0 {
                        let mut damaged = 0;
                        visit(&fixture.vol, &fixture.map, &mut |n| {
                            damaged += u32::from(
                                matches!(n, Node::Damaged { place: Some(p), .. } if p == place),
                            );
                            Ok(())
                        })
                        .map(|()| assert_eq!(damaged, 1))
                        .unwrap();
                    }
                    let (mut map, mut tx) = (fixture.map, fixture.vol.begin());
                    assert!(matches!(
                        remove(&mut tx, &mut map, index, index + 1),
                        Err(Error::Corrupt { .. })
                    ));
                    // The neighbours stay readable.
                    if let Some((i, b)) = fixture.model.range(..index).next_back()
                        && level == 0
                    {
                        assert_eq!(
                            find(&fixture.vol, &fixture.map, *i)
                                .unwrap()
                                .block
                                .is_some(),
                            b.0 != 0
                        );
                    }
                }
                w.store_u64_unflushed(place.0, old).unwrap();
            }
        }
        assert!(escaped <= 3 + tested / 16384, "{escaped} of {tested}");
        fixture.check();
    }
}

#[test]
fn empty_pointer_block_is_corrupt() {
    let mut fixture = Fixture::new(512, 2 << 20, 5);
    for at in [0, 70] {
        let (mut map, mut tx) = (fixture.map, fixture.vol.begin());
        let run = tx.alloc_blocks(None, 3, true).unwrap();
        insert(&mut tx, &mut map, at, run, false).unwrap();
        tx.commit().unwrap();
        fixture.map = map;
    }
    assert_eq!(
        count(&fixture.vol, &fixture.map, 100).unwrap(),
        Some(3 + 3 + 3)
    );
    assert_eq!(count(&fixture.vol, &fixture.map, 8).unwrap(), None);
    let table = run(&fixture.vol, &fixture.map, 70, 1)
        .unwrap()
        .table
        .unwrap();
    let w = fixture.vol.region.window();
    for slot in 0..64 {
        let at = fixture.vol.geo.offset(table).0 + slot * 8;
        w.store_u64_unflushed(at, 0).unwrap();
    }
    let corrupt = |e| matches!(e, Error::Corrupt { .. });
    assert_eq!(run(&fixture.vol, &fixture.map, 0, 9).unwrap().count, 3);
    for index in [64, 70, 127] {
        assert!(corrupt(
            find(&fixture.vol, &fixture.map, index).unwrap_err()
        ));
        assert!(corrupt(
            run(&fixture.vol, &fixture.map, index, 1).unwrap_err()
        ));
    }
    assert!(corrupt(
        run(&fixture.vol, &fixture.map, 5, 100).unwrap_err()
    ));
    assert!(corrupt(count(&fixture.vol, &fixture.map, 100).unwrap_err()));
    let (mut map, mut tx) = (fixture.map, fixture.vol.begin());
    assert!(corrupt(remove(&mut tx, &mut map, 0, u64::MAX).unwrap_err()));
}

#[test]
fn impossible_map_height_is_corrupt() {
    let vol = volume(4096, 1 << 20);
    for height in [7, 8, 64, 255] {
        let mut map = MapRef {
            ino: INO,
            root: Ptr(1),
            height,
            blocks: 0,
            healed: false,
        };
        let corrupt = |e| matches!(e, Error::Corrupt { .. });
        assert!(corrupt(find(&vol, &map, 0).unwrap_err()));
        assert!(corrupt(run(&vol, &map, 0, 1).unwrap_err()));
        assert!(corrupt(visit(&vol, &map, &mut |_| Ok(())).unwrap_err()));
        let mut tx = vol.begin();
        assert!(corrupt(remove(&mut tx, &mut map, 0, u64::MAX).unwrap_err()));
        assert!(corrupt(set_written(&mut tx, &mut map, 0, 1).unwrap_err()));
        assert!(corrupt(plan(&tx, &map, 0, 1).unwrap_err()));
    }
}

/// A forged image has one pointer block below many pointers. Without a limit, the count
/// would read it once for each of them.
#[test]
fn count_stops_at_blocks_of_region() {
    let mut fixture = Fixture::new(4096, 16 << 20, 1);
    let vol = fixture.vol.clone();
    let mut tx = vol.begin();
    let run = tx.alloc_blocks(None, 2, true).unwrap();
    tx.commit().unwrap();
    let (top, shared) = (run.start, run.start.after(1));
    fixture.map.height = 2;
    fixture.map.root = Ptr::new(top, 0, fixture.map.at(&vol.geo, 2, FileBlock(0)));
    let w = vol.region.window();
    for i in 0..512u64 {
        let first = FileBlock(i << 9);
        let above = Ptr::new(shared, 0, fixture.map.at(&vol.geo, 1, first));
        w.store_u64_unflushed(vol.geo.offset(top).0 + i * 8, above.0)
            .unwrap();
        // Slot i is valid for pointer block number i.
        let below = Ptr::new(top, 0, fixture.map.at(&vol.geo, 0, first + i));
        w.store_u64_unflushed(vol.geo.offset(shared).0 + i * 8, below.0)
            .unwrap();
    }
    assert!(512 * 513 > vol.geo.blocks());
    assert_eq!(count(&vol, &fixture.map, u64::MAX).unwrap(), None);
}
