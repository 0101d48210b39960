// SPDX-License-Identifier: Apache-2.0
//! Says what the curves mean: the reach of TLBs and caches, and what huge pages save.

use super::naming::{Counts, Named, What, counts, curve_of, named};
use super::program::Sizes;
use super::{Access, Curve, summary};
use crate::knees::{SWEEPS, at};
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use crate::results::{Column, Hue, Mark, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_core::addr::human_bytes;

/// Sizes of code and of data that are shown if the user names no program.
const USUAL_TEXT: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];
const USUAL_HEAP: [u64; 3] = [64 << 20, 512 << 20, 2 << 30];

/// The share that every sweep must save, in percent, before huge pages certainly save time, and must lose
/// before they certainly do not. The kernel and the host place memory differently in each run, which moves
/// such a share by several percent; what is between the bounds is never called sure.
const MARGIN: f64 = 10.0;

/// The name of the curve of adjacent lines.
const CACHES: &str = "caches alone";

/// How quiet the machine was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quiet {
    /// Whether other programs disturbed the experiment.
    pub disturbed: bool,
    /// The highest load average.
    pub load: f64,
}

impl Quiet {
    /// Returns why a figure is not sure, if it is not because of its own sweeps.
    fn reason(self) -> String {
        if self.disturbed {
            format!("the machine was busy (load {:.0})", self.load)
        } else {
            "the sweeps disagree".into()
        }
    }
}

pub fn outcome(
    curves: &[Curve],
    notes: Vec<String>,
    sizes: Option<&Sizes>,
    machine: &Machine,
    quiet: Quiet,
) -> Outcome {
    let counts = counts(curves, machine, quiet.disturbed);
    let page = counts.map(|counts| counts.bytes);
    let found: Vec<Named> = curves.iter().flat_map(|c| named(c, curves, machine, page)).collect();
    let saved = saved(curves, sizes);
    let mut outcome = Outcome {
        advice: [gain(&saved, quiet), Some(reach(&found, counts, machine, quiet))]
            .into_iter()
            .flatten()
            .collect(),
        notes,
        tables: vec![table_of_saved(&saved), table_of_knees(&found), table_of_curves(curves)],
        plots: [Access::Load, Access::Jump].into_iter().filter_map(|a| plot(a, curves, &found)).collect(),
        samples: curves.iter().map(sample).collect(),
        claims: claims(&found, counts, &saved, machine, quiet),
        listing: Vec::new(),
    };
    outcome.notes.extend(sizes.and_then(|s| match s.heap {
        None => Some(format!(
            "the size of the heap of {} is not known, since it does not run: use --pid for a running process",
            s.name
        )),
        Some(_) => None,
    }));
    outcome.notes.extend(silent(machine));
    outcome.notes.push(
        "a working set is memory in use, here one line of each 4 kB in random order; a program seldom uses all of \
         its memory"
            .into(),
    );
    outcome
}

/// Returns a note if the CPU does not describe its TLBs.
fn silent(machine: &Machine) -> Option<String> {
    let why = if cfg!(target_arch = "x86_64") {
        "CPUID of this CPU, or of its hypervisor,"
    } else {
        "no ID register of this CPU"
    };
    let not = if cfg!(target_arch = "x86_64") { "does not say" } else { "says" };
    machine.tlbs.is_empty().then(|| {
        format!("{why} {not} how many entries the TLBs have, so the knees are named by their order, which is not sure")
    })
}

fn name(pages: Option<Pages>) -> String {
    pages.map_or_else(|| CACHES.into(), Pages::name)
}

/// Returns the curves of huge pages.
fn huge(curves: &[Curve], access: Access) -> impl Iterator<Item = &Curve> {
    curves.iter().filter(move |c| c.access == access && !matches!(c.pages, None | Some(Pages::Small)))
}

/// The time that huge pages save at one working set.
#[derive(Clone, PartialEq, Debug)]
struct Saved {
    what: String,
    access: Access,
    bytes: u64,
    small: f64,
    /// The fastest kind of huge pages, and its time.
    best: (Pages, f64),
    /// The share that it saves, in percent, in each sweep.
    percent: Vec<f64>,
}

impl Saved {
    /// Returns the least and the largest share of a sweep.
    fn range(&self) -> (f64, f64) {
        summary::range(&self.percent).unwrap_or((f64::NAN, f64::NAN))
    }

