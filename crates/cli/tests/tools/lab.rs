// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift lab` with each experiment in a small form: what it prints, and what it leaves behind.

use crate::common::browser::{Page, VIEWS, browser};
use crate::common::guard::Exclusive;
use crate::common::run::{PATIENCE, has_signal, until};
use crate::common::{Cmd, End, HUGELIFT, fits, open_dir, plain};
use crate::skip;
use hugelift_lab::results::Report;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Makes a command `hugelift lab` that keeps its results in `state`.
fn command(state: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(HUGELIFT);
    command.arg("lab").args(args).env("XDG_STATE_HOME", state).stdin(Stdio::null());
    command
}

fn lab(state: &Path, args: &[&str]) -> Output {
    command(state, args).output().expect("hugelift runs")
}

fn good(state: &Path, args: &[&str]) -> String {
    let out = lab(state, args);
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {out:?}");
    String::from_utf8(out.stdout).expect("text")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Checks what all reports have in common.
fn check(report: &Value, experiment: &str) {
    fits("lab", report);
    assert_eq!((&report["version"], &report["experiment"]), (&1.into(), &experiment.into()));
    assert!(report["machine"]["cpus"].as_u64().is_some_and(|n| n > 0), "{report}");
    assert!(report["machine"]["kernel"].is_string() && report["date"].is_string(), "{report}");
    for table in report["tables"].as_array().expect("tables") {
        let columns = table["columns"].as_array().expect("columns").len();
        for row in table["rows"].as_array().expect("rows") {
            assert_eq!(row.as_array().map(Vec::len), Some(columns), "{row}");
        }
    }
    for plot in report["plots"].as_array().expect("plots") {
        for axis in ["x", "y"] {
            assert!(plot[axis]["name"].as_str().is_some_and(|n| !n.is_empty()), "{plot}");
        }
        for series in plot["series"].as_array().expect("series") {
            let x: Vec<f64> = series["points"]
                .as_array()
                .expect("points")
                .iter()
                .map(|p| p["x"].as_f64().expect("x"))
                .collect();
            assert!(!x.is_empty() && x.windows(2).all(|pair| pair[0] < pair[1]), "{series}");
        }
    }
}

/// Returns the lines of a CSV after its titles, each as a map from titles to values.
fn records(text: &str) -> Vec<std::collections::HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().expect("CSV")
}

/// Returns the pool's setting, which an experiment may change.
fn pool() -> String {
    std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default()
}

#[test]
fn munmap_lists_what_will_it_scale_does() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = good(dir.path(), &["munmap", "-t", "2", "-s", "1"]);
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("testcase:")).collect();
    assert_eq!(lines[0], "testcase:Anonymous memory mmap/munmap of 128MB");
    assert_eq!((lines[1], lines[8]), ("warmup", "measurement"));
    let numbers = |line: &str| -> Vec<u64> {
        let word = |word: &str| word.split_once(':').and_then(|(_, n)| n.parse().ok()).expect("name:number");
        line.split(' ').map(word).collect()
    };
    for line in lines[2..8].iter().chain([&lines[9]]) {
        let [min, max, total] = numbers(line)[..] else { panic!("{line}") };
        // Each number is rounded.
        assert!(min <= max && total.abs_diff(min + max) <= 1 && total > 0, "{line}");
    }
    // Two tasks make thousands of cycles a second.
    assert_eq!(numbers(lines[10])[0], numbers(lines[9])[2]);
    assert!(numbers(lines[10])[0] > 1000, "{lines:?}");
}

