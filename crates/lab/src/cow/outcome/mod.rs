// SPDX-License-Identifier: Apache-2.0
//! Makes tables, plots and statements of the measurements.

mod figures;
mod statements;
mod tables;
mod whole;

use crate::cow::measured::Measured;
use crate::cow::ratios::ratios;
use crate::results::unit::Unit;
use crate::results::{Outcome, Sample};
use figures::{NS, name};
use statements::{advice, claims, few, joined, joined_again, kernel_behaviour, khugepaged, source};
use tables::{afterwards, compared, plots, rested, served, served_plot, writes};

/// Returns tables, plots, claims and advice. `disturbed` says whether other programs disturbed the
/// measurements: then only what does not depend on times is sure.
pub fn outcome(measured: &Measured, disturbed: bool) -> Outcome {
    let ratios = ratios(measured);
    let mut outcome = Outcome { notes: measured.notes.clone(), ..Outcome::default() };
    outcome.tables = vec![writes(measured), compared(&ratios)];
    outcome.tables.extend(whole::whole(measured));
    outcome.tables.extend(whole::phases(measured));
    outcome.tables.push(afterwards(measured));
    outcome.tables.extend(served(&measured.served.saves));
    outcome.tables.extend(rested(&measured.served.rests));
    outcome.plots = plots(measured);
    outcome.plots.extend(served_plot(&measured.served.saves));
    for (case, runs) in &measured.cases {
        let name = format!("fork {} {} {}", case.huge_pages, case.pages.name(), name(case.pattern));
        let values = runs.iter().map(|run| run.fork_ns * NS).collect();
        outcome.samples.push(Sample { name, unit: Unit::Seconds, values });
    }
    for (case, runs) in &measured.whole {
        let name = format!("whole process {} {} {}", case.huge_pages, case.pages.name(), name(case.pattern));
        let values = runs.iter().map(|run| run.wall).collect();
        outcome.samples.push(Sample { name, unit: Unit::Seconds, values });
    }
    outcome.notes.extend(source(measured, &ratios));
    outcome.notes.extend(whole::why(measured));
    outcome.notes.extend(few(measured));
    outcome.notes.extend(kernel_behaviour(measured));
    outcome.notes.extend(joined(measured));
    outcome.notes.extend(measured.served.rests.iter().map(joined_again));
    outcome.notes.extend(khugepaged(measured));
    outcome.claims = claims(measured, &ratios, disturbed);
    outcome.advice = advice(measured, &ratios, disturbed);
    outcome
}

#[cfg(test)]
mod tests {
    use super::tables::{histogram, largest};
    use super::*;
    use crate::cow::case::{Case, Pattern};
    use crate::cow::redis::{Rest, Save, Served, Side};
    use crate::cow::whole::{Phase, Whole};
    use crate::cow::write::Forked;
    use crate::latency::Latencies;
    use crate::memory::Pages;
    use crate::results::claim::Answer;
    use crate::results::{Cell, Hue, Table};
    use hugelift_core::addr::PageSize;

    const HUGETLB: Pages = Pages::Hugetlb(PageSize::MB2);

    /// A fork of `huge_pages` after which each write took `write` nanoseconds.
    fn forked(pages: Pages, huge_pages: u64, pattern: Pattern, write: u32) -> (Case, Vec<Forked>) {
        let run = Forked {
            fork_ns: 1e6,
            writes: vec![write; huge_pages as usize],
            faults: huge_pages,
            copied: huge_pages * 4096,
            huge: [huge_pages << 21, 0, 0],
            load_ns: [100.0, 200.0],
            joined: None,
        };
        (Case { huge_pages, pages, pattern }, vec![run; 6])
    }

