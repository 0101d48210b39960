// SPDX-License-Identifier: Apache-2.0
//! Tasks that repeat a cycle until they are ended: processes, or threads of this one. Each counts
//! in a cache line of its own.

use super::cycle::{Cycle, without_thp};
use crate::memory::Pages;
use anyhow::{Context as _, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, gettid};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Processes or threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Each with an address space of its own.
    Processes,
    /// All in one address space.
    Threads,
}

impl Kind {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Processes => "processes",
            Kind::Threads => "threads",
        }
    }
}

/// What one task tells. Padded: two tasks never write to the same cache line, nor to the one that
/// is fetched along with it.
#[repr(C, align(128))]
struct Slot {
    cycles: AtomicU64,
    /// errno(3) of what failed; the task is at its end then.
    failed: AtomicI32,
    /// Its thread's number, once it runs.
    id: AtomicI32,
}

/// Slots in memory that children share with us.
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
        // SAFETY: munmap(2) of what `new` mapped; whoever looks at it holds the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}

enum Ended {
    Children(Vec<Pid>),
    Threads { stop: Arc<AtomicBool>, handles: Vec<JoinHandle<()>>, thp_was_off: bool },
}

/// Running tasks. They end when the value is dropped.
pub struct Tasks {
    slots: Arc<Slots>,
    ended: Ended,
}

impl Tasks {
    /// Starts `count` tasks, task i on the i-th of the CPUs that this process may use, and again
    /// from the first one on.
    ///
    /// # Errors
    /// A task cannot be started; those that were are ended.
    pub fn start(kind: Kind, cycle: Cycle, count: usize) -> Result<Tasks> {
        let slots = Arc::new(Slots::new(count)?);
        let cpus = cpus();
        match kind {
            Kind::Processes => {
                let children = Vec::with_capacity(count);
                let mut tasks = Tasks { slots: Arc::clone(&slots), ended: Ended::Children(children) };
                for (i, slot) in slots.all().iter().enumerate() {
                    let pid = child(cycle, slot, cpus.get(i % cpus.len().max(1)))?;
                    if let Ended::Children(children) = &mut tasks.ended {
                        children.push(pid);
                    }
                }
                Ok(tasks)
            }
            Kind::Threads => {
                // The whole process is without them for so long, as threads have no such switch.
                let thp_was_off = without_thp(cycle.pages == Pages::Small);
                let stop = Arc::new(AtomicBool::new(false));
                let ended = Ended::Threads {
                    stop: Arc::clone(&stop),
                    handles: Vec::with_capacity(count),
                    thp_was_off,
                };
                let mut tasks = Tasks { slots: Arc::clone(&slots), ended };
                for i in 0..count {
                    let (slots, stop) = (Arc::clone(&slots), Arc::clone(&stop));
                    let cpu = cpus.get(i % cpus.len().max(1)).copied();
                    let handle = std::thread::Builder::new()
                        .name(format!("task {i}"))
                        .spawn(move || work(cycle, &slots.all()[i], cpu.as_ref(), &stop))
                        .with_context(|| format!("cannot start thread {} of {count}", i + 1))?;
                    if let Ended::Threads { handles, .. } = &mut tasks.ended {
                        handles.push(handle);
                    }
                }
                Ok(tasks)
            }
        }
    }

    /// Cycles that each task has done so far.
    ///
    /// # Errors
    /// One of them failed.
    pub fn cycles(&self) -> Result<Vec<u64>> {
        let slots = self.slots.all();
        if let Some(errno) = slots.iter().map(|s| s.failed.load(Ordering::Relaxed)).find(|&errno| errno != 0)
        {
            bail!("a task could not map 128 MB: {}", std::io::Error::from_raw_os_error(errno));
        }
        Ok(slots.iter().map(|slot| slot.cycles.load(Ordering::Relaxed)).collect())
    }

    /// Seconds that all tasks together have run, and have waited for a CPU while they could have run
    /// (`/proc/PID/schedstat`); `None` where the kernel does not tell.
    pub fn cpu_times(&self) -> Option<(f64, f64)> {
        let mut all = (0.0, 0.0);
        for slot in self.slots.all() {
            let id = slot.id.load(Ordering::Relaxed);
            let text = std::fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
            let mut numbers = text.split_whitespace().map_while(|n| n.parse::<f64>().ok());
            all.0 += numbers.next()? / 1e9;
            all.1 += numbers.next()? / 1e9;
        }
        Some(all)
    }

    /// The kernel's functions in which tasks sleep just now (`/proc/PID/wchan`); empty for one that
    /// runs, or where the kernel does not tell.
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
        match &mut self.ended {
            Ended::Children(children) => {
                for pid in children.iter() {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
                for pid in children.iter() {
                    let _ = waitpid(*pid, None);
                }
            }
            Ended::Threads { stop, handles, thp_was_off } => {
                stop.store(true, Ordering::Relaxed);
                for handle in handles.drain(..) {
                    let _ = handle.join();
                }
                without_thp(*thp_was_off);
            }
        }
    }
}

/// The CPUs that this process may use, each as a set of one.
fn cpus() -> Vec<CpuSet> {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let one = |cpu: usize| {
        let mut set = CpuSet::new();
        (allowed.is_set(cpu) == Ok(true) && set.set(cpu).is_ok()).then_some(set)
    };
    (0..CpuSet::count()).filter_map(one).collect()
}

fn child(cycle: Cycle, slot: &Slot, cpu: Option<&CpuSet>) -> Result<Pid> {
    let parent = nix::unistd::getpid();
    // SAFETY: fork(2). The child makes system calls and touches memory of its own; it allocates
    // nothing, takes no lock, and leaves by _exit(2).
    match unsafe { fork() }.context("cannot fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let never = AtomicBool::new(false);
            // SAFETY: prctl(2) with plain numbers; sigprocmask(2): a ^C at the terminal is for the
            // parent, who ends us.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let _ = SigSet::all().thread_block();
            without_thp(cycle.pages == Pages::Small);
            // The parent may have died before it could be watched.
            if nix::unistd::getppid() == parent {
                work(cycle, slot, cpu, &never);
            }
            // SAFETY: _exit(2): nothing of the parent's is run or flushed.
            unsafe { libc::_exit(0) }
        }
    }
}

fn work(cycle: Cycle, slot: &Slot, cpu: Option<&CpuSet>, stop: &AtomicBool) {
    slot.id.store(gettid().as_raw(), Ordering::Relaxed);
    if let Some(cpu) = cpu {
        // Where it may not be, any CPU will do.
        let _ = sched_setaffinity(Pid::from_raw(0), cpu);
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
        let _one = crate::forking();
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
        let _one = crate::forking();
        // Nobody has a page of 2^60 bytes.
        let pages = Pages::Hugetlb(PageSize::new(1 << 60).unwrap());
        let tasks = Tasks::start(Kind::Processes, Cycle { pages, touch: Touch::None }, 1).unwrap();
        assert!(wait_for(|| tasks.cycles().is_err()));
        let error = tasks.cycles().unwrap_err().to_string();
        assert!(error.starts_with("a task could not map 128 MB: "), "{error}");
    }
}
