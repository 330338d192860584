#!/usr/bin/env bash
# Builds the documentation site from docs/ into target/book. The list of its chapters is
# docs/SUMMARY.md; tests check that it is complete and that each link leads somewhere.
#
# If mdbook is missing, the last line says SKIPPED, which is a failure in CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

if ! mdbook --version >/dev/null 2>&1; then
    printf '\nbook: *** SKIPPED: mdbook is missing (cargo install mdbook --locked): nothing was built ***\n'
    [[ -z ${CI:-} ]]
    exit
fi
target=${CARGO_TARGET_DIR:-target}
stage=$target/book-src
cargo run --quiet -p pramfs-manuals -- --book "$stage/src"
cp book.toml "$stage/book.toml"
mdbook build "$stage" --dest-dir "$(realpath -m "$target/book")"
printf 'book: %s\n' "$target/book/index.html"