    /// Returns the share of the medians.
    fn middle(&self) -> f64 {
        100.0 * (1.0 - self.best.1 / self.small)
    }

    /// Returns `yes` or `no` if all sweeps agree by a margin.
    fn word(&self) -> Option<&'static str> {
        let (low, high) = self.range();
        match self.percent.len() >= SWEEPS {
            true if low >= MARGIN => Some("yes"),
            true if high <= -MARGIN => Some("no"),
            _ => None,
        }
    }
}

fn saved(curves: &[Curve], sizes: Option<&Sizes>) -> Vec<Saved> {
    let wanted: Vec<(Access, String, u64)> = match sizes {
        Some(sizes) => {
            let heap = sizes.heap.map(|heap| (Access::Load, format!("heap of {}", sizes.name), heap));
            let text = (Access::Jump, format!("text of {}", sizes.name), sizes.text);
            std::iter::once(text).chain(heap).collect()
        }
        None => {
            let usual = |access, what: &str, usual: [u64; 3]| -> Vec<(Access, String, u64)> {
                let most = curve_of(curves, access, Some(Pages::Small)).map_or(0.0, Curve::last) as u64;
                let mut sizes: Vec<u64> = usual.into_iter().filter(|&bytes| bytes <= most).collect();
                if sizes.is_empty() {
                    sizes.push(most);
                }
                sizes.into_iter().map(|bytes| (access, what.to_string(), bytes)).collect()
            };
            [usual(Access::Jump, "text", USUAL_TEXT), usual(Access::Load, "heap", USUAL_HEAP)].concat()
        }
    };
    let one = |(access, what, bytes): (Access, String, u64)| {
        // Nothing is claimed beyond what was measured.
        let time = |curve: &Curve| {
            (bytes as f64 <= curve.last()).then(|| at(&curve.medians(), bytes as f64)).flatten()
        };
        let curve = curve_of(curves, access, Some(Pages::Small))?;
        let small = time(curve)?;
        let best = huge(curves, access).filter_map(|c| Some((c, time(c)?)));
        let (fastest, best) = best.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let percent = curve.sweeps.iter().zip(&fastest.sweeps).filter_map(|(small, best)| {
            Some(100.0 * (1.0 - at(best, bytes as f64)? / at(small, bytes as f64)?))
        });
        Some(Saved { what, access, bytes, small, best: (fastest.pages?, best), percent: percent.collect() })
    };
    wanted.into_iter().filter_map(one).collect()
}

/// Returns what is stated of the machine.
fn claims(
    found: &[Named],
    counts: Option<Counts>,
    saved: &[Saved],
    machine: &Machine,
    quiet: Quiet,
) -> Vec<Claim> {
    let entries = |n: &Named| {
        let level = n.tlb_level().filter(|_| n.pages == Some(Pages::Small))?;
        let subject = format!("tlb.{}.small.l{level}.entries", n.access.name());
        Some(Claim::between(subject, n.bounds(machine)?, Unit::Count, !quiet.disturbed))
    };
    let pages =
        counts.map(|counts| Claim::word("tlb.pages-that-count", human_bytes(counts.bytes), counts.sure));
    let saves = |s: &Saved| {
        let what = if s.access == Access::Load { "heap" } else { "text" };
        let size = human_bytes(s.bytes).replace(' ', "");
        let word = s.word();
        let middle = if s.middle() > 0.0 { "yes" } else { "no" };
        let sure = word.is_some() && !quiet.disturbed;
        Claim::word(format!("tlb.{}.{what}-{size}.saved", s.access.name()), word.unwrap_or(middle), sure)
    };
    found.iter().filter_map(entries).chain(pages).chain(saved.iter().map(saves)).collect()
}

fn table_of_saved(saved: &[Saved]) -> Table {
    let mut table = Table::new(
        "saved by huge pages if all of the memory is in use; least and most are those of a sweep",
        vec![
            Column::new("what", "what", Unit::Text),
            Column::new("access", "access", Unit::Text),
            Column::new("size_bytes", "size", Unit::Bytes),
            Column::new("small_ns", "small pages", Unit::Nanoseconds),
            Column::new("best_pages", "fastest on", Unit::Text),
            Column::new("best_ns", "time there", Unit::Nanoseconds),
            Column::new("saved_ns", "saved", Unit::Nanoseconds),
            Column::new("saved_percent", "saved", Unit::Percent),
            Column::new("least_percent", "least", Unit::Percent),
            Column::new("most_percent", "most", Unit::Percent),
        ],
    );
    for s in saved {
        let (least, most) = s.range();
        table.rows.push(vec![
            s.what.as_str().into(),
            s.access.name().into(),
            s.bytes.into(),
            s.small.into(),
            s.best.0.name().into(),
            s.best.1.into(),
            (s.small - s.best.1).into(),
            s.middle().into(),
            least.into(),
            most.into(),
        ]);
    }
    table
}

