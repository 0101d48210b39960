// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift compare` on real programs: its measurements, and the verdicts that it draws from them.

use crate::common::run::{NO_STORE, PATIENCE};
use crate::common::{Cmd, End, HUGELIFT, Outcome, find, fits};
use crate::need;
use hugelift_measure::generated::{Hot, Linking, jumps, run_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `hugelift compare --force` with these words: `--force` also measures programs with nothing to lift,
/// which are small and quick.
fn compare(words: &[&str]) -> Outcome {
    unforced(&[&["--force"], words].concat())
}

/// Runs `hugelift compare` with these words.
fn unforced(words: &[&str]) -> Outcome {
    // The runs take some ten seconds of CPU time at most, but the machine may be shared.
    Cmd::new([HUGELIFT, "compare"]).args(words).patience(5 * PATIENCE).bare()
}

fn succeeded(outcome: &Outcome) {
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{}", outcome.stdout);
}

pub(crate) fn json(words: &[&str]) -> Value {
    let outcome = compare(&[&["--json"], words].concat());
    succeeded(&outcome);
    let comparison = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("compare", &comparison);
    comparison
}

fn tiny() -> String {
    // A few instructions and no library: two small pages of text at most.
    let program = crate::common::plain("tiny").flags(&["-static", "-nostdlib", "-ffreestanding"]).build();
    program.display().to_string()
}

/// Checks which bytes are huge on each side, and that the verdict follows from the interval. The test does
/// not check how much faster the lifted side is, which `make demo` prints: on a busy machine ten pairs may
/// be too few.
#[test]
fn random_jumps_through_64_mb_are_compared() {
    let program = run_of(&jumps(64, Linking::Dynamic).expect("the program"), Hot::OneAPage, 3_000_000);
    let argv: Vec<String> = program.argv.iter().map(|word| word.display().to_string()).collect();
    let mut words = vec!["--figure", "cpu", "--pairs", "10", "--variant", "thp", "--bare-4k", "--"];
    words.extend(argv.iter().map(String::as_str));
    let result = json(&words);
    let variant = &result["variants"][0];
    let ratio = &variant["ratios"][1];
    assert_eq!((&ratio["figure"], &ratio["pairs"]), (&"cpu".into(), &10.into()));
    let [low, point, high] = ["low", "point", "high"].map(|key| ratio[key].as_f64().unwrap());
    assert!(0.0 < low && low <= point && point <= high, "{ratio}");
    let verdict = match () {
        () if high < 1.0 => "faster",
        () if low > 1.0 => "slower",
        () => "no-difference",
    };
    assert_eq!(variant["verdict"], verdict, "{variant}");
    let [bare, thp] = [0, 1].map(|side| &result["sides"][side]["memory"]["text"]);
    assert_eq!(bare["huge"], 0, "--bare-4k has text on huge pages");
    assert_eq!(thp["huge"], thp["whole"]);
    assert!(thp["huge"].as_u64().unwrap() >= 60 << 20, "{thp}");
}

#[test]
fn true_is_slower() {
    let outcome = compare(&["--pairs", "40", "--figure", "cpu", "--", "/bin/true"]);
    succeeded(&outcome);
    assert!(outcome.stdout.contains("lifted is slower: "), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("faster"), "{}", outcome.stdout);
}

#[test]
fn a_tiny_program_has_nothing_to_lift() {
    let result = json(&["--pairs", "6", "--", &tiny()]);
    assert_eq!(result["variants"][0]["nothing_to_lift"], true);
    assert_ne!(result["variants"][0]["verdict"], "faster");
    assert_eq!(result["sides"][1]["liftable"], 0);
    let outcome = compare(&["--pairs", "6", "--", &tiny()]);
    assert!(outcome.stdout.contains("there is nothing to lift"), "{}", outcome.stdout);
}

#[test]
fn issue_13_b4_what_has_nothing_to_lift_is_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let sign = dir.path().join("sign");
    let prepare = format!("touch '{}'", sign.display());
    let (shell, tiny) = ("/bin/sh", tiny());
    let commands = [vec!["/bin/true"], vec![tiny.as_str()], vec![shell, "-c", "exit 3"]];
    for command in &commands {
        let outcome = unforced(&[&["--prepare", &prepare, "--"], &command[..]].concat());
        succeeded(&outcome);
        let said = format!("lifted: there is nothing to lift in {}, so nothing was measured: ", command[0]);
        assert!(outcome.stdout.contains(&said), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("huge page of 2 MB; the largest is "), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains("slower") && !sign.exists(), "{}", outcome.stdout);
    }
    // Each option of the advice makes it measure.
    for more in [
        &["--force"][..],
        &["--variant", "children=--children lift"],
        &["--variant", "all=--eager --parts all"],
    ] {
        let words = [&["--pairs", "6", "--prepare", &prepare], more, &["--", "/bin/true"]].concat();
        let outcome = unforced(&words);
        succeeded(&outcome);
        assert!(sign.exists() && outcome.stdout.contains("6 pairs"), "{}", outcome.stdout);
        fs::remove_file(&sign).unwrap();
    }
    let outcome = unforced(&["--json", "--variant", "a=--parts text", "--variant", "thp", "--", "/bin/true"]);
    let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    for variant in 0..2 {
        assert_eq!(result["variants"][variant]["verdict"], "nothing-to-lift", "{result:#}");
        assert_eq!(result["sides"][variant + 1]["liftable"], 0);
    }
    let outcome = unforced(&["--csv", "--", "/bin/true"]);
    assert_eq!(
        (outcome.end, outcome.stdout.lines().count()),
        (End::Code(0), 1),
        "more than titles: {outcome:?}"
    );
}

