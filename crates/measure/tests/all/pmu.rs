// SPDX-License-Identifier: Apache-2.0
//! `hugelift stat`'s formulas on counts written or published, against results worked out by
//! hand.

use hugelift_measure::pmu::count::{Count, Sample};
use hugelift_measure::pmu::given::{Given, GivenError};
use hugelift_measure::pmu::report::{Origin, StatReport};
use hugelift_measure::pmu::tables::{Role, models};
use std::collections::BTreeMap;
use std::path::Path;

fn given(name: &str) -> Given {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pmu").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn report(name: &str) -> StatReport {
    let given = given(name);
    let mut report = StatReport::new(Origin::Given, given.note.clone());
    report.add(&given.sample().expect("a sample"));
    report
}

/// Each figure, and no others, within a rounding error; and the bound.
fn check(name: &str, expected: &[(&str, f64)], bound: Option<f64>) {
    let report = report(name);
    let found: BTreeMap<&str, f64> = report.metrics.iter().map(|m| (m.key, m.value)).collect();
    assert_eq!(found.len(), report.metrics.len(), "{name}: a key twice");
    let keys: Vec<&str> = found.keys().copied().collect();
    let mut wanted: Vec<&str> = expected.iter().map(|e| e.0).collect();
    wanted.sort_unstable();
    assert_eq!(keys, wanted, "{name}");
    for (key, value) in expected {
        assert!((found[key] - value).abs() < 1e-12, "{name}: {key} is {}, not {value}", found[key]);
    }
    match (report.bound, bound) {
        (Some(a), Some(b)) => assert!((a - b).abs() < 1e-12, "{name}: bound {a}, not {b}"),
        (a, b) => assert_eq!(a, b, "{name}"),
    }
}

#[test]
fn skylake() {
    check(
        "skylake-by-hand.json",
        &[
            ("itlb_walk_share", 0.02),        // 20 000 of 1 000 000
            ("dtlb_walk_share", 0.04),        // 30 000 + 10 000
            ("fetch_tag_stall_share", 0.025), // 25 000
            ("page_walks_utilization", 0.04), // (24 + 36 + 12 + 8) 000 / 2 walkers
            ("itlb_walk_cycles", 40.0),       // 20 000 / 500
            ("dtlb_walk_cycles", 32.0),       // 40 000 / 1 250
            ("itlb_walks_per_1000", 0.25),    // 500 of 2 000 000
            ("dtlb_walks_per_1000", 0.625),   // 1 250 of 2 000 000
            ("instructions_per_cycle", 2.0),
        ],
        Some(0.06),
    );
}

#[test]
fn sapphire_rapids() {
    check(
        "sapphire-rapids-by-hand.json",
        &[
            ("itlb_walk_share", 0.015),        // 60 000 of 4 000 000
            ("dtlb_walk_share", 0.03),         // 100 000 + 20 000
            ("fetch_tag_stall_share", 0.02),   // 20 000 seen in a quarter of the time: 80 000
            ("page_walks_utilization", 0.014), // 224 000 / 4 000 000 / 4 walkers
            ("itlb_walk_cycles", 20.0),        // 60 000 / 3 000
            ("dtlb_walk_cycles", 40.0),        // 120 000 / 3 000
            ("itlb_walks_per_1000", 0.5),      // 3 000 of 6 000 000
            ("dtlb_walks_per_1000", 0.5),      // 2 500 + 500
            ("instructions_per_cycle", 1.5),
        ],
        Some(0.045),
    );
}

#[test]
fn zen4() {
    check(
        "zen4-by-hand.json",
        &[
            ("itlb_walks_per_1000", 0.2),     // 2 000 of 10 000 000
            ("dtlb_walks_per_1000", 1.5),     // 15 000
            ("l1_itlb_misses_per_1000", 1.0), // 8 000 + 2 000
            ("l1_dtlb_misses_per_1000", 6.0), // 60 000
            ("instructions_per_cycle", 2.0),
        ],
        None,
    );
}

