// SPDX-License-Identifier: Apache-2.0
//! `hugelift service`: a daemon that takes processes by a policy.

use crate::common::huge::{pieces, smaps};
use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT, fat, fits};
use crate::running::Running;
use crate::{need, need_root};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

mod verified;

const HUGE: u64 = 4 << 20;

/// A folder with a policy, and a copy of the victim whose page cache is in small pages, as it is on tmpfs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm"));
        fs::create_dir(place.path("service.d")).expect("a folder");
        // At a fixed base, where huge pages of the page cache can be mapped too.
        let built = fat("hold").flags(&["-no-pie", "-fno-pie"]).build();
        for name in ["taken", "other"] {
            let copied = Command::new("cp").arg(&built).arg(place.path(name)).status();
            assert!(copied.is_ok_and(|status| status.success()));
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the policy: rules, and what else is given. A last rule leaves all other processes alone, which are those of other
    /// tests.
    fn write(&self, rules: &str) {
        let rest = "[[rule]]\nname = \"rest\"\ndo = []\n";
        fs::write(self.path("service.toml"), format!("{rules}\n{rest}")).expect("write");
    }

    /// Returns a rule that takes the program `taken`.
    fn rule(&self, acts: &str) -> String {
        let program = self.path("taken");
        format!("[[rule]]\nname = \"mine\"\nprogram = \"{}\"\ndo = {acts}\n", program.display())
    }

    fn words(&self, command: &[&str]) -> Vec<String> {
        let words = [HUGELIFT, "service"].into_iter().chain(command.iter().copied()).map(String::from);
        let [config, drop_ins] =
            ["service.toml", "service.d"].map(|name| self.path(name).display().to_string());
        words.chain(["--config".into(), config, "--drop-ins".into(), drop_ins]).collect()
    }

    fn socket(&self) -> String {
        self.path("s").display().to_string()
    }

    /// Returns the path of the ledger, which is in a folder that the service makes.
    fn ledger(&self) -> String {
        self.path("state/ledger.db").display().to_string()
    }

    fn start(&self) -> Running {
        self.start_by(&[])
    }

    /// Starts the daemon by another command.
    fn start_by(&self, by: &[&str]) -> Running {
        self.start_with(by, &self.ledger())
    }

    /// Starts the daemon by another command, with this ledger.
    fn start_with(&self, by: &[&str], ledger: &str) -> Running {
        let words: Vec<String> = by.iter().map(|word| word.to_string()).collect();
        let words = [words, self.words(&["--socket", &self.socket(), "--ledger", ledger])].concat();
        Running::start(Command::new(&words[0]).args(&words[1..]))
    }

    /// Returns the status, if the daemon answers.
    fn status(&self) -> Option<Value> {
        let words = [HUGELIFT, "service", "status", "--json", "--socket", &self.socket()];
        let status: Value = serde_json::from_str(&Cmd::new(words).bare().stdout).ok()?;
        fits("service-status", &status);
        Some(status)
    }

    /// Returns what the daemon says of a process that it has taken.
    fn of(&self, pid: u32) -> Option<Value> {
        let status = self.status()?;
        status["processes"].as_array()?.iter().find(|one| one["pid"] == pid).cloned()
    }

    /// Starts a copy of the victim that uses all of its code.
    fn busy(&self, name: &str) -> Running {
        self.starts(name, "burn")
    }

    /// Starts a copy of the victim that waits.
    fn idle(&self) -> Running {
        self.starts("taken", "wait")
    }

    fn starts(&self, name: &str, how: &str) -> Running {
        let victim = Running::start(Command::new(self.path(name)).arg(how));
        assert_eq!([victim.out(), victim.out()], ["wrong 0", "ready"]);
        victim
    }

    fn huge(&self, name: &str, pid: u32) -> u64 {
        pieces(pid, &[self.path(name)]).iter().map(|piece| piece.huge).sum()
    }
}

