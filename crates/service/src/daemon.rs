// SPDX-License-Identifier: Apache-2.0
//! The daemon's loop, which waits for signals, changed files, clients and the time of the next
//! round. Each turn does a bounded amount of work and never blocks, so that SIGTERM ends the daemon
//! at once, whatever other processes do.

use crate::answers::clients::Clients;
use crate::answers::process::ProcessStatus;
use crate::answers::socket::Socket;
use crate::answers::status::Status;
use crate::cgroups;
use crate::files::settings::{Settings, Source, memory};
use crate::files::watch::{self, Changes};
use crate::files::worker::{Done, Task, Worker};
use crate::journal::{Level, log};
use crate::machine::thread::MachineThread;
use crate::pressure::{Pressed, Pressure};
use crate::publish::Publisher;
use crate::signals::{notify, signals};
use crate::unix_socket::ListenError;
use hugelift_core::printable;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::io::file_limit::raise_file_limit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::munlockall;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use sd_notify::NotifyState;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

/// A round starts when nothing has changed for this long, because a package is unpacked file by file.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// A round starts at the latest this long after the first change.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Events are read at most once in this time, however many there are.
const EVENTS_PAUSE: Duration = Duration::from_millis(100);
/// After the start of a round the next one for the files of new processes begins this much later at the earliest, and so many
/// times later than the round took.
const OBSERVED_PAUSE: Duration = Duration::from_secs(30);
const PAUSE_SHARE: u32 = 100;
/// What was seen of the machine is taken this often.
const OBSERVE: Duration = Duration::from_secs(1);
/// Pages are locked again this long after memory was last short.
const RELOCK_AFTER: Duration = Duration::from_secs(60);

/// Does what the policy says until SIGTERM. What it does is written into `ledger`.
///
/// # Errors
/// It cannot start, or the thread with the rounds has ended.
pub fn run(source: Source, socket: Option<&Path>, ledger: Option<PathBuf>) -> Result<(), String> {
    // Blocked before the socket is made, which a signal would leave behind.
    let signals = signals(&[Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT])?;
    // Before there are other threads, which are in the namespace of the one that starts them.
    cgroups::leave_own_namespace();
    let settings = source.read()?;
    let socket = match Socket::new(socket) {
        Ok(socket) => Some(socket),
        Err(ListenError::Taken(why)) => return Err(why),
        // The daemon works without a socket too, for example on a full disk.
        Err(ListenError::Failed(why)) => {
            log(Level::Warning, &format!("{why}; the daemon goes on without a socket"));
            None
        }
    };
    // Each file of a round is open.
    raise_file_limit();
    let machine = MachineThread::start(settings.policy.clone(), memory(), ledger, source.pods.clone())?;
    let (folders, changes) = watch::start()?;
    let started = SystemTime::now();
    let mut daemon = Daemon {
        started,
        group: settings.keep.group.clone(),
        machine,
        publisher: Some(Publisher::start(&settings.policy.metrics, started)),
        status: None,
        observed: BTreeSet::new(),
        is_behind: false,
        last: Instant::now(),
        took: Duration::ZERO,
        observe_at: Instant::now(),
        worker: Worker::start(source, settings, folders)?,
        changes,
        events_paused_until: Instant::now(),
        socket,
        clients: Clients::default(),
        answer: None,
        pressure: Pressure::new(),
        next: Instant::now(),
        changed: None,
        short: None,
    };
    daemon.open_to_group();
    daemon.live(&signals)?;
    notify(&[NotifyState::Stopping]);
    daemon.machine.end();
    // The thread may be in the middle of a file. The end of the process releases what it holds.
    Ok(())
}

