// SPDX-License-Identifier: Apache-2.0
//! A process that writes to the ledger is killed, again and again: the file is in order, and has all that was written.

use hugelift_ledger::entry::{Cost, Entry, Lift, Program};
use hugelift_ledger::ledger::Ledger;
use rusqlite::Connection;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the ledger to the process that writes.
const LEDGER: &str = "HUGELIFT_TEST_LEDGER";

/// Writes until it is killed, and says after each commit how many rows it has written.
#[test]
fn issue_33_4_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(LEDGER) else { return };
    let mut ledger = Ledger::open(Path::new(&path)).expect("it opens after a kill");
    let lift = Lift { path: "/a".into(), part: "text".into(), backing: "thp".into(), bytes: 1 };
    let program = Program { build_id: "a".into(), unit: None };
    let begun = ledger.found(0).map(|_| std::env::var("BEGUN").expect("a number"));
    let mut at: u64 = begun.expect("it is read").parse().expect("a number");
    loop {
        at += 1;
        let entries = [
            Entry::Cost(Cost { span: at, cpu_us: 1, copies: 1 }),
            Entry::Lift(program.clone(), lift.clone()),
        ];
        ledger.write(at, &entries).expect("it is written");
        if at.is_multiple_of(64) {
            ledger.prune(at).expect("it is pruned");
        }
        // The harness holds back what println prints.
        writeln!(std::io::stderr(), "{at}").expect("the parent reads");
    }
}

#[test]
fn issue_33_4_fifty_kills_lose_nothing() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("ledger.db");
    let mut written: u64 = 0;
    for round in 0..50 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "issue_33_4_writes_until_it_is_killed", "--nocapture"])
            .env(LEDGER, &path)
            .env("BEGUN", written.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        for _ in 0..=round % 7 {
            let line = lines.next().expect("it writes").expect("text");
            written = line.parse().unwrap_or_else(|_| panic!("{line}"));
        }
        child.kill().expect("kill");
        child.wait().expect("its end");
        // What it has said before its end is written too.
        written = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last().unwrap_or(written);
        written = check(&path, written);
    }
    assert!(written >= 50);
}

/// Returns the last row.
fn check(path: &Path, written: u64) -> u64 {
    let database = Connection::open(path).expect("it opens");
    let said: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(said, "ok");
    let one =
        |sql| database.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number").cast_unsigned();
    let last = one("SELECT max(at) FROM costs");
    // One row more may be written, of which it had no time to tell.
    assert!(last == written || last == written + 1, "{last} of {written}");
    let [costs, lifts] = ["SELECT count(*) FROM costs", "SELECT count(*) FROM lifts"].map(one);
    assert_eq!((costs, lifts), (last, last), "all rows, and both of each commit");
    last
}
