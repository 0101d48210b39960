// SPDX-License-Identifier: Apache-2.0
//! Backing `pagecache`: a position-independent program whose page cache is in huge folios is
//! moved, before it runs, to where they can be mapped. It cannot tell; nor can a debugger.

use crate::common::cache::text_of;
use crate::common::guard::Exclusive;
use crate::common::mounts::{kernel_has, mount, with_own_mounts};
use crate::common::run::same_as;
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, Primed, fat, plain};
use crate::{need, need_root, skip};
use hugelift_measure::uprobe::Uprobe;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const OPTIONS: &[&str] = &["--backing", "pagecache"];
const HUGE: u64 = 2 << 20;

/// Evaluates to a primed copy of a victim, or skips the test.
macro_rules! primed {
    ($victim:expr) => {
        match Primed::new(($victim).as_ref()) {
            Ok(primed) => primed,
            Err(why) => skip!("{why}"),
        }
    };
}

fn c() -> PathBuf {
    fat("moved").flags(&["-rdynamic"]).build()
}

fn cpp() -> PathBuf {
    fat("moved").compiler("c++").flags(&["-x", "c++", "-rdynamic"]).build()
}

/// Returns all lines except those that are random at each start.
fn stable(text: &str) -> String {
    text.lines()
        .filter(|l| !l.starts_with("base ") && !l.starts_with("heap 0x"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn number(outcome: &Outcome, name: &str) -> u64 {
    let word = outcome.stdout.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(" 0x"));
    let word = word.unwrap_or_else(|| panic!("no {name}: {outcome:?}"));
    u64::from_str_radix(word.trim(), 16).expect("a number")
}

fn is_random() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|t| t.trim() == "2")
}

/// Asserts that every whole huge page of the running program's code is mapped by a huge entry, from
/// its file.
fn assert_huge(pid: u32, program: &Path) {
    for usage in text_of(pid, program) {
        let range = usage.mapping.range;
        assert_eq!(range.start.0 % HUGE, usage.mapping.offset % HUGE, "not congruent: {usage:?}");
        let first = range.start.0.next_multiple_of(HUGE);
        let whole = (range.end.0 & !(HUGE - 1)).saturating_sub(first);
        assert!(whole > 0 && usage.file_huge == whole, "{usage:?}");
    }
}

#[test]
fn a_moved_program_cannot_tell() {
    for victim in [c(), cpp(), fat("moved").flags(&["-rdynamic", "-Wl,-z,noseparate-code"]).build()] {
        let primed = primed!(victim);
        let cmd = Cmd::new([primed.path()]);
        let bare = cmd.bare();
        assert!(bare.stdout.contains("wrong 0\n") && !bare.stdout.contains("differs"), "{bare:?}");
        for _ in 0..5 {
            let moved = same_as(&bare, &cmd, OPTIONS, stable);
            assert_eq!(number(&moved, "base") % HUGE, 0, "{moved:?}");
        }
        for frame in ["third", "second", "first"] {
            assert!(bare.stdout.contains(&format!("frame {frame}\n")), "{bare:?}");
        }
    }
}

#[test]
fn what_is_moved_is_huge() {
    let primed = primed!(c());
    let held = Held::start(&Cmd::new([primed.path()]).arg("hold"), Some(OPTIONS), primed.path());
    assert_huge(held.pid(), primed.path());
    assert!(held.is_untraced());
    // The file that was mapped again is closed.
    let files = std::fs::read_dir(format!("/proc/{}/fd", held.pid())).unwrap();
    let open: Vec<PathBuf> = files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap()).collect();
    assert!(open.len() >= 3 && !open.iter().any(|path| path == primed.path()), "{open:?}");
    let outcome = held.finish();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
}

/// A program that goes on from its exec stop maps its huge folios itself, when it touches them.
#[test]
fn what_is_moved_is_huge_without_a_lift() {
    let primed = primed!(c());
    let cmd = Cmd::new([primed.path()]).arg("hold").under([HUGELIFT, "run", "--"]);
    let held = Held::start(&cmd, None, primed.path());
    assert_huge(held.pid(), primed.path());
    let outcome = held.finish();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
}

