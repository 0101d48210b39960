// SPDX-License-Identifier: Apache-2.0
//! Counters of a program's threads, by perf_event_open(2).

use crate::pmu::Count;
use hugelift_heat::refusal::PerfError;
use nix::errno::Errno;
use perf_event_open_sys::bindings::{self, perf_event_attr};
use perf_event_open_sys::ioctls;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The folder in which the kernel lists its PMUs.
const DEVICES: &str = "/sys/bus/event_source/devices";

/// An event in the kernel's terms: the type of the PMU and the code of the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// `perf_event_attr.type`
    pub pmu: u32,
    /// `perf_event_attr.config`
    pub config: u64,
}

impl Code {
    /// Page faults that read nothing from a disk.
    pub const MINOR_FAULTS: Code = Code::software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN);
    /// Page faults that read from a disk.
    pub(crate) const MAJOR_FAULTS: Code = Code::software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MAJ);
    /// Switches away from a thread.
    pub const CONTEXT_SWITCHES: Code = Code::software(bindings::PERF_COUNT_SW_CONTEXT_SWITCHES);
    /// Nanoseconds of CPU time.
    pub(crate) const TASK_CLOCK: Code = Code::software(bindings::PERF_COUNT_SW_TASK_CLOCK);
    /// Moves of a thread to another CPU.
    pub const MIGRATIONS: Code = Code::software(bindings::PERF_COUNT_SW_CPU_MIGRATIONS);
    /// Core cycles.
    pub const CYCLES: Code = Code::hardware(bindings::PERF_COUNT_HW_CPU_CYCLES);
    /// Instructions retired.
    pub const INSTRUCTIONS: Code = Code::hardware(bindings::PERF_COUNT_HW_INSTRUCTIONS);
    /// Accesses to the last-level cache.
    pub const CACHE_REFERENCES: Code = Code::hardware(bindings::PERF_COUNT_HW_CACHE_REFERENCES);
    /// Those that missed it.
    pub const CACHE_MISSES: Code = Code::hardware(bindings::PERF_COUNT_HW_CACHE_MISSES);
    /// Cycles of the bus.
    pub const BUS_CYCLES: Code = Code::hardware(bindings::PERF_COUNT_HW_BUS_CYCLES);
    /// Loads that missed the first-level data cache.
    pub const L1D_LOAD_MISSES: Code =
        Code::cache(bindings::PERF_COUNT_HW_CACHE_L1D, bindings::PERF_COUNT_HW_CACHE_OP_READ);
    /// Loads that missed the last-level cache.
    pub const LL_LOAD_MISSES: Code =
        Code::cache(bindings::PERF_COUNT_HW_CACHE_LL, bindings::PERF_COUNT_HW_CACHE_OP_READ);
    /// Loads that missed the data TLB.
    pub const DTLB_LOAD_MISSES: Code =
        Code::cache(bindings::PERF_COUNT_HW_CACHE_DTLB, bindings::PERF_COUNT_HW_CACHE_OP_READ);
    /// Stores that missed the data TLB.
    pub const DTLB_STORE_MISSES: Code =
        Code::cache(bindings::PERF_COUNT_HW_CACHE_DTLB, bindings::PERF_COUNT_HW_CACHE_OP_WRITE);

    /// Returns the kernel's generic code of a cache's misses, which every CPU has.
    const fn cache(level: u32, operation: u32) -> Code {
        let config = level | operation << 8 | bindings::PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
        Code { pmu: bindings::PERF_TYPE_HW_CACHE, config: config as u64 }
    }

    const fn hardware(config: u32) -> Code {
        Code { pmu: bindings::PERF_TYPE_HARDWARE, config: config as u64 }
    }

    const fn software(config: u32) -> Code {
        Code { pmu: bindings::PERF_TYPE_SOFTWARE, config: config as u64 }
    }

    /// Returns the code of a tracepoint with the number of its `id` file.
    pub(crate) fn tracepoint(id: u64) -> Code {
        Code { pmu: bindings::PERF_TYPE_TRACEPOINT, config: id }
    }
}

/// When counting begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// By [`Counters::enable`].
    Asked,
    /// By the next execve(2) of the thread.
    Exec,
}

/// What is counted too once a thread of a counter has started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Later {
    /// Threads.
    Threads,
    /// Threads and processes.
    Processes,
}

/// Open counters of some threads, group by group.
#[derive(Debug)]
pub struct Counters {
    /// By group, event and thread; no file where the PMU did not take the event.
    groups: Vec<Vec<Vec<File>>>,
    /// Only user space is counted, as counting the kernel is not permitted.
    pub user_only: bool,
}

/// Returns name and type of the PMU with the first of these names; one that ends in `_` is a prefix.
pub(crate) fn find_pmu(names: &[&str]) -> Option<(String, u32)> {
    let mut there: Vec<String> = std::fs::read_dir(DEVICES)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    there.sort_unstable();
    names.iter().find_map(|name| {
        let fits = |d: &&String| d == name || (name.ends_with('_') && d.starts_with(name));
        let device = there.iter().find(fits)?;
        let kind = std::fs::read_to_string(format!("{DEVICES}/{device}/type")).ok()?;
        Some((device.clone(), kind.trim().parse().ok()?))
    })
}

