// SPDX-License-Identifier: Apache-2.0
//! The commands that advice names for a process.

use hugelift_core::heat::extent::{DataVerdict, Extents};
use hugelift_core::heat::verdict::Verdict;
use serde::Serialize;

/// A command that helps.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Command {
    pub(super) line: String,
    pub(super) what: &'static str,
}

/// Which data on small pages is worth a command: a kind that is half of all, and a huge page at least.
#[derive(Clone, Copy, Default)]
pub(super) struct DataOnSmall {
    anonymous: bool,
    shared: bool,
    files: bool,
}

impl DataOnSmall {
    pub(super) fn of(verdict: DataVerdict, extents: Extents, huge_page: u64) -> DataOnSmall {
        let is_much =
            |small: u64| verdict != DataVerdict::Little && small >= huge_page && 2 * small >= extents.small();
        DataOnSmall {
            anonymous: is_much(extents.anonymous.small()),
            shared: is_much(extents.shared.small()),
            files: is_much(extents.files.small()),
        }
    }
}

/// Returns the commands, in the order in which they are of use.
pub(super) fn commands(pid: u32, verdict: Verdict, data: DataOnSmall) -> Vec<Command> {
    let command = |words: &str, what| Command { line: format!("hugelift {words} {pid}"), what };
    let measure = command("compare --pid", "measures the gain: lifts and restores it in turn");
    let map = command("inspect --heat 10", "shows where the code in use is");
    let lift = command("attach", "lifts the code in use");
    let restore = command("restore", "undoes that");
    let mut all = match verdict {
        Verdict::Nothing => vec![map],
        Verdict::Little => vec![measure, map],
        Verdict::Lifted => vec![measure, map, restore],
        Verdict::Probably | Verdict::CannotTell => vec![measure, map, lift, restore],
    };
    if data.anonymous || data.shared || data.files {
        all.push(command("inspect --heat 10 --data", "shows what of its data is in use"));
    }
    if data.anonymous {
        all.push(command(
            "compare --same-copy --parts heap,anon --pid",
            "measures the gain of its memory: on huge pages and on small ones in turn",
        ));
        all.push(command("attach --parts heap,anon", "collapses its anonymous memory; that is not undone"));
    }
    if data.shared {
        let what = "collapses its shared memory, for all processes that share it; that is not undone";
        all.push(command("attach --parts shm", what));
    }
    if data.files {
        let what = "as root: reads the files that it maps into huge pages, while it runs";
        all.push(command("attach --parts files", what));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::heat::extent::Extent;

    #[test]
    fn issue_31_nobody_is_sent_to_lift_what_gains_nothing() {
        let lines = |verdict| {
            commands(7, verdict, DataOnSmall::default()).into_iter().map(|c| c.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(Verdict::Nothing), ["hugelift inspect --heat 10 7"]);
        assert_eq!(lines(Verdict::Probably)[0], "hugelift compare --pid 7");
    }

    #[test]
    fn issue_32_the_data_that_is_most_of_all_has_its_command() {
        let small = |mb: u64| Extent { resident_bytes: mb << 20, huge_bytes: 0 };
        let lines = |verdict, [anonymous, shared, files]: [u64; 3]| {
            let extents = Extents { anonymous: small(anonymous), shared: small(shared), files: small(files) };
            let all = commands(7, Verdict::Nothing, DataOnSmall::of(verdict, extents, 2 << 20));
            all.into_iter().skip(1).map(|c| c.line).collect::<Vec<_>>()
        };
        let data = "hugelift inspect --heat 10 --data 7";
        let perhaps = DataVerdict::Perhaps;
        assert_eq!(lines(perhaps, [10, 900, 500]), [data, "hugelift attach --parts shm 7"]);
        assert_eq!(lines(perhaps, [10, 90, 500]), [data, "hugelift attach --parts files 7"]);
        assert_eq!(lines(perhaps, [500, 90, 10]).last().unwrap(), "hugelift attach --parts heap,anon 7");
        assert!(lines(DataVerdict::Little, [10, 900, 500]).is_empty());
        assert!(lines(perhaps, [1, 0, 0]).is_empty());
    }
}
