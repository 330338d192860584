#!/usr/bin/env bash
# Power cuts on an emulated NVDIMM: installs what tests/vm/run.sh needs, and
# runs it with the same arguments. Where it cannot run, says so loudly and ends
# with status 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
    printf '\n*** SKIPPED: %s: the tests in the virtual machine have not been run ***\n\n' "$1" >&2
    exit 0
}

if [[ $(uname -m) != x86_64 ]]; then
    skip "this is no x86_64"
fi
scripts/deps.sh --vm || skip "what they need could not be installed (see above)"
status=0
tests/vm/run.sh "$@" || status=$?
# It has said why.
((status == 77)) && exit 0
exit $status
