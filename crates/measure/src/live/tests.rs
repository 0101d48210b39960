// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::comparison::{Comparison, Coverage, Finding, Memory, Setting, Side};
use crate::stopping::Reached;
use std::time::{Duration, Instant};

fn counter() -> Metric {
    Metric::Counter { command: Command { option: "--metric", line: "count".into() } }
}

fn cpu() -> Metric {
    Metric::Cpu { why: "nothing is steady".into() }
}

/// Returns the readings at the ends of a period of two seconds.
fn ends(cpu_ms: u64, counts: Option<(f64, f64)>) -> (Reading, Reading) {
    let at = Instant::now();
    let cpu = Duration::from_secs(100);
    let of = |cpu, minor_faults| OfProcess { cpu, minor_faults, major_faults: 1, ..OfProcess::default() };
    let first =
        Reading { at, took: Duration::ZERO, count: counts.map(|c| c.0), of: [((7, 1), of(cpu, 70))].into() };
    let last = Reading {
        at: at + Duration::from_secs(2),
        took: Duration::ZERO,
        count: counts.map(|c| c.1),
        of: [((7, 1), of(cpu + Duration::from_millis(cpu_ms), 75))].into(),
    };
    (first, last)
}

fn period(metric: &Metric, cpu_ms: u64, counts: Option<(f64, f64)>, huge: u64) -> Run {
    let (first, last) = ends(cpu_ms, counts);
    let text = Coverage { whole: 8 << 20, huge };
    run(metric, &first, &last, None, Some(Memory { text, ..Memory::default() })).unwrap()
}

#[test]
fn the_figures_of_a_period() {
    let run = period(&counter(), 1000, Some((1e6, 1e6 + 4000.0)), 0);
    assert_eq!((run.wall, run.metric, run.server_cpu), (2.0, Some(2000.0), Some(0.00025)));
    assert_eq!((run.cpu_per_second, run.minor_faults, run.major_faults), (Some(0.5), 5, 0));
    let run = period(&cpu(), 500, None, 0);
    assert_eq!((run.metric, run.server_cpu, run.cpu_per_second), (None, None, Some(0.25)));
}

#[test]
fn a_slow_command_lengthens_the_period_and_its_error_is_known() {
    let ms = Duration::from_millis;
    let (mut first, mut last) = ends(1000, Some((0.0, 2.0)));
    assert_eq!(first.end_of_period(ms(60)), first.at + ms(60));
    assert_eq!(figures(&first, &last).wall_error, Some(0.0));
    (first.took, last.took) = (ms(40), ms(60));
    assert_eq!(first.end_of_period(ms(60)), first.at + ms(800));
    assert_eq!(first.end_of_period(ms(900)), first.at + ms(900));
    assert_eq!(figures(&first, &last).wall_error, Some(0.05));
    first.took = Duration::from_secs(59);
    assert_eq!(first.end_of_period(ms(60)), first.at + Duration::from_secs(10));
}

fn figures(first: &Reading, last: &Reading) -> Run {
    run(&counter(), first, last, None, None).unwrap()
}

#[test]
fn periods_without_a_ratio_are_refused_with_what_helps() {
    let refused = |metric: &Metric, cpu, counts, gauge| {
        let (first, last) = ends(cpu, counts);
        run(metric, &first, &last, gauge, None).unwrap_err().to_string()
    };
    let error = refused(&counter(), 9, Some((5.0, 4.0)), None);
    assert!(error.contains("fell from 5 to 4") && error.contains("--metric-kind gauge"), "{error}");
    let error = refused(&counter(), 9, Some((5.0, 5.0)), None);
    assert!(error.contains("stayed 5 for 2.0 s") && error.contains("--period"), "{error}");
    assert!(refused(&cpu(), 0, None, None).contains("used no CPU time"));
    let gauge = Metric::Gauge { command: Command { option: "--metric", line: "latency".into() } };
    for value in [0.0, -1.0] {
        assert!(refused(&gauge, 9, None, Some(value)).contains("above 0"));
    }
}

