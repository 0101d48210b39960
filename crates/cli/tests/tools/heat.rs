// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift inspect --heat` and `hugelift advise`: a program whose code in use is known, and processes that
//! cannot be sampled.

use crate::common::favoured::Favoured;
use crate::common::{Cmd, End, HUGELIFT, Outcome, fits, open_dir, plain};
use crate::{need, need_root};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PAGE: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

fn program() -> PathBuf {
    plain("pages").flags(&["-fno-toplevel-reorder"]).build()
}

/// Returns the same program, loaded at a multiple of a huge page: its 3.9 MB of code hold a whole one. At a random place they hold
/// none in 4 % of all starts, and cannot be lifted then.
fn with_a_whole_huge_page() -> PathBuf {
    plain("pages").flags(&["-fno-toplevel-reorder", "-Wl,-z,max-page-size=0x200000"]).build()
}

/// The program with pages of code, killed when it is dropped.
pub struct Pages {
    child: Child,
    /// The addresses of its hot functions.
    pub start: u64,
    pub end: u64,
}

impl Pages {
    fn start(args: &[&str]) -> Pages {
        Pages::of(&program(), args)
    }

    /// Starts a program that was built from `pages.c`.
    pub fn of(program: &Path, args: &[&str]) -> Pages {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout).read_line(&mut line).expect("its first line");
        let address = |n: usize| {
            let word = line.split_whitespace().nth(n).and_then(|word| word.strip_prefix("0x"));
            u64::from_str_radix(word.unwrap_or_else(|| panic!("{line}")), 16).expect("an address")
        };
        Pages { start: address(1), end: address(2), child }
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Samples it until there are enough samples. The tests may have little of the machine, and the sampler takes samples
    /// more rarely where they cost more: on two CPUs with six busy threads 600 threads gave 396 in 30 s.
    fn heat(&self) -> Value {
        let mut heat = Value::Null;
        for seconds in ["5", "15", "30", "60", "120"] {
            heat = report(&["--heat", seconds, &self.pid()])["heat"].clone();
            if heat["samples"].as_u64() >= Some(800) {
                break;
            }
        }
        heat
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn advise(args: &[&str]) -> Cmd {
    Cmd::new([HUGELIFT, "advise"]).args(args)
}

/// Returns the advice on a process, asked until there are enough samples or often enough.
fn advice(pages: &Pages) -> Value {
    let turn = Favoured::take();
    turn.favour(pages.child.id());
    for _ in 0..4 {
        let outcome = advise(&["--for", "15s", "--json", &pages.pid()]).bare();
        assert!(outcome.end == End::Code(0) && outcome.stderr.is_empty(), "{outcome:?}");
        let advice: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        fits("advise", &advice);
        let says = advice["says"].as_str().expect("a sentence");
        if !says.contains("too little CPU time") {
            return advice;
        }
    }
    panic!("this machine is too busy for 1000 samples");
}

fn inspect(args: &[&str]) -> Cmd {
    Cmd::new([HUGELIFT, "inspect"]).args(args)
}

/// Returns the report, checked against its schema and by its sums.
fn report(args: &[&str]) -> Value {
    let outcome = inspect(args).arg("--json").bare();
    assert!(outcome.end == End::Code(0) && outcome.stderr.is_empty(), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("report", &report);
    let heat = &report["heat"];
    let objects: u64 = list(heat, "objects").iter().map(|object| number(object, "samples")).sum();
    let elsewhere = number(heat, "jit_samples") + number(heat, "other_samples");
    let kernel = heat["kernel_samples"].as_u64().unwrap_or(0);
    assert_eq!(objects + elsewhere + kernel, number(heat, "samples"), "{heat}");
    for object in list(heat, "objects") {
        let spans: u64 = list(object, "spans").iter().map(|span| number(span, "samples")).sum();
        assert_eq!(spans, number(object, "samples"), "{object}");
    }
    report
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list '{name}' in {value}"))
}

/// Returns the one line with which hugelift refuses.
fn refusal(outcome: &Outcome) -> &str {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(outcome.end == End::Code(125) && lines.len() == 1 && outcome.stdout.is_empty(), "{outcome:?}");
    lines[0].strip_prefix("hugelift: ").expect("the prefix of hugelift's messages")
}

/// Checks that 64 hot functions are found in the program, and nothing else.
fn check_64(pages: &Pages, heat: &Value) {
    assert!(number(heat, "samples") >= 800, "{heat}");
    let first = &list(heat, "objects")[0];
    assert_eq!(first["path"], program().to_str().expect("UTF-8"));
    assert!(number(first, "samples") * 100 >= number(heat, "samples") * 80, "{heat}");
    // Their caller is on a page of its own, and so is the stub by which it calls libc: the stub has one sample in about
    // 60,000.
    let seen = number(&first["pages"], "seen");
    assert!((62..=66).contains(&seen), "{first}");
    assert!((62..=75).contains(&number(&first["pages"], "estimate")), "{first}");
    assert!(number(&first["pages"], "high") >= 64, "{first}");
    assert!(number(first, "huge_pages") >= 2, "{first}");
    // 99 % of the samples are where those functions are: the caller has few.
    let of_hot = |span: &&Value| {
        let start = number(span, "start");
        start < pages.end && start + HUGE > pages.start
    };
    let hot: u64 = list(first, "spans").iter().filter(of_hot).map(|span| number(span, "samples")).sum();
    assert!(hot * 100 >= number(first, "samples") * 95, "{first}");
    assert!(number(first, "hot_huge_pages") <= 3, "{first}");
}

#[test]
fn issue_31_heat_finds_the_hot_pages_and_only_them() {
    let pages = Pages::start(&["64"]);
    assert_eq!(pages.end - pages.start, 64 * PAGE);
    let heat = pages.heat();
    check_64(&pages, &heat);
    assert_eq!((&heat["threads"], &heat["sampled_threads"]), (&1.into(), &1.into()));
    assert_eq!((&heat["ended"], number(&heat, "jit_samples")), (&false.into(), 0));

    let shown = inspect(&["--heat", "500ms", &pages.pid()]).bare();
    assert_eq!((shown.end, &*shown.stderr), (End::Code(0), ""));
    for want in
        ["code in use: ", " of CPU time in 0.5 s", " % of the samples are in ", "; pages of 4 kB in use: "]
    {
        assert!(shown.stdout.contains(want), "{want}: {}", shown.stdout);
    }
}

/// A copy has the samples of the object whose code it holds, also after the lift of a part of it.
#[test]
fn issue_31_lifted_code_is_the_objects() {
    need_root!();
    let pages = Pages::start(&["64"]);
    for backing in ["thp", "shared"] {
        let lifted = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", backing, &pages.pid()]).bare();
        assert_eq!(lifted.end, End::Code(0), "{lifted:?}");
        let heat = pages.heat();
        check_64(&pages, &heat);
        assert_eq!(number(&heat, "jit_samples"), 0, "{heat}");
        let restored = Cmd::new([HUGELIFT, "restore", &pages.pid()]).bare();
        assert_eq!(restored.end, End::Code(0), "{restored:?}");
    }
}

#[test]
fn issue_31_code_in_no_file_is_counted_as_such() {
    let heat = Pages::start(&["1", "jit"]).heat();
    let (jit, samples) = (number(&heat, "jit_samples"), number(&heat, "samples"));
    assert!(samples >= 100 && jit * 100 >= samples * 60, "{heat}");
}

#[test]
fn issue_31_a_process_that_sleeps() {
    let asleep = Pages::start(&["0"]);
    let heat = report(&["--heat", "500ms", &asleep.pid()])["heat"].clone();
    assert_eq!((number(&heat, "samples"), list(&heat, "objects").len()), (0, 0));
    let shown = inspect(&["--heat", "300ms", &asleep.pid()]).bare();
    assert!(shown.stdout.contains("code in use: no samples in 0.3 s: the process slept\n"), "{shown:?}");
}

#[test]
fn issue_31_a_process_that_ends_meanwhile() {
    let short = Pages::start(&["64", "6"]);
    let heat = report(&["--heat", "1m", &short.pid()])["heat"].clone();
    assert_eq!(heat["ended"], true, "{heat}");
    assert!(number(&heat, "milliseconds") < 30_000, "{heat}");
}

#[test]
fn issue_31_very_many_threads() {
    // The first thread is the busy one.
    let many = Pages::start(&["64", "10000", "threads"]);
    let heat = many.heat();
    check_64(&many, &heat);
    assert_eq!((number(&heat, "threads"), number(&heat, "sampled_threads")), (10_001, 256));
    let shown = inspect(&["--heat", "500ms", &many.pid()]).bare();
    assert!(
        shown.stdout.contains("256 of 10 001 threads were sampled: those that had used the most"),
        "{shown:?}"
    );
}

#[test]
fn issue_31_who_may_not_sample_is_told_why() {
    need_root!();
    need!("setpriv");
    let pages = Pages::start(&["64"]);
    let dir = open_dir(&[]);
    let copy = dir.path().join(Path::new(HUGELIFT).file_name().expect("a name"));
    let copy = copy.to_str().expect("UTF-8");
    let words =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy, "inspect", "--heat", "1"];
    let line = Cmd::new(words).arg(pages.pid()).bare();
    assert!(refusal(&line).contains(&pages.pid()), "{line:?}");

    // Its own process, but a filter forbids the system call.
    let deny = plain("deny").build();
    let number = nix::libc::SYS_perf_event_open.to_string();
    for (errno, want) in [("1", "EPERM: kernel.perf_event_paranoid is "), ("38", "ENOSYS: a seccomp filter")]
    {
        let filtered = Cmd::new([deny.to_str().expect("UTF-8"), errno, &number, &number, "20000", HUGELIFT])
            .args(["inspect", "--heat", "1", &pages.pid()])
            .env("DENY_SHOW", "1")
            .bare();
        let why = format!("hugelift: cannot sample process {}: perf_event_open: {want}", pages.pid());
        let paranoid =
            filtered.stderr.starts_with("hugelift: ") && filtered.stderr.contains("perf_event_paranoid is");
        assert!(filtered.stderr.starts_with(&why) || (errno == "1" && paranoid), "{filtered:?}");
        assert!(filtered.stdout.starts_with(&format!("{number} 125 0 ")), "{filtered:?}");
        assert_eq!(filtered.stderr.lines().count(), 1, "{filtered:?}");
    }
}

#[test]
fn issue_31_heat_is_of_a_process() {
    let line = inspect(&["--heat", "1", "true"]).bare();
    assert_eq!(refusal(&line), "--heat samples a process: give its id in place of a program");
    let line = inspect(&["--heat", "0", "1"]).bare();
    assert!(line.end == End::Code(125) && line.stderr.contains("--heat"), "{line:?}");
}

/// The verdict follows from the number of hot pages and the TLBs of this CPU, and is never a gain.
#[test]
fn issue_31_advice_knows_what_the_tlb_holds() {
    let few = advice(&Pages::start(&["20"]));
    let many = advice(&Pages::of(&with_a_whole_huge_page(), &["1000"]));
    assert_eq!(few["entries"], many["entries"]);
    match few["entries"].as_u64() {
        None => {
            assert_eq!((&few["verdict"], &many["verdict"]), (&"cannot-tell".into(), &"cannot-tell".into()))
        }
        Some(entries) => {
            assert_eq!(few["verdict"] == "nothing", entries >= 30, "{few}");
            assert!(many["verdict"] != "nothing" || entries >= 1000, "{many}");
            // Of 1000 pages in 1000 samples a third is in none: the interval is wide.
            assert_eq!(many["verdict"] == "probably", entries <= 700, "{many}");
        }
    }
    let first = |advice: &Value| advice["commands"][0]["line"].as_str().expect("a command").to_string();
    if many["verdict"] == "probably" {
        assert!(first(&many).starts_with("hugelift compare --pid "), "{many}");
    }
    if few["verdict"] == "nothing" {
        assert!(!few["commands"].to_string().contains("attach"), "{few}");
    }
}

#[test]
fn issue_31_advice_on_one_screen() {
    let asleep = Pages::start(&["0"]);
    let shown = advise(&["--for", "300ms", &asleep.pid()]).bare();
    assert_eq!((shown.end, &*shown.stderr), (End::Code(0), ""));
    let why = "Cannot tell: it has used too little CPU time in 0.3 s (0 samples, of 1000 at least)";
    assert!(shown.stdout.starts_with(why), "{}", shown.stdout);
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert!(lines.len() < 24, "{}", shown.stdout);
    for want in ["code in use ", "TLBs for code ", "cost of a lift ", "  hugelift compare --pid "] {
        assert!(lines.iter().any(|line| line.starts_with(want)), "{want}: {}", shown.stdout);
    }
    let too_long = advise(&["--for", "16s", &asleep.pid()]).bare();
    assert!(refusal(&too_long).contains("15"), "{too_long:?}");
    let name = advise(&["mariadbd"]).bare();
    assert!(refusal(&name).contains("pidof mariadbd"), "{name:?}");
}

/// The TLBs are those of the other CPU, and the text says so.
#[test]
fn issue_34_1_advice_for_another_cpu() {
    let asleep = Pages::start(&["0"]);
    let shown = advise(&["--on", "skylake-sp", "--for", "300ms", &asleep.pid()]).bare();
    assert_eq!((shown.end, &*shown.stderr), (End::Code(0), ""));
    for want in [
        "This is by the TLBs of Intel Skylake-SP and not of the CPU here. ",
        "pages of 4 kB: 128, then 1536 shared with data; pages of 2 MB: 8, then 1536 shared with data\n",
    ] {
        assert!(shown.stdout.contains(want), "{want}: {}", shown.stdout);
    }
    let json = advise(&["--on", "zen-5", "--json", "--for", "300ms", &asleep.pid()]).bare();
    let advice: Value = serde_json::from_str(&json.stdout).expect("JSON");
    fits("advise", &advice);
    assert_eq!((number(&advice, "first_entries"), number(&advice, "entries")), (64, 2048));
    assert_eq!((&advice["on"]["name"], &advice["on"]["title"]), (&"zen-5".into(), &"AMD Zen 5".into()));
    let unknown = advise(&["--on", "zen-9", &asleep.pid()]).bare();
    assert!(refusal(&unknown).contains("'zen-9' is not one of skylake-sp, "), "{unknown:?}");
}

/// The command's output, status and signal are its own, and the advice goes to stderr.
#[test]
fn issue_31_5_advice_on_a_command_that_it_starts() {
    let program = program();
    let program = program.to_str().expect("UTF-8");
    let text = advise(&["--for", "500ms", "--", program, "64", "2"]).bare();
    assert_eq!(text.end, End::Signal(nix::libc::SIGALRM), "{text:?}");
    assert!(text.stdout.starts_with("ready 0x") && text.stdout.lines().count() == 1, "{text:?}");
    assert!(text.stderr.contains("code in use ") && text.stderr.contains("TLBs for code "), "{text:?}");
    let json = advise(&["--for", "500ms", "--json", "--", program, "64", "2"]).bare();
    let advice: Value = serde_json::from_str(&json.stderr).expect("JSON");
    fits("advise", &advice);
    assert_eq!(advice["program"], program, "{advice}");

    let short = advise(&["--", "sh", "-c", "echo done; exit 7"]).bare();
    assert_eq!((short.end, &*short.stdout, short.stderr.lines().count()), (End::Code(7), "done\n", 1));
    assert!(short.stderr.contains("too soon to be sampled"), "{short:?}");
    let missing = advise(&["--", "no-such-program"]).bare();
    assert_eq!((missing.end, missing.stderr.lines().count()), (End::Code(127), 1), "{missing:?}");
    let both = advise(&["1", "--", "true"]).bare();
    assert!(both.end == End::Code(125) && both.stdout.is_empty(), "{both:?}");
}

/// The map has the samples of each huge page, as the report has them.
#[test]
fn issue_31_3_the_map_is_hot_where_the_samples_are() {
    let pages = Pages::start(&["64"]);
    let shown = inspect(&["--heat", "2", "--html", "-", &pages.pid()]).bare();
    assert_eq!((shown.end, &*shown.stderr), (End::Code(0), ""));
    let page = &shown.stdout;
    let (_, json) = page.split_once("id=\"report\">").expect("the report");
    let report: Value = serde_json::from_str(json.split("</script>").next().expect("its end")).expect("JSON");
    fits("report", &report);
    let first = &list(&report["heat"], "objects")[0];
    let (hot, all) = (number(first, "hot_huge_pages"), number(first, "huge_pages"));
    assert!(page.contains(&format!("99 % of the samples are in {hot} huge pages of {all}")), "{first}");
    for object in list(&report["heat"], "objects").iter().filter(|object| object["path"] == first["path"]) {
        for span in list(object, "spans") {
            // Numbers of five digits have a space in them.
            let samples = number(span, "samples");
            assert!(samples > 999 || page.contains(&format!("\n{samples} samples, ")), "{span}");
        }
    }
    // One is in the legend.
    assert!(page.matches("class=\"h-8\"").count() >= 2, "the hottest huge page has the highest bar");
}
