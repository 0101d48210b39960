// SPDX-License-Identifier: Apache-2.0
//! Rules with `verify = true`, and the ledger: what is lifted after an experiment, and what was written down.

use super::{HUGE, Place, is_right, lifters};
use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT, fits};
use crate::need_root;
use crate::running::Running;
use hugelift_ledger::entry::{Entry, Experiment, Program, Ratio, Verdict};
use hugelift_ledger::ledger::Ledger;
use hugelift_ledger::reader::{Known, Reader};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;
use std::time::SystemTime;

impl Place {
    /// Writes a policy that verifies, by experiments of this length.
    fn verifies(&self, length: &str) {
        let verify = format!("[verify]\nfor = \"{length}\"\npause = \"1s\"\n");
        self.write(&format!("{verify}{}verify = true\n", self.rule("[\"code\"]")));
    }

    /// Starts a copy of the victim that works as a server does.
    fn serves(&self) -> Running {
        self.starts("taken", "serve")
    }

    fn report(&self, words: &[&str]) -> Cmd {
        let ledger = self.ledger();
        let all =
            [HUGELIFT, "service", "report", "--ledger", &ledger].into_iter().chain(words.iter().copied());
        Cmd::new(all)
    }

    /// Returns what the ledger knows of the victim, if it is there.
    fn known(&self) -> Option<Known> {
        let all = Reader::open(Path::new(&self.ledger())).ok()?.programs(0).ok()?;
        all.into_iter().find(|known| known.path == self.path("taken"))
    }

    /// Writes a result into the ledger, which holds from now on.
    fn note(&self, program: &Program, verdict: Verdict, ratio: Ratio) {
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time").as_secs();
        let path = self.path("taken");
        let (measure, until) = ("CPU time per system call".into(), now + 3600);
        let experiment = Experiment { path, measure, ratio: Some(ratio), pairs: 40, verdict, until };
        let mut ledger = Ledger::open(Path::new(&self.ledger())).expect("the ledger");
        ledger.write(now, &[Entry::Experiment(program.clone(), experiment)]).expect("it is written");
    }
}

fn ends(daemon: Running) -> Vec<String> {
    daemon.signal(Signal::SIGTERM);
    let (end, _, err) = daemon.end();
    assert_eq!(end, Some(End::Code(0)), "{err:?}");
    err
}

/// A real experiment comes first. Its result decides, is in the ledger, and is told by the report.
#[test]
fn issue_33_4_an_experiment_decides_and_is_in_the_report() {
    need_root!();
    let place = Place::new();
    place.verifies("5s");
    let victim = place.serves();
    let daemon = place.start();
    let measured = || place.known().and_then(|known| known.found);
    until("the experiment has ended", || measured().is_some());
    let (_, experiment) = measured().expect("a result");
    match experiment.verdict {
        Verdict::Pays => until("it is lifted", || place.huge("taken", victim.pid()) >= HUGE),
        _ => assert_eq!(place.huge("taken", victim.pid()), 0, "{experiment:?}"),
    }
    assert!(experiment.ratio.is_some() || experiment.verdict != Verdict::Pays, "{experiment:?}");
    is_right(victim);
    ends(daemon);

    let json: Value = serde_json::from_str(&place.report(&["--json"]).bare().stdout).expect("JSON");
    fits("service-report", &json);
    let one = json["programs"].as_array().expect("a list").iter().find(|one| !one["measured"].is_null());
    let one = one.expect("the victim");
    assert_eq!(one["measured"]["verdict"], experiment.verdict.key(), "{json}");
    assert!(json["machine"]["cpu_seconds"].as_f64().is_some_and(|cpu| cpu > 0.0), "{json}");
    let said = place.report(&["--since", "1h"]).bare();
    assert!(said.end == End::Code(0) && said.stdout.starts_with("this machine: "), "{said:?}");
    assert!(said.stdout.contains(&place.path("taken").display().to_string()), "{said:?}");
}

