// SPDX-License-Identifier: Apache-2.0
//! A [`PartsComparison`] as text: a table of the parts, what each of them gains, and remarks.

use super::live::parts_remarks;
use super::range;
use super::shown::{interval, percent};
use crate::paint::paint;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::printable_lines;
use hugelift_core::table::{LEFT, RIGHT, Table};
use hugelift_measure::comparison::Finding;
use hugelift_measure::comparison::by_part::{By, PartsComparison, Unit, UnitResult, Warmth};

/// Returns the comparison as text; each line ends with a newline. With `colour` gains are green and losses red.
pub fn text(comparison: &PartsComparison, colour: bool) -> String {
    let mut out = format!("{}\n\n", comparison.setting.host);
    let mut table = Table::new([LEFT, RIGHT, RIGHT, LEFT]);
    let by = match comparison.by {
        By::Part => "part",
        By::Object => "object",
        By::Heat => "code by heat",
    };
    table.row([by, "size", "huge / small", comparison.setting.figure.words()]);
    for result in &comparison.parts {
        let ratio = result.ratio.as_ref().map_or_else(|| "-".into(), interval);
        let size = human_bytes(result.unit.bytes);
        table.row([name(&result.unit), size, ratio, found(comparison, result, colour)]);
    }
    out += &table.to_string();
    out.push('\n');
    let pairs = comparison.pairs.len();
    out += &format!(
        "The intervals are of {pairs} pairs, and hold for all parts together with a confidence of 95 %. Each part was on huge \
         pages in one period of each pair, drawn for it, and on small ones in the other.\n"
    );
    for unit in &comparison.left_out {
        let (name, bytes) = (name(unit), human_bytes(unit.bytes));
        out += &match unit.part {
            Some(part) if part.is_writable() => format!(
                "memory that it has written to ({bytes}) had the same pages in all periods, because huge pages may add to it: \
                 '--parts text,rodata,heap,anon' compares it too.\n"
            ),
            _ => format!("{name} had the same pages in all periods: smaps shows no change of it.\n"),
        };
    }
    for line in parts_remarks(&comparison.setting) {
        out += &line;
        out.push('\n');
    }
    // Colours are put in by `found`, and names are escaped by `name`.
    if colour { out } else { printable_lines(&out) }
}

/// Returns a part as people call it.
fn name(unit: &Unit) -> String {
    match (&unit.object, unit.part) {
        (Some(object), Some(part)) => {
            let warmth = match unit.warmth {
                Some(Warmth::Hot) => "hot ",
                Some(Warmth::Cold) => "cold ",
                None => "",
            };
            format!("{warmth}{part} of {object}")
        }
        (Some(object), None) => object.to_string(),
        (None, Some(part)) => part.to_string(),
        (None, None) => "the smaller ones together".into(),
    }
}

/// Says what a part gains.
fn found(comparison: &PartsComparison, result: &UnitResult, colour: bool) -> String {
    let (better, worse) =
        if comparison.setting.higher_is_better { ("more", "less") } else { ("less", "more") };
    match result.finding {
        Finding::Faster { from, to } => paint(colour, "1;32", &format!("{} % {better}", range(from, to))),
        Finding::Slower { from, to } => paint(colour, "1;31", &format!("{} % {worse}", range(from, to))),
        Finding::NoDifference { smallest_seen } => {
            format!("no difference seen, at most {} %", percent(smallest_seen))
        }
        _ => "too few pairs".into(),
    }
}