/// Returns the processes of hugelift that a daemon has started.
fn lifters(daemon: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|all| all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn is_right(victim: Running) {
    let (end, out, _) = victim.end();
    assert_eq!((end, out), (Some(End::Code(0)), vec!["wrong 0".to_string()]));
}

/// Those that run are taken, and those that come. A daemon that is killed leaves them as they are, and no lifter.
#[test]
fn issue_33_2_the_processes_of_a_rule_are_lifted_and_outlive_the_daemon() {
    need_root!();
    let place = Place::new();
    place.write(&place.rule("[\"code\"]"));
    let (before, other) = (place.busy("taken"), place.busy("other"));
    let mut daemon = place.start();
    until("it is lifted", || place.huge("taken", before.pid()) >= HUGE);
    let after = place.busy("taken");
    until("it is lifted too", || place.huge("taken", after.pid()) >= HUGE);
    until("it is said", || place.of(after.pid()).is_some_and(|one| one["huge_bytes"].as_u64() >= Some(HUGE)));
    let said = place.of(after.pid()).expect("it is taken");
    assert_eq!((&said["rule"], &said["acts"]), (&"mine".into(), &serde_json::json!(["code"])), "{said}");
    assert!(place.of(other.pid()).is_none_or(|one| one["rule"].is_null()), "{:?}", place.of(other.pid()));
    assert_eq!(place.huge("other", other.pid()), 0);

    let lifters = lifters(daemon.pid());
    assert_eq!(lifters.len(), 1);
    daemon.child.kill().expect("kill");
    daemon.child.wait().expect("its end");
    until("the lifter ends", || !Path::new(&format!("/proc/{}/exe", lifters[0])).exists());
    assert!(place.huge("taken", before.pid()) >= HUGE);
    [before, after, other].into_iter().for_each(is_right);
}

/// A lifter that has ended is started again, and knows its processes.
#[test]
fn issue_33_1_a_lifter_that_is_killed_is_started_again() {
    need_root!();
    let place = Place::new();
    place.write(&place.rule("[\"code\"]"));
    let daemon = place.start();
    let waiting = place.idle();
    until("there is a lifter", || lifters(daemon.pid()).len() == 1);
    let first = lifters(daemon.pid())[0];
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first.cast_signed()), Signal::SIGKILL).expect("kill");
    let ended = format!("the process {first} that lifts has ended");
    while !daemon.err().contains(&ended) {}
    until("there is another one", || lifters(daemon.pid()).first().is_some_and(|pid| *pid != first));
    let busy = place.busy("taken");
    until("it is lifted", || place.huge("taken", busy.pid()) >= HUGE);
    is_right(busy);
    is_right(waiting);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(End::Code(0)));
}

/// SIGHUP: a policy that is in order is taken, and one that is not changes nothing.
#[test]
fn issue_33_3_the_policy_is_read_again() {
    need_root!();
    let place = Place::new();
    place.write(&place.rule("[]"));
    let daemon = place.start();
    until("it answers", || place.status().is_some());
    let busy = place.busy("taken");
    place.write("[[rule]]\nnane = \"mine\"\n");
    daemon.signal(Signal::SIGHUP);
    let line = daemon.err();
    assert!(line.contains("service.toml: line 2") && line.contains("nane"), "{line}");
    assert!(line.contains("the old configuration stays"), "{line}");
    assert_eq!(place.huge("taken", busy.pid()), 0);
    place.write(&place.rule("[\"code\"]"));
    daemon.signal(Signal::SIGHUP);
    until("it is lifted", || place.huge("taken", busy.pid()) >= HUGE);
    // A drop-in comes first.
    fs::write(place.path("service.d/first.toml"), place.rule("[]").replace("mine", "first")).expect("write");
    daemon.signal(Signal::SIGHUP);
    until("it is left alone", || place.status().is_some() && place.of(busy.pid()).is_none());
    assert!(place.huge("taken", busy.pid()) >= HUGE, "what is lifted stays");
    is_right(busy);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(End::Code(0)));
}

