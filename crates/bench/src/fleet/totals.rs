// SPDX-License-Identifier: Apache-2.0
//! Adds up what all machines save and pay in a step of a rollout.
//!
//! A saving counts only if it was measured for this program with these huge pages, and its interval does not contain 0.
//! The low ends are added to the low ends, as if all machines were at the low end together.

use super::day::Day;
use super::inputs::Inputs;
use super::programs::{Program, certain};
use super::random::Random;

/// A step of a rollout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The service with its default policy on all machines: the page cache alone.
    Cache,
    /// Also `verify` on some machines, which copy what an experiment has shown to pay.
    Verify,
    /// Copies of the programs that have paid, on all machines.
    Code,
    /// Copies of all programs, on all machines, without an experiment.
    Blind,
}

impl Step {
    /// The steps, in order.
    pub const ALL: [Step; 4] = [Step::Cache, Step::Verify, Step::Code, Step::Blind];
}

/// What a fleet saves and pays.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Totals {
    /// CPUs saved on average: low, middle, high.
    pub saved: [f64; 3],
    /// CPUs paid on average.
    pub paid: f64,
    /// MB of copies.
    pub memory_mb: f64,
    /// MB that priming reads from disks.
    pub read_mb: f64,
    /// Seconds from the start of the upgrade until each machine is huge on the new image, in order.
    pub ready: Vec<f64>,
}

/// Simulates a step.
pub fn simulate(inputs: &Inputs, step: Step) -> Totals {
    let order = order(inputs);
    let mut totals = Totals::default();
    for (place, &machine) in order.iter().enumerate() {
        let program = program_of(inputs, machine);
        let day = Day::draw(inputs, machine, place);
        add(&mut totals, inputs, step, program, &day, place);
    }
    totals.ready.sort_by(f64::total_cmp);
    totals
}

/// Returns the machines in the order of their upgrades. The first of them verify.
fn order(inputs: &Inputs) -> Vec<usize> {
    let seed = inputs.get("seed") as u64;
    let mut drawn: Vec<(f64, usize)> =
        (0..inputs.nodes()).map(|machine| (Random::of(seed, machine as u64, 2).share(), machine)).collect();
    drawn.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    drawn.into_iter().map(|(_, machine)| machine).collect()
}

/// Returns the program of a machine. The shares are exact, whatever the seed is.
fn program_of(inputs: &Inputs, machine: usize) -> &Program {
    let at = 100.0 * (machine as f64 + 0.5) / inputs.nodes() as f64;
    let mut below = 0.0;
    let found = inputs.programs.iter().find(|program| {
        below += program.percent;
        at < below
    });
    found.unwrap_or(&inputs.programs[inputs.programs.len() - 1])
}

fn add(totals: &mut Totals, inputs: &Inputs, step: Step, program: &Program, day: &Day, place: usize) {
    let seconds = inputs.seconds();
    let average = |cpu_seconds: f64| cpu_seconds / seconds;
    let image = inputs.get("image-mb");
    let primed_after =
        inputs.get("notice-s") + image / inputs.get("disk") + image * inputs.get("prime-ms") / 1e3;
    let (huge, made) = day.huge(primed_after, seconds);
    totals.paid +=
        inputs.get("service") / 100.0 + average(made as f64 * image * inputs.get("prime-ms") / 1e3);
    totals.read_mb += made as f64 * image;
    totals.save(inputs, program.cached, average(huge));

    let copy = program.copy_mb * inputs.get("copy-ms") / 1e3;
    let verifies = step == Step::Verify && (place as f64) < inputs.get("verify-nodes");
    let fits = program.copy_mb > 0.0 && program.copy_mb <= inputs.get("budget-mb");
    if verifies && fits {
        let again = program.copy_mb * (inputs.get("copy-ms") + inputs.get("restore-ms")) / 1e3;
        totals.paid += average(inputs.get("pairs") * again);
    }
    let copies = fits && (step == Step::Blind || (step == Step::Code || verifies) && program.pays());
    let mut last = primed_after;
    if copies {
        let used = copy * inputs.get("worth") / inputs.busy_cpus().max(1e-3);
        last = last.max(inputs.get("notice-s") + used + copy);
        let (huge, made) = day.huge(last, seconds);
        totals.paid += average(made as f64 * copy);
        totals.memory_mb += program.copy_mb;
        totals.save(inputs, program.copied, average(huge));
    }
    totals.ready.extend(day.upgraded.map(|at| at + last - inputs.get("upgrade-at") * 3600.0));
}

impl Totals {
    /// Counts a saving for this part of the time, if it is certain.
    fn save(&mut self, inputs: &Inputs, saving: Option<[f64; 3]>, time: f64) {
        let percents = certain(saving).unwrap_or_default();
        for (saved, percent) in self.saved.iter_mut().zip(percents) {
            *saved += inputs.busy_cpus() * percent / 100.0 * time;
        }
    }

    /// Returns the seconds after which this part of all machines is huge on the new image; `None` if that is never.
    pub fn ready_after(&self, part: f64, nodes: usize) -> Option<f64> {
        let wanted = (part * nodes as f64).ceil() as usize;
        self.ready.get(wanted.saturating_sub(1)).copied()
    }
}
