// SPDX-License-Identifier: Apache-2.0
//! The files that are kept, and a round over them.

use super::journal::{Level, log};
use super::status::{FileStatus, Status};
use super::wanted::{Names, Wanted};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::keep::Config;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{FileReport, Obstacle};
use hugelift_core::printable::Escape;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_pages::pagecache::prime::{Locked, Primer, Stamp, blocked, check, huge_page, prime, stamp};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that is kept.
pub struct Keeper {
    config: Config,
    page: Result<PageSize, Obstacle>,
    files: BTreeMap<FileId, Kept>,
    /// The files in the order of the configuration.
    order: Vec<FileId>,
    missing: Vec<String>,
    lock_error: Option<String>,
    may_lock: Arc<AtomicBool>,
    edges: Primer,
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
    /// Makes a keeper of what `config` names. Pages are locked in memory only while `may_lock` is set.
    pub fn new(config: Config, may_lock: Arc<AtomicBool>) -> Keeper {
        Keeper {
            config,
            page: huge_page(),
            files: BTreeMap::new(),
            order: Vec::new(),
            missing: Vec::new(),
            lock_error: None,
            may_lock,
            edges: Primer::default(),
        }
    }

    /// Changes the configuration from the next round on.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
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

    /// Finds the files of the configuration, primes those that are not huge, locks what the budget
    /// allows, and releases files that are no longer in it. Returns the folders to watch.
    pub fn round(&mut self) -> BTreeMap<PathBuf, Names> {
        let wanted = Wanted::find(&self.config);
        for missing in wanted.missing.iter().filter(|m| !self.missing.contains(m)) {
            log(Level::Warning, missing);
        }
        self.missing = wanted.missing;
        self.order = wanted.files.iter().map(|f| f.id).collect();
        // Done first: a removed file keeps its disk space as long as it is open.
        self.files.retain(|id, _| self.order.contains(id));
        for file in &wanted.files {
            self.refresh(file);
        }
        self.lock(&wanted.files);
        for id in &self.order {
            if let Some(kept) = self.files.get_mut(id) {
                kept.log_changes();
            }
        }
        wanted.folders
    }

    fn refresh(&mut self, file: &ElfFile) {
        let page = match &self.page {
            Ok(page) => *page,
            Err(obstacle) => {
                let report = blocked(file, obstacle);
                self.files.entry(file.id).or_insert_with(|| Kept::new(report, stamp(file)));
                return;
            }
        };
        let now = stamp(file);
        match self.files.get_mut(&file.id) {
            Some(kept) if kept.stamp == now => {
                if let Some(report) = renewed(&kept.report, file, page) {
                    kept.report = report;
                }
            }
            Some(kept) => {
                kept.unlock();
                kept.report = primed(file, page, &mut self.edges);
                kept.stamp = now;
            }
            None => {
                self.files.insert(file.id, Kept::new(primed(file, page, &mut self.edges), now));
            }
        }
    }

    /// Locks huge pages, in the order of the configuration, as far as the budget goes.
    fn lock(&mut self, files: &[ElfFile]) {
        let Ok(page) = self.page else { return };
        let mut left = self.config.budget;
        let mut error = None;
        for file in files {
            // Read for each file: memory may become short meanwhile.
            if !self.may_lock() {
                left = 0;
            }
            let Some(kept) = self.files.get_mut(&file.id) else { continue };
            let may = usize::try_from(left / page.bytes()).unwrap_or(usize::MAX);
            let pages = kept.report.huge_pages.iter().copied().take(may).collect::<Vec<u64>>();
            left -= pages.len() as u64 * page.bytes();
            if pages != kept.asked {
                kept.unlock();
                let (locked, failed) = Locked::new(file.file(), &pages, page);
                // After a failure the next round tries again.
                kept.asked = if failed.is_none() { pages } else { Vec::new() };
                kept.locked = locked;
                error = error.or(failed.map(|e| lock_error(&file.path, &e)));
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
            version: super::status::VERSION,
            pid: std::process::id(),
            config,
            budget_bytes: self.config.budget,
            locked_bytes: files.iter().map(|f| f.locked_bytes).sum(),
            lock_error: self.lock_error.clone(),
            released: !self.may_lock(),
            missing: self.missing.clone(),
            files,
        }
    }
}

/// Checks a file that was primed before, and primes it again if that may help. Returns `None` if
/// nothing can have changed.
fn renewed(known: &FileReport, file: &ElfFile, page: PageSize) -> Option<FileReport> {
    let has = |report: &FileReport, one: fn(&Obstacle) -> bool| {
        report.obstacles().iter().any(|(_, blocked)| one(&blocked.obstacle))
    };
    // The file system still does not support large folios.
    if has(known, |o| matches!(o, Obstacle::NoLargeFolios(_))) {
        return None;
    }
    let now = check(file, page);
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
    Some(if idle { now } else { prime(file, page) })
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

/// Primes a file that is new or has changed, its edges included.
fn primed(file: &ElfFile, page: PageSize, edges: &mut Primer) -> FileReport {
    let report = prime(file, page);
    FileReport { edges: edges.prime(file, page, true), ..report }
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
