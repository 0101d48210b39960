// SPDX-License-Identifier: Apache-2.0
//! Tests of the data in use, as `hugelift inspect --heat` and `hugelift advise` show it, on any kernel. The suite `data` of
//! the machines' tests is for kernels that tell addresses.

use crate::common::{Cmd, End, HUGELIFT, fits, open_dir, plain};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MB: u64 = 1 << 20;

/// A program that touches a part of its memory again and again. Killed when it is dropped.
struct Touching(Child);

impl Touching {
    /// Starts it with so many megabytes of anonymous memory, of which it touches `hot`, and half of a file.
    fn start(anon: u64, hot: u64, file: &Path, hot_of_file: u64) -> Touching {
        let program = plain("vm_touched").build();
        let mut child = Command::new(program)
            .args([anon.to_string(), hot.to_string()])
            .arg(file)
            .arg(hot_of_file.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready "), "{line}");
        Touching(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn inspect(&self, options: &[&str]) -> Cmd {
        Cmd::new([HUGELIFT, "inspect"]).args(options).arg(self.pid())
    }

    /// Returns the data in use, checked against the schema and by its sums.
    fn data(&self, options: &[&str]) -> Value {
        let outcome = self.inspect(options).arg("--json").bare();
        assert!(outcome.end == End::Code(0) && outcome.stderr.is_empty(), "{outcome:?}");
        let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        fits("report", &report);
        let data = report["data"].clone();
        for name in ["resident", "watched", "touched"] {
            let places = data["places"].as_array().expect("places").iter();
            assert_eq!(
                places.map(|place| number(&place["bytes"], name)).sum::<u64>(),
                number(&data["bytes"], name)
            );
        }
        data
    }
}

impl Drop for Touching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {value}"))
}

/// Returns the sum over all places of a kind.
fn bytes(data: &Value, kind: &str, name: &str) -> u64 {
    let places = data["places"].as_array().expect("places").iter();
    places.filter(|place| place["kind"] == kind).map(|place| number(&place["bytes"], name)).sum()
}

/// The nearest that any kernel comes to it.
#[test]
fn issue_31_2_the_touched_part_is_counted() {
    let dir = open_dir(&[]);
    let file = dir.path().join("records");
    std::fs::write(&file, vec![1; (32 * MB) as usize]).expect("a file");
    let touching = Touching::start(128, 48, &file, 16);
    let data = touching.data(&["--heat", "3", "--data"]);
    println!("{data:#}");
    if data["method"].is_null() {
        skip!("no way to see data in use: {}", data["refusals"]);
    }
    let (resident, touched) = (bytes(&data, "anon", "resident"), bytes(&data, "anon", "touched"));
    // All ways tell lower bounds, but so much memory stays in no TLB.
    assert!(resident >= 128 * MB && (36 * MB..=49 * MB).contains(&touched), "{data:#}");
    assert!((12 * MB..=17 * MB).contains(&bytes(&data, "file", "touched")), "{data:#}");
    assert_eq!(data["span_size"].is_null(), data["method"] == "referenced", "{data:#}");
    let shown = touching.inspect(&["--heat", "500ms", "--data"]).bare();
    assert!(shown.stdout.contains("\ndata in use: ") && shown.stdout.contains("\n  anon "), "{shown:?}");
    assert!(shown.stdout.contains("stays in a TLB all the time is not seen"), "{shown:?}");
}

#[test]
fn issue_31_2_a_process_that_sleeps_touches_nothing() {
    let asleep = Touching::start(32, 0, Path::new("-"), 0);
    let data = asleep.data(&["--heat", "500ms", "--data"]);
    assert_eq!(bytes(&data, "anon", "touched"), 0, "{data:#}");
    if !data["method"].is_null() {
        assert!(bytes(&data, "anon", "resident") >= 32 * MB, "{data:#}");
    }
}

/// What makes the kernel forget is done only if it is asked for.
#[test]
fn issue_31_2_accessed_bits_are_not_cleared_unasked() {
    let touching = Touching::start(32, 0, Path::new("-"), 0);
    let referenced = || {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", touching.pid())).expect("smaps");
        let kilobytes =
            |line: &str| line.strip_prefix("Referenced:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
        smaps.lines().filter_map(kilobytes).sum::<u64>() << 10
    };
    let data = touching.data(&["--heat", "500ms"]);
    if data["method"].is_null() {
        assert!(referenced() >= 32 * MB, "its accessed bits are those of its start");
        let shown = touching.inspect(&["--heat", "500ms"]).bare();
        assert!(shown.stdout.contains("data in use: cannot be seen here\n"), "{shown:?}");
        for way in ["precise data addresses", "idle page tracking", "DAMON", "referenced bits"] {
            let line = format!("\n  {way}: ");
            assert_eq!(shown.stdout.matches(&line).count(), 1, "{line} {}", shown.stdout);
        }
        touching.data(&["--heat", "500ms", "--data"]);
        assert!(referenced() < 8 * MB, "now they are cleared");
    }
    let alone = touching.inspect(&["--data"]).bare();
    assert!(alone.end == End::Code(125) && alone.stderr.contains("--heat"), "{alone:?}");
}

#[test]
fn issue_31_2_a_process_that_ends_meanwhile_leaves_no_figures() {
    let mut short = Touching::start(16, 8, Path::new("-"), 0);
    let pid = short.pid();
    let inspect = Cmd::new([HUGELIFT, "inspect", "--heat", "30", "--data", "--json"]).arg(pid);
    let outcome = std::thread::scope(|scope| {
        let outcome = scope.spawn(|| inspect.bare());
        std::thread::sleep(std::time::Duration::from_secs(2));
        short.0.kill().expect("it runs");
        short.0.wait().expect("its end");
        outcome.join().expect("hugelift")
    });
    assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("report", &report);
    let data = &report["data"];
    assert_eq!(data["ended"], true, "{data:#}");
    if data["method"].is_null() {
        assert!(data["refusals"].to_string().contains("the process ended before it was read"), "{data:#}");
    }
}

/// A user without rights reads why each way is closed, in one line each.
#[test]
fn issue_31_2_who_may_not_set_the_kernel_up_is_told_so() {
    need_root!();
    need!("setpriv");
    let dir = open_dir(&[]);
    let copy = dir.path().join(Path::new(HUGELIFT).file_name().expect("a name"));
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let line = "sleep 60 & \"$0\" inspect --heat 300ms --json $!; status=$?; kill $!; exit $status";
    let words = [&user[..], &["sh", "-c", line, copy.to_str().expect("UTF-8")]].concat();
    let outcome = Cmd::new(words).bare();
    if outcome.end != End::Code(0) {
        // The kernel lets nobody but root sample.
        assert!(outcome.stderr.contains("perf_event"), "{outcome:?}");
        skip!("this user may sample nothing");
    }
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let data = &report["data"];
    let refusals = data["refusals"].as_array().expect("refusals");
    assert!(data["method"].is_null() && refusals.len() == 4, "{data:#}");
    for refusal in refusals {
        let why = refusal["why"].as_str().expect("a line");
        assert!(!why.is_empty() && !why.contains('\n'), "{refusal}");
    }
}

#[test]
fn issue_31_2_advice_says_how_much_data_is_in_use() {
    let touching = Touching::start(32, 16, Path::new("-"), 0);
    let shown = Cmd::new([HUGELIFT, "advise", "--for", "500ms"]).arg(touching.pid()).bare();
    assert_eq!(shown.end, End::Code(0), "{shown:?}");
    assert_eq!(shown.stdout.lines().filter(|line| line.starts_with("data in use ")).count(), 1, "{shown:?}");
}

/// The data in memory are counted by kind, and the command that is named for them changes what is said.
#[test]
fn issue_31_5_advice_says_how_much_data_is_on_small_pages() {
    need_root!();
    const ANON: u64 = 96;
    const FILE: u64 = 24;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("data");
    std::fs::write(&file, vec![1; usize::try_from(FILE * MB).expect("a size")]).expect("write");
    let touching = Touching::start(ANON, 16, &file, 8);
    let pid = touching.pid();
    let advice = || -> Value {
        let outcome = Cmd::new([HUGELIFT, "advise", "--for", "300ms", "--json", &pid]).bare();
        assert!(outcome.end == End::Code(0) && outcome.stderr.is_empty(), "{outcome:?}");
        let advice = serde_json::from_str(&outcome.stdout).expect("JSON");
        fits("advise", &advice);
        advice
    };
    let before = advice();
    let of = |advice: &Value, kind: &str, name: &str| number(&advice["extents"][kind], name);
    assert!((ANON * MB..(ANON + 8) * MB).contains(&of(&before, "anonymous", "resident_bytes")), "{before:#}");
    assert!((FILE * MB..(FILE + 8) * MB).contains(&of(&before, "files", "resident_bytes")), "{before:#}");
    assert_eq!((of(&before, "anonymous", "huge_bytes"), of(&before, "shared", "resident_bytes")), (0, 0));
    let collapse = format!("hugelift attach --parts heap,anon {pid}");
    let is_named = |advice: &Value| {
        advice["commands"].as_array().expect("commands").iter().any(|command| command["line"] == *collapse)
    };
    let small = of(&before, "anonymous", "resident_bytes") + of(&before, "files", "resident_bytes")
        - of(&before, "files", "huge_bytes");
    match before["data_reach_bytes"].as_u64() {
        Some(reach) if reach < small => {
            assert_eq!(
                (before["data_verdict"].as_str(), is_named(&before)),
                (Some("perhaps"), true),
                "{before:#}"
            );
        }
        Some(_) => assert_eq!(before["data_verdict"], "little", "{before:#}"),
        // More than the TLBs of any CPU hold.
        None => assert_eq!((before["data_verdict"].as_str(), is_named(&before)), (Some("perhaps"), true)),
    }
    let shown = Cmd::new([HUGELIFT, "advise", "--for", "300ms", &pid]).bare();
    let line = shown.stdout.lines().find(|line| line.starts_with("data in memory")).expect("a line");
    assert!(line.contains("anonymous 9") && line.contains("; shared 0 B; files 2"), "{line}");

    let words = collapse.split(' ').skip(1);
    let attached = Cmd::new([HUGELIFT]).args(words).bare();
    assert_eq!(attached.end, End::Code(0), "{attached:?}");
    let after = advice();
    assert!(of(&after, "anonymous", "huge_bytes") >= (ANON - 2) * MB, "{after:#}");
    assert!(!is_named(&after), "{after:#}");
}
