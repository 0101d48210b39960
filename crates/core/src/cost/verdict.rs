// SPDX-License-Identifier: Apache-2.0
//! Whether huge pages stalled a process, in a sentence that says what it rests on.

use super::taskstats::{Wait, Waits};
use super::{Cost, Counted, Verdict};

/// From this part of the time on, in parts of a thousand, waits are no small matter.
const MATTERS: u128 = 1;

/// Sets the verdict and its sentence from the figures.
pub fn judge(cost: &mut Cost) {
    (cost.verdict, cost.says) = verdict(cost);
}

fn verdict(cost: &Cost) -> (Verdict, String) {
    let time = format!("{:.1} s", cost.milliseconds as f64 / 1000.0);
    let waits = cost.waits.filter(|_| cost.counted != Counted::No);
    if let Some((waits, compaction)) = waits.and_then(|waits| Some((waits, waits.compaction?))) {
        let stalls = compaction.count.saturating_add(waits.reclaim.count);
        if stalls > 0 {
            return stalled(cost, &waits, compaction, &time);
        }
    }
    let cannot = |why: String| (Verdict::CannotTell, format!("Cannot tell: {why}"));
    let is_idle = u128::from(cost.process.cpu_milliseconds) * 1000 <= u128::from(cost.milliseconds);
    if is_idle && waits.is_none_or(|waits| waits.any == 0) {
        return cannot(format!(
            "it used {} ms of CPU time in {time}: ask again while it has work to do",
            cost.process.cpu_milliseconds
        ));
    }
    if let (Some(waits), Counted::All) = (waits.filter(|waits| waits.compaction.is_some()), cost.counted) {
        return (Verdict::None, none(&waits, &time));
    }
    let machine = [cost.machine.get("compact_stall"), cost.machine.get("allocstall")];
    match machine {
        [Some(0), Some(0)] => {
            let says = format!(
                "No: in {time} nobody on this machine stalled for compaction, nor to free the machine's memory \
                 (compact_stall 0, allocstall 0)"
            );
            (Verdict::None, says)
        }
        [Some(compaction), Some(reclaim)] => cannot(format!(
            "in {time} this machine stalled {} for compaction and {} for direct reclaim, and it is unknown for which \
             process",
            times(compaction),
            times(reclaim)
        )),
        _ => cannot("this kernel counts neither the waits of processes nor those of the machine".into()),
    }
}

/// Says how long it waited for memory.
fn stalled(cost: &Cost, waits: &Waits, compaction: Wait, time: &str) -> (Verdict, String) {
    let nanoseconds = compaction.nanoseconds.saturating_add(waits.reclaim.nanoseconds);
    let matters = u128::from(nanoseconds) * 1000 >= u128::from(cost.milliseconds) * 1_000_000 * MATTERS;
    let percent = nanoseconds as f64 / 1e4 / cost.milliseconds.max(1) as f64;
    let one = |wait: Wait, what| (wait.count > 0).then(|| format!("{} for {what}", duration_and_count(wait)));
    let kinds = [one(compaction, "compaction"), one(waits.reclaim, "direct reclaim")];
    let kinds: Vec<String> = kinds.into_iter().flatten().collect();
    let (verdict, word) = if matters { (Verdict::Stalls, "Yes") } else { (Verdict::Hardly, "Hardly") };
    let says = format!(
        "{word}: its threads waited {} for memory in {time} ({percent:.2} % of the time of one thread): {}",
        duration(nanoseconds),
        kinds.join(", ")
    );
    (verdict, says)
}

/// Says that it did not wait for memory, and for what else it waited.
fn none(waits: &Waits, time: &str) -> String {
    let others: Vec<String> = kinds(waits)
        .into_iter()
        .filter_map(|(what, wait)| wait.filter(|wait| wait.count > 0).map(|wait| (what, wait)))
        .map(|(what, wait)| format!("{} for {what}", duration_and_count(wait)))
        .collect();
    if others.is_empty() {
        return format!(
            "No wait was seen in {time}: 0 for compaction, 0 for direct reclaim, 0 for copies at writes"
        );
    }
    format!(
        "No: its threads did not wait for compaction or direct reclaim in {time}, but {}",
        others.join(", ")
    )
}

