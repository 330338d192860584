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
if (($# == 0)); then
    status=0
    cargo test --workspace --exclude pramfs-tests --no-fail-fast || status=$?
    # By itself: it opens doors of the engine (the feature `testing`), and cargo gives
    # what is built together the same features. The programs that it runs are those
    # that were built before, without such doors.
    cargo test -p pramfs-tests --no-fail-fast || status=$?
    exit $status
fi
# Tests of one package use the programs of others.
cargo build --bins
exec cargo test "$@"
