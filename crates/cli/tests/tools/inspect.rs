// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift inspect` on processes, on programs that do not run, and on targets that are neither.

use crate::common::{Cmd, HUGELIFT, Held, each_backing, fat, find, fits, huge::smaps, open_dir};
use crate::{need, need_root};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const HUGE: u64 = 2 << 20;

fn inspect<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(HUGELIFT).arg("inspect").args(args).output().expect("hugelift runs")
}

/// Returns the report as JSON. The command must print nothing on stderr.
fn report(target: impl AsRef<OsStr>) -> Value {
    let out = inspect([OsStr::new("--json"), target.as_ref()]);
    let shown = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && shown.is_empty(), "{:?}: {:?} {shown}", target.as_ref(), out.status);
    let report = serde_json::from_slice(&out.stdout).expect("JSON");
    check_schema(&report);
    report
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list '{name}' in {value}"))
}

/// Checks version 1 of the schema, and its sums.
fn check_schema(report: &Value) {
    fits("report", report);
    let mut sums = std::collections::BTreeMap::<String, [u64; 3]>::new();
    for object in list(report, "objects") {
        assert!(object["path"].is_string(), "{object}");
        assert!(object["build_id"].is_null() || object["build_id"].as_str().is_some_and(|id| id.len() >= 8));
        for part in list(object, "parts") {
            let (bytes, huge) = (number(part, "bytes"), number(part, "huge_bytes"));
            let liftable = number(part, "liftable_bytes");
            assert!(bytes > 0 && liftable <= bytes && huge <= bytes, "{part}");
            assert_eq!(number(part, "end") - number(part, "start"), bytes, "{part}");
            assert_eq!(part["backing"].is_string(), huge > 0, "{part}");
            let mut skipped = 0;
            for skip in list(part, "skips") {
                assert!(skip["reason"].as_str().is_some_and(|r| !r.is_empty()), "{skip}");
                assert!(skip["hint"].is_null() || skip["hint"].is_string(), "{skip}");
                skipped += number(skip, "bytes");
            }
            assert_eq!(huge + skipped, bytes, "{part}");
            let name = part["part"].as_str().expect("the part's name").to_string();
            let sum = sums.entry(name).or_default();
            *sum = [sum[0] + bytes, sum[1] + liftable, sum[2] + huge];
        }
    }
    let totals = report["totals"].as_object().expect("totals");
    assert_eq!(totals.keys().collect::<Vec<_>>(), sums.keys().collect::<Vec<_>>());
    for (part, sum) in sums {
        let total = ["bytes", "liftable_bytes", "huge_bytes"].map(|name| number(&totals[&part], name));
        assert_eq!(total, sum, "{part}");
    }
    // Anonymous memory of a process is in no object.
    assert_eq!(report["anonymous"].is_object(), report["pid"].is_number(), "{report}");
    if let Some(anonymous) = report.get("anonymous") {
        let [bytes, liftable, huge] =
            ["bytes", "liftable_bytes", "huge_bytes"].map(|name| number(anonymous, name));
        assert!(huge <= liftable && liftable <= bytes, "{anonymous}");
    }
}

fn executable(report: &Value) -> &Value {
    let mut found = list(report, "objects").iter().filter(|o| o["executable"] == true);
    let first = found.next().expect("an executable");
    assert!(found.next().is_none(), "two executables: {report}");
    assert_eq!(first, &report["objects"][0]);
    first
}

/// Returns the bytes of each part of the executable, in the order of their addresses.
fn layout(report: &Value) -> Vec<(String, u64)> {
    // A file does not show the heap and the stack.
    let of_a_file = |p: &&Value| p["part"] != "heap" && p["part"] != "stack";
    let parts = list(executable(report), "parts").iter().filter(of_a_file);
    parts.map(|p| (p["part"].to_string(), number(p, "bytes"))).collect()
}

