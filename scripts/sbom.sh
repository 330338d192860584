#!/usr/bin/env bash
# Writes a software bill of materials for each program and library that is installed, in the format
# CycloneDX 1.5 (JSON), to target/sbom: the crates that it links, with versions, licences and
# package URLs, for the target x86_64-unknown-linux-gnu and the default features.
#
# Needs cargo-cyclonedx (cargo install --locked cargo-cyclonedx@0.5.9). If it is missing, the last
# line says SKIPPED, which is a failure in CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PWD/tools/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

if ! cargo cyclonedx --version >/dev/null 2>&1; then
    printf '\nsbom: *** SKIPPED: cargo-cyclonedx is missing (cargo install --locked --root tools cargo-cyclonedx@0.5.9): nothing was written ***\n'
    [[ -z ${CI:-} ]]
    exit
fi
out=${CARGO_TARGET_DIR:-target}/sbom
mkdir -p "$out"
# The same bytes for the same commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for folder in mkfs fuse-frontend capi preload; do
    # It writes beside the manifests of all packages of the workspace that this one uses.
    find . -path ./target -prune -o -name '*.cdx.json' -exec rm {} +
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu \
        --no-build-deps --manifest-path "$folder/Cargo.toml"
    mv "$folder"/*.cdx.json "$out/"
    find . -path ./target -prune -o -name '*.cdx.json' -exec rm {} +
done
for file in "$out"/*.cdx.json; do
    printf '%5d components  %s\n' "$(grep -c '"type": "library"' "$file")" "$file"
done
