// SPDX-License-Identifier: Apache-2.0
//! How much code of a process lies on the memory node nearest to it, and how much on others (proc_pid_numa_maps(5)).

use hugelift_core::addr::{Addr, human_bytes};
use hugelift_core::printable::text_to_parse;
use hugelift_core::report::CodeOnNodes;
use hugelift_linux::machine::{habits, nodes};
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeSet;

/// Reads it; `None` on a machine with one node, or if the process has no nearest one or its memory cannot be read.
pub fn read(pid: u32) -> Option<CodeOnNodes> {
    if !nodes::are_several() {
        return None;
    }
    let process = Process::new(pid);
    let nearest = habits::nearest(process)?;
    let mappings = process.maps().ok()?;
    let code: BTreeSet<Addr> = mappings.iter().filter(|m| m.prot.exec).map(|m| m.range.start).collect();
    let text = process.read("numa_maps").ok()?;
    let (near_bytes, remote_bytes) = counted(&text_to_parse(&text), nearest, &code);
    Some(CodeOnNodes { nearest, near_bytes, remote_bytes })
}

/// Returns it as a line.
pub fn line(code: CodeOnNodes) -> String {
    format!(
        "code in memory: {} on node {}, the nearest to this process; {} on other nodes\n",
        human_bytes(code.near_bytes),
        code.nearest,
        human_bytes(code.remote_bytes)
    )
}

/// Returns the bytes of these mappings on the node, and on others. Each line of numa_maps is
/// `START POLICY [file=NAME] N0=PAGES N1=PAGES kernelpagesize_kB=SIZE`; a name has its blanks escaped.
fn counted(numa_maps: &str, node: u32, code: &BTreeSet<Addr>) -> (u64, u64) {
    let (mut here, mut elsewhere) = (0_u64, 0_u64);
    for line in numa_maps.lines().filter(|line| start(line).is_some_and(|start| code.contains(&start))) {
        for (of, bytes) in pages(line) {
            let sum = if of == node { &mut here } else { &mut elsewhere };
            *sum = sum.saturating_add(bytes);
        }
    }
    (here, elsewhere)
}

fn start(line: &str) -> Option<Addr> {
    u64::from_str_radix(line.split(' ').next()?, 16).ok().map(Addr)
}

/// Returns the bytes of a line on each node.
fn pages(line: &str) -> Vec<(u32, u64)> {
    let value = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
    let page = value("kernelpagesize_kB=").unwrap_or(4).saturating_mul(1024);
    let of = |word: &str| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse().ok()?, pages.parse::<u64>().ok()?.saturating_mul(page)))
    };
    line.split(' ').filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_8_code_on_the_nearest_node_and_on_others() {
        let maps = "00400000 default file=/bin/N0=9 mapped=3 N0=3 N1=2 kernelpagesize_kB=4\n\
                    7f14aa200000 default file=/store/x dirty=4096 N1=4096 kernelpagesize_kB=4\n\
                    7f14ab200000 default file=/anon_hugepage huge N0=2 kernelpagesize_kB=2048\n\
                    7f14ac000000 default anon=5 N0=5 kernelpagesize_kB=4\n\
                    zz N0=7\n\n7f14aa200001";
        let code = [0x40_0000, 0x7f14_aa20_0000, 0x7f14_ab20_0000].map(Addr).into();
        let small = 4096;
        assert_eq!(counted(maps, 1, &code), ((2 + 4096) * small, 3 * small + (4 << 20)));
        assert_eq!(counted(maps, 0, &code), (3 * small + (4 << 20), (2 + 4096) * small));
        assert_eq!(counted("00400000 N0=18446744073709551615 N0=9", 0, &code).0, u64::MAX);
    }
}
