// SPDX-License-Identifier: Apache-2.0
//! Something happens to a process at one moment of a lift: between two operations of hugelift on its threads.

use super::{Running, segments};
use crate::common::huge::assert_unchanged;
use crate::common::run::PATIENCE;
use crate::common::{Cmd, End, Outcome, WITH_FAULT_POINTS, fat};
use crate::need_root;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Moments that a test tries: those of the first two threads that are borrowed.
const MOMENTS: u64 = 48;

/// How many processes are lifted at a time.
const AT_ONCE: u64 = 3;

/// Runs `hugelift attach` for a process, and calls `act` at moment `at`. Returns whether it came to that, and `act` has
/// returned true.
fn attach_and_act(pid: u32, dir: &Path, at: u64, act: impl FnOnce() -> bool + Send) -> (bool, Outcome) {
    let path = dir.join(format!("moments-{at}"));
    let listener = UnixListener::bind(&path).expect("bind");
    let cmd = Cmd::new([WITH_FAULT_POINTS, "attach", "--whole", "--backing", "thp"]).arg(pid.to_string());
    let cmd = cmd.env("HUGELIFT_TEST_MOMENTS", &path);
    let (reached, act) = (AtomicU64::new(0), std::sync::Mutex::new(Some(act)));
    let answer = |mut stream: UnixStream| {
        let mut number = [0; 8];
        while stream.read_exact(&mut number).is_ok() {
            if u64::from_ne_bytes(number) == at
                && let Some(act) = act.lock().expect("the mutex").take()
            {
                reached.store(u64::from(act()), Ordering::Relaxed);
            }
            if stream.write_all(&[1]).is_err() {
                break;
            }
        }
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The last connection is the test's own, and has no number.
            for stream in listener.incoming().map_while(Result::ok) {
                let mut first = [0];
                let is_last = peek(&stream, &mut first) == 0;
                if is_last {
                    break;
                }
                scope.spawn(|| answer(stream));
            }
        });
        let outcome = cmd.bare();
        drop(UnixStream::connect(&path).expect("connect"));
        outcome
    });
    (reached.into_inner() == 1, outcome)
}

/// Waits for a byte without taking it; 0 at the end of the stream.
fn peek(stream: &UnixStream, byte: &mut [u8; 1]) -> isize {
    use std::os::fd::AsRawFd as _;
    // SAFETY: recv(2) writes at most one byte to a live array.
    unsafe { libc::recv(stream.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) }
}

/// Calls `test` for each moment, some at a time. Returns how often it came to the moment.
fn each_moment(test: impl Fn(u64) -> bool + Sync) -> u64 {
    let (next, reached) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let at @ ..MOMENTS = next.fetch_add(1, Ordering::Relaxed) {
                    reached.fetch_add(u64::from(test(at)), Ordering::Relaxed);
                }
            });
        }
    });
    reached.into_inner()
}

fn struck() -> PathBuf {
    fat("struck").flags(&["-Wl,-z,now"]).build()
}

/// Ends the victim, and asserts that it got these signals.
fn ends(mut running: Running, counts: &str, at: u64, outcome: &Outcome) {
    drop(running.stdin.take());
    let line = running.line_within(PATIENCE);
    assert_eq!(line.as_deref(), Ok(format!("{counts} wrong 0").as_str()), "moment {at}: {outcome:?}");
    assert_eq!(running.finish(), Some(End::Code(0)), "moment {at}");
}

/// Signals that are sent, also such as an instruction can raise, come once and as they were sent.
#[test]
fn signals_that_are_sent_at_each_moment() {
    let program = struck();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let reached = each_moment(|at| {
        let running = Running::start(&program, &[] as &[&str]);
        let pid = running.pid();
        let send = || {
            let all = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGUSR1];
            for signal in all.into_iter().chain([libc::SIGRTMIN()]) {
                let value = libc::sigval { sival_ptr: signal as usize as *mut libc::c_void };
                // SAFETY: sigqueue(3) to a child that has not been waited for.
                assert_eq!(unsafe { libc::sigqueue(pid.cast_signed(), signal, value) }, 0);
            }
            true
        };
        let (came, outcome) = attach_and_act(pid, dir.path(), at, send);
        ends(running, if came { "1 1 1 1 1 1 1" } else { "0 0 0 0 0 0 0" }, at, &outcome);
        came
    });
    assert!(reached > MOMENTS / 2, "{reached}");
}

/// Accepts the connection of a victim, which does something for a byte and answers. The function returns false if it could
/// not do it.
fn obeys(listener: &UnixListener) -> impl FnOnce() -> bool + Send {
    let (mut stream, _) = listener.accept().expect("the victim");
    move || {
        stream.write_all(b"x").expect("write");
        let mut answer = [0];
        stream.read_exact(&mut answer).expect("its answer");
        answer == [b'x']
    }
}

/// Another thread unmaps the code that a borrowed one is to run. The borrowed one goes on, and its handlers are there.
#[test]
fn the_cave_is_unmapped_at_each_moment() {
    let program = struck();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let reached = each_moment(|at| {
        let path = dir.path().join(format!("victim-{at}"));
        let listener = UnixListener::bind(&path).expect("bind");
        let running = Running::start(&program, &[&path]);
        let (came, outcome) = attach_and_act(running.pid(), dir.path(), at, obeys(&listener));
        assert!(matches!(outcome.end, End::Code(0 | 125)), "moment {at}: {outcome:?}");
        assert!(outcome.stderr.lines().count() <= 1, "moment {at}: {outcome:?}");
        assert_unchanged(running.pid(), &segments(running.pid(), &program));
        ends(running, "0 0 0 0 0 0 0", at, &outcome);
        came
    });
    assert!(reached > MOMENTS / 2, "{reached}");
}

/// The thread that is about to be borrowed has ended, and another process has got its number. That can be at the first
/// moment, and whenever hugelift comes back to the thread.
#[test]
fn the_number_of_a_thread_is_given_to_another_process() {
    need_root!();
    let program = fat("reused").flags(&["-Wl,-z,now"]).build();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let reached = each_moment(|at| {
        let path = dir.path().join(format!("victim-{at}"));
        let listener = UnixListener::bind(&path).expect("bind");
        let mut running = Running::start(&program, &[&path]);
        let (came, outcome) = attach_and_act(running.pid(), dir.path(), at, obeys(&listener));
        assert!(matches!(outcome.end, End::Code(0 | 125)), "moment {at}: {outcome:?}");
        drop(running.stdin.take());
        let line = running.line();
        assert_eq!(line, if came { "0" } else { "none" }, "moment {at}: {outcome:?}");
        assert_eq!(running.finish(), Some(End::Code(0)), "moment {at}");
        came
    });
    println!("of {MOMENTS} moments {reached} were reached while the number was free");
    assert!(reached >= 2, "{reached}");
}
