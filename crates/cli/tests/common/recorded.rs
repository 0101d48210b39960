// SPDX-License-Identifier: Apache-2.0
//! A folder with /proc and /sys of another machine: two NUMA nodes, both with a pool, and every
//! setting right. A test changes the settings that it wants to be wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The folder. Removed when dropped.
pub struct Recorded {
    dir: TempDir,
}

impl Recorded {
    /// A server that is set up well for huge pages (the values are those of Linux 6.18 on
    /// x86-64, with 8 GB on each of two nodes).
    pub fn well_set() -> Recorded {
        let machine = Recorded { dir: TempDir::new().expect("a folder") };
        for (name, text) in [
            ("enabled", "always [madvise] never\n"),
            ("defrag", "always defer defer+madvise [madvise] never\n"),
            ("shmem_enabled", "always within_size [advise] never deny force\n"),
            ("use_zero_page", "1\n"),
            ("hpage_pmd_size", "2097152\n"),
            ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
            ("khugepaged/defrag", "1\n"),
            ("khugepaged/max_ptes_none", "511\n"),
            ("khugepaged/pages_to_scan", "4096\n"),
            ("khugepaged/scan_sleep_millisecs", "10000\n"),
            ("khugepaged/alloc_sleep_millisecs", "60000\n"),
        ] {
            machine.write(&format!("{THP}/{name}"), text);
        }
        machine.pool(256, 200, 0, 0, 512);
        for (node, total, free) in [(0, 128, 100), (1, 128, 100)] {
            machine.node(node, total, free);
        }
        let giant = "/sys/kernel/mm/hugepages/hugepages-1048576kB";
        for name in ["nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages"] {
            machine.write(&format!("{giant}/{name}"), "0\n");
        }
        machine.write(&format!("{giant}/nr_overcommit_hugepages"), "0\n");
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.18.0-recorded\n"),
            ("/proc/sys/kernel/yama/ptrace_scope", "1\n"),
            ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("/proc/sys/vm/overcommit_memory", "0\n"),
            ("/proc/sys/vm/compact_memory", ""),
            ("/proc/sys/vm/compaction_proactiveness", "20\n"),
            ("/proc/meminfo", MEMINFO),
            ("/proc/buddyinfo", BUDDYINFO),
            (
                "/proc/vmstat",
                "thp_fault_alloc 9000\nthp_fault_fallback 3\ncompact_stall 12\ncompact_fail 2\n",
            ),
            ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Recorded CPU\nflags\t\t: fpu pse pdpe1gb\n"),
            ("/proc/self/limits", LIMITS),
            (
                "/proc/self/status",
                "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\nMems_allowed_list:\t0-1\n",
            ),
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/proc/self/mountinfo", "25 30 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/hugetlb.2MB.current", "0\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "104857600\n"),
            ("/sys/devices/system/cpu/vulnerabilities/itlb_multihit", "Not affected\n"),
            ("/sys/bus/event_source/devices/cpu/type", "4\n"),
        ] {
            machine.write(path, text);
        }
        machine
    }

    /// Sets the numbers of its pool of 2 MB pages.
    pub fn pool(&self, total: u64, free: u64, reserved: u64, surplus: u64, overcommit: u64) {
        for (name, number) in [
            ("nr_hugepages", total),
            ("free_hugepages", free),
            ("resv_hugepages", reserved),
            ("surplus_hugepages", surplus),
            ("nr_overcommit_hugepages", overcommit),
        ] {
            self.write(&format!("{POOL}/{name}"), &format!("{number}\n"));
        }
    }

    /// Sets a node's share of that pool.
    pub fn node(&self, node: u32, total: u64, free: u64) {
        let folder = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        for (name, number) in [("nr_hugepages", total), ("free_hugepages", free), ("surplus_hugepages", 0)] {
            self.write(&format!("{folder}/{name}"), &format!("{number}\n"));
        }
        self.write(&format!("/sys/devices/system/node/node{node}/compact"), "");
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of one of its files.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Writes a file.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("make its folder");
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Returns the text of a file.
    pub fn read(&self, path: &str) -> String {
        let path = self.path(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Returns every file with its bytes.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut folders = vec![self.root().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("read a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    all.insert(path.clone(), fs::read(&path).expect("read a file"));
                }
            }
        }
        all
    }
}

const MEMINFO: &str = "\
MemTotal:       16384000 kB
MemFree:         6291456 kB
MemAvailable:   12288000 kB
CommitLimit:    20480000 kB
Committed_AS:    4096000 kB
Hugepagesize:       2048 kB
";

/// Like that of a machine soon after its start: nearly all free memory is in the largest blocks.
const BUDDYINFO: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal     83     27     15     14      8      7      5     29     32     12    700
Node 1, zone   Normal     60     21     15     10      8      4      5      9     12      6    780
";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         8388608              8388608              bytes
Max address space         unlimited            unlimited            bytes
";
