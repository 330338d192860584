//! Finds the system's libpmem2.
fn main() {
    // docs.rs only reads the declarations, and does not have the library.
    if std::env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Err(e) = pkg_config::Config::new()
        .atleast_version("1.9")
        .probe("libpmem2")
    {
        panic!(
            "libpmem2 was not found: {e}\n\
             Install it (Debian: apt-get install libpmem2-dev), or build without it, which leaves the\n\
             backend `native`: cargo build --no-default-features, or default-features = false where\n\
             pramfs is a dependency."
        );
    }
}
