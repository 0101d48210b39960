// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift inspect --cost`: programs that wait for copies, for reclaim and for compaction, and those of which
//! it is unknown. They switch a setting of the machine on, which counts waits, and so run without other tests.

use crate::common::guard::{Exclusive, Settings};
use crate::common::{CGroup, Cmd, End, HUGELIFT, Outcome, fits, open_dir, plain};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const SETTING: &str = "/proc/sys/kernel/task_delayacct";
const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// The setting, with the value that a test wants.
struct Counting {
    _settings: Settings,
    _alone: Exclusive,
}

impl Counting {
    fn set(value: &str) -> Result<Counting, String> {
        let alone = Exclusive::take()?;
        let settings = Settings::keep(&[SETTING])?;
        fs::write(SETTING, value).map_err(|e| format!("{SETTING}: {e}"))?;
        Ok(Counting { _settings: settings, _alone: alone })
    }
}

/// A program that is killed when it is dropped.
struct Victim {
    child: Child,
    input: ChildStdin,
}

impl Victim {
    /// Starts it, and waits for the line "ready" of those that print one.
    fn start(words: &[&str]) -> Victim {
        let is_quiet = words[0].ends_with("sh");
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let (input, stdout) =
            (child.stdin.take().expect("its stdin"), child.stdout.take().expect("its stdout"));
        let victim = Victim { child, input };
        if !is_quiet {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).expect("its first line");
            assert_eq!(line, "ready\n");
        }
        victim
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copied(args: &[&str]) -> Victim {
    let program = plain("copied").flags(&["-pthread"]).build();
    Victim::start(&[&[program.to_str().expect("UTF-8")], args].concat())
}

fn inspect(args: &[&str]) -> Cmd {
    Cmd::new([HUGELIFT, "inspect", "--cost"]).args(args)
}

fn checked(outcome: &Outcome) -> Value {
    assert!(outcome.end == End::Code(0) && outcome.stderr.is_empty(), "{outcome:?}");
    let cost: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("inspect-cost", &cost);
    cost
}

fn cost(time: &str, victim: &Victim) -> Value {
    checked(&inspect(&[time, "--json", &victim.pid()]).bare())
}

fn number(value: &Value, place: &str) -> u64 {
    value.pointer(place).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {place} in {value}"))
}

/// Returns the one line with which hugelift refuses.
fn refusal(outcome: &Outcome) -> &str {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(outcome.end == End::Code(125) && lines.len() == 1 && outcome.stdout.is_empty(), "{outcome:?}");
    lines[0].strip_prefix("hugelift: ").expect("the prefix of hugelift's messages")
}

/// Also if another thread than the first one waits.
#[test]
fn issue_31_9_copies_after_fork_are_seen() {
    need_root!();
    let _counting = match Counting::set("1") {
        Ok(counting) => counting,
        Err(why) => skip!("{why}"),
    };
    for kind in ["", "thread"] {
        let victim = copied(&["60", kind]);
        let cost = cost("1", &victim);
        assert_eq!((&cost["counted"], &cost["note"]), (&"all".into(), &Value::Null), "{cost}");
        if cost["waits"]["copies"].is_null() {
            skip!("before Linux 6.0 copies at writes are not counted");
        }
        let (count, time) =
            (number(&cost, "/waits/copies/count"), number(&cost, "/waits/copies/nanoseconds"));
        // Each writes to 2048 pages a round.
        assert!(count > 2048 && time > count, "{cost}");
        assert!(time < 1_000_000 * number(&cost, "/milliseconds"), "one thread alone waits: {cost}");
        assert!(number(&cost, "/process/minor_faults") >= count / 2, "{cost}");
        let shown = inspect(&["500ms", &victim.pid()]).bare();
        assert!(shown.stdout.lines().count() < 24, "{}", shown.stdout);
        assert!(shown.stdout.contains("  copies at writes  "), "{}", shown.stdout);
        if cost["verdict"] == "none" {
            assert!(
                cost["says"].as_str().is_some_and(|says| says.contains("for copies at writes")),
                "{cost}"
            );
        }
        let advice = Cmd::new([HUGELIFT, "advise", "--for", "500ms", "--json", &victim.pid()]).bare();
        let advice: Value = serde_json::from_str(&advice.stdout).expect("JSON");
        fits("advise", &advice);
        assert!(number(&advice, "/cost/waits/copies/count") > 0, "{advice}");
    }
}

/// The limit of a control group makes its process free pages itself.
#[test]
fn issue_31_9_direct_reclaim_is_seen() {
    need_root!();
    need!("dd");
    let _counting = match Counting::set("1") {
        Ok(counting) => counting,
        Err(why) => skip!("{why}"),
    };
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    group.limit(&["memory.max", "memory.limit_in_bytes"], "33554432").expect("a limit");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    // It has no blocks. Its pages are in the page cache all the same.
    fs::File::create(&file).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    let line = format!("read go; exec dd if={} of=/dev/null bs=1M 2>&1", file.display());
    let mut victim = Victim::start(&["/bin/sh", "-c", &line]);
    group.take(victim.child.id());
    victim.input.write_all(b"go\n").expect("it reads");
    std::thread::sleep(Duration::from_millis(300));
    let cost = cost("1", &victim);
    drop(victim);
    assert!(
        number(&cost, "/waits/reclaim/count") > 0 && number(&cost, "/waits/reclaim/nanoseconds") > 0,
        "{cost}"
    );
    assert!(cost["says"].as_str().is_some_and(|says| says.contains(" for direct reclaim")), "{cost}");
    assert!(["stalls", "hardly"].map(Value::from).contains(&cost["verdict"]), "{cost}");
}

/// Returns how many huge pages are free.
fn free_huge_pages() -> u64 {
    let text = fs::read_to_string("/proc/buddyinfo").expect("buddyinfo");
    let of_zone = |line: &str| {
        let counts: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // Blocks of 2^9 pages and of 2^10.
        counts.iter().skip(9).zip([1, 2]).map(|(count, pages)| count * pages).sum::<u64>()
    };
    text.lines().map(|line| line.split_once("zone").map_or(0, |(_, zone)| of_zone(zone))).sum()
}

fn pool() -> u64 {
    fs::read_to_string(POOL).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the cost of a victim that asks for 128 huge pages, when there are hardly any.
fn of_fragments() -> Value {
    let _pool = Settings::keep(&[POOL]).expect("the pool");
    let program = plain("fragments").build();
    let mut victim = Victim::start(&[program.to_str().expect("UTF-8"), "1024"]);
    let began = Instant::now();
    // Memory that the kernel has not initialized yet shows only when the rest is taken.
    let mut before = u64::MAX;
    while free_huge_pages() > 64 && pool() != before && began.elapsed() < Duration::from_secs(20) {
        before = pool();
        fs::write(POOL, (before + free_huge_pages().saturating_sub(8)).to_string()).expect("the pool");
    }
    let taken = Instant::now();
    let pid = victim.pid();
    let watch = std::thread::spawn(move || inspect(&["1s", "--json", &pid]).bare());
    std::thread::sleep(Duration::from_millis(200));
    victim.input.write_all(b"go\n").expect("it reads");
    let cost = checked(&watch.join().expect("a cost"));
    println!("all huge pages were taken for {:?}", taken.elapsed());
    cost
}

/// All free huge pages are taken into the pool for two seconds, so that the victim has to wait for compaction. What is left
/// for others is fragmented: half of what the victim holds.
#[test]
#[ignore = "long: takes all huge pages that are free for two seconds"]
fn issue_31_9_waits_for_compaction_are_seen() {
    need_root!();
    let _counting = match Counting::set("1") {
        Ok(counting) => counting,
        Err(why) => skip!("{why}"),
    };
    if !fs::read_to_string("/proc/vmstat").expect("vmstat").contains("compact_stall")
        || !Path::new(POOL).exists()
    {
        skip!("this kernel has no compaction or no pool of huge pages");
    }
    // What another program gives back just then is huge pages that the victim gets at once.
    let is_seen = |cost: &Value| number(cost, "/waits/compaction/count") > 0;
    let cost = (0..5).map(|_| of_fragments()).find(is_seen).expect("compaction in one of five trials");
    assert!(number(&cost, "/machine/compact_stall") > 0, "{cost}");
    assert!(number(&cost, "/waits/compaction/nanoseconds") > 0, "{cost}");
    assert!(["stalls", "hardly"].map(Value::from).contains(&cost["verdict"]), "{cost}");
    assert!(cost["says"].as_str().is_some_and(|says| says.contains(" for compaction")), "{cost}");
    // What is zeroed is never more than what it got.
    let huge = number(&cost, "/process/huge_bytes") - number(&cost, "/process/huge_bytes_before");
    assert!(number(&cost, "/process/zeroed_bytes_at_most") >= huge, "{cost}");
}

#[test]
fn issue_31_9_what_is_not_counted_is_no_zero() {
    need_root!();
    let counting = match Counting::set("0") {
        Ok(counting) => counting,
        Err(why) => skip!("{why}"),
    };
    let victim = copied(&["60"]);
    let off = cost("500ms", &victim);
    assert_eq!((&off["counted"], &off["waits"]), (&"no".into(), &Value::Null), "{off}");
    let note = |cost: &Value| cost["note"].as_str().unwrap_or_default().to_string();
    assert!(note(&off).contains("'sysctl kernel.task_delayacct=1'"), "{off}");
    // What was started before it was switched on is not counted.
    fs::write(SETTING, "1").expect("the setting");
    let old = cost("500ms", &victim);
    assert_eq!((&old["counted"], &old["waits"]), (&"no".into(), &Value::Null), "{old}");
    assert!(note(&old).contains("start it anew"), "{old}");
    for cost in [&off, &old] {
        // If nobody on the machine stalled, this process did not either.
        let stalled = number(cost, "/machine/compact_stall") + number(cost, "/machine/allocstall");
        assert_eq!(cost["verdict"], if stalled == 0 { "none" } else { "cannot-tell" }, "{cost}");
    }
    drop(counting);
}

#[test]
fn issue_31_9_who_may_not_ask_is_told_why() {
    need_root!();
    need!("setpriv");
    let _counting = match Counting::set("1") {
        Ok(counting) => counting,
        Err(why) => skip!("{why}"),
    };
    let victim = copied(&["60"]);
    let dir = open_dir(&[]);
    let copy = dir.path().join(Path::new(HUGELIFT).file_name().expect("a name"));
    let copy = copy.to_str().expect("UTF-8");
    let words =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy, "inspect", "--cost", "500ms"];
    let cost = checked(&Cmd::new(words).args(["--json", &victim.pid()]).bare());
    assert!(cost["note"].as_str().is_some_and(|note| note.contains("CAP_NET_ADMIN")), "{cost}");
    assert_eq!((&cost["waits"], &cost["process"]["huge_bytes"]), (&Value::Null, &Value::Null), "{cost}");
    assert!(number(&cost, "/process/minor_faults") > 0, "its faults are no secret: {cost}");
}

#[test]
fn issue_31_9_a_process_that_ends_or_sleeps() {
    let asleep = Victim::start(&["/bin/sh", "-c", "read line"]);
    std::thread::sleep(Duration::from_millis(200));
    let cost = cost("500ms", &asleep);
    assert_eq!((&cost["verdict"], &cost["ended"]), (&"cannot-tell".into(), &false.into()), "{cost}");
    assert!(
        cost["says"].as_str().is_some_and(|says| says.contains("ask again while it has work to do")),
        "{cost}"
    );

    let short = copied(&["6"]);
    let began = Instant::now();
    let ended = checked(&inspect(&["1m", "--json", &short.pid()]).bare());
    assert!(ended["ended"] == true && began.elapsed() < Duration::from_secs(30), "{ended}");
    assert!(number(&ended, "/process/minor_faults") > 1000, "what it did until then is known: {ended}");
    let shown = inspect(&["1s", &short.pid()]).bare();
    assert!(refusal(&shown).contains("has ended"), "it is a zombie now: {shown:?}");
}

#[test]
fn issue_31_9_what_has_no_cost() {
    let gone = {
        let mut child = Command::new("true").spawn().expect("true");
        child.wait().expect("its end");
        child.id().to_string()
    };
    assert!(refusal(&inspect(&["1", &gone]).bare()).contains(&gone));
    assert!(refusal(&inspect(&["1", "true"]).bare()).starts_with("--cost watches a process: "));
    let both = inspect(&["1", "--heat", "1", "1"]).bare();
    assert!(both.end == End::Code(125) && both.stderr.contains("--heat"), "{both:?}");
    let is_kernel =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "kthreadd\n");
    if let Some(pid) = ["2"].iter().find(|pid| is_kernel(pid)) {
        let line = inspect(&["1", pid]).bare();
        assert_eq!(
            refusal(&line),
            format!("process {pid} is a kernel thread, which has no memory of its own")
        );
    }
}
