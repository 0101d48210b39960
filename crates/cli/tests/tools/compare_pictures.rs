// SPDX-License-Identifier: Apache-2.0
//! Tests of the picture of `hugelift compare --html`, in a browser.

use crate::common::browser::{Page, Scheme, VIEWS, browser};
use crate::compare::json;
use crate::skip;
use hugelift_measure::comparison::{Comparison, Run, Setting, Side};
use hugelift_measure::stopping::Reached;
use hugelift_report::html::compare::document;
use serde_json::Value;
use std::fs;

#[test]
fn a_browser_shows_the_picture() {
    if browser().is_none() {
        skip!("needs a browser (chromium)");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("compare.html");
    let words = ["--pairs", "12", "--variant", "thp", "--variant", "other=", "--html"];
    let result = json(&[&words[..], &[&file.display().to_string(), "--", "/bin/true"]].concat());
    let mut page = Page::blank();
    for view @ (_, scheme) in VIEWS {
        page.view(&file, view);
        assert_eq!(page.problems(), [""; 0], "{view:?}");
        page.check_layout();
        page.save("compare", view);
        let text = page.text();
        for words in ["hugelift compare: /bin/true", "12 pairs", "nothing to lift"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        // On a machine that others keep busy twelve pairs of it may show nothing.
        for name in ["thp", "other"] {
            let said = [" is slower: ", " is faster: ", ": no difference was seen"];
            assert!(said.iter().any(|said| text.contains(&format!("{name}{said}"))), "{name}: {text}");
        }
        let embedded = page.evaluate("JSON.parse(document.getElementById('comparison').textContent)");
        assert_eq!(embedded["variants"][1]["name"], result["variants"][1]["name"]);
        // JavaScript has 0.0 as a whole number, so the values are compared as f64.
        let walls = |all: &Value| -> Vec<f64> {
            let runs = all["sides"][2]["runs"].as_array().unwrap();
            runs.iter().map(|run| run["wall"].as_f64().unwrap()).collect()
        };
        assert_eq!(walls(&embedded), walls(&result));
        // A point for each pair, each of the two variants, and each of wall and CPU time.
        let points = page.evaluate("document.querySelectorAll('.points > *').length");
        let cpu =
            |run: &Value| ["user", "system", "helper"].iter().map(|f| run[f].as_f64().unwrap()).sum::<f64>();
        let runs = |side: usize| result["sides"][side]["runs"].as_array().unwrap();
        // A run that is too short for the CPU clock has no ratio of CPU times.
        let with_cpu = |side: usize| {
            runs(0).iter().zip(runs(side)).filter(|(a, b)| cpu(a) > 0.0 && cpu(b) > 0.0).count()
        };
        assert_eq!(points, 2 * 12 + with_cpu(1) + with_cpu(2));
        let hover = page.evaluate("document.querySelector('.points title').textContent");
        assert!(hover.as_str().unwrap().starts_with("pair 1: "), "{hover}");
        let shot = page.screenshot();
        let background = shot.background();
        assert_eq!(background.iter().all(|c| *c < 64), scheme == Scheme::Dark, "{background:?}");
        assert!(
            shot.colours() > 20 && (0.2..0.98).contains(&shot.share(background)),
            "{}",
            shot.share(background)
        );
    }
}

/// Returns the page of a comparison in which lifted runs took these times the time of bare ones.
fn page_of(name: &str, ratios: &[f64]) -> String {
    let run = |pair: usize, wall: f64| Run {
        pair,
        position: 1 + pair % 2,
        wall,
        user: wall / 2.0,
        system: wall / 4.0,
        ..Run::default()
    };
    let bare = |pair: usize| 1.0 + 0.01 * (pair % 7) as f64;
    let side = |name: &str, ratio: &dyn Fn(usize) -> f64| Side {
        name: name.into(),
        options: Some(vec!["--backing".into(), name.into()]),
        memory: None,
        peak_bytes: Some(9 << 20),
        liftable: Some(62 << 20),
        why_not: None,
        runs: (0..ratios.len()).map(|i| run(i + 1, bare(i) * ratio(i))).collect(),
    };
    let setting =
        Setting { host: "a CPU".into(), command: vec!["prog".into(), name.into()], ..Setting::default() };
    let sides = vec![side("bare", &|_| 1.0), side(name, &|i| ratios[i])];
    document(&Comparison::new(setting, Reached::Pairs, sides)).expect("a page")
}

/// Outliers, few and many pairs, ratios far from 1, and hostile names leave the picture readable.
#[test]
fn odd_comparisons_can_be_read() {
    if browser().is_none() {
        skip!("needs a browser (chromium)");
    }
    let dir = tempfile::tempdir().unwrap();
    let around = |ratio: f64, count: usize| -> Vec<f64> {
        (0..count).map(|i| ratio * (1.0 + 0.01 * ((i * 7 % 11) as f64 - 5.0))).collect()
    };
    let hostile = format!("<b>&\"'\u{202e}{}", "long".repeat(20));
    // What it is, the name of the variant, the ratios, and how many of them are beyond the axis.
    let cases = [
        ("outliers", "thp", [around(0.8, 24), vec![50.0, 0.01]].concat(), 2),
        ("name", hostile.as_str(), around(1.02, 12), 0),
        ("one", "thp", vec![0.7], 0),
        ("same", "thp", vec![0.5; 12], 0),
        ("many", "thp", [around(0.9, 300), around(40.0, 20), vec![0.01; 20]].concat(), 40),
        ("far", "thp", around(0.01, 30), 0),
    ];
    let file = |what: &str| dir.path().join(format!("{what}.html"));
    for (what, name, ratios, _) in &cases {
        fs::write(file(what), page_of(name, ratios)).unwrap();
    }
    let mut page = Page::blank();
    for view in VIEWS {
        page.view(&file("one"), view);
        for (what, _, ratios, beyond) in &cases {
            page.visit(&file(what));
            assert_eq!(page.problems(), [""; 0], "{what} {view:?}");
            page.check_layout();
            page.save(&format!("compare-{what}"), view);
            // Each pair is drawn in the picture of wall time and in that of CPU time.
            let drawn = |page: &mut Page, which: &str| {
                page.evaluate(&format!("document.querySelectorAll('.points {which}').length"))
            };
            assert_eq!(drawn(&mut page, ".beyond"), 2 * beyond, "{what}");
            assert_eq!(drawn(&mut page, ".pair"), 2 * ratios.len(), "{what}");
            assert_eq!(page.text().contains("a pair beyond the axis"), *beyond > 0, "{what}");
        }
        page.visit(&file("name"));
        assert!(page.text().contains(&hostile.replace('\u{202e}', "\u{fffd}")), "{}", page.text());
        assert_eq!(page.evaluate("document.querySelectorAll('b').length"), 0);
    }
}
