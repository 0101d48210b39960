// SPDX-License-Identifier: Apache-2.0
//! How much memory the control groups of a process leave it (Documentation/admin-guide/cgroup-v2.rst
//! and cgroup-v1/memory.rst). Each group from its own up to the root may set a limit.

use crate::machine::reading::Reading;
use hugelift_core::addr::PageSize;
use hugelift_core::printable::Escape;
use hugelift_core::snapshot::MemoryLimit;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The memory that a control group allows.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupLimit {
    /// `hugetlb` or `memory`.
    pub controller: String,
    /// For hugetlb, bytes of the pages that it limits.
    pub page_size: Option<u64>,
    /// The file with the limit.
    pub limit: Reading,
    /// The limit in bytes.
    pub bytes: u64,
    /// Bytes used of it that cannot be reclaimed.
    pub used: u64,
    /// The text that removes the limit when it is written to the file: `max`, or -1 in version 1.
    pub unlimited: String,
}

/// Reads a text file; returns `None` if there is none or it cannot be read.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The two generations of the memory controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// Returns the limit of the memory cgroups of a process that leaves it the least memory; `None` if none
/// sets a limit. `memory.high` counts as a limit: the kernel slows a group that is above it down until it
/// makes no progress.
///
/// `cgroup` is `/proc/PID/cgroup`, `mountinfo` is `/proc/self/mountinfo`.
pub fn memory_limit(cgroup: &str, mountinfo: &str, read: ReadText) -> Option<MemoryLimit> {
    let mut limits = Vec::new();
    for (version, files) in [(Version::V1, &[LIMIT_V1][..]), (Version::V2, &[LIMIT_V2, "memory.high"])] {
        for folder in folders(cgroup, mountinfo, version, "memory") {
            limits.extend(files.iter().filter_map(|file| group_memory(&folder, file, version, read)));
        }
    }
    let left = |limit: &GroupLimit| limit.bytes.saturating_sub(limit.used);
    let least = limits.into_iter().min_by_key(left)?;
    Some(MemoryLimit {
        left: left(&least),
        bytes: least.bytes,
        source: least.limit.source,
        counts_pools: counts_pools(mountinfo),
    })
}

/// Returns whether pages of the hugetlb pools are charged to the memory controller (since Linux 6.7, by an
/// option of the cgroup2 mount).
fn counts_pools(mountinfo: &str) -> bool {
    let is_one = |line: &str| {
        let Some((_, after)) = line.split_once(" - cgroup2 ") else { return false };
        after.split([' ', ',']).any(|option| option == "memory_hugetlb_accounting")
    };
    mountinfo.lines().any(is_one)
}

/// Returns every limit on memory and on pages of the pools of `sizes`, from the process's own groups
/// up to the roots.
pub fn limits(cgroup: &str, mountinfo: &str, sizes: &[PageSize], read: ReadText) -> Vec<GroupLimit> {
    let mut all = Vec::new();
    for version in [Version::V1, Version::V2] {
        for folder in folders(cgroup, mountinfo, version, "memory") {
            let file = if version == Version::V1 { LIMIT_V1 } else { LIMIT_V2 };
            all.extend(group_memory(&folder, file, version, read));
        }
        for folder in folders(cgroup, mountinfo, version, "hugetlb") {
            for size in sizes {
                all.extend(group_hugetlb(&folder, version, *size, read));
            }
        }
    }
    all
}

/// A control group whose processes do not run until it is thawed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frozen {
    /// The file that thaws it.
    file: PathBuf,
    /// The text that is written to it for that.
    text: &'static str,
}

impl std::fmt::Display for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let folder = self.file.parent().unwrap_or(&self.file);
        let (folder, file) = (folder.escaped(), self.file.escaped());
        write!(f, "its control group {folder} is frozen; thaw it (echo {} > {file}) and try again", self.text)
    }
}

