// SPDX-License-Identifier: Apache-2.0
//! Suite: `inspect --heat` finds which data a process touches, by whatever the kernel has for that, and takes back what it
//! set in the kernel.

use crate::huge::thp;
use crate::place::{alone, hugelift, is_guest, lacks, needs_root, victim};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const MB: u64 = 1 << 20;
/// The victim's memory, and what it touches of it again and again.
const ANON: u64 = 256;
const HOT: u64 = 64;
const FILE: u64 = 64;
const HOT_OF_FILE: u64 = 32;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";

/// The running victim, with a file of its own. Both end when it is dropped.
struct Touching {
    child: Child,
    _file: tempfile::NamedTempFile,
}

impl Touching {
    fn start(hot: u64) -> Touching {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), vec![1; (FILE * MB) as usize]).expect("its bytes");
        let mut child = Command::new(victim("vm_touched.static"))
            .args([ANON.to_string(), hot.to_string()])
            .arg(file.path())
            .arg(HOT_OF_FILE.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready "), "{line}");
        Touching { child, _file: file }
    }

    fn inspect(&self, options: &[&str]) -> Command {
        let mut command = Command::new(hugelift());
        command.arg("inspect").args(options).arg(self.child.id().to_string()).stdin(Stdio::null());
        command
    }

    /// Watches it, and returns what was found.
    fn data(&self, seconds: &str) -> Value {
        let output = self.inspect(&["--heat", seconds, "--json"]).output().expect("hugelift runs");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        report["data"].clone()
    }
}

impl Drop for Touching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {value}"))
}

/// Returns the place of this kind with the most resident data.
fn place<'a>(data: &'a Value, kind: &str) -> &'a Value {
    let places = data["places"].as_array().expect("places");
    let of_kind = places.iter().filter(|place| place["kind"] == kind);
    of_kind.max_by_key(|place| number(&place["bytes"], "resident")).unwrap_or_else(|| panic!("{data}"))
}

/// Returns whether the kernel has something that tells addresses, by what hugelift found.
fn tells_addresses(data: &Value) -> bool {
    data["method"] == "damon" || data["method"] == "idle-page-tracking"
}

/// Seconds for which the victim is watched.
fn seconds() -> &'static str {
    if is_guest() { "12" } else { "5" }
}

fn damon_is_free() -> bool {
    fs::read_to_string(KDAMONDS).is_ok_and(|text| text.trim() == "0")
}

#[test]
fn issue_31_2_the_touched_part_is_found_and_only_it() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let free = damon_is_free();
    let data = Touching::start(HOT).data(seconds());
    if !tells_addresses(&data) {
        lacks!("the kernel tells no addresses of data in use: {}", data["refusals"]);
    }
    println!("{data:#}");
    for (kind, all, hot) in [("anon", ANON, HOT), ("file", FILE, HOT_OF_FILE)] {
        let place = place(&data, kind);
        let (bytes, spans) = (&place["bytes"], &place["spans"]);
        assert!(number(bytes, "resident") >= all * MB, "{place}");
        let size = number(&data, "span_size").max(page);
        let want = (hot * MB).div_ceil(size);
        // The program has some more memory, of its C library.
        let (touched, hottest) = (number(spans, "touched"), number(spans, "hot"));
        assert!(touched >= want && touched <= want + 3, "{want} spans of {size}: {place}");
        assert!(hottest >= want.saturating_sub(1).max(1) && hottest <= want + 1, "{want}: {place}");
        let found = number(bytes, "touched");
        assert!(found <= (hot + 2) * MB && found >= hot * MB * 3 / 4, "{hot} MB: {place}");
    }
    assert_eq!(damon_is_free(), free, "what was set in the kernel is taken back");
}

#[test]
fn issue_31_2_a_process_that_sleeps_uses_no_data() {
    needs_root!();
    let _alone = alone();
    let data = Touching::start(0).data("3");
    if !tells_addresses(&data) {
        lacks!("the kernel tells no addresses of data in use: {}", data["refusals"]);
    }
    let place = place(&data, "anon");
    assert!(
        number(&place["bytes"], "resident") >= ANON * MB && number(&place["bytes"], "touched") <= MB,
        "{place}"
    );
}

/// Runs `inspect --heat` for a minute, does something, and returns how it ended.
fn interrupted(touching: &Touching, act: impl FnOnce(i32)) -> Output {
    let mut command = touching.inspect(&["--heat", "60", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift starts");
    // The configuration of DAMON is there once it watches.
    for _ in 0..600 {
        if !damon_is_free() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!damon_is_free(), "it does not watch");
    std::thread::sleep(Duration::from_millis(500));
    act(i32::try_from(child.id()).expect("a pid"));
    child.wait_with_output().expect("its end")
}

#[test]
fn issue_31_2_damon_is_given_back_on_each_way_out() {
    needs_root!();
    let _alone = alone();
    let first = Touching::start(HOT);
    if !damon_is_free() || first.data("1")["method"] != "damon" {
        lacks!("no DAMON of virtual addresses is free here");
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let output = interrupted(&first, |pid| {
            // SAFETY: kill(2) of the child, which is not waited for yet.
            unsafe { libc::kill(pid, signal) };
        });
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(report["data"]["method"], "damon", "{output:?}");
        assert!(damon_is_free(), "signal {signal}");
    }
    // The process ends meanwhile.
    let mut other = Touching::start(HOT);
    let pid = i32::try_from(other.child.id()).expect("a pid");
    let output = interrupted(&other, |_| {
        // SAFETY: kill(2) of the victim, which is not waited for yet.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    });
    let _ = other.child.wait();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((&report["data"]["ended"], damon_is_free()), (&true.into(), true), "{output:?}");
}

#[test]
fn issue_31_2_what_another_user_of_damon_has_set_up_stays() {
    needs_root!();
    let _alone = alone();
    let touching = Touching::start(HOT);
    if !damon_is_free() || touching.data("1")["method"] != "damon" {
        lacks!("no DAMON of virtual addresses is free here");
    }
    fs::write(KDAMONDS, "2").expect("two configurations");
    let data = touching.data("1");
    let refusals = data["refusals"].to_string();
    assert_eq!(fs::read_to_string(KDAMONDS).expect("a number").trim(), "2");
    fs::write(KDAMONDS, "0").expect("none");
    assert!(data["method"].is_null() && refusals.contains("DAMON is in use: nr_kdamonds in "), "{data}");
}
