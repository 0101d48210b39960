// SPDX-License-Identifier: Apache-2.0
//! How much of a program's text is on huge pages, by what smaps shows.

use crate::host;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::smaps::Usage;
use std::fmt;
use std::ops::Add;

/// Bytes of text.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// In whole huge pages: what could be huge.
    pub whole: u64,
    /// Mapped by huge entries.
    pub huge: u64,
}

impl Coverage {
    /// All that could be huge is.
    pub fn is_full(self) -> bool {
        self.huge >= self.whole
    }
}

impl Add for Coverage {
    type Output = Coverage;
    fn add(self, other: Coverage) -> Coverage {
        Coverage { whole: self.whole + other.whole, huge: self.huge + other.huge }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(f, "{:.0} of {:.0} MB", mb(self.huge), mb(self.whole))
    }
}

/// The text that holds `addr`.
pub fn of_text_at(usages: &[Usage], addr: Addr) -> Coverage {
    texts(usages).into_iter().find(|(range, _)| range.contains(addr)).map_or(Coverage::default(), |t| t.1)
}

/// All text of the process.
pub fn of_all_text(usages: &[Usage]) -> Coverage {
    texts(usages).into_iter().map(|t| t.1).fold(Coverage::default(), Coverage::add)
}

/// Runs of executable mappings without a gap: after a lift, the text of one object is a
/// piece of the file, the huge pages, and another piece of the file.
fn texts(usages: &[Usage]) -> Vec<(Range, Coverage)> {
    let mut runs: Vec<(Range, u64)> = Vec::new();
    let is_text = |usage: &&Usage| usage.mapping.prot.exec && !usage.mapping.is_named("[vsyscall]");
    for usage in usages.iter().filter(is_text) {
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
20000000-20400000 r-xp 00000000 fe:00 7   /lib/y
FilePmdMapped:      2048 kB
";
        let usages = parse_smaps(smaps).unwrap();
        let x = of_text_at(&usages, Addr(0x10a0_0000));
        assert_eq!(x, Coverage { whole: 8 << 20, huge: 6 << 20 });
        assert_eq!(of_all_text(&usages), Coverage { whole: 12 << 20, huge: 8 << 20 });
        assert_eq!(of_text_at(&usages, Addr(0x10b0_0000)), Coverage::default());
    }
}
