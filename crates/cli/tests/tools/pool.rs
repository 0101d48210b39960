// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift pool` on this machine's pools, and on those of a recorded machine with two nodes.

use crate::common::guard::{Exclusive, Settings};
use crate::common::recorded::Recorded;
use crate::common::{Cmd, HUGELIFT, Held, Pool, fat, fits};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Output};

const DIR: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const NUMBERS: [(&str, &str); 5] = [
    ("total", "nr_hugepages"),
    ("free", "free_hugepages"),
    ("reserved", "resv_hugepages"),
    ("surplus", "surplus_hugepages"),
    ("overcommit", "nr_overcommit_hugepages"),
];

fn pool<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(HUGELIFT).arg("pool").args(args).output().expect("hugelift runs")
}

/// Runs a command, as typed after `hugelift pool`, on a recorded machine. The command must succeed.
fn on(machine: &Recorded, line: &str) -> String {
    let out = on_any(machine, line);
    let (shown, said) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{line}: {:?}\n{shown}{said}", out.status);
    shown + &said
}

fn on_any(machine: &Recorded, line: &str) -> Output {
    let root = machine.root().to_str().expect("a UTF-8 path");
    pool(line.split_whitespace().chain(["--root", root]))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(out: &Output) -> Value {
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let of = |name: &str| shown.get(name).is_some();
    fits(
        if of("changes") {
            "pool-set"
        } else if of("programs") {
            "pool-need"
        } else {
            "pool"
        },
        &shown,
    );
    shown
}

/// Returns the pool of 2 MB pages as `show` prints it.
fn shown() -> Value {
    let out = pool(["show", "--json"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let shown = json(&out);
    assert_eq!(shown["version"], 1);
    let pools = shown["pools"].as_array().expect("pools").clone();
    pools.into_iter().find(|p| p["page_size"] == 2 << 20).expect("a pool of 2 MB")
}

fn number(path: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.trim().parse().unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns a number of /proc/meminfo.
fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).expect(name);
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

fn agrees(shown: &Value) {
    for (key, file) in NUMBERS {
        assert_eq!(shown[key], number(&format!("{DIR}/{file}")), "{key}: {shown}");
    }
    if shown["default"] == true {
        for (key, name) in [("total", "Total"), ("free", "Free"), ("reserved", "Rsvd"), ("surplus", "Surp")] {
            assert_eq!(shown[key], meminfo(&format!("HugePages_{name}")), "{key}: {shown}");
        }
    }
    for node in shown["nodes"].as_array().expect("nodes") {
        let folder = format!("/sys/devices/system/node/node{}/hugepages/hugepages-2048kB", node["node"]);
        for (key, file) in [("total", "nr_hugepages"), ("free", "free_hugepages")] {
            assert_eq!(node[key], number(&format!("{folder}/{file}")), "{node}");
        }
    }
}

#[test]
fn set_and_show_agree_with_the_kernel() {
    need_root!();
    let held = match Pool::with_free(0) {
        Ok(held) => held,
        Err(why) => skip!("{why}"),
    };
    let overcommit = format!("{DIR}/nr_overcommit_hugepages");
    let kept = Settings::keep(&[&overcommit]).expect("keep the overcommit");
    let before = number(&format!("{DIR}/nr_hugepages"));
    for (amount, want) in [("+3", before + 3), ("-1", before + 2), ("+3M", before + 4)] {
        let out = pool(["set", &format!("2M={amount}"), "--overcommit", "7"]);
        assert!(out.status.success(), "{out:?}");
        assert!(text(&out.stdout).contains(&format!("{want} asked for, {want} got")), "{out:?}");
        let shown = shown();
        agrees(&shown);
        assert_eq!((&shown["total"], &shown["overcommit"]), (&want.into(), &7.into()));
        let table = text(&pool::<&str>([]).stdout);
        let row = table.lines().find(|l| l.starts_with("2 MB")).expect("a row");
        assert!(row.split_whitespace().any(|w| w == want.to_string()), "{table}");
        assert!(before > 0 || table.contains(&format!("\n{}\n", "░".repeat(want as usize))), "{table}");
    }
    // Pages added to a node also count in the total.
    let out = pool(["set", "2M=+2", "--node", "0", "--json"]);
    assert!(out.status.success(), "{out:?}");
    let change = &json(&out)["changes"][0];
    assert_eq!((&change["got"], &change["node"]), (&change["asked"], &0.into()), "{change}");
    assert_eq!(shown()["total"], before + 6);
    drop((kept, held));
}

/// Each of these reads the size and sets one more: none may miss what another one has set meanwhile.
#[test]
fn of_commands_at_a_time_each_changes_the_pool() {
    let machine = Recorded::well_set();
    let pages = || number(machine.path(&format!("{DIR}/nr_hugepages")).to_str().expect("a UTF-8 path"));
    let before = pages();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| on(&machine, "set 2M=+1"));
        }
    });
    assert_eq!(pages(), before + 6);
}

