# SPDX-License-Identifier: Apache-2.0
# Shared by the worked examples, which source it.
#
#   HUGELIFT   the hugelift to measure (default: the release build)
#   PAIRS      number of pairs of each comparison (default 20)
#   SECONDS_A_LOAD  how long each load lasts (default 8)
#   HTML_DIR   if set, the folder for a picture of each comparison
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

# Makes a directory in memory, which is removed at the end.
scratch() {
  dir=$(mktemp -d "/dev/shm/hugelift-$name.XXXXXX")
  trap 'rm -rf "$dir"' EXIT
  trap 'exit 130' INT TERM HUP
}

# Gives the server the first half of the CPUs and the load the others, so that neither takes time from the
# other.
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