/// `auto` takes the page cache where it is in huge folios, and reports what smaps shows.
#[test]
fn auto_prefers_it() {
    let primed = primed!(c());
    let outcome = Cmd::new([primed.path()]).lifted(&["-vv"]);
    assert_eq!(number(&outcome, "base") % HUGE, 0, "{outcome:?}");
    assert!(outcome.own_lines()[0].contains("text 4 MB of 4 MB"), "{outcome:?}");
    assert!(outcome.stderr.contains("pagecache"), "{outcome:?}");
}

/// `--dry-run` plans the same without a start.
#[test]
fn a_dry_run_sees_it() {
    let primed = primed!(c());
    let outcome = Cmd::new([primed.path()]).lifted(&["--dry-run"]);
    assert!(
        outcome.stdout.contains("of text of ") && outcome.stdout.contains("pagecache pages"),
        "{outcome:?}"
    );
    let small = Primed::small(&c());
    let outcome = Cmd::new([small.path()]).lifted(&["--dry-run"]);
    assert!(!outcome.stdout.contains("pagecache pages"), "{outcome:?}");
}

/// A program that is linked for a fixed address already lies where it should, and so does a static
/// position-independent program as a rule.
#[test]
fn other_kinds_of_executable() {
    for flags in [&["-no-pie", "-rdynamic"][..], &["-static"], &["-static-pie"]] {
        looks_the_same(&fat("moved").flags(flags).build(), OPTIONS, 0);
    }
}

/// lld lets address and offset differ, by 4 kB more for each segment. The address fits the text.
#[test]
fn skewed_segments() {
    let Some((clang, lld)) = crate::common::clang_and_lld() else { skip!("needs clang and lld") };
    let lld = format!("--ld-path={}", lld.display());
    for kind in ["-pie", "-static-pie"] {
        let victim = fat("moved").compiler(clang).flags(&[kind, "-rdynamic", &lld]).build();
        looks_the_same(&victim, &["--backing", "pagecache", "--parts", "text"], HUGE - 4096);
    }
}

/// Before the start hugelift primes what fits the new address. If what does not fit was requested,
/// hugelift reports it with the command that helps.
#[test]
fn skewed_segments_are_primed() {
    let Some((clang, lld)) = crate::common::clang_and_lld() else { skip!("needs clang and lld") };
    let lld = format!("--ld-path={}", lld.display());
    let victim = fat("moved").compiler(clang).flags(&["-pie", "-rdynamic", &lld]).build();
    drop(primed!(&victim));
    let small = Primed::small(&victim);
    let cmd = Cmd::new([small.path()]).arg("hold");
    let held = Held::start(&cmd, Some(&["--backing", "pagecache", "--parts", "text"]), small.path());
    assert_huge(held.pid(), small.path());
    let outcome = held.finish();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""));
    let both = Cmd::new([small.path()]).lifted(OPTIONS);
    let lines = both.own_lines();
    assert!(matches!(lines[..], [line] if line.contains("differ") && line.contains("--replace")), "{both:?}");
}

/// Asserts that the victim prints the same with these options, that it lies at `place` within a
/// huge page, and that its code is huge.
fn looks_the_same(victim: &Path, options: &[&str], place: u64) {
    let primed = primed!(victim);
    let cmd = Cmd::new([primed.path()]);
    let bare = cmd.bare();
    for _ in 0..3 {
        let moved = same_as(&bare, &cmd, options, stable);
        assert_eq!(number(&moved, "base") % HUGE, place, "{moved:?}");
    }
    let held = Held::start(&cmd.arg("hold"), Some(options), primed.path());
    assert_huge(held.pid(), primed.path());
}

/// As pid 1 and as a subreaper, where the helper is a child that must be waited for.
#[test]
fn where_orphans_come_back() {
    need_root!();
    need!("unshare");
    for flags in [&["-pie"][..], &["-static-pie"]] {
        let primed = primed!(fat("moved").flags(flags).build());
        let setup = plain("setup").build().display().to_string();
        for words in [&["unshare", "--pid", "--fork", "--mount-proc"][..], &[&setup, "subreaper", "--"]] {
            let cmd = Cmd::new([primed.path()]).under(words);
            let moved = same_as(&cmd.bare(), &cmd, OPTIONS, stable);
            assert_eq!(number(&moved, "base") % HUGE, 0, "{moved:?}");
        }
    }
}

