// SPDX-License-Identifier: Apache-2.0
//! Plants faults on this machine, and restores its settings.

use super::*;
use crate::{need, need_root, skip};

/// Plants `value` in a setting of this machine, and checks that doctor reports it, and that the reported
/// command removes the finding.
fn plant_here(path: &str, value: &str, key: &str) {
    if !Path::new(path).exists() {
        return crate::common::skipped(&format!("no {path}"));
    }
    assert!(!keys(&here(&[])).contains(&key), "{key} is reported before anything was planted");
    let _kept = Settings::keep(&[path]).expect("keep it");
    fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {e}"));
    let found = here(&[]);
    run(command(finding(&found, key)));
    assert!(!keys(&here(&[])).contains(&key), "{key} even after {}", command(finding(&found, key)));
}

#[test]
fn faults_planted_on_this_machine_are_mended() {
    need_root!();
    let _ours = Exclusive::take().expect("the lock");
    let _baseline =
        Settings::keep(&[&format!("{THP}/enabled"), &format!("{THP}/defrag")]).expect("keep them");
    // The faults below are planted into these settings, whatever the machine had.
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

    // One program takes all free pages of the pool.
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

    // Pages that a program takes beyond the pool are surplus.
    fs::write(format!("{POOL}/nr_hugepages"), "0").expect("set it");
    fs::write(&overcommit, "64").expect("set it");
    let running = Held::start(&cmd, Some(&["--backing", "hugetlb"]), &program);
    if number("surplus_hugepages") < number("nr_hugepages") {
        skip!("another process has pages of the pool");
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
                crate::common::skipped(&why);
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
        assert!(!keys(&here(&[])).contains(&key), "{key} is reported outside the group");
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

#[test]
fn issue_13_b3_a_lifted_process_has_no_problem_on_a_machine_without_huge_pages() {
    need_root!();
    let _ours = Exclusive::take().expect("the lock");
    let program = fat("hold").flags(&["-static"]).build();
    let running = Held::start(&Cmd::new([&program]), Some(&["--backing", "thp", "--quiet"]), &program);
    let enabled = format!("{THP}/enabled");
    let _kept = Settings::keep(&[&enabled]).expect("keep it");
    fs::write(&enabled, "never").expect("set it");
    let pid = running.pid().to_string();
    let out = doctor(["--json", "--pid", &pid]);
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let code = &report["facts"]["process"]["text"];
    assert_eq!(code["huge"], code["liftable"], "some code is not on huge pages: {code}");
    let found = findings(&out);
    assert_eq!(finding(&found, "thp-never")["severity"], "note");
    assert!(found.iter().all(|f| f["severity"] != "problem"), "{found:#?}");
    drop(running);
    assert_eq!(finding(&here(&[]), "thp-never")["severity"], "problem", "not one of the machine");
}

/// Runs in its own pid namespace, so that doctor sees no other programs.
#[test]
fn issue_13_b3_it_ends_with_the_programs_most_worth_a_lift() {
    use hugelift_measure::generated::{Hot, Linking, jumps, run_of};
    need_root!();
    need!("unshare");
    let program = run_of(&jumps(16, Linking::Dynamic).expect("the program"), Hot::OneAPage, 4_000_000_000);
    // A copy, which is not primed.
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let own = dir.path().join("jumper");
    crate::common::cache::copy(&program.argv[0], &own);
    let arguments: Vec<&OsStr> = program.argv[1..].iter().map(OsString::as_os_str).collect();
    let look = |lines: &str| {
        let out = Command::new("timeout")
            .args(["300", "unshare", "-pf", "--mount-proc", "sh", "-c", lines, HUGELIFT])
            .arg(&own)
            .args(&arguments)
            .output()
            .expect("unshare runs");
        assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
        text(&out.stdout)
    };
    let busy = "while [ \"$(cut -d' ' -f14 /proc/$!/stat)\" -lt 150 ]; do sleep 0.1; done";
    let shown = look(&format!("\"$@\" >/dev/null & {busy}; \"$0\" doctor"));
    let (_, paragraph) = shown
        .split_once("\nthe running programs that are most worth a lift")
        .unwrap_or_else(|| panic!("{shown}"));
    let command = format!("    run   hugelift run -- {}\n", own.display());
    assert_eq!(paragraph.matches("    run   ").count(), 1, "{shown}");
    assert!(paragraph.contains(&command), "{shown}");
    // Once the advice is followed, the paragraph is gone.
    let shown = look(&format!("\"$0\" run --eager -- \"$@\" >/dev/null & {busy}; \"$0\" doctor"));
    assert!(!shown.contains("most worth a lift"), "{shown}");
    let shown = look("\"$0\" doctor");
    assert!(!shown.contains("most worth a lift"), "{shown}");
}

/// A program with shared memory of its own, which it maps wherever the kernel puts it.
const SHARES: &str = "import mmap, os, sys, zlib\n\
    m = mmap.mmap(-1, 128 << 20)\n\
    for at in range(0, len(m), 4096): m[at:at + 8] = at.to_bytes(8, 'little')\n\
    print('ready', flush=True)\n\
    sys.stdin.readline()\n\
    print(all(m[at:at + 8] == at.to_bytes(8, 'little') for at in range(0, len(m), 4096)))";

/// The kernel aligns shared memory under `advise`, and not under `never`; under `deny` nothing of it gets huge pages.
#[test]
fn issue_32_2_shared_memory_that_is_not_aligned() {
    need_root!();
    need!("python3");
    let python = processes::python3();
    let _ours = Exclusive::take().expect("the lock");
    let setting = format!("{THP}/shmem_enabled");
    let _kept = Settings::keep(&[&setting]).expect("keep it");
    fs::write(&setting, "never").expect("set it");
    let start = || Held::start(&Cmd::new([&python]).args(["-c", SHARES]), None, &python);
    let attach = |held: &Held| {
        let words = [HUGELIFT, "attach", "--parts", "shm", "--cpu-budget", "60"];
        let out = Cmd::new(words).arg(held.pid().to_string()).bare();
        assert_eq!(out.end, End::Code(0), "{out:?}");
        out.stdout
    };
    let of = |held: &Held, key: &str| {
        let found = here(&["--pid", &held.pid().to_string()]);
        found.into_iter().find(|finding| finding["key"] == key)
    };
    let finish = |held: Held| assert_eq!(held.finish().stdout, "ready\nTrue\n");

    // By chance, once in 512 times, it is aligned.
    let is_aligned = |held: &Held| {
        let maps = held.proc("maps");
        maps.lines()
            .filter(|line| line.ends_with("/dev/zero (deleted)"))
            .all(|line| line[..12].ends_with("00000"))
    };
    let held = std::iter::repeat_with(start).find(|held| !is_aligned(held)).expect("one that is not aligned");
    let offer = of(&held, "shmem-unaligned").expect("it is offered");
    let said = attach(&held);
    assert!(said.contains("whose address does not match its offset"), "{said}");
    finish(held);
    run(command(&offer));

    let held = start();
    assert_eq!(of(&held, "shmem-unaligned"), None);
    let small = of(&held, "shmem-small").expect("it is offered");
    assert!(small["advice"].as_str().is_some_and(|advice| advice.contains("attach --parts shm")), "{small}");
    fs::write(&setting, "deny").expect("set it");
    let said = attach(&held);
    assert!(said.contains("shmem_enabled is 'deny'"), "{said}");
    fs::write(&setting, "advise").expect("set it");
    let said = attach(&held);
    assert!(said.contains(" MB of shared memory is on huge pages now"), "{said}");
    assert_eq!(of(&held, "shmem-small"), None, "{said}");
    finish(held);
}
