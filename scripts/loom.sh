#!/usr/bin/env bash
# Runs the models of the lock-free protocols under loom: each as it is, which must pass,
# and once without each ordering that it needs, which must fail. Also fails if a source
# names an ordering that no model needs, a model one that no source has, or if
# docs/development.md lacks a model.
# ONLY=part runs only the models whose name contains it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

cargo build --locked -p pramfs-loom
program=${CARGO_TARGET_DIR:-target}/debug/pramfs-loom

in_sources=$(grep -rhoE '\b(acquire|release|seq_cst)\("[a-z-]+"' --include='*.rs' medium/src pramfs-rs/src client/src |
    sed 's/.*("\(.*\)"/\1/' | sort -u)
if ! diff <(printf '%s\n' "$in_sources") <("$program" --orderings | sort -u); then
    echo "loom: the orderings named in the sources (<) are not those of the models (>)" >&2
    exit 1
fi
for model in $("$program" --models); do
    grep -q "\`$model\`" docs/development.md || {
        echo "loom: docs/development.md does not name the model $model" >&2
        exit 1
    }
done

if [[ -n ${ONLY:-} ]]; then
    exec "$program" --only "$ONLY"
fi
exec "$program"
