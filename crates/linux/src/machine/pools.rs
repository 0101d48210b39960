// SPDX-License-Identifier: Apache-2.0
//! The hugetlb pools: reading them by size and node, and setting them.

use crate::io::lock::lock;
use crate::machine::sysfs;
use crate::machine::tree::Tree;
use hugelift_core::addr::PageSize;
use hugelift_core::fields::bytes_of;
use hugelift_core::pool::persist::{self, Files, SYSCTL, TMPFILES};
use hugelift_core::pool::{Change, Kind, NodePool, SizePool};
use hugelift_core::printable::{Escape, Untrusted};
use nix::fcntl::Flock;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODES: &str = "/sys/devices/system/node";
/// How often a pool's size is written while it still grows: each try can use the memory that the one
/// before has made the kernel reclaim.
const TRIES: u32 = 4;
/// How long to wait for another command that sets a pool.
const PATIENCE: Duration = Duration::from_secs(5);
/// Folders of sysctl.d(5).
const SYSCTL_FOLDERS: [&str; 4] =
    ["/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"];

/// A number that could not be set.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {value} to {path}: {source}{}", hint(.source))]
pub struct SetError {
    /// The file.
    pub path: Untrusted,
    /// The value that was to be written.
    pub value: String,
    /// Why it was not written.
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            "; only root may (sudo), and not in a container whose /proc and /sys are read-only"
        }
        Some(libc::EINVAL) => {
            "; this kernel cannot make pages of this size while it runs: set hugepagesz= and hugepages= on its command line"
        }
        _ => "",
    }
}

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolChange {
    /// The requested change.
    pub change: Change,
    /// The value that the kernel shows now.
    pub got: u64,
}

/// Reads the pools by size, largest page first, with their nodes.
pub fn read(tree: &Tree) -> Vec<SizePool> {
    let read = |path: &Path| tree.read(path);
    let default = tree.read("/proc/meminfo").and_then(|text| default_size(&text));
    let nodes: Vec<u32> = nodes(tree);
    let pools = sysfs::pools(&tree.names(sysfs::POOLS), &read);
    pools
        .into_iter()
        .map(|pool| {
            let shares = nodes.iter().filter_map(|&node| share(tree, node, pool.page)).collect();
            SizePool::new(pool, default, shares)
        })
        .collect()
}

/// Returns the numbers of the NUMA nodes.
pub fn nodes(tree: &Tree) -> Vec<u32> {
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let mut nodes: Vec<u32> = tree.names(NODES).iter().filter_map(number).collect();
    nodes.sort_unstable();
    nodes
}

fn share(tree: &Tree, node: u32, page: PageSize) -> Option<NodePool> {
    let folder = format!("{NODES}/node{node}/hugepages/hugepages-{}kB", page.bytes() >> 10);
    let number = |name: &str| tree.read(format!("{folder}/{name}"))?.trim().parse().ok();
    Some(NodePool {
        node,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        surplus: number("surplus_hugepages").unwrap_or(0),
    })
}

/// Returns `Hugepagesize` of `/proc/meminfo`.
fn default_size(meminfo: &str) -> Option<PageSize> {
    PageSize::new(bytes_of(meminfo, "Hugepagesize")?)
}

/// A lock on a pool (flock(2)), or the path of one whose lock another process holds for longer than five seconds.
pub type Turn = Result<Flock<OwnedFd>, PathBuf>;

/// Locks the pools of the changes, so that no other hugelift sets one between a reading and this setting. An experiment of
/// `hugelift lab` locks the pool that it changes for as long as it runs. Each user can lock these files, so a lock that is not to be
/// had forbids nothing.
///
/// # Errors
/// One line: a file cannot be opened or locked.
pub fn lock_all(tree: &Tree, changes: &[Change]) -> Result<Vec<Turn>, String> {
    let sizes: BTreeSet<u64> = changes.iter().map(|change| change.page_size).collect();
    let lock_one = |size: u64| {
        let path = format!("{}/hugepages-{}kB/nr_hugepages", sysfs::POOLS, size >> 10);
        let turn = tree.open(&path).and_then(|file| lock(file.into(), PATIENCE));
        let turn = turn.map_err(|error| format!("cannot lock {}: {error}", tree.path(&path).escaped()))?;
        Ok(turn.ok_or_else(|| tree.path(&path)))
    };
    sizes.into_iter().map(lock_one).collect()
}

/// Makes the requested `change`. If the pool is to grow, the kernel compacts memory first. It makes as many
/// pages as it can, and reports no error if they are fewer. A signal that has a handler cuts the growth short; there is no other
/// try once `goes_on` returns false.
///
/// # Errors
/// [`SetError`]
pub fn apply(tree: &Tree, change: &Change, goes_on: impl Fn() -> bool) -> Result<PoolChange, SetError> {
    if change.grows() {
        compact(tree, change.node);
    }
    let mut got = change.from;
    for _ in 0..TRIES {
        set(tree, change, change.to)?;
        let before = got;
        got = now(tree, change);
        if !change.grows() || got >= change.to || got <= before || !goes_on() {
            break;
        }
    }
    Ok(PoolChange { change: *change, got })
}

