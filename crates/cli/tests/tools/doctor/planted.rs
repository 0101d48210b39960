// SPDX-License-Identifier: Apache-2.0
//! Plants faults on a recorded machine: doctor finds each of them, and its command repairs it.

use super::*;

#[test]
fn nothing_on_a_well_set_machine() {
    let machine = Recorded::well_set();
    assert_eq!(keys(&on(&machine)), Vec::<&str>::new());
    let out = doctor([OsStr::new("--root"), machine.root().as_os_str()]);
    let shown = text(&out.stdout);
    assert!(
        shown.contains("nothing found") && shown.starts_with("Linux 6.18.0-recorded, Recorded CPU\n"),
        "{shown}"
    );
    assert!(shown.contains("\n  2985 pages of 2 MB are free now"), "{shown}");
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
}

#[test]
fn issue_13_b3_a_stock_machine_has_no_warning() {
    for enabled in ["[always] madvise never\n", "always [madvise] never\n"] {
        let machine = Recorded::well_set();
        machine.write(&format!("{THP}/enabled"), enabled);
        machine.write(&format!("{THP}/shmem_enabled"), "always within_size advise [never] deny force\n");
        machine.write("/proc/sys/kernel/perf_event_paranoid", "4\n");
        machine.pool(0, 0, 0, 0, 0);
        fs::remove_dir_all(machine.path("/sys/devices/system/node")).expect("remove the nodes");
        let out = doctor([OsStr::new("--root"), machine.root().as_os_str()]);
        let shown = text(&out.stdout);
        assert!(shown.contains("NOTE    the pool of 2 MB pages is empty"), "{shown}");
        assert!(!shown.contains("WARNING") && !shown.contains("PROBLEM"), "{shown}");
        assert_eq!(out.status.code(), Some(0), "{shown}");
        // The advice for the pool is the same command everywhere.
        assert!(shown.contains("hugelift pool set 2M=+"), "{shown}");
        assert!(shown.contains("hugelift pool set --overcommit 2M="), "{shown}");
    }
}

/// The keys of the expected findings, a function that plants the fault on a recorded machine, and the file
/// and value that prove that the command works; `None` where no command can help.
type Plant = (&'static [&'static str], fn(&Recorded), Option<(&'static str, &'static str)>);

