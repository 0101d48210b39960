// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift lab memcpy` and `lab cow` in a small form: their reports are true, and they leave the
//! machine as it was.

use crate::common::browser::{Page, VIEWS, browser};
use crate::common::guard::Exclusive;
use crate::common::run::PATIENCE;
use crate::common::{End, HUGELIFT, fits};
use crate::{need, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ZERO_PAGE: &str = "/sys/kernel/mm/transparent_hugepage/use_zero_page";
const POOL: &str = "/proc/sys/vm/nr_hugepages";

fn lab(args: &[&str], state: &Path) -> Command {
    let mut command = Command::new(HUGELIFT);
    // Both its stored results and its temporary files are in `state`.
    command.arg("lab").args(args).env("XDG_STATE_HOME", state).env("TMPDIR", state).stdin(Stdio::null());
    command
}

fn report(args: &[&str], state: &Path) -> Value {
    let out = lab(&[args, &["--json"]].concat(), state).output().expect("hugelift runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {out:?}");
    let report = serde_json::from_slice(&out.stdout).expect("JSON");
    fits("lab", &report);
    report
}

fn setting(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Returns whether madvise(2) can give transparent huge pages.
fn thp() -> bool {
    let enabled = setting("/sys/kernel/mm/transparent_hugepage/enabled");
    !enabled.is_empty() && !enabled.contains("[never]")
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn notes(report: &Value) -> Vec<&str> {
    report["notes"].as_array().expect("notes").iter().map(|n| n.as_str().expect("text")).collect()
}

/// Returns the rows of the table that has this column, each as a map from the keys of its columns.
fn rows(report: &Value, key: &str) -> Vec<serde_json::Map<String, Value>> {
    let keys = |table: &Value| -> Vec<String> {
        let columns = table["columns"].as_array().expect("columns").iter();
        columns.map(|c| c["key"].as_str().expect("a key").to_string()).collect()
    };
    let tables = report["tables"].as_array().expect("tables");
    let table = tables.iter().find(|t| keys(t).iter().any(|k| k == key));
    let Some(table) = table else { return Vec::new() };
    let row = |row: &Value| keys(table).into_iter().zip(row.as_array().expect("a row").clone()).collect();
    table["rows"].as_array().expect("rows").iter().map(row).collect()
}

fn number(row: &serde_json::Map<String, Value>, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row:?}"))
}

#[test]
fn a_source_is_what_the_report_says() {
    if !thp() {
        skip!("needs transparent huge pages");
    }
    let _alone = Exclusive::take().unwrap();
    let (dir, before) = (tempfile::tempdir().unwrap(), setting(ZERO_PAGE));
    let report = report(&["memcpy", "--sizes", "2M,8M", "--rounds", "6"], dir.path());
    assert_eq!(setting(ZERO_PAGE), before);
    assert_eq!((&report["ended"], report["advice"].as_array().map(Vec::len)), (&"complete".into(), Some(2)));
    let notes = notes(&report);
    let says = |text: &str| notes.iter().any(|note| note.contains(text));
    assert!(says("never written, THP off, is 8 MB the ") && !says("THP off, is 8 MB the 2 MB"), "{notes:?}");
    assert!(says("written source, THP off, is 8 MB of its own on "), "{notes:?}");
    if before == "1" {
        assert!(says("never written, THP on, is 8 MB the 2 MB zero page") || !cfg!(target_arch = "x86_64"));
        assert_eq!(says("read while use_zero_page was 0, is 8 MB of its own"), is_root(), "{notes:?}");
        assert_eq!(says("root would also see"), !is_root(), "{notes:?}");
    }
    let rates = rows(&report, "empty_on_gb_s");
    assert_eq!(rates.iter().map(|r| number(r, "block_bytes")).collect::<Vec<_>>(), [2097152.0, 8388608.0]);
    for row in &rates {
        for key in
            ["empty_off_gb_s", "empty_on_gb_s", "empty_mixed_gb_s", "written_off_gb_s", "written_on_gb_s"]
        {
            assert!((0.01..1e4).contains(&number(row, key)), "{key}: {row:?}");
        }
    }
    for row in rows(&report, "trap_ratio") {
        assert!((0.01..100.0).contains(&number(&row, "trap_ratio")), "{row:?}");
        // Six rounds are the fewest with an interval.
        assert!(row["trap_interval"].as_str().is_some_and(|i| i.contains(" to ")), "{row:?}");
    }
    let claims = report["claims"].as_array().expect("claims");
    for subject in ["memcpy.trap", "memcpy.trap.at.2MB", "memcpy.trap.at.8MB"] {
        assert!(claims.iter().any(|claim| claim["subject"] == subject), "{subject}: {claims:?}");
    }
    if crate::common::find("perf").is_some() {
        assert!(says("perf bench mem memcpy") || says("for two blocks of 64 MB"), "{notes:?}");
    }
    for sample in report["samples"].as_array().expect("samples") {
        assert_eq!(sample["values"].as_array().map(Vec::len), Some(6), "{sample}");
    }
}

/// Each copy has its page faults, switches and migrations anywhere, and the events of the CPU where there is a PMU.
#[test]
fn issue_34_6_events_of_each_copy_are_counted_or_named() {
    let _alone = Exclusive::take().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let report = report(&["memcpy", "--sizes", "2M", "--rounds", "6"], dir.path());
    let notes = notes(&report);
    let counted = rows(&report, "page_faults_per_copy");
    if counted.is_empty() {
        assert!(notes.iter().any(|note| note.contains("were not counted: ")), "{notes:?}");
        skip!("perf_event_open is not permitted here");
    }
    for row in &counted {
        for key in ["page_faults_per_copy", "context_switches_per_copy", "migrations_per_copy"] {
            assert!((0.0..1e6).contains(&number(row, key)), "{key}: {row:?}");
        }
        // Cycles of the CPU, or a note that says what stands for them.
        let missing = notes.iter().any(|note| {
            note.contains("not counted here: cycles, ") && note.contains("CPU time stands for cycles")
        });
        assert_ne!(row.contains_key("cycles_per_kb"), missing, "{row:?} {notes:?}");
    }
}

#[test]
fn a_write_after_a_fork_copies_a_page_of_its_kind() {
    let _alone = Exclusive::take().unwrap();
    let (dir, before) = (tempfile::tempdir().unwrap(), setting(POOL));
    let args = ["cow", "--only", "writes", "--huge-pages", "16", "--rounds", "6"];
    let report = report(&args, dir.path());
    assert_eq!((setting(POOL), &report["ended"]), (before, &"complete".into()));
    let rows = rows(&report, "copied_bytes");
    let of = |pages: &str, pattern: &str| {
        let fits = |r: &&serde_json::Map<String, Value>| {
            r["pages"].as_str().is_some_and(|p| p.starts_with(pages)) && r["pattern"] == pattern
        };
        rows.iter().find(fits)
    };
    let base = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap() as f64;
    let small = format!("{} kB", base / 1024.0);
    let row = of(&small, "one write per huge page").expect("small pages always");
    assert_eq!((number(row, "copied_bytes"), number(row, "forks")), (16.0 * base, 6.0));
    assert!(number(row, "write_p50_s") <= number(row, "write_max_s") && number(row, "fork_s") > 0.0);
    // 96 writes carry no p99. 16 huge pages have 8192 base pages on x86-64, and 8192 writes of each fork carry p99.9.
    assert!(row["write_p99_s"].is_null() && row["write_p999_s"].is_null(), "{row:?}");
    let every = of(&small, "every page").expect("small pages always");
    if base == 4096.0 {
        assert!(number(every, "write_p99_s") <= number(every, "write_p999_s"), "{every:?}");
    }
    assert!(every["total_interval"].as_str().is_some_and(|interval| interval.contains(" to ")), "{every:?}");
    let (Some(thp), Some(hugetlb)) =
        (of("THP", "one write per huge page"), of("hugetlb", "one write per huge page"))
    else {
        let notes = notes(&report);
        assert!(notes.iter().any(|n| n.contains("transparent") || n.contains("pool")), "{notes:?}");
        skip!("needs transparent huge pages and a pool: {notes:?}");
    };
    assert_eq!(number(hugetlb, "copied_bytes") % 16.0, 0.0);
    assert!(number(hugetlb, "copied_bytes") >= 16.0 * (2 << 20) as f64, "{hugetlb:?}");
    if number(thp, "copied_bytes") < number(hugetlb, "copied_bytes") / 2.0 {
        // 20 times and more were measured. A ratio of 3 leaves room for noise.
        let ratio = number(hugetlb, "write_p50_s") / number(thp, "write_p50_s");
        assert!(ratio >= 3.0, "{ratio}: {thp:?} {hugetlb:?}");
    }
    let claims = report["claims"].as_array().expect("claims");
    let claim = |subject: &str| claims.iter().find(|c| c["subject"] == subject).map(|c| &c["answer"]["word"]);
    assert_eq!(claim("cow.first-write.hugetlb-to-small"), Some(&"slower".into()), "{claims:?}");
}

#[test]
fn whole_processes_are_measured_beside_the_source() {
    let _alone = Exclusive::take().unwrap();
    let (dir, before) = (tempfile::tempdir().unwrap(), setting(POOL));
    let report = report(&["cow", "--quick", "--only", "processes", "--rounds", "6"], dir.path());
    assert_eq!((setting(POOL), &report["ended"]), (before, &"complete".into()));
    let whole = rows(&report, "whole_s");
    assert!(!whole.is_empty(), "{:?}", notes(&report));
    for row in &whole {
        let part = |key: &str| number(row, key);
        assert!(part("whole_fill_s") > 0.0 && part("whole_write_s") > 0.0, "{row:?}");
        assert!(part("whole_fill_s").max(part("whole_write_s")) < part("whole_s"), "{row:?}");
        // Two processes on at most all CPUs, of which one only waits.
        let cpu = part("whole_user_s") + part("whole_system_s");
        assert!(cpu > 0.0 && cpu < 2.0 * part("whole_s"), "{row:?}");
        assert!(part("whole_deviation_s") >= 0.0, "{row:?}");
    }
    let ratio = rows(&report, "source_ratio").into_iter().find(|row| row["source_ratio"] == 0.93);
    let Some(ratio) = ratio else { skip!("needs a pool of huge pages: {:?}", notes(&report)) };
    assert!((0.01..10.0).contains(&number(&ratio, "ratio")), "{ratio:?}");
    assert!(notes(&report).iter().any(|note| note.contains("the source found 0.93")), "{:?}", notes(&report));
}

/// The sizes that are asked for are measured, each by one write to each huge page and by writes to all, on each kind of pages.
#[test]
fn issue_34_6_whole_processes_have_the_sizes_that_are_asked_for() {
    let _alone = Exclusive::take().unwrap();
    let (dir, before) = (tempfile::tempdir().unwrap(), setting(POOL));
    let words = ["cow", "--quick", "--only", "processes", "--huge-pages", "2,8", "--rounds", "2"];
    let report = report(&words, dir.path());
    assert_eq!((setting(POOL), &report["ended"]), (before, &"complete".into()));
    let (whole, phases) = (rows(&report, "whole_s"), rows(&report, "whole_fill_cpu_s"));
    assert_eq!(phases.len(), whole.len());
    let has_thp = whole.iter().any(|row| row["pages"] == "THP");
    assert!(
        has_thp || notes(&report).iter().any(|note| note.contains("transparent huge pages")),
        "{whole:?}"
    );
    for size in [2.0, 8.0] {
        for pages in if has_thp { &["4 kB", "THP"][..] } else { &["4 kB"] } {
            let of = |written: &str| {
                let is_it = |row: &&serde_json::Map<String, Value>| {
                    number(row, "huge_pages") == size && row["pages"] == *pages && row["pattern"] == written
                };
                whole.iter().find(is_it).unwrap_or_else(|| panic!("{size} {pages} {written}: {whole:?}"))
            };
            let (sparse, dense) = (of("one write per huge page"), of("every page"));
            assert_eq!((number(sparse, "whole_runs"), number(dense, "whole_runs")), (2.0, 2.0));
            let phases =
                phases.iter().filter(|row| number(row, "huge_pages") == size && row["pages"] == *pages);
            for row in phases {
                // Small pages are faulted in one by one: 64 kB is the largest of them.
                let least = if *pages == "4 kB" { size * 32.0 } else { size };
                assert!(number(row, "whole_fill_faults") >= least, "{row:?}");
                assert!(number(row, "whole_fill_cpu_s") < number(row, "whole_cpu_s"), "{row:?}");
            }
            // That one takes less than the other is a matter of page faults, which the unit tests count: wall times of so short
            // phases depend on what else runs.
            assert!(number(sparse, "whole_write_s") > 0.0 && number(dense, "whole_write_s") > 0.0);
        }
    }
    let sizes: std::collections::BTreeSet<u64> =
        whole.iter().map(|row| number(row, "huge_pages") as u64).collect();
    assert_eq!(sizes, [2, 8].into());
}

/// Starts `args`, sends SIGINT once `busy` returns true, and checks that the experiment ends as interrupted
/// and leaves no process. Returns the report.
fn interrupted(args: &[&str], state: &Path, busy: impl Fn(u32) -> bool) -> Value {
    let args = [args, &["--json"]].concat();
    let mut child = lab(&args, state).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !busy(child.id()) {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "{args:?} was not seen at work"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    let children = children(child.id());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let end = crate::common::run::wait(&mut child, deadline);
    let out = child.wait_with_output().unwrap();
    assert_eq!(end, Some(End::Code(130)), "{args:?}: {out:?}");
    for pid in children {
        let gone = || !Path::new(&format!("/proc/{pid}")).exists();
        let by = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < by, "process {pid} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(report["ended"], "interrupted");
    report
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn an_interrupt_between_fork_and_writes_leaves_nothing() {
    let _alone = Exclusive::take().unwrap();
    let (dir, before) = (tempfile::tempdir().unwrap(), setting(POOL));
    let pool_is_larger = |_: u32| !is_root() || setting(POOL) != before;
    // A child that is a copy has the same executable.
    let forked = |pid: u32| {
        let exe = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        children(pid).into_iter().any(|child| exe(child).is_some() && exe(child) == exe(pid))
    };
    let args = ["cow", "--only", "writes", "--huge-pages", "16,256", "--rounds", "4"];
    interrupted(&args, dir.path(), |pid| pool_is_larger(pid) && forked(pid));
    assert_eq!(setting(POOL), before);
}

#[test]
fn an_interrupt_while_redis_saves_itself_leaves_no_server_and_no_folder() {
    need!("redis-server");
    let dir = tempfile::tempdir().unwrap();
    let saves = |_: u32| {
        let folders = std::fs::read_dir(dir.path()).unwrap().flatten();
        let names = folders.filter_map(|f| Some(std::fs::read_dir(f.path()).ok()?.flatten()));
        names.flatten().any(|file| file.file_name().to_string_lossy().starts_with("temp-"))
    };
    interrupted(&["cow", "--only", "redis", "--quick"], dir.path(), saves);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|f| f.file_name()).collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn redis_has_the_pages_that_each_side_is_named_for() {
    need!("redis-server");
    if !thp() {
        skip!("needs transparent huge pages");
    }
    let dir = tempfile::tempdir().unwrap();
    let report = report(&["cow", "--only", "redis", "--quick"], dir.path());
    let rows = rows(&report, "client_p999_s");
    if rows.len() < 3 {
        assert!(notes(&report).iter().any(|n| n.contains("no time")) || report["ended"] == "time-over");
        skip!("this machine is too busy for three servers: {:?}", notes(&report));
    }
    let sides: Vec<&str> = rows.iter().map(|r| r["side"].as_str().unwrap()).collect();
    assert_eq!(sides, ["THP off", "THP on", "hugelift"]);
    assert_eq!(number(&rows[0], "huge_before_save_bytes"), 0.0, "{rows:?}");
    for row in &rows {
        assert!(number(row, "client_commands") > 100.0 && number(row, "bgsave_fork_s") > 0.0, "{row:?}");
        assert!(number(row, "client_p50_s") <= number(row, "client_max_s"), "{row:?}");
        assert!(number(row, "resident_bytes") > 64e6, "{row:?}");
    }
    // The report shows whether the split pages were joined again, unless there was no time to wait.
    let rests = self::rows(&report, "rest_s");
    if rests.is_empty() {
        assert!(notes(&report).iter().any(|n| n.contains("no time")) || report["ended"] == "time-over");
        return;
    }
    let sides: Vec<&str> = rests.iter().map(|r| r["rest_side"].as_str().unwrap()).collect();
    assert_eq!(sides, ["THP on", "hugelift"]);
    for row in &rests {
        assert!(number(row, "rest_first_bytes") > 40e6, "{row:?}");
    }
    let said =
        notes(&report).into_iter().filter(|n| n.contains("on huge pages before its first save")).count();
    assert_eq!(said, 2, "{:?}", notes(&report));
}

#[test]
fn pages_show_what_was_measured() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut page = Page::blank();
    for args in [
        &["memcpy", "--sizes", "1M,4M,16M", "--rounds", "6"][..],
        &["cow", "--only", "writes", "--huge-pages", "1,4,16", "--rounds", "2"],
    ] {
        let file = dir.path().join(format!("{}.html", args[0]));
        let report = {
            let _alone = Exclusive::take().unwrap();
            report(&[args, &["--html", file.to_str().unwrap()]].concat(), dir.path())
        };
        for view in VIEWS {
            page.view(&file, view);
            page.check_plots(&report);
            page.save(&format!("lab-{}", args[0]), view);
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, what) in [
        (&["memcpy", "--sizes", "0"][..], "'0' is not a size from 1k to 64G"),
        (&["memcpy", "--sizes", "1x"], "'1x' is not a size, as in 64k"),
        (&["memcpy", "--rounds", "0"], "0 is not in 1..=1000"),
        (&["cow", "--huge-pages", "0"], "0 is not in 1..="),
        (&["cow", "--only", "all"], "invalid value 'all'"),
    ] {
        let out = lab(args, dir.path()).output().unwrap();
        assert_eq!(out.status.code(), Some(125), "{args:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(what), "{args:?}: {out:?}");
    }
}
