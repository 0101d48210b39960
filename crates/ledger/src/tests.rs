// SPDX-License-Identifier: Apache-2.0
//! Tests of the ledger as a whole.

use crate::entry::{Cost, Entry, Experiment, Lift, Program, Ratio, Use, Verdict};
use crate::ledger::Ledger;
use crate::reader::Reader;
use crate::schema::{KEPT, STEPS, VERSION, migrate, prune, version};
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

const NOW: u64 = 1_800_000_000;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("new/ledger.db");
    (folder, path)
}

fn program(name: &str) -> Program {
    Program { build_id: name.into(), unit: (name != "none").then(|| format!("{name}.service")) }
}

fn lift(bytes: u64) -> Lift {
    Lift { path: "/usr/bin/a\u{1b}".into(), part: "text".into(), backing: "shared".into(), bytes }
}

fn experiment(verdict: Verdict, until: u64) -> Experiment {
    let ratio = (verdict != Verdict::Unmeasured).then_some(Ratio { point: 0.97, low: 0.96, high: 0.98 });
    Experiment {
        path: "/usr/bin/a".into(),
        measure: "CPU time per system call".into(),
        ratio,
        pairs: 40,
        verdict,
        until,
    }
}

fn count(ledger: &Ledger, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    ledger.connection.query_row(&sql, [], |row| row.get(0)).expect("a number")
}

