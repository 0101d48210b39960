// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own for each. Nobody waits for it but the end of the service, and
//! nothing here reads the memory of a process: it may hold up who does.

use super::child::start_to_the_end;
use super::instance::Instance;
use crate::journal::{Level, log};
use hugelift_core::addr::human_bytes;
use hugelift_core::proc_stat::Identity;
use hugelift_core::restore::Restored;
use hugelift_linux::command::{drain, never_wait};
use hugelift_linux::proc::turn::turn_of_change;
use nix::errno::Errno;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Between two checks whether an experiment has ended, or a restoring.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_RUNNING: Duration = Duration::from_millis(100);
/// The same at the end of the service, which waits for it.
const CHECK_AT_END: Duration = Duration::from_millis(10);
/// The most that run at a time, and at the end of the service.
const MOST: usize = 16;
const MOST_AT_END: usize = 64;
/// So long before the time of the end is over all others are begun as well: they go on by themselves.
const LAST: Duration = Duration::from_secs(2);
/// One that takes longer than this is not counted: its process answers nothing, and must not hold up the others.
const SILENT: Duration = Duration::from_secs(30);
/// How often a process is tried that could not be restored, and how long one is left alone that failed or is compared.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_secs(10);
/// The most of an answer that is taken: the report on one process.
const LONGEST: usize = 16 << 20;

/// The restorings that run or are due, and the processes that wait for the end of an experiment.
#[derive(Debug)]
pub struct Restores {
    /// Starts one, whose output is a pipe.
    start: fn(u32) -> io::Result<Child>,
    running: Vec<Running>,
    due: Vec<Due>,
    waiting: Vec<Waiting>,
    check_at: Instant,
    /// How many may run at a time.
    most: usize,
    /// Processes that have no copies any more, until they are taken.
    done: Vec<Identity>,
    /// How many processes were restored.
    pub count: u64,
}

/// A restoring that has begun.
#[derive(Debug)]
struct Running {
    child: Child,
    output: OwnedFd,
    said: Vec<u8>,
    due: Due,
    began: Instant,
}

/// A process that is to be restored.
#[derive(Clone, Copy, Debug)]
struct Due {
    instance: Instance,
    /// How often that has failed.
    failures: u32,
    /// Not before this time.
    at: Instant,
}

/// An experiment that has not ended.
#[derive(Debug)]
struct Waiting {
    experiment: Child,
    /// The process that it is about.
    instance: Instance,
    /// Whether the process is restored afterwards: the experiment may have been killed while it was lifted.
    is_due: bool,
}

/// What `hugelift restore --json` prints.
#[derive(Deserialize)]
struct Answer {
    processes: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    restored: Option<Restored>,
}

impl Due {
    fn process(&self) -> Identity {
        self.instance.process
    }
}

impl Running {
    fn new(mut child: Child, due: Due) -> io::Result<Running> {
        let Some(output) = child.stdout.take().map(OwnedFd::from) else { return Err(Errno::EPIPE.into()) };
        never_wait(&output)?;
        Ok(Running { child, output, said: Vec::new(), due, began: Instant::now() })
    }

    /// Reads what it says, for which it would wait. Returns its status once it has ended.
    fn turn(&mut self) -> io::Result<Option<ExitStatus>> {
        // What it has written before its end is in the pipe then.
        let status = self.child.try_wait();
        let said = &mut self.said;
        drain(&self.output, |bytes| {
            if said.len() + bytes.len() <= LONGEST {
                said.extend_from_slice(bytes);
            }
        });
        status
    }

    /// Returns what became of the copies.
    fn restored(&self) -> Option<Restored> {
        let answer: Answer = serde_json::from_slice(&self.said).ok()?;
        answer.processes.first()?.restored
    }
}

impl Restores {
    /// Returns none.
    pub fn new() -> Restores {
        Restores {
            start: restore,
            running: Vec::new(),
            due: Vec::new(),
            waiting: Vec::new(),
            check_at: Instant::now(),
            most: MOST,
            done: Vec::new(),
            count: 0,
        }
    }

    /// Restores processes. The one of an experiment that may not have ended yet is restored once it has, if it is among them.
    pub fn after(&mut self, experiment: Child, instance: Instance, restored: Vec<Instance>) {
        let mut restored: BTreeSet<Instance> = restored.into_iter().collect();
        let is_due = restored.remove(&instance);
        self.waiting.push(Waiting { experiment, instance, is_due });
        restored.into_iter().for_each(|instance| self.add(instance));
        self.turn_now();
    }

    /// Restores a process.
    pub fn add(&mut self, instance: Instance) {
        self.add_at(instance, Instant::now());
    }

    fn add_at(&mut self, instance: Instance, at: Instant) {
        if !self.has(instance.process) {
            self.due.push(Due { instance, failures: 0, at });
        }
    }

