// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift attach`: only the code in use is copied.

use crate::common::huge::smaps;
use crate::common::run::{has_signal, until};
use crate::common::{Cmd, End, HUGELIFT, Outcome, plain};
use crate::heat::Pages;
use crate::need_root;
use hugelift_core::addr::{Addr, Range};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const HUGE: u64 = 2 << 20;

/// Returns a program of 13 huge pages of code, whose functions begin on one of them.
pub fn wide() -> PathBuf {
    let flags = ["-fno-toplevel-reorder", "-DWIDE", "-Wl,-z,max-page-size=0x200000"];
    plain("pages").flags(&flags).build()
}

fn attach(args: &[&str]) -> Outcome {
    Cmd::new([HUGELIFT, "attach", "--backing", "thp"]).args(args).bare()
}

/// Returns which of the huge pages of the program's code are copies, by number from that of its hot functions.
fn huge_pages(pages: &Pages) -> Vec<i64> {
    assert_eq!(pages.start % HUGE, 0, "its functions begin on a huge page");
    let usages = smaps(pages.pid().parse().expect("a number"));
    let is_huge = |n: &i64| {
        let start = pages.start.checked_add_signed(n * HUGE.cast_signed()).expect("an address");
        let range = Range::sized(Addr(start), HUGE).expect("a range");
        usages.iter().any(|usage| usage.mapping.range.covers(range) && usage.anon_huge > 0)
    };
    (-2..5).filter(is_huge).collect()
}

/// Attaches until the samples suffice: the tests may have little of the machine.
fn attach_hot(pages: &Pages, more: &[&str]) -> Outcome {
    let mut outcome = attach(&[more, &["--sample", "1", &pages.pid()]].concat());
    for _ in 0..5 {
        if !outcome.stderr.contains("none of them in code of its files") {
            break;
        }
        outcome = attach(&[more, &["--sample", "4", &pages.pid()]].concat());
    }
    assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{outcome:?}");
    outcome
}

#[test]
fn issue_31_4_only_the_code_in_use_is_copied() {
    need_root!();
    let pages = Pages::of(&wide(), &["64"]);
    assert!(huge_pages(&pages).is_empty());
    let lifted = attach_hot(&pages, &[]);
    assert_eq!(huge_pages(&pages), [0], "{lifted:?}");
    for want in [" % of those in its files are in ", "text 2 MB of "] {
        assert!(lifted.stdout.contains(want), "{want}: {lifted:?}");
    }
    // A second time there is nothing to do, and all of it can still be lifted.
    attach_hot(&pages, &[]);
    assert_eq!(huge_pages(&pages), [0]);
    let whole = attach(&["--whole", &pages.pid()]);
    assert_eq!((whole.end, huge_pages(&pages)), (End::Code(0), (-2..5).collect()), "{whole:?}");
    let restored = Cmd::new([HUGELIFT, "restore", &pages.pid()]).bare();
    assert_eq!((restored.end, huge_pages(&pages)), (End::Code(0), vec![]), "{restored:?}");
}

/// Functions that fill two huge pages are hot in both; the budget takes one.
#[test]
fn issue_31_4_a_budget_is_kept() {
    need_root!();
    let pages = Pages::of(&wide(), &["1000"]);
    let none = attach_hot(&pages, &["--budget", "1M"]);
    assert!(
        none.stdout.contains("; the budget allows 0 B more\n") && huge_pages(&pages).is_empty(),
        "{none:?}"
    );
    let one = attach_hot(&pages, &["--budget", "2M"]);
    assert!(one.stdout.contains("; the budget allows 2 MB more\n"), "{one:?}");
    assert_eq!(huge_pages(&pages).len(), 1, "{one:?}");
    // It is the sum of all copies, whenever they were made.
    let again = attach_hot(&pages, &["--budget", "2M"]);
    assert!(
        again.stdout.contains("; the budget allows 0 B more\n") && huge_pages(&pages).len() == 1,
        "{again:?}"
    );
    let both = attach_hot(&pages, &[]);
    assert_eq!(huge_pages(&pages), [0, 1], "{both:?}");
}

#[test]
fn issue_31_4_what_sleeps_or_ends_stays_as_it_is() {
    need_root!();
    let asleep = Pages::of(&wide(), &["0"]);
    let left = attach(&["--sample", "300ms", &asleep.pid()]);
    let want = format!(
        "(process {}): 0 samples in 0.3 s, none of them in code of its files: no code is copied ('hugelift attach \
         --whole {0}' copies all)\n",
        asleep.pid()
    );
    assert!(left.end == End::Code(0) && left.stderr.ends_with(&want), "{left:?}");
    assert!(huge_pages(&asleep).is_empty());

    let short = Pages::of(&wide(), &["64", "6"]);
    let ended = attach(&["--sample", "1m", &short.pid()]);
    assert!(
        ended.end == End::Code(125) && ended.stderr.ends_with(": it ended while it was sampled\n"),
        "{ended:?}"
    );
}

