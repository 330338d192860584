#!/usr/bin/env bash
# Runs each fuzz target for some seconds (default 60): scripts/fuzz.sh [SECONDS] [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"

seconds=${1:-60}
shift || true
if ! rustup toolchain list | grep -q '^nightly'; then
    echo "Fuzzing needs a nightly compiler. Type:  rustup toolchain install nightly" >&2
    exit 1
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "Fuzzing needs cargo-fuzz. Type:  cargo install cargo-fuzz" >&2
    exit 1
fi
if (($#)); then targets=("$@"); else mapfile -t targets < <(cargo +nightly fuzz list); fi
for t in "${targets[@]}"; do
    echo "== fuzz $t: $seconds s"
    cargo +nightly fuzz run "$t" -- -max_total_time="$seconds"
done
