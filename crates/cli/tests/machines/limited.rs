// SPDX-License-Identifier: Apache-2.0
//! Suite: memory limits of control groups, version 2. A program that runs under a limit without
//! hugelift also runs lifted: the lift takes none of the memory that the limit allows the program.

use crate::grow::grow;
use crate::huge::thp;
use crate::place::{alone, lacks, needs_root};
use crate::start::{Run, bare, lifted, run};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MB: u64 = 1 << 20;
const ROOT: &str = "/sys/fs/cgroup";

/// A control group with the memory controller; removed on drop.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let has = fs::read_to_string(Path::new(ROOT).join("cgroup.subtree_control")).ok()?;
        if !has.split_whitespace().any(|controller| controller == "memory") {
            return None;
        }
        let dir = PathBuf::from(format!("{ROOT}/limited-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        Some(Group(dir))
    }

    fn limit(&self, value: &str) {
        fs::write(self.0.join("memory.max"), value).expect("memory.max");
    }

    fn peak(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.peak")).expect("memory.peak");
        text.trim().parse().expect("a number")
    }

    fn run(&self, command: &mut Command) -> Run {
        let procs = fs::File::options().write(true).open(self.0.join("cgroup.procs")).expect("cgroup.procs");
        // SAFETY: the closure makes one write(2): 0 stands for the writing process.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
        run(command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended keeps the group busy for a moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn whatever_runs_under_a_limit_runs_lifted() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let Some(group) = Group::new() else {
        lacks!("the memory controller is not bound to version 2 of control groups")
    };
    let big = grow("vm_big.static", page);
    let start = || bare::<&str>(&big.path, &[]);
    let expected = group.run(&mut start());
    let least = group.peak();
    let mut compared = 0;
    for share in 0..4 {
        group.limit(&(least + 2 * MB + share * page * 2).to_string());
        let always_runs = || (0..2).all(|_| group.run(&mut start()).status == expected.status);
        if !always_runs() {
            continue;
        }
        for backing in ["auto", "thp", "shared"] {
            let options = ["--backing", backing, "--parts", "all", "--quiet"];
            let lifted = group.run(&mut lifted(&options, &big.path, &[]));
            // Near its peak the program may sometimes be killed without hugelift as well.
            if lifted.status != expected.status && !(0..5).all(|_| always_runs()) {
                continue;
            }
            lifted.assert_same(&expected);
            compared += 1;
        }
    }
    assert!(compared > 0, "the bare program ran reliably at no limit from {least} bytes on");
    group.limit("max");
}
