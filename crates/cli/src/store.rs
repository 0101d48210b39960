// SPDX-License-Identifier: Apache-2.0
//! `hugelift store`: what the store of shared code has, whether it is sound, making room.

use crate::FAILED;
use clap::{Args, Subcommand};
use hugelift_core::addr::{human_bytes, parse_bytes};
use hugelift_core::policy::ObjectFilter;
use hugelift_os::console::say;
use hugelift_os::store::{Entry, Freed, Missing, State, Store, StoreError, own_path};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Exit status where an entry is found damaged.
const DAMAGED: i32 = 1;

/// Look after the store of shared code that 'run --backing shared' makes
///
/// Each user has one, in $XDG_RUNTIME_DIR/hugelift/store; root's, in /run/hugelift/store, is
/// read by all.
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
    /// Show each entry: its object, size, what of it is huge, who maps it, and its age
    List {
        /// Print JSON, version 1 of the schema
        #[arg(long)]
        json: bool,
    },
    /// Read every entry and compare it with what was written; drop what is damaged (exit 1)
    Verify,
    /// Drop what cannot be used any more; then what was not used for longest, until all fit
    Gc {
        /// Memory that the entries may take, as in 512M [default: half of the file system]
        #[arg(long, value_name = "SIZE", value_parser = size)]
        budget: Option<u64>,
    },
    /// Drop the entries of these objects
    Drop {
        /// Drop all of them, and the store
        #[arg(long, conflicts_with = "objects")]
        all: bool,

        /// Patterns for the path or the file name of an object
        #[arg(value_name = "GLOB", required_unless_present = "all")]
        objects: Vec<String>,
    },
}

/// Does it; returns the exit status.
pub fn store(args: &StoreArgs) -> i32 {
    let path = args.store.clone().map_or_else(own_path, Ok);
    let opened = path.and_then(|path| Store::open(&path, Missing::Leave));
    let store = match (opened, &args.action) {
        (Ok(store), _) => store,
        // There is nothing to look after, and that is all right.
        (Err(StoreError::Missing { path }), action) => {
            return match action {
                Action::List { json: true } => print(&listed(&[])),
                _ => print(&format!("there is no store at {}\n", path.display())),
            };
        }
        (Err(error), _) => return failed(&error),
    };
    let done = match &args.action {
        Action::List { json } => store
            .entries(false)
            .map(|entries| (0, if *json { listed(&entries) } else { table(&entries, store.budget()) })),
        Action::Verify => verify(&store),
        Action::Gc { budget } => store.gc(*budget).map(|freed| (0, told(&freed))),
        Action::Drop { all: true, .. } => store.drop_all().map(|freed| (0, told(&freed))),
        Action::Drop { objects, .. } => {
            let filter = match ObjectFilter::new(objects, &[]) {
                Ok(filter) => filter,
                Err(error) => {
                    say(&error);
                    return FAILED;
                }
            };
            store.drop_entries(|entry| filter.takes_path(&entry.path)).map(|freed| (0, told(&freed)))
        }
    };
    match done {
        Ok((status, text)) => match print(&text) {
            0 => status,
            failed => failed,
        },
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) -> i32 {
    let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
    say(&format!("{error}{hint}"));
    FAILED
}

fn print(text: &str) -> i32 {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say(&format!("cannot write to standard output: {error}"));
            FAILED
        }
        _ => 0,
    }
}

/// "512M", "1G", "1048576"
fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text)?.ok_or_else(|| format!("'{text}' is not a size, as in 512M"))
}

fn verify(store: &Store) -> Result<(i32, String), StoreError> {
    let entries = store.entries(true)?;
    let damaged: Vec<&Entry> = entries.iter().filter(|e| e.state == State::Damaged).collect();
    store.drop_entries(|e| damaged.iter().any(|d| (&d.name, &d.path) == (&e.name, &e.path)))?;
    let mut text = String::new();
    for entry in &entries {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}", word(entry.state), printable(&entry.path.to_string_lossy()));
    }
    Ok((if damaged.is_empty() { 0 } else { DAMAGED }, text))
}

fn word(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Changed => "file changed",
        State::Gone => "file gone",
        State::Damaged => "damaged",
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
            printable(&entry.path.to_string_lossy())
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

fn listed(entries: &[Entry]) -> String {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let entry = |e: &Entry| {
        json!({
            "object": e.path.to_string_lossy(),
            "entry": e.name,
            "bytes": e.bytes,
            "huge_bytes": e.huge,
            "users": e.users,
            "made": seconds(e.made),
            "used": seconds(e.used),
            "state": word(e.state),
        })
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    json!({ "version": 1, "entries": entries }).to_string() + "\n"
}

fn told(freed: &Freed) -> String {
    let mut out = String::new();
    for entry in &freed.entries {
        let path = printable(&entry.path.to_string_lossy());
        let mapped = match entry.users.len() {
            0 => String::new(),
            n => format!(" ({n} processes still have it mapped)"),
        };
        let _ = writeln!(out, "dropped {}: {path}{mapped}", human_bytes(entry.bytes));
    }
    if freed.others > 0 {
        let _ = writeln!(out, "dropped {} other files", freed.others);
    }
    if out.is_empty() {
        out += "nothing to drop\n";
    }
    out
}

/// Names come from outside: no control character reaches the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("1048576"), Ok(1 << 20));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("3G"), Ok(3 << 30));
        assert_eq!(size("0"), Ok(0));
        for bad in ["", "M", "-1", "1X", "99999999999G", "1é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
