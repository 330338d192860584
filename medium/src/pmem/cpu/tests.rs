//! Every offset and length around line boundaries, for every choice of
//! instructions that this processor has.

use super::*;

const AREA: usize = 16 * LINE_BYTES;

#[repr(align(64))]
struct Area([u8; AREA]);

fn choices() -> Vec<Cpu> {
    Cpu::all()
}

fn source() -> Vec<u8> {
    (0..AREA).map(|i| (i * 7 + 1) as u8).collect()
}

/// Runs `f(dst, src, len)` for many placements and compares with the plain copy, including
/// the surrounding bytes.
fn compare(
    lens: impl Iterator<Item = usize> + Clone,
    f: impl Fn(*mut u8, *const u8, usize),
    expect: impl Fn(&mut [u8], &[u8]),
) {
    let src = source();
    for from in [0, 1, 8, 63] {
        for at in 0..=LINE_BYTES {
            for len in lens.clone().filter(|l| at + l <= AREA && from + l <= AREA) {
                let mut got = Area([0xee; AREA]);
                let mut want = Area([0xee; AREA]);
                f(
                    got.0[at..at + len].as_mut_ptr(),
                    src[from..from + len].as_ptr(),
                    len,
                );
                expect(&mut want.0[at..at + len], &src[from..from + len]);
                assert!(got.0 == want.0, "at {at}, len {len}, from {from}");
            }
        }
    }
}

fn lens() -> impl Iterator<Item = usize> + Clone {
    (0..=3 * LINE_BYTES + 1)
        .step_by(7)
        .chain([1, 2, 4, 8, 63, 64, 65, 127, 128])
        .chain(4 * LINE_BYTES - 2..6 * LINE_BYTES + 2)
}

#[test]
fn copy_wide_works_at_every_alignment() {
    if !Cpu::get().is_wide() {
        return crate::pmem::tests::skipped("copies by whole lines: no AVX-512 here");
    }
    compare(
        (WIDE..AREA).step_by(37).chain([WIDE, 576, 768, 1023]),
        // SAFETY: both ranges are slices of exactly this length, which suffices.
        |dst, src, len| unsafe { copy_wide(dst, src, len) },
        |dst, src| dst.copy_from_slice(src),
    );
}

#[test]
fn nt_copy_works_at_every_alignment() {
    for cpu in choices() {
        compare(
            lens(),
            // SAFETY: both ranges are slices of exactly this length.
            |dst, src, len| unsafe {
                cpu.nt_copy(dst, src, len);
                cpu.fence();
            },
            |dst, src| dst.copy_from_slice(src),
        );
    }
}

#[test]
fn nt_zero_works_at_every_alignment() {
    for cpu in choices() {
        compare(
            lens(),
            // SAFETY: the destination is a slice of exactly this length.
            |dst, _, len| unsafe {
                cpu.nt_zero(dst, len);
                cpu.fence();
            },
            |dst, _| dst.fill(0),
        );
    }
}

#[test]
fn store_works_at_every_alignment() {
    for cpu in choices() {
        compare(
            lens().chain(0..=LINE_BYTES + 1),
            // SAFETY: both ranges are slices of exactly this length.
            |dst, src, len| unsafe { cpu.store(dst, src, len) },
            |dst, src| dst.copy_from_slice(src),
        );
    }
}

#[test]
fn flush_changes_nothing() {
    for cpu in choices() {
        compare(
            lens(),
            // SAFETY: as above.
            |dst, src, len| unsafe {
                std::ptr::copy_nonoverlapping(src, dst, len);
                cpu.flush(dst, len);
                cpu.fence();
            },
            |dst, src| dst.copy_from_slice(src),
        );
    }
}

/// A span covers every line that contains a byte of the range, and no other.
#[test]
fn line_spans_cover_touched_lines_only() {
    for start in 0..=2 * LINE_BYTES {
        for len in 0..=3 * LINE_BYTES {
            let mut touched: Vec<usize> = (start..start + len).map(|b| b / LINE_BYTES).collect();
            touched.dedup();
            let (first, end) = line_span(start, len);
            let lines: Vec<usize> = (first..end)
                .step_by(LINE_BYTES)
                .map(|b| b / LINE_BYTES)
                .collect();
            assert_eq!(lines, touched, "start {start}, len {len}");
        }
    }
}
