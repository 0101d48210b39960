// SPDX-License-Identifier: Apache-2.0
//! The programs of this machine that are most worth a lift: those with much code that is not huge and
//! much CPU time.

use crate::facts::{Facts, Program};
use crate::findings::quoted;
use serde::Serialize;

/// How many programs are shown.
const SHOWN: usize = 3;
/// The least code that could be huge and is not for a program to be worth a lift.
const MUCH_CODE: u64 = 4 << 20;
/// The least CPU seconds for a program to be worth a lift.
const MUCH_TIME: f64 = 1.0;

/// A program with the command that lifts it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worth {
    /// The program.
    #[serde(flatten)]
    pub program: Program,
    /// The command that starts it on huge pages.
    pub command: String,
    /// The command that lifts its busiest process as it runs, where that is possible.
    pub attach: Option<String>,
}

/// Returns the programs that are most worth a lift, best first.
pub fn most_worth(facts: &Facts) -> Vec<Worth> {
    let lacks = |p: &Program| p.text.liftable.saturating_sub(p.text.huge);
    let weight = |p: &Program| lacks(p) as f64 * p.cpu_seconds;
    let mut all: Vec<&Program> =
        facts.programs.iter().filter(|p| lacks(p) >= MUCH_CODE && p.cpu_seconds >= MUCH_TIME).collect();
    all.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.exe.cmp(&b.exe)));
    let worth = |p: &Program| Worth {
        program: p.clone(),
        command: format!("hugelift run -- {}", quoted(&p.exe)),
        attach: facts.attaches.then(|| format!("hugelift attach {}", p.pid)),
    };
    all.into_iter().take(SHOWN).map(worth).collect()
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
        assert!(all.iter().all(|w| w.attach.is_none()));
        let here = most_worth(&Facts { attaches: true, ..facts });
        assert_eq!(here[0].attach.as_deref(), Some("hugelift attach 7"));
        assert_eq!(most_worth(&Facts::default()), []);
    }
}
