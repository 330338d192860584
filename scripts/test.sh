#!/usr/bin/env bash
# Runs all tests of the workspace. If this machine cannot run some of them, the script
# warns first, and each skipped test reports it.
#
#   scripts/test.sh [ARGUMENTS of cargo test]   without arguments: all tests
#   scripts/test.sh --build                     builds all tests but those in docs, and runs none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Arguments of cargo test for the parts of the workspace. In separate calls: the last two enable
# test hooks of the engine (the feature `testing`), and cargo builds packages of one call with the
# same features. The tests of pramfs-tests run the programs built by the first call, which have no
# test hooks.
parts=("" "-p pramfs -p pramfs-fsck" "-p pramfs-tests")

if [[ ${1-} == --build ]]; then
    cargo build -p pramfs-preload
    for part in "${parts[@]}"; do
        # shellcheck disable=SC2086 # several words
        cargo test $part --no-run
    done
    exit
fi
if [[ ! -c /dev/fuse ]]; then
    printf '\nWARNING: /dev/fuse does not exist: THE TESTS THAT MOUNT ARE SKIPPED (modprobe fuse).\n\n' >&2
elif ((EUID != 0)); then
    printf '\nWARNING: not running as root: TESTS THAT NEED ROOT ARE SKIPPED (sudo make test).\n\n' >&2
fi
if (($# == 0)); then
    status=0
    # Each test that mounts has one of the transports. FUSE over io_uring is off by default.
    export PRAMFS_TEST_SHARE_TRANSPORTS=1
    switch=/sys/module/fuse/parameters/enable_uring
    if [[ -w $switch && $(<"$switch") == N ]] && echo Y 2>/dev/null >"$switch"; then
        printf '\nFUSE over io_uring is switched on for the tests, and off again afterwards.\n\n'
        trap 'echo N >"$switch"' EXIT
    elif [[ ! -e $switch || $(<"$switch") == N ]]; then
        printf '\nWARNING: FUSE over io_uring cannot be switched on: THE TESTS OF transport=auto USE /dev/fuse.\n\n' >&2
    fi
    # The tests of the preload library run programs with it; nothing links it.
    cargo build -p pramfs-preload
    for part in "${parts[@]}"; do
        # shellcheck disable=SC2086 # several words
        cargo test $part --no-fail-fast || status=$?
    done
    exit $status
fi
# Tests of one package use the programs of others.
cargo build --bins
cargo build -p pramfs-preload
exec cargo test "$@"
