// SPDX-License-Identifier: Apache-2.0
//! Counts the walks of the accesses of a window, on all CPUs and with all layouts at once.

use super::Side;
use super::code::{Code, Place, Rule};
use super::cpu::Cpu;
use super::layout::Layout;
use super::simulated::{Found, Simulated};
use super::trace::{Access, Reader};
use serde::Serialize;
use std::collections::HashSet;

/// Instructions before the window that fill the TLBs and are not counted. They are a thousand times as many as any TLB has
/// entries.
const WARM: u64 = 5_000_000;

/// A page of 4 kB.
const PAGE: u64 = 1 << 12;

/// What is counted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The CPUs.
    pub cpus: Vec<&'static Cpu>,
    /// Whether the memory of adjacent small pages is taken to be adjacent.
    pub adjacent: bool,
    /// Instructions before the window.
    pub skip: u64,
    /// Instructions of the window; `None`: all that follow.
    pub window: Option<u64>,
}

/// Walks of one side.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize)]
pub struct Walks {
    /// How many.
    pub walks: u64,
    /// How many for 1000 instructions; 0 if there were none.
    pub per_1000: f64,
    /// The same divided by that with small pages; `None` if these need no walk.
    pub ratio: Option<f64>,
}

/// What a layout needs on a CPU.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct OfLayout {
    /// The layout.
    pub pages: Layout,
    /// Walks for instructions.
    pub code: Walks,
    /// Walks for loads and stores.
    pub data: Walks,
}

/// What a CPU needs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OfCpu {
    /// Its name in [`super::table`].
    pub cpu: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// One for each of [`Layout::ALL`].
    pub layouts: Vec<OfLayout>,
}

/// Pages of 4 kB that were accessed in the window.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct PagesInUse {
    /// Pages that instructions came from.
    pub code: u64,
    /// Those of them that can be in blocks of 64 kB.
    pub code_in_64k: u64,
    /// Those of them that can be in pages of 2 MB.
    pub code_in_2m: u64,
    /// Pages that were loaded from or stored to.
    pub data: u64,
}

/// The result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Counted {
    /// Instructions of the window.
    pub instructions: u64,
    /// Loads and stores of the window.
    pub data_accesses: u64,
    /// Instructions before it.
    pub skipped: u64,
    /// Whether the window is as long as was asked for.
    pub complete: bool,
    /// Which code can be on huge pages.
    pub code: Rule,
    /// Whether the memory of adjacent small pages was taken to be adjacent.
    pub adjacent: bool,
    /// Pages in use.
    pub pages: PagesInUse,
    /// One for each CPU.
    pub cpus: Vec<OfCpu>,
}

/// A CPU with one layout, and the walks of each side.
struct Case {
    simulated: Simulated,
    walks: [u64; 2],
}

/// Counts while a trace arrives.
pub struct Counter {
    options: Options,
    code: Code,
    cases: Vec<[Case; 4]>,
    /// Instructions so far, those before the window included.
    instructions: u64,
    data_accesses: u64,
    /// The last page of each side. The next access to it needs nothing: it is the last used one of the first level.
    last: [Option<u64>; 2],
    pages: [HashSet<u64>; 2],
    in_use: PagesInUse,
}

impl Counter {
    /// Starts with empty TLBs.
    pub fn new(options: Options, code: Code) -> Counter {
        let case = |cpu| Case { simulated: Simulated::new(cpu, options.adjacent), walks: [0; 2] };
        let cases = options.cpus.iter().map(|cpu| Layout::ALL.map(|_| case(*cpu))).collect();
        Counter {
            options,
            code,
            cases,
            instructions: 0,
            data_accesses: 0,
            last: [None; 2],
            pages: Default::default(),
            in_use: PagesInUse::default(),
        }
    }

    /// Takes an access. Returns false if the window is over; the access does not belong to it then.
    pub fn access(&mut self, access: Access) -> bool {
        let skip = self.options.skip;
        if access.side == Side::Code {
            if self.options.window.is_some_and(|window| self.instructions >= skip.saturating_add(window)) {
                return false;
            }
            self.instructions += 1;
        }
        if self.instructions.saturating_add(WARM) <= skip {
            return true;
        }
        let counts = self.instructions > skip;
        self.data_accesses += u64::from(counts && access.side == Side::Data);
        let first = access.address / PAGE;
        let last = (access.address + u64::from(access.bytes - 1)) / PAGE;
        for page in first..=last {
            self.page(access.side, page, counts);
        }
        true
    }

    /// Accesses a page on all CPUs.
    fn page(&mut self, side: Side, page: u64, counts: bool) {
        let index = side as usize;
        // A last page from before the window is not yet among those in use.
        if self.last[index] == Some(page) && (!counts || !self.pages[index].is_empty()) {
            return;
        }
        self.last[index] = Some(page);
        let address = page * PAGE;
        let place = self.code.place(side, address);
        if counts && self.pages[index].insert(page) {
            self.use_page(side, place);
        }
        for of_cpu in &mut self.cases {
            for (case, layout) in of_cpu.iter_mut().zip(Layout::ALL) {
                let found = case.simulated.access(side, address, layout.page(place));
                case.walks[index] += u64::from(counts && found == Found::Walk);
            }
        }
    }