/// Undoes a change. Returns how many pages are missing, where a pool has been made smaller and cannot grow again.
///
/// # Errors
/// [`SetError`]
pub fn put_back(tree: &Tree, change: &Change) -> Result<u64, SetError> {
    let undone = Change { from: now(tree, change), to: change.from, ..*change };
    Ok(change.from.saturating_sub(apply(tree, &undone, || true)?.got))
}

fn set(tree: &Tree, change: &Change, value: u64) -> Result<(), SetError> {
    let (path, value) = (change.path(), value.to_string());
    tree.set(&path, &value).map_err(|source| SetError { path: tree.path(&path).into(), value, source })
}

/// Makes the kernel compact memory. Where that is not possible, the pool grows from the blocks that are free
/// already.
fn compact(tree: &Tree, node: Option<u32>) {
    let path = match node {
        Some(node) => format!("{NODES}/node{node}/compact"),
        None => "/proc/sys/vm/compact_memory".into(),
    };
    if let Err(error) = tree.set(&path, "1") {
        tracing::debug!("no compaction: {}: {error}", tree.path(&path).escaped());
    }
}

fn now(tree: &Tree, change: &Change) -> u64 {
    let pools = read(tree);
    let pool = pools.iter().find(|p| p.page_size == change.page_size);
    match change.kind {
        Kind::Overcommit => pool.map(|p| p.overcommit),
        Kind::Pages => pool.and_then(|p| p.permanent_on(change.node)),
    }
    .unwrap_or(0)
}

/// Returns what a permanent setting would write: each file whose text changes, with its new text.
///
/// # Errors
/// One line: a file is there that cannot be read, so that its other lines would be lost.
pub fn permanent(tree: &Tree, changes: &[Change]) -> Result<Vec<(&'static str, String)>, String> {
    let text = |path: &str| match tree.read(path) {
        None if std::fs::symlink_metadata(tree.path(path)).is_ok() => {
            let path = tree.path(path);
            Err(format!("{}: it cannot be read, or is not UTF-8; its lines would be lost", path.escaped()))
        }
        text => Ok(text.unwrap_or_default()),
    };
    let old = Files { sysctl: text(SYSCTL)?, tmpfiles: text(TMPFILES)? };
    let new = persist::update(&old, changes, &read(tree));
    let both = [(SYSCTL, old.sysctl, new.sysctl), (TMPFILES, old.tmpfiles, new.tmpfiles)];
    Ok(both.into_iter().filter(|(_, old, new)| old != new).map(|(path, _, new)| (path, new)).collect())
}

/// Returns the files that are read after ours at boot and set the same numbers.
pub fn overridden(tree: &Tree, changes: &[Change]) -> Vec<PathBuf> {
    let keys = persist::sysctl_keys(changes);
    let ours = Path::new(SYSCTL).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let in_folders = SYSCTL_FOLDERS.iter().flat_map(|folder| {
        // They are read in the order of their names, whatever the folder.
        let later = |name: &String| name.as_str() > ours && name.ends_with(".conf");
        tree.names(folder).into_iter().filter(later).map(move |name| format!("{folder}/{name}"))
    });
    let mut found: Vec<PathBuf> = Vec::new();
    for path in in_folders.chain(["/etc/sysctl.conf".to_string()]) {
        let sets = |text: String| keys.iter().any(|key| persist::sets(&text, key));
        if tree.read(&path).is_some_and(sets) {
            // A link to a file that is in the list already is the same file.
            let path = tree.path(&path);
            let real = std::fs::canonicalize(&path).unwrap_or(path);
            if !found.contains(&real) {
                found.push(real);
            }
        }
    }
    found
}

/// Returns whether systemd runs here, which reads tmpfiles.d(5) at boot.
pub fn has_systemd(tree: &Tree) -> bool {
    tree.path("/run/systemd/system").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_agrees_with_meminfo() {
        let tree = Tree::default();
        let Some(meminfo) = tree.read("/proc/meminfo") else { return };
        let default = default_size(&meminfo);
        let pools = read(&tree);
        assert_eq!(pools.iter().any(|p| p.default), default.is_some() && !pools.is_empty());
        assert!(pools.iter().all(|p| p.free <= p.total));
    }

    #[test]
    fn odd_meminfo() {
        assert_eq!(default_size("x\nHugepagesize:       2048 kB\n"), Some(PageSize::MB2));
        for odd in ["", "Hugepagesize: 3 kB", "Hugepagesize:", "Hugepagesize: 99999999999999999 kB"] {
            assert_eq!(default_size(odd), None, "{odd}");
        }
    }
}
