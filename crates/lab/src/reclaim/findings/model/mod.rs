// SPDX-License-Identifier: Apache-2.0
//! Shows what the model predicts, beside what was measured here and what was published.
//!
//! A scheme for which the model is off by more than [`predicted::OFF`] on this machine's own CPUs is not shown for
//! more.

mod models;
mod predicted;
mod published;
mod statements;
mod tables;

use crate::contention::{self, Costs, Scheme};
use crate::cpus;
use crate::reclaim::measured::Measured;
use crate::reclaim::tasks::Turn;
use crate::results::Outcome;
use hugelift_measure::stats::median;
use models::{MODELS, Model};
use predicted::{CORES, Case, Check};
use published::{CPUS, TWO_SOCKETS};
use statements::{notes, plateau, suppressed};
use tables::{against_measurement, against_publication, more_cores, peaks, plot};

/// Adds the predictions, as far as the model predicts what was measured here. Returns what the advice adds
/// about more cores.
pub fn add(outcome: &mut Outcome, measured: &Measured, costs: Costs) -> String {
    let checks = checks(measured, &costs);
    if !checks.is_empty() {
        outcome.tables.push(against_measurement(&checks));
    }
    // A scheme without measurements is not shown either.
    let shown: [bool; MODELS.len()] = std::array::from_fn(|model| {
        let mut own = checks.iter().filter(|check| check.model == model).peekable();
        own.peek().is_some() && own.all(|check| !check.is_off())
    });
    let cases: Vec<Case> = works(measured, costs).map(|case| predict(case, shown)).collect();
    if shown.contains(&true) {
        outcome.tables.push(more_cores(&cases));
        outcome.plots.extend(cases.iter().map(plot));
    }
    outcome.tables.push(against_publication(&cases));
    outcome.tables.push(peaks(&cases));
    outcome.notes.extend(
        MODELS.iter().enumerate().filter_map(|(model, _)| suppressed(&checks, model, measured.disturbed)),
    );
    outcome.notes.extend(notes(&costs, measured));
    outcome.notes.extend(plateau(&cases));
    if cfg!(debug_assertions) {
        outcome
            .notes
            .push("this is a debug build of hugelift: its figures are not those of a release build".into());
    }
    let cpus = cpus::count();
    match (cpus < CPUS, shown.contains(&true)) {
        (false, _) => String::new(),
        (true, true) => format!("; on {cpus} CPUs no more than {cpus} tasks run at once; the model has more"),
        (true, false) => format!(
            "; on {cpus} CPUs no more than {cpus} tasks run at once, and the model of more does not \
             agree with these measurements"
        ),
    }
}

/// Compares the model with what was measured, for each number of tasks that each have a CPU.
fn checks(measured: &Measured, costs: &Costs) -> Vec<Check> {
    let mut checks = Vec::new();
    for (model, Model { scheme, .. }) in MODELS.iter().enumerate() {
        let rates: Vec<(usize, Vec<f64>)> = if *scheme == Scheme::Spinning {
            let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.rate).collect();
            measured.spinning.iter().map(|(tasks, turns)| (*tasks, rates(turns))).collect()
        } else {
            let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.rate).collect();
            measured.turns.iter().map(|(tasks, all)| (*tasks, rates(&all[model]))).collect()
        };
        for (tasks, rates) in rates.into_iter().filter(|(tasks, _)| *tasks <= cpus::count()) {
            let Ok(measured) = median(&rates) else { continue };
            let predicted = contention::throughput(*scheme, tasks, costs);
            checks.push(Check { model, tasks, predicted, measured });
        }
    }
    checks
}

type Work = (&'static str, &'static str, Costs);

fn works(measured: &Measured, costs: Costs) -> impl Iterator<Item = Work> {
    const MMAP: &str = "mapping and unmapping 128 MB";
    let mapping = measured.unmapping.map(|work| Costs { work, ..costs });
    let far = mapping.map(|costs| Costs { transfer: TWO_SOCKETS, ..costs });
    [
        Some(("this experiment's work", "as measured here", costs)),
        mapping.map(|costs| (MMAP, "as measured here", costs)),
        far.map(|costs| (MMAP, "as published for two sockets", costs)),
    ]
    .into_iter()
    .flatten()
}

