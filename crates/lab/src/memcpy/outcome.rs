// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and advice of the measurements.

use super::counted;
use super::group::{Group, name};
use super::kind::{Kind, Source};
use super::measured::{Measured, Size};
use super::perf_bench::PerfBench;
use super::trap::{Trap, reads, slowdown};
use crate::memory::Pages;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Hue, Outcome, Plot, Point, Sample, Scale, Series, Shape, Table};
use hugelift_core::addr::human_bytes;
use hugelift_measure::stats::{Estimate, location};

fn style(kind: Kind) -> (Hue, Shape) {
    match kind {
        Kind::SMALL_ZERO => (Hue::Third, Shape::Line),
        Kind::Copy(Source::Unshared, _) => (Hue::Second, Shape::Dashed),
        Kind::Copy(Source::Written(_), pages) => (pages.hue(), Shape::Dashed),
        Kind::Read(Source::Written(pages)) => (pages.hue(), Shape::Dashed),
        Kind::Copy(_, pages) | Kind::Set(pages) | Kind::Read(Source::Never(pages)) => {
            (pages.hue(), Shape::Line)
        }
        Kind::Read(Source::Unshared) => (Hue::Second, Shape::Line),
    }
}

/// Returns tables, plots, claims and advice. `disturbed` is whether other programs disturbed the experiment.
pub fn outcome(measured: &Measured, machine: &Machine, disturbed: bool) -> Outcome {
    let mut outcome = Outcome { notes: measured.notes.clone(), ..Outcome::default() };
    for (source, found) in &measured.found {
        let what = match source {
            Source::Never(Pages::Small) => "the source never written, THP off",
            Source::Never(_) => "the source never written, THP on",
            Source::Written(Pages::Small) => "the written source, THP off",
            Source::Written(_) => "the written source, THP on",
            Source::Unshared => "the source read while use_zero_page was 0",
        };
        outcome.notes.push(format!("{what}, is {found} (/proc/self/smaps and pagemap)"));
    }
    for group in [Group::Copies, Group::Sets, Group::Reads] {
        outcome.tables.push(rates(measured, group));
    }
    outcome.tables.push(ratios(measured));
    outcome.tables.extend(counted::table(measured));
    outcome.tables.extend(measured.perf.as_ref().map(|perf| beside(perf, measured)));
    outcome.notes.extend(measured.perf.as_ref().map(about_perf));
    outcome.plots = plots(measured);
    for size in &measured.sizes {
        outcome.samples.extend(size.timed.iter().filter(|t| !t.times.is_empty()).map(|timed| Sample {
            name: format!("{} {}", name(timed.kind).1, human_bytes(size.bytes as u64)),
            unit: Unit::GigabytesPerSecond,
            values: timed.times.iter().map(|time| size.bytes as f64 / time).collect(),
        }));
    }
    outcome.notes.extend(reads(measured, disturbed, rate));
    let trap = Trap::of(measured, machine, disturbed);
    outcome.claims = trap.as_ref().map(Trap::claims).unwrap_or_default();
    outcome.advice = advice(measured, machine, trap.as_ref());
    outcome
}

/// Returns gigabytes per second: bytes divided by nanoseconds.
fn rate(bytes: usize, times: &[f64]) -> Option<Estimate> {
    location(&times.iter().map(|time| bytes as f64 / time).collect::<Vec<f64>>()).ok()
}

fn kinds(measured: &Measured, group: Group) -> impl Iterator<Item = Kind> {
    let there = |kind: &Kind| measured.sizes.iter().any(|size| size.times(*kind).is_some());
    Kind::ALL.into_iter().filter(move |kind| Group::of(*kind) == group && there(kind))
}

