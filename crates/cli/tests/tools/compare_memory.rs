// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift compare --pid` on memory that the program writes: it is on huge pages and on small ones in turn, and at the
//! end as it was found.

use crate::common::huge::smaps;
use crate::common::run::{PATIENCE, until};
use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, fits};
use crate::need_root;
use hugelift_core::attribute::Attribute;
use hugelift_core::smaps::Usage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const MB: u64 = 1 << 20;

/// Starts a program that reads 64 MB of memory at random. They are on huge pages from the start, if `how` is "huge".
pub fn reader(how: &str) -> Held {
    let program = fat("chase").size(4 << 20).flags(&["-O2"]).build();
    let held = Held::start_favoured(&Cmd::new([&program]).args(["64", how]), &program);
    until("all of it is written", || memory(&held).rss >= 64 * MB);
    held
}

/// Returns the mapping that holds the memory.
pub fn memory(held: &Held) -> Usage {
    let is_it = |usage: &Usage| !usage.mapping.is_file() && usage.mapping.range.len() >= 64 * MB;
    smaps(held.pid()).into_iter().find(is_it).expect("the memory")
}

fn compare(held: &Held, words: &[&str]) -> Outcome {
    let cmd = Cmd::new([HUGELIFT, "compare", "--pid", &held.pid().to_string()]).args(words);
    cmd.patience(2 * PATIENCE).bare()
}

pub fn json(held: &Held, schema: &str, words: &[&str]) -> Value {
    let outcome = compare(held, &[&["--json"], words].concat());
    assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{}", outcome.stdout);
    let result = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits(schema, &result);
    result
}

/// Returns the huge bytes of writable memory in each period of a side.
pub fn of_periods(result: &Value, side: usize) -> Vec<u64> {
    let runs = result["sides"][side]["runs"].as_array().expect("runs").iter();
    runs.map(|run| run["memory"]["writable_huge"].as_u64().expect("bytes")).collect()
}

pub fn finish(held: Held) {
    let told = held.finish();
    assert_eq!((told.end, &*told.stdout), (End::Code(0), "ready\nwrong 0\n"));
}

#[test]
fn issue_31_8_memory_is_huge_and_small_in_turn_and_left_as_it_was() {
    need_root!();
    for how in ["small", "huge"] {
        let held = reader(how);
        let before = memory(&held);
        let was_huge = before.anon_huge >= 60 * MB;
        assert_eq!(was_huge, how == "huge", "{before:?}");
        let words = ["--same-copy", "--parts", "anon", "--pairs", "12", "--metric", "date +%s.%N"];
        let result = json(&held, "compare", &words);
        let (small, huge) = (of_periods(&result, 0), of_periods(&result, 1));
        assert_eq!((small.len(), huge.len()), (12, 12));
        let most = small.iter().max().expect("a period");
        assert!(*most <= 4 * MB && huge.iter().all(|bytes| *bytes >= 60 * MB), "{small:?} {huge:?}");
        assert_eq!(result["live"]["memory"], true, "{result}");
        let after = memory(&held);
        assert_eq!(after.anon_huge >= 60 * MB, was_huge, "{after:?}");
        assert_eq!((after.mapping, after.advised), (before.mapping, before.advised));
        assert_eq!((after.paced, after.attributes), (false, before.attributes));
        finish(held);
    }
}

#[test]
fn issue_31_7_memory_is_a_part_beside_code() {
    need_root!();
    let held = reader("small");
    let words = ["--by", "part", "--parts", "text,rodata,anon", "--pairs", "12", "--seed", "1"];
    let result = json(&held, "compare-by", &words);
    let all = result["parts"].as_array().expect("parts");
    let anon = all.iter().find(|one| one["object"].is_null() && one["part"] == "anon");
    assert!(anon.is_some_and(|one| one["bytes"].as_u64() >= Some(60 * MB)), "{all:?}");
    assert!(all.iter().any(|one| one["part"] == "text"), "{all:?}");
    assert_eq!(memory(&held).anon_huge, 0);
    let shown = compare(&held, &["--by", "part", "--parts", "heap,anon", "--pairs", "10"]);
    assert_eq!((shown.end, &*shown.stderr), (End::Code(0), ""), "{}", shown.stdout);
    assert!(shown.stdout.contains("\nanon "), "{}", shown.stdout);
    assert!(!shown.stdout.contains("memory that it has written to"), "{}", shown.stdout);
    finish(held);
}

#[test]
fn issue_31_8_an_interrupt_leaves_memory_as_it_was() {
    need_root!();
    let held = reader("small");
    for _ in 0..3 {
        let words =
            ["compare", "--pid", &held.pid().to_string(), "--same-copy", "--parts", "anon", "--time", "1m"];
        let mut command = Command::new(HUGELIFT);
        let command = command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("hugelift");
        until("it is on huge pages", || memory(&held).anon_huge >= 60 * MB);
        std::thread::sleep(Duration::from_millis(700));
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("kill");
        child.wait().expect("its end");
        let after = memory(&held);
        assert_eq!((after.anon_huge, after.paced, after.advised), (0, false, false), "{after:?}");
    }
    finish(held);
}

/// Its mapping has advice that a change of its page size would take away.
#[test]
fn issue_31_8_memory_that_cannot_be_switched_is_refused() {
    need_root!();
    let python = "import mmap,time\nm = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                  m.madvise(mmap.MADV_RANDOM)\nm.write(b'1' * (64 << 20))\nprint('ready', flush=True)\n\
                  while True: sum(range(1000)); time.sleep(0)";
    let mut random = Command::new("python3");
    let mut random = random.args(["-c", python]).stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = [0; 5];
    std::io::Read::read_exact(random.stdout.as_mut().expect("its output"), &mut line).expect("a line");
    let pid = random.id();
    let is_random = |usage: &Usage| usage.paced && usage.mapping.range.len() >= 64 * MB;
    assert!(smaps(pid).iter().any(is_random));
    let cmd = ["compare", "--pid", &pid.to_string(), "--same-copy", "--parts", "anon", "--pairs", "6"];
    let outcome = Cmd::new([HUGELIFT]).args(cmd).patience(2 * PATIENCE).bare();
    let still = smaps(pid).iter().any(|usage| is_random(usage) && usage.anon_huge == 0);
    random.kill().and_then(|()| random.wait()).expect("its end");
    assert!(still, "{outcome:?}");
    // Its interpreter may have other memory that can be switched, and its work may be steady or not.
    assert!(matches!(outcome.end, End::Code(0 | 125)) && outcome.stderr.lines().count() <= 1, "{outcome:?}");

    let held = reader("small");
    for (words, says) in [
        (&["--parts", "anon"][..], "--parts anon: 'hugelift restore' undoes text and rodata alone"),
        (&["--same-copy", "--parts", "stack"], "--parts stack"),
        (&["--same-copy", "--parts", "heap"], "no whole huge page of the memory of"),
    ] {
        let outcome = compare(&held, words);
        assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
        assert!(outcome.stderr.contains(says) && outcome.stderr.lines().count() == 1, "{outcome:?}");
    }
    assert!(!memory(&held).attributes.contains(&Attribute::NoHuge));
    finish(held);
}
