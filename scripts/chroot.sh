# A clean Debian in a chroot, for scripts/test-bare.sh and scripts/test-deb.sh, which source this file.
# Needs root, mmdebstrap, and the archive that apt of this machine uses.

# Runs the calling script again in namespaces of its own. All mounts and processes end with it.
run_unshared() {
    PRAMFS_UNSHARED=1 exec unshare --mount --pid --fork --kill-child --mount-proc "scripts/$(basename "$0")" "$@"
}

# Sets `work` and `root`: a directory that is removed at the end, and the place of the chroot in it.
make_work() {
    work=$(mktemp -d "/var/tmp/pramfs-$1.XXXXXX")
    root=$work/root
    # Lazily: a server whose mount is gone ends with the namespace of processes.
    trap 'umount -R -l "$work/root" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
}

# bootstrap SUITE TARGET PACKAGES: TARGET is a directory, or the name of a tar file.
bootstrap() {
    local suite=$1 target=$2 packages=$3 mirror sources=(/etc/apt/sources.list.d/debian.sources)
    if [[ ! -e ${sources[0]} ]]; then
        sources=()
    elif [[ $suite != "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" ]]; then
        # The same archive, without the sections that the other suite may not have.
        mirror=$(sed -n 's/^URIs: *//p' "${sources[0]}" | head -n 1)
        sources=("deb $mirror $suite main")
        # The Rust that is new enough may be in the archive of security updates alone.
        case $suite in
        sid | unstable | experimental) ;;
        *) sources+=("deb ${mirror%/}-security $suite-security main") ;;
        esac
    fi
    mmdebstrap --quiet --variant=apt --include="$packages" "$suite" "$target" ${sources[@]+"${sources[@]}"}
}

# Mounts /proc, /dev and a /dev/shm of the given size in the chroot, and gives it the name servers.
mount_root() {
    local device
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
    mount -t tmpfs -o "mode=1777,size=$1" tmpfs "$root/dev/shm"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
}

# Runs a command in the chroot. `pass` has the variables that it sees besides.
pass=()
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ${pass[@]+"${pass[@]}"} chroot "$root" "$@"
}
