// SPDX-License-Identifier: Apache-2.0
//! The thread that does the rounds. A round reads files, and users who can write to them can make
//! that take long. So the daemon never waits for this thread, not even at its end.

use super::keeper::Keeper;
use super::observed::Observed;
use super::settings::{Settings, Source};
use super::watch::{Folders, Watched};
use crate::answers::status::Status;
use crate::journal::{Level, log};
use hugelift_core::printable::Escape;
use hugelift_core::proc_stat::Identity;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many times a round is done at most, if each finds new folders to watch.
const MAX_ROUNDS: u32 = 3;

/// A task for the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Check and prime all files of the configuration.
    Round,
    /// Read the configuration again, then do a round.
    Reload,
    /// Unlock all pages.
    Unlock,
}

/// The result of a task.
pub struct Done {
    /// The task.
    pub task: Task,
    /// The state after it.
    pub status: Status,
    /// The watches, if it was a round.
    pub watched: Option<Watched>,
    /// The time until the next round.
    pub interval: Duration,
    /// The settings, if they were read again and are in order.
    pub settings: Option<Settings>,
    /// The group that may connect, besides the daemon's user.
    pub group: Option<String>,
}

/// A handle to the thread.
pub struct Worker {
    tasks: Sender<Task>,
    done: Receiver<Done>,
    /// Carries one byte for each finished task; its end means that the thread has ended.
    bell: PipeReader,
    /// Tasks that are not done yet.
    pending: usize,
    may_lock: Arc<AtomicBool>,
    processes: Arc<Mutex<Vec<Identity>>>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// pipe(2) fails, or no thread can be started.
    pub fn start(source: Source, settings: Settings, folders: Folders) -> Result<Worker, String> {
        let failed = |e: std::io::Error| format!("cannot start a thread: {e}");
        let (bell, ring) = std::io::pipe().map_err(failed)?;
        let (tasks, for_thread) = channel();
        let (done_here, done) = channel();
        let may_lock = Arc::new(AtomicBool::new(true));
        let may = may_lock.clone();
        let processes: Arc<Mutex<Vec<Identity>>> = Arc::default();
        let observed = Arc::clone(&processes);
        let body = move || {
            let keeper = Keeper::new(settings, may);
            let (observed, unwatched) = ((observed, Observed::default()), Vec::new());
            let mut thread = Thread { source, keeper, observed, folders, unwatched };
            thread.work(&for_thread, &done_here, ring);
        };
        std::thread::Builder::new().name("rounds".into()).spawn(body).map_err(failed)?;
        Ok(Worker { tasks, done, bell, pending: 0, may_lock, processes })
    }

    /// Queues a task.
    pub fn ask(&mut self, task: Task) {
        // If the thread has ended, `take` returns the error.
        let _ = self.tasks.send(task);
        self.pending += 1;
    }

    /// Sets the processes whose files are kept too, from the next round on.
    pub fn observe(&self, processes: Vec<Identity>) {
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }

    /// Returns whether a task is not finished yet.
    pub fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// Returns whether the thread may lock pages in memory.
    pub fn may_lock(&self) -> bool {
        self.may_lock.load(Ordering::Relaxed)
    }

    /// Sets whether the thread may lock pages in memory, also for the present round.
    pub fn set_may_lock(&self, may: bool) {
        self.may_lock.store(may, Ordering::Relaxed);
    }

    /// Takes the result of a finished task; call it when the descriptor is ready.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn take(&mut self) -> Result<Option<Done>, String> {
        let ended = "the thread that checks the files has ended";
        match self.bell.read(&mut [0]) {
            Ok(1..) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(None),
            Ok(0) | Err(_) => return Err(ended.into()),
        }
        self.pending = self.pending.saturating_sub(1);
        self.done.recv().map(Some).map_err(|_| ended.into())
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

struct Thread {
    source: Source,
    keeper: Keeper,
    /// The processes whose files are kept too, as the daemon sets them, and these files.
    observed: (Arc<Mutex<Vec<Identity>>>, Observed),
    folders: Folders,
    /// The last messages about folders that cannot be watched.
    unwatched: Vec<String>,
}

impl Thread {
    fn work(&mut self, tasks: &Receiver<Task>, done: &Sender<Done>, mut bell: PipeWriter) {
        while let Ok(task) = tasks.recv() {
            let mut settings = None;
            let watched = match task {
                Task::Round => Some(self.round()),
                Task::Reload => {
                    settings = self.reload();
                    Some(self.round())
                }
                Task::Unlock => {
                    self.keeper.unlock();
                    None
                }
            };
            let config = self.keeper.config();
            let result = Done {
                task,
                watched,
                interval: config.interval,
                settings,
                group: config.group.clone(),
                status: self.keeper.status(self.source.config.escaped().to_string()),
            };
            if done.send(result).is_err() || bell.write_all(&[0]).is_err() {
                return;
            }
        }
    }

    fn reload(&mut self) -> Option<Settings> {
        match self.source.read() {
            Ok(settings) => {
                log(Level::Info, &format!("{} read again", self.source.config.escaped()));
                self.keeper.configure(settings.clone());
                Some(settings)
            }
            Err(error) => {
                log(Level::Error, &format!("{error}; the old configuration stays"));
                None
            }
        }
    }

    fn round(&mut self) -> Watched {
        // A change in a folder before it is watched causes no event. So a round follows after a folder
        // is watched for the first time.
        let mut tries = 0;
        let (processes, observed) = &mut self.observed;
        let processes = processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        observed.see(&processes);
        loop {
            let set = self.folders.set(&self.keeper.round(observed));
            for line in set.failed.iter().filter(|line| !self.unwatched.contains(line)) {
                log(Level::Warning, line);
            }
            self.unwatched = set.failed;
            tries += 1;
            if !set.new || tries == MAX_ROUNDS {
                return set.watched;
            }
        }
    }
}
