# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For scripts to source: what of a process is on huge pages.

# Prints how many kB of a process's code are on huge pages.
huge() {
  awk '/^[0-9a-f]+-/ { code = $2 ~ /x/ } code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped):/ { sum += $2 } END { print sum + 0 }' "/proc/$1/smaps"
}
