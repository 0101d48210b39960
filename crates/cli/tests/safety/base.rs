// SPDX-License-Identifier: Apache-2.0
//! Tests that a program has the same coverage at each start, whatever base the kernel draws. The
//! expected coverage is computed here from the program headers, base by base.

use crate::common::huge::{pieces, smaps};
use crate::common::{self, Cmd, End, HUGELIFT, Held, Way, each_way, fat, plain};
use crate::{need, skip};
use hugelift_core::elf::Headers;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HUGE: u64 = 2 << 20;
const STARTS: usize = 10;
const THP: &[&str] = &["--backing", "thp"];

/// Bytes of text and of rodata on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Coverage {
    both: u64,
    text: u64,
}

fn headers(program: &Path) -> Headers {
    Headers::parse(&std::fs::read(program).expect("read the program")).expect("an ELF file")
}

/// Returns the best coverage that any of the 512 bases allows.
fn optimum(program: &Path) -> Coverage {
    let headers = headers(program);
    let at = |bias: u64| {
        let mut found = Coverage { both: 0, text: 0 };
        for s in headers.segments.iter().filter(|s| !s.prot.write) {
            let start = (s.vaddr + bias) & !4095;
            let end = (s.vaddr + s.memsz + bias).next_multiple_of(4096);
            let whole = (end / HUGE).saturating_sub(start.div_ceil(HUGE)) * HUGE;
            found.both += whole;
            found.text += if s.prot.exec { whole } else { 0 };
        }
        found
    };
    (0..HUGE / 4096).map(|n| at(n * 4096)).max().expect("512 bases")
}

/// Returns the executable's coverage according to smaps.
fn coverage(pid: u32, program: &Path) -> Coverage {
    let all = pieces(pid, &[program.to_owned()]);
    let sum = |text_only: bool| all.iter().filter(|p| p.text || !text_only).map(|p| p.huge).sum();
    Coverage { both: sum(false), text: sum(true) }
}

fn assert_the_same_at_each_start(cmd: &Cmd, options: &[&str], program: &Path, starts: usize) {
    let program = program.canonicalize().expect("the program is there");
    let best = optimum(&program);
    assert!(best.both > 0, "{} has no whole huge page at any base", program.display());
    for start in 0..starts {
        let held = Held::start(cmd, Some(options), &program);
        let found = coverage(held.pid(), &program);
        assert_eq!(found, best, "start {start} of {} with {options:?}", program.display());
    }
}

/// Returns the path of a Debian program, which must be position-independent.
fn real(name: &str) -> Result<PathBuf, String> {
    let path = common::find(name).or_else(|| Some(Path::new("/usr/sbin").join(name)).filter(|p| p.exists()));
    let path = path.and_then(|p| p.canonicalize().ok()).ok_or_else(|| format!("needs {name}"))?;
    match headers(&path).relocatable {
        true => Ok(path),
        false => Err(format!("needs a position-independent {name}, not {}", path.display())),
    }
}

#[test]
fn git_has_the_same_coverage_at_each_start() {
    let git = match real("git") {
        Ok(git) => git,
        Err(why) => skip!("{why}"),
    };
    let cmd = Cmd::new([&git]).args(["hash-object", "--stdin"]);
    assert_the_same_at_each_start(&cmd, THP, &git, STARTS);
}

#[test]
fn php_has_the_same_coverage_at_each_start() {
    let php = match real("php") {
        Ok(php) => php,
        Err(why) => skip!("{why}"),
    };
    let cmd = Cmd::new([&php]).args(["-n", "-r", "fgets(STDIN);"]);
    assert_the_same_at_each_start(&cmd, THP, &php, STARTS);
}

#[test]
fn mariadbd_has_the_same_coverage_at_each_start() {
    let mariadbd = match real("mariadbd") {
        Ok(mariadbd) => mariadbd,
        Err(why) => skip!("{why}"),
    };
    // Its output is larger than the pipe, which nobody reads: it blocks and can be examined.
    let cmd = Cmd::new([&mariadbd]).args(["--no-defaults", "--verbose", "--help"]);
    assert_the_same_at_each_start(&cmd, THP, &mariadbd, STARTS);
}

/// A program with text and rodata of 2.4 MB each: most bases allow less coverage than the best one.
fn narrow(flags: &[&str]) -> PathBuf {
    fat("moved").size(2_400_000).flags(&["-rdynamic"]).flags(flags).build()
}

/// Covers every backing that copies, with a dynamic and a static program.
#[test]
fn every_backing_has_the_same_coverage_at_each_start() {
    for flags in [&["-pie", "-fPIE"][..], &["-static-pie", "-fPIE"]] {
        each_way(&narrow(flags), |way: &Way| {
            if !way.is_file() {
                let cmd = way.cmd(&["hold"]);
                assert_the_same_at_each_start(&cmd, &way.options(), &way.program, 5);
            }
        });
    }
}