    /// Takes what has ended, and begins what is due, from time to time.
    pub fn turn(&mut self) {
        if Instant::now() >= self.check_at {
            self.turn_now();
        }
    }

    fn turn_now(&mut self) {
        let now = Instant::now();
        for mut running in std::mem::take(&mut self.running) {
            match running.turn() {
                Ok(None) => self.running.push(running),
                Ok(Some(status)) if status.success() => self.ended(&running, now),
                _ => self.failed(running.due, now),
            }
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.experiment.try_wait() {
                Ok(None) => self.waiting.push(waiting),
                _ if waiting.is_due => self.add_at(waiting.instance, now),
                _ => {}
            }
        }
        let mut free = self.most.saturating_sub(self.answering());
        for due in std::mem::take(&mut self.due) {
            if now < due.at || free == 0 {
                self.due.push(due);
            } else if due.instance.is_whole() {
                free -= usize::from(self.begin(due, now));
            }
        }
        self.check_at = now + if self.answering() > 0 { CHECK_RUNNING } else { CHECK };
    }

    /// Returns how many run that may soon end.
    fn answering(&self) -> usize {
        self.running.iter().filter(|running| running.began.elapsed() < SILENT).count()
    }

    /// Begins one. Returns whether it runs.
    fn begin(&mut self, due: Due, now: Instant) -> bool {
        let (pid, _) = due.process();
        // While a user compares it, nobody else changes it.
        if turn_of_change(pid).is_none() {
            self.due.push(Due { at: now + AGAIN, ..due });
            return false;
        }
        match (self.start)(pid).and_then(|child| Running::new(child, due)) {
            Ok(running) => {
                self.running.push(running);
                true
            }
            Err(error) => {
                log(Level::Warning, &format!("cannot start hugelift restore {pid}: {error}"));
                self.failed(due, now);
                false
            }
        }
    }

    /// Takes note of a restoring that has succeeded. A part of the copies may stay all the same.
    fn ended(&mut self, running: &Running, now: Instant) {
        let process = running.due.process();
        let Some(Restored { copied_bytes, restored_bytes, differing_bytes }) = running.restored() else {
            return self.failed(running.due, now);
        };
        match copied_bytes.saturating_sub(restored_bytes) {
            0 => self.done.push(process),
            left if left > differing_bytes => return self.failed(running.due, now),
            left => {
                // Another try would find the same now.
                let (pid, left) = (process.0, human_bytes(left));
                let line = format!(
                    "{left} of process {pid} stay copies: they differ from the file, as a breakpoint makes them; \
                     'hugelift restore {pid}' tries it again"
                );
                log(Level::Warning, &line);
            }
        }
        self.count += u64::from(restored_bytes > 0);
    }

    /// Returns the processes that have no copies any more since the last call.
    pub fn take_done(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.done)
    }

    fn failed(&mut self, due: Due, now: Instant) {
        let Due { instance, failures, .. } = due;
        match failures + 1 {
            failures @ ..TRIES => self.due.push(Due { instance, failures, at: now + AGAIN }),
            _ => stays(instance),
        }
    }

    /// Returns whether it is restored, or an experiment that has not ended may change it.
    pub fn is_changed(&self, process: Identity) -> bool {
        self.has(process) || self.waiting.iter().any(|waiting| waiting.instance.process == process)
    }

    /// Returns whether it is restored, or is to be.
    fn has(&self, process: Identity) -> bool {
        let running = self.running.iter().map(|running| &running.due);
        self.due.iter().chain(running).any(|due| due.process() == process)
    }

    /// Begins what is due, as the service ends. [`Restores::end`] waits for it.
    pub fn hurry(&mut self) {
        let now = Instant::now();
        self.most = MOST_AT_END;
        self.due.iter_mut().for_each(|due| due.at = now);
        self.turn_now();
    }

    /// Begins all that is due, and waits until nothing runs any more, or until this time has come. What has begun goes on by itself
    /// then. Nobody waits for what cannot begin.
    pub fn end(&mut self, deadline: Instant) {
        self.hurry();
        loop {
            let now = Instant::now();
            if now + LAST >= deadline {
                self.most = usize::MAX;
            }
            self.turn_now();
            if self.waiting.is_empty() && self.answering() == 0 || now >= deadline {
                break;
            }
            std::thread::sleep(CHECK_AT_END);
        }
        let waiting = self.waiting.iter().filter(|waiting| waiting.is_due).map(|waiting| waiting.instance);
        self.due.iter().map(|due| due.instance).chain(waiting).for_each(stays);
    }

    /// Returns how many are due, or wait for the end of an experiment.
    pub fn waiting(&self) -> usize {
        self.due.len() + self.waiting.iter().filter(|waiting| waiting.is_due).count()
    }

    /// Returns when there is something to do.
    pub fn next(&self) -> Option<Instant> {
        let is_idle = self.waiting.is_empty() && self.running.is_empty() && self.due.is_empty();
        (!is_idle).then_some(self.check_at)
    }
}

