//! Gives the shared library its name at run time: `libpramfs.so.MAJOR`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpramfs.so.{major}");
}
