#!/usr/bin/env bash
# Runs the engine under Miri and ThreadSanitizer, without suppressions of our own:
#
#   scripts/sanitize.sh [miri] [thread]
#
# Miri runs
#   - pramfs-rs/tests/concurrent.rs once, with all of its checks;
#   - the same file once for each of MIRI_SEEDS (0..64), for data races only. A seed
#     selects how two threads take turns and see each other's stores;
#   - the unit tests of lock-free reads, equally often, with all checks.
# ThreadSanitizer runs the same test file, including mappings of files, with the
# standard library built for it. Neither sees assembler. docs/development.md lists
# the code that runs in its place, and the code that neither can run.
#
# NIGHTLY names the toolchain. rustup installs its missing components. If that fails,
# the last line says SKIPPED, which is a failure in CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
nightly=${NIGHTLY:-nightly}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS MIRIFLAGS

skip() {
    printf '\nsanitize: *** SKIPPED: %s: nothing was checked ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

has_all() {
    local there
    there=$(rustup component list --toolchain "$nightly" --installed 2>/dev/null) &&
        grep -q '^miri' <<<"$there" && grep -q '^rust-src' <<<"$there"
}

command -v rustup >/dev/null || skip "rustup is missing, so no nightly compiler can be installed"
if ! has_all; then
    echo "sanitize: installing $nightly with miri and rust-src"
    rustup toolchain install "$nightly" --profile minimal -c miri -c rust-src || true
    has_all || skip "$nightly lacks miri or rust-src, and they could not be installed"
fi
echo "sanitize: $(rustc +"$nightly" --version)"

# Code that reads without a lock, or stores concurrently with other threads.
medium_units=(pmem::live::tests::parts)
engine_units=(fs::cache::extent_cache::tests::extent_of_change_is_unseen fs::cache::attr_cache::tests::concurrent_read_never_mixes fs::inode::lock)

# A filter that matches no test would check nothing and succeed.
has_units() {
    local package=$1 list unit
    shift
    list=$(cargo "+$nightly" miri test -p "$package" --no-default-features --lib -- --list) || return
    for unit in "$@"; do
        grep -q "^$unit.*: test$" <<<"$list" || {
            echo "sanitize: no unit test of $package matches $unit" >&2
            return 1
        }
    done
}

miri() {
    local medium=(cargo "+$nightly" miri test -p pramfs-medium --no-default-features)
    local engine=(cargo "+$nightly" miri test -p pramfs --no-default-features)
    # parking_lot keeps addresses in words. With this flag Miri follows them without
    # a warning each time.
    local flags="-Zmiri-permissive-provenance"
    # The other checks depend little on the interleaving, and take half of the time.
    local seeds="$flags -Zmiri-many-seeds=${MIRI_SEEDS:-0..64}"
    local races="$seeds -Zmiri-disable-stacked-borrows -Zmiri-disable-validation"
    MIRIFLAGS=$flags has_units pramfs-medium pmem::live "${medium_units[@]}" &&
        MIRIFLAGS=$flags has_units pramfs "${engine_units[@]}" &&
        MIRIFLAGS=$flags "${engine[@]}" --test concurrent &&
        MIRIFLAGS=$flags "${medium[@]}" --lib -- pmem::live &&
        MIRIFLAGS=$races "${engine[@]}" --test concurrent &&
        MIRIFLAGS=$seeds "${medium[@]}" --lib -- "${medium_units[@]}" &&
        MIRIFLAGS=$seeds "${engine[@]}" --lib -- "${engine_units[@]}" &&
        MIRIFLAGS="$seeds" cargo "+$nightly" miri test -p pramfs-preload-core --lib -- blocks users
}

thread() {
    local host
    host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
    export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg pramfs_sanitize"
    # The first report ends its test.
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
