# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Shared by the worked examples, which source it with the variable `name` set. ci/real/all runs them; one alone measures all of
# its cases, in the time that SHARE gives.
#
#   HUGELIFT   the hugelift to measure (default: the release build)
#   RESULTS    the folder for the results (default docs/results)
#   AGAIN=1    measures what has a result of this version of hugelift already
#   SHARE      seconds for all cases of the example (default 180)
#   PAIRS      at most this number of pairs in each comparison
#
# `ci/real/NAME prepare` builds what the example needs, and measures nothing.
set -euo pipefail
export LC_ALL=C
HUGELIFT=${HUGELIFT:-$PWD/target/release/hugelift}
RESULTS=${RESULTS:-docs/results}
PATH=$PATH:/usr/sbin
# shellcheck disable=SC2154 # The example sets its name.
: "$name"
[ -x "$HUGELIFT" ] || { echo "ci/real/$name: there is no $HUGELIFT: make build" >&2; exit 1; }
what=${1:-}
started=() dir='' cases=0
end=$((SECONDS + ${SHARE:-180}))

# Says why nothing is measured, in the results too.
skip() { # why
  echo "SKIP: $name: $*"
  # A result that was measured stays.
  grep -q '"result"' "$RESULTS/$name.json" 2>/dev/null || keep "$name" --skipped "$*" </dev/null
  exit 0
}

need() { # programs
  local program
  for program; do
    command -v "$program" >/dev/null || skip "needs $program: ci/setup.sh test"
  done
}

# Ends this script here if it was only to build something.
prepared() {
  [ "$what" != prepare ] || exit 0
  # What kept it from being measured is there now.
  ! grep -q '"skipped"' "$RESULTS/$name.json" 2>/dev/null || rm "$RESULTS/$name.json"
}

# shellcheck disable=SC2120 # Most have theirs in memory.
# Makes a directory in memory, or in $1: it is removed at the end, when what was started has ended. The store of hugelift is there
# too, so that no copy of another day is used.
scratch() {
  dir=$(mktemp -d "${1:-/dev/shm}/hugelift-$name.XXXXXX")
  chmod 755 "$dir"
  export HUGELIFT_STORE=$dir/store
  trap 'stop "${started[@]}"; rm -rf "$dir"' EXIT
  trap 'exit 130' INT TERM HUP
}

# Starts a command in the background, until the end of the example; `pid` is its process. What it says is in log.
start() { # command...
  "$@" >>"$dir/log" 2>&1 </dev/null &
  pid=$!
  started+=("$pid")
}

