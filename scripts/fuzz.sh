#!/usr/bin/env bash
# Runs each fuzz target for some seconds (default 60), one after the other:
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]
#
# FUZZ_SANITIZER is the sanitizer of `cargo fuzz` (default: none, see fuzz/README.md).
# If a target finds something, prints where the case is and exits with status 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

seconds=${1:-60}
shift || true
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
    echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2
    exit 2
fi
sanitizer=${FUZZ_SANITIZER:-none}

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "Fuzzing needs cargo-fuzz. Type:  cargo install cargo-fuzz --locked" >&2
    exit 1
fi
# A fuzzer needs coverage, which is an unstable option of the compiler.
fuzz=(cargo)
if RUSTUP_AUTO_INSTALL=0 cargo +nightly --version >/dev/null 2>&1; then
    fuzz+=(+nightly)
    echo "fuzz: $(cargo +nightly --version), sanitizer $sanitizer"
elif [[ $sanitizer == none ]]; then
    export RUSTC_BOOTSTRAP=1
    echo "fuzz: $(cargo --version) with RUSTC_BOOTSTRAP=1 (no nightly compiler), no sanitizer"
else
    echo "The sanitizer '$sanitizer' needs a nightly compiler. Type:  rustup toolchain install nightly" >&2
    echo "or leave FUZZ_SANITIZER unset." >&2
    exit 1
fi

if (($#)); then targets=("$@"); else mapfile -t targets < <("${fuzz[@]}" fuzz list); fi
found=()
for t in "${targets[@]}"; do
    if [[ ! -f fuzz_targets/$t.rs ]]; then
        echo "fuzz: no target '$t'; the targets are: $("${fuzz[@]}" fuzz list | tr '\n' ' ')" >&2
        exit 2
    fi
    echo "== fuzz $t: $seconds s"
    mkdir -p "work/$t"
    # New cases go to the first folder; the committed corpus is only read.
    "${fuzz[@]}" fuzz run --sanitizer "$sanitizer" "$t" "work/$t" "corpus/$t" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=2048 -len_control=0 \
        -print_final_stats=1 || found+=("$t")
done
if ((${#found[@]})); then
    echo "fuzz: FAILED: ${found[*]}; the cases are in fuzz/artifacts/; fuzz/README.md describes the next steps" >&2
    exit 1
fi
echo "fuzz: nothing found (${targets[*]})"