#[test]
fn issue_13_b4_times_have_one_notation() {
    for time in ["1", "1s", "1000ms", "0.02m"] {
        let outcome = compare(&["--pairs", "6", "--time", time, "--", "/bin/true"]);
        succeeded(&outcome);
        let stat = Cmd::new([HUGELIFT, "stat", "--time", time, "true"]).bare();
        assert_eq!(stat.end, End::Code(0), "{time}: {stat:?}");
        let top = Cmd::new([HUGELIFT, "top", "--once", "--interval", time]).bare();
        assert_eq!(top.end, End::Code(0), "{time}: {top:?}");
    }
    for command in [&["compare", "--time"][..], &["stat", "--time"], &["top", "--once", "--interval"]] {
        for (time, says) in [("soon", "is not a time, as in 5 (seconds), 500ms, 90s or 2m"), ("0", "'0' is ")]
        {
            let out = Cmd::new([HUGELIFT]).args(command).args([time]).bare();
            assert_eq!(out.end, End::Code(125), "{command:?} {time}: {out:?}");
            assert!(out.stderr.contains(says), "{command:?} {time}: {}", out.stderr);
        }
    }
}

/// The peak is the child's own memory: without hugelift's, and without what it inherits from its parent by
/// fork. The child lives for 50 ms: one that ends at once may end before it can be observed, and has no peak then.
#[test]
fn peak_memory_and_faults_are_the_childs_own() {
    let naps =
        crate::common::plain("tiny").flags(&["-static", "-nostdlib", "-ffreestanding", "-DNAPS"]).build();
    let result = json(&["--pairs", "6", "--", &naps.display().to_string()]);
    for side in 0..2 {
        let peak = result["sides"][side]["peak_bytes"].as_u64().expect("a peak, read when the child exits");
        assert!(peak < 512 << 10, "side {side}: {peak}");
    }
    let faults = &result["sides"][0]["runs"][5]["minor_faults"];
    assert!(faults.as_u64().unwrap() < 60, "{faults}");
}