/// The program's files are made huge when it has ended: the next start has them.
#[test]
fn issue_33_2_files_of_a_process_are_kept_in_the_page_cache() {
    need_root!();
    let place = Place::new();
    place.write(&format!("{}[keep]\ninterval = \"1s\"\n", place.rule("[\"pagecache\"]")));
    let waits = place.idle();
    let daemon = place.start();
    let path = place.path("taken").display().to_string();
    let file = || {
        let status = place.status()?;
        status["files"].as_array()?.iter().find(|file| file["path"] == *path).cloned()
    };
    until("its file is known", || file().is_some());
    is_right(waits);
    until("its file is huge", || {
        file().is_some_and(|file| file["whole_bytes"] != 0 && file["huge_bytes"] == file["whole_bytes"])
    });
    let next = place.idle();
    let mapped = smaps(next.pid()).into_iter().filter(|one| one.mapping.path == place.path("taken"));
    let huge: u64 = mapped.map(|one| one.huge()).sum();
    let whole = file().expect("it is kept")["whole_bytes"].as_u64();
    assert!(huge >= whole.expect("bytes") && huge > 0, "{huge} of {whole:?}");
    is_right(next);
    assert!(lifters(daemon.pid()).is_empty(), "nothing is to be done with a process that runs");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(End::Code(0)));
}

#[test]
fn issue_33_5_what_it_has_done_is_published() {
    need_root!();
    let place = Place::new();
    let (socket, textfile) = (place.path("metrics"), place.path("hugelift.prom"));
    let metrics =
        format!("[metrics]\nsocket = \"{}\"\ntextfile = \"{}\"\n", socket.display(), textfile.display());
    place.write(&format!("{metrics}{}", place.rule("[\"code\"]")));
    let daemon = place.start();
    let busy = place.busy("taken");
    let asked = || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let program = place.path("taken").display().to_string();
    let is_there = |text: &str| {
        text.lines().any(|line| {
            line.starts_with("hugelift_") && line.contains(&program) && line.contains("part=\"text\"")
        })
    };
    until("the lift is published", || asked().is_some_and(|answer| is_there(&answer)));
    let answer = asked().expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("# EOF\n"), "{answer}");
    let is_counted =
        |line: &str| line.strip_prefix("hugelift_lifts_total ").is_some_and(|count| count != "0");
    assert!(answer.lines().any(is_counted), "{answer}");
    let processes = format!("hugelift_program_processes{{program=\"{program}\"");
    let of_it = answer.lines().find(|line| line.starts_with(&processes)).expect("its processes");
    assert!(of_it.ends_with(" 1"), "{of_it}");
    let written = fs::read_to_string(&textfile).expect("the text file");
    assert!(is_there(&written) && !written.contains("# EOF"), "{written}");
    is_right(busy);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(End::Code(0)));
}

