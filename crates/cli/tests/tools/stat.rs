// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift stat`: the counted program is not changed, the kernel's counts are right, and the
//! report says if the machine has no PMU.

use crate::common::{Cmd, End, HUGELIFT, Outcome, fits, open_dir, plain};
use crate::{need, need_root};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn stat<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Cmd {
    Cmd::new([HUGELIFT, "stat"]).args(args)
}

/// Returns the one line with which hugelift refuses.
fn refusal(outcome: &Outcome) -> &str {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(outcome.end == End::Code(125) && lines.len() == 1 && outcome.stdout.is_empty(), "{outcome:?}");
    lines[0].strip_prefix("hugelift: ").expect("the prefix of hugelift's messages")
}

/// Parses a report and checks version 1 of the schema.
fn report(json: &str) -> Value {
    let report: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    fits("stat", &report);
    assert_eq!(report["version"], 1);
    assert!(["measured", "given"].contains(&report["origin"].as_str().expect("the origin of the counts")));
    for counter in report["counters"].as_array().expect("counters") {
        let share = counter["running_share"].as_f64().expect("a share");
        assert!((0.0..=1.0).contains(&share) && counter["event"].is_string(), "{counter}");
        assert_eq!(counter["scaled"].is_null(), share == 0.0, "{counter}");
    }
    for metric in report["metrics"].as_array().expect("metrics") {
        assert!(metric["value"].is_f64() && metric["formula"].is_string(), "{metric}");
    }
    assert!(
        report["no_pmu"].is_string() == report["counters"].as_array().expect("counters").is_empty(),
        "{report}"
    );
    report
}

/// Returns a count of the kernel, or `None` if the report does not have it.
fn kernel(report: &Value, key: &str) -> Option<u64> {
    report["kernel"].as_array()?.iter().find(|c| c["key"] == key)?["value"].as_u64()
}

fn has_pmu() -> bool {
    let devices = std::fs::read_dir("/sys/bus/event_source/devices").expect("the kernel's list of PMUs");
    let names: Vec<String> =
        devices.map(|d| d.expect("a PMU").file_name().to_string_lossy().into_owned()).collect();
    names.iter().any(|n| n == "cpu" || n == "cpu_core" || n.starts_with("armv8_") || n.starts_with("armv9_"))
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../measure/tests/fixtures/pmu").join(name)
}

#[test]
fn the_command_keeps_its_streams_and_status() {
    let script = "cat; echo out; echo err >&2; exit 7";
    let bare = Cmd::new(["sh", "-c", script]).stdin("in\n").bare();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("result");
    let counted =
        stat([OsStr::new("-o"), file.as_os_str()]).args(["--", "sh", "-c", script]).stdin("in\n").bare();
    assert_eq!(counted, bare);
    let text = std::fs::read_to_string(&file).expect("the result");
    assert!(text.starts_with("sh -c cat; echo out"), "{text}");
    assert!(text.contains("page faults without reading from disk"), "{text}");

    let counted = stat(["sh", "-c", script]).stdin("in\n").bare();
    assert_eq!((counted.stdout, counted.end), (bare.stdout, bare.end));
    assert!(counted.stderr.starts_with("err\n"), "{}", counted.stderr);
    assert!(counted.stderr.contains("hugelift compare -- CMD"), "{}", counted.stderr);
}

#[test]
fn the_command_keeps_its_surroundings() {
    let script = "grep -E '^(Sig[PBIC]|Shd|Seccomp|NoNewPrivs)' /proc/self/status; ls -l /proc/self/fd | wc -l; ulimit -a; umask";
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("result");
    for before in [&["env"][..], &["env", "--ignore-signal=CHLD,HUP"], &["env", "--block-signal=TERM,USR1"]] {
        let bare = Cmd::new(["sh", "-c", script]).under(before).bare();
        let words = [OsStr::new("-o"), file.as_os_str(), OsStr::new("--")];
        let counted = stat(words).args(["sh", "-c", script]).under(before).bare();
        assert_eq!(counted, bare, "{before:?}");
    }
}

