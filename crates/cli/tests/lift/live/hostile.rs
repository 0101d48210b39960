// SPDX-License-Identifier: Apache-2.0
//! A process does the worst at each step of attach and of restore: it changes the rights of its code, takes holes of its
//! address space, ends the borrowed thread. It goes on as it would alone, and the command ends with a clear line.

use super::{Running, descriptors, files, unnamed};
use crate::common::level;
use crate::common::run::{PATIENCE, wait};
use crate::common::{Cmd, End, Outcome, WITH_FAULT_POINTS, fat};
use hugelift_linux::proc::procfs::Process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an act may take. hugelift waits for two seconds.
const ACT: Duration = Duration::from_millis(1800);
/// How many real-time signals are sent at once.
const SIGNALS: i32 = 8;

/// What is done at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// The victim does what this letter orders (hostile.c).
    Order(char),
    /// SIGSTOP, and SIGCONT a moment later.
    Stop,
    RealTime,
    Kill,
}

/// What is then left of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// The same process, which has undone the act.
    Same,
    /// Its mappings are elsewhere.
    Moved,
    /// The act cannot be undone: the next round has a new process.
    Changed,
    Nothing,
}

const ACTS: [(&str, Act, Left); 15] = [
    ("makes its code writable", Act::Order('w'), Left::Same),
    ("makes a part of its code writable", Act::Order('p'), Left::Same),
    ("takes the rights from its code", Act::Order('n'), Left::Same),
    ("unmaps a part of its code", Act::Order('u'), Left::Same),
    ("maps memory into all holes", Act::Order('h'), Left::Same),
    ("forks", Act::Order('f'), Left::Same),
    ("executes another program", Act::Order('e'), Left::Changed),
    ("ends the threads that sleep", Act::Order('x'), Left::Same),
    ("sets syscall user dispatch", Act::Order('d'), Left::Same),
    ("installs a seccomp filter", Act::Order('q'), Left::Changed),
    ("sets up io_uring", Act::Order('i'), Left::Same),
    ("closes and opens a library", Act::Order('c'), Left::Moved),
    ("is stopped and continued", Act::Stop, Left::Same),
    ("gets real-time signals", Act::RealTime, Left::Same),
    ("is killed", Act::Kill, Left::Nothing),
];

fn start() -> Running {
    let program = fat("hostile").flags(&["-no-pie", "-Wl,-z,now"]).build();
    let library = fat("hostile").library().build();
    Running::start(&program, &[library])
}

/// Orders an act; returns whether it is done. The thread that takes the orders may have no CPU: the act then comes later.
fn perform(running: &mut Running, act: Act) -> bool {
    let pid = Pid::from_raw(running.pid().cast_signed());
    match act {
        Act::Order(letter) => {
            let Some(stdin) = running.stdin.as_mut() else { return false };
            let is_sent = stdin.write_all(&[letter as u8]).is_ok();
            is_sent && running.line_within(ACT).is_ok_and(|line| line.starts_with("did"))
        }
        Act::Stop => {
            let is_sent = kill(pid, Signal::SIGSTOP).is_ok();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                kill(pid, Signal::SIGCONT)
            });
            is_sent
        }
        Act::RealTime => {
            // SAFETY: kill(2) with numbers.
            let send = |_| unsafe { nix::libc::kill(pid.as_raw(), nix::libc::SIGRTMIN()) } == 0;
            (0..SIGNALS).all(send)
        }
        Act::Kill => kill(pid, Signal::SIGKILL).is_ok(),
    }
}

/// What is done to the process when the act comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Its code and constants are lifted.
    Attach,
    /// They are restored.
    Restore,
    /// Its data are lifted, for which all threads are stopped.
    AttachData,
}

impl Step {
    fn command(self, pid: u32) -> Cmd {
        let words: &[&str] = match self {
            Step::Attach => &["attach", "--whole", "--backing", "thp"],
            Step::Restore => &["restore"],
            Step::AttachData => &["attach", "--whole", "--backing", "thp", "--parts", "data"],
        };
        Cmd::new([WITH_FAULT_POINTS]).args(words).arg(pid.to_string())
    }
}

