# SPDX-License-Identifier: Apache-2.0
# What the worked examples share. Sourced.
#
#   HUGELIFT   the hugelift to measure (default: the release build)
#   PAIRS      pairs of each comparison (default 20)
#   SECONDS_A_LOAD  how long each load lasts (default 8)
#   HTML_DIR   if set, a picture of each comparison is written there
set -euo pipefail
export LC_ALL=C
HUGELIFT=${HUGELIFT:-$PWD/target/release/hugelift}
PAIRS=${PAIRS:-20}
SECONDS_A_LOAD=${SECONDS_A_LOAD:-8}

skip() {
  echo "SKIP: $name: $*"
  exit 0
}

need() { # programs
  local program
  for program in "$@"; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || skip "needs $program: ci/setup.sh test"
  done
}

# A directory in memory, gone at the end.
scratch() {
  dir=$(mktemp -d "/dev/shm/hugelift-$name.XXXXXX")
  trap 'rm -rf "$dir"' EXIT
  trap 'exit 130' INT TERM HUP
}

# The server on the first half of the CPUs, the load on the others: neither takes the
# other's time.
halves() {
  local cpus
  cpus=$(nproc)
  if [ "$cpus" -ge 2 ]; then
    server_cpus=0-$((cpus / 2 - 1)) load_cpus=$((cpus / 2))-$((cpus - 1))
  else
    server_cpus=0 load_cpus=0
  fi
}

compare() { # title, options...
  local title=$1
  shift
  echo
  echo "== $title"
  local html=()
  [ -z "${HTML_DIR:-}" ] || html=(--html "$HTML_DIR/${title//[^a-zA-Z0-9]/-}.html")
  "$HUGELIFT" compare --pairs "$PAIRS" "${html[@]}" "$@"
}
