// SPDX-License-Identifier: Apache-2.0
//! Opens a process for a change: whether it may be changed, the thread that traces it, and a first borrowed thread; and what
//! is said of it afterwards.

use super::chosen::{Chosen, Name};
use crate::options::Seccomp;
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::maps::Mapping;
use hugelift_core::printable::Untrusted;
use hugelift_core::restore::Replaced;
use hugelift_core::snapshot::Snapshot;
use hugelift_inject::lent::NotLent;
use hugelift_inject::live::{Left, Live};
use hugelift_inject::ptrace::{self, Tid};
use hugelift_linux::held_signals::HeldSignals;
use hugelift_linux::machine::{frozen_group_of, yama};
use hugelift_linux::proc::procfs::{Process, Status};
use hugelift_linux::proc::shared_memory::is_part_of_its_parent;
use hugelift_linux::proc::snapshot;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often it is checked whether a signal has come.
const CHECK: Duration = Duration::from_millis(100);
/// How long a signal waits for the end of a change, which takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a process that can be changed.
pub(super) fn read_process(pid: u32) -> Result<(Status, Snapshot), String> {
    let status = read_status(pid)?;
    let process = Process::new(pid);
    let snapshot = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    if snapshot.objects.is_empty() {
        process.check_memory().map_err(|e| e.to_string())?;
        return Err("it maps no 64-bit ELF program".into());
    }
    Ok((status, snapshot))
}

/// Reads the status of a process that can be changed.
pub(super) fn read_status(pid: u32) -> Result<Status, String> {
    let status = Process::new(pid).status().map_err(|e| e.to_string())?;
    refuse(pid, &status)?;
    Ok(status)
}

/// Returns why a process must not be changed.
fn refuse(pid: u32, status: &Status) -> Result<(), String> {
    if pid == std::process::id() {
        return Err("hugelift does not change itself".into());
    }
    if let Some(why) = traced(pid, pid.cast_signed(), status.tracer) {
        return Err(why);
    }
    if let Ok(stat) = Process::new(pid).stat() {
        if stat.is_kernel_thread {
            return Err("it is a thread of the kernel, which has no memory of its own".into());
        }
        // A tracer of now (state t) came after the status was read. The lock on the process's memory shows whether that is hugelift.
        if stat.state == 'T' {
            return Err(format!("it is stopped (state T); send it SIGCONT (kill -CONT {pid}) and try again"));
        }
        if stat.thread_has_ended() {
            return Err("it has ended, and its parent has not yet waited for it".into());
        }
        // A change of its memory would be one of its parent's, whose lock is another.
        if is_part_of_its_parent(&stat) {
            return Err(format!(
                "it has the memory of its parent, process {}, as after vfork(2); choose that one",
                stat.parent
            ));
        }
    }
    match frozen_group_of(Process::new(pid)) {
        Some(frozen) => Err(frozen.to_string()),
        None => Ok(()),
    }
}

/// Says that a thread of a process is traced by this thread; `None` if there is none, or it has let go meanwhile.
fn traced(pid: u32, tid: Tid, tracer: Option<u32>) -> Option<String> {
    let tracer = tracer.filter(|tracer| *tracer != 0)?;
    let process = Process::new(tracer).status().ok().and_then(|status| status.process).unwrap_or(tracer);
    let (name, own) = (Name::of(process), Process::OWN.executable().ok());
    let is_own = own.is_some() && Process::new(process).executable().ok() == own;
    // Nothing is known of a tracer that has ended.
    let now = Process::new(pid).status_of_thread(tid).ok()?.tracer;
    (now == Some(tracer)).then(|| match is_own || name.0.as_os_str() == "hugelift" {
        true => {
            format!("another hugelift (process {process}) changes it just now; try again when it is done")
        }
        false => format!("it is traced by {name}; end the tracer and try again"),
    })
}

/// Says why no thread of a process was borrowed, and what helps if a right is missing.
fn with_help(pid: u32, why: &NotLent) -> String {
    let NotLent::Trace(ptrace::Error::Os { tid, source, .. }) = why else { return why.to_string() };
    if source.kind() != io::ErrorKind::PermissionDenied {
        return why.to_string();
    }
    let tracer = Process::new(pid).status_of_thread(*tid).ok().and_then(|status| status.tracer);
    if let Some(tracer) = traced(pid, *tid, tracer) {
        return tracer;
    }
    match geteuid().is_root() {
        _ if Process::new(pid).has_no_memory() => "it has ended, or is about to".into(),
        true => format!("{why}; {}", yama::hint(source)),
        false => format!("{why}; run hugelift as root (sudo), or see kernel.yama.ptrace_scope"),
    }
}

