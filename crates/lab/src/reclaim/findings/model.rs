// SPDX-License-Identifier: Apache-2.0
//! Shows what the model predicts, beside what was measured here and what was published.
//!
//! A scheme for which the model is off by more than [`OFF`] on this machine's own CPUs is not shown for
//! more.

use super::super::{DONATED, EPOCHS, LOCKED, Measured, SCHEMES, SPINNING};
use super::HUES;
use crate::contention::{self, Costs, SPINS, Scheme, Transfer};
use crate::cpus;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Hue, Outcome, Plot, Point, Scale, Series, Shape, Table};
use hugelift_measure::stats::median;

/// How far a prediction may be from the measurement.
const OFF: f64 = 2.0;

/// M. Macy, "Why is munmap single threaded and what can we do about it", scalebsd.org, May 2018: operations
/// per second of FreeBSD with all CPUs, with the lock and with epochs.
const LOCK: f64 = 1.009e6;
const WITH_EPOCHS: f64 = 3.551e6;

/// Number of CPUs in that measurement.
const CPUS: usize = 96;

/// The number of processes at which the throughput with the lock has its maximum there, and this maximum.
const PEAK: (usize, f64) = (12, 1.722e6);

/// A machine with as many CPUs as the literature's: two Xeon Platinum 8275CL, each with 24 cores of two
/// threads. Median latencies between cores, by <https://github.com/nviennot/core-to-core-latency>. The
/// literature does not name its machine.
const TWO_SOCKETS: Transfer = Transfer { within: 47.0, between: 134.0, socket: 48 };

/// Numbers of cores in the model.
const CORES: [usize; 11] = [1, 2, 4, 8, PEAK.0, 16, 24, 32, 48, 64, CPUS];

/// A rate that is no less than this share of another one has not fallen.
const PLATEAU: f64 = 0.8;

/// A scheme of the model.
#[derive(Clone, Copy)]
struct Model {
    scheme: Scheme,
    name: &'static str,
    hue: Hue,
    /// Operations per second in the literature, with all its CPUs.
    published: Option<f64>,
    /// Why prediction and publication differ.
    why: &'static str,
}

const MODELS: [Model; 4] = [
    Model {
        scheme: Scheme::Locked,
        name: SCHEMES[LOCKED].name,
        hue: HUES[LOCKED],
        published: Some(LOCK),
        why: "waiters of the source's lock spin while its holder runs; here they sleep soon",
    },
    Model {
        scheme: Scheme::Epochs,
        name: SCHEMES[EPOCHS].name,
        hue: HUES[EPOCHS],
        published: Some(WITH_EPOCHS),
        why: "the source then met its next limit, the accounting of swap reservations, which the model lacks",
    },
    Model {
        scheme: Scheme::Donated,
        name: SCHEMES[DONATED].name,
        hue: HUES[DONATED],
        published: None,
        why: "no figure of this operation is published for the list (r347695, review D19630)",
    },
    Model {
        scheme: Scheme::Spinning,
        name: SPINNING.name,
        hue: Hue::Small,
        published: Some(LOCK),
        why: "the source's waiters back off, so fewer of them take part in each hand-over, and they sleep if the holder does",
    },
];

/// A prediction for this machine, and the measurement.
#[derive(Clone, Copy)]
struct Check {
    model: usize,
    tasks: usize,
    predicted: f64,
    measured: f64,
}

impl Check {
    fn is_off(&self) -> bool {
        let ratio = self.predicted / self.measured;
        !(1.0 / OFF..=OFF).contains(&ratio)
    }
}

/// What a task does beside entering and exiting, and how long lines travel.
struct Case {
    work: &'static str,
    transfers: &'static str,
    /// The rates for each of [`CORES`]; `None` for a scheme that is not shown.
    rates: [[Option<f64>; MODELS.len()]; CORES.len()],
}

impl Case {
    fn title(&self) -> String {
        format!("{}, transfers {}", self.work, self.transfers)
    }