fn words(what: What) -> String {
    match what {
        What::Tlb { level, coalesced: false } => format!("L{level} TLB"),
        What::Tlb { level, coalesced: true } => format!("L{level} TLB, coalesced"),
        What::ByOrder(level) => format!("L{level} TLB by order, not sure"),
        What::Cache(level) => format!("L{level} cache"),
        What::Unknown => "unknown cause".into(),
    }
}

fn table_of_knees(found: &[Named]) -> Table {
    let mut table = Table::new(
        "where an access becomes slower in most sweeps, and whose reach ends there",
        vec![
            Column::new("access", "access", Unit::Text),
            Column::new("pages", "pages", Unit::Text),
            Column::new("reach_of", "reach of", Unit::Text),
            Column::new("size_bytes", "working set", Unit::Bytes),
            Column::new("entries", "entries", Unit::Count),
            Column::new("stated_entries", "CPU states", Unit::Count),
            Column::new("seen", "sweeps", Unit::Text),
            Column::new("before_ns", "before", Unit::Nanoseconds),
            Column::new("until_bytes", "until", Unit::Bytes),
            Column::new("after_ns", "after", Unit::Nanoseconds),
        ],
    );
    for n in found {
        let knee = &n.found.knee;
        table.rows.push(vec![
            n.access.name().into(),
            name(n.pages).into(),
            words(n.what).into(),
            knee.reach().into(),
            // For a cache these are lines.
            n.entries().map(f64::round).into(),
            n.stated.into(),
            format!("{} of {}", n.found.seen, n.found.sweeps).into(),
            knee.before.into(),
            knee.until.into(),
            knee.after.into(),
        ]);
    }
    table
}

fn table_of_curves(curves: &[Curve]) -> Table {
    let mut table = Table::detail(
        "each working set",
        vec![
            Column::new("access", "access", Unit::Text),
            Column::new("pages", "pages", Unit::Text),
            Column::new("size_bytes", "working set", Unit::Bytes),
            Column::new("median_ns", "median of the sweeps", Unit::Nanoseconds),
            Column::new("low_ns", "lowest", Unit::Nanoseconds),
            Column::new("high_ns", "highest", Unit::Nanoseconds),
        ],
    );
    for curve in curves {
        for p in summary::points(&curve.sweeps) {
            table.rows.push(vec![
                curve.access.name().into(),
                name(curve.pages).into(),
                p.bytes.into(),
                p.median.into(),
                p.range.0.into(),
                p.range.1.into(),
            ]);
        }
    }
    table
}

fn plot(access: Access, curves: &[Curve], found: &[Named]) -> Option<Plot> {
    let series = |curve: &Curve| Series {
        name: name(curve.pages),
        hue: curve.pages.map_or(Hue::Ideal, Pages::hue),
        shape: if curve.pages.is_none() { Shape::Dashed } else { Shape::Line },
        points: summary::points(&curve.sweeps)
            .iter()
            .map(|p| Point { x: p.bytes, y: p.median, range: Some(p.range) })
            .collect(),
    };
    let series: Vec<Series> = curves.iter().filter(|c| c.access == access).map(series).collect();
    let shown = found.iter().filter(|n| n.access == access && n.what != What::Unknown);
    let shown = shown.filter(|n| n.pages.is_none_or(|p| p == Pages::Small));
    let mark = |n: &Named| {
        let pages = if n.pages.is_some() { format!(", {}", name(n.pages)) } else { String::new() };
        Mark { x: n.found.knee.reach(), name: format!("{}{pages}", words(n.what)) }
    };
    (!series.is_empty()).then(|| Plot {
        title: format!("time of a {}: one in each 4 kB, in random order", access.name()),
        x: Scale::logarithmic("working set", Unit::Bytes),
        y: Scale::logarithmic(&format!("time of a {}", access.name()), Unit::Nanoseconds),
        series,
        marks: shown.map(mark).collect(),
    })
}

