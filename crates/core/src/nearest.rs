// SPDX-License-Identifier: Apache-2.0
//! Chooses the memory node on which a process has its own copy of hot code.
//!
//! The choice is made once, when the process is lifted. It is the node on whose CPUs the threads have used most CPU
//! time, each counted where it ran last. If the process may run on one node alone, it is that node. No node is chosen
//! where the process may have no memory on it.

use crate::placement::Nodes;
use std::ops::RangeInclusive;

/// A set of CPUs, as the kernel writes lists (cpuset(7), "List format").
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Cpus(Vec<RangeInclusive<u32>>);

/// A longer list is not one of CPUs: each has two numbers at most, and Linux has 8192 CPUs at most.
const MOST_RANGES: usize = 8192;

impl Cpus {
    /// Reads a list such as `0-3,8`. An empty list has no CPU. Returns `None` for anything else.
    pub fn parse(list: &str) -> Option<Cpus> {
        let list = list.trim();
        if list.is_empty() {
            return Some(Cpus::default());
        }
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = list.split(',').take(MOST_RANGES + 1).map(range).collect();
        ranges.filter(|ranges| ranges.len() <= MOST_RANGES).map(Cpus)
    }

    /// Returns whether this CPU is in the set.
    pub fn has(&self, cpu: u32) -> bool {
        self.0.iter().any(|range| range.contains(&cpu))
    }

    /// Returns whether any CPU is in both sets.
    pub fn meet(&self, other: &Cpus) -> bool {
        let starts = |a: &Cpus, b: &Cpus| a.0.iter().any(|range| b.has(*range.start()));
        starts(self, other) || starts(other, self)
    }
}

/// A memory node with the CPUs that are near it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its CPUs; none for a node that has memory alone.
    pub cpus: Cpus,
}

/// A thread of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// The CPU on which it ran last.
    pub cpu: u32,
    /// Its CPU time, in clock ticks.
    pub ticks: u64,
}

/// What decides on the node of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Its threads.
    pub threads: Vec<Ran>,
    /// The CPUs on which it may run.
    pub cpus: Cpus,
    /// The nodes on which it may have memory.
    pub memory: Nodes,
}

/// Returns the node nearest to a process; `None` if there is no choice between nodes, or it may have no memory there. Of
/// nodes with the same CPU time it is the one with the lowest number.
pub fn nearest(nodes: &[Node], habits: &Habits) -> Option<u32> {
    if nodes.len() < 2 {
        return None;
    }
    let near: Vec<&Node> = nodes.iter().filter(|node| node.cpus.meet(&habits.cpus)).collect();
    let chosen = match near[..] {
        [only] => only.number,
        _ => busiest(&near, &habits.threads)?,
    };
    habits.memory.has(chosen).then_some(chosen)
}

/// Returns the node on which the threads have used most CPU time. A thread that has used less than a tick counts as one.
fn busiest(nodes: &[&Node], threads: &[Ran]) -> Option<u32> {
    let ticks = |node: &Node| -> u64 {
        let here = threads.iter().filter(|thread| node.cpus.has(thread.cpu));
        here.map(|thread| thread.ticks.max(1)).fold(0, u64::saturating_add)
    };
    let used = nodes.iter().map(|node| (ticks(node), node.number)).filter(|(ticks, _)| *ticks > 0);
    used.max_by_key(|(ticks, number)| (*ticks, std::cmp::Reverse(*number))).map(|(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> Cpus {
        Cpus::parse(list).expect(list)
    }

    fn nodes() -> Vec<Node> {
        vec![Node { number: 0, cpus: cpus("0-3,8-11") }, Node { number: 1, cpus: cpus("4-7,12-15") }]
    }

    fn habits(threads: &[(u32, u64)], allowed: &str, memory: &str) -> Habits {
        let threads = threads.iter().map(|(cpu, ticks)| Ran { cpu: *cpu, ticks: *ticks }).collect();
        Habits { threads, cpus: cpus(allowed), memory: memory.parse().expect(memory) }
    }

    #[test]
    fn issue_33_8_lists_of_cpus() {
        assert!(cpus("0-3,8\n").has(2) && cpus("0-3,8").has(8) && !cpus("0-3,8").has(4));
        assert!(!cpus("").has(0));
        for wrong in ["a", "3-1", "-1", "1,,2", "1 2", "4294967296"] {
            assert_eq!(Cpus::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Cpus::parse(&vec!["1"; MOST_RANGES + 1].join(",")), None);
        assert!(
            cpus("0-7").meet(&cpus("5")) && cpus("5").meet(&cpus("0-7")) && !cpus("0-4").meet(&cpus("5-6"))
        );
    }

    #[test]
    fn issue_33_8_one_node_gives_no_choice() {
        assert_eq!(nearest(&nodes()[..1], &habits(&[(0, 9)], "0-15", "0")), None);
        assert_eq!(nearest(&[], &habits(&[(0, 9)], "0-15", "0")), None);
    }

    #[test]
    fn issue_33_8_a_bound_process_has_its_node_wherever_it_ran_before() {
        assert_eq!(nearest(&nodes(), &habits(&[(0, 900)], "4-7", "0-1")), Some(1));
        assert_eq!(nearest(&nodes(), &habits(&[], "9", "0-1")), Some(0));
    }

    #[test]
    fn issue_33_8_most_cpu_time_decides() {
        let of = |threads: &[(u32, u64)]| nearest(&nodes(), &habits(threads, "0-15", "0-1"));
        assert_eq!(of(&[(0, 10), (1, 10), (13, 21)]), Some(1));
        assert_eq!(of(&[(0, 10), (1, 12), (13, 21)]), Some(0));
        // A program that starts has used nothing.
        assert_eq!(of(&[(5, 0)]), Some(1));
        // The lower number decides between equals, and without a thread nothing does.
        assert_eq!(of(&[(5, 3), (0, 3)]), Some(0));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(5, u64::MAX), (6, u64::MAX)]), Some(1));
    }

    #[test]
    fn issue_33_8_without_memory_there_it_has_no_node() {
        assert_eq!(nearest(&nodes(), &habits(&[(5, 9)], "4-7", "0")), None);
        let alone = [nodes(), vec![Node { number: 2, cpus: cpus("") }]].concat();
        assert_eq!(nearest(&alone, &habits(&[(5, 9)], "0-15", "0-2")), Some(1));
    }
}
