#!/usr/bin/env bash
# Installs the missing requirements for building, testing and mounting pramfs.
# If nothing is missing, it prints nothing and needs no privileges.
#
#   scripts/deps.sh             to build, mount, and run the demo
#   scripts/deps.sh --test      also the tools that the tests compare against
#   scripts/deps.sh --suites    also third-party test suites that run on a mount
#   scripts/deps.sh --programs  also third-party programs that run on a mount
#   scripts/deps.sh --vm        also the requirements of the virtual machine tests
#   scripts/deps.sh --python    also the requirements of the Python package and its tests
#   scripts/deps.sh --bench     also the competitors of the benchmarks
#   scripts/deps.sh --replication  also the file systems and services over several machines
#   scripts/deps.sh --packages  also the tools that build and test packages
#
# Several switches can be given. A missing requirement of suites and programs is an
# error only if CI is set. Otherwise their tests report that they are skipped.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# The minimum Rust version in Cargo.toml.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)

# The test suite of Python's library. The package is named after the version.
python_testsuite() {
    local version
    version=$(apt-cache show --no-all-versions python3 2>/dev/null | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1/p' | head -n 1) || true
    printf 'libpython%s-testsuite' "${version:-3}"
}

optional() {
    if [[ -n ${CI:-} ]]; then
        say "$*"
        exit 1
    fi
    say "$*: THE TESTS THAT NEED THEM ARE SKIPPED"
}

# libpmem2 is loaded at run time; the tests compare with its header.
packages=(build-essential pkg-config libpmem2-dev fuse3 util-linux diffutils)
mounted=()
crates=()
modules=()
for switch; do
    case $switch in
    # mkfs.ext4 makes a file system that mkfs.pramfs must refuse to overwrite. The programs
    # in C of capi/tests run under valgrind. strace counts the system calls of a program.
    # Manuals and completions are tried in the programs that show them.
    --test) packages+=(e2fsprogs valgrind strace man-db mandoc zsh fish file) ;;
    --suites)
        # pjdfstest links libacl.
        mounted+=(fio stress-ng dbench acl libacl1-dev)
        crates=(pjdfstest@0.2.2 fsx@0.3.2)
        ;;
    --programs)
        mounted+=(git sqlite3 postgresql rsync tar attr acl python3 nfs-ganesha nfs-ganesha-vfs libnfs13)
        mounted+=("$(python_testsuite)")
        # For the tests of the preload library: 20 MB.
        mounted+=(redis-server redis-tools rocksdb-tools lmdb-utils python3-lmdb)
        # Debian has no package of DuckDB: pip installs it below target/.
        mounted+=(python3-venv)
        modules+=(duckdb==2.0.0)
        ;;
    # The kernel is not installed: tests/vm/run.sh unpacks its package.
    --vm) packages+=(e2fsprogs qemu-system-x86 ndctl busybox-static cpio kmod xz-utils kexec-tools systemd udev) ;;
    # scripts/test-python.sh installs what the tests import, by pip.
    --python) packages+=(python3 python3-venv) ;;
    --bench) packages+=(e2fsprogs fuse2fs bindfs dbench valgrind fio sqlite3 strace) ;;
    # None of their services is to run: the tests start their own, in namespaces.
    --replication)
        packages+=(python3 iproute2 procps rsync)
        mounted+=(glusterfs-server glusterfs-client nfs-ganesha nfs-ganesha-vfs libnfs13 nfs-kernel-server nfs-common drbd-utils)
        ;;
    # A clean Debian for the packages; the tools of other distributions, as far as Debian has them.
    --packages) packages+=(debhelper dh-python dpkg-dev lintian mmdebstrap python3 rpm cpio nix-bin) ;;
    *)
        say "usage: scripts/deps.sh [--test] [--suites] [--programs] [--vm] [--python] [--bench] [--replication] [--packages]"
        exit 2
        ;;
    esac
done

# The version of a package that apt would install, as the program has it: without the epoch, and what
# Debian adds. Nothing if there is no such package.
candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}
at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }
# Prints the package with a Rust that is new enough: cargo; cargo-web, with which Debian builds its web
# browsers, and which is newer; or rustup, which downloads a Rust.
toolchain_package() {
    local name version
    for name in cargo cargo-web; do
        version=$(candidate "$name")
        if [[ -n $version ]] && at_least "$rust_version" "$version"; then
            echo "$name"
            return
        fi
    done
    if [[ -n $(candidate rustup) ]]; then echo rustup; fi
}

