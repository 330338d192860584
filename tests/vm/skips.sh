# shellcheck shell=bash
# Part of tests/vm/run.sh: parts that cannot run here. Each is said at once, and again in the last line.
# With CI set, they make the run fail: there, everything is to be installed.

skips=()

skip() {
    skips+=("$*")
    say "*** SKIPPED: $* ***"
}

# Says how a run ended that has not failed. Its status is that of the run.
summary() {
    ((${#skips[@]})) || {
        say "passed: $*"
        return 0
    }
    local all
    all=$(printf '; %s' "${skips[@]}")
    if [[ -n ${CI:-} ]]; then
        say "FAILED: SKIPPED where CI is set: ${all#; } (passed: $*)"
        return 1
    fi
    say "passed: $*; SKIPPED: ${all#; }"
}
