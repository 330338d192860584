# shellcheck shell=bash
# Sourced by run.sh: a guest that mounts a region of this machine by virtiofs, without an NVDIMM.
# The steps in the guest are in guest_virtiofs.sh.

virtiofs_server='' virtiofs_mounted=''
virtiofs_dir=$work/virtiofs

# Starts the server, which makes the socket.
virtiofs_serve() {
    touch "$virtiofs_dir/log"
    "$target/debug/pramfs-virtiofsd" --socket-path "$virtiofs_dir/socket" \
        --shared-dir "$virtiofs_dir/region" "$@" 2>>"$virtiofs_dir/log" &
    virtiofs_server=$!
    local patience=$((SECONDS + 20))
    until grep -q 'ready for guests' "$virtiofs_dir/log"; do
        if ! kill -0 "$virtiofs_server" 2>/dev/null || ((SECONDS > patience)); then
            virtiofs_log
            fail "the server of the guest does not start"
        fi
        sleep 0.1
    done
}

virtiofs_log() { sed 's/^/  server| /' "$virtiofs_dir/log" && : >"$virtiofs_dir/log"; }

virtiofs_end() {
    kill -TERM "$virtiofs_server"
    wait "$virtiofs_server" || fail "the server ends with status $?"
    virtiofs_server=
    virtiofs_log
    # Its name stays, since the server can remove no names; the next one replaces it.
    [[ -S $virtiofs_dir/socket ]] || fail "the socket of the server has gone"
}

# After a crash, 1 says that something was put right.
virtiofs_check() {
    local status=0
    "$target/debug/fsck-pramfs" "$1" "$virtiofs_dir/region" >"$work/check" || status=$?
    sed 's/^/  /' "$work/check"
    ((status <= $2)) || fail "fsck.pramfs ends with status $status"
}

# The first server serves two boots of the guest, and must not keep anything of the first. Then a
# server is killed while the guest writes.
virtiofs() {
    rm -rf "$virtiofs_dir" && mkdir -p "$virtiofs_dir"
    "$target/debug/mkfs-pramfs" "$virtiofs_dir/region" 192M >/dev/null
    virtiofs_serve
    boot --virtiofs virtiofs_mount virtiofs_work virtiofs_open
    boot --virtiofs virtiofs_mount virtiofs_remains
    virtiofs_end
    virtiofs_check -n 0
    virtiofs_serve --readonly --cache never --thread-pool-size 2
    boot --virtiofs virtiofs_mount virtiofs_read_only
    virtiofs_end
    virtiofs_serve
    rm -f "$work/shared/writes"
    boot --kill-server virtiofs_mount virtiofs_writes
    virtiofs_log
    virtiofs_check -p 1
    virtiofs_beside_mount virtiofs_mount virtiofs_survives
    virtiofs_check -n 0
    rm -rf "$virtiofs_dir"
}

# A mount of this machine and a guest use a region at the same time, and see each other's changes.
# The guest takes these steps first.
virtiofs_beside_mount() {
    if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
        skip "not root, or no /dev/fuse: no guest beside a mount"
        virtiofs_serve
        boot --virtiofs "$@"
        virtiofs_end
        return
    fi
    local at=$virtiofs_dir/mount
    mkdir -p "$at" && rm -f "$work"/shared/{guest,host}
    "$target/debug/mount-pramfs" "$virtiofs_dir/region" "$at" --virtiofs "$virtiofs_dir/socket"
    virtiofs_mounted=$at
    [[ $(findmnt -no OPTIONS "$at") == *nosuid,nodev* ]] || fail "the mount allows set-user-ID"
    printf 'first\n' >"$at/from_host"
    {
        until [[ -e $work/shared/guest ]]; do sleep 0.1; done
        if [[ $(cat "$at/from_guest") == guest && $(cat "$at/from_host") == $'first\nsecond' ]]; then
            printf 'third\n' >>"$at/from_host"
            mv "$at/from_guest" "$at/renamed"
            touch "$work/shared/host"
        fi
    } &
    boot --virtiofs "$@" virtiofs_mount virtiofs_beside
    wait "$!" || true
    [[ $(cat "$at/last") == last && ! -e $at/renamed ]] || fail "the mount does not show what the guest did"
    umount "$at"
    virtiofs_mounted=
    # umount returns before the server has closed the region.
    flock -w 20 "$virtiofs_dir/region" true
    [[ ! -e $virtiofs_dir/socket ]] || fail "the server of the mount leaves its socket"
}

