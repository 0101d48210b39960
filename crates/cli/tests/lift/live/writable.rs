// SPDX-License-Identifier: Apache-2.0
//! The program makes its code writable, or writes to it, at each moment of an attach and of a restore.

use super::Running;
use super::holes::{CHECK, MAKE_WRITABLE, WRITE};
use crate::common::moments::at_moments;
use crate::common::{Cmd, End, WITH_FAULT_POINTS, fat};
use std::path::PathBuf;

/// One or two huge pages of code: a process has as few moments as possible.
fn program() -> PathBuf {
    fat("acts").size(4 << 20).flags(&["-Wl,-z,now"]).build()
}

fn command(verb: &str, running: &Running) -> Cmd {
    let options: &[&str] =
        if verb == "attach" { &["--whole", "--backing", "thp", "--parts", "text"] } else { &[] };
    Cmd::new([WITH_FAULT_POINTS, verb]).args(options).arg(running.pid().to_string())
}

/// Starts the program; before a restore it is lifted.
fn started(verb: &str) -> Running {
    let running = Running::start(&program(), &[""; 0]);
    if verb == "restore" {
        let attached = command("attach", &running).bare();
        assert_eq!((attached.end, attached.stderr.as_str()), (End::Code(0), ""), "{attached:?}");
    }
    running
}

/// Lets a program act at each moment of a command. What it does is never undone, but at the one moment of each piece that
/// is replaced at which the kernel is about to do so: the bytes, or the protection, that the program gives them then are
/// those of a mapping that is replaced ([limits](../../../../../docs/limits.md)). A real program has some
/// microseconds for it.
fn acts_at_each_moment(verb: &str, act: i32, answer: &str) {
    let untouched = started(verb);
    let (outcome, moments) = at_moments(&command(verb, &untouched), |_| ());
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let pieces = replaced(&outcome.stdout);
    let mut late = Vec::new();
    for moment in 0..moments {
        let running = started(verb);
        let mut acted = false;
        let (outcome, _) = at_moments(&command(verb, &running), |n| {
            if n == moment {
                assert_eq!(running.act(act, 0), answer, "{verb}, moment {moment}");
                acted = true;
            }
        });
        if !acted {
            assert_eq!(running.act(act, 0), answer, "{verb}, after its end");
        }
        let what = format!("{verb}, moment {moment} of {moments}: {outcome:?}");
        assert!(matches!(outcome.end, End::Code(_)), "{what}");
        match running.act(CHECK, 0).as_str() {
            "wrong 0 lost 0 unmarked 0" => {}
            other => {
                assert!(other.starts_with("wrong 0 "), "{what}: {other}");
                late.push(moment);
            }
        }
    }
    println!("{verb}: of {moments} moments {late:?} were too late, for {pieces} pieces");
    assert!(moments > 20, "{verb}: {moments} moments");
    assert!(
        late.len() as u64 <= pieces,
        "{verb}: what the program did at moments {late:?} of {moments} was undone"
    );
}

/// Returns how many pieces of 2 MB a command says that it has replaced.
fn replaced(stdout: &str) -> u64 {
    let words: Vec<&str> = stdout.split_whitespace().collect();
    let number = words.windows(2).find_map(|pair| match pair {
        [number, "MB"] => number.parse::<u64>().ok(),
        _ => None,
    });
    number.unwrap_or_else(|| panic!("no number of megabytes: {stdout}")) / 2
}

#[test]
fn code_that_becomes_writable_during_attach_stays_writable() {
    acts_at_each_moment("attach", MAKE_WRITABLE, "writable 0");
}

#[test]
fn code_that_becomes_writable_during_restore_stays_writable() {
    acts_at_each_moment("restore", MAKE_WRITABLE, "writable 0");
}

#[test]
fn code_that_is_written_to_during_attach_keeps_what_was_written() {
    acts_at_each_moment("attach", WRITE, "written 0");
}

#[test]
fn code_that_is_written_to_during_restore_keeps_what_was_written() {
    acts_at_each_moment("restore", WRITE, "written 0");
}
