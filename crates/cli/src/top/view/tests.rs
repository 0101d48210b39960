// SPDX-License-Identifier: Apache-2.0
//! The screen as it is drawn, and what keys make of it.

use super::*;
use crate::top::draw::draw;
use hugelift_core::policy::Backing;
use hugelift_core::proc_stat::Stat;
use hugelift_measure::processes::text_coverage::TextCoverage;
use hugelift_measure::processes::{Sample, TextState};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

fn sample(pid: u32, cpu: u64, text: TextState) -> Sample {
    let stat = Stat {
        pid,
        comm: "x".into(),
        state: 'S',
        start: 1,
        cpu,
        minor_faults: 10 * u64::from(pid),
        virtual_bytes: 1,
        ..Stat::default()
    };
    let command = format!("program{pid} --option");
    Sample {
        stat,
        user: "root".into(),
        command,
        executable_text: 1 << 20,
        text,
        walk_share: None,
        code_in_use: None,
    }
}

/// Three processes of 10, 20 and 30 % CPU time: known, unreadable, not read.
fn view() -> View {
    let mut view = View::new(Duration::from_secs(2), true);
    let text = TextCoverage::new(10 << 20, [(Backing::Thp, 8 << 20)]);
    let reading = |at, times: u64| Reading {
        at: Duration::from_secs(at),
        ticks: 100,
        no_walks: Some("no PMU".into()),
        no_samples: None,
        samples: vec![
            sample(1, 10 * times, TextState::Known(text.clone())),
            sample(2, 20 * times, TextState::Unreadable),
            sample(3, 30 * times, TextState::Size(2 << 20)),
        ],
    };
    view.take(reading(10, 0));
    view.take(reading(11, 1));
    view
}

fn press(view: &mut View, keys: &[KeyCode]) -> Action {
    keys.iter().map(|&code| view.key(KeyEvent::new(code, KeyModifiers::NONE))).last().unwrap_or(Action::Draw)
}

fn pids(view: &View) -> Vec<u32> {
    view.rows().iter().map(|row| row.pid).collect()
}

fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line =
        |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string();
    (0..height).map(line).collect()
}

#[test]
fn the_table() {
    let mut view = view();
    let lines = drawn(&mut view, 100, 6);
    let want = [
        "hugelift top  3 processes, every 2 s, no PMU",
        "    PID USER          CPU%      TEXT  TEXT×CPU▾           HUGE   IN USE   FAULTS/s COMMAND",
        "      1 root          10.0     10 MB        1.0        80% thp        -          0 program1 --option",
        "      3 root          30.0      2 MB        0.6              -        -          0 program3 --option",
        "      2 root          20.0     ≥1 MB        0.2              ?        -          0 program2 --option",
        "↑↓ select   Enter map   <> sort by   r reverse   / filter   q quit",
    ];
    assert_eq!(lines, want);
    assert_eq!((view.page, view.on_screen()), (3, vec![1, 3, 2]));
}

#[test]
fn a_command_for_the_selected_process() {
    let mut view = view();
    let lines = drawn(&mut view, 100, 8);
    assert!(lines[6].starts_with("try: hugelift inspect 1   (its code is mostly"), "{lines:?}");
    press(&mut view, &[KeyCode::End]);
    let lines = drawn(&mut view, 100, 8);
    assert!(lines[6].starts_with("try: sudo hugelift inspect 2 "), "{lines:?}");
}

