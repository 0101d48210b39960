# shellcheck shell=bash disable=SC2034 # its variables are read by the scripts that source it
# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder: paths, and the table of machines.

set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hugelift/vm
built=$tree/target/vm

# The slowest machines come first, so that ci/vm/matrix ends sooner.
machines=(
  x86_64-6.1
  arm64-6.1
  arm64-6.12-16k
  x86_64-1g
  x86_64-6.12
  x86_64-damon
  x86_64-numa
  arm64-bti-mte
)

# The machines whose kernel changes with time: those of `make test-long` alone.
changing=(x86_64-newest)

fail() { # ends with 125, the status of failures of these scripts themselves
  echo "${0##*/}: $*" >&2
  exit 125
}

# Describes the machine $1: arch, kernel (a folder of the cache), memory, append (to the kernel's command
# line), qemu (an array), disks (file systems of its NVMe disks, and nfs: a folder of
# the ext4 disk by its own NFS server), suites (an array: the suites of
# `make test-vm`; SUITE!TEST is a suite without that test). Each machine runs the suites for which it differs
# from the others. The longest suite, launcher, runs on AArch64 only, because `make test` runs it on this
# machine. `make test-vm-all` runs every suite on every machine.
machine() {
  # Without these two features the kernel and the C library copy and clear memory by words. QEMU emulates the string
  # instructions that they would use byte by byte.
  local x86=(qemu-system-x86_64 -M q35 -accel "tcg,thread=multi" -cpu "max,-erms,-fsrm")
  local arm=(qemu-system-aarch64 -accel "tcg,thread=multi")
  arch=x86_64 memory=1536M append='' disks='' suites=()
  case $1 in
    arm64-6.1)
      arch=aarch64 kernel=arm64-6.1 disks='xfs ext4 btrfs'
      qemu=("${arm[@]}" -M virt -cpu neoverse-n1)
      suites=(launcher files live moved prime separate shared limited)
      ;;
    arm64-6.12-16k) # base pages of 16 kB: a THP has 32 MB
      arch=aarch64 kernel=arm64-6.12-16k memory=3G
      qemu=("${arm[@]}" -M virt -cpu neoverse-n1)
      suites=(backings fallbacks live masked parts prime separate shared symbols)
      ;;
    arm64-bti-mte) # without pauth-impdef QEMU emulates the slow cipher of pointer authentication
      arch=aarch64 kernel=arm64-6.1
      qemu=("${arm[@]}" -M "virt,mte=on" -cpu "max,pauth-impdef=on")
      suites=(protection parts symbols)
      ;;
    x86_64-6.1)
      kernel=x86_64-6.1 disks='xfs ext4 btrfs nfs'
      qemu=("${x86[@]}")
      # The test that is left out runs with this kernel on AArch64, and in `make test` on x86-64.
      suites=(backings fallbacks files limited 'live!helper_killed_at_each_step' masked moved prime shared)
      ;;
    x86_64-6.12)
      kernel=x86_64-6.12 disks='xfs ext4 btrfs nfs'
      qemu=("${x86[@]}")
      suites=(dist files moved prime shared symbols)
      ;;
    x86_64-newest) # what ci/vm/newest gets
      kernel=x86_64-newest disks='xfs ext4 btrfs nfs'
      qemu=("${x86[@]}")
      suites=(backings fallbacks files live moved parts prime shared symbols)
      ;;
    x86_64-damon) # perf_event_open(2) patches the scheduler, and QEMU's other CPU may run the old code: one CPU is safe
      kernel=x86_64-6.12 append='maxcpus=1'
      qemu=("${x86[@]}")
      suites=(data)
      ;;
    x86_64-numa) # Linux 6.1: the effect of cpusets and policies on hugetlb was measured with it
      kernel=x86_64-6.1
      qemu=("${x86[@]}" -object "memory-backend-ram,id=a,size=768M" -object "memory-backend-ram,id=b,size=768M"
        -numa "node,cpus=0,memdev=a" -numa "node,cpus=1,memdev=b")
      suites=(numa)
      ;;
    x86_64-1g)
      kernel=x86_64-6.12 memory=5G append='hugepagesz=1G hugepages=1'
      qemu=("${x86[@]}")
      suites=(giant)
      ;;
    *) fail "there is no machine '$1'; the machines are ${machines[*]} ${changing[*]}" ;;
  esac
}
