// SPDX-License-Identifier: Apache-2.0
//! `hugelift store`: lists and verifies the store of shared code, and drops entries.

use crate::failure::{Exit, Failure};
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use hugelift_core::addr::human_bytes;
use hugelift_core::policy::ObjectFilter;
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_core::quantity;
use hugelift_core::table::{Column, LEFT, RIGHT, Table};
use hugelift_linux::io::console;
use hugelift_pages::store::{Entry, Freed, IfAbsent, State, Store, StoreError, own_path};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The column of states, wide enough for each, so that the two tables align.
const STATE: Column = LEFT.at_least(12);

/// Exit status where an entry is found damaged.
const DAMAGED: i32 = 1;

/// Manage the store of shared code that 'run --backing shared' makes
///
/// Each user has a store, in $XDG_RUNTIME_DIR/hugelift/store. The store of root, in
/// /run/hugelift/store, also serves other users, with the entries that they may read.
#[derive(Args, Debug)]
pub struct StoreArgs {
    /// The store's directory [default: what HUGELIFT_STORE says, else the calling user's]
    #[arg(long, value_name = "DIR", global = true)]
    store: Option<PathBuf>,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show each entry: its object, its size, how much of it is huge, how many processes map it, and its age
    List {
        /// Print JSON, version 1 of the schema
        #[arg(long)]
        json: bool,
    },
    /// Read every entry and compare it with its checksum; drop damaged ones (exit status 1)
    Verify,
    /// Drop entries that are stale or whose file is no longer public; then the least recently used ones, until the
    /// others fit
    Gc {
        /// How much memory the entries may take, as in 512M [default: half of the file system]
        #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
        budget: Option<u64>,
    },
    /// Drop the entries of these objects
    #[command(group(ArgGroup::new("which").required(true)))]
    Drop {
        /// Drop all entries, and the store itself
        #[arg(long, group = "which")]
        all: bool,

        /// Objects, by a pattern for the path or the file name
        #[arg(value_name = "GLOB", group = "which")]
        objects: Vec<String>,
    },
}

/// Lists, verifies or drops entries, and prints what was done.
///
/// # Errors
/// The store cannot be read or changed, or a pattern is wrong.
pub fn run(args: &StoreArgs) -> Result<Exit, Failure> {
    let path = args.store.clone().map_or_else(own_path, Ok)?;
    let store = if_present(Store::open(&path, IfAbsent::Leave))?;
    let store = store.as_ref();
    let mut exit = Exit::SUCCESS;
    let text = match (&args.action, store) {
        (Action::List { json }, _) => list(&path, store, *json)?,
        (Action::Verify, Some(store)) => {
            let entries = store.entries(true)?;
            if drop_damaged(store, &entries)? {
                exit = Exit(DAMAGED);
            }
            states(&entries)
        }
        (_, None) => no_store(&path),
        (Action::Gc { budget }, Some(store)) => changes(store.gc(*budget)?),
        (Action::Drop { all: true, .. }, Some(store)) => changes(store.drop_all()?),
        (Action::Drop { objects, .. }, Some(store)) => {
            let filter = ObjectFilter::new(objects, &[])?;
            changes(store.drop_entries(|entry| filter.takes_path(&entry.path))?)
        }
    };
    console::print(&text)?;
    Ok(exit)
}

/// Returns `None` for a store that does not exist: that is not an error.
fn if_present<T>(opened: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match opened {
        Ok(it) => Ok(Some(it)),
        Err(StoreError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn no_store(path: &Path) -> String {
    format!("there is no store at {}\n", path.escaped())
}

fn list(path: &Path, store: Option<&Store>, json: bool) -> Result<String, Failure> {
    let entries = store.map_or_else(|| Ok(Vec::new()), |store| store.entries(false))?;
    if json {
        return output::json(&as_json(&entries));
    }
    Ok(store.map_or_else(|| no_store(path), |store| table(&entries, store.budget())))
}

/// Says what was dropped.
fn changes(freed: Freed) -> String {
    let text = entries_dropped(&freed);
    if text.is_empty() { "nothing to drop\n".into() } else { text }
}

/// Drops the damaged ones of `entries`; returns whether there were any.
fn drop_damaged(store: &Store, entries: &[Entry]) -> Result<bool, StoreError> {
    let damaged: Vec<&Entry> = entries.iter().filter(|e| e.state == State::Damaged).collect();
    store.drop_entries(|e| damaged.iter().any(|d| (&d.names, &d.path) == (&e.names, &e.path)))?;
    Ok(!damaged.is_empty())
}

fn states(entries: &[Entry]) -> String {
    entries.iter().map(|e| format!("{}: {}\n", word(e.state), e.path.escaped())).collect()
}

fn word(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Changed => "file changed",
        State::Gone => "file gone",
        State::Damaged => "damaged",
        State::Private => "made private",
    }
}

fn table(entries: &[Entry], budget: u64) -> String {
    let widths =
        [RIGHT.at_least(7), RIGHT.at_least(6), RIGHT, LEFT.at_least(4), LEFT.at_least(4), STATE, LEFT];
    let mut table = Table::new(widths);
    if !entries.is_empty() {
        table.row(["SIZE", "HUGE", "USERS", "AGE", "USED", "STATE", "OBJECT"]);
    }
    for entry in entries {
        table.row([
            human_bytes(entry.bytes),
            human_bytes(entry.huge),
            entry.users.len().to_string(),
            ago(entry.made),
            ago(entry.used),
            word(entry.state).into(),
            entry.path.escaped().to_string(),
        ]);
    }
    let held: u64 = entries.iter().map(|e| e.bytes).sum();
    format!("{table}{} entries, {} of at most {}\n", entries.len(), human_bytes(held), human_bytes(budget))
}

/// Returns the age: "5s", "3min", "2h", "9d".
fn ago(time: SystemTime) -> String {
    match time.elapsed().map_or(0, |age| age.as_secs()) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}min", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

fn as_json(entries: &[Entry]) -> Value {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let entry = |e: &Entry| {
        json!({
            "object": Untrusted::from(&e.path),
            "files": e.names,
            "bytes": e.bytes,
            "huge_bytes": e.huge,
            "users": e.users,
            "made": seconds(e.made),
            "used": seconds(e.used),
            "state": word(e.state),
        })
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    json!({ "version": 1, "entries": entries })
}

fn entries_dropped(freed: &Freed) -> String {
    let mut out = String::new();
    for entry in &freed.entries {
        let path = entry.path.escaped();
        let mapped = match entry.users.len() {
            0 => String::new(),
            n => format!(" ({n} processes still have it mapped)"),
        };
        let _ = writeln!(out, "dropped {}: {path}{mapped}", human_bytes(entry.bytes));
    }
    if freed.others > 0 {
        let _ = writeln!(out, "dropped {} other files", freed.others);
    }
    out
}
