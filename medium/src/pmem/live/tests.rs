//! Both implementations of the copies, at every alignment and length, against plain copies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const AREA: usize = 256;

#[repr(align(64))]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Area([u8; AREA]);

fn source() -> Area {
    Area(std::array::from_fn(|i| (i * 7 + 1) as u8))
}

/// Runs `f` for many (destination offset, source offset, length) and compares the whole
/// area with the result of `expect`.
fn compare(f: impl Fn(*mut u8, *const u8, usize), expect: impl Fn(&mut [u8], &[u8])) {
    let places = if cfg!(miri) {
        [0, 3].iter()
    } else {
        [0, 1, 3, 4, 8, 13].iter()
    };
    let lens = (0..=24).chain([31, 32, 40, 60, 64, 65, 68, 72, 127, 128, 130]);
    // Under Miri each case takes a thousand times as long.
    for to in (0..=16).step_by(if cfg!(miri) { 5 } else { 1 }) {
        for from in places.clone() {
            for len in lens.clone() {
                let (mut src, mut got) = (source(), Area([0xee; AREA]));
                let mut want = got;
                f(
                    got.0.as_mut_ptr().wrapping_add(to),
                    src.0.as_mut_ptr().wrapping_add(*from),
                    len,
                );
                expect(&mut want.0[to..to + len], &src.0[*from..from + len]);
                assert_eq!(got, want, "to {to}, from {from}, len {len}");
            }
        }
    }
}

#[test]
fn copies_at_every_alignment_change_only_range() {
    let same = |to: &mut [u8], from: &[u8]| to.copy_from_slice(from);
    // SAFETY: the ranges lie in areas of their own, which are whole words.
    compare(|d, s, n| unsafe { load(d, s, n) }, same);
    // SAFETY: as above.
    compare(|d, s, n| unsafe { store(d, s, n) }, same);
    // SAFETY: as above.
    compare(|d, s, n| unsafe { copy(d, s, n) }, same);
    // SAFETY: as above.
    compare(|d, s, n| unsafe { atomic_copy::load(d, s, n) }, same);
    // SAFETY: as above.
    compare(|d, s, n| unsafe { atomic_copy::store(d, s, n) }, same);
}

#[test]
fn fills_at_every_alignment_change_only_range() {
    let filled = |to: &mut [u8], _: &[u8]| to.fill(0x5a);
    // SAFETY: the range lies in an area of its own, which is whole words.
    compare(|d, _, n| unsafe { fill(d, 0x5a, n) }, filled);
    // SAFETY: as above.
    compare(|d, _, n| unsafe { atomic_copy::fill(d, 0x5a, n) }, filled);
}

/// Between two instructions, as after a crash, a reader sees no partial store to a word.
#[test]
fn concurrent_stores_of_any_bounds_tear_no_word() {
    const ROUNDS: u32 = if cfg!(miri) { 2 } else { 400_000 };
    let area: Vec<AtomicU64> = (0..AREA / WORD).map(|_| AtomicU64::new(0)).collect();
    let base = area.as_ptr().cast_mut().cast::<u8>();
    let base = AtomicU64::new(base.expose_provenance() as u64);
    let done = AtomicBool::new(false);
    // Start and length of each store.
    let bounds = [(3, 30), (2, 62), (34, 100), (40, 64), (61, 190), (5, 2)];
    for (from, len) in bounds {
        done.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = std::ptr::with_exposed_provenance_mut::<u8>(
                    base.load(Ordering::Relaxed) as usize + from,
                );
                for round in 0..ROUNDS {
                    let byte = if round % 2 == 0 { 0xff } else { 0 };
                    // SAFETY: the bytes lie in the area, whose words are atomic.
                    unsafe {
                        match round % 4 {
                            0 | 1 => store(at, [byte; AREA].as_ptr(), len),
                            _ => fill(at, byte, len),
                        }
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let last = (from + len).div_ceil(WORD);
                for (n, word) in area.iter().enumerate().take(last).skip(from / WORD) {
                    let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                    let mut inside = (0..WORD)
                        .filter(|i| (from..from + len).contains(&(n * WORD + i)))
                        .map(|i| bytes[i]);
                    let first = inside.next();
                    assert!(
                        inside.all(|b| Some(b) == first),
                        "{len} bytes from {from} on, word {n}: {bytes:x?}"
                    );
                }
            }
        });
        area.iter().for_each(|w| w.store(0, Ordering::Relaxed));
    }
}

#[test]
fn load_pod_of_any_length_is_complete() {
    let (src, mut medium) = (source(), source());
    let base = medium.0.as_mut_ptr();
    let at = |n: usize| base.wrapping_add(n);
    for from in 0..16 {
        // SAFETY: the ranges lie in the area.
        unsafe {
            assert_eq!(load_pod::<[u8; 12]>(at(from))[..], src.0[from..from + 12]);
            assert_eq!(load_pod::<[u8; 7]>(at(from))[..], src.0[from..from + 7]);
            assert_eq!(load_pod::<[u8; 96]>(at(from))[..], src.0[from..from + 96]);
            touch(at(from));
            atomic_copy::touch(at(from));
        }
    }
}

/// Two threads store to the halves of one word and load all of it, concurrently.
#[test]
fn parts_of_word_stored_by_two_threads_both_arrive() {
    let words = [AtomicU64::new(0), AtomicU64::new(0)];
    let rounds = if cfg!(miri) { 20 } else { 100_000u32 };
    let base = words.as_ptr().cast_mut().cast::<u8>();
    let (at, stop) = (
        AtomicU64::new(base.expose_provenance() as u64),
        AtomicBool::new(false),
    );
    let half = |n: usize| {
        let p = std::ptr::with_exposed_provenance_mut::<u8>(at.load(Ordering::Relaxed) as usize);
        p.wrapping_add(n)
    };
    std::thread::scope(|s| {
        let stores = |n: usize| {
            for i in 1..=rounds {
                // SAFETY: four bytes of the words, which outlive the threads.
                unsafe { store(half(n), i.to_le_bytes().as_ptr(), 4) };
                let mut back = [0; 4];
                // SAFETY: as above.
                unsafe { load(back.as_mut_ptr(), half(n), 4) };
                assert_eq!(u32::from_le_bytes(back), i);
            }
        };
        let (one, two) = (s.spawn(move || stores(0)), s.spawn(move || stores(4)));
        let look = s.spawn(|| {
            let mut last = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let mut word = [0; 8];
                // SAFETY: as above.
                unsafe { load(word.as_mut_ptr(), half(0), 8) };
                let word = u64::from_le_bytes(word);
                let now = (word as u32, (word >> 32) as u32);
                assert!(now.0 >= last.0 && now.1 >= last.1 && now.0 <= rounds);
                last = now;
            }
        });
        one.join().unwrap();
        two.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        look.join().unwrap();
    });
    let whole = u64::from(rounds) << 32 | u64::from(rounds);
    assert_eq!(words[0].load(Ordering::Relaxed), whole);
    assert_eq!(words[1].load(Ordering::Relaxed), 0);
}
