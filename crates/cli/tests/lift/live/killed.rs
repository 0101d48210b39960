// SPDX-License-Identifier: Apache-2.0
//! The command is killed in the middle of its work.

use super::{MODES, Running, command, done, files, segments, victim};
use crate::common::huge::{assert_lifted, assert_unchanged};
use crate::common::run::end_group;
use crate::common::{Cmd, End};
use std::time::Duration;

/// How many commands are killed.
const KILLS: u64 = 40;

/// The command is killed after a random time, in which it may have done a part of its work. The thread
/// that it has borrowed goes on by itself.
#[test]
fn helper_is_killed() {
    let program = victim();
    for mode in MODES {
        let running = Running::start(&program, mode);
        let pid = running.pid();
        let before = files(pid);
        let mut unfinished = 0;
        for n in 0..KILLS {
            // Every fourth is a restore, so that there is something to lift again.
            let verb = if n % 4 == 3 { "restore" } else { "attach" };
            let cmd: Cmd = command(verb, &[pid]);
            let mut child = cmd.command(None).spawn().expect("hugelift");
            let longest = if n % 2 == 0 { 30_000 } else { 100_000 };
            std::thread::sleep(Duration::from_micros(fastrand::u64(0..longest)));
            unfinished += u32::from(child.try_wait().expect("wait").is_none());
            end_group(&mut child);
            // Whatever it has done, the bytes are those of the file.
            assert_unchanged(pid, &segments(pid, &program));
        }
        assert!(unfinished > 0, "{mode:?}: {unfinished} of {KILLS} were killed before their end");
        done("restore", pid);
        let after = files(pid);
        assert!(before.iter().all(|line| after.contains(line)), "{mode:?}: {before:?} {after:?}");
        // A killed restore may leave the mapping that it was about to move.
        assert!(after.len() - before.len() <= KILLS as usize / 4, "{mode:?}: {before:?} {after:?}");
        // What the killed ones have left behind does not keep others from their work.
        done("attach", pid);
        assert!(assert_lifted(&segments(pid, &program), "thp", "at the end") >= 2);
        running.report();
        assert_eq!(running.finish(), Some(End::Code(0)), "{mode:?}");
    }
}
