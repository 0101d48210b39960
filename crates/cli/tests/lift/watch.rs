// SPDX-License-Identifier: Apache-2.0
//! The watcher of a run: what is copied while a program runs, what it opens later, the processes that it
//! starts.

use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT, Outcome, fat};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds of CPU time after which the victims give up.
const ENOUGH: &str = "25";

fn watched() -> PathBuf {
    fat("watched").build()
}

/// A store of its own, on a tmpfs that allows code.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm") }
    }

    /// Returns a copy of the victim. The page cache of a tmpfs is in small pages, so the code must be copied to
    /// become huge.
    fn program(&self) -> String {
        let copy = self.dir.path().join("program");
        // Copied with cp(1): a child that another test forks would inherit a file that is open for writing
        // here, and then the file cannot be executed.
        assert!(Command::new("cp").arg(watched()).arg(&copy).status().is_ok_and(|s| s.success()));
        copy.display().to_string()
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Runs a command as `hugelift run` with these options does, without `--eager`.
    fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        options: &[&str],
        words: impl IntoIterator<Item = S>,
    ) -> Outcome {
        let cmd = Cmd::new([HUGELIFT, "run", "--whole"]).args(options).arg("--").args(words);
        // Longer than each program of these tests gives itself.
        cmd.env("HUGELIFT_STORE", self.store()).patience(Duration::from_secs(200)).bare()
    }
}

/// What the victim prints of one process: kilobytes on huge pages, and its CPU time then.
fn shown(outcome: &Outcome, who: &str) -> Vec<(u64, f64)> {
    let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix(who)?.strip_prefix(": huge "));
    let numbers = lines.map(|line| {
        let words: Vec<&str> = line.split([' ', ',']).collect();
        assert!(line.ends_with(", wrong 0"), "{outcome:?}");
        (words[0].parse().expect("kB"), words[3].parse().expect("seconds"))
    });
    numbers.collect()
}

#[track_caller]
fn assert_huge(outcome: &Outcome, who: &str, count: usize) -> Vec<(u64, f64)> {
    let shown = shown(outcome, who);
    assert_eq!(shown.len(), count, "{outcome:?}");
    assert!(shown.iter().all(|(huge, _)| *huge >= 4096), "{outcome:?}");
    shown
}

/// The rule of docs/explanations/cost-model.md: a copy is made when the program has used 50 times the CPU time that
/// it takes.
#[test]
fn a_long_run_is_copied_while_it_runs() {
    let place = Place::new();
    let program = place.program();
    let words = [program.as_str(), "busy", ENOUGH];
    let first = place.run(&["-v"], words);
    let (_, cpu) = assert_huge(&first, "program", 1)[0];
    assert!(cpu > 0.3, "after {cpu} s: too early");
    let lines = first.own_lines();
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(
        has("would have to be copied") && has("while it ran, after") && has("hugelift watched for"),
        "{first:?}"
    );
    // An entry of the store is mapped at the start.
    let second = place.run(&["-v"], words);
    let (_, cpu) = assert_huge(&second, "program", 1)[0];
    assert!(cpu < 0.3, "after {cpu} s: {second:?}");
    assert!(!second.stderr.contains("would have to be copied"), "{second:?}");
}

#[test]
fn a_short_run_is_not_copied() {
    let place = Place::new();
    let program = place.program();
    let run = place.run(&[], [program.as_str(), "busy", "0.02"]);
    assert_eq!((shown(&run, "program")[0].0, run.own_lines()), (0, vec![]), "{run:?}");
    assert!(!place.store().exists(), "a store was made");
    // One that sleeps has used nothing either.
    let run = place.run(&[], [program.as_str(), "sleep", "2"]);
    assert_eq!((shown(&run, "program")[0].0, run.own_lines()), (0, vec![]), "{run:?}");
    let eager = place.run(&["--eager"], [program.as_str(), "busy", "0.02"]);
    assert_huge(&eager, "program", 1);
}

/// Returns whether a watch has used a thousandth of the time by its own words: with 5 ms in advance, and so many milliseconds
/// for the turn that goes beyond the limit.
pub fn is_a_thousandth(line: &str, beyond: f64) -> bool {
    let number = |before: &str| -> f64 {
        let rest = line.split_once(before).unwrap_or_else(|| panic!("{line}")).1;
        rest.split_whitespace().next().expect("a word").parse().expect("a number")
    };
    let (seconds, millis) = (number("watched for "), number(" s with "));
    assert!(seconds > 3.5, "{line}");
    millis <= seconds + 5.0 + beyond
}

