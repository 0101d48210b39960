// SPDX-License-Identifier: Apache-2.0
//! Watches what waiting for memory costs a process: what its threads waited for, and what the machine did for huge pages
//! meanwhile. It changes nothing, and takes at most one 500th of a CPU.
//!
//! | module | holds |
//! |---|---|
//! | `netlink` | the messages to the kernel and its answers |
//! | [`taskstats`] | the question, and why there is no answer |

mod netlink;
pub mod taskstats;

use crate::perf::workload::{Event, Signals, wait_for};
use hugelift_core::cost::counters::{self, Counters};
use hugelift_core::cost::taskstats::Waits;
use hugelift_core::cost::verdict::judge;
use hugelift_core::cost::{Cost, Counted, OfProcess, VERSION, Verdict};
use hugelift_core::fields::bytes_of;
use hugelift_core::printable::text_to_parse;
use hugelift_core::proc_stat::Stat;
use hugelift_linux::proc::clock::{cpu_time_of_thread, ticks_per_second};
use hugelift_linux::proc::procfs::{ProcError, Process};
use std::time::{Duration, Instant};
use taskstats::{Refusal, Taskstats};

/// The least time between two readings. If the process ends, what came behind the last one is lost.
const INTERVAL: Duration = Duration::from_millis(100);
/// Readings take at most one part in so many of a CPU: the kernel adds up 10,000 threads in milliseconds, and the process
/// gets no signal meanwhile.
const SHARE: u32 = 500;
/// A thread that ends is counted twice for a moment, which is over after this time.
const MOMENT: Duration = Duration::from_millis(1);

/// The setting that makes the kernel count what threads wait for.
const SETTING: &str = "/proc/sys/kernel/task_delayacct";
const VMSTAT: &str = "/proc/vmstat";
const HUGE_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// Why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum NoCost {
    /// It cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// It has no memory of its own.
    #[error("process {0} is a kernel thread, which has no memory of its own")]
    KernelThread(u32),
    /// It is a zombie.
    #[error("process {0} has ended")]
    Ended(u32),
}

/// What can be read of a process and the machine at one moment.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    stat: Stat,
    waits: Result<Waits, Refusal>,
    machine: Counters,
    huge_bytes: Option<u64>,
}

/// A process that is watched.
#[derive(Debug)]
pub struct Watch {
    process: Process,
    taskstats: Result<Taskstats, Refusal>,
    first: Reading,
    last: Reading,
    ended: bool,
    counted: Counted,
    note: Option<String>,
}

impl Watch {
    /// Takes the first reading.
    ///
    /// # Errors
    /// See [`NoCost`]. Waits that the kernel does not tell are no error: [`Cost::note`] says why.
    pub fn start(pid: u32) -> Result<Watch, NoCost> {
        let process = Process::new(pid);
        let mut taskstats = match Process::new(pid).stat()? {
            stat if stat.has_ended() || stat.is_exiting() => return Err(NoCost::Ended(pid)),
            stat if stat.is_kernel_thread => return Err(NoCost::KernelThread(pid)),
            _ => Taskstats::open(),
        };
        let first = read(process, &mut taskstats, true)?;
        let (counted, note) = counted(pid, &mut taskstats, &first.waits);
        Ok(Watch { process, taskstats, last: first.clone(), first, ended: false, counted, note })
    }

    /// Takes another reading, unless the process has ended.
    pub fn read(&mut self) {
        self.read_again(false);
    }

    fn read_again(&mut self, whole: bool) {
        let is_same = |reading: &Reading| reading.stat.is_alive(self.first.stat.identity());
        match read(self.process, &mut self.taskstats, whole) {
            Ok(reading) if !self.ended && is_same(&reading) => self.last = reading,
            _ => self.ended = true,
        }
    }

