# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Prints a line for each unit: its name, the process, when that has started, restarts, state, KiB of huge code, and KiB of code in
# memory. The last two are those of the process of its control group with the most.
coverage() {
    group=$(systemctl show -p ControlGroup --value "$1")
    for pid in $(cat "/sys/fs/cgroup/systemd$group/cgroup.procs" 2>&- || cat "/sys/fs/cgroup$group/cgroup.procs"); do
        awk '/^[0-9a-f]+-[0-9a-f]+ / { code = $2 ~ /x/ } code && /^Rss:/ { all += $2 }
            code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped):/ { huge += $2 }
            END { print huge + 0, all + 0 }' "/proc/$pid/smaps" 2>&-
    done | sort -k1n,1 -k2n,2 | tail -n 1
}
for unit in mariadb postgresql@15-main redis-server php8.2-fpm nginx node-server java-server go-server client@builds; do
    main=$(pid "$unit")
    began=$(sed 's/.*) //' "/proc/$main/stat" | cut -d ' ' -f 20)
    echo "$unit $main $began $(systemctl show -p NRestarts --value "$unit") $(systemctl is-active "$unit") $(coverage "$unit")"
done