fn rates(measured: &Measured, group: Group) -> Table {
    let mut columns = vec![Column::new("block_bytes", "block", Unit::Bytes)];
    columns.extend(kinds(measured, group).map(|kind| {
        let (title, key) = name(kind);
        // The caption names the unit for all columns.
        Column::new(&format!("{key}_gb_s"), title, Unit::Ratio)
    }));
    let mut table = Table::new(group.caption(), columns);
    for size in &measured.sizes {
        let mut row: Vec<Cell> = vec![(size.bytes as u64).into()];
        let rates = kinds(measured, group).map(|kind| Some(rate(size.bytes, size.times(kind)?)?.point));
        row.extend(rates.map(Cell::from));
        table.rows.push(row);
    }
    table
}

/// The comparisons: key, title, and the operations whose times are divided.
const COMPARED: [(&str, &str, Kind, Kind); 4] = [
    ("trap", "huge zero / small zero", Kind::HUGE_ZERO, Kind::SMALL_ZERO),
    ("empty", "empty: on / off", Kind::HUGE_ZERO, Kind::NEVER_OFF),
    ("written", "written: on / off", Kind::WRITTEN[1], Kind::WRITTEN[0]),
    ("memset", "memset: on / off", Kind::SET[1], Kind::SET[0]),
];

fn ratios(measured: &Measured) -> Table {
    let mut columns = vec![Column::new("block_bytes", "block", Unit::Bytes)];
    for (key, title, ..) in COMPARED {
        columns.push(Column::new(&format!("{key}_ratio"), title, Unit::Ratio));
        columns.push(Column::new(&format!("{key}_interval"), "95 %", Unit::Text));
    }
    let mut table = Table::new(
        "ratio of CPU times of the same rounds (above 1: huge pages are slower); in the first column the \
         destination is on huge pages on both sides, and only the zero page differs",
        columns,
    );
    for size in &measured.sizes {
        let mut row: Vec<Cell> = vec![(size.bytes as u64).into()];
        for (_, _, of, against) in COMPARED {
            let estimate = slowdown(size, of, against);
            row.push(estimate.map(|e| e.point).into());
            row.push(
                estimate.and_then(|e| e.interval).map(|i| format!("{:.2} to {:.2}", i.low, i.high)).into(),
            );
        }
        table.rows.push(row);
    }
    table
}

/// Returns the size that is nearest to that of perf's blocks.
fn nearest(perf: &PerfBench, measured: &Measured) -> Option<usize> {
    let distance = |size: &&Size| (size.bytes as f64 / perf.bytes as f64).ln().abs();
    measured.sizes.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|size| size.bytes)
}

fn beside(perf: &PerfBench, measured: &Measured) -> Table {
    let columns = vec![
        Column::new("benchmark", "", Unit::Text),
        Column::new("block_bytes", "block", Unit::Bytes),
        Column::new("off_gb_s", "THP off", Unit::GigabytesPerSecond),
        Column::new("on_gb_s", "THP on", Unit::GigabytesPerSecond),
    ];
    let mut table = Table::new("comparison with perf's own benchmark, all in wall time", columns);
    let middle = |rates: &[f64]| location(rates).ok().map(|e| e.point / 1e9);
    table.rows.push(vec![
        "perf bench mem memcpy".into(),
        (perf.bytes as u64).into(),
        middle(&perf.off).into(),
        middle(&perf.on).into(),
    ]);
    let nearest = nearest(perf, measured);
    for size in measured.sizes.iter().filter(|size| Some(size.bytes) == nearest) {
        for (what, off, on) in [
            ("ours, source never written", Kind::NEVER_OFF, Kind::HUGE_ZERO),
            ("ours, source written", Kind::WRITTEN[0], Kind::WRITTEN[1]),
        ] {
            let wall = |kind: Kind| Some(rate(size.bytes, size.wall(kind)?)?.point);
            let [off, on] = [off, on].map(wall);
            table.rows.push(vec![what.into(), (size.bytes as u64).into(), off.into(), on.into()]);
        }
    }
    table
}

