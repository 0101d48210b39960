// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift compare` with all processes of a server that forks, of a control group or of a unit.

use crate::common::guard::CGroup;
use crate::common::huge::{files, huge_of};
use crate::common::run::{NO_STORE, PATIENCE, finished, until};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, fits};
use crate::{need_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A lift changes at least so much of a process.
const FAT: u64 = 8 << 20;

/// A server that forks, and its program.
struct Server {
    program: PathBuf,
    held: Held,
}

impl Server {
    fn new(words: &[&str]) -> Server {
        let program = fat("forking").build().canonicalize().expect("it is there");
        let held = Held::start_busy(&Cmd::new([&program]).args(words), None, &program);
        let server = Server { program, held };
        let workers: usize = words[0].parse().expect("a number");
        until("the workers", || server.all().len() > workers);
        server
    }

    fn pid(&self) -> String {
        self.held.pid().to_string()
    }

    /// Returns the process and its workers.
    fn all(&self) -> Vec<u32> {
        let pid = self.held.pid();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).expect("its children");
        std::iter::once(pid).chain(text.split_whitespace().filter_map(|word| word.parse().ok())).collect()
    }

    /// Returns what each of them has mapped.
    fn files(&self) -> Vec<(u32, Vec<String>)> {
        self.all().into_iter().map(|pid| (pid, files(pid))).collect()
    }

    /// Returns the huge bytes of code and constants in a process; 0 if it has ended.
    fn huge(&self, pid: u32) -> u64 {
        huge_of(pid, &self.program).unwrap_or_default()
    }

    /// Ends it. Each worker has checked its code and constants.
    fn finish(self) {
        let told = self.held.finish();
        let right = "wrong 0\nready\nwrong 0\nwrong workers 0\n";
        assert_eq!((told.end, &*told.stdout), (End::Code(0), right), "{told:?}");
    }
}

fn command(words: &[&str]) -> Cmd {
    let short = ["--backing", "thp", "--period", "200ms", "--settle", "10ms"];
    Cmd::new([HUGELIFT, "compare"]).args(words).args(short).env("HUGELIFT_STORE", NO_STORE)
}

fn compare(words: &[&str]) -> Outcome {
    command(words).patience(2 * PATIENCE).bare()
}

fn json(words: &[&str]) -> Value {
    parsed(&compare(&[words, &["--json"]].concat()))
}

fn parsed(outcome: &Outcome) -> Value {
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{}", outcome.stdout);
    let result = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("compare", &result);
    result
}

/// Asserts that it is refused with one line that has these words.
fn refused(words: &[&str], says: &[&str]) {
    let outcome = Cmd::new([HUGELIFT, "compare"]).args(words).env("HUGELIFT_STORE", NO_STORE).bare();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(125), ""), "{outcome:?}");
    assert_eq!((outcome.own_lines().len(), outcome.other_lines().as_str()), (1, ""), "{outcome:?}");
    for word in says {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
    }
}

/// Returns the huge bytes of text and rodata in each period of a side.
fn of_periods(result: &Value, side: usize) -> Vec<u64> {
    let runs = result["sides"][side]["runs"].as_array().expect("runs");
    let bytes = |run: &Value, part: &str| run["memory"][part]["huge"].as_u64().expect("bytes");
    runs.iter().map(|run| bytes(run, "text") + bytes(run, "rodata")).collect()
}

fn count(result: &Value, what: &str) -> u64 {
    result["live"]["processes"][what].as_u64().unwrap_or_else(|| panic!("no {what}: {result}"))
}

/// A control group below another one, removed when dropped.
struct Below(PathBuf);

