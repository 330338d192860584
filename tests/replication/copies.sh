# shellcheck shell=bash
# Sourced by run.sh: copies from machine 1 to machine 2, by rsync, and by pramfs save and restore.

rsyncd_up() {
    # shellcheck disable=SC2016
    on 2 bash -euc '
        mkdir -p "$1"
        cat >/run/rsyncd.conf <<END
pid file = /run/rsyncd.pid
use chroot = no
munge symlinks = no
uid = root
gid = root
read only = no
timeout = 5
[tree]
path = /srv/brick
[saves]
path = $1
END
        rsync --daemon --config=/run/rsyncd.conf' - "$work/2/saves"
    until_true 10 on 1 rsync -q rsync://10.90.0.2/ >/dev/null 2>&1 || fail "no rsync daemon"
}
rsync_tree() { on 1 rsync -aHAX --delete --exclude=/lost+found --timeout=5 "$@" /srv/brick/ rsync://10.90.0.2/tree/; }
writer_on_1() {
    : >"$work/steps"
    on 1 python3 "$here/tree.py" write /srv/brick 4 "$1" "$2" >"$work/steps" 2>"$work/writer.log" &
    writer=$!
}
tree_on() { on "$1" python3 "$here/tree.py" "${@:2}"; }

test_copies() {
    command -v rsync >/dev/null || { skipped "rsync is missing: no copies"; return; }
    local n
    for n in 1 2; do
        make_region "$n" || fail "mkfs.pramfs: $(cat "$work/mkfs.log")"
        switch_on "$n"
        serve_region "$n"
    done
    rsyncd_up
    copy_by_rsync
    copy_by_save
    for n in "${!machine[@]}"; do switch_off "$n"; done
}

copy_by_rsync() {
    say "rsync: from machine 1 to machine 2"
    tree_on 1 write /srv/brick 4 0 $((2 * part)) >"$work/steps" || fail "a writer"
    rsync_tree || fail "rsync"
    tree_on 2 compare /srv/brick 4 $((2 * part)) || fail "machine 2 has something else than machine 1"
    # All that rsync compares by default is times and sizes.
    ! tree_on 2 compare /srv/brick 4 $((2 * part - 1)) >"$work/differences" || fail "a step less is not found"
    passed "rsync: a tree at rest is copied as it is"

    writer_on_1 $((2 * part)) $((4 * part))
    wait_for_steps $((part / 4))
    rsync_tree --bwlimit=20M 2>"$work/rsync.log" || say "  rsync while files change ends with status $?: $(tail -n 1 "$work/rsync.log")"
    wait "$writer" || { cat "$work/writer.log"; fail "a writer"; }
    if tree_on 2 compare /srv/brick 4 $((2 * part)) $((4 * part)) >"$work/differences"; then
        say "  a copy while files change: $(head -n 1 "$work/differences")"
    else
        say "  a copy while files change is as no moment was: $(head -n 1 "$work/differences")"
    fi
    rsync_tree || fail "rsync"
    tree_on 2 compare /srv/brick 4 $((4 * part)) || fail "machine 2 has something else than machine 1"

    tree_on 1 write /srv/brick 4 $((4 * part)) $((6 * part)) >"$work/steps" || fail "a writer"
    rsync_tree --bwlimit=2M >"$work/rsync.log" 2>&1 &
    local sender=$!
    sleep 2
    say "  machine 1 loses its power in the middle of a copy"
    switch_off 1
    ! wait "$sender" || fail "the copy was complete before: too fast for this test"
    until_true 30 no_receiver || fail "the receiver waits for ever"
    tree_on 2 either /srv/brick 4 $((4 * part)) $((6 * part)) || fail "a file is neither old nor new"
    passed "rsync: killed, each file is the old one or the new one"

    switch_on 1
    serve_region 1
    tree_on 1 compare /srv/brick 4 $((6 * part)) || fail "machine 1 lost something"
    rsync_tree --bwlimit=2M >"$work/rsync.log" 2>&1 &
    sender=$!
    sleep 1
    say "  machine 2 loses its power in the middle of a copy"
    switch_off 2
    ! wait "$sender" || fail "the copy was complete before: too fast for this test"
    switch_on 2
    serve_region 2
    tree_on 2 either /srv/brick 4 $((4 * part)) $((6 * part)) || fail "a file is neither old nor new"
    rsyncd_up
    rsync_tree || fail "rsync"
    tree_on 2 compare /srv/brick 4 $((6 * part)) || fail "machine 2 has something else than machine 1"
    passed "rsync: the next copy completes what was interrupted"
}
no_receiver() { [[ $(on 2 pgrep -c -x rsync) == 1 ]]; }

copy_by_save() {
    say "pramfs save on machine 1, pramfs restore on machine 2"
    local before after made
    on 2 umount /srv/brick
    writer_on_1 $((6 * part)) $((9 * part))
    wait_for_steps $((part / 4))
    before=$((6 * part + $(wc -l <"$work/steps")))
    on 1 "$bin/pramfs" save -f /srv/brick "$work/1/saved" >"$work/save.log" 2>&1 || { cat "$work/save.log"; fail "pramfs save"; }
    after=$((6 * part + $(wc -l <"$work/steps")))
    on 1 rsync "$work/1/saved" rsync://10.90.0.2/saves/saved || fail "rsync of the save"
    wait_for_steps $((part / 4 + after - 6 * part))
    switch_off 1
    wait "$writer" || true
    made=$((6 * part + $(wc -l <"$work/steps")))
    say "  saved while steps $before to $after ran; machine 1 loses its power after $made"

    local saved=$work/2/saves/saved other=$work/2/saves/other
    cp "$saved" "$other"
    printf '%b' "\\$(printf '%03o' $(($(od -An -tu1 -j 50000 -N 1 "$other") ^ 255)))" | dd of="$other" bs=1 seek=50000 conv=notrunc status=none
    ! on 2 "$bin/pramfs" restore "$other" "$work/2/region/other" >"$work/restore.log" 2>&1 || fail "a damaged save is restored"
    head -c 100000 "$saved" >"$other"
    ! on 2 "$bin/pramfs" restore "$other" "$work/2/region/other" >"$work/restore.log" 2>&1 || fail "half a save is restored"
    [[ ! -e $work/2/region/other ]] || fail "something is left of a restore that was refused"
    on 2 "$bin/pramfs" restore -f "$saved" "$work/2/region/region" >"$work/restore.log" 2>&1 || { cat "$work/restore.log"; fail "pramfs restore"; }
    serve_region 2
    tree_on 2 compare /srv/brick 4 "$before" $((after + 1)) || fail "machine 2 has something else than one moment of the save"
    ! tree_on 2 compare /srv/brick 4 "$made" >"$work/differences" || fail "what came after the save is there"
    say "  lost: the steps after the save, up to $((made - before))"
    passed "pramfs save: machine 2 has one moment of the save, and refuses a damaged or incomplete file"
    on 2 umount /srv/brick
    until_true 10 fsck_clean 2 || { cat "$work/check"; fail "fsck.pramfs of the restored region"; }
}
fsck_clean() { "$bin/fsck-pramfs" -n "$work/$1/region/region" >"$work/check" 2>&1; }
