// SPDX-License-Identifier: Apache-2.0
//! Tests of what doctor finds in a process.

use super::*;
use crate::common::huge::smaps;
use crate::{need, skip};

/// Returns the path of the interpreter itself: python3 in PATH may be a script that starts it.
pub(super) fn python3() -> PathBuf {
    let code = "import os, sys; print(os.path.realpath(sys.executable))";
    let out = Command::new("python3").args(["-c", code]).output().expect("python3 runs");
    PathBuf::from(text(&out.stdout).trim())
}

/// Starts a Python program that runs `body` and waits.
fn python(body: &str) -> Held {
    let program = python3();
    let script = format!("import mmap, os, sys, ctypes\n{body}\nsys.stdin.read()");
    Held::start(&Cmd::new([program.as_os_str(), OsStr::new("-c"), OsStr::new(&script)]), None, &program)
}

/// Returns Python code that maps `megabytes` of private memory and advises huge pages for it.
fn huge_memory(megabytes: u32) -> String {
    format!(
        "m = mmap.mmap(-1, {megabytes} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nm.madvise(mmap.MADV_HUGEPAGE)"
    )
}

#[test]
fn what_huge_pages_cost_a_process() {
    need!("python3");
    let _ours = Exclusive::take().expect("the lock");
    let keys_of = |held: &Held| {
        let found = here(&["--pid", &held.pid().to_string()]);
        (keys(&found).into_iter().map(String::from).collect::<Vec<_>>(), found)
    };
    let costs = ["fork-thp", "thp-bloat", "huge-zero-pages", "process-thp-off"];
    let only = |held: Held, want: &[&str]| {
        let (keys, found) = keys_of(&held);
        let got: Vec<&str> = keys.iter().map(String::as_str).filter(|k| costs.contains(k)).collect();
        assert_eq!(got, want, "{found:#?}");
        found
    };
    // A program that writes to all of its huge pages has no problem.
    let full = format!("{}\nm.write(b'x' * (96 << 20))", huge_memory(96));
    only(python(&full), &[]);
    let forks = format!("{full}\nif os.fork() == 0: os.close(0); os.read(os.pipe()[0], 1)");
    only(python(&forks), &["fork-thp"]);
    only(python("ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)"), &["process-thp-off"]);
    let own = doctor(["--json", "--pid", &std::process::id().to_string()]);
    let report: Value = serde_json::from_slice(&own.stdout).expect("JSON");
    if report["facts"]["process"]["huge_zero"].is_null() {
        skip!("needs Linux 6.7, which shows which pages are huge");
    }
    // The program writes one byte in each huge page.
    let sparse = format!("{}\nfor i in range(0, 96 << 20, 2 << 20): m[i] = 1", huge_memory(96));
    let found = only(python(&sparse), &["thp-bloat"]);
    assert!(
        finding(&found, "thp-bloat")["title"].as_str().expect("a title").starts_with("99 %"),
        "{found:#?}"
    );
    let advice = finding(&found, "thp-bloat")["advice"].as_str().expect("advice").to_string();
    assert!(advice.starts_with("hugelift restore --unused "), "{advice}");
    let read = format!("{}\ns = sum(m[i] for i in range(0, 96 << 20, 4096))", huge_memory(96));
    only(python(&read), &["huge-zero-pages"]);
}

/// process_vm_readv(2) would make copies of what a process shares with its child.
#[test]
fn issue_32_4_what_a_program_shares_with_its_child_is_read_and_not_copied() {
    need!("python3");
    let _ours = Exclusive::take().expect("the lock");
    let full = format!("{}\nm.write(b'x' * (96 << 20))", huge_memory(96));
    let held = python(&format!("{full}\nif os.fork() == 0: os.close(0); os.read(os.pipe()[0], 1)"));
    let memory = || {
        let usages = smaps(held.pid());
        let sum = |of: fn(&hugelift_core::smaps::Usage) -> u64| usages.iter().map(of).sum::<u64>();
        // Of a file the share is smaller if another process maps it.
        let private =
            |usage: &hugelift_core::smaps::Usage| if usage.mapping.is_file() { 0 } else { usage.pss };
        (sum(|usage| usage.anon_huge), sum(private) >> 22)
    };
    let before = memory();
    assert!(before.0 >= 90 << 20, "{before:?}");
    let found = here(&["--pid", &held.pid().to_string()]);
    assert!(keys(&found).contains(&"fork-thp"), "{found:#?}");
    assert_eq!(memory(), before);
    // Also the headers and the dynamic section of each object, which the loader has written.
    let private = || {
        let rollup =
            std::fs::read_to_string(format!("/proc/{}/smaps_rollup", held.pid())).expect("smaps_rollup");
        rollup.lines().find(|line| line.starts_with("Private_Dirty:")).expect("a line").to_string()
    };
    let before = private();
    let inspected =
        Command::new(HUGELIFT).args(["inspect", &held.pid().to_string()]).output().expect("inspect");
    assert!(inspected.status.success(), "{inspected:?}");
    assert_eq!(private(), before);
}

#[test]
fn code_that_is_not_huge_until_it_is_lifted() {
    need!("node");
    let _ours = Exclusive::take().expect("the lock");
    let node = find("node").expect("node").canonicalize().expect("a path");
    let cmd = Cmd::new([node.as_os_str(), OsStr::new("-e"), OsStr::new("process.stdin.resume()")]);
    let look = |options: Option<&[&str]>| {
        let running = Held::start(&cmd, options, &node);
        here(&["--pid", &running.pid().to_string()])
    };
    let found = look(None);
    // The page cache may already have node's file on huge pages.
    if keys(&found).contains(&"code-not-huge") {
        let advice = finding(&found, "code-not-huge")["advice"].as_str().expect("advice").to_string();
        assert!(
            advice.contains(&format!("hugelift run -- {} -e 'process.stdin.resume()'", node.display())),
            "{advice}"
        );
        assert!(keys(&found).contains(&"program-offers"), "no mention of node's --use-largepages");
    }
    assert!(!keys(&look(Some(&["--backing", "thp"]))).contains(&"code-not-huge"));
}

#[test]
fn what_programs_offer_is_seen() {
    need!("python3");
    let program = python3();
    let script = "import sys; m = [bytes(1000) for i in range(150000)]; sys.stdin.read()";
    let cmd = Cmd::new([program.as_os_str(), OsStr::new("-c"), OsStr::new(script)]);
    let offers = |cmd: &Cmd, program: &Path| {
        let running = Held::start(cmd, None, program);
        let out = doctor(["--json", "--pid", &running.pid().to_string()]);
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let all = report["offers"].as_array().expect("offers").clone();
        all.iter()
            .map(|o| (o["who"].as_str().expect("who").to_string(), o["on"].as_bool()))
            .collect::<Vec<_>>()
    };
    let glibc = |on| vec![("glibc's malloc".to_string(), Some(on))];
    assert_eq!(offers(&cmd, &program), glibc(false));
    let tuned = cmd.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    assert_eq!(offers(&tuned, &program), glibc(true));
    match find("gofmt") {
        Some(gofmt) => {
            let go = offers(&Cmd::new([&gofmt]).env("GODEBUG", "disablethp=1"), &gofmt);
            assert_eq!(go[0], ("Go".to_string(), Some(false)));
        }
        None => crate::common::skipped("needs gofmt"),
    }
}