    /// Takes the last reading, and returns what came between it and the first one.
    pub fn finish(mut self) -> Cost {
        self.read_again(true);
        let Watch { first, last, note, counted, ended, .. } = self;
        let waits = last.waits.as_ref().ok().zip(first.waits.as_ref().ok());
        let waits = waits.map(|(last, first)| last.since(first)).filter(|_| counted != Counted::No);
        let machine = last.machine.since(&first.machine);
        let huge_size = std::fs::read_to_string(HUGE_SIZE).ok().and_then(|text| text.trim().parse().ok());
        let zeroed = |faults: Option<u64>| Some(faults?.saturating_mul(huge_size?));
        let huge_faults = machine.get("thp_fault_alloc");
        let minor_faults = last.stat.minor_faults.saturating_sub(first.stat.minor_faults);
        let ticks = last.stat.cpu.saturating_sub(first.stat.cpu);
        let mut cost = Cost {
            version: VERSION,
            pid: first.stat.pid,
            name: last.stat.comm,
            verdict: Verdict::CannotTell,
            says: String::new(),
            milliseconds: u64::try_from((last.at - first.at).as_millis()).unwrap_or(u64::MAX),
            ended,
            waits,
            counted,
            note,
            process: OfProcess {
                threads: last.stat.threads,
                cpu_milliseconds: ticks.saturating_mul(1000) / ticks_per_second(),
                minor_faults,
                major_faults: last.stat.major_faults.saturating_sub(first.stat.major_faults),
                huge_bytes_before: first.huge_bytes,
                huge_bytes: last.huge_bytes,
                zeroed_bytes_at_most: zeroed(huge_faults.map(|faults| faults.min(minor_faults))),
            },
            machine_zeroed_bytes: zeroed(huge_faults),
            machine,
        };
        judge(&mut cost);
        cost
    }
}

/// Watches a process for `time`, or until it ends or a signal arrives.
///
/// # Errors
/// See [`NoCost`].
pub fn watch(pid: u32, time: Duration, signals: &Signals) -> Result<Cost, NoCost> {
    let mut watch = Watch::start(pid)?;
    let end = watch.first.at + time;
    let mut pause = INTERVAL;
    loop {
        let event = wait_for(pid, signals, Some((Instant::now() + pause).min(end)));
        if event != Event::TimeUp || Instant::now() >= end {
            break;
        }
        let before = cpu_time_of_thread();
        watch.read();
        pause = INTERVAL.max(cpu_time_of_thread().saturating_sub(before) * SHARE);
    }
    Ok(watch.finish())
}

/// Reads everything. `whole`: also what takes time, the sizes of its memory.
fn read(
    process: Process,
    taskstats: &mut Result<Taskstats, Refusal>,
    whole: bool,
) -> Result<Reading, ProcError> {
    let stat = process.stat()?;
    let waits = match taskstats {
        Ok(taskstats) => waits(taskstats, stat.pid),
        Err(refusal) => Err(refusal.clone()),
    };
    let machine = counters::parse(&std::fs::read_to_string(VMSTAT).unwrap_or_default());
    let rollup = if whole { process.read("smaps_rollup").ok() } else { None };
    let huge_bytes = rollup.and_then(|text| bytes_of(&text_to_parse(&text), "AnonHugePages"));
    Ok(Reading { at: Instant::now(), stat, waits, machine, huge_bytes })
}

fn waits(taskstats: &mut Taskstats, pid: u32) -> Result<Waits, Refusal> {
    let waits = taskstats.of_process(pid)?;
    std::thread::sleep(MOMENT);
    Ok(taskstats.of_process(pid).map_or(waits, |again| waits.min(&again)))
}

/// Returns whether the kernel counts the waits of this process, and why not.
///
/// A thread has counters if it was started while the setting was on. There is no other sign of them than what they
/// count. The first thread is the oldest: if it has waited for anything, a page that it wrote to or a disk, then all
/// threads are counted.
fn counted(
    pid: u32,
    taskstats: &mut Result<Taskstats, Refusal>,
    all: &Result<Waits, Refusal>,
) -> (Counted, Option<String>) {
    let on = std::fs::read_to_string(SETTING).ok().map(|text| text.trim() != "0");
    let no = |why: String| (Counted::No, Some(why));
    if on == Some(false) {
        return no(format!("waits are not counted: kernel.task_delayacct is 0. {SWITCH_ON}"));
    }
    let all = match all {
        Ok(all) => all,
        Err(refusal) => return no(format!("waits are unknown: {refusal}")),
    };
    let oldest = taskstats.as_mut().ok().and_then(|taskstats| taskstats.of_thread(pid).ok());
    match oldest {
        Some(oldest) if oldest.any > 0 => (Counted::All, None),
        _ if all.any > 0 => {
            let note = "waits of its older threads may be missing: they have waited for nothing since they were started, \
                        perhaps before kernel.task_delayacct was 1";
            (Counted::PerhapsSome, Some(note.into()))
        }
        _ if on.is_none() => no("waits are not counted: this kernel has no kernel.task_delayacct, \
                                 and its threads have waited for nothing since they were started"
            .into()),
        _ => no("waits are perhaps not counted: its threads have waited for nothing since they were started, perhaps \
                 before kernel.task_delayacct was 1: start it anew"
            .into()),
    }
}

const SWITCH_ON: &str = "'sysctl kernel.task_delayacct=1' counts the waits of processes that start afterwards: \
                         restart this process then";