fn about_perf(perf: &PerfBench) -> String {
    let (version, peak, block) = (&perf.version, human_bytes(perf.peak), human_bytes(perf.bytes as u64));
    if perf.writes_its_source() {
        format!(
            "{version} had {peak} of memory for two blocks of {block}: it writes its source before it measures, so \
             it copies no zero page, small or huge, and its figures compare with ours of a written source; older \
             versions, whose source came fresh from calloc(3), fell into the trap"
        )
    } else {
        format!(
            "{version} had {peak} of memory for two blocks of {block}: it never writes its source, so it \
             copies the zero page"
        )
    }
}

fn plots(measured: &Measured) -> Vec<Plot> {
    let x = || Scale::logarithmic("block", Unit::Bytes);
    let point = |size: &Size, estimate: Option<Estimate>| {
        let estimate = estimate?;
        Some(Point {
            x: size.bytes as f64,
            y: estimate.point,
            range: estimate.interval.map(|i| (i.low, i.high)),
        })
    };
    let rates = |kind: Kind| {
        let points = measured.sizes.iter().filter_map(|s| point(s, rate(s.bytes, s.times(kind)?)));
        let (hue, shape) = style(kind);
        Series { name: name(kind).0.into(), hue, shape, points: points.collect() }
    };
    let group = |group: Group, y: &str| {
        let series: Vec<Series> = kinds(measured, group).map(rates).collect();
        (group.title().to_string(), Scale::linear(y, Unit::GigabytesPerSecond), series)
    };
    let trap = |(_, title, of, against): (&str, &str, Kind, Kind), hue, shape| {
        let points = measured.sizes.iter().filter_map(|size| point(size, slowdown(size, of, against)));
        Series { name: title.into(), hue, shape, points: points.collect() }
    };
    let compared = [
        trap(COMPARED[0], Hue::Second, Shape::Line),
        trap(COMPARED[1], Hue::Thp, Shape::Line),
        trap(COMPARED[2], Hue::Thp, Shape::Dashed),
    ];
    let all = [
        group(Group::Copies, "copied"),
        group(Group::Reads, "read"),
        group(Group::Sets, "set"),
        (
            "the trap: CPU time on huge pages divided by CPU time on small ones".to_string(),
            Scale::linear("ratio of CPU times", Unit::Ratio),
            compared.into(),
        ),
    ];
    let drawn = all.into_iter().map(|(title, y, mut series)| {
        series.retain(|s| !s.points.is_empty());
        Plot { title, x: x(), y, series, marks: vec![] }
    });
    drawn.filter(|plot| !plot.series.is_empty()).collect()
}

