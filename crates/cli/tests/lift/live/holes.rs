// SPDX-License-Identifier: Apache-2.0
//! The program maps memory where hugelift's own has been a moment ago, and then no thread of it can be borrowed for a
//! while: what hugelift undoes then must be its own.

use super::{Running, files, segments};
use crate::common::moments::at_moments;
use crate::common::{Cmd, End, Outcome, WITH_FAULT_POINTS, fat};
use hugelift_core::addr::Range;
use hugelift_core::maps::Mapping;
use hugelift_linux::proc::procfs::Process;
use nix::libc;
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of the program's code, and of its constants: some pieces that are moved one by one.
const SIZE: usize = 24 << 20;

/// How long no thread can be borrowed: longer than hugelift looks for one (2 s), so that a step fails, and shorter than
/// it takes until also the step fails that undoes it (4 s). This is the case that is tested, and not a wait for something.
const BLOCKED: Duration = Duration::from_millis(3250);

pub(super) fn program() -> PathBuf {
    fat("acts").size(SIZE).flags(&["-Wl,-z,now"]).build()
}

impl Running {
    /// Tells the program to do something to its own memory, and returns its answer.
    pub(super) fn act(&self, what: i32, value: u64) -> String {
        let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
        // SAFETY: sigqueue(3) sends a signal to a child that has not been waited for, and touches no memory.
        let sent = unsafe { libc::sigqueue(self.pid().cast_signed(), libc::SIGRTMIN() + what, value) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
        self.line()
    }
}

/// The numbers of the acts, in `victims/acts.c`.
pub(super) const MAP: i32 = 0;
pub(super) const MAKE_WRITABLE: i32 = 1;
pub(super) const WRITE: i32 = 2;
pub(super) const CHECK: i32 = 3;

fn command(verb: &str, running: &Running) -> Cmd {
    let options: &[&str] = if verb == "attach" { &["--backing", "thp", "--parts", "rodata"] } else { &[] };
    Cmd::new([WITH_FAULT_POINTS, verb]).args(options).arg(running.pid().to_string())
}

/// Returns memory that was mapped since, at least `bytes` of it together: the largest.
fn largest_new(pid: u32, before: &[Mapping], bytes: u64) -> Option<Range> {
    let now = Process::new(pid).maps().unwrap_or_default();
    let is_new = |m: &&Mapping| before.iter().all(|old| old.range.intersect(m.range).is_none());
    now.iter().filter(is_new).map(|m| m.range).filter(|r| r.len() >= bytes).max_by_key(|r| r.len())
}

/// Runs a command, and maps memory at the beginning of hugelift's own once a part of that has moved away. Returns what
/// the command did.
fn with_holes_taken(running: &Running, cmd: &Cmd) -> Outcome {
    let pid = running.pid();
    let before = Process::new(pid).maps().expect("its maps");
    let mut whole: Option<Range> = None;
    let mut is_taken = false;
    let (outcome, _) = std::thread::scope(|scope| {
        at_moments(cmd, |_| {
            let Some(now) = largest_new(pid, &before, 4 << 20).filter(|_| !is_taken) else { return };
            let first = *whole.get_or_insert(now);
            // It may have grown since it was seen first.
            if now.end != first.end || now.len() > first.len() {
                whole = Some(now);
            } else if first.start.0 + (4 << 20) <= now.start.0 {
                is_taken = true;
                let mapped = running.act(MAP, first.start.0);
                assert_ne!(mapped, "mapped 0", "the hole {first} of {now} is not free");
                running.signal(Signal::SIGUSR1);
                scope.spawn(|| {
                    std::thread::sleep(BLOCKED);
                    running.signal(Signal::SIGUSR2);
                });
            }
        })
    });
    assert!(is_taken, "hugelift's memory was not seen to move: {outcome:?}");
    outcome
}

#[test]
fn a_restore_that_fails_in_the_middle_unmaps_only_its_own() {
    let running = Running::start(&program(), &[""; 0]);
    let before = files(running.pid());
    let attached = command("attach", &running).bare();
    assert_eq!((attached.end, attached.stderr.as_str()), (End::Code(0), ""), "{attached:?}");
    let outcome = with_holes_taken(&running, &command("restore", &running));
    assert!(outcome.stderr.contains("not restored"), "nothing failed: {outcome:?}");
    assert_eq!(running.act(CHECK, 0), "wrong 0 lost 0 unmarked 0", "{outcome:?}");
    assert!(!outcome.stderr.contains("could not be"), "{outcome:?}");
    // What was left undone can be done later, and nothing is left of the first time.
    let again = command("restore", &running).bare();
    assert_eq!((again.end, again.stderr.as_str()), (End::Code(0), ""), "{again:?}");
    assert_eq!(files(running.pid()), before);
    assert_eq!(running.act(CHECK, 0), "wrong 0 lost 0 unmarked 0");
}

#[test]
fn an_attach_that_fails_in_the_middle_unmaps_only_its_own() {
    let program = program();
    let running = Running::start(&program, &[""; 0]);
    let before = files(running.pid());
    let outcome = with_holes_taken(&running, &command("attach", &running));
    let rodata: Vec<_> = segments(running.pid(), &program).into_iter().filter(|piece| !piece.text).collect();
    let whole: u64 = rodata.iter().filter_map(|piece| piece.inner).map(Range::len).sum();
    let huge: u64 = rodata.iter().map(|piece| piece.thp).sum();
    assert!(0 < huge && huge < whole, "nothing failed: {outcome:?}");
    assert_eq!(running.act(CHECK, 0), "wrong 0 lost 0 unmarked 0", "{outcome:?}");
    assert!(!outcome.stderr.contains("could not be"), "{outcome:?}");
    // What was moved stays where it is: it has the right bytes.
    let again = command("restore", &running).bare();
    assert_eq!((again.end, again.stderr.as_str()), (End::Code(0), ""), "{again:?}");
    assert_eq!(files(running.pid()), before);
    assert_eq!(running.act(CHECK, 0), "wrong 0 lost 0 unmarked 0");
}
