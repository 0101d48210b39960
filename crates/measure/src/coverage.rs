// SPDX-License-Identifier: Apache-2.0
//! How much of a process is on huge pages, by smaps.

use crate::host;
use crate::memory::{Coverage, Memory};
use crate::processes::text_coverage;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::smaps::Usage;
use std::ops::Add as _;

/// Returns the coverage of the text that contains `addr`.
pub fn of_text_at(usages: &[Usage], addr: Addr) -> Coverage {
    runs(usages, is_text)
        .into_iter()
        .find(|(range, _)| range.contains(addr))
        .map_or(Coverage::default(), |run| run.1)
}

/// Returns the coverage of all text.
pub fn of_all_text(usages: &[Usage]) -> Coverage {
    sum(usages, is_text)
}

/// Returns the huge bytes of all mappings.
pub fn of_process(usages: &[Usage]) -> Memory {
    let mappings: Vec<&Mapping> = usages.iter().map(|usage| &usage.mapping).collect();
    let of_objects = text_coverage::is_text(&mappings);
    let text: Vec<Usage> =
        usages.iter().zip(of_objects).filter(|(_, is)| *is).map(|(usage, _)| usage.clone()).collect();
    let mut memory = Memory {
        text: sum(&text, |_| true),
        rodata: sum(usages, is_rodata),
        writable_huge: usages.iter().filter(|usage| usage.mapping.prot.write).map(Usage::huge).sum(),
        ..Memory::default()
    };
    usages.iter().for_each(|usage| memory.add_backings(usage));
    memory
}

fn is_text(usage: &Usage) -> bool {
    usage.mapping.prot.exec && !usage.mapping.is_named("[vsyscall]")
}

fn is_rodata(usage: &Usage) -> bool {
    let prot = usage.mapping.prot;
    prot.read && !prot.write && !prot.exec && !usage.mapping.is_named("[vvar]")
}

fn sum(usages: &[Usage], wanted: impl Fn(&Usage) -> bool) -> Coverage {
    runs(usages, wanted).into_iter().map(|run| run.1).fold(Coverage::default(), Coverage::add)
}

/// Joins adjacent mappings of this kind: after a lift, the text of one object is a piece of the
/// file, the huge pages, and another piece of the file.
fn runs(usages: &[Usage], wanted: impl Fn(&Usage) -> bool) -> Vec<(Range, Coverage)> {
    let mut runs: Vec<(Range, u64)> = Vec::new();
    for usage in usages.iter().filter(|usage| wanted(usage)) {
        let range = usage.mapping.range;
        match runs.last_mut() {
            Some((run, huge)) if run.end == range.start => {
                run.end = range.end;
                *huge += usage.huge();
            }
            _ => runs.push((range, usage.huge())),
        }
    }
    let page = PageSize::new(host::huge_page_bytes()).unwrap_or(PageSize::MB2);
    let cover =
        |(run, huge): (Range, u64)| (run, Coverage { whole: run.inner(page).map_or(0, Range::len), huge });
    runs.into_iter().map(cover).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::smaps::parse_smaps;

    #[test]
    fn pieces_of_one_text_are_one() {
        let smaps = b"\
10100000-10200000 r-xp 00001000 fe:00 9   /bin/x
10200000-10a00000 r-xp 00000000 00:00 0 
AnonHugePages:      6144 kB
10a00000-10b00000 r-xp 00900000 fe:00 9   /bin/x
10b00000-10c00000 r--p 00a00000 fe:00 9   /bin/x
10c00000-11400000 r--p 00000000 00:00 0 
Private_Hugetlb:    4096 kB
20000000-20400000 r-xp 00000000 fe:00 7   /lib/y
FilePmdMapped:      2048 kB
30000000-30400000 rw-p 00000000 00:00 0 
AnonHugePages:      4096 kB
";
        let usages = parse_smaps(smaps).unwrap();
        let x = of_text_at(&usages, Addr(0x10a0_0000));
        assert_eq!(x, Coverage { whole: 8 << 20, huge: 6 << 20 });
        assert_eq!(of_all_text(&usages), Coverage { whole: 12 << 20, huge: 8 << 20 });
        assert_eq!(of_text_at(&usages, Addr(0x10b0_0000)), Coverage::default());
        let all = of_process(&usages);
        assert_eq!(all.rodata, Coverage { whole: 8 << 20, huge: 4 << 20 });
        assert_eq!((all.lifted(), all.huge()), (12 << 20, 16 << 20));
        assert_eq!((all.thp, all.hugetlb, all.pagecache, all.shared), (10 << 20, 4 << 20, 2 << 20, 0));
    }
}