own_cargo() { command -v cargo >/dev/null || [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; }
# sudo changes HOME: the Rust of the user who calls it will build. Prints the home directory of this
# user if a Rust is there.
home_of_caller() {
    local home
    ((EUID == 0)) && [[ -n ${SUDO_USER-} ]] || return 0
    home=$(getent passwd "$SUDO_USER" | cut -d: -f6) || return 0
    [[ ! -x $home/.cargo/bin/cargo ]] || printf '%s' "$home"
}
has_cargo() { own_cargo || [[ -n $(home_of_caller) ]]; }

toolchain=
if ! has_cargo && command -v apt-cache >/dev/null; then
    # Without lists of packages, apt knows none.
    if ((EUID == 0)) && [[ -z $(candidate cargo) ]]; then apt-get update -qq; fi
    toolchain=$(toolchain_package)
    [[ -z $toolchain ]] || packages+=("$toolchain")
fi

# Prints the arguments that are not installed packages.
missing_of() {
    local p
    for p; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true) == installed ]] || echo "$p"
    done
}
if command -v dpkg-query >/dev/null; then
    mapfile -t missing < <(missing_of "${packages[@]}")
    if ((${#missing[@]})); then
        if ((EUID != 0)); then
            say "Missing packages: ${missing[*]}"
            say "Type:  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
            exit 1
        fi
        say "Installing the missing packages: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # A Rust of Debian may exclude another one, which is the user's: nothing is removed.
        apt-get install -y -qq --no-remove --no-install-recommends "${missing[@]}" >&2 </dev/null
    fi
    mapfile -t missing < <(missing_of "${mounted[@]}")
    if ((${#missing[@]} && EUID != 0)); then
        optional "Not root, and these suites and programs are missing: ${missing[*]}"
    elif ((${#missing[@]})); then
        say "Installing suites and programs: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        # Start none of their services: the tests start their own servers.
        policy=/usr/sbin/policy-rc.d
        if [[ ! -e $policy ]]; then
            printf '#!/bin/sh\nexit 101\n' >$policy
            chmod 755 $policy
            trap 'rm -f "$policy"' EXIT
        fi
        # With fresh lists, the name of Python's package may differ.
        { apt-get update -qq && mapfile -t missing < <(missing_of "${mounted[@]/libpython*-testsuite/$(python_testsuite)}") &&
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 </dev/null; } ||
            optional "Cannot install ${missing[*]}"
    fi
else
    # Not Debian: list what is missing, for the package manager of the system.
    missing=()
    for tool in cc pkg-config fusermount3 blkid diff; do
        command -v "$tool" >/dev/null || missing+=("the program $tool")
    done
    if ((${#missing[@]})); then
        say "This is not a Debian-like system, so these missing requirements cannot be installed by name:"
        printf '  %s\n' "${missing[@]}" >&2
        exit 1
    fi
fi

if ! has_cargo; then
    say "No Rust toolchain (cargo) found. pramfs needs Rust $rust_version or newer. Type:"
    say "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default"
    exit 1
fi
if [[ $toolchain == rustup && $EUID == 0 ]]; then
    say "Installing a Rust by rustup"
    rustup toolchain install stable --profile minimal >&2 && rustup default stable >&2
fi
# The Rust of the user who calls sudo runs as this user: root runs no programs of others.
as_builder=() by=
if own_cargo; then
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
else
    home=$(home_of_caller)
    as_builder=(runuser -u "$SUDO_USER" -- env "HOME=$home" "CARGO_HOME=$home/.cargo" "PATH=$home/.cargo/bin:$PATH")
    by=" as $SUDO_USER"
fi
have=$("${as_builder[@]}" rustc --version | awk '{print $2}') || {
    say "rustc --version failed$by"
    exit 1
}
if ! at_least "$rust_version" "${have%%-*}"; then
    package=$(toolchain_package)
    if "${as_builder[@]}" sh -c 'command -v rustup' >/dev/null; then package=rustup; fi
    # Debian's packages of Rust exclude each other: apt removes the old one.
    case $package in
    cargo*) how="sudo apt-get install $package rustc${package#cargo}" ;;
    *) how="rustup update stable" ;;
    esac
    say "Rust $have is too old: pramfs needs $rust_version or newer. Type$by:  $how"
    exit 1
fi

# Suites that are crates. They are built once, in the versions that the lists of
# expected results were made with.
suites=${CARGO_TARGET_DIR:-$root/target}/suites
for crate in "${crates[@]}"; do
    name=${crate%@*} version=${crate#*@}
    [[ $("${as_builder[@]}" "$suites/bin/$name" --version 2>/dev/null) != *" $version" ]] || continue
    say "Building the test suite $name $version$by"
    "${as_builder[@]}" cargo install --quiet --locked --root "$suites" "$crate" --target-dir "$suites/build" ||
        optional "Cannot build $name$by"
    "${as_builder[@]}" rm -rf "$suites/build"
done

# Modules of Python that Debian lacks, for programs of the tests, in an environment of their own.
environment=${CARGO_TARGET_DIR:-$root/target}/programs/python
if ((${#modules[@]})) && [[ $(cat "$environment/installed" 2>/dev/null) != "${modules[*]}" ]]; then
    say "Installing modules of Python below target/: ${modules[*]}"
    rm -rf "$environment"
    { /usr/bin/python3 -m venv "$environment" &&
        "$environment/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --retries 1 "${modules[@]}" >&2 &&
        printf '%s' "${modules[*]}" >"$environment/installed"; } || {
        rm -rf "$environment"
        optional "Cannot install ${modules[*]} by pip"
    }
fi
