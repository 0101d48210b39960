// SPDX-License-Identifier: Apache-2.0
//! Samples the addresses of loads and stores by a PMU that tells them: PEBS on Intel, IBS on AMD, SPE on Arm.
//!
//! It tells best where the accesses go, and worst which pages are touched at all: 1,000 samples in a second meet few of many
//! pages.

mod pmu;

use super::background::Background;
use super::pages::Resident;
use crate::price;
use crate::records::Batch;
use crate::refusal::PerfError;
use crate::threads::Threads;
use hugelift_core::addr::PageSize;
use hugelift_core::heat::data::areas::Areas;
use hugelift_core::heat::data::count::count;
use hugelift_core::heat::data::precise::Sampled;
use hugelift_core::heat::data::{DataInUse, Method};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::procfs::{Process, help_with_access};
use nix::errno::Errno;
use pmu::{Kind, Pace};
use std::io;
use std::path::Path;
use std::time::Duration;

/// How often the buffers are read: a thread fills its ring in 0.3 s.
const INTERVAL: Duration = Duration::from_millis(100);
/// Readings between two lists of the threads.
const LISTED: u32 = 2;
/// The most threads that are sampled. The memory of their buffers may be locked in part only, and other samplers need some.
const MOST: usize = 32;
/// The kernel's limit of samples a second, and what it is at first.
const LIMIT: (&str, u64) = ("/proc/sys/kernel/perf_event_max_sample_rate", 100_000);

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such PMU.
    #[error("{0}")]
    Lacking(String),
    /// The kernel refuses the event.
    #[error("this machine has {0}, which refuses to sample: {1}")]
    Refuses(&'static str, PerfError),
    /// Older kernels give IBS to root and CAP_PERFMON alone, or to nobody.
    #[error(
        "this machine has IBS, which samples a process from Linux 6.2 on, and for users from 6.14 on: {0}"
    )]
    Ibs(PerfError),
    /// Its pages cannot be read.
    #[error("/proc/{0}/pagemap: {1}; {help}", help = help_with_access())]
    Pages(u32, io::Error),
    /// There is no thread for it.
    #[error("no further thread: {0}")]
    Thread(io::Error),
}

/// A process whose loads and stores are sampled. Dropping it ends that.
#[derive(Debug)]
pub struct Watch {
    resident: Vec<Resident>,
    span: PageSize,
    background: Background<Sampled>,
    /// Its threads, and those that are sampled.
    threads: [usize; 2],
}

impl Watch {
    /// Begins to sample. `pieces` finds the spans of `span` bytes, if such a PMU is there.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(
        sys: &Path,
        process: Process,
        pieces: impl FnOnce() -> io::Result<Vec<Resident>>,
        span: PageSize,
    ) -> Result<Watch, Refused> {
        Watch::of(open(sys, process)?, process, pieces, span)
    }

    /// Begins to read what is sampled of these threads.
    fn of(
        mut threads: Threads,
        process: Process,
        pieces: impl FnOnce() -> io::Result<Vec<Resident>>,
        span: PageSize,
    ) -> Result<Watch, Refused> {
        let count = [threads.all, threads.sampled];
        let resident = pieces().map_err(|error| Refused::Pages(process.pid(), error))?;
        let (page, mut batch, mut readings) = (base_page().bytes(), Batch::default(), 0_u32);
        let step = move |sampled: &mut Sampled, is_last: bool| {
            if is_last {
                threads.stop();
            }
            batch.clear();
            threads.read(&mut batch);
            sampled.add(&batch.data, page);
            readings += 1;
            if readings % LISTED == 0 {
                threads.follow();
            }
            true
        };
        let background = Background::start("addresses", INTERVAL, Sampled::default(), step);
        Ok(Watch { resident, span, background: background.map_err(Refused::Thread)?, threads: count })
    }

    /// Ends it, and returns what was seen.
    ///
    /// # Errors
    /// Nothing was sampled; the text says why.
    pub fn finish(self, areas: &Areas) -> Result<DataInUse, String> {
        let sampled = self.background.finish().ok_or("its thread died")?;
        let page = base_page().bytes();
        let seen = self.resident.iter().map(|(piece, bytes)| (piece, sampled.seen(piece, *bytes, page)));
        let data = count(areas, Method::PreciseAddresses, Some(self.span), seen);
        if data.samples.is_none_or(|samples| samples == 0) {
            let [all, few] = self.threads;
            return Err(format!(
                "no load or store of {few} of its {all} threads was sampled: they slept, or ran on CPUs of another kind"
            ));
        }
        Ok(data)
    }
}

/// Opens the first event that the kernel takes.
fn open(sys: &Path, process: Process) -> Result<Threads, Refused> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let limit = std::fs::read_to_string(LIMIT.0).ok().and_then(|text| text.trim().parse().ok());
    let pace = Pace {
        threads: process.threads().len().min(MOST).min(cpus) as u64,
        price: price::of_a_sample(),
        limit: limit.unwrap_or(LIMIT.1),
    };
    let (kind, events) = pmu::find(sys, pace).map_err(Refused::Lacking)?;
    let mut refused = PerfError::Vanished;
    for event in events {
        match Threads::open_event(process, event, MOST) {
            Ok(threads) => return Ok(threads),
            Err(error) => refused = error,
        }
    }
    Err(refusal(kind, refused))
}

