// SPDX-License-Identifier: Apache-2.0
//! How much memory the cgroups of a process leave it (Documentation/admin-guide/cgroup-v2.rst
//! and cgroup-v1/memory.rst): each group from its own up to the root may set a limit.

use std::path::{Path, PathBuf};

/// Reads a text file; `None` if it is not there or not to be read.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The two generations of the memory controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// Bytes that the memory cgroups still allow; `None` if none sets a limit.
///
/// `cgroup` is `/proc/PID/cgroup`, `mountinfo` is `/proc/self/mountinfo`.
pub fn memory_left(cgroup: &str, mountinfo: &str, read: ReadText) -> Option<u64> {
    [Version::V1, Version::V2]
        .into_iter()
        .flat_map(|version| folders(cgroup, mountinfo, version).into_iter().map(move |f| (f, version)))
        .filter_map(|(folder, version)| group_left(&folder, version, read))
        .min()
}

/// The folders of the process's memory group and its ancestors, as far as they are mounted.
fn folders(cgroup: &str, mountinfo: &str, version: Version) -> Vec<PathBuf> {
    let Some(group) = group_path(cgroup, version) else { return Vec::new() };
    let Some((root, mount)) = mount_of(mountinfo, version) else { return Vec::new() };
    // In a container the mount shows only the group `root` and what is below it. What is
    // not below it (or "/..", outside our namespace) is judged by the mount alone.
    let below = Path::new(group).strip_prefix(&root).ok().filter(|p| !p.starts_with(".."));
    let leaf = mount.join(below.unwrap_or(Path::new("")));
    leaf.ancestors().take_while(|p| p.starts_with(&mount)).map(Path::to_path_buf).collect()
}

/// `4:memory:/user/x` or `0::/user.slice/x`.
fn group_path(cgroup: &str, version: Version) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::V1 => controllers.split(',').any(|c| c == "memory"),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        found.then_some(path)
    })
}

/// Root and mount point of the memory hierarchy (proc_pid_mountinfo(5)).
fn mount_of(mountinfo: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let found = match version {
            Version::V1 => kind == "cgroup" && after.nth(1)?.split(',').any(|o| o == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        found.then(|| (unescape(root), unescape(mount)))
    })
}

/// Blanks in mountinfo's paths are written in octal.
fn unescape(field: &str) -> PathBuf {
    PathBuf::from(field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
}

/// What one group leaves; `None` if it sets no limit.
fn group_left(folder: &Path, version: Version, read: ReadText) -> Option<u64> {
    let (limit, usage, inactive) = match version {
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        Version::V2 => ("memory.max", "memory.current", "inactive_file"),
    };
    let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
    // "max" in v2; in v1 the largest number of whole pages, which depends on the page size.
    let limit = number(limit).filter(|&l| l < 1 << 62)?;
    let usage = number(usage)?;
    // Page cache that nobody uses goes before anything fails.
    let reclaimable = read(&folder.join("memory.stat"))
        .and_then(|stat| {
            stat.lines().find_map(|l| l.strip_prefix(inactive)?.strip_prefix(' ')?.parse::<u64>().ok())
        })
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
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
        assert_eq!(memory_left("4:memory:/a/b\n0::/\n", MOUNTS_V1, &read), Some(400000));
        assert_eq!(memory_left("4:cpu,memory:/\n0::/\n", MOUNTS_V1, &read), None);
    }

    #[test]
    fn v2_and_its_max() {
        let read = files(&[
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/u/memory.max", "5000\n"),
            ("/sys/fs/cgroup/u/memory.current", "6000\n"),
            ("/sys/fs/cgroup/u/memory.stat", "anon 1\ninactive_file 2000\n"),
        ]);
        assert_eq!(memory_left("0::/u/x.scope\n", MOUNTS_V2, &read), Some(1000));
        assert_eq!(memory_left("0::/other\n", MOUNTS_V2, &read), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_mount() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let read = files(&[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "10\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4\n"),
        ]);
        assert_eq!(memory_left("4:memory:/docker/abc\n", mounts, &read), Some(6));
        assert_eq!(memory_left("4:memory:/elsewhere\n", mounts, &read), Some(6));
        assert_eq!(memory_left("0::/../..\n", MOUNTS_V2, &files(&[])), None);
    }

    #[test]
    fn nonsense_sets_no_limit() {
        for text in ["", "x", ":", "4:memory", "::::", "0::"] {
            assert_eq!(memory_left(text, MOUNTS_V1, &|_| Some("nonsense".into())), None, "{text}");
            assert_eq!(memory_left("0::/\n", text, &|_| Some("1".into())), None, "{text}");
        }
    }
}
