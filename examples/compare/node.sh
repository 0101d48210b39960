#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares a small HTTP server of node bare and lifted. The load is made by node too.
# Needs node (Debian: nodejs).
set -euo pipefail
PORT=${PORT:-18081}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cat >"$dir/server.js" <<'JS'
const http = require('http');
http.createServer((request, response) => {
  const rows = Array.from({ length: 200 }, (_, i) => ({ id: i, name: 'row ' + i, half: i / 2 }));
  response.end(JSON.stringify(rows));
}).listen(Number(process.argv[2]), '127.0.0.1');
JS
cat >"$dir/load.js" <<'JS'
const http = require('http');
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
const [port, seconds] = process.argv.slice(2).map(Number);
const end = Date.now() + seconds * 1000;
let done = 0, running = 8;
const next = () => {
  if (Date.now() > end) {
    if (--running === 0) { console.log(`requests: ${done}\nper second: ${done / seconds}`); process.exit(0); }
    return;
  }
  http.get({ port, host: '127.0.0.1', agent }, (response) => {
    response.resume().on('end', () => { done++; next(); });
  });
};
for (let i = 0; i < 8; i++) next();
JS

hugelift compare --pairs "${PAIRS:-12}" --server "node $dir/server.js $PORT" --ready "$PORT" \
  --load "node $dir/load.js $PORT 5" \
  --metric 'per second: ([0-9.]+)' --higher-is-better --count 'requests: ([0-9]+)' "$@"