#[test]
fn a_signal_ends_both() {
    for signal in [9, 15, 6] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        assert_eq!(stat(["sh", "-c", &script]).bare().end, End::Signal(signal));
    }
}

#[test]
fn signals_are_passed_on() {
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut child = stat(["sh", "-c", script]).command(None).spawn().expect("hugelift runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    signal(child.id(), nix::sys::signal::SIGTERM);
    assert_eq!(end(&mut child), End::Code(9));
}

#[test]
fn what_cannot_be_started() {
    for (args, status) in [(&["no-such-program"][..], 127), (&["/etc/passwd"], 126), (&[], 125)] {
        let outcome = stat(args).bare();
        assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(status), ""), "{args:?}");
    }
    // The file's mode makes it a program, but its contents do not.
    let dir = open_dir(&[]);
    let file = dir.path().join("broken");
    std::fs::write(&file, b"\x7fELF").expect("a file");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let (bare, counted) = (Cmd::new(["env"]).arg(&file).bare(), stat([&file]).bare());
    assert_eq!(counted.end, bare.end);
}

#[test]
fn a_result_that_cannot_be_written_is_not_lost() {
    let outcome = stat(["-o", "/no-such-directory/result", "sh", "-c", "echo out; exit 7"]).bare();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(7), "out\n"));
    assert!(outcome.stderr.starts_with("hugelift: cannot write /no-such-directory/result"), "{outcome:?}");
    assert!(outcome.stderr.contains("page faults without reading from disk"), "{outcome:?}");
}

#[test]
fn faults_are_counted() {
    let faults = plain("faults").build();
    let count = |how: &str, pages: u64| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("result");
        let words =
            [OsStr::new("--json"), OsStr::new("-o"), file.as_os_str(), OsStr::new("--"), faults.as_os_str()];
        let outcome = stat(words).arg(how).arg(pages.to_string()).bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{how}");
        let report = report(&std::fs::read_to_string(&file).expect("the result"));
        assert_eq!(report["origin"], "measured");
        kernel(&report, "minor_faults").expect("faults")
    };
    for how in ["self", "child", "later"] {
        let (none, many) = (count(how, 0), count(how, 5000));
        // The number of faults of the loader and the C library varies.
        assert!(
            (4900..5100).contains(&many.saturating_sub(none)),
            "{how}: {none} faults, {many} with 5000 more"
        );
    }
}

