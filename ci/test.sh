#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test; then lists what was skipped, and sums up in one line.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Generated cases are the same ones every time: what fails was broken by the change. For others,
# see fuzz/README.md.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"

# The tests share the pool of huge pages and the machine's memory: one test program runs at a time,
# as cargo does it, with three tests at a time, for most of them wait. --nocapture shows a SKIP of a
# test that passes.
cargo test --workspace --no-fail-fast -- --nocapture --test-threads="${TEST_THREADS:-3}" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

skips=$(grep -o 'SKIP: .*' "$log" | sort | uniq -c)
if [ -n "$skips" ]; then
  echo
  echo "Skipped (times, why):"
  echo "$skips"
fi
sum() { sed -n "s/.*test result: .* \([0-9]*\) $1.*/\1/p" "$log" | awk '{n += $1} END {print n + 0}'; }
passed=$(sum passed) failed=$(sum failed)
# A test program that did not build, or died before its result, is a failure as well.
if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
  echo
  echo "cargo test ended with status $status before all results were in"
  failed=1
fi
# No set-up brings these: a PMU that counts what is asked for and may be used, huge pages that are
# small enough to be tried, another file system for temporary files, the memory controller in both versions of control
# groups. What the suites of tests/machines
# skip here must run on a machine of make test-vm, which sees to that. (Tests say SKIP by println!: a
# line on stderr is written in pieces, and other threads write between them.)
lacking='no PMU|.* counts no walk cycles|there is no event table|perf_event_open|no transparent huge pages of a size'
lacking+='|temporary files are on tmpfs|the memory controller is bound to version'
here=$(sed '/Running tests\/machines/,/ Running /d' "$log")
if [ "${REQUIRE_ALL:-}" = 1 ] && unmet=$(grep -o 'SKIP: .*' <<<"$here" | grep -Ev "SKIP: ($lacking)"); then
  echo
  echo "REQUIRE_ALL=1, and these were skipped:"
  echo "$unmet"
  status=1 failed=$((failed + $(wc -l <<<"$unmet")))
fi
echo
echo "$passed passed, $failed failed"
exit "$status"