fn advice(measured: &Measured, machine: &Machine, trap: Option<&Trap>) -> Vec<String> {
    let Some((trap, worst)) = trap.and_then(|trap| Some((trap, trap.worst()?))) else {
        return vec![
            "There are no figures for the huge zero page here, so nothing can be said about the trap.".into(),
        ];
    };
    let size = measured.sizes.iter().find(|size| size.bytes == worst.bytes);
    let written = size.and_then(|size| slowdown(size, Kind::WRITTEN[1], Kind::WRITTEN[0]));
    let written =
        written.map_or(String::new(), |e| format!(" (a written source on huge pages: {e:.2} of small ones)"));
    let second = format!(
        "What hugelift copies onto huge pages has content and includes no zero page{written}; bss and heap, which a \
         program may read before it writes them, are lifted only on request (--parts)."
    );
    vec![trap.sentence(measured, machine), second]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcpy::Timed;
    use crate::results::claim::Answer;
    use crate::results::machine::Cache;

    /// Rounds in which a copy takes the given nanoseconds per byte.
    fn measured(times: &[(Kind, f64)]) -> Measured {
        let timed = times.iter().map(|&(kind, per_byte)| {
            let times: Vec<f64> =
                (0..9).map(|i| f64::from(1 << 20) * per_byte * (1.0 + f64::from(i) * 1e-3)).collect();
            Timed { kind, wall: times.iter().map(|t| 2.0 * t).collect(), times, counts: None }
        });
        let size = Size { bytes: 1 << 20, timed: timed.collect(), disturbed: false };
        Measured { sizes: vec![size], ..Measured::default() }
    }

    /// Two zero pages at each of these sizes, with the ratio of their times.
    fn sizes(ratios: &[(usize, f64)]) -> Measured {
        let size = |&(bytes, ratio)| Size {
            bytes,
            ..measured(&[(Kind::SMALL_ZERO, 0.1), (Kind::HUGE_ZERO, 0.1 * ratio)]).sizes.remove(0)
        };
        Measured { sizes: ratios.iter().map(size).collect(), ..Measured::default() }
    }

    fn machine() -> Machine {
        let cache = |level, bytes| Cache { level, kind: "Unified".into(), bytes };
        Machine {
            caches: vec![cache(1, 32 << 10), cache(2, 1 << 20), cache(3, 32 << 20)],
            base_page_bytes: 4096,
            thp_bytes: Some(2 << 20),
            ..Machine::default()
        }
    }

    fn calm(measured: &Measured) -> Outcome {
        outcome(measured, &machine(), false)
    }

    fn sure(outcome: &Outcome) -> Vec<&str> {
        outcome.claims.iter().filter(|claim| claim.sure).map(|claim| claim.subject.as_str()).collect()
    }

    #[test]
    fn a_trap_is_seen_from_a_size_on() {
        let trap = calm(&sizes(&[(1 << 18, 1.0), (1 << 20, 2.0), (1 << 22, 1.5), (1 << 24, 1.4)]));
        let words = &trap.advice[0];
        assert!(words.contains("from blocks of 1 MB to the largest ones (16 MB)"), "{words}");
        assert!(words.contains("takes 2.00 [2.00, 2.00] of the CPU time"), "{words}");
        // 256 kB twice fit into the L2 cache of 1 MB, and 1 MB twice do not.
        assert!(words.contains("from about this size both no longer fit there"), "{words}");
        let from = trap.claims.iter().find(|claim| claim.subject == "memcpy.trap.from").unwrap();
        let bounds = Answer::Between { low: 0.0, high: f64::from(1 << 22), unit: Unit::Bytes };
        assert_eq!((&from.answer, from.sure), (&bounds, true));
        assert!(sure(&trap).contains(&"memcpy.trap.at.256kB"), "{:?}", trap.claims);
        let later = calm(&sizes(&[(1 << 18, 1.0), (1 << 20, 1.0), (1 << 22, 1.0), (1 << 24, 1.4)]));
        assert!(later.advice[0].contains("too small from another size on"), "{}", later.advice[0]);
    }

    #[test]
    fn what_the_intervals_do_not_carry_is_not_stated() {
        let trap = sizes(&[(1 << 20, 1.0), (1 << 22, 1.15)]);
        let open = calm(&trap);
        assert!(open.advice[0].starts_with("Not sure: "), "{:?}", open.advice);
        assert_eq!(sure(&open), ["memcpy.trap.at.1MB"]);
        let back = calm(&sizes(&[(1 << 20, 2.0), (1 << 22, 1.0)]));
        assert!(
            back.advice[0].contains("with blocks of 1 MB")
                && back.advice[0].contains("of other sizes that is")
        );
        assert!(!sure(&back).contains(&"memcpy.trap"), "{:?}", back.claims);
        // In a guest, what needs the L3 cache is not sure: other guests use it unseen.
        let guest = Machine { hypervisor: Some("KVM".into()), ..machine() };
        let found = outcome(&sizes(&[(1 << 18, 1.0), (1 << 20, 1.0), (1 << 22, 2.0)]), &guest, false);
        assert_eq!(sure(&found), ["memcpy.trap.at.256kB"]);
        assert!(found.advice[0].contains("other guests use that cache unseen"), "{:?}", found.advice);
        // Six rounds are the fewest with an interval.
        let mut few = sizes(&[(1 << 20, 2.0)]);
        few.sizes[0].timed.iter_mut().for_each(|timed| timed.times.truncate(5));
        let few = calm(&few);
        assert!(few.advice[0].starts_with("Not sure whether"), "{:?}", few.advice);
        assert_eq!(sure(&few), [""; 0]);
    }

    #[test]
    fn nothing_is_sure_that_was_disturbed() {
        let mut trap = sizes(&[(1 << 20, 1.0), (1 << 22, 2.0)]);
        assert_eq!(sure(&calm(&trap)).len(), 4);
        assert_eq!(sure(&outcome(&trap, &machine(), true)), [""; 0]);
        trap.sizes[1].disturbed = true;
        let one = calm(&trap);
        assert!(one.advice[0].starts_with("Not sure: "), "{:?}", one.advice);
        assert_eq!(sure(&one), ["memcpy.trap.at.1MB"]);
    }

    #[test]
    fn no_trap() {
        for none in [0.5, 1.0, 1.05] {
            let outcome = calm(&sizes(&[(1 << 20, none), (1 << 22, none)]));
            let words = &outcome.advice[0];
            assert!(words.starts_with("No trap is seen here with blocks of 1 MB, 4 MB: ") || none > 1.0);
            assert_eq!(outcome.advice.len(), 2);
            assert!(!sure(&outcome).contains(&"memcpy.trap"), "{:?}", outcome.claims);
        }
        let nothing = calm(&Measured::default()).advice;
        assert!(nothing[0].contains("nothing can be said"), "{nothing:?}");
    }

    #[test]
    fn the_cache_is_named_only_if_it_is_seen() {
        let reads = |huge| {
            measured(&[
                (Kind::SMALL_ZERO, 0.1),
                (Kind::HUGE_ZERO, 0.1),
                (Kind::Read(Source::Never(Pages::Small)), 0.01),
                (Kind::Read(Source::Never(Pages::Thp)), huge),
                (Kind::Read(Source::Written(Pages::Thp)), 0.03),
            ])
        };
        let notes = |huge| calm(&reads(huge)).notes.join(" ");
        assert!(notes(0.012).contains("is read from a cache, at 83.0 GB/s, slower than"), "{}", notes(0.012));
        assert!(!notes(0.03).contains("from a cache"));
        let words = &calm(&reads(0.012)).advice[0];
        assert!(words.contains("it takes 8.3 [8.3, 8.3] times as long as reading"), "{words}");
    }

    #[test]
    fn figures_are_bytes_over_nanoseconds() {
        let outcome = calm(&measured(&[(Kind::NEVER_OFF, 0.1), (Kind::HUGE_ZERO, 0.25)]));
        let Cell::Number(rate) = outcome.tables[0].rows[0][1] else { panic!("{:?}", outcome.tables[0]) };
        assert!((9.9..10.0).contains(&rate), "{rate}");
        let sample = &outcome.samples[0];
        assert!((sample.values[0] - 10.0).abs() < 1e-9 && sample.values.len() == 9, "{sample:?}");
        let ratios =
            outcome.tables.iter().find(|t| t.columns.iter().any(|c| c.key == "empty_ratio")).unwrap();
        let at = ratios.columns.iter().position(|c| c.key == "empty_ratio").unwrap();
        let Cell::Number(ratio) = ratios.rows[0][at] else { panic!("{ratios:?}") };
        assert!((ratio - 2.5).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn perf_is_compared_in_wall_time() {
        let mut measured = measured(&[(Kind::WRITTEN[0], 0.1)]);
        let perf = PerfBench {
            version: "perf version 6.1".into(),
            bytes: 1 << 20,
            off: vec![5e9],
            on: vec![6e9],
            peak: 2 << 20,
        };
        measured.perf = Some(perf);
        let outcome = calm(&measured);
        let table = outcome.tables.last().unwrap();
        assert_eq!(table.rows[0][2..], [Cell::Number(5.0), Cell::Number(6.0)]);
        let Cell::Number(ours) = table.rows[2][2] else { panic!("{table:?}") };
        assert!((4.9..=5.0).contains(&ours), "{ours}");
        assert!(
            outcome.notes.iter().any(|n| n.contains("writes its source before it measures")),
            "{outcome:?}"
        );
    }
}
