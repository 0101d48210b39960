// SPDX-License-Identifier: Apache-2.0
//! The state of the screen, and what keys do to it, without a terminal and without processes.

use super::suggestion::suggestion;
use crate::failure::Failure;
use hugelift_measure::processes::{Column, Reading, Row, matches, rows, sort};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

/// How many columns a key moves the map sideways.
const STEP_ASIDE: usize = 16;

/// What a key requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Draw again.
    Draw,
    /// Show the map of this process.
    Open(u32),
    /// Stop, as ctrl-Z does.
    Suspend,
    /// End.
    Quit,
}

/// The map of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Its id.
    pub pid: u32,
    /// The report as text, or why there is none.
    pub lines: Vec<String>,
    /// Why it could not be read again; the lines are then the last known ones.
    pub ended: Option<String>,
    /// First line on the screen.
    pub scroll: usize,
    /// First column on the screen.
    pub aside: usize,
}

impl Map {
    /// Makes the map of what was read of `pid`.
    pub fn new(pid: u32, read: Result<String, Failure>) -> Map {
        let (text, ended) = match read {
            Ok(text) => (text, None),
            Err(why) => (String::new(), Some(why.message)),
        };
        Map { pid, lines: text.lines().map(str::to_string).collect(), ended, scroll: 0, aside: 0 }
    }

    /// Takes a new reading. If that failed, the last lines stay.
    pub fn update(&mut self, read: Result<String, Failure>) {
        let new = Map::new(self.pid, read);
        if new.ended.is_none() {
            self.lines = new.lines;
        }
        self.ended = new.ended;
    }
}

/// The state of the screen.
#[derive(Debug)]
pub struct View {
    /// Seconds between readings, for the title.
    pub interval: Duration,
    /// The column by which the rows are sorted.
    pub column: Column,
    /// Sorted in reverse.
    pub reverse: bool,
    /// The screen has colours.
    pub colour: bool,
    /// Only rows that contain this word are shown.
    pub filter: String,
    /// The user is typing the word.
    pub typing: bool,
    /// The map that is shown instead of the table.
    pub map: Option<Map>,
    /// Lines for rows or the map, when last drawn.
    pub page: usize,
    /// First row on the screen, when last drawn.
    pub first: usize,
    before: Option<Reading>,
    all: Vec<Row>,
    /// Those that are shown, in order.
    shown: Vec<Row>,
    selected: Option<u32>,
    /// The user has chosen a row: the selection follows the process. Until then it is the first row.
    has_chosen: bool,
    /// The user is root.
    pub is_root: bool,
}

impl View {
    /// Makes an empty view, sorted by busy text.
    pub fn new(interval: Duration, colour: bool) -> View {
        View {
            interval,
            column: Column::BusyText,
            reverse: false,
            colour,
            filter: String::new(),
            typing: false,
            map: None,
            page: 1,
            first: 0,
            before: None,
            all: vec![],
            shown: vec![],
            selected: None,
            has_chosen: false,
            is_root: false,
        }
    }

    /// Takes a new reading. The first one gives no rates.
    pub fn take(&mut self, reading: Reading) {
        self.all = rows(self.before.as_ref().unwrap_or(&reading), &reading);
        self.before = Some(reading);
        self.arrange();
    }

    /// Returns the number of all processes, shown or not.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns why page walks are not counted.
    pub fn no_walks(&self) -> Option<&str> {
        self.before.as_ref()?.no_walks.as_deref()
    }

    /// Returns why the code in use is not sampled.
    pub fn no_samples(&self) -> Option<&str> {
        self.before.as_ref()?.no_samples.as_deref()
    }

    /// Returns the rows that the filter lets through, in order.
    pub fn rows(&self) -> &[Row] {
        &self.shown
    }

    /// Returns the processes whose rows are on the screen, when last drawn.
    pub fn on_screen(&self) -> Vec<u32> {
        self.shown.iter().skip(self.first).take(self.page).map(|row| row.pid).collect()
    }

