// SPDX-License-Identifier: Apache-2.0
//! `hugelift doctor`: finds what was planted and nothing else; every command that it prints
//! works, and then the finding is gone. On this machine where that can be undone, else on a
//! recorded one.

mod common;

use common::guard::{CGroup, Exclusive, Settings};
use common::recorded::Recorded;
use common::{Cmd, HUGELIFT, Held, Pool, fat, find};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

fn doctor<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(HUGELIFT).arg("doctor").args(args).output().expect("hugelift runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn findings(out: &Output) -> Vec<Value> {
    assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(report["version"], 1);
    let all = report["findings"].as_array().expect("findings").clone();
    for finding in &all {
        let word = |name: &str| finding[name].as_str().is_some_and(|w| !w.is_empty());
        assert!(word("key") && word("title") && word("why") && word("severity"), "{finding}");
        assert!(word("command") || word("advice"), "what to do about it? {finding}");
        assert!(
            !finding["read"].as_array().expect("what was read").is_empty() || finding["key"] == "thp-absent"
        );
    }
    all
}

fn on(machine: &Recorded) -> Vec<Value> {
    findings(&doctor([OsStr::new("--json"), OsStr::new("--root"), machine.root().as_os_str()]))
}

fn here(args: &[&str]) -> Vec<Value> {
    findings(&doctor([&["--json"], args].concat()))
}

fn keys(all: &[Value]) -> Vec<&str> {
    all.iter().map(|f| f["key"].as_str().expect("a key")).collect()
}

fn finding<'a>(all: &'a [Value], key: &str) -> &'a Value {
    all.iter().find(|f| f["key"] == key).unwrap_or_else(|| panic!("no {key} in {:?}", keys(all)))
}

fn command(finding: &Value) -> &str {
    finding["command"].as_str().unwrap_or_else(|| panic!("no command in {finding}"))
}

/// Runs a command as the user would, with this hugelift on PATH.
fn run(command: &str) {
    let folder = Path::new(HUGELIFT).parent().expect("its folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let out = Command::new("sh").args(["-c", command]).env("PATH", path).output().expect("sh runs");
    assert!(out.status.success(), "{command}: {out:?}");
}

#[test]
fn nothing_on_a_well_set_machine() {
    let machine = Recorded::well_set();
    assert_eq!(keys(&on(&machine)), Vec::<&str>::new());
    let out = doctor([OsStr::new("--root"), machine.root().as_os_str()]);
    let shown = text(&out.stdout);
    assert!(
        shown.contains("nothing found") && shown.starts_with("Linux 6.18.0-recorded, Recorded CPU\n"),
        "{shown}"
    );
    assert!(shown.contains("\n  2985 pages of 2 MB could be had now"), "{shown}");
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
}

/// What is planted on a recorded machine, and by which file the command is seen to work; `None`
/// where no command can help.
type Plant = (&'static [&'static str], fn(&Recorded), Option<(&'static str, &'static str)>);

