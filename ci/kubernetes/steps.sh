# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the cluster has to show. ci/kubernetes/node sources it, once the node is ready.
# shellcheck disable=SC2154 # dir: of that script
chart=kubernetes/hugelift
helm_one() { helm "$1" hugelift "$chart" --namespace hugelift --create-namespace --values "$dir/values.yaml" "${@:2}" >/dev/null; }
service_ready() { kubectl -n hugelift rollout status daemonset/hugelift --timeout=120s >/dev/null || fail "the DaemonSet is not ready: $(kubectl -n hugelift describe pods | tail -n 20)"; }
restarts() { kubectl get pods -A -o jsonpath='{range .items[*]}{range .status.containerStatuses[*]}{.restartCount}{"\n"}{end}{end}' | grep -vcx 0 || true; }
no_restarts() { [ "$(restarts)" = 0 ] || fail "pods were restarted: $(kubectl get pods -A)"; }

# Prints the pids of the large program in a namespace.
large() {
  local uid pid
  for uid in $(kubectl -n "$1" get pods -l app=large -o jsonpath='{.items[*].metadata.uid}'); do
    for pid in /proc/[0-9]*; do
      if [ "$(readlink "$pid/exe")" = /large ] && grep -q "$uid" "$pid/cgroup"; then echo "${pid#/proc/}"; fi
    done 2>/dev/null
  done
}

# Of 8 MB three huge pages are whole.
is_huge() {
  local pid
  pid=$(large "$1" | head -n1)
  [ -n "$pid" ] && [ "$(huge "$pid")" -ge 6144 ]
}

# Fails unless the pod's process is the one of before, and so many kB of its code are huge.
stays() {
  [ "$(large shop)" = "$pid" ] || fail "the pod has another process"
  [ "$(huge "$pid")" -ge "$1" ] || fail "of the pod's code only $(huge "$pid") kB are huge, and not $1"
}

no_pods() { [ -z "$(kubectl -n hugelift get pods -o name)" ]; }
no_containers() { [ -z "$(ctr -n k8s.io containers list -q)" ]; }

# NAMESPACE TIER MODE
deployment() {
  kubectl create namespace "$1" >/dev/null
  kubectl apply -f - >/dev/null <<JSON
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "large", "namespace": "$1"},
 "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "large"}},
  "template": {"metadata": {"labels": {"app": "large", "tier": "$2"}}, "spec": $(large_spec "$3")}}}
JSON
  kubectl -n "$1" rollout status deployment/large --timeout=120s >/dev/null
}

cat >"$dir/values.yaml" <<'YAML'
image: {pullPolicy: Never, tag: "1"}
mode: lift
kubectl: {image: {repository: kubectl, tag: "1", pullPolicy: Never}, interval: 1}
policy: |
  [[rule]]
  name = "shop"
  namespace = "shop"
  label = "tier=hot"
  any_user = true
  do = ["code"]
  [[rule]]
  name = "nothing else"
  program = "/*"
  any_user = true
  do = []
YAML
deployment shop hot serve
deployment other cold spin
helm_one install
service_ready
echo "ok: the chart is installed, and the DaemonSet is ready"
await 30 "the labels of the node" sh -c 'kubectl get node node1 -o jsonpath={.metadata.labels} | grep -q hugelift.dev/thp'
echo "ok: the node has labels: $(kubectl get node node1 -o jsonpath='{.metadata.labels}' | grep -o '"hugelift[^,}]*' | tr '\n' ' ')"
if said=$(kubectl --as system:serviceaccount:hugelift:hugelift label node node1 hugelift.dev/thp=x --overwrite 2>&1); then
  fail "a service account that is no pod of the node may label it"
fi
grep -q "only its own node" <<<"$said" || fail "$said"
echo "ok: a pod of another node may not label this one"

began=$SECONDS
await 60 "the large pod is not huge" is_huge shop
pid=$(large shop)
echo "ok: the code of the large pod is huge: $(huge "$pid") kB after $((SECONDS - began)) s"
other=$(large other)
[ "$(huge "$other")" = 0 ] || fail "a pod that no rule names was changed"
echo "ok: the pod of another namespace is as it was"

kubectl -n shop set image deployment/large large=large:2 >/dev/null
kubectl -n shop rollout status deployment/large --timeout=120s >/dev/null
await 30 "the old pod ends" sh -c "! [ -e /proc/$pid ]"
await 60 "the new pod is not huge" is_huge shop
no_restarts
echo "ok: a rolling upgrade of the pod: the new one is huge, nothing was restarted"

pid=$(large shop)
before=$(huge "$pid")
helm_one upgrade --set-string image.tag=2
service_ready
[ "$(kubectl -n hugelift get pods -o jsonpath='{.items[*].spec.containers[0].image}')" = hugelift:2 ] || fail "the old service runs"
stays "$before"
no_restarts
echo "ok: a rolling upgrade of the chart: the pod runs on, as huge as before"

kubectl drain node1 --ignore-daemonsets --delete-emptydir-data --force --timeout=90s >/dev/null 2>&1 || fail "drain"
[ -z "$(large shop)" ] || fail "the drained pod runs"
service_ready
kubectl uncordon node1 >/dev/null
kubectl -n shop rollout status deployment/large --timeout=120s >/dev/null
await 60 "the pod after the drain is not huge" is_huge shop
no_restarts
echo "ok: kubectl drain and uncordon: the service stays, the pod that comes back is huge"

pid=$(large shop)
helm uninstall hugelift --namespace hugelift --wait --timeout 90s >/dev/null
await 60 "the service's pods end" no_pods
stays 6144
no_restarts
echo "ok: the chart is deleted: the pod runs on, huge, and was not restarted"
left=$(readlink /proc/[0-9]*/exe | grep -cx /hugelift || true)
[ "$left" = 0 ] || fail "$left processes of the service are left"
! grep -h hugelift /proc/self/mountinfo | grep -v ' /var/lib/hugelift \|hugelift-cluster' || fail "mounts are left"
[ -z "$(ls /run/hugelift 2>/dev/null)" ] || fail "files of the store are left"
! kubectl get clusterrole,clusterrolebinding,validatingadmissionpolicy -o name | grep hugelift || fail "objects are left"
echo "ok: no process, mount, file of the store or object of the service is left"

kubectl delete namespace shop other hugelift --timeout=90s >/dev/null
await 60 "the containers end" no_containers
! grep -q ' /run/containerd/.*/rootfs ' /proc/self/mountinfo || fail "layers are held"
echo "ok: the pods are deleted, and no layer is held"
