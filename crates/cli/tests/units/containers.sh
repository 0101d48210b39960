# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of containers begin with, in namespaces of their own: $1 is their folder, $2 the name of their control group.
# Nothing of the machine is changed. The stores of the runtimes are in the folder.
exec 2>&1
dir=$1 group=$2
cd "$dir" || exit
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/lock store /var/lib/containers
mount --bind store /var/lib/containers
declare -A holder

# Waits until a command succeeds, two minutes at most.
await() {
    for _ in $(seq 1200); do
        "$@" && return
        sleep 0.1
    done
    echo "no end of: $*"
    return 1
}

# Runs a command whose input stays open until `finish NAME`, and waits until its program is ready.
begin() { # NAME COMMAND...
    local name=$1
    shift
    mkfifo "$name.in"
    touch "$name.out"
    "$@" < "$name.in" > "$name.out" 2> "$name.err" &
    sleep 600 > "$name.in" &
    holder[$name]=$!
    await grep -q ready "$name.out" || cat "$name.err"
}

# Ends the input of a command, and says what its program has printed.
finish() { # NAME
    kill "${holder[$1]}"
    # shellcheck disable=SC2016
    await grep -qz 'ready.*wrong' "$1.out"
    echo "$1: $(tr -d '\r' < "$1.out" | tr '\n' ' ')"
}

# Says whether the code of a process is huge.
huge() { # PID
    awk '/^[0-9a-f]+-[0-9a-f]+ / { code = $2 ~ /x/ } code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped):/ { huge += $2 }
        END { print (huge >= 4096 ? "huge" : (huge ? "some" : "small")) }' "/proc/$1/smaps"
}
is_huge() { [ "$(huge "$1")" = huge ]; }

# Says whether the page cache of a file is huge.
is_cached_huge() { hugelift prime --check "$1" > cached 2>&1; }

begin_service() { # OPTIONS...
    mkdir -p drop-ins
    hugelift service --config policy.toml --drop-ins drop-ins --socket s --ledger ledger/ledger.db "$@" > service.log 2>&1 &
    service=$!
    await [ -S s ]
}
end_service() {
    kill "$service"
    wait "$service"
    echo "the service ends: $?"
}
explain() { hugelift service check --config policy.toml --drop-ins drop-ins "$@"; }

# Removes the control groups of the test, and says what is left of its containers.
leftovers() {
    for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
        [ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} \;
    done
    grep -c " overlay overlay .*$dir" /proc/self/mountinfo
}
