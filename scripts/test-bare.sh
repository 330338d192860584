#!/usr/bin/env bash
# Runs `make demo` in a bare Debian: one that has ca-certificates, git and make besides what apt
# needs. The demo must install the rest by itself, a Rust among it. Needs root, mmdebstrap, Debian's
# archive, crates.io, /dev/fuse, and 4 GiB of free memory: each program is linked as a whole.
#
#   sudo make test-bare                  in Debian 13
#   sudo make test-bare SUITE=bookworm   in another one
#
# The chroot has a clone of the last commit. Proxies and additional certificates of this machine are
# passed on; its Rust is not. All mounts are in a namespace of their own, which ends with the script.
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
if [[ -z ${PRAMFS_TEST_BARE_UNSHARED:-} ]]; then
    command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing (scripts/deps.sh --packages)"
    { [[ -e /dev/fuse ]] && : 2>/dev/null <>/dev/fuse; } || skip "/dev/fuse cannot be opened here"
    PRAMFS_TEST_BARE_UNSHARED=1 exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

suite=${SUITE:-trixie}
sources=(/etc/apt/sources.list.d/debian.sources)
if [[ ! -e ${sources[0]} ]]; then
    sources=()
elif [[ $suite != "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" ]]; then
    # The same archive, without the sections that the other suite may not have.
    mirror=$(sed -n 's/^URIs: *//p' "${sources[0]}" | head -n 1)
    # The Rust that is new enough may be in the archive of security updates alone.
    sources=("deb $mirror $suite main" "deb ${mirror%/}-security $suite-security main")
fi
work=$(mktemp -d /var/tmp/pramfs-test-bare.XXXXXX)
trap 'umount -R -l "$work/root" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
root=$work/root
mmdebstrap --quiet --variant=apt --include=ca-certificates,git,make "$suite" "$root" ${sources[@]+"${sources[@]}"}
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse; do
    [[ -e /dev/$device ]] || continue
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777,size=1300m tmpfs "$root/dev/shm"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# As they are for programs of this machine.
pass=()
for name in {http,https,no,all}_proxy {HTTP,HTTPS,NO,ALL}_PROXY CARGO_BUILD_JOBS CARGO_HTTP_PROXY CARGO_HTTP_TIMEOUT RUSTUP_DIST_SERVER RUSTUP_UPDATE_ROOT; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
done
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ${pass[@]+"${pass[@]}"} chroot "$root" "$@"
}
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