fn sample(curve: &Curve) -> Sample {
    Sample {
        name: format!("{}, {}", curve.access.name(), name(curve.pages)),
        unit: Unit::Nanoseconds,
        values: curve.medians().iter().map(|p| p.1).collect(),
    }
}

/// Returns the first sentence: what huge pages save.
fn gain(saved: &[Saved], quiet: Quiet) -> Option<String> {
    let one = |s: &Saved| {
        let ns = |value: f64| Unit::Nanoseconds.show(value);
        let (low, high) = s.range();
        let range = format!("{low:.0} to {high:.0} % less by sweep");
        let less = match s.middle() {
            more if more < 0.0 => format!("{:.0} % more", -more),
            less => format!("{less:.0} % less"),
        };
        let result = if quiet.disturbed {
            format!("{less}, not sure: {}", quiet.reason())
        } else if s.word().is_some() {
            format!("{less}, {range}")
        } else {
            format!("not sure: {range}")
        };
        format!(
            "a random {} in {} of {} takes {} ns on small pages and {} ns on {} ({result})",
            s.access.name(),
            human_bytes(s.bytes),
            s.what,
            ns(s.small),
            ns(s.best.1),
            s.best.0.name(),
        )
    };
    // The middle one of several sizes stands for all.
    let middle = |access: Access| {
        let all: Vec<&Saved> = saved.iter().filter(|s| s.access == access).collect();
        all.get(all.len() / 2).map(|s| one(s))
    };
    let both: Vec<String> = [middle(Access::Load), middle(Access::Jump)].into_iter().flatten().collect();
    let words = both.join(", and ");
    let first = words.chars().next()?;
    Some(format!("{}{}.", first.to_uppercase(), &words[first.len_utf8()..]))
}

/// Returns the second sentence: the reach of the TLBs, and the page size of their entries.
fn reach(found: &[Named], counts: Option<Counts>, machine: &Machine, quiet: Quiet) -> String {
    let small = found.iter().filter(|n| n.access == Access::Load && n.pages == Some(Pages::Small));
    let tlb = |n: &Named| {
        let about = format!("about {:.0} entries", n.entries()?);
        let size = human_bytes(n.found.knee.reach() as u64);
        match n.what {
            What::Tlb { level, coalesced } => {
                let adjacent = if coalesced { ", each for several adjacent pages" } else { "" };
                Some(format!("{about} ({size}; the L{level} TLB has {}{adjacent})", n.stated?))
            }
            What::ByOrder(_) => {
                Some(format!("{about} ({size}; not sure: the CPU does not describe its TLBs)"))
            }
            What::Cache(_) | What::Unknown => None,
        }
    };
    let tlbs: Vec<String> = small.filter_map(tlb).collect();
    let again = "run again: hugelift lab tlb";
    let first = if !tlbs.is_empty() {
        let doubt = if quiet.disturbed { format!(" (not sure: {})", quiet.reason()) } else { String::new() };
        format!(
            "On {} pages a load becomes slower beyond {}{doubt}",
            Pages::Small.name(),
            tlbs.join(" and beyond ")
        )
    } else if quiet.disturbed {
        format!("No clear knee: {}, {again}", quiet.reason())
    } else if found.iter().any(|n| n.access == Access::Load && n.pages == Some(Pages::Small)) {
        "No knee is near the number of entries of a TLB of this CPU".into()
    } else {
        format!("No clear knee: {}, {again}", quiet.reason())
    };
    let host = if machine.hypervisor.is_some() { " in this guest" } else { "" };
    let second = match counts {
        None => format!("Which page size counts{host} is not clear"),
        Some(counts) => {
            let doubt = match (counts.sure, quiet.disturbed) {
                (true, _) => String::new(),
                (false, true) => format!(" (not sure: {})", quiet.reason()),
                (false, false) => " (not sure: too little was seen)".into(),
            };
            let page = human_bytes(counts.bytes);
            if counts.bytes == machine.base_page_bytes {
                format!(
                    "The pages that count{host} are {page} whatever the program asks for{doubt}: loads on {} become \
                     slower at the same place, as is the case if the host backs the guest with small pages; what huge \
                     pages save is time in page tables",
                    counts.on.name()
                )
            } else {
                format!("The pages that count{host} are {page} on {}{doubt}", counts.on.name())
            }
        }
    };
    format!("{first}. {second}.")
}

