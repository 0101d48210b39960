// SPDX-License-Identifier: Apache-2.0
use crate::comparison::{remarks, text};
use crate::html::compare::document;
use hugelift_measure::comparison::*;
use hugelift_measure::stopping::Reached;

fn setting() -> Setting {
    Setting { host: "a CPU".into(), command: vec!["prog".into(), "arg".into()], ..Setting::default() }
}

fn run(pair: usize, wall: f64) -> Run {
    Run {
        pair,
        position: 1 + pair % 2,
        wall,
        user: wall / 2.0,
        system: wall / 4.0,
        helper: wall / 8.0,
        minor_faults: 100,
        ..Run::default()
    }
}

fn side(name: &str, walls: &[f64], huge: u64) -> Side {
    let text = Coverage { whole: 64 << 20, huge };
    Side {
        name: name.into(),
        options: None,
        memory: Some(Memory { text, thp: huge, ..Memory::default() }),
        peak_bytes: Some(9 << 20),
        liftable: Some(62 << 20),
        why_not: None,
        runs: walls.iter().enumerate().map(|(i, &wall)| run(i + 1, wall)).collect(),
    }
}

const BARE: [f64; 8] = [1.0, 1.1, 1.2, 1.0, 0.9, 1.0, 1.3, 1.1];

fn scaled(by: f64) -> Vec<f64> {
    BARE.iter().enumerate().map(|(i, v)| v * by * (1.0 + 0.01 * (i as f64 - 3.5))).collect()
}

fn compared(setting: Setting, other: Side) -> Comparison {
    Comparison::new(setting, Reached::Pairs, vec![side("bare", &BARE, 0), other])
}

#[test]
fn faster_needs_huge_pages() {
    let faster = compared(setting(), side("lifted", &scaled(0.8), 62 << 20));
    assert!(matches!(faster.variants[0].finding, Finding::Faster { from, to } if 0.1 < from && to < 0.3));
    let coloured = text(&faster, true);
    assert!(coloured.lines().last().is_some_and(|l| l.starts_with("\x1b[1;32m")), "{coloured:?}");
    let shown = text(&faster, false);
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(shown.contains("lifted is faster: ") && shown.contains("% less wall time"), "{shown}");
    assert!(shown.contains("62 MB of 64 MB"), "{shown}");

    let refused = compared(setting(), side("lifted", &scaled(0.8), 0));
    assert!(matches!(refused.variants[0].finding, Finding::NotHuge { .. }));
    assert!(text(&refused, false).contains("claims no gain"), "{}", text(&refused, false));
    let mut blind = side("lifted", &scaled(0.8), 0);
    blind.memory = None;
    assert!(matches!(compared(setting(), blind).variants[0].finding, Finding::NotHuge { .. }));
}

#[test]
fn slower_alike_and_too_few() {
    let slower = compared(setting(), side("lifted", &scaled(1.5), 0));
    assert!(matches!(slower.variants[0].finding, Finding::Slower { from, to } if 0.4 < from && to < 0.6));
    assert!(text(&slower, false).contains("% more wall time"), "{}", text(&slower, false));

    let alike = compared(setting(), side("lifted", &scaled(1.0), 62 << 20));
    let Finding::NoDifference { smallest_seen } = alike.variants[0].finding else { panic!("{alike:?}") };
    assert!((0.005..0.05).contains(&smallest_seen), "{smallest_seen}");
    let shown = text(&alike, false);
    assert!(shown.contains("no difference was seen. There may be one: with a confidence of 95 %"), "{shown}");
    assert!(shown.contains(" % less and ") && shown.contains(" % more wall time than bare"), "{shown}");

    let few = compared(setting(), side("lifted", &scaled(0.5)[..5], 62 << 20));
    assert_eq!(few.variants[0].finding, Finding::TooFew);
    assert!(text(&few, false).contains("too few pairs"), "{}", text(&few, false));
}

#[test]
fn more_of_a_metric_is_faster() {
    let server = Setting {
        load: Some("load".into()),
        figure: Figure::Metric,
        higher_is_better: true,
        counts_transactions: true,
        ..setting()
    };
    let with_metric = |name: &str, by: f64| {
        let mut side = side(name, &BARE, 62 << 20);
        for (run, value) in side.runs.iter_mut().zip(scaled(by)) {
            run.metric = Some(1000.0 * value);
            run.server_cpu = Some(1e-5 / value);
        }
        side
    };
    let sides = vec![with_metric("bare", 1.0), with_metric("lifted", 1.2)];
    let c = Comparison::new(server, Reached::Width, sides);
    assert!(matches!(c.variants[0].finding, Finding::Faster { from, to } if from <= 0.2 && 0.199 < to));
    assert!(text(&c, false).contains("% more metric"), "{}", text(&c, false));
    assert!(
        remarks(&c)[0].contains("bare program was partly huge itself: 62 MB of text"),
        "{:?}",
        remarks(&c)
    );
    let ratios: Vec<f64> = c.variants[0].ratios.iter().map(|r| r.point).collect();
    assert!((ratios[0] - 1.2).abs() < 1e-9 && (ratios[1] - 1.0 / 1.2).abs() < 1e-9, "{ratios:?}");
}

