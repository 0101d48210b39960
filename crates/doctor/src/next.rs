// SPDX-License-Identifier: Apache-2.0
//! The command to type after a diagnosis.

use crate::facts::Facts;
use crate::findings::{Finding, Severity};
use crate::worth::most_worth;
use serde::Serialize;

/// A command, and what it is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Next {
    /// The command, for sh(1).
    pub command: String,
    /// What it does, as the end of a sentence that begins with the command.
    pub what: &'static str,
}

/// Returns what to do next: first what is safe and helps every program, then a measurement of the program that is
/// most worth a lift, else a list of what runs.
pub fn next(facts: &Facts, findings: &[Finding]) -> Next {
    let is_safe = |finding: &Finding| finding.safe && finding.severity >= Severity::Warning;
    if findings.iter().any(is_safe) {
        let what = "asks about each command that is marked (--fix), and runs it";
        return Next { command: "hugelift doctor --fix".into(), what };
    }
    let measures = "measures whether a lift pays";
    if let Some(process) = &facts.process {
        return match process.text.liftable > process.text.huge && facts.attaches {
            true => Next { command: format!("hugelift compare --pid {}", process.pid), what: measures },
            false => {
                let what = "shows each part of its memory, and why it is not huge";
                Next { command: format!("hugelift inspect {}", process.pid), what }
            }
        };
    }
    match most_worth(facts).first() {
        Some(best) if best.attach.is_some() => {
            Next { command: format!("hugelift compare --pid {}", best.program.pid), what: measures }
        }
        Some(best) => Next {
            command: best.command.replacen("hugelift run", "hugelift compare", 1),
            what: "measures whether a lift pays, with the usual arguments of the program",
        },
        None => Next { command: "hugelift top".into(), what: "shows which programs may gain" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose;
    use crate::facts::{Coverage, Process, Program, Reading, Thp};

    fn command(facts: &Facts) -> String {
        next(facts, &diagnose(facts)).command
    }

    #[test]
    fn first_the_machine_then_the_program() {
        assert_eq!(command(&Facts::default()), "hugelift top");
        let text = Coverage { bytes: 100 << 20, liftable: 90 << 20, huge: 10 << 20 };
        let program = Program { exe: "/bin/c".into(), pid: 7, processes: 2, cpu_seconds: 20.0, text };
        let busy = Facts { programs: vec![program], ..Facts::default() };
        assert_eq!(command(&busy), "hugelift compare -- /bin/c");
        let attaches = Facts { attaches: true, ..busy };
        assert_eq!(command(&attaches), "hugelift compare --pid 7");
        let process = |huge| Some(Process { pid: 8, text: Coverage { huge, ..text }, ..Process::default() });
        let of_one = Facts { process: process(0), ..attaches };
        assert_eq!(command(&of_one), "hugelift compare --pid 8");
        assert_eq!(command(&Facts { process: process(90 << 20), ..of_one.clone() }), "hugelift inspect 8");
        assert_eq!(command(&Facts { attaches: false, ..of_one.clone() }), "hugelift inspect 8");
        let never = Reading { source: "/x".into(), value: "always madvise [never]".into() };
        let off = Facts { thp: Thp { enabled: Some(never), ..Thp::default() }, ..of_one };
        assert_eq!(command(&off), "hugelift doctor --fix");
    }
}
