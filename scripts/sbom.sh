#!/usr/bin/env bash
# Writes a software bill of materials for each program and library that is installed, in the format
# CycloneDX 1.5 (JSON), to target/sbom: the crates that it links, with versions, licences and
# package URLs, for the target x86_64-unknown-linux-gnu and the default features. It ends with an error
# if a file lacks a crate that `cargo tree` lists.
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
folders=(mkfs fuse-frontend capi preload python)
rm -f "$out"/*.cdx.json
# cargo-cyclonedx writes beside the manifests of all packages of the workspace that one uses. A file
# that is there already is somebody's: it would be overwritten.
written() {
    git ls-files -z -- Cargo.toml '*/Cargo.toml' | xargs -0 dirname -z |
        xargs -0 -I{} find {} -maxdepth 1 -name '*.cdx.json' "$@"
}
theirs=$(written -print -quit)
[[ -z $theirs ]] || {
    echo "sbom: $theirs would be overwritten: move it away" >&2
    exit 1
}
trap 'written -delete' EXIT
for folder in "${folders[@]}"; do
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu \
        --no-build-deps --manifest-path "$folder/Cargo.toml"
    mv "$folder"/*.cdx.json "$out/"
    written -delete
done
for folder in "${folders[@]}"; do
    name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml" | head -n 1)
    # What is linked or runs inside of rustc, as in the file: no crates of build scripts.
    cargo tree --locked --quiet -p "$name" -e normal --prefix none --format '{p}' --no-dedupe \
        --target x86_64-unknown-linux-gnu | awk 'NF { print $1, substr($2, 2) }' | sort -u >"$out/tree"
    for file in "$out/$name"*.cdx.json; do
        python3 - "$file" "$out/tree" "$name" <<'EOF'
import json, sys

file, tree, name = sys.argv[1:]
bom = json.load(open(file))
if (bom["bomFormat"], bom["specVersion"]) != ("CycloneDX", "1.5"):
    sys.exit(f"sbom: {file} is not CycloneDX 1.5")
found = {(c["name"], c["version"]) for c in bom["components"]}
wanted = {tuple(line.split()) for line in open(tree)}
if missing := sorted(w for w in wanted - found if w[0] != name):
    sys.exit(f"sbom: {file} lacks crates that {name} uses: {missing}")
bare = [c["name"] for c in bom["components"] if not c.get("purl") or not c.get("licenses")]
if bare:
    sys.exit(f"sbom: {file} has no package URL or licence of: {', '.join(bare)}")
print(f"{len(found):5} components  {file}")
EOF
    done
done
rm "$out/tree"
