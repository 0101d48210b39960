// SPDX-License-Identifier: Apache-2.0
//! One child in a process group of its own, and its cost by wait4(2).

use crate::interrupt::Group;
use anyhow::{Context as _, Result};
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::inherited_signals;
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The cost of a run.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Cost {
    /// From before the start to the end, in seconds.
    pub wall: f64,
    /// User CPU seconds of the child and of those it waited for.
    pub user: f64,
    /// System CPU seconds of the child and of those it waited for.
    pub system: f64,
    /// CPU seconds of orphans of it that have ended: for a lifted program, of hugelift's helper.
    pub left_behind: f64,
    /// Page faults that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
}

impl Cost {
    /// Returns all CPU seconds.
    pub fn cpu(&self) -> f64 {
        self.user + self.system + self.left_behind
    }
}

/// A child that has not been waited for. When dropped, it is killed with its group.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    began: Instant,
    group: Group,
    reaped: bool,
}

/// Makes this process a subreaper: it becomes the parent of its children's orphans (a launcher's
/// helper, a server's workers), so that their CPU time counts and none of them is left running.
///
/// # Errors
/// The kernel refuses prctl(2).
pub fn adopt_orphans() -> Result<()> {
    nix::sys::prctl::set_child_subreaper(true).context("prctl(PR_SET_CHILD_SUBREAPER)")
}

impl Child {
    /// Starts `command` in its own process group.
    ///
    /// # Errors
    /// `command` cannot be executed.
    pub fn start(command: &mut Command) -> Result<Child> {
        command.process_group(0);
        inherited_signals::pass_on(command);
        let began = Instant::now();
        let process =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().escaped()))?;
        let group = Group::of(process.id().cast_signed());
        Ok(Child { process, began, group, reaped: false })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns when it was started.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Returns its process group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the handle with its standard input, output and error, where they are pipes.
    pub fn streams(&mut self) -> &mut std::process::Child {
        &mut self.process
    }

    /// Waits until the child has ended and leaves it a zombie, so that its id is not reused yet.
    ///
    /// # Errors
    /// The process is not a child of this one (any more).
    pub fn wait_for_end(&self) -> Result<()> {
        self.poll_end(WaitPidFlag::empty()).map(drop)
    }

    /// Whether the child has ended.
    ///
    /// # Errors
    /// The process is not a child of this one (any more).
    pub fn has_ended(&self) -> Result<bool> {
        self.poll_end(WaitPidFlag::WNOHANG)
    }

    /// Waits for its end until `deadline`. Returns whether it has ended.
    ///
    /// # Errors
    /// The process is not a child of this one (any more).
    pub(crate) fn wait_until(&self, deadline: Instant) -> Result<bool> {
        loop {
            if self.has_ended()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn poll_end(&self, flags: WaitPidFlag) -> Result<bool> {
        let flags = flags | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        loop {
            match waitid(Id::Pid(Pid::from_raw(self.pid().cast_signed())), flags) {
                Ok(WaitStatus::StillAlive) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno).with_context(|| format!("waitid({})", self.pid())),
            }
        }
    }

    /// Waits for its end. Returns how it ended and what it cost.
    ///
    /// # Errors
    /// The process is not a child of this one (any more).
    pub fn finish(mut self) -> Result<(ExitStatus, Cost)> {
        self.wait_for_end()?;
        let wall = self.began.elapsed().as_secs_f64();
        let (status, cost) = self.reap()?;
        Ok((status, Cost { wall, ..cost }))
    }

    fn reap(&mut self) -> Result<(ExitStatus, Cost)> {
        self.reaped = true;
        let pid = self.process.id().cast_signed();
        let ended = wait4(pid, 0).with_context(|| format!("wait4({pid})"))?;
        let (_, status, cost) = ended.with_context(|| format!("wait4({pid}) returned no child"))?;
        Ok((status, cost))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.group.signal(libc::SIGKILL);
            // The wait fails only if another thread has waited for the child.
            let _ = self.reap();
        }
    }
}