impl Below {
    fn new(path: PathBuf) -> Below {
        std::fs::create_dir(&path).expect("a control group");
        Below(path)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("cgroup.procs");
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        // Processes that were killed leave it soon.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn issue_31_6_a_server_that_forks_is_lifted_with_its_children() {
    need_root!();
    let server = Server::new(&["3"]);
    let before = server.files();
    let result = json(&["--pid", &server.pid(), "--children", "--pairs", "6"]);
    assert_eq!((server.files(), count(&result, "measured"), count(&result, "lifted")), (before, 4, 4));
    let (bare, lifted) = (of_periods(&result, 0), of_periods(&result, 1));
    // Libraries may be huge in the page cache, in both states.
    let most = bare.iter().max().expect("a period");
    assert!(lifted.iter().all(|bytes| *bytes >= most + 4 * FAT), "{bare:?} {lifted:?}");
    let live = &result["live"];
    let state = |key: &str| live[key].as_str().expect("a state");
    assert_eq!((state("found"), state("left"), &live["left_as_found"]), ("bare", "bare", &true.into()));
    // The workers make the system calls, and the parent waits.
    assert_eq!(live["metric"]["work"], "system-calls", "{live}");
    for run in result["sides"][1]["runs"].as_array().expect("runs") {
        assert!(run["metric"].as_f64().expect("calls") > 100.0, "{run}");
    }
    let text = compare(&["--pid", &server.pid(), "--children", "--pairs", "6", "--leave", "lifted"]);
    for words in
        ["with its children", "4 processes were measured together, of which 4 were lifted", "is left lifted"]
    {
        assert!(text.stdout.contains(words), "no {words:?} in {text:?}");
    }
    assert!(server.all().into_iter().all(|pid| server.huge(pid) >= FAT), "{text:?}");
    // It names the command that undoes this.
    let undo = text.stdout.split("'hugelift restore ").nth(1).and_then(|rest| rest.split('\'').next());
    let undo = undo.unwrap_or_else(|| panic!("{}", text.stdout)).split(' ');
    assert_eq!(Cmd::new([HUGELIFT, "restore"]).args(undo).bare().end, End::Code(0));
    assert!(server.all().into_iter().all(|pid| server.huge(pid) == 0));
    server.finish();
}

#[test]
fn issue_31_6_workers_that_come_and_end_meanwhile_are_switched_too() {
    need_root!();
    let server = Server::new(&["2", "1000"]);
    let result = json(&["--pid", &server.pid(), "--children", "--pairs", "20"]);
    assert!(count(&result, "joined") > 3 && count(&result, "ended") > 3, "{}", result["live"]);
    assert_eq!(result["live"]["left_as_found"], true);
    let (bare, lifted) = (of_periods(&result, 0), of_periods(&result, 1));
    assert!(bare.iter().max() < lifted.iter().min(), "{bare:?} {lifted:?}");
    for pid in server.all() {
        assert_eq!(server.huge(pid), 0, "{}", result["live"]);
    }
    server.finish();
}

#[test]
fn issue_31_6_each_process_is_left_as_it_was_found() {
    need_root!();
    let server = Server::new(&["2"]);
    let one = server.all()[1];
    let attached = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp", &one.to_string()]).bare();
    assert_eq!(attached.end, End::Code(0), "{attached:?}");
    let each = || server.all().into_iter().map(|pid| server.huge(pid) >= FAT).collect::<Vec<_>>();
    assert_eq!(each(), [false, true, false]);
    let result = json(&["--pid", &server.pid(), "--children", "--pairs", "6"]);
    assert_eq!((each(), count(&result, "found_lifted")), (vec![false, true, false], 1));
    let words = ["--pid", &server.pid(), "--children", "--pairs", "6", "--leave", "bare"];
    let text = compare(&words);
    assert!(text.stdout.contains("1 were lifted when they were found"), "{text:?}");
    assert!(text.stdout.contains("'hugelift attach "), "{text:?}");
    assert_eq!(each(), [false; 3]);
    server.finish();
}

#[test]
fn issue_31_6_an_interrupt_leaves_all_processes_as_they_were() {
    need_root!();
    for words in [&["2"][..], &["3", "40"]] {
        let server = Server::new(words);
        for (moment, signal) in
            [("start", Signal::SIGINT), ("lift", Signal::SIGTERM), ("lift", Signal::SIGINT)]
        {
            let pid = server.pid();
            let mut command = command(&["--pid", &pid, "--children", "--pairs", "100000"]).command(None);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
            match moment {
                "start" => std::thread::sleep(Duration::from_millis(60)),
                _ => until("a lift", || server.all().into_iter().any(|pid| server.huge(pid) > 0)),
            }
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("kill");
            let outcome = finished(child);
            let ends = [End::Code(125), End::Code(130), End::Signal(signal as i32)];
            assert!(ends.contains(&outcome.end), "{outcome:?}");
            for pid in server.all() {
                assert_eq!(server.huge(pid), 0, "{signal} at the {moment}: {outcome:?}");
            }
        }
        server.finish();
    }
}

/// A group with a server, of which a worker is in a group below it, and with a shell of which nothing can be lifted.
#[test]
fn issue_31_6_a_control_group_is_compared_with_the_groups_below_it() {
    need_root!();
    let group = match CGroup::v2() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let below = Below::new(group.path().join("below"));
    let server = Server::new(&["2"]);
    let shell = Held::start(&Cmd::new(["cat"]), None, &crate::common::find("cat").expect("cat"));
    let all = server.all();
    group.take(all[0]);
    group.take(all[1]);
    below.take(all[2]);
    group.take(shell.pid());
    let before = server.files();
    let path = group.path().to_str().expect("UTF-8");
    let result = json(&["--cgroup", path, "--pairs", "6"]);
    assert_eq!((count(&result, "measured"), count(&result, "lifted")), (4, 3), "{}", result["live"]);
    assert_eq!(server.files(), before);
    let name = result["live"]["name"].as_str().expect("a name");
    assert!(name.contains("control group") && name.contains(path), "{name}");
    let why = result["live"]["not_lifted"].to_string();
    assert!(why.contains("nothing of cat is lifted: "), "{why}");
    let (bare, lifted) = (of_periods(&result, 0), of_periods(&result, 1));
    let most = bare.iter().max().expect("a period");
    assert!(lifted.iter().all(|bytes| *bytes >= most + 3 * FAT), "{bare:?} {lifted:?}");
    server.finish();
    assert_eq!(shell.finish().end, End::Code(0));
}

#[test]
fn issue_31_6_a_unit_is_compared() {
    need_root!();
    let group = match CGroup::v2() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    // A unit is a control group of its name, with slices alone around it.
    let name = format!("hugelift-test-{}.service", std::process::id());
    let unit = Below::new(group.path().parent().expect("a folder").join(&name));
    let server = Server::new(&["2"]);
    server.all().into_iter().for_each(|pid| unit.take(pid));
    let result = json(&["--unit", &name, "--pairs", "6"]);
    assert_eq!((count(&result, "measured"), count(&result, "lifted")), (3, 3), "{}", result["live"]);
    let chosen_by = result["live"]["chosen_by"].as_str().expect("words");
    assert_eq!(
        (chosen_by, &result["live"]["name"]),
        (&*format!("--unit {name}"), &format!("unit {name}").into())
    );
    // Its first process sleeps.
    let advised = Cmd::new([HUGELIFT, "advise", "--json", "--for", "300ms", "--unit", &name]).bare();
    let advice: Value = serde_json::from_str(&advised.stdout).unwrap_or_else(|e| panic!("{e}: {advised:?}"));
    fits("advise", &advice);
    assert!(server.all()[1..].iter().any(|pid| advice["pid"] == *pid), "{advice}");
    assert!(server.all().into_iter().all(|pid| server.huge(pid) == 0));
    server.finish();
}

#[test]
fn issue_31_6_page_sizes_alone_are_compared_in_all_processes() {
    need_root!();
    let program = fat("forking").flags(&["-no-pie"]).build().canonicalize().expect("it is there");
    let held = Held::start_busy(&Cmd::new([&program]).args(["2", "300"]), None, &program);
    let server = Server { program, held };
    until("the workers", || server.all().len() > 2);
    let store = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let pid = server.pid();
    let object = server.program.to_str().expect("UTF-8");
    let words = [
        "compare",
        "--pid",
        &pid,
        "--children",
        "--same-copy",
        "--object",
        object,
        "--pairs",
        "12",
        "--json",
    ];
    let command = Cmd::new([HUGELIFT]).args(words).env("HUGELIFT_STORE", store.path().join("store"));
    let result = parsed(&command.patience(2 * PATIENCE).bare());
    let (small, lifted) = (of_periods(&result, 0), of_periods(&result, 1));
    assert!(small.iter().max() < lifted.iter().min(), "{small:?} {lifted:?}");
    assert!(server.all().into_iter().all(|pid| server.huge(pid) == 0));
    server.finish();
}

#[test]
fn issue_31_6_what_is_no_batch_is_refused_in_one_line() {
    need_root!();
    refused(
        &["--unit", "hugelift-has-no-such-unit"],
        &["--unit hugelift-has-no-such-unit: no process", "systemctl"],
    );
    refused(&["--cgroup", "/hugelift/no/such"], &["--cgroup /hugelift/no/such: no process", "systemd-cgls"]);
    let server = Server::new(&["2"]);
    let pid = server.pid();
    refused(&["--pid", &pid, "--children", "--by", "part"], &["--by"]);
    refused(&["--pid", &pid, "--unit", "x"], &["--unit"]);
    refused(&["--children", "--unit", "x"], &["--children"]);
    refused(&["--children", "true"], &["--children"]);
    refused(&["--unit", "x", "--bare-4k"], &["--bare-4k"]);
    let before = server.files();
    let nothing = ["--pid", &pid, "--children", "--exclude", "*"];
    refused(&nothing, &["none of 3 processes could be lifted", "left as it was found"]);
    assert_eq!(server.files(), before);
    let mut gone = Cmd::new(["true"]).command(None).spawn().expect("true");
    gone.wait().expect("its end");
    refused(&["--pid", &gone.id().to_string(), "--children"], &["there is no process"]);
    if let Ok(group) = CGroup::v2() {
        let path = group.path().to_str().expect("UTF-8");
        refused(&["--cgroup", path], &["no process"]);
    }
    server.finish();
}

#[test]
fn issue_31_6_a_server_that_ends_gives_what_was_measured_until_then() {
    need_root!();
    let server = Server::new(&["2"]);
    let pid = server.pid();
    let mut command = command(&["--pid", &pid, "--children", "--time", "1h"]).command(None);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
    until("the first lift", || server.all().into_iter().all(|pid| server.huge(pid) > 0));
    std::thread::sleep(Duration::from_secs(4));
    server.finish();
    let outcome = finished(child);
    assert_eq!(outcome.own_lines().len(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("has ended"), "{outcome:?}");
    // On a busy machine there may be no pair yet.
    assert!(outcome.end == End::Code(0) || outcome.stderr.contains("too little"), "{outcome:?}");
}
