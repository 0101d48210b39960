// SPDX-License-Identifier: Apache-2.0
//! Publishes what the daemon knows: collects the figures now and then, and gives them to who asks.

use crate::answers::status::Status;
use crate::journal::{Level, log};
use crate::kernel;
use crate::machine::taken::Taken;
use crate::machine::watched::Seen;
use crate::metrics::figures::{Figures, ProgramFigures};
use crate::metrics::series::{classic, open_metrics};
use crate::metrics::serve::Server;
use crate::metrics::textfile::TextFile;
use hugelift_core::printable::Untrusted;
use hugelift_core::service::metrics::Metrics;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// Between two collections. Prometheus asks every 15 s or more rarely.
const EVERY: Duration = Duration::from_secs(10);

/// What publishes the figures.
pub struct Publisher {
    /// Answers who asks on its sockets.
    pub server: Server,
    textfile: Option<TextFile>,
    started: SystemTime,
    next: Instant,
    is_used: bool,
    /// Why the text file could not be written last time.
    failed: Option<String>,
}

impl Publisher {
    /// Listens where the policy says, for a daemon that was started at this time. What cannot be offered is a line in the log: the
    /// daemon works without it.
    pub fn start(metrics: &Metrics, started: SystemTime) -> Publisher {
        let mut server = Server::default();
        let warn = |why: String| log(Level::Warning, &format!("{why}; the metrics are not offered there"));
        if let Some(Err(why)) = metrics.socket.as_ref().map(|path| server.listen_at(path)) {
            warn(why.to_string());
        }
        if let Some(Err(why)) = metrics.tcp().map(|address| server.listen_on(address)) {
            warn(why.to_string());
        }
        let textfile = match metrics.textfile.as_ref().map(|path| TextFile::new(path)).transpose() {
            Ok(textfile) => textfile,
            Err(why) => {
                warn(why.to_string());
                None
            }
        };
        let is_used = *metrics != Metrics::default();
        Publisher { server, textfile, started, next: Instant::now(), is_used, failed: None }
    }

    /// Returns when figures are collected again; `None` if nobody is to see them.
    pub fn next(&self) -> Option<Instant> {
        self.is_used.then_some(self.next)
    }

    /// Collects the figures and offers them, if that is due.
    pub fn turn(&mut self, seen: &Seen, status: Option<&Status>) {
        let now = Instant::now();
        if self.is_used && now >= self.next {
            self.next = now + EVERY;
            self.offer(&figures(self.started, seen, status));
        }
        self.server.go_on(now);
    }

    fn offer(&mut self, figures: &Figures) {
        if let Ok(text) = open_metrics(figures) {
            self.server.set_text(text.into_bytes().into());
        }
        let Some((textfile, text)) = self.textfile.as_mut().zip(classic(figures).ok()) else { return };
        let failed = textfile.write(&text).err().map(|why| why.to_string());
        if let Some(why) = failed.as_ref().filter(|why| self.failed.as_ref() != Some(why)) {
            log(Level::Warning, why);
        }
        self.failed = failed;
    }
}

/// Collects the figures.
fn figures(started: SystemTime, seen: &Seen, status: Option<&Status>) -> Figures {
    let files = status.map(|status| status.files.as_slice()).unwrap_or_default();
    Figures {
        scanned: seen.at,
        programs: programs(seen.taken.iter()),
        lifts: seen.lifts,
        refusals: seen.refusals,
        restores: seen.restores,
        refused: seen.refused.clone(),
        processes_seen: seen.processes as u64,
        processes_taken: seen.taken.iter().filter(|taken| taken.bytes() > 0).count() as u64,
        copies_bytes: seen.copies,
        copies_budget_bytes: Some(seen.memory),
        pagecache_huge_bytes: files.iter().map(|file| file.huge_bytes).sum(),
        pagecache_file_bytes: files.iter().map(|file| file.whole_bytes).sum(),
        cpu_seconds: kernel::cpu_seconds(&seen.lifters),
        resident_bytes: kernel::resident_bytes(&seen.lifters),
        scan_seconds: seen.scans.1.as_secs_f64(),
        scans: seen.scans.0,
        pressure: kernel::pressure(),
        kernel: kernel::counters(),
        ledger_is_written: seen.ledger_is_written(),
        verdicts: seen.verdicts.clone(),
        pools: kernel::pools(),
        ..Figures::new(env!("CARGO_PKG_VERSION"), started)
    }
}

/// Sums the processes of each program in each unit.
fn programs<'a>(taken: impl Iterator<Item = &'a Taken>) -> Vec<ProgramFigures> {
    let mut all: BTreeMap<(Untrusted, Option<Untrusted>), ProgramFigures> = BTreeMap::new();
    for one in taken.filter(|one| one.bytes() > 0) {
        let (program, unit) = (one.program.clone(), one.unit.clone());
        let sum = all.entry((program.clone(), unit.clone())).or_insert_with(|| ProgramFigures {
            program,
            unit,
            ..ProgramFigures::default()
        });
        sum.processes += 1;
        for (key, bytes) in &one.huge {
            let most = sum.huge_bytes.entry(*key).or_default();
            *most = most.saturating_add(*bytes);
        }
    }
    all.into_values().collect()
}
