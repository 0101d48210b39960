// SPDX-License-Identifier: Apache-2.0
//! What a watcher has to say.

use crate::attach::Change;
use std::time::Duration;

/// What a watcher has to say.
#[derive(Debug)]
pub enum Event<'a> {
    /// Text or rodata of a process was copied or mapped.
    Lifted {
        /// The process.
        pid: u32,
        /// What was done.
        change: &'a Change,
        /// The CPU time that the process had used.
        cpu: Duration,
    },
    /// Anonymous memory of a process was collapsed.
    Collapsed {
        /// The process.
        pid: u32,
        /// What was done.
        change: &'a Change,
    },
    /// A process was checked for the first time, and there is nothing to lift.
    Nothing {
        /// The process.
        pid: u32,
        /// Why.
        change: &'a Change,
    },
    /// A process could not be lifted.
    Refused {
        /// The process.
        pid: u32,
        /// Why.
        why: &'a str,
    },
    /// Copies of a process that are no longer in use were given back, as memory is short.
    GivenBack {
        /// The process.
        pid: u32,
        /// What was done.
        change: &'a Change,
    },
    /// A line about the watch itself.
    Note(&'a str),
    /// A line about the watch itself for those who ask for details.
    Detail(&'a str),
}

/// What a watch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How long it took.
    pub watched: Duration,
    /// CPU time for polling.
    pub polling: Duration,
    /// CPU time for lifts.
    pub lifting: Duration,
    /// CPU time for samples of the code in use.
    pub sampling: Duration,
    /// How many processes were lifted; one that has become another program by execve(2) counts again.
    pub lifted: u64,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let share = 100.0 * self.polling.as_secs_f64() / self.watched.as_secs_f64().max(1e-9);
        write!(
            f,
            "hugelift watched for {:.1} s with {:.1} ms of CPU time ({share:.2} %), and used {:.1} ms of CPU time \
             for lifts",
            self.watched.as_secs_f64(),
            millis(self.polling),
            millis(self.lifting),
        )?;
        match self.sampling.is_zero() {
            true => Ok(()),
            false => write!(f, " and {:.1} ms for samples", millis(self.sampling)),
        }
    }
}

/// Takes what a watcher has to say, and returns whether it could be said.
pub(crate) type Tell = Box<dyn FnMut(Event<'_>) -> bool>;

/// Returns what `hugelift run -v` says.
pub(super) fn line_of_run(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Lifted { pid, change, cpu } => {
            let (line, cpu) = (change.lines.first()?, cpu.as_secs_f64());
            Some(format!(
                "process {pid}: {line}, copied or mapped while it ran, after {cpu:.1} s of CPU time"
            ))
        }
        Event::Refused { pid, why } => Some(format!("process {pid} is not lifted while it runs: {why}")),
        Event::Note(line) | Event::Detail(line) => Some((*line).into()),
        Event::Collapsed { pid, change } | Event::GivenBack { pid, change } => {
            Some(format!("process {pid}: {}", change.lines.first()?))
        }
        Event::Nothing { .. } => None,
    }
}
