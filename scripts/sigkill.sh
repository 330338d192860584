#!/usr/bin/env bash
# Kills processes in the middle of their work, KILLS times, and checks what they
# leave, a tenth of it beside clients with leases. `make test` does the same 200 times. Then
# kills processes that access files of a mount directly, and their servers, a quarter as often
# in each of five tests.
#
#   scripts/sigkill.sh [KILLS]    number without those of direct access, 4000 by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

kills=${1:-4000}
if ! [[ $kills =~ ^[0-9]+$ ]] || ((kills < 2)); then
    printf 'usage: scripts/sigkill.sh [KILLS]    (a number, at least 2)\n' >&2
    exit 2
fi
# Half of the processes are servers of a mount, half are separate programs.
cargo build -p pramfs-fuse
PRAMFS_TEST_KILLS=$((kills / 2)) cargo test -p pramfs-tests --test sigkill -- --nocapture
PRAMFS_TEST_KILLS=$(((kills + 3) / 4)) exec cargo test -p pramfs-fuse --test mount -- \
    client_killed_at_any_moment_leaves_no_lease \
    writes_of_killed_client_that_returned_are_there \
    appends_of_killed_client_that_returned_are_there \
    appends_that_returned_are_there_after_both_deaths \
    writes_that_returned_are_there_after_both_deaths
