// SPDX-License-Identifier: Apache-2.0
//! A report in one line.

use super::data::{Report, Total};
use crate::addr::{PageSize, human_bytes};
use crate::nothing::why_nothing;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::skip::Reason;
use crate::snapshot::{Part, Snapshot};

/// Returns text such as "text 24 of 24 MB, rodata 50 of 52 MB on huge pages"; if nothing is on huge pages and no
/// complaint will say why, the reason.
pub fn summary(policy: &Policy, before: &Snapshot, plan: &Plan, report: &Report) -> String {
    let is_explained = !plan.spans.is_empty() || plan.skips.iter().any(|skip| skip.reason.is_remediable());
    let has_any = report.totals.values().any(|total| total.huge_bytes > 0);
    let parts = parts(policy, report).filter(|_| is_explained || has_any);
    parts.unwrap_or_else(|| nothing(policy, before, plan))
}

/// Returns the summary of what is liftable; `None` if nothing is.
pub fn parts(policy: &Policy, report: &Report) -> Option<String> {
    let wanted = |part: &Part, t: &Total| t.liftable_bytes > 0 && policy.parts.contains(part);
    let parts = report.totals.iter().filter(|(part, t)| wanted(part, t));
    let parts: Vec<String> = parts
        .map(|(part, t)| {
            let now = format!("{part} {} of {}", human_bytes(t.huge_bytes), human_bytes(t.liftable_bytes));
            let later = match report.bytes(*part, &Reason::OnTouch) {
                0 => String::new(),
                later => format!(" ({} more as it is touched)", human_bytes(later)),
            };
            let unseen = match report.unseen_bytes(*part) {
                0 => String::new(),
                unseen => format!(" ({} more on smaller pages)", human_bytes(unseen)),
            };
            now + &later + &unseen
        })
        .collect();
    (!parts.is_empty()).then(|| format!("{} on huge pages", parts.join(", ")))
}

/// Returns text such as "nothing on huge pages: 1.5 MB of text of /lib/libc.so.6: too small: ...".
pub fn nothing(policy: &Policy, before: &Snapshot, plan: &Plan) -> String {
    format!("nothing on huge pages: {}", why(policy, before, plan))
}

/// Returns the same text for a program whose allocator asks for huge pages.
pub fn nothing_yet(policy: &Policy, before: &Snapshot, plan: &Plan) -> String {
    format!(
        "nothing on huge pages yet: its allocator asks for them as it takes memory; {}",
        why(policy, before, plan)
    )
}

fn why(policy: &Policy, before: &Snapshot, plan: &Plan) -> String {
    let page = policy.page.named().or(before.machine.thp_page).unwrap_or(PageSize::MB2);
    why_nothing(before, plan, page)
}
