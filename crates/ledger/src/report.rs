// SPDX-License-Identifier: Apache-2.0
//! What the service has gained, and what for. Only what was measured is summed up.
//!
//! The processes of a program that pays have used the CPU time `c` while they were lifted, since the experiment with the ratio
//! `r` = lifted / bare. Bare they would have used `c / r`. So together these programs need the share `1 - sum(c) / sum(c / r)`
//! less. Its interval is the worst case: all ratios at the upper ends of their intervals, then all at the lower ends. It is
//! never narrower than that of independent errors, which add in quadrature (J. R. Taylor, An Introduction to Error Analysis,
//! 2nd edition, section 3.5 and rule 3.8: the sum is an upper bound), and needs no such assumption.

use crate::entry::{Cost, Experiment, Ratio, Verdict};
use crate::reader::Known;
use hugelift_core::printable::Untrusted;
use serde::Serialize;
use std::collections::BTreeSet;

/// The version of the JSON.
pub const VERSION: u32 = 1;

/// The shortest time of which a share of a CPU is said, in seconds. The service reads the whole machine when it starts.
pub const SHORTEST_SPAN: u64 = 600;

/// What the service has gained.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The first second of which it tells, since 1970.
    pub since: u64,
    /// When it was made.
    pub made: u64,
    /// All programs with a measured gain together.
    pub machine: Machine,
    /// Each program, those that have used most CPU time first.
    pub programs: Vec<Program>,
}

/// All programs with a measured gain together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Machine {
    /// The share of CPU time that they need less; none if no process of them has run lifted since it was measured.
    pub gain: Option<Gain>,
    /// The units of these programs; a program without a unit counts as one.
    pub units: u64,
    /// CPU time that they have used lifted since their experiments.
    pub measured_cpu_seconds: f64,
    /// CPU time that lifted processes have used of which no gain was measured.
    pub unmeasured_cpu_seconds: f64,
    /// CPU time of the service and of its helpers.
    pub cpu_seconds: f64,
    /// The time in which it was used, in seconds.
    pub span_seconds: u64,
    /// The same as a share of one CPU; none if the time is shorter than [`SHORTEST_SPAN`].
    pub cpu_share: Option<f64>,
    /// Bytes of copies.
    pub copies_bytes: u64,
}

/// A share of CPU time that is needed less, with its interval of 95 %. A negative one is needed more.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// The estimate.
    pub point: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A program in a unit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Program {
    /// Its unit of the system's manager.
    pub unit: Option<Untrusted>,
    /// The path of its executable; none if it was never lifted or measured.
    pub program: Option<Untrusted>,
    /// The build-id of its executable, or what stands for one.
    pub build_id: Untrusted,
    /// CPU time of its processes.
    pub cpu_seconds: f64,
    /// The part of it that lifted processes have used.
    pub lifted_cpu_seconds: f64,
    /// Bytes of copies.
    pub copies_bytes: u64,
    /// How many lifts there were.
    pub lifts: u64,
    /// How often a process could not be lifted.
    pub refusals: u64,
    /// What was measured; none if nothing was.
    pub measured: Option<Measured>,
}

/// What was measured of a program.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// When the experiment has ended.
    pub at: u64,
    /// `pays`, `pays-not`, `harms` or `unmeasured`.
    pub verdict: &'static str,
    /// What was compared.
    pub measure: String,
    /// The pairs of periods.
    pub pairs: u64,
    /// The share that is needed less; none without a result.
    pub gain: Option<Gain>,
    /// When it is tried again at the earliest.
    pub until: u64,
}

impl From<Ratio> for Gain {
    fn from(ratio: Ratio) -> Gain {
        Gain { point: 1.0 - ratio.point, low: 1.0 - ratio.high, high: 1.0 - ratio.low }
    }
}

/// What a program that pays has used, in seconds, and its ratio.
struct Paying<'a> {
    known: &'a Known,
    used: f64,
    ratio: Ratio,
}

impl Report {
    /// Makes the report on what is known since a time.
    pub fn new(known: &[Known], cost: Cost, since: u64, made: u64) -> Report {
        let programs = known.iter().map(Program::new).collect();
        Report { version: VERSION, since, made, machine: Machine::new(known, cost), programs }
    }
}

impl Machine {
    fn new(known: &[Known], cost: Cost) -> Machine {
        let paying: Vec<Paying> = known.iter().filter_map(Paying::of).collect();
        // The sum of no numbers is -0.0, which JSON would show.
        let measured = paying.iter().map(|one| one.used).fold(0.0, std::ops::Add::add);
        let lifted = known.iter().map(|known| seconds(known.used.lifted_us)).fold(0.0, std::ops::Add::add);
        let units: BTreeSet<_> = paying.iter().map(Paying::unit).collect();
        Machine {
            gain: gain(&paying),
            units: units.len() as u64,
            measured_cpu_seconds: measured,
            unmeasured_cpu_seconds: (lifted - measured).max(0.0),
            cpu_seconds: seconds(cost.cpu_us),
            span_seconds: cost.span,
            cpu_share: (cost.span >= SHORTEST_SPAN).then(|| seconds(cost.cpu_us) / cost.span as f64),
            copies_bytes: cost.copies,
        }
    }
}

impl<'a> Paying<'a> {
    fn of(known: &'a Known) -> Option<Paying<'a>> {
        let (_, Experiment { ratio: Some(ratio), verdict: Verdict::Pays, .. }) = known.found.as_ref()? else {
            return None;
        };
        let is_sound = [ratio.low, ratio.point, ratio.high].into_iter().all(|r| r.is_finite() && r > 0.0);
        let used = seconds(known.used_since.lifted_us);
        (is_sound && used > 0.0).then_some(Paying { known, used, ratio: *ratio })
    }

    /// Returns the unit, or what stands for it.
    fn unit(&self) -> (Option<&str>, Option<&str>) {
        match &self.known.program.unit {
            Some(unit) => (Some(unit), None),
            None => (None, Some(&self.known.program.build_id)),
        }
    }
}

fn gain(paying: &[Paying]) -> Option<Gain> {
    let used: f64 = paying.iter().map(|one| one.used).sum();
    let with = |of: fn(&Ratio) -> f64| {
        let bare: f64 = paying.iter().map(|one| one.used / of(&one.ratio)).sum();
        1.0 - used / bare
    };
    let gain = || Gain { point: with(|r| r.point), low: with(|r| r.high), high: with(|r| r.low) };
    (used > 0.0).then(gain)
}

impl Program {
    fn new(known: &Known) -> Program {
        let Known { program, path, used, lifts, refusals, found, .. } = known;
        Program {
            unit: program.unit.as_ref().map(|unit| unit.as_str().into()),
            program: (!path.as_os_str().is_empty()).then(|| path.into()),
            build_id: program.build_id.as_str().into(),
            cpu_seconds: seconds(used.cpu_us),
            lifted_cpu_seconds: seconds(used.lifted_us),
            copies_bytes: used.copies,
            lifts: *lifts,
            refusals: *refusals,
            measured: found.as_ref().map(|(at, experiment)| Measured::new(*at, experiment)),
        }
    }
}

impl Measured {
    fn new(at: u64, experiment: &Experiment) -> Measured {
        let Experiment { measure, ratio, pairs, verdict, until, .. } = experiment;
        let (gain, measure) = (ratio.map(Gain::from), measure.clone());
        Measured { at, verdict: verdict.key(), measure, pairs: *pairs, gain, until: *until }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests;
