// SPDX-License-Identifier: Apache-2.0
//! The thread that does the rounds. A round reads files, and how long that takes is in the hands
//! of those who can write to them: so nobody waits for this thread, not even at the end.

use super::journal::{Level, log};
use super::keeper::Keeper;
use super::read_config;
use super::status::Status;
use super::watch::{Folders, Watched};
use crate::failure::Failure;
use hugelift_core::keep::Config;
use hugelift_core::printable::Escape;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How often a round is done anew because folders were not watched before.
const TRIES: u32 = 3;

/// What the thread can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Look at everything that is wanted.
    Round,
    /// Read the configuration again, then as [`Task::Round`].
    Reload,
    /// Release what is locked in memory.
    Unlock,
}

/// What came of a task.
pub struct Done {
    /// Which one it was.
    pub task: Task,
    /// How things are now.
    pub status: Status,
    /// After a round: what is watched.
    pub watched: Option<Watched>,
    /// When the next round is due.
    pub interval: Duration,
    /// Who may ask, beside the daemon's own user.
    pub group: Option<String>,
}

/// The thread, from outside.
pub struct Worker {
    tasks: Sender<Task>,
    done: Receiver<Done>,
    /// A byte for each that is done; its end is the thread's end.
    bell: PipeReader,
    /// Tasks that are not done yet.
    pending: usize,
    may_lock: Arc<AtomicBool>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no pipe or no thread, in words.
    pub fn start(path: &Path, config: Config, folders: Folders) -> Result<Worker, Failure> {
        let failed = |e: std::io::Error| format!("cannot start a thread: {e}");
        let (bell, ring) = std::io::pipe().map_err(failed)?;
        let (tasks, for_thread) = channel();
        let (done_here, done) = channel();
        let may_lock = Arc::new(AtomicBool::new(true));
        let (path, may) = (path.to_path_buf(), may_lock.clone());
        let body = move || {
            let keeper = Keeper::new(config, may);
            let mut thread = Thread { path, keeper, folders, unwatched: Vec::new() };
            thread.work(&for_thread, &done_here, ring);
        };
        std::thread::Builder::new().name("rounds".into()).spawn(body).map_err(failed)?;
        Ok(Worker { tasks, done, bell, pending: 0, may_lock })
    }

    /// Asks for something, which is done after what was asked for before.
    pub fn ask(&mut self, task: Task) {
        // If the thread has ended, `take` says so.
        let _ = self.tasks.send(task);
        self.pending += 1;
    }

    /// Whether something is not done yet.
    pub fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// Whether it may lock pages in memory.
    pub fn may_lock(&self) -> bool {
        self.may_lock.load(Ordering::Relaxed)
    }

    /// Whether it may lock pages in memory, also in the round that it is doing.
    pub fn set_may_lock(&self, may: bool) {
        self.may_lock.store(may, Ordering::Relaxed);
    }

    /// Takes what is done; call it when its descriptor is ready.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn take(&mut self) -> Result<Option<Done>, Failure> {
        let ended = "the thread that looks at the files has ended";
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
    path: PathBuf,
    keeper: Keeper,
    folders: Folders,
    /// What was said of folders that cannot be watched.
    unwatched: Vec<String>,
}

impl Thread {
    fn work(&mut self, tasks: &Receiver<Task>, done: &Sender<Done>, mut bell: PipeWriter) {
        while let Ok(task) = tasks.recv() {
            let watched = match task {
                Task::Round => Some(self.round()),
                Task::Reload => {
                    self.reload();
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
                group: config.group.clone(),
                status: self.keeper.status(self.path.escaped().to_string()),
            };
            if done.send(result).is_err() || bell.write_all(&[0]).is_err() {
                return;
            }
        }
    }

    fn reload(&mut self) {
        match read_config(&self.path) {
            Ok(config) => {
                log(Level::Info, &format!("{} read again", self.path.escaped()));
                self.keeper.configure(config);
            }
            Err(error) => log(Level::Error, &format!("{error}; the old configuration stays")),
        }
    }

    fn round(&mut self) -> Watched {
        // What happens in a folder before it is watched nobody tells us. So we look again after
        // it is watched for the first time.
        let mut tries = 0;
        loop {
            let set = self.folders.set(&self.keeper.round());
            for line in set.failed.iter().filter(|line| !self.unwatched.contains(line)) {
                log(Level::Warning, line);
            }
            self.unwatched = set.failed;
            tries += 1;
            if !set.new || tries == TRIES {
                return set.watched;
            }
        }
    }
}