fn refusal(path: &Path) -> String {
    let said = Ledger::open(path).expect_err("it is refused").to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn issue_33_4_what_is_written_is_read() {
    let (_folder, path) = folder();
    let mut ledger = Ledger::open(&path).expect("open");
    let (a, none) = (program("a"), program("none"));
    let used = |cpu_us, lifted_us| Use { cpu_us, lifted_us, copies: 7 };
    let first = [
        Entry::Lift(a.clone(), lift(4 << 20)),
        Entry::Lift(a.clone(), lift(2 << 20)),
        Entry::Seen(none.clone(), "/usr/bin/none".into()),
        Entry::Refusal(none.clone(), "no".into()),
        Entry::Use(a.clone(), used(900, 500)),
        Entry::Cost(Cost { span: 3600, cpu_us: 5, copies: 1 }),
    ];
    ledger.write(NOW, &first).expect("write");
    let measured = experiment(Verdict::Pays, NOW + 100);
    // What was used until the result is written together with it.
    let both = [Entry::Use(a.clone(), used(50, 50)), Entry::Experiment(a.clone(), measured.clone())];
    ledger.write(NOW + 1, &both).expect("write");
    let later = [
        Entry::Use(a.clone(), used(100, 100)),
        Entry::Cost(Cost { span: 60, cpu_us: 2, copies: 9 }),
        Entry::Experiment(a.clone(), experiment(Verdict::Unmeasured, NOW + 50)),
    ];
    ledger.write(NOW + 2, &later).expect("write");

    let reader = Reader::open(&path).expect("it is read while it is written");
    assert_eq!(reader.costs(NOW).expect("costs"), Cost { span: 3660, cpu_us: 7, copies: 9 });
    assert_eq!(reader.costs(NOW + 2).expect("costs"), Cost { span: 60, cpu_us: 2, copies: 9 });
    let known = reader.programs(NOW).expect("programs");
    assert_eq!(known.iter().map(|known| &known.program).collect::<Vec<_>>(), [&a, &none]);
    assert_eq!((known[0].used, known[0].used_since), (used(1050, 650), used(100, 100)));
    assert_eq!((known[0].lifts, known[0].refusals, known[1].refusals), (1, 0, 1));
    assert_eq!(known[0].found, Some((NOW + 1, measured)), "one without a result hides none");
    assert_eq!((&known[1].found, known[1].path.to_str()), (&None, Some("/usr/bin/none")));
    let holds = |now| ledger.found(now).expect("found").into_iter().map(|found| found.experiment.verdict);
    assert_eq!(holds(NOW).collect::<Vec<_>>(), [Verdict::Pays], "no result takes no gain away");
    assert_eq!(holds(NOW + 50).count(), 0);
    let mode = fs::metadata(path.parent().expect("a folder")).expect("the folder").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    // Who can open these to read can lock them.
    for end in ["", "-wal", "-shm"] {
        let file = format!("{}{end}", path.display());
        let mode = fs::metadata(&file).unwrap_or_else(|error| panic!("{file}: {error}")).permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
}

#[test]
fn issue_33_4_an_older_ledger_becomes_a_new_one_and_a_newer_one_is_refused() {
    let (_folder, path) = folder();
    drop(Ledger::open(&path).expect("open"));
    let mut old = Connection::open(&path).expect("open");
    assert_eq!(version(&old), Ok(VERSION));
    let more = [&STEPS[..], &["CREATE TABLE more (a INTEGER) STRICT"][..]].concat();
    migrate(&mut old, &more).expect("a step");
    migrate(&mut old, &more).expect("no step twice");
    assert_eq!(version(&old), Ok(VERSION + 1));
    // Of a step that fails nothing is left.
    let broken = [&more[..], &["CREATE TABLE half (a INTEGER) STRICT; CREATE TABLE more (a)"]].concat();
    migrate(&mut old, &broken).expect_err("a step that fails");
    assert_eq!(version(&old), Ok(VERSION + 1));
    old.query_row("SELECT 1 FROM half", [], |_| Ok(())).expect_err("no table");
    let said = refusal(&path);
    assert!(said.contains("is of version 2, and this hugelift knows those up to 1"), "{said}");
    assert!(Reader::open(&path).is_err());
}

#[test]
fn of_first_starts_at_a_time_each_opens_the_ledger() {
    for _ in 0..20 {
        let (_folder, path) = folder();
        std::thread::scope(|scope| {
            let open = || Ledger::open(&path).map(drop);
            let all: Vec<_> = (0..2).map(|_| scope.spawn(open)).collect();
            for one in all {
                one.join().expect("no panic").expect("open");
            }
        });
    }
}

#[test]
fn issue_33_4_a_full_disk_loses_what_is_new_alone() {
    let (_folder, path) = folder();
    let mut ledger = Ledger::open(&path).expect("open");
    let entries = [Entry::Lift(program("a"), lift(1))];
    ledger.write(NOW, &entries).expect("write");
    let pages: i64 =
        ledger.connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("pages");
    ledger.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).expect("a limit");
    let many: Vec<Entry> = (0..1000).flat_map(|_| entries.clone()).collect();
    let said = ledger.write(NOW, &many).expect_err("it is full").to_string();
    assert!(said.ends_with("database or disk is full"), "{said}");
    assert_eq!(count(&ledger, "lifts"), 1);
    ledger.connection.pragma_update_and_check(None, "max_page_count", 10_000, |_| Ok(())).expect("a limit");
    ledger.write(NOW, &many).expect("there is room again");
    assert_eq!(count(&ledger, "lifts"), 1001);
}

#[test]
fn issue_33_4_a_folder_that_takes_nothing_is_one_line() {
    for path in ["/proc/hugelift/ledger.db", "/proc/self/ledger.db", "/dev/null/ledger.db"] {
        assert!(refusal(Path::new(path)).contains("ledger.db"));
        assert!(Reader::open(Path::new(path)).is_err());
    }
    let said = Reader::open(Path::new("/proc/hugelift/ledger.db")).expect_err("there is none").to_string();
    assert!(
        said.contains("no ledger /proc/hugelift/ledger.db") && said.contains("enable --now hugelift"),
        "{said}"
    );
}

#[test]
fn issue_33_4_a_damaged_ledger_is_kept_aside() {
    let (_folder, path) = folder();
    drop(Ledger::open(&path).expect("open"));
    let damaged = [b"SQLite format 3\0".as_slice(), &[0xff; 9000]].concat();
    fs::write(&path, &damaged).expect("write");
    let said = Reader::open(&path).expect_err("it is damaged");
    assert!(said.is_damage(), "{said}");
    let mut ledger = Ledger::open(&path).expect("a new one");
    let aside = ledger.set_aside.clone().expect("the old one");
    assert_eq!((fs::read(&aside).expect("it is there"), aside), (damaged, path.with_extension("db.damaged")));
    ledger.write(NOW, &[Entry::Cost(Cost::default())]).expect("write");
    drop(ledger);
    fs::write(&path, "no database").expect("write");
    assert!(refusal(&path).contains("and so is "));
    assert_eq!(fs::read(&path).expect("it stays"), b"no database");
}

#[test]
fn issue_33_4_what_others_can_change_is_refused() {
    let (folder, path) = folder();
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(refusal(&shared.join("ledger.db")).contains("can be written to by other users"));
    drop(Ledger::open(&path).expect("open"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("chmod");
    assert!(refusal(&path).contains("can be written to by other users"));
    let pipe = path.with_file_name("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(refusal(&pipe).contains("pipe"));
    // A link of our own is followed, and what it leads to is checked.
    symlink(&shared, folder.path().join("link")).expect("a link");
    assert!(refusal(&folder.path().join("link/ledger.db")).contains("shared"));
}

#[test]
fn issue_33_4_old_rows_and_too_many_are_removed() {
    let (_folder, path) = folder();
    let mut ledger = Ledger::open(&path).expect("open");
    for at in 0..10 {
        let name = format!("p{at}");
        let entries = [Entry::Lift(program(&name), lift(at)), Entry::Cost(Cost::default())];
        ledger.write(NOW + at, &entries).expect("write");
    }
    ledger.prune(NOW + KEPT + 4).expect("prune");
    assert_eq!(["programs", "lifts", "costs"].map(|table| count(&ledger, table)), [6; 3]);
    let transaction = ledger.connection.transaction().expect("a transaction");
    prune(&transaction, NOW, 2).expect("prune");
    transaction.commit().expect("commit");
    assert_eq!(["programs", "lifts", "costs"].map(|table| count(&ledger, table)), [2; 3]);
    let newest = Reader::open(&path).expect("open").programs(0).expect("programs");
    assert!(newest.iter().all(|known| ["p8", "p9"].contains(&known.program.build_id.as_str())), "{newest:?}");
}
