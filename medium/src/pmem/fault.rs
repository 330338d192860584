//! SIGBUS: the page that is not there.
//!
//! A load from poisoned memory, from a file that was cut under its mapping, or
//! a store into a file whose file system is full raises SIGBUS. With the guard
//! installed, such a fault inside a guarded mapping maps zeros over the page,
//! counts, remembers the page, and returns; whoever ran the access sees the
//! count and answers EIO. A fault anywhere else goes to the handler that was
//! there before.
//!
//! Invariants:
//! * The handler only loads and stores atomics in a fixed table and in bitmaps,
//!   and calls `mmap` and `munmap`: nothing that can lock or allocate.
//! * A slot of the table names a range only while its [`Guard`] lives, and what
//!   is read of it belongs to one guard: it changes under a sequence number.
//! * A page counts for itself alone, however many there are: the first one of a
//!   mapping gets it a bitmap of its pages, had as it is touched.
//!
//! Left to others: what an operation does about a fault. The page stays zeros
//! (stores to it are lost) until the mapping is made anew, which is why
//! [`Guard::is_faulted`] exists beside the count.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use super::error::PmemError;

/// Mappings that can be guarded at a time; more work unguarded.
const SLOTS: usize = 4096;

#[repr(align(64))]
struct Slot {
    taken: AtomicBool,
    /// Odd while the three below are being changed.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    unit: AtomicUsize,
    faults: AtomicU64,
    /// A bit for each unit that has faulted; null: none has.
    bad: AtomicPtr<AtomicU64>,
    /// There was no memory for such a bitmap: all of it counts as faulted.
    all: AtomicBool,
}

/// A guarded range, as it was at one moment.
#[derive(Debug, Clone, Copy)]
struct Guarded {
    start: usize,
    len: usize,
    unit: usize,
}

impl Guarded {
    fn holds(&self, addr: usize) -> bool {
        addr >= self.start && addr - self.start < self.len
    }

    /// Which of its units an address lies in, or the next one.
    fn index(&self, addr: usize) -> usize {
        (addr / self.unit).saturating_sub(self.start / self.unit)
    }

    /// Words of a bitmap of its units, the first and last in part.
    fn words(&self) -> usize {
        (self.len / self.unit + 2).div_ceil(64)
    }
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        unit: AtomicUsize::new(0),
        faults: AtomicU64::new(0),
        bad: AtomicPtr::new(std::ptr::null_mut()),
        all: AtomicBool::new(false),
    }
}; SLOTS];

/// A guarded page of this process has faulted: from here on every access asks
/// whether it meets such a page.
static HAPPENED: AtomicBool = AtomicBool::new(false);

/// Whether any guarded page has faulted so far. Asked after a load, it covers
/// that load: the page is on record before zeros take its place.
#[inline]
pub(super) fn happened() -> bool {
    // The load that is asked about stays before this one.
    fence(Ordering::Acquire);
    HAPPENED.load(Ordering::Relaxed)
}

/// Says that some region has faulted. A backend whose
/// [`faults`](super::PmemBackend::faults) grows for another reason than the
/// SIGBUS that is guarded here, such as a write-out that failed, calls this
/// after it has counted: as long as nobody has, no backend is asked.
pub fn note_fault() {
    HAPPENED.store(true, Ordering::Release);
}

/// One more than the highest slot ever taken: bounds the handler's search.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Registration of a mapping with the SIGBUS handler, for as long as it lives.
#[derive(Debug)]
pub(super) struct Guard {
    slot: Option<usize>,
}

