// SPDX-License-Identifier: Apache-2.0
//! Maps data files anew where the page cache has huge pages of them now.

use super::chosen::Chosen;
use super::open::{in_tracer, open};
use super::page_size::Resized;
use crate::options::Seccomp;
use hugelift_core::addr::human_bytes;
use hugelift_core::attribute::Attribute;
use hugelift_core::maps::Mapping;
use hugelift_core::printable::Escape as _;
use hugelift_core::smaps::Usage;
use hugelift_core::target::Fault;
use hugelift_linux::proc::procfs::Process;
use std::time::Instant;

/// Maps these parts of mappings of files anew, all of which are on huge pages of the page cache. One thread is borrowed for each.
/// Private memory that the process may write to, what it has written to, what is mapped by huge pages already, and where the process wants none, stays as it is.
///
/// # Errors
/// One line that says why the process cannot be changed. If a thread was lost meanwhile, some of them may be mapped anew.
pub fn map_anew(chosen: Chosen, seccomp: Seccomp, parts: &[Mapping]) -> Result<Resized, String> {
    let began = Instant::now();
    let chosen = chosen.reached()?;
    let process = Process::new(chosen.pid);
    let mappings = process.maps().map_err(|e| e.to_string())?;
    let usages = process.smaps().map_err(|e| e.to_string())?;
    let wanted: Vec<&Mapping> = parts.iter().filter(|part| may_be_huge(part, &usages)).collect();
    in_tracer(|| {
        let mut live = open(chosen, &mappings, seccomp)?;
        let (mut mapped, mut complaints) = (Vec::new(), Vec::new());
        for part in wanted {
            match live.map_anew(part) {
                Ok(()) => mapped.push(part.range),
                Err(Fault::Lost(why)) => return Err(why),
                Err(fault) => complaints.push(format!(
                    "{} of {} at {} stay on small pages: {fault}",
                    human_bytes(part.range.len()),
                    part.path.escaped(),
                    part.range.start
                )),
            }
        }
        Ok(Resized { mapped, complaints, stops: live.stops(), took: began.elapsed() })
    })
}

/// Returns whether a part of a mapping may have huge pages and has not only such.
fn may_be_huge(part: &Mapping, usages: &[Usage]) -> bool {
    let usage = usages.iter().find(|usage| usage.mapping.range.covers(part.range));
    usage.is_some_and(|usage| {
        let forbids = [Attribute::NoHuge, Attribute::Watched, Attribute::Unread];
        (usage.mapping.shared || !usage.mapping.prot.write)
            && usage.file_huge < part.range.len()
            && !usage.attributes.iter().any(|attribute| forbids.contains(attribute))
    })
}
