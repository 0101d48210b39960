// SPDX-License-Identifier: Apache-2.0
//! Processes with threads of the kernel, as io_uring has them: they never execute code of the program, so that none of them
//! can make a call for hugelift.

use super::command;
use crate::common::run::PATIENCE;
use crate::common::{Cmd, End, Held, fat};
use crate::{need_root, skip};
use serde_json::Value;

/// A worker that works in the kernel looks like a thread that computes, which loses nothing by a stop. It would be stopped for ten
/// seconds, and hugelift would wait for it: MariaDB had one in half of the lifts under load.
#[test]
fn a_worker_of_io_uring_is_not_borrowed() {
    need_root!();
    let off = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    if off.as_deref().map_or(true, |off| off.trim() != "0") {
        skip!("io_uring is disabled, or older than its switch");
    }
    let program = fat("worker").build();
    let held = Held::start_busy(&Cmd::new([&program]), None, &program);
    let worker = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", held.pid())).expect("its threads");
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        tasks.flatten().filter_map(name).any(|name| name.starts_with("iou-wrk-"))
    };
    assert!(worker(), "no worker of io_uring");
    for verb in ["attach", "restore", "attach", "restore"] {
        let outcome = command(verb, &[held.pid()]).arg("--json").patience(2 * PATIENCE).bare();
        assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{verb}: {outcome:?}");
        let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let row = &result["processes"][0];
        assert!(row["borrowed"].as_u64() > Some(0), "{row}");
        let longest = row["longest_stop_us"].as_u64().expect("a number");
        assert!(longest < 9_000_000, "{verb}: a thread was stopped for {longest} us");
    }
    assert!(worker(), "no worker of io_uring at the end");
    let told = held.finish();
    assert_eq!((told.end, &*told.stdout), (End::Code(0), "ready\nwrong 0\n"));
}