/// What came of a command that was told of its moments.
struct Told {
    outcome: Outcome,
    /// How many moments it had.
    moments: u64,
    /// Whether the act was done at its moment.
    acted: bool,
}

/// Ends the thread that waits for connections, also if the command does not end and the test fails.
struct Over<'a>(&'a AtomicBool, &'a Path);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(self.1);
    }
}

/// Runs the command, and performs the act at the moment `at`.
fn at_moment(running: &mut Running, step: Step, act: Act, at: u64) -> Told {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = dir.path().join("moments");
    let listener = UnixListener::bind(&path).expect("a socket");
    let cmd = step.command(running.pid()).env("HUGELIFT_TEST_MOMENTS", &path);
    let (over, acted, moments) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let running = Mutex::new(running);
    let serve = |mut stream: UnixStream| {
        let mut number = [0; 8];
        while stream.read_exact(&mut number).is_ok() {
            let number = u64::from_ne_bytes(number);
            moments.fetch_max(number + 1, Ordering::Relaxed);
            if number == at {
                let mut running = running.lock().expect("no panic");
                acted.store(perform(&mut running, act), Ordering::Relaxed);
            }
            // A command that was killed does not read it.
            let _ = stream.write_all(&[0]);
        }
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let stream = stream.expect("a connection");
                scope.spawn(|| serve(stream));
            }
        });
        let _over = Over(&over, &path);
        cmd.bare()
    });
    Told { outcome, moments: moments.into_inner(), acted: acted.into_inner() }
}

/// Checks that a command has ended as it should, with lines that are its own.
fn ended(outcome: &Outcome) -> Result<(), String> {
    let lines = outcome.stdout.lines().count() + outcome.stderr.lines().count();
    let is_own = outcome.stderr.lines().all(|line| line.starts_with("hugelift: "));
    match outcome.end {
        End::Code(0 | 125) if (1..=6).contains(&lines) && is_own => Ok(()),
        _ => Err(format!("it ended with {outcome:?}")),
    }
}

/// Makes the victim undo its acts, and checks what it says.
fn settle(running: &mut Running, signals: i32) -> Result<(), String> {
    let stdin = running.stdin.as_mut().expect("it is open");
    stdin.write_all(b"U").map_err(|e| format!("the victim has ended: {e}"))?;
    let until = Instant::now() + PATIENCE;
    loop {
        // An act that came late has its line too.
        match running.line_within(until.saturating_duration_since(Instant::now())) {
            Ok(line) if line == format!("wrong 0 signals {signals}") => return Ok(()),
            Ok(line) if line.starts_with("wrong") => return Err(line),
            Ok(_) => {}
            Err(error) => {
                let end = wait(&mut running.child, Instant::now() + Duration::from_secs(1));
                return Err(format!("the victim is silent ({error}), its end: {end:?}"));
            }
        }
    }
}

/// What is seen of a process from outside.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    files: Vec<String>,
    descriptors: Vec<String>,
    unnamed: u64,
}

impl Seen {
    fn of(pid: u32) -> Seen {
        Seen { files: files(pid), descriptors: descriptors(pid), unnamed: unnamed(pid) }
    }

    /// Checks that nothing of hugelift is left.
    fn is_left_by(&self, now: &Seen, left: Left) -> Result<(), String> {
        if self.descriptors != now.descriptors {
            return Err(format!("descriptors {:?}, before {:?}", now.descriptors, self.descriptors));
        }
        if left == Left::Same && self.files != now.files {
            let of = |these: &Seen, others: &Seen| -> Vec<String> {
                these.files.iter().filter(|line| !others.files.contains(line)).cloned().collect()
            };
            return Err(format!("mappings {:?} in the place of {:?}", of(now, self), of(self, now)));
        }
        // Less than one huge page: the loader and the threads' stacks take some. A library that is closed between the
        // last check and the call leaves the piece that was moved over it (docs/limits.md).
        let most = (1 << 20) + if left == Left::Moved { 2 << 20 } else { 0 };
        if now.unnamed > self.unnamed + most {
            return Err(format!("{} bytes without a name, before {}", now.unnamed, self.unnamed));
        }
        Ok(())
    }
}

