//! x86_64: clwb, clflushopt or clflush; streaming stores of 64, 32 or 16
//! bytes; sfence. Chosen once, at run time, by CPUID.
//!
//! Callers rely on these ordering rules (Intel SDM vol. 1 ch. 10.4.6 and vol. 2 CLWB; AMD
//! APM vol. 2 ch. 7):
//! * sfence and locked instructions, and nothing weaker, order streaming stores, clwb and
//!   clflushopt.
//! * A write-back of a line is ordered behind older stores to that line.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __m128i, _mm_clflush, _mm_setzero_si128, _mm_sfence, _mm_stream_si64,
    _mm_stream_si128, _mm256_setzero_si256, _mm256_stream_si256,
};
use std::sync::OnceLock;

use super::LINE_BYTES;
use crate::pmem::live;

/// Minimum length of a [`copy_wide`], in bytes.
pub(crate) const WIDE: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushKind {
    /// Writes back, may keep the line.
    Clwb,
    /// Writes back and evicts, unordered.
    ClflushOpt,
    /// Writes back and evicts, ordered: slow, on every x86_64.
    Clflush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    Avx512,
    Avx,
    Sse2,
}

/// The processor.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    flush: FlushKind,
    stream: StreamKind,
}

impl Cpu {
    /// Whether flushing lines makes stores durable on persistent memory.
    pub const WRITES_BACK: bool = true;

    /// Returns the current processor.
    pub fn get() -> Cpu {
        static FOUND: OnceLock<Cpu> = OnceLock::new();
        *FOUND.get_or_init(|| {
            #[allow(unused_unsafe, reason = "CPUID is safe to call only from Rust 1.94 on")]
            // SAFETY: CPUID exists on every x86_64; an unknown leaf returns the data of the
            // highest known one, hence the check of leaf 0.
            let features = unsafe {
                if __cpuid_count(0, 0).eax >= 7 {
                    __cpuid_count(7, 0).ebx
                } else {
                    0
                }
            };
            let flush = if features & 1 << 24 != 0 {
                FlushKind::Clwb
            } else if features & 1 << 23 != 0 {
                FlushKind::ClflushOpt
            } else {
                FlushKind::Clflush
            };
            let stream = if is_x86_feature_detected!("avx512f") {
                StreamKind::Avx512
            } else if is_x86_feature_detected!("avx") {
                StreamKind::Avx
            } else {
                StreamKind::Sse2
            };
            Cpu { flush, stream }
        })
    }

