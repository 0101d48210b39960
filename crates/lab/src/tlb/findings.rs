// SPDX-License-Identifier: Apache-2.0
//! Interprets the curves: the reach of TLBs and caches, and what huge pages save.

use super::program::Sizes;
use super::{Access, Curve, STRIDE};
use crate::knees::{Knee, at, knees};
use crate::memory::Pages;
use crate::read_machine::read_machine;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use crate::results::{Column, Hue, Mark, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_core::addr::human_bytes;
use hugelift_os::machine::tree::Tree;

/// The most entries that a first-level TLB has.
const FIRST_LEVEL: f64 = 256.0;

/// The fewest entries that a TLB has.
const FEWEST: f64 = 16.0;

/// Sizes of code and of data that are shown if the user names no program.
const USUAL_TEXT: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];
const USUAL_HEAP: [u64; 3] = [64 << 20, 512 << 20, 2 << 30];

/// The name of the curve of adjacent lines.
const CACHES: &str = "caches alone";

pub fn outcome(curves: &[Curve], notes: Vec<String>, sizes: Option<&Sizes>) -> Outcome {
    let machine = read_machine(&Tree::default());
    let found: Vec<Named> = curves.iter().flat_map(|curve| named(curve, curves, &machine)).collect();
    let saved = saved(curves, sizes);
    let mut outcome = Outcome {
        advice: [gain(&saved), reach(curves, &found, &machine)].into_iter().flatten().collect(),
        notes,
        tables: vec![table_of_saved(&saved), table_of_knees(&found), table_of_curves(curves)],
        plots: [Access::Load, Access::Jump].into_iter().filter_map(|a| plot(a, curves, &found)).collect(),
        samples: curves.iter().map(sample).collect(),
        claims: Vec::new(),
        listing: Vec::new(),
    };
    outcome.notes.extend(sizes.and_then(|s| match s.heap {
        None => Some(format!(
            "the size of the heap of {} is not known, since it does not run: use --pid for a running process",
            s.name
        )),
        Some(_) => None,
    }));
    outcome.notes.push(
        "a working set is memory in use, here one line of each 4 kB in random order; a program seldom uses all of \
         its memory"
            .into(),
    );
    outcome
}

fn name(pages: Option<Pages>) -> String {
    pages.map_or_else(|| CACHES.into(), Pages::name)
}

fn curve_of(curves: &[Curve], access: Access, pages: Option<Pages>) -> Option<&Curve> {
    curves.iter().find(|c| c.access == access && c.pages == pages)
}

/// Returns the curves of huge pages.
fn huge(curves: &[Curve], access: Access) -> impl Iterator<Item = &Curve> {
    curves.iter().filter(move |c| c.access == access && !matches!(c.pages, None | Some(Pages::Small)))
}

/// A knee and the cache or TLB whose reach ends there.
#[derive(Clone, PartialEq, Debug)]
struct Named {
    access: Access,
    pages: Option<Pages>,
    what: String,
    tlb: bool,
    /// Bytes per entry.
    unit: u64,
    knee: Knee,
}

