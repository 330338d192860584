//! Sets `cfg(loom)` for this crate alone. As a flag of the compiler it would also reach
//! the dependencies, some of which know it.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
