// SPDX-License-Identifier: Apache-2.0
//! A day of a machine in ten minutes: starts, ends, upgrades, policies good and bad, memory that is short by a budget and by
//! the kernel's own report, and a service that is killed fifty times. It harms no process, and neither grows nor loses its ledger.

use super::common::cache::copy;
use super::common::run::{End, finished};
use super::common::thrashing::Thrashing;
use super::common::{CGroup, Cmd, HUGELIFT};
use super::host::{Game, Host};
use crate::{need, need_root, skip};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIVES: u32 = 50;
const LIFE: Duration = Duration::from_secs(12);
/// In one of so many lives memory is short.
const SHORT: u32 = 5;
/// Between two starts of programs.
const STEP: Duration = Duration::from_millis(100);

/// What one life of the service has taken at its end.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Bytes that the service and its helpers have in memory.
    memory: u64,
    descriptors: usize,
    /// Clock ticks of CPU time.
    ticks: u64,
}

fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the service and its helpers.
fn processes(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all = children
        .flat_map(|all| all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>());
    std::iter::once(pid).chain(all).collect()
}

fn cost(pid: u32) -> Cost {
    let mut sum = Cost { memory: 0, descriptors: 0, ticks: 0 };
    for pid in processes(pid) {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        sum.memory += number(&read("status"), "RssAnon:") << 10;
        sum.descriptors += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let stat = read("stat");
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
        sum.ticks += fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    }
    sum
}

/// A server that runs the whole day. It checks its code when its stdin ends.
fn server(host: &Host) -> Child {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(host.path("honest")).arg("spin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts")
}

/// What happens in one step of a life.
fn step(host: &Host, number: u32) -> Game {
    let new = host.path("user/new");
    match number % 120 {
        // An upgrade.
        20 | 70 => {
            copy(host.path("kept"), &new);
            fs::rename(&new, host.path("user/games")).expect("rename");
        }
        // A policy with less memory, and one that is not in order.
        30 => {
            host.write_policy("8M");
            host.reload();
        }
        50 => {
            fs::write(host.path("service.toml"), "[[rule]]\nnane = 1\n").expect("write");
            host.reload();
        }
        90 => {
            host.write_policy("64M");
            host.reload();
        }
        _ => {}
    }
    match number % 40 {
        0 => host.game(&["exits", "2500"]),
        17 => host.game(&["execs", "400"]),
        _ => host.game(&["exits", "10"]),
    }
}

/// Returns the microseconds that some task has waited for memory since the machine has started.
fn waited() -> u64 {
    let text = fs::read_to_string("/proc/pressure/memory").expect("the kernel's pressure");
    let total = text.lines().next().and_then(|some| some.rsplit("total=").next()?.parse().ok());
    total.unwrap_or_else(|| panic!("{text}"))
}

fn mean(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    costs.iter().map(of).sum::<f64>() / costs.len() as f64
}

#[test]
#[ignore = "long: ten minutes"]
fn issue_33_a_day_with_fifty_kills() {
    need_root!();
    need!("setpriv", "nice", "sqlite3");
    if !fs::exists("/proc/pressure/memory").expect("/proc") {
        skip!("the kernel does not report memory pressure");
    }
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "16M") {
        skip!("{why}");
    }
    let (mut host, before) = (Host::start(), waited());
    copy(host.path("user/games"), host.path("kept"));
    let servers: Vec<Child> = (0..3).map(|_| server(&host)).collect();
    let mut costs = Vec::new();
    for life in 0..LIVES {
        let began = Instant::now();
        let mut games = Vec::new();
        let _short = (life % SHORT == 1).then(|| Thrashing::start(&group, &host.path("large")));
        for number in 0.. {
            let due = began + STEP * number;
            if due > began + LIFE {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            games.push(step(&host, number));
        }
        costs.push(cost(host.pid()));
        host.write_policy("64M");
        host.restart();
        // What goes on without an end is killed, and the others have ended well.
        games.into_iter().for_each(Game::ends_or_goes_on);
    }
    host.is_sound();
    for mut server in servers {
        drop(server.stdin.take());
        let done = finished(server);
        assert_eq!((done.end, done.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"));
    }
    assert!(host.lifts() < Duration::from_secs(60));
    let short = Duration::from_micros(waited() - before);
    println!("some task has waited {short:?} for memory");
    assert!(short >= LIFE, "memory was not short: some task has waited {short:?} for it");

    let (first, last) = (&costs[..costs.len() / 4], &costs[costs.len() * 3 / 4..]);
    for (what, of, slack) in [
        ("bytes of memory", (|cost: &Cost| cost.memory as f64) as fn(&Cost) -> f64, 8e6),
        ("descriptors", |cost| cost.descriptors as f64, 8.0),
        ("ticks of CPU time", |cost| cost.ticks as f64, 60.0),
    ] {
        let (before, after) = (mean(first, of), mean(last, of));
        println!("{what}: {before:.0} in the first quarter, {after:.0} in the last one");
        assert!(
            after < before * 1.3 + slack,
            "{what}: {before} in the first quarter, {after} in the last one"
        );
    }

    let ledger = host.path("state/ledger.db");
    let whole = Command::new("sqlite3").arg(&ledger).arg("PRAGMA integrity_check").output().expect("sqlite3");
    assert_eq!(whole.stdout, b"ok\n");
    let names: Vec<_> =
        fs::read_dir(host.path("state")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(!names.iter().any(|name| name.as_encoded_bytes().ends_with(b"damaged")), "{names:?}");
    let said = Cmd::new([HUGELIFT, "service", "report", "--ledger"]).arg(&ledger).bare();
    assert!(said.end == End::Code(0) && said.stdout.starts_with("this machine: "), "{said:?}");

    let store = |word: &str| Cmd::new([HUGELIFT, "store", "--store"]).arg(host.store()).arg(word).bare();
    assert_eq!(store("gc").end, End::Code(0));
    let left = fs::read_dir(host.store()).expect("the store").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.as_encoded_bytes().ends_with(b".new")).collect();
    assert!(left.is_empty(), "{left:?}");
}
