// SPDX-License-Identifier: Apache-2.0
//! What the comparison of running processes with themselves has in addition: how it was made, and what it cost.

use super::shown::seconds;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::printable;
use hugelift_measure::comparison::{Comparison, Memory, Setting, Side};
use hugelift_measure::live::{Live, Metric, Processes, State, Steady, Switching};
use hugelift_measure::stats;

/// What a comparison of page sizes leaves out.
const SAME_COPY: &str = "Nothing but the page size differs. Without --same-copy the bare side has the pages of the files, \
                         which lie scattered: where the CPU joins small pages that lie side by side, the gain may be larger.";

/// The same for memory that the program writes.
const SAME_MEMORY: &str = "Nothing but the page size differs: a split huge page is small pages that lie side by side, which some \
                           CPUs join. Memory that was never huge may be scattered, and gain more.";

/// Returns the remarks on the experiment, a line each.
pub fn remarks(comparison: &Comparison, live: &Live) -> Vec<String> {
    let mut all = vec![setting(live)];
    all.extend(processes(&live.processes));
    all.push(metric(live, comparison.setting.higher_is_better));
    all.extend(slow_readings(comparison, live.period_s));
    all.extend(comparison.bare().and_then(|side| side.memory).and_then(bare_was_huge));
    all.extend(what_changed(live));
    all.push(cost(&live.switching, live.same_copy));
    all.push(left(live));
    all
}

/// Returns those on an experiment with parts, a line each.
pub(super) fn parts_remarks(of: &Setting) -> Vec<String> {
    let Some(live) = &of.live else { return Vec::new() };
    let mut all = vec![setting(live), metric(live, of.higher_is_better)];
    all.extend(what_changed(live));
    all.push(cost_of_parts(&live.switching));
    all.push(left(live));
    all
}

/// Says how long the periods were, if readings were too slow for those asked for.
fn slow_readings(comparison: &Comparison, period_s: f64) -> Option<String> {
    let runs = || comparison.sides.iter().flat_map(|side| &side.runs);
    let errors: Vec<f64> = runs().map(|run| run.wall_error).collect::<Option<_>>()?;
    let walls: Vec<f64> = runs().map(|run| run.wall).collect();
    let (error, wall) = (stats::median(&errors).ok()?, stats::median(&walls).ok()?);
    (wall > 1.5 * period_s).then(|| {
        format!(
            "Periods lasted {} (median) instead of {}, because it took {} to read what was done: the moments of that are known to \
             {:.0} % of a period.",
            seconds(wall),
            seconds(period_s),
            seconds(error),
            100.0 * error / wall
        )
    })
}

/// Says how many processes there were, unless there was one.
fn processes(all: &Processes) -> Option<String> {
    let Processes { measured, lifted, found_lifted, joined, ended, not_counted_s } = *all;
    if measured <= 1 {
        return None;
    }
    let mut said = format!(
        "{measured} processes were measured together, of which {lifted} were lifted; {joined} came and {ended} ended meanwhile."
    );
    if found_lifted > 0 && found_lifted < lifted {
        said += &format!(" {found_lifted} were lifted when they were found.");
    }
    if not_counted_s > 0.0 {
        said += &format!(
            " {} of CPU time of processes that began or ended within a period is in none.",
            seconds(not_counted_s)
        );
    }
    Some(said)
}

/// Says what of the process was the same on both sides.
fn what_changed(live: &Live) -> Vec<String> {
    let mut all = Vec::new();
    match (live.same_copy, live.memory) {
        (true, true) => all.push(SAME_MEMORY.into()),
        (true, false) => all.push(SAME_COPY.into()),
        (false, _) => {}
    }
    let alone = |why: &String| {
        format!("The lift left a part alone, which is the same on both sides: {}", printable(why))
    };
    all.extend(live.not_lifted.iter().map(alone));
    if live.left_out_bytes > 0 {
        let why = live.left_out_why.as_deref().map(|why| format!(": {}", printable(why)));
        all.push(format!(
            "{} of the copies had the same pages on both sides{}.",
            human_bytes(live.left_out_bytes),
            why.unwrap_or_default()
        ));
    }
    all
}

/// Says how the process is left.
fn left(live: &Live) -> String {
    match live.left {
        None => format!("{} has ended, so the pairs are fewer than were asked for.", printable(&live.name)),
        Some(_) if live.left_as_found && live.processes.measured > 1 => {
            "Each process is left as it was found.".into()
        }
        Some(left) if live.left_as_found => {
            format!(
                "{} was {} when it was found, and is left {}.",
                printable(&live.name),
                left.name(),
                left.name()
            )
        }
        Some(left) => {
            let (verb, found) = (if left == State::Lifted { "restore" } else { "attach" }, live.found.name());
            format!(
                "{} was {found} when it was found, and is left {}: 'hugelift {verb} {}' undoes that.",
                printable(&live.name),
                left.name(),
                printable(&live.chosen_by)
            )
        }
    }
}

