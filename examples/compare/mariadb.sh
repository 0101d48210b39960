#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares MariaDB bare and lifted under sysbench's point selects, with all data in memory.
# Needs mariadbd and sysbench (Debian: mariadb-server-core, sysbench).
set -euo pipefail
PATH=$PATH:/usr/sbin
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/data/test"

server="mariadbd --no-defaults --user=$(id -un) --datadir=$dir/data --socket=$dir/socket --pid-file=$dir/pid \
  --skip-networking --skip-grant-tables --innodb-buffer-pool-size=256M"
bench="sysbench --db-driver=mysql --mysql-socket=$dir/socket --mysql-user=root --mysql-db=test --tables=1 --table-size=20000"

# A first server makes the tables.
$server >"$dir/log" 2>&1 &
until [ -S "$dir/socket" ]; do kill -0 $! || { cat "$dir/log"; exit 1; }; sleep 0.1; done
$bench oltp_point_select prepare >/dev/null
kill $! && wait $! || true

hugelift compare --pairs "${PAIRS:-12}" --server "$server" --ready "$dir/socket" \
  --load "$bench --threads=2 --time=8 oltp_point_select run" \
  --metric 'transactions: .*\(([0-9.]+) per sec' --higher-is-better --count 'transactions: +([0-9]+)' "$@"
