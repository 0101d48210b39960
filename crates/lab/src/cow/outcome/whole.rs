// SPDX-License-Identifier: Apache-2.0
//! Shows whole processes, and says where their time goes.

use super::figures::name;
use super::tables::{case_cells, case_columns};
use crate::cow::case::{Case, Pattern};
use crate::cow::measured::Measured;
use crate::cow::ratios::{FEWEST, SOURCE_SPARSE, whole_ratio};
use crate::cow::whole::{FILL, FORK, Phase, WRITE, Whole};
use crate::memory::Pages;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Table};
use hugelift_core::addr::human_bytes;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_measure::stats::{Estimate, deviation, mean, median};

/// Shows whole processes as the literature does, by mean and standard deviation, with the medians of their phases.
pub(super) fn whole(measured: &Measured) -> Option<Table> {
    let mut columns = case_columns();
    columns.extend([
        Column::new("whole_runs", "runs", Unit::Count),
        Column::new("whole_s", "mean", Unit::Seconds),
        Column::new("whole_deviation_s", "std. dev.", Unit::Seconds),
        Column::new("whole_user_s", "user", Unit::Seconds),
        Column::new("whole_system_s", "system", Unit::Seconds),
        Column::new("whole_fill_s", "fill", Unit::Seconds),
        Column::new("whole_fork_s", "fork", Unit::Seconds),
        Column::new("whole_write_s", "write", Unit::Seconds),
        Column::new("whole_rest_s", "rest", Unit::Seconds),
    ]);
    let caption = "whole processes: fill their memory, fork, write while the child lives, end (wall time, user and system time: \
                   means; phases: medians; the rest is start and end)";
    table(measured, caption, columns, |runs| {
        let walls: Vec<f64> = runs.iter().map(|run| run.wall).collect();
        vec![
            (runs.len() as u64).into(),
            mean(&walls).into(),
            deviation(&walls).into(),
            mean(&runs.iter().map(|run| run.user).collect::<Vec<f64>>()).into(),
            mean(&runs.iter().map(|run| run.system).collect::<Vec<f64>>()).into(),
            phase(runs, FILL, |phase| phase.wall).into(),
            phase(runs, FORK, |phase| phase.wall).into(),
            phase(runs, WRITE, |phase| phase.wall).into(),
            middle(runs, Whole::rest).into(),
        ]
    })
}

/// Shows for which phases they use the CPU, and how many pages they fault in.
pub(super) fn phases(measured: &Measured) -> Option<Table> {
    let mut columns = case_columns();
    columns.extend([
        Column::new("whole_cpu_s", "CPU time", Unit::Seconds),
        Column::new("whole_fill_cpu_s", "fill", Unit::Seconds),
        Column::new("whole_fill_faults", "page faults", Unit::Count),
        Column::new("whole_fork_cpu_s", "fork", Unit::Seconds),
        Column::new("whole_write_cpu_s", "write", Unit::Seconds),
        Column::new("whole_write_faults", "page faults", Unit::Count),
        Column::new("whole_rest_cpu_s", "rest", Unit::Seconds),
    ]);
    table(measured, "whole processes: CPU time and page faults of each phase (medians)", columns, |runs| {
        let faults = |at| phase(runs, at, |phase| phase.faults).map(|faults| faults.round() as u64);
        vec![
            middle(runs, Whole::cpu).into(),
            phase(runs, FILL, |phase| phase.cpu).into(),
            faults(FILL).into(),
            phase(runs, FORK, |phase| phase.cpu).into(),
            phase(runs, WRITE, |phase| phase.cpu).into(),
            faults(WRITE).into(),
            middle(runs, Whole::rest_cpu).into(),
        ]
    })
}

