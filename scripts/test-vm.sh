#!/usr/bin/env bash
# Power cuts on an emulated NVDIMM: installs the requirements of tests/vm/run.sh and
# runs it with the same arguments. If it cannot run, prints a prominent message and
# exits with status 0; with CI set, with status 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
    printf '\n*** SKIPPED: %s: the tests in the virtual machine have not been run ***\n\n' "$1" >&2
    [[ -z ${CI:-} ]] || exit 1
    exit 0
}

if [[ $(uname -m) != x86_64 ]]; then
    skip "this machine is not x86_64"
fi
scripts/deps.sh --vm || skip "their requirements could not be installed (see above)"
status=0
tests/vm/run.sh "$@" || status=$?
# run.sh has printed the reason.
((status != 77)) || status=${CI:+1}
exit "${status:-0}"
