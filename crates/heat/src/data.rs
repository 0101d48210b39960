// SPDX-License-Identifier: Apache-2.0
//! Which data a process uses. The kernel tells it in several ways, of which most kernels have one or none, so that each is
//! tried, the one that misses the least first.
//!
//! | module | tells it by |
//! |---|---|
//! | [`idle`] | idle page tracking: each page frame is marked, and read at the end |
//! | [`damon`] | DAMON of virtual addresses: one page of each span is checked again and again |
//! | [`precise`] | addresses of loads and stores, which a PMU samples |
//! | [`referenced`] | the accessed bits that smaps sums up, a lower bound for each mapping |
//! | [`pages`] | which pages are in memory |
//! | `background` | the thread that reads what the kernel or the PMU says |
//!
//! MGLRU is none of them: it tells the ages of the pages of a control group, not of a process.

mod background;
pub mod damon;
pub mod idle;
pub mod pages;
pub mod precise;
pub mod referenced;

use hugelift_core::addr::PageSize;
use hugelift_core::heat::data::areas::Areas;
use hugelift_core::heat::data::{DataInUse, Method, Refusal};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::snapshot;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether what makes the kernel forget may be done: see [`referenced`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Only what leaves the kernel's own knowledge as it is.
    Harmless,
    /// Anything.
    All,
}

/// A process whose data is watched. Dropping it undoes what was set in the kernel.
#[derive(Debug)]
pub struct Watch {
    process: Process,
    identity: Identity,
    began: Instant,
    areas: Areas,
    way: Option<Way>,
    refusals: Vec<Refusal>,
}

#[derive(Debug)]
enum Way {
    Idle(idle::Marked),
    Damon(damon::Watch),
    Precise(precise::Watch),
    Referenced(referenced::Cleared),
}

impl Watch {
    /// Begins to watch a process for about `time`, in the first way that is open. No open way is no error: the result says
    /// why each is closed.
    ///
    /// # Errors
    /// The process cannot be read.
    pub fn start(process: Process, time: Duration, allowed: Allowed) -> Result<Watch, ProcError> {
        let identity = process.stat()?.identity();
        let snapshot = snapshot::live(Some(process.pid()), 0)?;
        let areas = Areas::new(&snapshot, &process.smaps()?);
        let span = snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
        let mut refusals = Vec::new();
        let mut refuse = |method, why: String| refusals.push(Refusal { method, why });
        let pieces = || pages::resident(process, &areas, span);
        let idle = idle::Files::of(process).and_then(|files| idle::Marked::start(files, &areas, span));
        let idle = idle.map_err(|why| refuse(Method::IdlePageTracking, why.to_string()));
        let mut way = idle.ok().map(Way::Idle);
        if way.is_none() {
            let damon = damon::Watch::start(Path::new("/sys"), process.pid(), pieces, span, time);
            way = damon.map_err(|why| refuse(Method::Damon, why.to_string())).ok().map(Way::Damon);
        }
        if way.is_none() {
            let precise = precise::Watch::start(Path::new("/sys"), process, pieces, span);
            way = precise
                .map_err(|why| refuse(Method::PreciseAddresses, why.to_string()))
                .ok()
                .map(Way::Precise);
        }
        if way.is_none() {
            let cleared = match allowed {
                Allowed::All => referenced::Cleared::start(process).map_err(|why| why.to_string()),
                Allowed::Harmless => Err(referenced::NOT_ASKED.to_string()),
            };
            way = cleared.map_err(|why| refuse(Method::Referenced, why)).ok().map(Way::Referenced);
        }
        Ok(Watch { process, identity, began: Instant::now(), areas, way, refusals })
    }

    /// Ends it, and returns what was seen.
    pub fn finish(self) -> DataInUse {
        let Watch { process, identity, began, areas, way, refusals } = self;
        let passed = began.elapsed();
        let (method, found) = match way {
            None => return DataInUse::unseen(refusals),
            Some(Way::Idle(marked)) => (Method::IdlePageTracking, marked.finish(&areas)),
            Some(Way::Damon(watch)) => (Method::Damon, watch.finish(&areas)),
            Some(Way::Precise(watch)) => (Method::PreciseAddresses, watch.finish(&areas)),
            Some(Way::Referenced(cleared)) => (Method::Referenced, cleared.finish(&areas)),
        };
        let milliseconds = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let ended = !process.stat().is_ok_and(|stat| stat.is_alive(identity));
        match found {
            Ok(data) => DataInUse { milliseconds, ended, refusals, ..data },
            Err(why) => {
                let why = if ended { "the process ended before it was read".into() } else { why };
                let refusals = refusals.into_iter().chain([Refusal { method, why }]).collect();
                DataInUse { milliseconds, ended, ..DataInUse::unseen(refusals) }
            }
        }
    }
}