# Ends processes that `start` has started, the last one first.
stop() { # pids
  local at
  for ((at = $#; at > 0; at--)); do
    # One that has ended and was waited for has given its id away.
    jobs -pr | grep -qx "${!at}" || continue
    kill "${!at}" 2>/dev/null || continue
    wait "${!at}" 2>/dev/null || true
  done
}

# Waits until a command succeeds, while the last process that was started lives.
await() { # command...
  local turn
  for ((turn = 0; turn < 600; turn++)); do
    if "$@" >/dev/null 2>&1; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  tail -n5 "$dir/log"
  return 1
}

# Gives the server the first half of the CPUs and the load the others, so that neither takes time from the other.
halves() {
  local cpus
  cpus=$(nproc)
  # shellcheck disable=SC2034 # The examples use them.
  if [ "$cpus" -ge 2 ]; then
    server_cpus=0-$((cpus / 2 - 1)) load_cpus=$((cpus / 2))-$((cpus - 1))
  else
    server_cpus=0 load_cpus=0
  fi
}

# Says how many cases are still to come: each gets the same part of the time that is left.
plan() { cases=$1; }

# Calls itself due if the case has no result of this version. Sets `seconds`, the time for it.
due() { # case
  local left=$((end - SECONDS))
  if [ -z "${AGAIN:-}" ] && ! python3 ci/real/results.py due "$RESULTS" "$1" "$(version)"; then
    echo "$1: there is a result of this version"
    cases=$((cases - 1))
    return 1
  fi
  seconds=$((left / (cases > 0 ? cases : 1)))
  [ "$seconds" -ge 5 ] || seconds=5
  cases=$((cases - 1))
}

# Whether a case of these is to be measured, so that an example need not start its server for none.
any_due() { # cases
  [ -z "${AGAIN:-}" ] || return 0
  local case
  for case; do
    ! python3 ci/real/results.py due "$RESULTS" "$case" "$(version)" || return 0
  done
  echo "$name: there are results of this version"
  return 1
}

version() { "$HUGELIFT" --version; }

keep() { # case, options of results.py; reads JSON
  local case=$1
  shift
  python3 ci/real/results.py keep "$RESULTS" "$case" --example "$name" --version "$(version)" "$@"
}

# Runs a comparison and keeps its result. A comparison that fails is noted, and the others go on.
record() { # case, title, kind, label, command...
  local case=$1 title=$2 kind=$3 label=$4 command
  shift 4
  echo "$case: $title ($seconds s)"
  command=$(printf '%q ' "$@")
  command=${command//"$HUGELIFT"/hugelift}
  command=${command//"$dir"/DIR}
  local about=(--title "$title" --kind "$kind" --label "$label" --command "${command% }" --advice "$dir/advice" "${about_more[@]}")
  if "$@" >"$dir/result" 2>"$dir/errors" </dev/null && [ -s "$dir/result" ]; then
    keep "$case" "${about[@]}" <"$dir/result" || echo "$case: its result could not be kept"
  elif grep -q 'there is nothing to compare\|memory is not made huge' "$dir/errors"; then
    keep "$case" "${about[@]}" --nothing "$(tail -n1 "$dir/errors" | sed 's/.*there is nothing to compare: //')" </dev/null
  else
    local why
    why=$(grep . "$dir/errors" | tail -n1) || why="it printed nothing"
    echo "$case: $why"
    keep "$case" "${about[@]}" --failed "$why" </dev/null
  fi
}

# Asks hugelift how much code is in use: of a process, or of a command.
advise() { # PID, or -- command...
  "$HUGELIFT" advise --for 5s --json "$@" >"$dir/advice" 2>"$dir/advice.errors" </dev/null || true
  # Of a command the advice goes to stderr.
  grep -q '^{' "$dir/advice" || cp "$dir/advice.errors" "$dir/advice"
}

# More options of results.py for what is recorded.
about_more=()
# Without a number of pairs, the time says when a comparison ends.
pairs=(--pairs "${PAIRS:-4000}")

# Compares a process that works with itself: `code` lifts and restores it, `pages` changes the page size of a copy alone, and
# `memory` that of the memory it writes. `parts` finds which code gains.
live() { # case, title, kind, pid, options...
  local case=$1 title=$2 kind=$3 process=$4 options label began
  shift 4
  due "$case" || return 0
  case $kind in
  code) options=() label="all code, lifted and restored" ;;
  pages) options=(--same-copy) label="all code, page size alone" ;;
  memory) options=(--same-copy --parts "bss,heap,anon") label="memory, page size alone" ;;
  parts) options=(--by heat) label="part by part" ;;
  esac
  began=$SECONDS
  # Where the work is done by a child, that is asked about.
  advise "$( (ps --ppid "$process" -o pid= --sort=-pcpu || true; echo "$process") | head -n1 | tr -d ' ')"
  seconds=$((seconds - (SECONDS - began)))
  # A lift and its restoration take a second and a half.
  local least=8
  [ "$kind" != code ] || least=14
  [ "$seconds" -ge $least ] || seconds=$least
  record "$case" "$title" "$kind" "$label" \
    "$HUGELIFT" compare --json --pid "$process" --time "$seconds" "${options[@]}" "${pairs[@]}" "$@"
}

# Compares a program that does a fixed amount of work: bare, with all code, and with all memory on huge pages. With --long, which
# is for one that takes some seconds, also with the code in use, for which hugelift samples it before. That makes a copy of its
# own; the others may use the store.
program() { # case, title, --long or options of compare... -- command...
  local case=$1 title=$2 options=() began least
  shift 2
  while [ "$1" != -- ]; do
    if [ "$1" = --long ]; then options+=(--variant "code in use=--backing thp --budget 1T"); else options+=("$1"); fi
    shift
  done
  due "$case" || return 0
  # Fewer than six pairs have no interval: seven rounds of three or four sides, of which one has taken so long.
  began=${EPOCHREALTIME/./}
  advise "$@"
  began=$(((${EPOCHREALTIME/./} - began) / 1000))
  seconds=$((seconds - began / 1000)) least=$(((3 + ${#options[@]} / 2) * 7 * began / 1000 + 2))
  [ "$seconds" -ge "$least" ] || seconds=$least
  record "$case" "$title" program "" "$HUGELIFT" compare --json --figure cpu --time "$seconds" "${pairs[@]}" \
    "${options[@]}" --variant "all code=--eager" --variant "all memory=--eager --parts all" "$@"
}

# Compares commands, of which the first is the bare one, in interleaved rounds (pairs.py).
rounds() { # case, title, kind, options and NAME=COMMAND...
  local case=$1 title=$2 kind=$3
  shift 3
  due "$case" || return 0
  record "$case" "$title" "$kind" "" ci/real/pairs.py --time "$seconds" "${pairs[@]}" "$@"
}
