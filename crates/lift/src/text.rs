// SPDX-License-Identifier: Apache-2.0
//! A [`Report`] as text: a table, and a bar for each part in which each cell is a huge page.

use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::advice::About;
use hugelift_core::policy::SpanChoice;
use hugelift_core::printable::{Escape, printable, thousands};
use hugelift_core::report::{Entries, Fragment, Gain, ObjectReport, PartReport, Report, SkipReport};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::Part;
use hugelift_core::table::{LEFT, RIGHT, Table};
use std::fmt::Write as _;

mod data;
mod folios;
mod heat;
mod memory;

/// How to show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether each object and part with nothing to lift is shown, with its path.
    pub verbose: bool,
}

/// Shorter bars would only repeat the table.
const MIN_CELLS: u64 = 2;
/// The least width of a bar.
const MIN_WIDTH: usize = 10;
/// Names of folded objects that are listed before an ellipsis.
const NAMED: usize = 6;

/// Returns the report as text; each line ends with a newline.
pub fn text(report: &Report, style: &Style) -> String {
    let mut out = String::new();
    if report.assumed_addresses {
        out += "not running: its addresses are assumed; a run may load it elsewhere, with other edges\n";
    }
    table(&mut out, report, style);
    folded(&mut out, report, style);
    bars(&mut out, report, style);
    totals(&mut out, report, style);
    entries(&mut out, report);
    page_cache(&mut out, report);
    gains(&mut out, report);
    if let Some(sizes) = &report.folios {
        out += &folios::folios(sizes, report.usual_page.bytes(), style.verbose);
    }
    if let Some(heat) = &report.heat {
        out += &heat::heat(heat, style.verbose);
    }
    if let Some(data) = &report.data {
        out += &data::data(data, style.verbose);
    }
    out
}

/// Whether a part is shown: something of it is huge, or it was asked for and something of it could be.
fn is_shown(part: &PartReport, style: &Style) -> bool {
    let asked = part.skips.iter().any(|s| s.reason != Reason::PartNotAsked(part.part).key());
    style.verbose || part.huge_bytes > 0 || (part.liftable_bytes > 0 && asked)
}

fn shown<'a>(object: &'a ObjectReport, style: &Style) -> Vec<&'a PartReport> {
    object.parts.iter().filter(|p| is_shown(p, style)).collect()
}

fn name(object: &ObjectReport) -> String {
    object.path.file_name().unwrap_or(object.path.as_os_str()).escaped().to_string()
}

fn table(out: &mut String, report: &Report, style: &Style) {
    let mut table = Table::new([LEFT, LEFT, RIGHT, RIGHT, RIGHT, LEFT]);
    table.row(["OBJECT", "PART", "SIZE", "LIFTABLE", "HUGE", "BACKING"]);
    let mut any = false;
    for object in &report.objects {
        let mut label = if style.verbose { object.path.to_string() } else { name(object) };
        for part in shown(object, style) {
            table.row(cells(&label, part));
            for skip in &part.skips {
                table.across(1, reason(skip));
            }
            label = String::new();
            any = true;
        }
    }
    if any {
        *out += &table.to_string();
    }
}

fn cells(label: &str, part: &PartReport) -> [String; 6] {
    [
        label.to_string(),
        part.part.to_string(),
        human_bytes(part.bytes),
        human_bytes(part.liftable_bytes),
        human_bytes(part.huge_bytes),
        part.backing.map_or("-".into(), |b| b.to_string()),
    ]
}

fn reason(skip: &SkipReport) -> String {
    let mut line = format!("{}: {}", human_bytes(skip.bytes), printable(&skip.detail));
    if let Some(hint) = &skip.hint {
        let _ = write!(line, "; {hint}");
    }
    line
}

fn folded(out: &mut String, report: &Report, style: &Style) {
    let hidden: Vec<&ObjectReport> = report.objects.iter().filter(|o| shown(o, style).is_empty()).collect();
    let names: Vec<String> = hidden.iter().map(|object| name(object)).collect();
    if names.is_empty() {
        return;
    }
    let mut list = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        list += ", …";
    }
    let objects = if names.len() == 1 { "object" } else { "objects" };
    let _ = writeln!(out, "{} {objects} with nothing to lift (-v shows all): {list}", names.len());
    // Most of them are small. Some have code that is worth a page.
    let is_worth = |part: &PartReport| {
        let mut skips = part.skips.iter();
        part.part == Part::Text && skips.any(|skip| skip.hint.is_some() && skip.why.is_cured_by_own_pages())
    };
    let worth = hidden.iter().filter(|object| object.parts.iter().any(is_worth)).count();
    let program = report.objects.iter().find(|object| object.executable);
    let hint = program
        .and_then(|o| Reason::TooSmall(PageSize::new(report.page_size)?).hint_for(&About::program(&o.path)));
    if let (1.., Some(hint)) = (worth, hint) {
        let _ = writeln!(out, "code in {worth} of them could have huge pages of its own: {hint}");
    }
}

