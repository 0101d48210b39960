// SPDX-License-Identifier: Apache-2.0
//! Which code can be on huge pages.

use super::Side;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use serde::Serialize;
use std::collections::HashSet;

/// The most pages of code that are remembered as being in no mapping. With more of them the mappings are not read again.
const MOST_UNKNOWN: usize = 1 << 16;

/// Whether an address lies in code that can be on larger pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Place {
    /// In a block of 64 kB.
    pub in_64k: bool,
    /// In a page of 2 MB.
    pub in_2m: bool,
}

impl Place {
    /// Returns the place of an access if nothing is known but what it is for: all code can be on larger pages.
    fn by_side(side: Side) -> Place {
        let code = side == Side::Code;
        Place { in_64k: code, in_2m: code }
    }
}

/// What decides that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Whole blocks inside executable mappings of files, with everything that lies in them.
    Mapped,
    /// Every page that instructions come from, for the fetch of the instructions.
    All,
}

/// Returns the mappings of the process now; `None` if they cannot be read.
pub type ReadMaps = Box<dyn FnMut() -> Option<Vec<Mapping>> + Send>;

/// Decides about addresses.
pub struct Code {
    mapped: Option<Mapped>,
}

struct Mapped {
    read: ReadMaps,
    /// Executable mappings, of files or not, by address.
    known: Vec<Range>,
    /// Whole blocks in those of files.
    blocks_64k: Vec<Range>,
    blocks_2m: Vec<Range>,
    /// Pages of code that were in no mapping when these were read.
    unknown: HashSet<u64>,
}

impl Code {
    /// All code can be on huge pages: the rule for a recorded trace.
    pub fn all() -> Code {
        Code { mapped: None }
    }

    /// The mappings of a process decide. They are read when an instruction comes from a page that is not known.
    pub fn mapped(read: ReadMaps) -> Code {
        let none = Vec::new;
        let unknown = HashSet::new();
        Code { mapped: Some(Mapped { read, known: none(), blocks_64k: none(), blocks_2m: none(), unknown }) }
    }

    /// Returns the rule.
    pub fn rule(&self) -> Rule {
        if self.mapped.is_some() { Rule::Mapped } else { Rule::All }
    }

    /// Returns the place of an address.
    pub fn place(&mut self, side: Side, address: u64) -> Place {
        let Some(mapped) = &mut self.mapped else { return Place::by_side(side) };
        if side == Side::Code && !is_in(&mapped.known, address) {
            mapped.learn(address);
        }
        Place { in_64k: is_in(&mapped.blocks_64k, address), in_2m: is_in(&mapped.blocks_2m, address) }
    }
}

impl Mapped {
    /// Reads the mappings because of a page that is in none.
    fn learn(&mut self, address: u64) {
        let page = address >> 12;
        if self.unknown.len() >= MOST_UNKNOWN || !self.unknown.insert(page) {
            return;
        }
        // A process that has ended has none, and what is known of it stays.
        let Some(maps) = (self.read)().filter(|maps| !maps.is_empty()) else { return };
        let executable = || maps.iter().filter(|mapping| mapping.prot.exec);
        self.known = executable().map(|mapping| mapping.range).collect();
        // Parts of one file that follow each other are one stretch.
        let mut files: Vec<Range> = Vec::new();
        for range in executable().filter(|mapping| mapping.is_file()).map(|mapping| mapping.range) {
            match files.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => files.push(range),
            }
        }
        let inner = |bytes| {
            let page = PageSize::new(bytes);
            files.iter().filter_map(|range| range.inner(page?)).filter(|r| !r.is_empty()).collect()
        };
        (self.blocks_64k, self.blocks_2m) = (inner(64 << 10), inner(2 << 20));
    }
}

/// Returns whether one of the ranges, which are in order, has the address.
fn is_in(ranges: &[Range], address: u64) -> bool {
    let after = ranges.partition_point(|range| range.start.0 <= address);
    after > 0 && ranges[after - 1].contains(Addr(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::maps::parse_maps;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const EARLY: &str = "400000-401000 r--p 00000000 08:01 7 /bin/p\n\
                         401000-a01000 r-xp 00001000 08:01 7 /bin/p\n";
    const LATE: &str = "400000-401000 r--p 00000000 08:01 7 /bin/p\n\
                        401000-a01000 r-xp 00001000 08:01 7 /bin/p\n\
                        7f0000000000-7f0000400000 r-xp 00000000 00:00 0 \n\
                        7f0000400000-7f0000420000 r-xp 00000000 08:01 9 /lib/l.so\n";

    #[test]
    fn whole_blocks_of_files_and_mappings_that_come_later() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let mut code = Code::mapped(Box::new(move || {
            let text = match counted.fetch_add(1, Ordering::Relaxed) {
                0 => EARLY,
                1 => LATE,
                _ => "",
            };
            Some(parse_maps(text.as_bytes()).unwrap())
        }));
        let mut place = |side, address| {
            let place = code.place(side, address);
            (place.in_64k, place.in_2m)
        };
        assert_eq!(place(Side::Code, 0x40_1000), (false, false));
        assert_eq!(place(Side::Code, 0x41_0000), (true, false));
        assert_eq!(place(Side::Code, 0x60_0000), (true, true));
        // Data that lies in such a block is on its page too.
        assert_eq!(place(Side::Data, 0x9f_ffff), (true, true));
        assert_eq!(place(Side::Code, 0xa0_0fff), (false, false));
        assert_eq!(place(Side::Data, 0x7f00_0040_0000), (false, false));
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        // Anonymous code is known, and is not of a file.
        assert_eq!(place(Side::Code, 0x7f00_0020_0000), (false, false));
        assert_eq!(place(Side::Code, 0x7f00_0040_0000), (true, false));
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        // The process has ended: what was known stays, and each page is asked for once.
        for _ in 0..2 {
            assert_eq!(place(Side::Code, 0x1000), (false, false));
            assert_eq!(place(Side::Code, 0x60_0000), (true, true));
        }
        assert_eq!((reads.load(Ordering::Relaxed), code.rule()), (3, Rule::Mapped));
    }

    #[test]
    fn without_mappings_it_is_what_the_access_is_for() {
        let mut code = Code::all();
        assert_eq!(code.place(Side::Code, 5), Place { in_64k: true, in_2m: true });
        assert_eq!((code.place(Side::Data, 5), code.rule()), (Place::default(), Rule::All));
    }
}
