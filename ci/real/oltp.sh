# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Shared by the examples of MySQL and of MariaDB: sysbench's point selects, read-only and read-write transactions, over a unix
# socket, with all data in memory. They source it after lib.sh.
#
# THREADS, TABLES, ROWS  clients, tables and rows of each (4, 4, 100000); the literature has 128, 10 and 1000000

# shellcheck disable=SC2034 # The examples use it.
oltp_cases=("$name"-point-select{,-pages,-memory,-parts} "$name-read-only" "$name-read-write")

# Measures a server under these loads.
oltp() { # title, its process, its socket
  local title=$1 server=$2 load
  local bench=(sysbench --db-driver=mysql "--mysql-socket=$3" --mysql-user=root --mysql-db=test "--tables=${TABLES:-4}"
    "--table-size=${ROWS:-100000}" --rand-type=uniform "--threads=${THREADS:-4}" --db-ps-mode=disable)
  # shellcheck disable=SC2154 # Set by lib.sh.
  "${bench[@]}" oltp_read_only prepare >>"$dir/log" || { tail -n5 "$dir/log" >&2; exit 1; }
  plan 6
  # Runs a load until its cases are measured.
  under() { # test
    # shellcheck disable=SC2154 # Set by lib.sh.
    start taskset -c "$load_cpus" "${bench[@]}" --time=0 "$1" run
    # shellcheck disable=SC2154 # Set by lib.sh.
    load=$pid
    sleep 2
  }
  under oltp_point_select
  live "$name-point-select" "$title, point select" code "$server"
  live "$name-point-select-pages" "$title, point select" pages "$server"
  live "$name-point-select-memory" "$title, point select" memory "$server"
  live "$name-point-select-parts" "$title, point select" parts "$server"
  stop "$load"
  under oltp_read_only
  live "$name-read-only" "$title, read-only" pages "$server"
  stop "$load"
  under oltp_read_write
  live "$name-read-write" "$title, read-write" pages "$server"
}
