// SPDX-License-Identifier: Apache-2.0
//! A server for one round: started, awaited until it is ready, and stopped with all processes that
//! it has started.

use crate::child::{Child, reap_orphans};
use crate::interrupt;
use crate::perf::counters::{Later, Start};
use crate::perf::watch::Watch;
use crate::program::Program;
use crate::ready::Ready;
use crate::timed::Seen;
use crate::tree::{cpu_of_descendants, descendants};
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_core::proc_stat::Stat;
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last lines of a server's output that an error shows.
const LINES: usize = 8;

/// The interval between checks whether the server is ready.
const PAUSE: Duration = Duration::from_millis(5);

/// How long killed processes may take to end: a busy machine gives them CPU time late, and the kernel frees their memory first.
const ORPHANS: Duration = Duration::from_secs(30);

/// The servers of this process that run. What one of them leaves behind can be told from the others only when
/// they have ended too.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A running server. When dropped, it is killed with all processes that it has started; those that have left
/// its process group end with the last server that runs at the same time.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    output: Arc<Mutex<Output>>,
}

/// The last lines that a server has printed, and whether one of them was the sign that it is ready.
#[derive(Debug, Default)]
struct Output {
    last: VecDeque<String>,
    ready: bool,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// Something answers before the server is started; it ends, or is not ready in time.
    pub fn start(program: &Program, ready: &Ready, patience: Duration) -> Result<Server> {
        ensure!(
            !ready.answers(),
            "{ready} is possible before the server is started: another server uses it; stop that one, or choose \
             another port or socket"
        );
        let mut command = program.command()?;
        let (read, write) = std::io::pipe().context("pipe")?;
        command.stdin(Stdio::null()).stdout(write.try_clone().context("dup")?).stderr(write);
        let child = Child::start(&mut command)?;
        RUNNING.fetch_add(1, Ordering::Relaxed);
        // Closes this process's copies of the write end.
        drop(command);
        let output = Arc::new(Mutex::new(Output::default()));
        let server = Server { child: Some(child), output: Arc::clone(&output) };
        read_output(read, ready.clone(), output)?;
        server.wait_until_ready(ready, patience)?;
        Ok(server)
    }

