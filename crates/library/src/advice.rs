// SPDX-License-Identifier: Apache-2.0
//! What helps, in the words of the library: a program that lifts itself has no command line with the options of
//! `hugelift run`. Commands that change the machine are as they are.

use hugelift_core::addr::human_bytes;
use hugelift_core::advice::{About, Mapped};
use hugelift_core::complaints::Complaints;
use hugelift_core::policy::Backing;
use hugelift_core::report::Report;
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::ThpOff;

/// Returns what was not lifted although it might have been, a line for each reason, the largest first.
pub(crate) fn complaints(complaints: &Complaints, about: &About) -> Vec<String> {
    let mut all: Vec<_> = complaints.all().collect();
    all.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let line = |(bytes, reason): &(u64, Reason)| {
        let hint = hint(reason, about).map_or(String::new(), |hint| format!("; {hint}"));
        format!("{} not lifted: {reason}{hint}", human_bytes(*bytes))
    };
    all.into_iter().map(line).collect()
}

/// Puts the words of the library into a report.
pub(crate) fn reword(report: &mut Report) {
    for object in &mut report.objects {
        let about = About::object(&object.path, &[object.path.as_os_str()], Mapped::AtStart);
        for skip in object.parts.iter_mut().flat_map(|part| &mut part.skips) {
            skip.hint = hint(&skip.why, &about);
        }
    }
}

/// Returns what the user can do; `None` if nothing helps a program that lifts itself.
fn hint(reason: &Reason, about: &About) -> Option<String> {
    Some(match reason {
        Reason::NotPrimed => format!("{}; or use the backing auto", about.prime()),
        Reason::SmallFolios => about.prime(),
        Reason::NotCongruent(_) => format!("{}; or use the backing auto", about.prime_replacing()),
        Reason::PartNotAsked(part) => format!("ask for {part}"),
        Reason::ThpOff(ThpOff::Process) => {
            "start it without prctl(PR_SET_THP_DISABLE), or use the backing hugetlb".into()
        }
        Reason::NoThp => format!("use the backing {}", Backing::Hugetlb),
        Reason::MemoryLimit { .. } => "free memory, or lift less: fewer parts or objects".into(),
        Reason::GroupLimit { limit, need, .. } => {
            let spare = format!("let copies take {}M of spare memory", need.div_ceil(1 << 20));
            match limit.left / 2 >= *need {
                true => format!("{spare}, if the program can do without it"),
                false => {
                    let used = limit.bytes.saturating_sub(limit.left);
                    // 2 MB more, as usage varies a little from start to start.
                    let enough = used.saturating_add(need.saturating_mul(2)).div_ceil(1 << 20) + 2;
                    format!("echo {enough}M > {}, and {spare}", limit.source)
                }
            }
        }
        // The store says how the command makes a copy. The library makes its own.
        Reason::NotStored(not) => return not.hint.clone().filter(|hint| !hint.contains("hugelift run")),
        // What only a program that has not begun can have, and what only one that is not lifted at all lacks.
        Reason::NotAligned(_)
        | Reason::CopiedLater
        | Reason::Cold
        | Reason::NotFor(..)
        | Reason::NotLifted => return None,
        _ => return reason.hint(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::{Addr, PageSize, Range};
    use hugelift_core::snapshot::{MemoryLimit, Part};
    use hugelift_core::target::Fault;
    use std::path::Path;

    #[test]
    fn no_hint_names_an_option_of_the_command_line() {
        let page = PageSize::MB2;
        let source = "/sys/fs/cgroup/memory.max";
        let limit = |left| MemoryLimit { left, bytes: 8 << 20, source: source.into(), counts_pools: false };
        let group = |left| Reason::GroupLimit { limit: limit(left), spare: 0, need: 2 << 20 };
        let range = Range::sized(Addr(1 << 21), 1 << 21).unwrap();
        let about = About::program(Path::new("/bin/x"));
        for (reason, expected) in [
            (Reason::NotPrimed, Some("hugelift prime --with-libs /bin/x, while no process")),
            (Reason::SmallFolios, Some("hugelift prime --with-libs /bin/x, while no process")),
            (Reason::NotCongruent(page), Some("or use the backing auto")),
            (Reason::PartNotAsked(Part::Bss), Some("ask for bss")),
            (Reason::ThpOff(ThpOff::Process), Some("use the backing hugetlb")),
            (Reason::ThpOff(ThpOff::Never), Some("echo madvise >")),
            (Reason::NoThp, Some("use the backing hugetlb")),
            (Reason::MemoryLimit { left: 0, need: 1 }, Some("fewer parts")),
            (group(64 << 20), Some("let copies take 2M of spare memory, if the program can")),
            (group(0), Some("echo 14M > /sys/fs/cgroup/memory.max, and let copies take 2M")),
            (Reason::PoolShort { page, free: 0, need: 2, total: 0 }, Some("hugelift pool set 2M=2")),
            (Reason::NotAligned(page), None),
            (Reason::CopiedLater, None),
            (Reason::NotLifted, None),
            (Reason::Excluded, None),
            (Reason::NotFor(Backing::Shared, Part::Data), None),
            (Reason::Failed(Backing::Thp, Fault::NotHuge { got: 0, want: 1 }), Some("compact_memory")),
            (Reason::Failed(Backing::Thp, Fault::Call { call: "mremap", range, errno: 1 }), Some("mseal")),
        ] {
            let hint = hint(&reason, &about);
            let (has, wanted) = (hint.as_deref().unwrap_or_default(), expected.unwrap_or_default());
            assert!(has.contains(wanted) && hint.is_some() == expected.is_some(), "{reason}: {hint:?}");
            let own =
                format!("{reason} {has}").replace("--replace ", "").replace("hugelift prime --with-libs", "");
            assert!(!own.contains("--") && !own.contains("-v"), "{own}");
        }
    }
}