#[test]
fn every_run_is_in_the_json_and_in_the_csv() {
    let words = ["--pairs", "7", "--variant", "a=--backing thp", "--variant", "b=", "--", "/bin/true"];
    let result = json(&words);
    assert_eq!((&result["version"], &result["reached"]), (&1.into(), &"pairs".into()));
    assert_eq!(result["sides"][1]["options"], serde_json::json!(["--backing", "thp"]));
    let positions = |pair: usize| {
        let mut of: Vec<u64> = (0..3)
            .map(|side| {
                let run = &result["sides"][side]["runs"][pair];
                assert_eq!(run["pair"], pair + 1);
                assert!(run["wall"].as_f64().unwrap() > 0.0);
                run["position"].as_u64().unwrap()
            })
            .collect();
        of.sort_unstable();
        of
    };
    assert!((0..7).all(|pair| positions(pair) == [1, 2, 3]));

    let outcome = compare(&[&["--csv"], &words[..]].concat());
    succeeded(&outcome);
    let mut reader = csv::Reader::from_reader(outcome.stdout.as_bytes());
    let wall = reader.headers().unwrap().iter().position(|title| title == "wall_s").unwrap();
    let lines: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 3 * 7);
    assert!(lines.iter().all(|line| line[wall].parse::<f64>().unwrap() > 0.0));
    assert_eq!(lines.iter().filter(|line| &line[0] == "a").count(), 7);
}

/// The report names the limit that ended the comparison.
#[test]
fn it_stops_at_a_width_at_a_time_or_at_a_number() {
    let ended = |words: &[&str]| {
        let result = json(&[words, &["--", "/bin/true"]].concat());
        let pairs = result["sides"][0]["runs"].as_array().unwrap().len();
        (result["reached"].as_str().unwrap().to_string(), pairs)
    };
    // So wide that the first check reaches it, unless the machine is busy.
    let (reached, pairs) = ended(&["--figure", "cpu", "--until", "100%", "--pairs", "60"]);
    assert!(reached == "width" && [12, 15, 18, 22, 27, 33].contains(&pairs), "{reached} {pairs}");
    let (reached, pairs) = ended(&["--until", "0.0001%", "--time", "500ms"]);
    assert!(reached == "time" && pairs >= 6, "{reached} {pairs}");
    assert_eq!(ended(&["--pairs", "7", "--time", "1h"]), ("pairs".into(), 7));
    let few = compare(&["--pairs", "3", "--", "/bin/true"]);
    assert_eq!(few.end, End::Code(0));
    assert!(few.stderr.contains("--pairs 6 or more") && few.stdout.contains("too few pairs"), "{few:?}");
}

#[test]
fn a_failing_program_is_an_error_that_names_its_side() {
    let outcome = compare(&["--", "sh", "-c", "exit 3"]);
    assert_eq!(outcome.end, End::Code(125));
    assert!(outcome.stderr.starts_with("hugelift: bare: sh -c exit 3 ended with"), "{}", outcome.stderr);
    let only_lifted = compare(&["--variant", "x=--backing hugetlb --strict", "--", "/bin/true"]);
    assert_eq!(only_lifted.end, End::Code(125));
    assert!(only_lifted.stderr.starts_with("hugelift: x: "), "{}", only_lifted.stderr);
    let ignored = json(&["--pairs", "6", "--ignore-failure", "--", "sh", "-c", "exit 3"]);
    assert_eq!(ignored["sides"][0]["runs"][0]["status"], 3);
    assert_eq!(compare(&["--", "/no/such/program"]).end, End::Code(127));
}

