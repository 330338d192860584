# shellcheck shell=bash
# Sourced by run.sh: a region on DRBD, which sends each block to another machine before a write returns.
#
# Both sides are devices of one kernel, each on a loop device, joined by its loopback interface: the
# module knows no namespaces of networks.

loops=()
# For the module of Linux, which is DRBD 8.4.
drbdsetup=/lib/drbd/drbdsetup-84

# In the namespace of networks that this script was started in, descriptor 9.
drbd() { nsenter --net=/proc/self/fd/9 -- "$drbdsetup" "$@" </dev/null; }

# Side N (0 or 1) with the disk $work/disk.N.
drbd_up() {
    local n=$1 loop
    truncate -s 64M "$work/disk.$n"
    loop=$(losetup --find --show "$work/disk.$n")
    loops[n]=$loop
    nsenter --net=/proc/self/fd/9 -- drbdmeta --force "$n" v08 "$loop" internal create-md >"$work/drbd.log" 2>&1 </dev/null ||
        { cat "$work/drbd.log"; fail "drbdmeta create-md"; }
    drbd new-resource "side$n"
    drbd new-minor "side$n" "$n" 0
    drbd attach "$n" "$loop" "$loop" internal
    drbd connect "side$n" "ipv4:127.0.0.1:700$n" "ipv4:127.0.0.1:700$((1 - n))" --protocol=C
}
drbd_down() {
    local n
    for n in "${!loops[@]}"; do
        until_true 20 drbd down "side$n" >/dev/null 2>&1 || fail "side $n of DRBD does not end"
        losetup -d "${loops[n]}"
    done
    loops=()
}
drbd_same() { [[ $(drbd dstate 0) == UpToDate/UpToDate ]]; }

test_drbd() {
    if [[ ! -e /proc/drbd ]] || [[ ! -x $drbdsetup ]] || ! command -v drbdmeta >/dev/null; then
        skipped "this kernel has no DRBD, or its tools are missing: no region on DRBD"
        return
    fi
    say "DRBD $(sed -n 's/^version: \([^ ]*\).*/\1/p' /proc/drbd), protocol C: machine 1 is primary"
    # drbdmeta locks a file there.
    mkdir -p "$(readlink -m /var/lock)"
    drbd_up 0
    drbd_up 1
    drbd primary 0 --force
    until_true 60 drbd_same || fail "the sides do not become the same: $(drbd dstate 0)"
    "$bin/mkfs-pramfs" -q -f /dev/drbd0 || fail "mkfs.pramfs /dev/drbd0"
    switch_on 1
    switch_on 2
    device=/dev/drbd0 serve_region 1
    : >"$work/steps"
    on 1 python3 "$here/tree.py" write /srv/brick 6 0 100000 >"$work/steps" 2>"$work/writer.log" &
    writer=$!
    wait_for_steps "$part"
    local before made
    before=$(wc -l <"$work/steps")
    # Machine 1 goes on for a moment: nothing reaches machine 2 any more.
    drbd disconnect ipv4:127.0.0.1:7001 ipv4:127.0.0.1:7000 --force
    made=$(wc -l <"$work/steps")
    switch_off 1
    wait "$writer" || true
    say "  machine 1 loses its power after $before to $made steps; machine 2 becomes primary"
    drbd primary 1 --force
    device=/dev/drbd1 serve_region 2
    tree_on 2 compare /srv/brick 6 "$before" $((made + 1)) || fail "machine 2 lacks a step that was complete"
    ! tree_on 2 compare /srv/brick 6 $((before / 2)) >"$work/differences" || fail "half of the steps is not found to differ"
    tree_on 2 write /srv/brick 7 0 1 >/dev/null || fail "machine 2 does not write"
    on 2 umount /srv/brick
    switch_off 2
    "$bin/fsck-pramfs" -n /dev/drbd1 >"$work/check" 2>&1 || { cat "$work/check"; fail "fsck.pramfs of machine 2's side"; }
    drbd_down
    passed "DRBD: each step that was complete is on machine 2"
}
