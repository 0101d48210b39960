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

# The tests share the pool of huge pages and the machine's memory: one test program at a
# time, as cargo does it. --nocapture shows a SKIP of a test that passes.
cargo test --workspace --no-fail-fast -- --nocapture --test-threads="${TEST_THREADS:-2}" 2>&1 | tee "$log"
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
# What may be lacking in spite of it: hardware, and what only machines of make test-vm have, which
# fails if a test is skipped on all of them.
lacking='no PMU|perf_event_open is not permitted|temporary files are on tmpfs|one memory node|no page of 1 GB'
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
