// SPDX-License-Identifier: Apache-2.0
//! The inputs of the simulation: a figure each, with its unit, its default and where the default comes from.

use super::programs::{PROGRAMS, Program};
use std::fmt::Write as _;

/// An input: its option, its least and its largest value, and its source.
pub struct Input {
    /// The option without the dashes.
    pub name: &'static str,
    /// Its default.
    pub default: f64,
    least: f64,
    most: f64,
    /// Its unit and the source of the default.
    pub source: &'static str,
}

const fn input(name: &'static str, default: f64, least: f64, most: f64, source: &'static str) -> Input {
    Input { name, default, least, most, source }
}

/// All inputs but the mixture.
pub const INPUTS: [Input; 20] = [
    input("seed", 1.0, 0.0, 1e9, "which machines run what, and which are under pressure"),
    input("nodes", 1000.0, 1.0, 1e5, "machines; assumed"),
    input("cpus", 32.0, 1.0, 1e4, "CPUs of a machine; assumed"),
    input("busy", 50.0, 0.0, 100.0, "% of them that the program uses; assumed"),
    input("hours", 24.0, 1.0, 1000.0, "hours that are simulated; assumed"),
    input("upgrade-at", 6.0, 0.0, 1000.0, "hour in which the rolling upgrade begins; assumed"),
    input("at-a-time", 20.0, 1.0, 1e5, "machines that are upgraded at a time; assumed"),
    input("upgrade-s", 120.0, 0.0, 1e5, "seconds that the upgrade of a machine takes; assumed"),
    input(
        "image-mb",
        200.0,
        0.0,
        1e5,
        "MB of the image, which is not in the page cache after an upgrade; assumed",
    ),
    input("disk", 200.0, 1.0, 1e5, "MB that a disk reads in a second; assumed"),
    input(
        "notice-s",
        1.0,
        0.0,
        1e5,
        "seconds until the service notices a file or a process; docs/reference/service.md",
    ),
    input("prime-ms", 0.7, 0.0, 1e3, "ms of CPU time to prime a MB; measured, see docs/fleet.md"),
    input(
        "copy-ms",
        5.3,
        0.0,
        1e3,
        "ms of CPU time to find and copy a MB of hot code; clang++ in docs/benchmarks.md, 0.18 s for 34 MB",
    ),
    input("restore-ms", 4.1, 0.0, 1e3, "ms of CPU time to restore a MB; 0.6 s for 148 MB of TiDB"),
    input(
        "worth",
        50.0,
        0.0,
        1e4,
        "times its cost that a program must have used before it is copied; docs/explanations/cost-model.md",
    ),
    input("service", 0.2, 0.0, 100.0, "% of one CPU that the service may use; docs/reference/service.md"),
    input("budget-mb", 1280.0, 0.0, 1e7, "MB of copies on a machine; 2 % of an assumed 64 GB"),
    input("verify-nodes", 10.0, 0.0, 1e5, "machines that verify; assumed"),
    input(
        "pairs",
        26.0,
        1.0,
        1e5,
        "lifts and restores in an experiment of a minute; TiDB in docs/benchmarks.md, 52 in two",
    ),
    input(
        "pressure",
        10.0,
        0.0,
        100.0,
        "% of the machines that are once under memory pressure, for half an hour; assumed",
    ),
];

/// The inputs of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    values: [f64; INPUTS.len()],
    /// The programs of the fleet.
    pub programs: [Program; PROGRAMS.len()],
}

impl Default for Inputs {
    fn default() -> Inputs {
        Inputs { values: INPUTS.map(|input| input.default), programs: PROGRAMS }
    }
}

impl Inputs {
    /// Reads the words of a command line.
    ///
    /// # Errors
    /// Returns one line on an unknown option, or a value that is not in order.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Inputs, String> {
        let mut inputs = Inputs::default();
        while let Some(option) = words.next() {
            let name = option.strip_prefix("--").ok_or_else(|| format!("{option:?}: not an option"))?;
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match name {
                "mix" => inputs.mix(&value)?,
                name => inputs.set(name, &value)?,
            }
        }
        Ok(inputs)
    }

    /// Sets an input.
    ///
    /// # Errors
    /// Returns one line on an unknown name, or a value that is not in order.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let index = INPUTS.iter().position(|input| input.name == name);
        let index = index.ok_or_else(|| format!("unknown option {:?}", format!("--{name}")))?;
        let (least, most) = (INPUTS[index].least, INPUTS[index].most);
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        self.values[index] =
            number.ok_or_else(|| format!("--{name} {value:?}: not a number from {least} to {most}"))?;
        Ok(())
    }

    /// Reads the shares of the programs, as in `tidb=10,unknown=90`. Those that are not named have none.
    fn mix(&mut self, text: &str) -> Result<(), String> {
        self.programs.iter_mut().for_each(|program| program.percent = 0.0);
        for item in text.split(',') {
            let (name, percent) = item.split_once('=').ok_or_else(|| format!("--mix: {item:?} has no ="))?;
            let program = self.programs.iter_mut().find(|program| program.name == name);
            let program = program.ok_or_else(|| format!("--mix: no program {name:?}"))?;
            let percent = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            program.percent =
                percent.ok_or_else(|| format!("--mix: {item:?} has no number from 0 to 100"))?;
        }
        let sum: f64 = self.programs.iter().map(|program| program.percent).sum();
        match (sum - 100.0).abs() < 0.01 {
            true => Ok(()),
            false => Err(format!("--mix: the shares are {sum} % together, and not 100")),
        }
    }

    /// Returns the value of an input; 0 for a name that there is not.
    pub fn get(&self, name: &str) -> f64 {
        INPUTS.iter().position(|input| input.name == name).map_or(0.0, |index| self.values[index])
    }

    /// Returns the number of machines.
    pub fn nodes(&self) -> usize {
        self.get("nodes") as usize
    }

    /// Returns the CPUs that the program of a machine uses.
    pub fn busy_cpus(&self) -> f64 {
        self.get("cpus") * self.get("busy") / 100.0
    }

    /// Returns the seconds that are simulated.
    pub fn seconds(&self) -> f64 {
        self.get("hours") * 3600.0
    }
}

/// Returns the list of options.
pub fn usage() -> String {
    let mut text = "usage: hugelift-bench fleet [--NAME VALUE]...\n".to_string();
    for input in &INPUTS {
        let _ = writeln!(text, "  --{} {}: {}", input.name, input.default, input.source);
    }
    let shares: Vec<_> =
        PROGRAMS.iter().map(|program| format!("{}={}", program.name, program.percent)).collect();
    let _ = write!(text, "  --mix {}: % of the machines that run each program; assumed", shares.join(","));
    text
}
