// SPDX-License-Identifier: Apache-2.0
//! Reads all processes again and again at little cost: for each what every user may read, and its
//! mappings now and then. For the few with the busiest text it also reads the PMU's counters and,
//! until the time is up, smaps, for which the kernel walks page tables.

use crate::perf::walks::Walks;
use crate::processes::text_coverage::TextCoverage;
use crate::processes::{Reading, Sample, TextState};
use hugelift_core::printable::{Untrusted, printable, text_to_parse};
use hugelift_core::proc_stat::{Stat, parse_statm_text};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::{ProcError, Process};
use nix::unistd::{Uid, User};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The age at which a reading is repeated or dropped.
const FRESH: Duration = Duration::from_secs(10);
/// The most bytes of a command line that are kept.
const COMMAND: usize = 512;

/// Reads all processes, and remembers of each what seldom changes.
pub struct Processes {
    started: Instant,
    ticks: u64,
    page: u64,
    known: HashMap<(u32, u64), Known>,
    users: HashMap<u32, String>,
    walks: Result<Walks, String>,
}

/// What is remembered of a process.
struct Known {
    comm: Untrusted,
    user: String,
    command: String,
    /// When name, user and command were read.
    named: Instant,
    /// CPU time at the last reading.
    cpu: u64,
    /// CPU time between the last two readings.
    busy: u64,
    text: TextState,
    /// When the text was read.
    read: Option<Instant>,
    seen: bool,
}

impl Processes {
    /// Makes a reader that has read nothing yet.
    pub fn new() -> Processes {
        Processes {
            started: Instant::now(),
            ticks: ticks_per_second(),
            page: base_page().bytes(),
            known: HashMap::new(),
            users: HashMap::new(),
            walks: Walks::new(),
        }
    }

    /// Reads all processes that have memory of their own, with smaps of those in `first` and of the
    /// busiest, `most` in all, until `time` is up (a process that was begun is finished). The next
    /// reading continues where this one stopped.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn read(&mut self, first: &[u32], most: usize, time: Duration) -> Result<Reading, ProcError> {
        let begun = Instant::now();
        let mut all = self.stats()?;
        let at = begun.duration_since(self.started);
        for known in self.known.values_mut() {
            known.seen = false;
        }
        for (stat, _) in &all {
            self.update(stat);
        }
        self.known.retain(|_, known| known.seen);

