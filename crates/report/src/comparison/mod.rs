// SPDX-License-Identifier: Apache-2.0
//! A [`Comparison`] as text: a table of the sides, the ratios, and a verdict on each variant.

use crate::paint::paint;
use crate::side_by_side;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::{printable, printable_lines, quoted};
use hugelift_core::table::{LEFT, RIGHT, Table};
use hugelift_measure::comparison::{
    Comparison, Coverage, Figure, Finding, Run, Setting, Side, VariantResult, figures,
};
use hugelift_measure::stats;
use std::ffi::OsStr;
use std::fmt::Write as _;

pub mod by_part;
mod live;
mod shown;
#[cfg(test)]
mod tests;

pub(crate) use shown::{interval, percent, value};

use shown::seconds;

/// Returns the comparison as text; each line ends with a newline. With `colour` the verdict is green for a gain
/// and red for a loss.
pub fn text(comparison: &Comparison, colour: bool) -> String {
    let mut out = format!("{}\n\n", comparison.setting.host);
    if comparison.has_runs() {
        table(&mut out, comparison);
        ratios(&mut out, comparison);
        out.push('\n');
        if let Some(counters) = &comparison.counters {
            let _ = writeln!(out, "{}", side_by_side::table_text(counters));
        }
    }
    for line in remarks(comparison) {
        out += &line;
        out.push('\n');
    }
    let mut out = printable_lines(&out);
    for variant in &comparison.variants {
        let line = printable(&verdict(comparison, variant));
        out += &match variant.finding {
            Finding::Faster { .. } => paint(colour, "1;32", &line),
            Finding::Slower { .. } => paint(colour, "1;31", &line),
            _ => line,
        };
        out.push('\n');
    }
    out
}

/// Returns remarks on the figures: huge pages of the bare side, and variants that cannot gain.
pub(crate) fn remarks(comparison: &Comparison) -> Vec<String> {
    let setting = &comparison.setting;
    let mut all = Vec::new();
    if !comparison.has_runs() {
        return all;
    }
    if let Some(live) = &setting.live {
        return live::remarks(comparison, live);
    }
    let bare = comparison.bare().and_then(|side| side.memory);
    match bare {
        Some(memory) if memory.huge() > 0 => {
            let parts = [
                ("text", memory.text.huge),
                ("read-only data", memory.rodata.huge),
                ("writable memory", memory.writable_huge),
            ];
            let parts: Vec<String> = parts
                .iter()
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(name, bytes)| format!("{} of {name}", human_bytes(*bytes)))
                .collect();
            let hint = if setting.bare_4k {
                "in spite of --bare-4k: this kernel maps huge pages even after prctl(PR_SET_THP_DISABLE)"
            } else {
                "--bare-4k compares with 4 kB pages"
            };
            all.push(format!("The bare program was partly huge itself: {} ({hint}).", parts.join(", ")));
        }
        Some(_) if setting.bare_4k => {
            all.push("The bare program had only 4 kB pages (transparent huge pages were off for it).".into());
        }
        None => all.push("How much of the bare program was huge is not known: it ended too soon.".into()),
        Some(_) => {}
    }
    for variant in comparison.variants.iter().filter(|v| v.nothing_to_lift) {
        let sides = comparison.side(&variant.name).zip(comparison.bare());
        let what = match sides.map_or(0, |(side, bare)| side.writable_gain(bare)) {
            0 => "there is nothing to lift".to_string(),
            bytes => format!("only {} of writable memory were made huge", human_bytes(bytes)),
        };
        all.push(format!(
            "{}: {what}: no text or read-only data of the program holds a whole huge page.",
            variant.name
        ));
    }
    for side in comparison.sides.iter().skip(1) {
        let nothing = side.memory.is_none_or(|memory| memory.lifted() == 0) && side.liftable != Some(0);
        if let (true, Some(why)) = (nothing, &side.why_not) {
            all.push(format!("{}: nothing was lifted: {why}.", side.name));
        }
    }
    all
}

/// Returns the verdict on a variant, in words.
pub(crate) fn verdict(comparison: &Comparison, variant: &VariantResult) -> String {
    let setting = &comparison.setting;
    let (name, figure) = (&variant.name, setting.figure.words());
    let (better, worse) = if setting.higher_is_better { ("more", "less") } else { ("less", "more") };
    match variant.finding {
        Finding::Faster { from, to } => {
            format!("{name} is faster: {} % {better} {figure}.", range(from, to))
        }
        Finding::Slower { from, to } => {
            format!("{name} is slower: {} % {worse} {figure}.", range(from, to))
        }
        Finding::NoDifference { .. } => no_difference(comparison, variant),
        Finding::NotHuge { from, to } => format!(
            "{name} took {} % {better} {figure}, but smaps shows no more of it on huge pages than of bare: hugelift \
             claims no gain.",
            range(from, to)
        ),
        Finding::NotSwitched => live::not_switched(comparison, name),
        Finding::TooFew => format!("{name}: too few pairs for a verdict (at least 6: --pairs 6)."),
        Finding::NothingToLift => {
            let why = comparison.side(name).and_then(|side| side.why_not.clone()).unwrap_or_default();
            let program = setting.command.first().map_or("the program", String::as_str);
            let inspect = match setting.command.first() {
                Some(program) => format!(
                    " If code of it can move onto huge pages of its own, hugelift inspect {} names the command.",
                    quoted(OsStr::new(program))
                ),
                None => String::new(),
            };
            format!(
                "{name}: there is nothing to lift in {}, so nothing was measured: {why}. Its data and heap \
                 are lifted only with --variant all='--eager --parts all', programs that it starts only with --variant \
                 children='--children lift'.{inspect} --force measures nevertheless.",
                printable(program)
            )
        }
    }
}

