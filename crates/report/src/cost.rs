// SPDX-License-Identifier: Apache-2.0
//! What waiting for memory costs a process, as text on one screen.

use hugelift_core::addr::human_bytes;
use hugelift_core::cost::verdict::{duration, kinds};
use hugelift_core::cost::{Cost, Counted};
use hugelift_core::printable::thousands;
use hugelift_core::table::{LEFT, RIGHT, Table};
use std::fmt::Write as _;

/// Returns the verdict, then the figures of the process, then those of the machine.
pub fn text(cost: &Cost) -> String {
    let mut out = format!("{}\n", cost.says);
    // Writing to a String cannot fail, here and below.
    if let Some(note) = &cost.note {
        let _ = writeln!(out, "note: {note}");
    }
    if cost.ended {
        let _ = writeln!(
            out,
            "note: the process ended meanwhile; what it did behind the last reading is missing"
        );
    }
    let seconds = cost.milliseconds as f64 / 1000.0;
    let threads = if cost.process.threads == 1 { "thread" } else { "threads" };
    let _ = writeln!(
        out,
        "\nprocess {} ({}, {} {threads}) in {seconds:.1} s, its own figures:\n{}",
        cost.pid,
        cost.name,
        thousands(cost.process.threads),
        waits(cost)
    );
    out += &own(cost).to_string();
    let _ = write!(out, "\nthe machine in the same time, all processes together:\n{}", machine(cost));
    out
}

fn waits(cost: &Cost) -> Table {
    let mut table = Table::new([LEFT, RIGHT, RIGHT]).indented(2);
    let Some(waits) = cost.waits.filter(|_| cost.counted != Counted::No) else {
        table.row(["waits", "unknown", ""]);
        return table;
    };
    table.row(["waited for", "time", "waits"]);
    for (what, wait) in kinds(&waits) {
        match wait {
            Some(wait) => table.row([what.into(), duration(wait.nanoseconds), count(wait.count)]),
            None => table.row([what, "unknown", "unknown"]),
        };
    }
    table
}

fn own(cost: &Cost) -> Table {
    let process = &cost.process;
    let mut table = Table::new([LEFT, LEFT]).indented(2);
    table.row(["CPU time", &duration(process.cpu_milliseconds.saturating_mul(1_000_000))]);
    let disk = if process.major_faults == 0 {
        String::new()
    } else {
        format!(", {} that read from a disk", count(process.major_faults))
    };
    table.row(["page faults", &format!("{}{disk}", count(process.minor_faults))]);
    if let (Some(before), Some(now)) = (process.huge_bytes_before, process.huge_bytes) {
        let [before, now] = [before, now].map(human_bytes);
        table.row(["memory on huge pages", &format!("{before} before, {now} now")]);
    }
    if let Some(zeroed) = process.zeroed_bytes_at_most {
        let at_most = if zeroed == 0 { "" } else { "at most " };
        table.row(["huge pages zeroed", &format!("{at_most}{}", human_bytes(zeroed))]);
    }
    table
}

/// The counters, each with its words: those of a line belong together.
const MACHINE: [(&str, &[(&str, &str)]); 5] = [
    ("huge pages at faults", &[("thp_fault_alloc", ""), ("thp_fault_fallback", "got small pages instead")]),
    ("huge zero page", &[("thp_zero_page_alloc", "made")]),
    (
        "splits",
        &[
            ("thp_split_page", "of pages"),
            ("thp_split_pmd", "of mappings"),
            ("thp_split_page_failed", "failed"),
        ],
    ),
    ("collapses", &[("thp_collapse_alloc", ""), ("thp_collapse_alloc_failed", "found no huge page")]),
    (
        "stalls",
        &[
            ("compact_stall", "for compaction"),
            ("compact_fail", "of these in vain"),
            ("allocstall", "for direct reclaim"),
        ],
    ),
];

fn machine(cost: &Cost) -> Table {
    let mut table = Table::new([LEFT, LEFT]).indented(2);
    for (title, counters) in MACHINE {
        let shown: Vec<String> = counters
            .iter()
            .filter_map(|(name, words)| {
                Some(format!("{} {words}", count(cost.machine.get(name)?)).trim_end().to_string())
            })
            .collect();
        let zeroed = cost.machine_zeroed_bytes.filter(|_| title == MACHINE[0].0);
        let zeroed = zeroed.map(|bytes| format!(" ({} zeroed)", human_bytes(bytes))).unwrap_or_default();
        if !shown.is_empty() {
            table.row([title, &format!("{}{zeroed}", shown.join(", "))]);
        }
    }
    table
}

fn count(number: u64) -> String {
    thousands(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::cost::counters::Counters;
    use hugelift_core::cost::taskstats::{Wait, Waits};
    use hugelift_core::cost::verdict::judge;
    use hugelift_core::cost::{OfProcess, VERSION, Verdict};

    fn example() -> Cost {
        let wait = |count, milliseconds: u64| Wait { count, nanoseconds: milliseconds * 1_000_000 };
        let machine =
            [("thp_fault_alloc", 1200), ("thp_fault_fallback", 3), ("compact_stall", 44), ("allocstall", 0)];
        let mut cost = Cost {
            version: VERSION,
            pid: 4711,
            name: "a\nb".to_string().into(),
            verdict: Verdict::CannotTell,
            says: String::new(),
            milliseconds: 10_000,
            ended: false,
            waits: Some(Waits {
                compaction: Some(wait(41, 312)),
                copies: Some(wait(1900, 9)),
                any: 1941,
                ..Waits::default()
            }),
            counted: Counted::All,
            note: None,
            process: OfProcess {
                threads: 4,
                cpu_milliseconds: 9000,
                minor_faults: 5000,
                major_faults: 0,
                huge_bytes_before: Some(0),
                huge_bytes: Some(2 << 30),
                zeroed_bytes_at_most: Some(2400 << 20),
            },
            machine: Counters(machine.iter().map(|(name, value)| (name.to_string(), *value)).collect()),
            machine_zeroed_bytes: Some(2400 << 20),
        };
        judge(&mut cost);
        cost
    }

    #[test]
    fn issue_31_9_one_screen_with_the_verdict_first() {
        let shown = text(&example());
        assert!(shown.starts_with("Yes: its threads waited 312 ms for memory in 10.0 s "), "{shown}");
        for want in [
            "process 4711 (a\\nb, 4 threads) in 10.0 s, its own figures:",
            "  compaction        312 ms     41\n",
            "  copies at writes  9.0 ms  1 900\n",
            "  page faults           5 000\n",
            "  memory on huge pages  0 B before, 2 GB now\n",
            "  huge pages zeroed     at most 2.3 GB\n",
            "the machine in the same time, all processes together:",
            "  huge pages at faults  1 200, 3 got small pages instead (2.3 GB zeroed)\n",
            "  stalls                44 for compaction, 0 for direct reclaim\n",
        ] {
            assert!(shown.contains(want), "{want}: {shown}");
        }
        assert!(shown.lines().count() < 24 && !shown.contains("collapses"), "{shown}");
    }

    #[test]
    fn issue_31_9_what_is_unknown_is_no_zero() {
        let mut cost =
            Cost { waits: None, counted: Counted::No, note: Some("why".into()), ended: true, ..example() };
        judge(&mut cost);
        let shown = text(&cost);
        assert!(shown.contains("\nnote: why\n") && shown.contains("\nnote: the process ended"), "{shown}");
        assert!(shown.contains("  waits  unknown\n") && !shown.contains("direct reclaim  0 ms"), "{shown}");
    }
}