/// Options that cannot work are refused in one line, before anything runs.
#[test]
fn senseless_options_are_refused_at_once() {
    for (options, said) in [
        (["--variant", "x=--nope"], "hugelift: --variant x: unexpected argument '--nope' found"),
        (["--variant", "backing"], "hugelift: --variant backing: invalid value 'backing'"),
        (["--cpu", "1023"], "hugelift: this process may use none of the CPUs [1023]"),
        (["--html", "/no/such/folder/x.html"], "hugelift: --html: there is no folder /no/such/folder"),
    ] {
        let outcome = compare(&[&options[..], &["--prepare", "exit 9", "--", "/bin/true"]].concat());
        assert_eq!(outcome.end, End::Code(125), "{options:?}");
        assert!(outcome.stderr.starts_with(said), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn wrong_options_are_refused() {
    for words in [
        &["--until", "0%", "--", "true"][..],
        &["--variant", "bare=", "--", "true"],
        &["--variant", "x=", "--variant", "x=", "--", "true"],
        &["--cpu", "9-1", "--", "true"],
        &["--server", "true"],
        &["--server", "true", "--ready", "1", "--load", "true", "--metric", "(", "--", "x"],
        &[],
    ] {
        let outcome = compare(words);
        assert_eq!(outcome.end, End::Code(125), "{words:?}: {outcome:?}");
        assert!(!outcome.stderr.is_empty(), "{words:?}");
    }
}

/// Returns the first CPU that this process may use.
fn first_cpu() -> usize {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    (0..nix::sched::CpuSet::count()).find(|&cpu| set.is_set(cpu).unwrap_or(false)).expect("a CPU")
}

#[test]
fn prepare_runs_before_each_run_cleanup_once_and_output_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let prepare = format!("echo $HUGELIFT_SIDE >> {}", path("sides"));
    let cleanup = format!("echo done >> {}", path("sides"));
    fs::write(path("in"), "words\n").unwrap();
    let (input, output) = (path("in"), path("out"));
    // The machine may not let this test use CPU 0.
    let cpu = first_cpu().to_string();
    let outcome = compare(&[
        "--pairs",
        "6",
        "--prepare",
        &prepare,
        "--cleanup",
        &cleanup,
        "--input",
        &input,
        "--output",
        &output,
        "--cpu",
        &cpu,
        "--",
        "sh",
        "-c",
        "cat; grep Cpus_allowed_list /proc/self/status",
    ]);
    succeeded(&outcome);
    let sides = fs::read_to_string(path("sides")).unwrap();
    let count = |side: &str| sides.lines().filter(|line| *line == side).count();
    // Six pairs, one run of each side before them, and one after them that reads its memory. That one is left out if
    // a run on a busy machine was slow enough to have its memory read.
    assert_eq!(count("done"), 1, "{sides}");
    assert!([count("bare"), count("lifted")].iter().all(|n| [7, 8].contains(n)), "{sides}");
    let said = fs::read_to_string(output).unwrap();
    // The programs that sh starts may write a message between these lines.
    for line in ["words".to_string(), format!("Cpus_allowed_list:\t{cpu}")] {
        assert!(said.lines().filter(|l| *l == line).count() >= 14, "{line}: {said}");
    }

    let outcome = compare(&["--prepare", "echo no; exit 4", "--", "true"]);
    assert_eq!(outcome.end, End::Code(125));
    assert!(outcome.stderr.contains("--prepare") && outcome.stderr.contains("no"), "{}", outcome.stderr);
}

/// Writes a server that answers every connection with a number and has a child process. Returns the
/// commands of the server and of a load for it.
fn server(dir: &Path) -> (String, String) {
    let socket = dir.join("socket").display().to_string();
    let script = dir.join("server.py");
    let code = format!(
        "import os, signal, socket, sys\n\
         s = socket.socket(socket.AF_UNIX)\n\
         if os.path.exists('{socket}'): os.unlink('{socket}')\n\
         s.bind('{socket}')\n\
         if os.fork() == 0:\n\
         \x20   os.setsid()\n\
         \x20   signal.pause()\n\
         open('{pids}', 'a').write(str(os.getpid()) + '\\n')\n\
         s.listen()\n\
         print('ready to serve', flush=True)\n\
         while True:\n\
         \x20   c, _ = s.accept()\n\
         \x20   try:\n\
         \x20       c.recv(1)\n\
         \x20       sum(range(2000000))\n\
         \x20       c.send(b'rate: 100.5\\n')\n\
         \x20   except OSError: pass\n\
         \x20   c.close()\n",
        pids = dir.join("pids").display()
    );
    fs::write(&script, code).unwrap();
    let load = format!(
        "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{socket}'); s.send(b'x'); \
         print(s.recv(99).decode())\""
    );
    (format!("python3 {}", script.display()), load)
}

/// Returns the processes whose command line contains `text`.
fn processes_with(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(format!("{}: {line}", entry.file_name().display()));
        }
    }
    found
}

