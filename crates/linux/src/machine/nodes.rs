// SPDX-License-Identifier: Apache-2.0
//! NUMA nodes: which ones may be used, and which memory has a policy of its own (numa(7)).

use crate::io::read::read_whole;
use crate::proc::procfs::{ProcError, Process};
use hugelift_core::addr::Addr;
use hugelift_core::placement::Nodes;
use hugelift_core::printable::{Escape, text_to_parse};
use std::path::Path;

/// Returns the nodes on which the calling process may have memory (`Mems_allowed_list`, cpuset(7)); `None`
/// if the kernel was built without NUMA.
///
/// # Errors
/// /proc cannot be read, or names a node beyond those that [`Nodes`] holds.
pub fn allowed() -> Result<Option<Nodes>, String> {
    let path = Process::OWN.path("status");
    let text = read_whole(&path).map_err(|e| format!("cannot read {}: {e}", path.escaped()))?;
    let text = text_to_parse(&text);
    let list = text.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    list.map(|list| list.trim().parse()).transpose()
}

/// Returns whether the machine has more than one node.
pub fn are_several() -> bool {
    let online = read_whole(Path::new("/sys/devices/system/node/online")).unwrap_or_default();
    online.iter().any(|byte| b",-".contains(byte))
}

/// Returns the starts of the mappings whose memory policy is not the process's.
///
/// # Errors
/// `numa_maps` cannot be read.
pub fn with_own_policy(process: Process) -> Result<Vec<Addr>, ProcError> {
    Ok(own_policies(&text_to_parse(&process.read("numa_maps")?)))
}

/// Parses `numa_maps` (proc_pid_numa_maps(5)), of which each line is `START POLICY [file=... | stack] ...`.
/// A mapping without a policy of its own shows the process's policy, which is taken from the first thread's
/// stack, to which no program is expected to apply mbind(2).
fn own_policies(numa_maps: &str) -> Vec<Addr> {
    let line = |line: &str| {
        let (start, rest) = line.split_once(' ')?;
        let policy = rest.split(" file=").next()?.split(' ').next()?.to_string();
        Some((Addr(u64::from_str_radix(start, 16).ok()?), policy))
    };
    let stack = numa_maps.lines().find(|l| l.split(' ').any(|word| word == "stack")).and_then(line);
    let Some((_, usual)) = stack else { return Vec::new() };
    let own = |(start, policy): (Addr, String)| (policy != usual).then_some(start);
    numa_maps.lines().filter_map(line).filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let nodes = allowed().unwrap();
        // A kernel without NUMA shows node 0 too.
        assert!(nodes.is_some_and(|n| !n.is_empty() && n.mask() & 1 == 1), "{nodes:?}");
        // No memory of this process is bound to a node.
        if Path::new("/proc/self/numa_maps").exists() {
            assert_eq!(with_own_policy(Process::OWN).unwrap(), []);
        }
    }

    #[test]
    fn policies_that_differ() {
        let maps = "00400000 default file=/bin/stack\\040x mapped=3 N0=3\n\
                    00600000 bind:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=4\n\
                    zz bind:1\n\
                    7f0000000000 interleave:0-1 file=/usr/lib/x.so\n\
                    7ffd00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n\
                    7ffe00000000 default";
        assert_eq!(own_policies(maps), [Addr(0x60_0000), Addr(0x7f00_0000_0000)]);
        // All mappings of a process that was started under numactl.
        let bound = maps.replace("default", "bind:1");
        assert_eq!(own_policies(&bound), [Addr(0x7f00_0000_0000)]);
        assert_eq!(own_policies("00400000 bind:1\n\n \u{e9}"), []);
    }
}