#[test]
fn neoverse_n1() {
    check(
        "neoverse-n1-by-hand.json",
        &[
            ("itlb_walks_per_1000", 0.2),     // 600 of 3 000 000
            ("dtlb_walks_per_1000", 1.5),     // 4 500
            ("l1_itlb_misses_per_1000", 1.0), // 3 000
            ("l1_dtlb_misses_per_1000", 4.0), // 12 000
            ("instructions_per_cycle", 1.5),
        ],
        None,
    );
}

#[test]
fn neoverse_v3_counts_walks_in_progress() {
    check(
        "neoverse-v3-by-hand.json",
        &[
            ("itlb_walk_share", 0.015),    // 30 000 of 2 000 000
            ("dtlb_walk_share", 0.1),      // 200 000
            ("itlb_walk_cycles", 30.0),    // 30 000 / 1 000
            ("dtlb_walk_cycles", 50.0),    // 200 000 / 4 000
            ("itlb_walks_per_1000", 0.25), // 1 000 of 4 000 000
            ("dtlb_walks_per_1000", 1.0),  // 4 000
            ("instructions_per_cycle", 2.0),
        ],
        Some(0.115),
    );
}

#[test]
fn published_mysql_counts() {
    for (name, share) in
        [("mysql-published-before.json", 139.2 / 3213.4), ("mysql-published-after.json", 0.0056)]
    {
        let report = report(name);
        let walks = report.metrics.iter().find(|m| m.key == "itlb_walk_share").expect("iTLB walks");
        assert!((walks.value - share).abs() < 1e-4, "{name}: {}", walks.value);
        assert_eq!(report.bound, None, "{name}: without the data side there is no bound");
    }
}

#[test]
fn a_share_is_taken_within_its_group() {
    // The walk cycles were on the PMU for a tenth of the time, when the program was slow;
    // the walks for all of it. Other groups' cycles must not come in.
    let given = given("skylake-by-hand.json");
    let mut sample = given.sample().expect("a sample");
    for count in sample.groups[0].iter_mut().flatten() {
        *count = Count { value: count.value / 10, enabled_ns: 1000, running_ns: 100 };
    }
    for count in sample.groups[1].iter_mut().flatten() {
        count.value *= 3;
    }
    assert_eq!(sample.per(Role::FetchWalkCycles, Role::Cycles), Some(0.02));
    assert_eq!(sample.per(Role::FetchWalks, Role::Instructions), Some(0.00025));
}

#[test]
fn what_was_never_counted_has_no_figure() {
    for model in models() {
        let never = Count { value: 0, enabled_ns: 1000, running_ns: 0 };
        for fill in [None, Some(never), Some(Count::whole(0))] {
            let groups = model.groups.iter().map(|g| vec![fill; g.len()]).collect();
            let mut report = StatReport::new(Origin::Measured, "test".into());
            report.add(&Sample { model, groups });
            assert_eq!((report.metrics.len(), report.bound), (0, None), "{}", model.name);
            let noted = report.notes.iter().any(|n| n.contains("never on the PMU"));
            assert_eq!(noted, fill == Some(never), "{}", model.name);
        }
    }
}

#[test]
fn the_bound_is_never_more_than_all() {
    for model in models() {
        let groups = model.groups.iter().map(|g| vec![Some(Count::whole(1000)); g.len()]).collect();
        let mut report = StatReport::new(Origin::Measured, "test".into());
        report.add(&Sample { model, groups });
        assert!(report.bound.is_none_or(|b| b == 1.0), "{}: {:?}", model.name, report.bound);
    }
}

#[test]
fn given_counts_that_cannot_be() {
    let mut wrong = given("zen4-by-hand.json");
    wrong.counters.insert("ITLB_MISSES.WALK_ACTIVE".into(), hugelift_measure::pmu::given::Value::Whole(1));
    let error = wrong.sample().expect_err("an Intel event on AMD");
    assert!(matches!(&error, GivenError::UnknownEvent { model: "AMD Zen 4", .. }), "{error}");
    assert!(error.to_string().contains("ls_not_halted_cyc"), "{error}");
    wrong.cpu = hugelift_measure::pmu::Cpu::Arm { implementer: 0x61, part: 1 };
    assert_eq!(wrong.sample().expect_err("no table"), GivenError::UnknownCpu(wrong.cpu.clone()));
}