fn refusal(kind: Kind, error: PerfError) -> Refused {
    match (kind, error) {
        (Kind::Ibs, error @ (PerfError::Os(Errno::EINVAL) | PerfError::Denied { .. })) => Refused::Ibs(error),
        (kind, error) => Refused::Refuses(kind.name(), error),
    }
}

/// Writes files below a folder that stands for /sys/bus/event_source/devices.
#[cfg(test)]
fn sys(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (file, text) in files {
        let path = dir.path().join("bus/event_source/devices").join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, format!("{text}\n")).expect("a file");
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use hugelift_core::addr::{Addr, Range};
    use hugelift_core::heat::data::areas::Piece;
    use hugelift_linux::proc::clock;
    use perf_event_open_sys::bindings::{self, perf_event_attr};

    #[test]
    fn issue_31_2_a_pmu_that_is_not_there_or_refuses_is_named() {
        let _alone = crate::alone();
        let process = Process::new(std::process::id());
        let start = |files: &[(&str, &str)]| {
            Watch::start(sys(files).path(), process, || Ok(Vec::new()), PageSize::MB2)
        };
        let says = |files: &[(&str, &str)]| start(files).expect_err("no such PMU").to_string();
        assert!(says(&[]).starts_with("no PMU here samples them"));
        // No kernel has so many kinds of events.
        let refused = says(&[("arm_spe_0/type", "4000000")]);
        assert!(refused.starts_with("this machine has SPE, which refuses to sample: "), "{refused}");
        assert!(says(&[("ibs_op/type", "eleven")]).contains("'eleven' is no number"));
    }

    #[test]
    fn issue_31_2_what_ibs_refuses_to_users_is_explained() {
        let denied = || PerfError::Denied { errno: Errno::EACCES, paranoid: Some(2) };
        let says = |kind, error| refusal(kind, error).to_string();
        for error in [PerfError::Os(Errno::EINVAL), denied()] {
            assert!(says(Kind::Ibs, error).contains("for users from 6.14 on: "));
        }
        for (kind, error) in [(Kind::Ibs, PerfError::Os(Errno::ENOENT)), (Kind::Pebs, denied())] {
            let says = says(kind, error);
            assert!(says.contains("refuses to sample: ") && !says.contains('\n'), "{says}");
        }
    }

    /// Page faults stand for loads and stores: their samples have addresses of data, too. One of 501 is sampled. For a frequency the
    /// kernel finds the period by the last two samples: those of the start come within microseconds, and then none for seconds.
    #[test]
    fn issue_31_2_samples_become_spans() {
        const MB2: u64 = 2 << 20;
        let _alone = crate::alone();
        let mut attr = perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_PAGE_FAULTS.into(),
            sample_type: u64::from(bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_ADDR),
            ..perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = 501;
        let process = Process::new(std::process::id());
        let snapshot = hugelift_linux::proc::snapshot::live(Some(process.pid()), 0).expect("a snapshot");
        let areas = Areas::new(&snapshot, &process.smaps().expect("smaps"));
        let mut memory: Vec<u8> = Vec::with_capacity(16 * MB2 as usize);
        let start =
            Addr(memory.as_ptr().expose_provenance() as u64).align_up(PageSize::MB2).expect("an address");
        let piece = |n: u64| {
            let range = Range::new(Addr(start.0 + n * MB2), Addr(start.0 + (n + 1) * MB2));
            (Piece { range: range.expect("a range"), place: 0 }, MB2)
        };
        let pieces: Vec<_> = (0..14).map(piece).collect();
        let threads = match Threads::open_event(process, Event { attr, aux: 0 }, MOST) {
            Err(PerfError::Denied { .. }) => return println!("SKIP: this user may sample nothing"),
            threads => threads.expect("page faults are sampled"),
        };
        let watch = Watch::of(threads, process, || Ok(pieces), PageSize::MB2).expect("a watch");
        // Half of it, again and again, for a time of its own: a busy machine gives less of a CPU.
        let used = (start.0 - memory.as_ptr().addr() as u64 + 7 * MB2) as usize;
        let began = clock::cpu_time_of_thread();
        while clock::cpu_time_of_thread() - began < Duration::from_millis(300) {
            memory.spare_capacity_mut()[..used].iter_mut().step_by(4096).for_each(|byte| _ = byte.write(1));
            // SAFETY: madvise(2) of whole pages of the vector, none of whose bytes is read.
            unsafe {
                libc::madvise(
                    std::ptr::with_exposed_provenance_mut(start.0 as usize),
                    7 * MB2 as usize,
                    libc::MADV_DONTNEED,
                )
            };
        }
        let data = watch.finish(&areas).expect("samples");
        // Such an event is found and opened, too: PERF_TYPE_SOFTWARE, and cnt_ctl as the bit that makes it page faults.
        let files = [("ibs_op/type", "1"), ("ibs_op/format/cnt_ctl", "config:1")];
        drop(
            Watch::start(sys(&files).path(), process, || Ok(Vec::new()), PageSize::MB2)
                .expect("it is opened"),
        );
        let spans = data.spans.expect("spans");
        assert_eq!((data.method, spans.resident), (Some(Method::PreciseAddresses), 14));
        assert!((1..=7).contains(&spans.touched) && spans.hot <= spans.touched, "{data:?}");
        assert!(data.samples.is_some_and(|samples| samples >= spans.touched), "{data:?}");
    }
}
