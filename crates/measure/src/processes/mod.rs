// SPDX-License-Identifier: Apache-2.0
//! All processes with their CPU time, the size of their text and its huge bytes.
//!
//! ```text
//! /proc, twice -> Reading, Reading -> rows() -> sort(), matches() -> screen, text or JSON
//! ```

pub mod reader;
pub mod text_coverage;

use hugelift_core::addr::human_bytes;
use hugelift_core::proc_stat::Stat;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;
use text_coverage::TextCoverage;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What is known about the text of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextState {
    /// Size and huge bytes, by smaps.
    Known(TextCoverage),
    /// The size alone, by its mappings: smaps costs more, and others came first.
    Size(u64),
    /// The text has not been read yet, since the time was up.
    Unread,
    /// The text cannot be read, mostly because the process is another user's.
    Unreadable,
    /// The process ended while it was being read.
    Gone,
}

/// One process at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// What `/proc/PID/stat` holds.
    pub stat: Stat,
    /// Name of its owner.
    pub user: String,
    /// Its command line, as one line.
    pub command: String,
    /// Bytes of code of the executable alone, by `/proc/PID/statm`, which every user may read.
    pub executable_text: u64,
    /// Its text with that of its shared objects.
    pub text: TextState,
    /// Share of its cycles spent in page walks (0 to 1), where there are counters.
    pub walk_share: Option<f64>,
    /// Bytes of its pages of code in use, where samples tell.
    pub code_in_use: Option<u64>,
}

/// All processes with memory of their own at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    /// When it was read, from some fixed moment on.
    pub at: Duration,
    /// Clock ticks per second of [`Stat`]'s times.
    pub ticks: u64,
    /// Why page walks are not counted, if they are not.
    pub no_walks: Option<String>,
    /// Why the code in use is not sampled, if it is not.
    pub no_samples: Option<String>,
    /// The processes.
    pub samples: Vec<Sample>,
}

/// One process between two readings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its id.
    pub pid: u32,
    /// Name of its owner.
    pub user: String,
    /// Its command line.
    pub command: String,
    /// CPU time divided by time: 1 is one CPU all the time.
    pub cpus: f64,
    /// Page faults per second, minor and major.
    pub faults_per_s: f64,
    /// Page faults per second that read from a disk.
    pub major_faults_per_s: f64,
    /// Text of the executable and its shared objects; none if it could not be read.
    pub text_bytes: Option<u64>,
    /// Text of the executable alone.
    pub executable_text_bytes: u64,
    /// The huge bytes of the text; none if it was not read.
    #[serde(flatten)]
    pub text: Option<TextCoverage>,
    /// Why something is not known: `not-read`, `unreadable`, `gone`.
    pub unknown: Option<&'static str>,
    /// Share of its cycles spent in page walks; none without counters.
    pub walk_share: Option<f64>,
    /// Bytes of its pages of code in use; none if it was not sampled. Only processes on a screen are.
    #[serde(skip)]
    pub code_in_use: Option<u64>,
}

impl Row {
    fn new(sample: &Sample, before: Option<&Stat>, passed: f64, ticks: f64) -> Row {
        let since = |f: fn(&Stat) -> u64| f(&sample.stat).saturating_sub(before.map_or(0, f)) as f64;
        let (text, text_bytes, unknown) = match &sample.text {
            TextState::Known(text) => (Some(text.clone()), Some(text.bytes), None),
            TextState::Size(bytes) => (None, Some(*bytes), Some("not-read")),
            TextState::Unread => (None, None, Some("not-read")),
            TextState::Unreadable => (None, None, Some("unreadable")),
            TextState::Gone => (None, None, Some("gone")),
        };
        Row {
            pid: sample.stat.pid,
            user: sample.user.clone(),
            command: sample.command.clone(),
            cpus: since(|s| s.cpu) / ticks / passed,
            faults_per_s: since(|s| s.minor_faults.saturating_add(s.major_faults)) / passed,
            major_faults_per_s: since(|s| s.major_faults) / passed,
            text_bytes,
            executable_text_bytes: sample.executable_text,
            text,
            unknown,
            walk_share: sample.walk_share,
            code_in_use: sample.code_in_use,
        }
    }

    /// Returns the size of its text, or that of the executable where no more is known.
    fn known_text(&self) -> u64 {
        self.text_bytes.unwrap_or(self.executable_text_bytes)
    }

    /// Returns the size of its text times its CPU time: the larger, the more a lift may bring.
    pub fn busy_text(&self) -> f64 {
        self.known_text() as f64 * self.cpus
    }
}