/// Returns the finding about eight pairs in which a lifted period has 6 % less CPU time per unit.
fn finding(metric: Metric, bare_huge: u64, lifted_huge: &[u64; 8]) -> Finding {
    let pace = [10_000, 10_400, 9_800, 10_100, 10_900, 9_500, 10_000, 10_200];
    let side = |name: &str, huge: &[u64; 8], share: u64| {
        let one = |(i, pace): (usize, &u64)| {
            let work = (pace * 100) as f64;
            period(&metric, pace * share / 100 + i as u64, Some((0.0, work)), huge[i])
        };
        let runs: Vec<Run> = pace.iter().enumerate().map(one).collect();
        Side {
            name: name.into(),
            options: None,
            memory: runs.iter().filter_map(|run| run.memory).reduce(Memory::max),
            peak_bytes: None,
            liftable: None,
            why_not: None,
            runs,
        }
    };
    let sides = vec![side("bare", &[bare_huge; 8], 100), side("lifted", lifted_huge, 94)];
    let (figure, higher_is_better) = (metric.figure(), matches!(metric, Metric::Counter { .. }));
    let live = Live {
        pid: 7,
        name: "seven".into(),
        chosen_by: "7".into(),
        processes: Processes { measured: 1, lifted: 1, ..Processes::default() },
        metric: metric.clone(),
        period_s: 2.0,
        settle_s: 0.2,
        seed: 1,
        same_copy: false,
        memory: false,
        left_out_bytes: 0,
        left_out_why: None,
        not_lifted: Vec::new(),
        found: State::Bare,
        left: Some(State::Bare),
        left_as_found: true,
        switching: Switching::default(),
    };
    let setting = Setting {
        host: String::new(),
        command: Vec::new(),
        load: None,
        figure,
        higher_is_better,
        bare_4k: false,
        counts_transactions: true,
        has_latency: false,
        live: Some(live),
    };
    Comparison::new(setting, Reached::Time, sides).variants[0].finding
}

#[test]
fn the_verdict_is_on_the_metric_and_needs_huge_pages_in_each_lifted_period() {
    let cpu_per = || Metric::CpuPer { command: Command { option: "--cpu-per", line: "count".into() } };
    let found = finding(cpu_per(), 0, &[6 << 20; 8]);
    assert!(matches!(found, Finding::Faster { from, to } if 0.05 < from && to < 0.07), "{found:?}");
    // The same work was done in each pair, so that the rate is the same.
    let found = finding(counter(), 0, &[6 << 20; 8]);
    assert!(matches!(found, Finding::NoDifference { .. }), "{found:?}");
    let mut once_bare = [6 << 20; 8];
    once_bare[3] = 0;
    assert_eq!(finding(cpu_per(), 0, &once_bare), Finding::NotSwitched);
    assert_eq!(finding(cpu_per(), 6 << 20, &[6 << 20; 8]), Finding::NotSwitched, "bare was as huge");
    let found = finding(cpu_per(), 2 << 20, &[6 << 20; 8]);
    assert!(matches!(found, Finding::Faster { .. }), "bare was partly huge, as another object is: {found:?}");
}

/// One process goes on, one ends, and one joins.
#[test]
fn issue_31_6_the_figures_of_several_processes_are_of_those_that_are_there_at_both_ends() {
    let at = Instant::now();
    let of = |cpu_ms: u64, count: f64, children_ms: u64| OfProcess {
        cpu: Duration::from_millis(cpu_ms),
        count: Some(count),
        minor_faults: cpu_ms,
        cpu_of_children: Duration::from_millis(children_ms),
        faults_of_children: children_ms,
        ..OfProcess::default()
    };
    let first = Reading {
        at,
        took: Duration::ZERO,
        count: None,
        of: [((1, 1), of(100, 10.0, 0)), ((2, 1), of(400, 90.0, 0)), ((3, 1), of(700, 5.0, 30))].into(),
    };
    // The first process has waited for the third, which has used 50 ms more in the period.
    let last = Reading {
        at: at + Duration::from_secs(1),
        took: Duration::ZERO,
        count: None,
        of: [((1, 1), of(150, 20.0, 780)), ((2, 1), of(500, 100.0, 0)), ((4, 1), of(9, 9.0, 0))].into(),
    };
    let of_work = |work| {
        let metric = Metric::CpuPerWork(Steady { work, variation: 0.1 });
        let run = run(&metric, &first, &last, None, None).unwrap();
        (run.cpu_per_second, run.metric, run.minor_faults)
    };
    assert_eq!(of_work(Work::SystemCalls), (Some(0.15), Some(20.0), 150));
    // Its bytes are also those of the child.
    assert_eq!(of_work(Work::Bytes), (Some(0.1), Some(10.0), 100));
}
