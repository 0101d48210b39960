# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Makes the machine: file systems with programs, data, and packages. Then all servers are started, and their clients.
set -e
for i in $(seq 0 63); do
    [ -b "/dev/loop$i" ] || mknod "/dev/loop$i" b 7 "$i"
done
mknod /dev/loop-control c 10 237
ip link set lo up
for kind in ext4 xfs; do
    truncate -s 700M "$kind.img"
    "mkfs.$kind" -q "$kind.img"
    mkdir -p "/srv/$kind"
    mount -t "$kind" -o loop "$kind.img" "/srv/$kind"
done
dpkg --force-all --force-unsafe-io -i test-mariadb_1.deb test-node_1.deb > installed 2>&1 || cat installed
mkdir -p /srv/xfs/llvm/bin /srv/xfs/llvm/lib
cp /usr/lib/llvm-19/bin/clang /srv/xfs/llvm/bin/clang++
cp /usr/lib/x86_64-linux-gnu/libLLVM.so.19.1 /usr/lib/x86_64-linux-gnu/libclang-cpp.so.19.1 /srv/xfs/llvm/lib/
# Dirty pages cannot be made huge.
sync -f /srv/xfs
sync -f /srv/ext4

mkdir -p /run/postgresql /run/php /var/lib/test-mariadb/test
chown postgres /run/postgresql
chown -R nobody /var/lib/test-mariadb
cp nginx.conf /etc/nginx/sites-enabled/default
systemctl start mariadb postgresql@15-main redis-server php8.2-fpm nginx node-server java-server go-server
for i in $(seq 600); do
    [ ! -S /var/lib/test-mariadb/socket ] || [ ! -S /var/run/postgresql/.s.PGSQL.5432 ] || break
    sleep 0.1
done
sysbench --db-driver=mysql --mysql-user=root --mysql-db=test --mysql-socket=/var/lib/test-mariadb/socket \
    --tables=1 --table-size=5000 oltp_read_write prepare > prepared 2>&1 || cat prepared
setpriv --reuid=postgres --regid=postgres --clear-groups pgbench -h /var/run/postgresql -i -q -s 1 > prepared 2>&1 || cat prepared
for port in 8000 8001 8002 8003; do
    curl -sS --retry 100 --retry-delay 1 --retry-connrefused -o /dev/null "http://127.0.0.1:$port/"
done
mkdir -p /etc/hugelift
cp service.toml /etc/hugelift/
systemctl start client@mariadb client@postgres client@redis client@php client@node client@java client@go client@builds
