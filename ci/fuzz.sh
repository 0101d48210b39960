#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci/fuzz.sh [SECONDS] [TARGET...]: runs fuzz targets, all of them unless some are named, two at a time, for SECONDS (600)
# of both CPUs in all. Fails if one finds something, whose input it leaves in target/fuzz. Without a nightly toolchain the
# targets run without coverage feedback (fuzz/README.md).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
targets=("${@:2}")
[ ${#targets[@]} != 0 ] || mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
out=$PWD/${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p "$out"
CARGO_TARGET_DIR=$out cargo build --manifest-path fuzz/Cargo.toml
each=$((seconds * 2 / ${#targets[@]}))
[ "$each" -gt 0 ] || each=1

status=0
fuzz() { # TARGET
  local found=$out/found-$1
  mkdir -p "$out/corpus-$1" "$found"
  if "$out/debug/$1" -max_total_time="$each" -rss_limit_mb=4096 -artifact_prefix="$found/" "$out/corpus-$1" >"$out/log-$1" 2>&1; then
    echo "fuzz: $1: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs, nothing found/p' "$out/log-$1")"
  else
    tail -40 "$out/log-$1"
    echo "fuzz: $1: FAILED; its input is in $found"
    return 1
  fi
}
for ((at = 0; at < ${#targets[@]}; at += 2)); do
  jobs=()
  for target in "${targets[@]:at:2}"; do fuzz "$target" & jobs+=($!); done
  for job in "${jobs[@]}"; do wait "$job" || status=1; done
done
exit $status