/// Returns what may still be true where the measurement shows no difference.
fn no_difference(comparison: &Comparison, variant: &VariantResult) -> String {
    let (name, figure) = (&variant.name, comparison.setting.figure);
    let interval = variant.ratios.iter().find(|r| r.figure == figure).and_then(|r| r.low.zip(r.high));
    let Some((low, high)) = interval else { return format!("{name}: no difference was seen.") };
    let words = figure.words();
    let first = comparison.bare().map_or("bare", |bare| &bare.name);
    format!(
        "{name}: no difference was seen. There may be one: with a confidence of 95 % it is between {} % less and \
         {} % more {words} than {first}; the runs vary too much to show a smaller one. More runs (--time 2m) show \
         smaller differences.",
        percent((1.0 - low).max(0.0)),
        percent((high - 1.0).max(0.0))
    )
}

/// Returns two shares as "3.4 to 5.9".
fn range(from: f64, to: f64) -> String {
    format!("{} to {}", percent(from), percent(to))
}

/// Returns the median of a figure over the runs of a side.
pub(crate) fn median(side: &Side, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    stats::median(&side.runs.iter().filter_map(of).collect::<Vec<f64>>()).ok()
}

fn table(out: &mut String, comparison: &Comparison) {
    let columns = columns(&comparison.setting);
    let mut titles: Vec<&str> = vec!["medians"];
    titles.extend(columns.iter().map(|(title, _)| *title));
    titles.extend(["huge text", "huge rodata", "other huge"]);
    let mut table = numbers(titles.len());
    table.row(titles);
    for side in &comparison.sides {
        let mut row = vec![side.name.clone()];
        row.extend(columns.iter().map(|(_, show)| show(side).unwrap_or_else(|| "-".into())));
        let cover = |c: Coverage| format!("{} of {}", human_bytes(c.huge), human_bytes(c.whole));
        row.push(side.memory.map_or("-".into(), |m| cover(m.text)));
        row.push(side.memory.map_or("-".into(), |m| cover(m.rodata)));
        row.push(side.memory.map_or("-".into(), |m| human_bytes(m.writable_huge)));
        table.row(row);
    }
    *out += &table.to_string();
}

/// A column of the table of medians: its title, and what it shows of a side.
type Column = (&'static str, Box<dyn Fn(&Side) -> Option<String>>);

/// Returns the columns of the table of medians, without what was huge.
fn columns(setting: &Setting) -> Vec<Column> {
    let of = |title, figure: Figure| -> Column {
        (title, Box::new(move |side| Some(value(figure, median(side, |run| figure.of(run))?))))
    };
    let time = |title, of: fn(&Run) -> f64| -> Column {
        (title, Box::new(move |side| median(side, |run| Some(of(run))).map(seconds)))
    };
    let count = |title, of: fn(&Run) -> u64| -> Column {
        (title, Box::new(move |side| Some(format!("{:.0}", median(side, |run| Some(of(run) as f64))?))))
    };
    let (minor, major) = (count("minor", |run| run.minor_faults), count("major", |run| run.major_faults));
    let peak: Column = ("peak", Box::new(|side| side.peak_bytes.map(human_bytes)));
    match (&setting.live, &setting.load) {
        (Some(live), _) => {
            let figures = live.metric.figures().iter().map(|&figure| of(figure.words(), figure));
            figures.chain([minor, major]).collect()
        }
        (None, Some(_)) => {
            let mut columns = vec![of("metric", Figure::Metric), of("server CPU", Figure::ServerCpu)];
            columns.extend(setting.has_latency.then(|| of("latency", Figure::Latency)));
            columns.push(peak);
            columns
        }
        (None, None) => vec![
            of("wall", Figure::Wall),
            time("user", |run| run.user),
            time("system", |run| run.system),
            time("helper", |run| run.helper),
            minor,
            major,
            peak,
        ],
    }
}

fn ratios(out: &mut String, comparison: &Comparison) {
    let (first, pairs) = comparison.bare().map_or(("bare", 0), |bare| (&bare.name, bare.runs.len()));
    let _ = writeln!(
        out,
        "\nratio to {first}, {pairs} pairs, with 95 % interval (Hodges-Lehmann, Wilcoxon's signed ranks):"
    );
    let figures = figures(&comparison.setting);
    let names = figures.iter().map(|&figure| title(comparison, figure));
    let mut table = numbers(1 + figures.len());
    table.row(std::iter::once(String::new()).chain(names));
    for variant in &comparison.variants {
        let cell = |figure: &Figure| {
            variant.ratios.iter().find(|r| r.figure == *figure).map_or("-".to_string(), interval)
        };
        table.row(std::iter::once(variant.name.clone()).chain(figures.iter().map(cell)));
    }
    *out += &table.to_string();
}

/// Returns the name of a figure; that of the server's CPU time depends on whether transactions count.
pub(crate) fn title(comparison: &Comparison, figure: Figure) -> String {
    match figure {
        Figure::ServerCpu if !comparison.setting.counts_transactions => "server CPU of the load".into(),
        figure => figure.words().into(),
    }
}

/// A table whose first column is text and the others numbers.
fn numbers(columns: usize) -> Table {
    Table::new((0..columns).map(|column| if column == 0 { LEFT } else { RIGHT })).indented(2)
}
