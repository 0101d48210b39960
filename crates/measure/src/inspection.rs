// SPDX-License-Identifier: Apache-2.0
//! A run that is not measured: the program is stopped at its exit, while its memory still exists
//! (ptrace(2), PTRACE_O_TRACEEXIT). This shows even a program that runs for a millisecond.
//!
//! Until it is lifted, a lifted program has a tracer: hugelift's helper. The helper writes its
//! report to a FIFO just before it detaches; from then on this process tries to attach.

use crate::child::{Child, reap_orphans};
use crate::interrupt;
use crate::memory::{Coverage, Memory};
use crate::program::Program;
use crate::timed::Seen;
use anyhow::{Context as _, Result};
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::io::open;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// A lifted program may end before this process has attached to it: how many runs are tried at least, and for how
/// long. On a busy machine a program of a millisecond often wins.
const TRIES: usize = 5;
const TRY_FOR: Duration = Duration::from_secs(1);

/// How long the helper may take to detach after its report.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of an inspected run.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// How the program ended.
    pub status: ExitStatus,
    /// What was seen at its exit, or after the lift for a lifted program that ended too soon.
    pub seen: Seen,
    /// Bytes that hugelift could lift in it; only for lifted programs.
    pub liftable: Option<u64>,
    /// Why hugelift did not lift something that it could; only for lifted programs.
    pub why_not: Option<String>,
}

/// Inspects the bare program.
///
/// # Errors
/// The program cannot be started, or the measurement was interrupted.
pub fn bare(program: &Program) -> Result<Inspection> {
    let mut command = program.command()?;
    let trace_me = || {
        // Where ptrace is forbidden, the program runs to its end and shows nothing.
        let _ = ptrace::traceme();
        Ok(())
    };
    // SAFETY: ptrace(2), PTRACE_TRACEME: a plain system call between fork and exec.
    unsafe { command.pre_exec(trace_me) };
    let child = Child::start(&mut command)?;
    let seen = until_exit(Pid::from_raw(child.pid().cast_signed()), true)?;
    finish(child, seen)
}

/// Inspects `program` under `hugelift run` with `options`.
///
/// # Errors
/// Those of [`bare`].
pub fn lifted(program: &Program, hugelift: &Path, options: &[String]) -> Result<Inspection> {
    let mut best: Option<Inspection> = None;
    let began = Instant::now();
    for tried in 1.. {
        let (inspection, at_exit) = lifted_once(program, hugelift, options)?;
        let seen = best.as_ref().map_or(inspection.seen, |best| best.seen.max(inspection.seen));
        let last = at_exit || !inspection.status.success();
        best = Some(Inspection { seen, ..inspection });
        if last || (tried >= TRIES && began.elapsed() >= TRY_FOR) {
            break;
        }
    }
    best.context("no run was inspected")
}

/// Returns an inspection, and whether it saw the program at its exit.
fn lifted_once(program: &Program, hugelift: &Path, options: &[String]) -> Result<(Inspection, bool)> {
    let dir = tempfile::tempdir().context("a temporary directory")?;
    let fifo = Fifo::new(dir.path().join("report"))?;
    let mut options = options.to_vec();
    options.extend(["--report".to_string(), fifo.path.escaped().to_string()]);
    let child = Child::start(&mut program.lifted(hugelift, &options).command()?)?;
    let report = fifo.read_line(&child)?;
    let seized = match &report {
        Some(_) => seize(&child)?,
        None => false,
    };
    let at_exit = if seized { until_exit(Pid::from_raw(child.pid().cast_signed()), false)? } else { None };
    let report = report.as_deref().and_then(parse_report);
    let after_lift = Seen { memory: report.as_ref().and_then(|report| report.memory), peak_bytes: None };
    let seen = at_exit.map_or(after_lift, |seen| seen.max(after_lift));
    let inspection = Inspection { seen, ..finish(child, None)? };
    let (liftable, why_not) = report.map_or((None, None), |report| (report.liftable, report.why_not));
    Ok((Inspection { liftable, why_not, ..inspection }, at_exit.is_some()))
}

