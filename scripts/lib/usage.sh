# How a script tells what it is: sourced, never run.
# shellcheck shell=bash

# The comment at the top of the script that runs.
usage() {
    local line
    while IFS= read -r line; do
        [[ "$line" != '#!'* ]] || continue
        [[ "$line" == '#'* ]] || break
        line="${line#\#}"
        echo "${line# }"
    done <"$0"
}

# For --help: tells it and ends. Any other flag is refused here if there are none; call it with
# 'no-flags' and the arguments then, else with 'flags' and the arguments.
tell_usage() {
    local flags="$1" argument
    shift
    for argument in "$@"; do
        case "$argument" in
            --help | -h)
                usage
                exit 0
                ;;
            -*)
                [[ "$flags" == no-flags ]] || continue
                echo "scripts/${0##*/}: $argument: no such flag; see --help" >&2
                exit 2
                ;;
        esac
    done
}
