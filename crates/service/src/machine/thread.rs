// SPDX-License-Identifier: Apache-2.0
//! The thread that watches the machine. The daemon gives it a policy and reads what it has seen, and never waits for it: a reading
//! of /proc may take as long as another process likes.

use super::watched::{Seen, Watched};
use crate::journal::{Level, log};
use crate::machine;
use hugelift_core::service::policy::Policy;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two reports of what was seen.
const REPORT: Duration = Duration::from_secs(1);
/// How long the daemon waits at its end: the lifters end, and what they have lifted stays. The thread may be in the middle of
/// something.
const ENDING: Duration = machine::ENDING.saturating_add(Duration::from_secs(2));
/// Between two checks whether it has ended.
const CHECK: Duration = Duration::from_millis(10);

/// An order to the thread.
enum Order {
    /// Watch by another policy. With it the memory of the machine, in bytes.
    Obey(Box<Policy>, u64),
    /// End.
    End,
}

/// A handle to the thread.
pub struct MachineThread {
    orders: Sender<Order>,
    /// A byte wakes the thread.
    wake: PipeWriter,
    seen: Arc<Mutex<Arc<Seen>>>,
    thread: JoinHandle<()>,
}

impl MachineThread {
    /// Starts the thread. `memory` is the machine's memory in bytes. `ledger` is the path of the ledger, and `pods` the path of
    /// the file of pods.
    ///
    /// # Errors
    /// There can be no thread, or no pipe.
    pub fn start(
        policy: Policy,
        memory: u64,
        ledger: Option<PathBuf>,
        pods: Option<PathBuf>,
    ) -> Result<MachineThread, String> {
        let failed = |e: std::io::Error| format!("cannot start a thread: {e}");
        let (woken, wake) = std::io::pipe().map_err(failed)?;
        let (orders, for_thread) = channel();
        let seen: Arc<Mutex<Arc<Seen>>> = Arc::default();
        let shown = Arc::clone(&seen);
        let body = move || watch(Watched::start(policy, memory, ledger, pods), &for_thread, woken, &shown);
        let thread = std::thread::Builder::new().name("machine".into()).spawn(body).map_err(failed)?;
        Ok(MachineThread { orders, wake, seen, thread })
    }

    /// Returns what was seen last.
    pub fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has it watch by another policy.
    pub fn obey(&mut self, policy: Policy, memory: u64) {
        self.order(Order::Obey(Box::new(policy), memory));
    }

    /// Ends it, and waits for it some seconds at most.
    pub fn end(mut self) {
        self.order(Order::End);
        let deadline = Instant::now() + ENDING;
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                let line = match self.seen().to_restore {
                    0 => "the thread that watches the machine does not end: a process holds it up".into(),
                    waiting => format!(
                        "the thread that watches the machine does not end: of the processes that it lifts, {waiting} stay so, and no \
                         gain was measured; 'hugelift restore PID' restores one"
                    ),
                };
                return log(Level::Warning, &line);
            }
            std::thread::sleep(CHECK);
        }
    }

    /// Returns whether it has ended, which it does only if it was asked to.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    fn order(&mut self, order: Order) {
        // If it has ended, `has_ended` says so.
        let _ = self.orders.send(order).is_ok() && self.wake.write_all(&[0]).is_ok();
    }
}

fn watch(mut watched: Watched, orders: &Receiver<Order>, mut woken: PipeReader, shown: &Mutex<Arc<Seen>>) {
    let mut next = Instant::now();
    loop {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Obey(policy, memory) => watched.obey(*policy, memory),
                Order::End => return watched.end(),
            }
        }
        watched.turn();
        if Instant::now() >= next {
            next = Instant::now() + REPORT;
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(watched.seen());
        }
        if wait(&watched, &woken, next) && woken.read(&mut [0]).is_ok_and(|count| count == 0) {
            // The daemon is gone.
            return watched.end();
        }
    }
}

/// Waits until there is something to do. Returns whether the daemon has sent something.
fn wait(watched: &Watched, woken: &PipeReader, next: Instant) -> bool {
    let mut fds = vec![PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
    fds.extend(watched.fds());
    let time = watched.next().min(next).saturating_duration_since(Instant::now());
    // Rounded up: after waking too early it would only wait again.
    let time = PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, time) {
        Ok(_) => fds[0].any().unwrap_or(false),
        Err(Errno::EINTR) => false,
        Err(error) => {
            log(Level::Error, &format!("poll: {error}"));
            std::thread::sleep(REPORT);
            false
        }
    }
}