/// Returns the control group of a process, or the one around it, that is frozen or about to be.
///
/// `cgroup` is `/proc/PID/cgroup`, `mountinfo` is `/proc/self/mountinfo`.
pub fn frozen(cgroup: &str, mountinfo: &str, read: ReadText) -> Option<Frozen> {
    let ways = [
        (Version::V2, "", "cgroup.freeze", ("cgroup.events", "frozen 1"), ("cgroup.freeze", "0")),
        (
            Version::V1,
            "freezer",
            "freezer.self_freezing",
            ("freezer.state", "FROZEN"),
            ("freezer.state", "THAWED"),
        ),
    ];
    ways.into_iter().find_map(|(version, controller, is_asked, (state, is_so), (file, text))| {
        let folders = folders(cgroup, mountinfo, version, controller);
        let asked = folders.iter().find(|f| read(&f.join(is_asked)).is_some_and(|text| text.trim() == "1"));
        // In a container a group around its own cannot be seen.
        let own = folders
            .first()
            .filter(|f| read(&f.join(state)).is_some_and(|text| text.lines().any(|line| line == is_so)));
        asked.or(own).map(|folder| Frozen { file: folder.join(file), text })
    })
}

/// Returns the files with the memory pressure of the process's group and of those around it: version 2 has them, with any
/// controllers.
///
/// `cgroup` is `/proc/PID/cgroup`, `mountinfo` is `/proc/self/mountinfo`.
pub fn pressure_files(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let folders = folders(cgroup, mountinfo, Version::V2, "memory");
    folders.into_iter().map(|folder| folder.join("memory.pressure")).collect()
}

/// Returns the folders of the process's group of this controller and of its ancestors, as far as they
/// are mounted.
fn folders(cgroup: &str, mountinfo: &str, version: Version, controller: &str) -> Vec<PathBuf> {
    let Some(group) = group_path(cgroup, version, controller) else { return Vec::new() };
    let Some((root, mount)) = mount_of(mountinfo, version, controller) else { return Vec::new() };
    // In a container the mount shows only the group `root` and what is below it. For a group that is not
    // below it (or "/..", outside our namespace) only the folders of the mount itself are returned.
    let below = Path::new(group).strip_prefix(&root).ok().filter(|p| !p.starts_with(".."));
    let leaf = mount.join(below.unwrap_or(Path::new("")));
    leaf.ancestors().take_while(|p| p.starts_with(&mount)).map(Path::to_path_buf).collect()
}

/// Returns the path of the group in a line such as `4:memory:/user/x` or `0::/user.slice/x`.
fn group_path<'a>(cgroup: &'a str, version: Version, controller: &str) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::V1 => controllers.split(',').any(|c| c == controller),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        found.then_some(path)
    })
}

/// Returns the root and the mount point of the controller's hierarchy (proc_pid_mountinfo(5)).
fn mount_of(mountinfo: &str, version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let found = match version {
            Version::V1 => kind == "cgroup" && after.nth(1)?.split(',').any(|o| o == controller),
            Version::V2 => kind == "cgroup2",
        };
        found.then(|| (unescape(root), unescape(mount)))
    })
}

