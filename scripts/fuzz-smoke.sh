#!/usr/bin/env bash
# Runs each fuzz target for a minute with the nightly compiler. scripts/fuzz.sh runs
# them for longer, and also without nightly.
#
# If a tool is missing, the last line says SKIPPED, which is a failure in CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

skip() {
    printf '\nfuzz-smoke: *** SKIPPED: %s: nothing was run ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

cargo fuzz --version >/dev/null 2>&1 || skip "cargo-fuzz is missing (cargo install cargo-fuzz --locked)"
RUSTUP_AUTO_INSTALL=0 cargo +nightly --version >/dev/null 2>&1 ||
    skip "no nightly compiler is installed (rustup toolchain install nightly)"
exec scripts/fuzz.sh "${FUZZ_TIME:-60}"