fn table(
    measured: &Measured,
    caption: &str,
    columns: Vec<Column>,
    cells: impl Fn(&[Whole]) -> Vec<Cell>,
) -> Option<Table> {
    let mut table = Table::new(caption, columns);
    for (case, runs) in &measured.whole {
        table.rows.push(case_cells(case).into_iter().chain(cells(runs)).collect());
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Says for each pattern which phase decides whether hugetlb or small pages are faster, at the largest size with an interval.
pub(super) fn why(measured: &Measured) -> Vec<String> {
    [Pattern::OnePerHuge, Pattern::Every]
        .into_iter()
        .filter_map(|pattern| why_of(measured, pattern))
        .collect()
}

fn why_of(measured: &Measured, pattern: Pattern) -> Option<String> {
    let of_pattern = || {
        measured.whole.iter().filter(|(case, runs)| case.pattern == pattern && runs.len() as u64 >= FEWEST)
    };
    let hugetlb =
        of_pattern().find_map(|(case, _)| matches!(case.pages, Pages::Hugetlb(_)).then_some(case.pages))?;
    let runs = |huge_pages, pages| measured.whole_runs(Case { huge_pages, pages, pattern });
    let sizes = of_pattern().filter(|(case, _)| case.pages == hugetlb).map(|(case, _)| case.huge_pages);
    let (size, small, huge) = sizes
        .filter_map(|size| Some((size, runs(size, Pages::Small)?, runs(size, hugetlb)?)))
        .max_by_key(|of| of.0)?;
    let ratio = |figure| whole_ratio(measured, (size, pattern), (hugetlb, Pages::Small), figure);
    let seconds = |seconds: f64| Unit::Seconds.show(seconds);
    let fill = |runs: &[Whole]| {
        Some((phase(runs, FILL, |phase| phase.cpu)?, phase(runs, FILL, |phase| phase.faults)?.max(1.0)))
    };
    let ((small_fill, small_faults), (huge_fill, huge_faults)) = (fill(small)?, fill(huge)?);
    let write = |runs: &[Whole]| phase(runs, WRITE, |phase| phase.cpu).map(seconds);
    let base = thp_page()?.bytes() / base_page().bytes();
    let copied = |each: u64, page: u64| human_bytes(size * each * page);
    let written = pattern.written(base);
    let source = match pattern {
        Pattern::Every => String::new(),
        Pattern::OnePerHuge | Pattern::Random => {
            format!("; the source: {} and {} for whole processes", SOURCE_SPARSE[0], SOURCE_SPARSE[1])
        }
    };
    Some(format!(
        "whole processes of {size} huge pages, {}: hugetlb takes {} of the CPU time of {}, and {} without the fill{source}. The \
         fill takes {small_faults:.0} page faults of {} on {} and {huge_faults:.0} of {} on hugetlb; the writes copy {} in {} \
         and {} in {}{}",
        name(pattern),
        shown(&ratio(Whole::cpu)?),
        Pages::Small.name(),
        shown(&ratio(Whole::after_fill)?),
        seconds(small_fill / small_faults),
        Pages::Small.name(),
        seconds(huge_fill / huge_faults),
        copied(written, base_page().bytes()),
        write(small)?,
        copied(1, thp_page()?.bytes()),
        write(huge)?,
        break_even(small, huge, small_fill, small_faults).unwrap_or_default(),
    ))
}

/// Says how long a page fault on small pages may take for both processes to be equally fast.
fn break_even(small: &[Whole], huge: &[Whole], fill: f64, faults: f64) -> Option<String> {
    let (small, huge) = (middle(small, Whole::cpu)?, middle(huge, Whole::cpu)?);
    let even = (huge - (small - fill)) / faults;
    let seconds = |seconds: f64| Unit::Seconds.show(seconds);
    Some(if even <= 0.0 {
        ". Even if the fill cost nothing on small pages, hugetlb would be faster".into()
    } else if huge < small {
        format!(
            ". If a page fault of the fill took less than {} on small pages, hugetlb would be slower",
            seconds(even)
        )
    } else {
        format!(
            ". If a page fault of the fill took more than {} on small pages, hugetlb would be faster",
            seconds(even)
        )
    })
}

fn shown(estimate: &Estimate) -> String {
    let ratio = |value: f64| Unit::Ratio.show(value);
    let interval = estimate.interval.map(|i| format!(" [{}, {}]", ratio(i.low), ratio(i.high)));
    ratio(estimate.point) + &interval.unwrap_or_default()
}

fn middle(runs: &[Whole], of: fn(&Whole) -> f64) -> Option<f64> {
    median(&runs.iter().map(of).collect::<Vec<f64>>()).ok()
}

fn phase(runs: &[Whole], at: usize, of: fn(&Phase) -> f64) -> Option<f64> {
    median(&runs.iter().map(|run| of(&run.phases[at])).collect::<Vec<f64>>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::PageSize;

    /// A process with the CPU time and the page faults of its fill, and the CPU time of its writes and of the rest.
    fn run((fill, faults): (f64, f64), write: f64, rest: f64) -> Whole {
        let cpu = |cpu, faults| Phase { wall: 2.0 * cpu, cpu, faults };
        let phases = [cpu(fill, faults), cpu(0.0, 0.0), cpu(write, 1.0)];
        Whole { wall: 2.0 * (fill + write + rest), user: fill, system: write + rest, phases }
    }

    fn measured(small: Whole, huge: Whole, pattern: Pattern) -> Measured {
        let of = |pages| Case { huge_pages: 256, pages, pattern };
        let whole =
            vec![(of(Pages::Small), vec![small; 6]), (of(Pages::Hugetlb(PageSize::MB2)), vec![huge; 6])];
        Measured { whole, ..Measured::default() }
    }

    #[test]
    fn issue_34_6_the_phase_that_decides_is_named() {
        let huge = run((0.08, 256.0), 0.1, 0.02);
        let slow = measured(run((0.3, 131_072.0), 0.001, 0.049), huge, Pattern::OnePerHuge);
        let said = &why(&slow)[0];
        assert!(
            said.contains("256 huge pages, one write per huge page: hugetlb takes 0.57 [0.57, 0.57]"),
            "{said}"
        );
        assert!(said.contains("2.40 [2.40, 2.40] without the fill; the source: 1.38 and 1.47"), "{said}");
        assert!(
            said.contains("131072 page faults of 2.29 µs on ") && said.contains("256 of 312 µs on hugetlb"),
            "{said}"
        );
        // (0.2 - 0.05) / 131072
        assert!(said.ends_with("less than 1.14 µs on small pages, hugetlb would be slower"), "{said}");
        let quick = measured(run((0.05, 131_072.0), 0.001, 0.049), huge, Pattern::OnePerHuge);
        assert!(
            why(&quick)[0].ends_with("more than 1.14 µs on small pages, hugetlb would be faster"),
            "{:?}",
            why(&quick)
        );
        let dense = measured(run((0.3, 131_072.0), 0.4, 0.049), huge, Pattern::Every);
        let said = &why(&dense)[0];
        assert!(said.ends_with("hugetlb would be faster") && !said.contains("source"), "{said}");
        assert!(why(&Measured::default()).is_empty());
    }

    #[test]
    fn issue_34_6_phases_add_up_to_the_process() {
        let small = run((0.3, 131_072.0), 0.4, 0.1);
        assert!((small.rest_cpu() - 0.1).abs() < 1e-9 && (small.rest() - 0.2).abs() < 1e-9, "{small:?}");
        assert!((small.after_fill() - 0.5).abs() < 1e-9, "{small:?}");
        let table = phases(&measured(small, small, Pattern::Every)).unwrap();
        let at = |key: &str| table.columns.iter().position(|column| column.key == key).unwrap();
        let Cell::Number(faults) = table.rows[0][at("whole_fill_faults")] else { panic!("{table:?}") };
        assert_eq!(faults, 131_072.0);
        assert_eq!(phases(&Measured::default()), None);
    }

    #[test]
    fn a_deviation_takes_two_values() {
        assert_eq!((mean(&[]), deviation(&[1.0])), (None, None));
        assert_eq!(deviation(&[1.0, 3.0]), Some(2.0_f64.sqrt()));
    }
}