# Unpacks QEMU of a newer Debian with its libraries, without installing it: QEMU 7.2 has no device
# with a window. Sets newer_qemu to a command that runs it.
newer_qemu=()
newer_qemu() {
    local dir=$work/newer-qemu lib package
    if [[ ! -e $dir/complete ]]; then
        say "fetching a newer QEMU (110 MB)"
        rm -rf "$dir" && mkdir -p "$dir"/apt/{lists/partial,cache/archives/partial} "$dir/root"
        : >"$dir/apt/status"
        printf 'deb [signed-by=%s] %s sid main\n' /usr/share/keyrings/debian-archive-keyring.gpg \
            http://deb.debian.org/debian >"$dir/apt/sources.list"
        cat >"$dir/apt/conf" <<END
Dir::State::lists "$dir/apt/lists";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt/cache";
Dir::Etc::sourcelist "$dir/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::Languages "none";
END
        # apt fetches as another user where it can.
        APT_CONFIG=$dir/apt/conf apt-get -qq update >/dev/null 2>&1 &&
            APT_CONFIG=$dir/apt/conf apt-get -qq install -y --download-only --no-install-recommends \
                qemu-system-x86 seabios >/dev/null 2>&1 || return 1
        for package in "$dir"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$dir/root"; done
        rm -rf "$dir/apt"
        touch "$dir/complete"
    fi
    lib=$dir/root/usr/lib/x86_64-linux-gnu
    newer_qemu=("$dir/root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib:$lib/pulseaudio"
        "$dir/root/usr/bin/qemu-system-x86_64"
        -L "$dir/root/usr/share/qemu" -L "$dir/root/usr/share/seabios")
    say "$("${newer_qemu[@]}" --version | sed -n 1p)"
    # `-device help` would load modules of this machine's QEMU.
    grep -q vhost-user-test-device-pci "$dir/root/usr/bin/qemu-system-x86_64"
}

# QEMU writes a line for each map beyond the eighth that it does not tell other back ends.
# The guest maps files: its programs load from and store to the region. The first boot ends with a
# file mapped, and the last one without a server.
dax() {
    if ! newer_qemu; then
        skip "no QEMU with vhost-user-test-device-pci can be fetched: no guest with DAX"
        return
    fi
    rm -rf "$virtiofs_dir" && mkdir -p "$virtiofs_dir"
    "$target/debug/mkfs-pramfs" "$virtiofs_dir/region" 768M >/dev/null 2>&1
    virtiofs_serve --tag pramfs --num-request-queues 1 --dax-window 256M --log-level debug
    boot --dax "virtiofs_dax always work"
    # The file of 64 MiB: the first whose last range was mapped.
    local node maps
    node=$(sed -n 's/.* 2097152 bytes of node \([0-9]*\) at 65011712 are mapped.*/\1/p' "$virtiofs_dir/log" | sed -n 1p)
    maps=$(grep -c "of node $node at .* in 1 pieces" "$virtiofs_dir/log" || true)
    say "$maps maps of the file of 64 MiB, $(grep -c ' are mapped at ' "$virtiofs_dir/log") of all"
    [[ $maps == 32 ]] || fail "it should have 32 maps, one for each range"
    boot --dax "virtiofs_dax inode check"
    : >"$virtiofs_dir/log"
    virtiofs_end
    virtiofs_check -n 0
    # The server is killed, and another one takes the region while the guest goes on storing.
    virtiofs_serve --tag pramfs --num-request-queues 1 --dax-window 256M
    rm -f "$work/shared/writes"
    meanwhile=dax_goes_on
    boot --dax-kill-server "virtiofs_dax always live"
    meanwhile=
    sleep 1
    virtiofs_end
    virtiofs_check -n 0
    local stored
    "$target/debug/pramfs" get "$virtiofs_dir/region" /live "$virtiofs_dir/live"
    stored=$(od -An -tu8 -N8 "$virtiofs_dir/live")
    say "the file has store $((stored)) of at least $(cat "$work/shared/writes")"
    ((stored >= $(cat "$work/shared/writes"))) || fail "a store is lost"
    dax_beside_mount
    rm -rf "$virtiofs_dir"
}

# A guest stores to a file that it has mapped, beside a mount of this machine.
dax_beside_mount() {
    if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
        skip "not root, or no /dev/fuse: no guest with DAX beside a mount"
        return
    fi
    local at=$virtiofs_dir/mount
    mkdir -p "$at" && rm -f "$work/shared/writes"
    "$target/debug/mount-pramfs" "$virtiofs_dir/region" "$at" --virtiofs "$virtiofs_dir/socket" \
        --tag pramfs --dax-window 256M -o direct=owner
    virtiofs_mounted=$at
    meanwhile="dax_seen_on_host $at"
    boot --dax-beside "virtiofs_dax always live"
    meanwhile=
    umount "$at"
    virtiofs_mounted=
    flock -w 20 "$virtiofs_dir/region" true
    virtiofs_check -n 0
}

# A program of this machine loads what the guest stores, and the server is asked nothing meanwhile.
dax_seen_on_host() {
    "$target/debug/pramfs" run -- python3 tests/vm/dax.py watch "$1" "$target/debug/pramfs" |
        sed 's/^/  /' || fail "the stores of the guest are not seen on this machine"
}

# The programs of the guest store what they have mapped without a server, and beside the next one,
# which keeps the blocks for them.
dax_goes_on() {
    local before
    before=$(cat "$work/shared/writes")
    sleep 1
    (($(cat "$work/shared/writes") > before)) || fail "the guest does not go on storing"
    : >"$virtiofs_dir/log"
    virtiofs_serve
    before=$(cat "$work/shared/writes")
    sleep 2
    (($(cat "$work/shared/writes") > before)) || fail "the guest does not go on storing beside the next server"
}