#[test]
fn without_colours_no_cell_has_one() {
    let colours = |colour: bool| {
        let mut view = View { colour, ..view() };
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &mut view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        buffer.content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert!(colours(true) > 0);
    assert_eq!(colours(false), 0);
}

#[test]
fn walks_where_they_are_counted() {
    let mut view = view();
    let mut next = view.before.clone().unwrap();
    next.at += Duration::from_secs(1);
    (next.no_walks, next.samples[1].walk_share) = (None, Some(0.043));
    view.take(next);
    view.column = Column::Walks;
    view.arrange();
    let lines = drawn(&mut view, 110, 6);
    assert_eq!(lines[0], "hugelift top  3 processes, every 2 s");
    assert!(lines[1].contains("WALK%▾ COMMAND"), "{lines:?}");
    assert!(lines[2].contains("    4.3 program2"), "{lines:?}");
    assert!(lines[3].contains("      - program"), "{lines:?}");
}

#[test]
fn issue_31_3_the_code_in_use_where_it_is_sampled() {
    let mut view = view();
    let mut next = view.before.clone().unwrap();
    next.at += Duration::from_secs(1);
    next.samples[1].code_in_use = Some(1600 << 10);
    view.take(next.clone());
    view.column = Column::InUse;
    view.arrange();
    let lines = drawn(&mut view, 110, 6);
    assert!(lines[1].contains(" IN USE▾ "), "{lines:?}");
    assert!(lines[2].contains("  1.6 MB ") && lines[2].contains("  0 program2 "), "{lines:?}");
    assert!(lines[3].contains("       - "), "{lines:?}");
    assert!(!drawn(&mut view, 70, 6)[1].contains("IN USE"));
    next.at += Duration::from_secs(1);
    next.no_samples = Some("kernel.perf_event_paranoid is 4".into());
    view.take(next);
    assert!(drawn(&mut view, 110, 6)[0].contains(", code in use: kernel.perf_event_paranoid is 4"));
}

#[test]
fn any_size_can_be_drawn() {
    let mut view = view();
    view.filter = "program".into();
    for (width, height) in [(1, 1), (3, 2), (20, 3), (60, 4), (500, 100)] {
        drawn(&mut view, width, height);
        view.map = Some(Map::new(1, Ok("one\ntwo".into())));
        drawn(&mut view, width, height);
        view.map = None;
    }
    // The selected row stays visible.
    view.filter.clear();
    press(&mut view, &[KeyCode::End]);
    let lines = drawn(&mut view, 60, 4);
    assert!(lines[2].contains("program2"), "{lines:?}");
    assert_eq!(view.on_screen(), [2]);
}

#[test]
fn keys_sort_select_and_filter() {
    let mut view = view();
    assert_eq!((pids(&view), view.selected()), (vec![1, 3, 2], Some(0)));
    // The first row is selected, until the user chooses one. Then the selection stays with the process.
    press(&mut view, &[KeyCode::Left, KeyCode::Left]);
    assert_eq!((pids(&view), view.selected()), (vec![3, 2, 1], Some(0)));
    press(&mut view, &[KeyCode::Right, KeyCode::Right, KeyCode::Home, KeyCode::Left, KeyCode::Left]);
    assert_eq!((view.column, pids(&view), view.selected()), (Column::Cpu, vec![3, 2, 1], Some(2)));
    press(&mut view, &[KeyCode::Char('r')]);
    assert_eq!((pids(&view), view.selected()), (vec![1, 2, 3], Some(0)));
    assert_eq!(press(&mut view, &[KeyCode::Down, KeyCode::Enter]), Action::Open(2));
    press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('M'), KeyCode::Char('3'), KeyCode::Enter]);
    assert_eq!((pids(&view), view.selected(), view.typing), (vec![3], Some(0), false));
    assert!(drawn(&mut view, 80, 5)[0].contains("1 of 3 processes"));
    press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('q')]);
    assert_eq!((view.filter.as_str(), pids(&view).len()), ("M3q", 0));
    assert_eq!(press(&mut view, &[KeyCode::Enter, KeyCode::Enter]), Action::Draw, "there is no row to open");
    press(&mut view, &[KeyCode::Esc]);
    assert_eq!((pids(&view).len(), view.filter.as_str()), (3, ""));
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Action::Quit);
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    view.typing = true;
    assert_eq!((view.key(control('c')), view.key(control('z'))), (Action::Quit, Action::Suspend));
}

#[test]
fn the_map_scrolls_and_outlives_its_process() {
    let mut view = view();
    let lines: String = (0..10).map(|i| format!("line {i}\n")).collect();
    view.map = Some(Map::new(7, Ok(lines)));
    assert_eq!(drawn(&mut view, 40, 5)[..2], ["process 7", "line 0"]);
    press(&mut view, &[KeyCode::Down, KeyCode::PageDown]);
    assert_eq!(drawn(&mut view, 40, 5)[1], "line 4");
    press(&mut view, &[KeyCode::Right]);
    assert_eq!(drawn(&mut view, 40, 5)[1], "line 4", "all of it is visible");
    press(&mut view, &[KeyCode::End, KeyCode::Down]);
    assert_eq!(drawn(&mut view, 40, 5)[3], "line 9");
    if let Some(map) = &mut view.map {
        map.update(Err("no such process".into()));
    }
    let shown = drawn(&mut view, 60, 5);
    assert!(shown[0].contains("last known state: no such process") && shown[3] == "line 9", "{shown:?}");
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Action::Draw);
    assert_eq!(view.map, None);
}

#[test]
fn the_row_behind_an_ended_process_is_selected() {
    let mut view = view();
    press(&mut view, &[KeyCode::Down]);
    let mut next = view.before.clone().unwrap();
    next.at += Duration::from_secs(1);
    next.samples.retain(|s| s.stat.pid != 3);
    view.take(next);
    assert_eq!((pids(&view), view.selected()), (vec![1, 2], Some(1)));
}
