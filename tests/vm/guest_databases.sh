# shellcheck shell=bash
# Part of tests/vm/guest.sh: the databases that work until the power cut (tests/vm/databases.sh).

# Turns the NVDIMM without labels into /dev/dax0.0, and says where in it the device begins.
database_medium() {
    local region device
    ndctl create-namespace -f -e namespace0.0 -m devdax >/dev/null
    region=$(cat /sys/bus/nd/devices/region0/resource)
    device=$(cat /sys/bus/dax/devices/dax0.0/resource)
    echo $((device - region)) >"$shared/offset"
    say "the device begins at byte $((device - region)) of the NVDIMM"
}

# Runs a database on a mount with this data mode, in transactions of one page.
database_live() {
    local database=$1 mode=$2 tries
    region=/dev/dax0.0
    for ((tries = 0; tries < 50; tries++)); do
        [[ ! -e $region ]] || break
        sleep 0.1
    done
    "$programs/mount-pramfs" "$region" /run/mnt -o "data=$mode"
    "load_$database" || true
    say "the load ended before the power cut"
    return 1
}

load_sqlite() { python3 "$(cat "$shared/root")/tests/vm/databases.py" live /run/mnt/database "$record/log"; }

load_postgres() {
    local server=() tries
    mapfile -t server <"$shared/postgres"
    cd /run/mnt/data
    as_postgres "${server[@]}" -k /tmp -D /run/mnt/data >"$record/server" 2>&1 &
    for ((tries = 0; tries < 600; tries++)); do
        ! as_postgres psql -h /tmp -qAtc 'select 1' postgres >/dev/null 2>&1 || break
        sleep 0.2
    done
    # A transaction gives all rows the next number. A line in the log for each that is committed.
    while :; do
        echo 'with changed as (update page set n = n + 1 returning n) select max(n) from changed;'
    done | as_postgres psql -h /tmp -qAt -v ON_ERROR_STOP=1 postgres >>"$record/log"
}

as_postgres() { setpriv --reuid postgres --regid postgres --init-groups env LC_ALL=C "$@"; }