/// Names the knees of a curve. On the curve of the caches alone they are the caches. On a curve of pages
/// the time above the caches alone is the cost of translation, and its knees are the TLBs.
fn named(curve: &Curve, curves: &[Curve], machine: &Machine) -> Vec<Named> {
    let points = curve.medians();
    let Some(pages) = curve.pages else {
        let caches = machine.caches_for(curve.access == Access::Jump);
        let cache = |knee: &Knee| {
            let lines = knee.at / STRIDE as f64 * 64.0;
            // The cache that is nearest in size: replacement and other code blur the edge.
            let near = caches.iter().map(|c| (c, (c.bytes as f64 / lines).log2().abs()));
            let near = near.filter(|(_, far)| *far < 1.5).min_by(|a, b| a.1.total_cmp(&b.1));
            near.map_or_else(|| "cache".to_string(), |(c, _)| format!("L{} cache", c.level))
        };
        let all = knees(&points).into_iter();
        return all
            .map(|knee| Named {
                access: curve.access,
                pages: None,
                what: cache(&knee),
                tlb: false,
                unit: STRIDE as u64,
                knee,
            })
            .collect();
    };
    let small = above(Pages::Small, curves, curve.access);
    let small: Vec<Knee> = small.map(|points| knees(&points)).unwrap_or_default();
    let level = |entries: f64| if entries <= FIRST_LEVEL { "L1 TLB" } else { "L2 TLB" };
    let tlb = |knee: Knee| {
        let same = small.iter().find(|s| is_near(s.at, knee.at));
        let (what, unit) = match same {
            // Small pages have a knee here too: under a hypervisor all entries may be for small pages.
            Some(same) => (level(same.at / Pages::Small.bytes() as f64), Pages::Small.bytes()),
            None if knee.at / pages.bytes() as f64 >= FEWEST => {
                (level(knee.at / pages.bytes() as f64), pages.bytes())
            }
            None => ("page tables in caches", pages.bytes()),
        };
        // Times of the curve itself, not of what is above the caches.
        let own = |x| at(&points, x).unwrap_or(0.0);
        let knee = Knee { before: own(knee.at), after: own(knee.until), ..knee };
        let tlb = what.ends_with("TLB");
        Named { access: curve.access, pages: curve.pages, what: what.into(), tlb, unit, knee }
    };
    let above = above(pages, curves, curve.access).unwrap_or_default();
    knees(&above).into_iter().map(tlb).collect()
}

/// Whether two knees are at the same place, within the resolution of the curves.
fn is_near(a: f64, b: f64) -> bool {
    (a / b).log2().abs() <= 1.0
}

/// Returns the time above the caches alone, plus the first value of these, so that growth can be measured as
/// a ratio.
fn above(pages: Pages, curves: &[Curve], access: Access) -> Option<Vec<(f64, f64)>> {
    let points = curve_of(curves, access, Some(pages))?.medians();
    let alone = curve_of(curves, access, None)?.medians();
    let base = alone.first()?.1;
    Some(points.iter().map(|&(x, y)| (x, (y - at(&alone, x).unwrap_or(0.0)).max(0.0) + base)).collect())
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
                let all = curve_of(curves, access, Some(Pages::Small)).and_then(|c| c.points.last());
                let most = all.map_or(0, |p| p.bytes);
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
        let time = |curve: &Curve| {
            // Nothing is claimed beyond what was measured.
            let last = curve.points.last()?.bytes;
            (bytes <= last).then(|| at(&curve.medians(), bytes as f64)).flatten()
        };
        let small = time(curve_of(curves, access, Some(Pages::Small))?)?;
        let best = huge(curves, access).filter_map(|c| Some((c.pages?, time(c)?)));
        let best = best.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Saved { what, access, bytes, small, best })
    };
    wanted.into_iter().filter_map(one).collect()
}

fn table_of_saved(saved: &[Saved]) -> Table {
    let mut table = Table::new(
        "saved by huge pages if all of the memory is in use",
        vec![
            Column::new("what", "what", Unit::Text),
            Column::new("access", "access", Unit::Text),
            Column::new("size_bytes", "size", Unit::Bytes),
            Column::new("small_ns", "small pages", Unit::Nanoseconds),
            Column::new("best_pages", "fastest on", Unit::Text),
            Column::new("best_ns", "time there", Unit::Nanoseconds),
            Column::new("saved_ns", "saved", Unit::Nanoseconds),
            Column::new("saved_percent", "saved", Unit::Percent),
        ],
    );
    for s in saved {
        let less = s.small - s.best.1;
        table.rows.push(vec![
            s.what.as_str().into(),
            s.access.name().into(),
            s.bytes.into(),
            s.small.into(),
            s.best.0.name().into(),
            s.best.1.into(),
            less.into(),
            (100.0 * less / s.small).into(),
        ]);
    }
    table
}

