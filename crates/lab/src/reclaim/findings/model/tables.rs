// SPDX-License-Identifier: Apache-2.0
//! The tables and plots of the predictions.

use super::models::{MODELS, Model, locks};
use super::predicted::{CORES, Case, Check};
use super::published::{CPUS, LOCK, PEAK, WITH_EPOCHS};
use crate::contention::Scheme;
use crate::reclaim::compared::{EPOCHS, HUES, LOCKED};
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Plot, Point, Scale, Series, Shape, Table};

fn case_columns() -> Vec<Column> {
    vec![Column::new("work", "work", Unit::Text), Column::new("transfers", "transfers", Unit::Text)]
}

fn case_cells(case: &Case) -> Vec<Cell> {
    vec![case.work.into(), case.transfers.into()]
}

pub(super) fn against_measurement(checks: &[Check]) -> Table {
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

pub(super) fn more_cores(cases: &[Case]) -> Table {
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
pub(super) fn against_publication(cases: &[Case]) -> Table {
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
pub(super) fn peaks(cases: &[Case]) -> Table {
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

pub(super) fn plot(case: &Case) -> Plot {
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