/// A result holds for the processes of a later service: what pays is lifted at once, what harms is not lifted.
#[test]
fn issue_33_4_a_result_is_remembered() {
    need_root!();
    let place = Place::new();
    place.verifies("5s");
    // A ledger that knows the program: by a lift without `verify`.
    place.write(&place.rule("[\"code\"]"));
    let victim = place.busy("taken");
    let daemon = place.start();
    until("it is lifted", || place.huge("taken", victim.pid()) >= HUGE);
    until("that is written", || place.known().is_some_and(|known| known.lifts > 0));
    is_right(victim);
    ends(daemon);
    let program = place.known().expect("the program").program;
    assert!(!program.build_id.is_empty());
    let said = place.report(&[]).bare().stdout;
    assert!(
        said.starts_with("this machine: no gain was measured") && said.contains("and not measured"),
        "{said}"
    );

    place.verifies("5s");
    place.note(&program, Verdict::Pays, Ratio { point: 0.9, low: 0.85, high: 0.95 });
    let daemon = place.start();
    let victim = place.busy("taken");
    until("it is lifted without an experiment", || place.huge("taken", victim.pid()) >= HUGE);
    let err = ends(daemon);
    assert!(!err.iter().any(|line| line.contains("an experiment")), "{err:?}");
    is_right(victim);

    place.note(&program, Verdict::Harms, Ratio { point: 1.1, low: 1.05, high: 1.15 });
    let daemon = place.start();
    let victim = place.busy("taken");
    until("it is taken", || place.of(victim.pid()).is_some());
    assert_eq!(place.huge("taken", victim.pid()), 0);
    is_right(victim);
    ends(daemon);
    assert!(place.report(&[]).bare().stdout.contains("more CPU time per system call, so it is left"));
}

/// What another hugelift has lifted is neither measured nor restored.
#[test]
fn issue_33_4_what_a_person_has_lifted_stays() {
    need_root!();
    let place = Place::new();
    place.verifies("5s");
    let victim = place.serves();
    let lifted =
        Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp"]).arg(victim.pid().to_string()).bare();
    assert_eq!(lifted.end, End::Code(0), "{lifted:?}");
    let before = place.huge("taken", victim.pid());
    assert!(before >= HUGE);
    let daemon = place.start();
    while !daemon.err().contains("is lifted by another hugelift") {}
    assert_eq!(place.huge("taken", victim.pid()), before);
    let err = ends(daemon);
    assert!(!err.iter().any(|line| line.contains("an experiment")), "{err:?}");
    assert_eq!(place.huge("taken", victim.pid()), before);
    is_right(victim);
}

/// A daemon that is killed in the middle of an experiment leaves the process as it was.
#[test]
fn issue_33_4_a_daemon_that_is_killed_in_an_experiment_leaves_the_process_bare() {
    need_root!();
    let place = Place::new();
    place.verifies("10m");
    let victim = place.serves();
    let mut daemon = place.start();
    until("it is lifted by the experiment", || place.huge("taken", victim.pid()) >= HUGE);
    let helpers = lifters(daemon.pid());
    assert_eq!(helpers.len(), 1, "the experiment alone");
    daemon.child.kill().expect("kill");
    daemon.child.wait().expect("its end");
    until("the experiment ends", || !Path::new(&format!("/proc/{}/exe", helpers[0])).exists());
    assert_eq!(place.huge("taken", victim.pid()), 0);
    // So does one that is asked to end.
    let daemon = place.start();
    until("it is lifted by the experiment", || place.huge("taken", victim.pid()) >= HUGE);
    ends(daemon);
    // On a machine that is very busy the experiment may need longer than the daemon waits.
    until("it is restored", || place.huge("taken", victim.pid()) == 0);
    is_right(victim);
}

/// Without a ledger the service works, and says so once.
#[test]
fn issue_33_4_without_a_ledger_the_service_goes_on() {
    need_root!();
    let place = Place::new();
    place.write(&place.rule("[\"code\"]"));
    let daemon = place.start_with(&[], "/proc/hugelift/ledger.db");
    let victim = place.busy("taken");
    until("it is lifted", || place.huge("taken", victim.pid()) >= HUGE);
    is_right(victim);
    let err = ends(daemon);
    let lines = err.iter().filter(|line| line.contains("goes on without its ledger"));
    assert_eq!(lines.count(), 1, "{err:?}");
    for path in ["/proc/hugelift/ledger.db", &place.ledger()] {
        let said = Cmd::new([HUGELIFT, "service", "report", "--ledger", path]).bare();
        assert!(said.end == End::Code(125) && said.stderr.lines().count() == 1, "{said:?}");
    }
}