/// Prepares a process, and shows that a thread of it can be borrowed.
pub(super) fn open(chosen: Chosen, mappings: &[Mapping], seccomp: Seccomp) -> Result<Live, String> {
    let live = Live::new(chosen.pid, mappings, seccomp == Seccomp::Try);
    let mut live = live.map_err(|why| with_help(chosen.pid, &why))?;
    // What leads to it is open now: from here on no other process can be meant.
    chosen.check()?;
    let got = live.borrow(|lent| lent.call(libc::SYS_getpid, [0; 6]));
    match got.map_err(|why| with_help(chosen.pid, &why))? {
        ..0 => Err("getpid(2) failed in it: a seccomp filter may refuse system calls".into()),
        _ => Ok(live),
    }
}

/// Runs `work` in a thread of its own. Whatever that thread still traces at its end, the kernel lets go: so nothing
/// that can wait is done in it.
pub(super) fn in_tracer<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    in_thread(None, work)
}

/// As [`in_tracer`], for a change that is whole at its end alone. A signal that ends hugelift has its effect afterwards, or after
/// ten seconds: a process may map files of a server that does not answer.
pub(super) fn in_tracer_as_a_whole<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    in_thread(Some(HeldSignals::hold().map_err(|e| format!("sigprocmask: {e}"))?), work)
}

fn in_thread<T: Send>(
    held: Option<HeldSignals>,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    // The timer that limits the waits must interrupt that thread, and no thread that starts later.
    SigSet::from(Signal::SIGALRM).thread_block().map_err(|e| format!("sigprocmask: {e}"))?;
    // Ctrl-Z must not stop hugelift while it holds threads.
    let stops = HeldSignals::of(&[Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU]);
    let stops = stops.map_err(|e| format!("sigprocmask: {e}"))?;
    let done = std::thread::scope(|scope| {
        // The other end is closed at the end of the work.
        let (working, ended) = channel::<()>();
        let work = move || {
            let _working = working;
            work()
        };
        let tracer = std::thread::Builder::new().name("tracer".into()).spawn_scoped(scope, work);
        let tracer = tracer.map_err(|e| format!("cannot start a thread: {e}; see 'ulimit -u'"))?;
        if let Some(held) = held {
            hold_until(&ended, held);
        }
        tracer.join().unwrap_or_else(|_| Err("the tracer ended early; the process goes on".into()))
    });
    drop(stops);
    done
}

/// Holds the signals until the other end of `ended` is closed, or until one has waited for too long.
fn hold_until(ended: &Receiver<()>, held: HeldSignals) {
    let mut came = None;
    while ended.recv_timeout(CHECK) == Err(RecvTimeoutError::Timeout) {
        if held.came().is_some() && came.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            break;
        }
    }
    drop(held);
}

/// Unmaps what a hugelift that was killed has left in the process. Returns what to add to the line about it.
pub(super) fn free_unused(live: &mut Live, pid: u32, before: &Snapshot) -> Option<String> {
    let left = Left::find(pid, before);
    // What stays is in the list of what could not be unmapped.
    live.free(&left).ok()?;
    let bytes = human_bytes(left.bytes());
    (left.bytes() > 0).then(|| format!("; {bytes} of copies that a killed hugelift left were unmapped"))
}

/// Returns a line for each call that a seccomp filter has forbidden.
pub(super) fn forbidden_calls(live: &Live) -> impl Iterator<Item = String> {
    live.refusals().iter().map(|refusal| format!("its seccomp filter {refusal}"))
}

/// Says what could not be unmapped.
pub(super) fn left(leftovers: &[Range]) -> Option<String> {
    let bytes: u64 = leftovers.iter().map(|range| range.len()).sum();
    (bytes > 0).then(|| format!("{} of unused copies could not be unmapped", human_bytes(bytes)))
}

/// Says why a copy stays.
pub(super) fn not_restored(before: &Snapshot, copy: &Replaced, why: &str) -> String {
    let path = before.objects.get(copy.object).map(|o| Untrusted::from(&o.path));
    let path = path.unwrap_or_else(|| Untrusted::from(""));
    format!("{} of {} of {path} not restored: {why}", human_bytes(copy.range.len()), copy.part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_tracer_that_comes_after_the_status_was_read_is_not_taken_for_a_stop() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let before = Process::new(pid).status().unwrap();
        let running = ptrace::seize(pid.cast_signed()).unwrap();
        running.interrupt().unwrap();
        running.wait().unwrap();
        assert_eq!(Process::new(pid).stat().unwrap().state, 't');
        assert_eq!(refuse(pid, &before), Ok(()));
        let now = Process::new(pid).status().unwrap();
        assert!(refuse(pid, &now).unwrap_err().contains("changes it just now"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
