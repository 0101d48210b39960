#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares nginx bare and lifted under requests of one small page. As nginx is small, hugelift may say that there is
# nothing to lift.
# Needs nginx and ab (Debian: nginx, apache2-utils).
set -euo pipefail
PATH=$PATH:/usr/sbin
PORT=${PORT:-18080}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

echo hello >"$dir/index.html"
cat >"$dir/conf" <<CONF
daemon off;
pid $dir/pid;
error_log $dir/error.log;
events {}
http {
  access_log off;
  client_body_temp_path $dir; proxy_temp_path $dir; fastcgi_temp_path $dir; uwsgi_temp_path $dir; scgi_temp_path $dir;
  server { listen 127.0.0.1:$PORT; root $dir; }
}
CONF

hugelift compare --pairs "${PAIRS:-12}" --server "nginx -c $dir/conf -p $dir" --ready "$PORT" \
  --load "ab -q -k -c 10 -n 100000 http://127.0.0.1:$PORT/index.html" \
  --metric 'Requests per second: +([0-9.]+)' --higher-is-better --count 'Complete requests: +([0-9]+)' "$@"
