# shellcheck shell=bash
# Sourced by run.sh: machines made of namespaces. Each has its own processes, mounts, name, network
# and /run, and the parts of /var that GlusterFS keeps. A machine that is switched off loses all but
# its region, which lies outside of it, as an NVDIMM keeps its contents.

# The link that joins the machines, in the namespace of run.sh, which is the machine of the users.
network() {
    ip link set lo up
    ip link add hub type bridge
    ip address add 10.90.0.100/24 dev hub
    ip link set hub up
}

# Switches machine N on: its address is 10.90.0.N, its files of this test are in $work/N.
switch_on() {
    local n=$1 keeper pid=''
    mkdir -p "$work/$n/"{region,var/lib/glusterd,var/log/glusterfs}
    unshare --mount --net --uts --pid --fork --kill-child --mount-proc \
        bash -c 'trap : CHLD; while :; do sleep 3600 & wait; done' </dev/null >/dev/null 2>&1 &
    keeper=$!
    until_true 10 child_of "$keeper" || fail "machine $n does not start"
    pid=$(<"/proc/$keeper/task/$keeper/children")
    pid=${pid% }
    machine["$n"]=$pid
    # The new namespaces are entered before bash runs.
    until_true 10 eval "[[ \$(readlink /proc/$pid/exe) == */bash ]]" || fail "machine $n does not start"
    # The address of the card stays, as it does in a machine.
    ip link add "m$n" type veth peer name eth0 address "02:00:00:00:00:0$n" netns "$pid"
    ip link set "m$n" master hub up
    # shellcheck disable=SC2016
    on "$n" bash -euc '
        hostname "m$1"
        ip link set lo up && ip link set eth0 up && ip address add "10.90.0.$1/24" dev eth0
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /srv
        mkdir -p /run/gluster /run/lock /run/mnt
        for dir in /var/lib/glusterd /var/log/glusterfs; do
            [ ! -d "$dir" ] || mount --bind "$2/$1$dir" "$dir"
        done
    ' - "$n" "$work"
}

child_of() { grep -q . "/proc/$1/task/$1/children"; }

# Runs a command in machine N. It must not wait for input.
on() {
    local n=$1
    shift
    nsenter -t "${machine[$n]}" -m -n -u -p -r -w -- "$@" </dev/null
}

# Cuts the power: no process of the machine ends in an orderly way.
switch_off() {
    local pid=${machine[$1]}
    unset "machine[$1]"
    kill -KILL "$pid"
    until_true 20 eval "! kill -0 $pid 2>/dev/null" || fail "machine $1 does not end"
    until_true 10 eval "! ip link show m$1 2>/dev/null | grep -q ." || ip link delete "m$1" 2>/dev/null || true
}

# --- Regions of machines ------------------------------------------------------------------------

# What is below the bricks. BRICKS=ext4 is a control, the same events without pramfs: ext4 on a loop device.
# Where the server of pramfs is killed, that file system is shut down, with its journal written, and
# then answers EIO. (A dead mount of pramfs answers ENOTCONN.)
bricks=${BRICKS:-pramfs}
[[ $bricks == pramfs || $bricks == ext4 ]] || cannot "BRICKS=$bricks is neither pramfs nor ext4"

make_region() {
    local dir=$work/$1/region
    mkdir -p "$dir"
    case $bricks in
    pramfs) "$bin/mkfs-pramfs" -q -f -O data_checksums "$dir/region" "$region_size" ;;
    ext4) rm -f "$dir/region" && truncate -s "$region_size" "$dir/region" && mkfs.ext4 -q -F "$dir/region" ;;
    esac >"$work/mkfs.log" 2>&1
}

# Mounts the region of machine N, with more options of mount.pramfs. `device`: another one than its file.
serve_region() {
    local n=$1
    on "$n" mkdir -p /srv/brick
    until_true 10 mount_region "$@" || fail "machine $n does not mount its region: $(cat "$work/mount.log")"
}
mount_region() {
    local dir=$work/$1/region
    case $bricks in
    pramfs) on "$1" "$bin/mount-pramfs" "${device:-$dir/region}" /srv/brick "${@:2}" ;;
    ext4) on "$1" mount -o loop "$dir/region" /srv/brick ;;
    esac >"$work/mount.log" 2>&1
}

# Ends the file system of the brick of machine N below it: what it has answered stays, and all that comes
# after it fails.
kill_server() {
    case $bricks in
    ext4) on "$1" xfs_io -x -c "shutdown -f" /srv/brick >/dev/null ;;
    *) on "$1" kill -KILL "$(server_of "$1")" ;;
    esac
}

# The process id of the server of the mount, as machine N counts.
server_of() { on "$1" pgrep -f "serve-in-background.*/srv/brick\$"; }

# --- Writers -----------------------------------------------------------------------------------------

start_writer() {
    : >"$work/steps"
    # Options of tree.py come first.
    local options=()
    while [[ $1 == --* ]]; do options+=("$1") && shift; done
    tree "${options[@]}" write "$@" >"$work/steps" 2>"$work/writer.log" &
    writer=$!
}
steps_done() { (($(wc -l <"$work/steps") >= $1)) || ! kill -0 "$writer" 2>/dev/null; }
wait_for_steps() { until_true 120 steps_done "$1" || fail "the writer hangs after $(wc -l <"$work/steps") steps"; }
writer_ends() {
    wait "$writer" || { cat "$work/writer.log"; fail "the writer saw an error after $(wc -l <"$work/steps") steps"; }
}
