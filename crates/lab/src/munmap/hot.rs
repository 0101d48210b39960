// SPDX-License-Identifier: Apache-2.0
//! Shows in which functions of the kernel tasks were at work.

use super::at_work::{Places, Work};
use super::case::Measured;
use super::keys::{key_cells, key_columns};
use super::tasks::Kind;
use crate::results::unit::Unit;
use crate::results::{Column, Table};

/// How many functions of a case are shown.
const MOST: usize = 5;

/// Functions with less are left out.
const LEAST: f64 = 0.01;

/// Shows the functions with the most samples of each case, each with what a task does there.
pub(super) fn table(measured: &[Measured]) -> Option<Table> {
    let mut columns = key_columns();
    columns.extend([
        Column::new("function", "function", Unit::Text),
        Column::new("function_percent", "of samples", Unit::Percent),
        Column::new("function_samples", "samples", Unit::Count),
        Column::new("function_work", "where a task", Unit::Text),
    ]);
    let mut table = Table::new("where tasks are at work, by samples of the CPU clock", columns);
    for one in measured {
        let Ok(places) = &one.at_work else { continue };
        for (function, samples) in places.most(MOST) {
            let share = places.share(samples);
            if share < LEAST {
                break;
            }
            let mut row = key_cells(&one.case);
            row.push(function.into());
            row.push((100.0 * share).into());
            row.push(samples.into());
            row.push(Work::of(function).map(Work::name).into());
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Names the functions in which tasks were at work most, as in `clear_page_erms 41 %, zap_pte_range 12 %`.
pub(super) fn at_work(places: &Places) -> String {
    let most = places.most(3);
    let shown = |(name, samples): &(&str, u64)| format!("{name} {:.0} %", 100.0 * places.share(*samples));
    most.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Says how much of their CPU time threads spin for a lock, or why that is not known.
pub(super) fn note(measured: &[Measured]) -> Option<String> {
    if let Some(why) = measured.iter().find_map(|one| one.at_work.as_ref().err()) {
        return Some(why.clone());
    }
    let of_threads = measured.iter().filter(|m| m.case.kind == Kind::Threads && m.case.tasks > 1);
    let spins = of_threads.filter_map(|m| Some((m, m.at_work.as_ref().ok()?.spinning()?)));
    let (case, share) = spins.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let places = case.at_work.as_ref().ok().map(at_work).unwrap_or_default();
    Some(format!(
        "{}: tasks spin for locks in {:.0} % of their CPU time (samples by the CPU clock; most are in {places})",
        case.case.name(),
        100.0 * share
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;
    use crate::munmap::case::Case;
    use crate::munmap::{Cycle, Touch};
    use crate::results::Cell;

    fn of(kind: Kind, at_work: Result<Places, String>) -> Measured {
        let case = Case { kind, cycle: Cycle { pages: Pages::Small, touch: Touch::None }, tasks: 2 };
        Measured { case, samples: vec![], asleep: None, at_work, cpu: vec![], disturbed: false }
    }

    #[test]
    fn issue_34_6_the_functions_with_the_most_samples_are_shown() {
        let spins = Places::given(&[
            ("rwsem_spin_on_owner", 40),
            ("do_mmap", 35),
            ("", 24),
            ("rare", 1),
            ("rarer", 0),
        ]);
        let measured = [of(Kind::Processes, Ok(Places::default())), of(Kind::Threads, Ok(spins))];
        let table = table(&measured).unwrap();
        let shown: Vec<[&Cell; 4]> =
            table.rows.iter().map(|row| [&row[4], &row[5], &row[6], &row[7]]).collect();
        assert_eq!(shown.len(), 4, "{shown:?}");
        let spins = [
            Cell::from("rwsem_spin_on_owner"),
            Cell::from(40.0),
            Cell::from(40_u64),
            Cell::from("spins for a lock"),
        ];
        assert_eq!(shown[0], spins.each_ref());
        assert_eq!(shown[1][3], &Cell::from(None::<&str>), "{shown:?}");
        assert_eq!(shown[2][0], &Cell::from("user space"));
        let said = note(&measured).unwrap();
        assert!(said.contains("tasks spin for locks in 40 % of their CPU time"), "{said}");
    }

    #[test]
    fn issue_34_6_why_nothing_is_seen_is_said_once() {
        let hidden = || Err("kallsyms hides the addresses".to_string());
        let measured = [of(Kind::Threads, hidden()), of(Kind::Processes, hidden())];
        assert_eq!(note(&measured).as_deref(), Some("kallsyms hides the addresses"));
        assert_eq!(table(&measured), None);
    }
}