#[test]
fn this_process() {
    let own = std::env::current_exe().unwrap();
    let report = report(std::process::id().to_string());
    assert_eq!(executable(&report)["path"], own.to_str().unwrap());
    assert_eq!(number(&report, "pid"), u64::from(std::process::id()));
    assert_eq!(report["assumed_addresses"], false);
    let here = this_process as fn() as usize as u64;
    let inside = |p: &&Value| (number(p, "start")..number(p, "end")).contains(&here);
    let part = list(executable(&report), "parts").iter().find(inside).expect("this function's part");
    assert_eq!(part["part"], "text");
    let libc = |o: &Value| o["path"].as_str().is_some_and(|p| p.contains("libc.so") || p.contains("ld-musl"));
    assert!(list(&report, "objects").iter().any(libc));
}

#[test]
fn a_program_that_does_not_run_has_the_parts_that_it_has_when_it_runs() {
    let own = std::env::current_exe().unwrap();
    let (assumed, live) = (report(&own), report(std::process::id().to_string()));
    assert_eq!(assumed["assumed_addresses"], true);
    assert!(assumed["pid"].is_null());
    assert_eq!(layout(&assumed), layout(&live));
    // The stacks of this program's threads, at least.
    assert!(number(&live["anonymous"], "bytes") > HUGE);
    let paths = |report: &Value| {
        let paths = list(report, "objects").iter().map(|o| o["path"].as_str().unwrap().to_string());
        paths.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(paths(&assumed), paths(&live));
}

#[test]
fn names_and_scripts() {
    let by_name = report("true");
    assert!(executable(&by_name)["path"].as_str().unwrap().ends_with("/true"));
    assert_eq!(report("/bin/true")["totals"], by_name["totals"]);
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#! /bin/sh -e\nexit 0\n").unwrap();
    // The advice names the script; everything else is about the interpreter.
    let of_script = report(&script).to_string().replace(script.to_str().unwrap(), "/bin/sh");
    assert_eq!(of_script, report("/bin/sh").to_string());
}

#[test]
fn an_interpreter() {
    need!("python3");
    let report = report("python3");
    assert!(number(&report["totals"]["text"], "bytes") > 0);
}

/// inspect reports for each part what smaps shows: nothing on huge pages before a lift, everything
/// after it.
#[test]
fn a_lifted_process() {
    let program = fat("hold").build();
    let cmd = Cmd::new([&program]);
    let assumed = report(&program);
    assert!(number(&assumed["totals"]["text"], "liftable_bytes") >= HUGE);
    assert_eq!(number(&assumed["totals"]["text"], "huge_bytes"), 0);
    each_backing(|options| {
        let held = Held::start(&cmd, Some(options), &program);
        let report = report(held.pid().to_string());
        let smaps = smaps(held.pid());
        let mut huge = 0;
        for part in list(executable(&report), "parts") {
            let inside = smaps.iter().filter(|u| {
                let range = u.mapping.range;
                number(part, "start") <= range.start.0 && range.end.0 <= number(part, "end")
            });
            assert_eq!(number(part, "huge_bytes"), inside.map(|u| u.huge()).sum::<u64>(), "{part}");
            if matches!(part["part"].as_str(), Some("text" | "rodata")) {
                assert_eq!(number(part, "huge_bytes"), number(part, "liftable_bytes"), "{part}");
                huge += number(part, "huge_bytes");
            }
            if number(part, "huge_bytes") > 0 {
                assert_eq!(part["backing"], options[1]);
            }
        }
        assert!(huge >= 2 * HUGE, "{huge}");
        let shown = String::from_utf8(inspect([held.pid().to_string()]).stdout).unwrap();
        assert!(shown.contains('█') && !shown.contains("could be lifted"), "{shown}");
        held.finish();
    });
}

/// The first page of a program at a fixed, aligned address is lifted with the rest: no mapping of the
/// file's start, which would show where the headers are, is left.
#[test]
fn a_lifted_process_whose_headers_are_lifted_too() {
    let program = fat("hold").flags(&["-no-pie", "-Wl,-z,noseparate-code"]).build();
    let cmd = Cmd::new([&program]);
    let held = Held::start(&cmd, Some(&["--backing", "thp"]), &program);
    let report = report(held.pid().to_string());
    assert_eq!(executable(&report)["path"], program.to_str().unwrap());
    let text = &report["totals"]["text"];
    assert!(number(text, "huge_bytes") >= HUGE, "{report}");
    held.finish();
}

#[test]
fn the_table() {
    let program = fat("hold").build();
    let run = |options: &[&str]| {
        let out = inspect(options.iter().map(OsStr::new).chain([program.as_os_str()]));
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    let shown = run(&[]);
    for word in ["assumed", "OBJECT", "BACKING", "text", "rodata", "░", "could be lifted", "nothing to lift"]
    {
        assert!(shown.contains(word), "no '{word}' in {shown}");
    }
    let verbose = run(&["-v"]);
    assert!(verbose.contains("libc.so") && verbose.contains("too small"), "{verbose}");
    assert!(run(&["-v", "--exclude", "*"]).contains("excluded by a pattern"));
    assert!(run(&["-v", "--parts", "rodata"]).contains("text was not asked for"));
    let odd = run(&["--backing", "hugetlb", "--page-size", "4k"]);
    assert!(odd.contains("no hugetlb pool of 4 kB pages"), "{odd}");
}

/// Code that is too small for a whole huge page, but worth one, can have one; the command is named.
#[test]
fn the_command_that_gives_code_huge_pages_of_its_own() {
    let names = |program: &Path, words: &[&str], libs: &str| {
        let out = Command::new(HUGELIFT).args(words).arg(program).output().expect("hugelift runs");
        let all = [out.stdout, out.stderr].concat();
        let all = String::from_utf8(all).expect("UTF-8");
        let wanted = format!("hugelift prime --replace --separate {libs}{} ", program.display());
        (all.contains(&wanted), all)
    };
    let sized = |bytes, flags: &[&str]| fat("ran").size(bytes).flags(flags).build();
    let pie = sized(1 << 20, &[]);
    let whole = "--with-libs ";
    for (words, libs) in [
        (&["inspect"][..], whole),
        (&["inspect", "-v"], ""),
        (&["run", "--dry-run"], whole),
        (&["run", "-v"], whole),
        (&["prime", "--check"], ""),
    ] {
        let (is_named, all) = names(&pie, words, libs);
        assert!(is_named, "{words:?}: {all}");
    }
    // Too little code, and code that cannot move.
    for program in [sized(100 << 10, &[]), sized(1 << 20, &["-no-pie"])] {
        let (is_named, all) = names(&program, &["inspect", "-v"], "");
        assert!(!is_named, "{}: {all}", program.display());
    }
    // It is so: the command finds a page for it.
    let options = ["prime", "--replace", "--separate", "--dry-run"];
    let out = Command::new(HUGELIFT).args(options).arg(&pie).output().expect("hugelift runs");
    let shown = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && shown.contains(" on 2 MB, "), "{shown}");
}

/// Checks that inspect prints one line on stderr and nothing on stdout, and ends with this status.
fn refused(target: impl AsRef<OsStr>, status: i32, words: &str) {
    let target = target.as_ref();
    for options in [&[][..], &["--json"], &["-v"]] {
        let out = inspect(options.iter().map(OsStr::new).chain([target]));
        let line = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{target:?}: {:?} {line}", out.status);
        assert!(out.stdout.is_empty(), "{target:?}");
        assert!(line.starts_with("hugelift: ") && line.lines().count() == 1, "{target:?}: {line}");
        assert!(line.contains(words), "{target:?}: no '{words}' in {line}");
    }
}

#[test]
fn what_is_no_program() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let own = std::fs::read(HUGELIFT).unwrap();
    refused("no-such-program", 127, "no-such-program");
    refused(dir.path().join("none"), 127, "none");
    refused("", 127, "''");
    refused(dir.path(), 125, "not a regular file");
    refused("/dev/null", 125, "not a regular file");
    refused(file("empty", b""), 125, "is empty");
    refused(file("header", &own[..40]), 125, "damaged");
    refused(file("table", &own[..70]), 125, "damaged");
    let mut narrow = own[..4096].to_vec();
    narrow[4] = 1;
    refused(file("narrow", &narrow), 125, "32-bit");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::write(&a, format!("#!{}\n", b.display())).unwrap();
    std::fs::write(&b, format!("#!{}\n", a.display())).unwrap();
    refused(&a, 125, "its interpreter is itself a script");
}