        // The busiest come first. Half of the time is for sizes, the rest for huge bytes.
        all.sort_by_key(|(stat, text)| Reverse((self.busy(stat), *text)));
        for (stat, _) in &all {
            if begun.elapsed() > time / 2 {
                break;
            }
            self.read_size(stat);
        }
        all.sort_by_key(|(stat, text)| {
            let size = self.size(stat).unwrap_or(*text);
            (!first.contains(&stat.pid), Reverse((u128::from(size) * u128::from(self.busy(stat)), size)))
        });
        let mut wanted: Vec<&Stat> = all.iter().take(most).map(|(stat, _)| stat).collect();
        if let Ok(walks) = &mut self.walks {
            walks.read(&wanted.iter().map(|stat| stat.identity()).collect::<Vec<_>>());
        }
        wanted.sort_by_key(|stat| self.smaps_read(stat));
        for stat in wanted {
            if begun.elapsed() > time {
                break;
            }
            self.read_coverage(stat);
        }
        let samples = all.into_iter().filter_map(|(stat, text)| self.sample(stat, text)).collect();
        let no_walks = self.walks.as_ref().err().cloned();
        Ok(Reading { at, ticks: self.ticks, no_walks, no_samples: None, samples })
    }

    /// Reads `stat` and `statm` of each process; leaves out those that end meanwhile.
    fn stats(&self) -> Result<Vec<(Stat, u64)>, ProcError> {
        let dir = Path::new("/proc");
        let entries = std::fs::read_dir(dir).map_err(|_| ProcError::NotMounted { path: dir.into() })?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let all: Vec<(Stat, u64)> = pids
            .filter_map(|pid| {
                let process = Process::new(pid);
                let stat = process.stat().ok()?;
                let pages = parse_statm_text(&process.with_memory().read("statm").ok()?)?;
                Some((stat, pages.saturating_mul(self.page)))
            })
            // Kernel threads and zombies have no memory. That of a process whose first thread has ended is shown by the others.
            .filter(|(stat, _)| stat.virtual_bytes > 0 || stat.thread_has_ended() && !stat.has_ended())
            .collect();
        // A proc file system has at least hugelift itself.
        if all.is_empty() {
            Err(ProcError::NotMounted { path: dir.join("self/stat").into() })
        } else {
            Ok(all)
        }
    }

    /// Remembers the CPU time of a process, and its name, user and command.
    fn update(&mut self, stat: &Stat) {
        let now = Instant::now();
        let (id, known) = (stat.identity(), self.known.remove(&stat.identity()));
        let mut known = known.unwrap_or_else(|| Known {
            comm: Untrusted::default(),
            user: String::new(),
            command: String::new(),
            named: now,
            cpu: 0,
            busy: 0,
            text: TextState::Unread,
            read: None,
            seen: true,
        });
        // Another name means another program, which may have another owner.
        if known.comm != stat.comm || now.duration_since(known.named) > FRESH {
            let process = Process::new(stat.pid);
            if known.comm != stat.comm {
                known.forget();
            }
            known.comm.clone_from(&stat.comm);
            (known.user, known.command, known.named) = (self.user(process), command(process, stat), now);
        }
        if known.read.is_some_and(|read| now.duration_since(read) > FRESH) {
            known.forget();
        }
        (known.busy, known.cpu, known.seen) = (stat.cpu.saturating_sub(known.cpu), stat.cpu, true);
        self.known.insert(id, known);
    }

    /// Returns when smaps was last read; `None`, which sorts first, if it never was.
    fn smaps_read(&self, stat: &Stat) -> Option<Instant> {
        let known = self.known.get(&stat.identity())?;
        known.read.filter(|_| matches!(known.text, TextState::Known(_)))
    }

    fn busy(&self, stat: &Stat) -> u64 {
        self.known.get(&stat.identity()).map_or(0, |k| k.busy)
    }

    fn size(&self, stat: &Stat) -> Option<u64> {
        match &self.known.get(&stat.identity())?.text {
            TextState::Known(text) => Some(text.bytes),
            TextState::Size(bytes) => Some(*bytes),
            TextState::Unread | TextState::Unreadable | TextState::Gone => None,
        }
    }

    /// Reads the size of its text, if that is not known.
    fn read_size(&mut self, stat: &Stat) {
        if let Some(known) = self.known.get_mut(&stat.identity()).filter(|k| k.text == TextState::Unread) {
            let size = Process::new(stat.pid)
                .with_memory()
                .maps()
                .map(|maps| TextState::Size(TextCoverage::size(&maps)));
            known.learn(size.unwrap_or_else(unknown));
        }
    }

    /// Reads how much of its text is huge.
    fn read_coverage(&mut self, stat: &Stat) {
        let Some(known) = self.known.get_mut(&stat.identity()) else { return };
        if known.text == TextState::Unreadable {
            return;
        }
        let text = Process::new(stat.pid)
            .with_memory()
            .smaps()
            .map(|usage| TextState::Known(TextCoverage::of(&usage)));
        known.learn(text.unwrap_or_else(unknown));
    }

    fn sample(&self, stat: Stat, executable_text: u64) -> Option<Sample> {
        let known = self.known.get(&stat.identity())?;
        Some(Sample {
            user: known.user.clone(),
            command: known.command.clone(),
            executable_text,
            text: known.text.clone(),
            walk_share: self.walks.as_ref().ok().and_then(|walks| walks.share(stat.identity())),
            code_in_use: None,
            stat,
        })
    }

    fn user(&mut self, process: Process) -> String {
        let Some(uid) = process.status().ok().and_then(|status| status.uid) else { return "?".into() };
        let name = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        self.users.entry(uid).or_insert_with(|| name().unwrap_or_else(|| uid.to_string())).clone()
    }
}