fn assert_none_left(text: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !processes_with(text).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", processes_with(text));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn servers_are_started_afresh_loaded_and_stopped() {
    need!("python3");
    let dir = tempfile::tempdir().unwrap();
    let (server, load) = server(dir.path());
    let socket = dir.path().join("socket").display().to_string();
    for ready in [socket.as_str(), "^ready to"] {
        let result = json(&[
            "--server",
            &server,
            "--ready",
            ready,
            "--load",
            &load,
            "--metric",
            r"rate: ([0-9.]+)",
            "--higher-is-better",
            "--pairs",
            "6",
        ]);
        assert_eq!(result["figure"], "metric");
        for side in 0..2 {
            let runs = result["sides"][side]["runs"].as_array().unwrap();
            assert!(runs.iter().all(|run| run["metric"] == 100.5), "{runs:?}");
            assert!(runs.iter().all(|run| !run["memory"].is_null()), "{runs:?}");
            assert!(runs.iter().any(|run| run["server_cpu"].as_f64().is_some_and(|s| s > 0.0)), "{runs:?}");
        }
        assert_eq!(result["variants"][0]["verdict"], "no-difference", "all metrics are 100.5");
    }
    // Two comparisons of two sides with six rounds and a warm-up.
    let pids = fs::read_to_string(dir.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 2 * 2 * 7, "{pids}");
    assert_none_left(&dir.path().display().to_string());
}