#[test]
fn what_is_no_process() {
    refused("0", 125, "is not a process id");
    refused("99999999999999999999", 125, "is not a process id");
    // Larger than any process id: the kernel's limit is 2^22.
    refused("8388608", 125, "no process 8388608");
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    // A process that has ended and that its parent has not waited for.
    let zombie = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") Z ")
    };
    while !zombie(child.id()) {
        std::thread::yield_now();
    }
    refused(child.id().to_string(), 125, "zombie");
    child.wait().unwrap();
    refused(child.id().to_string(), 125, &format!("no process {}", child.id()));
}

/// For any bytes inspect prints a report or one line, and never panics.
#[test]
fn damaged_programs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged");
    let good = std::fs::read(find("true").unwrap()).unwrap();
    let (mut refused, mut shown) = (0, 0);
    // A fixed seed gives the same damage at every run.
    let mut generator = fastrand::Rng::with_seed(1);
    let mut random = |below: usize| generator.usize(..below);
    for round in 0..150 {
        let mut bytes = good.clone();
        for _ in 0..1 + round % 4 {
            // Mostly in the ELF header and in the program headers after it.
            let at = random(if round % 3 == 0 { bytes.len() } else { 0x340 });
            bytes[at] ^= 1 << random(8);
        }
        if round % 5 == 0 {
            bytes.truncate(random(good.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        let out = inspect([OsStr::new("--json"), path.as_os_str()]);
        let line = String::from_utf8_lossy(&out.stderr);
        assert!(!line.contains("panicked"), "round {round}: {line}");
        match out.status.code() {
            Some(0) => {
                check_schema(&serde_json::from_slice(&out.stdout).unwrap());
                shown += 1;
            }
            // The damaged first line of a script may name any file.
            Some(125 | 127) => {
                assert_eq!(line.lines().count(), 1, "round {round}: {line}");
                refused += 1;
            }
            _ => panic!("round {round}: {:?} {line}", out.status),
        }
    }
    assert!(refused > 0 && shown > 0, "{refused} refused, {shown} shown");
}

/// For a process of another user, one line names the file that cannot be read and says what helps.
#[test]
fn without_permission() {
    need_root!();
    let dir = open_dir(&[]);
    let mut copy = Command::new(dir.path().join("hugelift"));
    copy.args(["inspect", "--json", &std::process::id().to_string()]).uid(65534).gid(65534);
    let out = copy.output().unwrap();
    let line = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125), "{line}");
    assert!(line.lines().count() == 1 && line.contains("/proc/") && line.contains("as root"), "{line}");
}