fn bars(out: &mut String, report: &Report, style: &Style) {
    let Some(page) = PageSize::new(report.page_size) else { return };
    let (mut any, mut any_heat) = (false, false);
    for object in &report.objects {
        for part in shown(object, style) {
            if part.liftable_bytes < MIN_CELLS * page.bytes() {
                continue;
            }
            let (bar, pages) = bar(part, page, style.width.max(MIN_WIDTH));
            let range = Range { start: Addr(part.start), end: Addr(part.end) };
            let cell = if pages == 1 {
                format!("each cell a page of {page}")
            } else {
                format!("each cell {pages} pages of {page}")
            };
            let _ = writeln!(out, "\n{} {} {range}, {cell}", name(object), part.part);
            let _ = writeln!(out, "{bar}");
            let hot = report.heat.iter().flat_map(|heat| &heat.objects).find(|hot| hot.path == object.path);
            if let (Some(heat), Some(hot), Part::Text) = (&report.heat, hot, part.part) {
                let _ = writeln!(out, "{}", heat::bar(hot, heat, part, page.bytes(), pages));
                any_heat = true;
            }
            any = true;
        }
    }
    if any {
        out.push_str("█ huge  ▒ some of it huge  ░ liftable, not huge  · edge\n");
        out.push_str(if any_heat { heat::LEGEND } else { "" });
        out.push('\n');
    }
}

/// The state of the huge page that a cell stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Huge,
    /// Some of its mapping is huge; smaps does not show which pages.
    Some,
    Liftable,
    Edge,
}

/// Returns the bar of a part, and how many huge pages a cell stands for.
fn bar(part: &PartReport, page: PageSize, width: usize) -> (String, u64) {
    let size = page.bytes();
    let first = part.start / size;
    let count = part.end.div_ceil(size).saturating_sub(first);
    let pages = count.div_ceil(width as u64).max(1);
    let mut bar = String::new();
    let mut at = 0;
    while at < count {
        let cells = (at..count.min(at + pages)).map(|i| cell(part, first + i, page));
        bar.push(symbol(cells));
        at += pages;
    }
    (bar, pages)
}

fn symbol(cells: impl Iterator<Item = Cell>) -> char {
    let (mut all_huge, mut some_huge, mut all_edge) = (true, false, true);
    for cell in cells {
        all_huge &= cell == Cell::Huge;
        some_huge |= matches!(cell, Cell::Huge | Cell::Some);
        all_edge &= cell == Cell::Edge;
    }
    match (all_huge, some_huge, all_edge) {
        (true, _, _) => '█',
        (_, true, _) => '▒',
        (_, _, true) => '·',
        _ => '░',
    }
}

/// Returns the cell of the huge page with this number (address / size).
fn cell(part: &PartReport, number: u64, page: PageSize) -> Cell {
    let size = page.bytes();
    let whole = number.checked_mul(size).and_then(|start| Range::sized(Addr(start), size));
    let own = Range { start: Addr(part.start), end: Addr(part.end) };
    let Some(whole) = whole.filter(|w| own.covers(*w)) else { return Cell::Edge };
    let from = part.fragments.partition_point(|f| f.range.end <= whole.start);
    let mut here = part.fragments[from..].iter().take_while(|f| f.range.start < whole.end).peekable();
    if here.peek().is_none() {
        return Cell::Liftable;
    }
    let state = |f: &Fragment| match f.huge {
        0 => Cell::Liftable,
        huge if huge >= f.range.inner(page).map_or(f.range.len(), Range::len) => Cell::Huge,
        _ => Cell::Some,
    };
    let mut states = here.map(state);
    let first = states.next().unwrap_or(Cell::Liftable);
    if states.all(|s| s == first) { first } else { Cell::Some }
}

/// Writes "--span  inner 62 MB, outer 63.4 MB on pages of 64 MB, auto 63.4 MB on pages of 64 MB".
fn gains(out: &mut String, report: &Report) {
    if report.spans.values().all(|gain| gain.bytes == 0) {
        return;
    }
    let one = |(span, gain): (&SpanChoice, &Gain)| match gain.page_bytes - gain.bytes {
        0 => format!("{span} {}", human_bytes(gain.bytes)),
        _ => format!("{span} {} on pages of {}", human_bytes(gain.bytes), human_bytes(gain.page_bytes)),
    };
    let all: Vec<String> = report.spans.iter().map(one).collect();
    let _ = writeln!(out, "--span  {}", all.join(", "));
}

/// Writes "TLB entries for text and rodata: 21 402 with small pages, 460 now".
fn entries(out: &mut String, report: &Report) {
    let Entries { small, now, lifted } = report.tlb_entries;
    if small == lifted && small == now {
        return;
    }
    let now = if report.pid.is_some() { format!("{} now, ", thousands(now)) } else { String::new() };
    let _ = writeln!(
        out,
        "TLB entries for text and rodata: {} with small pages, {now}{} if all that is liftable is huge",
        thousands(small),
        thousands(lifted)
    );
}

