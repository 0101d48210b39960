# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The chart's pod and one with a large program as static pods of a kubelet that knows no API server. ci/kubernetes/node sources
# it. Such pods have no ConfigMap: the policy is a file of the node.
# shellcheck disable=SC2154 # dir: of that script

# Prints the pid of a program.
pid_of() { for exe in /proc/[0-9]*/exe; do if [ "$(readlink "$exe")" = "$1" ]; then basename "${exe%/exe}"; fi; done | head -n1; }
runs() { [ -n "$(pid_of "$1")" ]; }
ended() { ! [ -e "/proc/$1/exe" ]; }
is_huge() { [ "$(huge "$pid")" -ge 6144 ]; }
no_containers() { [ -z "$(ctr -n k8s.io containers list -q)" ]; }

mkdir "$dir/policy"
printf '[[rule]]\nname = "pods"\ncgroup = "/kubepods*"\nprogram = "/large"\nany_user = true\ndo = ["code"]
[[rule]]\nname = "nothing else"\nprogram = "/*"\nany_user = true\ndo = []\n' >"$dir/policy/service.toml"
configure
printf '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": "shop"}, "spec": %s}' "$(large_spec serve)" \
  >"$dir/static/large.yaml"
helm template hugelift kubernetes/hugelift --set mode=lift,kubectl.enabled=false,image.pullPolicy=Never --set-string image.tag=1 \
  --kube-version 1.34 --show-only templates/daemonset.yaml | python3 -c '
import sys, yaml
spec = yaml.safe_load(sys.stdin)["spec"]["template"]["spec"]
for name in ["serviceAccountName", "priorityClassName"]:
    del spec[name]
[policy] = [volume for volume in spec["volumes"] if volume["name"] == "policy"]
del policy["configMap"]
policy["hostPath"] = {"path": sys.argv[1]}
# The policy has no table of metrics here.
del spec["containers"][0]["livenessProbe"], spec["containers"][0]["readinessProbe"]
pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hugelift", "namespace": "hugelift"}, "spec": spec}
print(yaml.safe_dump(pod))' "$dir/policy" >"$dir/static/hugelift.yaml"

start kubelet --config "$dir/kubelet.json" --hostname-override node1 --node-ip 10.99.0.1
await 120 "the pods" runs /large
await 60 "the service" runs /hugelift
pid=$(pid_of /large) service=$(pid_of /hugelift) began=$SECONDS
grep -q kubepods "/proc/$pid/cgroup" || fail "the large program is in no group of the kubelet"
grep -q 'NoNewPrivs:.*1' "/proc/$service/status" || fail "the service may get rights"
echo "ok: the kubelet of $(kubelet --version) runs on containerd $(containerd --version | cut -d' ' -f3), cgroup $(stat -fc %T /sys/fs/cgroup); the pods run"
await 60 "the large pod is not huge" is_huge
echo "ok: the code of the large pod is huge after $((SECONDS - began)) s: $(huge "$pid") kB"
rm "$dir/static/hugelift.yaml"
await 60 "the end of the service" ended "$service"
ended "$pid" && fail "the large pod has ended"
is_huge || fail "the large pod is no longer huge"
echo "ok: the service's pod is removed, and the large pod runs on, as huge as before"
rm "$dir/static/large.yaml"
await 150 "the removal of the containers" no_containers
! grep -q ' /run/containerd/.*/rootfs ' /proc/self/mountinfo || fail "layers are held"
echo "ok: the pods are removed, and no layer is held"
