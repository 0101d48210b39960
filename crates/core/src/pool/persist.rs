// SPDX-License-Identifier: Apache-2.0
//! Settings that survive a reboot.
//!
//! The pool of the default size and its overcommit are sysctls and go into a sysctl.d(5) file. Other
//! sizes and the nodes' shares are only in sysfs, which the `w` lines of tmpfiles.d(5) write at boot.

use super::{Change, Kind, SizePool};

/// The sysctl.d file of hugelift.
pub const SYSCTL: &str = "/etc/sysctl.d/60-hugelift.conf";
/// The tmpfiles.d file of hugelift.
pub const TMPFILES: &str = "/etc/tmpfiles.d/hugelift.conf";

const HEADER: &str = "# Written by 'hugelift pool set --persist', which keeps lines that it does not set.\n";

/// The text of both files.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Files {
    /// [`SYSCTL`]
    pub sysctl: String,
    /// [`TMPFILES`]
    pub tmpfiles: String,
}

/// Returns the files with `changes` in place of earlier settings of the same numbers. `pools` has the
/// shares of the nodes that a change does not name: all nodes must be set one by one, as the kernel
/// divides a total evenly.
pub fn update(old: &Files, changes: &[Change], pools: &[SizePool]) -> Files {
    let mut new = old.clone();
    for change in changes {
        remove(&mut new, change);
        match (key(change), change.node) {
            (Some(key), None) => add(&mut new.sysctl, &format!("{key} = {}", change.to)),
            (None, None) => add(&mut new.tmpfiles, &write_line(&change.path(), change.to)),
            (_, Some(node)) => {
                let nodes = pools.iter().filter(|p| p.page_size == change.page_size).flat_map(|p| &p.nodes);
                for share in nodes {
                    let own = share.total.saturating_sub(share.surplus);
                    let pages = if share.node == node { change.to } else { own };
                    let path = Change { node: Some(share.node), ..*change }.path();
                    add(&mut new.tmpfiles, &write_line(&path, pages));
                }
            }
        }
    }
    new
}

/// Returns the names of the sysctls among `changes`.
pub fn sysctl_keys(changes: &[Change]) -> Vec<&'static str> {
    changes.iter().filter(|c| c.node.is_none()).filter_map(key).collect()
}

/// Returns whether a sysctl.d file sets `key`.
pub fn sets(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| sysctl_of(line).is_some_and(|key| key == wanted))
}

/// Returns the sysctl for a number of the default size.
fn key(change: &Change) -> Option<&'static str> {
    change.default.then_some(match change.kind {
        Kind::Pages => "vm.nr_hugepages",
        Kind::Overcommit => "vm.nr_overcommit_hugepages",
    })
}

/// Returns `vm.x` for the line `-vm/x = 1`; a leading minus means that failure does not matter.
fn sysctl_of(line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with(['#', ';']) {
        return None;
    }
    let name = line.trim_start_matches('-').split('=').next()?.trim();
    (!name.is_empty()).then(|| name.replace('/', "."))
}

fn write_line(path: &str, value: u64) -> String {
    format!("w {path} - - - - {value}")
}

/// Removes every line that sets the number, for the machine or for any node.
fn remove(files: &mut Files, change: &Change) {
    let sysctl = key(change);
    let keep = |line: &&str| sysctl.is_none_or(|key| sysctl_of(line).is_none_or(|k| k != key));
    files.sysctl = joined(files.sysctl.lines().filter(keep));
    let whole = Change { node: None, ..*change }.path();
    let folder = format!("/hugepages-{}kB/nr_hugepages", change.page_size >> 10);
    let sets = |line: &&str| {
        let mut words = line.split_whitespace();
        let path = words.next().filter(|kind| kind.starts_with('w')).and(words.next());
        let of_node = |path: &str| path.starts_with("/sys/devices/system/node/") && path.ends_with(&folder);
        path.is_some_and(|path| path == whole || (change.kind == Kind::Pages && of_node(path)))
    };
    files.tmpfiles = joined(files.tmpfiles.lines().filter(|line| !sets(line)));
}

fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| format!("{line}\n")).collect()
}

fn add(text: &mut String, line: &str) {
    if text.is_empty() {
        text.push_str(HEADER);
    }
    text.push_str(line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::tests::two_sizes;
    use super::super::{Request, changes};
    use super::*;

    fn after(old: &Files, page: &str, node: Option<u32>) -> Files {
        let request: Request = page.parse().unwrap();
        update(old, &changes(&two_sizes(), &[request], &[], node).unwrap(), &two_sizes())
    }

    #[test]
    fn sysctl_for_the_default_size_and_sysfs_for_the_others() {
        let one = after(&Files::default(), "2M=64", None);
        assert_eq!(one.sysctl, format!("{HEADER}vm.nr_hugepages = 64\n"));
        assert_eq!(one.tmpfiles, "");
        let two = after(&one, "1G=2", None);
        let line = "w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - 2\n";
        assert_eq!(two, Files { sysctl: one.sysctl, tmpfiles: format!("{HEADER}{line}") });
        assert_eq!(after(&two, "1G=2", None), two);
    }

    #[test]
    fn settings_of_nodes_and_of_the_machine_replace_each_other() {
        let old = Files {
            sysctl: "vm.swappiness = 1\n-vm/nr_hugepages=9\n# vm.nr_hugepages = 1\n".into(),
            tmpfiles: "w /sys/kernel/mm/x - - - - 1\n".into(),
        };
        let nodes = after(&old, "2M=+8", Some(1));
        assert_eq!(nodes.sysctl, "vm.swappiness = 1\n# vm.nr_hugepages = 1\n");
        let dir = |n| format!("/sys/devices/system/node/node{n}/hugepages/hugepages-2048kB/nr_hugepages");
        let lines = format!("w {} - - - - 56\nw {} - - - - 48\n", dir(0), dir(1));
        assert_eq!(nodes.tmpfiles, format!("{}{lines}", old.tmpfiles));
        let whole = after(&nodes, "2M=3", None);
        assert_eq!(whole.tmpfiles, old.tmpfiles);
        assert_eq!(whole.sysctl, format!("{}vm.nr_hugepages = 3\n", nodes.sysctl));
    }

    #[test]
    fn a_file_that_sets_a_sysctl_is_recognised() {
        assert!(sets("\n -vm/nr_hugepages =1", "vm.nr_hugepages"));
        assert!(!sets("#vm.nr_hugepages=1\nvm.nr_hugepages_mempolicy=1\n=\n", "vm.nr_hugepages"));
        let overcommit: Request = "5".parse().unwrap();
        let change = changes(&two_sizes(), &[], &[overcommit], None).unwrap();
        assert_eq!(sysctl_keys(&change), ["vm.nr_overcommit_hugepages"]);
    }
}
