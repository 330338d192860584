//! Gives the shared library its name at run time: `libpramfs.so.1`.

/// The version of the binary interface, as the file of the library is named. Not the version of
/// pramfs: the first number is raised by a release that breaks programs which are not compiled
/// again, the second by one that adds functions, the third by any other. The Makefile and the
/// packages read it here.
const ABI: &str = "1.0.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = ABI.split('.').next().unwrap_or(ABI);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpramfs.so.{major}");
}
