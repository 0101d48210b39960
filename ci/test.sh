#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci/test.sh                  runs every test but those that `#[ignore = "long: ..."]` marks
# ci/test.sh long [WORD...]   runs every test whose name contains one of the words, each with all its rounds
#                             (crates/cli/tests/common/level.rs)
#
# Then it lists the skips and the time of each test program, and prints the totals in one line.
#
# It is not cargo-nextest, which starts a process for each test: the tests of a program share locks for what a machine has
# once (the pool of huge pages, its settings, short memory), the victims that they compile, and the servers that they prime.
#
# The tests run the command that ships: what ci/build.sh makes. That of the debug build is for tests that need its fault
# points.
#
# A test that fails beside others is run three times alone, which tells a race from a plain failure. Only those that
# ci/disturbed-by-load lists, each with its reason, count as passed then. If more than five tests fail, none is run again.
#
# REQUIRE_ALL=1  makes a skip a failure
# TEST_THREADS   number of tests of one program that run at a time (5)
# TEST_LIMIT     seconds after which a test program is killed (900, in the long level 3600)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
exec </dev/null
chosen=()
if [ "${1:-}" = long ]; then
  export TEST_LONG=1
  chosen=(--include-ignored "${@:2}")
fi
threads=${TEST_THREADS:-5} limit=${TEST_LIMIT:-$((${#chosen[@]} == 0 ? 900 : 3600))}
work=$(mktemp -d)
end_jobs() { for job in $(jobs -rp); do kill "$job" 2>/dev/null; done; }
trap 'end_jobs; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# The generated cases are the same every time: a failure then comes from the change that is tested.
# fuzz/README.md says how to try other cases.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"

ci/build.sh || {
  echo
  echo "The command did not build."
  echo "0 passed, 1 failed"
  exit 1
}

# cargo builds the test programs and starts a shell in place of each program. The shell records what cargo
# would have run: the environment, the folder and the program.
# shellcheck disable=SC2016 # expanded in that shell
record='{ unset HUGELIFT_RECORD HUGELIFT_RECORDS; export -p; printf "cd %q\nprogram=%q\n" "$PWD" "$1"; }'
# shellcheck disable=SC2016
record='records=$HUGELIFT_RECORDS base=${1##*/}; '$record' >"$records/$CARGO_PKG_NAME:${base%-*}"'
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir "$work/programs"
HUGELIFT_RECORD=$record HUGELIFT_RECORDS=$work/programs cargo test --workspace --tests \
  --config "target.$host.runner = [\"bash\", \"-c\", \"eval \\\"\$HUGELIFT_RECORD\\\"\", \"record\"]" || {
  echo
  echo "The tests did not build."
  echo "0 passed, 1 failed"
  exit 1
}

# Tests of libhugelift build it as a user does. Here both CPUs are free for that, and no test waits for it; if it fails, they say so.
out=${CARGO_TARGET_DIR:-target}
CARGO_TARGET_DIR=$out ci/library.sh dev "$out/tmp/library" || true

# Sets the words of the command that runs a test program, or one of the parts of a test program. Each
# test of the half with the experiments needs the machine for itself. In one program with the others they
# would hold up all its threads.
experiments=(lab:: lab_agree:: lab_memory:: lab_reclaim::)
# They switch settings of the whole machine off for a while, on which other tests depend.
settings=(doctor::here:: cost:: compare_khugepaged:: inspect_folios::)
# Comparisons take their time by themselves: of the rest of tools they are a part of their own.
compared=(compare heat::)
# The program lift takes longer than one program may: it runs in three parts. A word also takes modules that end with it, as
# attach_watch.
live=(live:: loads:: moved::)
second_half=(page_sizes:: parts:: protections:: running:: service:: shm:: spans:: state:: stress:: swapped:: symbols:: unused:: watch::)
words_of() {
  local program= experiment
  words=()
  if [ "$1" = doc-tests ]; then
    words=(cargo test --workspace --doc --no-fail-fast --)
    return
  fi
  # shellcheck disable=SC1090
  source "$work/programs/${1%%/*}"
  words=("$program")
  case $1 in
    */experiments) words+=("${experiments[@]}") ;;
    */settings) words+=("${settings[@]}") ;;
    */second) words+=("${second_half[@]}") ;;
    */live) words+=("${live[@]}") ;;
    */first) for other in "${live[@]}" "${second_half[@]}"; do words+=(--skip "$other"); done ;;
    */compared) words+=("${compared[@]}") && for other in "${experiments[@]}" "${settings[@]}"; do words+=(--skip "$other"); done ;;
    */others) for other in "${experiments[@]}" "${settings[@]}" "${compared[@]}"; do words+=(--skip "$other"); done ;;
  esac
  words+=("${chosen[@]}")
}