/// Says that a process was not restored, if there is still something to restore.
fn stays(instance: Instance) {
    if !instance.is_whole() {
        return;
    }
    let pid = instance.process.0;
    let line = format!("process {pid} stays lifted, and no gain was measured; try 'hugelift restore {pid}'");
    log(Level::Warning, &line);
}

fn restore(pid: u32) -> io::Result<Child> {
    let words = ["restore", "--json", &pid.to_string()].map(String::from);
    start_to_the_end(&words, Stdio::null(), Stdio::piped())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_linux::proc::procfs::Process;
    use hugelift_linux::proc::turn::turn;
    use std::process::Command;

    /// Starts what stands for an experiment, or for a process: it ends when its input is closed.
    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    /// Starts what stands for an experiment that has ended.
    fn ended() -> Child {
        Command::new("true").spawn().unwrap()
    }

    /// Starts what stands for `hugelift restore --json`.
    fn sh(script: &str) -> io::Result<Child> {
        Command::new("sh").args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    }

    /// The same, of a process with ten copied bytes of which so many were restored, and so many differ from the file.
    fn of_ten(restored: u64, differing: u64) -> io::Result<Child> {
        let row = format!(
            r#""restored":{{"copied_bytes":10,"restored_bytes":{restored},"differing_bytes":{differing}}}"#
        );
        sh(&format!(r#"echo '{{"version":1,"processes":[{{"pid":1,"error":null,{row}}}]}}'"#))
    }

    fn instance(child: &Child) -> Instance {
        Instance { process: Process::new(child.id()).stat().unwrap().identity(), stack: None }
    }

    /// Returns that of no process.
    fn nobody() -> Instance {
        Instance { process: (1, 1), stack: None }
    }

    fn kill(children: impl IntoIterator<Item = Child>) {
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns none, which would start this program.
    fn of(program: fn(u32) -> io::Result<Child>) -> Restores {
        Restores { start: program, ..Restores::new() }
    }

    /// Makes turns until nothing waits and nothing runs. What was left alone for a time is due now.
    fn calm(restores: &mut Restores) {
        restores.end(Instant::now() + Duration::from_secs(600));
        assert!(restores.waiting.is_empty() && restores.running.is_empty());
    }

    fn failures(restores: &Restores) -> Vec<u32> {
        restores.due.iter().map(|due| due.failures).collect()
    }

    /// Only the process of the experiment waits for it.
    #[test]
    fn the_end_waits_for_an_experiment_that_still_restores() {
        let mut restores = of(|_| of_ten(10, 0));
        let mut experiment = cat();
        let goes_on = experiment.stdin.take();
        let process = (std::process::id(), 1);
        let of_experiment = Instance { process, stack: None };
        let other = cat();
        restores.after(experiment, of_experiment, vec![of_experiment, instance(&other)]);
        assert!(restores.is_changed(process) && !restores.is_changed((1, 1)));
        let deadline = Instant::now() + Duration::from_secs(100);
        while restores.count == 0 {
            assert!(Instant::now() < deadline, "{restores:?}");
            std::thread::sleep(CHECK_AT_END);
            restores.turn_now();
        }
        assert_eq!(restores.take_done(), [instance(&other).process]);
        restores.end(Instant::now());
        assert!(restores.is_changed(process), "its time is over at once");
        drop(goes_on);
        calm(&mut restores);
        // The process has not begun then: another one has its number.
        assert!(!restores.is_changed(process) && restores.count == 1);
        kill([other]);
    }

    #[test]
    fn one_that_is_compared_waits_and_the_others_do_not() {
        let mut restores = of(|_| of_ten(10, 0));
        let [one, other] = [cat(), cat()];
        let comparison = turn(one.id()).unwrap();
        let both = [&one, &other].map(instance);
        let [first, second] = both.map(|instance| instance.process);
        restores.after(ended(), nobody(), both.to_vec());
        calm(&mut restores);
        assert_eq!((restores.is_changed(first), restores.is_changed(second)), (true, false));
        assert_eq!((restores.count, restores.take_done()), (1, vec![second]));
        drop(comparison);
        calm(&mut restores);
        assert_eq!((restores.count, restores.next(), restores.take_done()), (2, None, vec![first]));
        kill([one, other]);
    }

    /// `hugelift restore` succeeds also if copies stay.
    #[test]
    fn copies_that_stay_were_not_restored() {
        let process = cat();
        let one = instance(&process);
        let id = one.process;
        // Nobody could restore the rest just now.
        let mut restores = of(|_| of_ten(4, 2));
        restores.after(ended(), nobody(), vec![one, one]);
        calm(&mut restores);
        assert_eq!((restores.count, failures(&restores), restores.take_done()), (0, vec![1], vec![]));
        // The rest differs from its file, and will the next time. It is still a copy of this service.
        let mut restores = of(|_| of_ten(4, 6));
        restores.after(ended(), nobody(), vec![one]);
        calm(&mut restores);
        assert_eq!((restores.count, failures(&restores), restores.take_done()), (1, vec![], vec![]));
        // There were none, and an answer that says nothing.
        let mut restores = of(|_| {
            sh(
                r#"echo '{"processes":[{"restored":{"copied_bytes":0,"restored_bytes":0,"differing_bytes":0}}]}'"#,
            )
        });
        restores.after(ended(), nobody(), vec![one]);
        calm(&mut restores);
        assert_eq!((restores.count, failures(&restores), restores.take_done()), (0, vec![], vec![id]));
        let mut restores = of(|_| sh("echo '{\"processes\":[{\"error\":\"no\"}]}'"));
        restores.after(ended(), nobody(), vec![one]);
        calm(&mut restores);
        assert_eq!((restores.count, failures(&restores), restores.take_done()), (0, vec![1], vec![]));
        kill([process]);
    }

    /// The report on a large process is more than a pipe holds.
    #[test]
    fn a_long_answer_is_read() {
        let mut restores = of(|_| {
            sh(
                r#"printf '{"version":1,"x":"'; head -c 300000 /dev/zero | tr '\0' x; printf '","processes":[{"restored":{"copied_bytes":1,"restored_bytes":1,"differing_bytes":0}}]}'"#,
            )
        });
        let process = cat();
        restores.after(ended(), nobody(), vec![instance(&process)]);
        calm(&mut restores);
        assert_eq!((restores.count, restores.take_done()), (1, vec![instance(&process).process]));
        kill([process]);
    }

    #[test]
    fn those_that_answer_nothing_hold_up_nobody() {
        let mut restores = of(|_| sh("exec sleep 600"));
        restores.most = 1;
        let mut all: Vec<Child> = (0..2).map(|_| cat()).collect();
        restores.after(ended(), nobody(), all.iter().map(instance).collect());
        assert_eq!((restores.running.len(), restores.due.len()), (1, 1));
        restores.running[0].began -= SILENT;
        restores.turn_now();
        assert_eq!((restores.running.len(), restores.due.len()), (2, 0));
        all.extend(restores.running.into_iter().map(|running| running.child));
        kill(all);
    }

    /// At the end some run at a time, and the others only when the time is nearly over.
    #[test]
    fn all_that_is_due_begins_before_the_end() {
        let all: Vec<Child> = (0..MOST_AT_END + 2).map(|_| cat()).collect();
        let mut restores = of(|_| sh("exec sleep 600"));
        restores.after(ended(), nobody(), all.iter().map(instance).collect());
        assert_eq!((restores.running.len(), restores.due.len()), (MOST, MOST_AT_END + 2 - MOST));
        restores.due[0].at += AGAIN;
        restores.hurry();
        assert_eq!((restores.running.len(), restores.due.len()), (MOST_AT_END, 2));
        restores.end(Instant::now() + Duration::from_millis(500));
        assert_eq!((restores.running.len(), restores.due.len()), (MOST_AT_END + 2, 0));
        kill(all.into_iter().chain(restores.running.into_iter().map(|running| running.child)));
    }

    /// It has become so while it was due, while the experiment went on, and while it was restored.
    #[test]
    fn one_that_has_become_another_program_is_not_restored() {
        let process = cat();
        let old = Instance { stack: Some(1), ..instance(&process) };
        let mut restores = of(|_| of_ten(10, 0));
        restores.after(ended(), nobody(), vec![old]);
        restores.after(ended(), old, vec![old]);
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (0, None));
        let mut restores = of(|_| sh("exit 1"));
        restores.after(ended(), nobody(), vec![instance(&process)]);
        restores.running.iter_mut().for_each(|running| running.due.instance = old);
        restores.due.iter_mut().for_each(|due| due.instance = old);
        calm(&mut restores);
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (0, None));
        kill([process]);
    }

    #[test]
    fn one_that_fails_is_tried_some_times() {
        let mut restores = of(|_| sh("exit 1"));
        let process = cat();
        restores.after(ended(), nobody(), vec![instance(&process)]);
        for count in 1..TRIES {
            calm(&mut restores);
            assert_eq!(failures(&restores), [count]);
        }
        calm(&mut restores);
        assert_eq!((restores.count, restores.next()), (0, None));
        kill([process]);
    }
}
