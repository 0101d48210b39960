// SPDX-License-Identifier: Apache-2.0
//! Running a command to its end, bare or under `hugelift run`, and comparing the two.

use super::HUGELIFT;
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The longest time that a command of these tests may take.
pub const PATIENCE: Duration = Duration::from_secs(150);
/// A path at which neither a store nor notes can exist. No test may depend on the runs of another
/// test, or on other programs that this machine has started.
pub const NO_STORE: &str = "/dev/null/none";

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// `exit(n)`
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => panic!("neither exited nor killed: {status:?}"),
        }
    }
}

/// What a command did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// All that it wrote to stdout.
    pub stdout: String,
    /// All that it wrote to stderr.
    pub stderr: String,
    /// How it ended.
    pub end: End,
}

impl Outcome {
    /// Returns the lines of stderr that are hugelift's.
    pub fn own_lines(&self) -> Vec<&str> {
        super::own_lines(&self.stderr)
    }

    /// Returns the lines of stderr that are not hugelift's.
    pub fn other_lines(&self) -> String {
        self.stderr.split_inclusive('\n').filter(|line| !line.starts_with("hugelift: ")).collect()
    }
}

/// A command: a program with its arguments, the words in front of it (`setarch -R`, `unshare -pf`:
/// any program that executes the rest of its arguments), and its surroundings.
#[derive(Clone, Debug, Default)]
pub struct Cmd {
    before: Vec<OsString>,
    args: Vec<OsString>,
    stdin: Vec<u8>,
    env: Vec<(OsString, OsString)>,
    clear: bool,
    cwd: Option<PathBuf>,
    launcher: Option<PathBuf>,
    /// Without `--eager`.
    lazy: bool,
    patience: Option<Duration>,
}

/// Starts a command, and tries again while its file is being written: a file that one test has just written stays open
/// for writing in a child of another test until that child has executed its program.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match command.spawn() {
            Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            spawned => return spawned,
        }
    }
}

