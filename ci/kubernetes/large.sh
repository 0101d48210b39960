# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For scripts to source: the pod of the large program, and what of a process is on huge pages.

# Prints how many kB of a process's code are on huge pages.
huge() {
  awk '/^[0-9a-f]+-/ { code = $2 ~ /x/ } code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped):/ { sum += $2 } END { print sum + 0 }' "/proc/$1/smaps"
}

# Prints the specification of its pod, as JSON, which is YAML: `serve` works all the time, `spin` does little.
large_spec() {
  cat <<JSON
{"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
 "containers": [{"name": "large", "image": "large:1", "args": ["$1"], "stdin": true,
  "securityContext": {"runAsUser": 1234, "seccompProfile": {"type": "RuntimeDefault"}, "allowPrivilegeEscalation": false,
   "capabilities": {"drop": ["ALL"]}}}]}
JSON
}
