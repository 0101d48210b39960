// SPDX-License-Identifier: Apache-2.0
//! The code in use as text: object by object, and a bar in which each cell is as high as it is hot.

use hugelift_core::addr::human_bytes;
use hugelift_core::heat::{Heat, ObjectHeat};
use hugelift_core::printable::thousands;
use hugelift_core::report::PartReport;
use hugelift_core::table::{LEFT, RIGHT, Table};
use std::fmt::Write as _;

/// What the heights of the cells mean.
pub const LEGEND: &str = "▁ to █: few to most samples of code\n";
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns what was found: each line ends with a newline. Objects with less than one percent of the samples are counted
/// only, unless `verbose`.
pub fn heat(heat: &Heat, verbose: bool) -> String {
    let mut out = format!("code in use: {}\n", heat.says());
    if heat.samples == 0 {
        return out;
    }
    let mut table = Table::new([LEFT, RIGHT, LEFT]).indented(2);
    let is_shown = |object: &&ObjectHeat| verbose || object.samples * 100 >= heat.samples;
    for object in heat.objects.iter().filter(is_shown) {
        table.row([object.name(), heat.share(object.samples), one(object, heat)]);
    }
    out += &table.to_string();
    let folded = heat.objects.iter().filter(|object| !is_shown(object)).count();
    if folded > 0 {
        let _ = writeln!(out, "  {folded} more with less than 1 % each");
    }
    let _ = writeln!(out, "  elsewhere: {}", elsewhere(heat));
    let _ = writeln!(out, "  in all: pages of {} in use: {}", human_bytes(heat.page_size), heat.pages);
    for note in notes(heat) {
        let _ = writeln!(out, "  {note}");
    }
    out
}

fn one(object: &ObjectHeat, heat: &Heat) -> String {
    format!("{}; pages of {} in use: {}", object.says(), human_bytes(heat.page_size), object.pages)
}

fn elsewhere(heat: &Heat) -> String {
    let kernel =
        heat.kernel_samples.map_or("kernel not sampled".into(), |n| format!("kernel {}", heat.share(n)));
    let [jit, other] = [heat.jit_samples, heat.other_samples].map(|n| heat.share(n));
    format!("{kernel}, code that the process has made itself {jit}, other {other}")
}

/// Returns what the figures cost, and what limits them.
pub fn notes(heat: &Heat) -> Vec<String> {
    let mut notes = vec![heat.price()];
    if heat.sampled_threads < heat.threads {
        let [sampled, all] = [heat.sampled_threads, heat.threads].map(thousands);
        notes.push(format!(
            "{sampled} of {all} threads were sampled: those that had used the most CPU time before"
        ));
    }
    if heat.lost_samples > 0 {
        notes.push(format!("{} samples were lost", thousands(heat.lost_samples)));
    }
    notes
}

/// Returns the cells of a part: each stands for `pages` huge pages of `size` bytes from the one that holds the start.
pub fn bar(object: &ObjectHeat, heat: &Heat, part: &PartReport, size: u64, pages: u64) -> String {
    let first = part.start / size;
    let count = part.end.div_ceil(size).saturating_sub(first).div_ceil(pages);
    let mut cells = vec![0_u64; usize::try_from(count).unwrap_or(0)];
    let own = object
        .spans
        .iter()
        .filter(|span| span.start + heat.huge_page_size > part.start && span.start < part.end);
    for span in own {
        let at = (span.start / size).saturating_sub(first) / pages;
        if let Some(cell) = usize::try_from(at).ok().and_then(|at| cells.get_mut(at)) {
            *cell += span.samples;
        }
    }
    let most = cells.iter().copied().max().unwrap_or(0);
    let height =
        |cell: u64| if cell == 0 { 0 } else { (u128::from(cell) * 8).div_ceil(u128::from(most)) as usize };
    let bar: String = cells.iter().map(|cell| HEIGHTS[height(*cell).min(8)]).collect();
    bar.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::heat::{PagesInUse, SpanHeat};
    use hugelift_core::report::example::report;

    const MB: u64 = 1 << 20;

    fn example() -> Heat {
        let span = |start: u64, samples| SpanHeat { start: start * MB, samples };
        let pages = PagesInUse { seen: 2284, estimate: 3165, low: 2900, high: 3480 };
        Heat {
            milliseconds: 2000,
            ended: false,
            threads: 10_000,
            sampled_threads: 256,
            samples: 1000,
            lost_samples: 3,
            period_ns: 1_000_000,
            sample_cost_ns: 2000,
            kernel_samples: Some(100),
            jit_samples: 50,
            other_samples: 0,
            page_size: 4096,
            huge_page_size: 2 * MB,
            pages,
            objects: vec![
                ObjectHeat {
                    path: "/bin/<x>".to_string().into(),
                    samples: 845,
                    pages,
                    huge_pages: 114,
                    hot_huge_pages: 28,
                    spans: vec![span(2, 800), span(6, 1), span(8, 44)],
                },
                ObjectHeat { samples: 5, path: "/lib/rare".to_string().into(), ..some() },
            ],
        }
    }

    fn some() -> ObjectHeat {
        let (pages, path) = (PagesInUse::default(), String::new().into());
        ObjectHeat { path, samples: 1, pages, huge_pages: 1, hot_huge_pages: 1, spans: vec![] }
    }

    #[test]
    fn issue_31_objects_and_what_limits_the_figures() {
        let shown = heat(&example(), false);
        let object = "84.5 %  99 % of the samples are in 28 huge pages of 114; pages of 4 kB in use: \
                      2 284 seen, 3 165 [2 900, 3 480] estimated\n";
        for want in [
            "code in use: 1 000 samples of CPU time in 2.0 s\n",
            object,
            "  1 more with less than 1 % each\n",
            "kernel 10.0 %, code that the process has made itself 5.0 %, other 0.0 %\n",
            "256 of 10 000 threads were sampled",
            "3 samples were lost",
        ] {
            assert!(shown.contains(want), "{want}\n{shown}");
        }
        assert!(heat(&example(), true).contains("rare"));
        let user = heat(&Heat { kernel_samples: None, ..example() }, false);
        assert!(user.contains("kernel not sampled"), "{user}");
    }

    #[test]
    fn issue_31_no_samples() {
        let none = Heat { samples: 0, objects: vec![], ..example() };
        assert_eq!(heat(&none, false), "code in use: no samples in 2.0 s: the process slept\n");
        let ended = Heat { ended: true, ..none };
        assert_eq!(heat(&ended, false), "code in use: no samples: the process ended after 2.0 s\n");
    }

    #[test]
    fn issue_31_the_bar_is_as_high_as_it_is_hot() {
        let (heat, report) = (example(), report(&[(2 * MB, 12 * MB)], 2 * MB));
        let part = &report.objects[0].parts[0];
        assert_eq!(bar(&heat.objects[0], &heat, part, 2 * MB, 1), "█ ▁▁");
        assert_eq!(bar(&heat.objects[0], &heat, part, 2 * MB, 2), "█▁");
        assert_eq!(bar(&some(), &heat, part, 2 * MB, 1), "");
    }
}