const PLANTS: [Plant; 27] = [
    (
        &["thp-never"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")),
    ),
    (
        &["thp-size-never"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
                "always inherit madvise [never]\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "inherit")),
    ),
    (
        &["thp-absent"],
        |m| fs::remove_dir_all(m.path("/sys/kernel/mm/transparent_hugepage")).expect("remove it"),
        None,
    ),
    (
        &["thp-off-here"],
        |m| m.write("/proc/self/status", "THP_enabled:\t0\nCapEff:\t0000000000000000\n"),
        None,
    ),
    (
        &["thp-defrag-never"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "always defer defer+madvise madvise [never]\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "madvise")),
    ),
    (
        &["thp-defrag-defer"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "always [defer] defer+madvise madvise never\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "defer+madvise")),
    ),
    (
        &["thp-defrag-always"],
        |m| {
            m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
            m.write(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "[always] defer defer+madvise madvise never\n",
            );
        },
        Some(("/sys/kernel/mm/transparent_hugepage/defrag", "madvise")),
    ),
    (
        &["khugepaged-defrag-off"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1")),
    ),
    (
        &["khugepaged-slow"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "600000\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "10000")),
    ),
    (
        &["khugepaged-slow"],
        |m| {
            m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "99999\n");
            m.write("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "1\n");
        },
        Some(("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "4096")),
    ),
    (
        &["shmem-off"],
        |m| {
            m.write(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise never [deny] force\n",
            )
        },
        Some(("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise")),
    ),
    (
        &["zero-page-off"],
        |m| m.write("/sys/kernel/mm/transparent_hugepage/use_zero_page", "0\n"),
        Some(("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1")),
    ),
    (
        &["pool-empty", "no-overcommit"],
        |m| {
            m.pool(0, 0, 0, 0, 0);
            // Its parts would not follow when the whole is set.
            fs::remove_dir_all(m.path("/sys/devices/system/node")).expect("remove the nodes");
        },
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64")),
    ),
    (
        &["no-overcommit"],
        |m| m.pool(256, 200, 0, 0, 0),
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "1000")),
    ),
    (
        &["pool-idle"],
        |m| m.pool(4096, 4000, 8, 0, 512),
        Some(("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "104")),
    ),
    (
        &["pool-node-empty"],
        |m| {
            m.node(0, 256, 200);
            m.node(1, 0, 0);
        },
        Some(("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "128")),
    ),
    (
        &["pool-other-nodes"],
        |m| {
            m.node(0, 256, 200);
            m.node(1, 0, 0);
            m.write("/proc/self/status", "CapEff:\t0\nMems_allowed_list:\t1\n");
        },
        Some(("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "128")),
    ),
    (
        &["fragmented"],
        |m| {
            m.write("/proc/buddyinfo", "Node 0, zone   Normal  30500  32500   9900   6120   4074   1381    356     61     14      2      2\n")
        },
        None,
    ),
    (
        &["strict-overcommit"],
        |m| {
            m.write("/proc/sys/vm/overcommit_memory", "2\n");
            m.write("/proc/meminfo", "MemTotal: 16384000 kB\nCommitLimit: 4200000 kB\nCommitted_AS: 4096000 kB\nHugepagesize: 2048 kB\n");
        },
        Some(("/proc/sys/vm/overcommit_memory", "0")),
    ),
    (
        &["itlb-multihit"],
        |m| {
            m.write(
                "/sys/devices/system/cpu/vulnerabilities/itlb_multihit",
                "KVM: Mitigation: VMX unsupported\n",
            );
            m.write("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n");
        },
        None,
    ),
    (
        &["no-proactive-compaction"],
        |m| m.write("/proc/sys/vm/compaction_proactiveness", "0\n"),
        Some(("/proc/sys/vm/compaction_proactiveness", "20")),
    ),
    (
        &["cgroup-hugetlb"],
        |m| m.write("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "0\n"),
        Some(("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "max")),
    ),
    (
        &["cgroup-hugetlb"],
        |m| {
            m.write("/proc/self/cgroup", "5:hugetlb:/a/b\n");
            m.write(
                "/proc/self/mountinfo",
                "36 31 0:32 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n",
            );
            m.write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "2097152\n");
            m.write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.usage_in_bytes", "2097152\n");
        },
        Some(("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "-1")),
    ),
    (
        &["cgroup-memory"],
        |m| m.write("/sys/fs/cgroup/user.slice/memory.max", "120000000\n"),
        Some(("/sys/fs/cgroup/user.slice/memory.max", "max")),
    ),
    (
        &["yama"],
        |m| m.write("/proc/sys/kernel/yama/ptrace_scope", "2\n"),
        Some(("/proc/sys/kernel/yama/ptrace_scope", "1")),
    ),
    (&["yama"], |m| m.write("/proc/sys/kernel/yama/ptrace_scope", "3\n"), None),
    (
        &["perf-paranoid"],
        |m| m.write("/proc/sys/kernel/perf_event_paranoid", "4\n"),
        Some(("/proc/sys/kernel/perf_event_paranoid", "2")),
    ),
];

#[test]
fn each_planted_fault_is_found_and_its_command_mends_it() {
    for (want, plant, proof) in PLANTS {
        let machine = Recorded::well_set();
        plant(&machine);
        let found = on(&machine);
        assert_eq!(keys(&found), want);
        let commands: Vec<&str> = found.iter().filter_map(|f| f["command"].as_str()).collect();
        for command in &commands {
            run(command);
        }
        let Some((file, value)) = proof else {
            // Nothing that a recorded machine could show.
            assert!(commands.is_empty() || machine.read("/proc/sys/vm/compact_memory") == "1\n", "{found:?}");
            continue;
        };
        assert_eq!(commands.len(), found.len(), "{found:?}");
        assert_eq!(machine.read(file).trim(), value, "{commands:?}");
        assert_eq!(keys(&on(&machine)), Vec::<&str>::new(), "after {commands:?}");
    }
}

/// Plants `value` in a setting of this machine; the finding comes, its command runs, the finding
/// is gone.
fn plant_here(path: &str, value: &str, key: &str) {
    if !Path::new(path).exists() {
        return common::skipped(&format!("no {path}"));
    }
    assert!(!keys(&here(&[])).contains(&key), "{key} before anything was planted");
    let _kept = Settings::keep(&[path]).expect("keep it");
    fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {e}"));
    let found = here(&[]);
    run(command(finding(&found, key)));
    assert!(!keys(&here(&[])).contains(&key), "{key} after {}", command(finding(&found, key)));
}

#[test]
fn faults_planted_on_this_machine_are_mended() {
    need_root!();
    let _ours = Exclusive::take().expect("the lock");
    let _baseline =
        Settings::keep(&[&format!("{THP}/enabled"), &format!("{THP}/defrag")]).expect("keep them");
    // Whatever the machine's taste is.
    fs::write(format!("{THP}/enabled"), "madvise").expect("set it");
    fs::write(format!("{THP}/defrag"), "madvise").expect("set it");
    for (file, value, key) in [
        ("enabled", "never", "thp-never"),
        ("hugepages-2048kB/enabled", "never", "thp-size-never"),
        ("defrag", "never", "thp-defrag-never"),
        ("defrag", "defer", "thp-defrag-defer"),
        ("khugepaged/defrag", "0", "khugepaged-defrag-off"),
        ("khugepaged/scan_sleep_millisecs", "3600000", "khugepaged-slow"),
        ("shmem_enabled", "deny", "shmem-off"),
        ("use_zero_page", "0", "zero-page-off"),
    ] {
        plant_here(&format!("{THP}/{file}"), value, key);
    }
    plant_here("/proc/sys/vm/compaction_proactiveness", "0", "no-proactive-compaction");
}

#[test]
fn an_empty_pool_and_one_that_is_used_up() {
    need_root!();
    let held = match Pool::with_free(0) {
        Ok(held) => held,
        Err(why) => skip!("{why}"),
    };
    let overcommit = format!("{POOL}/nr_overcommit_hugepages");
    let _kept = Settings::keep(&[&overcommit]).expect("keep it");
    fs::write(&overcommit, "0").expect("set it");
    let number = |name: &str| -> u64 {
        fs::read_to_string(format!("{POOL}/{name}")).expect(name).trim().parse().expect("a number")
    };
    let short = if number("nr_hugepages") == 0 { "pool-empty" } else { "pool-used-up" };
    let found = here(&[]);
    assert_eq!(finding(&found, "no-overcommit")["safe"], true);
    run(command(finding(&found, short)));
    let after = here(&[]);
    assert!(!keys(&after).contains(&short) && held.free() >= 64, "{:?}", keys(&after));
    run(command(finding(&after, "no-overcommit")));
    assert!(!keys(&here(&[])).contains(&"no-overcommit"));

    // All that there is goes to one program.
    let program = fat("hold").flags(&["-static"]).build();
    fs::write(&overcommit, "0").expect("set it");
    fs::write(format!("{POOL}/nr_hugepages"), (number("nr_hugepages") - held.free() + 2).to_string())
        .expect("set it");
    let cmd = Cmd::new([&program]);
    let running = Held::start(&cmd, Some(&["--backing", "hugetlb", "--quiet"]), &program);
    assert_eq!(held.free(), 0);
    let found = here(&["--pid", &running.pid().to_string()]);
    let wanted = command(finding(&found, "pool-used-up")).to_string();
    run(&wanted);
    assert!(held.free() > 0 && !keys(&here(&[])).contains(&"pool-used-up"), "{wanted}");
    drop(running);

    // And what it takes beyond the pool is surplus.
    fs::write(format!("{POOL}/nr_hugepages"), "0").expect("set it");
    fs::write(&overcommit, "64").expect("set it");
    let running = Held::start(&cmd, Some(&["--backing", "hugetlb"]), &program);
    if number("surplus_hugepages") < number("nr_hugepages") {
        skip!("somebody else has pages of the pool");
    }
    run(command(finding(&here(&[]), "pool-surplus")));
    assert_eq!(number("surplus_hugepages"), 0);
    assert!(!keys(&here(&[])).contains(&"pool-surplus"));
    drop(running);
}

#[test]
fn limits_of_a_control_group() {
    need_root!();
    let _ours = Exclusive::take().expect("the lock");
    for (controller, limits, value, key) in [
        ("hugetlb", ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"], "0", "cgroup-hugetlb"),
        ("memory", ["memory.max", "memory.limit_in_bytes"], "50000000", "cgroup-memory"),
    ] {
        let group = match CGroup::new(controller) {
            Ok(group) => group,
            Err(why) => {
                common::skipped(&why);
                continue;
            }
        };
        group.limit(&limits, value).expect("set the limit");
        let inside = || {
            let words = group.words();
            let out = Command::new(&words[0]).args(&words[1..]).args([HUGELIFT, "doctor", "--json"]).output();
            findings(&out.expect("it runs"))
        };
        let found = inside();
        assert!(!keys(&here(&[])).contains(&key), "outside the group");
        run(command(finding(&found, key)));
        assert!(!keys(&inside()).contains(&key), "{key}");
    }
}

#[test]
fn limits_of_a_shell() {
    let inside = |words: &str| {
        let line = format!("{words}; exec \"$0\" doctor --json");
        findings(&Command::new("sh").args(["-c", &line, HUGELIFT]).output().expect("sh runs"))
    };
    let found = inside("ulimit -S -l 64");
    let wanted = command(finding(&found, "memlock")).to_string();
    assert!(!keys(&inside(&format!("ulimit -S -l 64; {wanted}"))).contains(&"memlock"), "{wanted}");
    need!("prlimit");
    let running =
        Held::start(&Cmd::new(["sh", "-c", "ulimit -S -l 64; exec cat"]), None, &find("cat").expect("cat"));
    let pid = running.pid().to_string();
    let found = here(&["--pid", &pid]);
    run(command(finding(&found, "memlock")));
    assert!(!keys(&here(&["--pid", &pid])).contains(&"memlock"));
}

/// The interpreter itself: what is on PATH may be a script that finds it.
fn python3() -> PathBuf {
    let code = "import os, sys; print(os.path.realpath(sys.executable))";
    let out = Command::new("python3").args(["-c", code]).output().expect("python3 runs");
    PathBuf::from(text(&out.stdout).trim())
}

/// A Python program that does something to its memory and waits.
fn python(body: &str) -> Held {
    let program = python3();
    let script = format!("import mmap, os, sys, ctypes\n{body}\nsys.stdin.read()");
    Held::start(&Cmd::new([program.as_os_str(), OsStr::new("-c"), OsStr::new(&script)]), None, &program)
}

/// `megabytes` of private memory that asks for huge pages.
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
    // All of it written: nothing is wrong with that.
    let full = format!("{}\nm.write(b'x' * (96 << 20))", huge_memory(96));
    only(python(&full), &[]);
    let forks = format!("{full}\nif os.fork() == 0: os.close(0); os.read(os.pipe()[0], 1)");
    only(python(&forks), &["fork-thp"]);
    only(python("ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)"), &["process-thp-off"]);
    let own = doctor(["--json", "--pid", &std::process::id().to_string()]);
    let report: Value = serde_json::from_slice(&own.stdout).expect("JSON");
    if report["facts"]["process"]["huge_zero"].is_null() {
        skip!("needs Linux 6.7, which tells which pages are huge");
    }
    // A byte in each huge page.
    let sparse = format!("{}\nfor i in range(0, 96 << 20, 2 << 20): m[i] = 1", huge_memory(96));
    let found = only(python(&sparse), &["thp-bloat"]);
    assert!(
        finding(&found, "thp-bloat")["title"].as_str().expect("a title").starts_with("99 %"),
        "{found:#?}"
    );
    let read = format!("{}\ns = sum(m[i] for i in range(0, 96 << 20, 4096))", huge_memory(96));
    only(python(&read), &["huge-zero-pages"]);
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
    // Its page cache may happen to be in huge pages.
    if keys(&found).contains(&"code-not-huge") {
        let advice = finding(&found, "code-not-huge")["advice"].as_str().expect("advice").to_string();
        assert!(
            advice.contains(&format!("hugelift run -- {} -e 'process.stdin.resume()'", node.display())),
            "{advice}"
        );
        assert!(keys(&found).contains(&"program-offers"), "--use-largepages");
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
        None => common::skipped("needs gofmt"),
    }
}

#[test]
fn fix_runs_what_is_safe_and_nothing_else() {
    let machine = Recorded::well_set();
    machine.write(&format!("{THP}/enabled"), "always madvise [never]\n");
    machine.write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    let root = ["--root".as_ref(), machine.root().as_os_str()];
    let fix = |more: &[&str]| {
        let words = ["--fix"].iter().chain(more).map(OsStr::new).chain(root);
        Command::new(HUGELIFT).arg("doctor").args(words).stdin(Stdio::null()).output().expect("it runs")
    };
    let before = machine.files();
    let out = fix(&[]);
    assert_eq!((out.status.code(), machine.files() == before), (Some(125), true), "{out:?}");
    assert!(text(&out.stderr).contains("add --yes"), "{out:?}");
    let out = fix(&["--yes"]);
    let shown = text(&out.stdout);
    assert_eq!(machine.read(&format!("{THP}/enabled")), "madvise\n", "{shown}");
    assert_eq!(machine.read("/proc/sys/kernel/yama/ptrace_scope"), "2\n", "a matter of policy");
    assert!(shown.contains("echo madvise > ") && shown.contains("1 more that you must decide"), "{shown}");
    assert_eq!(out.status.code(), Some(1), "yama is still a problem");
    assert!(text(&fix(&["--yes"]).stdout).starts_with("nothing to fix"));
}

/// On a terminal it asks, and shows colours unless NO_COLOR says otherwise.
#[test]
fn on_a_terminal_it_asks() {
    need!("script");
    let machine = Recorded::well_set();
    let never = "always madvise [never]\n";
    let on_terminal = |options: &str, answer: &str, no_color: &str| {
        machine.write(&format!("{THP}/enabled"), never);
        let line = format!("'{HUGELIFT}' doctor {options} --root '{}'", machine.root().display());
        let mut child = Command::new("timeout")
            .args(["60", "script", "-qec", &line, "/dev/null"])
            .env("NO_COLOR", no_color)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        child.stdin.take().expect("stdin").write_all(answer.as_bytes()).expect("answer");
        let out = child.wait_with_output().expect("it ends");
        (text(&out.stdout), machine.read(&format!("{THP}/enabled")))
    };
    let (shown, after) = on_terminal("--fix", "n\n", "");
    assert!(shown.contains("run it? [y/N]") && shown.contains("\x1b[1;31mPROBLEM"), "{shown}");
    assert_eq!(after, never);
    let (shown, after) = on_terminal("--fix", "y\n", "1");
    assert!(shown.contains("done") && !shown.contains('\x1b'), "{shown}");
    assert_eq!(after, "madvise\n");
    let out = doctor([OsStr::new("--root"), machine.root().as_os_str()]);
    assert!(!text(&out.stdout).contains('\x1b'), "a pipe gets plain text");
}

#[test]
fn facts_can_be_judged_elsewhere() {
    let machine = Recorded::well_set();
    machine.write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    let printed = doctor([OsStr::new("--json"), OsStr::new("--root"), machine.root().as_os_str()]);
    let file = machine.path("facts.json");
    fs::write(&file, &printed.stdout).expect("write it");
    let again = doctor([OsStr::new("--json"), OsStr::new("--facts"), file.as_os_str()]);
    assert_eq!(text(&again.stdout), text(&printed.stdout));
    assert_eq!(again.status.code(), Some(1));
    for odd in ["", "{}", "[1]", "{\"facts\": 1}", "{\"facts\": {\"pools\": [{}]}}"] {
        fs::write(&file, odd).expect("write it");
        let out = doctor([OsStr::new("--facts"), file.as_os_str()]);
        let said = text(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{odd}: {said}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_said_in_one_line() {
    for (args, says) in [
        (&["--pid", "8388608"][..], "there is no process 8388608"),
        (&["--dir", "/no/such/folder"], "/no/such/folder is no folder"),
        (&["--facts", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let out = doctor(args);
        let said = text(&out.stderr);
        assert!(said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
        assert_eq!(out.status.code(), Some(125));
    }
    // Files are tried out where they are asked for, and leave nothing behind.
    let folder = tempfile::TempDir::new().expect("a folder");
    let out = doctor([OsStr::new("--dir"), folder.path().as_os_str()]);
    assert!(text(&out.stdout).contains(&format!("files in {}", folder.path().display())));
    assert_eq!(fs::read_dir(folder.path()).expect("read it").count(), 0);
}