impl Guard {
    /// Guards `base..base+len`. `unit`: the piece that is replaced on a fault,
    /// a power of two; a page, or more where the kernel cannot split.
    pub(super) fn new(base: *mut u8, len: usize, unit: usize) -> Guard {
        let free = TABLE.iter().position(|s| {
            !s.taken.load(Ordering::Relaxed)
                && s.taken
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        });
        let Some(i) = free else {
            tracing::warn!(
                "{SLOTS} mappings are guarded already: a bad page in a further one ends the process"
            );
            return Guard { slot: None };
        };
        let slot = &TABLE[i];
        slot.faults.store(0, Ordering::Relaxed);
        HIGH_WATER.fetch_max(i + 1, Ordering::Relaxed);
        // Last: from here on the handler finds the slot.
        slot.set(Guarded {
            start: base as usize,
            len,
            unit: unit.max(rustix::param::page_size()),
        });
        Guard { slot: Some(i) }
    }

    /// Faults taken so far.
    #[inline]
    pub(super) fn faults(&self) -> u64 {
        self.slot
            .map_or(0, |i| TABLE[i].faults.load(Ordering::Acquire))
    }

    /// Whether a range touches a page that has faulted.
    #[inline]
    pub(super) fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        self.slot.is_some_and(|i| {
            TABLE[i].faults.load(Ordering::Acquire) != 0 && TABLE[i].covers(ptr as usize, len)
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(i) = self.slot {
            TABLE[i].clear();
            TABLE[i].taken.store(false, Ordering::Release);
        }
    }
}

impl Slot {
    /// By who has taken the slot, and nobody else.
    fn set(&self, range: Guarded) {
        self.version.fetch_add(1, Ordering::Relaxed);
        // Who sees one of the stores below sees the odd number, too.
        fence(Ordering::Release);
        self.start.store(range.start, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.unit.store(range.unit, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The range, if there is one. A slot that is being changed names none: the
    /// guard of a mapping that has just faulted stays as it is.
    fn get(&self) -> Option<Guarded> {
        let before = self.version.load(Ordering::Acquire);
        let range = Guarded {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            unit: self.unit.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let same = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        (same && range.start != 0).then_some(range)
    }

    fn clear(&self) {
        let words = self.get().map_or(0, |range| range.words());
        self.set(Guarded {
            start: 0,
            len: 0,
            unit: 0,
        });
        self.all.store(false, Ordering::Relaxed);
        let bad = self.bad.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !bad.is_null() {
            unmap_bits(bad, words);
        }
    }

    fn covers(&self, start: usize, len: usize) -> bool {
        let Some(range) = self.get() else {
            return false;
        };
        if self.all.load(Ordering::Acquire) {
            return true;
        }
        let bad = self.bad.load(Ordering::Acquire);
        if bad.is_null() || len == 0 {
            return false;
        }
        let last = range.index(start.saturating_add(len - 1)) + 1;
        let (mut at, end) = (range.index(start), last.min(range.words() * 64));
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let mask = u64::MAX >> (64 - n) << (at % 64);
            // SAFETY: the bitmap has words() words, of which this is one, and is
            // unmapped only by the drop of the guard that this call borrows.
            if unsafe { &*bad.add(at / 64) }.load(Ordering::Acquire) & mask != 0 {
                return true;
            }
            at += n;
        }
        false
    }

    /// Runs in the signal handler.
    fn note(&self, range: &Guarded, addr: usize) {
        match self.bits(range) {
            Some(bits) => {
                let at = range.index(addr);
                // SAFETY: the bitmap has a bit for each unit of the range, in
                // which the address lies, and lives as long as the guard, whose
                // mapping is being accessed.
                let word = unsafe { &*bits.add(at / 64) };
                word.fetch_or(1 << (at % 64), Ordering::AcqRel);
            }
            None => self.all.store(true, Ordering::Release),
        }
        self.faults.fetch_add(1, Ordering::Release);
    }

    /// The bitmap, made by who needs it first. Runs in the signal handler.
    fn bits(&self, range: &Guarded) -> Option<*mut AtomicU64> {
        let there = self.bad.load(Ordering::Acquire);
        if !there.is_null() {
            return Some(there);
        }
        // SAFETY: a new anonymous mapping where the kernel chooses, zeroed, and
        // any value of its words is valid.
        let made = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                range.words() * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if made == libc::MAP_FAILED {
            return None;
        }
        let made = made.cast::<AtomicU64>();
        let none = std::ptr::null_mut();
        match (self.bad).compare_exchange(none, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(made),
            Err(other) => {
                unmap_bits(made, range.words());
                Some(other)
            }
        }
    }
}

fn unmap_bits(bits: *mut AtomicU64, words: usize) {
    // SAFETY: a bitmap of so many words, mapped by `Slot::bits`, to which nobody
    // has a reference any more.
    let _ = unsafe { libc::munmap(bits.cast(), words * size_of::<AtomicU64>()) };
}

/// What was installed before us. Written once, before our handler is in place.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written only inside `INSTALL.call_once`, before the handler that
// reads it is installed; read-only from then on.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALL: Once = Once::new();
static INSTALL_ERRNO: AtomicUsize = AtomicUsize::new(0);
/// The handler before us was to run once (SA_RESETHAND), and has run.
static SPENT: AtomicBool = AtomicBool::new(false);

/// Installs the process-wide SIGBUS handler, once. Opening a region does so
/// ([`RegionOptions::fault_guard`](super::RegionOptions::fault_guard)); a program
/// calls it for a region of its own backend, or to choose the moment: after other
/// libraries have installed their handlers, which get what is not a region's.
/// A handler that is installed later takes its place; one that does not pass on
/// what is a region's ends the process where a page fails. That is looked for at
/// each call, and a line of the log tells of it.
///
/// The handler that was there before runs as if it were in place alone, with its
/// `sa_mask`, SA_SIGINFO, SA_NODEFER and SA_RESETHAND. Two of its flags are not
/// kept: it runs on the alternative stack where the thread has one, and a system
/// call that a signal of another process interrupts is started again.
///
/// # Errors
/// [`PmemError::Os`] if the system refuses the handler.
pub fn install_fault_guard() -> Result<(), PmemError> {
    INSTALL.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value to fill in.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the pointers are valid for the calls. PREVIOUS is filled
        // before our handler, its only other reader, can run. The signals that
        // its handler blocks are blocked from the start, as by the kernel.
        let failed = unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get().cast()) != 0 || {
                let previous = (*PREVIOUS.0.get()).assume_init_ref();
                if !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                    action.sa_mask = previous.sa_mask;
                }
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0
            }
        };
        if failed {
            let errno = std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL);
            INSTALL_ERRNO.store(errno as usize, Ordering::Release);
        }
    });
    match INSTALL_ERRNO.load(Ordering::Acquire) {
        0 => {
            if !is_in_place() {
                tracing::warn!(
                    "another handler of SIGBUS has taken the place of that for regions: unless it passes on what is not its own, a page that fails ends the process"
                );
            }
            Ok(())
        }
        e => Err(PmemError::Os {
            what: "cannot install a handler for",
            path: "SIGBUS".into(),
            source: std::io::Error::from_raw_os_error(e as i32),
        }),
    }
}

