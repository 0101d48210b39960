// SPDX-License-Identifier: Apache-2.0
//! What the curves mean: claims, notes and advice.

use super::quiet::Quiet;
use super::saved::Saved;
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use crate::tlb::access::Access;
use crate::tlb::naming::{Counts, Named, What};
use hugelift_core::addr::human_bytes;

/// Returns a note if the CPU does not describe its TLBs.
pub(super) fn silent(machine: &Machine) -> Option<String> {
    let why = if cfg!(target_arch = "x86_64") {
        "CPUID of this CPU, or of its hypervisor,"
    } else {
        "no ID register of this CPU"
    };
    let not = if cfg!(target_arch = "x86_64") { "does not say" } else { "says" };
    machine.tlbs.is_empty().then(|| {
        format!("{why} {not} how many entries the TLBs have, so the knees are named by their order, which is not sure")
    })
}

/// Returns what is stated of the machine.
pub(super) fn claims(
    found: &[Named],
    counts: Option<Counts>,
    saved: &[Saved],
    machine: &Machine,
    quiet: Quiet,
) -> Vec<Claim> {
    let entries = |n: &Named| {
        let level = n.tlb_level().filter(|_| n.pages == Some(Pages::Small))?;
        let subject = format!("tlb.{}.small.l{level}.entries", n.access.name());
        Some(Claim::between(subject, n.bounds(machine)?, Unit::Count, !quiet.disturbed))
    };
    let pages =
        counts.map(|counts| Claim::word("tlb.pages-that-count", human_bytes(counts.bytes), counts.sure));
    let saves = |s: &Saved| {
        let what = if s.access == Access::Load { "heap" } else { "text" };
        let size = human_bytes(s.bytes).replace(' ', "");
        let word = s.word();
        let middle = if s.middle() > 0.0 { "yes" } else { "no" };
        let sure = word.is_some() && !quiet.disturbed;
        Claim::word(format!("tlb.{}.{what}-{size}.saved", s.access.name()), word.unwrap_or(middle), sure)
    };
    found.iter().filter_map(entries).chain(pages).chain(saved.iter().map(saves)).collect()
}

/// Returns the first sentence: what huge pages save.
pub(super) fn gain(saved: &[Saved], quiet: Quiet) -> Option<String> {
    let one = |s: &Saved| {
        let ns = |value: f64| Unit::Nanoseconds.show(value);
        let (low, high) = s.range();
        let range = format!("{low:.0} to {high:.0} % less by sweep");
        let less = match s.middle() {
            more if more < 0.0 => format!("{:.0} % more", -more),
            less => format!("{less:.0} % less"),
        };
        let result = if quiet.disturbed {
            format!("{less}, not sure: {}", quiet.reason())
        } else if s.word().is_some() {
            format!("{less}, {range}")
        } else {
            format!("not sure: {range}")
        };
        format!(
            "a random {} in {} of {} takes {} ns on small pages and {} ns on {} ({result})",
            s.access.name(),
            human_bytes(s.bytes),
            s.what,
            ns(s.small),
            ns(s.best.1),
            s.best.0.name(),
        )
    };
    // The middle one of several sizes stands for all.
    let middle = |access: Access| {
        let all: Vec<&Saved> = saved.iter().filter(|s| s.access == access).collect();
        all.get(all.len() / 2).map(|s| one(s))
    };
    let both: Vec<String> = [middle(Access::Load), middle(Access::Jump)].into_iter().flatten().collect();
    let words = both.join(", and ");
    let first = words.chars().next()?;
    Some(format!("{}{}.", first.to_uppercase(), &words[first.len_utf8()..]))
}

/// Returns the second sentence: the reach of the TLBs, and the page size of their entries.
pub(super) fn reach(found: &[Named], counts: Option<Counts>, machine: &Machine, quiet: Quiet) -> String {
    let small = found.iter().filter(|n| n.access == Access::Load && n.pages == Some(Pages::Small));
    let tlb = |n: &Named| {
        let about = format!("about {:.0} entries", n.entries()?);
        let size = human_bytes(n.found.knee.reach() as u64);
        match n.what {
            What::Tlb { level, coalesced } => {
                let adjacent = if coalesced { ", each for several adjacent pages" } else { "" };
                Some(format!("{about} ({size}; the L{level} TLB has {}{adjacent})", n.stated?))
            }
            What::ByOrder(_) => {
                Some(format!("{about} ({size}; not sure: the CPU does not describe its TLBs)"))
            }
            What::Cache(_) | What::Unknown => None,
        }
    };
    let tlbs: Vec<String> = small.filter_map(tlb).collect();
    let again = "run again: hugelift lab tlb";
    let first = if !tlbs.is_empty() {
        let doubt = if quiet.disturbed { format!(" (not sure: {})", quiet.reason()) } else { String::new() };
        format!(
            "On {} pages a load becomes slower beyond {}{doubt}",
            Pages::Small.name(),
            tlbs.join(" and beyond ")
        )
    } else if quiet.disturbed {
        format!("No clear knee: {}, {again}", quiet.reason())
    } else if found.iter().any(|n| n.access == Access::Load && n.pages == Some(Pages::Small)) {
        "No knee is near the number of entries of a TLB of this CPU".into()
    } else {
        format!("No clear knee: {}, {again}", quiet.reason())
    };
    let host = if machine.hypervisor.is_some() { " in this guest" } else { "" };
    let second = match counts {
        None => format!("Which page size counts{host} is not clear"),
        Some(counts) => {
            let doubt = match (counts.sure, quiet.disturbed) {
                (true, _) => String::new(),
                (false, true) => format!(" (not sure: {})", quiet.reason()),
                (false, false) => " (not sure: too little was seen)".into(),
            };
            let page = human_bytes(counts.bytes);
            if counts.bytes == machine.base_page_bytes {
                format!(
                    "The pages that count{host} are {page} whatever the program asks for{doubt}: loads on {} become \
                     slower at the same place, as is the case if the host backs the guest with small pages; what huge \
                     pages save is time in page tables",
                    counts.on.name()
                )
            } else {
                format!("The pages that count{host} are {page} on {}{doubt}", counts.on.name())
            }
        }
    };
    format!("{first}. {second}.")
}
