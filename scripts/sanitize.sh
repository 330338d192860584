#!/usr/bin/env bash
# The engine under Miri and ThreadSanitizer, with no suppression of ours:
#
#   scripts/sanitize.sh [miri] [thread]
#
# Miri runs pramfs-rs/tests/concurrent.rs once with all of its checks, then once for
# each of MIRI_SEEDS (0..64) ways in which two threads can take turns and see each
# other's stores, for data races alone, and the unit tests of what is read without
# a lock as often with all checks. ThreadSanitizer runs the same test file, mappings of files included, with the
# standard library built for it. Both see no assembler: what runs in its place,
# and what neither can run, is listed in docs/development.md.
#
# NIGHTLY names the toolchain; what it lacks is installed by rustup. Where it
# cannot be, the last line says SKIPPED, and in CI that is a failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
nightly=${NIGHTLY:-nightly}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS MIRIFLAGS

skip() {
    printf '\nsanitize: *** SKIPPED: %s: nothing was looked at ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

has_all() {
    local there
    there=$(rustup component list --toolchain "$nightly" --installed 2>/dev/null) &&
        grep -q '^miri' <<<"$there" && grep -q '^rust-src' <<<"$there"
}

command -v rustup >/dev/null || skip "there is no rustup to install a nightly compiler with"
if ! has_all; then
    echo "sanitize: installing $nightly with miri and rust-src"
    rustup toolchain install "$nightly" --profile minimal -c miri -c rust-src || true
    has_all || skip "$nightly has no miri or no rust-src, and they could not be installed"
fi
echo "sanitize: $(rustc +"$nightly" --version)"

# Read without a lock, or stored to beside others.
units=(pmem::live::tests::parts fs::extent_cache::tests::what fs::attr_cache::tests::what_is_read fs::inode_lock)

miri() {
    local test=(cargo "+$nightly" miri test -p pramfs --no-default-features)
    # parking_lot keeps addresses in words; with this Miri follows them, and does
    # not say so each time.
    local flags="-Zmiri-permissive-provenance"
    # The other checks depend little on who comes first, and take half of the time.
    local seeds="$flags -Zmiri-many-seeds=${MIRI_SEEDS:-0..64}"
    local races="$seeds -Zmiri-disable-stacked-borrows -Zmiri-disable-validation"
    MIRIFLAGS=$flags "${test[@]}" --test concurrent &&
        MIRIFLAGS=$flags "${test[@]}" --lib -- pmem::live &&
        MIRIFLAGS=$races "${test[@]}" --test concurrent &&
        MIRIFLAGS=$seeds "${test[@]}" --lib -- "${units[@]}"
}

thread() {
    local host
    host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
    export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg pramfs_sanitize"
    # The first report ends the test that it is about.
    export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
    cargo "+$nightly" test -p pramfs --no-default-features -Zbuild-std --target "$host" --test concurrent
}

(($#)) || set -- miri thread
failed=()
for way in "$@"; do
    case $way in
    miri | thread) ;;
    *)
        echo "usage: scripts/sanitize.sh [miri] [thread]" >&2
        exit 2
        ;;
    esac
    start=$SECONDS
    printf '\n== sanitize %s\n' "$way"
    if ("$way"); then
        printf '== sanitize %s: nothing found (%d s)\n' "$way" $((SECONDS - start))
    else
        printf '== sanitize %s: FAILED (%d s)\n' "$way" $((SECONDS - start))
        failed+=("$way")
    fi
done
if ((${#failed[@]})); then
    echo "sanitize: FAILED: ${failed[*]}" >&2
    exit 1
fi
echo "sanitize: nothing found ($*)"