/// Returns each kind of wait by its name.
pub fn kinds(waits: &Waits) -> [(&'static str, Option<Wait>); 5] {
    [
        ("compaction", waits.compaction),
        ("direct reclaim", Some(waits.reclaim)),
        ("swap-in", Some(waits.swap_in)),
        ("thrashing", Some(waits.thrashing)),
        ("copies at writes", waits.copies),
    ]
}

fn duration_and_count(wait: Wait) -> String {
    format!("{} ({})", duration(wait.nanoseconds), times(wait.count))
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{} times", crate::printable::thousands(count)) }
}

/// Returns a time in the unit that suits it: `0 ms`, `0.04 ms`, `12 ms`, `3.2 s`.
pub fn duration(nanoseconds: u64) -> String {
    let milliseconds = nanoseconds as f64 / 1e6;
    match nanoseconds {
        0 => "0 ms".into(),
        1..10_000 => "under 0.01 ms".into(),
        10_000..1_000_000 => format!("{milliseconds:.2} ms"),
        1_000_000..10_000_000 => format!("{milliseconds:.1} ms"),
        10_000_000..1_000_000_000 => format!("{milliseconds:.0} ms"),
        _ => format!("{:.1} s", milliseconds / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::super::{OfProcess, VERSION};
    use super::*;
    use proptest::prelude::*;

    fn wait(count: u64, milliseconds: u64) -> Wait {
        Wait { count, nanoseconds: milliseconds * 1_000_000 }
    }

    fn waits(compaction: Wait, reclaim: Wait, copies: Wait) -> Waits {
        let any = 1 + compaction.count + reclaim.count + copies.count;
        Waits { compaction: Some(compaction), reclaim, copies: Some(copies), any, ..Waits::default() }
    }

    fn cost(waits: Option<Waits>, counted: Counted, machine: &[(&str, u64)]) -> Cost {
        let mut cost = Cost {
            version: VERSION,
            pid: 7,
            name: "redis".to_string().into(),
            verdict: Verdict::CannotTell,
            says: String::new(),
            milliseconds: 10_000,
            ended: false,
            waits,
            counted,
            note: None,
            process: OfProcess { cpu_milliseconds: 5000, ..OfProcess::default() },
            machine: Counters(machine.iter().map(|(name, value)| (name.to_string(), *value)).collect()),
            machine_zeroed_bytes: None,
        };
        judge(&mut cost);
        cost
    }

    const CALM: [(&str, u64); 2] = [("allocstall", 0), ("compact_stall", 0)];
    const BUSY: [(&str, u64); 2] = [("allocstall", 2), ("compact_stall", 1)];

    #[test]
    fn issue_31_9_the_verdict_says_how_long() {
        let yes = cost(Some(waits(wait(41, 312), wait(1, 40), wait(0, 0))), Counted::All, &BUSY);
        assert_eq!(yes.verdict, Verdict::Stalls);
        let want = "Yes: its threads waited 352 ms for memory in 10.0 s (3.52 % of the time of one thread): \
                    312 ms (41 times) for compaction, 40 ms (once) for direct reclaim";
        assert_eq!(yes.says, want);
        let hardly = cost(Some(waits(wait(3, 2), wait(0, 0), wait(9, 9))), Counted::PerhapsSome, &BUSY);
        assert_eq!(hardly.verdict, Verdict::Hardly);
        assert!(hardly.says.starts_with("Hardly: its threads waited 2.0 ms for memory in 10.0 s (0.02 %"));
        let none = cost(Some(waits(wait(0, 0), wait(0, 0), wait(9, 9))), Counted::All, &BUSY);
        assert_eq!(none.verdict, Verdict::None);
        assert!(
            none.says.ends_with(" in 10.0 s, but 9.0 ms (9 times) for copies at writes"),
            "{}",
            none.says
        );
        let none = cost(Some(waits(wait(0, 0), wait(0, 0), wait(0, 0))), Counted::All, &BUSY);
        assert!(none.says.starts_with("No wait was seen in 10.0 s: 0 for compaction, "), "{}", none.says);
    }

    /// Without the process's own figures, the machine's answer if nobody waited.
    #[test]
    fn issue_31_9_what_is_not_counted_is_not_said() {
        let zero = waits(wait(0, 0), wait(0, 0), wait(0, 0));
        for (waits, counted) in
            [(None, Counted::No), (Some(zero), Counted::No), (Some(zero), Counted::PerhapsSome)]
        {
            let calm = cost(waits, counted, &CALM);
            assert_eq!(calm.verdict, Verdict::None);
            assert!(calm.says.contains("nobody on this machine"), "{}", calm.says);
            let busy = cost(waits, counted, &BUSY);
            let want = "Cannot tell: in 10.0 s this machine stalled once for compaction and 2 times for direct reclaim";
            assert!(busy.says.starts_with(want), "{}", busy.says);
            assert_eq!(
                (busy.verdict, cost(waits, counted, &[]).verdict),
                (Verdict::CannotTell, Verdict::CannotTell)
            );
        }
    }

    #[test]
    fn issue_31_9_a_process_that_slept_was_not_asked() {
        let mut asleep =
            cost(Some(Waits { compaction: Some(wait(0, 0)), ..Waits::default() }), Counted::All, &CALM);
        asleep.process.cpu_milliseconds = 0;
        judge(&mut asleep);
        let want = "Cannot tell: it used 0 ms of CPU time in 10.0 s: ask again while it has work to do";
        assert_eq!((asleep.verdict, &*asleep.says), (Verdict::CannotTell, want));
        // One that ended at once shows nothing either.
        asleep.milliseconds = 0;
        judge(&mut asleep);
        assert_eq!(asleep.verdict, Verdict::CannotTell);
    }

    #[test]
    fn issue_31_9_times_as_people_read_them() {
        let shown = [0, 900, 43_081, 2_500_000, 312_400_000, 3_210_000_000].map(duration);
        assert_eq!(shown, ["0 ms", "under 0.01 ms", "0.04 ms", "2.5 ms", "312 ms", "3.2 s"]);
    }

    proptest! {
        /// "None" needs a count of everything, or a machine on which nobody waited.
        #[test]
        fn issue_31_9_none_is_said_only_where_it_is_certain(
            compaction in 0u64..2, reclaim in 0u64..2, all: bool, known: bool, stall in 0u64..2, cpu in 0u64..20,
        ) {
            let seen = waits(wait(compaction, 1), wait(reclaim, 1), wait(1, 1));
            let counted = if all { Counted::All } else { Counted::No };
            let mut cost = cost(known.then_some(seen), counted, &[("allocstall", 0), ("compact_stall", stall)]);
            cost.process.cpu_milliseconds = cpu;
            judge(&mut cost);
            prop_assert!(!cost.says.contains('\n'));
            if cost.verdict == Verdict::None {
                prop_assert!(stall == 0 || (known && all && compaction + reclaim == 0));
            }
        }
    }
}
