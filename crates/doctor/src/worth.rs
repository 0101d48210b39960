// SPDX-License-Identifier: Apache-2.0
//! The programs of this machine that are most worth a lift: much code that is not huge, and much
//! time spent in it.

use super::facts::{Facts, Program};
use super::quoted;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::printable;
use serde::Serialize;
use std::fmt::Write as _;

/// How many are shown.
const SHOWN: usize = 3;
/// Less code than this that could be huge and is not is not worth a lift.
const MUCH_CODE: u64 = 4 << 20;
/// Of a program that has used less CPU time than this nothing can be said.
const MUCH_TIME: f64 = 1.0;

/// A program with the command that lifts it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worth {
    /// What was seen of it.
    #[serde(flatten)]
    pub program: Program,
    /// What starts it on huge pages.
    pub command: String,
}

/// The programs that are most worth a lift, best first.
pub fn most_worth(facts: &Facts) -> Vec<Worth> {
    let lacks = |p: &Program| p.text.liftable.saturating_sub(p.text.huge);
    let weight = |p: &Program| lacks(p) as f64 * p.cpu_seconds;
    let mut all: Vec<&Program> =
        facts.programs.iter().filter(|p| lacks(p) >= MUCH_CODE && p.cpu_seconds >= MUCH_TIME).collect();
    all.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.exe.cmp(&b.exe)));
    let worth =
        |p: &Program| Worth { program: p.clone(), command: format!("hugelift run -- {}", quoted(&p.exe)) };
    all.into_iter().take(SHOWN).map(worth).collect()
}

/// The last paragraph of a diagnosis; empty if there are no such programs.
pub fn text(facts: &Facts) -> String {
    let all = most_worth(facts);
    if all.is_empty() {
        return String::new();
    }
    let mut out = "\nmost worth a lift of what runs here, by code and CPU time\n".to_string();
    for Worth { program, command } in &all {
        let processes = match program.processes {
            1 => format!("process {}", program.pid),
            n => format!("{n} processes, the busiest is {}", program.pid),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  {}: {} of {} of its code that could be huge is not; {:.0} s of CPU time ({processes})",
            printable(&program.exe),
            human_bytes(program.text.liftable.saturating_sub(program.text.huge)),
            human_bytes(program.text.liftable),
            program.cpu_seconds,
        );
        let _ = writeln!(out, "    run   {}", printable(command));
    }
    out += "  Give each its usual arguments. With 'hugelift compare' in place of 'hugelift run' you see how much \
            faster it gets.\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Coverage;

    fn program(exe: &str, lacks_mb: u64, cpu_seconds: f64) -> Program {
        let text = Coverage { bytes: 100 << 20, liftable: 90 << 20, huge: (90 - lacks_mb) << 20 };
        Program { exe: exe.into(), pid: 7, processes: 2, cpu_seconds, text }
    }

    #[test]
    fn the_three_with_most_code_and_time() {
        let programs = vec![
            program("/bin/idle", 80, 0.5),
            program("/bin/huge", 0, 1e6),
            program("/bin/d", 5, 10.0),
            program("/bin/b", 20, 100.0),
            program("/bin/a b", 80, 1000.0),
            program("/bin/c", 80, 20.0),
        ];
        let facts = Facts { programs, ..Facts::default() };
        let all = most_worth(&facts);
        let commands: Vec<&str> = all.iter().map(|w| w.command.as_str()).collect();
        assert_eq!(
            commands,
            ["hugelift run -- '/bin/a b'", "hugelift run -- /bin/b", "hugelift run -- /bin/c"]
        );
        let shown = text(&facts);
        assert!(
            shown.contains("  /bin/c: 80 MB of 90 MB of its code that could be huge is not; 20 s"),
            "{shown}"
        );
        assert!(shown.contains("(2 processes, the busiest is 7)"), "{shown}");
        assert_eq!(text(&Facts::default()), "");
    }
}