/// Writes how much of a program that does not run is huge in the page cache.
fn page_cache(out: &mut String, report: &Report) {
    let known: Vec<(String, u64)> =
        report.objects.iter().filter_map(|o| Some((name(o), o.page_cache_bytes?))).collect();
    if known.is_empty() {
        return;
    }
    let huge: Vec<String> = known
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{} of {name}", human_bytes(*bytes)))
        .collect();
    let huge = if huge.is_empty() { "nothing of it".to_string() } else { huge.join(", ") };
    let _ = writeln!(out, "on huge pages in the page cache now: {huge}");
}

fn totals(out: &mut String, report: &Report, style: &Style) {
    let mut table = Table::new([LEFT.at_least(6), LEFT]);
    for (part, total) in &report.totals {
        // Writable parts are lifted only on request: they get no line unless something is huge.
        let writable = !matches!(part, Part::Text | Part::Rodata);
        if writable && total.huge_bytes == 0 {
            continue;
        }
        table.row([part.to_string(), memory::sums(total)]);
    }
    for row in memory::rows(report, style.verbose) {
        table.row(row);
    }
    *out += &table.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;
    use hugelift_core::report::Total;
    use hugelift_core::report::example::report;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;

    fn shown(report: &Report, width: usize) -> String {
        text(report, &Style { width, verbose: false })
    }

    #[test]
    fn the_table_shows_parts_reasons_and_bars() {
        // Four whole huge pages between two edges, in one mapping.
        let mut report = report(&[(MB, 10 * MB)], 2 * MB);
        let range = Range { start: Addr(MB), end: Addr(10 * MB) };
        let part = &mut report.objects[0].parts[0];
        part.fragments = vec![Fragment { range, huge: 0, backing: None, advised: false }];
        let none = shown(&report, 80);
        assert!(none.contains("<x>") && none.contains("9 MB: <of any length>"), "{none}");
        assert!(none.contains("·░░░░"), "{none}");
        // Some of the mapping is huge: smaps does not show which pages.
        report.objects[0].parts[0].fragments[0].huge = 2 * MB;
        assert!(shown(&report, 80).contains("▒▒▒▒"));
        report.objects[0].parts[0].fragments[0].huge = 8 * MB;
        assert!(shown(&report, 80).contains("████"));
    }

    #[test]
    fn hidden_code_that_is_worth_a_page_is_named() {
        let mut report = report(&[(0, MB)], 2 * MB);
        let part = &mut report.objects[0].parts[0];
        part.liftable_bytes = 0;
        part.skips[0].why = Reason::TooSmall(PageSize::MB2);
        assert!(!shown(&report, 80).contains("of its own"));
        report.objects[0].parts[0].skips[0].hint = Some("help".into());
        let line = "\ncode in 1 of them could have huge pages of its own: hugelift prime --replace --separate --with-libs ";
        assert!(shown(&report, 80).contains(line), "{}", shown(&report, 80));
        report.objects[0].parts[0].skips[0].why = Reason::NotLifted;
        assert!(!shown(&report, 80).contains("of its own"));
    }

    #[test]
    fn anonymous_memory_has_a_line_of_its_own() {
        let mut report = report(&[(0, MB)], 2 * MB);
        let total =
            |liftable| Some(Total { bytes: 9 * MB, liftable_bytes: liftable, huge_bytes: liftable / 4 });
        report.anonymous = total(0);
        assert!(!shown(&report, 80).contains("anon"));
        report.anonymous = total(8 * MB);
        let want = "anon    9 MB, liftable 8 MB, huge 2 MB (25 % of what is liftable)\n";
        assert!(shown(&report, 80).contains(want), "{}", shown(&report, 80));
    }

    #[test]
    fn a_narrow_terminal_gets_wider_cells() {
        let report = report(&[(2 * MB, 602 * MB)], 2 * MB);
        for width in [0, 1, 20, 40, 80, 200, 1000] {
            let shown = shown(&report, width);
            let cells = shown.chars().filter(|c| "█▒░·".contains(*c)).count();
            assert!(cells >= 300usize.min(width.saturating_sub(30)) / 2, "{width}: {shown}");
            if (40..300).contains(&width) {
                let longest = shown.lines().filter(|l| l.starts_with('░')).map(|l| l.chars().count()).max();
                assert!(longest.unwrap() <= width, "{width}: {shown}");
                assert!(shown.contains("pages of 2 MB"), "{shown}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_part_is_shown(start in 0..1u64 << 40, pages in 1..5000u64, huge in any::<u64>(), width in 0usize..300) {
            let end = start + 4096 * pages;
            let mut report = report(&[(start, end)], 2 * MB);
            let part = &mut report.objects[0].parts[0];
            (part.huge_bytes, part.backing) = (huge % (end - start + 1), Some(Backing::Thp));
            let range = Range { start: Addr(start), end: Addr(end) };
            part.fragments = vec![Fragment { range, huge: part.huge_bytes, backing: part.backing, advised: false }];
            let total = Total { bytes: part.bytes, liftable_bytes: part.liftable_bytes, huge_bytes: part.huge_bytes };
            report.totals.insert(Part::Text, total);
            let shown = text(&report, &Style { width, verbose: true });
            prop_assert!(shown.contains("text") && shown.ends_with('\n'), "{}", shown);
        }
    }
}
