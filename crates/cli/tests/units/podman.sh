# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2094 # dir, group, holder: set by containers.sh; no file is read and written
# Containers of Podman, behind containers.sh.
pod() { podman --cgroup-manager cgroupfs --runtime runc --storage-driver overlay --events-backend none "$@"; }
run() { # NAME OPTIONS... IMAGE ARGUMENTS...
    local name=$1
    shift
    begin "$name" pod run -i --name "$name" --network none --cgroup-parent "/$group" --log-driver none \
        --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
}
pid() { pod inspect -f '{{.State.Pid}}' "$1"; }
# Makes an image of the files of a folder.
image() { # NAME FOLDER CHANGES...
    local name=$1 folder=$2
    shift 2
    tar -C "$folder" -cf - . | pod import "$@" - "$name" > import 2>&1 || cat import
}

mkdir -p plain lifted/tmp kept
cp hold plain/hold
cp hold bin/hugelift lifted/
# Its bytes differ, and so does its layer.
cp hold kept/hold && echo kept >> kept/hold
image localhost/lifted:1 lifted --change 'ENTRYPOINT ["/hugelift","run","--seccomp","try","--"]' --change 'CMD ["/hold"]'
image localhost/db:1 plain --change 'ENTRYPOINT ["/hold"]' --change 'LABEL app=mariadb-1'
image localhost/web:1 plain --change 'ENTRYPOINT ["/hold"]' --change 'LABEL app=web'
image localhost/kept:1 kept --change 'ENTRYPOINT ["/hold"]'
if ! pod run --rm --network none --cgroup-parent "/$group" --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \
    localhost/web:1 > first 2>&1 < /dev/null; then
    echo "SKIP: Podman starts no container here: $(tail -n 1 first)"
    exit
fi

# (a) hugelift is the entry point: no privilege, no mount, and the filter and the capabilities that Podman gives.
run lifted localhost/lifted:1
lifted=$(pid lifted)
echo "lifted by its entry point: $(huge "$lifted")"
awk '/^CapEff:/ { caps = $2 } /^Seccomp:/ { filter = $2 }
    END { print "capabilities: " (substr(caps, 11, 1) ~ /[02468ace]/ ? "no " : "") "sys_admin, " (filter == 2 ? "a" : "no") " seccomp filter" }' \
    "/proc/$lifted/status"
finish lifted

# (b) The service lifts the containers of an image that has a label, and no others.
cat > policy.toml <<POLICY
[keep]
interval = "5s"

[[rule]]
name = "database"
image = "localhost/db:*"
label = "app=mariadb*"
do = ["code"]

[[rule]]
name = "kept"
image = ["localhost/kept:1"]
do = ["pagecache"]

[[rule]]
name = "rest"
do = []
POLICY
run db localhost/db:1 burn
run web localhost/web:1 burn
run kept localhost/kept:1
begin_service
await is_huge "$(pid db)"
echo "db: $(huge "$(pid db)")"
echo "web: $(huge "$(pid web)")"
explain --pid "$(pid web)" | grep -o 'rule database .*'
explain --pid "$(pid db)" | grep -o 'container: image localhost/db:1, label app=mariadb-1'

# (c) The layer of an image is kept: it is huge when the container has ended. Then the file is found by its path.
layer=$(find /var/lib/containers/storage/overlay -path '*/diff/hold' -size "$(stat -c %s kept/hold)c")
remembers() { hugelift service status --socket s | grep -q "$layer"; }
await remembers || hugelift service status --socket s
kill "${holder[kept]}"
await is_cached_huge "$layer"
is_cached_huge "$layer" && cached=huge || cached=$(cat cached)

# (d) What is lifted stays when the service ends, and the containers go on.
end_service
echo "db: $(huge "$(pid db)")"
finish db
finish web
echo "kept: $(tr '\n' ' ' < kept.out)"
echo "the layer is $cached"
run again localhost/kept:1
echo "again: $(huge "$(pid again)")"
finish again
pod rm -f -a -t 0 > removed 2>&1 || cat removed
leftovers