/// Compares the CPU time of a cycle with that of twenty lines of C, in turn, and prints the figures. The
/// test asserts only that both do the same work: as two programs, their mappings have different
/// neighbours. The module of the experiment tests its cycle against the same calls in C in one process.
#[test]
fn munmap_costs_what_it_does_in_c() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = plain("mmap_loop").build();
    let ratio = || {
        let c: f64 = Cmd::new([&program]).bare().stdout.trim().parse().expect("a number");
        let report = json(&good(dir.path(), &["munmap", "-s", "2", "--json"]));
        let lab = report["tables"][0]["rows"][0][6].as_f64().expect("CPU time") * 1e9;
        println!("C {c:.0} ns, lab munmap {lab:.0} ns: {:.3}", lab / c);
        lab / c
    };
    // Other programs may disturb one of three.
    let mut ratios = vec![ratio()];
    if !(0.5..2.0).contains(&ratios[0]) {
        ratios.extend([ratio(), ratio()]);
        ratios.sort_by(f64::total_cmp);
    }
    assert!((0.5..2.0).contains(&ratios[ratios.len() / 2]), "{ratios:?}");
}

/// A run of `lab munmap --quick` that several tests share: it takes 20 s, and more on a busy machine.
struct Munmap {
    report: Value,
    page: String,
    /// The result that it stored for `doctor`, if it was sure.
    kept: Option<Value>,
}

impl Munmap {
    /// Takes an [`Exclusive`]: the caller must not hold one.
    fn get() -> &'static Munmap {
        static ONCE: OnceLock<Munmap> = OnceLock::new();
        ONCE.get_or_init(|| {
            let _alone = Exclusive::take().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let page = dir.path().join("page.html").display().to_string();
            let args = ["munmap", "--quick", "--json", "--html", &page];
            let report = json(&good(dir.path(), &args));
            let kept = std::fs::read_to_string(dir.path().join("hugelift/lab/munmap.json")).ok();
            Munmap {
                report,
                page: std::fs::read_to_string(page).unwrap(),
                kept: kept.map(|kept| json(&kept)),
            }
        })
    }
}

/// The functions in which tasks are at work are named, or the reason why not.
#[test]
fn issue_34_6_munmap_says_where_tasks_are_at_work() {
    let Munmap { report, .. } = Munmap::get();
    let tables = report["tables"].as_array().unwrap();
    let has = |table: &&Value| {
        table["columns"].as_array().unwrap().iter().any(|column| column["key"] == "function")
    };
    let Some(table) = tables.iter().find(has) else {
        let notes = report["notes"].to_string();
        assert!(notes.contains("which kernel functions tasks work in is not known: "), "{notes}");
        skip!("needs root");
    };
    // pages, touched, kind, tasks, function, share, samples, what a task does there
    let rows: Vec<&Vec<Value>> =
        table["rows"].as_array().unwrap().iter().map(|row| row.as_array().unwrap()).collect();
    for row in &rows {
        assert!(row[5].as_f64().is_some_and(|share| (1.0..=100.0).contains(&share)), "{row:?}");
        assert!(row[4].as_str().is_some_and(|name| !name.is_empty()), "{row:?}");
    }
    // Who touches all pages has them zeroed.
    let zeroed = |row: &&&Vec<Value>| row[1] == "all pages" && row[7] == "zeroes or copies pages";
    assert!(rows.iter().any(|row| zeroed(&row)), "{rows:?}");
}

