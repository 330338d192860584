#!/usr/bin/env bash
# Runs all tests of the workspace. What cannot be tested on this machine is
# said here, before, and by each test that skips itself.
#
#   scripts/test.sh [ARGUMENTS of cargo test]   all of them, without arguments
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! -c /dev/fuse ]]; then
    printf '\nWARNING: there is no /dev/fuse here: THE TESTS THAT MOUNT ARE SKIPPED (modprobe fuse).\n\n' >&2
elif ((EUID != 0)); then
    printf '\nWARNING: not running as root: TESTS THAT NEED ROOT ARE SKIPPED (sudo make test).\n\n' >&2
fi
(($#)) || exec cargo test --workspace --no-fail-fast
# Tests of one package use the programs of others.
cargo build --workspace --bins
exec cargo test "$@"
