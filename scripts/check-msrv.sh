#!/usr/bin/env bash
# Checks that everything compiles with the oldest supported compiler, `rust-version` in
# Cargo.toml. rustup installs it if it is missing. If that fails, the last line says
# SKIPPED, which is a failure in CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

skip() {
    printf '\ncheck-msrv: *** SKIPPED: %s: nothing was checked ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ -n $version ]] || {
    echo "check-msrv: Cargo.toml has no rust-version" >&2
    exit 1
}
command -v rustup >/dev/null || skip "rustup is missing, so Rust $version cannot be installed"
if ! RUSTUP_AUTO_INSTALL=0 cargo "+$version" --version >/dev/null 2>&1; then
    echo "check-msrv: installing Rust $version"
    rustup toolchain install "$version" --profile minimal || skip "Rust $version could not be installed"
fi
echo "check-msrv: $(rustc "+$version" --version)"

# In two calls, as in scripts/test.sh: pramfs-tests turns on test hooks of the engine.
cargo "+$version" check --locked --all-targets &&
    cargo "+$version" check --locked -p pramfs -p pramfs-fsck --all-targets &&
    cargo "+$version" check --locked -p pramfs-tests --all-targets ||
    exit 1
echo "check-msrv: everything compiles with Rust $version"
