#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test; then lists what was skipped, and sums up in one line.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

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
echo
echo "$(sum passed) passed, $(sum failed) failed"
exit "$status"
