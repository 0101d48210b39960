// SPDX-License-Identifier: Apache-2.0
//! The files that are kept, and a round over them.

use super::observed::Observed;
use super::settings::Settings;
use super::wanted::{Names, Wanted};
use crate::answers::status::{FileStatus, Status};
use crate::journal::{Level, log};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::keep::Config;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{FileReport, Obstacle};
use hugelift_core::printable::Escape;
use hugelift_pages::pagecache::prime::{CacheFile, Locked, Pace, Primer, Stamp, huge_page};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that is kept.
pub struct Keeper {
    config: Config,
    page: Result<PageSize, Obstacle>,
    files: BTreeMap<FileId, Kept>,
    /// The files in the order of the configuration, then those that were observed.
    order: Vec<FileId>,
    missing: Vec<String>,
    lock_error: Option<String>,
    may_lock: Arc<AtomicBool>,
    edges: Primer,
    /// Bytes of data files of processes that a round may read.
    observed: u64,
}

/// One file.
struct Kept {
    report: FileReport,
    stamp: Stamp,
    locked: Locked,
    /// The huge pages that were to be locked.
    asked: Vec<u64>,
    /// What was last logged about it.
    last_news: String,
}

impl Keeper {
    /// Makes a keeper of the files that the settings name. Pages are locked in memory only while `may_lock` is set.
    pub fn new(settings: Settings, may_lock: Arc<AtomicBool>) -> Keeper {
        Keeper {
            observed: settings.observed,
            config: settings.keep,
            page: huge_page(),
            files: BTreeMap::new(),
            order: Vec::new(),
            missing: Vec::new(),
            lock_error: None,
            may_lock,
            edges: Primer::default(),
        }
    }

