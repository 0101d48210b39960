// SPDX-License-Identifier: Apache-2.0
//! The command is killed in the middle of its work.

use super::{MODES, Running, command, command_of, done, files, segments, victim};
use crate::common::huge::{assert_lifted, assert_unchanged, smaps};
use crate::common::level;
use crate::common::moments::with_moments;
use crate::common::run::{end_group, finished, until};
use crate::common::{Cmd, End, Held, Outcome, WITH_FAULT_POINTS, fat};
use crate::need_root;
use hugelift_core::ledger::Record;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::time::Duration;

/// Returns the bytes of memory behind a process's mappings that have neither a file nor a name.
fn unnamed_memory(pid: u32) -> u64 {
    smaps(pid).iter().filter(|u| u.mapping.path.as_os_str().is_empty()).map(|u| u.rss).sum()
}

fn restored(pid: u32) -> Outcome {
    let outcome = command("restore", &[pid]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    outcome
}

/// Commands that are killed, each a few of its operations later, leave copies. The next `attach` or `restore` unmaps these
/// and nothing else, and says so.
#[test]
fn issue_29_c14_what_a_killed_attach_has_left_is_unmapped() {
    const FREED: &str = "of copies that a killed hugelift left were unmapped";
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    let (before, mapped) = (unnamed_memory(pid), files(pid));
    let (mut left, mut freed) = (0, 0);
    for at in (3..).step_by(7) {
        let cmd =
            command_of(WITH_FAULT_POINTS, "attach", &[pid]).env("HUGELIFT_TEST_DIE", format!("{at}:helper"));
        let outcome = cmd.bare();
        assert_unchanged(pid, &segments(pid, &program));
        if outcome.end == End::Code(0) {
            break;
        }
        // Of text and constants one part is copied at a time.
        let more = unnamed_memory(pid) - before;
        assert!(more <= 3 * (4 << 20), "{at}: {more}");
        left += u32::from(more > 0);
        // Every second time the next attach does it.
        if at % 2 == 0 {
            let outcome = restored(pid);
            freed += u32::from(outcome.stdout.contains(FREED));
            assert_eq!((unnamed_memory(pid), files(pid)), (before, mapped.clone()), "{at}: {outcome:?}");
            assert!(!restored(pid).stdout.contains(FREED), "{at}");
        }
    }
    assert!(left >= 8 && freed >= 4, "{left} {freed}");
    restored(pid);
    assert_eq!((unnamed_memory(pid), files(pid)), (before, mapped));
    assert!(held.finish().stdout.ends_with("wrong 0\n"));
}

/// Runs a command, and sends it SIGINT at one moment. Returns whether it was ended by that.
fn interrupted(verb: &str, pid: u32, at: u64) -> bool {
    let command = command_of(WITH_FAULT_POINTS, verb, &[pid]);
    let started = Mutex::new(None);
    let interrupt = |moment| {
        if moment == at {
            until("its id", || started.lock().expect("the mutex").is_some());
            let id: u32 = started.lock().expect("the mutex").expect("its id");
            kill(Pid::from_raw(id.cast_signed()), Signal::SIGINT).expect("kill");
        }
    };
    let (outcome, moments) = with_moments(interrupt, |socket| {
        let child = command.clone().env("HUGELIFT_TEST_MOMENTS", socket).command(None).spawn();
        let child = child.expect("hugelift");
        *started.lock().expect("the mutex") = Some(child.id());
        finished(child)
    });
    let is_interrupted = outcome.end == End::Signal(Signal::SIGINT as i32);
    assert!(is_interrupted || outcome.end == End::Code(0) && at >= moments, "{verb} {at}: {outcome:?}");
    is_interrupted
}

/// Ctrl-C has its effect when the change is made in whole, at whatever moment it comes.
#[test]
fn an_interrupt_waits_for_the_end_of_the_change() {
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    let (bare, mapped) = (unnamed_memory(pid), files(pid));
    done("attach", pid);
    let lifted = unnamed_memory(pid);
    for verb in ["restore", "attach"] {
        let mut changed = 0;
        for at in (3..).step_by(9) {
            let before = unnamed_memory(pid);
            let is_interrupted = interrupted(verb, pid, at);
            assert_unchanged(pid, &segments(pid, &program));
            let now = unnamed_memory(pid);
            assert!(now == bare || now == lifted, "{verb} {at}: {bare} {lifted} {now}");
            changed += u32::from(is_interrupted && now != before);
            // Back to what it was, with nothing of a change that was only begun.
            let outcome = command(if verb == "attach" { "restore" } else { "attach" }, &[pid]).bare();
            assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
            assert!(!outcome.stdout.contains("killed hugelift"), "{verb} {at}: {outcome:?}");
            assert_eq!(unnamed_memory(pid), before, "{verb} {at}: {outcome:?}");
            if !is_interrupted {
                break;
            }
        }
        assert!(changed >= 4, "{verb}: {changed}");
        if verb == "restore" {
            done("restore", pid);
        }
    }
    restored(pid);
    assert_eq!((unnamed_memory(pid), files(pid)), (bare, mapped));
    assert!(held.finish().stdout.ends_with("wrong 0\n"));
}

/// The command is killed after a random time, in which it may have done a part of its work. The thread
/// that it has borrowed goes on by itself.
#[test]
fn helper_is_killed() {
    let program = victim();
    let kills = level::rounds(16, 100);
    for mode in MODES {
        let running = Running::start(&program, mode);
        let pid = running.pid();
        let before = files(pid);
        let mut unfinished = 0;
        let mut n = 0;
        // Those that find nothing to do may all have ended before their time. Then there are more.
        while n < kills || unfinished == 0 && n < 20 * kills {
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
            n += 1;
        }
        assert!(unfinished > 0, "{mode:?}: none of {n} was killed before its end");
        done("restore", pid);
        let after = files(pid);
        assert!(before.iter().all(|line| after.contains(line)), "{mode:?}: {before:?} {after:?}");
        // A killed restore may leave the mapping that it was about to move.
        assert!(after.len() - before.len() <= n as usize / 4, "{mode:?}: {before:?} {after:?}");
        // What the killed ones have left behind does not keep others from their work.
        done("attach", pid);
        assert!(assert_lifted(&segments(pid, &program), "thp", "at the end") >= 2);
        running.report();
        assert_eq!(running.finish(), Some(End::Code(0)), "{mode:?}");
    }
}

/// Returns where a record of hugelift's memory lies in a process ([`hugelift_core::ledger`]).
fn record_of(pid: u32, memory: &File) -> Option<u64> {
    let code = smaps(pid).into_iter().map(|u| u.mapping).filter(|m| m.prot.exec);
    code.into_iter().find_map(|mapping| {
        let mut bytes = vec![0; mapping.range.len() as usize];
        memory.read_exact_at(&mut bytes, mapping.range.start.0).ok()?;
        let at = bytes.windows(16).position(|word| word == b"hugelift copies\0")?;
        Some(mapping.range.start.0 + at as u64)
    })
}

/// The program may have mapped memory of its own since where a copy was. A record is no proof that it is hugelift's.
#[test]
fn issue_29_c14_a_record_that_claims_memory_of_the_program_is_not_believed() {
    need_root!();
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid();
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("its memory");
    let at = (10..).step_by(5).take(40).find_map(|at| {
        let cmd = command_of(WITH_FAULT_POINTS, "attach", &[pid]);
        cmd.env("HUGELIFT_TEST_DIE", format!("{at}:helper")).bare();
        record_of(pid, &memory)
    });
    let at = at.expect("a killed attach leaves a record");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let start = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)?.parse().ok());
    let owner = (pid, start.expect("when it was started"));
    let all = || smaps(pid).into_iter().map(|u| u.mapping).filter(|m| m.prot.write && !m.is_file());
    let own: Vec<_> = all().map(|m| m.range).collect();
    assert!(own.len() >= 2, "{own:?}");
    for range in own {
        let record = Record { owner, ours: vec![range], moving: None };
        memory.write_all_at(&record.to_bytes(), at).expect("write");
        restored(pid);
        assert!(all().any(|m| m.range.covers(range)), "{range:?} was unmapped");
    }
    assert!(held.finish().stdout.ends_with("wrong 0\n"));
}