/// Counts a victim that waits for the end of its stdin, with hugelift run by the command `under`. Returns
/// the report.
fn count_running(how: &str, under: &[&OsStr]) -> Value {
    let faults = plain("faults").build();
    let mut victim = Command::new(&faults);
    victim.args([how, "5000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut victim = victim.spawn().expect("the victim runs");
    let mut line = String::new();
    BufReader::new(victim.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let counted = stat(["--json", "-p", &victim.id().to_string()]).under(under);
    let mut watcher = counted.command(None).spawn().expect("hugelift runs");
    until_waiting(&mut watcher);
    drop(victim.stdin.take());
    assert_eq!(end(&mut victim), End::Code(0));
    assert_eq!(end(&mut watcher), End::Code(0));
    report(&output(&mut watcher))
}

#[test]
fn a_running_process_with_threads() {
    for (how, threads, pages) in [("later", ", 1 thread at", 5000), ("threads", ", 5 threads at", 20_000)] {
        let report = count_running(how, &[]);
        let minor = kernel(&report, "minor_faults").expect("faults");
        assert!((pages..pages + 200).contains(&minor), "{how}: {minor} faults");
        let subject = report["subject"].as_str().expect("a subject");
        assert!(subject.contains(" (faults-") && subject.contains(threads), "{subject}");
    }
}

#[test]
fn without_pidfd() {
    let setup = plain("setup").build();
    let under = [setup.as_os_str(), OsStr::new("nopidfd"), OsStr::new("--")];
    let minor = kernel(&count_running("later", &under), "minor_faults").expect("faults");
    assert!((5000..5200).contains(&minor), "{minor} faults");
    let outcome = stat(["sh", "-c", "echo out; exit 7"]).under(under).bare();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(7), "out\n"));
}

#[test]
fn where_perf_is_forbidden() {
    let (setup, faults) = (plain("setup").build(), plain("faults").build());
    let under = [setup.as_os_str(), OsStr::new("noperf"), OsStr::new("--")];
    for how in ["self", "child"] {
        let outcome =
            stat([OsStr::new("--json"), faults.as_os_str()]).args([how, "5000"]).under(under).bare();
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        let report = report(&outcome.stderr);
        assert!(kernel(&report, "minor_faults").is_some_and(|n| (5000..5400).contains(&n)), "{report}");
        assert_eq!(kernel(&report, "context_switches"), None);
        let notes = report["notes"].to_string();
        assert!(
            notes.contains("page faults are read from /proc/PID/stat") && notes.contains("EPERM"),
            "{notes}"
        );
    }
}

#[test]
fn interrupt_ends_the_counting_and_not_the_process() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    let pid = sleeper.id().to_string();
    let mut watcher = stat(["-p", &pid]).command(None).spawn().expect("hugelift runs");
    until_waiting(&mut watcher);
    signal(watcher.id(), nix::sys::signal::SIGINT);
    assert_eq!(end(&mut watcher), End::Code(0));
    let text = output(&mut watcher);
    assert!(
        text.starts_with(&format!("process {pid} (")) && text.contains("), 1 thread at the start"),
        "{text}"
    );

    let outcome = stat(["--time", "0.2", "--json", "-p", &pid]).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let seconds = report(&outcome.stdout)["seconds"].as_f64().expect("seconds");
    assert!((0.2..30.0).contains(&seconds), "{seconds}");
    assert_eq!(sleeper.try_wait().expect("our own child"), None);
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
}

#[test]
fn a_process_that_has_vanished() {
    let mut child = Command::new("true").spawn().expect("true runs");
    child.wait().expect("wait");
    let pid = child.id().to_string();
    let outcome = stat(["-p", &pid]).bare();
    assert!(refusal(&outcome).contains(&format!("there is no process {pid}")), "{outcome:?}");
    for wrong in ["0", "-1", "x", "4294967296"] {
        assert_eq!(stat(["-p", wrong]).bare().end, End::Code(125), "{wrong}");
    }
}

#[test]
fn when_the_time_is_up_the_command_runs_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("result");
    let words =
        [OsStr::new("--time"), OsStr::new("0.1"), OsStr::new("--json"), OsStr::new("-o"), file.as_os_str()];
    let outcome = stat(words).args(["--", "sh", "-c", "sleep 1; echo done; exit 3"]).bare();
    assert_eq!((outcome.end, outcome.stdout.as_str(), outcome.stderr.as_str()), (End::Code(3), "done\n", ""));
    let seconds =
        report(&std::fs::read_to_string(&file).expect("the result"))["seconds"].as_f64().expect("seconds");
    assert!((0.1..1.0).contains(&seconds), "{seconds}");
}

#[test]
fn the_pmu_or_why_there_is_none() {
    let outcome = stat(["--json", "true"]).bare();
    let report = report(&outcome.stderr);
    let text = stat(["true"]).bare().stderr;
    if !has_pmu() {
        assert!(report["no_pmu"].as_str().is_some_and(|why| why.contains("has no PMU")), "{report}");
        assert!(
            report["bound"].is_null() && report["metrics"].as_array().is_some_and(Vec::is_empty),
            "{report}"
        );
        assert!(text.contains("no hardware counts: this machine has no PMU, like most guests"), "{text}");
        assert!(text.contains("measure what huge pages save: hugelift compare -- CMD"), "{text}");
    } else if report["model"].is_null() {
        let why = report["no_pmu"].as_str().expect("why there are no counts");
        assert!(
            ["event table", "kinds of cores", "perf_event_open"].iter().any(|w| why.contains(w)),
            "{why}"
        );
    } else {
        let first = &report["counters"][0];
        assert!(first["value"].as_u64().is_some_and(|cycles| cycles > 10_000), "{report}");
        assert!(text.contains(first["event"].as_str().expect("a name")), "{text}");
    }
}

