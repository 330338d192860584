# shellcheck shell=bash
# Sourced by run.sh: a mount of machine 1 that is exported by NFS, by Ganesha or by the kernel.

ganesha='' client=''

ganesha_up() {
    # shellcheck disable=SC2016
    on 1 bash -euc '
        mkdir -p /run/ganesha
        cat >/run/ganesha/conf <<END
NFS_CORE_PARAM { Protocols = 4; NFS_Port = 2049; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }
NFSv4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = "/run/ganesha"; Only_Numeric_Owners = true; }
EXPORT { Export_Id = 1; Path = "/srv/brick"; Pseudo = /export; Access_Type = RW; Squash = No_root_squash;
         SecType = sys; FSAL { Name = VFS; } }
END
        ganesha.nfsd -N NIV_EVENT -f /run/ganesha/conf -L /run/ganesha/log -p /run/ganesha/pid'
    until_true 30 on 1 grep -q 'NFS SERVER INITIALIZED' /run/ganesha/log || fail "ganesha.nfsd: $(on 1 tail -5 /run/ganesha/log)"
    ganesha=$(on 1 cat /run/ganesha/pid)
}
ganesha_down() {
    on 1 kill -KILL "$ganesha"
    until_true 10 gone 1 "$ganesha" || fail "ganesha.nfsd does not end"
    on 1 rm -f /run/ganesha/log
}
gone() { ! on "$1" kill -0 "$2" 2>/dev/null; }

client_writes() {
    : >"$work/steps"
    python3 "$here/nfs_client.py" write "nfs://10.90.0.1/export?version=4&uid=0&gid=0" "$1" "$2" 60 >"$work/steps" 2>"$work/writer.log" &
    writer=$!
}
client_ends() {
    wait "$writer" || { cat "$work/writer.log"; fail "the client gave up after $(wc -l <"$work/steps") files"; }
    sed 's/^/  the client saw: /' "$work/writer.log"
    on 1 python3 "$here/nfs_client.py" check /srv/brick $(($(tail -n 1 "$work/steps") + 1)) || fail "what was stable is not there"
}

test_nfs() {
    if ! python3 -c 'import ctypes; ctypes.CDLL("libnfs.so.13")' 2>/dev/null || ! command -v ganesha.nfsd >/dev/null; then
        skipped "NFS-Ganesha or libnfs is missing: no export by NFS"
        return
    fi
    say "NFS: Ganesha exports the mount of machine 1"
    make_region 1 || fail "mkfs.pramfs: $(cat "$work/mkfs.log")"
    switch_on 1
    serve_region 1
    ganesha_up

    client_writes 0 "$part"
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") files: the server of NFS is killed, and started again"
    ganesha_down
    ganesha_up
    client_ends
    # The check finds a wrong byte.
    local found=0
    on 1 sh -c 'cp -p /srv/brick/f7 /srv/brick/kept && printf x | dd of=/srv/brick/f7 bs=1 seek=100 conv=notrunc status=none'
    on 1 python3 "$here/nfs_client.py" check /srv/brick "$part" >"$work/differences" || found=1
    ((found)) || fail "a changed byte is not found"
    on 1 mv /srv/brick/kept /srv/brick/f7
    passed "NFS: Ganesha killed while a client writes"

    client_writes "$part" $((2 * part))
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") files: the pramfs server is killed; a mount, and Ganesha, start again"
    on 1 kill -KILL "$(server_of 1)"
    sleep 1
    ganesha_down
    on 1 umount -l /srv/brick
    serve_region 1
    ganesha_up
    client_ends
    passed "NFS: the pramfs server killed while a client writes"

    client_writes $((2 * part)) $((3 * part))
    wait_for_steps $((part / 4))
    say "  after $(wc -l <"$work/steps") files: machine 1 loses its power"
    switch_off 1
    switch_on 1
    serve_region 1
    ganesha_up
    client_ends
    passed "NFS: the machine of the server without power while a client writes"

    if takeover_works; then
        ganesha_down
        on 1 umount /srv/brick
        serve_region 1 -o takeover=on
        ganesha_up
        client_writes $((3 * part)) $((4 * part))
        wait_for_steps $((part / 4))
        say "  after $(wc -l <"$work/steps") files: the pramfs server is killed, with takeover=on"
        on 1 kill -KILL "$(on 1 pgrep -f serve-for-supervisor | head -n 1)"
        client_ends
        [[ ! -s $work/writer.log ]] || fail "the client noticed a takeover"
        passed "NFS: takeover while a client writes, which sees no error"
    else
        skipped "Linux older than 6.9: no takeover under an export"
    fi
    ganesha_down
    switch_off 1
}

# --- The kernel's server ------------------------------------------------------------------------