#[test]
fn issue_33_3_a_policy_is_checked() {
    need_root!();
    let place = Place::new();
    let check = |words: &[&str]| Cmd::new(place.words(&[&["check"], words].concat())).bare();
    let absent = check(&[]);
    assert_eq!((absent.end, absent.stderr.lines().count()), (End::Code(125), 1), "{absent:?}");
    let never = "[[rule]]\nname = \"old\"\nolder_than = \"10d\"\ndo = []\n";
    place.write(&format!("{never}{}", place.rule("[\"pagecache\", \"code\"]")));
    let victim = place.idle();
    let checked = check(&[]);
    assert_eq!((checked.end, &*checked.stderr), (End::Code(0), ""));
    let (path, pid) = (place.path("taken").display().to_string(), victim.pid().to_string());
    let line = checked.stdout.lines().find(|line| line.starts_with(&format!("{pid} "))).expect("its line");
    assert!(line.contains(&path) && line.ends_with("rule mine: pagecache, code"), "{line}");
    // What the last rule leaves alone is shown with --all.
    let own = format!("{} ", std::process::id());
    let shows =
        |out: &str| out.lines().any(|line| line.starts_with(&own) && line.ends_with("rule rest: left alone"));
    assert!(!shows(&checked.stdout) && shows(&check(&["--all"]).stdout));
    let one = check(&["--pid", &pid]);
    assert!(one.stdout.contains("rule old does not take it: older_than"), "{one:?}");
    let json: Value = serde_json::from_str(&check(&["--json", "--pid", &pid]).stdout).expect("JSON");
    fits("service-check", &json);
    assert_eq!(json["processes"][0]["rule"], "mine", "{json}");
    // It is in no container, and a list of pods that cannot be read changes nothing.
    assert!(json["processes"][0]["container"].is_null(), "{json}");
    let outcome = check(&["--pods", &place.path("no pods").display().to_string(), "--pid", &pid]);
    assert!(outcome.end == End::Code(0) && outcome.stdout.contains("rule mine"), "{outcome:?}");
    assert!(outcome.stderr.contains("cannot read the pods"), "{outcome:?}");
    // The kernel's first thread, a process that does not exist, and files that others may change.
    for (pid, says) in [("2", "thread of the kernel"), ("8388608", "8388608")] {
        let outcome = check(&["--pid", pid]);
        assert!(outcome.end == End::Code(125) && outcome.stderr.contains(says), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
    // Users and a group that the machine does not have are named; a pattern and a number need no user.
    place.write(
        "[keep]\nprograms = [\"sh\"]\ngroup = \"no-such-group\"\n\
         [[rule]]\nname = \"web\"\nuser = [\"root\", \"no-such-user\", \"www*\", \"4999\"]\ndo = []\n",
    );
    let outcome = check(&[]);
    let said: Vec<&str> = outcome.stdout.lines().filter(|line| line.contains("no-such-")).collect();
    assert_eq!((outcome.end, said.len()), (End::Code(0), 2), "{outcome:?}");
    assert!(said[0].contains("line 4: rule web: /etc/passwd has no user 'no-such-user'"), "{said:?}");
    assert!(said[1].starts_with("keep: group: there is no group 'no-such-group'"), "{said:?}");
    let mode = |mode| {
        fs::set_permissions(place.path("service.toml"), std::os::unix::fs::PermissionsExt::from_mode(mode))
    };
    mode(0o666).expect("chmod");
    let outcome = check(&[]);
    assert!(outcome.end == End::Code(125) && outcome.stderr.lines().count() == 1, "{outcome:?}");
    mode(0o644).expect("chmod");
    is_right(victim);
}

/// The unit is in order, and the daemon lifts processes of other users with its capabilities alone.
#[test]
fn issue_33_6_the_unit_has_the_capabilities_that_the_daemon_needs() {
    need_root!();
    need!("systemd-analyze", "setpriv");
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/hugelift.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    // systemd makes seccomp filters of these: under one, hugelift cannot read those of the processes.
    for option in [
        "SystemCall",
        "Restrict",
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "ProtectKernel",
        "ProtectClock",
        "ProtectHostname",
        "LockPersonality",
    ] {
        let line = unit.lines().find(|line| line.starts_with(option) && !line.starts_with("Restart"));
        assert_eq!(line, None, "hugelift would be under a filter");
    }
    let place = Place::new();
    let copy = place.path("hugelift.service");
    // hugelift is not installed here: the unit names the hugelift under test.
    fs::write(&copy, unit.replace("/usr/bin/hugelift", HUGELIFT)).expect("write");
    let out = Command::new("systemd-analyze").arg("verify").arg(&copy).output().expect("systemd-analyze");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !said.contains("hugelift.service:"), "{said}");

    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("the line");
    let only = line.split(' ').map(|cap| format!(",+{}", cap.trim_start_matches("CAP_").to_lowercase()));
    let set = format!("--bounding-set=-all{}", only.collect::<String>());
    place.write(&place.rule("[\"code\"]"));
    fs::set_permissions(place.0.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let program = place.path("taken").display().to_string();
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", &program, "burn"];
    let victim = Running::start(Command::new(words[0]).args(&words[1..]));
    assert_eq!([victim.out(), victim.out()], ["wrong 0", "ready"]);
    let daemon = place.start_by(&["setpriv", &set, "--no-new-privs"]);
    until("it is lifted", || place.huge("taken", victim.pid()) >= HUGE);
    is_right(victim);
    daemon.signal(Signal::SIGTERM);
    let (end, _, err) = daemon.end();
    assert_eq!(end, Some(End::Code(0)));
    assert!(!err.iter().any(|line| line.contains("tells no events")), "{err:?}");
}
