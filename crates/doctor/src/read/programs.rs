// SPDX-License-Identifier: Apache-2.0
//! Finds the running programs, with their code and the CPU time that they have used.

use crate::facts::{Coverage, Program};
use hugelift_core::maps::FileId;
use hugelift_core::plan::plan;
use hugelift_core::policy::Policy;
use hugelift_core::report::Report;
use hugelift_core::snapshot::Part;
use hugelift_linux::elf::file_snapshot::{by_itself, of_file};
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use hugelift_measure::processes::reader::Processes;
use hugelift_measure::processes::{Sample, TextState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for reading the code of processes.
const TIME: Duration = Duration::from_millis(500);
/// The most processes whose code is read: those with most code and CPU time.
const PROCESSES: usize = 40;
/// The most programs for which a lift is planned.
const PROGRAMS: usize = 8;
/// A program with less code than this has nothing to gain.
const LITTLE_CODE: u64 = 4 << 20;

/// Returns the programs with most code and CPU time, each once. What a lift cannot reach does not
/// count: objects that the program opens itself, and set-uid and set-gid programs.
pub fn programs() -> Vec<Program> {
    let Ok(reading) = Processes::new().read(&[], PROCESSES, TIME) else { return Vec::new() };
    let ticks = reading.ticks.max(1) as f64;
    let own = std::env::current_exe().ok();
    let mut found: BTreeMap<PathBuf, Vec<&Sample>> = BTreeMap::new();
    for sample in &reading.samples {
        let Ok(exe) = std::fs::read_link(Process::new(sample.stat.pid).path("exe")) else { continue };
        if own.as_ref() != Some(&exe) && can_be_run(sample.stat.pid) {
            found.entry(exe).or_default().push(sample);
        }
    }
    let cpu = |samples: &[&Sample]| samples.iter().fold(0, |sum: u64, s| sum.saturating_add(s.stat.cpu));
    let code = |samples: &[&Sample]| samples.iter().map(|s| size(s)).max().unwrap_or(0);
    let mut all: Vec<(PathBuf, Vec<&Sample>)> =
        found.into_iter().filter(|(_, samples)| code(samples) >= LITTLE_CODE).collect();
    all.sort_by_key(|(_, s)| Reverse(u128::from(code(s)) * u128::from(cpu(s))));
    let program = |(exe, samples): (PathBuf, Vec<&Sample>)| {
        let busiest = samples.iter().max_by_key(|s| s.stat.cpu)?;
        Some(Program {
            text: coverage(busiest.stat.pid, &exe)?,
            exe: exe.to_str()?.to_string(),
            pid: busiest.stat.pid,
            processes: samples.len() as u64,
            cpu_seconds: cpu(&samples) as f64 / ticks,
        })
    };
    all.into_iter().take(PROGRAMS).filter_map(program).collect()
}

/// Returns the size of its text, or that of the executable where no more is known.
fn size(sample: &Sample) -> u64 {
    match &sample.text {
        TextState::Known(text) => text.bytes,
        TextState::Size(bytes) => *bytes,
        TextState::Unread | TextState::Unreadable | TextState::Gone => sample.executable_text,
    }
}

/// Whether the file of a process is neither set-uid nor set-gid, and may be read.
fn can_be_run(pid: u32) -> bool {
    const SET_ID: u32 = 0o6000;
    let meta = MappedFiles::of(Process::new(pid)).executable().and_then(|file| file.metadata());
    meta.is_ok_and(|m| m.nlink() > 0 && m.permissions().mode() & SET_ID == 0)
}

/// Returns how much of the text of the executable, and of the objects that it needs at its start, is
/// huge in the process.
fn coverage(pid: u32, exe: &Path) -> Option<Coverage> {
    let needed = of_file(exe, by_itself).ok()?;
    let needed: HashSet<FileId> = needed.snapshot.objects.iter().map(|o| o.file).collect();
    let snapshot = snapshot::live(Some(pid), 0).ok()?;
    let usage = Process::new(pid).smaps().ok()?;
    let report = Report::new(&snapshot, Some(&usage), &plan(&snapshot, &Policy::default()), None);
    let objects = snapshot.objects.iter().zip(&report.objects).filter(|(o, _)| needed.contains(&o.file));
    let parts = objects.flat_map(|(_, report)| &report.parts).filter(|part| part.part == Part::Text);
    Some(parts.fold(Coverage::default(), |sum, part| Coverage {
        bytes: sum.bytes.saturating_add(part.bytes),
        liftable: sum.liftable.saturating_add(part.liftable_bytes),
        huge: sum.huge.saturating_add(part.huge_bytes),
    }))
}