nfsd_up() {
    # shellcheck disable=SC2016
    on 1 bash -euc '
        mkdir -p /run/nfs && mount --bind /run/nfs /var/lib/nfs
        mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
        touch /var/lib/nfs/etab /var/lib/nfs/rmtab
        mount -t nfsd nfsd /proc/fs/nfsd
        rpc.mountd -N 3'
    nfsd_export
    nfsd_start
}
nfsd_start() { on 1 sh -c 'rpc.nfsd -N 3 -V 4.2 --grace-time 10 --lease-time 10 4 2>/dev/null || rpc.nfsd -N 3 -V 4.2 4'; }
# Mounts the region of machine 1 again, with these options, and starts the server of NFS again.
nfsd_anew() {
    on 1 rpc.nfsd 0
    on 1 exportfs -u 10.90.0.0/24:/srv/brick
    on 1 exportfs -f
    on 1 umount -l /srv/brick 2>/dev/null || true
    serve_region 1 "$@"
    nfsd_export
    nfsd_start
}
# The number of docs/replication.md. The directory above it is the root of the exports (fsid=0), so the root
# of the machine does not need to be one.
nfsd_export() {
    on 1 exportfs -o ro,no_subtree_check,fsid=0,sync 10.90.0.0/24:/srv
    on 1 exportfs -o rw,no_root_squash,no_subtree_check,fsid=1,sync 10.90.0.0/24:/srv/brick
}

test_nfsd() {
    if ! { modprobe nfsd; modprobe nfsv4; } 2>/dev/null && ! grep -qw nfsd /proc/filesystems; then
        skipped "this kernel has no nfsd: the kernel does not export a mount"
        return
    fi
    say "NFS: the kernel (nfsd) exports the mount of machine 1"
    make_region 1 || fail "mkfs.pramfs: $(cat "$work/mkfs.log")"
    switch_on 1
    serve_region 1
    nfsd_up
    mkdir -p "$work/nfs"
    until_true 30 mount -t nfs4 -o vers=4.2,hard,timeo=20,retrans=2,rsize=65536,wsize=65536 10.90.0.1:/brick "$work/nfs" || fail "mount -t nfs4"
    # nfsd looks for a handler of "user." in the kernel, and FUSE has one for all names.
    if setfattr -n user.name -v value "$work/nfs" 2>/dev/null; then say "  extended attributes can be set over NFS"; else say "  extended attributes cannot be set over NFS"; fi
    tree --no-attributes write "$work/nfs" 3 0 "$part" >"$work/steps" || fail "a writer over NFS"
    tree --no-attributes compare "$work/nfs" 3 "$part" || fail "the client has something else than was written"
    on 1 python3 "$here/tree.py" --no-attributes compare /srv/brick 3 "$part" || fail "the server has something else than was written"
    ! tree --no-attributes compare "$work/nfs" 3 $((part - 1)) >"$work/differences" || fail "a step less is not found"
    passed "NFS: a tree through the kernel's server and client"

    echo by handle >"$work/nfs/open"
    exec 6<>"$work/nfs/open"
    say "  the pramfs server is killed, and the region is mounted again"
    on 1 kill -KILL "$(server_of 1)"
    # The files that clients have open would stay those of the dead mount.
    nfsd_anew
    echo more >&6 && sync "$work/nfs/open" || fail "a file that was open cannot be written after the mount was made again"
    exec 6>&-
    [[ $(on 1 cat /srv/brick/open) == more* ]] || fail "what was written by a handle is not there"
    rm "$work/nfs/open"
    tree --no-attributes write "$work/nfs" 3 "$part" $((2 * part)) >"$work/steps" || fail "a writer over NFS"
    tree --no-attributes compare "$work/nfs" 3 $((2 * part)) || fail "the client has something else than was written"
    on 1 python3 "$here/tree.py" --no-attributes compare /srv/brick 3 $((2 * part)) || fail "the server has something else than was written"
    passed "NFS: handles of the kernel's server hold over a new mount"

    if takeover_works; then
        nfsd_anew -o takeover=on
        start_writer --no-attributes "$work/nfs" 3 $((2 * part)) $((3 * part))
        wait_for_steps $((part / 4))
        say "  after $(wc -l <"$work/steps") steps: the pramfs server is killed, with takeover=on"
        on 1 kill -KILL "$(on 1 pgrep -f serve-for-supervisor | head -n 1)"
        writer_ends
        tree --no-attributes compare "$work/nfs" 3 $((3 * part)) || fail "the client has something else than was written"
        on 1 python3 "$here/tree.py" --no-attributes compare /srv/brick 3 $((3 * part)) || fail "the server has something else than was written"
        passed "NFS: takeover under an export of the kernel, and the client sees no error"
    else
        skipped "Linux older than 6.9: no takeover under an export"
    fi

    umount "$work/nfs"
    on 1 exportfs -ua
    on 1 rpc.nfsd 0
    switch_off 1
}