/// Waits for the orphans of ended programs, for at most `patience`: what still runs then is a daemon
/// and no helper. Returns their CPU seconds, and whether some still run.
///
/// No other child must run at this time: this would wait for it as for an orphan.
///
/// # Errors
/// wait4(2) fails.
pub(crate) fn reap_orphans(patience: Duration) -> Result<(f64, bool)> {
    let deadline = Instant::now() + patience;
    let mut cpu = 0.0;
    loop {
        match wait4(-1, libc::WNOHANG | libc::__WALL) {
            Ok(Some((_, _, cost))) => cpu += cost.cpu(),
            Ok(None) if Instant::now() >= deadline => return Ok((cpu, true)),
            Ok(None) => std::thread::sleep(Duration::from_micros(200)),
            Err(Errno::ECHILD) => return Ok((cpu, false)),
            Err(errno) => return Err(errno).context("wait4(-1)"),
        }
    }
}

/// Returns the children of all threads of this process; empty on a kernel without `CONFIG_PROC_CHILDREN`
/// (proc(5), `/proc/PID/task/TID/children`).
pub(crate) fn children() -> Vec<libc::pid_t> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Waits as [`reap_orphans`] does, but leaves these children alone: those that were there before the program.
///
/// # Errors
/// wait4(2) fails.
pub(crate) fn reap_orphans_beside(others: &[libc::pid_t], patience: Duration) -> Result<(f64, bool)> {
    if others.is_empty() {
        return reap_orphans(patience);
    }
    let deadline = Instant::now() + patience;
    let mut cpu = 0.0;
    loop {
        let orphans: Vec<_> = children().into_iter().filter(|pid| !others.contains(pid)).collect();
        if orphans.is_empty() {
            return Ok((cpu, false));
        }
        for pid in orphans {
            match wait4(pid, libc::WNOHANG | libc::__WALL) {
                Ok(ended) => cpu += ended.map_or(0.0, |(_, _, cost)| cost.cpu()),
                Err(errno) => return Err(errno).with_context(|| format!("wait4({pid})")),
            }
        }
        if Instant::now() >= deadline {
            return Ok((cpu, true));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits by wait4(2) for one child or, with -1, for any; `None` if none has ended (with WNOHANG).
fn wait4(pid: libc::pid_t, flags: libc::c_int) -> Result<Option<(libc::pid_t, ExitStatus, Cost)>, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: all zeros is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: wait4(2) writes only to the two places given, which outlive the call.
        let done = unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) };
        match Errno::result(done) {
            Ok(0) => return Ok(None),
            Ok(pid) => {
                let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
                let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
                let cost = Cost {
                    user: seconds(usage.ru_utime),
                    system: seconds(usage.ru_stime),
                    minor_faults: count(usage.ru_minflt),
                    major_faults: count(usage.ru_majflt),
                    ..Cost::default()
                };
                return Ok(Some((pid, ExitStatus::from_raw(status), cost)));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Runs a command line by sh(1), without input. Returns how it ended, its output and the time it
/// took. An interrupt ends it.
///
/// # Errors
/// There is no sh, or it cannot be read from.
pub fn shell(line: &str, env: &[(&str, &str)]) -> Result<(ExitStatus, String, Duration)> {
    use std::io::{Read as _, Seek as _};
    // A file, not a pipe: what it leaves in the background may keep a pipe open.
    let mut output = tempfile::tempfile().context("a temporary file for the output")?;
    let both = || output.try_clone().context("dup");
    let mut command = Command::new("sh");
    command.args(["-c", line]).envs(env.iter().copied()).stdin(Stdio::null()).stdout(both()?).stderr(both()?);
    let (status, cost) = Child::start(&mut command)?.finish()?;
    let mut text = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut text)).context("read the output")?;
    Ok((status, text_to_parse(&text).into_owned(), Duration::from_secs_f64(cost.wall)))
}

/// Tests that wait for any child of the process would take each other's: they run one by one.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
