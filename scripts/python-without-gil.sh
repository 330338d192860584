#!/usr/bin/env bash
# Builds a CPython without the GIL below target/, for the tests of the Python package, and prints the
# path of its interpreter: no Debian has a package of one. Needs a C compiler, and the headers of
# OpenSSL, libffi, zlib, bzip2 and xz; as root, it installs what is missing.
#
#   python=$(scripts/python-without-gil.sh) && make test-python PYTHON="$python"
#
# SOURCE is an archive of CPython's sources, of VERSION (3.13). Without it, that of Debian's package
# python3.13 is downloaded, of the suite SUITE (trixie), without a change to the sources of apt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:-3.13}
base=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python/without-gil-$version
python=$base/bin/python${version}t
say() { printf 'python-without-gil: %s\n' "$*" >&2; }

if [[ ! -x $python ]]; then
    packages=(build-essential pkg-config xz-utils libssl-dev libffi-dev zlib1g-dev libbz2-dev liblzma-dev)
    mapfile -t missing < <(for p in "${packages[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true) == installed ]] || echo "$p"
    done)
    if ((${#missing[@]} && EUID != 0)); then
        say "missing packages: ${missing[*]}: type:  sudo apt-get install -y --no-install-recommends ${missing[*]}"
        exit 1
    elif ((${#missing[@]})); then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 </dev/null
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    archive=${SOURCE:-}
    if [[ -z $archive ]]; then
        suite=${SUITE:-trixie} keys=/usr/share/keyrings/debian-archive-keyring.gpg
        mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1) || true
        say "downloading the sources of Debian's python$version ($suite)"
        mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/source"
        echo "deb-src [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} $suite main" >"$work/sources.list"
        options=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
            -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
        apt-get "${options[@]}" update >&2
        (cd "$work/source" && apt-get "${options[@]}" source --download-only --tar-only "python$version" >&2)
        archive=$(echo "$work/source/python$version"_*.orig.tar.xz)
    fi
    say "building $(basename "$archive")"
    mkdir "$work/tree"
    tar -C "$work/tree" --strip-components=1 -xf "$archive"
    # Quick to build, and not to run: it runs tests. In the place of its prefix only when it is complete.
    rm -rf "$base" "$base.new"
    (cd "$work/tree" &&
        ./configure CFLAGS=-O1 --quiet --disable-gil --prefix="$base" --with-ensurepip=install &&
        make -s -j"${JOBS:-$(nproc)}" && make -s install DESTDIR="$base.new") >"$work/log" 2>&1 || {
        tail -n 30 "$work/log" >&2
        say "the build has failed"
        exit 1
    }
    "$base.new$python" -c 'import bz2, ctypes, lzma, ssl, sys, zlib; assert not sys._is_gil_enabled()'
    mv "$base.new$base" "$base"
    rm -rf "$base.new"
fi
"$python" -c 'import bz2, ctypes, lzma, ssl, sys, zlib; assert not sys._is_gil_enabled()'
echo "$python"