#[test]
fn munmap_as_json_csv_and_a_page() {
    let Munmap { report, page, kept } = Munmap::get();
    check(report, "munmap");
    assert_eq!(report["ended"], "complete");
    let cpus = report["machine"]["cpus"].as_u64().unwrap();
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let small = rows[0][0].as_str().unwrap();
    // One task and twice as many as there are CPUs, as processes and as threads.
    for kind in ["processes", "threads"] {
        for tasks in [1, 2 * cpus] {
            let row =
                rows.iter().find(|r| r[0] == small && r[2] == kind && r[3].as_f64() == Some(tasks as f64));
            let rate = row.and_then(|r| r[4].as_f64());
            assert!(rate.is_some_and(|rate| rate > 10.0), "{kind}, {tasks}: {rows:?}");
        }
    }
    // A curve for processes and one for threads, for each kind of pages that the machine has.
    let series = report["plots"][1]["series"].as_array().map_or(0, Vec::len);
    assert!([2, 4, 6].contains(&series), "{series} curves");
    assert!(page.contains("</svg>"));
    // The stored result is the printed one. Nothing is stored of which nothing is sure.
    let disturbance = &report["disturbance"];
    let number = |key: &str| disturbance[key].as_f64().unwrap_or_else(|| panic!("no {key}: {report}"));
    let disturbed = number("disturbed") > 0.1 * number("steps");
    let claims = report["claims"].as_array().expect("claims");
    assert!(claims.iter().any(|claim| claim["subject"] == "munmap.threads-serialised"), "{claims:?}");
    let sure = claims.iter().any(|claim| claim["sure"] == true);
    assert!(!(disturbed && sure), "{report}");
    assert_eq!(kept.as_ref(), Some(report).filter(|_| sure));
    // What is not sure is said so.
    let all = claims.iter().all(|claim| claim["sure"] == true);
    assert!(all != report["advice"].to_string().contains("Not sure"), "{report}");
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let one = ["--samples", "1", "--tasks", "1", "--kind", "threads", "--pages", "small", "--touch", "first"];
    let records = records(&good(dir.path(), &[&["munmap", "--csv"], &one[..]].concat()));
    let average = &records[0];
    assert_eq!((average["experiment"].as_str(), average["tasks"].as_str()), ("munmap", "1"));
    assert!(average["cycles_per_second"].parse::<f64>().unwrap() > 10.0, "{average:?}");
    assert_eq!(records.iter().filter(|r| r["phase"] == "measurement").count(), 1);
}