    fn use_page(&mut self, side: Side, place: Place) {
        let pages = &mut self.in_use;
        match side {
            Side::Code => {
                pages.code += 1;
                pages.code_in_64k += u64::from(place.in_64k);
                pages.code_in_2m += u64::from(place.in_2m);
            }
            Side::Data => pages.data += 1,
        }
    }

    /// Returns what was counted.
    pub fn counted(&self) -> Counted {
        let skipped = self.instructions.min(self.options.skip);
        let instructions = self.instructions - skipped;
        let walks = |of: &[Case; 4], at: usize, index: usize| {
            let (walks, small) = (of[at].walks[index], of[0].walks[index]);
            Walks {
                walks,
                per_1000: 1000.0 * walks as f64 / instructions.max(1) as f64,
                ratio: (small > 0).then(|| walks as f64 / small as f64),
            }
        };
        let of_cpu = |(cpu, cases): (&&'static Cpu, &[Case; 4])| OfCpu {
            cpu: cpu.name,
            title: cpu.title,
            layouts: Layout::ALL
                .into_iter()
                .enumerate()
                .map(|(at, pages)| OfLayout { pages, code: walks(cases, at, 0), data: walks(cases, at, 1) })
                .collect(),
        };
        Counted {
            instructions,
            data_accesses: self.data_accesses,
            skipped,
            complete: self.options.window.is_none_or(|window| instructions >= window),
            code: self.code.rule(),
            adjacent: self.options.adjacent,
            pages: self.in_use,
            cpus: self.options.cpus.iter().zip(&self.cases).map(of_cpu).collect(),
        }
    }
}

/// Counts the accesses of a trace that arrives in pieces.
pub struct Counting {
    /// Its lines.
    pub reader: Reader,
    /// Its accesses.
    pub counter: Counter,
}

impl Counting {
    /// Starts before the first byte of a trace.
    pub fn new(options: Options, code: Code) -> Counting {
        Counting { reader: Reader::default(), counter: Counter::new(options, code) }
    }

    /// Takes the next bytes. Returns false if the window is over, and the rest of the trace is not needed.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        self.reader.feed(bytes, &mut |access| self.counter.access(access))
    }

    /// Takes the last line, if its end is missing, and returns what was counted.
    ///
    /// # Errors
    /// No line is an access.
    pub fn finish(&mut self) -> Result<Counted, NoTrace> {
        self.reader.finish(&mut |access| self.counter.access(access));
        if self.counter.instructions == 0 {
            return Err(NoTrace { lines: self.reader.lines, first: self.reader.first_foreign });
        }
        Ok(self.counter.counted())
    }
}

/// A trace without instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTrace {
    lines: u64,
    first: Option<u64>,
}

impl std::error::Error for NoTrace {}