/// The watcher's own CPU time, as it reports it.
#[test]
fn the_watcher_uses_a_thousandth_of_a_cpu() {
    let place = Place::new();
    let program = place.program();
    // What a hypervisor takes from a CPU is CPU time of whoever runs there: the second or third run shows the watcher's own.
    let lines: Vec<String> = (0..3)
        .map(|_| {
            let run = place.run(&["-v"], [program.as_str(), "sleep", "4"]);
            run.stderr.lines().find(|line| line.contains("hugelift watched for")).expect("a line").to_string()
        })
        .take_while(|line| !is_a_thousandth(line, 10.0))
        .collect();
    assert!(lines.len() < 3, "{lines:?}");
}

#[test]
fn an_object_that_is_opened_later() {
    let place = Place::new();
    let program = place.program();
    let library = fat("watched").library().build();
    let late = place.dir.path().join("late.so");
    assert!(Command::new("cp").arg(library).arg(&late).status().is_ok_and(|s| s.success()));
    let run = place.run(&[], [program.as_str(), "opens", late.to_str().unwrap(), ENOUGH]);
    assert_huge(&run, "program", 1);
    assert_huge(&run, "library", 1);
}

/// Children that run the same file share one account, and their parent is lifted for the children to come.
#[test]
fn processes_that_the_program_forks() {
    let place = Place::new();
    let program = place.program();
    let run = place.run(&[], [program.as_str(), "forks", "3", ENOUGH]);
    assert_huge(&run, "child", 3);
    assert_huge(&run, "last", 1);
}

#[test]
fn a_process_that_the_program_leaves_behind() {
    let place = Place::new();
    let program = place.program();
    // The pipe's end is the end of the process that is left.
    let words =
        ["sh", "-c", "\"$@\" | cat", "sh", HUGELIFT, "run", "--whole", "--", &program, "leaves", ENOUGH];
    let run = Cmd::new(words).env("HUGELIFT_STORE", place.store()).patience(Duration::from_secs(120)).bare();
    assert_huge(&run, "left", 1);
}

/// The watcher looks every four seconds at a process that does nothing, and sees its end at once.
#[test]
fn the_end_of_a_process_that_was_left_behind_is_seen_at_once() {
    let place = Place::new();
    let program = place.program();
    let id = format!("{}-strays", std::process::id());
    let mut child = Command::new(HUGELIFT)
        .args(["run", "--whole", "--", &program, "strays", "1"])
        .env("HUGELIFT_STORE", place.store())
        .env("WATCHED", &id)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = child.stdin.take();
    assert!(child.wait().unwrap().success());
    // The pauses grow to 4 s in this time.
    std::thread::sleep(Duration::from_secs(9));
    let entry = format!("WATCHED={id}");
    assert_eq!(watchers(&entry).len(), 1, "no watcher");
    let began = Instant::now();
    drop(pipe);
    until("the watcher stays", || watchers(&entry).is_empty());
    assert!(began.elapsed() < Duration::from_millis(2500), "after {:?}", began.elapsed());
}

/// A script that starts a daemon and ends at once: only the environment shows that the daemon belongs to the run.
#[test]
fn a_daemon_of_a_script_that_has_ended() {
    let place = Place::new();
    let program = place.program();
    let script = "(sleep 0.5; exec setsid \"$@\") & exit";
    let words = [
        "sh",
        "-c",
        "\"$@\" | cat",
        "sh",
        HUGELIFT,
        "run",
        "--whole",
        "--children",
        "lift",
        "--",
        "sh",
        "-c",
        script,
    ];
    let run = Cmd::new(words).args(["sh", &program, "busy", ENOUGH]).env("HUGELIFT_STORE", place.store());
    let run = run.patience(Duration::from_secs(120)).bare();
    assert_huge(&run, "program", 1);
}

/// A run that becomes another run: neither watcher waits for the other.
#[test]
fn a_run_within_a_run_leaves_no_watcher() {
    let place = Place::new();
    let program = place.program();
    let id = format!("{}-nested", std::process::id());
    let run = ["run", "--whole", "--children", "lift", "--"];
    let outcome = Cmd::new([HUGELIFT]).args(run).arg(HUGELIFT).args(run).args([&program, "busy", "1"]);
    let outcome = outcome.env("WATCHED", &id).env("HUGELIFT_STORE", place.store()).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    until("a watcher stays", || watchers(&format!("WATCHED={id}")).is_empty());
}

/// A program that becomes another one is still the one that was started.
#[test]
fn a_program_behind_execve() {
    let place = Place::new();
    let program = place.program();
    let word = program.as_str();
    let run = place.run(&[], ["sh", "-c", "exec \"$@\"", "sh", word, "runs", word, "busy", ENOUGH]);
    assert_huge(&run, "program", 1);
    // A child of another file is not lifted without --children lift.
    let run = place.run(&[], ["sh", "-c", "\"$@\"; true", "sh", word, "busy", "3"]);
    assert_eq!(shown(&run, "program")[0].0, 0, "{run:?}");
}

