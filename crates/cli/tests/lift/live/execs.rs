// SPDX-License-Identifier: Apache-2.0
//! A process that executes itself again and again, in the middle of the work of `attach` and `restore`.

use super::command;
use crate::common::run::{PATIENCE, end_group, wait};
use crate::common::{Cmd, End, fat};
use std::time::{Duration, Instant};

/// execve(2) ends all threads but one. It waits until the tracer of each has waited for it, so a tracer that
/// does not would hold the program up for ever.
#[test]
fn execve_and_threads_that_end() {
    let program = fat("execs").build();
    let (mut lifted, mut commands) = (0, 0);
    for _ in 0..4 {
        let mut child = Cmd::new([&program]).arg("60").command(None).spawn().expect("execs");
        let deadline = Instant::now() + PATIENCE;
        let end = loop {
            // The command itself may not hang either.
            for verb in ["attach", "restore"] {
                let outcome = command(verb, &[child.id()]).patience(Duration::from_secs(20)).bare();
                assert!(matches!(outcome.end, End::Code(0 | 125)), "{outcome:?}");
                commands += 1;
                lifted += u32::from(verb == "attach" && outcome.end == End::Code(0));
            }
            if let Some(end) = wait(&mut child, Instant::now()) {
                break Some(end);
            }
            if Instant::now() > deadline {
                break None;
            }
        };
        end_group(&mut child);
        assert_eq!(end, Some(End::Code(0)), "it does not end, or has seen an error");
    }
    println!("{commands} commands, {lifted} attached");
    assert!(lifted > 0, "none of {commands} commands found it between two execve(2)");
}