/// With `--parts` naming one part, the base is the best one for that part.
#[test]
fn the_base_is_the_best_for_the_parts_that_are_asked_for() {
    let program = narrow(&["-pie", "-fPIE"]);
    for (parts, text) in [("text", true), ("rodata", false)] {
        for _ in 0..5 {
            let options = ["--backing", "thp", "--parts", parts];
            let held = Held::start(&Cmd::new([&program]).arg("hold"), Some(&options), &program);
            let found = pieces(held.pid(), std::slice::from_ref(&program));
            let huge: u64 = found.iter().filter(|p| p.text == text).map(|p| p.huge).sum();
            assert_eq!(huge, HUGE, "{parts}: {found:?}");
        }
    }
}

/// With outer spans and with writable parts, the bytes that can be lifted of each part of the executable
/// are the same at each start.
#[test]
fn outer_spans_and_data_are_the_same_at_each_start() {
    let program = narrow(&["-pie", "-fPIE"]);
    for options in [
        &["--backing", "thp", "--span", "outer", "--parts", "text,rodata,data,bss"][..],
        &["--backing", "thp", "--span", "auto", "--parts", "text,rodata,data,bss"],
        &["--backing", "thp", "--parts", "text,rodata,data,bss"],
    ] {
        let found: BTreeSet<Vec<(String, u64)>> = (0..5).map(|_| planned(&program, options)).collect();
        assert_eq!(found.len(), 1, "{options:?}: {found:?}");
        let inspected = inspected(&program, options);
        assert!(found.contains(&inspected), "{options:?}: {found:?}, inspect promises {inspected:?}");
    }
}

/// Returns how many bytes of each part of the executable could be lifted at the base of one start. The kernel draws where the
/// heap begins from 1 GB behind the bss (x86, `arch_randomize_brk`). In one start of 1,400 that is in the huge page that the end of
/// the bss would take, which must then stay free. Such a start does not count.
fn planned(program: &Path, options: &[&str]) -> Vec<(String, u64)> {
    let report = tempfile::NamedTempFile::new().expect("a file");
    let path = report.path().display().to_string();
    for _ in 0..3 {
        let outcome =
            Cmd::new([program]).args(["count", "0"]).lifted(&[options, &["--report", &path]].concat());
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        let json = std::fs::read(report.path()).expect("read the report");
        if !is_kept_free_for_the_heap(&json) {
            return liftable(&json);
        }
    }
    panic!("three starts in a row whose heap begins in the last huge page of the bss");
}

fn is_kept_free_for_the_heap(json: &[u8]) -> bool {
    let report: Value = serde_json::from_slice(json).expect("JSON");
    let objects = report["objects"].as_array().expect("objects");
    let own = objects.iter().find(|o| o["executable"] == true).expect("the executable");
    let bss = own["parts"].as_array().expect("parts").iter().find(|p| p["part"] == "bss");
    let skips = bss.and_then(|bss| bss["skips"].as_array()).expect("why not all of the bss can be lifted");
    skips.iter().any(|skip| skip["reason"] == "kept-free")
}

/// Returns how many bytes of each part `hugelift inspect` promises.
fn inspected(program: &Path, options: &[&str]) -> Vec<(String, u64)> {
    let mut command = Command::new(HUGELIFT);
    command.arg("inspect").args(options).arg("--json").arg(program).stdin(Stdio::null());
    liftable(&command.output().expect("hugelift starts").stdout)
}

fn liftable(json: &[u8]) -> Vec<(String, u64)> {
    let report: Value = serde_json::from_slice(json).expect("JSON");
    let objects = report["objects"].as_array().expect("objects");
    let own = objects.iter().find(|o| o["executable"] == true).expect("the executable");
    let parts = own["parts"].as_array().expect("parts").iter();
    // The heap and the stack belong to the process, not to the file.
    let of_file = parts.filter(|p| p["part"] != "heap" && p["part"] != "stack");
    let mut sums = std::collections::BTreeMap::new();
    for part in of_file {
        let name = part["part"].as_str().expect("a name").to_string();
        *sums.entry(name).or_insert(0) += part["liftable_bytes"].as_u64().expect("bytes");
    }
    sums.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

#[test]
fn inspect_and_dry_run_promise_what_run_does() {
    let program = narrow(&["-pie", "-fPIE"]);
    let best = optimum(&program);
    let promised = inspected(&program, THP);
    let sum: u64 = promised.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, best.both, "{promised:?}");
    assert_eq!(promised, planned(&program, THP));
    let dry = Cmd::new([&program]).lifted(&["--backing", "thp", "--dry-run"]);
    for (part, bytes) in &promised {
        let line = format!("lift {} MB of {part} of {}", bytes >> 20, program.display());
        assert!(dry.stdout.contains(&line), "no '{line}': {dry:?}");
    }
}

