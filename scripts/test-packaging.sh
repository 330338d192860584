#!/usr/bin/env bash
# Tests the packages of other distributions, as far as Debian has their tools: builds the RPM and
# looks into it, evaluates the Nix flake, runs package() of the PKGBUILD. Needs no root, and the
# packages that `scripts/deps.sh --packages` installs; a missing tool is an error if CI is set.
#
#   make test-packaging              installs the build of `make deb`, which is made first if it is not
#                                    there: all packages build by the same command, `make build PROFILE=dist`
#   make test-packaging RPM=source   builds the RPM from its sources, as a user of the spec does; what
#                                    was compiled is kept for the next run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
export PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

fail() {
    printf 'test-packaging: FAILED: %s\n' "$*" >&2
    exit 1
}
passed() { printf 'test-packaging: %s: passed\n' "$*"; }
skip() {
    printf '\ntest-packaging: *** SKIPPED: %s ***\n\n' "$*"
    [[ -z ${CI:-} ]] || fail "a skipped test in CI"
}

out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/deb
build=$out/build
[[ -x $build/dist/mount-pramfs ]] || scripts/deb.sh
# What an earlier commit built says nothing about this one.
scripts/deb.sh --check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
abi=$(sed -n 's/^const ABI: &str = "\(.*\)";/\1/p' capi/build.rs)

# --- RPM ---------------------------------------------------------------------------------------