/// strace(1) sends SIGINT at the write that lets the pool grow: the kernel stops after a page.
#[test]
fn an_interrupt_puts_the_pool_back() {
    need_root!();
    need!("strace");
    let held = match Pool::with_free(0) {
        Ok(held) => held,
        Err(why) => skip!("{why}"),
    };
    let file = format!("{DIR}/nr_hugepages");
    let before = number(&file);
    for signal in ["INT", "TERM"] {
        let mut traced = Command::new("strace");
        traced.args(["-qq", "-o", "/dev/null", "-P", &file, "-e", "trace=write", "-e"]);
        traced.arg(format!("inject=write:signal={signal}:when=1"));
        let out = traced.args([HUGELIFT, "pool", "set", "2M=+40"]).output().expect("strace");
        assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(130), ""), "{out:?}");
        assert!(text(&out.stderr).contains("interrupted: the pools are as they were before"), "{out:?}");
        assert_eq!(number(&file), before, "{out:?}");
    }
    drop(held);
}

#[test]
fn dry_run_leaves_this_machine_as_it_is() {
    let _ours = Exclusive::take().expect("the lock");
    let files = || {
        let etc = ["/etc/sysctl.d/60-hugelift.conf", "/etc/tmpfiles.d/hugelift.conf"];
        let numbers = NUMBERS.map(|(_, file)| format!("{DIR}/{file}"));
        let numbers = numbers.into_iter().chain(["/proc/sys/vm/nr_hugepages".to_string()]);
        let all = numbers.chain(etc.map(String::from));
        all.map(|path| fs::read(&path).ok()).collect::<Vec<_>>()
    };
    let before = files();
    let out = pool(["set", "2M=+5", "--overcommit", "+9", "--persist", "--dry-run"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert!(text(&out.stdout).contains(&format!("{DIR}/nr_hugepages (now ")), "{out:?}");
    assert_eq!(files(), before);
}

#[test]
fn dry_run_leaves_every_file_byte_for_byte() {
    let machine = Recorded::well_set();
    machine.write("/etc/sysctl.d/60-hugelift.conf", "vm.nr_hugepages=1");
    let before = machine.files();
    let shown = on(&machine, "set 2M=+5 1G=1 --overcommit 2M=+9 --persist --dry-run");
    assert!(shown.contains("would write 261 to ") && shown.contains("nr_hugepages (now 256)"), "{shown}");
    assert!(shown.contains("  vm.nr_hugepages = 261\n"), "{shown}");
    on(&machine, "set 2M=7 --node 1 --persist --dry-run --json");
    assert_eq!(machine.files(), before);
}

/// Lines that cannot be read are not replaced, and no pool is changed.
#[test]
fn a_file_for_every_boot_that_cannot_be_read_stays() {
    let machine = Recorded::well_set();
    let kept = machine.path("etc/sysctl.d/60-hugelift.conf");
    let bytes = b"# caf\xe9\nvm.nr_overcommit_hugepages = 3\n";
    fs::create_dir_all(kept.parent().expect("a folder")).expect("mkdir");
    fs::write(&kept, bytes).expect("write");
    let pages = || machine.read(&format!("{DIR}/nr_hugepages"));
    let before = pages();
    let refused = on_any(&machine, "set 2M=128 --persist");
    let said = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(125) && said.contains("60-hugelift.conf: it cannot be read"),
        "{said}"
    );
    assert_eq!((pages(), fs::read(&kept).expect("read")), (before, bytes.to_vec()));
}

#[test]
fn a_node_gets_its_share_and_keeps_it() {
    let machine = Recorded::well_set();
    let node = |n: u32| {
        machine.read(&format!("/sys/devices/system/node/node{n}/hugepages/hugepages-2048kB/nr_hugepages"))
    };
    on(&machine, "set 2M=128 --persist");
    assert!(machine.read("/etc/sysctl.d/60-hugelift.conf").ends_with("\nvm.nr_hugepages = 128\n"));
    assert_eq!(
        machine.read("/proc/sys/vm/compact_memory"),
        "",
        "memory was compacted although the pool shrank"
    );
    let said = on(&machine, "set 2M=+72 --node 1 --persist");
    assert!(said.contains("2 MB pages on node 1: 200 asked for, 200 got (before: 128)"), "{said}");
    assert_eq!((node(0), node(1)), ("128\n".into(), "200\n".into()));
    assert_eq!(machine.read("/sys/devices/system/node/node1/compact"), "1\n");
    assert_eq!(machine.read("/sys/devices/system/node/node0/compact"), "");
    // This line would give all nodes an even share at the next boot.
    assert!(!machine.read("/etc/sysctl.d/60-hugelift.conf").contains("\nvm.nr_hugepages"));
    let lines = machine.read("/etc/tmpfiles.d/hugelift.conf");
    for (n, pages) in [(0, 128), (1, 200)] {
        let path = format!("/sys/devices/system/node/node{n}/hugepages/hugepages-2048kB/nr_hugepages");
        assert!(lines.contains(&format!("\nw {path} - - - - {pages}\n")), "{lines}");
    }
    assert!(said.contains("only systemd-tmpfiles reads"), "{said}");
    let leftovers = machine.files().into_keys().filter(|p| p.to_string_lossy().ends_with(".new")).count();
    assert_eq!(leftovers, 0);
}

/// systemd-tmpfiles and sysctl themselves read the files that were written.
#[test]
fn the_files_are_what_boot_programs_read() {
    need!("systemd-tmpfiles", "sysctl");
    let machine = Recorded::well_set();
    on(&machine, "set 2M=96 1G=3 --overcommit 2M=64 --persist");
    machine.pool(1, 1, 0, 0, 1);
    let giant = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
    machine.write(giant, "0\n");
    let root = format!("--root={}", machine.root().display());
    let out = Command::new("systemd-tmpfiles").args(["--create", &root]).output().expect("it runs");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(machine.read(giant).trim(), "3", "{out:?}");
    // sysctl's --dry-run only prints what it would write.
    let file = machine.path("/etc/sysctl.d/60-hugelift.conf");
    let out = Command::new("sysctl").args(["--dry-run", "-p"]).arg(file).output().expect("it runs");
    assert!(out.status.success(), "{out:?}");
    let said = text(&out.stdout);
    assert!(
        said.contains("vm.nr_hugepages = 96") && said.contains("vm.nr_overcommit_hugepages = 64"),
        "{said}"
    );
}

#[test]
fn a_file_that_sets_it_later_is_named() {
    let machine = Recorded::well_set();
    machine.write("/usr/lib/sysctl.d/70-db.conf", "vm/nr_hugepages=4\n");
    machine.write("/etc/sysctl.d/10-early.conf", "vm.nr_hugepages=4\n");
    let said = on(&machine, "set 2M=8 --persist");
    assert!(said.contains("70-db.conf is read later") && !said.contains("10-early"), "{said}");
}

/// Over the pool's file lies a setting that accepts any number and keeps less of it: the core dump filter of the process that
/// writes it, which is hugelift itself.
#[test]
fn a_shortage_shows_in_the_exit_status() {
    need_root!();
    need!("unshare");
    let machine = Recorded::well_set();
    let file = machine.path(&format!("{DIR}/nr_hugepages"));
    let now = number("/proc/self/coredump_filter");
    // The kernel drops bits above those that exist: the filter keeps its present value.
    let bits = u64::from_str_radix(&now.to_string(), 16).expect("a number");
    let asked = (1 << 20) + bits;
    let script = format!(
        "mount --bind /proc/$$/coredump_filter \"$1\" && exec {HUGELIFT} pool set 2M={asked} --root \"$2\""
    );
    let out = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .args([file.as_path(), machine.root()])
        .output()
        .expect("unshare");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(text(&out.stdout).contains(&format!("{asked} asked for, {now} got")), "{out:?}");
    assert!(text(&out.stderr).contains(&format!("{} pages of 2 MB are missing", asked - now)), "{out:?}");
}

#[test]
fn impossible_requests_are_refused_in_one_line() {
    let machine = Recorded::well_set();
    for (line, says) in [
        ("set 64M=1", "it has 1 GB, 2 MB"),
        ("set 2M=1 --node 5", "nodes that have one: 0, 1"),
        ("set 2M=1 2M=2", "named twice"),
        ("need /no/such/program", "cannot read /no/such/program"),
        ("need --backing thp /bin/true", "only hugetlb"),
    ] {
        let out = on_any(&machine, line);
        let said = text(&out.stderr);
        assert!(said.contains(says) && said.lines().count() == 1, "{line}: {said}");
        assert!(matches!(out.status.code(), Some(125 | 127)), "{line}: {:?}", out.status);
    }
    fs::remove_dir_all(machine.path("/sys/kernel/mm/hugepages")).expect("remove the pools");
    assert!(on(&machine, "show").contains("no hugetlb pools"));
    assert!(text(&on_any(&machine, "set 1").stderr).contains("no hugetlb pools"));
}

/// A pool of the size that `need` prints is enough for a run, and one page less is not.
#[test]
fn need_is_what_a_run_takes() {
    need_root!();
    let program = fat("hold").flags(&["-static"]).build();
    let name = program.to_str().expect("a UTF-8 path");
    let out = pool(["need", "--json", name]);
    let need = json(&out)["pages"]["2097152"].as_u64().unwrap_or_else(|| panic!("{out:?}"));
    assert!(need >= 4, "{out:?}");
    let twice = json(&pool(["need", "--json", name, name]));
    assert_eq!(twice["pages"]["2097152"], 2 * need);
    let short = |pages: u64| {
        let held = match Pool::with_free(pages) {
            Ok(held) => held,
            Err(why) => return Err(why),
        };
        let status = pool(["need", name]).status.code();
        let running = Held::start(&Cmd::new([name]), Some(&["--backing", "hugetlb"]), &program);
        let left = held.free();
        let lines = running.finish().own_lines().len();
        Ok((status, left, lines))
    };
    match (short(need), short(need - 1)) {
        (Ok(enough), Ok(short)) => {
            assert_eq!(enough, (Some(0), 0, 0), "status of need, pages left, lines of hugelift");
            assert_eq!((short.0, short.2 > 0), (Some(1), true), "{short:?}");
        }
        (enough, short) => skip!("{enough:?} {short:?}"),
    }
}
