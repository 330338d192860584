//! The memory of the library itself, apart from that of the C library.
//!
//! A signal handler of the program may have interrupted malloc, and then read a file. If the
//! library asked the C library for memory, it would wait for ever for a lock that its own thread
//! holds. In a child of a raw fork, a thread that is not there may hold it.
//!
//! So there is no lock here. Memory comes in chunks, each for blocks of one size, with a bit for
//! each block: who sets it has the block. Invariant: a chunk is never given back, and what follows
//! it in the list of its size never changes. Long pieces are mappings of their own.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pramfs_preload_core::blocks;

use crate::real;

#[global_allocator]
static HEAP: Heap = Heap;

/// Length of a chunk, and the multiple at which it begins.
const CHUNK: usize = 64 << 10;
const SMALLEST: usize = 32;
/// Sizes of blocks: the smallest one, and each twice the one before.
const SIZES: usize = 9;
const PAGE: usize = 4096;

/// The start of a chunk, which takes the place of its first blocks. Zeros are an empty one.
#[repr(C)]
struct Header {
    used: [AtomicU64; CHUNK / SMALLEST / 64],
    /// The next chunk with blocks of this size.
    next: AtomicPtr<Header>,
}

/// Chunks with blocks of each size, the newest first.
static CHUNKS: [AtomicPtr<Header>; SIZES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIZES];

/// Chunks that are there from the start: also in a process without room for mappings.
const READY: usize = 12;

struct Ready(UnsafeCell<[u8; (READY + 1) * CHUNK]>);

// SAFETY: it is only taken the address of. Each chunk in it is given out once, by `new_chunk`.
unsafe impl Sync for Ready {}

static FIRST: Ready = Ready(UnsafeCell::new([0; (READY + 1) * CHUNK]));

/// Number of chunks that were asked for.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Returns the memory of a chunk, all zeros, which nobody else gets. Null if there is none.
fn new_chunk() -> *mut Header {
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    let (start, skipped): (*mut u8, usize) = match number < READY {
        true => (FIRST.0.get().cast(), number * CHUNK),
        // Twice the length has a whole chunk at a multiple of it.
        false => (map(2 * CHUNK), 0),
    };
    if start.is_null() {
        return std::ptr::null_mut();
    }
    let up = start.addr().next_multiple_of(CHUNK) - start.addr();
    start.wrapping_add(up + skipped).cast()
}

/// Maps memory of zeros. Null if there is none. Keeps errno.
fn map(len: usize) -> *mut u8 {
    let errno = real::errno();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        real::mmap64(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    real::set_errno(errno);
    match at == libc::MAP_FAILED {
        true => std::ptr::null_mut(),
        false => at.cast(),
    }
}

/// Returns the number of the size of blocks that serves a layout. `None`: a mapping does.
fn size_of(layout: Layout) -> Option<usize> {
    // A block begins at a multiple of its size.
    let size = layout.size().max(layout.align()).max(SMALLEST);
    let number = (size.next_power_of_two() / SMALLEST).trailing_zeros() as usize;
    (number < SIZES).then_some(number)
}

/// Takes a block of a chunk. `None` if all are in use.
fn take(chunk: &Header, size: usize) -> Option<usize> {
    // The header lies in these.
    let first = std::mem::size_of::<Header>().div_ceil(size);
    blocks::take(&chunk.used, first, CHUNK / size)
}

/// Returns a block. Null if there is no memory.
fn block(number: usize) -> *mut u8 {
    let (size, head) = (SMALLEST << number, &CHUNKS[number]);
    let mut chunk = head.load(Ordering::Acquire);
    // SAFETY: null, or a chunk, which is never given back.
    while let Some(header) = unsafe { chunk.as_ref() } {
        if let Some(found) = take(header, size) {
            return chunk.cast::<u8>().wrapping_add(found * size);
        }
        chunk = header.next.load(Ordering::Relaxed);
    }
    let new = new_chunk();
    // SAFETY: null, or a chunk of zeros, which are a header.
    let Some(header) = (unsafe { new.as_ref() }) else {
        return std::ptr::null_mut();
    };
    // Before others can see it: there is one.
    let found = take(header, size).unwrap_or_default();
    let mut next = head.load(Ordering::Relaxed);
    loop {
        header.next.store(next, Ordering::Relaxed);
        match head.compare_exchange(next, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return new.cast::<u8>().wrapping_add(found * size),
            Err(now) => next = now,
        }
    }
}

struct Heap;

// SAFETY: a block has the length and alignment that `size_of` has compared, a mapping begins at
// a page. Its bit is set, or the mapping is there, until `dealloc`, so nobody else gets it. Nothing
// here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match size_of(layout) {
            Some(number) => block(number),
            None if layout.align() <= PAGE => map(layout.size()),
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(number) = size_of(layout) else {
            // SAFETY: `alloc` has mapped it for this layout, and the caller gives it back.
            unsafe { real::munmap(at.cast(), layout.size()) };
            return;
        };
        let (offset, size) = (at.addr() % CHUNK, SMALLEST << number);
        let chunk: *const Header = at.wrapping_sub(offset).cast();
        // SAFETY: `alloc` took the block from a chunk, which begins at a multiple of its length
        // and is never given back.
        blocks::give(unsafe { &(*chunk).used }, offset / size);
    }
}