impl Known {
    fn learn(&mut self, text: TextState) {
        (self.text, self.read) = (text, Some(Instant::now()));
    }

    fn forget(&mut self) {
        (self.text, self.read) = (TextState::Unread, None);
    }
}

impl Default for Processes {
    fn default() -> Processes {
        Processes::new()
    }
}

/// Returns what is known of a text that could not be read.
fn unknown(error: ProcError) -> TextState {
    match error {
        ProcError::Vanished { .. } | ProcError::NoMemory { .. } => TextState::Gone,
        _ => TextState::Unreadable,
    }
}

/// Returns its arguments as one line, without the directory of the program, or its name in brackets.
fn command(process: Process, stat: &Stat) -> String {
    let bytes = process.read("cmdline").unwrap_or_default();
    let line = text_to_parse(&bytes[..bytes.len().min(COMMAND)]).replace('\0', " ");
    let line = line.trim();
    let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
    let program =
        if program.starts_with('/') { program.rsplit('/').next().unwrap_or(program) } else { program };
    let line = format!("{program} {arguments}");
    let line = if line.trim().is_empty() { format!("[{}]", stat.comm) } else { line };
    printable(line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(reading: &Reading) -> &Sample {
        reading.samples.iter().find(|s| s.stat.pid == std::process::id()).expect("this process")
    }

    #[test]
    fn this_process_with_its_time_and_text() {
        let mut processes = Processes::new();
        let first = processes.read(&[], usize::MAX, Duration::from_secs(60)).unwrap();
        let sample = own(&first);
        assert!(sample.command.contains("hugelift_measure"), "{}", sample.command);
        let TextState::Known(text) = &sample.text else { panic!("{:?}", sample.text) };
        // The text of libc is included.
        assert!(text.bytes > sample.executable_text && sample.executable_text > 4096, "{sample:?}");
        let spent = |reading: &Reading| own(reading).stat.cpu;
        let (start, mut last) = (Instant::now(), first.clone());
        while spent(&last) == spent(&first) && start.elapsed() < Duration::from_secs(60) {
            last = processes.read(&[], 0, Duration::ZERO).unwrap();
        }
        assert!(spent(&last) > spent(&first) && last.at > first.at);
    }

    #[test]
    fn without_time_at_most_one_text_is_read() {
        let reading = Processes::new().read(&[], usize::MAX, Duration::ZERO).unwrap();
        let read = reading.samples.iter().filter(|s| matches!(s.text, TextState::Known(_))).count();
        assert!(read <= 1, "{read} of {}", reading.samples.len());
    }

    #[test]
    fn the_processes_named_by_first_are_read_first() {
        let own = std::process::id();
        let reading = Processes::new().read(&[own], 1, Duration::from_secs(60)).unwrap();
        let known = |s: &&Sample| matches!(s.text, TextState::Known(_));
        let pids: Vec<u32> = reading.samples.iter().filter(known).map(|s| s.stat.pid).collect();
        assert_eq!(pids, [own]);
    }

    #[test]
    fn a_process_that_has_ended_is_gone() {
        let stat = Stat {
            pid: 1 << 23,
            comm: "x".into(),
            state: 'S',
            start: 1,
            virtual_bytes: 1,
            ..Stat::default()
        };
        let mut processes = Processes::new();
        processes.update(&stat);
        processes.read_coverage(&stat);
        let sample = processes.sample(stat, 0).unwrap();
        assert_eq!(
            (sample.text, sample.command.as_str(), sample.user.as_str()),
            (TextState::Gone, "[x]", "?")
        );
    }
}
