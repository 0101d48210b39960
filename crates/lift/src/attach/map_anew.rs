// SPDX-License-Identifier: Apache-2.0
//! Maps data files anew where the page cache has huge pages of them now.

use super::chosen::Chosen;
use super::open::{in_tracer_as_a_whole, open};
use super::page_size::Resized;
use super::switchable::huge_bytes;
use crate::options::Seccomp;
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::attribute::Attribute;
use hugelift_core::maps::Mapping;
use hugelift_core::printable::Escape as _;
use hugelift_core::smaps::Usage;
use hugelift_core::target::Fault;
use hugelift_linux::machine::thp_page;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use std::time::Instant;

/// What mapping files anew has shown.
#[derive(Debug)]
pub struct MappedAnew {
    /// What was done.
    pub step: Resized,
    /// Bytes of the parts that are mapped by huge pages now.
    pub huge: u64,
}

/// Maps these parts of mappings of files anew, all of which are on huge pages of the page cache. One thread is borrowed for each.
/// Private memory that the process may write to, what it has written to, what is mapped by huge pages already, and where the process wants none, stays as it is.
///
/// # Errors
/// One line that says why the process cannot be changed. If a thread was lost meanwhile, some of them may be mapped anew.
pub fn map_anew(chosen: Chosen, seccomp: Seccomp, parts: &[Mapping]) -> Result<MappedAnew, String> {
    let began = Instant::now();
    let chosen = chosen.reached()?;
    let process = Process::new(chosen.pid);
    let mappings = process.maps().map_err(|e| e.to_string())?;
    let usages = process.smaps().map_err(|e| e.to_string())?;
    let wanted: Vec<&Mapping> = parts.iter().filter(|part| may_be_huge(chosen.pid, part, &usages)).collect();
    let step = in_tracer_as_a_whole(|| {
        let mut live = open(chosen, &mappings, seccomp)?;
        let (mut mapped, mut complaints) = (Vec::new(), Vec::new());
        for part in wanted {
            match live.map_anew(part) {
                Ok(()) => {
                    touch(chosen.pid, part.range);
                    mapped.push(part.range);
                }
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
    })?;
    let ranges: Vec<Range> = parts.iter().map(|part| part.range).collect();
    Ok(MappedAnew { step, huge: huge_bytes(chosen.pid, &ranges) })
}

/// Has each huge page mapped, by reading a byte of it from outside: should one not be in the page cache any more, hugelift waits for
/// the disk, and no thread of the program. What cannot be read is mapped when the program touches it.
fn touch(pid: u32, range: Range) {
    let page = thp_page().unwrap_or(PageSize::MB2);
    for at in (range.start.0..range.end.0).step_by(page.bytes() as usize) {
        if let Err(error) = memory::read(pid.cast_signed(), Addr(at), &mut [0]) {
            return tracing::debug!(%error, pid, at, "process_vm_readv");
        }
    }
}

/// Returns whether a part of a mapping may have huge pages and has not only such.
fn may_be_huge(pid: u32, part: &Mapping, usages: &[Usage]) -> bool {
    let usage = usages.iter().find(|usage| usage.mapping.range.covers(part.range));
    usage.is_some_and(|usage| {
        let forbids = [Attribute::NoHuge, Attribute::Watched, Attribute::Unread];
        (usage.mapping.shared || !usage.mapping.prot.write)
            && huge_bytes(pid, &[part.range]) < part.range.len()
            && !usage.attributes.iter().any(|attribute| forbids.contains(attribute))
    })
}
