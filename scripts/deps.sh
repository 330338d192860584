#!/usr/bin/env bash
# Installs what building, testing and mounting pramfs need and this machine
# lacks. Says nothing and needs no rights when nothing is missing.
#
#   scripts/deps.sh           to build, mount, and run the demo
#   scripts/deps.sh --test    also what the tests compare against
#   scripts/deps.sh --vm      also what the tests in a virtual machine need
#   scripts/deps.sh --bench   also the competitors of the benchmarks
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# Minimum Rust, as Cargo.toml states it.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)

packages=(build-essential pkg-config libpmem2-dev fuse3 util-linux diffutils)
case ${1:-} in
'') ;;
# mkfs.ext4 makes what mkfs.pramfs must refuse to overwrite.
--test) packages+=(e2fsprogs) ;;
# Of the kernel nothing is installed: tests/vm/run.sh unpacks its package.
--vm) packages+=(e2fsprogs qemu-system-x86 ndctl busybox-static cpio kmod xz-utils) ;;
--bench) packages+=(e2fsprogs fuse2fs bindfs) ;;
*)
    say "usage: scripts/deps.sh [--test|--vm|--bench]"
    exit 2
    ;;
esac

if command -v dpkg-query >/dev/null; then
    missing=()
    for p in "${packages[@]}"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
        [[ $status == installed ]] || missing+=("$p")
    done
    if ((${#missing[@]})); then
        if ((EUID != 0)); then
            say "Missing packages: ${missing[*]}"
            say "Type:  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
            exit 1
        fi
        say "Installing the missing packages: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 </dev/null
    fi
else
    # No Debian: name what is missing, and let the reader's package manager do it.
    missing=()
    for tool in cc pkg-config fusermount3 blkid diff; do
        command -v "$tool" >/dev/null || missing+=("the program $tool")
    done
    if command -v pkg-config >/dev/null && ! pkg-config --exists libpmem2; then
        missing+=("the library libpmem2 with its headers")
    fi
    if ((${#missing[@]})); then
        say "Missing, and this is no Debian-like system on which they could be installed by name:"
        printf '  %s\n' "${missing[@]}" >&2
        exit 1
    fi
fi

if ! command -v cargo >/dev/null && [[ ! -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
    say "There is no Rust toolchain (cargo). pramfs needs Rust $rust_version or newer. Type:"
    say "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default"
    say "or, where the distribution has it:  apt-get install rustup && rustup default stable"
    exit 1
fi
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
have=$(rustc --version | awk '{print $2}')
if [[ $(printf '%s\n%s\n' "$rust_version" "${have%%-*}" | sort -V | head -n 1) != "$rust_version" ]]; then
    say "Rust $have is too old: pramfs needs $rust_version or newer. Type:  rustup update stable"
    exit 1
fi
