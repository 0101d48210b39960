// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --watch --stdin`: processes that are named while others are watched.

use crate::common::huge::pieces;
use crate::common::{End, HUGELIFT, fat};
use crate::running::Running;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

fn starts(program: &Path) -> Running {
    let victim = Running::start(Command::new(program).args(["waits", "x"]));
    assert_eq!(victim.out(), "ready");
    victim
}

/// Returns when a process was started, in clock ticks since boot.
fn start_of(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let after = stat.rsplit(") ").next().expect("fields");
    after.split(' ').nth(19).and_then(|field| field.parse().ok()).expect("a time")
}

fn watch() -> Running {
    let words = ["attach", "--whole", "--watch", "--eager", "--backing", "thp", "--stdin"];
    Running::start(Command::new(HUGELIFT).args(words))
}

#[test]
fn issue_33_1_processes_are_named_while_others_are_watched() {
    let program = fat("watched").build();
    let huge =
        |pid: u32| pieces(pid, std::slice::from_ref(&program)).iter().map(|piece| piece.huge).sum::<u64>();
    let mut watch = watch();
    let (first, other, last) = (starts(&program), starts(&program), starts(&program));
    let wrong = start_of(other.pid()) + 1;
    let mut input = watch.child.stdin.take().expect("stdin");
    // Of the second the start is another's, as if its id had been given to a later process.
    write!(input, "{}\nnonsense\n{} {wrong}\n", first.pid(), other.pid()).expect("write");
    assert!(watch.err().contains("'nonsense' is not the id of a process"));
    let line = watch.out();
    assert!(line.contains(&format!("(process {})", first.pid())), "{line}");
    writeln!(input, "{} {}", last.pid(), start_of(last.pid())).expect("write");
    let line = watch.out();
    assert!(line.contains(&format!("(process {})", last.pid())), "{line}");
    assert!(huge(first.pid()) >= 4 << 20 && huge(last.pid()) >= 4 << 20);
    assert_eq!(huge(other.pid()), 0);
    // At the end of the input it goes on until the last process has ended.
    drop(input);
    for victim in [first, other, last] {
        let (end, out, _) = victim.end();
        assert!(end == Some(End::Code(0)) && out.iter().any(|line| line.contains("wrong 0")), "{out:?}");
    }
    let (end, out, err) = watch.end();
    assert_eq!((end, out.len()), (Some(End::Code(0)), 0), "{out:?}");
    assert!(err.iter().any(|line| line.contains("2 processes lifted")), "{err:?}");
}

/// Whoever has named it meant the program that it was.
#[test]
fn issue_33_1_one_that_becomes_another_program_is_left() {
    let program = fat("watched").build();
    let mut watch = watch();
    let script = format!("read line; exec {} waits x", program.display());
    let mut victim = Running::start(Command::new("sh").args(["-c", &script]));
    let mut input = watch.child.stdin.take().expect("stdin");
    writeln!(input, "{}", victim.pid()).expect("write");
    let line = watch.out();
    assert!(line.contains(&format!("(process {})", victim.pid())), "{line}");
    writeln!(victim.child.stdin.as_mut().expect("stdin"), "go").expect("write");
    assert_eq!(victim.out(), "ready");
    // A second process is lifted in the meantime, so that the watch has had its turns.
    let other = starts(&program);
    writeln!(input, "{}", other.pid()).expect("write");
    let line = watch.out();
    assert!(line.contains(&format!("(process {})", other.pid())), "{line}");
    let huge: u64 = pieces(victim.pid(), &[program]).iter().map(|piece| piece.huge).sum();
    assert_eq!(huge, 0);
    drop(input);
    for victim in [victim, other] {
        assert_eq!(victim.end().0, Some(End::Code(0)));
    }
    assert_eq!(watch.end().0, Some(End::Code(0)));
}
