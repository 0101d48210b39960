// SPDX-License-Identifier: Apache-2.0
//! The columns of a table that name a case.

use super::case::Case;
use crate::results::unit::Unit;
use crate::results::{Cell, Column};

/// Returns the columns that name a case.
pub(super) fn key_columns() -> Vec<Column> {
    vec![
        Column::new("pages", "pages", Unit::Text),
        Column::new("touched", "touched", Unit::Text),
        Column::new("kind", "tasks are", Unit::Text),
        Column::new("tasks", "tasks", Unit::Count),
    ]
}

/// Returns their cells.
pub(super) fn key_cells(case: &Case) -> Vec<Cell> {
    vec![
        case.cycle.pages.name().into(),
        case.cycle.touch.name().into(),
        case.kind.name().into(),
        (case.tasks as u64).into(),
    ]
}