    fn claim<'a>(outcome: &'a Outcome, subject: &str) -> Option<(&'a Answer, bool)> {
        outcome.claims.iter().find(|c| c.subject == subject).map(|c| (&c.answer, c.sure))
    }

    fn word(word: &str) -> Answer {
        Answer::Word(word.into())
    }

    #[test]
    fn the_ratio_is_that_of_the_largest_size_measured_on_all_pages() {
        let one = Pattern::OnePerHuge;
        let cases = vec![
            forked(Pages::Thp, 16, one, 10_000),
            forked(HUGETLB, 16, one, 200_000),
            forked(Pages::Thp, 64, one, 40_000),
        ];
        let measured = Measured { cases, ..Measured::default() };
        assert_eq!(largest(&measured, one), Some(16));
        let said = "takes 200 µs here, 20 [20, 20] times the 10.0 µs";
        let busy = super::outcome(&measured, true);
        assert!(
            busy.advice[0].starts_with("Not sure: ") && busy.advice[0].contains(said),
            "{:?}",
            busy.advice
        );
        assert!(busy.advice[0].ends_with("; run again on an idle machine."), "{:?}", busy.advice);
        let subject = "cow.first-write.hugetlb-to-thp";
        assert_eq!(claim(&busy, subject), Some((&word("slower"), false)));
        let outcome = outcome(&measured, false);
        assert!(outcome.advice[0].starts_with("After a fork"), "{:?}", outcome.advice);
        assert!(outcome.advice[0].contains(said), "{:?}", outcome.advice);
        assert_eq!(claim(&outcome, subject), Some((&word("slower"), true)));
        assert_eq!(claim(&outcome, "cow.first-write.hugetlb-to-small"), None);
        assert_eq!(claim(&outcome, "cow.first-write.thp"), Some((&word("splits-the-page"), true)));
        assert!(outcome.advice[0].contains("--after-fork"), "{:?}", outcome.advice);
        assert_eq!(outcome.advice.len(), 2);
        assert!(outcome.notes.iter().any(|note| note.contains("copies 4 kB")), "{:?}", outcome.notes);
    }

    #[test]
    fn missing_measurements_are_named() {
        let none = outcome(&Measured::default(), false);
        assert!(none.advice[0].contains("no figures") && none.advice[1].contains("not measured"), "{none:?}");
        assert!(none.plots.is_empty() && none.samples.is_empty(), "{none:?}");
        let thp =
            Measured { cases: vec![forked(Pages::Thp, 4, Pattern::OnePerHuge, 9000)], ..Measured::default() };
        assert!(outcome(&thp, false).advice[0].contains("hugetlb could not be measured"));
    }

    #[test]
    fn a_histogram_adds_up_to_100_percent() {
        let points = histogram("x".into(), Hue::Thp, &Latencies::new(vec![10, 12, 1000, 1000])).points;
        let none = 12.5;
        assert_eq!(points.iter().map(|p| p.y).filter(|y| *y > none).sum::<f64>(), 100.0);
        assert_eq!([points.first(), points.last()].map(|p| p.expect("a point").y), [none, none]);
        assert!(points.windows(2).all(|pair| pair[0].x < pair[1].x), "{points:?}");
    }

    #[test]
    fn whole_processes_are_shown_beside_the_source() {
        let one = |wall: f64| {
            let phases =
                [wall / 2.0, 0.01, wall / 4.0].map(|wall| Phase { wall, cpu: wall / 4.0, faults: 7.0 });
            Whole { wall, user: wall / 8.0, system: wall / 4.0, phases }
        };
        let every = Pattern::Every;
        let of = |pages, huge_pages, pattern| Case { huge_pages, pages, pattern };
        let whole = vec![
            (of(Pages::Small, 32, every), vec![one(0.2); 6]),
            (of(HUGETLB, 32, every), vec![one(0.1); 6]),
            (of(Pages::Small, 128, Pattern::OnePerHuge), vec![one(0.2); 6]),
            (of(HUGETLB, 128, Pattern::OnePerHuge), vec![one(0.3); 6]),
        ];
        let cases = vec![forked(Pages::Small, 16, every, 40_000), forked(HUGETLB, 16, every, 4_000)];
        let alone = Measured { whole: whole.clone(), ..Measured::default() };
        let alone = super::outcome(&alone, false);
        assert!(
            alone.advice[0].starts_with("A process that writes all of its memory and ends takes 0.50"),
            "{alone:?}"
        );
        assert!(
            alone.notes.iter().any(|note| note.contains("is written: whole processes 0.50")),
            "{alone:?}"
        );
        let measured = Measured { cases, whole, ..Measured::default() };
        let outcome = outcome(&measured, false);
        let note = outcome.notes.iter().find(|note| note.contains("source")).expect("a note");
        assert!(note.contains("the writes alone take 0.10 [0.10, 0.10]"), "{note}");
        assert!(note.contains("whole processes 0.50 [0.50, 0.50]") && note.contains("found 0.93"), "{note}");
        // (0.1 + 1.23) / (0.2 + 1.23) = 0.93
        assert!(note.contains("works for 1.23 s"), "{note}");
        assert_eq!(claim(&outcome, "cow.dense.whole-process"), Some((&word("faster"), true)));
        assert_eq!(claim(&outcome, "cow.dense.writes-alone"), Some((&word("faster"), true)));
        let has = |key: &str| outcome.tables.iter().find(|t| t.columns.iter().any(|c| c.key == key));
        assert_eq!(has("whole_deviation_s").map(|table| table.rows.len()), Some(4));
        let rows = &has("source_ratio").expect("a table").rows;
        assert!(rows.iter().any(|row| row.last() == Some(&Cell::Number(0.93))), "{rows:?}");
        let sparse =
            rows.iter().find(|row| row[0] == Cell::from("whole process, sparse, wall time".to_string()));
        let Cell::Number(ratio) = sparse.expect("a row")[4] else { panic!("{rows:?}") };
        assert!((ratio - 1.5).abs() < 1e-9, "{rows:?}");
        assert!(outcome.claims.iter().all(|claim| !claim.subject.is_empty()), "{:?}", outcome.claims);
    }

    /// Saves of each side, `slow` of whose commands take the given time.
    fn saves(commands: usize, slow: usize) -> Vec<Save> {
        let one = |side, time| Save {
            side,
            calm: vec![20_000; 100],
            saving: [vec![30_000; commands - slow], vec![time; slow]].concat(),
            seconds: 1.5,
            fork_us: 700,
            copied: 1 << 20,
            resident: 1 << 28,
            huge: [1 << 27, 0],
        };
        let sides = [(Side::Off, 4_000_000), (Side::On, 2_000_000), (Side::Lifted, 1_000_000)];
        std::iter::repeat_n(sides, 6).flatten().map(|(side, time)| one(side, time)).collect()
    }

    #[test]
    fn redis_is_shown_side_by_side() {
        let rest = |side, huge, seconds| Rest { side, huge, seconds };
        let rests = vec![
            rest(Side::On, [64 << 20, 2 << 20, 2 << 20], 4.1),
            rest(Side::Lifted, [64 << 20, 2 << 20, 64 << 20], 2.5),
        ];
        let served = Served { saves: saves(1000, 20), rests };
        let outcome = outcome(&Measured { served, ..Measured::default() }, false);
        let has = |key: &str| {
            let at = |t: &Table| t.columns.iter().position(|c| c.key == key);
            outcome.tables.iter().find_map(|t| Some((t, at(t)?))).expect("a table with this column")
        };
        let (table, at) = has("client_p999_s");
        assert_eq!((table.rows.len(), &table.rows[1][at]), (3, &Cell::Number(2e-3)));
        let said = &outcome.advice[1];
        assert!(said.starts_with("While redis saves its data, one command in a hundred takes"), "{said}");
        assert!(said.contains("4.00 ms [4.00 ms, 4.00 ms] with THP off, 2.00 ms [2.00 ms,"), "{said}");
        assert!(said.contains("with THP on (faster, 0.50 [0.50, 0.50] of THP off)"), "{said}");
        assert_eq!(claim(&outcome, "cow.redis.p99.thp-on"), Some((&word("faster"), true)));
        // A thousand commands of one save have no p99.9.
        assert_eq!(claim(&outcome, "cow.redis.p999.thp-on"), None);
        assert_eq!(claim(&outcome, "cow.redis.joined.hugelift"), Some((&word("joined"), true)));
        assert_eq!(has("rest_s").0.rows.len(), 2);
        let says = |text: &str| outcome.notes.iter().any(|note| note.contains(text));
        assert!(says(
            "THP on: 64 MB on huge pages before its first save, 2 MB after its last one, not joined within 4.10 s"
        ));
        assert!(says("hugelift: 64 MB") && says("joined again within 2.50 s (64 MB)"), "{:?}", outcome.notes);
    }

    #[test]
    fn too_few_commands_give_no_p999() {
        let said = |saves: Vec<Save>| {
            let served = Served { saves, rests: vec![] };
            outcome(&Measured { served, ..Measured::default() }, false).advice[1].clone()
        };
        let of = |commands, slow| said(saves(commands, slow));
        let many = of(4000, 80);
        assert!(many.starts_with("While redis saves its data, one command in a thousand takes"), "{many}");
        // Saves that differ much carry no p99.9 either.
        let mut spread = saves(1000, 20);
        for save in &mut spread[9..] {
            save.saving.iter_mut().filter(|ns| **ns > 30_000).for_each(|ns| *ns *= 10);
        }
        let spread = said(spread);
        assert!(
            spread.starts_with("Not sure: While redis saves its data, one command in a hundred"),
            "{spread}"
        );
        assert!(
            of(400, 10).contains("one command in a hundred takes longer than 4.00 ms"),
            "{}",
            of(400, 10)
        );
        assert!(of(50, 1).contains("too few commands"), "{}", of(50, 1));
    }
}