/// Starts, and the fewest different bases of them: of 19 random bits two are seldom the same.
const STARTS: usize = 80;
const FEWEST: usize = 76;

/// All 19 random bits above a huge page vary from start to start, and so do the addresses.
#[test]
fn the_base_is_random() {
    if !is_random() {
        skip!("kernel.randomize_va_space is not 2");
    }
    // Another test that takes much memory would push the primed file out of the page cache.
    let _alone = Exclusive::take().unwrap();
    let primed = primed!(c());
    // If a start was not moved, the log says why.
    let cmd = Cmd::new([primed.path()]).args(["count", "0"]).env("HUGELIFT_LOG", "debug");
    let outcomes: Vec<Outcome> = (0..STARTS).map(|_| cmd.lifted(OPTIONS)).collect();
    let placed = |outcome: &Outcome| (number(outcome, "base"), number(outcome, "heap"));
    for outcome in &outcomes {
        assert_eq!(placed(outcome).0 % HUGE, 0, "{outcome:?}");
    }
    let runs: Vec<(u64, u64)> = outcomes.iter().map(placed).collect();
    let bases: BTreeSet<u64> = runs.iter().map(|r| r.0).collect();
    let is_there_twice = |base| runs.iter().filter(|run| run.0 == base).count() > 1;
    let twice: Vec<&Outcome> = outcomes.iter().filter(|outcome| is_there_twice(placed(outcome).0)).collect();
    assert!(
        bases.len() >= FEWEST,
        "{} different addresses in {STARTS} starts; the same: {twice:#?}",
        bases.len()
    );
    // A bit that is the same in all of them is not random.
    let changing = bases.iter().fold(0, |bits, base| bits | (base ^ runs[0].0));
    let bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits").expect("mmap_rnd_bits");
    let top = 12 + bits.trim().parse::<u32>().expect("a number");
    for bit in 21..top {
        assert!(changing & (1 << bit) != 0, "bit {bit} is always the same: {bases:x?}");
    }
    // Nor does one address reveal the other.
    let gaps: BTreeSet<u64> = runs.iter().map(|(base, heap)| heap.wrapping_sub(*base)).collect();
    assert!(gaps.len() >= FEWEST, "{} different distances of the heap in {STARTS} starts", gaps.len());
}

#[test]
fn without_aslr_it_is_the_same_place() {
    need!("setarch");
    let primed = primed!(c());
    let cmd = Cmd::new([primed.path()]).under(["setarch", "-R"]);
    let bare = cmd.bare();
    let places: BTreeSet<(u64, u64)> = (0..3)
        .map(|_| {
            let moved = same_as(&bare, &cmd, OPTIONS, stable);
            // The heap is as far behind the program as in a bare run.
            let gap = |o: &Outcome| number(o, "heap") - number(o, "base");
            assert_eq!(gap(&moved), gap(&bare));
            (number(&moved, "base"), number(&moved, "heap"))
        })
        .collect();
    assert_eq!(places.len(), 1, "{places:x?}");
    assert_eq!(places.first().expect("one").0 % HUGE, 0);
}

/// The address space has no space for a second image: the program runs where it is, and a line says
/// so.
#[test]
fn a_move_that_fails_leaves_it() {
    need!("prlimit");
    let primed = primed!(fat("moved").flags(&["-rdynamic", "-DBSS=2000000000"]).build());
    let cmd = Cmd::new([primed.path()]).under(["prlimit", "--as=3000000000"]);
    let bare = cmd.bare();
    assert_eq!(bare.end, End::Code(0), "{bare:?}");
    let plainly = cmd.lifted(OPTIONS);
    assert_eq!((plainly.end, stable(&plainly.stdout)), (End::Code(0), stable(&bare.stdout)));
    let [line] = plainly.own_lines()[..] else { panic!("{plainly:?}") };
    assert!(line.contains("not lifted: pagecache: mmap") && line.contains("ulimit -v"), "{line}");
}