#[cfg(test)]
mod tests {
    use super::super::Points;
    use super::*;
    use crate::results::Cell;
    use crate::results::machine::Tlb;

    const CALM: Quiet = Quiet { disturbed: false, load: 0.1 };
    const BUSY: Quiet = Quiet { disturbed: true, load: 9.2 };

    /// Three equal sweeps whose accesses cost 2 ns more beyond a TLB of 64 entries of `page` bytes, `miss` ns
    /// more beyond one of 1536, and 5 ns more beyond a cache of 32 kB.
    fn curve(pages: Option<Pages>, page: f64, miss: f64) -> Curve {
        let share = |limit: f64, x: f64| (1.0 - limit / x).max(0.0);
        let first = if miss > 0.0 { 2.0 } else { 0.0 };
        let time = |x: f64| {
            1.0 + 5.0 * share(512.0 * 4096.0, x)
                + first * share(64.0 * page, x)
                + miss * share(1536.0 * page, x)
        };
        let sizes = super::super::sizes(4 << 30, 4);
        let points: Points = sizes.iter().map(|&bytes| (bytes as f64, time(bytes as f64))).collect();
        Curve { access: Access::Load, pages, as_asked: true, sweeps: vec![points; 3] }
    }

    /// Curves of a machine whose TLBs have entries of `effective` bytes where the program has huge pages.
    fn curves(effective: f64) -> Vec<Curve> {
        vec![
            curve(None, f64::MAX, 0.0),
            curve(Some(Pages::Small), 4096.0, 30.0),
            curve(Some(Pages::Thp), effective, 30.0),
        ]
    }

    fn machine() -> Machine {
        let tlb = |level, page_bytes, entries| Tlb { level, kind: "data".into(), page_bytes, entries };
        Machine {
            tlbs: [4096, 2 << 20]
                .into_iter()
                .flat_map(|page| [tlb(1, page, 64), tlb(2, page, 1536)])
                .collect(),
            hypervisor: Some("KVM".into()),
            base_page_bytes: 4096,
            thp_bytes: Some(Pages::Thp.bytes()),
            ..Machine::default()
        }
    }

    fn of(curves: &[Curve], quiet: Quiet) -> Outcome {
        outcome(curves, Vec::new(), None, &machine(), quiet)
    }

