// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --watch`: stays, and lifts processes when that is worth its cost.

use super::row::{Row, times};
use super::select::Selection;
use super::stdin::Lines;
use crate::failure::{Exit, Failure};
use crate::output;
use hugelift_core::heat::follow::Limits;
use hugelift_core::printable::Untrusted;
use hugelift_core::report::VERSION;
use hugelift_lift::attach::{AttachOptions, Change, Name};
use hugelift_lift::watch::{Event, Find, More, WatchOptions, Watched, watch};
use hugelift_linux::held_signals::is_ignored;
use hugelift_linux::io::console::{self, say};
use hugelift_service::signals::{notify, signals};
use nix::sys::signal::Signal;
use sd_notify::NotifyState;
use serde::Serialize;
use std::cell::RefCell;
use std::os::fd::AsFd as _;
use std::rc::Rc;

/// How it is watched, and what is shown.
pub(super) struct WatchHow {
    pub(super) attach: AttachOptions,
    pub(super) all_children: bool,
    pub(super) eager: bool,
    pub(super) hot: Option<Limits>,
    /// Further processes are named on standard input.
    pub(super) stdin: bool,
    pub(super) shown: Shown,
}

/// What is shown of each process.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) json: bool,
    pub(super) verbose: bool,
}

/// One line of the JSON output.
#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    #[serde(flatten)]
    row: Row<'a>,
}

/// Watches the processes until SIGINT, SIGTERM or SIGHUP, or until all that were named by their ids have ended.
/// A signal is handled between two lifts, and what is lifted stays.
///
/// # Errors
/// None of the processes can be watched; standard output cannot be written.
pub(super) fn run(selection: Selection, how: WatchHow) -> Result<Exit, Failure> {
    let WatchHow { attach, all_children, eager, hot, stdin, shown } = how;
    let mut ending = vec![Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    ending.retain(|signal| !is_ignored(*signal));
    let signals = signals(&ending)?;
    let Selection { pids, choices } = selection;
    let what: Vec<String> = choices.iter().map(ToString::to_string).collect();
    let find = (!choices.is_empty()).then(|| -> Find {
        Box::new(move |candidates| choices.iter().flat_map(|choice| choice.find(candidates)).collect())
    });
    let more = match stdin {
        false => None,
        true => {
            let mut lines = Lines::of_stdin().map_err(|e| format!("--stdin: {e}"))?;
            Some(Box::new(move || lines.read()) as More)
        }
    };
    let failed: Rc<RefCell<Option<Failure>>> = Rc::default();
    let failure = Rc::clone(&failed);
    let tell = move |event: Event<'_>| match show(&event, shown) {
        Ok(()) => true,
        Err(why) => {
            failure.replace(Some(why));
            false
        }
    };
    let ready = move |count: usize| {
        if count == 0 && !what.is_empty() {
            say(&format!("no process of {} yet: hugelift waits for one", what.join(", ")));
        }
        notify(&[NotifyState::Ready]);
    };
    let options = WatchOptions { pids, find, more, all_children, eager, hot, attach };
    let watched = watch(options, signals.as_fd(), tell, ready)?;
    notify(&[NotifyState::Stopping]);
    if let Some(failure) = failed.take() {
        return Err(failure);
    }
    match watched {
        Watched::Nobody => Ok(Exit(crate::FAILED)),
        Watched::Unheard => {
            Err("standard output cannot be written, so the watch has ended; what is lifted stays so".into())
        }
        Watched::Ended(summary) => {
            let processes = if summary.lifted == 1 { "process" } else { "processes" };
            say(&format!("{} {processes} lifted; {summary}", summary.lifted));
            Ok(Exit::SUCCESS)
        }
    }
}

/// Prints an event.
fn show(event: &Event<'_>, shown: Shown) -> Result<(), Failure> {
    match event {
        Event::Lifted { pid, change, cpu } => {
            let after = format!(", after {:.1} s of CPU time", cpu.as_secs_f64());
            show_change(*pid, change, &after, shown)
        }
        Event::Collapsed { pid, change }
        | Event::GivenBack { pid, change }
        | Event::Nothing { pid, change } => show_change(*pid, change, "", shown),
        Event::Refused { pid, why } => {
            say(&format!("{}: {why}", Name::of(*pid)));
            let row = Row {
                pid: *pid,
                error: Some(Untrusted::from((*why).to_string())),
                change: None,
                files: None,
            };
            if shown.json { print_row(row) } else { Ok(()) }
        }
        Event::Detail(_) if !shown.verbose => Ok(()),
        Event::Note(line) | Event::Detail(line) => {
            say(line);
            Ok(())
        }
    }
}

fn show_change(pid: u32, change: &Change, after: &str, shown: Shown) -> Result<(), Failure> {
    let name = Name::of(pid);
    change.complaints.iter().for_each(|line| say(&format!("{name}: {line}")));
    if shown.json {
        return print_row(Row { pid, error: None, change: Some(change), files: None });
    }
    let text: String = change.lines.iter().map(|line| format!("{name}: {line}{after}\n")).collect();
    Ok(console::print(&(text + &times(&name, change, shown.verbose)))?)
}

fn print_row(row: Row<'_>) -> Result<(), Failure> {
    Ok(console::print(&output::json(&Line { version: VERSION, row })?)?)
}
