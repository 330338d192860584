#!/usr/bin/env bash
# Runs `make demo` in a bare Debian: one that has ca-certificates, git and make besides what apt
# needs. The demo must install the rest by itself, a Rust among it. Needs root, mmdebstrap, Debian's
# archive, crates.io, /dev/fuse, and 4 GiB of free memory: each program is linked as a whole.
#
#   sudo make test-bare                  in Debian 13
#   sudo make test-bare SUITE=bookworm   in another one
#
# The chroot has a clone of the last commit. Proxies and additional certificates of this machine are
# passed on; its Rust is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'test-bare: FAILED: %s\n' "$*" >&2
    exit 1
}
skip() {
    printf '\ntest-bare: *** SKIPPED: %s: nothing was tried ***\n' "$1"
    [[ -z ${CI:-} ]]
    exit
}

((EUID == 0)) || fail "a chroot and a mount need root: type 'sudo make test-bare'"
. scripts/chroot.sh
if [[ -z ${PRAMFS_UNSHARED:-} ]]; then
    command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing (scripts/deps.sh --packages)"
    { [[ -e /dev/fuse ]] && : 2>/dev/null <>/dev/fuse; } || skip "/dev/fuse cannot be opened here"
    run_unshared "$@"
fi

suite=${SUITE:-trixie}
make_work test-bare
bootstrap "$suite" "$root" ca-certificates,git,make
mount_root 1300m
# As they are for programs of this machine.
for name in {http,https,no,all}_proxy {HTTP,HTTPS,NO,ALL}_PROXY CARGO_BUILD_JOBS CARGO_HTTP_PROXY CARGO_HTTP_TIMEOUT RUSTUP_DIST_SERVER RUSTUP_UPDATE_ROOT; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
done
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates"
    inside update-ca-certificates >/dev/null
fi
for tool in cargo rustc rustup cc; do
    ! inside sh -c "command -v $tool" || fail "$tool is there already"
done
mkdir "$root/srv/pramfs"
git archive --format=tar HEAD | tar -C "$root/srv/pramfs" -xf -
printf 'test-bare: %s, %d packages; make demo:\n' "$(. "$root/etc/os-release" && echo "$PRETTY_NAME")" \
    "$(inside dpkg-query -W | wc -l)"

# No user but root may install packages: the others are told what to type.
said=$(inside setpriv --reuid=nobody --regid=nogroup --clear-groups /srv/pramfs/scripts/deps.sh 2>&1 </dev/null) &&
    fail "deps.sh without root found all that it needs: $said"
grep -qE 'Type: +sudo apt-get update .*build-essential' <<<"$said" || fail "deps.sh without root says: $said"
begun=$SECONDS
inside make --no-print-directory -C /srv/pramfs demo </dev/null 2>&1 | tee "$work/log" || fail "make demo"
grep -q 'Everything worked' "$work/log" || fail "make demo did not say that everything worked"
printf 'test-bare: %s; %s; %d s\n' "$(inside rustc --version)" \
    "$(inside dpkg-query -S /usr/bin/cargo | cut -d: -f1)" $((SECONDS - begun))
printf 'test-bare: make demo on a bare Debian %s: passed\n' "$suite"