impl std::fmt::Display for NoTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "none of its {} lines is an instruction, as in 'I  04016b80,3'", self.lines)?;
        match self.first {
            Some(line) => write!(f, "; the first that is something else is line {line}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::table::by_name;
    use proptest::prelude::*;

    fn options(cpus: &[&str], skip: u64, window: Option<u64>) -> Options {
        let cpus = cpus.iter().map(|name| by_name(name).unwrap()).collect();
        Options { cpus, adjacent: false, skip, window }
    }

    fn count(options: Options, trace: &str) -> Counted {
        let mut counting = Counting::new(options, Code::all());
        counting.feed(trace.as_bytes());
        counting.finish().unwrap()
    }

    /// Returns a trace that jumps through this many pages of code, round after round, with one load for each instruction.
    fn jumps(pages: u64, rounds: u64) -> String {
        let page = |n: u64| format!("I  {:08x},5\n L 70000000,8\n", 0x40_0000 + (n << 12));
        (0..rounds).flat_map(|_| (0..pages).map(page)).collect()
    }

    fn per_1000(counted: &Counted, cpu: &str, pages: Layout) -> [f64; 2] {
        let of = counted.cpus.iter().find(|of| of.cpu == cpu).unwrap();
        let of = of.layouts.iter().find(|of| of.pages == pages).unwrap();
        [of.code.per_1000, of.data.per_1000]
    }

    #[test]
    fn each_jump_is_a_walk_where_the_pages_do_not_fit() {
        // 1024 pages do not fit into the 512 entries of a Zen 3, and fit into the 1536 of a Skylake.
        let cpus = ["zen-3", "skylake-sp"];
        let counted = count(options(&cpus, 1024, None), &jumps(1024, 5));
        assert_eq!((counted.instructions, counted.data_accesses, counted.skipped), (4096, 4096, 1024));
        assert_eq!(per_1000(&counted, "zen-3", Layout::Small), [1000.0, 0.0]);
        assert_eq!(per_1000(&counted, "skylake-sp", Layout::Small), [0.0, 0.0]);
        // As 256 entries of 16 kB.
        assert_eq!(per_1000(&counted, "zen-3", Layout::Code64k), [0.0, 0.0]);
        for cpu in cpus {
            for pages in [Layout::Code2m, Layout::All2m] {
                assert_eq!(per_1000(&counted, cpu, pages), [0.0, 0.0]);
            }
        }
        let zen = &counted.cpus[0].layouts;
        assert_eq!((zen[0].code.ratio, zen[2].code.ratio, zen[0].data.ratio), (Some(1.0), Some(0.0), None));
        let pages = PagesInUse { code: 1024, code_in_64k: 1024, code_in_2m: 1024, data: 1 };
        assert_eq!((counted.pages, counted.code, counted.complete), (pages, Rule::All, true));
    }

    #[test]
    fn the_window_is_what_was_asked_for() {
        let trace = jumps(1024, 5);
        let counted = count(options(&["zen-3"], 100, Some(1000)), &trace);
        assert_eq!((counted.skipped, counted.instructions, counted.data_accesses), (100, 1000, 1000));
        assert!(counted.complete && counted.pages.code == 1000);
        let short = count(options(&["zen-3"], 5000, Some(1000)), &trace);
        assert_eq!((short.skipped, short.instructions, short.complete), (5000, 120, false));
        let none = count(options(&["zen-3"], 6000, None), &trace);
        assert_eq!((none.skipped, none.instructions, none.data_accesses), (5120, 0, 0));
    }

    #[test]
    fn an_access_across_pages_is_one_to_each() {
        let counted = count(options(&["zen-3"], 0, None), "I  00400ffe,4\n S 00800ffc,8\n L 00a00000,8192\n");
        let of = counted.cpus[0].layouts[0];
        assert_eq!((of.code.walks, of.data.walks), (2, 4));
        assert_eq!((counted.pages.code, counted.pages.data, counted.data_accesses), (2, 4, 2));
    }

    #[test]
    fn a_page_from_before_the_window_is_in_use_in_it() {
        let counted = count(
            options(&["zen-3"], 1, None),
            "I  00400000,4\n L 00800000,8\nI  00400004,4\n L 00800000,8\n",
        );
        assert_eq!((counted.pages.code, counted.pages.data), (1, 1));
        assert_eq!((counted.cpus[0].layouts[0].code.walks, counted.cpus[0].layouts[0].data.walks), (0, 0));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let refused = |text: &[u8]| {
            let mut counting = Counting::new(options(&["zen-3"], 0, None), Code::all());
            counting.feed(text);
            counting.finish().unwrap_err().to_string()
        };
        assert_eq!(
            refused(b"==7== Lackey\nhello\nworld"),
            "none of its 3 lines is an instruction, as in 'I  04016b80,3'; the first that is something else is line 2"
        );
        assert_eq!(refused(b""), "none of its 0 lines is an instruction, as in 'I  04016b80,3'");
    }

    proptest! {
        /// Accesses that follow each other in a page are counted at once: as if each were simulated.
        #[test]
        fn it_counts_as_if_each_access_were_simulated(accesses in prop::collection::vec((any::<bool>(), 0u64..90, 0u64..4000), 1..400)) {
            let mut counting = Counting::new(options(&["zen-2", "neoverse-n1"], 0, None), Code::all());
            let mut plain = Simulated::new(by_name("neoverse-n1").unwrap(), false);
            let mut walks = [0; 2];
            counting.feed(b"I  0,1\n");
            plain.access(Side::Code, 0, crate::walks::cpu::Page::Small);
            for &(code, page, offset) in &accesses {
                let (side, address) = (if code { Side::Code } else { Side::Data }, (page / 30 * 7 + page) << 12 | offset);
                let line = format!("{} {address:08x},1\n", if code { "I " } else { " L" });
                counting.feed(line.as_bytes());
                let found = plain.access(side, address, crate::walks::cpu::Page::Small);
                walks[side as usize] += u64::from(found == Found::Walk);
            }
            let of = counting.finish().unwrap().cpus[1].layouts[0];
            prop_assert_eq!([of.code.walks - 1, of.data.walks], walks);
        }

        /// With everything on 2 MB there are no more walks than with 4 kB, where one array holds both.
        #[test]
        fn huge_pages_never_hurt_where_each_entry_may_hold_one(pages in prop::collection::vec(0u64..3000, 1..2000)) {
            let trace: String = pages.iter().map(|page| format!("I  {:x},4\n", page << 12)).collect();
            let counted = count(options(&["neoverse-v2"], 0, None), &trace);
            let of = &counted.cpus[0].layouts;
            prop_assert!(of[2].code.walks <= of[0].code.walks && of[3].code.walks <= of[2].code.walks);
        }
    }
}