fn predict((work, transfers, costs): Work, shown: [bool; MODELS.len()]) -> Case {
    let rates = CORES.map(|cores| {
        std::array::from_fn(|model| {
            shown[model].then(|| contention::throughput(MODELS[model].scheme, cores, &costs))
        })
    });
    Case { work, transfers, rates }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::Transfer;
    use crate::reclaim::compared::{DONATED, EPOCHS, LOCKED, SCHEMES, SPINNING};
    use crate::results::Cell;

    const COSTS: Costs = Costs {
        transfer: Transfer::flat(100.0),
        atomic: 2.0,
        held: 5.0,
        held_spinning: 5.0,
        pause: 20.0,
        wake: 5000.0,
        awake: 20_000.0,
        wake_nobody: 200.0,
        refused: 200.0,
        epochs: 3.0,
        work: 5.0,
        between_waits: 2e5,
    };

    /// Measurements of one task that the model predicts, but for these factors.
    fn measured(factors: [f64; MODELS.len()]) -> Measured {
        let turns = |model: usize| {
            let rate = factors[model] * contention::throughput(MODELS[model].scheme, 1, &COSTS);
            vec![Turn { rate, cpu: 1.0, longest_wait: None }]
        };
        let mut all: [Vec<Turn>; SCHEMES.len()] = Default::default();
        for (model, kept) in all.iter_mut().enumerate().take(3) {
            *kept = turns(model);
        }
        Measured {
            turns: vec![(1, all)],
            spinning: vec![(1, turns(3))],
            unmapping: Some(3000.0),
            ..Measured::default()
        }
    }

    fn outcome(factors: [f64; MODELS.len()]) -> (Outcome, String) {
        let mut outcome = Outcome::default();
        let words = add(&mut outcome, &measured(factors), COSTS);
        (outcome, words)
    }

    fn rows<'a>(outcome: &'a Outcome, caption: &str) -> &'a [Vec<Cell>] {
        let table = outcome.tables.iter().find(|table| table.caption.starts_with(caption));
        table.map_or(&[], |table| &table.rows)
    }

    #[test]
    fn a_scheme_is_only_shown_if_the_model_predicts_what_was_measured() {
        let (good, words) = outcome([1.0, 1.9, 0.6, 1.0]);
        assert_eq!(rows(&good, "model against").len(), 4);
        let more = rows(&good, "model of more cores");
        assert_eq!(more.len(), 3 * CORES.len());
        assert!(more.iter().flatten().all(|cell| *cell != Cell::Nothing), "{more:?}");
        assert!(!good.notes.iter().any(|note| note.contains("not shown")), "{:?}", good.notes);
        assert!(words.is_empty() || words.ends_with("the model has more"), "{words}");

        // Three times too much for the lock, three times too little for the list.
        let (bad, _) = outcome([1.0 / 3.0, 1.0, 3.0, 1.0]);
        for row in rows(&bad, "model of more cores") {
            let shown: Vec<bool> = row[3..].iter().map(|cell| *cell != Cell::Nothing).collect();
            assert_eq!(shown, [false, true, false, true]);
        }
        let notes: Vec<_> = bad.notes.iter().filter(|note| note.contains("not shown for more")).collect();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("one task with one lock where"), "{notes:?}");
        for row in rows(&bad, "prediction and publication") {
            let shown = row[4] != Cell::Nothing;
            assert_eq!(shown, row[2] == "epochs".into() || row[2] == SPINNING.name.into(), "{row:?}");
            assert_eq!(row[6] != Cell::Nothing, shown && row[5] != Cell::Nothing, "{row:?}");
        }

        let (none, words) = outcome([9.0; MODELS.len()]);
        assert!(rows(&none, "model of more cores").is_empty() && none.plots.is_empty());
        assert!(words.is_empty() || words.ends_with("does not agree with these measurements"), "{words}");
        // What was not measured is not shown either.
        let mut empty = Outcome::default();
        add(&mut empty, &Measured::default(), COSTS);
        assert!(rows(&empty, "model").is_empty());
    }

    #[test]
    fn the_publication_is_that_of_the_epochs() {
        let (outcome, _) = outcome([1.0; MODELS.len()]);
        let published = |scheme: usize, cores: u64| {
            let row = rows(&outcome, "prediction and publication")
                .iter()
                .find(|row| row[2] == MODELS[scheme].name.into() && row[3] == Cell::from(cores));
            row.map(|row| row[5].clone())
        };
        assert_eq!(published(EPOCHS, 96), Some(Cell::Number(3.551e6)));
        assert_eq!(published(DONATED, 96), Some(Cell::Nothing));
        assert_eq!(published(LOCKED, 96), Some(Cell::Number(1.009e6)));
        assert_eq!(published(3, 12), Some(Cell::Number(1.722e6)));
        // Nothing but the work of the epochs limits them: the prediction does not come from the publication.
        let predicted = |work: f64| 96e9 / (work + COSTS.epochs);
        let row = &rows(&outcome, "prediction and publication")[1];
        assert!(
            matches!(row[4], Cell::Number(rate) if (rate / predicted(3000.0) - 1.0).abs() < 0.01),
            "{row:?}"
        );
    }

    #[test]
    fn where_a_lock_has_its_maximum() {
        let mut rates = [[None; MODELS.len()]; CORES.len()];
        for (i, rate) in [1.0_f64, 2.0, 4.0, 7.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 2.0].into_iter().enumerate() {
            rates[i][0] = Some(rate);
            rates[i][3] = Some(rate.min(5.0));
        }
        let case = |rates| Case { work: "w", transfers: "t", rates };
        let cases = [case([[None; MODELS.len()]; CORES.len()]), case(rates)];
        assert_eq!(cases[1].peak(0), Some((12, 8.0)));
        let table = peaks(&cases);
        let share = |row: usize| table.rows[row][5].clone();
        assert_eq!((table.rows.len(), share(1)), (3, Cell::Number(0.25)));
        assert!(matches!(share(0), Cell::Number(share) if (share - 0.586).abs() < 0.001));
        assert_eq!(plateau(&cases), None);
        for all in rates.iter_mut().skip(4) {
            all[0] = Some(8.0);
        }
        let words = plateau(&[case([[None; MODELS.len()]; CORES.len()]), case(rates)]).unwrap();
        assert!(words.contains("('one lock', transfers t)"), "{words}");
    }
}
