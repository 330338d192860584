//! Finds the system's libpmem2.
fn main() {
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