    /// Changes the settings from the next round on.
    pub fn configure(&mut self, settings: Settings) {
        (self.config, self.observed) = (settings.keep, settings.observed);
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Releases what is locked in memory.
    pub fn unlock(&mut self) {
        self.files.values_mut().for_each(Kept::unlock);
    }

    fn may_lock(&self) -> bool {
        self.may_lock.load(Ordering::Relaxed)
    }

    /// Finds the files of the configuration and the files that were observed. Primes the files that are not huge, locks as many
    /// as the budget allows, and releases files that are no longer in it. Returns the folders to watch.
    pub fn round(&mut self, observed: &Observed) -> BTreeMap<PathBuf, Names> {
        let mut wanted = Wanted::find(&self.config);
        wanted.add_observed(&self.config, observed.paths());
        for missing in wanted.missing.iter().filter(|m| !self.missing.contains(m)) {
            log(Level::Warning, missing);
        }
        self.missing = std::mem::take(&mut wanted.missing);
        self.order = wanted.files.iter().map(CacheFile::id).collect();
        // Done first: a removed file keeps its disk space as long as it is open.
        self.files.retain(|id, _| self.order.contains(id));
        let (named, observed) = wanted.parts();
        // While memory is short nothing is read: the next round comes by itself.
        let pace = |budget| Pace::new(budget, None).without_patience();
        let mut of_named = pace(self.config.budget);
        named.iter().for_each(|file| self.refresh(file, &mut of_named, true));
        // What is in no whole huge page costs more than it brings where nobody has asked for the file.
        let mut of_observed = pace(self.observed);
        observed.iter().for_each(|file| self.refresh(file, &mut of_observed, false));
        self.lock(named);
        for id in &self.order {
            if let Some(kept) = self.files.get_mut(id) {
                kept.log_changes();
            }
        }
        wanted.folders
    }

    fn refresh(&mut self, file: &CacheFile, pace: &mut Pace, with_edges: bool) {
        let page = match &self.page {
            Ok(page) => *page,
            Err(obstacle) => {
                let report = file.blocked(obstacle);
                self.files.entry(file.id()).or_insert_with(|| Kept::new(report, file.stamp()));
                return;
            }
        };
        let now = file.stamp();
        match self.files.get_mut(&file.id()) {
            Some(kept) if kept.stamp == now => {
                if let Some(report) = renewed(&kept.report, file, page, pace) {
                    kept.report = report;
                }
            }
            Some(kept) => {
                kept.unlock();
                kept.report = primed(file, page, with_edges.then_some(&mut self.edges), pace);
                kept.stamp = now;
            }
            None => {
                let report = primed(file, page, with_edges.then_some(&mut self.edges), pace);
                self.files.insert(file.id(), Kept::new(report, now));
            }
        }
    }

    /// Locks huge pages, in the order of the configuration, as far as the budget goes.
    fn lock(&mut self, files: &[CacheFile]) {
        let Ok(page) = self.page else { return };
        let mut left = self.config.budget;
        let mut error = None;
        for file in files {
            // Read for each file: memory may become short meanwhile.
            if !self.may_lock() {
                left = 0;
            }
            let Some(kept) = self.files.get_mut(&file.id()) else { continue };
            let may = usize::try_from(left / page.bytes()).unwrap_or(usize::MAX);
            let pages = kept.report.huge_pages.iter().copied().take(may).collect::<Vec<u64>>();
            left -= pages.len() as u64 * page.bytes();
            if pages != kept.asked {
                kept.unlock();
                let (locked, failed) = Locked::new(file.file(), &pages, page);
                // After a failure the next round tries again.
                kept.asked = if failed.is_none() { pages } else { Vec::new() };
                kept.locked = locked;
                error = error.or(failed.map(|e| lock_error(file.path(), &e)));
            }
        }
        if let Some(error) = error.as_ref().filter(|e| self.lock_error.as_ref() != Some(e)) {
            log(Level::Warning, error);
        }
        self.lock_error = error;
    }

    /// Returns the present state.
    pub fn status(&self, config: String) -> Status {
        let files: Vec<FileStatus> = self
            .order
            .iter()
            .filter_map(|id| self.files.get(id))
            .map(|kept| FileStatus::new(&kept.report, kept.locked.bytes()))
            .collect();
        Status {
            version: crate::answers::status::VERSION,
            pid: std::process::id(),
            config,
            budget_bytes: self.config.budget,
            locked_bytes: files.iter().map(|f| f.locked_bytes).sum(),
            lock_error: self.lock_error.clone(),
            released: !self.may_lock(),
            missing: self.missing.clone(),
            files,
            processes: Vec::new(),
            ledger_error: None,
        }
    }
}

/// Checks a file that was primed before, and primes it again if that may help. Returns `None` if
/// nothing can have changed.
fn renewed(known: &FileReport, file: &CacheFile, page: PageSize, pace: &mut Pace) -> Option<FileReport> {
    let has = |report: &FileReport, one: fn(&Obstacle) -> bool| {
        report.obstacles().iter().any(|(_, blocked)| one(&blocked.obstacle))
    };
    // The file system still does not support large folios.
    if has(known, |o| matches!(o, Obstacle::NoLargeFolios(_))) {
        return None;
    }
    let now = file.check(page);
    // While a process uses the file, priming would evict pages that it has not mapped, and that it
    // would then read again.
    let waits = |o: &Obstacle| {
        matches!(
            o,
            Obstacle::InUse(_)
                | Obstacle::BeingWritten(_)
                | Obstacle::NotCongruent(_)
                | Obstacle::TooSmall(_)
        )
    };
    let idle = now.obstacles().iter().all(|(_, blocked)| waits(&blocked.obstacle));
    Some(if idle { now } else { file.prime(page, pace, None) })
}

fn lock_error(path: &std::path::Path, error: &std::io::Error) -> String {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
    let limit = match limit {
        Ok((soft, _)) if soft < u64::MAX => format!(" (RLIMIT_MEMLOCK is {})", human_bytes(soft)),
        _ => String::new(),
    };
    let help = "give it CAP_IPC_LOCK or a higher limit, as LimitMEMLOCK= in its unit";
    format!("{}: cannot lock its pages: {error}{limit}; {help}", path.escaped())
}

/// Primes a file that is new or has changed, its edges included if there is a primer for them.
fn primed(file: &CacheFile, page: PageSize, edges: Option<&mut Primer>, pace: &mut Pace) -> FileReport {
    let report = file.prime(page, pace, None);
    match edges {
        Some(edges) => FileReport { edges: edges.prime(file, page, Some(pace)), ..report },
        None => report,
    }
}

impl Kept {
    fn new(report: FileReport, stamp: Stamp) -> Kept {
        Kept { report, stamp, locked: Locked::default(), asked: Vec::new(), last_news: String::new() }
    }

    fn unlock(&mut self) {
        self.locked = Locked::default();
        self.asked.clear();
    }

    /// Logs what has changed. Files with nothing to gain get no line.
    fn log_changes(&mut self) {
        if self.report.whole_bytes == 0 {
            return;
        }
        let mut line = format!("{}: {}", self.report.path, self.report.summary());
        if self.locked.bytes() > 0 {
            line += &format!(", {} locked", human_bytes(self.locked.bytes()));
        }
        let obstacles = self.report.obstacles();
        let reasons = |of: fn(&Obstacle) -> String| -> Vec<String> {
            obstacles.iter().map(|(_, blocked)| of(&blocked.obstacle)).collect()
        };
        // The processes that use the file change from round to round, and are not logged again.
        let news = format!("{line} {:?}", reasons(|o| o.key().to_string()));
        if news == self.last_news {
            return;
        }
        self.last_news = news;
        if !obstacles.is_empty() {
            line += &format!(" ({})", reasons(Obstacle::to_string).join("; "));
        }
        log(if self.report.is_huge() { Level::Info } else { Level::Warning }, &line);
    }
}