struct Daemon {
    /// When it was started.
    started: SystemTime,
    /// The processes of the machine.
    machine: MachineThread,
    /// `None` while it is started again.
    publisher: Option<Publisher>,
    /// The processes whose files are kept; whether the last round did not know one of them; and when it began.
    observed: BTreeSet<Identity>,
    is_behind: bool,
    last: Instant,
    /// How long the last round took.
    took: Duration,
    /// When what was seen of the machine is taken next.
    observe_at: Instant,
    /// What was found after the last round.
    status: Option<Status>,
    worker: Worker,
    changes: Changes,
    /// No events are read before this time.
    events_paused_until: Instant,
    socket: Option<Socket>,
    /// The group that may connect, besides the daemon's user.
    group: Option<String>,
    clients: Clients,
    /// The answer to clients; `None` before the first round is done.
    answer: Option<Rc<[u8]>>,
    pressure: Option<Pressure>,
    /// When the next round is due.
    next: Instant,
    /// When the first change since the last round was seen.
    changed: Option<Instant>,
    /// When memory was last short.
    short: Option<Instant>,
}

/// What made poll(2) return.
#[derive(Clone, Copy, Default)]
struct Ready {
    worker: bool,
    changes: bool,
    pressure: Option<PollFlags>,
    listener: bool,
}