/// Whether nobody has installed another handler since, or put back an older one.
fn is_in_place() -> bool {
    // SAFETY: an all-zero sigaction is a valid value to fill in.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; `now` outlives the call.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut now) };
    asked != 0 || now.sa_sigaction == on_sigbus as *const () as usize
}

/// `si_code` of a signal that a process sent, and not the processor.
fn was_sent(code: i32) -> bool {
    code <= 0
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and
    // si_addr is set for a SIGBUS that the processor raised.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if was_sent(code) || !cover_page(addr) {
        chain(signal, info, context, code);
    }
}

/// Maps zeros over the page of a guarded mapping that holds `addr`.
fn cover_page(addr: usize) -> bool {
    for slot in &TABLE[..HIGH_WATER.load(Ordering::Relaxed)] {
        let Some(range) = slot.get().filter(|range| range.holds(addr)) else {
            continue;
        };
        let unit = range.unit;
        let page = addr & !(unit - 1);
        // SAFETY: errno is thread-local; it is kept for the interrupted code.
        let errno = unsafe { *libc::__errno_location() };
        // On record first: another thread may load from the zeros as soon as
        // they are there.
        slot.note(&range, addr);
        HAPPENED.store(true, Ordering::Release);
        // SAFETY: the page lies in a mapping of this library (its guard lives,
        // or the faulting access would itself be outside any mapping), whose
        // users allow for contents that change, and count faults.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                unit,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        return true;
    }
    false
}