impl Counters {
    /// Opens each event for each of the threads, and for all threads and processes that these start
    /// later. A thread that has ended meanwhile is left out; one that is started by a thread not
    /// opened yet is missed, as by perf(1).
    ///
    /// # Errors
    /// [`PerfError`]; [`PerfError::NoPmu`] if the PMU does not take the first event of any group.
    pub fn open(groups: &[Vec<Code>], threads: &[i32], start: Start) -> Result<Counters, PerfError> {
        Counters::open_with(groups, threads, start, Later::Processes)
    }

    /// Opens each event for each thread of a process, and for all threads that these start later. Processes that they start
    /// are not counted; before Linux 5.13 they are.
    ///
    /// # Errors
    /// Those of [`Counters::open`].
    pub(crate) fn open_for_process(groups: &[Vec<Code>], threads: &[i32]) -> Result<Counters, PerfError> {
        Counters::open_for(groups, threads, Start::Asked, Later::Threads)
    }

    /// Opens each event for each of the threads, and for what `later` says.
    ///
    /// # Errors
    /// Those of [`Counters::open`].
    pub(crate) fn open_for(
        groups: &[Vec<Code>],
        threads: &[i32],
        start: Start,
        later: Later,
    ) -> Result<Counters, PerfError> {
        match Counters::open_with(groups, threads, start, later) {
            Err(PerfError::Os(Errno::EINVAL)) if later == Later::Threads => {
                Counters::open(groups, threads, start)
            }
            other => other,
        }
    }

    fn open_with(
        groups: &[Vec<Code>],
        threads: &[i32],
        start: Start,
        later: Later,
    ) -> Result<Counters, PerfError> {
        match Counters::open_as(groups, threads, start, later, false) {
            Err(PerfError::Denied { .. }) => Counters::open_as(groups, threads, start, later, true),
            other => other,
        }
    }

    fn open_as(
        groups: &[Vec<Code>],
        threads: &[i32],
        start: Start,
        later: Later,
        user_only: bool,
    ) -> Result<Counters, PerfError> {
        let mut counters = Counters {
            groups: groups.iter().map(|g| g.iter().map(|_| Vec::new()).collect()).collect(),
            user_only,
        };
        let mut last = PerfError::Vanished;
        for thread in threads {
            for (group, codes) in groups.iter().enumerate() {
                match open_group(codes, *thread, start, later, user_only) {
                    Ok(files) => {
                        for (slot, file) in counters.groups[group].iter_mut().zip(files) {
                            slot.extend(file);
                        }
                    }
                    Err(Errno::ESRCH) => break,
                    // The PMU does not have this group's first event; it may have another group's.
                    Err(errno @ (Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV | Errno::EINVAL)) => {
                        last = if errno == Errno::EINVAL { PerfError::Os(errno) } else { PerfError::NoPmu };
                    }
                    Err(errno) => return Err(PerfError::of(errno, threads.len())),
                }
            }
        }
        let any = counters.groups.iter().any(|g| g.first().is_some_and(|first| !first.is_empty()));
        if any { Ok(counters) } else { Err(last) }
    }

    /// Starts counting.
    pub fn enable(&self) {
        self.leaders().for_each(|file| {
            // SAFETY: ioctl(2), PERF_EVENT_IOC_ENABLE: an open perf event, no pointer.
            unsafe { ioctls::ENABLE(file.as_raw_fd(), 0) };
        });
    }

    /// Stops counting.
    pub fn disable(&self) {
        self.leaders().for_each(|file| {
            // SAFETY: ioctl(2), PERF_EVENT_IOC_DISABLE: an open perf event, no pointer.
            unsafe { ioctls::DISABLE(file.as_raw_fd(), 0) };
        });
    }

    /// Returns the first event of each group, with which the others are enabled.
    fn leaders(&self) -> impl Iterator<Item = &File> {
        self.groups.iter().filter_map(|g| g.first()).flatten()
    }

    /// Reads the counts so far, over all threads, in the order of the groups; `None` for an event that
    /// was opened for no thread.
    pub fn read(&self) -> Vec<Vec<Option<Count>>> {
        let sum = |files: &Vec<File>| {
            files.iter().filter_map(read_one).reduce(|mut sum, count| {
                sum.add(count);
                sum
            })
        };
        self.groups.iter().map(|group| group.iter().map(sum).collect()).collect()
    }
}

/// Opens the events of one group for one thread. A refusal is an error only for the first event.
fn open_group(
    codes: &[Code],
    thread: i32,
    start: Start,
    later: Later,
    user_only: bool,
) -> Result<Vec<Option<File>>, Errno> {
    let mut files: Vec<Option<File>> = Vec::with_capacity(codes.len());
    for code in codes {
        let leader = files.first().and_then(|f| f.as_ref()).map(AsRawFd::as_raw_fd);
        let opened = open_one(*code, thread, leader, start, later, user_only);
        match opened {
            Ok(fd) => files.push(Some(File::from(fd))),
            // The PMU does not have the event, or has no counter left for it.
            Err(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EINVAL) if leader.is_some() => files.push(None),
            Err(errno) => return Err(errno),
        }
    }
    Ok(files)
}

