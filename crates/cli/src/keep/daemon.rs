// SPDX-License-Identifier: Apache-2.0
//! The daemon's life: waits for signals, changes, clients and the time of the next round.

use super::journal::{Level, log};
use super::keeper::Keeper;
use super::pressure::Pressure;
use super::read_config;
use super::socket::Socket;
use super::watch::Watch;
use hugelift_core::keep::Config;
use hugelift_core::printable;
use hugelift_core::printable::Escape;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// A package is unpacked file by file: a round comes when it has been quiet for so long,
const QUIET: Duration = Duration::from_secs(1);
/// but waits no longer than this.
const LONGEST: Duration = Duration::from_secs(10);
/// Locks are taken again so long after memory was last short.
const RELIEF: Duration = Duration::from_secs(60);

/// One round without locks; the exit status.
pub fn once(config: Config) -> i32 {
    let mut keeper = Keeper::new(config, false);
    keeper.round();
    i32::from(!keeper.status(String::new()).is_huge())
}

/// Keeps what the configuration says until SIGTERM; the exit status.
///
/// # Errors
/// Why it cannot start, in words.
pub fn run(config: &Path, socket: Option<&Path>) -> Result<i32, String> {
    // Before anything is made that a signal would leave behind.
    let signals = signals()?;
    let keeper = Keeper::new(read_config(config)?, true);
    let socket = match Socket::new(socket) {
        Ok(socket) => Some(socket),
        Err(error) if error.starts_with("another ") => return Err(error),
        // On a full disk, say, it does its work all the same.
        Err(error) => {
            log(Level::Warning, &format!("{error}; going on without"));
            None
        }
    };
    let mut daemon = Daemon {
        config,
        keeper,
        watch: Watch::new()?,
        next: Instant::now(),
        changed: None,
        short: None,
        unwatched: Vec::new(),
    };
    daemon.round();
    notify(&[NotifyState::Ready]);
    daemon.live(&signals, socket.as_ref(), Pressure::new().as_ref())?;
    notify(&[NotifyState::Stopping]);
    Ok(0)
}

/// SIGHUP, SIGTERM and SIGINT come to be read; SIGPIPE not at all.
fn signals() -> Result<SignalFd, String> {
    let mut mask = SigSet::empty();
    [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().for_each(|s| mask.add(s));
    let mut blocked = mask;
    blocked.add(Signal::SIGPIPE);
    let failed = |e: Errno| format!("cannot wait for signals: {e}");
    blocked.thread_block().map_err(failed)?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(failed)
}

/// Tells systemd, where it wants to be told (sd_notify(3)).
fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "sd_notify");
    }
}

struct Daemon<'a> {
    config: &'a Path,
    keeper: Keeper,
    watch: Watch,
    /// When the next round is due.
    next: Instant,
    /// When the first change since the last round was seen.
    changed: Option<Instant>,
    /// When memory was last short.
    short: Option<Instant>,
    unwatched: Vec<String>,
}

impl Daemon<'_> {
    fn live(
        &mut self,
        signals: &SignalFd,
        socket: Option<&Socket>,
        pressure: Option<&Pressure>,
    ) -> Result<(), String> {
        loop {
            let mut fds = vec![
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.watch.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(socket.map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)));
            fds.extend(pressure.map(|p| PollFd::new(p.as_fd(), PollFlags::POLLPRI)));
            // Rounded up: waking too early would only mean waiting again.
            let left = self.next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(format!("poll: {error}")),
            }
            let pressed = pressure.is_some() && fds.last().is_some_and(|fd| is_pressed(fd));
            drop(fds);
            while let Ok(Some(signal)) = signals.read_signal() {
                if signal.ssi_signo != Signal::SIGHUP as u32 {
                    return Ok(());
                }
                self.reload();
            }
            if pressed {
                self.release();
            }
            if self.watch.take() {
                self.put_off();
            }
            if Instant::now() >= self.next {
                self.round();
            }
            if let Some(socket) = socket {
                socket.answer(&self.answer());
            }
        }
    }

    fn answer(&self) -> String {
        let status = self.keeper.status(self.config.escaped().to_string());
        printable::json(&status).unwrap_or_default() + "\n"
    }

    fn round(&mut self) {
        let relieved = self.short.is_none_or(|at| at.elapsed() >= RELIEF);
        if relieved && !self.keeper.locks() {
            self.keeper.set_locks(true);
        }
        self.changed = None;
        // What happens in a folder before it is watched nobody tells us: so after it is watched
        // for the first time we look again.
        for _ in 0..3 {
            let (new, failed) = self.watch.set(&self.keeper.round());
            failed.iter().filter(|f| !self.unwatched.contains(f)).for_each(|f| log(Level::Warning, f));
            self.unwatched = failed;
            if !new {
                break;
            }
        }
        self.next = Instant::now() + self.keeper.config().interval;
    }

    /// Something has changed: the round comes when it is quiet again.
    fn put_off(&mut self) {
        let now = Instant::now();
        let first = *self.changed.get_or_insert(now);
        self.next = (now + QUIET).min(first + LONGEST);
    }

    fn reload(&mut self) {
        let now = NotifyState::monotonic_usec_now();
        notify(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
        match read_config(self.config) {
            Ok(config) => {
                log(Level::Info, &format!("{} read again", self.config.escaped()));
                self.keeper.configure(config);
            }
            Err(error) => log(Level::Error, &format!("{error}; the old configuration stays")),
        }
        self.round();
        notify(&[NotifyState::Ready]);
    }

    /// Memory is short: whatever is locked is for the kernel to take.
    fn release(&mut self) {
        self.short = Some(Instant::now());
        if self.keeper.locks() {
            log(Level::Warning, "memory is short: nothing is locked until it is not");
            self.keeper.set_locks(false);
        }
        self.next = self.next.min(Instant::now() + RELIEF);
    }
}

fn is_pressed(fd: &PollFd) -> bool {
    fd.revents().is_some_and(|r| r.contains(PollFlags::POLLPRI))
}