#[test]
fn a_reader_that_closes_the_pipe() {
    let mut child = Command::new(HUGELIFT)
        .args(["inspect", "-v", "true"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    let status = child.wait().unwrap();
    // SIGPIPE ends it, or it ends by itself where SIGPIPE is ignored. In both cases it prints no error.
    assert!(status.code() == Some(0) || status.signal() == Some(libc::SIGPIPE), "{status:?}");
    assert_eq!(line, "");
}

/// Objects that the loader would not find are named on stderr; the rest is shown.
#[test]
fn a_missing_object() {
    need!("cc");
    let dir = tempfile::tempdir().unwrap();
    let build = |out: &Path, args: &[&OsStr]| {
        crate::common::build::must(
            Command::new("cc").args(["-x", "c", "/dev/null", "-x", "none", "-o"]).arg(out).args(args),
        );
    };
    let library = dir.path().join("libgone.so");
    build(&library, &["-shared".as_ref(), "-fPIC".as_ref()]);
    let user = dir.path().join("libuser.so");
    let flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"].map(OsStr::new);
    build(&user, &[&flags[..], &[library.as_os_str()]].concat());
    // A library without DT_SONAME is recorded by the path that the linker was given.
    let names = |report: &Value| {
        let objects = list(report, "objects").iter();
        objects.map(|o| o["path"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert!(names(&report(&user)).iter().any(|p| p.ends_with("libgone.so")));
    std::fs::remove_file(&library).unwrap();
    let out = inspect([OsStr::new("--json"), user.as_os_str()]);
    let line = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && line.lines().count() == 1, "{line}");
    assert!(line.contains("would not find") && line.contains("libgone.so"), "{line}");
    check_schema(&serde_json::from_slice(&out.stdout).unwrap());
}
