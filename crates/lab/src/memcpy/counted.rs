// SPDX-License-Identifier: Apache-2.0
//! Shows what was counted of each copy.

use super::counts::{EVENTS, Event, Per, cycles_per_instruction};
use super::group::{Group, name};
use super::measured::Measured;
use crate::results::unit::Unit;
use crate::results::{Cell, Column, Table};

/// Shows what was counted of one copy of each kind. An event that no CPU here counts has no column; a note names it.
pub(super) fn table(measured: &Measured) -> Option<Table> {
    let all = || measured.sizes.iter().flat_map(|size| size.timed.iter().filter_map(|timed| timed.counts));
    let is_counted = |index: usize| all().any(|figures| figures[index].is_some());
    let shown: Vec<usize> = (0..EVENTS.len()).filter(|index| is_counted(*index)).collect();
    let has_cpi = all().any(|figures| cycles_per_instruction(&figures).is_some());
    let mut columns =
        vec![Column::new("block_bytes", "block", Unit::Bytes), Column::new("copy", "copy", Unit::Text)];
    for &index in &shown {
        let Event { name, per, .. } = EVENTS[index];
        let unit = if per == Per::Kilobyte { "kb" } else { "copy" };
        let key = format!("{}_per_{unit}", name.replace([' ', '-'], "_"));
        columns.push(Column::new(&key, name, Unit::Ratio));
    }
    columns.extend(has_cpi.then(|| Column::new("cycles_per_instruction", "cycles/instruction", Unit::Ratio)));
    let caption =
        "what was counted: events of the CPU for each kB that is copied, events of the kernel for each copy";
    let mut table = Table::new(caption, columns);
    for size in &measured.sizes {
        for timed in &size.timed {
            let Some(figures) = timed.counts else { continue };
            let mut row: Vec<Cell> = vec![
                (size.bytes as u64).into(),
                format!("{} {}", Group::of(timed.kind).title(), name(timed.kind).0).into(),
            ];
            row.extend(shown.iter().map(|index| Cell::from(figures[*index])));
            row.extend(has_cpi.then(|| Cell::from(cycles_per_instruction(&figures))));
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty() && !shown.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcpy::counts::Figures;
    use crate::memcpy::kind::Kind;
    use crate::memcpy::measured::{Size, Timed};

    fn with(counts: Figures) -> Option<Table> {
        let timed = Timed { kind: Kind::HUGE_ZERO, times: vec![], wall: vec![], counts: Some(counts) };
        let size = Size { bytes: 4 << 20, timed: vec![timed], disturbed: false };
        table(&Measured { sizes: vec![size], ..Measured::default() })
    }

    fn figure(table: &Table, key: &str) -> Option<f64> {
        let at = table.columns.iter().position(|column| column.key == key)?;
        match table.rows[0][at] {
            Cell::Number(figure) => Some(figure),
            ref other => panic!("{other:?}"),
        }
    }

    /// Given counts of a CPU with a PMU, and of a guest without.
    #[test]
    fn issue_34_6_a_pmu_gives_a_column_for_each_event() {
        let mut figures = std::array::from_fn(|at| Some(at as f64 + 1.0));
        let all = with(figures).unwrap();
        assert_eq!(all.columns.len(), 2 + EVENTS.len() + 1);
        assert_eq!(figure(&all, "cycles_per_kb"), Some(1.0));
        assert_eq!(figure(&all, "cycles_per_instruction"), Some(0.5));
        assert_eq!(figure(&all, "last_level_load_misses_per_kb"), Some(7.0));
        assert_eq!(figure(&all, "context_switches_per_copy"), Some(11.0));
        figures[..9].fill(None);
        let guest = with(figures).unwrap();
        assert_eq!(guest.columns.len(), 2 + 3);
        assert_eq!(figure(&guest, "page_faults_per_copy"), Some(10.0));
        assert_eq!(figure(&guest, "cycles_per_instruction"), None);
        assert_eq!(with(Figures::default()), None);
    }
}