fn finish(child: Child, seen: Option<Seen>) -> Result<Inspection> {
    let (status, _) = child.finish()?;
    reap_orphans(Duration::from_millis(100))?;
    interrupt::check()?;
    Ok(Inspection { status, seen: seen.unwrap_or_default(), liftable: None, why_not: None })
}

/// Attaches to the program after the helper has detached; returns false if it cannot attach.
fn seize(child: &Child) -> Result<bool> {
    let pid = Pid::from_raw(child.pid().cast_signed());
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXIT) {
            Ok(()) => return Ok(true),
            // The helper is still attached. The deadline is for Yama, which may never permit it.
            Err(Errno::EPERM) if Instant::now() < deadline && !child.has_ended()? => std::thread::yield_now(),
            Err(_) => return Ok(false),
        }
    }
}

/// Continues a tracee until its exit and returns what was seen there; `None` if nothing was seen.
/// `at_exec`: the tracee has called PTRACE_TRACEME, and so stops at its first execve(2) with SIGTRAP.
fn until_exit(pid: Pid, at_exec: bool) -> Result<Option<Seen>> {
    let (mut seen, mut at_exec) = (None, at_exec);
    loop {
        // Only stops are waited for below: an ended process stays a zombie for `Child::finish`.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match nix::sys::wait::waitid(nix::sys::wait::Id::Pid(pid), flags) {
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno).with_context(|| format!("waitid({pid})")),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Ok(seen),
            Ok(_) => {}
        }
        let signal = match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT)) => {
                seen = Some(Seen::now(pid.as_raw().cast_unsigned()));
                None
            }
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) if at_exec => {
                at_exec = false;
                // A program may execute another: a further execve(2) is an event then, and no SIGTRAP, which would kill it.
                let options = ptrace::Options::PTRACE_O_TRACEEXIT | ptrace::Options::PTRACE_O_TRACEEXEC;
                let _ = ptrace::setoptions(pid, options);
                None
            }
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            _ => None,
        };
        // The tracee may have been killed meanwhile. The next wait then shows its end.
        let _ = ptrace::cont(pid, signal);
    }
}

/// What a report of `hugelift run` says about text and read-only data.
#[derive(Clone, Debug)]
pub struct LiftReport {
    /// What was huge after the lift, by smaps; none if the program was started without a lift.
    pub memory: Option<Memory>,
    /// Bytes that could be lifted; none if the program was started without a lift.
    pub liftable: Option<u64>,
    /// Why something was not lifted, and what helps: the reason that most bytes have.
    pub why_not: Option<String>,
}

/// Reads the JSON of a report; `None` if it is not one.
pub fn parse_report(report: &str) -> Option<LiftReport> {
    let json: serde_json::Value = serde_json::from_str(report).ok()?;
    json["version"].as_u64()?;
    if let Some(plain) = json["plain"].as_str() {
        return Some(LiftReport { memory: None, liftable: None, why_not: Some(plain.into()) });
    }
    let part = |name: &str| {
        let number = |field: &str| json["totals"][name][field].as_u64().unwrap_or(0);
        Coverage { whole: number("liftable_bytes"), huge: number("huge_bytes") }
    };
    let (text, rodata) = (part("text"), part("rodata"));
    let each = |value: &serde_json::Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let parts = each(&json, "objects").into_iter().flat_map(|object| each(&object, "parts"));
    let skips = parts.filter(|part| part["liftable_bytes"] != 0).flat_map(|part| each(&part, "skips"));
    let worst = skips.filter(|skip| skip["hint"].is_string()).max_by_key(|skip| skip["bytes"].as_u64());
    let why_not = worst.map(|skip| {
        let field = |name: &str| skip[name].as_str().unwrap_or_default().to_string();
        format!("{}; {}", field("detail"), field("hint"))
    });
    Some(LiftReport {
        memory: Some(Memory { text, rodata, ..Memory::default() }),
        liftable: Some(text.whole + rodata.whole),
        why_not,
    })
}

