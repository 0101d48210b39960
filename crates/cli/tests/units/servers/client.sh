#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# client.sh NAME: asks a server for work again and again, until /run/machine/stop is there. It counts its rounds in
# /run/machine/rounds.NAME, and appends what has failed to /run/machine/failed.NAME.
name=$1 round=0
cd /run/machine || exit

# Asks an HTTP server many times on one connection. All answers are to be the same.
asks() {
    curl -sSf --max-time 30 "http://127.0.0.1:$1/[1-$2]" | sort -u | awk 'END { exit !(NR == 1 && length($0) == 64) }'
}

works() {
    case $name in
    mariadb)
        sysbench --db-driver=mysql --mysql-user=root --mysql-db=test --mysql-socket=/var/lib/test-mariadb/socket \
            --tables=1 --table-size=5000 --threads=1 --time="$1" --events=0 oltp_read_write run
        ;;
    postgres) # one connection to the end of the test: a line a second
        setpriv --reuid=postgres --regid=postgres --clear-groups pgbench -n -S -c 1 -P 1 -T 900 \
            -h /var/run/postgresql -U postgres postgres 2>&1 | while read -r line; do
            echo "$line"
            case $line in progress:*) round=$((round + 1)) ;; esac
            echo "$round" > rounds.postgres
        done
        false
        ;;
    redis)
        redis-benchmark -q -n 4000 -c 2 -t get,set,lpush,zadd,lrange_100 &&
            [ "$(redis-cli incr rounds)" = "$((round + 1))" ]
        ;;
    php) asks 8000 100 ;;
    node) asks 8001 100 ;;
    java) asks 8002 100 ;;
    go) asks 8003 100 ;;
    builds) # the builds are their own client
        /srv/xfs/llvm/bin/clang++ -O2 -c work.cpp -o built.o && sha256sum built.o > sum.now &&
            { [ -e sum.first ] || cp sum.now sum.first; } && cmp sum.now sum.first && sleep 1
        ;;
    esac
}

while [ ! -e stop ]; do
    works 1 > "said.$name" 2>&1 || { echo "round $round:"; cat "said.$name"; } >> "failed.$name"
    round=$((round + 1))
    echo "$round" > "rounds.$name"
done