/// Returns the page faults of each side in the table of counts, and of the ratio of the second.
fn faults_of(result: &Value) -> Option<(f64, f64)> {
    let rows = result["counters"]["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["key"] == "minor_faults")?;
    Some((row["values"][0].as_f64()?, row["values"][1].as_f64()?))
}

/// What is counted is the program, not what prepares it or loads it.
#[test]
fn issue_34_6_counters_of_both_sides_and_a_latency_beside_the_throughput() {
    need!("python3");
    let dir = tempfile::tempdir().unwrap();
    let touch = "x = bytearray(64 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\n";
    let small = ["-c", "pass"];
    let program = json(
        &[
            &["--counters", "--pairs", "6", "--prepare", &format!("python3 -c '{touch}'"), "--", "python3"],
            &small[..],
        ]
        .concat(),
    );
    assert_eq!(program["counters"]["per"], "run");
    let (bare, _) = faults_of(&program).expect("the kernel counts page faults");
    let of_run = program["sides"][0]["runs"][0]["minor_faults"].as_f64().unwrap();
    // The program alone: its own account has nearly as many. The 16,384 of --prepare are not in it.
    assert!(bare > 100.0 && bare < 2.0 * of_run, "{bare} {of_run}");

    let (server, load) = server(dir.path());
    let load = format!("{load} && echo p99: 2.5 ms && python3 -c '{touch}'");
    let socket = dir.path().join("socket").display().to_string();
    let words = ["--server", &server, "--ready", &socket, "--load", &load, "--metric", r"rate: ([0-9.]+)"];
    let more = ["--higher-is-better", "--latency", r"p99: ([0-9.]+)", "--counters", "--pairs", "6"];
    let result = json(&[&words[..], &more[..]].concat());
    // Per transaction: the load takes some milliseconds at 100.5 a second.
    assert_eq!(result["counters"]["per"], "transaction");
    let took = result["sides"][0]["runs"][0]["wall"].as_f64().unwrap();
    let (bare, _) = faults_of(&result).expect("the kernel counts page faults");
    let bare = bare * 100.5 * took;
    assert!(bare < 16_000.0, "{bare} page faults: those of the load");
    assert_eq!(result["has_latency"], true);
    let figures: Vec<&Value> =
        result["variants"][0]["ratios"].as_array().unwrap().iter().map(|ratio| &ratio["figure"]).collect();
    assert_eq!(figures, ["metric", "server-cpu", "latency"]);
    assert_eq!(result["sides"][1]["runs"][0]["latency"], 2.5);
    assert_none_left(&dir.path().display().to_string());
    // Without the option there is none.
    assert!(json(&["--pairs", "6", "--", "true"])["counters"].is_null());
}

#[test]
fn a_server_that_ignores_sigterm_is_killed() {
    need!("python3");
    let dir = tempfile::tempdir().unwrap();
    let (server, load) = server(dir.path());
    let server = format!("sh -c \"trap '' TERM; exec {server}\"");
    let socket = dir.path().join("socket").display().to_string();
    let outcome = compare(&[
        "--server",
        &server,
        "--ready",
        &socket,
        "--load",
        &load,
        "--metric",
        "rate: (.*)",
        "--count",
        "rate: (.*)",
        "--stop-timeout",
        "100ms",
        "--pairs",
        "1",
    ]);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    assert!(outcome.stderr.contains("was killed (--stop-timeout)"), "{}", outcome.stderr);
    assert_none_left(&dir.path().display().to_string());
}

#[test]
fn servers_that_do_not_serve_are_errors() {
    need!("python3");
    let dir = tempfile::tempdir().unwrap();
    let (server, load) = server(dir.path());
    let socket = dir.path().join("socket").display().to_string();
    let base =
        ["--ready", socket.as_str(), "--load", load.as_str(), "--metric", "rate: (.*)", "--pairs", "6"];
    let fails = |words: &[&str], with: &str| {
        let outcome = compare(words);
        assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
        assert!(outcome.stderr.contains(with), "{with}: {}", outcome.stderr);
    };
    fails(&[&["--server", "sh -c 'echo my last words; exit 2'"], &base[..]].concat(), "my last words");
    fails(&[&["--server", "sleep 60", "--ready-timeout", "200ms"], &base[..]].concat(), "within 200ms");
    let other = |load: &str, metric: &str, with: &str| {
        let words = ["--server", &server, "--ready", &socket, "--load", load, "--metric", metric];
        fails(&words, with);
    };
    other("echo nothing here", "rate: (.*)", "nothing here");
    other("exit 9", "rate: (.*)", "exit status: 9");
    fails(
        &[&["--server", &server, "--count", "transactions: (.*)"], &base[..]].concat(),
        "'transactions: (.*)'",
    );
    // Another server already listens at the socket.
    let _other = std::os::unix::net::UnixListener::bind(dir.path().join("taken")).unwrap();
    let taken = dir.path().join("taken").display().to_string();
    fails(
        &["--server", &server, "--ready", &taken, "--load", &load, "--metric", "x"],
        "another server uses it",
    );
    assert_none_left(&dir.path().display().to_string());
}

fn interrupted(words: &[&str], wait_for: &Path, trace: &str) {
    let mut child = Command::new(HUGELIFT)
        .args(["compare", "--force"])
        .args(words)
        .env("HUGELIFT_STORE", NO_STORE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !wait_for.exists() {
        assert!(Instant::now() < deadline, "the program did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let end = crate::common::run::wait(&mut child, deadline).expect("it ends");
    let outcome = child.wait_with_output().unwrap();
    assert_eq!(end, End::Code(125), "{outcome:?}");
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    assert_none_left(trace);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let sign = dir.path().join("sign");
    // A program that ignores SIGTERM, with a child that ignores it too.
    let sleep = format!("sleep 3{:09}", std::process::id());
    let script = format!("trap '' TERM; {sleep} & touch {}; while :; do {sleep}; done", sign.display());
    interrupted(&["--", "sh", "-c", &script], &sign, &sleep);
}

#[test]
fn an_interrupt_takes_the_server_and_the_load_along() {
    need!("python3");
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = server(dir.path());
    let (socket, sign) = (dir.path().join("socket").display().to_string(), dir.path().join("sign"));
    let sleep = format!("sleep 4{:09}", std::process::id());
    let load = format!("touch {}; {sleep}; :", sign.display());
    let words = ["--server", &server, "--ready", &socket, "--load", &load, "--metric", "x"];
    interrupted(&words, &sign, &dir.path().display().to_string());
    assert_none_left(&sleep);
}

#[test]
fn its_own_help_names_the_method() {
    let outcome = compare(&["--help"]);
    succeeded(&outcome);
    assert!(outcome.stdout.contains("Hodges-Lehmann") && outcome.stdout.contains("--bare-4k"));
    assert!(find("sh").is_some());
}