#[test]
fn an_interrupt_shows_a_part_and_leaves_nothing_behind() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let before = pool();
    let mut child = command(dir.path(), &["munmap", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait until its tasks run; it enlarges the pool if it is allowed to.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let deadline = Instant::now() + PATIENCE;
    let mut is_enlarged = false;
    while std::fs::read_to_string(&children).unwrap_or_default().is_empty() {
        assert!(Instant::now() < deadline, "the experiment did not start");
        is_enlarged |= pool() != before;
        std::thread::sleep(Duration::from_millis(5));
    }
    // The first child may be the shell that will put the pool back, before it is enlarged. A case is measured once one of the
    // tasks has ended: those of the first cases are processes.
    let mut seen: std::collections::BTreeSet<String> = Default::default();
    loop {
        assert!(Instant::now() < deadline, "no case was measured");
        is_enlarged |= pool() != before;
        let now: Vec<String> =
            std::fs::read_to_string(&children).unwrap().split_whitespace().map(String::from).collect();
        if seen.iter().any(|task| !now.contains(task)) {
            break;
        }
        seen.extend(now);
        std::thread::sleep(Duration::from_millis(5));
    }
    let tasks = std::fs::read_to_string(&children).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let end = crate::common::run::wait(&mut child, deadline).expect("it ends");
    let outcome = child.wait_with_output().unwrap();
    assert_eq!(end, End::Code(130), "{outcome:?}");
    let report = json(std::str::from_utf8(&outcome.stdout).unwrap());
    check(&report, "munmap");
    assert_eq!(report["ended"], "interrupted");
    // If memory is fragmented, it measures without the pool and says so.
    let notes = report["notes"].to_string();
    assert!(!nix::unistd::geteuid().is_root() || is_enlarged || notes.contains("left out"), "{notes}");
    assert!(!report["tables"][0]["rows"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(pool(), before);
    for task in tasks.split_whitespace() {
        assert!(!Path::new("/proc").join(task).exists(), "task {task} is left");
    }
    // An interrupted run does not replace the stored result of a complete one.
    assert!(!dir.path().join("hugelift").exists());
}

#[test]
fn tlb_measures_every_kind_of_page_and_its_figures_are_plausible() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let before = pool();
    let own = std::process::id().to_string();
    let report = json(&good(dir.path(), &["tlb", "--quick", "--largest", "32M", "--json", "--pid", &own]));
    check(&report, "tlb");
    assert_eq!((pool(), report["ended"].as_str()), (before, Some("complete")));
    // A knee counts if most of the three sweeps have it, and a level of TLB has one knee at most.
    for row in report["tables"][1]["rows"].as_array().unwrap() {
        assert!(row[6] == "2 of 3" || row[6] == "3 of 3", "{row}");
    }
    // What is sure says so, and nothing is sure if other programs took too much.
    let disturbed = report["disturbance"].as_object().is_some_and(|d| {
        d["disturbed"].as_f64().zip(d["steps"].as_f64()).is_some_and(|(some, all)| some > 0.1 * all)
    });
    for claim in report["claims"].as_array().unwrap() {
        assert!(claim["subject"].as_str().is_some_and(|s| s.starts_with("tlb.")), "{claim}");
        assert!(!disturbed || claim["sure"] == false, "{claim}");
    }
    assert_eq!(report["advice"].as_array().map(Vec::len), Some(2), "{report}");
    let notes = report["notes"].to_string();
    let thp = report["machine"]["thp_enabled"].as_str().is_some_and(|word| word != "never");
    let root = nix::unistd::geteuid().is_root();
    for plot in report["plots"].as_array().unwrap() {
        let series = plot["series"].as_array().unwrap();
        let named =
            |name: &str| series.iter().find(|s| s["name"].as_str().is_some_and(|n| n.starts_with(name)));
        let time = |series: &Value, x: u64| {
            let points = series["points"].as_array().expect("points");
            let point = points.iter().find(|p| p["x"].as_f64() == Some(x as f64));
            point.and_then(|p| p["y"].as_f64()).unwrap_or_else(|| panic!("no {x} in {series}"))
        };
        let small = named("4 kB").or(named("16 kB")).or(named("64 kB")).expect("small pages");
        assert!(named("caches alone").is_some() && (named("THP").is_some() || !thp), "{plot}");
        // In so little memory a load hits the first-level cache and takes a few cycles. 8192 pages exceed
        // every first-level TLB and cost more.
        let (near, far) = (time(small, 64 << 10), time(small, 32 << 20));
        assert!((0.2..100.0).contains(&near) && far > near, "{near} {far}");
        // For root every kind of page is measured, or a note says why not.
        assert!(!root || named("hugetlb 2 MB").is_some() || notes.contains("left out"), "{notes}");
    }
    let text = &report["tables"][0]["rows"][0];
    assert_eq!(text[0], format!("text of process {own}"));
}

/// As another user, the report says that root could enlarge the pool, and at most one line that the result
/// is not stored.
#[test]
fn tlb_without_root_says_what_root_adds() {
    let _alone = Exclusive::take().unwrap();
    if !nix::unistd::geteuid().is_root() {
        skip!("needs root, to become another user");
    }
    let dir = open_dir(&[]);
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "env", "XDG_STATE_HOME=/nonexistent"])
        .arg(dir.path().join(Path::new(HUGELIFT).file_name().unwrap()))
        .args(["lab", "tlb", "--quick", "--largest", "1M"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    let pool_is_empty = pool().trim() == "0";
    assert!(!pool_is_empty || text.contains("as root hugelift enlarges it"), "{text}");
    // Only a sure result is stored, and what other programs do meanwhile decides whether it is.
    let said = String::from_utf8_lossy(&out.stderr);
    let only_line = said.contains("not stored for hugelift doctor") && said.lines().count() == 1;
    assert!(only_line || said.is_empty(), "{said}");
}

#[test]
fn all_ends_at_an_interrupt_with_what_it_has() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (before, page) = (pool(), dir.path().join("all.html"));
    let path = page.display().to_string();
    let mut child = command(dir.path(), &["all", "--quick", "--json", "--html", &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it begins", || ["SigBlk", "SigCgt"].iter().any(|set| has_signal(child.id(), set, Signal::SIGINT)));
    std::thread::sleep(Duration::from_secs(2));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let end = crate::common::run::wait(&mut child, Instant::now() + PATIENCE).expect("it ends");
    let outcome = child.wait_with_output().unwrap();
    assert_eq!((end, pool()), (End::Code(130), before), "{outcome:?}");
    let report = json(std::str::from_utf8(&outcome.stdout).unwrap());
    // With one report, the JSON is that report and not a list.
    fits(if report["reports"].is_array() { "lab-all" } else { "lab" }, &report);
    let last = report["reports"].as_array().map_or(&report, |all| all.last().expect("a report"));
    assert_eq!(last["ended"], "interrupted", "{report}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("interrupted: this is"));
}

/// Whatever signal ends an experiment, and whenever, all settings are as before.
#[test]
fn every_experiment_puts_back_all_settings_at_any_signal() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let settings = || -> Vec<(String, String)> {
        let patterns = [
            "/proc/sys/vm/*huge*",
            "/sys/kernel/mm/hugepages/*/nr_*",
            "/sys/kernel/mm/transparent_hugepage/*",
            "/sys/kernel/mm/transparent_hugepage/khugepaged/*",
            "/sys/kernel/mm/transparent_hugepage/hugepages-*/*enabled",
        ];
        let files = patterns.iter().flat_map(|pattern| glob::glob(pattern).unwrap().flatten());
        // khugepaged's counters are not settings.
        let kept = files.filter(|file| !file.ends_with("full_scans") && !file.ends_with("pages_collapsed"));
        kept.filter_map(|file| Some((file.display().to_string(), std::fs::read_to_string(&file).ok()?)))
            .collect()
    };
    let before = settings();
    assert!(before.iter().any(|(file, _)| file.ends_with("vm/nr_hugepages")), "{before:?}");
    for experiment in ["tlb", "munmap", "reclaim", "memcpy", "cow"] {
        let moments =
            [(Signal::SIGINT, 150), (Signal::SIGQUIT, 300), (Signal::SIGTERM, 500), (Signal::SIGHUP, 1200)];
        for (signal, moment) in moments {
            let mut child = command(dir.path(), &[experiment, "--json"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // Before it has seen to its signals, one ends it as any program.
            until("it begins", || ["SigBlk", "SigCgt"].iter().any(|set| has_signal(child.id(), set, signal)));
            std::thread::sleep(Duration::from_millis(moment));
            kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
            let end = crate::common::run::wait(&mut child, Instant::now() + PATIENCE);
            let out = child.wait_with_output().unwrap();
            assert_eq!(end, Some(End::Code(130)), "{experiment}, {signal} after {moment} ms: {out:?}");
            assert_eq!(settings(), before, "{experiment}, {signal} after {moment} ms");
        }
    }
}

#[test]
fn doctor_reports_what_was_measured_here() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut report = json(&good(dir.path(), &["tlb", "--quick", "--largest", "1M", "--json"]));
    let file = dir.path().join("hugelift/lab/tlb.json");
    let is_sure = |report: &Value| {
        let sure = report["claims"].as_array().unwrap().iter().any(|claim| claim["sure"] == true);
        let of = |key: &str| report["disturbance"][key].as_f64().unwrap();
        sure && of("disturbed") <= 0.1 * of("steps")
    };
    // Only a sure result is stored.
    assert_eq!(file.exists(), is_sure(&report), "{report}");
    // Whatever other programs did, from here on it is one that nothing disturbed.
    report["disturbance"]["disturbed"] = 0.into();
    report["claims"] = serde_json::json!([{ "subject": "x", "answer": { "word": "y" }, "sure": true }]);
    let store = |text: &str| {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    };
    store(&report.to_string());
    let doctor = |args: &[&str]| {
        let out = Command::new(HUGELIFT).arg("doctor").args(args).env("XDG_STATE_HOME", dir.path()).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    };
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (day, _) = report["date"].as_str().unwrap().split_once('T').unwrap();
    let advice = report["advice"][0].as_str().unwrap();
    // Without `--lab` doctor does not report it.
    assert!(!doctor(&[]).contains("measured"), "{}", doctor(&[]));
    let shown = words(&doctor(&["--lab"]));
    assert!(shown.contains(&words(&format!("lab tlb measured here on {day}: {advice}"))), "{shown}");
    let all = json(&doctor(&["--json"]));
    assert_eq!(
        (&all["measured"][0]["experiment"], &all["measured"][0]["advice"]),
        (&"tlb".into(), &report["advice"])
    );
    // doctor does not report results of another machine.
    store(&report.to_string().replace("\"cpus\":", "\"cpus\":1"));
    assert!(!doctor(&["--lab"]).contains("measured on this machine"));
    // Nor results that other programs disturbed.
    report["disturbance"]["disturbed"] = report["disturbance"]["steps"].clone();
    store(&report.to_string());
    assert!(!doctor(&["--lab"]).contains("measured on this machine"));
}

/// Converts all numbers to f64, since a browser writes 1.0 as 1.
fn as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(all) => all.into_iter().map(as_floats).collect(),
        Value::Object(all) => Value::Object(all.into_iter().map(|(k, v)| (k, as_floats(v))).collect()),
        other => other,
    }
}

/// In a browser no text of the pictures overlaps another, and axes and curves have their names.
#[test]
fn the_pictures_can_be_read() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let tlb = dir.path().join("tlb.html");
    let page = tlb.display().to_string();
    let measured = {
        let _alone = Exclusive::take().unwrap();
        json(&good(dir.path(), &["tlb", "--quick", "--largest", "64M", "--json", "--html", &page]))
    };
    let (munmap, once) = (dir.path().join("munmap.html"), Munmap::get());
    std::fs::write(&munmap, &once.page).unwrap();
    for (name, file, report) in [("tlb", &tlb, &measured), ("munmap", &munmap, &once.report)] {
        let mut page = Page::blank();
        for view in VIEWS {
            page.view(file, view);
            page.check_plots(report);
            page.save(&format!("lab-{name}"), view);
            let embedded = page.evaluate("JSON.parse(document.getElementById('reports').textContent)[0]");
            assert!(as_floats(embedded) == as_floats(report.clone()), "{name}: the page has other figures");
            let colours = page.screenshot().colours();
            assert!(colours > 20, "{colours}");
        }
    }
    // The same curves with marks so close that names beside them would collide.
    let mut crowded = measured;
    for plot in crowded["plots"].as_array_mut().unwrap() {
        let sizes = [66e3, 67e3, 80e3, 256e3, 256e3, 257e3, 8e6, 33e6, 40e6, 64e6];
        let marks = sizes.iter().enumerate().map(|(i, size)| {
            serde_json::json!({"x": size, "name": format!("L{i} TLB by order, <not sure>, 4 kB")})
        });
        plot["marks"] = marks.collect();
    }
    let report: Report = serde_json::from_value(crowded.clone()).expect("a report");
    let file = dir.path().join("crowded.html");
    std::fs::write(&file, hugelift_report::html::lab::document(&[report]).unwrap()).unwrap();
    let mut page = Page::blank();
    for view in VIEWS {
        page.view(&file, view);
        page.check_plots(&crowded);
        page.save("lab-crowded", view);
    }
}

#[test]
fn what_cannot_be_done_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent").display().to_string();
    let (page, no_folder) = (format!("{absent}/page.html"), format!("--html: there is no folder {absent}"));
    for (args, what) in [
        (&["nothing"][..], "unrecognized subcommand"),
        (&["munmap", "-t", "0"], "0 is not in 1..=1024"),
        (&["tlb", "--largest", "1k"], "'1k' is not a size from 1M to 64G"),
        (&["tlb", "--pid", "2147483647"], "process 2147483647"),
        (&["tlb", "--program", "/proc/self/status"], "not an ELF file"),
        (&["tlb", "--program", &absent], "No such file or directory"),
        (&["munmap", "--html", &page], &no_folder),
        (&["all", "--html", &page], &no_folder),
    ] {
        let out = lab(dir.path(), args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{args:?}: {out:?}");
        assert!(said.matches(what).count() == 1 && out.stdout.is_empty(), "{args:?}: {said}");
    }
}
