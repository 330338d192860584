#!/usr/bin/env bash
# Builds the Debian packages of this tree in target/deb, and shows their sizes. Needs debhelper,
# lintian and python3 (scripts/deps.sh --packages), and the crates of Cargo.lock: from cargo's
# registry, or vendored. docs/packaging.md describes both.
#
#   PRAMFS_DEB_REVISION=2 scripts/deb.sh    a later revision of the same version
#   scripts/deb.sh --check                  builds nothing, and ends with an error if the packages
#                                           that are there are of another commit than the last one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/deb
if [[ ${1:-} == --check ]]; then
    # Without the revision, which is the packager's.
    wanted=$(python3 debian/changelog.py | sed -n '1s/.*(\(.*\)-[^-]*).*/\1/p')
    for deb in "$out"/*.deb; do
        [[ -e $deb ]] || { echo "deb: there are no packages in $out: type 'make deb'" >&2; exit 1; }
        version=$(dpkg-deb -f "$deb" Version)
        [[ ${version%-*} == "$wanted" ]] || {
            echo "deb: $deb is of version ${version%-*}, and the last commit gives $wanted: type 'make deb'" >&2
            exit 1
        }
    done
    exit
fi
scripts/deps.sh --packages
tree=$out/pramfs
mkdir -p "$out"
# A copy of what git knows and of new files, without what a build left. Their times are kept, so
# that cargo builds again only what changed.
rm -rf "$tree"
mkdir "$tree"
git ls-files -z --cached --others --exclude-standard --deduplicate |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar --null --files-from=- -cf - | tar -C "$tree" -xpf -
python3 debian/changelog.py >"$tree/debian/changelog"

# The time of the last change, as in the packages: two builds of one commit are the same.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
# -d: debhelper is there, and rustc and cargo may be rustup's, which dpkg does not know.
(cd "$tree" && CARGO_TARGET_DIR=$out/build dpkg-buildpackage -b -d -us -uc -Jauto)
(cd "$out" && wc -c ./*.deb)
