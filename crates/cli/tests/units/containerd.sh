# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2094 # dir, group, holder: set by containers.sh; no file is read and written
# Containers of containerd, behind containers.sh: as Kubernetes makes them, with annotations, and labels in a list of pods alone.
mkdir -p plain containerd
cp hold plain/hold
tar -C plain -cf layer.tar .
cat > config.toml <<CONFIG
version = 2
root = "$dir/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "none"
CONFIG
containerd --config config.toml > containerd.log 2>&1 &
containerd=$!
await [ -S /run/containerd/containerd.sock ]
python3 - localhost/db:1 <<'IMAGE'
import hashlib, io, json, sys, tarfile
layer = open("layer.tar", "rb").read()
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/hold"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
manifest = json.dumps([{"Config": "config.json", "RepoTags": [sys.argv[1]], "Layers": ["layer.tar"]}]).encode()
with tarfile.open("image.tar", "w") as image:
    for name, data in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        image.addfile(info, io.BytesIO(data))
IMAGE
ctr image import --platform "linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')" image.tar > import 2>&1 || cat import

id() { printf '%064d' "$1"; }
run() { # NAME NUMBER NAMESPACE ARGUMENTS...
    local name=$1 number=$2 namespace=$3
    shift 3
    begin "$name" ctr run --seccomp --cgroup "/$group/$(id "$number")" \
        --annotation io.kubernetes.cri.image-name=localhost/db:1 \
        --annotation "io.kubernetes.cri.sandbox-namespace=$namespace" localhost/db:1 "$(id "$number")" /hold "$@"
}
pid() { ctr task ls | awk -v id="$(id "$1")" '$1 == id { print $2 }'; }
if ! timeout 60 ctr run --rm --null-io --cgroup "/$group/first" localhost/db:1 first > first 2>&1; then
    echo "SKIP: containerd starts no container here: $(tail -n 1 first)"
    exit
fi
cat > policy.toml <<POLICY
[[rule]]
name = "database"
namespace = "shop"
label = "app=mariadb*"
image = "localhost/*"
do = ["code"]

[[rule]]
name = "rest"
do = []
POLICY
echo '{"kind":"List","items":[]}' > pods.json
run db 1 shop burn
run web 2 other burn
begin_service --pods pods.json
cat > pods.new <<PODS
{"kind":"List","items":[
{"metadata":{"namespace":"shop","uid":"u-1","labels":{"app":"mariadb"}},
 "status":{"containerStatuses":[{"containerID":"containerd://$(id 1)","image":"localhost/db:1"}]}},
{"metadata":{"namespace":"other","uid":"u-2","labels":{"app":"mariadb"}},
 "status":{"containerStatuses":[{"containerID":"containerd://$(id 2)","image":"localhost/db:1"}]}}]}
PODS
mv pods.new pods.json
await is_huge "$(pid 1)"
echo "db: $(huge "$(pid 1)")"
echo "web: $(huge "$(pid 2)")"
explain --pods pods.json --pid "$(pid 2)" | grep -o 'rule database .*'
db=$(pid 1)
end_service
echo "db: $(huge "$db")"
finish db
finish web
for number in 1 2; do
    ctr task rm -f "$(id "$number")" > removed 2>&1
    ctr container rm "$(id "$number")" >> removed 2>&1
done
kill "$containerd"
wait "$containerd"
leftovers