impl Cmd {
    /// Makes a command of a program and its arguments.
    pub fn new<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Cmd {
        Cmd { args: args.into_iter().map(|a| a.as_ref().to_owned()).collect(), ..Cmd::default() }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Cmd {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Cmd {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Puts words in front, outermost first; the program (or hugelift) follows them.
    pub fn under<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Cmd {
        self.before.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Sets what it reads from stdin, through a pipe. The default is /dev/null.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Cmd {
        self.stdin = bytes.into();
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Cmd {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts with an empty environment.
    pub fn clear_env(mut self) -> Cmd {
        self.clear = true;
        self
    }

    /// Sets its working directory.
    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Cmd {
        self.cwd = Some(dir.as_ref().to_owned());
        self
    }

    /// Sets the longest time that it may take, instead of [`PATIENCE`].
    pub fn patience(mut self, patience: Duration) -> Cmd {
        self.patience = Some(patience);
        self
    }

    /// Sets the hugelift to use: one with fault points, or a copy for a user who cannot reach the build directory.
    pub fn launcher(mut self, path: impl AsRef<Path>) -> Cmd {
        self.launcher = Some(path.as_ref().to_owned());
        self
    }

    /// Leaves it to the watcher to copy what is worth it, as hugelift does by default.
    pub fn lazy(mut self) -> Cmd {
        self.lazy = true;
        self
    }

    /// Returns the words of the command: bare, or lifted with these options.
    pub fn words(&self, options: Option<&[&str]>) -> Vec<OsString> {
        let mut words = self.before.clone();
        if let Some(options) = options {
            words.push(self.launcher.as_ref().map_or(HUGELIFT.into(), |p| p.clone().into()));
            words.push("run".into());
            // What is copied is copied at the start. The tests of the watcher are in tests/lift/watch.rs.
            if !self.lazy {
                words.push("--eager".into());
            }
            words.extend(options.iter().map(OsString::from));
            words.push("--".into());
        }
        words.extend(self.args.iter().cloned());
        words
    }

    /// Returns the command ready to spawn, in its own process group, with all three streams piped.
    pub fn command(&self, options: Option<&[&str]>) -> Command {
        let words = self.words(options);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.stdin(if self.stdin.is_empty() { Stdio::null() } else { Stdio::piped() });
        if self.clear {
            command.env_clear();
        }
        let asks = self.env.iter().any(|(name, _)| name.as_encoded_bytes().starts_with(b"HUGELIFT_TEST_"));
        assert!(!asks || words.iter().all(|word| word != HUGELIFT), "{words:?}: use WITH_FAULT_POINTS");
        command.env("HUGELIFT_STORE", NO_STORE);
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        command
    }

    /// Runs it without hugelift.
    pub fn bare(&self) -> Outcome {
        self.run(None)
    }

    /// Runs it under `hugelift run` with `options`.
    pub fn lifted(&self, options: &[&str]) -> Outcome {
        self.run(Some(options))
    }

    /// Runs the command, and again if hugelift cannot execute its program for a moment (see [`spawn`]).
    fn run(&self, options: Option<&[&str]>) -> Outcome {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            match self.try_run(options) {
                Ok(outcome) if outcome.end == End::Code(126) && outcome.stderr.contains("Text file busy") => {
                    assert!(Instant::now() < until, "{outcome:?}");
                }
                Ok(outcome) => return outcome,
                Err(e) => panic!("{:?}: {e}", self.words(options)),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn try_run(&self, options: Option<&[&str]>) -> io::Result<Outcome> {
        let words = self.words(options);
        let mut child = spawn(&mut self.command(options))?;
        let deadline = Instant::now() + self.patience.unwrap_or(PATIENCE);
        let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
        if let Some(mut pipe) = child.stdin.take() {
            let bytes = self.stdin.clone();
            // It is no error if the program does not read its stdin.
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        let end = wait(&mut child, deadline)
            .unwrap_or_else(|| fail(&mut child, &words, "does not end", &stdout, &stderr));
        let [out, err] = [&stdout, &stderr].map(|stream| {
            // If another process than the program still holds the pipe, hugelift has left it
            // behind.
            until_end(stream, deadline.max(Instant::now() + Duration::from_secs(5)))
        });
        match (out, err) {
            (Some(out), Some(err)) => Ok(Outcome { stdout: text(out), stderr: text(err), end }),
            _ => fail(
                &mut child,
                &words,
                "has ended, but another process still holds its stdout or stderr",
                &stdout,
                &stderr,
            ),
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a stream in another thread.
fn collect(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    let mut stream = stream.expect("the stream is piped");
    std::thread::spawn(move || {
        let mut chunk = vec![0; 1 << 16];
        while let Ok(n) = stream.read(&mut chunk) {
            if n == 0 || send.send(chunk[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    receive
}

fn until_end(stream: &mpsc::Receiver<Vec<u8>>, deadline: Instant) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        match stream.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(chunk) => all.extend(chunk),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Some(all),
            Err(mpsc::RecvTimeoutError::Timeout) => return None,
        }
    }
}

/// Waits for a child until `deadline`.
pub fn wait(child: &mut Child, deadline: Instant) -> Option<End> {
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().expect("wait for our own child") {
            return Some(status.into());
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether one of the sets of signals of a process has a signal: `SigBlk`, `SigCgt` (proc_pid_status(5)).
pub fn has_signal(pid: u32, set: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal as i32 - 1) != 0
}

/// Waits for the end of a child whose output is piped.
pub fn finished(mut child: Child) -> Outcome {
    let end = wait(&mut child, Instant::now() + PATIENCE).expect("it ends");
    let output = child.wait_with_output().expect("its output");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Outcome { stdout: text(output.stdout), stderr: text(output.stderr), end }
}

/// Ends the process group that [`Cmd::command`] made for this child, and the child.
pub fn end_group(child: &mut Child) {
    let group = nix::unistd::Pid::from_raw(child.id().try_into().expect("a pid"));
    let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    let _ = child.kill();
    let _ = child.wait();
}

fn fail(
    child: &mut Child,
    words: &[OsString],
    what: &str,
    stdout: &mpsc::Receiver<Vec<u8>>,
    stderr: &mpsc::Receiver<Vec<u8>>,
) -> ! {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let telling: Vec<&str> =
        status.lines().filter(|l| ["State", "Trace", "Sig"].iter().any(|k| l.starts_with(k))).collect();
    end_group(child);
    let soon = Instant::now() + Duration::from_millis(100);
    let [out, err] = [stdout, stderr].map(|s| until_end(s, soon).map(text));
    panic!("{}\n{what}; {telling:?}\nstdout: {out:?}\nstderr: {err:?}", shown(words));
}

/// Returns the words as they can be typed in a shell.
pub fn shown(words: &[OsString]) -> String {
    let quoted = |word: &OsString| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Asserts that the command does the same bare and lifted (stdout, stderr, exit status or signal),
/// and that hugelift writes nothing. Returns what it did.
pub fn same(cmd: &Cmd, options: &[&str]) -> Outcome {
    same_as(&cmd.bare(), cmd, options, str::to_string)
}

/// Like [`same`], but compares only the lines that `stable` makes of each output.
pub fn same_lines(cmd: &Cmd, options: &[&str], stable: impl Fn(&str) -> String) -> Outcome {
    same_as(&cmd.bare(), cmd, options, stable)
}

/// Like [`same_lines`], with the outcome of an earlier bare run.
pub fn same_as(bare: &Outcome, cmd: &Cmd, options: &[&str], stable: impl Fn(&str) -> String) -> Outcome {
    let lifted = cmd.lifted(options);
    let differs = [
        (bare.end != lifted.end).then(|| format!("end: {:?} bare, {:?} lifted", bare.end, lifted.end)),
        difference("stdout", &stable(&bare.stdout), &stable(&lifted.stdout)),
        // This includes hugelift's own lines: when all is well there are none.
        difference("stderr", &stable(&bare.stderr), &stable(&lifted.stderr)),
    ];
    let differs: Vec<String> = differs.into_iter().flatten().collect();
    assert!(
        differs.is_empty(),
        "{}\n{}\n--- stdout\n{}\n--- stderr\n{}",
        shown(&cmd.words(Some(options))),
        differs.join("\n"),
        head(&lifted.stdout),
        head(&lifted.stderr)
    );
    lifted
}

fn head(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().take(21).collect();
    if lines.len() > 20 {
        lines[20] = "...";
    }
    lines.join("\n")
}

/// Returns the lines that only one of the two has.
pub fn difference(name: &str, bare: &str, lifted: &str) -> Option<String> {
    if bare == lifted {
        return None;
    }
    let (b, l): (Vec<&str>, Vec<&str>) = (bare.lines().collect(), lifted.lines().collect());
    let minus = b.iter().filter(|line| !l.contains(line)).map(|line| format!("- {line}"));
    let plus = l.iter().filter(|line| !b.contains(line)).map(|line| format!("+ {line}"));
    let lines: Vec<String> = minus.chain(plus).take(60).collect();
    Some(format!("{name} differs (- bare, + lifted):\n{}", lines.join("\n")))
}

/// Returns the lines that a thread reads from a process's output.
pub fn lines_of(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