/// Several processes are sampled at the same time, and of each its own code in use is copied.
#[test]
fn issue_31_4_several_processes_are_sampled_together() {
    need_root!();
    let (one, two, asleep) = ["64", "1000", "0"].map(|functions| Pages::of(&wide(), &[functions])).into();
    let pids = [&one, &two, &asleep].map(Pages::pid);
    let words = [&["--sample", "4", "--json"], &pids.each_ref().map(String::as_str)[..]].concat();
    let lifted = attach(&words);
    let shown: Value = serde_json::from_str(&lifted.stdout).expect("JSON");
    // Four seconds for all, and not for each.
    let took = |line: &str| {
        let seconds = line.split_once(" samples in ").and_then(|(_, rest)| rest.split(' ').next());
        let seconds: f64 = seconds.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        assert!((4.0..8.0).contains(&seconds), "{line}");
    };
    (0..2).for_each(|row| took(shown["processes"][row]["lines"][0].as_str().expect("a line")));
    assert_eq!((huge_pages(&one), huge_pages(&two)), (vec![0], vec![0, 1]), "{lifted:?}");
    assert!(huge_pages(&asleep).is_empty(), "{lifted:?}");
    let said = format!("(process {}): 0 samples in ", asleep.pid());
    let line = lifted.stderr.lines().find(|line| line.contains(&said));
    took(line.unwrap_or_else(|| panic!("{lifted:?}")));
    assert_eq!(lifted.end, End::Code(0), "{lifted:?}");
}

/// Without the right to sample all of the code is copied; but not if its memory is limited.
#[test]
fn issue_31_4_what_cannot_be_sampled_is_copied_whole() {
    need_root!();
    let number = nix::libc::SYS_perf_event_open.to_string();
    let deny = plain("deny").build();
    let denied = |pages: &Pages, more: &[&str]| {
        let by = [deny.to_str().expect("UTF-8"), "1", &number, &number, "140000"];
        Cmd::new([HUGELIFT, "attach", "--backing", "thp"])
            .args(more)
            .arg(pages.pid())
            .under(by)
            .env("DENY_SHOW", "1")
            .bare()
    };
    // The victim prints the time that the command took, and its exit status.
    let status = |outcome: &Outcome| outcome.stdout.split(' ').nth(1).map(String::from).unwrap_or_default();
    let pages = Pages::of(&wide(), &["64"]);
    let refused = denied(&pages, &["--budget", "8M"]);
    let why = "it cannot be sampled, so --budget cannot choose what is copied: perf_event_open: EPERM";
    assert!(status(&refused) == "125" && refused.stderr.contains(why), "{refused:?}");
    let helps = format!("'hugelift attach --whole {}' copies all", pages.pid());
    assert!(refused.stderr.contains(&helps), "{refused:?}");
    assert!(huge_pages(&pages).is_empty());
    let whole = denied(&pages, &[]);
    let why = "it cannot be sampled, so all of its code is copied: perf_event_open: EPERM";
    assert!(status(&whole) == "0" && whole.stderr.contains(why), "{whole:?}");
    assert_eq!(huge_pages(&pages), (-2..5).collect::<Vec<_>>(), "{whole:?}");
}

/// ctrl-C ends the sampling of this process and of those that would follow, and nothing is lifted.
#[test]
fn issue_31_4_an_interrupt_leaves_all_as_it_is() {
    need_root!();
    let (first, second) = (Pages::of(&wide(), &["64"]), Pages::of(&wide(), &["64"]));
    let mut command = Command::new(HUGELIFT);
    command.args(["attach", "--backing", "thp", "--sample", "1m", &first.pid(), &second.pid()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
    // It samples once it reads the signal from a file, for which it has blocked it.
    until("it begins", || has_signal(child.id(), "SigBlk", Signal::SIGINT));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("kill");
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches(": a signal has ended the sampling; it is as before\n").count(), 2, "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{said}");
    assert!(huge_pages(&first).is_empty() && huge_pages(&second).is_empty());
}

#[test]
fn issue_31_4_senseless_options_are_refused() {
    for (args, why) in [
        (&["--whole", "--budget", "1M", "1"][..], "--budget <SIZE>"),
        (&["--whole", "--sample", "2", "1"], "--sample <TIME>"),
        (&["--watch", "--sample", "0", "1"], "'0' is "),
        (&["--sample", "0", "1"], "'0' is "),
    ] {
        let refused = Cmd::new([HUGELIFT, "attach"]).args(args).bare();
        assert!(refused.end == End::Code(125) && refused.stderr.contains(why), "{refused:?}");
    }
}