/// Returns the processes of `now` with what they did since `before`. A process that is not in
/// `before` has started since, so all that it did counts.
pub fn rows(before: &Reading, now: &Reading) -> Vec<Row> {
    let known: HashMap<(u32, u64), &Stat> =
        before.samples.iter().map(|s| (s.stat.identity(), &s.stat)).collect();
    // Keeps the rates of two readings at the same moment finite.
    let passed = now.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
    let ticks = now.ticks.max(1) as f64;
    let row = |s: &Sample| Row::new(s, known.get(&s.stat.identity()).copied(), passed, ticks);
    now.samples.iter().map(row).collect()
}

/// A column of the table, by which it can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Process id.
    Pid,
    /// Owner.
    User,
    /// CPU time.
    Cpu,
    /// Size of the text.
    Text,
    /// Size of the text times CPU time.
    BusyText,
    /// Pages of code in use.
    InUse,
    /// Huge bytes of the text.
    Huge,
    /// Page faults per second.
    Faults,
    /// Share of cycles spent in page walks.
    Walks,
    /// Command line.
    Command,
}

impl Column {
    /// All of them, in the order of the table.
    pub const ALL: [Column; 10] = [
        Column::Pid,
        Column::User,
        Column::Cpu,
        Column::Text,
        Column::BusyText,
        Column::Huge,
        Column::InUse,
        Column::Faults,
        Column::Walks,
        Column::Command,
    ];

    /// Returns its title.
    pub fn title(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::User => "USER",
            Column::Cpu => "CPU%",
            Column::Text => "TEXT",
            Column::BusyText => "TEXT×CPU",
            Column::InUse => "IN USE",
            Column::Huge => "HUGE",
            Column::Faults => "FAULTS/s",
            Column::Walks => "WALK%",
            Column::Command => "COMMAND",
        }
    }

    /// Whether it holds numbers, which are aligned to the right.
    pub fn is_number(self) -> bool {
        !matches!(self, Column::User | Column::Command)
    }

    /// Returns what a row shows there: `?` for what could not be read, `-` for what was not read,
    /// `≥` before the text of an executable whose shared objects could not be read.
    pub fn cell(self, row: &Row) -> String {
        let unknown = || if row.unknown == Some("not-read") { "-" } else { "?" }.to_string();
        match self {
            Column::Pid => row.pid.to_string(),
            Column::User => row.user.clone(),
            Column::Cpu => format!("{:.1}", row.cpus * 100.0),
            Column::Text => match row.text_bytes {
                Some(bytes) => human_bytes(bytes),
                None => format!("≥{}", human_bytes(row.executable_text_bytes)),
            },
            Column::BusyText => format!("{:.1}", row.busy_text() / f64::from(1 << 20)),
            Column::InUse => row.code_in_use.map_or("-".into(), human_bytes),
            Column::Huge => row.text.as_ref().map_or_else(unknown, |text| text.to_string()),
            Column::Faults => format!("{:.0}", row.faults_per_s),
            Column::Walks => row.walk_share.map_or("-".into(), |share| format!("{:.1}", share * 100.0)),
            Column::Command => row.command.clone(),
        }
    }
}

/// Sorts by a column: numbers from the largest, words and ids from the smallest, or in reverse.
/// Unknown values come last; rows with equal values are sorted by their ids.
pub fn sort(rows: &mut [Row], column: Column, reverse: bool) {
    let number = |row: &Row| match column {
        Column::Cpu => Some(row.cpus),
        Column::Text => Some(row.known_text() as f64),
        Column::BusyText => Some(row.busy_text()),
        Column::InUse => row.code_in_use.map(|bytes| bytes as f64),
        Column::Huge => row.text.as_ref().map(|text| text.huge_bytes as f64),
        Column::Faults => Some(row.faults_per_s),
        Column::Walks => row.walk_share,
        Column::Pid | Column::User | Column::Command => None,
    };
    rows.sort_by(|a, b| {
        let order = match column {
            Column::Pid => a.pid.cmp(&b.pid),
            Column::User => a.user.cmp(&b.user),
            Column::Command => a.command.cmp(&b.command),
            _ => match (number(a), number(b)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                // Unknown values stay last, also in reverse.
                (a, b) => return b.is_some().cmp(&a.is_some()),
            },
        };
        if reverse { order.reverse() } else { order }.then(a.pid.cmp(&b.pid))
    });
}