    /// Returns the number of cores with the highest rate, and this rate.
    fn peak(&self, model: usize) -> Option<(usize, f64)> {
        let rates = CORES.iter().zip(self.rates).filter_map(|(cores, all)| Some((*cores, all[model]?)));
        rates.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn at(&self, cores: usize, model: usize) -> Option<f64> {
        self.rates[CORES.iter().position(|&c| c == cores)?][model]
    }
}

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
            let rates = |turns: &[super::super::Turn]| turns.iter().map(|turn| turn.rate).collect();
            measured.spinning.iter().map(|(tasks, turns)| (*tasks, rates(turns))).collect()
        } else {
            let rates = |turns: &[super::super::Turn]| turns.iter().map(|turn| turn.rate).collect();
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

fn against_measurement(checks: &[Check]) -> Table {
    let mut table = Table::new(
        "model against measurement, with the costs measured here",
        vec![
            Column::new("scheme", "scheme", Unit::Text),
            Column::new("tasks", "tasks", Unit::Count),
            Column::new("predicted_per_second", "predicted", Unit::PerSecond),
            Column::new("measured_per_second", "measured", Unit::PerSecond),
            Column::new("ratio", "predicted / measured", Unit::Ratio),
        ],
    );
    for check in checks {
        table.rows.push(vec![
            MODELS[check.model].name.into(),
            (check.tasks as u64).into(),
            check.predicted.into(),
            check.measured.into(),
            (check.predicted / check.measured).into(),
        ]);
    }
    table
}

/// Says why a scheme is not shown for more cores; `None` if it is shown or was not measured.
fn suppressed(checks: &[Check], model: usize, disturbed: bool) -> Option<String> {
    let off = |check: &&Check| (check.predicted / check.measured).ln().abs();
    let worst = checks.iter().filter(|check| check.model == model && check.is_off());
    let worst = worst.max_by(|a, b| off(a).total_cmp(&off(b)))?;
    Some(format!(
        "the model predicts {:.2} M operations/s for {} with {} where {:.2} M were measured{}, so it is not \
         shown for more",
        worst.predicted / 1e6,
        if worst.tasks == 1 { "one task".into() } else { format!("{} tasks", worst.tasks) },
        MODELS[model].name,
        worst.measured / 1e6,
        if disturbed { " (disturbed)" } else { "" }
    ))
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

fn case_cells(case: &Case) -> Vec<Cell> {
    vec![case.work.into(), case.transfers.into()]
}

fn case_columns() -> Vec<Column> {
    vec![Column::new("work", "work", Unit::Text), Column::new("transfers", "transfers", Unit::Text)]
}

fn more_cores(cases: &[Case]) -> Table {
    let mut columns = case_columns();
    columns.extend([
        Column::new("cores", "cores", Unit::Count),
        Column::new("lock_per_second", MODELS[0].name, Unit::PerSecond),
        Column::new("epochs_per_second", MODELS[1].name, Unit::PerSecond),
        Column::new("list_per_second", MODELS[2].name, Unit::PerSecond),
        Column::new("spinning_per_second", MODELS[3].name, Unit::PerSecond),
    ]);
    let mut table = Table::new("model of more cores, with a task on each", columns);
    for case in cases {
        for (cores, rates) in CORES.iter().zip(case.rates) {
            let mut row = case_cells(case);
            row.push((*cores as u64).into());
            row.extend(rates.map(Into::into));
            table.rows.push(row);
        }
    }
    table
}

/// Puts the literature's figures beside the predictions of the same work.
fn against_publication(cases: &[Case]) -> Table {
    let mut columns = case_columns();
    columns.extend([
        Column::new("scheme", "scheme", Unit::Text),
        Column::new("cores", "cores", Unit::Count),
        Column::new("predicted_per_second", "predicted", Unit::PerSecond),
        Column::new("published_per_second", "published", Unit::PerSecond),
        Column::new("ratio", "predicted / published", Unit::Ratio),
        Column::new("why", "why they differ", Unit::Text),
    ]);
    let mut table = Table::new("prediction and publication", columns);
    // The first case has another work than the literature.
    for case in cases.iter().skip(1) {
        for (model, Model { scheme, name, published, why, .. }) in MODELS.iter().enumerate() {
            let peak = (*scheme == Scheme::Spinning).then_some((PEAK.0, Some(PEAK.1)));
            for (cores, published) in peak.into_iter().chain([(CPUS, *published)]) {
                let predicted = case.at(cores, model);
                let why =
                    if predicted.is_some() { *why } else { "not predicted: the model failed its check" };
                let mut row = case_cells(case);
                row.extend([
                    (*name).into(),
                    (cores as u64).into(),
                    predicted.into(),
                    published.into(),
                    predicted.zip(published).map(|(predicted, published)| predicted / published).into(),
                    why.into(),
                ]);
                table.rows.push(row);
            }
        }
    }
    table
}

/// Shows where the throughput with a lock has its maximum, and how much of it is left on all CPUs.
fn peaks(cases: &[Case]) -> Table {
    let mut columns = case_columns();
    columns.extend([
        Column::new("lock", "lock", Unit::Text),
        Column::new("peak_cores", "cores at its maximum", Unit::Count),
        Column::new("peak_per_second", "maximum", Unit::PerSecond),
        Column::new("all_to_peak", "share of it on 96 cores", Unit::Ratio),
    ]);
    let mut table = Table::new("where the throughput with a lock has its maximum", columns);
    table.rows.push(vec![
        "the source's".into(),
        "the source's".into(),
        "FreeBSD, measured".into(),
        (PEAK.0 as u64).into(),
        PEAK.1.into(),
        (LOCK / PEAK.1).into(),
    ]);
    for case in cases {
        for (model, Model { name, .. }) in locks() {
            let Some((cores, most)) = case.peak(model) else { continue };
            let mut row = case_cells(case);
            row.extend([
                (*name).into(),
                (cores as u64).into(),
                most.into(),
                case.at(CPUS, model).map(|all| all / most).into(),
            ]);
            table.rows.push(row);
        }
    }
    table
}

fn locks() -> impl Iterator<Item = (usize, &'static Model)> {
    MODELS.iter().enumerate().filter(|(_, model)| matches!(model.scheme, Scheme::Locked | Scheme::Spinning))
}

/// Says what a model of a lock lacks that does not fall where the source's does.
fn plateau(cases: &[Case]) -> Option<String> {
    let flat = cases.iter().skip(1).flat_map(|case| {
        let all = locks().filter(|(model, _)| {
            let few = case.at(PEAK.0, *model);
            few.zip(case.at(CPUS, *model)).is_some_and(|(few, all)| all > PLATEAU * few)
        });
        all.map(|(_, model)| format!("'{}', transfers {}", model.name, case.transfers))
    });
    let flat: Vec<String> = flat.collect();
    (!flat.is_empty()).then(|| {
        format!(
            "the source's throughput with the lock falls from {} to {CPUS} CPUs, the model's does not ({}): its waiters \
             sleep, and a sleeper costs the others nothing; the model lacks what makes waking dearer with more sleepers, \
             such as the lock of the futex's queue and the run queues",
            PEAK.0,
            flat.join("; ")
        )
    })
}

/// Says what the model rests on: the measured costs, its rules, and the figures of the literature.
fn notes(costs: &Costs, measured: &Measured) -> [String; 4] {
    let unmapping = measured.unmapping.map_or(String::new(), |work| {
        format!(", mapping and unmapping 128 MB without touching it {work:.0} ns")
    });
    let costs = format!(
        "the costs in the model, measured here: a cache line from core to core {:.0} ns, an atomic operation {:.1} ns, \
         taking and releasing the lock {:.1} ns (the spinning one {:.1}), a round of spinning {:.1} ns, waking a sleeper \
         {:.0} ns and {:.0} ns until it runs, the same system calls without a sleeper {:.0} and {:.0} ns, work \
         {:.0} ns{unmapping}; nothing of the literature's throughput goes into the model",
        costs.transfer.within,
        costs.atomic,
        costs.held,
        costs.held_spinning,
        costs.pause,
        costs.wake,
        costs.awake,
        costs.wake_nobody,
        costs.refused,
        costs.work
    );
    let transfers = format!(
        "transfers as published: {:.0} ns within a socket and {:.0} ns between two, medians of two Xeon Platinum 8275CL \
         with {CPUS} CPUs (github.com/nviennot/core-to-core-latency); the source does not name its machine",
        TWO_SOCKETS.within, TWO_SOCKETS.between
    );
    let rules = format!(
        "the rules of the model, from the literature: a line goes to one core at a time, and handing over a lock brings \
         it to all spinning waiters (Boyd-Wickizer and others, \"Non-scalable locks are dangerous\", 2012); a core keeps \
         a line until a request reaches it, and so can take its lock again before another (Radović and Hagersten, \
         2003); a waiter for this library's lock spins {SPINS} times, then sleeps (futex(2)); in a kernel it spins on"
    );
    let literature = format!(
        "the source (M. Macy, scalebsd.org, May 2018): FreeBSD, mmap1_processes of will-it-scale, {:.3} M operations/s \
         on {CPUS} CPUs with the lock, {:.3} M with epochs: 252.0 % ± 1.1 % more at 95 % confidence; with the lock the \
         maximum is {:.3} M with {} processes. FreeBSD took its lock for each munmap(2) of each process, Linux has no \
         such lock. FreeBSD replaced the lock by the lock-free list in 2019 (r347695, review D19630)",
        LOCK / 1e6,
        WITH_EPOCHS / 1e6,
        PEAK.1 / 1e6,
        PEAK.0
    );
    [costs, transfers, rules, literature]
}

fn plot(case: &Case) -> Plot {
    let points = |model: usize| {
        let rates = CORES.iter().zip(case.rates);
        rates
            .filter_map(|(cores, all)| Some(Point { x: *cores as f64, y: all[model]?, range: None }))
            .collect()
    };
    let series = MODELS.iter().enumerate().map(|(model, Model { name, hue, .. })| Series {
        name: (*name).into(),
        hue: *hue,
        shape: Shape::Dashed,
        points: points(model),
    });
    let published = |name: &str, hue, points: &[(usize, f64)]| Series {
        name: name.into(),
        hue,
        shape: Shape::Points,
        points: points.iter().map(|&(x, y)| Point { x: x as f64, y, range: None }).collect(),
    };
    // This experiment's own work is not that of the literature.
    let literature = if matches!(case.work, "this experiment's work") {
        Vec::new()
    } else {
        vec![
            published("FreeBSD, lock", HUES[LOCKED], &[PEAK, (CPUS, LOCK)]),
            published("FreeBSD, epochs", HUES[EPOCHS], &[(CPUS, WITH_EPOCHS)]),
        ]
    };
    Plot {
        title: format!("model: operations by number of cores, {}", case.title()),
        x: Scale::logarithmic("cores", Unit::Count),
        y: Scale::logarithmic("operations of all cores", Unit::PerSecond),
        series: series.filter(|series| !series.points.is_empty()).chain(literature).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Turn;
    use super::*;

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
