// SPDX-License-Identifier: Apache-2.0
//! The report for people.

use crate::entry::Verdict;
use crate::report::{Gain, Machine, Measured, Program, Report};
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::printable;

const DAY: u64 = 24 * 3600;

/// Returns the report as lines: the machine first.
pub fn text(report: &Report) -> String {
    let mut out = machine(&report.machine);
    let shown =
        report.programs.iter().filter(|one| one.cpu_seconds > 0.0 || one.lifts > 0 || one.measured.is_some());
    for program in shown {
        out += &format!("{}: {}\n", name(program), what(program, report.made));
    }
    out
}

fn machine(machine: &Machine) -> String {
    let units = if machine.units == 1 { "unit" } else { "units" };
    let gain = match machine.gain {
        Some(gain) => format!("{} less CPU time in {} {units}", percent(gain), machine.units),
        None => "no gain was measured".into(),
    };
    let cpu = match machine.cpu_share {
        Some(share) => format!("{:.2} % of a CPU", 100.0 * share),
        None if machine.span_seconds == 0 => "an unknown share of a CPU".into(),
        None => {
            let [used, span] = [machine.cpu_seconds, machine.span_seconds as f64].map(time);
            format!("{used} of CPU time in {span}, which is too short for a share of it,")
        }
    };
    let mut out = format!("this machine: {gain}, for {cpu} and {}\n", human_bytes(machine.copies_bytes));
    if machine.gain.is_some() {
        out += "measured with all code and constants on huge pages, of programs that showed a gain; their hot code is lifted\n";
    }
    if machine.unmeasured_cpu_seconds > 0.0 {
        let time = time(machine.unmeasured_cpu_seconds);
        out += &format!("not measured, and in no sum: {time} of CPU time of lifted processes\n");
    }
    out
}

fn name(program: &Program) -> String {
    let path = program.program.as_ref().unwrap_or(&program.build_id);
    match &program.unit {
        Some(unit) => format!("{unit} ({path})"),
        None => path.to_string(),
    }
}

fn what(program: &Program, now: u64) -> String {
    let measured = match &program.measured {
        Some(measured) => said(measured, now),
        None if program.lifts > 0 || program.lifted_cpu_seconds > 0.0 => "lifted, and not measured".into(),
        None => "not lifted".into(),
    };
    let used = match program.lifted_cpu_seconds {
        0.0 => format!("; {} of CPU time", time(program.cpu_seconds)),
        lifted => format!("; {} of CPU time, {} of it lifted", time(program.cpu_seconds), time(lifted)),
    };
    let copies = match program.copies_bytes {
        0 => String::new(),
        bytes => format!("; {} of copies", human_bytes(bytes)),
    };
    measured + &used + &copies
}

fn said(measured: &Measured, now: u64) -> String {
    let Measured { verdict, measure, pairs, gain, until, .. } = measured;
    let measure = printable(measure);
    let again = match until.saturating_sub(now) {
        0 => "its time is over".into(),
        left => format!("tried again in {}", days(left)),
    };
    match (Verdict::of_key(verdict), gain) {
        (Some(Verdict::Pays), Some(gain)) => {
            format!("{} less {measure} ({pairs} pairs; {again})", percent(*gain))
        }
        (Some(Verdict::Harms), Some(gain)) => {
            let more = Gain { point: -gain.point, low: -gain.high, high: -gain.low };
            format!("{} more {measure}, so it is left as it is ({pairs} pairs; {again})", percent(more))
        }
        (Some(Verdict::PaysNot), Some(gain)) => {
            let [low, high] = [-gain.high, -gain.low].map(|share| 100.0 * share);
            format!(
                "no gain was seen: {measure} changes by {low:+.1} to {high:+.1} %, so it is left as it is ({pairs} pairs; {again})"
            )
        }
        (Some(Verdict::PaysNot), None) => format!("there is nothing to lift ({again})"),
        _ => format!("an experiment gave no result ({again})"),
    }
}

/// Returns a gain such as "2.1 % [1.4, 2.8]".
fn percent(gain: Gain) -> String {
    let [point, low, high] = [gain.point, gain.low, gain.high].map(|share| 100.0 * share);
    format!("{point:.1} % [{low:.1}, {high:.1}]")
}

fn time(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

fn days(seconds: u64) -> String {
    match seconds {
        ..DAY => time(seconds as f64),
        _ => format!("{} days", seconds / DAY),
    }
}
