// SPDX-License-Identifier: Apache-2.0
//! Tasks that repeat a cycle until they are ended: child processes, or threads of this process. Each counts
//! its cycles in a cache line of its own.

use super::cycle::{Cycle, without_thp};
use crate::cpus;
use crate::memory::Pages;
use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, gettid};
use std::collections::BTreeSet;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Processes or threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Processes, each with its own address space.
    Processes,
    /// Threads, all in one address space.
    Threads,
}

impl Kind {
    /// Returns the name that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Processes => "processes",
            Kind::Threads => "threads",
        }
    }
}

/// What a task reports. The alignment keeps two tasks from writing to the same cache line, or to a line that
/// the CPU fetches together with it.
#[repr(C, align(128))]
struct Slot {
    cycles: AtomicU64,
    /// The errno(3) of a failed cycle, which ends the task; 0 if none has failed.
    failed: AtomicI32,
    /// Thread id of the task, once it runs.
    id: AtomicI32,
}

/// Slots in memory that child processes share with this one.
struct Slots {
    start: NonNull<Slot>,
    count: usize,
}

// SAFETY: slots are atomics; the memory lives as long as the value.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    fn new(count: usize) -> Result<Slots> {
        let len = count * size_of::<Slot>();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: mmap(2) at an address of the kernel's choice: zeros, which are empty slots.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            bail!("cannot map {len} bytes for {count} tasks: {}", std::io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<Slot>()).context("mmap(2) gave address 0")?;
        Ok(Slots { start, count })
    }

    fn all(&self) -> &[Slot] {
        // SAFETY: `count` slots of atomics lie there, from `new` to `drop`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of what `new` mapped; all references to it borrow the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}

/// What runs the tasks.
enum Workers {
    Children(Vec<Pid>),
    Threads { stop: Arc<AtomicBool>, handles: Vec<JoinHandle<()>>, thp_was_off: bool },
}

/// Running tasks. Dropping the value ends them.
pub struct Tasks {
    slots: Arc<Slots>,
    workers: Workers,
}

impl Tasks {
    /// Starts `count` tasks. They are pinned to the CPUs of this process in turn.
    ///
    /// # Errors
    /// A task cannot be started. Tasks that were started already are ended.
    pub fn start(kind: Kind, cycle: Cycle, count: usize) -> Result<Tasks> {
        let slots = Arc::new(Slots::new(count)?);
        let cpus = cpus::allowed();
        match kind {
            Kind::Processes => {
                let children = Vec::with_capacity(count);
                let mut tasks = Tasks { slots: Arc::clone(&slots), workers: Workers::Children(children) };
                for (i, slot) in slots.all().iter().enumerate() {
                    let pid = child(cycle, slot, cpus.get(i % cpus.len().max(1)).copied())?;
                    if let Workers::Children(children) = &mut tasks.workers {
                        children.push(pid);
                    }
                }
                Ok(tasks)
            }
            Kind::Threads => {
                // THP cannot be switched off for one thread, so it is switched off for the whole process.
                let thp_was_off = without_thp(cycle.pages == Pages::Small);
                let stop = Arc::new(AtomicBool::new(false));
                let workers = Workers::Threads {
                    stop: Arc::clone(&stop),
                    handles: Vec::with_capacity(count),
                    thp_was_off,
                };
                let mut tasks = Tasks { slots: Arc::clone(&slots), workers };
                for i in 0..count {
                    let (slots, stop) = (Arc::clone(&slots), Arc::clone(&stop));
                    let cpu = cpus.get(i % cpus.len().max(1)).copied();
                    let handle = std::thread::Builder::new()
                        .name(format!("task {i}"))
                        .spawn(move || work(cycle, &slots.all()[i], cpu, &stop))
                        .with_context(|| format!("cannot start thread {} of {count}", i + 1))?;
                    if let Workers::Threads { handles, .. } = &mut tasks.workers {
                        handles.push(handle);
                    }
                }
                Ok(tasks)
            }
        }
    }

    /// Returns the cycles that each task has done so far.
    ///
    /// # Errors
    /// A task has failed.
    pub fn cycles(&self) -> Result<Vec<u64>> {
        let slots = self.slots.all();
        if let Some(errno) = slots.iter().map(|s| s.failed.load(Ordering::Relaxed)).find(|&errno| errno != 0)
        {
            bail!("a task could not map 128 MB: {}", std::io::Error::from_raw_os_error(errno));
        }
        Ok(slots.iter().map(|slot| slot.cycles.load(Ordering::Relaxed)).collect())
    }

    /// Returns the seconds that all tasks together have run (`/proc/PID/schedstat`); `None` if the kernel does
    /// not report it.
    pub fn cpu_time(&self) -> Option<f64> {
        let of = |slot: &Slot| {
            let id = slot.id.load(Ordering::Relaxed);
            let text = std::fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        };
        self.slots.all().iter().map(of).sum::<Option<f64>>().map(|nanoseconds| nanoseconds / 1e9)
    }

    /// Returns the processes of all tasks.
    pub fn processes(&self) -> BTreeSet<u32> {
        match &self.workers {
            Workers::Children(children) => children.iter().map(|pid| pid.as_raw().cast_unsigned()).collect(),
            Workers::Threads { .. } => [std::process::id()].into(),
        }
    }

    /// Returns for each task the kernel function in which it sleeps now (`/proc/PID/wchan`). The name is empty
    /// if the task runs or the kernel does not report it.
    pub fn sleeping_in(&self) -> Vec<String> {
        let ids = self.slots.all().iter().map(|slot| slot.id.load(Ordering::Relaxed)).filter(|&id| id > 0);
        let place = |id: i32| {
            let text = std::fs::read_to_string(format!("/proc/{id}/wchan")).unwrap_or_default();
            if text == "0" { String::new() } else { text }
        };
        ids.map(place).collect()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        match &mut self.workers {
            Workers::Children(children) => {
                for pid in children.iter() {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
                for pid in children.iter() {
                    let _ = waitpid(*pid, None);
                }
            }
            Workers::Threads { stop, handles, thp_was_off } => {
                stop.store(true, Ordering::Relaxed);
                for handle in handles.drain(..) {
                    let _ = handle.join();
                }
                without_thp(*thp_was_off);
            }
        }
    }
}

/// Starts a child process that repeats the cycle until it is killed or its parent ends.
fn child(cycle: Cycle, slot: &Slot, cpu: Option<usize>) -> Result<Pid> {
    let parent = nix::unistd::getpid();
    // SAFETY: fork(2). The child makes system calls and touches its own memory. It allocates nothing, takes
    // no lock, and exits by _exit(2).
    match unsafe { fork() }.context("cannot fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let never = AtomicBool::new(false);
            // SAFETY: prctl(2) with plain numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // Ctrl-C at the terminal is for the parent, which ends this child.
            let _ = SigSet::all().thread_block();
            without_thp(cycle.pages == Pages::Small);
            // The parent may have ended before prctl(2) asked for the signal.
            if nix::unistd::getppid() == parent {
                work(cycle, slot, cpu, &never);
            }
            // SAFETY: _exit(2) runs no exit handler and flushes no buffer of the parent.
            unsafe { libc::_exit(0) }
        }
    }
}

/// Repeats the cycle until `stop` is set or a cycle fails.
fn work(cycle: Cycle, slot: &Slot, cpu: Option<usize>, stop: &AtomicBool) {
    slot.id.store(gettid().as_raw(), Ordering::Relaxed);
    if let Some(cpu) = cpu {
        cpus::pin_to(cpu);
    }
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = cycle.run() {
            slot.failed.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
            return;
        }
        done += 1;
        slot.cycles.store(done, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::munmap::cycle::Touch;
    use hugelift_core::addr::PageSize;
    use std::time::{Duration, Instant};

    fn wait_for(mut what: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if what() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    #[test]
    fn all_tasks_work_and_end() {
        let _alone = crate::alone();
        for kind in [Kind::Processes, Kind::Threads] {
            let cycle = Cycle { pages: Pages::Small, touch: Touch::First };
            let tasks = Tasks::start(kind, cycle, 3).unwrap();
            assert!(wait_for(|| tasks.cycles().unwrap().iter().all(|&n| n > 10)), "{kind:?}");
            assert_eq!(tasks.sleeping_in().len(), 3);
            let ids: Vec<i32> = tasks.slots.all().iter().map(|s| s.id.load(Ordering::Relaxed)).collect();
            drop(tasks);
            for id in ids {
                assert!(wait_for(|| !std::path::Path::new(&format!("/proc/{id}")).exists()), "{kind:?} {id}");
            }
        }
    }

    #[test]
    fn a_task_that_fails_says_so() {
        let _alone = crate::alone();
        // No machine has pages of 2^60 bytes.
        let pages = Pages::Hugetlb(PageSize::new(1 << 60).unwrap());
        let tasks = Tasks::start(Kind::Processes, Cycle { pages, touch: Touch::None }, 1).unwrap();
        assert!(wait_for(|| tasks.cycles().is_err()));
        let error = tasks.cycles().unwrap_err().to_string();
        assert!(error.starts_with("a task could not map 128 MB: "), "{error}");
    }
}