# Replaces this shell by the program. --nocapture shows the SKIP of a test that passes. Background jobs of
# bash ignore ^C, and those of nohup(1) SIGHUP, which the tests must not inherit.
start() {
  words_of "$1"
  [ "$1" = doc-tests ] || words+=(--test-threads="$threads")
  exec timeout -k 30 "$limit" env --default-signal=INT,QUIT,TERM,HUP "${words[@]}" --nocapture
}

# Runs one program, shows its output, and records the result: a file in $work/done holds the number of
# passed and failed tests and the seconds.
run() {
  local name=$1 file=${1//\//.} status=0 began=$SECONDS log out tee program passed failed ended
  log=$work/log/$file
  echo
  echo "==== $name"
  exec {out}> >(exec tee "$log")
  tee=$!
  (start "$name") >&"$out" 2>&1 &
  program=$!
  exec {out}>&-
  wait $program || status=$?
  # The wait has a limit, since a process that a test has left behind may hold the pipe open.
  timeout 10 tail -s 0.05 --pid=$tee -f /dev/null || kill $tee
  sum() { sed -n "s/.*test result: .* \([0-9]*\) $1.*/\1/p" "$log" | awk '{n += $1} END {print n + 0}'; }
  passed=$(sum passed) failed=$(sum failed)
  # The program ended without a summary: its tests are counted one by one.
  if [ $status != 0 ] && [ "$failed" = 0 ]; then
    case $status in
      124 | 137) echo "==== $name was killed after $limit s (TEST_LIMIT). Tests without a result:" ;;
      *) echo "==== $name died with status $status. Tests without a result:" ;;
    esac
    ended=$(sed -n 's/^test \([^ ]*\) \.\.\. .*/\1/p' "$log")
    if [ "$name" != doc-tests ]; then
      (words_of "$name" && "${words[@]}" --list 2>/dev/null) | sed -n 's/: test$//p' |
        grep -Fxv -f <(echo "$ended") >"$log.no-result"
      sed 's/^/  /' "$log.no-result"
      failed=$(grep -c '^test .* \.\.\. FAILED' "$log")
      passed=$(($(grep -c . <<<"$ended") - failed))
      failed=$((failed + $(wc -l <"$log.no-result")))
      rm "$log.no-result"
    fi
    [ "$failed" != 0 ] || failed=1
  fi
  echo "$passed $failed $((SECONDS - began))" >"$work/done/$file"
}
mkdir "$work/log" "$work/done"

# Most tests share the pool of huge pages and the machine's memory. Their programs run one at a time, each
# with several tests at a time, since most tests wait. Programs that only compute run beside them. The
# experiments run beside them too, once the programs lift and safety and the tests of settings are done: each experiment takes the
# lock of all tests that need the pool, which tests of safety take as well, so both would only wait for
# each other.
alone=(hugelift:lift/first hugelift:lift/live hugelift:lift/second hugelift:safety hugelift:tools/settings hugelift:tools/compared hugelift:tools/others)
pure=() experimental=(hugelift:tools/experiments)
for name in "$work"/programs/*; do
  name=${name##*/}
  case $name in
    hugelift:lift | hugelift:tools) ;;
    hugelift-core:* | hugelift-epoch:* | hugelift-manual:* | hugelift-report:* | hugelift-bench:* | hugelift-doctor:* | \
      hugelift-ledger:* | hugelift-relink:* | hugelift-service:*) pure+=("$name") ;;
    *) [[ " ${alone[*]} " == *" $name "* ]] || alone+=("$name") ;;
  esac
