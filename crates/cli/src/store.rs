// SPDX-License-Identifier: Apache-2.0
//! `hugelift store`: what the store of shared code has, whether it is sound, making room; and the
//! notes of past runs, which are kept beside it.

use crate::FAILED;
use clap::{ArgGroup, Args, Subcommand};
use hugelift_core::addr::human_bytes;
use hugelift_core::policy::ObjectFilter;
use hugelift_core::printable;
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_core::quantity;
use hugelift_os::io::console::{self, say};
use hugelift_os::store::{
    Entry, Freed, IfAbsent, Noted, Notes, State, Store, StoreError, notes_beside, own_path,
};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Exit status where an entry is found damaged.
const DAMAGED: i32 = 1;

/// Look after the store of shared code that 'run --backing shared' makes, and notes of past runs
///
/// Each user has one, in $XDG_RUNTIME_DIR/hugelift/store. Others use root's, in
/// /run/hugelift/store, for what they may read.
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
    /// Show each entry: its object, size, what of it is huge, who maps it, and its age; and the notes:
    /// how many runs of a program there were, what they took, and what they touched
    List {
        /// Print JSON, version 1 of the schema
        #[arg(long)]
        json: bool,
    },
    /// Read every entry and compare it with what was written; drop what is damaged (exit 1)
    Verify,
    /// Drop what cannot be used any more or is no longer public, also notes; then entries not used for
    /// longest, until all fit
    Gc {
        /// Memory that the entries may take, as in 512M [default: half of the file system]
        #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
        budget: Option<u64>,
    },
    /// Drop the entries and notes of these objects
    #[command(group(ArgGroup::new("which").required(true)))]
    Drop {
        /// Drop all of them, the store, and the notes
        #[arg(long, group = "which")]
        all: bool,

        /// Patterns for the path or the file name of an object
        #[arg(value_name = "GLOB", group = "which")]
        objects: Vec<String>,
    },
}

/// Does it; returns the exit status.
pub fn store(args: &StoreArgs) -> i32 {
    match try_store(args) {
        Ok((status, text)) => match print(&text) {
            0 => status,
            failed => failed,
        },
        Err(Failed::Store(error)) => failed(&error),
        Err(Failed::Pattern(error)) => {
            say(&error);
            FAILED
        }
    }
}

