// SPDX-License-Identifier: Apache-2.0
//! One run of a program: what it cost and what it said.

use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::smaps::{Usage, parse_smaps};
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Additions to the environment.
    pub env: Vec<(OsString, OsString)>,
}

/// What a run cost.
#[derive(Clone, Debug)]
pub struct Sample {
    /// CPU time in seconds, user and system, of the program and of all that it or its
    /// launcher left behind.
    pub cpu: f64,
    /// From before the start to the program's end, in seconds.
    pub wall: f64,
    /// All of its standard output.
    pub output: String,
    /// Its memory, where it was looked at.
    pub memory: Vec<Usage>,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// To be called once, first. Orphans of the programs (a launcher's helper) come to this
/// process, so that their CPU time counts; and a signal ends the work between two runs,
/// so that what was changed on the machine is put back.
pub fn prepare() -> Result<()> {
    nix::sys::prctl::set_child_subreaper(true).context("prctl(PR_SET_CHILD_SUBREAPER)")?;
    let action = SigAction::new(SigHandler::Handler(note_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: sigaction(2); the handler only stores to an atomic (signal-safety(7)).
        unsafe { sigaction(signal, &action) }.with_context(|| format!("sigaction({signal})"))?;
    }
    Ok(())
}

/// An error once a signal has asked this process to end.
pub fn check_interrupted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// The hugelift to measure.
///
/// # Errors
/// There is none.
pub fn hugelift() -> Result<PathBuf> {
    let path = match std::env::var_os("HUGELIFT_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe().context("own path")?.with_file_name("hugelift"),
    };
    ensure!(path.is_file(), "no hugelift at {}: cargo build --release, or set HUGELIFT_BIN", path.display());
    Ok(path)
}

impl Program {
    /// A program with its arguments.
    pub fn new<I: Into<OsString>>(argv: impl IntoIterator<Item = I>) -> Program {
        Program { argv: argv.into_iter().map(Into::into).collect(), env: Vec::new() }
    }

    /// The same under `hugelift run OPTIONS --`.
    pub fn lifted(&self, options: &[&str]) -> Result<Program> {
        let mut argv: Vec<OsString> = vec![hugelift()?.into(), "run".into()];
        argv.extend(options.iter().map(OsString::from));
        argv.push("--".into());
        argv.extend(self.argv.iter().cloned());
        Ok(Program { argv, env: self.env.clone() })
    }

    /// The same with one more argument.
    pub fn arg(&self, arg: &str) -> Program {
        let mut more = self.clone();
        more.argv.push(arg.into());
        more
    }

    /// The same with a library preloaded.
    pub fn preloading(&self, library: &Path) -> Program {
        let mut more = self.clone();
        more.env.push(("LD_PRELOAD".into(), library.into()));
        more
    }

    /// Runs it to its end, with nothing on its standard input.
    ///
    /// # Errors
    /// It cannot be started, or ends with another status than 0.
    pub fn run(&self) -> Result<Sample> {
        self.measure(Stdio::null(), |_, _| Ok(Vec::new()))
    }

    /// Runs it; when it has printed its first line, looks at its memory; then closes its
    /// standard input, for the end of which it waits.
    ///
    /// # Errors
    /// As [`Program::run`]; or it ends before it prints a line.
    pub fn run_and_look(&self) -> Result<Sample> {
        self.measure(Stdio::piped(), |pid, line| {
            ensure!(!line.is_empty(), "{self}: ended before it printed a line");
            memory(pid)
        })
    }

    fn measure(&self, stdin: Stdio, look: impl FnOnce(u32, &str) -> Result<Vec<Usage>>) -> Result<Sample> {
        let mut command = self.command()?;
        command.stdin(stdin).stdout(Stdio::piped());
        let start = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {self}"))?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut output = String::new();
        // Nothing returns early from here to the wait.
        let read = stdout.read_line(&mut output);
        let memory = look(child.id(), &output);
        drop(stdin);
        let rest = stdout.read_to_string(&mut output);
        let (status, own) = wait_for(child.id())?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = own + reap_orphans()?;
        let (_, _) = (read.context("standard output")?, rest.context("standard output")?);
        check_interrupted()?;
        ensure!(status.success(), "{self}: {status}");
        Ok(Sample { cpu, wall, output, memory: memory? })
    }

    /// The memory of a program that has nothing to say until its standard input ends: as
    /// soon as it sleeps without having used CPU time for a while.
    pub fn memory_at_rest(&self) -> Result<Vec<Usage>> {
        let mut child = self.command()?.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let seen = at_rest(child.id()).and_then(|()| memory(child.id()));
        drop(child.stdin.take());
        let (status, _) = wait_for(child.id())?;
        reap_orphans()?;
        ensure!(status.success(), "{self}: {status}");
        seen
    }

    fn command(&self) -> Result<Command> {
        let [program, args @ ..] = &self.argv[..] else { bail!("nothing to run") };
        let mut command = Command::new(program);
        command.args(args).envs(self.env.iter().cloned());
        Ok(command)
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.env.iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
        let words: Vec<String> = words.chain(self.argv.iter().map(|w| w.display().to_string())).collect();
        f.write_str(&words.join(" "))
    }
}

fn memory(pid: u32) -> Result<Vec<Usage>> {
    let path = format!("/proc/{pid}/smaps");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    parse_smaps(&text).with_context(|| path)
}

fn at_rest(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/stat");
    let (mut before, mut calm) = (None, 0);
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(10));
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // State, and the user and system ticks (proc_pid_stat(5)), counted behind the name.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let [Some(state), Some(user), Some(system)] = [0, 11, 12].map(|n| fields.get(n).copied()) else {
            bail!("{path}: unexpected contents '{stat}'");
        };
        let now = Some((user.to_string(), system.to_string()));
        calm = if state == "S" && now == before { calm + 1 } else { 0 };
        before = now;
        if calm == 20 {
            return Ok(());
        }
    }
    bail!("process {pid} did not come to rest in 10 s")
}

/// wait4(2) for one process, or (-1) for any child; with its CPU time in seconds.
fn wait4(pid: libc::pid_t) -> Result<(ExitStatus, f64), Errno> {
    let mut status = 0;
    loop {
        // SAFETY: wait4(2) writes only to the two places given, which outlive the call;
        // all zeros is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let done = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        match Errno::result(done) {
            Ok(_) => {
                let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
                return Ok((ExitStatus::from_raw(status), seconds(usage.ru_utime) + seconds(usage.ru_stime)));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn wait_for(pid: u32) -> Result<(ExitStatus, f64)> {
    wait4(pid as libc::pid_t).with_context(|| format!("wait4({pid})"))
}

/// Waits for everything that the program left to this process; its CPU time.
fn reap_orphans() -> Result<f64> {
    let mut cpu = 0.0;
    loop {
        match wait4(-1) {
            Ok((_, more)) => cpu += more,
            Err(Errno::ECHILD) => return Ok(cpu),
            Err(errno) => return Err(errno).context("wait4(-1)"),
        }
    }
}
