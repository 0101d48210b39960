// SPDX-License-Identifier: Apache-2.0
//! Finds out by a program's files whether there is nothing to lift, before anything runs.

use super::options::Variant;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::plan::plan;
use hugelift_core::policy::{PageChoice, Policy};
use hugelift_core::report::Report;
use hugelift_core::snapshot::Part;
use hugelift_lift::options::StartOptions;
use hugelift_linux::elf::file_snapshot::{by_itself, of_file};
use std::path::Path;

/// Returns the policy of each variant, if no variant can lift anything but the program's text and
/// read-only data.
pub fn policies(variants: &[Variant]) -> Option<Vec<Policy>> {
    variants.iter().map(|variant| StartOptions::from(variant.run_args().ok()?).lifts_files_alone()).collect()
}

/// Says why no policy has anything to lift in the program at `path`. Returns `None` where there is
/// something, or where the files do not show it.
pub fn why(path: &Path, policies: &[Policy]) -> Option<String> {
    let program = of_file(path, by_itself).ok().filter(|program| program.missing.is_empty())?;
    let snapshot = &program.snapshot;
    let report = Report::new(snapshot, None, &plan(snapshot, &Policy::default()), None);
    let mut smallest: Option<PageSize> = None;
    let mut largest: Option<(u64, String)> = None;
    for policy in policies {
        let page = match policy.page {
            PageChoice::Only(page) => page,
            _ => snapshot.machine.thp_page.unwrap_or(PageSize::MB2),
        };
        smallest = Some(smallest.map_or(page, |other| other.min(page)));
        let taken = snapshot.objects.iter().zip(&report.objects).filter(|(o, _)| policy.objects.takes(o));
        let parts = taken.flat_map(|(_, object)| object.parts.iter().map(move |part| (object, part)));
        for (object, part) in parts.filter(|(_, part)| policy.parts.contains(&part.part)) {
            // A part as large as a huge page may hold one, depending on its address.
            if part.bytes >= page.bytes() {
                return None;
            }
            if largest.as_ref().is_none_or(|(bytes, _)| *bytes < part.bytes) {
                largest = Some((part.bytes, format!("{} of {}", word(part.part), object.path)));
            }
        }
    }
    let page = human_bytes(smallest?.bytes());
    Some(match largest {
        Some((bytes, what)) => {
            let bytes = human_bytes(bytes);
            format!(
                "no text and no read-only data is as large as a huge page of {page}; the largest is {bytes}, {what}"
            )
        }
        None => "the variants' options choose none of its objects".to_string(),
    })
}

fn word(part: Part) -> &'static str {
    if part == Part::Text { "the text" } else { "the read-only data" }
}