enum Failed {
    Store(StoreError),
    Pattern(String),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

/// Neither has to be there; if none is, there is nothing to look after, and that is all right.
fn there<T>(opened: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match opened {
        Ok(it) => Ok(Some(it)),
        Err(StoreError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn try_store(args: &StoreArgs) -> Result<(i32, String), Failed> {
    let path = args.store.clone().map_or_else(own_path, Ok)?;
    let store = there(Store::open(&path, IfAbsent::Leave))?;
    let notes = there(Notes::at(&notes_beside(&path), IfAbsent::Leave))?;
    let none = || format!("there is no store at {}\n", path.escaped());
    let (store, notes) = (store.as_ref(), notes.as_ref());
    let noted = |dropped: Result<usize, StoreError>| Ok::<_, StoreError>(told_of_notes(dropped?));
    let change = |of_store: Result<Freed, StoreError>, of_notes: String| {
        let told = told(&of_store?) + &of_notes;
        Ok::<_, StoreError>((0, if told.is_empty() { "nothing to drop\n".into() } else { told }))
    };
    if store.is_none() && notes.is_none() {
        return Ok((
            0,
            if matches!(args.action, Action::List { json: true }) { listed(&[], &[]) } else { none() },
        ));
    }
    let nothing = || Ok(Freed::default());
    Ok(match &args.action {
        Action::List { json } => {
            let entries = store.map_or_else(|| Ok(Vec::new()), |store| store.entries(false))?;
            let noted = notes.map_or_else(|| Ok(Vec::new()), Notes::all)?;
            let text = match (json, store) {
                (true, _) => listed(&entries, &noted),
                (false, Some(store)) => table(&entries, store.budget()) + &table_of_notes(&noted),
                (false, None) => none() + &table_of_notes(&noted),
            };
            (0, text)
        }
        Action::Verify => store.map_or_else(|| Ok((0, none())), verify)?,
        Action::Gc { budget } => {
            let dropped = notes.map_or(Ok(0), Notes::gc);
            change(store.map_or_else(nothing, |store| store.gc(*budget)), noted(dropped)?)?
        }
        Action::Drop { all: true, .. } => {
            let dropped = notes.map_or(Ok(0), Notes::drop_all);
            change(store.map_or_else(nothing, Store::drop_all), noted(dropped)?)?
        }
        Action::Drop { objects, .. } => {
            let filter = ObjectFilter::new(objects, &[]).map_err(Failed::Pattern)?;
            let dropped = notes.map_or(Ok(0), |notes| notes.drop_objects(|path| filter.takes_path(path)));
            let drop = |store: &Store| store.drop_entries(|entry| filter.takes_path(&entry.path));
            change(store.map_or_else(nothing, drop), noted(dropped)?)?
        }
    })
}

fn failed(error: &StoreError) -> i32 {
    let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
    say(&format!("{error}{hint}"));
    FAILED
}

fn print(text: &str) -> i32 {
    match console::print(text) {
        Ok(()) => 0,
        Err(error) => {
            say(&error);
            FAILED
        }
    }
}

fn verify(store: &Store) -> Result<(i32, String), StoreError> {
    let entries = store.entries(true)?;
    let damaged: Vec<&Entry> = entries.iter().filter(|e| e.state == State::Damaged).collect();
    store.drop_entries(|e| damaged.iter().any(|d| (&d.name, &d.path) == (&e.name, &e.path)))?;
    let mut text = String::new();
    for entry in &entries {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}", word(entry.state), entry.path.escaped());
    }
    Ok((if damaged.is_empty() { 0 } else { DAMAGED }, text))
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
    let mut out = String::new();
    let held: u64 = entries.iter().map(|e| e.bytes).sum();
    if !entries.is_empty() {
        out += "   SIZE    HUGE  USERS  AGE   USED  STATE         OBJECT\n";
    }
    for entry in entries {
        let _ = writeln!(
            out,
            "{:>7} {:>7}  {:>5}  {:<4}  {:<4}  {:<12}  {}",
            human_bytes(entry.bytes),
            human_bytes(entry.huge),
            entry.users.len(),
            ago(entry.made),
            ago(entry.used),
            word(entry.state),
            entry.path.escaped()
        );
    }
    let _ =
        writeln!(out, "{} entries, {} of at most {}", entries.len(), human_bytes(held), human_bytes(budget));
    out
}

/// "5 s", "3 min", "2 h", "9 d"
fn ago(time: SystemTime) -> String {
    match time.elapsed().map_or(0, |age| age.as_secs()) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}min", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

fn table_of_notes(noted: &[Noted]) -> String {
    let mut out = String::new();
    if !noted.is_empty() {
        out += "\nRUNS  CPU TIME  TOUCHED  WRITTEN  STATE         OBJECT\n";
    }
    for Noted { note, written, state, .. } in noted {
        let cpu = note.lives.mean().map_or("-".into(), |cpu| format!("{:.0} ms", cpu.as_secs_f64() * 1e3));
        let _ = writeln!(
            out,
            "{:>4}  {:>8}  {:>7}  {:<7}  {:<12}  {}",
            note.lives.runs,
            cpu,
            note.touched.as_ref().map_or("?".into(), |touched| human_bytes(touched.bytes())),
            ago(*written),
            word(*state),
            note.path.escaped()
        );
    }
    out
}

fn listed(entries: &[Entry], noted: &[Noted]) -> String {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let entry = |e: &Entry| {
        json!({
            "object": Untrusted::from(&e.path),
            "entry": e.name,
            "bytes": e.bytes,
            "huge_bytes": e.huge,
            "users": e.users,
            "made": seconds(e.made),
            "used": seconds(e.used),
            "state": word(e.state),
        })
    };
    let note = |n: &Noted| {
        json!({
            "object": Untrusted::from(&n.note.path),
            "runs": n.note.lives.runs,
            "cpu_seconds": n.note.lives.mean().map(|cpu| cpu.as_secs_f64()),
            "touched_bytes": n.note.touched.as_ref().map(|touched| touched.bytes()),
            "written": seconds(n.written),
            "state": word(n.state),
        })
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    let notes: Vec<_> = noted.iter().map(note).collect();
    let all = json!({ "version": 1, "entries": entries, "notes": notes });
    printable::json(&all).unwrap_or_default() + "\n"
}

fn told_of_notes(dropped: usize) -> String {
    if dropped == 0 { String::new() } else { format!("dropped {dropped} notes of past runs\n") }
}

fn told(freed: &Freed) -> String {
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
