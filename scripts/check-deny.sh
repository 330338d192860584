#!/usr/bin/env bash
# Checks the dependencies against deny.toml: licences, known vulnerabilities, sources,
# duplicate versions. Covers the workspace and the fuzz targets.
#
#   scripts/check-deny.sh [CHECK...]   without arguments: all checks. Without a network,
#                                      the advisories cannot be fetched: give
#                                      `licenses bans sources`
#
# If cargo-deny is missing, the last line says SKIPPED, which is a failure in CI.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

if ! cargo deny --version >/dev/null 2>&1; then
    printf '\ncheck-deny: *** SKIPPED: cargo-deny is missing (cargo install cargo-deny --locked): nothing was checked ***\n'
    [[ -z ${CI:-} ]]
    exit
fi
status=0
for manifest in Cargo.toml fuzz/Cargo.toml; do
    echo "== check-deny $manifest"
    cargo deny --manifest-path "$manifest" --config deny.toml check --hide-inclusion-graph "$@" || status=1
done
exit $status
