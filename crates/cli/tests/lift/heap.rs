// SPDX-License-Identifier: Apache-2.0
//! The heap, which brk(2) manages: it begins with a whole huge page and grows and shrinks as
//! without hugelift, and what an allocator takes from it is huge.

use crate::common::huge::smaps;
use crate::common::{Cmd, End, Held, fat, find, plain};
use crate::need;

const PAGE: u64 = 2 << 20;
const KINDS: [&[&str]; 4] = [&["-pie", "-fPIE"], &["-no-pie"], &["-static"], &["-static-pie"]];
const ALL: [&str; 4] = ["--parts", "all", "--backing", "thp"];

/// Returns `start_brk` of proc_pid_stat(5).
fn start_of_heap(held: &Held) -> u64 {
    address(held, 47)
}

/// Returns `start_code` of proc_pid_stat(5).
fn start_of_code(held: &Held) -> u64 {
    address(held, 26)
}

fn address(held: &Held, field: usize) -> u64 {
    let stat = held.proc("stat");
    let mut fields = stat.rsplit(") ").next().expect("fields").split_whitespace();
    fields.nth(field - 3).expect("the field").parse().expect("an address")
}

#[test]
fn it_begins_with_a_whole_huge_page() {
    for flags in KINDS {
        let program = plain("writes").flags(flags).flags(&["-DNO_FORK"]).build();
        for before in [&[][..], &["setarch", "-R"]] {
            let cmd = Cmd::new([&program]).under(before);
            let bare = Held::start(&cmd, None, &program);
            let (code, bare) = (start_of_code(&bare), start_of_heap(&bare));
            let held = Held::start(&cmd, Some(&ALL), &program);
            let start = start_of_heap(&held);
            assert_eq!(start % PAGE, 0, "{flags:?} {before:?}: {start:#x}");
            if !before.is_empty() {
                // If the program is moved for its .bss and the heap lies behind it, the heap moves
                // too.
                let is_behind = bare > code && bare - code < 1 << 30;
                let moved = if is_behind { code - start_of_code(&held) } else { 0 };
                assert_eq!(start, (bare - moved).next_multiple_of(PAGE), "{flags:?}: not the next");
                // Without ASLR and hugelift it begins in the page in which .bss ends.
                assert_ne!(start, bare, "{flags:?}: the victim is unsuitable");
            }
            let outcome = held.finish();
            assert_eq!(
                (outcome.stdout.as_str(), outcome.end),
                ("as it should be\n", End::Code(0)),
                "{flags:?}"
            );
        }
        // The heap stays where it is unless `--parts` names it.
        let held = Held::start(
            &Cmd::new([&program]).under(["setarch", "-R"]),
            Some(&["--backing", "thp"]),
            &program,
        );
        assert_ne!(start_of_heap(&held) % PAGE, 0, "{flags:?}: moved without a request");
    }
}

/// The address of the heap is random at every start.
#[test]
fn it_stays_random() {
    let program = fat("hold").flags(&["-no-pie"]).build();
    let start = |_| start_of_heap(&Held::start(&Cmd::new([&program]), Some(&ALL), &program));
    let mut all: Vec<u64> = (0..8).map(start).collect();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 3, "{all:x?}");
}

/// The heap grows and shrinks by brk, sbrk and malloc, beside a `.bss` that ends in the same huge
/// page.
#[test]
fn it_grows_and_shrinks() {
    for flags in KINDS {
        for before in [&[][..], &["setarch", "-R"]] {
            for span in ["inner", "outer"] {
                let program = fat("heap").flags(flags).build();
                let cmd = Cmd::new([&program]).under(before);
                let outcome = cmd.lifted(&[&ALL[..], &["--span", span]].concat());
                assert_eq!(
                    (outcome.end, outcome.stderr.as_str()),
                    (End::Code(0), ""),
                    "{cmd:?}: {outcome:?}"
                );
                assert!(outcome.stdout.starts_with("heap grows"), "{outcome:?}");
            }
        }
    }
}

/// What perl's malloc takes from the heap later is on huge pages, from its first page on.
#[test]
fn what_malloc_takes_later_is_huge() {
    need!("perl");
    let perl = find("perl").expect("perl").canonicalize().expect("perl");
    let script = "my %h; $h{$_} = $_ for 1 .. 300000; <STDIN>; print scalar(keys %h), qq(\\n)";
    let held = Held::start(&Cmd::new(["perl", "-e", script]), Some(&ALL), &perl);
    let start = start_of_heap(&held);
    let heap = smaps(held.pid()).into_iter().filter(|u| u.mapping.is_named("[heap]"));
    let (mut bytes, mut huge, mut first) = (0, 0, 0);
    for usage in heap {
        (bytes, huge) = (bytes + usage.mapping.range.len(), huge + usage.anon_huge);
        if usage.mapping.range.start.0 == start {
            first = usage.anon_huge;
        }
    }
    assert!(bytes > 10 << 20 && huge * 10 >= bytes * 9, "{huge} of {bytes} bytes are huge");
    assert!(first >= PAGE, "the first page of the heap is not huge");
    assert_eq!(held.finish().stdout, "300000\n");
}