/// A FIFO from which one line is read.
struct Fifo {
    path: PathBuf,
    file: File,
}

impl Fifo {
    fn new(path: PathBuf) -> Result<Fifo> {
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
            .with_context(|| format!("cannot make {}", path.escaped()))?;
        let file = open::with(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK);
        Ok(Fifo { file: file.with_context(|| format!("cannot open {}", path.escaped()))?, path })
    }

    /// Reads the line; `None` if the child ends without writing one.
    fn read_line(mut self, child: &Child) -> Result<Option<String>> {
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            // Asked before the read, so that what the child wrote before its end is still read.
            let ended = child.has_ended()?;
            match self.file.read(&mut chunk) {
                Ok(n) if n > 0 => {
                    line.extend_from_slice(&chunk[..n]);
                    if line.ends_with(b"\n") {
                        return Ok(Some(text_to_parse(&line).into_owned()));
                    }
                }
                Err(e)
                    if !matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                    ) =>
                {
                    return Err(e).context("cannot read hugelift's report");
                }
                _ if ended => return Ok(None),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_a_millisecond_is_seen_at_its_exit() {
        let _alone = crate::child::alone();
        let inspection = bare(&Program::new(["/bin/true"])).unwrap();
        assert!(inspection.status.success());
        let memory = inspection.seen.memory.expect("its smaps");
        assert!(memory.lifted() <= memory.text.whole + memory.rodata.whole);
        let peak = inspection.seen.peak_bytes.expect("its peak");
        assert!((100 << 10..32 << 20).contains(&peak), "{peak}");
    }

    /// As the wrappers of version managers do. Without PTRACE_O_TRACEEXEC each further execve(2) would send SIGTRAP.
    #[test]
    fn a_program_that_executes_another_is_seen_at_the_exit_of_that() {
        let _alone = crate::child::alone();
        let inspection = bare(&Program::new(["sh", "-c", "exec sh -c 'exec sleep 0.01'"])).unwrap();
        assert!(inspection.status.success(), "{}", inspection.status);
        assert!(inspection.seen.memory.is_some());
    }

    #[test]
    fn signals_and_statuses_pass_through() {
        let _alone = crate::child::alone();
        let inspection =
            bare(&Program::new(["sh", "-c", "trap 'exit 7' USR1; kill -USR1 $$; sleep 5"])).unwrap();
        assert_eq!(inspection.status.code(), Some(7));
        let inspection = bare(&Program::new(["sh", "-c", "kill -TERM $$; sleep 5"])).unwrap();
        assert!(
            !inspection.status.success() && inspection.status.code().is_none(),
            "{:?}",
            inspection.status
        );
    }

    #[test]
    fn a_report_is_read() {
        let report = r#"{"version":1,"totals":{"text":{"bytes":9,"liftable_bytes":6,"huge_bytes":4}},
            "objects":[{"parts":[{"liftable_bytes":6,"skips":[
                {"reason":"edge","bytes":9,"hint":null,"detail":"an edge"},
                {"reason":"pool","bytes":2,"hint":"fill it","detail":"pool short"}]}]}]}"#;
        let all = parse_report(report).unwrap();
        assert_eq!((all.liftable, all.memory.unwrap().lifted()), (Some(6), 4));
        assert_eq!(all.why_not.as_deref(), Some("pool short; fill it"));
        let plain = parse_report(r#"{"version":1,"totals":{},"plain":"set-uid"}"#).unwrap();
        assert_eq!((plain.liftable, plain.why_not.as_deref()), (None, Some("set-uid")));
        assert!(parse_report("{").is_none() && parse_report("{}").is_none());
    }
}