    fn wait_until_ready(&self, ready: &Ready, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            interrupt::check()?;
            if self.output().ready || ready.answers() {
                return Ok(());
            }
            if self.child()?.has_ended()? {
                // The last lines may not have been read yet.
                std::thread::sleep(10 * PAUSE);
                bail!("the server ended before there was {ready}{}", self.last_lines());
            }
            if Instant::now() >= deadline {
                bail!("there was no {ready} within {patience:?} of the server's start{}", self.last_lines());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn child(&self) -> Result<&Child> {
        self.child.as_ref().context("the server is stopped")
    }

    fn output(&self) -> std::sync::MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what it printed last, for an error.
    fn last_lines(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.last.iter().map(String::as_str).collect();
        if lines.is_empty() { String::new() } else { format!("; its last lines:\n  {}", lines.join("\n  ")) }
    }

    /// Returns the CPU seconds that it and its descendants have used so far.
    ///
    /// # Errors
    /// The server has ended, or /proc cannot be read.
    pub fn cpu(&self) -> Result<f64> {
        ensure!(!self.child()?.has_ended()?, "the server has ended{}", self.last_lines());
        cpu_of_descendants()
    }

    /// Opens counters of all its threads, and of those of its descendants. No other program of this process must run.
    ///
    /// # Errors
    /// The server has ended, or there are too many threads for this process's descriptors.
    pub fn watch(&self) -> Result<Watch> {
        ensure!(!self.child()?.has_ended()?, "the server has ended{}", self.last_lines());
        raise_file_limit();
        let processes = descendants(std::process::id())?.into_iter().map(|stat| Process::new(stat.pid));
        let threads: Vec<i32> = processes.flat_map(|process| process.threads()).collect();
        Ok(Watch::open(None, &threads, Start::Asked, Later::Processes)?)
    }

    /// Reads how much of its memory is huge now.
    ///
    /// # Errors
    /// The server is stopped already.
    pub fn memory_now(&self) -> Result<Seen> {
        Ok(Seen::now(self.child()?.pid()))
    }

    /// Sends it SIGTERM, and kills it if it still runs after `patience`; then kills what it has left
    /// behind. Returns how it ended, and whether it had to be killed.
    ///
    /// # Errors
    /// The server cannot be waited for.
    pub fn stop(mut self, patience: Duration) -> Result<(ExitStatus, bool)> {
        let child = self.child.take().context("the server is stopped")?;
        let pid = nix::unistd::Pid::from_raw(child.pid().cast_signed());
        // It has not been waited for, so the id is still its own. It is not an error if it has ended.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let ended = child.wait_until(Instant::now() + patience)?;
        child.group().signal(libc::SIGKILL);
        let finished = child.finish();
        if RUNNING.fetch_sub(1, Ordering::Relaxed) == 1 {
            clear_orphans()?;
        }
        Ok((finished?.0, !ended))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Dropping the child kills its group.
        if self.child.take().is_some() && RUNNING.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Nothing can be done about a process that even SIGKILL does not end.
            let _ = clear_orphans();
        }
    }
}

/// Kills what has left the server's process group: after the server's end these processes are
/// descendants of this one, which is a subreaper.
fn clear_orphans() -> Result<()> {
    let until = Instant::now() + ORPHANS;
    while Instant::now() < until {
        let (_, some) = reap_orphans(Duration::from_millis(20))?;
        if !some {
            return Ok(());
        }
        let all = descendants(std::process::id())?;
        let kill = |stat: &Stat| {
            let pid = nix::unistd::Pid::from_raw(stat.pid.cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)
        };
        let refused = all.iter().filter(|stat| kill(stat) == Err(Errno::EPERM)).count();
        if refused > 0 && refused == all.len() {
            break;
        }
    }
    let left: Vec<String> =
        descendants(std::process::id())?.iter().map(|stat| format!("{} ({})", stat.pid, stat.comm)).collect();
    bail!(
        "processes that the server has started do not end, or may not be killed: {}; see their USER and STAT in 'ps u'",
        left.join(", ")
    )
}

/// Reads the output in a thread until the last writer closes it.
fn read_output(from: std::io::PipeReader, ready: Ready, output: Arc<Mutex<Output>>) -> Result<()> {
    let from = File::from(std::os::fd::OwnedFd::from(from));
    let read = move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = text_to_parse(&line).into_owned();
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.ready |= matches!(&ready, Ready::Line(regex) if regex.is_match(&line));
            if output.last.len() == LINES {
                output.last.pop_front();
            }
            output.last.push_back(line);
        }
    };
    std::thread::Builder::new().name("output".into()).spawn(read).context("cannot start a thread")?;
    Ok(())
}

/// Returns the last number in `output` that `regex` matches: its first group, or all of it.
///
/// # Errors
/// There is none.
pub fn number(regex: &regex::Regex, output: &str) -> Result<f64> {
    let found = regex.captures_iter(output).last();
    let text = found.as_ref().and_then(|groups| groups.get(1).or(groups.get(0))).map(|m| m.as_str());
    let Some(text) = text else {
        let lines: Vec<&str> = output.lines().rev().take(LINES).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        bail!("'{regex}' matches nothing in the load's output; the output ends:\n  {}", lines.join("\n  "));
    };
    let number = text.trim().replace(',', "").parse::<f64>().ok().filter(|n| n.is_finite());
    number.with_context(|| format!("'{regex}' matches '{text}' in the load's output, which is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn the_last_number_is_taken() {
        let of = |regex: &str, text: &str| number(&Regex::new(regex).unwrap(), text);
        assert_eq!(of(r"tps: ([0-9.]+)", "tps: 1.5\ntps: 2.5\n").unwrap(), 2.5);
        assert_eq!(of(r"[0-9,]+", "got 1,234 rows").unwrap(), 1234.0);
        assert!(of(r"qps: (\d+)", "tps: 7").unwrap_err().to_string().contains("tps: 7"));
        assert!(of(r"tps: (.*)", "tps: many").unwrap_err().to_string().contains("'many'"));
    }
}
