use super::*;
use crate::library::NAMES;

/// The library of this machine, which the requirements of the tests include.
fn library() -> Option<&'static Libpmem2> {
    match Libpmem2::get() {
        Ok(library) => Some(library),
        Err(error) => {
            eprintln!("*** SKIPPED: {error} ***");
            assert!(std::env::var_os("CI").is_none(), "a skipped test in CI");
            None
        }
    }
}

#[test]
fn library_call_succeeds() {
    let Some(library) = library() else { return };
    let mut cfg = core::ptr::null_mut();
    // SAFETY: `cfg` is a valid place for the new object, which is deleted
    // below and not used after that.
    unsafe {
        assert_eq!(library.pmem2_config_new(&mut cfg), 0);
        assert!(!cfg.is_null());
        let set = |g| library.pmem2_config_set_required_store_granularity(cfg, g);
        assert_eq!(set(PMEM2_GRANULARITY_PAGE), 0);
        assert_eq!(set(77), PMEM2_E_GRANULARITY_NOT_SUPPORTED);
        assert_eq!(library.pmem2_config_delete(&mut cfg), 0);
    }
    assert!(cfg.is_null());
}

#[test]
fn bad_descriptor_gets_code_of_the_constants() {
    let Some(library) = library() else { return };
    let mut src = core::ptr::null_mut();
    // SAFETY: `src` is a valid place; the library refuses -1.
    let code = unsafe { library.pmem2_source_from_fd(&mut src, -1) };
    assert_eq!(code, PMEM2_E_INVALID_FILE_HANDLE);
    assert!(src.is_null());
}

#[test]
fn missing_library_names_itself_and_the_package() {
    let error = Libpmem2::load("libpmem2-missing.so.1").unwrap_err();
    let LoadError::Missing { name, why } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "libpmem2-missing.so.1");
    assert!(why.contains("No such file"), "{why}");
    let text = error.to_string();
    assert!(text.contains("apt-get install libpmem2"), "{text}");
    assert_eq!(text.matches("libpmem2-missing.so.1").count(), 1, "{text}");
}

#[test]
fn library_without_a_function_is_refused_by_name_of_the_function() {
    // Any library that is no libpmem2 stands for one that is too old.
    let error = Libpmem2::load("libc.so.6").unwrap_err();
    assert_eq!(
        error,
        LoadError::TooOld {
            name: "libc.so.6".into(),
            symbol: "pmem2_source_from_fd",
        }
    );
    assert!(
        error.to_string().contains("install a newer libpmem2"),
        "{error}"
    );
}

/// Each function is one of the header, so a name with a slip is not taken for an old library.
#[test]
fn functions_are_those_of_the_header() {
    let mut text = std::fs::read_to_string("/usr/include/libpmem2.h").unwrap_or_default();
    for part in std::fs::read_dir("/usr/include/libpmem2")
        .into_iter()
        .flatten()
    {
        text += &std::fs::read_to_string(part.unwrap().path()).unwrap();
    }
    if text.is_empty() {
        eprintln!("*** SKIPPED: libpmem2.h is missing: apt-get install libpmem2-dev ***");
        assert!(std::env::var_os("CI").is_none(), "a skipped test in CI");
        return;
    }
    for name in NAMES {
        assert!(text.contains(&format!("{name}(")), "{name}");
    }
}