#[test]
fn nothing_to_lift_is_reported() {
    let mut tiny = side("lifted", &scaled(1.3), 0);
    tiny.liftable = Some(0);
    let c = compared(Setting { bare_4k: true, ..setting() }, tiny);
    assert!(c.variants[0].nothing_to_lift);
    let shown = text(&c, false);
    assert!(shown.contains("nothing to lift") && shown.contains("is slower"), "{shown}");
    assert!(shown.contains("only 4 kB pages"), "{shown}");
}

#[test]
fn a_gain_by_writable_memory_alone_is_a_gain() {
    let writable = |name: &str, walls: &[f64], bytes: u64| Side {
        liftable: Some(0),
        memory: Some(Memory { writable_huge: bytes, ..Memory::default() }),
        ..side(name, walls, 0)
    };
    let compared = |bare: u64, all: u64| {
        let sides = vec![writable("bare", &BARE, bare), writable("all", &scaled(0.8), all)];
        Comparison::new(setting(), Reached::Pairs, sides)
    };
    let faster = compared(2 << 20, 24 << 20);
    assert!(matches!(faster.variants[0].finding, Finding::Faster { .. }), "{faster:?}");
    let shown = text(&faster, false);
    assert!(shown.contains("all: only 22 MB of writable memory were made huge: no text or"), "{shown}");
    assert!(!shown.contains("nothing to lift"), "{shown}");
    // The kernel gives both sides as much.
    let alike = compared(24 << 20, 24 << 20);
    assert!(matches!(alike.variants[0].finding, Finding::NotHuge { .. }), "{alike:?}");
    assert!(text(&alike, false).contains("all: there is nothing to lift: "), "{}", text(&alike, false));
}

#[test]
fn where_nothing_was_measured_there_are_no_figures() {
    let bare = Side { runs: Vec::new(), memory: None, ..side("bare", &[], 0) };
    let why_not = Some("it is small".to_string());
    let tiny = Side { liftable: Some(0), why_not, memory: None, ..side("lifted", &[], 0) };
    let c = Comparison::new(setting(), Reached::NothingToLift, vec![bare, tiny]);
    let shown = text(&c, false);
    assert!(
        shown.contains("lifted: there is nothing to lift in ") && shown.contains(": it is small."),
        "{shown}"
    );
    assert!(shown.contains("--variant all='--eager --parts all'"), "{shown}");
    assert!(shown.contains("hugelift inspect "), "{shown}");
    assert!(
        !shown.contains("medians") && !shown.contains("slower") && !shown.contains("ended too soon"),
        "{shown}"
    );
    let json: serde_json::Value = serde_json::to_value(&c).unwrap();
    assert_eq!(
        (&json["variants"][0]["verdict"], &json["reached"]),
        (&"nothing-to-lift".into(), &"nothing-to-lift".into())
    );
    assert!(document(&c).unwrap().contains("there is nothing to lift"));
}

#[test]
fn json_holds_every_run_and_the_verdict() {
    let c = compared(setting(), side("lifted", &scaled(0.8), 62 << 20));
    let json: serde_json::Value = serde_json::to_value(&c).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["figure"], "wall");
    assert_eq!(json["reached"], "pairs");
    assert_eq!(json["variants"][0]["verdict"], "faster");
    assert_eq!(json["variants"][0]["ratios"][1]["figure"], "cpu");
    assert_eq!(json["sides"][1]["runs"].as_array().unwrap().len(), 8);
    assert_eq!(json["sides"][0]["runs"][4]["wall"], 0.9);
}

#[test]
fn cpu_time_has_user_system_and_helper() {
    assert_eq!(Figure::Cpu.of(&run(1, 8.0)), Some(7.0));
}

#[test]
fn the_picture_shows_every_pair_and_holds_the_data() {
    let c = compared(setting(), side("<lifted>", &scaled(0.8), 62 << 20));
    let page = document(&c).unwrap();
    // Wall and CPU time.
    assert_eq!(page.matches("<title>pair ").count(), 2 * BARE.len());
    assert_eq!(page.matches("<circle class=\"lifted\"").count(), 2 * BARE.len());
    assert_eq!(page.matches("<title>95 % interval: ").count(), 2);
    assert!(page.contains("pair 8: ") && page.contains("ran first") && page.contains("&lt;lifted&gt;"));
    assert!(!page.contains("<lifted>"), "names are escaped");
    let data = page.split_once("id=\"comparison\">").unwrap().1.split_once("</script>").unwrap().0;
    let text = serde_json::to_string(&c).unwrap();
    assert_eq!(data.trim_end().replace("\\u003c", "<").replace("\\u003e", ">"), text);
    // A comparison without figures is a page too.
    let few = compared(setting(), side("lifted", &[], 0));
    assert!(document(&few).unwrap().contains("too few pairs"));
}
