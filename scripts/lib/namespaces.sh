# Network namespaces for an experiment: sourced, never run, after experiment.sh.
#
# One namespace for each node, $net-1, $net-2, ..., and $net-sw with the bridge that joins them, where
# clients and proxies are. All names carry the pid of the script. They go when the experiment's folder
# goes, whatever its end is; nothing outside of them is touched.
# shellcheck shell=bash

# The tools of the administrator are not on everyone's path.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

net="mr$$"

# Ends the script where it cannot do anything.
skip_without_root() {
    local why='' tool
    ((EUID == 0)) || why='needs root for network namespaces and small file systems'
    for tool in ip nft mkfs.ext4 mount; do
        command -v "$tool" >/dev/null || why="needs $tool; scripts/setup installs what is missing"
    done
    [[ -n "$why" ]] || return 0
    echo "skipped: 1 ($why)"
    [[ "${CI:-}" != true ]] || exit 1
    exit 0
}

end_net() {
    local name pid
    for name in $(ip netns list | cut -d ' ' -f 1); do
        [[ "$name" == "$net"-* ]] || continue
        # What runs in it was started by this script, or by what it started.
        for pid in $(ip netns pids "$name"); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns delete "$name" || true
    done
}

# Makes the namespaces of so many nodes: node i is 10.77.0.i, a proxy in front of it 10.77.1.i, and
# clients are 10.77.0.100.
begin_net() {
    local id
    at_end+=(end_net)
    ip netns add "$net-sw"
    ip -n "$net-sw" link set lo up
    ip -n "$net-sw" link add bridge type bridge
    ip -n "$net-sw" addr add 10.77.0.100/16 dev bridge
    ip -n "$net-sw" link set bridge up
    for ((id = 1; id <= $1; id++)); do
        ip netns add "$net-$id"
        ip -n "$net-$id" link set lo up
        ip -n "$net-sw" link add "node$id" type veth peer name eth0 netns "$net-$id"
        ip -n "$net-sw" link set "node$id" master bridge up
        ip -n "$net-sw" addr add "10.77.1.$id/16" dev bridge
        ip -n "$net-$id" addr add "10.77.0.$id/16" dev eth0
        ip -n "$net-$id" link set eth0 up
    done
}

# Runs a command in one of the namespaces so that a signal to this script reaches it.
in_net() {
    local name="$net-$1"
    shift
    supervise ip netns exec "$name" "$@"
}
