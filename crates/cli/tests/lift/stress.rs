// SPDX-License-Identifier: Apache-2.0
//! Load: threads that allocate while their program is lifted, and thousands of starts while memory
//! is short.

use crate::common::level;
use crate::common::run::NO_STORE;
use crate::common::{CGroup, Cmd, End, HUGELIFT, each_backing, plain};
use crate::{need_root, skip};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How many starts of the short program there are at the same time.
const AT_ONCE: usize = 4;

#[test]
fn threads_that_allocate_while_it_is_lifted() {
    let library = plain("allocating").library().build();
    let program = plain("allocating").with(library).build();
    each_backing(|options| {
        for span in ["inner", "outer"] {
            let options = [&["--parts", "all", "--quiet", "--span", span], options].concat();
            for _ in 0..5 {
                let outcome = Cmd::new([&program]).lifted(&options);
                let seen = (outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.end);
                assert_eq!(seen, ("0 wrong\n", "", End::Code(0)), "{options:?}");
            }
        }
    });
}

/// A process that is ended when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        crate::common::run::end_group(&mut self.0);
    }
}

/// Runs a shell script in the group.
fn shell(script: &str, group: &CGroup, words: &[&str]) -> Ended {
    let before = group.words();
    let mut command = Command::new(&before[0]);
    command.args(&before[1..]).args(["sh", "-c", script, "sh"]).args(words).process_group(0);
    Ended(command.env("HUGELIFT_STORE", NO_STORE).stdin(Stdio::null()).spawn().expect("sh"))
}

/// Page cache fills the limit of the group all the time, so the kernel must reclaim pages for each
/// copy.
#[test]
fn starts_while_memory_is_short() {
    need_root!();
    let program = plain("allocating").flags(&["-no-pie", "-DSHORT"]).build();
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "167772160") {
        skip!("{why}");
    }
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("sparse");
    std::fs::File::create(&file)
        .and_then(|mut f| f.write_all(b"x").and_then(|()| f.set_len(512 << 20)))
        .expect("a file");
    let path = file.display().to_string();
    let _pressure = shell("while cat \"$1\" > /dev/null; do sleep 1; done", &group, &[&path]);
    std::thread::sleep(Duration::from_millis(300));
    let script = format!(
        "i=0; while [ $i -lt {} ]; do \"$1\" run --parts all --span outer --backing thp --quiet -- \"$2\" || \
         {{ echo \"start $i: status $?\" >&2; exit 1; }}; i=$((i+1)); done",
        level::rounds(400, 2000) / AT_ONCE
    );
    let program = program.display().to_string();
    let workers: Vec<Ended> = (0..AT_ONCE).map(|_| shell(&script, &group, &[HUGELIFT, &program])).collect();
    let deadline = std::time::Instant::now() + Duration::from_secs(500);
    for mut worker in workers {
        let end = crate::common::run::wait(&mut worker.0, deadline);
        assert_eq!(end, Some(End::Code(0)), "a start failed, or they take too long");
    }
    assert!(group.was_full(), "memory was never short, so nothing was tested");
}