done
pure+=(doc-tests)
# Of each program that has a test of these names only that runs, and one program at a time.
if [ ${#chosen[@]} -gt 1 ]; then
  alone=() pure=() experimental=()
  for name in "$work"/programs/*; do
    name=${name##*/}
    (words_of "$name" && "${words[@]}" --list 2>/dev/null | grep ': test$') >>"$work/names" && alone+=("$name")
  done
  # A word that a renamed test leaves behind in ci/long would choose nothing for good.
  for word in "${chosen[@]:1}"; do
    grep -qF -- "$word" "$work/names" || {
      echo "No test has '$word' in its name."
      echo "0 passed, 1 failed"
      exit 1
    }
  done
fi
all=("${alone[@]}" "${experimental[@]}" "${pure[@]}")

beside() { # FILE NICE PROGRAM...: runs the programs in the background, with their output in a file
  (
    trap end_jobs EXIT
    trap 'exit 130' INT TERM
    renice -n "$2" -p $BASHPID >/dev/null
    for name in "${@:3}"; do run "$name"; done
  ) >"$work/$1" 2>&1 &
}
[ ${#pure[@]} = 0 ] || beside pure.out 5 "${pure[@]}"
for name in "${alone[@]}"; do
  # Builds and the page cache leave memory in pieces, and most tests need huge pages. Only root may join them.
  if [ -w /proc/sys/vm/compact_memory ]; then echo 1 >/proc/sys/vm/compact_memory; fi
  run "$name"
  [ "$name" != hugelift:tools/settings ] || beside experiments.out 0 "${experimental[@]}"
done
wait
for other in pure experiments; do [ ! -e "$work/$other.out" ] || cat "$work/$other.out"; done

# Prints the names of the tests of a program that have failed, if it came to its summary.
failed_of() { # NAME
  sed -n '/^failures:$/,/^test result:/s/^    \([^ ]*\)$/\1/p' "$work/log/${1//\//.}" | sort -u
}

# Runs a test of a program three times alone. It must run, and not be skipped.
passes_alone() { # NAME TEST
  local try log=$work/alone
  words_of "$1"
  for try in 1 2 3; do
    echo
    echo "==== $2 alone, run $try of 3"
    timeout -k 30 "$limit" env --default-signal=INT,QUIT,TERM,HUP "${words[0]}" --exact "$2" --include-ignored --nocapture |& tee "$log" || return 1
    grep -q '^test result: ok. 1 passed' "$log" && ! grep -q 'SKIP: ' "$log" || return 1
  done
}

# Runs the tests of a program that have failed once more, and corrects its result.
disturbed=() races=()
may_be_disturbed() { grep -q "^$1  " ci/disturbed-by-load; }
again() { # NAME
  local test file=$work/done/${1//\//.} passed failed seconds
  read -r passed failed seconds <"$file"
  for test in $(failed_of "$1"); do
    # words_of changes the folder and the environment.
    (passes_alone "$1" "$test") || continue
    if may_be_disturbed "$test"; then
      disturbed+=("$test")
      passed=$((passed + 1)) failed=$((failed - 1))
    else
      races+=("$test")
    fi
  done
  echo "$passed $failed $seconds" >"$file"
}
for name in "${all[@]}"; do
  [ "$name" = doc-tests ] || failed_of "$name"
done >"$work/failed"
if [ -s "$work/failed" ] && [ "$(wc -l <"$work/failed")" -le 5 ]; then
  for name in "${all[@]}"; do
    [ "$name" = doc-tests ] || [ -z "$(failed_of "$name")" ] || again "$name"
  done
fi

skips=$(cat "$work"/log/* | grep -o 'SKIP: .*' | sort | uniq -c)
if [ -n "$skips" ]; then
  echo
  echo "Skipped (times, why):"
  echo "$skips"
fi
total() { cat "$work"/done/* | awk -v field="$1" '{n += $field} END {print n + 0}'; }
passed=$(total 1) failed=$(total 2)
for name in "${all[@]}"; do
  [ -e "$work/done/${name//\//.}" ] || { echo "$name has no result" && failed=$((failed + 1)); }
done
# No set-up provides these: a PMU that counts the wanted events and may be used, huge pages that are small
# enough to be tried, another file system for temporary files or one with O_TMPFILE, the memory controller in both versions of
# control groups, a newer cargo than the code needs. Tests of tests/machines that are skipped here must run on a machine of
# make test-vm, which checks that. (Tests print SKIP with println!: a line on stderr is written in pieces, and other
# threads write between them.)
lacking='no PMU|.* counts no walk cycles|there is no event table|perf_event_open|no transparent huge pages of a size'
lacking+='|temporary files are on tmpfs|the memory controller is bound to version|.*has no files without a name|needs cargo 1\.90'
here=$(for log in "$work"/log/*; do [[ $log == *:machines ]] || grep -o 'SKIP: .*' "$log"; done)
if [ "${REQUIRE_ALL:-}" = 1 ] && unmet=$(grep -Ev "SKIP: ($lacking)|^$" <<<"$here"); then
  echo
  echo "REQUIRE_ALL=1 makes these skips failures:"
  echo "$unmet"
  failed=$((failed + $(wc -l <<<"$unmet")))
fi
if [ ${#disturbed[@]} != 0 ]; then
  echo
  echo "Failed beside other tests, passed three times alone; ci/disturbed-by-load says why that may be:"
  printf '  %s\n' "${disturbed[@]}"
fi
if [ ${#races[@]} != 0 ]; then
  echo
  echo "Failed beside other tests, passed three times alone. They count as failed: each shows a defect of the product or of itself."
  printf '  %s\n' "${races[@]}"
fi
failures=$(cat "$work"/log/* | sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' | sort -u | grep -Fxv -f <(printf '%s\n' "${disturbed[@]}"))
if [ -n "$failures" ]; then
  echo
  echo "Failed (the reasons are above, in the output of each program):"
  sed 's/^/  /' <<<"$failures"
fi
echo
echo "Time of each test program:"
for name in "${all[@]}"; do
  file=$work/done/${name//\//.}
  [ ! -e "$file" ] || echo "$(cut -d' ' -f3 "$file") $name"
done | sort -rn | awk '{printf "%5d s  %s\n", $1, $2}'
echo
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
