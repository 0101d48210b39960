// SPDX-License-Identifier: Apache-2.0
//! The screen: a title, the table or the map, and the keys.

use super::view::{Map, View, columns};
use hugelift_measure::processes::{Column, Row as Process};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// A screen with fewer lines than this has no line for a command.
const ROOM_FOR_A_COMMAND: u16 = 8;

/// Draws the screen, and sets the view's number of lines for rows.
pub fn draw(frame: &mut Frame, view: &mut View) {
    let command =
        view.suggestion().filter(|_| view.map.is_none() && frame.area().height >= ROOM_FOR_A_COMMAND);
    let heights = [1, u16::from(command.is_some()), 1].map(Constraint::Length);
    let [title, main, try_this, keys] =
        Layout::vertical([heights[0], Constraint::Min(0), heights[1], heights[2]]).areas(frame.area());
    if let Some(map) = &view.map {
        frame.render_widget(map_title(map, view.colour), title);
        let lines = map.lines.iter().skip(map.scroll).map(|line| Line::raw(line.as_str()));
        let aside = u16::try_from(map.aside).unwrap_or(u16::MAX);
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).scroll((0, aside)), main);
        frame.render_widget(help(&[("↑↓←→", "scroll"), ("q", "back"), ("^C", "quit")]), keys);
        view.page = usize::from(main.height);
        return;
    }
    frame.render_widget(table_title(view), title);
    view.page = usize::from(main.height.saturating_sub(1));
    table(frame, view, main);
    if let Some(command) = command {
        frame.render_widget(Line::from(vec![Span::styled("try: ", FAINT), Span::raw(command)]), try_this);
    }
    if view.typing || !view.filter.is_empty() {
        let cursor = if view.typing { "▏" } else { "  (Esc shows all)" };
        let line =
            Line::from(vec![Span::styled("/", BOLD), Span::raw(&view.filter), Span::styled(cursor, FAINT)]);
        frame.render_widget(line, keys);
    } else {
        let all = [
            ("↑↓", "select"),
            ("Enter", "map"),
            ("<>", "sort by"),
            ("r", "reverse"),
            ("/", "filter"),
            ("q", "quit"),
        ];
        frame.render_widget(help(&all), keys);
    }
}

fn table_title(view: &View) -> Line<'static> {
    let (shown, all) = (view.rows().len(), view.count());
    let processes =
        if shown == all { format!("{all} processes") } else { format!("{shown} of {all} processes") };
    Line::from(vec![
        Span::styled("hugelift top", BOLD),
        Span::raw(format!("  {processes}, every {} s", view.interval.as_secs_f64())),
        Span::styled(view.no_samples().map(|why| format!(", code in use: {why}")).unwrap_or_default(), FAINT),
        Span::styled(view.no_walks().map(|why| format!(", {why}")).unwrap_or_default(), FAINT),
    ])
}

/// Returns the style with this colour, if the screen has colours.
fn tinted(style: Style, colour: bool, tint: Color) -> Style {
    if colour { style.fg(tint) } else { style }
}

fn map_title(map: &Map, colour: bool) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("process {}", map.pid), BOLD)];
    if let Some(why) = &map.ended {
        let was = if map.lines.is_empty() { "" } else { "last known state: " };
        spans.push(Span::styled(format!("  {was}{why}"), tinted(Style::new(), colour, Color::Red)));
    }
    Line::from(spans)
}

fn help(keys: &[(&'static str, &'static str)]) -> Line<'static> {
    let spans = keys
        .iter()
        .flat_map(|(key, what)| [Span::styled(*key, BOLD), Span::styled(format!(" {what}   "), FAINT)]);
    Line::from(spans.collect::<Vec<_>>())
}

fn table(frame: &mut Frame, view: &mut View, area: Rect) {
    let columns = columns(view.rows(), usize::from(area.width));
    let widths = columns.iter().map(|column| match column {
        Column::Pid => Constraint::Length(7),
        Column::User => Constraint::Length(10),
        Column::Cpu | Column::Walks => Constraint::Length(7),
        Column::Text => Constraint::Length(9),
        Column::InUse => Constraint::Length(8),
        Column::BusyText | Column::Faults => Constraint::Length(10),
        Column::Huge => Constraint::Length(14),
        Column::Command => Constraint::Min(8),
    });
    let header = columns.iter().map(|column| {
        let mark = match (*column == view.column, view.reverse) {
            (false, _) => "",
            (true, false) => "▾",
            (true, true) => "▴",
        };
        let style = if mark.is_empty() { BOLD } else { tinted(BOLD, view.colour, Color::Cyan) };
        cell(*column, format!("{}{mark}", column.title()), style)
    });
    let rows = view.rows().iter().map(|process| {
        Row::new(
            columns
                .iter()
                .map(|column| cell(*column, column.cell(process), style(*column, process, view.colour))),
        )
    });
    let table = Table::new(rows, widths)
        .header(Row::new(header))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_offset(view.first).with_selected(view.selected());
    frame.render_stateful_widget(table, area, &mut state);
    view.first = state.offset();
}

fn cell(column: Column, text: String, style: Style) -> Cell<'static> {
    let text = Text::styled(text, style);
    Cell::from(if column.is_number() { text.right_aligned() } else { text })
}

fn style(column: Column, process: &Process, colour: bool) -> Style {
    match (column, &process.text) {
        (Column::Huge, Some(text)) if text.huge_bytes > 0 => tinted(Style::new(), colour, Color::Green),
        (Column::Huge, None) => FAINT,
        (Column::Text, _) if process.text_bytes.is_none() => FAINT,
        _ => Style::new(),
    }
}