fn open_one(
    code: Code,
    thread: i32,
    leader: Option<i32>,
    start: Start,
    later: Later,
    user_only: bool,
) -> Result<OwnedFd, Errno> {
    let mut attr = perf_event_attr {
        size: size_of::<perf_event_attr>() as u32,
        type_: code.pmu,
        config: code.config,
        // Inherited events cannot be read as a group, so each is read by itself.
        read_format: u64::from(
            bindings::PERF_FORMAT_TOTAL_TIME_ENABLED | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..perf_event_attr::default()
    };
    attr.set_inherit(1);
    attr.set_inherit_thread((later == Later::Threads).into());
    attr.set_exclude_kernel(user_only.into());
    attr.set_exclude_hv(user_only.into());
    if leader.is_none() {
        attr.set_disabled(1);
        attr.set_enable_on_exec((start == Start::Exec).into());
    }
    let flags = u64::from(bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: perf_event_open(2): attr is live and holds its size; the result is a new file.
    unsafe {
        let fd = perf_event_open_sys::perf_event_open(&raw mut attr, thread, -1, leader.unwrap_or(-1), flags);
        if fd < 0 { Err(Errno::last()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Reads the value, the time enabled and the time running.
fn read_one(mut file: &File) -> Option<Count> {
    let mut bytes = [0; 24];
    file.read_exact(&mut bytes).ok()?;
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|b| bytes[8 * i + b]));
    Some(Count { value: word(0), enabled_ns: word(1), running_ns: word(2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of a PMU type that no kernel assigns.
    const NOWHERE: Code = Code { pmu: u32::MAX - 1, config: 0 };

    fn own_thread() -> i32 {
        nix::unistd::gettid().as_raw()
    }

    /// Causes page faults of the base page size in this thread.
    fn touch(pages: usize) {
        let size = 1 << 16;
        let bytes = pages * size;
        // Mapped anew: an allocator may return memory that was touched before.
        // SAFETY: mmap(2), madvise(2), munmap(2) on memory that only this function uses.
        unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            // Huge pages would take fewer faults.
            libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
            for page in 0..pages {
                at.cast::<u8>().add(page * size).write_volatile(1);
            }
            libc::munmap(at, bytes);
        }
    }

    fn open(groups: &[Vec<Code>]) -> Option<Counters> {
        match Counters::open(groups, &[own_thread()], Start::Asked) {
            Err(PerfError::Denied { .. }) => {
                println!("SKIP: perf_event_open is not permitted here");
                None
            }
            other => Some(other.expect("software events")),
        }
    }

    #[test]
    fn a_group_counts_between_enable_and_disable() {
        let Some(counters) = open(&[vec![Code::CONTEXT_SWITCHES, Code::MINOR_FAULTS]]) else { return };
        let faults = || counters.read()[0][1].expect("a count");
        touch(300);
        assert_eq!(faults(), Count::default());
        counters.enable();
        touch(300);
        counters.disable();
        let first = faults();
        assert!((300..1000).contains(&first.value) && first.running_share() == 1.0, "{first:?}");
        touch(300);
        assert_eq!(faults(), first);
    }

    #[test]
    fn an_event_that_is_not_there_is_none() {
        let Some(counters) = open(&[vec![Code::MINOR_FAULTS, NOWHERE], vec![NOWHERE, Code::MINOR_FAULTS]])
        else {
            return;
        };
        counters.enable();
        touch(10);
        let counts = counters.read();
        assert!(counts[0][0].is_some_and(|c| c.value >= 10), "{counts:?}");
        assert_eq!((counts[0][1], &counts[1]), (None, &vec![None, None]));
    }

    #[test]
    fn later_threads_are_counted() {
        let Some(counters) = open(&[vec![Code::MINOR_FAULTS]]) else { return };
        counters.enable();
        std::thread::spawn(|| touch(300)).join().expect("a thread");
        assert!(counters.read()[0][0].is_some_and(|c| c.value >= 300));
    }

    #[test]
    fn no_group_at_all_is_no_pmu() {
        let error = Counters::open(&[vec![NOWHERE]], &[own_thread()], Start::Asked).expect_err("no such PMU");
        assert!(matches!(error, PerfError::NoPmu | PerfError::Denied { .. }), "{error}");
        // No process has an id beyond pid_max.
        let error =
            Counters::open(&[vec![Code::MINOR_FAULTS]], &[i32::MAX], Start::Asked).expect_err("no thread");
        assert!(matches!(error, PerfError::Vanished | PerfError::Denied { .. }), "{error}");
    }

    #[test]
    fn pmus_by_name_and_by_beginning() {
        let (name, kind) = find_pmu(&["no-such-pmu", "software"]).expect("every kernel has it");
        assert_eq!((name.as_str(), kind), ("software", bindings::PERF_TYPE_SOFTWARE));
        assert_eq!(find_pmu(&["softwar", "soft_"]), None);
    }
}