#[test]
fn without_privileges() {
    need_root!();
    need!("setpriv");
    let dir = open_dir(&[]);
    let hugelift = dir.path().join("hugelift");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let own = Cmd::new([hugelift.as_os_str()]).args(["stat", "--json", "true"]).under(nobody).bare();
    assert_eq!(own.end, End::Code(0), "{own:?}");
    assert!(kernel(&report(&own.stderr), "minor_faults").is_some_and(|n| n > 0), "{own:?}");

    // For another user's process only /proc has counts.
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    let pid = sleeper.id().to_string();
    let other =
        Cmd::new([hugelift.as_os_str()]).args(["stat", "--time", "0.1", "-p", &pid]).under(nobody).bare();
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    assert_eq!(other.end, End::Code(0), "{other:?}");
    assert!(other.stdout.contains("kernel.perf_event_paranoid is "), "{other:?}");
    assert!(!other.stdout.contains("context switches\n"), "{other:?}");
}

#[test]
fn too_few_files() {
    let script = format!("ulimit -n 6; exec {HUGELIFT} stat -p $$");
    let outcome = Cmd::new(["sh", "-c", &script]).bare();
    assert!(refusal(&outcome).contains("more open files than 'ulimit -n' allows"), "{outcome:?}");
}

#[test]
fn given_counts_are_called_given() {
    for (name, lines) in [
        ("mysql-published-before.json", &["iTLB walks  4.3 % of cycles"][..]),
        ("mysql-published-after.json", &["iTLB walks  0.6 % of cycles"]),
        ("skylake-by-hand.json", &["walks take 6.0 % of cycles: huge pages can save at most that"]),
        (
            "sapphire-rapids-by-hand.json",
            &["walks take 4.5 % of cycles", "counted 25.0 % of the time, scaled"],
        ),
        ("zen4-by-hand.json", &["AMD has no event for the cycles", "1.500 per 1000 instructions"]),
        ("neoverse-n1-by-hand.json", &["Arm Neoverse N1", "0.200 per 1000 instructions"]),
    ] {
        let file = fixture(name);
        let outcome = stat([OsStr::new("--counters"), file.as_os_str()]).bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{name}");
        assert!(outcome.stdout.starts_with("given counts, not measured here: "), "{}", outcome.stdout);
        for line in lines {
            assert!(outcome.stdout.contains(line), "{name}: no '{line}' in {}", outcome.stdout);
        }
        let json = stat([OsStr::new("--json"), OsStr::new("--counters"), file.as_os_str()]).bare();
        let report = report(&json.stdout);
        assert_eq!((&report["origin"], &report["seconds"]), (&"given".into(), &Value::Null), "{name}");
    }
}