/// Whether the command or the owner of a row contains the word, in any case, or it is its id.
pub fn matches(row: &Row, word: &str) -> bool {
    let word = word.trim().to_lowercase();
    row.command.to_lowercase().contains(&word)
        || row.user.to_lowercase().contains(&word)
        || (!word.is_empty() && row.pid.to_string() == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;

    fn sample(pid: u32, start: u64, cpu: u64, faults: u64, text: u64) -> Sample {
        let stat = Stat {
            pid,
            comm: "x".into(),
            state: 'S',
            start,
            cpu,
            minor_faults: faults,
            major_faults: 1,
            virtual_bytes: 1 << 30,
            ..Stat::default()
        };
        Sample {
            stat,
            user: "root".into(),
            command: format!("/usr/bin/Program{pid} --flag"),
            executable_text: 1 << 20,
            text: TextState::Size(text),
            walk_share: None,
            code_in_use: None,
        }
    }

    fn reading(seconds: u64, samples: Vec<Sample>) -> Reading {
        Reading { at: Duration::from_secs(seconds), ticks: 100, no_walks: None, no_samples: None, samples }
    }

    #[test]
    fn rates_are_those_between_the_readings() {
        let before = reading(10, vec![sample(1, 5, 1000, 50, 8), sample(2, 7, 77, 9, 8)]);
        let now = reading(
            12,
            vec![sample(1, 5, 1100, 150, 8), sample(2, 1100, 20, 3, 8), sample(3, 1150, 6, 0, 8)],
        );
        let rows = rows(&before, &now);
        let shown: Vec<_> = rows.iter().map(|r| (r.pid, r.cpus, r.faults_per_s)).collect();
        // The second process has the id of one that ended: all that it did counts, as with the third.
        assert_eq!(shown, [(1, 0.5, 50.0), (2, 0.1, 2.0), (3, 0.03, 0.5)]);
    }

    #[test]
    fn counters_that_go_back_and_equal_times_give_finite_rates() {
        let before = reading(10, vec![sample(1, 5, 1000, 50, 8)]);
        let rows = rows(&before, &reading(10, vec![sample(1, 5, 999, 49, 8)]));
        assert_eq!((rows[0].cpus, rows[0].faults_per_s), (0.0, 0.0));
    }

    #[test]
    fn sorted_with_the_unknown_last() {
        let mb = |n: u64| n << 20;
        let mut samples = vec![
            sample(1, 1, 100, 10, mb(10)),
            sample(2, 1, 50, 30, mb(100)),
            sample(3, 1, 200, 20, mb(1)),
            sample(4, 1, 0, 0, 0),
        ];
        let huge = |n| TextState::Known(TextCoverage::new(mb(100), [(Backing::Thp, mb(n))]));
        samples[1].text = huge(50);
        samples[2].text = huge(60);
        samples[3].text = TextState::Unreadable;
        let mut rows = rows(&reading(0, vec![]), &reading(1, samples));
        let mut by = |column, reverse| {
            sort(&mut rows, column, reverse);
            rows.iter().map(|r| r.pid).collect::<Vec<_>>()
        };
        assert_eq!(by(Column::BusyText, false), [3, 2, 1, 4]);
        assert_eq!(by(Column::Cpu, false), [3, 1, 2, 4]);
        assert_eq!(by(Column::Faults, true), [4, 1, 3, 2]);
        assert_eq!(by(Column::Pid, true), [4, 3, 2, 1]);
        assert_eq!(by(Column::Huge, false)[..2], [3, 2]);
        assert_eq!(by(Column::Huge, true)[..2], [2, 3]);
    }

    #[test]
    fn cells_mark_what_is_not_known() {
        let mut samples = vec![sample(1, 1, 0, 0, 3 << 20); 5];
        samples[1].text = TextState::Unread;
        samples[2].text = TextState::Unreadable;
        samples[3].text = TextState::Gone;
        samples[4].text = TextState::Known(TextCoverage::new(4 << 20, [(Backing::Hugetlb, 2 << 20)]));
        let rows = rows(&reading(0, vec![]), &reading(1, samples));
        let shown: Vec<_> = rows.iter().map(|r| (Column::Text.cell(r), Column::Huge.cell(r))).collect();
        let want = [("3 MB", "-"), ("≥1 MB", "-"), ("≥1 MB", "?"), ("≥1 MB", "?"), ("4 MB", "50% hugetlb")];
        assert_eq!(shown, want.map(|(a, b)| (a.to_string(), b.to_string())));
        let json = serde_json::to_value(&rows[4]).unwrap();
        assert_eq!((&json["huge_bytes"], &json["huge"]["hugetlb"]), (&(2 << 20).into(), &(2 << 20).into()));
        assert_eq!(serde_json::to_value(&rows[2]).unwrap()["unknown"], "unreadable");
    }

    #[test]
    fn a_word_finds_command_owner_and_id() {
        let rows = rows(&reading(0, vec![]), &reading(1, vec![sample(41, 1, 0, 0, 8)]));
        let hit = |word| matches(&rows[0], word);
        assert!(hit("program41") && hit("ROOT") && hit("41 ") && hit("") && !hit("4x") && !hit("node"));
    }
}
