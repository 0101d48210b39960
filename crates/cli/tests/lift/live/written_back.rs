// SPDX-License-Identifier: Apache-2.0
//! Waits whose timeout, or what the kernel writes to say how much of it is left, cannot be written to. After a stop the
//! kernel ends some of them early, with an error that the program would never have seen.

use super::{Running, command};
use crate::common::{End, Outcome, fat};
use std::time::{Duration, Instant};

/// How long each victim waits. It must be long enough for a command that looks for a thread for two seconds.
const MILLIS: i64 = 12_000;

/// Each call with what it returns after its timeout: the result and errno. A stop (SIGSTOP and SIGCONT do the same) would
/// end those with a star early, if the memory cannot be written to, or the personality has STICKY_TIMEOUTS.
const CALLS: [(&str, i64, i32); 17] = [
    ("ppoll", 0, 0),           // *EINTR
    ("pselect6", 0, 0),        // *EINTR
    ("select", 0, 0),          // *EINTR
    ("ppoll-sticky", 0, 0),    // *EINTR
    ("pselect6-sticky", 0, 0), // *EINTR
    ("nanosleep", 0, 0),       // *EFAULT
    ("clock_nanosleep", 0, 0), // *EFAULT
    ("clock_nanosleep-absolute", 0, 0),
    ("ppoll-writable", 0, 0),
    ("futex", -1, libc::ETIMEDOUT),
    ("futex_waitv", -1, libc::ETIMEDOUT),
    ("mq_timedreceive", -1, libc::ETIMEDOUT),
    ("io_pgetevents", 0, 0),
    // Any stop ends these with EINTR.
    ("recvmmsg", -1, libc::EAGAIN),
    ("rt_sigtimedwait", -1, libc::EAGAIN),
    ("semtimedop", -1, libc::EAGAIN),
    ("epoll_pwait2", 0, 0),
];

/// Calls that hugelift stops: the program does not notice.
const STOPPED: [&str; 3] = ["clock_nanosleep-absolute", "ppoll-writable", "futex"];

#[test]
fn waits_whose_rest_cannot_be_written_back() {
    let program = fat("written_back").flags(&["-Wl,-z,now"]).build();
    std::thread::scope(|scope| {
        let all = CALLS.map(|(call, result, errno)| {
            let program = &program;
            (call, result, errno, scope.spawn(move || attached_while_it_waits(program, call)))
        });
        for (call, result, errno, waited) in all {
            let Some((line, outcome)) = waited.join().expect("the victim waits") else {
                println!("{call}: not on this machine");
                continue;
            };
            let words: Vec<i64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [got, error, took] = words[..] else { panic!("{call}: {line}") };
            assert_eq!((got, error), (result, i64::from(errno)), "{call}: {line}; {outcome:?}");
            assert!((MILLIS - 1..MILLIS * 3 / 2).contains(&took), "{call}: {line}; {outcome:?}");
            let is_lifted = outcome.end == End::Code(0);
            assert_eq!(is_lifted, STOPPED.contains(&call), "{call}: {outcome:?}");
        }
    });
}

/// Returns what the victim says at the end, and what `hugelift attach` did meanwhile; `None` if it lacks the call.
fn attached_while_it_waits(program: &std::path::Path, call: &str) -> Option<(String, Outcome)> {
    let running = Running::start(program, &[call, &MILLIS.to_string()]);
    let began = Instant::now();
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).expect("its stat");
    while !stat().contains(") S ") && began.elapsed() < Duration::from_millis(MILLIS as u64 / 2) {
        std::thread::yield_now();
    }
    let outcome = command("attach", &[running.pid()]).bare();
    let line = running.line();
    assert_eq!(running.finish(), Some(End::Code(0)), "{call}");
    (line != "lacks").then_some((line, outcome))
}
