// SPDX-License-Identifier: Apache-2.0
use super::*;
use hugelift_doctor::diagnose;
use hugelift_doctor::facts::{Coverage, Process, Program, Reading, Thp};
use proptest::prelude::*;

const STYLE: Style = Style { width: 80, colour: false };

fn reading(value: &str) -> Option<Reading> {
    Some(Reading { source: "/x".into(), value: value.into() })
}

#[test]
fn without_findings_the_machine_is_set_up_well() {
    assert!(text(&Facts::default(), &[], STYLE).contains("nothing found"));
}

#[test]
fn a_finding_with_its_reading_and_its_command() {
    let thp = Thp { enabled: reading("always madvise [never]"), ..Thp::default() };
    let facts = Facts { thp, ..Facts::default() };
    let shown = text(&facts, &diagnose(&facts), STYLE);
    assert!(shown.contains("PROBLEM transparent huge pages are off [thp-never]\n"), "{shown}");
    assert!(shown.contains("  read  /x: always madvise [never]\n"), "{shown}");
    assert!(shown.contains("  run   echo madvise > /x   (--fix)\n"), "{shown}");
    assert!(!shown.contains('\x1b'));
    assert!(text(&facts, &diagnose(&facts), Style { colour: true, ..STYLE }).contains("\x1b[1;31mPROBLEM"));
}

#[test]
fn paths_and_names_from_outside_do_no_harm() {
    let exe = "/bin/\x1b[31mx".to_string();
    let text_of = Coverage { bytes: 9 << 20, liftable: 8 << 20, huge: 0 };
    let start = vec!["x; rm y\x1b[2J".into()];
    let facts = Facts {
        process: Some(Process { pid: 7, exe, start, text: text_of, ..Process::default() }),
        ..Facts::default()
    };
    let found = diagnose(&facts);
    assert!(found[0].advice.as_ref().unwrap().ends_with("-- 'x; rm y\x1b[2J'"));
    assert!(!text(&facts, &found, STYLE).contains('\x1b'));
}

#[test]
fn measured_advice_has_its_date() {
    let style = Style { width: 60, colour: false };
    let report = crate::lab::tests::report();
    let text = measured(&[report], style);
    assert!(
        text.starts_with("\nmeasured on this machine\n  lab tlb measured here on 2026-01-31: Use"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 60) && !text.contains('\u{1b}'), "{text}");
    assert_eq!(measured(&[], style), "");
}

#[test]
fn programs_worth_a_lift_with_their_commands() {
    let text = Coverage { bytes: 100 << 20, liftable: 90 << 20, huge: 10 << 20 };
    let program = Program { exe: "/bin/c".into(), pid: 7, processes: 2, cpu_seconds: 20.0, text };
    let shown = worth(&Facts { programs: vec![program], ..Facts::default() });
    assert!(
        shown
            .contains("  /bin/c: 80 MB of the 90 MB of its code that could be huge are on small pages; 20 s"),
        "{shown}"
    );
    assert!(shown.contains("(2 processes, the busiest is 7)"), "{shown}");
    assert_eq!(worth(&Facts::default()), "");
}

#[test]
fn what_to_do_next_is_one_line() {
    let to_do = Next { command: "hugelift top".into(), what: "shows which programs may gain" };
    assert_eq!(next(&to_do, STYLE), "\nnext: hugelift top   (shows which programs may gain)\n");
    let coloured = next(&to_do, Style { colour: true, ..STYLE });
    assert!(coloured.contains("\x1b[1mhugelift top\x1b[0m"), "{coloured:?}");
}

proptest! {
    /// Any value and any width can be shown.
    #[test]
    fn any_value_is_shown(value in "[ -~]{0,12}", bytes in any::<u64>(), width in 0usize..200) {
        let mut facts = Facts::default();
        facts.thp.enabled = reading(&value);
        facts.process = Some(Process {
            exe: value,
            text: Coverage { bytes, liftable: bytes, huge: bytes / 3 },
            anonymous: bytes,
            writable_thp: bytes,
            forks: bytes,
            ..Process::default()
        });
        let shown = text(&facts, &diagnose(&facts), Style { width, colour: false });
        prop_assert!(shown.ends_with('\n'));
    }
}
