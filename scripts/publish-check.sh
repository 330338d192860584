#!/usr/bin/env bash
# Packs the crates that users link as for crates.io, compiles each package outside the
# repository against the packages of the others, and uploads nothing. Needs cargo 1.90 or
# newer. If it cannot run, the last line says SKIPPED, which is a failure in CI.
#
#   scripts/publish-check.sh [ARGUMENTS of cargo publish]   e.g. --allow-dirty
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

skip() {
    printf '\npublish-check: *** SKIPPED: %s: nothing was checked ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

command -v cargo >/dev/null || skip "cargo is missing"
have=$(cargo --version | awk '{print $2}')
if [[ $(printf '1.90\n%s\n' "$have" | sort -V | head -n 1) != 1.90 ]]; then
    skip "cargo $have cannot check crates that depend on unpublished ones; 1.90 can"
fi

# All members that are not marked `publish = false`.
echo "publish-check: cargo $have"
cargo publish --workspace --dry-run --locked "$@" || exit 1
echo "publish-check: all packages compile"
