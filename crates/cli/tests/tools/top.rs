// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift top`: once for scripts, and live on a terminal.

use crate::common::run::End;
use crate::common::screen::Screen;
use crate::common::{Cmd, HUGELIFT, Held, WITH_FAULT_POINTS, fat, fits, open_dir, plain};
use crate::{need, need_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn top(args: &[&str]) -> Output {
    Command::new(HUGELIFT).arg("top").args(args).output().expect("hugelift runs")
}

fn once_json() -> Value {
    let out = top(&["--once", "--json", "--interval", "0.2", "--number", "100000"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let shown: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    fits("top", &shown);
    let walks = |p: &Value| p["walk_share"].is_f64();
    let counted = shown["processes"].as_array().expect("processes").iter().any(walks);
    assert!(!counted || shown["no_walk_share"].is_null(), "{shown}");
    assert!(shown["interval_s"].as_f64().is_some_and(|s| (0.2..60.0).contains(&s)), "{shown}");
    shown
}

fn find(shown: &Value, pid: u32) -> &Value {
    let all = shown["processes"].as_array().expect("processes");
    all.iter().find(|p| p["pid"] == pid).unwrap_or_else(|| panic!("no {pid} in {shown}"))
}

/// Returns the bytes of a process's text, and those on huge pages, from `hugelift inspect`.
fn inspected(pid: u32) -> (u64, u64) {
    let out = Command::new(HUGELIFT).args(["inspect", "--json", &pid.to_string()]).output().expect("runs");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let text = &report["totals"]["text"];
    (text["bytes"].as_u64().expect("bytes"), text["huge_bytes"].as_u64().expect("bytes"))
}

/// Makes a program with megabytes of code that waits, under the name `name`.
fn waiting(name: &'static str) -> PathBuf {
    let program = fat("hold").build();
    let dir = program.parent().expect("a directory").join("top");
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    // Concurrent tests make the same file: rename(2) never leaves a part of it.
    let new = dir.join(format!("{name}.{}", std::process::id()));
    crate::common::cache::copy(program, &new);
    std::fs::rename(new, &path).unwrap();
    path
}

#[test]
fn text_is_what_inspect_says_bare_and_lifted() {
    let program = fat("hold").build();
    for options in [None, Some(&["--backing", "thp"][..])] {
        let held = Held::start(&Cmd::new([&program]), options, &program);
        let shown = once_json();
        let process = find(&shown, held.pid());
        let (bytes, huge) = inspected(held.pid());
        assert_eq!(
            (process["text_bytes"].as_u64(), process["huge_bytes"].as_u64()),
            (Some(bytes), Some(huge))
        );
        assert_eq!(huge > 0, options.is_some(), "{process}");
        assert_eq!(process["huge"]["thp"].as_u64().unwrap_or(0), huge, "{process}");
        assert!(process["unknown"].is_null(), "{process}");
        assert!(process["command"].as_str().is_some_and(|c| c.starts_with("hold-")), "{process}");
    }
}

#[test]
fn the_process_with_most_text_and_time_is_first() {
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let out = top(&["--once", "--interval", "0.5", "-n", "100000"]);
    let shown = once_json();
    let process = find(&shown, busy.id()).clone();
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(process["cpus"].as_f64().is_some_and(|c| c > 0.02 && c < 1.5), "{process}");
    // The processes are sorted, and the table has the same order.
    let busy_text = |p: &Value| {
        let text = p["text_bytes"].as_f64().or(p["executable_text_bytes"].as_f64()).expect("bytes");
        text * p["cpus"].as_f64().expect("CPUs")
    };
    let all = shown["processes"].as_array().unwrap();
    assert!(all.is_sorted_by(|a, b| busy_text(a) >= busy_text(b)));
    let table = String::from_utf8(out.stdout).unwrap();
    assert!(
        table
            .lines()
            .next()
            .is_some_and(|l| l.contains("PID") && l.contains("TEXT×CPU") && l.contains("HUGE"))
    );
    let pid = busy.id().to_string();
    let line = table.lines().find(|l| l.split_whitespace().next() == Some(&pid)).expect("its line");
    assert!(line.ends_with("sh -c while :; do :; done"), "{line}");
}

#[test]
fn the_number_limits_what_is_printed() {
    let out = top(&["--once", "--interval", "0.1", "--number", "1"]);
    assert_eq!(String::from_utf8(out.stdout).unwrap().lines().count(), 2);
}

/// The user nobody cannot read the mappings of root's processes, and the report says so.
#[test]
fn what_may_not_be_read_is_unknown() {
    need_root!();
    need!("setpriv");
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let dir = tempfile::Builder::new().prefix("hugelift-top").tempdir_in("/tmp").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let hugelift = dir.path().join("hugelift");
    crate::common::cache::copy(HUGELIFT, &hugelift);
    let out = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
        .arg(&hugelift)
        .args(["top", "--once", "--json", "--interval", "0.1", "-n", "100000"])
        .current_dir("/")
        .output()
        .unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap();
    let process = find(&shown, held.pid());
    assert_eq!((&process["unknown"], &process["text_bytes"]), (&"unreadable".into(), &Value::Null));
    assert!(process["huge_bytes"].is_null());
    assert!(process["executable_text_bytes"].as_u64().is_some_and(|n| n > 4 << 20), "{process}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let out = top(&[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{said}");
    assert!(said.contains("--once") && out.stdout.is_empty(), "{said}");
    for bad in [&["--interval", "0"][..], &["--interval", "x"], &["--json"]] {
        assert_eq!(top(bad).status.code(), Some(125), "{bad:?}");
    }
}

#[test]
fn live_sort_filter_map_resize_and_quit() {
    let program = waiting("waits-to-be-seen");
    let held = Held::start(&Cmd::new([&program]), Some(&["--backing", "thp"]), &program);
    let mut screen = Screen::start(&[HUGELIFT, "top", "--interval", "0.3"], 30, 110);
    screen.until("the table", |t| {
        t.contains("PID") && t.contains("TEXT×CPU▾") && t.contains("processes, every 0.3 s")
    });
    assert!(screen.is_full());

    screen.press("/waits-to");
    let pid = held.pid().to_string();
    let line_of = |text: &str| {
        text.lines()
            .find(|l| l.trim_start().starts_with(&pid) && l.contains("waits-to-be-seen"))
            .map(str::to_string)
    };
    let text = screen.until("the process alone, with its coverage", |t| {
        line_of(t).is_some_and(|l| l.contains("% thp")) && t.contains("1 of ")
    });
    assert_eq!(text.lines().filter(|l| l.contains("waits-to-be-seen")).count(), 1, "{text}");
    screen.press("\r");

    screen.press(">");
    screen.until("sorted by the next column", |t| t.contains("HUGE▾"));
    screen.press("<<r");
    screen.until("sorted the other way", |t| t.contains("TEXT▴"));

    screen.press("\r");
    let map = screen.until("the map", |t| t.contains("OBJECT") && t.contains("LIFTABLE"));
    assert!(map.contains(&format!("process {pid}")) && map.contains("thp"), "{map}");
    screen.resize(20, 70);
    screen.until("the map, redrawn", |t| t.lines().last().is_some_and(|l| l.contains("scroll")));
    // The process ends while its map is shown.
    drop(held);
    screen.until("its end", |t| t.contains("last known state: there is no process"));
    screen.press("q");
    screen.until("no process any more", |t| t.contains("0 of "));
    screen.press("\x1b");
    screen.until("all of them", |t| !t.contains(" of ") && t.contains("PID"));
    screen.press("q");
    assert_eq!(screen.end().0, End::Code(0));
}

/// A busy process has its code in use on the screen, one that sleeps has none.
#[test]
fn issue_31_3_the_code_in_use_on_the_screen() {
    let program = plain("pages").flags(&["-fno-toplevel-reorder"]).build();
    let cmd = |pages| Cmd::new([&program]).arg(pages);
    let busy = Held::start_busy(&cmd("64"), None, &program);
    let asleep = Held::start(&cmd("0"), None, &program);
    let mut screen = Screen::start(&[HUGELIFT, "top", "--interval", "0.3"], 30, 140);
    screen.until("the table", |t| t.contains("IN USE") || t.contains("code in use: "));
    screen.press("/pages-\r");
    // The cell behind HUGE, which is "-", "0%" or as "81% thp".
    let cell = |text: &str, pid: u32| {
        let header = text.lines().find(|l| l.contains("IN USE"))?;
        let end = header.find("IN USE").map(|at| header[..at].chars().count() + 6)?;
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{pid} ")))?;
        let before: String = line.chars().skip(end.saturating_sub(9)).take(9).collect();
        Some(before.trim().to_string())
    };
    // 64 hot pages of 4 kB, their caller and what ran before. The first estimate, of few samples, may be farther off.
    let is_right = |shown: &str| {
        let size: Option<f64> = shown.strip_suffix(" kB").and_then(|size| size.parse().ok());
        size.is_some_and(|size| (200.0..400.0).contains(&size))
    };
    let text = screen.until("the code in use", |t| {
        t.contains("code in use: ") || cell(t, busy.pid()).is_some_and(|shown| is_right(&shown))
    });
    if text.contains("code in use: ") {
        skip!("{}", text.lines().next().unwrap_or_default());
    }
    assert_eq!(cell(&text, asleep.pid()).as_deref(), Some("-"), "{text}");
    screen.press("q");
    assert_eq!(screen.end().0, End::Code(0));
}

/// The user nobody may not sample root's processes: the title says why, and the table is as before.
#[test]
fn issue_31_3_who_may_not_sample_sees_why() {
    need_root!();
    need!("setpriv");
    let busy = Held::start_busy(&Cmd::new(["sh", "-c", "while :; do :; done"]), None, "/bin/sh".as_ref());
    let dir = open_dir(&[]);
    let hugelift = dir.path().join("hugelift");
    crate::common::cache::copy(HUGELIFT, &hugelift);
    let hugelift = hugelift.to_str().expect("UTF-8");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", hugelift];
    let mut screen = Screen::start(&[&nobody[..], &["top", "--interval", "0.2"]].concat(), 30, 250);
    screen.until("the table", |t| t.contains("IN USE"));
    // Its own process, which it may sample, is left out.
    screen.press(&format!("/{}\r", busy.pid()));
    let text = screen.until("the reason", |t| t.contains("code in use: "));
    assert!(text.lines().next().is_some_and(|l| l.contains("perf_event_paranoid")), "{text}");
    let pid = busy.pid().to_string();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(&pid)).expect("its line");
    assert!(line.contains(" - ") && line.contains("while :"), "{line}");
    screen.press("q");
    assert_eq!(screen.end().0, End::Code(0));
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let screen = Screen::start(&[HUGELIFT, "top"], 24, 80);
        screen.until("the table", |t| t.contains("processes, every"));
        kill(Pid::from_raw(screen.pid().cast_signed()), signal).unwrap();
        assert_eq!(screen.end().0, End::Signal(signal as i32));
    }
}

/// A window that is closed: the terminal hangs up, with and without a signal.
#[test]
fn it_ends_with_its_terminal() {
    for (signal, before) in [("a terminal of its own", &["setsid", "--ctty"][..]), ("another's", &["setsid"])]
    {
        let pty = nix::pty::openpty(None, None).expect("a pseudo-terminal");
        // A program that had the other end open would keep the terminal.
        let on_exec = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(&pty.master, on_exec).expect("fcntl");
        let end = || pty.slave.try_clone().expect("a descriptor");
        let mut command = std::process::Command::new(before[0]);
        command.args(&before[1..]).args([HUGELIFT, "top"]).stdin(end()).stdout(end()).stderr(end());
        let mut child = command.spawn().expect("setsid");
        drop(command);
        let until_it_reads = || crate::common::run::has_signal(child.id(), "SigCgt", Signal::SIGTERM);
        crate::common::run::until("it begins", until_it_reads);
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(pty);
        let by = std::time::Instant::now() + crate::common::run::PATIENCE;
        assert!(
            crate::common::run::wait(&mut child, by).is_some(),
            "{signal}: it goes on without a terminal"
        );
    }
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let script = format!("ulimit -c 0; HUGELIFT_TEST_PANIC=1 {WITH_FAULT_POINTS} top; echo ended $?");
    let screen = Screen::start(&["sh", "-c", &script], 40, 100);
    screen.until("its end", |t| t.contains("ended "));
    let (_, text) = screen.end();
    // 134 is 128 and the number of SIGABRT: a panic must not unwind out of main, which C calls.
    assert!(text.contains("a panic, as asked for") && text.contains("ended 134"), "{text}");
}

#[test]
fn the_interrupt_key_ends_it_and_the_stop_key_stops_it() {
    // A shell with job control sees that it stops, and continues it.
    let script = format!("set -m; {HUGELIFT} top; echo status $?; read key; fg >/dev/null; echo end $?");
    let mut screen = Screen::start(&["sh", "-c", &script], 24, 80);
    screen.until("the table", |t| t.contains("processes, every"));
    screen.press("\x1a");
    // 147 is 128 and the number of SIGSTOP. The shell has the terminal again.
    screen.until("that it has stopped", |t| t.contains("status 147") && !screen.is_full());
    screen.press("go on\n");
    screen.until("the table again", |t| t.contains("processes, every") && screen.is_full());
    screen.press("\x03");
    screen.until("its end", |t| t.contains("end 0"));
    assert_eq!(screen.end().0, End::Code(0));
}

/// As root it asks for no more rights, and advises nothing for what is lifted.
#[test]
fn issue_29_b9_the_suggestion_fits_the_user_and_the_process() {
    need_root!();
    let program = waiting("is-lifted");
    let held = Held::start(&Cmd::new([&program]), Some(&["--backing", "thp"]), &program);
    let mut screen = Screen::start(&[HUGELIFT, "top", "--interval", "0.3"], 30, 110);
    let table = screen.until("the table", |t| t.contains("PID") && t.contains("processes, every"));
    assert!(!table.contains("sudo"), "{table}");
    screen.press("/is-lifted");
    let text = screen.until("the process", |t| t.contains("1 of ") && t.contains("% thp"));
    assert!(text.contains(&format!("hugelift inspect {}   (its code is mostly huge", held.pid())), "{text}");
    drop(held);
    // An escape and a letter at once would be a key of their own.
    screen.press("\r");
    screen.press("q");
    assert_eq!(screen.end().0, End::Code(0));
}