fn table_of_knees(found: &[Named]) -> Table {
    let mut table = Table::new(
        "where an access becomes slower, and whose reach ends there",
        vec![
            Column::new("access", "access", Unit::Text),
            Column::new("pages", "pages", Unit::Text),
            Column::new("reach_of", "reach of", Unit::Text),
            Column::new("size_bytes", "working set", Unit::Bytes),
            Column::new("entries", "entries", Unit::Count),
            Column::new("before_ns", "before", Unit::Nanoseconds),
            Column::new("until_bytes", "until", Unit::Bytes),
            Column::new("after_ns", "after", Unit::Nanoseconds),
        ],
    );
    for Named { access, pages, what, unit, knee, .. } in found {
        table.rows.push(vec![
            access.name().into(),
            name(*pages).into(),
            what.as_str().into(),
            knee.at.into(),
            // For a cache these are lines.
            (knee.at / *unit as f64).round().into(),
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
            Column::new("median_ns", "median", Unit::Nanoseconds),
            Column::new("low_ns", "lower quartile", Unit::Nanoseconds),
            Column::new("high_ns", "upper quartile", Unit::Nanoseconds),
        ],
    );
    for curve in curves {
        for p in &curve.points {
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
        points: curve
            .points
            .iter()
            .map(|p| Point { x: p.bytes as f64, y: p.median, range: Some(p.range) })
            .collect(),
    };
    let series: Vec<Series> = curves.iter().filter(|c| c.access == access).map(series).collect();
    let shown = found.iter().filter(|n| n.access == access && n.pages.is_none_or(|p| p == Pages::Small));
    let mark = |n: &Named| {
        let pages = if n.tlb { format!(", {}", name(n.pages)) } else { String::new() };
        Mark { x: n.knee.at, name: format!("{}{pages}", n.what) }
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
        values: curve.points.iter().map(|p| p.median).collect(),
    }
}

/// Returns the first sentence: what huge pages save.
fn gain(saved: &[Saved]) -> Option<String> {
    let one = |s: &Saved| {
        let ns = |value: f64| Unit::Nanoseconds.show(value);
        let less = s.small - s.best.1;
        format!(
            "a random {} in {} of {} takes {} ns on small pages and {} ns on {} ({} % less)",
            s.access.name(),
            human_bytes(s.bytes),
            s.what,
            ns(s.small),
            ns(s.best.1),
            s.best.0.name(),
            Unit::Percent.show(100.0 * less / s.small)
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

/// Returns the second sentence: the reach of the TLBs, and the page size of their entries under a
/// hypervisor.
fn reach(curves: &[Curve], found: &[Named], machine: &Machine) -> Option<String> {
    let last = |pages: Pages| {
        let knees = found.iter().filter(|n| n.access == Access::Load && n.pages == Some(pages) && n.tlb);
        knees.map(|n| n.knee.at).reduce(f64::max)
    };
    let small = last(Pages::Small);
    let huge = huge(curves, Access::Load).max_by_key(|c| (c.points.len(), c.pages == Some(Pages::Thp)));
    let (Some(small), Some(curve)) = (small, huge) else {
        return Some(
            "No end of a TLB's reach was seen within what was measured: measure more (without --quick)."
                .into(),
        );
    };
    let pages = curve.pages?;
    let host = if machine.hypervisor.is_some() { " in this guest" } else { "" };
    let base = Pages::Small.bytes() as f64;
    let begin = format!(
        "The TLBs hold {} of {} pages ({:.0} entries)",
        human_bytes(small as u64),
        Pages::Small.name(),
        small / base
    );
    let end = curve.points.last()?.bytes as f64;
    // The same number of entries reaches farther in proportion to the size of the pages that count.
    let bytes = |reach: f64| human_bytes((base * reach / small) as u64);
    let knee = last(pages).filter(|&knee| knee > 2.0 * small);
    let mut same = found.iter().filter(|n| n.access == Access::Load && n.pages == Some(pages));
    Some(if same.any(|n| n.tlb && is_near(n.knee.at, small)) {
        format!(
            "{begin} and no more of {}: the pages that count{host} are {} whatever the program asks for, as is the \
             case if the host backs the guest with small pages; what huge pages save is time in page tables.",
            pages.name(),
            Pages::Small.name()
        )
    } else if let Some(knee) = knee {
        format!(
            "{begin} and {} on {}, so the pages that count{host} are about {}.",
            human_bytes(knee as u64),
            pages.name(),
            bytes(knee)
        )
    } else {
        format!(
            "{begin}, and on {} no end is seen up to {}, so the pages that count{host} are at least {}.",
            pages.name(),
            human_bytes(end as u64),
            bytes(end)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::*;

    /// A curve whose accesses cost `miss` ns more beyond the reach of a TLB of 1536 entries of `page` bytes,
    /// and 5 ns more beyond a cache of 32 kB.
    fn curve(pages: Option<Pages>, page: f64, miss: f64) -> Curve {
        let reach = 1536.0 * page;
        let share = |limit: f64, x: f64| (1.0 - limit / x).max(0.0);
        let time = |x: f64| 1.0 + 5.0 * share(512.0 * 4096.0, x) + miss * share(reach, x);
        let sizes = super::super::sizes(4 << 30, 4);
        let point = |bytes: u64| {
            let median = time(bytes as f64);
            Point { bytes, median, range: (median, median) }
        };
        Curve { access: Access::Load, pages, points: sizes.into_iter().map(point).collect() }
    }

    fn curves(effective: f64) -> Vec<Curve> {
        vec![
            curve(None, f64::MAX, 0.0),
            curve(Some(Pages::Small), 4096.0, 30.0),
            curve(Some(Pages::Thp), effective, 30.0),
        ]
    }

    #[test]
    fn reach_and_gain_of_given_curves() {
        let outcome = outcome(&curves(2097152.0), Vec::new(), None);
        let [gain, reach] = &outcome.advice[..] else { panic!("{:?}", outcome.advice) };
        assert!(
            gain.starts_with("A random load in 512 MB of heap takes 35.6 ns on small pages and 5.98"),
            "{gain}"
        );
        let entries = number_before(reach, "entries");
        assert!((1300.0..1800.0).contains(&entries), "{reach}");
        assert!(reach.contains("are about 1.") || reach.contains("are about 2"), "{reach}");
        let knees = &outcome.tables[1];
        assert!(knees.rows.iter().any(|row| row[2] == "L2 TLB".into()), "{knees:?}");
    }

    fn number_before(text: &str, word: &str) -> f64 {
        let before = text.split_once(word).unwrap().0.trim_end();
        before.rsplit(['(', ' ']).next().unwrap().parse().unwrap()
    }

    #[test]
    fn small_pages_of_the_host_are_detected() {
        let outcome = outcome(&curves(4096.0), Vec::new(), None);
        assert!(outcome.advice[1].contains("whatever the program asks for"), "{:?}", outcome.advice);
    }

    #[test]
    fn an_end_that_is_not_seen_is_not_claimed() {
        let mut curves = curves(2097152.0);
        for curve in &mut curves {
            curve.points.retain(|p| p.bytes <= 1 << 30);
        }
        let outcome = outcome(&curves, Vec::new(), None);
        assert!(outcome.advice[1].contains("no end is seen up to 1 GB"), "{:?}", outcome.advice);
        // 2 GB were not measured.
        let sizes: Vec<String> = outcome.tables[0].rows.iter().map(|r| format!("{:?}", r[2])).collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
    }

    #[test]
    fn the_sizes_of_a_program() {
        let sizes = Sizes { name: "prog".into(), text: 1 << 20, heap: Some(256 << 20) };
        let outcome = outcome(&curves(2097152.0), Vec::new(), Some(&sizes));
        let rows = &outcome.tables[0].rows;
        assert_eq!((rows.len(), &rows[0][0]), (1, &"heap of prog".into()));
    }
}
