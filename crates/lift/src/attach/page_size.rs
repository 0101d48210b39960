// SPDX-License-Identifier: Apache-2.0
//! Maps the copies that a process has from the store by huge pages or by small ones. Both are the same bytes in the same
//! memory, so that nothing but the page size differs.

use super::chosen::Chosen;
use super::open::{in_tracer, open, read_status};
use crate::options::Seccomp;
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_inject::live::{Pages, Stops};
use hugelift_linux::proc::procfs::Process;
use std::time::{Duration, Instant};

/// What a change of the page size showed.
#[derive(Clone, Debug)]
pub struct Resized {
    /// What was mapped anew, mapping by mapping.
    pub mapped: Vec<Range>,
    /// Why the rest was not, a line for each mapping.
    pub complaints: Vec<String>,
    /// How often and how long a thread was stopped.
    pub stops: Stops,
    /// From the first reading of the process to the end.
    pub took: Duration,
}

/// Maps each of these copies that is a file of the store by the pages that are named with it. All others stay as they are, and
/// so does a copy that was written to.
///
/// # Errors
/// One line that says why the process cannot be changed. If a thread was lost meanwhile, some of them may be changed.
pub fn map_by(chosen: Chosen, seccomp: Seccomp, copies: &[(Range, Pages)]) -> Result<Resized, String> {
    let began = Instant::now();
    let chosen = chosen.reached()?;
    read_status(chosen.pid)?;
    let mappings = Process::new(chosen.pid).maps().map_err(|e| e.to_string())?;
    let pages_of = |mapping: &Mapping| {
        let copy = copies.iter().find(|(copy, _)| mapping.range.covers(*copy));
        copy.filter(|_| mapping.is_file() && !mapping.prot.write).map(|(_, pages)| *pages)
    };
    let wanted: Vec<(&Mapping, Pages)> =
        mappings.iter().filter_map(|mapping| Some((mapping, pages_of(mapping)?))).collect();
    in_tracer(|| {
        let mut live = open(chosen, &mappings, seccomp)?;
        let (mut mapped, mut complaints) = (Vec::new(), Vec::new());
        for (mapping, pages) in wanted {
            match live.map_by(mapping, pages) {
                Ok(()) => mapped.push(mapping.range),
                Err(Fault::Lost(why)) => return Err(why),
                Err(fault) => {
                    let size = human_bytes(mapping.range.len());
                    complaints.push(format!("{size} of it at {} stay: {fault}", mapping.range.start));
                }
            }
        }
        Ok(Resized { mapped, complaints, stops: live.stops(), took: began.elapsed() })
    })
}
