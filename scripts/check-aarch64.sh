#!/usr/bin/env bash
# Checks that the libraries and the programs compile for aarch64, without the libpmem2 backend, and
# without `pramfs save`, whose library in C needs a compiler for the target. Nothing is linked or run.
# rustup installs the target if it is missing. If that fails, the last line says
# SKIPPED, which is a failure in CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
target=aarch64-unknown-linux-gnu

skip() {
    printf '\ncheck-aarch64: *** SKIPPED: %s: nothing was checked ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

has_target() { [[ -d $(rustc --print target-libdir --target "$target" 2>/dev/null) ]]; }

if ! has_target; then
    command -v rustup >/dev/null || skip "rustup is missing, so the target $target cannot be installed"
    echo "check-aarch64: installing the target $target"
    rustup target add "$target" || true
    has_target || skip "the target $target could not be installed"
fi
RUSTFLAGS="${RUSTFLAGS:-} -D warnings" cargo check --locked --target "$target" --no-default-features \
    -p pramfs -p pramfs-fsck -p pramfs-control -p pramfs-fuse-protocol -p pramfs-tools -p pramfs-fuse -p pramfs-capi -p pramfs-preload --lib --bins || exit 1
echo "check-aarch64: the library and the programs compile for $target"
