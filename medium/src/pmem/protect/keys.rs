//! Protection keys of the processor (pkeys(7)): rights that belong to a thread.
//!
//! A page with a key can be accessed by a thread whose register PKRU allows it. The kernel
//! starts a process with rights to key 0 alone, gives a new thread the rights of the thread
//! that creates it, and runs a signal handler with the rights of a new process. What a handler
//! changes ends with it: its return restores the rights of the interrupted code. So a key that
//! was never opened is closed in every thread and in every handler, for loads too.
//!
//! Not handled here: when a key is opened ([`protect`](super)).

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Why there is no key for a region.
#[derive(Debug)]
pub(in crate::pmem) enum NoKey {
    /// This build does not know the keys of the processor, or must not use them.
    #[cfg_attr(
        all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)),
        allow(dead_code, reason = "this build uses them")
    )]
    Build,
    /// The processor has none.
    Processor,
    /// The processor has keys that the kernel has not switched on.
    Kernel,
    /// The process has used them up.
    AllInUse,
    /// The system has refused one.
    Refused(std::io::Error),
}

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKey::Build => f.write_str("this build uses protection keys on x86_64 only"),
            NoKey::Processor => {
                f.write_str("the processor has no protection keys (no `pku` in /proc/cpuinfo)")
            }
            NoKey::Kernel => f.write_str(
                "the kernel leaves the protection keys of the processor off (booted with `nopku`, or built without them)",
            ),
            NoKey::AllInUse => {
                f.write_str("all protection keys of this process are in use (15 on x86_64)")
            }
            NoKey::Refused(e) => write!(f, "pkey_alloc(2) has failed: {e}"),
        }
    }
}

/// Held while keys are taken: a region finds none missing that are only being counted.
static TAKING: Mutex<()> = Mutex::new(());

/// Takes a key, closed.
pub(super) fn take() -> Result<Key, NoKey> {
    let _turn = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    Key::alloc()
}

/// Returns how many keys this process could still have: takes all, and gives them back.
pub(super) fn free() -> Result<u32, NoKey> {
    let _turn = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Vec::new();
    loop {
        match Key::alloc() {
            Ok(key) => all.push(key),
            Err(NoKey::AllInUse) => return Ok(all.len() as u32),
            Err(why) => return Err(why),
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
mod x86_64 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::ffi::{c_int, c_ulong};

    use super::NoKey;

    /// A key of this process. Every thread that has not opened it can neither load nor store
    /// through it.
    #[derive(Debug)]
    pub(in crate::pmem) struct Key {
        number: c_int,
    }

    /// `PKEY_DISABLE_ACCESS`.
    const CLOSED: c_ulong = 1;

    impl Key {
        /// See [`take`](super::take).
        pub(super) fn alloc() -> Result<Key, NoKey> {
            #[allow(unused_unsafe, reason = "CPUID is safe to call only from Rust 1.94 on")]
            // SAFETY: CPUID exists on every x86_64; leaf 7 is read only if it exists.
            let features = unsafe {
                if __cpuid_count(0, 0).eax >= 7 {
                    __cpuid_count(7, 0).ecx
                } else {
                    0
                }
            };
            match (features & 1 << 3 != 0, features & 1 << 4 != 0) {
                (false, _) => return Err(NoKey::Processor),
                (true, false) => return Err(NoKey::Kernel),
                (true, true) => {}
            }
            // SAFETY: takes no memory; the kernel sets the rights of this thread.
            let number = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as c_ulong, CLOSED) };
            if number > 0 {
                return Ok(Key {
                    number: number as c_int,
                });
            }
            let error = std::io::Error::last_os_error();
            Err(match error.raw_os_error() {
                Some(libc::ENOSPC) => NoKey::AllInUse,
                _ => NoKey::Refused(error),
            })
        }

        /// Protects a mapping by this key, readable and writable while it is open.
        ///
        /// # Safety
        /// The range is a mapping of the caller, without a user that has not opened the key.
        pub(in crate::pmem) unsafe fn protect(
            &self,
            base: *mut u8,
            len: usize,
        ) -> std::io::Result<()> {
            let rights = (libc::PROT_READ | libc::PROT_WRITE) as c_ulong;
            // SAFETY: changes the protection of a mapping that belongs to the caller.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_pkey_mprotect,
                    base,
                    len,
                    rights,
                    self.number as c_ulong,
                )
            };
            match done {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        }

        /// Both bits of this key in PKRU: no access, no stores.
        #[inline]
        fn bits(&self) -> u32 {
            3 << (2 * self.number)
        }

        /// Whether this thread has it open.
        #[inline]
        pub(in crate::pmem) fn is_open(&self) -> bool {
            rights() & self.bits() == 0
        }

        /// Opens it for this thread.
        #[inline]
        pub(in crate::pmem) fn open(&self) {
            set_rights(rights() & !self.bits());
        }

        /// Closes it for this thread.
        #[inline]
        pub(in crate::pmem) fn close(&self) {
            set_rights(rights() | self.bits());
        }
    }

    impl Drop for Key {
        fn drop(&mut self) {
            // SAFETY: the key was taken once and is given back once. Its owner has unmapped
            // what it protects.
            unsafe { libc::syscall(libc::SYS_pkey_free, self.number as c_ulong) };
        }
    }

    #[inline]
    fn rights() -> u32 {
        let rights: u32;
        // SAFETY: a key exists, so the kernel has switched the instruction on; it reads a
        // register of this thread.
        unsafe {
            asm!(
                "rdpkru",
                in("ecx") 0,
                out("eax") rights,
                out("edx") _,
                options(nomem, nostack, preserves_flags),
            );
        }
        rights
    }

    /// Loads and stores of the program stay on their side of the change: the compiler moves
    /// none across this block, which may access memory, and the processor executes none behind
    /// it before it.
    #[inline]
    fn set_rights(rights: u32) {
        // SAFETY: as in `rights`. Only bits of a key of this library change, which protects no
        // memory that the language knows.
        unsafe {
            asm!(
                "wrpkru",
                in("eax") rights,
                in("ecx") 0,
                in("edx") 0,
                options(nostack, preserves_flags),
            );
        }
    }
}
#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
pub(super) use x86_64::Key;

#[cfg(not(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize))))]
mod none {
    use super::NoKey;

    /// A key, of which there are none here.
    #[derive(Debug)]
    pub(in crate::pmem) enum Key {}

    impl Key {
        pub(super) fn alloc() -> Result<Key, NoKey> {
            Err(NoKey::Build)
        }

        /// # Safety
        /// Never called.
        pub(in crate::pmem) unsafe fn protect(
            &self,
            _base: *mut u8,
            _len: usize,
        ) -> std::io::Result<()> {
            match *self {}
        }

        pub(in crate::pmem) fn is_open(&self) -> bool {
            match *self {}
        }

        pub(in crate::pmem) fn open(&self) {
            match *self {}
        }

        pub(in crate::pmem) fn close(&self) {
            match *self {}
        }
    }
}
#[cfg(not(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize))))]
pub(super) use none::Key;
