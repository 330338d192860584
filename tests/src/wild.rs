//! Wild stores: stores to places where nobody should store, and what the processor says of
//! those that it refuses.
//!
//! A refused store raises SIGSEGV. The handler reports the place that the kernel names, and
//! lets the thread go on behind the store. Any other SIGSEGV ends the process as ever.

use std::ops::Range;
use std::sync::Once;

/// A store that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The place, as the kernel reports it.
    pub place: usize,
    /// The reason: a `SEGV_` value.
    pub code: i32,
}

/// The page does not allow stores.
pub const SEGV_ACCERR: i32 = 2;
/// The key of the page is closed.
pub const SEGV_PKUERR: i32 = 4;

/// Returns the addresses of each mapping of a file whose name contains `name`.
///
/// # Panics
/// If the kernel does not show them.
pub fn mappings(name: &str) -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has mappings");
    let address = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    maps.lines()
        .filter(|line| line.contains(name))
        .map(|line| {
            let (range, _) = line.split_once(' ').expect("a mapping");
            let (start, end) = range.split_once('-').expect("a range");
            address(start)..address(end)
        })
        .collect()
}

/// Stores a word at an address that must be mapped, and should be protected.
///
/// # Errors
/// The processor has refused it.
///
/// # Safety
/// Nothing that the language knows lies there: a stray store breaks whatever does.
#[cfg(target_arch = "x86_64")]
pub unsafe fn store(at: usize, value: u64) -> Result<(), Refused> {
    install();
    // SAFETY: the function stores one word, by contract to no object of the language. If the
    // store is refused, the handler goes on behind it.
    let refused = unsafe { pramfs_wild_store(std::ptr::without_provenance_mut(at), value) };
    match refused.place {
        0 => Ok(()),
        place => Err(Refused {
            place,
            code: refused.code as i32,
        }),
    }
}

/// Runs `handler` as a handler of SIGUSR1 on this thread, which interrupts this call.
///
/// # Panics
/// If the system refuses the handler.
pub fn in_signal_handler(handler: extern "C" fn(i32)) {
    // SAFETY: the action is filled in; the handler is a function of this program. raise
    // returns when the handler has.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_NODEFER;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
    }
}

/// Raises SIGUSR1 and jumps out of its handler, which never returns.
#[cfg(target_arch = "x86_64")]
pub fn jump_out_of_signal_handler() {
    extern "C" fn jump(_: i32) {
        // SAFETY: `raised` below is on this stack, in `pramfs_until_jump`, and the frames in
        // between have nothing to destroy: those of raise and of the kernel.
        unsafe { pramfs_jump() }
    }
    extern "C" fn raised() {
        in_signal_handler(jump);
    }
    // SAFETY: saves the registers that a call keeps, and calls the function, whose frames the
    // jump leaves.
    unsafe { pramfs_until_jump(raised) }
}

#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Said {
    place: usize,
    code: u64,
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn pramfs_wild_store(at: *mut u64, value: u64) -> Said;
    static pramfs_wild_store_at: u8;
    static pramfs_wild_store_end: u8;
    fn pramfs_until_jump(call: extern "C" fn());
    fn pramfs_jump() -> !;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".globl pramfs_wild_store, pramfs_wild_store_at, pramfs_wild_store_end",
    ".type pramfs_wild_store, @function",
    "pramfs_wild_store:",
    "xor eax, eax",
    "xor edx, edx",
    "pramfs_wild_store_at:",
    "mov qword ptr [rdi], rsi",
    "pramfs_wild_store_end:",
    "ret",
    ".globl pramfs_until_jump, pramfs_jump",
    ".type pramfs_until_jump, @function",
    "pramfs_until_jump:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov qword ptr [rip + pramfs_jump_stack], rsp",
    "call rdi",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".type pramfs_jump, @function",
    "pramfs_jump:",
    "mov rsp, qword ptr [rip + pramfs_jump_stack]",
    "jmp 2b",
    ".local pramfs_jump_stack",
    ".comm pramfs_jump_stack, 8, 8",
);

#[cfg(target_arch = "x86_64")]
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the action is filled in; the handler has the type of SA_SIGINFO.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigsegv as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let failed = libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            assert_eq!(failed, 0, "a handler of SIGSEGV");
        }
    });
}

#[cfg(target_arch = "x86_64")]
extern "C" fn on_sigsegv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo and a context, which are valid until the handler
    // returns. The registers belong to the interrupted store, which returns what they hold.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = (&raw const pramfs_wild_store_at).addr() as i64;
        if registers[libc::REG_RIP as usize] != at {
            // The access is repeated, and ends the process.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        registers[libc::REG_RAX as usize] = (*info).si_addr().addr() as i64;
        registers[libc::REG_RDX as usize] = i64::from((*info).si_code);
        registers[libc::REG_RIP as usize] = (&raw const pramfs_wild_store_end).addr() as i64;
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn store_to_page_without_rights_is_reported_with_place() {
        let fd = rustix::fs::memfd_create("wild-store", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        for (prot, refused) in [
            (rustix::mm::ProtFlags::READ, true),
            (
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                false,
            ),
        ] {
            // SAFETY: a new mapping, of which nothing else knows.
            unsafe {
                let flags = rustix::mm::MapFlags::SHARED;
                let none = std::ptr::null_mut();
                let page = rustix::mm::mmap(none, 8192, prot, flags, &fd, 0).unwrap();
                let at = page.addr() + 4096 + 16;
                let expected = refused.then_some(Refused {
                    place: at,
                    code: SEGV_ACCERR,
                });
                assert_eq!(store(at, 5).err(), expected);
                assert_eq!(mappings("memfd:wild-store").len(), 1);
                rustix::mm::munmap(page, 8192).unwrap();
            }
        }
    }

    #[test]
    fn jump_leaves_the_handler_and_keeps_what_lives() {
        let kept = vec![1, 2, 3];
        for _ in 0..100 {
            jump_out_of_signal_handler();
        }
        assert_eq!(kept, [1, 2, 3]);
    }
}