/// One round: the act at the moment `at` of the command. Returns whether the act came at its moment.
fn round(
    running: &mut Running,
    step: Step,
    (_, act, left): (&str, Act, Left),
    at: u64,
) -> Result<bool, String> {
    let pid = running.pid();
    let before = Seen::of(pid);
    if step == Step::Restore {
        let outcome = Step::Attach.command(pid).bare();
        if outcome.end != End::Code(0) {
            return Err(format!("the attach before: {outcome:?}"));
        }
    }
    let Told { outcome, acted, .. } = at_moment(running, step, act, at);
    ended(&outcome)?;
    if left == Left::Nothing && acted {
        return match wait(&mut running.child, Instant::now() + PATIENCE) {
            Some(End::Signal(9)) => Ok(true),
            end => Err(format!("its end: {end:?}")),
        };
    }
    settle(running, if act == Act::RealTime && acted { SIGNALS } else { 0 })?;
    let maps = Process::new(pid).maps().expect("its mappings");
    let bad: Vec<_> = maps.iter().filter(|mapping| mapping.prot.is_wx()).collect();
    if !bad.is_empty() {
        return Err(format!("writable and executable: {bad:?}"));
    }
    if step == Step::AttachData {
        // The copies are the program's data now.
        let now = descriptors(pid);
        return if now == before.descriptors { Ok(acted) } else { Err(format!("descriptors {now:?}")) };
    }
    let restored = Step::Restore.command(pid).bare();
    if restored.end != End::Code(0) {
        return Err(format!("the restore afterwards: {restored:?}"));
    }
    settle(running, 0)?;
    before.is_left_by(&Seen::of(pid), left).map_err(|why| format!("{why} after {outcome:?}"))?;
    Ok(acted)
}

/// Returns how many moments each step has.
fn moments() -> [(Step, u64); 3] {
    let mut running = start();
    [Step::Attach, Step::Restore, Step::AttachData].map(|step| {
        let told = at_moment(&mut running, step, Act::Kill, u64::MAX);
        assert_eq!(told.outcome.end, End::Code(0), "{:?}", told.outcome);
        assert!(told.moments > 20, "{step:?} has {} moments: {:?}", told.moments, told.outcome);
        (step, told.moments)
    })
}

/// Does the act at moments that are spread over both commands.
fn each_moment(acts: &[(&str, Act, Left)]) {
    // A third of them in each step.
    let rounds: u64 = level::rounds(6, 60);
    let mut random = fastrand::Rng::with_seed(4);
    let (mut wrong, counts) = (Vec::new(), moments());
    for act in acts {
        let (mut running, mut acted, mut count) = (start(), 0, 0);
        for (step, moments) in counts {
            let each = rounds.div_ceil(3);
            for n in 0..each {
                let at = (n * moments + random.u64(0..moments)) / each;
                match round(&mut running, step, *act, at) {
                    Ok(came) => {
                        acted += u32::from(came);
                        count += 1;
                        // A process whose data are lifted has nothing left to lift.
                        if matches!(act.2, Left::Changed | Left::Nothing) || step == Step::AttachData {
                            running = start();
                        }
                    }
                    Err(why) => {
                        wrong.push(format!("{}, moment {at} of {moments} of {step:?}: {why}", act.0));
                        running = start();
                    }
                }
            }
        }
        println!("{}: {acted} of {count} at their moment", act.0);
        if acted == 0 {
            wrong.push(format!("{}: it never came at its moment", act.0));
        }
    }
    assert!(wrong.is_empty(), "{} rounds are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn hostile_changes_of_the_code() {
    each_moment(&ACTS[..4]);
}

#[test]
fn hostile_memory_and_processes() {
    each_moment(&ACTS[4..7]);
}

#[test]
fn hostile_threads_and_filters() {
    each_moment(&ACTS[7..11]);
}

#[test]
fn hostile_libraries_and_signals() {
    each_moment(&ACTS[11..]);
}