/// A program that is not in use is primed before its start.
#[test]
fn a_cold_program_is_primed_first() {
    // Skips the test if the file system has no large folios.
    drop(primed!(c()));
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let copy = dir.path().join("cold");
    crate::common::cache::copy(c(), &copy);
    let held = Held::start(&Cmd::new([&copy]).arg("hold"), Some(OPTIONS), &copy);
    assert_huge(held.pid(), &copy);
    assert_eq!(held.finish().stderr, "");
}

#[test]
fn a_program_that_is_not_primed_is_left() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let copy = dir.path().join("cold");
    crate::common::cache::copy(c(), &copy);
    // In use, so that it cannot be primed.
    let held = Held::start(&Cmd::new([&copy]).arg("hold"), None, &copy);
    if text_of(held.pid(), &copy).iter().any(|u| u.file_huge > 0) {
        skip!("a file that was just written is in huge folios here");
    }
    let outcome = Cmd::new([&copy]).lifted(OPTIONS);
    assert_eq!(outcome.end, End::Code(0));
    let [line] = outcome.own_lines()[..] else { panic!("{outcome:?}") };
    assert!(line.contains("not lifted: ") && line.contains("hugelift prime"), "{line}");
    assert!(line.contains(&format!("in use by {}", held.pid())), "{line}");
    drop(held);
}

fn gdb(args: &[&str]) -> String {
    let start = ["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off"];
    Cmd::new(start).args(args).bare().stdout
}

fn assert_names(trace: &str) {
    for name in ["third", "second", "first", "main"] {
        assert!(trace.contains(&format!(" {name} (")), "no {name}:\n{trace}");
    }
    assert!(trace.contains("moved.c:"), "no file and line:\n{trace}");
}

#[test]
fn gdb_finds_its_way() {
    need!("gdb");
    for victim in [c(), fat("moved").flags(&["-static-pie"]).build()] {
        let primed = primed!(victim);
        let held = Held::start(&Cmd::new([primed.path()]).arg("hold"), Some(OPTIONS), primed.path());
        assert_huge(held.pid(), primed.path());
        assert_names(&gdb(&["-p", &held.pid().to_string(), "-ex", "bt"]));
        assert_eq!(held.finish().end, End::Code(0));
    }
}

#[test]
fn a_core_dump_names_its_functions() {
    need!("gdb", "prlimit");
    if std::fs::read_to_string("/proc/sys/kernel/core_pattern").is_ok_and(|p| p.starts_with('|')) {
        skip!("core dumps go to a program here");
    }
    let primed = primed!(c());
    let cmd = Cmd::new([primed.path()]).arg("abort").under(["prlimit", "--core=unlimited"]).cwd(primed.dir());
    let outcome = cmd.lifted(OPTIONS);
    assert_eq!(outcome.end, End::Signal(6), "{outcome:?}");
    assert_eq!(number(&outcome, "base") % HUGE, 0);
    let mut names = std::fs::read_dir(primed.dir()).expect("readdir").filter_map(|e| Some(e.ok()?.path()));
    let core = names.find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("core")));
    let Some(core) = core else { skip!("no core file appears here") };
    let shown = [primed.path().display().to_string(), core.display().to_string()];
    assert_names(&gdb(&[&shown[0], &shown[1], "-ex", "bt"]));
}

#[test]
fn rust_panics_and_backtraces() {
    need!("rustc");
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims/moved.rs");
    let program = dir.path().join("moved");
    let code = crate::common::build::code_file(crate::common::build::FAT);
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition=2024", "-g", "-Copt-level=1", "-o"])
        .arg(&program)
        .arg(source)
        .env("FAT_CODE", code);
    crate::common::build::must(&mut rustc);
    let primed = primed!(program);
    let cmd = Cmd::new([primed.path()]);
    // A panic's message contains the number of its thread.
    let told = |text: &str| {
        let volatile = |l: &&str| !l.starts_with("base ") && !l.starts_with("thread 'main'");
        text.lines().filter(volatile).collect::<Vec<_>>().join("\n")
    };
    let bare = cmd.bare();
    assert!(bare.stdout.contains("moved::third\n") && bare.stdout.contains("moved::main\n"), "{bare:?}");
    assert!(bare.stdout.ends_with("caught true\nwrong 0\n"), "{bare:?}");
    same_as(&bare, &cmd, OPTIONS, told);
    let verbose = cmd.lifted(&["--backing", "pagecache", "-v"]);
    assert!(verbose.own_lines()[0].contains("text 4 MB of 4 MB"), "{verbose:?}");
}