    /// Returns every choice that this processor can run, for tests.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Cpu> {
        let best = Cpu::get();
        let flushes: &[FlushKind] = match best.flush {
            FlushKind::Clwb => &[FlushKind::Clwb, FlushKind::ClflushOpt, FlushKind::Clflush],
            FlushKind::ClflushOpt => &[FlushKind::ClflushOpt, FlushKind::Clflush],
            FlushKind::Clflush => &[FlushKind::Clflush],
        };
        let streams: &[StreamKind] = match best.stream {
            StreamKind::Avx512 => &[StreamKind::Avx512, StreamKind::Avx, StreamKind::Sse2],
            StreamKind::Avx => &[StreamKind::Avx, StreamKind::Sse2],
            StreamKind::Sse2 => &[StreamKind::Sse2],
        };
        flushes
            .iter()
            .flat_map(|&flush| streams.iter().map(move |&stream| Cpu { flush, stream }))
            .collect()
    }

    pub fn flush_name(self) -> &'static str {
        match self.flush {
            FlushKind::Clwb => "clwb",
            FlushKind::ClflushOpt => "clflushopt",
            FlushKind::Clflush => "clflush",
        }
    }

    pub fn stream_name(self) -> &'static str {
        match self.stream {
            StreamKind::Avx512 => "avx512",
            StreamKind::Avx => "avx",
            StreamKind::Sse2 => "sse2",
        }
    }

    /// Starts the write-back of every line that the range touches.
    ///
    /// # Safety
    /// The range is mapped memory.
    #[inline]
    pub unsafe fn flush(self, ptr: *const u8, len: usize) {
        let (mut line, end) = super::line_span(ptr as usize, len);
        // SAFETY: every address flushed lies in a line of the range, which is mapped; CPUID
        // has shown that the instruction exists. A write-back changes no memory that Rust
        // can see.
        unsafe {
            match self.flush {
                FlushKind::Clwb => {
                    while line < end {
                        asm!("clwb byte ptr [{}]", in(reg) line, options(nostack, preserves_flags));
                        line += LINE_BYTES;
                    }
                }
                FlushKind::ClflushOpt => {
                    while line < end {
                        asm!("clflushopt byte ptr [{}]", in(reg) line, options(nostack, preserves_flags));
                        line += LINE_BYTES;
                    }
                }
                FlushKind::Clflush => {
                    while line < end {
                        _mm_clflush(line as *const u8);
                        line += LINE_BYTES;
                    }
                }
            }
        }
    }

    /// Starts the write-back of lines, given by their numbers from `base` on.
    ///
    /// # Safety
    /// `base` is line-aligned, and each of the lines is mapped memory.
    #[inline]
    pub unsafe fn flush_lines(self, base: *const u8, lines: &[u64]) {
        let at = |line: u64| base.wrapping_add(line as usize * LINE_BYTES);
        // SAFETY: as in `flush`; the lines are mapped, by contract.
        unsafe {
            match self.flush {
                FlushKind::Clwb => {
                    for line in lines {
                        asm!("clwb byte ptr [{}]", in(reg) at(*line), options(nostack, preserves_flags));
                    }
                }
                _ => {
                    for line in lines {
                        self.flush(at(*line), LINE_BYTES);
                    }
                }
            }
        }
    }

    /// Stores through the cache. Naturally aligned words are not torn: the manuals
    /// guarantee this for stores of a word, and no known processor splits a word inside a
    /// wider store (streaming stores rely on the same).
    ///
    /// The homes of a record are stored behind a fence and wait for it in the processor's
    /// store buffer. Every store takes an entry there, as does each later one. Wider stores
    /// therefore leave room for more of the following work.
    ///
    /// # Safety
    /// As for [`live::store`].
    #[inline(always)]
    pub unsafe fn store(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller; whole words to an aligned place, and AVX only
        // if CPUID has shown that it exists. A processor with AVX-512 has AVX.
        unsafe {
            if self.stream != StreamKind::Sse2 && (dst.addr() | len).is_multiple_of(8) {
                store_avx(dst, src, len);
            } else {
                live::store(dst, src, len);
            }
        }
    }

    /// Stores one word past the cache; complete after the next fence.
    ///
    /// # Safety
    /// `dst` is writable and 8-byte aligned.
    #[inline]
    pub unsafe fn nt_store_u64(self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and writable, by contract; a store of an aligned
        // word is never torn.
        unsafe { _mm_stream_si64(dst.cast(), value as i64) };
    }

    /// Copies past the cache; complete after the next fence. Streams even a single word:
    /// including the fence, that takes two thirds of the time of a store and a write-back,
    /// which must first read the line. Naturally aligned words are not torn.
    ///
    /// # Safety
    /// `dst..dst+len` is writable, `src..src+len` readable, no overlap. Either may be
    /// medium that others access.
    #[inline]
    pub unsafe fn nt_copy(self, mut dst: *mut u8, mut src: *const u8, mut len: usize) {
        // SAFETY: head, body and tail together are exactly dst..dst+len; the body starts at
        // a line boundary and consists of whole lines. The wide forms run only if CPUID has
        // shown that they exist.
        unsafe {
            let head = len.min((dst as usize).wrapping_neg() % LINE_BYTES);
            if head > 0 {
                self.copy_edge(dst, src, head);
                (dst, src, len) = (dst.add(head), src.add(head), len - head);
            }
            let body = len & !(LINE_BYTES - 1);
            if body > 0 {
                match self.stream {
                    StreamKind::Avx512 => copy_avx512(dst, src, body),
                    StreamKind::Avx => copy_avx(dst, src, body),
                    StreamKind::Sse2 => copy_sse2(dst, src, body),
                }
            }
            if len > body {
                self.copy_edge(dst.add(body), src.add(body), len - body);
            }
        }
    }

    /// Copies less than a line, within one line: aligned words past the cache, partial
    /// words at start and end through it.
    ///
    /// # Safety
    /// As for [`nt_copy`](Self::nt_copy).
    #[inline]
    unsafe fn copy_edge(self, mut dst: *mut u8, mut src: *const u8, mut len: usize) {
        // SAFETY: start, words and rest together are exactly dst..dst+len; the
        // words are aligned.
        unsafe {
            let odd = len.min((dst as usize).wrapping_neg() % 8);
            if odd > 0 {
                live::copy(dst, src, odd);
                self.flush(dst, odd);
                (dst, src, len) = (dst.add(odd), src.add(odd), len - odd);
            }
            let words = len & !7;
            for i in (0..words).step_by(8) {
                asm!(
                    "mov {t}, qword ptr [{src}]",
                    "movnti qword ptr [{dst}], {t}",
                    t = out(reg) _,
                    src = in(reg) src.add(i),
                    dst = in(reg) dst.add(i),
                    options(nostack, preserves_flags),
                );
            }
            if len > words {
                live::copy(dst.add(words), src.add(words), len - words);
                self.flush(dst.add(words), len - words);
            }
        }
    }

    /// Whether the processor supports [`copy_wide`].
    pub fn is_wide(self) -> bool {
        self.stream == StreamKind::Avx512
    }

    /// Zeroes past the cache; complete after the next fence.
    ///
    /// # Safety
    /// `dst..dst+len` is writable.
    #[inline]
    pub unsafe fn nt_zero(self, mut dst: *mut u8, mut len: usize) {
        const ZEROS: [u8; LINE_BYTES] = [0; LINE_BYTES];
        // SAFETY: as in `nt_copy`.
        unsafe {
            let head = len.min((dst as usize).wrapping_neg() % LINE_BYTES);
            if head > 0 {
                self.copy_edge(dst, ZEROS.as_ptr(), head);
                (dst, len) = (dst.add(head), len - head);
            }
            let body = len & !(LINE_BYTES - 1);
            if body > 0 {
                match self.stream {
                    StreamKind::Avx512 => zero_avx512(dst, body),
                    StreamKind::Avx => zero_avx(dst, body),
                    StreamKind::Sse2 => zero_sse2(dst, body),
                }
            }
            if len > body {
                self.copy_edge(dst.add(body), ZEROS.as_ptr(), len - body);
            }
        }
    }

    /// Waits for this thread's write-backs and streaming stores.
    #[inline]
    pub fn fence(self) {
        // Keeps the compiler from moving stores across the fence.
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: sfence exists on every x86_64 and touches no memory.
        unsafe { _mm_sfence() };
    }
}

