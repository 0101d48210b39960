// SPDX-License-Identifier: Apache-2.0
//! Finds out which memory node is nearest to a process: where its threads ran last, and where it may run and have
//! memory (proc_pid_status(5), /sys/devices/system/node of Documentation/ABI/stable/sysfs-devices-node).

use crate::io::read::{read_text, read_whole};
use crate::proc::procfs::Process;
use hugelift_core::nearest::{self, Cpus, Habits, Node, Ran};
use hugelift_core::placement::Nodes;
use hugelift_core::printable::text_to_parse;
use std::path::Path;

const NODES: &str = "/sys/devices/system/node";

/// Threads that are looked at. The first ones of a process with more stand for all.
const MOST_THREADS: usize = 512;

/// Returns the node nearest to a process; `None` on a machine with one node, and where it cannot be found out.
pub fn nearest(process: Process) -> Option<u32> {
    let nodes = nodes();
    if nodes.len() < 2 {
        return None;
    }
    nearest::nearest(&nodes, &habits(process)?)
}

/// Returns the nodes of the machine that are online.
fn nodes() -> Vec<Node> {
    let online = read_text(&Path::new(NODES).join("online")).and_then(|list| list.parse::<Nodes>().ok());
    let numbers = online.map(|nodes| (0..u64::BITS).filter(move |node| nodes.has(*node)));
    numbers.into_iter().flatten().filter_map(node).collect()
}

fn node(number: u32) -> Option<Node> {
    let list = read_text(&Path::new(NODES).join(format!("node{number}/cpulist")))?;
    Some(Node { number, cpus: Cpus::parse(&list)? })
}

/// Returns what decides on the node of a process.
fn habits(process: Process) -> Option<Habits> {
    let status = read_whole(&process.path("status")).ok()?;
    let status = text_to_parse(&status);
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    Some(Habits {
        threads: threads(process),
        cpus: Cpus::parse(of("Cpus_allowed_list:")?)?,
        memory: of("Mems_allowed_list:")?.parse().ok()?,
    })
}

/// Returns where the threads ran last, and for how long they ran. A thread that ends meanwhile is left out.
fn threads(process: Process) -> Vec<Ran> {
    let ran = |tid: i32| {
        let ticks = process.stat_of_thread(tid).ok()?.cpu;
        Some(Ran { cpu: process.last_cpu_of_thread(tid)?, ticks })
    };
    process.threads().into_iter().take(MOST_THREADS).filter_map(ran).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::nodes::are_several;

    #[test]
    fn issue_33_8_this_process_has_habits_and_a_node_if_there_are_several() {
        let own = habits(Process::OWN).expect("habits");
        assert!(!own.threads.is_empty() && !own.memory.is_empty());
        assert!(own.threads.iter().any(|ran| own.cpus.has(ran.cpu)), "{own:?}");
        match are_several() {
            true => assert!(nearest(Process::OWN).is_some_and(|node| own.memory.has(node))),
            false => assert_eq!(nearest(Process::OWN), None),
        }
    }
}