/// A uprobe that is set before the start is hit in the moved program, and so is one that is set
/// while the program runs.
#[test]
fn uprobes_are_hit() {
    need_root!();
    need!("nm");
    if !kernel_has("tracefs") {
        skip!("this kernel has no tracefs");
    }
    let primed = primed!(c());
    with_own_mounts(move || {
        if !Path::new("/sys/kernel/tracing/uprobe_events").exists() {
            mount(&["-t", "tracefs", "tracefs", "/sys/kernel/tracing"]);
        }
        if Path::new("/sys/kernel/tracing/uprobe_events").exists() {
            are_hit(&primed);
        } else {
            skip!("no uprobe_events in /sys/kernel/tracing");
        }
    });
}

fn are_hit(primed: &Primed) {
    let symbols = Command::new("nm").arg(primed.path()).output().expect("nm").stdout;
    let symbols = String::from_utf8_lossy(&symbols).into_owned();
    let line = symbols.lines().find(|l| l.ends_with(" T counted")).expect("counted");
    // The program is linked for address 0 and its first segments have no skew, so the address is
    // the offset.
    let offset = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("a number");
    let probe = Uprobe::set(primed.path(), offset).expect("a uprobe");
    let outcome = Cmd::new([primed.path()]).args(["count", "37"]).lifted(OPTIONS);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""));
    assert_eq!(number(&outcome, "base") % HUGE, 0);
    assert_eq!(probe.hits().expect("a count"), 37);
    drop(probe);
    let held = Held::start(&Cmd::new([primed.path()]).arg("hold"), Some(OPTIONS), primed.path());
    let line = symbols.lines().find(|l| l.ends_with(" T trace")).expect("trace");
    let offset = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("a number");
    let probe = Uprobe::set(primed.path(), offset).expect("a uprobe");
    assert_eq!(held.finish().end, End::Code(0));
    assert_eq!(probe.hits().expect("a count"), 1);
    drop(probe);
    is_not_copied(primed, offset);
}

/// A copy of code that has a uprobe would keep its breakpoint after the uprobe has gone: such code stays.
fn is_not_copied(primed: &Primed, offset: u64) {
    let report = tempfile::NamedTempFile::new().expect("a file");
    let options = ["--backing", "thp", "--quiet", "--report", report.path().to_str().expect("a name")];
    let reason = || {
        let outcome = Cmd::new([primed.path()]).args(["count", "37"]).lifted(&options);
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""));
        std::fs::read_to_string(report.path()).expect("the report").contains("\"patched\"")
    };
    assert!(!reason());
    let probe = Uprobe::set(primed.path(), offset).expect("a uprobe");
    assert!(reason());
    drop(probe);
}

/// Ten processes share one copy of what is huge: the sum of their shares is its size.
#[test]
fn ten_processes_share_one_copy() {
    let primed = primed!(c());
    let cmd = Cmd::new([primed.path()]).arg("hold");
    let held: Vec<Held> = (0..10).map(|_| Held::start(&cmd, Some(OPTIONS), primed.path())).collect();
    let text = |held: &Held| text_of(held.pid(), primed.path()).into_iter();
    let huge: u64 = text(&held[0]).map(|u| u.file_huge).sum();
    let whole: u64 = text(&held[0]).map(|u| u.rss).sum();
    assert!(huge > 0);
    let shares: u64 = held.iter().flat_map(text).map(|u| u.pss).sum();
    assert!(shares * 100 <= whole * 105 && shares * 100 >= huge * 95, "{shares} bytes for {whole}");
    for held in held {
        assert_huge(held.pid(), primed.path());
        assert_eq!(held.finish().end, End::Code(0));
    }
}
