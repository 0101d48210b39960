// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::html::geometry;
use hugelift_measure::comparison::{Run, Setting};
use hugelift_measure::stopping::Reached;
use proptest::prelude::*;

fn run(pair: usize, wall: f64) -> Run {
    Run {
        pair,
        position: 1 + pair % 2,
        wall,
        user: wall / 2.0,
        system: wall / 4.0,
        minor_faults: 100,
        ..Run::default()
    }
}

fn side(name: &str, walls: &[f64]) -> Side {
    Side {
        name: name.into(),
        options: None,
        memory: None,
        peak_bytes: Some(9 << 20),
        liftable: Some(62 << 20),
        why_not: None,
        runs: walls.iter().enumerate().map(|(i, &wall)| run(i + 1, wall)).collect(),
    }
}

/// Returns the page of a program that took these times bare, and these times the ratios as `name`.
fn compared(name: &str, bare: &[f64], ratios: &[f64]) -> String {
    let setting =
        Setting { host: "a CPU".into(), command: vec!["prog".into(), name.into()], ..Setting::default() };
    let lifted: Vec<f64> = bare.iter().zip(ratios).map(|(bare, ratio)| bare * ratio).collect();
    let sides = vec![side("bare", bare), side(name, &lifted)];
    document(&Comparison::new(setting, Reached::Pairs, sides)).unwrap()
}

/// Returns a page with these ratios; bare takes about a second.
fn page_of(ratios: &[f64]) -> String {
    let bare: Vec<f64> = (0..ratios.len()).map(|i| 1.0 + 0.02 * (i % 7) as f64).collect();
    compared("thp", &bare, ratios)
}

fn around(ratio: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| ratio * (1.0 + 0.01 * ((i * 7 % 11) as f64 - 5.0))).collect()
}

/// Returns the height of each point of the first picture that is on its axis.
fn heights(page: &str) -> Vec<f64> {
    let (_, _, elements) = geometry::pictures(page).swap_remove(0);
    let points = elements.iter().filter(|e| e.name == "circle" && e.get("class") == Some("pair"));
    points.map(|e| e.number("cy")).collect()
}

fn length(heights: &[f64]) -> f64 {
    let (low, high) = heights.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    high - low
}

#[test]
fn the_axis_of_ratios_is_logarithmic() {
    for ratios in [around(0.5, 20), vec![0.1, 0.3, 1.0, 4.0], vec![0.01, 50.0], around(1.0, 3)] {
        let page = page_of(&ratios);
        for (_, _, elements) in geometry::pictures(&page).iter().step_by(2) {
            let ticks = geometry::vertical_ticks(elements);
            assert!(ticks.len() >= 2, "{ratios:?}: {ticks:?}");
            assert!(ticks.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1), "{ratios:?}: {ticks:?}");
            // The same ratio of two values is the same distance.
            let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
            let scale = (last.1 - first.1) / (last.0 / first.0).ln();
            for tick in &ticks {
                let expected = first.1 + scale * (tick.0 / first.0).ln();
                assert!((tick.1 - expected).abs() < 0.2, "{ratios:?}: {ticks:?}");
            }
        }
    }
}

#[test]
fn an_outlier_is_a_mark_at_the_end_of_the_axis() {
    let mut ratios = around(0.8, 24);
    let usual = length(&heights(&page_of(&ratios)));
    ratios.extend([50.0, 0.01]);
    let page = page_of(&ratios);
    geometry::check(&page);
    let with = heights(&page);
    assert_eq!(with.len(), 24);
    assert!(length(&with) > usual * 0.5, "{usual}: {with:?}");
    assert!(page.contains("▲ 1 above: 50.0  ▼ 1 below: 0.0100</text>"), "{page}");
    assert!(page.contains("a pair beyond the axis") && page.contains("pair 25: 50.0000\n"), "{page}");
    // The axis of the runs is not flattened either.
    assert!(page.contains("  ◀ 10.") && page.contains("  ▶ 5"), "{page}");
    assert!(!page_of(&around(0.8, 24)).contains("beyond the axis"));
}

#[test]
fn the_figures_are_written_at_their_heights() {
    let page = page_of(&around(0.5, 30));
    let (_, _, elements) = geometry::pictures(&page).swap_remove(0);
    let labels: Vec<_> = elements
        .iter()
        .filter(|e| e.get("class").is_some_and(|class| class.starts_with("figure")))
        .map(|e| (e.text.parse::<f64>().unwrap(), e.number("y")))
        .collect();
    assert_eq!(labels.len(), 3, "{labels:?}");
    assert!(labels.is_sorted_by(|a, b| a.0 > b.0 && a.1 < b.1), "{labels:?}");
    for words in [
        "a pair; bars: how many pairs",
        "estimate 0.5",
        "95 % interval 0.",
        "1: as bare; below it less wall time",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn hostile_names_are_text() {
    let name = "</text><script>alert(1)</script>\"'&\u{202e}\u{0}";
    let page = compared(name, &[1.0; 12], &around(0.9, 12));
    assert!(!page.contains("<script>") && !page.contains("alert(1)</script>"), "{page}");
    assert!(!page.contains('\u{202e}') && !page.contains('\0'), "{page}");
    geometry::check(&page);
    // One that is cut.
    geometry::check(&compared(&name.repeat(30), &[1.0; 12], &around(0.9, 12)));
}

#[test]
fn few_and_many_pairs() {
    for ratios in [
        vec![0.7],
        vec![1.0],
        vec![0.01],
        vec![50.0],
        vec![0.01, 50.0],
        vec![1.0; 12],
        vec![0.01; 400],
        vec![50.0; 400],
        around(0.9, 400),
        [around(0.9, 400), vec![50.0; 50], vec![0.01; 50]].concat(),
        vec![1e-12, 1e12, 1.0, 1.0, 1.0, 1.0],
    ] {
        let page = page_of(&ratios);
        geometry::check(&page);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        assert_eq!(geometry::pictures(&page).len(), 4, "{ratios:?}");
        let points = page.matches("<title>pair ").count();
        assert_eq!(points, 2 * ratios.len(), "{ratios:?}");
    }
    // Without any time there is no ratio, and still a page.
    geometry::check(&compared("thp", &[0.0; 6], &[1.0; 6]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_comparison_stays_in_its_pictures(
        runs in prop::collection::vec((1e-7..1e5f64, -7.0..7.0f64), 1..120),
        close in any::<bool>(),
        name in ".{1,40}",
    ) {
        let (bare, logs): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
        let ratios: Vec<f64> = logs.iter().map(|log| if close { (log / 100.0).exp() } else { log.exp() }).collect();
        let name = if name == "bare" { "other".to_string() } else { name };
        let page = compared(&name, &bare, &ratios);
        geometry::check(&page);
        for (_, _, elements) in geometry::pictures(&page).iter().step_by(2) {
            let ticks = geometry::vertical_ticks(elements);
            prop_assert!(ticks.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1), "{:?}", ticks);
        }
    }
}