/// The bits of the base from the size of a huge page up stay random: 19 of the kernel's 28 on x86-64.
#[test]
fn the_base_for_copies_is_random() {
    if !std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|t| t.trim() == "2") {
        skip!("kernel.randomize_va_space is not 2");
    }
    let program = narrow(&["-pie", "-fPIE"]);
    let cmd = Cmd::new([&program]).args(["count", "0"]);
    let base = || {
        let outcome = cmd.lifted(THP);
        let word = outcome.stdout.lines().find_map(|l| l.strip_prefix("base 0x"));
        u64::from_str_radix(word.unwrap_or_else(|| panic!("no base: {outcome:?}")), 16).expect("a number")
    };
    let bases: Vec<u64> = (0..40).map(|_| base()).collect();
    let different: BTreeSet<&u64> = bases.iter().collect();
    assert!(different.len() >= 38, "{bases:x?}");
    let changing = bases.iter().fold(0, |bits, base| bits | (base ^ bases[0]));
    let bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits").expect("mmap_rnd_bits");
    for bit in 21..12 + bits.trim().parse::<u32>().expect("a number") {
        assert!(changing & (1 << bit) != 0, "bit {bit} is always the same: {bases:x?}");
    }
}

/// A program that gains nothing from a move is left as it is at its exec stop.
#[test]
fn a_small_program_is_not_moved() {
    let moves = |program: &Path, args: &[&str]| {
        let cmd = Cmd::new([program]).args(args).env("HUGELIFT_LOG", "debug");
        let outcome = cmd.lifted(THP);
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        assert!(outcome.stderr.contains("the executable's base"), "{outcome:?}");
        outcome.stderr.contains("moved the executable")
    };
    let narrow = narrow(&["-pie", "-fPIE"]);
    assert!((0..20).any(|_| moves(&narrow, &["count", "0"])), "the large program is never moved");
    let small = plain("moved").flags(&["-DFAT_CODE=\"/dev/null\"", "-DFAT_DATA=\"/dev/null\""]).try_build();
    let small = small.unwrap_or_else(|_| common::find("true").expect("true(1)"));
    assert!(!(0..5).any(|_| moves(&small, &["count", "0"])), "the small program is moved");
}

/// A program linked for an address at which its parts contain no whole huge page.
fn misplaced() -> PathBuf {
    narrow(&["-no-pie"])
}

#[test]
fn the_true_reason_is_reported() {
    let program = misplaced();
    let (whole, name) = (optimum_at_zero(&program), program.display().to_string());
    assert_eq!(whole, 0, "{name} was linked for an address at which it has whole huge pages");
    let cmd = Cmd::new([&program]).args(["count", "0"]);
    for options in [&["-v"][..], &["--strict"], &["--dry-run"]] {
        let options = [THP, options].concat();
        let outcome = cmd.lifted(&options);
        let told = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!told.contains("larger than a huge page"), "{told}");
        let of = format!(" of {name}: ");
        let line = told.lines().find(|l| l.contains("nothing") && l.contains(&of));
        let line = line.unwrap_or_else(|| panic!("{options:?}: {told}"));
        assert!(line.contains("2.3 MB of text") || line.contains("2.3 MB of rodata"), "{line}");
        assert!(line.contains("shares its page of 2 MB with memory of another protection"), "{line}");
    }
    let small = Cmd::new(["true"]).lifted(&["-v", "--backing", "thp"]);
    assert!(!small.stderr.contains("larger than a huge page"), "{small:?}");
    let [line] = small.own_lines()[..] else { panic!("{small:?}") };
    assert!(line.contains("nothing on huge pages: "), "{line}");
}

fn optimum_at_zero(program: &Path) -> u64 {
    let whole = |start: u64, end: u64| (end / HUGE).saturating_sub(start.div_ceil(HUGE)) * HUGE;
    let read_only = headers(program).segments.into_iter().filter(|s| !s.prot.write);
    read_only.map(|s| whole(s.vaddr & !4095, (s.vaddr + s.memsz).next_multiple_of(4096))).sum()
}

/// There is no room for a second image: the program runs at the base it has, and a line says so.
#[test]
fn a_move_that_fails_is_reported() {
    need!("prlimit");
    let program = narrow(&["-pie", "-fPIE", "-DBSS=2000000000"]);
    let cmd = Cmd::new([&program]).args(["count", "0"]).under(["prlimit", "--as=3000000000"]);
    let mut lines = 0;
    for _ in 0..8 {
        let outcome = cmd.lifted(THP);
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
        // The kernel may have drawn the best base by chance.
        let Some(line) = outcome.own_lines().first().copied() else { continue };
        assert!(line.contains("not lifted: thp: mmap of the executable"), "{line}");
        assert!(line.contains("ulimit -v"), "{line}");
        lines += 1;
    }
    assert!(lines > 0, "hugelift had nothing to report in eight starts");
}

/// After a move the executable is mapped once, and nothing of the old image is left. The tests of `kill`
/// cover a program that is killed at any step while it is moved and copied.
#[test]
fn nothing_of_the_old_image_is_left() {
    let program = narrow(&["-pie", "-fPIE"]);
    for _ in 0..3 {
        let held = Held::start(&Cmd::new([&program]).arg("hold"), Some(THP), &program);
        let own = smaps(held.pid()).into_iter().map(|u| u.mapping).filter(|m| m.path == program);
        let starts: BTreeSet<u64> = own.filter(|m| m.offset == 0).map(|m| m.range.start.0).collect();
        assert_eq!(starts.len(), 1, "{starts:x?}");
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        assert!(outcome.stdout.contains("wrong 0\n"), "{outcome:?}");
    }
}
