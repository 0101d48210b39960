#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares PostgreSQL bare and lifted under pgbench's selects. Run it as a user who is not root: PostgreSQL refuses root.
# Needs PostgreSQL with initdb and pgbench (Debian: postgresql).
set -euo pipefail
PATH=$PATH:$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n1)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

initdb -A trust -D "$dir/data" >"$dir/log"
server="postgres -D $dir/data -k $dir -c listen_addresses="
# A first server makes the tables.
$server >>"$dir/log" 2>&1 &
until [ -S "$dir/.s.PGSQL.5432" ] && psql -h "$dir" -qc '' postgres 2>/dev/null; do kill -0 $! || { cat "$dir/log"; exit 1; }; sleep 0.1; done
pgbench -h "$dir" -i -q -s 5 postgres 2>/dev/null
kill -INT $! && wait $! || true

hugelift compare --pairs "${PAIRS:-12}" --server "$server" --ready 'ready to accept connections' \
  --load "pgbench -h $dir -S -c 2 -T 8 postgres" \
  --metric 'tps = ([0-9.]+)' --higher-is-better --count 'processed: ([0-9]+)' "$@"
