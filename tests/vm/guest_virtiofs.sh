# shellcheck shell=bash
# Sourced by guest.sh: the steps of a guest whose file system is a region of the host. See
# virtiofs.sh.

virtiofs_mount() {
    mount -t virtiofs pramfs /run/mnt
    grep ' /run/mnt ' /proc/mounts | sed 's/^/   /'
}

# Writes, reads, compares, renames, removes.
virtiofs_work() {
    cd /run/mnt
    cp -a /usr/include/linux/netfilter tree
    diff -r /usr/include/linux/netfilter tree
    say "a tree of $(find tree | wc -l) entries is the same"
    # Not a multiple of a page, and more than a request.
    head -c 5000001 /dev/urandom >/tmp/data
    cp /tmp/data data
    cmp /tmp/data data
    dd if=/tmp/data of=direct bs=1M oflag=direct status=none count=4
    dd if=direct bs=64k iflag=direct status=none | cmp -n 4194304 - /tmp/data
    [[ $(stat -c %s direct) == 4194304 ]]
    dd if=/tmp/data of=data bs=4096 seek=3 skip=3 count=7 conv=notrunc,fsync status=none
    echo 3 >/proc/sys/vm/drop_caches
    cmp /tmp/data data
    say "data is the same, with and without the page cache"
    for _ in 1 2 3; do printf 'line\n' >>appended; done
    [[ $(wc -l <appended) == 3 ]]
    truncate -s 100 appended
    [[ $(stat -c %s appended) == 100 ]]
    mkdir dir && mv data dir/moved && ln dir/moved linked && ln -s dir/moved symbolic
    [[ $(stat -c %h symbolic linked | tr '\n' ' ') == "1 2 " && $(readlink symbolic) == dir/moved ]]
    cmp /tmp/data symbolic
    ! rmdir dir 2>/dev/null
    rm linked && [[ $(stat -c %h dir/moved) == 1 ]]
    # Removed while it is open.
    exec 5<>removed
    echo kept >&5 && rm removed && [[ $(cat /proc/self/fd/5) == kept ]]
    exec 5>&-
    setfattr -n user.colour -v red appended
    [[ $(getfattr --only-values -n user.colour appended) == red ]]
    chmod 4755 appended && chown 1000:1000 appended
    [[ $(stat -c %u:%g:%a appended) == 1000:1000:755 ]]
    rm -r tree
    [[ $(find . | wc -l) == 6 ]]
    fallocate -l 1M -n appended && sync -f . && df . | sed 's/^/   /'
    cd /
    umount /run/mnt
    mount -t virtiofs pramfs /run/mnt
    cmp /tmp/data /run/mnt/dir/moved
    sha256sum </tmp/data >/run/mnt/sum
    say "the second mount shows the same"
}

# Leaves a removed file open, and no unmount.
virtiofs_open() {
    exec 6<>/run/mnt/orphan
    head -c 1000000 /dev/zero >&6
    rm /run/mnt/orphan
    sync
}

virtiofs_remains() {
    sha256sum </run/mnt/dir/moved | cmp - /run/mnt/sum
    [[ ! -e /run/mnt/orphan && $(readlink /run/mnt/symbolic) == dir/moved ]]
    umount /run/mnt
}

virtiofs_read_only() {
    sha256sum </run/mnt/dir/moved | cmp - /run/mnt/sum
    ! touch /run/mnt/new 2>/dev/null
    ! rm /run/mnt/appended 2>/dev/null
    ! setfattr -x trusted.pramfs.is-writable /run/mnt 2>/dev/null
    ! touch /run/mnt/new 2>/dev/null
    umount /run/mnt
}

# Writes and syncs until the host kills the server, and then the machine: a request that the
# server has and does not answer cannot be interrupted in the guest.
virtiofs_writes() {
    local n
    mkdir -p /run/mnt/written
    for ((n = 1; ; n++)); do
        printf '%s\n' $n >/run/mnt/written/part
        sync /run/mnt/written/part
        mv /run/mnt/written/part /run/mnt/written/$n
        # What the host knows is durable.
        printf '%s\n' $n >$shared/writes.part
        mv $shared/writes.part $shared/writes
    done
}

virtiofs_survives() {
    local n last
    last=$(cat $shared/writes)
    for ((n = 1; n <= last; n++)); do
        [[ $(cat /run/mnt/written/$n) == "$n" ]] || { say "write $n is lost" && return 1; }
    done
    say "all $last writes are there"
    umount /run/mnt
}

virtiofs_beside() {
    cd /run/mnt
    [[ $(cat from_host) == first ]]
    # The names and the pages are known from here on.
    ls -l >/dev/null
    printf 'guest\n' >from_guest
    printf 'second\n' >>from_host
    touch $shared/guest
    until [[ -e $shared/host ]]; do sleep 0.1; done
    [[ $(cat from_host) == $'first\nsecond\nthird' ]]
    [[ ! -e from_guest && $(cat renamed) == guest ]]
    rm renamed && printf 'last\n' >last
    cd / && umount /run/mnt
}

# Programs that map files. The files of `check` are left mapped.
virtiofs_dax() {
    mount -t virtiofs -o "dax=$1" pramfs /run/mnt
    grep ' /run/mnt ' /proc/mounts | sed 's/^/   /'
    if [[ $2 == work ]] && command -v fio >/dev/null; then
        cd /tmp
        fio --name=mapped --directory=/run/mnt --ioengine=mmap --rw=randrw --bs=4k --size=16M \
            --verify=crc32c --output-format=terse | cut -d';' -f3,5 | sed 's/^/   fio by mmap, name and errors: /'
        rm /run/mnt/mapped.*
    fi
    python3 "$(cat $shared/root)/tests/vm/dax.py" "$2" /run/mnt $shared/writes
}