    /// Returns the index of the selected row.
    pub fn selected(&self) -> Option<usize> {
        self.shown.iter().position(|row| Some(row.pid) == self.selected)
    }

    /// Returns the command that fits the selected process.
    pub fn suggestion(&self) -> Option<String> {
        Some(suggestion(self.shown.get(self.selected()?)?, self.is_root))
    }

    fn arrange(&mut self) {
        // If the selected process has ended, the row that takes its place is selected.
        let place = self.selected().filter(|_| self.has_chosen).unwrap_or(0);
        self.shown = self.all.iter().filter(|row| matches(row, &self.filter)).cloned().collect();
        sort(&mut self.shown, self.column, self.reverse);
        if self.selected().is_none() || !self.has_chosen {
            self.select(place);
        }
    }

    /// Selects the row at a place, for the user.
    fn choose(&mut self, place: usize) {
        self.has_chosen = true;
        self.select(place);
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.shown.len().saturating_sub(1));
        self.selected = self.shown.get(place).map(|row| row.pid);
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::Draw,
            };
        }
        if self.typing {
            self.type_key(key.code);
            Action::Draw
        } else if self.map.is_some() {
            self.map_key(key.code)
        } else {
            self.table_key(key.code)
        }
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.arrange();
    }

    fn map_key(&mut self, code: KeyCode) -> Action {
        let page = self.page.max(1);
        let Some(map) = &mut self.map else { return Action::Draw };
        let last = map.lines.len().saturating_sub(page);
        // Scrolling sideways ends at the longest line.
        let widest = map.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        map.aside = match code {
            KeyCode::Left | KeyCode::Char('h') => map.aside.saturating_sub(STEP_ASIDE),
            KeyCode::Right | KeyCode::Char('l') => {
                (map.aside + STEP_ASIDE).min(widest.saturating_sub(STEP_ASIDE))
            }
            _ => map.aside,
        };
        map.scroll = match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => {
                self.map = None;
                return Action::Draw;
            }
            KeyCode::Up | KeyCode::Char('k') => map.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => map.scroll + 1,
            KeyCode::PageUp => map.scroll.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => map.scroll + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => map.scroll,
        }
        .min(last);
        Action::Draw
    }

    fn table_key(&mut self, code: KeyCode) -> Action {
        let place = self.selected().unwrap_or(0);
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Enter => return self.selected.map_or(Action::Draw, Action::Open),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Left | KeyCode::Char('<') => self.sort_by_next(Column::ALL.len() - 1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by_next(1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Up | KeyCode::Char('k') => self.choose(place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(place + 1),
            KeyCode::PageUp => self.choose(place.saturating_sub(self.page)),
            KeyCode::PageDown => self.choose(place + self.page),
            KeyCode::Home | KeyCode::Char('g') => self.choose(0),
            KeyCode::End | KeyCode::Char('G') => self.choose(usize::MAX),
            _ => return Action::Draw,
        }
        self.arrange();
        Action::Draw
    }

    fn sort_by_next(&mut self, steps: usize) {
        let at = Column::ALL.iter().position(|c| *c == self.column).unwrap_or(0);
        self.column = Column::ALL[(at + steps) % Column::ALL.len()];
        self.reverse = false;
    }
}

/// Returns the columns for a table of this width. A narrow table lacks the least important ones.
pub fn columns(rows: &[Row], width: usize) -> Vec<Column> {
    let counters = rows.iter().any(|row| row.walk_share.is_some());
    Column::ALL
        .into_iter()
        .filter(|column| match column {
            Column::Walks => counters,
            Column::User => width >= 84,
            Column::InUse => width >= 78,
            Column::Faults => width >= 70,
            Column::Cpu | Column::Text => width >= 56,
            _ => true,
        })
        .collect()
}

#[cfg(test)]
mod tests;
