#!/usr/bin/env bash
# Compares two builds of the Debian packages: those of `make deb`, and those of a clone of the last
# commit in another directory, with another target directory. They must be the same, byte for byte.
#
# Needs what `make deb` needs, and takes as long once more. What was built is removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/deb
compgen -G "$out/pramfs_*.deb" >/dev/null || scripts/deb.sh
scripts/deb.sh --check
work=$(mktemp -d "$out/another-directory-with-a-longer-name.XXXXXX")
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/clone"
if [[ -n $(git status --porcelain) ]]; then
    echo "check-reproducible: changes that are not committed are in no clone"
fi
(cd "$work/clone" && CARGO_TARGET_DIR=$work/build scripts/deb.sh >"$work/log" 2>&1) || {
    tail -n 30 "$work/log"
    echo "check-reproducible: FAILED: the second build" >&2
    exit 1
}
status=0
for deb in "$out"/*.deb; do
    other=$work/build/deb/$(basename "$deb")
    if cmp -s "$deb" "$other"; then
        printf 'check-reproducible: %s  %s\n' "$(sha256sum "$deb" | cut -d' ' -f1)" "$(basename "$deb")"
        continue
    fi
    status=1
    echo "check-reproducible: $(basename "$deb") DIFFERS, in:"
    for one in "$deb" "$other"; do
        mkdir "$work/tree"
        dpkg-deb -R "$one" "$work/tree" 2>/dev/null || true
        (cd "$work/tree" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$work/sums.$([[ $one == "$deb" ]] && echo one || echo other)"
        rm -rf "$work/tree"
    done
    diff "$work/sums.one" "$work/sums.other" || true
done
((status == 0)) && echo "check-reproducible: both builds are the same"
exit $status
