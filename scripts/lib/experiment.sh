# Shared by the scripts that run clusters on this machine: sourced, never run.
#
# The caller sets `script` to its name first. Here: where things are, how bad arguments are refused,
# and a folder for one experiment that is cleaned up whatever its end is: clusters in it are
# stopped, then it is removed.
# shellcheck shell=bash

# shellcheck source-path=SCRIPTDIR source=usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
bin="$target/release"

refuse() {
    echo "${script:?}: $*" >&2
    exit 2
}

# An absolute path, also of what does not exist.
absolute() {
    if [[ "$1" == /* ]]; then
        echo "$1"
    else
        echo "$PWD/$1"
    fi
}

build() {
    (cd "$root" && cargo build --release --locked --workspace --bins)
}

work=''
child=''
trees=()
# Functions to be called at the end.
at_end=()

# Makes the folder $work in the folder named.
begin_work() {
    [[ -d "$1" ]] || refuse "--dir $1: no such folder; name one on the disk to be used"
    work="$(mktemp -d "$1/demo-data-XXXXXX")"
    trap end_work EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

end_work() {
    local status=$? marker tree
    trap - EXIT
    # Cleaning up is not to be interrupted half way.
    trap '' INT TERM HUP
    if [[ -n "$child" ]]; then
        kill -TERM "$child" 2>/dev/null || true
        wait "$child" || true
    fi
    local ending
    for ending in "${at_end[@]}"; do
        "$ending"
    done
    for marker in "$work"/*/cluster; do
        [[ -f "$marker" ]] || continue
        "$root/scripts/cluster" down --dir "${marker%/cluster}" || true
    done
    for tree in "${trees[@]}"; do
        git -C "$root" worktree remove --force "$tree" || true
    done
    rm -rf "$work"
    exit "$status"
}

# Runs a command so that a signal to this script reaches it.
supervise() {
    local status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    child=''
    return "$status"
}

# The flags that tell loadgen where everything is.
place() {
    printf '%s\n' --cluster "$root/scripts/cluster" --bin "$bin" --work "$work"
}

# Builds, and runs one command of loadgen in a folder of its own, with the flags of this script:
#   run_experiment COMMAND 'FLAG...' ARGUMENT...
# The flags named go to it as they are; --json, --dir and --help are understood everywhere.
run_experiment() {
    local command="$1" known=" $2 " dir="$root" flags=() places=()
    shift 2
    while (($# > 0)); do
        case "$1" in
            --help | -h)
                usage
                exit 0
                ;;
        esac
        (($# > 1)) || refuse "$1: no such flag, or its value is missing"
        case "$1" in
            --json) flags+=("$1" "$(absolute "$2")") ;;
            --dir) dir="$(absolute "$2")" ;;
            *)
                [[ "$known" == *" $1 "* ]] || refuse "$1: no such flag"
                flags+=("$1" "$2")
                ;;
        esac
        shift 2
    done
    echo '== building' >&2
    build
    begin_work "$dir"
    mapfile -t places < <(place)
    supervise "$bin/loadgen" "$command" "${places[@]}" "${flags[@]}"
}