const PLANTS: [Plant; 28] = [
    // issue 29, B10
    (
        &["thp-always"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")),
    ),
    (
        &["thp-never"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")),
    ),
    (
        &["thp-size-never"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
                "always inherit madvise [never]\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "inherit")),
    ),
    (
        &["thp-absent"],
        |m| fs::remove_dir_all(m.path("/sys/kernel/mm/transparent_hugepage")).expect("remove it"),
        None,
    ),
    (
        &["thp-off-here"],
        |m| m.write("/proc/self/status", "THP_enabled:\t0\nCapEff:\t0000000000000000\n"),
        None,
    ),
    (
        &["thp-defrag-never"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "always defer defer+madvise madvise [never]\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "madvise")),
    ),
    (
        &["thp-defrag-defer"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "always [defer] defer+madvise madvise never\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "defer+madvise")),
    ),
    (
        &["thp-defrag-always", "thp-always"],
        |m| {
            m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "[always] defer defer+madvise madvise never\n",
            );
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "madvise")),
    ),
    (
        &["khugepaged-defrag-off"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1")),
    ),
    (
        &["khugepaged-slow"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "600000\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "10000")),
    ),
    (
        &["khugepaged-slow"],
        |m| {
            m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "99999\n");
            m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "1\n");
        },
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "4096")),
    ),
    (
        &["shmem-off"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise never [deny] force\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise")),
    ),
    (
        &["zero-page-off"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/use_zero_page", "0\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1")),
    ),
    (
        &["pool-empty", "no-overcommit"],
        |m| {
            m.pool(0, 0, 0, 0, 0);
            // The recorded nodes would not change when the total is set.
            fs::remove_dir_all(m.path("/sys/devices/system/node")).expect("remove the nodes");
        },
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64")),
    ),
    (
        &["no-overcommit"],
        |m| m.pool(256, 200, 0, 0, 0),
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "1000")),
    ),
    (
        &["pool-idle"],
        |m| m.pool(4096, 4000, 8, 0, 512),
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "104")),
    ),
    (
        &["pool-node-empty"],
        |m| {
            m.node(0, 256, 200);
            m.node(1, 0, 0);
        },
        Some(("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "128")),
    ),
    (
        &["pool-other-nodes"],
        |m| {
            m.node(0, 256, 200);
            m.node(1, 0, 0);
            m.write("/proc/self/status", "CapEff:\t0\nMems_allowed_list:\t1\n");
        },
        Some(("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "128")),
    ),
    (
        &["fragmented"],
        |m| {
            m.write("/proc/buddyinfo", "Node 0, zone   Normal  30500  32500   9900   6120   4074   1381    356     61     14      2      2\n")
        },
        None,
    ),
    (
        &["strict-overcommit"],
        |m| {
            m.write("/proc/sys/vm/overcommit_memory", "2\n");
            m.write("/proc/meminfo", "MemTotal: 16384000 kB\nCommitLimit: 4200000 kB\nCommitted_AS: 4096000 kB\nHugepagesize: 2048 kB\n");
        },
        Some(("/proc/sys/vm/overcommit_memory", "0")),
    ),
    (
        &["itlb-multihit"],
        |m| {
            m.write(
                "/sys/devices/system/cpu/vulnerabilities/itlb_multihit",
                "KVM: Mitigation: VMX unsupported\n",
            );
            m.write("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n");
        },
        None,
    ),
    (
        &["no-proactive-compaction"],
        |m| m.write("/proc/sys/vm/compaction_proactiveness", "0\n"),
        Some(("/proc/sys/vm/compaction_proactiveness", "20")),
    ),
    (
        &["cgroup-hugetlb"],
        |m| m.write("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "0\n"),
        Some(("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "max")),
    ),
    (
        &["cgroup-hugetlb"],
        |m| {
            m.write("/proc/self/cgroup", "5:hugetlb:/a/b\n");
            m.write(
                "/proc/self/mountinfo",
                "36 31 0:32 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n",
            );
            m.write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "2097152\n");
            m.write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.usage_in_bytes", "2097152\n");
        },
        Some(("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "-1")),
    ),
    (
        &["cgroup-memory"],
        |m| m.write("/sys/fs/cgroup/user.slice/memory.max", "120000000\n"),
        Some(("/sys/fs/cgroup/user.slice/memory.max", "max")),
    ),
    (
        &["yama"],
        |m| m.write("/proc/sys/kernel/yama/ptrace_scope", "2\n"),
        Some(("/proc/sys/kernel/yama/ptrace_scope", "1")),
    ),
    (&["yama"], |m| m.write("/proc/sys/kernel/yama/ptrace_scope", "3\n"), None),
    (
        &["perf-paranoid"],
        |m| m.write("/proc/sys/kernel/perf_event_paranoid", "4\n"),
        Some(("/proc/sys/kernel/perf_event_paranoid", "2")),
    ),
];

#[test]
fn each_planted_fault_is_found_and_its_command_mends_it() {
    for (want, plant, proof) in PLANTS {
        let machine = Recorded::well_set();
        plant(&machine);
        let found = on(&machine);
        assert_eq!(keys(&found), want);
        let commands: Vec<&str> = found.iter().filter_map(|f| f["command"].as_str()).collect();
        for command in &commands {
            run(command);
        }
        let Some((file, value)) = proof else {
            // A recorded machine cannot show an effect, except that memory was to be compacted.
            assert!(commands.is_empty() || machine.read("/proc/sys/vm/compact_memory") == "1\n", "{found:?}");
            continue;
        };
        assert_eq!(commands.len(), found.len(), "{found:?}");
        assert_eq!(machine.read(file).trim(), value, "{commands:?}");
        assert_eq!(keys(&on(&machine)), Vec::<&str>::new(), "after {commands:?}");
    }
}