/// Hands a fault that is not ours to the handler before us; where there was
/// none, the default takes its course when the access is run again.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    // SAFETY: PREVIOUS was filled before this handler was installed.
    let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    let handler = match previous.sa_sigaction {
        none @ (libc::SIG_DFL | libc::SIG_IGN) => none,
        _ if once && SPENT.swap(true, Ordering::Relaxed) => libc::SIG_DFL,
        handler => handler,
    };
    match handler {
        libc::SIG_IGN if was_sent(code) => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: sigaction and raise are async-signal-safe; a zeroed
            // action is SIG_DFL with an empty mask.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, std::ptr::null_mut());
                if was_sent(code) {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the previous owner gave a function of
            // exactly this type.
            let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            deferring(signal, previous, || call(signal, info, context));
        }
        handler => {
            // SAFETY: without SA_SIGINFO the handler takes the signal alone.
            let call: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            deferring(signal, previous, || call(signal));
        }
    }
}

/// Runs the handler before us with the signal itself blocked or not, as that one
/// has asked for: in ours it is. The rest of its mask is ours, too.
fn deferring(signal: i32, previous: &libc::sigaction, run: impl FnOnce()) {
    // SAFETY: a set that sigaction has filled in.
    let masked = unsafe { libc::sigismember(&previous.sa_mask, signal) } == 1;
    if masked || previous.sa_flags & libc::SA_NODEFER == 0 {
        return run();
    }
    // SAFETY: all-zero sets are valid to fill in; all calls are async-signal-safe.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    run();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::tests::{disk, shm};
    use crate::pmem::{BackendKind, RegionOptions};

    /// Cuts the file under its mapping: reads fail, and there is a count.
    fn cut_under_mapping(dir: &std::path::Path, backend: BackendKind) {
        install_fault_guard().unwrap();
        let path = dir.join(format!("cut-{}-{backend:?}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let region = RegionOptions::new()
            .backend(backend)
            .create(&path, 1 << 20)
            .unwrap();
        let w = region.window();
        let pending = w.store(600_000, b"there").unwrap();
        w.fence(pending);
        assert_eq!(region.faults(), 0);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        // The access that faults says so itself: what it got are zeros.
        let mut bytes = [1u8; 5];
        let mut fails = |offset: u64| {
            let at =
                |e: &PmemError| matches!(e, PmemError::Faulted { offset: o, .. } if *o == offset);
            region.read(offset, &mut bytes).is_err_and(|e| at(&e))
        };
        assert!(fails(600_000));
        assert_eq!(region.faults(), 1);
        assert!(region.is_faulted(600_000, 1));
        assert!(region.is_faulted(598_000, 4096));
        assert!(!region.is_faulted(0, 8192));
        region.load_u64(0).unwrap();
        // The page is zeros now and does not fault again; the next one does.
        assert!(fails(600_000));
        assert_eq!(region.faults(), 1);
        assert!(fails(700_000));
        assert_eq!(region.faults(), 2);
        // However many there are, each counts for itself.
        for page in 100..140u64 {
            assert!(fails(page * 4096));
        }
        assert!(!region.is_faulted(0, 100 * 4096) && region.is_faulted(0, 100 * 4096 + 1));
        assert!(!region.is_faulted(140 * 4096, 4096));
        region.load_u64(0).unwrap();
        drop(region);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn cut_tmpfs_file() {
        for backend in [BackendKind::Native, BackendKind::Auto] {
            cut_under_mapping(shm().path(), backend);
        }
    }

    #[test]
    fn cut_ordinary_file() {
        for backend in [BackendKind::Native, BackendKind::Auto] {
            cut_under_mapping(disk().path(), backend);
        }
    }

    /// A huge page is replaced whole: the kernel splits no such mapping.
    #[test]
    fn cut_hugetlbfs_file() {
        let Some(pool) = crate::pmem::huge_pool::HugePool::borrow(2) else {
            return;
        };
        install_fault_guard().unwrap();
        let path = pool.dir().join("r");
        let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        assert!(region.load_u64((2 << 20) + 4096).is_err());
        assert!(region.load_u64(3 << 20).is_err());
        assert_eq!(region.faults(), 1);
        assert!(region.is_faulted(2 << 20, 1) && !region.is_faulted(0, 2 << 20));
    }

    /// No room for a page is a fault as a bad page is.
    #[test]
    fn full_file_system() {
        use rustix::mount as m;
        let mount = || -> rustix::io::Result<std::os::fd::OwnedFd> {
            let fs = m::fsopen("tmpfs", m::FsOpenFlags::FSOPEN_CLOEXEC)?;
            m::fsconfig_set_string(&fs, "size", "64k")?;
            m::fsconfig_create(&fs)?;
            m::fsmount(
                &fs,
                m::FsMountFlags::FSMOUNT_CLOEXEC,
                m::MountAttrFlags::empty(),
            )
        };
        let mount = match mount() {
            Ok(mount) => mount,
            Err(e) => {
                return crate::pmem::tests::skipped(format_args!("full tmpfs: {e} (run as root)"));
            }
        };
        install_fault_guard().unwrap();
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}/r", mount.as_raw_fd());
        let e = RegionOptions::new()
            .preallocate(true)
            .create(&path, 1 << 20)
            .unwrap_err();
        assert_eq!(e.errno(), libc::ENOSPC);
        let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
        let w = region.window();
        w.fence(w.nt_zero(0, 1 << 20).unwrap());
        assert!(region.faults() > 0);
        assert!(region.is_faulted(1 << 19, 1 << 19));
    }

    #[test]
    fn guards_come_and_go() {
        for _ in 0..3 * SLOTS {
            let g = Guard::new(0x1000 as *mut u8, 0, 4096);
            assert!(g.slot.is_some());
        }
    }

    /// Two guards come and go in one slot: a start is never read with the length
    /// of the other.
    #[test]
    fn a_guard_that_changes_is_read_whole() {
        const SHORT: usize = 0x1_0000_0000;
        const LONG: usize = 0x9_0000_0000;
        let found = |addr| {
            let mut slots = TABLE[..HIGH_WATER.load(Ordering::Relaxed)].iter();
            slots.any(|slot| slot.get().is_some_and(|range| range.holds(addr)))
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(Guard::new(SHORT as *mut u8, 4096, 4096));
                    drop(Guard::new(LONG as *mut u8, 1 << 31, 4096));
                }
            });
            for _ in 0..400_000 {
                assert!(!found(SHORT + (1 << 30)));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    const CHILD: &str = "PRAMFS_TEST_FAULT_ELSEWHERE";

    /// A fault outside every region kills, as it did before.
    #[test]
    fn fault_elsewhere_is_passed_on() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os(CHILD).is_some() {
            install_fault_guard().unwrap();
            let fd = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // SAFETY: a new mapping where the kernel chooses. It has no pages
            // behind it, so the read below faults: that is the test.
            let p = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    4096,
                    rustix::mm::ProtFlags::READ,
                    rustix::mm::MapFlags::SHARED,
                    &fd,
                    0,
                )
                .unwrap()
            };
            // SAFETY: as above.
            let _ = unsafe { p.cast::<u8>().read_volatile() };
            std::process::exit(0);
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "pmem::fault::tests::fault_elsewhere_is_passed_on",
            ])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS));
    }

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    /// The signals among three that are blocked, as digits.
    fn blocked() -> usize {
        // SAFETY: an all-zero set is valid to fill in, and no mask changes.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut now);
            [libc::SIGBUS, libc::SIGUSR1, libc::SIGUSR2]
                .into_iter()
                .fold(0, |all, s| all * 10 + libc::sigismember(&now, s) as usize)
        }
    }

    /// A handler of another library. It sends its signal again where it asked not
    /// to have that deferred, and so runs twice, one inside the other.
    extern "C" fn of_another(signal: i32) {
        let n = SEEN.fetch_add(1, Ordering::Relaxed);
        println!("run {n}, blocked {:03}", blocked());
        if n == 0 {
            // SAFETY: async-signal-safe.
            unsafe { libc::raise(signal) };
            println!("run {n} goes on");
        }
    }

    /// What a process says, and how it ends, that has this handler for SIGBUS and
    /// is sent two of them.
    fn with_handler(flags: i32, masked: &str, guarded: bool) -> (Vec<String>, Option<i32>) {
        use std::os::unix::process::ExitStatusExt;
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("pmem::fault::tests::handler_before_the_guard_runs_as_it_would_without_it")
            .env(CHILD, format!("{flags} {masked} {guarded}"))
            .output()
            .unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        let lines = said
            .lines()
            .filter(|l| l.contains("blocked") || l.contains("goes on"));
        (lines.map(str::to_owned).collect(), out.status.signal())
    }

    fn child_with_handler(asked: &str) {
        let mut asked = asked.split(' ');
        let mut next = || asked.next().unwrap();
        let flags: i32 = next().parse().unwrap();
        // SAFETY: an all-zero sigaction is valid to fill in; the handler takes what
        // the flags say, or ignores the rest.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = of_another as *const () as usize;
            action.sa_flags = flags;
            libc::sigemptyset(&mut action.sa_mask);
            for signal in next().split(',') {
                libc::sigaddset(&mut action.sa_mask, signal.parse().unwrap());
            }
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
        if next() == "true" {
            install_fault_guard().unwrap();
        }
        println!("blocked {:03} at first", blocked());
        // SAFETY: of the process's own handler.
        unsafe { libc::raise(libc::SIGBUS) };
        println!("blocked {:03} in between", blocked());
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGBUS) };
        println!("blocked {:03} at last", blocked());
    }

    #[test]
    fn handler_before_the_guard_runs_as_it_would_without_it() {
        if let Ok(asked) = std::env::var(CHILD) {
            return child_with_handler(&asked);
        }
        let (usr1, bus) = (
            libc::SIGUSR1.to_string(),
            format!("{},{}", libc::SIGUSR2, libc::SIGBUS),
        );
        let (info, nodefer, once) = (libc::SA_SIGINFO, libc::SA_NODEFER, libc::SA_RESETHAND);
        for flags in [0, info, nodefer, info | nodefer, once, once | nodefer] {
            for masked in [&usr1, &bus] {
                let without = with_handler(flags, masked, false);
                let with = with_handler(flags, masked, true);
                assert_eq!(with, without, "flags {flags:#x}, mask {masked}");
                let dies = (flags & once != 0).then_some(libc::SIGBUS);
                assert_eq!(without.1, dies);
                assert!(without.0.len() >= 2, "{without:?}");
            }
        }
    }

    /// As a library does that puts back what it found before it was ours.
    #[test]
    fn handler_that_another_has_replaced_is_noticed() {
        if std::env::var_os(CHILD).is_some() {
            install_fault_guard().unwrap();
            let before = is_in_place();
            // SAFETY: a zeroed action is SIG_DFL with an empty mask.
            let replaced = unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(libc::SIGBUS, &default, std::ptr::null_mut())
            };
            let after = is_in_place();
            std::process::exit(i32::from(!(before && replaced == 0 && !after)));
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "pmem::fault::tests::handler_that_another_has_replaced_is_noticed",
            ])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }
}
