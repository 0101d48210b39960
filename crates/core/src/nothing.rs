// SPDX-License-Identifier: Apache-2.0
//! Says in one line why nothing of a program is on huge pages.

use crate::addr::{PageSize, human_bytes};
use crate::advice::{About, can_be_separated};
use crate::plan::Plan;
use crate::printable::Escape;
use crate::skip::{Reason, Skip};
use crate::snapshot::{Object, Snapshot};
use std::collections::BTreeMap;

/// Returns the reason that `plan` gives for most bytes, with their number and part: the most important
/// line of what `-vv` shows in full. `page` is the page size that was wanted.
pub fn why_nothing(snapshot: &Snapshot, plan: &Plan, page: PageSize) -> String {
    let mut groups: BTreeMap<_, (u64, &Skip)> = BTreeMap::new();
    // A part that is smaller than a page could not be lifted even if it were asked for.
    let is_asked = |skip: &Skip| !matches!(skip.reason, Reason::PartNotAsked(_) | Reason::Excluded);
    let says = |skip: &&Skip| is_asked(skip) || skip.range.len() >= page.bytes();
    for skip in plan.skips.iter().filter(says) {
        let group = groups.entry((skip.object, skip.part, skip.reason.key())).or_insert((0, skip));
        group.0 += skip.range.len();
    }
    // Parts that were asked for and are large enough come first, then those that were not asked for.
    let rank = |bytes: u64, skip: &Skip| match (bytes >= page.bytes(), is_asked(skip)) {
        (true, true) => 2,
        (true, false) => 1,
        (false, _) => 0,
    };
    let largest = groups.into_values().max_by_key(|(bytes, skip)| (rank(*bytes, skip), *bytes));
    let Some((bytes, skip)) = largest else {
        return format!("no part of it is as large as a page of {page}");
    };
    let small = match rank(bytes, skip) {
        1 => format!("no part that was asked for is as large as a page of {page}; "),
        _ => String::new(),
    };
    let object = snapshot.objects.get(skip.object);
    // Code for which a huge page is worth its memory can move onto one of its own.
    let program = snapshot.objects.iter().find(|object| object.executable).or(object);
    let usual = snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
    let is_code = |object: &Object| can_be_separated(skip.part, object.bias, bytes, &skip.reason, usual);
    let separate = match (object.is_some_and(is_code), program) {
        (true, Some(program)) => skip.reason.hint_for(&About::program(&program.path)),
        _ => None,
    };
    let separate = separate.map_or(String::new(), |hint| format!("; {hint}"));
    let object = object.map_or(String::new(), |object| format!(" of {}", object.path.escaped()));
    let (bytes, part, reason) = (human_bytes(bytes), skip.part, &skip.reason);
    format!("{small}{bytes} of {part}{object}: {reason}{separate}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::plan::tests::{MB, program, r};
    use crate::policy::Policy;
    use crate::snapshot::Part;

    const PAGE: PageSize = PageSize::MB2;

    #[test]
    fn the_reason_for_most_bytes_is_named_with_their_number() {
        // 3 MB of text without a whole huge page.
        let snapshot = program(r(3 * MB, 5 * MB + (MB - 4096)));
        let planned = plan(&snapshot, &Policy::default());
        assert_eq!(planned.spans, vec![]);
        let why = why_nothing(&snapshot, &planned, PAGE);
        assert!(why.starts_with("2.9 MB of text of /bin/o: "), "{why}");
        assert!(why.ends_with("not aligned: less than a whole page of 2 MB at an end"), "{why}");
    }

    #[test]
    fn parts_that_are_too_small_and_not_asked_for_are_not_named() {
        let data = Policy { parts: vec![Part::Data], ..Policy::default() };
        let small = program(r(2 * MB, 3 * MB));
        let why = |snapshot: &Snapshot| why_nothing(snapshot, &plan(snapshot, &data), PAGE);
        assert_eq!(why(&small), "no part of it is as large as a page of 2 MB");
        let large = program(r(2 * MB, 6 * MB));
        let said = why(&large);
        assert!(said.starts_with("no part that was asked for is as large as a page of 2 MB; "), "{said}");
        assert!(said.ends_with("text was not asked for"), "{said}");
    }
}