/// The counters that the MySQL article gives, before and after.
#[test]
fn issue_34_6_counts_of_two_files_stand_side_by_side() {
    let [before, after] = ["before", "after"].map(|which| fixture(&format!("mysql-published-{which}.json")));
    let words = [OsStr::new("--counters"), before.as_os_str(), OsStr::new("--against"), after.as_os_str()];
    let outcome = stat(words).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let line = |begins: &str| {
        let found = outcome.stdout.lines().find(|line| line.starts_with(begins));
        found
            .unwrap_or_else(|| panic!("no '{begins}' in {}", outcome.stdout))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(line("ITLB_MISSES.WALK_ACTIVE")[9..], ["0.129", "7.7", "times", "fewer"]);
    assert_eq!(line("iTLB walks, share of cycles")[5..10], ["4.3", "%", "0.6", "%", "0.129"]);
    let json = stat(words).args(["--json"]).bare();
    let result: Value = serde_json::from_str(&json.stdout).expect("JSON");
    fits("stat-against", &result);
    assert_eq!(result["names"], serde_json::json!(["mysql-published-before", "mysql-published-after"]));

    let alone = stat([OsStr::new("--against"), after.as_os_str()]).bare();
    assert!(alone.end != End::Code(0) && alone.stderr.contains("--counters"), "{alone:?}");
    let gone =
        stat([OsStr::new("--counters"), before.as_os_str(), OsStr::new("--against"), OsStr::new("/no/such")]);
    assert!(refusal(&gone.bare()).starts_with("cannot read /no/such: "));
}

/// `ITLB_MISSES.WALK_DURATION` is what the article calls it. Its CPU, a Skylake, has another name for the same code.
#[test]
fn issue_34_6_an_articles_own_names_are_understood_on_its_cpu() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("counts");
    let counts = |cpu: &str, counters: &str| {
        std::fs::write(&file, format!("{{\"note\": \"n\", \"cpu\": {cpu}, \"counters\": {{{counters}}}}}"))
            .expect("a file");
        stat([OsStr::new("--counters"), file.as_os_str()]).bare()
    };
    let skylake = r#"{"vendor": "GenuineIntel", "family": 6, "model": 85, "stepping": 4}"#;
    let zen = r#"{"vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 0}"#;
    let out = counts(skylake, r#""ITLB_MISSES.WALK_DURATION": 7000, "cycles": 100000"#);
    assert_eq!(out.end, End::Code(0), "{out:?}");
    assert!(out.stdout.contains("7 000  ITLB_MISSES.WALK_PENDING"), "{out:?}");
    // perf's own names, and its miss rate, on any CPU.
    for cpu in [skylake, zen] {
        let out = counts(cpu, r#""iTLB-loads": 2000, "iTLB-load-misses": 500, "instructions": 1000000"#);
        assert!(out.end == End::Code(0) && out.stdout.contains("iTLB misses  25.0 %"), "{out:?}");
    }
    let out = counts(zen, r#""ITLB_MISSES.WALK_DURATION": 7000"#);
    assert!(refusal(&out).contains("AMD Zen 4 has no event 'ITLB_MISSES.WALK_DURATION'"), "{out:?}");
}

#[test]
fn files_that_hold_no_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("counts");
    let try_it = |text: &str| {
        std::fs::write(&file, text).expect("a file");
        let outcome = stat([OsStr::new("--counters"), file.as_os_str()]).bare();
        refusal(&outcome).to_string()
    };
    let good = std::fs::read_to_string(fixture("zen4-by-hand.json")).expect("a fixture");
    for cut in [0, 1, good.len() / 2, good.len() - 2] {
        assert!(try_it(&good[..cut]).contains("does not hold counts"), "{cut}");
    }
    let negative = try_it(&good.replace("5000000", "-5"));
    assert!(
        negative.contains("does not hold counts") && negative.contains("a count is a number"),
        "{negative}"
    );
    assert!(
        try_it(&good.replace("ex_ret_instr", "INST_RETIRED"))
            .contains("AMD Zen 4 has no event 'INST_RETIRED'")
    );
    assert!(try_it(&good.replace("AuthenticAMD", "Other")).contains("there is no event table for Other"));
    std::fs::remove_file(&file).expect("remove");
    let outcome = stat([OsStr::new("--counters"), file.as_os_str()]).bare();
    assert!(refusal(&outcome).starts_with("cannot read "), "{outcome:?}");
}

/// Waits until hugelift has its counters open and sleeps.
fn until_waiting(watcher: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let pid = watcher.id();
    let counting = || {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let open = files.filter_map(|f| std::fs::read_link(f.path()).ok());
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        open.filter(|link| link.to_string_lossy().contains("signalfd")).count() == 1 && state.contains(") S ")
    };
    let mut calm = 0;
    while calm < 5 {
        assert!(
            watcher.try_wait().expect("our own child").is_none(),
            "hugelift has ended: {}",
            output(watcher)
        );
        assert!(Instant::now() < deadline, "hugelift does not wait with its counters open");
        calm = if counting() { calm + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), signal).expect("kill");
}

fn end(child: &mut Child) -> End {
    let deadline = Instant::now() + crate::common::run::PATIENCE;
    crate::common::run::wait(child, deadline).unwrap_or_else(|| {
        crate::common::run::end_group(child);
        panic!("the child did not end")
    })
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    text
}