    fn claim<'a>(outcome: &'a Outcome, subject: &str) -> Option<&'a Claim> {
        outcome.claims.iter().find(|claim| claim.subject == subject)
    }

    #[test]
    fn reach_and_gain_of_given_curves() {
        if Pages::Thp.bytes() != 2 << 20 {
            return;
        }
        let outcome = of(&curves(2097152.0), CALM);
        let [gain, reach] = &outcome.advice[..] else { panic!("{:?}", outcome.advice) };
        assert!(
            gain.starts_with("A random load in 512 MB of heap takes 37.6 ns on small pages and 7.48"),
            "{gain}"
        );
        assert!(gain.contains("(80 % less, 80 to 80 % less by sweep)"), "{gain}");
        assert!(reach.starts_with("On 4 kB pages a load becomes slower beyond about 70 entries"), "{reach}");
        assert!(reach.contains("; the L1 TLB has 64) and beyond about 1579"), "{reach}");
        assert!(reach.ends_with("The pages that count in this guest are 2 MB on THP."), "{reach}");
        let knees = &outcome.tables[1];
        for tlb in ["L1 TLB", "L2 TLB"] {
            let named = |pages: &str| {
                let row = |row: &&Vec<Cell>| row[1] == pages.into() && row[2] == tlb.into();
                knees.rows.iter().filter(row).count()
            };
            assert_eq!((named("4 kB"), named("THP")), (1, 1), "{knees:?}");
        }
        assert_eq!(
            claim(&outcome, "tlb.pages-that-count"),
            Some(&Claim::word("tlb.pages-that-count", "2 MB", true))
        );
        let saved = "tlb.load.heap-512MB.saved";
        assert_eq!(claim(&outcome, saved), Some(&Claim::word(saved, "yes", true)));
        assert!(claim(&outcome, "tlb.load.small.l2.entries").is_some_and(|claim| claim.sure));
    }

    #[test]
    fn small_pages_of_the_host_are_detected() {
        let outcome = of(&curves(4096.0), CALM);
        assert!(outcome.advice[1].contains("whatever the program asks for:"), "{:?}", outcome.advice);
        let pages = claim(&outcome, "tlb.pages-that-count").unwrap();
        assert_eq!(pages, &Claim::word("tlb.pages-that-count", "4 kB", true));
        // Huge pages save nothing here, which is between the margins.
        assert!(outcome.advice[0].contains("(not sure: 0 to 0 % less by sweep)"), "{:?}", outcome.advice);
        assert!(claim(&outcome, "tlb.load.heap-512MB.saved").is_some_and(|claim| !claim.sure));
    }

    /// A host that backs half of the memory with huge pages.
    #[test]
    fn a_mixture_is_no_page_size() {
        let mut curves = curves(4096.0);
        let (small, huge) = (curves[1].clone(), curve(Some(Pages::Thp), 2097152.0, 30.0));
        for ((mixed, small), huge) in curves[2].sweeps.iter_mut().zip(&small.sweeps).zip(&huge.sweeps) {
            for (i, point) in mixed.iter_mut().enumerate() {
                point.1 = f64::midpoint(small[i].1, huge[i].1);
            }
        }
        let outcome = of(&curves, CALM);
        assert!(outcome.advice[1].ends_with("Which page size counts in this guest is not clear."));
        assert_eq!(claim(&outcome, "tlb.pages-that-count"), None);
    }

    #[test]
    fn nothing_is_sure_on_a_busy_machine() {
        let outcome = of(&curves(2097152.0), BUSY);
        assert!(!outcome.claims.is_empty() && outcome.claims.iter().all(|claim| !claim.sure));
        for sentence in &outcome.advice {
            assert!(sentence.contains("not sure: the machine was busy (load 9)"), "{sentence}");
        }
    }

    #[test]
    fn sweeps_that_disagree_show_no_knee() {
        let mut curves = curves(4096.0);
        // Each sweep of small pages has its only step at another place.
        for (i, sweep) in curves[1].sweeps.iter_mut().enumerate() {
            let step = 2e6 * 30f64.powi(i32::try_from(i).unwrap());
            for point in sweep {
                point.1 = if point.0 > step { 50.0 } else { 1.0 };
            }
        }
        for (quiet, why) in [
            (CALM, "No clear knee: the sweeps disagree"),
            (BUSY, "No clear knee: the machine was busy (load 9)"),
        ] {
            let outcome = of(&curves, quiet);
            assert!(outcome.advice[1].starts_with(why), "{:?}", outcome.advice);
            assert!(outcome.advice[1].contains("run again: hugelift lab tlb"), "{:?}", outcome.advice);
            assert_eq!(claim(&outcome, "tlb.load.small.l1.entries"), None);
        }
    }

    #[test]
    fn a_cpu_that_says_nothing_leaves_nothing_sure_of_its_tlbs() {
        let machine = Machine { tlbs: Vec::new(), ..machine() };
        let outcome = outcome(&curves(4096.0), Vec::new(), None, &machine, CALM);
        assert!(
            outcome.advice[1].contains("not sure: the CPU does not describe its TLBs"),
            "{:?}",
            outcome.advice
        );
        assert!(
            outcome.notes.iter().any(|note| note.contains("named by their order")),
            "{:?}",
            outcome.notes
        );
        let tlb = |claim: &&Claim| claim.subject.contains("entries") || claim.subject.contains("pages");
        assert!(outcome.claims.iter().filter(tlb).all(|claim| !claim.sure), "{:?}", outcome.claims);
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let mut curves = curves(2097152.0);
        for sweep in curves.iter_mut().flat_map(|curve| &mut curve.sweeps) {
            sweep.retain(|p| p.0 <= (1u64 << 30) as f64);
        }
        let outcome = of(&curves, CALM);
        // 2 GB were not measured.
        let sizes: Vec<String> = outcome.tables[0].rows.iter().map(|r| format!("{:?}", r[2])).collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
    }

    #[test]
    fn the_sizes_of_a_program() {
        let sizes = Sizes { name: "prog".into(), text: 1 << 20, heap: Some(256 << 20) };
        let outcome = outcome(&curves(2097152.0), Vec::new(), Some(&sizes), &machine(), CALM);
        let rows = &outcome.tables[0].rows;
        assert_eq!((rows.len(), &rows[0][0]), (1, &"heap of prog".into()));
    }
}