fn setting(live: &Live) -> String {
    let what = match (live.same_copy, live.memory) {
        (true, true) => "had the same memory on huge pages and on small ones",
        (true, false) => "had the same copy on huge pages and on small ones",
        (false, _) => "was lifted and restored",
    };
    format!(
        "{} {what} in random order within each pair: periods of {}, and {} after each switch that are not counted \
         (--seed {}).",
        printable(&live.name),
        seconds(live.period_s),
        seconds(live.settle_s),
        live.seed
    )
}

/// Says what the verdict is on, and in which direction it is better.
fn metric(live: &Live, higher_is_better: bool) -> String {
    match &live.metric {
        Metric::Counter { command } => format!(
            "The verdict is on work per second, the growth of what '{}' prints: more is better.",
            printable(&command.line)
        ),
        Metric::CpuPer { command } => format!(
            "The verdict is on its CPU time per unit of what '{}' counts: less is better.",
            printable(&command.line)
        ),
        Metric::Gauge { command } => format!(
            "The verdict is on what '{}' prints at the end of each period: {} is better.",
            printable(&command.line),
            if higher_is_better { "more" } else { "less" }
        ),
        Metric::CpuPerWork(Steady { work, variation }) => format!(
            "The verdict is on its CPU time per {}: less is better. Before the experiment it varied by {:.0} % from period to \
             period of a state, and the mix of work was alike in both. --cpu-per CMD takes another counter.",
            work.unit(),
            100.0 * variation
        ),
        Metric::Cpu { why } => format!(
            "The verdict is on its CPU time per second, of which less is better if the load was the same in all periods. \
             --cpu-per CMD measures it per unit of work; by itself hugelift found no steady one ({}).",
            printable(why)
        ),
    }
}

fn bare_was_huge(memory: Memory) -> Option<String> {
    (memory.lifted() > 0).then(|| {
        format!(
            "Of text and read-only data {} was on huge pages in the bare periods too: in the page cache, or in objects \
             that the lift left alone.",
            human_bytes(memory.lifted())
        )
    })
}

fn cost(switching: &Switching, same_copy: bool) -> String {
    let [lifts, restorings] = match same_copy {
        true => ["changes to huge pages", "changes to small pages"],
        false => ["lifts", "restorings"],
    };
    let changes = format!(
        "{} and {} (medians)",
        many(&switching.lift_ms, lifts),
        many(&switching.restore_ms, restorings)
    );
    cost_of(switching, &changes)
}

/// Says what an experiment on parts has cost, in which each change is to huge pages and to small ones.
fn cost_of_parts(switching: &Switching) -> String {
    let all = [&switching.lift_ms[..], &switching.restore_ms].concat();
    cost_of(switching, &format!("{} (median)", many(&all, "changes of page sizes")))
}

fn cost_of(switching: &Switching, changes: &str) -> String {
    format!(
        "The first lift took {}; then there were {changes}. A thread was stopped {} times, for {} at most.",
        seconds(switching.first_lift_ms / 1e3),
        switching.borrowed,
        seconds(switching.longest_stop_us as f64 / 1e6)
    )
}

/// Says how many times something took, and how long.
fn many(times: &[f64], what: &str) -> String {
    let median =
        stats::median(times).map_or_else(|_| String::new(), |ms| format!(" of {}", seconds(ms / 1e3)));
    format!("{} {what}{median}", times.len())
}

/// Says why nothing is claimed.
pub fn not_switched(comparison: &Comparison, name: &str) -> String {
    let huge = |side: &Side| -> Option<Vec<u64>> {
        side.runs.iter().map(|run| Some(run.memory?.lifted())).collect()
    };
    let most = comparison.bare().and_then(huge).and_then(|all| all.into_iter().max());
    let least = comparison.side(name).and_then(huge).and_then(|all| all.into_iter().min());
    match (most, least) {
        (Some(most), Some(least)) => format!(
            "{name}: smaps shows {} of text and read-only data on huge pages in a lifted period, and {} in a bare one: \
             hugelift claims no difference.",
            human_bytes(least),
            human_bytes(most)
        ),
        _ => format!("{name}: smaps could not be read in each period: hugelift claims no difference."),
    }
}
