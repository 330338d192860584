//! What the environment of the program asks for, read once at the start.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use pramfs_client::Protect;
use pramfs_preload_core::settings::Protection;

struct Settings {
    appends: bool,
    filter_is_harmless: bool,
    protect: Protect,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Whether files may grow without the kernel: `PRAMFS_PRELOAD_APPEND` is 1.
pub(crate) fn may_append() -> bool {
    SETTINGS.get().is_some_and(|settings| settings.appends)
}

/// Whether a seccomp filter with which the program starts allows what the library calls:
/// `PRAMFS_PRELOAD_FILTERED` is 1.
pub(crate) fn filter_is_harmless() -> bool {
    SETTINGS
        .get()
        .is_some_and(|settings| settings.filter_is_harmless)
}

/// What keeps stray stores of the program from the region: `PRAMFS_PRELOAD_PROTECT`.
pub(crate) fn protection() -> Protect {
    SETTINGS
        .get()
        .map_or(Protect::Off, |settings| settings.protect)
}

/// Reads the variables. No other thread changes variables meanwhile.
pub(crate) fn start() {
    let _ = SETTINGS.set(Settings {
        appends: variable(c"PRAMFS_PRELOAD_APPEND").first() == Some(&b'1'),
        filter_is_harmless: variable(c"PRAMFS_PRELOAD_FILTERED") == b"1",
        protect: protection_of(variable(c"PRAMFS_PRELOAD_PROTECT")),
    });
}

fn protection_of(value: &[u8]) -> Protect {
    match Protection::of(value) {
        Protection::Off => Protect::Off,
        Protection::Auto => Protect::Auto,
        Protection::Key => Protect::Pkey,
    }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// Returns a variable, empty if it is not set.
fn variable(name: &CStr) -> &[u8] {
    set_variable(name).map_or(b"", CStr::to_bytes)
}

/// Returns a variable. None is set in a program that has more rights than the user who
/// started it. The caller looks at it before the program can change it.
pub(crate) fn set_variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends with a zero. `start` runs before the program has threads.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a variable that is set is a string.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}
