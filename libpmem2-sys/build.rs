//! Finds the system's libpmem2.
fn main() {
    if let Err(e) = pkg_config::Config::new()
        .atleast_version("1.9")
        .probe("libpmem2")
    {
        panic!("libpmem2 was not found (Debian: apt-get install libpmem2-dev): {e}");
    }
}