/// Replaces the octal escapes that mountinfo has for blanks and backslashes in paths.
fn unescape(field: &str) -> PathBuf {
    PathBuf::from(field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
}

/// The files that limit a group's memory.
const LIMIT_V1: &str = "memory.limit_in_bytes";
const LIMIT_V2: &str = "memory.max";
/// More than any machine's memory: such a value means no limit. (Version 1 shows the largest number of
/// whole pages, which depends on the page size.)
const NO_LIMIT: u64 = 1 << 62;

/// Reads a limit: its text, and the number of bytes.
fn limit_in(path: &Path, read: ReadText) -> Option<(String, u64)> {
    let text = read(path)?.trim().to_string();
    // "max" of version 2 does not parse, and means no limit.
    let bytes = text.parse().ok().filter(|&bytes: &u64| bytes < NO_LIMIT)?;
    Some((text, bytes))
}

fn unlimited(version: Version) -> String {
    match version {
        Version::V1 => "-1".into(),
        Version::V2 => "max".into(),
    }
}

/// Returns one group's limit on memory, as set in `file`; `None` if it sets none there.
fn group_memory(folder: &Path, file: &str, version: Version, read: ReadText) -> Option<GroupLimit> {
    let (usage, inactive) = match version {
        Version::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
        Version::V2 => ("memory.current", "inactive_file"),
    };
    let path = folder.join(file);
    let (value, bytes) = limit_in(&path, read)?;
    let usage = read(&folder.join(usage))?.trim().parse::<u64>().ok()?;
    // The kernel reclaims inactive page cache before an allocation fails.
    let reclaimable = read(&folder.join("memory.stat"))
        .and_then(|stat| {
            stat.lines().find_map(|l| l.strip_prefix(inactive)?.strip_prefix(' ')?.parse::<u64>().ok())
        })
        .unwrap_or(0);
    Some(GroupLimit {
        controller: "memory".into(),
        page_size: None,
        limit: Reading { source: path.escaped().to_string(), value },
        bytes,
        used: usage.saturating_sub(reclaimable),
        unlimited: unlimited(version),
    })
}

/// Returns one group's limits on pages of this size: on those in use, and on those reserved.
fn group_hugetlb(folder: &Path, version: Version, size: PageSize, read: ReadText) -> Vec<GroupLimit> {
    let word = match size.bytes() {
        b if b >= 1 << 30 => format!("{}GB", b >> 30),
        b if b >= 1 << 20 => format!("{}MB", b >> 20),
        b => format!("{}KB", b >> 10),
    };
    let (limit, usage) = match version {
        Version::V1 => ("limit_in_bytes", "usage_in_bytes"),
        Version::V2 => ("max", "current"),
    };
    let one = |kind: &str| {
        let path = folder.join(format!("hugetlb.{word}.{kind}{limit}"));
        let (value, bytes) = limit_in(&path, read)?;
        let usage = read(&folder.join(format!("hugetlb.{word}.{kind}{usage}")));
        Some(GroupLimit {
            controller: "hugetlb".into(),
            page_size: Some(size.bytes()),
            limit: Reading { source: path.escaped().to_string(), value },
            bytes,
            used: usage.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            unlimited: unlimited(version),
        })
    };
    ["", "rsvd."].into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MOUNTS_V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const MOUNTS_V2: &str = "\
25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
";

    fn left(cgroup: &str, mountinfo: &str, read: ReadText) -> Option<u64> {
        memory_limit(cgroup, mountinfo, read).map(|limit| limit.left)
    }

    #[test]
    fn the_limit_that_leaves_least_is_named() {
        let read = files(&[
            ("/sys/fs/cgroup/memory.max", "9000\n"),
            ("/sys/fs/cgroup/memory.current", "6000\n"),
            ("/sys/fs/cgroup/u/memory.max", "max\n"),
            ("/sys/fs/cgroup/u/memory.high", "5000\n"),
            ("/sys/fs/cgroup/u/memory.current", "2500\n"),
        ]);
        let limit = memory_limit("0::/u\n", MOUNTS_V2, &read).unwrap();
        assert_eq!((limit.source.as_str(), limit.bytes), ("/sys/fs/cgroup/u/memory.high", 5000));
        assert_eq!((limit.left, limit.counts_pools), (2500, false));
        let counting = MOUNTS_V2.replace("nsdelegate", "nsdelegate,memory_hugetlb_accounting");
        assert!(memory_limit("0::/u\n", &counting, &read).unwrap().counts_pools);
    }

    fn files(list: &[(&str, &str)]) -> impl Fn(&Path) -> Option<String> {
        let map: HashMap<PathBuf, String> =
            list.iter().map(|(p, t)| (PathBuf::from(p), (*t).to_string())).collect();
        move |path| map.get(path).cloned()
    }

    #[test]
    fn v1_takes_the_tightest_ancestor() {
        let read = files(&[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "12345\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "700000\n"),
            ("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "900000\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100\n"),
        ]);
        assert_eq!(left("4:memory:/a/b\n0::/\n", MOUNTS_V1, &read), Some(400000));
        assert_eq!(left("4:cpu,memory:/\n0::/\n", MOUNTS_V1, &read), None);
    }

    #[test]
    fn v2_and_its_max() {
        let read = files(&[
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/u/memory.max", "5000\n"),
            ("/sys/fs/cgroup/u/memory.current", "6000\n"),
            ("/sys/fs/cgroup/u/memory.stat", "anon 1\ninactive_file 2000\n"),
        ]);
        assert_eq!(left("0::/u/x.scope\n", MOUNTS_V2, &read), Some(1000));
        assert_eq!(left("0::/other\n", MOUNTS_V2, &read), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_mount() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let read = files(&[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "10\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4\n"),
        ]);
        assert_eq!(left("4:memory:/docker/abc\n", mounts, &read), Some(6));
        assert_eq!(left("4:memory:/elsewhere\n", mounts, &read), Some(6));
        assert_eq!(left("0::/../..\n", MOUNTS_V2, &files(&[])), None);
    }

    #[test]
    fn limits_on_huge_pages_of_both_versions() {
        let v1 = "36 31 0:32 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n";
        let read = files(&[
            ("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "4194304\n"),
            ("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.usage_in_bytes", "2097152\n"),
            ("/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/u/hugetlb.2MB.max", "max\n"),
            ("/sys/fs/cgroup/u/hugetlb.2MB.rsvd.max", "0\n"),
            ("/sys/fs/cgroup/u/hugetlb.1GB.max", "0\n"),
        ]);
        let all = limits("7:hugetlb:/a\n", v1, &[PageSize::MB2], &read);
        let short = |l: &GroupLimit| (l.limit.source.clone(), l.bytes, l.used, l.unlimited.clone());
        let want = "/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes".to_string();
        assert_eq!(all.iter().map(short).collect::<Vec<_>>(), [(want, 4 << 20, 2 << 20, "-1".into())]);
        let all = limits("0::/u\n", MOUNTS_V2, &[PageSize::MB2], &read);
        let want = "/sys/fs/cgroup/u/hugetlb.2MB.rsvd.max".to_string();
        assert_eq!(all.iter().map(short).collect::<Vec<_>>(), [(want, 0, 0, "max".into())]);
    }

    #[test]
    fn a_group_that_is_frozen() {
        let of = |cgroup, mounts, list| frozen(cgroup, mounts, &files(list)).map(|frozen| frozen.to_string());
        let thawed = [("/sys/fs/cgroup/u/x/cgroup.freeze", "0\n"), ("/sys/fs/cgroup/u/cgroup.freeze", "0\n")];
        assert_eq!(of("0::/u/x\n", MOUNTS_V2, &thawed), None);
        let around = [("/sys/fs/cgroup/u/x/cgroup.freeze", "0\n"), ("/sys/fs/cgroup/u/cgroup.freeze", "1\n")];
        let want = "its control group /sys/fs/cgroup/u is frozen; thaw it (echo 0 > /sys/fs/cgroup/u/cgroup.freeze) and \
                    try again";
        assert_eq!(of("0::/u/x\n", MOUNTS_V2, &around).as_deref(), Some(want));
        let inside = [("/sys/fs/cgroup/cgroup.events", "populated 1\nfrozen 1\n")];
        assert!(of("0::/\n", MOUNTS_V2, &inside).unwrap().contains("echo 0 > /sys/fs/cgroup/cgroup.freeze"));
        let v1 = "40 31 0:37 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let frozen = [
            ("/sys/fs/cgroup/freezer/a/b/freezer.self_freezing", "0\n"),
            ("/sys/fs/cgroup/freezer/a/b/freezer.state", "FROZEN\n"),
            ("/sys/fs/cgroup/freezer/a/freezer.self_freezing", "1\n"),
        ];
        let said = of("6:freezer:/a/b\n0::/\n", v1, &frozen).unwrap();
        assert!(said.contains("echo THAWED > /sys/fs/cgroup/freezer/a/freezer.state"), "{said}");
        assert_eq!(of("6:freezer:/\n0::/\n", v1, &frozen), None);
    }

    #[test]
    fn nonsense_sets_no_limit() {
        for text in ["", "x", ":", "4:memory", "::", "0::"] {
            assert_eq!(left(text, MOUNTS_V1, &|_| Some("nonsense".into())), None, "{text}");
            assert_eq!(left("0::/\n", text, &|_| Some("1".into())), None, "{text}");
        }
    }
}
