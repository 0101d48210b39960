// SPDX-License-Identifier: Apache-2.0
//! The result of `hugelift lab walks` as text.

use hugelift_core::printable::{Escape, quoted, thousands};
use hugelift_core::table::{LEFT, RIGHT, Table};
use hugelift_lab::walks::code::Rule;
use hugelift_lab::walks::count::{Counted, Walks};
use hugelift_lab::walks::report::{Report, Subject};
use std::fmt::Write as _;

/// Returns the report as text; each line ends with a newline.
pub fn text(report: &Report) -> String {
    let counted = &report.counted;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "lab walks, simulated: {}\n{} instructions, {} loads and stores{}",
        subject(&report.subject),
        thousands(counted.instructions),
        thousands(counted.data_accesses),
        match counted.skipped {
            0 => String::new(),
            skipped => format!(", after {} instructions that were skipped", thousands(skipped)),
        }
    );
    let _ = writeln!(out, "{}\n", pages(counted));
    let _ = writeln!(out, "Page walks for 1000 instructions, and their ratio to those with pages of 4 kB:");
    let _ = write!(out, "{}", table(counted));
    for note in notes(report) {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Command(words) => {
            words.iter().map(|word| quoted(word.as_os_str())).collect::<Vec<_>>().join(" ")
        }
        Subject::Trace(path) if path.as_os_str() == "-" => "a recorded trace".into(),
        Subject::Trace(path) => format!("the trace {}", path.escaped()),
    }
}

fn pages(counted: &Counted) -> String {
    let pages = &counted.pages;
    let [code, in_64k, in_2m, data] =
        [pages.code, pages.code_in_64k, pages.code_in_2m, pages.data].map(thousands);
    match counted.code {
        Rule::Mapped => format!(
            "4 kB pages in use: {code} of code ({in_64k} in whole blocks of 64 kB, {in_2m} in whole pages of 2 MB), \
             {data} of data"
        ),
        Rule::All => format!("4 kB pages in use: {code} of code, {data} of data"),
    }
}

fn table(counted: &Counted) -> Table {
    let mut table = Table::new([LEFT, LEFT, RIGHT, RIGHT, RIGHT, RIGHT]).indented(2);
    table.row(["CPU", "pages", "code", "ratio", "data", "ratio"]);
    for of in &counted.cpus {
        for (i, layout) in of.layouts.iter().enumerate() {
            let title = if i == 0 { of.title } else { "" };
            let ([code, code_ratio], [data, data_ratio]) = (cells(layout.code), cells(layout.data));
            table.row([title.to_string(), layout.pages.words().into(), code, code_ratio, data, data_ratio]);
        }
    }
    table
}

fn cells(walks: Walks) -> [String; 2] {
    let ratio = walks.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    [format!("{:.3}", walks.per_1000), ratio]
}

fn notes(report: &Report) -> Vec<String> {
    let counted = &report.counted;
    let mut notes = vec![match counted.code {
        Rule::Mapped => {
            "code is on 64 kB or 2 MB where a whole aligned block lies inside an executable mapping of a \
                         file, at the addresses that it has under valgrind"
                .to_string()
        }
        Rule::All => {
            "a recorded trace has no mappings: all code is taken to be on 64 kB or 2 MB, for the fetch of \
                      instructions"
                .to_string()
        }
    }];
    notes.push(match counted.adjacent {
        true => "small pages that follow each other are taken to do so in memory too: Zen and Neoverse N1 coalesce \
                 four"
            .to_string(),
        false => "small pages are not taken to be adjacent in memory; where they are, Zen and Neoverse N1 have fewer \
                  walks (--contiguous)"
            .to_string(),
    });
    notes.push(
        "a model: TLBs with LRU, one CPU for all threads; no kernel, no speculation, no flushes. It counts walks, not \
         their cost"
            .to_string(),
    );
    if !counted.complete {
        notes.push("the trace ended before the window was over".to_string());
    }
    let lines = &report.lines;
    if let Some(first) = lines.first_foreign {
        notes.push(format!(
            "{} of {} lines are no accesses and were left out; the first is line {first}",
            thousands(lines.foreign),
            thousands(lines.read)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_lab::walks::code::Code;
    use hugelift_lab::walks::count::{Counting, Options};
    use hugelift_lab::walks::table::by_name;

    #[test]
    fn a_trace_in_words() {
        let cpus = vec![by_name("zen-3").unwrap()];
        let options = Options { cpus, adjacent: false, skip: 0, window: Some(9) };
        let mut counting = Counting::new(options, Code::all());
        counting.feed(b"I  400000,4\nI  401000,4\n L 700000,8\nx\x1b[2J\n");
        let report = Report::of(Subject::Trace("/tmp/a\u{1b}b".to_string().into()), &mut counting).unwrap();
        let text = text(&report);
        assert!(!text.contains('\u{1b}'), "{text}");
        for part in [
            "\n2 instructions, 1 loads and stores\n4 kB pages in use: 2 of code, 1 of data\n",
            "\n  AMD Zen 3  4 kB        1000.000  1.000  500.000  1.000\n",
            "\n             code 2 MB    500.000  0.500  500.000  1.000\n",
            "note: the trace ended before the window was over\n",
            "note: 1 of 4 lines are no accesses and were left out; the first is line 4\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
