#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares redis bare and lifted, with its data on huge pages, under GETs of random keys.
# Needs redis-server and redis-benchmark (Debian: redis-server, redis-tools).
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

bench="redis-benchmark -s $dir/socket -r 1000000 -c 20 -P 4"
hugelift compare --pairs "${PAIRS:-12}" --variant data='--eager --parts all --malloc thp' \
  --server "redis-server --port 0 --unixsocket $dir/socket --save '' --appendonly no --disable-thp no --dir $dir" \
  --ready "$dir/socket" \
  --load "$bench -t set -n 200000 -q >/dev/null && $bench -t get -n 200000 --csv" \
  --metric '"GET","([0-9.]+)"' --higher-is-better "$@"