/// Returns the processes of hugelift whose environment has this entry.
fn watchers(entry: &str) -> Vec<i32> {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let hugelift = Path::new(HUGELIFT).canonicalize().expect("hugelift");
    let is_ours = |pid: &i32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        exe == hugelift && environ.split(|b| *b == 0).any(|e| e == entry.as_bytes())
    };
    all.filter(is_ours).collect()
}

/// It is one process, which ends with the program, and which the program does not need.
#[test]
fn the_watcher_may_be_killed_and_ends_with_the_program() {
    let place = Place::new();
    let program = place.program();
    for kills in [true, false] {
        let id = format!("{}-{kills}", std::process::id());
        let child = Command::new(HUGELIFT)
            .args(["run", "--whole", "--", &program, "busy", if kills { "1.5" } else { ENOUGH }])
            .env("HUGELIFT_STORE", place.store())
            .env("WATCHED", &id)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let entry = format!("WATCHED={id}");
        // Until execve(2) the launcher is a process of hugelift too.
        let beside = || {
            watchers(&entry).into_iter().filter(|pid| *pid != child.id().cast_signed()).collect::<Vec<_>>()
        };
        until("no watcher", || beside().len() == 1 && watchers(&entry).len() == 1);
        if kills {
            let pid = beside()[0];
            // SAFETY: kill(2) of a process that this test has found by its environment.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        }
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && said.contains(", wrong 0"), "{out:?}");
        // It was killed before it had lifted anything.
        assert_eq!(kills, said.contains("huge 0 kB"), "{said}");
        until("the watcher stays", || watchers(&entry).is_empty());
    }
}

/// Where no process can stay beside the program, it is copied at the start.
#[test]
fn as_pid_one_it_is_copied_at_the_start() {
    need_root!();
    need!("unshare");
    let place = Place::new();
    let program = place.program();
    let run = Cmd::new(["unshare", "--pid", "--fork", "--mount-proc", HUGELIFT, "run", "--whole", "--"]);
    let run = run.arg(&program).args(["busy", "0.02"]).env("HUGELIFT_STORE", place.store()).bare();
    assert_huge(&run, "program", 1);
}

/// Another user has no store, and each process its own copy.
#[test]
fn of_another_user() {
    need_root!();
    need!("setpriv");
    let dir = crate::common::build::open_dir(&[Path::new(HUGELIFT), &watched()]);
    let inside = |path: &Path| dir.path().join(path.file_name().unwrap()).display().to_string();
    let (hugelift, program) = (inside(Path::new(HUGELIFT)), inside(&watched()));
    let words =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", &hugelift, "run", "--whole", "--"];
    let run = Cmd::new(words)
        .args([program.as_str(), "busy", ENOUGH])
        .env("HUGELIFT_STORE", "/dev/null/none")
        .bare();
    assert_huge(&run, "program", 1);
}

/// What the program's allocator maps after the start is collapsed while it runs. That may take a fiftieth of its CPU time, and in a
/// guest 20 to 50 ms for each huge page were seen. The program stays until the watcher has read what became of it.
#[test]
fn anonymous_memory_that_is_mapped_later() {
    need_root!();
    need!("python3");
    let text = "import time\nd = bytearray(20 << 20)\nd[::4096] = b'x' * (len(d) // 4096)\nend = time.time() + 130\n\
        huge = lambda: sum(int(l.split()[1]) for l in open('/proc/self/smaps') if l.startswith('AnonHuge'))\n\
        while huge() < 16000 and time.time() < end: sum(d[0:1 << 22])\nprint(huge() >= 16000, sum(d[::4096]) >> 13, flush=True)\ntime.sleep(1)";
    for eager in [&[][..], &["--eager"]] {
        let options = [&["-v", "--parts", "text,anon"], eager].concat();
        let run = Place::new().run(&options, ["python3", "-c", text]);
        assert_eq!((run.end, run.stdout.as_str()), (End::Code(0), "True 75\n"), "{run:?}");
        assert!(run.stderr.contains("of anonymous memory is on huge pages now"), "{run:?}");
    }
}

/// A short run decides nothing about a later one.
#[test]
fn a_long_php_after_a_short_one() {
    need!("php");
    let place = Place::new();
    assert_eq!(place.run(&[], ["php", "-v"]).end, End::Code(0));
    let dry = place.run(&["--dry-run"], ["php"]);
    if !dry.stdout.contains("would have to be copied") {
        skip!(
            "php has no whole huge page here that would have to be copied: {}",
            dry.stdout.lines().next().unwrap_or("")
        );
    }
    let text = "$end = microtime(true) + 100; $s = 0; while (microtime(true) < $end) { $s += 1; if ($s % 100000 == 0 && \
                preg_match('/(Huge|Pmd\\w+): +[1-9]/', file_get_contents('/proc/self/smaps'))) { echo 'huge'; exit; } } \
                echo 'small';";
    let run = place.run(&[], ["php", "-r", text]);
    assert_eq!((run.stdout.as_str(), run.own_lines()), ("huge", vec![]), "{run:?}");
}