if command -v rpmbuild >/dev/null; then
    top=$work/rpm how="on the build of make deb" options=(--define "pramfs_target $build")
    if [[ ${RPM:-} == source ]]; then
        # Always in this place: the options of rustc name it, and with others all is compiled again.
        top=$out/rpm how="from its sources" options=()
    fi
    rm -rf "$top"
    mkdir -p "$top/SOURCES"
    git ls-files -z --cached --others --exclude-standard --deduplicate |
        while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
        tar --null --files-from=- --transform "s|^|pramfs-$version/|" -czf "$top/SOURCES/pramfs-$version.tar.gz"
    CARGO_TARGET_DIR=$out/rpm-target rpmbuild -bb --nodeps --define "_topdir $top" --define "pramfs_version $version" \
        "${options[@]}" packaging/pramfs.spec >"$work/log" 2>&1 || {
        tail -n 30 "$work/log"
        fail "rpmbuild"
    }
    for part in pramfs:/usr/sbin/mount.pramfs pramfs-libs:libpramfs.so.$abi pramfs-devel:/usr/include/pramfs.h; do
        rpm=$(echo "$top/RPMS/x86_64/${part%%:*}-$version"-*.rpm)
        list=$(rpm -qpl "$rpm" 2>/dev/null)
        grep -qF "${part#*:}" <<<"$list" || fail "$(basename "$rpm") has no ${part#*:}: $list"
    done
    # Nothing is in two packages but the licences.
    twice=$(rpm -qpl "$top"/RPMS/x86_64/*.rpm 2>/dev/null | grep -v -e '/licenses' -e build-id | sort | uniq -d)
    [[ -z $twice ]] || fail "files in two RPMs: $twice"
    rpm -qp --requires "$top"/RPMS/x86_64/pramfs-"$version"-*.rpm 2>/dev/null | grep -q 'libc.so.6' ||
        fail "the RPM does not require the C library"
    # The places of this machine that a build could leave in a file.
    paths="$root|$out|$work|${HOME%/}/|${CARGO_HOME:-$HOME/.cargo}|/rustup/toolchains"
    for rpm in "$top"/RPMS/x86_64/*.rpm; do
        mkdir -p "$work/unpacked"
        rpm2cpio "$rpm" | (cd "$work/unpacked" && cpio -idm --quiet)
        bytes=$(stat -c %s "$rpm")
        printf 'test-packaging: %s: %d bytes, %d files\n' "$(basename "$rpm")" "$bytes" "$(rpm -qpl "$rpm" 2>/dev/null | wc -l)"
        ((bytes <= 6000000)) || fail "$(basename "$rpm") has $bytes bytes, and 6 MB are allowed"
    done
    # Documentation is the text of the tree, and not made by the build.
    left=$(grep -raoE --exclude-dir=doc "($paths)[[:print:]]{0,60}" "$work/unpacked" | head -n 3 || true)
    [[ -z $left ]] || fail "the RPMs have paths of the builder: $left"
    [[ $("$work/unpacked/usr/bin/pramfs" --version) == *"$version"* ]] || fail "pramfs of the RPM does not run"
    passed "RPM, built $how"
else
    skip "rpmbuild is missing (apt-get install rpm): THE SPEC WAS NOT BUILT"
fi

# --- Nix ---------------------------------------------------------------------------------------

if command -v nix-instantiate >/dev/null; then
    nix-instantiate --parse flake.nix >/dev/null 2>"$work/log" || { cat "$work/log"; fail "flake.nix cannot be parsed"; }
    # Evaluated with stand-ins for what it takes of nixpkgs: no attribute is misspelt, and the
    # version is read from the manifest.
    cat >"$work/eval.nix" <<EOF
let
  stand-in = {
    rustPlatform.buildRustPackage = attributes: attributes // { type = "derivation"; };
    pkg-config = "pkg-config";
    pmdk = "/pmdk";
    mkShell = attributes: attributes;
    lib.licenses = { mit = "MIT"; asl20 = "Apache-2.0"; };
  };
  flake = import $root/flake.nix;
  outputs = flake.outputs { self = $root; nixpkgs.legacyPackages.x86_64-linux = stand-in; };
  package = outputs.packages.x86_64-linux.default;
in
builtins.deepSeq [ package outputs.devShells ] "\${package.pname}-\${package.version} \${package.meta.mainProgram}"
EOF
    NIX_STATE_DIR=$work/nix NIX_STORE_DIR=$work/nix/store NIX_LOCALSTATE_DIR=$work/nix \
        nix-instantiate --eval --strict "$work/eval.nix" >"$work/nix.out" 2>"$work/log" || { cat "$work/log"; fail "flake.nix cannot be evaluated"; }
    [[ $(<"$work/nix.out") == "\"pramfs-$version pramfs\"" ]] || fail "flake.nix evaluates to $(<"$work/nix.out")"
    passed "flake.nix, evaluated"
    # With a store and nixpkgs, it is built too.
    if [[ -d /nix/store ]] && timeout 30 nix --extra-experimental-features 'nix-command flakes' flake metadata nixpkgs >/dev/null 2>&1; then
        nix --extra-experimental-features 'nix-command flakes' build --no-link "path:$root" || fail "nix build"
        passed "flake.nix, built"
    else
        echo "test-packaging: flake.nix was not built: there is no Nix store, or nixpkgs cannot be reached"
    fi
else
    skip "nix-instantiate is missing (apt-get install nix-bin): flake.nix WAS NOT EVALUATED"
fi

# --- Arch ----------------------------------------------------------------------------------------

bash -n packaging/PKGBUILD || fail "packaging/PKGBUILD"
# The PKGBUILD uses pkgdir, and sets pkgver.
# shellcheck disable=SC2034,SC2154
(
    set -eu
    pkgdir=$work/arch
    export CARGO_TARGET_DIR=$build
    # shellcheck source=/dev/null
    . packaging/PKGBUILD
    [[ $pkgver == "$version" ]] || fail "the PKGBUILD has version $pkgver"
    package >"$work/log" 2>&1 || { cat "$work/log"; fail "package() of the PKGBUILD"; }
)
for file in usr/bin/mount.pramfs usr/bin/mount.fuse.pramfs usr/bin/pramfs "usr/lib/libpramfs.so.$abi" \
    usr/include/pramfs.h usr/lib/systemd/system/pramfs-scrub@.timer usr/share/licenses/pramfs/LICENSE-MIT; do
    [[ -e $work/arch/$file ]] || fail "package() of the PKGBUILD installed no /$file"
done
[[ ! -e $work/arch/usr/sbin && ! -e $work/arch/sbin ]] || fail "Arch has no directory sbin, and the package has one"
grep -rq '/usr/sbin' "$work/arch/usr/lib/systemd" && fail "a unit of the PKGBUILD starts a program in /usr/sbin"
passed "PKGBUILD"
echo "test-packaging: all passed"
