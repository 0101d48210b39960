// SPDX-License-Identifier: Apache-2.0
//! Suite: several memory nodes. The pool of a node, a policy (set_mempolicy(2)) or a cpuset can
//! forbid pages that the machine as a whole has. hugelift must get an error code for it, and the
//! program never a SIGBUS.

use crate::grow::{Big, grow};
use crate::huge::{Pool, option, sizes, thp};
use crate::look::{From, Look, Part};
use crate::mask::{Mask, under};
use crate::place::{alone, hugelift, lacks, needs_root, tmpfs};
use crate::shared::records;
use crate::start::{bare, lifted, run};
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KINDS: [&str; 2] = ["vm_big.static", "vm_big.pie"];
const MPOL_BIND: i32 = 2;

pub fn has_nodes() -> bool {
    ["node0", "node1"].iter().all(|n| Path::new("/sys/devices/system/node").join(n).exists())
}

/// Binds what `command` starts to one node.
fn bound(command: &mut Command, node: u32) -> &mut Command {
    let set = move || {
        let nodes: libc::c_ulong = 1 << node;
        // SAFETY: set_mempolicy(2) reads one word of node bits, a live local.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, &raw const nodes, 64) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(set) }
}

/// A cgroup whose memory must come from some nodes; removed on drop.
struct Cpuset(PathBuf);

impl Cpuset {
    fn new(nodes: &str) -> Cpuset {
        let dir = PathBuf::from(format!("/sys/fs/cgroup/machines-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let set = Cpuset(dir);
        set.allow(nodes);
        set
    }

    fn allow(&self, nodes: &str) {
        fs::write(self.0.join("cpuset.mems"), nodes).unwrap();
    }

    fn holding<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let procs = fs::File::options().write(true).open(self.0.join("cgroup.procs")).unwrap();
        // SAFETY: the closure makes one write(2): 0 stands for the writing process.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) }
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        for _ in 0..100 {
            // The last process may still be leaving.
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Reserves enough pages for a victim, all on one of two nodes.
fn pools(page: u64, node: u32) -> [Pool; 2] {
    let pools = [0, 1].map(|n| Pool::of_node(n, page));
    for (n, pool) in (0..).zip(&pools) {
        assert!(pool.set(if n == node { 16 } else { 0 }), "node {n}: no 16 pages of {page}");
    }
    pools
}

/// Each test needs two nodes and a page size, and runs alone.
macro_rules! two_nodes {
    () => {{
        needs_root!();
        if !has_nodes() {
            lacks!("one memory node");
        }
        let Some(page) = thp().filter(|p| sizes().contains(p)) else {
            lacks!("no THP, or no pool of its size")
        };
        (alone(), page)
    }};
}

fn options(page: u64) -> Vec<String> {
    ["--backing", "hugetlb", "--page-size", &option(page), "--seccomp", "try"].map(String::from).to_vec()
}

fn start(page: u64, big: &Big) -> Command {
    lifted(&options(page), &big.path, &[])
}

#[test]
fn policy_without_pool_pages() {
    let (_alone, page) = two_nodes!();
    let _pools = pools(page, 1);
    for kind in KINDS {
        let big = grow(kind, page);
        let run_bound = run(bound(&mut start(page, &big), 0));
        run_bound.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
        assert_eq!(run_bound.look().huge_in_all(From::Any), 0);
        run_bound.assert_line("not lifted");
    }
}

#[test]
fn policy_without_pool_pages_and_auto() {
    let (_alone, page) = two_nodes!();
    let _pools = pools(page, 1);
    for kind in KINDS {
        let big = grow(kind, page);
        let run_bound = run(bound(&mut lifted::<&str>(&[], &big.path, &[]), 0));
        run_bound.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
        run_bound.look().assert_lifted(page, From::Thp);
    }
}

#[test]
fn policy_with_pool_pages() {
    let (_alone, page) = two_nodes!();
    for node in [0, 1] {
        let pools = pools(page, node);
        let big = grow("vm_big.pie", page);
        let run_bound = run(bound(&mut start(page, &big), node));
        run_bound.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
        run_bound.look().assert_lifted(page, From::Hugetlb);
        run_bound.assert_silent();
        drop(pools);
    }
}

#[test]
fn cpuset_without_pool_pages() {
    let (_alone, page) = two_nodes!();
    let _pools = pools(page, 1);
    let set = Cpuset::new("0");
    for kind in KINDS {
        let big = grow(kind, page);
        let run_inside = run(set.holding(&mut start(page, &big)));
        run_inside.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
        assert_eq!(run_inside.look().huge_in_all(From::Any), 0);
        run_inside.assert_line("not lifted");
    }
}

/// Without MADV_POPULATE_WRITE the lack of pages shows in the same way.
#[test]
fn cpuset_without_pool_pages_or_populate() {
    let (_alone, page) = two_nodes!();
    let _pools = pools(page, 1);
    let set = Cpuset::new("0");
    let big = grow("vm_big.pie", page);
    let masks = [22, 23].map(|advice| Mask::argument(libc::SYS_madvise, 2, advice, libc::EINVAL));
    let run_inside = run(set.holding(under(&mut start(page, &big), &masks)));
    run_inside.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
    assert_eq!(run_inside.look().huge_in_all(From::Any), 0);
    run_inside.assert_line("not lifted");
}

/// All pages are faulted in before the program starts, so a later change of the cpuset does no
/// harm. Pages that were only reserved would then cause SIGBUS.
#[test]
fn cpuset_that_changes_later() {
    let (_alone, page) = two_nodes!();
    let _pools = pools(page, 1);
    let set = Cpuset::new("1");
    let big = grow("vm_big.pie", page);
    let mut command = start(page, &big);
    command.arg("hold").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = set.holding(&mut command).stdin(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("\nend\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    set.allow("0");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    out.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(42), "{}", String::from_utf8_lossy(&output.stderr));
    let looks = Look::all(&text);
    assert_eq!(looks.len(), 2);
    assert_eq!((looks[0].text, looks[0].rodata), (looks[1].text, looks[1].rodata));
    looks[0].assert_lifted(page, From::Hugetlb);
}

/// Returns what a waiting victim has printed, and its numa_maps meanwhile.
fn held(command: &mut Command) -> (Look, String) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("\nend\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let maps = fs::read_to_string(format!("/proc/{}/numa_maps", child.id())).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));
    (Look::all(&text).swap_remove(0), maps)
}

/// Returns what `hugelift inspect` says of the nodes of a process that waits, as a line and as data, and ends the process.
fn inspected(command: &mut Command) -> (String, Value) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.ends_with("\nend\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let pid = child.id().to_string();
    let inspect = |words: &[&str]| Command::new(hugelift()).arg("inspect").args(words).output().unwrap();
    let report = inspect(&[&pid]);
    let json = inspect(&["--json", &pid]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));
    let report = String::from_utf8(report.stdout).unwrap();
    let line = report.lines().find(|line| line.contains("the nearest to this process"));
    let line = line.unwrap_or_else(|| panic!("{report}")).to_string();
    let mut json: Value = serde_json::from_slice(&json.stdout).unwrap_or_else(|_| panic!("{json:?}"));
    (line, json["code_on_nodes"].take())
}

/// Returns which of the two nodes have pages of `part`, whose stated and loaded addresses must be
/// equal and start on a huge page.
fn nodes_of(part: Part, numa_maps: &str) -> [bool; 2] {
    let line = numa_maps.lines().find(|l| l.starts_with(&format!("{:x} ", part.start))).unwrap();
    [0, 1].map(|n| line.contains(&format!(" N{n}=")))
}

/// Transparent pages come from the node that the program is bound to, not from the helper's.
#[test]
fn thp_on_the_programs_node() {
    let (_alone, page) = two_nodes!();
    for node in [0, 1] {
        let big = grow("vm_big.static", page);
        let (look, maps) = held(bound(&mut lifted(&["--backing", "thp"], &big.path, &["hold"]), node));
        look.assert_lifted(page, From::Thp);
        for part in [look.text, look.rodata] {
            assert_eq!(nodes_of(part, &maps), [node == 0, node == 1], "node {node}: {maps}");
        }
    }
}

/// `--numa` overrides the policy under which the program would get its memory.
#[test]
fn placed_where_the_user_says() {
    let (_alone, page) = two_nodes!();
    let pools = [0, 1].map(|n| Pool::of_node(n, page));
    assert!(pools.iter().all(|pool| pool.set(16)), "no 16 pages of {page} on each node");
    for (backing, from) in [("thp", From::Thp), ("hugetlb", From::Hugetlb)] {
        for (numa, nodes) in [("1", [false, true]), ("0", [true, false]), ("interleave", [true, true])] {
            let big = grow("vm_big.static", page);
            let size = option(page);
            let options = ["--backing", backing, "--page-size", &size, "--numa", numa];
            // The node that its policy would give it.
            let otherwise = u32::from(numa == "0");
            let (look, maps) = held(bound(&mut lifted(&options, &big.path, &["hold"]), otherwise));
            look.assert_lifted(page, from);
            for part in [look.text, look.rodata] {
                assert_eq!(nodes_of(part, &maps), nodes, "{backing}, --numa {numa}: {maps}");
            }
        }
        // With `--numa local` it is on one node, on any of them.
        let big = grow("vm_big.static", page);
        let (look, maps) =
            held(&mut lifted(&["--backing", backing, "--numa", "local"], &big.path, &["hold"]));
        look.assert_lifted(page, from);
        let line = maps.lines().find(|l| l.starts_with(&format!("{:x} ", look.text.start))).unwrap();
        assert!(line.contains(" local "), "{line}");
    }
}

#[test]
fn nodes_that_it_may_not_use() {
    let (_alone, page) = two_nodes!();
    let big = grow("vm_big.static", page);
    let set = Cpuset::new("1");
    for (numa, node) in [("0", "0"), ("0-1", "0"), ("7", "7")] {
        let refused = run(set.holding(&mut lifted::<&str>(&["--numa", numa], &big.path, &[])));
        assert_eq!((refused.status.code(), refused.stdout.as_str()), (Some(125), ""), "--numa {numa}");
        refused.assert_line(&format!("--numa {numa}: node {node} is not among those that it may use, 1"));
    }
}

/// Binds what `command` starts to the one CPU that each node of the guest has.
fn pinned(command: &mut Command, cpu: usize) -> &mut Command {
    let pin = move || {
        // SAFETY: a set of CPUs is a plain array of words.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the number is below the 1024 bits of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: sched_setaffinity(2) reads the set, a live local.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(pin) }
}

/// Returns the file that numa_maps names for `part`.
fn file_of(part: Part, numa_maps: &str) -> String {
    let line = numa_maps.lines().find(|l| l.starts_with(&format!("{:x} ", part.start))).unwrap();
    line.split(" file=").nth(1).unwrap_or_else(|| panic!("{line}")).split(' ').next().unwrap().to_string()
}

/// With `--numa each` each process has the copy of its own node. Without it the second one has the first one's.
#[test]
fn issue_33_8_each_node_has_its_copy() {
    let (_alone, page) = two_nodes!();
    let Some(base) = tmpfs() else { lacks!("no tmpfs from which programs may run") };
    let big = grow("vm_big.static", page);
    for (options, apart) in [(&["--numa", "each"][..], true), (&[], false)] {
        let dir = tempfile::TempDir::new_in(base).unwrap();
        let store = dir.path().join("store");
        let options = [&["--backing", "shared"], options].concat();
        // The second round makes nothing.
        let seen: Vec<[String; 2]> = [(), ()]
            .map(|()| {
                [0, 1].map(|node| {
                    let mut command = lifted(&options, &big.path, &["hold"]);
                    let (look, maps) = held(pinned(command.env("HUGELIFT_STORE", &store), node));
                    look.assert_lifted(page, From::Any);
                    for part in [look.text, look.rodata] {
                        let here = if apart { node } else { 0 };
                        assert_eq!(nodes_of(part, &maps), [here == 0, here == 1], "on node {node}: {maps}");
                    }
                    file_of(look.text, &maps)
                })
            })
            .into();
        assert_eq!(seen[0], seen[1], "it has made another copy");
        assert_eq!(seen[0][0] != seen[0][1], apart, "{seen:?}");
        let records = records(&store);
        let on = |node| records.iter().filter(|name| name.ends_with(&format!("@node{node}.json"))).count();
        assert_eq!((records.len(), on(0), on(1)), if apart { (2, 1, 1) } else { (1, 0, 0) }, "{records:?}");
        let mut command = lifted(&options, &big.path, &["hold"]);
        let (line, json) = inspected(pinned(command.env("HUGELIFT_STORE", &store), 1));
        println!("numa: {options:?}: {line}");
        let remote = line.split("; ").nth(1).unwrap().split(" on other").next().unwrap().to_string();
        // The file's own pages at the edges, and libraries, may be on any node.
        assert_eq!(remote.ends_with(" MB"), !apart, "{line}");
        let [near, far] = ["near_bytes", "remote_bytes"].map(|key| json[key].as_u64().expect("bytes"));
        assert_eq!((&json["nearest"], far >= 1 << 20), (&1.into(), !apart), "{json}");
        assert!(near >= 1 << 20 || !apart, "{json}");
        println!("numa: {options:?}: {} of 2 processes have all their pages remote", u32::from(!apart));
    }
}

/// A process that may have no memory on its node has the copy that is for all nodes.
#[test]
fn issue_33_8_a_node_without_memory_for_it() {
    let (_alone, page) = two_nodes!();
    let Some(base) = tmpfs() else { lacks!("no tmpfs from which programs may run") };
    let dir = tempfile::TempDir::new_in(base).unwrap();
    let store = dir.path().join("store");
    let big = grow("vm_big.static", page);
    let set = Cpuset::new("0");
    let mut command = lifted(&["--backing", "shared", "--numa", "each"], &big.path, &["hold"]);
    let (look, maps) = held(pinned(set.holding(command.env("HUGELIFT_STORE", &store)), 1));
    look.assert_lifted(page, From::Any);
    assert_eq!(nodes_of(look.text, &maps), [true, false], "{maps}");
    let records = records(&store);
    assert!(records.len() == 1 && !records[0].contains('@'), "{records:?}");
}
