#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The second container of the DaemonSet: writes the list of this node's pods to a file that the service reads, and labels
# the node with what it offers. Environment: NODE, INTERVAL (seconds), PODS and NODE_LABELS (true or
# false), FOLDER (/pods).
set -u
folder=${FOLDER:-/pods}
thp=${THP:-/sys/kernel/mm/transparent_hugepage}
pool=${POOL:-/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages}
trap 'exit 0' TERM INT
# The service reads the list only where nobody else may write. Kubernetes makes the folder with mode 0777.
chmod 755 "$folder" || exit 1
umask 022

# With --request-timeout kubectl does not find out by itself that it is in a pod (IsDefaultConfig in client-go's
# tools/clientcmd): it asks localhost. The token is read from its file by each kubectl, as the kubelet replaces it.
account=/var/run/secrets/kubernetes.io/serviceaccount
if [ -n "${KUBERNETES_SERVICE_HOST:-}" ]; then
  host=$KUBERNETES_SERVICE_HOST
  case $host in *:*) host="[$host]" ;; esac
  export KUBECONFIG="$folder/config"
  echo '{"apiVersion": "v1", "kind": "Config", "current-context": "pod",
   "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
   "users": [{"name": "pod", "user": {"tokenFile": "'$account'/token"}}],
   "clusters": [{"name": "pod", "cluster": {"certificate-authority": "'$account'/ca.crt",
    "server": "https://'"$host:${KUBERNETES_SERVICE_PORT:-443}"'"}}]}' >"$KUBECONFIG"
fi

# Prints which word of a file is in brackets, as in: always [madvise] never.
chosen() {
  words='[none]'
  if [ -r "$1" ]; then IFS= read -r words <"$1"; fi
  words=${words#*\[}
  echo "${words%%\]*}"
}

# Prints the labels of this node. Each has a few values.
labels() {
  pages=0
  [ -r "$pool" ] && read -r pages <"$pool"
  [ "$pages" -gt 0 ] && pages=yes || pages=no
  echo "hugelift.dev/thp=$(chosen "$thp/enabled") hugelift.dev/shmem=$(chosen "$thp/shmem_enabled") hugelift.dev/pool=$pages"
}

# Writes the list if it is another one. A request has a deadline, so that nothing waits for ever.
list() {
  kubectl get pods --all-namespaces --field-selector "spec.nodeName=$NODE" --request-timeout 20s -o json >"$folder/new" || return
  cmp -s "$folder/new" "$folder/pods.json" || mv "$folder/new" "$folder/pods.json"
}

said=
while :; do
  [ "$PODS" = true ] && list
  if [ "$NODE_LABELS" = true ]; then
    now=$(labels)
    # shellcheck disable=SC2086 # The labels are words.
    [ "$now" = "$said" ] || kubectl label node "$NODE" --overwrite --request-timeout 20s $now >/dev/null && said=$now
  fi
  sleep "$INTERVAL" &
  wait $!
done