impl Daemon {
    fn live(&mut self, signals: &SignalFd) -> Result<(), String> {
        loop {
            let ready = self.wait(signals)?;
            let mut reload = false;
            while let Ok(Some(signal)) = signals.read_signal() {
                if signal.ssi_signo != Signal::SIGHUP as u32 {
                    return Ok(());
                }
                reload = true;
            }
            if reload {
                self.reload();
            }
            if let Some(seen) = ready.pressure {
                self.unlock_under_pressure(seen);
            }
            if ready.worker
                && let Some(done) = self.worker.take()?
            {
                self.take(done);
            }
            if ready.changes {
                self.events_paused_until = Instant::now() + EVENTS_PAUSE;
                if self.changes.take() {
                    self.delay_round();
                }
            }
            if self.is_behind {
                self.next = self.next.min(self.last + OBSERVED_PAUSE.max(self.took * PAUSE_SHARE));
            }
            if !self.worker.is_busy() && Instant::now() >= self.next {
                self.round();
            }
            self.observe()?;
            self.clients.serve();
            if ready.listener {
                self.answer_anew();
            }
            if let (true, Some(socket), Some(answer)) = (ready.listener, &self.socket, &self.answer) {
                self.clients.accept(socket.listener(), answer);
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, signals: &SignalFd) -> Result<Ready, String> {
        let now = Instant::now();
        let busy = self.worker.is_busy();
        // Events that come during a round wait until the round has set the watches.
        let reads_events = !busy && now >= self.events_paused_until;
        let listens = self.socket.as_ref().filter(|_| self.answer.is_some() && self.clients.may_accept());
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![input(signals.as_fd())];
        let worker = add(&mut fds, Some(input(self.worker.as_fd())));
        let changes = add(&mut fds, reads_events.then(|| input(self.changes.as_fd())));
        let trigger = self.pressure.as_ref().map(|p| PollFd::new(p.as_fd(), PollFlags::POLLPRI));
        let pressure = add(&mut fds, trigger);
        let listener = add(&mut fds, listens.map(|s| input(s.listener().as_fd())));
        fds.extend(self.publisher.iter().flat_map(|publisher| publisher.server.wanted(now)));
        fds.extend(self.clients.fds().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));

        let times = [
            (!busy).then_some(self.next),
            (!busy && !reads_events).then_some(self.events_paused_until),
            self.clients.next_deadline(),
            Some(self.observe_at),
            self.publisher.as_ref().and_then(Publisher::next),
            self.publisher.as_ref().and_then(|publisher| publisher.server.next_deadline(now)),
        ];
        let timeout = match times.into_iter().flatten().min() {
            // Rounded up: after waking too early the loop would only wait again.
            Some(time) => {
                PollTimeout::try_from(time.saturating_duration_since(now) + Duration::from_millis(1))
                    .unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(error) => return Err(format!("poll: {error}")),
        }
        let seen = |at: Option<usize>| at.and_then(|at| fds[at].revents()).filter(|seen| !seen.is_empty());
        Ok(Ready {
            worker: seen(worker).is_some(),
            changes: seen(changes).is_some(),
            pressure: seen(pressure),
            listener: seen(listener).is_some(),
        })
    }

    /// Takes what the thread has seen of the machine since: whose files are kept, and what is published.
    fn observe(&mut self) -> Result<(), String> {
        if self.machine.has_ended() {
            return Err("the thread that watches the machine has ended".into());
        }
        let seen = self.machine.seen();
        if Instant::now() >= self.observe_at {
            self.observe_at = Instant::now() + OBSERVE;
            self.is_behind |= !seen.cached.is_subset(&self.observed);
            self.observed.clone_from(&seen.cached);
            self.worker.observe(seen.cached.iter().copied().collect());
        }
        if let Some(publisher) = &mut self.publisher {
            publisher.turn(&seen, self.status.as_ref());
        }
        Ok(())
    }

    fn round(&mut self) {
        let relieved = self.short.is_none_or(|at| at.elapsed() >= RELOCK_AFTER);
        if relieved && !self.worker.may_lock() {
            self.worker.set_may_lock(true);
        }
        self.changed = None;
        (self.is_behind, self.last) = (false, Instant::now());
        self.worker.ask(Task::Round);
    }

    /// Takes the result of a task.
    fn take(&mut self, done: Done) {
        let first = self.status.replace(done.status).is_none();
        self.answer_anew();
        if let Some(Settings { policy, .. }) = done.settings {
            // The old one listens at the same places, perhaps.
            self.publisher = None;
            self.publisher = Some(Publisher::start(&policy.metrics, self.started));
            self.machine.obey(policy, memory());
        }
        let Some(watched) = done.watched else { return };
        self.took = self.last.elapsed();
        self.changes.set(watched);
        if self.group != done.group {
            self.group = done.group;
            self.open_to_group();
        }
        self.next = Instant::now() + done.interval;
        if self.short.is_some() && !self.worker.may_lock() {
            self.next = self.next.min(Instant::now() + RELOCK_AFTER);
        }
        if first || done.task == Task::Reload {
            notify(&[NotifyState::Ready]);
        }
    }

    /// Makes the answer to who asks.
    fn answer_anew(&mut self) {
        let Some(status) = &mut self.status else { return };
        let seen = self.machine.seen();
        status.ledger_error.clone_from(&seen.ledger_error);
        status.processes = seen.taken.iter().map(ProcessStatus::new).collect();
        let text = printable::json(status).unwrap_or_default() + "\n";
        self.answer = Some(text.into_bytes().into());
    }

    /// Delays the next round after a change, until nothing changes any more.
    fn delay_round(&mut self) {
        let now = Instant::now();
        let first = *self.changed.get_or_insert(now);
        self.next = (now + SETTLE_TIME).min(first + MAX_DELAY);
    }

    fn reload(&mut self) {
        let now = NotifyState::monotonic_usec_now();
        notify(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
        self.changed = None;
        self.worker.ask(Task::Reload);
    }

    fn open_to_group(&self) {
        if let Some(Err(error)) = self.socket.as_ref().map(|s| s.set_group(self.group.as_deref())) {
            log(Level::Warning, &error);
        }
    }

    /// If memory is short, unlocks all pages, so that the kernel can evict them.
    fn unlock_under_pressure(&mut self, seen: PollFlags) {
        match Pressure::judge(seen) {
            Pressed::No => return,
            Pressed::Gone => {
                self.pressure = None;
                return;
            }
            Pressed::Yes => {}
        }
        self.short = Some(Instant::now());
        if self.worker.may_lock() {
            if self.status.as_ref().is_some_and(|status| status.locked_bytes > 0) {
                log(Level::Warning, "memory is short: nothing is locked until there is enough again");
            }
            self.worker.set_may_lock(false);
            // Unlocks at once, also during a round; the thread removes the mappings later.
            let _ = munlockall();
            self.worker.ask(Task::Unlock);
        }
        self.next = self.next.min(Instant::now() + RELOCK_AFTER);
    }
}

/// Adds a descriptor, if there is one; returns its index.
fn add<'fd>(fds: &mut Vec<PollFd<'fd>>, fd: Option<PollFd<'fd>>) -> Option<usize> {
    fds.push(fd?);
    Some(fds.len() - 1)
}