/// Copies whole lines to ordinary memory. A page takes half as many instructions as with
/// registers of half a line, and the processor can hold more of the following work beside
/// it.
///
/// # Safety
/// `len` is [`WIDE`] or more, `dst..dst+len` writable, `src..src+len` readable, no
/// overlap; the processor [is wide](Cpu::is_wide).
#[inline(always)]
pub(crate) unsafe fn copy_wide(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the loop copies four lines from src+i to dst+i for each i below len-256 that
    // is a multiple of 256, and then the last four lines of the range, some of them for the
    // second time. Registers from 16 on have no part that older instructions use, so no
    // upper halves need clearing.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm16, zmmword ptr [{src} + {i}]",
            "vmovdqu64 zmm17, zmmword ptr [{src} + {i} + 64]",
            "vmovdqu64 zmm18, zmmword ptr [{src} + {i} + 128]",
            "vmovdqu64 zmm19, zmmword ptr [{src} + {i} + 192]",
            "vmovdqu64 zmmword ptr [{dst} + {i}], zmm16",
            "vmovdqu64 zmmword ptr [{dst} + {i} + 64], zmm17",
            "vmovdqu64 zmmword ptr [{dst} + {i} + 128], zmm18",
            "vmovdqu64 zmmword ptr [{dst} + {i} + 192], zmm19",
            "add {i}, 256",
            "cmp {i}, {last}",
            "jb 2b",
            "vmovdqu64 zmm16, zmmword ptr [{src} + {last}]",
            "vmovdqu64 zmm17, zmmword ptr [{src} + {last} + 64]",
            "vmovdqu64 zmm18, zmmword ptr [{src} + {last} + 128]",
            "vmovdqu64 zmm19, zmmword ptr [{src} + {last} + 192]",
            "vmovdqu64 zmmword ptr [{dst} + {last}], zmm16",
            "vmovdqu64 zmmword ptr [{dst} + {last} + 64], zmm17",
            "vmovdqu64 zmmword ptr [{dst} + {last} + 128], zmm18",
            "vmovdqu64 zmmword ptr [{dst} + {last} + 192], zmm19",
            src = in(reg) src,
            dst = in(reg) dst,
            last = in(reg) len - 256,
            i = inout(reg) 0usize => _,
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`Cpu::store`]; `dst` and `len` are multiples of 8, and the processor has AVX.
#[inline(always)]
unsafe fn store_avx(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the loop copies 64 bytes at a time, then 32, 16 and 8 as needed for the rest.
    // Registers as in copy_avx512.
    unsafe {
        asm!(
            "cmp {len}, 64",
            "jb 3f",
            "2:",
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymm1, ymmword ptr [{src} + 32]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "vmovdqu ymmword ptr [{dst} + 32], ymm1",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {len}, 64",
            "cmp {len}, 64",
            "jae 2b",
            "3:",
            "test {len:l}, 32",
            "jz 4f",
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "add {src}, 32",
            "add {dst}, 32",
            "4:",
            "test {len:l}, 16",
            "jz 5f",
            "vmovdqu xmm0, xmmword ptr [{src}]",
            "vmovdqu xmmword ptr [{dst}], xmm0",
            "add {src}, 16",
            "add {dst}, 16",
            "5:",
            "test {len:l}, 8",
            "jz 6f",
            "mov {word}, qword ptr [{src}]",
            "mov qword ptr [{dst}], {word}",
            "6:",
            "vzeroupper",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            len = inout(reg) len => _,
            word = out(reg) _,
            out("xmm0") _,
            out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// `dst` is line-aligned, `len` one line or more, whole lines, both ranges valid; the
/// processor has AVX-512F.
#[inline]
unsafe fn copy_avx512(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the loop copies whole lines from src+i to dst+i for i < len. The
    // register it uses is declared; vzeroupper leaves no dirty upper halves.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm0, zmmword ptr [{src} + {i}]",
            "vmovntdq zmmword ptr [{dst} + {i}], zmm0",
            "add {i}, 64",
            "cmp {i}, {len}",
            "jb 2b",
            "vzeroupper",
            src = in(reg) src,
            dst = in(reg) dst,
            len = in(reg) len,
            i = inout(reg) 0usize => _,
            out("xmm0") _,
            out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`copy_avx512`].
#[inline]
unsafe fn zero_avx512(dst: *mut u8, len: usize) {
    // SAFETY: the loop zeroes whole lines at dst+i for i < len; registers as
    // in copy_avx512.
    unsafe {
        asm!(
            "vpxorq zmm0, zmm0, zmm0",
            "2:",
            "vmovntdq zmmword ptr [{dst} + {i}], zmm0",
            "add {i}, 64",
            "cmp {i}, {len}",
            "jb 2b",
            "vzeroupper",
            dst = in(reg) dst,
            len = in(reg) len,
            i = inout(reg) 0usize => _,
            out("xmm0") _,
            out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// `dst` is line-aligned, `len` one line or more, whole lines, both ranges valid; the
/// processor has AVX.
#[inline]
unsafe fn copy_avx(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in copy_avx512, by halves of a line.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, ymmword ptr [{src} + {i}]",
            "vmovdqu ymm1, ymmword ptr [{src} + {i} + 32]",
            "vmovntdq ymmword ptr [{dst} + {i}], ymm0",
            "vmovntdq ymmword ptr [{dst} + {i} + 32], ymm1",
            "add {i}, 64",
            "cmp {i}, {len}",
            "jb 2b",
            "vzeroupper",
            src = in(reg) src,
            dst = in(reg) dst,
            len = in(reg) len,
            i = inout(reg) 0usize => _,
            out("xmm0") _,
            out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`copy_avx`].
#[target_feature(enable = "avx")]
unsafe fn zero_avx(dst: *mut u8, len: usize) {
    let zero = _mm256_setzero_si256();
    for i in (0..len).step_by(32) {
        // SAFETY: i + 32 <= len; the destination is 32-byte aligned.
        unsafe { _mm256_stream_si256(dst.add(i).cast(), zero) };
    }
}

/// # Safety
/// `dst` is line-aligned, `len` one line or more, whole lines, both ranges valid.
#[inline]
unsafe fn copy_sse2(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in copy_avx512, by quarters of a line.
    unsafe {
        asm!(
            "2:",
            "movdqu {a}, xmmword ptr [{src} + {i}]",
            "movdqu {b}, xmmword ptr [{src} + {i} + 16]",
            "movdqu {c}, xmmword ptr [{src} + {i} + 32]",
            "movdqu {d}, xmmword ptr [{src} + {i} + 48]",
            "movntdq xmmword ptr [{dst} + {i}], {a}",
            "movntdq xmmword ptr [{dst} + {i} + 16], {b}",
            "movntdq xmmword ptr [{dst} + {i} + 32], {c}",
            "movntdq xmmword ptr [{dst} + {i} + 48], {d}",
            "add {i}, 64",
            "cmp {i}, {len}",
            "jb 2b",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            src = in(reg) src,
            dst = in(reg) dst,
            len = in(reg) len,
            i = inout(reg) 0usize => _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`copy_sse2`].
unsafe fn zero_sse2(dst: *mut u8, len: usize) {
    for i in (0..len).step_by(16) {
        // SAFETY: i + 16 <= len; the destination is 16-byte aligned.
        unsafe { _mm_stream_si128(dst.add(i).cast::<__m128i>(), _mm_setzero_si128()) };
    }
}
